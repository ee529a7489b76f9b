"""`RunData`: what a report is made from, read from a run directory that may be unfinished or cut off."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.runs import EXECUTIONS, STOPPED, load_run, read_metrics
from wmrl_envs.errors import ConfigError, SandboxError
from wmrl_envs.sandbox.cache import CacheStats, ExecutionCache

__all__ = ["RunData", "Trajectory", "Turn", "open_store", "read_run"]

_TRAJECTORIES = """
SELECT step, "group", member, competition, category, source, real, predicted, calibrated, coefficient
FROM trajectories ORDER BY step, "group", member
"""
_TURNS = """
SELECT turn, kind, reply, observation, truncated FROM turns
WHERE step = ? AND "group" = ? AND member = ? ORDER BY turn
"""
_EVALUATIONS = """
SELECT turn, source, status, score, seconds, error FROM evaluations
WHERE step = ? AND "group" = ? AND member = ? ORDER BY turn, source
"""
_PAIRS = 'SELECT step, predicted, real FROM pairs ORDER BY step, "group", member'
_ENDINGS = """
SELECT turns.step, trajectories.source,
    CASE turns.kind WHEN 'malformed' THEN 'no_code' ELSE COALESCE(evaluations.status, 'missing') END, COUNT(*)
FROM turns
JOIN trajectories USING (step, "group", member)
LEFT JOIN evaluations ON evaluations.step = turns.step AND evaluations."group" = turns."group"
    AND evaluations.member = turns.member AND evaluations.turn = turns.turn
    AND evaluations.source = trajectories.source
WHERE turns.kind IN ('code', 'malformed')
GROUP BY 1, 2, 3 ORDER BY 1
"""


@dataclass(frozen=True)
class Turn:
    """One turn of a trajectory, with an evaluation for each source that gave one."""

    number: int
    kind: str
    reply: str
    observation: str
    truncated: bool
    evaluations: list[dict[str, Any]]


@dataclass(frozen=True)
class Trajectory:
    """One row of the store; its turns are read on demand."""

    step: int
    group: int
    member: int
    competition: str
    category: str
    source: str
    real: float | None
    predicted: float | None
    calibrated: float | None
    coefficient: float | None

    @property
    def score(self) -> float | None:
        """The score that it was trained on: real where known, else calibrated."""
        return self.real if self.real is not None else self.calibrated


@dataclass(frozen=True)
class RunData:
    """A run as far as it got.

    Attributes:
        path: The run directory.
        config: Its settings.
        environment: Versions, machine, commit; empty if the file is missing.
        metrics: One dictionary a step.
        before: Evaluation on the private half before training, None if there is none.
        after: Likewise after training.
        trajectories: Every trajectory, in the order of the run.
        pairs: (step, predicted, real) of the anchors' trajectories, in the order of the run.
        endings: (step, source, status, number of replies): how programs ended, and replies without one.
        stopped: Why it stopped before its end, where the machine made it stop; else empty.
        stored: What its cache of executions holds; None if that cannot be read.
    """

    path: Path
    config: GRPOConfig
    environment: Mapping[str, Any]
    metrics: list[dict[str, Any]]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    trajectories: list[Trajectory] = field(default_factory=list)
    pairs: list[tuple[int, float, float]] = field(default_factory=list)
    endings: list[tuple[int, str, str, int]] = field(default_factory=list)
    stopped: str = ""
    stored: CacheStats | None = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.path.resolve().name

    @property
    def finished(self) -> bool:
        """Whether every step was made."""
        return len(self.metrics) >= self.config.steps

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps that were made."""
        return [step["step"] for step in self.metrics]

    def column(self, name: str) -> list[float | None]:
        """One metric over the steps; None where a step lacks it."""
        return [step.get(name) for step in self.metrics]

    def turns(self, trajectory: Trajectory) -> list[Turn]:
        """What was said in a trajectory."""
        key = (trajectory.step, trajectory.group, trajectory.member)
        with closing(open_store(self.path)) as connection:
            turns = connection.execute(_TURNS, key).fetchall()
            evaluations = connection.execute(_EVALUATIONS, key).fetchall()
        names = ("turn", "source", "status", "score", "seconds", "error")
        rows = [dict(zip(names, row, strict=True)) for row in evaluations]
        return [
            Turn(number, kind, reply, observation, bool(cut), [row for row in rows if row["turn"] == number])
            for number, kind, reply, observation, cut in turns
        ]


def read_run(run_dir: Path) -> RunData:
    """Read a run; parts that are not there (yet) are empty.

    Raises:
        ConfigError: There is no run in the folder, or one of its files is not what it should be.
    """
    tables = _read_store(run_dir)
    config = load_run(run_dir)
    stopped = run_dir / STOPPED
    return RunData(
        path=run_dir,
        config=config,
        environment=_read_json(run_dir / "environment.json") or {},
        metrics=read_metrics(run_dir),
        before=_read_json(run_dir / "evaluation-before.json"),
        after=_read_json(run_dir / "evaluation-after.json"),
        trajectories=[Trajectory(*row) for row in tables["trajectories"]],
        pairs=tables["pairs"],
        endings=tables["endings"],
        stopped=stopped.read_text(encoding="utf-8").strip() if stopped.is_file() else "",
        stored=_read_cache(Path(config.execution_cache or run_dir / EXECUTIONS)),
    )


def _read_cache(path: Path) -> CacheStats | None:
    """It is not part of the run's record: it may lie elsewhere, and be gone."""
    with suppress(SandboxError):
        return ExecutionCache.existing(path).stats()
    return None


def _read_store(run_dir: Path) -> dict[str, list[Any]]:
    queries = {"trajectories": _TRAJECTORIES, "pairs": _PAIRS, "endings": _ENDINGS}
    if not (run_dir / "run.sqlite").is_file():
        return {name: [] for name in queries}
    needed = {"trajectories": "trajectories", "pairs": "pairs", "endings": "evaluations"}
    try:
        with closing(open_store(run_dir)) as connection:
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            return {
                name: connection.execute(query).fetchall() if needed[name] in there else []
                for name, query in queries.items()
            }
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{run_dir / 'run.sqlite'} cannot be read: {error}.") from error


def open_store(run_dir: Path) -> sqlite3.Connection:
    """The run's database; never created. Writable, because a kill may have left a journal to roll back."""
    return sqlite3.connect(f"{(run_dir / 'run.sqlite').absolute().as_uri()}?mode=rw", uri=True, timeout=60)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}. Delete it, or make it again.") from error
