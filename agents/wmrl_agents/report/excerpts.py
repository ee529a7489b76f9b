"""A few trajectories to read, and the cleaning of what an agent wrote before a person sees it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wmrl_agents.report.run_data import RunData, Trajectory, Turn
from wmrl_envs.autoresearch.competition import load_competition
from wmrl_envs.autoresearch.prompts import task_text
from wmrl_envs.errors import CompetitionError
from wmrl_envs.libero.tasks import TASKS

__all__ = ["Excerpt", "clean", "pick_excerpts"]

LATE_SHARE = 0.25
_TERMINAL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*\x1b\\|.)?", re.DOTALL
)
# Controls, lone surrogates, and the marks that make text run in another direction than it is written.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@dataclass(frozen=True)
class Excerpt:
    """A trajectory and why it is shown."""

    why: str
    trajectory: Trajectory
    task: str
    turns: list[Turn]


def clean(text: str) -> str:
    """Hostile text as harmless text: no terminal sequences, nothing invisible, nothing that reorders it.

    Example:
        >>> clean("\\x1b[31mred\\x1b[0m\\r\\nnext\\x00")
        'red\\nnext\ufffd'
    """
    text = _TERMINAL.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _INVISIBLE.sub("\ufffd", text)


def pick_excerpts(run: RunData) -> list[Excerpt]:
    """Best, median and worst of the run's last quarter, and the anchor that was predicted worst."""
    late = _late(run.trajectories)
    scored = sorted(
        (one for one in late if one.score is not None),
        key=lambda one: (one.score or 0.0, one.step, one.group),
    )
    picked: list[tuple[str, Trajectory]] = []
    if scored:
        picked = [("Best", scored[-1]), ("Median", scored[len(scored) // 2]), ("Worst", scored[0])]
    anchors = [one for one in late if one.source == "real" and _gap(one) is not None]
    if anchors:
        picked.append(
            ("The anchor whose prediction was furthest off", max(anchors, key=lambda one: _gap(one) or 0))
        )
    reasons: dict[Trajectory, str] = {}
    for why, trajectory in picked:
        reasons[trajectory] = f"{reasons[trajectory]}; {why.lower()}" if trajectory in reasons else why
    return [
        Excerpt(why, trajectory, _task(run, trajectory.competition), run.turns(trajectory))
        for trajectory, why in reasons.items()
    ]


def _late(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    if not trajectories:
        return []
    first, last = trajectories[0].step, trajectories[-1].step
    return [one for one in trajectories if one.step >= last - LATE_SHARE * (last - first)]


def _gap(trajectory: Trajectory) -> float | None:
    if trajectory.real is None or trajectory.predicted is None:
        return None
    return abs(trajectory.predicted - trajectory.real)


def _task(run: RunData, name: str) -> str:
    """Text of the task; the competition may be gone, since a report can be made anywhere."""
    if run.config.task_suite != "autoresearch":
        return _instruction(name)
    given = [folder for folder in run.config.competitions or () if Path(folder).name == name]
    try:
        return task_text(
            load_competition(given[0] if given else name, run.config.data_root, run.config.dojo_root)
        )
    except CompetitionError as error:
        return f"(The text of this task is not at hand: {error})"


def _instruction(name: str) -> str:
    """What the robot was told; the name says the task's number first."""
    number = re.match(r"task (\d+),", name)
    if number is None or int(number[1]) >= len(TASKS):
        return name
    return TASKS[int(number[1])].instruction
