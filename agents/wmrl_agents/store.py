"""`RunStore`: what happened in a run, one SQLite file, written a step at a time.

Tables (the pool of pairs lives in the same file, see `wmrl_rewards.PairPool`):

- ``trajectories``: one row per (step, group, member) with its scores and its coefficient in the gradient;
- ``turns``: one row per (step, group, member, turn), what was said and what was answered;
- ``evaluations``: one row per (step, group, member, turn, source), executed or predicted.

A step is one transaction, so a kill leaves whole steps only; `truncate` drops those after a checkpoint.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wmrl_envs.evaluation import Evaluation, Solution

if TYPE_CHECKING:
    from wmrl_agents.grpo.played import PlayedGroup, PlayedTrajectory
    from wmrl_agents.grpo.scores import StepScores

__all__ = ["RunStore", "content_key"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS trajectories (
    step INTEGER, "group" INTEGER, member INTEGER,
    competition TEXT, category TEXT, source TEXT,
    real REAL, predicted REAL, calibrated REAL, coefficient REAL,
    turns INTEGER, own_tokens INTEGER, truncated_replies INTEGER,
    PRIMARY KEY (step, "group", member)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (
    step INTEGER, "group" INTEGER, member INTEGER, turn INTEGER,
    kind TEXT, reply TEXT, code TEXT, observation TEXT, truncated INTEGER,
    PRIMARY KEY (step, "group", member, turn)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evaluations (
    step INTEGER, "group" INTEGER, member INTEGER, turn INTEGER, source TEXT,
    status TEXT, metric REAL, score REAL, seconds REAL, content TEXT, error TEXT,
    PRIMARY KEY (step, "group", member, turn, source)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS executed ON evaluations (content) WHERE source = 'real';
"""
_TABLES = {"trajectories": 13, "turns": 9, "evaluations": 11}


def content_key(solution: Solution) -> str:
    """Name of what an execution depends on: the competition and the program."""
    name = solution.competition if isinstance(solution.competition, str) else solution.competition.name
    return hashlib.sha256(f"{name}\0{solution.code}".encode()).hexdigest()[:32]


class RunStore:
    """The run's database.

    Args:
        path: SQLite file, made if it is not there.
    """

    def __init__(self, path: str | Path) -> None:
        self._connection = sqlite3.connect(path, timeout=60)
        self._connection.executescript(_SCHEMA)

    def write(self, step: int, groups: Sequence[PlayedGroup], scores: StepScores) -> None:
        """Write a finished step, all of it or nothing.

        Args:
            step: Index of the step.
            groups: Its groups with finished trajectories.
            scores: Their scores.
        """
        arrays = (scores.real, scores.predicted, scores.calibrated, scores.coefficients)
        rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _TABLES}
        for row, group in enumerate(groups):
            for member, trajectory in enumerate(group.trajectories):
                key = (step, group.index, member)
                numbers = [_number(array[row, member]) for array in arrays]
                rows["trajectories"].append((*key, *_about(group), *numbers, *_size(trajectory)))
                rows["turns"] += [(*key, *turn) for turn in trajectory.turn_rows()]
                rows["evaluations"] += [
                    (*key, number, *_evaluation(content, evaluation))
                    for number, content, evaluation in trajectory.evaluation_rows()
                ]
        with self._connection:
            for table, width in _TABLES.items():
                places = ", ".join("?" * width)
                self._connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows[table])

    def repeated(self, contents: Sequence[str]) -> int:
        """How many of these executions repeat an earlier one of the run, or one before them in the list.

        Args:
            contents: What was executed, by `content_key` or another name.
        """
        query = "SELECT 1 FROM evaluations WHERE source = 'real' AND content = ? LIMIT 1"
        seen: set[str] = set()
        repeated = 0
        for key in contents:
            repeated += key in seen or self._connection.execute(query, (key,)).fetchone() is not None
            seen.add(key)
        return repeated

    def truncate(self, step: int) -> None:
        """Drop this step and all later ones, as on going back to a checkpoint."""
        with self._connection:
            for table in _TABLES:
                self._connection.execute(f"DELETE FROM {table} WHERE step >= ?", (step,))

    def close(self) -> None:
        """Close the file; the store cannot be used after it."""
        self._connection.close()


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _about(group: PlayedGroup) -> tuple[str, str, str]:
    return group.name, group.category, group.source


def _size(trajectory: PlayedTrajectory) -> tuple[int, int, int]:
    own = 0 if trajectory.sample is None else trajectory.sample.num_own_tokens
    return trajectory.num_turns, own, trajectory.num_truncated


def _evaluation(content: str, evaluation: Evaluation) -> tuple[Any, ...]:
    metric = None if evaluation.grade is None else evaluation.grade.score
    seconds = None if evaluation.outcome is None else evaluation.outcome.seconds
    about = (evaluation.source, evaluation.status, metric, evaluation.score, seconds)
    return (*about, content, evaluation.error)
