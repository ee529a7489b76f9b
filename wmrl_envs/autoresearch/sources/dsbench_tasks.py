"""DSBench's list of tasks, and the choice among them that the paper made.

The paper keeps 60 of the tasks; it drops 7 as too large, 8 for want of a sample submission, and 1 for its
number of columns. Which ones, and by which limits, is not published. So the rule is applied to the folder
that a user has, and `choose` says what it dropped and why.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

from wmrl_envs.autoresearch.competition import Category
from wmrl_envs.autoresearch.sources.splits import category_of
from wmrl_envs.autoresearch.tables import read_columns
from wmrl_envs.errors import CompetitionError

__all__ = [
    "Choice",
    "DSBenchTask",
    "Kind",
    "choose",
    "find_sample",
    "find_task",
    "names",
    "resplit_folder",
    "tasks",
]

Kind = Literal["binary", "multiclass", "regression", "other"]

TASKS = Path(__file__).with_name("dsbench_tasks.csv")
REGISTERED = {
    "Area Under Receiver Operating Characteristic Curve": "roc_auc",
    "Roc Auc Score": "roc_auc",
    "Mean Columnwise Area Under Receiver Operating Characteristic Curve": "roc_auc",
    "Categorization Accuracy": "accuracy",
    "Accuracy Score": "accuracy",
    "Cohen Kappa Score": "quadratic_kappa",
    "F-Score (Macro)": "macro_f1",
    "Root Mean Squared Error": "rmse",
    "Root Mean Squared Logarithmic Error": "rmsle",
    "Mean Absolute Error": "mae",
    "R2 Score": "r2",
}


@dataclass(frozen=True)
class DSBenchTask:
    """A task of DSBench.

    Attributes:
        name: Its name.
        kind: What is predicted, told from its metric and tags.
        higher_is_better: Direction of its metric.
        tags: Its tags; the last one names the metric.
        released: Whether it is one of the 74 of the release.
    """

    name: str
    kind: Kind
    higher_is_better: bool
    tags: tuple[str, ...]
    released: bool

    @property
    def metric(self) -> str:
        """What its metric is called."""
        return self.tags[-1]

    @property
    def registered_metric(self) -> str | None:
        """Name of that metric in `wmrl_envs.autoresearch.metrics`, None where it is not there."""
        return REGISTERED.get(self.metric)

    @property
    def category(self) -> Category | None:
        """Its category by the same rule as MLE-Dojo's."""
        return category_of(self.tags)


@lru_cache(maxsize=1)
def tasks() -> tuple[DSBenchTask, ...]:
    """DSBench's tasks."""
    with TASKS.open(encoding="utf-8", newline="") as file:
        return tuple(
            DSBenchTask(
                row["slug"],
                cast(Kind, row["category_by_metric_tag"]),
                row["higher_is_better"] == "True",
                tuple(row["tags"].split(";")),
                row["in_dsbench_74"] == "True",
            )
            for row in csv.DictReader(file)
        )


def find_task(name: str) -> DSBenchTask | None:
    """A task by its name, None if it is not DSBench's."""
    return next((task for task in tasks() if task.name == name), None)


def resplit_folder(data_root: Path) -> Path | None:
    """The folder ``data_resplit``; None if this is not DSBench's layout."""
    for base in (data_root / "data", data_root, data_root.parent):
        if (base / "data_resplit").is_dir():
            return base / "data_resplit"
    return None


def names(data_root: Path) -> list[str]:
    """Names of the tasks that a folder holds in this layout."""
    folder = resplit_folder(data_root)
    return [] if folder is None else sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def find_sample(folder: Path) -> Path | None:
    """The sample submission of a task, whatever it is called; None if there is none."""
    found = sorted(path for path in folder.glob("*.csv") if "submission" in path.name.lower())
    return found[0] if found else None


@dataclass(frozen=True)
class Choice:
    """What the rule keeps of a folder, and what it drops.

    Attributes:
        kept: Names of the tasks that stay.
        dropped: Of each other task, why.
    """

    kept: tuple[str, ...]
    dropped: dict[str, str]

    @property
    def kinds(self) -> dict[str, int]:
        """How many of the tasks that stay are of each kind; ``unknown`` for those that are not DSBench's."""
        counts: dict[str, int] = {}
        for name in self.kept:
            task = find_task(name)
            kind = task.kind if task else "unknown"
            counts[kind] = counts.get(kind, 0) + 1
        return counts


def choose(data_root: str | Path, max_bytes: int = 500_000_000, max_columns: int = 2_000) -> Choice:
    """Apply the paper's rule to a folder in DSBench's layout.

    Args:
        data_root: The folder ``data`` of the release, or the one that holds it.
        max_bytes: Largest task, by its public files. The limit is ours: the paper names none.
        max_columns: Most columns of a table. The limit is ours.

    Raises:
        CompetitionError: The folder is not in that layout.
    """
    folder = resplit_folder(Path(data_root))
    if folder is None:
        raise CompetitionError(f"{data_root} is not in DSBench's layout: it has no folder data/data_resplit.")
    dropped = {}
    for name in names(Path(data_root)):
        files = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        size = sum(path.stat().st_size for path in files)
        if size > max_bytes:
            dropped[name] = f"too large: {size:,} bytes, more than {max_bytes:,}"
        elif find_sample(folder / name) is None:
            dropped[name] = "no sample submission"
        elif (
            columns := max(len(read_columns(path)) for path in files if path.suffix == ".csv")
        ) > max_columns:
            dropped[name] = f"too many columns: {columns:,}, more than {max_columns:,}"
    return Choice(tuple(name for name in names(Path(data_root)) if name not in dropped), dropped)
