"""A competition on disk: public files that solutions see, private ones that they never do.

Layout of a competition's folder::

    competition.yaml                 name, title, category, metric, id_column, target_columns, split, licence, source
    public/description.md            the task in words
    public/train.csv test.csv sample_submission.csv, for images also images.npz
    private/answers.csv              id, targets, and `half`: which rows count for training, which for evaluation
    private/public_leaderboard.csv   rank, score
    private/private_leaderboard.csv  rank, score
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

from wmrl_envs.autoresearch.metrics import Metric, get_metric
from wmrl_envs.errors import CompetitionError

__all__ = ["CATEGORIES", "Competition", "Half", "load_competition"]

Category = Literal["tabular", "text", "image"]
Half = Literal["public", "private"]

CATEGORIES: tuple[Category, ...] = ("tabular", "text", "image")
BUNDLED = Path(__file__).with_name("data")
PUBLIC_FILES = ("description.md", "train.csv", "test.csv", "sample_submission.csv")
PRIVATE_FILES = ("answers.csv", "public_leaderboard.csv", "private_leaderboard.csv")


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
    """

    name: str
    title: str
    category: Category
    metric: Metric
    root: Path
    id_column: str
    target_columns: tuple[str, ...]
    split: Literal["train", "heldout"] = "train"

    @property
    def public_dir(self) -> Path:
        """The folder that a solution sees as ``DATA_DIR``."""
        return self.root / "public"

    @property
    def private_dir(self) -> Path:
        """Answers and leaderboards; never visible to a solution."""
        return self.root / "private"

    @property
    def description(self) -> str:
        """The task in words."""
        return (self.public_dir / "description.md").read_text(encoding="utf-8").strip()

    def answers(self, half: Half | None = None) -> pd.DataFrame:
        """Answers of one half of the test rows (all rows for None), with the id column as strings."""
        table = _read_table(self.private_dir / "answers.csv", frozenset({self.id_column}))
        return table if half is None else table[table["half"] == half]

    def leaderboard(self, half: Half) -> tuple[float, ...]:
        """Scores of the board for that half of the test rows, best first."""
        return _read_board(self.private_dir / f"{half}_leaderboard.csv", self.metric.higher_is_better)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by folder: a metric holds closures."""
        return (load_competition, (str(self.root),))


@lru_cache(maxsize=64)
def _read_table(path: Path, text_columns: frozenset[str]) -> pd.DataFrame:
    return pd.read_csv(path, dtype=dict.fromkeys(text_columns, str))


@lru_cache(maxsize=256)
def _read_board(path: Path, higher_is_better: bool) -> tuple[float, ...]:
    scores = pd.read_csv(path)["score"]
    return tuple(float(s) for s in scores.sort_values(ascending=not higher_is_better, na_position="last"))


def bundled_names() -> list[str]:
    """Names of the competitions that come with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/competition.yaml"))


@lru_cache(maxsize=256)
def load_competition(name_or_dir: str | Path, data_root: str | Path | None = None) -> Competition:
    """Load a bundled competition by name, or any by its folder.

    Args:
        name_or_dir: Name of a bundled competition, or path of a folder in the layout of this module.
        data_root: Folder of competition folders to look the name up in, instead of the bundled ones.

    Raises:
        CompetitionError: There is no such competition, or something is missing or wrong in its folder.
    """
    root = _find(name_or_dir, data_root)
    missing = [
        f"{folder}/{file}"
        for folder, files in (("public", PUBLIC_FILES), ("private", PRIVATE_FILES))
        for file in files
        if not (root / folder / file).is_file()
    ]
    if missing:
        raise CompetitionError(f"Competition folder {root} is incomplete: add {', '.join(missing)}.")
    competition = _from_settings(root, _read_settings(root / "competition.yaml"))
    _check_columns(competition)
    return competition


def _find(name_or_dir: str | Path, data_root: str | Path | None) -> Path:
    base = BUNDLED if data_root is None else Path(data_root)
    for candidate in (base / name_or_dir, Path(name_or_dir)):
        if (candidate / "competition.yaml").is_file():
            return candidate.resolve()
    names = sorted(path.parent.name for path in base.glob("*/competition.yaml"))
    raise CompetitionError(
        f"Unknown competition '{name_or_dir}': it is neither a folder with a competition.yaml nor one of "
        f"{', '.join(names) or 'the competitions in ' + str(base)}."
    )


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CompetitionError(f"{path} is not valid YAML: {str(error).splitlines()[0]}.") from error
    if not isinstance(settings, dict):
        raise CompetitionError(f"{path} must hold settings, one 'name: value' a line.")
    return settings


def _from_settings(root: Path, settings: dict[str, Any]) -> Competition:
    required = ("title", "category", "metric", "id_column", "target_columns")
    missing = [key for key in required if key not in settings]
    if missing:
        raise CompetitionError(f"{root / 'competition.yaml'} lacks {', '.join(missing)}.")
    if settings["category"] not in CATEGORIES:
        raise CompetitionError(
            f"{root / 'competition.yaml'}: category must be one of {', '.join(CATEGORIES)}, "
            f"not {settings['category']!r}."
        )
    if settings.get("split", "train") not in ("train", "heldout"):
        raise CompetitionError(f"{root / 'competition.yaml'}: split must be 'train' or 'heldout'.")
    return Competition(
        name=str(settings.get("name", root.name)),
        title=str(settings["title"]),
        category=settings["category"],
        metric=get_metric(str(settings["metric"])),
        root=root,
        id_column=str(settings["id_column"]),
        target_columns=tuple(str(column) for column in settings["target_columns"]),
        split=settings.get("split", "train"),
    )


def _check_columns(competition: Competition) -> None:
    """The sample submission and the answers must name the same columns."""
    expected = [competition.id_column, *competition.target_columns]
    for path, extra in (
        (competition.public_dir / "sample_submission.csv", []),
        (competition.private_dir / "answers.csv", ["half"]),
    ):
        try:
            columns = list(pd.read_csv(path, nrows=0).columns)
        except (ValueError, UnicodeDecodeError) as error:
            raise CompetitionError(f"{path} cannot be read as a CSV table: {error}.") from error
        if sorted(columns) != sorted(expected + extra):
            raise CompetitionError(
                f"{path} has the columns {', '.join(columns)}, expected {', '.join(expected + extra)}."
            )
