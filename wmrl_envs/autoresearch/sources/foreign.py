"""Competitions in other people's layouts: where their files are, and how their boards rank a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wmrl_envs.autoresearch.competition import Category, Competition, Grader, Half, load_competition
from wmrl_envs.autoresearch.leaderboard import percentile
from wmrl_envs.autoresearch.metrics import Metric
from wmrl_envs.autoresearch.sources.foreign_grader import scored_elsewhere
from wmrl_envs.autoresearch.sources.splits import split_of
from wmrl_envs.autoresearch.tables import read_columns, read_table, read_text
from wmrl_envs.errors import CompetitionError

__all__ = ["ForeignCompetition", "Layout", "make_competition", "own_metric", "require", "sorted_upwards"]


@dataclass(frozen=True)
class Layout:
    """Where the files of a competition are.

    Attributes:
        root: The competition's folder.
        public: What a solution sees as ``DATA_DIR``.
        private: Folder of the answers.
        description: The task in words.
        sample: The sample submission.
        answers: The answers.
        boards: Leaderboards; a score is worth the mean of its percentiles on them.
        code: Files of the grader.
        data_root: Folder that the competition was looked up in.
        code_root: Code tree that was given with it.
    """

    root: Path
    public: Path
    private: Path
    description: Path
    sample: Path
    answers: Path
    boards: tuple[Path, ...]
    code: tuple[Path, ...]
    data_root: Path
    code_root: Path | None = None

    @property
    def version(self) -> tuple[tuple[int, int], ...]:
        """Sizes and times of all that a grade depends on."""
        stats = [path.stat() for path in (self.sample, self.answers, *self.boards, *self.code)]
        return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)


@dataclass(frozen=True)
class ForeignCompetition(Competition):
    """A competition in another layout. All its test rows are scored, whichever half is asked for.

    Attributes:
        layout: Where its files are.
    """

    layout: Layout = field(kw_only=True, repr=False)

    @property
    def public_dir(self) -> Path:
        """The folder that a solution sees as ``DATA_DIR``."""
        return self.layout.public

    @property
    def private_dir(self) -> Path:
        """The folder of the answers; never visible to a solution."""
        return self.layout.private

    @property
    def sample_path(self) -> Path:
        """The sample submission."""
        return self.layout.sample

    @property
    def answers_path(self) -> Path:
        """Table of the answers."""
        return self.layout.answers

    @property
    def board_paths(self) -> tuple[Path, ...]:
        """Tables of the leaderboards."""
        return self.layout.boards

    @property
    def description(self) -> str:
        """The task in words."""
        return read_text(self.layout.description)

    @property
    def grading_version(self) -> str:
        """Changes with every file that a grade depends on."""
        return str(self.version)

    def answers(self, half: Half | None = None) -> pd.DataFrame:
        """Answers of all test rows: there are no halves."""
        return super().answers()

    def rows(self, half: Half) -> NDArray[np.intp]:
        """Numbers of all answers: there are no halves."""
        return np.arange(len(self.answers()))

    def leaderboard(self, half: Half) -> tuple[float, ...]:
        """Scores of the board of that name, best first, NaN last; of the only board where there is one."""
        return self._board(self.layout.boards[0 if half == "public" else -1])

    def rank(self, score: float, half: Half) -> float:
        """Mean of the score's percentiles on the competition's boards."""
        higher = self.metric.higher_is_better
        return float(np.mean([percentile(score, self._board(path), higher) for path in self.layout.boards]))

    def _board(self, path: Path) -> tuple[float, ...]:
        stat = path.stat()
        scores = read_board(path, (stat.st_size, stat.st_mtime_ns))
        return scores if sorted_upwards(scores) != self.metric.higher_is_better else scores[::-1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by folder."""
        return (load_competition, (self.name, self.layout.data_root, self.layout.code_root))


C = TypeVar("C", bound=ForeignCompetition)


@lru_cache(maxsize=512)
def read_board(path: Path, version: tuple[int, int]) -> tuple[float, ...]:
    """Scores of a leaderboard in the order of the file; `version` says when it has to be read again.

    Raises:
        CompetitionError: It has no column ``score``, or no finite score.
    """
    if "score" not in read_columns(path):
        raise CompetitionError(f"{path} has no column 'score'.")
    scores = pd.to_numeric(read_table(path, columns=["score"])["score"], errors="coerce")
    if not np.isfinite(scores).any():
        raise CompetitionError(f"{path} has no finite score.")
    return tuple(scores.astype(float).tolist())


def sorted_upwards(scores: Sequence[float]) -> bool:
    """Whether a board's first score is below its last one, so that lower is better."""
    finite = [score for score in scores if np.isfinite(score)]
    return finite[0] < finite[-1]


def own_metric(name: str, boards: Sequence[Path], higher_is_better: bool = True) -> Metric:
    """The metric of a competition with a grader of its own; its boards say which way is better.

    Args:
        name: What it is called.
        boards: Leaderboards, best score first.
        higher_is_better: Direction if all scores of the boards are equal.
    """
    for path in boards:
        stat = path.stat()
        scores = read_board(path, (stat.st_size, stat.st_mtime_ns))
        if len({score for score in scores if np.isfinite(score)}) > 1:
            higher_is_better = not sorted_upwards(scores)
            break
    return Metric(name, scored_elsewhere, higher_is_better, (-inf, inf), "sample")


def require(name: str, format_name: str, paths: dict[str, Path]) -> None:
    """Check that the files of a competition are there.

    Args:
        name: The competition.
        format_name: What its layout is called.
        paths: Each file by what it is.

    Raises:
        CompetitionError: One is missing; the sentence names the first.
    """
    for what, path in paths.items():
        if not path.exists():
            raise CompetitionError(
                f"The {format_name} competition '{name}' has no {what}: expected at {path}."
            )


def make_competition(
    kind: type[C],
    layout: Layout,
    *,
    name: str,
    category: Category | None,
    metric: Metric,
    grader: Grader | None,
) -> C:
    """A competition whose columns are those of its sample submission: first the id, then the targets.

    Args:
        kind: The class to make.
        layout: Where its files are.
        name: Its name, from which its title is made.
        category: Its category; ``tabular`` where nobody knows.
        metric: Its metric.
        grader: Its own grader, None for that of this project.

    Raises:
        CompetitionError: A table cannot be read, or the sample submission has a single column.
    """
    columns = read_columns(layout.sample)
    if len(columns) < 2:
        raise CompetitionError(f"{layout.sample} must have an id column and at least one target.")
    return kind(
        name=name,
        title=name.replace("-", " ").capitalize(),
        category=category or "tabular",
        metric=metric,
        root=layout.root,
        id_column=columns[0],
        target_columns=tuple(columns[1:]),
        split=split_of(name),
        version=layout.version,
        grader=grader,
        layout=layout,
    )
