"""Read DSBench's data-modelling tasks, in the layout of the released zip.

::

    data/task/<name>.txt                        the task in words
    data/data_resplit/<name>/{train.csv, test.csv, *submission*.csv}
    data/answers/<name>/test_answer.csv

``data_root`` is the folder ``data`` or the one that holds it. Rows are matched by id, never by order.

Where this project has the task's metric, it is used; else the task's own script runs in the sandbox, on rows
that were put in order: ``evaluation/<name>_eval.py`` beside ``data``.

There are no leaderboards in the release. Where the user has one (``*leaderboard*.csv`` beside the answers) a
score is worth its percentile; else its relative performance gap,
RPG = max(0, (p - baseline) / (best - baseline)), at most 1 here. Baseline and best are those of
``save_performance/{baseline,GT}/<name>/result.txt`` where they exist; else the scores of the sample
submission and of the answers themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from wmrl_envs.autoresearch.competition import Competition, Half, ScoreKind
from wmrl_envs.autoresearch.grading import RefusedError, score_submission
from wmrl_envs.autoresearch.matching import to_float
from wmrl_envs.autoresearch.metrics import METRICS, Metric
from wmrl_envs.autoresearch.sources.dsbench_tasks import find_sample, find_task, names, resplit_folder
from wmrl_envs.autoresearch.sources.foreign import (
    ForeignCompetition,
    Layout,
    make_competition,
    own_metric,
    require,
)
from wmrl_envs.autoresearch.sources.foreign_grader import ForeignGrader
from wmrl_envs.autoresearch.tables import read_columns, read_table
from wmrl_envs.errors import CompetitionError
from wmrl_envs.sandbox.scratch import new_file

__all__ = ["DSBenchCompetition", "holds", "names", "read"]

NAME = "DSBench"


@dataclass(frozen=True)
class DSBenchCompetition(ForeignCompetition):
    """A task of DSBench."""

    @property
    def score_kind(self) -> ScoreKind:
        """``percentile`` where there is a leaderboard, else ``rpg``."""
        return "percentile" if self.layout.boards else "rpg"

    def leaderboard(self, half: Half) -> tuple[float, ...]:
        """Scores of the user's leaderboard, best first, NaN last.

        Raises:
            CompetitionError: There is none.
        """
        if not self.layout.boards:
            raise CompetitionError(
                f"DSBench has no leaderboard for '{self.name}': scores are worth their RPG."
            )
        return super().leaderboard(half)

    def rank(self, score: float, half: Half) -> float:
        """Percentile on the user's leaderboard, else the RPG."""
        return super().rank(score, half) if self.layout.boards else self.rpg(score)

    def rpg(self, score: float) -> float:
        """Relative performance gap of a score, in [0, 1].

        Raises:
            CompetitionError: Baseline and best cannot be had, or are equal.
        """
        baseline, best = reference_scores(self)
        return float(np.clip((score - baseline) / (best - baseline), 0.0, 1.0))


def holds(data_root: Path, name: str) -> bool:
    """Whether the folder holds that task in this layout."""
    return name in names(data_root)


def read(data_root: Path, name: str, code_root: Path | None = None) -> DSBenchCompetition:
    """Read a task.

    Args:
        data_root: The folder ``data``, or the one that holds it.
        name: The task's name.
        code_root: Folder that holds ``evaluation`` and ``save_performance``, if they are not beside ``data``.

    Raises:
        CompetitionError: A file is missing or wrong, or there is no metric for it.
    """
    public = (resplit_folder(data_root) or data_root) / name
    base = public.parent.parent
    script = _beside(base, code_root, f"evaluation/{name}_eval.py")
    private = base / "answers" / name
    layout = Layout(
        root=public,
        public=public,
        private=private,
        description=base / "task" / f"{name}.txt",
        sample=find_sample(public) or public / "sample_submission.csv",
        answers=private / "test_answer.csv",
        boards=tuple(sorted(private.glob("*leaderboard*.csv"))),
        code=() if script is None else (script,),
        data_root=data_root,
        code_root=code_root,
    )
    files = {"description": layout.description, "sample submission": layout.sample, "answers": layout.answers}
    require(name, NAME, files | {"training table": public / "train.csv"})
    metric = _known_metric(name, layout)
    if metric is None and script is None:
        raise CompetitionError(
            f"This project has no metric for the DSBench task '{name}': put DSBench's folder evaluation, "
            f"with {name}_eval.py, beside the folder data."
        )
    grader = (
        None if script is None or metric is not None else ForeignGrader("dsbench", (script,), script.name)
    )
    task = find_task(name)
    competition = make_competition(
        DSBenchCompetition,
        layout,
        name=name,
        category=task.category if task else None,
        metric=metric or own_metric(*_direction(name, layout)),
        grader=grader,
    )
    _check_tables(competition)
    return competition


