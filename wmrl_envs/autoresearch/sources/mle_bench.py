"""Read MLE-bench's competitions, and report in its terms.

``data_root`` holds what its ``prepare`` made, ``<id>/prepared/{public,private}``. Beside ``prepared``, or in
the code tree, are config.yaml, description.md, leaderboard.csv, and the grader, a function
``grade(submission, answers) -> float``. The tree's folder is ``mlebench/competitions/<id>``, of the installed
package or of what is given as ``dojo_root``.

The board's first score tells the direction: where it is below the last one, lower is better.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from wmrl_envs.autoresearch.competition import Competition, Half, read_settings
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
from wmrl_envs.evaluation import Grade

__all__ = ["holds", "medal_thresholds", "names", "read", "report"]

NAME = "MLE-bench"


def holds(data_root: Path, name: str) -> bool:
    """Whether the folder holds that competition in this layout."""
    return os.path.isdir(data_root / name / "prepared" / "public")  # a long name is no error there


def names(data_root: Path) -> list[str]:
    """Names of the competitions that a folder holds in this layout."""
    return sorted(path.parent.parent.name for path in data_root.glob("*/prepared/public"))


def read(data_root: Path, name: str, code_root: Path | None = None) -> ForeignCompetition:
    """Read a competition.

    Args:
        data_root: Folder of the prepared data.
        name: The competition's id.
        code_root: MLE-bench's code tree; None for the installed package.

    Raises:
        CompetitionError: A file is missing or wrong.
    """
    root = data_root / name
    code = find_code(root, code_root)
    settings = read_settings(code / "config.yaml")
    public = root / "prepared" / "public"
    description = public / "description.md"
    layout = Layout(
        root=root,
        public=public,
        private=root / "prepared" / "private",
        description=description if description.is_file() else code / "description.md",
        sample=data_root / _setting(settings, "dataset.sample_submission", code),
        answers=data_root / _setting(settings, "dataset.answers", code),
        boards=(code / "leaderboard.csv",),
        code=tuple(sorted(code.glob("*.py"))),
        data_root=data_root,
        code_root=code_root,
    )
    files = {"description": layout.description, "sample submission": layout.sample, "answers": layout.answers}
    require(name, NAME, files | {"leaderboard": layout.boards[0]})
    task = find_task(name)
    return make_competition(
        ForeignCompetition,
        layout,
        name=name,
        category=task.category if task else None,
        metric=own_metric(_setting(settings, "grader.name", code), layout.boards),
        grader=ForeignGrader("mle_bench", layout.code, _setting(settings, "grader.grade_fn", code)),
    )


def find_code(root: Path, code_root: Path | None) -> Path:
    """The folder of config.yaml: beside the data, in the given code tree, or in the installed package.

    Raises:
        CompetitionError: It is nowhere.
    """
    spec = importlib.util.find_spec("mlebench") if code_root is None else None
    installed = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    trees = installed if code_root is None else [code_root, code_root / "mlebench"]
    for folder in (root, *(tree / "competitions" / root.name for tree in trees)):
        if (folder / "config.yaml").is_file():
            return folder
    raise CompetitionError(
        f"No config.yaml for the MLE-bench competition '{root.name}': put it, with grade.py and "
        f"leaderboard.csv, into {root}, install the package mlebench, or give its code tree as dojo_root=..."
    )


def _setting(settings: dict[str, Any], name: str, code: Path) -> str:
    """A setting by its place in config.yaml, such as ``grader.name``."""
    value: Any = settings
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, str) or not value:
        raise CompetitionError(f"{code / 'config.yaml'} lacks {name}.")
    return value


def medal_thresholds(board: Sequence[float]) -> dict[str, float]:
    """Scores that earn a medal, by the rule of the competitions' host.

    Of N teams the first so many get at least gold, silver, bronze: for N < 100, 10 %, 20 % and 40 %; for
    N < 250, 10 teams, 20 % and 40 %; for N < 1000, 10 teams and 0.2 %, 50 and 100 teams; else 10 teams and
    0.2 %, 5 % and 10 %.

    Args:
        board: Scores, best first.

    Returns:
        ``gold_threshold``, ``silver_threshold``, ``bronze_threshold`` and ``median_threshold``.

    Example:
        >>> medal_thresholds([0.9, 0.8, 0.7, 0.6, 0.5])["bronze_threshold"]
        0.8
    """
    teams = len(board)
    percent = {share: max(1, int(teams * share)) for share in (0.05, 0.1, 0.2, 0.4)}
    if teams < 100:
        places = (percent[0.1], percent[0.2], percent[0.4])
    elif teams < 250:
        places = (10, percent[0.2], percent[0.4])
    elif teams < 1000:
        places = (10 + int(teams * 0.002), 50, 100)
    else:
        places = (10 + int(teams * 0.002), percent[0.05], percent[0.1])
    medals = ("gold", "silver", "bronze")
    scores = {
        f"{medal}_threshold": float(board[place - 1]) for medal, place in zip(medals, places, strict=True)
    }
    return scores | {"median_threshold": float(np.nanmedian(board))}


def report(
    competition: Competition,
    grade: Grade | None,
    submission_path: str | Path,
    half: Half = "private",
    created_at: datetime | None = None,
) -> dict[str, Any]:
    """MLE-bench's report on a submission, ready for JSON.

    Args:
        competition: Any competition with a leaderboard.
        grade: What the submission is worth, None for a program that did not end well.
        submission_path: Where it is, or was; reported as it is given.
        half: The leaderboard to compare with.
        created_at: When the report was made; None for now.

    Returns:
        MLE-bench's fields. At most one of the three medals is True.
    """
    board, lower = competition.leaderboard(half), not competition.metric.higher_is_better
    thresholds = medal_thresholds(board)
    score = None if grade is None else grade.score
    sign = -1.0 if lower else 1.0
    margin = {
        name: -np.inf if score is None else sign * (score - value) for name, value in thresholds.items()
    }
    reached = [medal for medal in ("gold", "silver", "bronze") if margin[f"{medal}_threshold"] >= 0]
    return {
        "competition_id": competition.name,
        "score": score,
        **thresholds,
        "any_medal": bool(reached),
        **{f"{medal}_medal": reached[:1] == [medal] for medal in ("gold", "silver", "bronze")},
        "above_median": bool(margin["median_threshold"] > 0),
        "submission_exists": grade is not None and grade.status != "no_submission",
        "valid_submission": score is not None,
        "is_lower_better": lower,
        "created_at": (created_at or datetime.now(UTC)).isoformat(),
        "submission_path": str(submission_path),
    }
