"""A competition on disk: public files that solutions see, private ones that they never do.

Layout of a competition's folder::

    competition.yaml     name, title, category, metric, id_column, target_columns, split, licence, source
    public/              what a solution sees as DATA_DIR
        description.md           the task in words
        train.csv                id, features, targets
        test.csv                 id, features
        sample_submission.csv    id, targets
        images.npz               for images: arrays train and test, in the order of the tables
    private/             what it never sees
        answers.csv              id, targets, half: which rows count for training, which for evaluation
        public_leaderboard.csv   rank, score: the board of the public half
        private_leaderboard.csv  rank, score: the board of the private half

All tables are CSV in UTF-8.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from wmrl_envs.autoresearch.checks import HALVES, check_competition
from wmrl_envs.autoresearch.leaderboard import percentile
from wmrl_envs.autoresearch.matching import positions, reference_index
from wmrl_envs.autoresearch.metrics import Metric, get_metric
from wmrl_envs.autoresearch.tables import read_columns, read_table, read_text
from wmrl_envs.errors import CompetitionError
from wmrl_envs.sandbox.cache import folder_digest
from wmrl_envs.sandbox.job import Sandbox

__all__ = [
    "CATEGORIES",
    "Category",
    "Competition",
    "Grader",
    "Half",
    "ScoreKind",
    "Split",
    "bundled_names",
    "competition_names",
    "load_competition",
    "open_competition",
    "read_settings",
]

Category = Literal["tabular", "text", "image"]
Half = Literal["public", "private"]
Split = Literal["train", "heldout"]
ScoreKind = Literal["percentile", "rpg"]

CATEGORIES: tuple[Category, ...] = ("tabular", "text", "image")
BUNDLED = Path(__file__).with_name("data")
FILES = (
    "competition.yaml",
    "public/description.md",
    "public/train.csv",
    "public/test.csv",
    "public/sample_submission.csv",
    "private/answers.csv",
    "private/public_leaderboard.csv",
    "private/private_leaderboard.csv",
)


class Grader(Protocol):
    """What scores submissions where a competition brings a grader of its own."""

    def score(
        self, competition: Competition, submission_path: str | Path | None, sandbox: Sandbox | None = None
    ) -> float:
        """See `wmrl_envs.autoresearch.grading.score_submission`."""
        ...


@dataclass(frozen=True)
class Competition:
    """One competition; cheap to copy and to pickle, tables are read on demand.

    Attributes:
        name: Unique short name (a slug).
        title: What people call it.
        category: ``tabular``, ``text`` or ``image``.
        metric: How submissions are scored.
        root: The competition's folder.
        id_column: Column that names a row.
        target_columns: Columns that a submission has besides the id.
        split: ``train`` or ``heldout``: whether agents may be trained on it.
        version: Sizes and times of its files when it was loaded. A folder that changes makes another
            competition, so that nothing that was read before is used for it.
        grader: Its own grader; None for that of this project.

    Example:
        >>> competition = load_competition("breast-cancer")
        >>> competition.metric.name, competition.target_columns
        ('roc_auc', ('malignant',))
    """

    name: str
    title: str
    category: Category
    metric: Metric
    root: Path
    id_column: str
    target_columns: tuple[str, ...]
    split: Split = "train"
    version: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    grader: Grader | None = field(default=None, repr=False)

    @property
    def public_dir(self) -> Path:
        """The folder that a solution sees as ``DATA_DIR``."""
        return self.root / "public"

    @property
    def private_dir(self) -> Path:
        """Answers and leaderboards; never visible to a solution."""
        return self.root / "private"

    @property
    def train_path(self) -> Path:
        """Table of the training rows."""
        return self.public_dir / "train.csv"

    @property
    def test_path(self) -> Path:
        """Table of the test rows."""
        return self.public_dir / "test.csv"

    @property
    def sample_path(self) -> Path:
        """The sample submission."""
        return self.public_dir / "sample_submission.csv"

    @property
    def answers_path(self) -> Path:
        """Table of the answers."""
        return self.private_dir / "answers.csv"

    @property
    def board_paths(self) -> tuple[Path, ...]:
        """Tables of the leaderboards."""
        return tuple(self.private_dir / f"{half}_leaderboard.csv" for half in HALVES)

    @property
    def score_kind(self) -> ScoreKind:
        """What a graded score is turned into: see `rank`."""
        return "percentile"

    @property
    def grading_version(self) -> str:
        """Changes with every file that a grade depends on."""
        return folder_digest(self.private_dir)

    @property
    def description(self) -> str:
        """The task in words."""
        return read_text(self.public_dir / "description.md")

    def place(self, path: Path) -> str:
        """How a file of the competition is called: relative to its folder."""
        return Path(os.path.relpath(path, self.root)).as_posix()

    def columns(self, file: str) -> list[str]:
        """Columns of one of the tables, given relative to the folder: ``public/train.csv``."""
        return read_columns(self.root / file)

    def answers(self, half: Half | None = None) -> pd.DataFrame:
        """Answers of one half of the test rows, of all rows for None.

        Returns:
            Id (text, as it stands in the file), targets and half. Labels are whole numbers if those of the
            training rows are, else text; other targets are numbers.
        """
        table = _answers(self)
        return table.copy() if half is None else table[table["half"] == half]

    def answer_ids(self) -> pd.Index:
        """Ids of the answers, to be compared as `wmrl_envs.autoresearch.matching` says."""
        return reference_index(_answers(self)[self.id_column])

    def training_labels(self, target: str) -> pd.Index:
        """Distinct labels of the training rows."""
        return _training_labels(self, target)

    def leaderboard(self, half: Half) -> tuple[float, ...]:
        """Scores of the board for that half of the test rows, best first, NaN last."""
        return _leaderboard(self, half)

    def rows(self, half: Half) -> NDArray[np.intp]:
        """Numbers of the answers that belong to a half."""
        return np.flatnonzero(_answers(self)["half"] == half)

    def rank(self, score: float, half: Half) -> float:
        """What a metric value is worth in [0, 1]: its percentile on that half's board."""
        return percentile(score, self.leaderboard(half), self.metric.higher_is_better)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by folder: a metric holds closures."""
        return (load_competition, (str(self.root),))


@lru_cache(maxsize=64)
def _answers(competition: Competition) -> pd.DataFrame:
    labels = list(competition.target_columns) if competition.metric.prediction == "label" else []
    text = [competition.id_column, "half", *labels]
    table = read_table(competition.answers_path, text=text)
    for target in labels:
        known = competition.training_labels(target)
        where = positions(table[target], known)
        if known.dtype == "int64" and (where >= 0).all():
            table[target] = known.to_numpy()[where]
    return table


@lru_cache(maxsize=256)
def _training_labels(competition: Competition, target: str) -> pd.Index:
    train = read_table(competition.train_path, columns=[target], text=[target])
    labels = train[target].str.strip().drop_duplicates()
    return reference_index(labels[labels != ""])


@lru_cache(maxsize=256)
def _leaderboard(competition: Competition, half: Half) -> tuple[float, ...]:
    table = read_table(competition.private_dir / f"{half}_leaderboard.csv", columns=["score"])
    scores = pd.to_numeric(table["score"], errors="coerce")
    ascending = not competition.metric.higher_is_better
    return tuple(scores.sort_values(ascending=ascending, na_position="last").astype(float).tolist())


def competition_names(data_root: str | Path | None = None, split: Split | None = None) -> list[str]:
    """Names of the competitions in a folder, or of the bundled ones.

    Args:
        data_root: Folder of competition folders; None for those that come with the package.
        split: Only those of one split.
    """
    from wmrl_envs.autoresearch.sources.formats import foreign_names  # it imports this module

    base = BUNDLED if data_root is None else Path(data_root)
    own = sorted(path.parent.name for path in base.glob("*/competition.yaml"))
    own = [n for n in own if split is None or load_competition(n, data_root).split == split]
    return own if data_root is None else sorted({*own, *foreign_names(base, split)})


def bundled_names() -> list[str]:
    """Names of the competitions that come with the package."""
    return competition_names()


def load_competition(
    name_or_dir: str | Path, data_root: str | Path | None = None, dojo_root: str | Path | None = None
) -> Competition:
    """Load a bundled competition by name, or any by its folder.

    A folder may be in the layout of this module, or in that of MLE-Dojo, MLE-bench or DSBench: it is
    recognised (`wmrl_envs.autoresearch.sources`).

    Args:
        name_or_dir: Name of a bundled competition, or path of a folder.
        data_root: Folder of competition folders to look the name up in, instead of the bundled ones.
        dojo_root: Code tree of the competitions' authors, where their package is not installed: it holds the
            metrics of MLE-Dojo, or the graders of MLE-bench.

    Raises:
        CompetitionError: There is no such competition, or something is missing or wrong in its folder.
    """
    foreign = _foreign(name_or_dir, data_root, dojo_root)
    if foreign is not None:
        return foreign
    root = _find(name_or_dir, data_root)
    return _load(root, _version(root))


def open_competition(root: Path) -> Competition:
    """A competition by its folder, whose tables nobody has looked at: to be checked.

    Raises:
        CompetitionError: A file is missing, or competition.yaml is wrong.
    """
    version = _version(root)
    return _from_settings(root, read_settings(root / "competition.yaml"), version)


@lru_cache(maxsize=256)
def _load(root: Path, version: tuple[tuple[int, int], ...]) -> Competition:
    competition = open_competition(root)
    for finding in check_competition(competition):
        if finding.severity == "error":
            raise CompetitionError(f"{root / finding.where} {finding.message}")
    return competition


def _version(root: Path) -> tuple[tuple[int, int], ...]:
    missing = [file for file in FILES if not (root / file).is_file()]
    if missing:
        raise CompetitionError(f"The competition folder {root} is incomplete: add {', '.join(missing)}.")
    stats = [(root / file).stat() for file in FILES]
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)


def _foreign(
    name_or_dir: str | Path, data_root: str | Path | None, dojo_root: str | Path | None
) -> Competition | None:
    from wmrl_envs.autoresearch.sources.formats import foreign_competition  # it imports this module

    given = Path(name_or_dir)
    base = given.parent if data_root is None else Path(data_root)
    if data_root is None and not os.path.isdir(given):  # a long name is no error there
        return None
    code_root = None if dojo_root is None else Path(dojo_root).resolve()
    name = given.name if data_root is None else str(name_or_dir)
    return foreign_competition(base.resolve(), name, code_root)


def _find(name_or_dir: str | Path, data_root: str | Path | None) -> Path:
    base = BUNDLED if data_root is None else Path(data_root)
    if not base.is_dir():
        raise CompetitionError(f"The data root {base} is not a folder.")
    for candidate in (base / name_or_dir, Path(name_or_dir)):
        if os.path.isfile(candidate / "competition.yaml"):
            return candidate.resolve()
    if os.path.isdir(Path(name_or_dir)) and str(name_or_dir) not in ("", "."):
        raise CompetitionError(f"The folder {name_or_dir} is no competition: it has no competition.yaml.")
    names = competition_names(data_root)
    close = difflib.get_close_matches(str(name_or_dir), names, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"Choose one of {', '.join(names)}."
    if not names:
        hint = f"There are no competitions in {base}."
    raise CompetitionError(f"Unknown competition '{str(name_or_dir)[:100]}'. {hint}")


def read_settings(path: Path) -> dict[str, Any]:
    """A file of settings.

    Raises:
        CompetitionError: It is no YAML, or holds something else.
    """
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CompetitionError(f"{path} is not valid YAML: {str(error).splitlines()[0]}.") from error
    if not isinstance(settings, dict):
        raise CompetitionError(f"{path} must hold settings, one 'name: value' a line.")
    return settings


def _from_settings(root: Path, settings: dict[str, Any], version: tuple[tuple[int, int], ...]) -> Competition:
    path = root / "competition.yaml"
    required = ("title", "category", "metric", "id_column", "target_columns")
    missing = [key for key in required if key not in settings]
    if missing:
        raise CompetitionError(f"{path} lacks {', '.join(missing)}.")
    for key, allowed in (("category", CATEGORIES), ("split", ("train", "heldout"))):
        if settings.get(key, "train") not in allowed:
            raise CompetitionError(
                f"{path}: {key} must be one of {', '.join(allowed)}, not {settings[key]!r}."
            )
    targets = settings["target_columns"]
    if not isinstance(targets, list) or not targets:
        raise CompetitionError(f"{path}: target_columns must be a list of column names, not {targets!r}.")
    if settings["id_column"] in targets:
        raise CompetitionError(f"{path}: the id column '{settings['id_column']}' cannot be a target too.")
    return Competition(
        name=str(settings.get("name", root.name)),
        title=str(settings["title"]),
        category=settings["category"],
        metric=get_metric(str(settings["metric"])),
        root=root,
        id_column=str(settings["id_column"]),
        target_columns=tuple(str(column) for column in targets),
        split=settings.get("split", "train"),
        version=version,
    )