def _beside(base: Path, code_root: Path | None, path: str) -> Path | None:
    """A file of the code tree, which the zip is unpacked into."""
    places = [base.parent, base] if code_root is None else [code_root]
    return next((place / path for place in places if (place / path).is_file()), None)


def _known_metric(name: str, layout: Layout) -> Metric | None:
    """The task's metric, if this project has it; several targets are taken by some only."""
    task = find_task(name)
    metric = METRICS.get(task.registered_metric or "") if task else None
    several = len(read_columns(layout.sample)) > 2
    return None if metric is None or (several and not metric.several_targets) else metric


def _direction(name: str, layout: Layout) -> tuple[str, tuple[Path, ...], bool]:
    """What a script's metric is called, the boards that say which way is better, and what is so else."""
    task = find_task(name)
    if task is not None:
        return task.metric, layout.boards, task.higher_is_better
    return "score", layout.boards, True


def _check_tables(competition: DSBenchCompetition) -> None:
    """Answers, and for labels the training rows, have the sample's columns; other answers are numbers."""
    wanted = [competition.id_column, *competition.target_columns]
    tables = {competition.answers_path: wanted}
    if competition.metric.prediction == "label":
        tables[competition.train_path] = list(competition.target_columns)
    for path, columns in tables.items():
        missing = sorted(set(columns) - set(read_columns(path)))
        if missing:
            raise CompetitionError(f"{path} lacks the column '{missing[0]}' of the sample submission.")
    if competition.grader is not None or competition.metric.prediction == "label":
        return
    for target in competition.target_columns:
        if not np.isfinite(to_float(competition.answers()[target])).all():
            raise CompetitionError(
                f"{competition.answers_path} has values of {target} that are no finite numbers."
            )


@lru_cache(maxsize=256)
def reference_scores(competition: DSBenchCompetition) -> tuple[float, float]:
    """Scores of the baseline and of the best solution.

    Raises:
        CompetitionError: They cannot be had, or are equal.
    """
    layout = competition.layout
    base = layout.public.parent.parent
    paths = [
        _beside(base, layout.code_root, f"save_performance/{kind}/{competition.name}/result.txt")
        for kind in ("baseline", "GT")
    ]
    if paths[0] is not None and paths[1] is not None:
        baseline, best = _number(paths[0]), _number(paths[1])
    else:
        baseline, best = (_score(competition, path) for path in (layout.sample, layout.answers))
    if baseline == best:
        raise CompetitionError(
            f"Baseline and best of the DSBench task '{competition.name}' are both {best}: there is no gap to "
            "measure scores by."
        )
    return baseline, best


def _number(path: Path) -> float:
    """A result file holds a number, and is never evaluated as a program."""
    try:
        return float(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CompetitionError(f"{path} must hold a number.") from error


def _score(competition: Competition, path: Path) -> float:
    """What a table of the task would score as a submission."""
    columns = [competition.id_column, *competition.target_columns]
    with new_file("reference-") as (file, submission):
        read_table(path, columns=columns, text=columns)[columns].to_csv(file, index=False)
    try:
        return score_submission(competition, submission)
    except RefusedError as refused:
        raise CompetitionError(f"{path} has no score: {refused.grade.message}") from refused
    finally:
        submission.unlink()
