"""Read MLE-Dojo's competitions.

``data_root`` holds what its ``prepare`` made::

    <slug>/data/public/{description.txt, sample_submission.csv, ...}
    <slug>/data/private/{test_answer.csv, public_leaderboard.csv, private_leaderboard.csv}

The code tree holds the metric (``mledojo/competitions/<slug>/utils/metric.py``), and the boards again (in
``info``). It is the installed package ``mledojo``, or the folder given as ``dojo_root``.

One score is computed over all test rows; it is worth the mean of (N - position + 1) / N over both boards.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from wmrl_envs.autoresearch.competition import Half
from wmrl_envs.autoresearch.sources.foreign import (
    ForeignCompetition,
    Layout,
    make_competition,
    own_metric,
    require,
)
from wmrl_envs.autoresearch.sources.foreign_grader import ForeignGrader
from wmrl_envs.autoresearch.sources.splits import find_task
from wmrl_envs.errors import CompetitionError

__all__ = ["holds", "names", "read"]

NAME = "MLE-Dojo"


def holds(data_root: Path, name: str) -> bool:
    """Whether the folder holds that competition in this layout."""
    return os.path.isdir(data_root / name / "data" / "public")  # a long name is no error there


def names(data_root: Path) -> list[str]:
    """Names of the competitions that a folder holds in this layout."""
    return sorted(path.parent.parent.name for path in data_root.glob("*/data/public"))


def read(data_root: Path, name: str, code_root: Path | None = None) -> ForeignCompetition:
    """Read a competition.

    Args:
        data_root: Folder of the prepared data.
        name: The competition's slug.
        code_root: MLE-Dojo's code tree; None for the installed package.

    Raises:
        CompetitionError: A file is missing or wrong.
    """
    root = data_root / name
    public, private = root / "data" / "public", root / "data" / "private"
    code = find_code(name, code_root)
    metric_file = None if code is None else code / "utils" / "metric.py"
    if metric_file is None:
        raise CompetitionError(
            f"No metric for the MLE-Dojo competition '{name}': install the package mledojo, or give its code "
            "tree as dojo_root=..."
        )
    boards = {half: _board(private, code, half) for half in ("public", "private")}
    layout = Layout(
        root=root,
        public=public,
        private=private,
        description=public / "description.txt",
        sample=public / "sample_submission.csv",
        answers=private / "test_answer.csv",
        boards=tuple(boards.values()),
        code=(metric_file,),
        data_root=data_root,
        code_root=code_root,
    )
    files = {
        "description": layout.description,
        "sample submission": layout.sample,
        "answers": layout.answers,
        "metric": metric_file,
    }
    require(name, NAME, files | {f"{half} leaderboard": path for half, path in boards.items()})
    task = find_task(name)
    return make_competition(
        ForeignCompetition,
        layout,
        name=name,
        category=task.category if task else None,
        metric=own_metric(task.metric if task else "score", layout.boards),
        grader=ForeignGrader("mle_dojo", layout.code, metric_file.stem),
    )


def _board(private: Path, code: Path | None, half: Half | str) -> Path:
    """In the data, else in the code tree."""
    path = private / f"{half}_leaderboard.csv"
    return path if path.is_file() or code is None else code / "info" / path.name


def find_code(name: str, code_root: Path | None) -> Path | None:
    """A competition's folder in the code tree; None if there is no such tree."""
    for base in [code_root] if code_root is not None else _installed():
        for folder in (base / "mledojo", base):
            if (folder / "competitions" / name).is_dir():
                return folder / "competitions" / name
    return None


def _installed() -> Iterator[Path]:
    """Where the package is installed; it is not imported for that."""
    spec = importlib.util.find_spec("mledojo")
    for place in (spec and spec.submodule_search_locations) or ():
        yield Path(place)
