"""Solutions that were executed: those in a run's store, or played by a policy for the purpose."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.draws import derive_seed
from wmrl_agents.grpo.roles import PlayingPolicy
from wmrl_agents.grpo.rollouts import Executor, Group, Rollouts, Trajectory, rollout_settings
from wmrl_agents.report.run_data import open_store
from wmrl_agents.runs import STORE
from wmrl_envs.autoresearch import Competition, load_competition
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Solution

__all__ = ["Executed", "error_type", "executed_in_run", "play_and_execute", "some_groups"]

_EXECUTED = """
SELECT step, "group", member, turn, competition, code, status, score, seconds,
    CASE WHEN trajectories.source = 'real' THEN observation END
FROM evaluations
JOIN turns USING (step, "group", member, turn)
JOIN trajectories USING (step, "group", member)
WHERE evaluations.source = 'real' AND code IS NOT NULL
ORDER BY step, "group", member, turn
"""
_LAST_LINE = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::.*)?$")


@dataclass(frozen=True)
class Executed:
    """A solution and what came of executing it.

    Attributes:
        solution: The solution.
        group: Names the solutions that it is compared with: step and group, or task and group, and the turn
            where every turn counts.
        score: Its score on the half of the test rows that it was graded on.
        status: How it ended.
        error: Type of the exception that ended it, if known.
        seconds: What the execution took.
    """

    solution: Solution
    group: tuple[int, ...]
    score: float
    status: str
    error: str | None
    seconds: float | None

    @property
    def task(self) -> str:
        """Name of the competition."""
        competition = self.solution.competition
        return competition if isinstance(competition, str) else competition.name


def error_type(stderr: str) -> str | None:
    """Type of the exception that a traceback ends with, without its module; None if there is none.

    Example:
        >>> error_type("Traceback (most recent call last):\\n  ...\\nKeyError: 'id'"), error_type("a warning")
        ('KeyError', None)
    """
    lines = stderr.strip().splitlines()
    found = _LAST_LINE.match(lines[-1].strip()) if lines else None
    return None if found is None else found["type"].rpartition(".")[2]


def executed_in_run(run_dir: Path, config: GRPOConfig, every_turn: bool = False) -> list[Executed]:
    """What a run has executed and scored.

    Args:
        run_dir: The run's directory.
        config: Its settings.
        every_turn: Every program, instead of the one that gave a trajectory its score.

    Returns:
        In the order of steps, groups, members and turns; empty if nothing that was executed has a score.

    Raises:
        ConfigError: The run has not made a step yet, or its store cannot be read.
        CompetitionError: A competition of the run is not there any more.
    """
    if not (run_dir / STORE).is_file():
        raise ConfigError(f"The run in {run_dir} has no {STORE}: it has not made a step yet.")
    try:
        with closing(open_store(run_dir)) as connection:
            rows = connection.execute(_EXECUTED).fetchall()
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{run_dir / STORE} cannot be read: {error}.") from error
    competitions = {name: _competition(name, config) for name in {row[4] for row in rows}}
    found = []
    for _, turns in groupby(rows, key=lambda row: row[:3]):
        for step, group, _, turn, name, code, status, score, seconds, observation in _counted(
            [row for row in turns if row[7] is not None], config, every_turn
        ):
            solution = Solution(competitions[name], code, turn)
            key = (step, group, turn) if every_turn else (step, group)
            found.append(Executed(solution, key, score, status, _error_in(observation), seconds))
    return found


def _counted(turns: list[tuple], config: GRPOConfig, every_turn: bool) -> list[tuple]:
    """Of a trajectory's executed turns those that count."""
    if every_turn or not turns:
        return turns
    return [turns[-1] if config.trajectory_score == "final" else max(turns, key=lambda row: row[7])]


def _competition(name: str, config: GRPOConfig) -> Competition:
    given = [folder for folder in config.competitions or () if Path(folder).name == name]
    return load_competition(given[0] if given else name, config.data_root, config.dojo_root)


def _error_in(observation: str | None) -> str | None:
    """Type of the exception that an observation of the environment tells of."""
    return error_type((observation or "").partition("\nstderr:\n")[2])


def play_and_execute(
    policy: PlayingPolicy,
    competitions: Sequence[Competition],
    config: GRPOConfig,
    executor: Executor,
    trajectories: int,
    every_turn: bool = False,
) -> list[Executed]:
    """Play episodes on each competition, every program executed.

    Args:
        policy: The agent.
        competitions: The tasks.
        config: Turns, size of a group, seed.
        executor: Where programs run.
        trajectories: Episodes on each competition, in groups of at most ``config.group_size``.
        every_turn: Every program, instead of the one that gives a trajectory its score.
    """
    sizes = [len(part) for part in np.array_split(range(trajectories), -(-trajectories // config.group_size))]
    groups = [
        (Group(index, competition, "real"), size)
        for index, (competition, size) in enumerate((c, size) for c in competitions for size in sizes)
    ]
    rollouts = Rollouts(policy, executor, None, rollout_settings(config))
    for size in sorted({size for _, size in groups}):
        same = [group for group, its_size in groups if its_size == size]
        rollouts.play(same, size, seed=derive_seed(config.seed, "fidelity", size))
    found = [
        Executed(solution, key, evaluation.score, evaluation.status, error, outcome.seconds)
        for group, _ in groups
        for trajectory in group.trajectories
        for solution, evaluation, key in _programs(group, trajectory, every_turn)
        if evaluation.score is not None and (outcome := evaluation.outcome) is not None
        for error in [error_type(outcome.stderr) if outcome.status == "error" else None]
    ]
    if not found:
        raise ConfigError(
            "The policy wrote no program that could be executed: there is nothing to ask about."
        )
    return found


def _programs(group: Group, trajectory: Trajectory, every_turn: bool) -> Iterator[tuple]:
    """Programs of a trajectory that count, what came of them, and their group."""
    if every_turn:
        for solution, evaluation in trajectory.executions:
            yield solution, evaluation, (group.index, solution.turn)
    elif trajectory.episode.scored is not None:
        yield (*trajectory.episode.scored, (group.index,))


def some_groups(executed: Sequence[Executed], limit: int | None, seed: int) -> list[Executed]:
    """Whole groups drawn at random until there are as many solutions as asked for; all for None."""
    if limit is None or len(executed) <= limit:
        return list(executed)
    groups: dict[tuple[int, ...], list[Executed]] = {}
    for one in executed:
        groups.setdefault(one.group, []).append(one)
    order = np.random.default_rng(seed).permutation(len(groups))
    drawn = _until([list(groups.values())[place] for place in order], limit)
    return [one for group in drawn for one in group]


def _until(groups: Iterable[list[Executed]], limit: int) -> Iterator[list[Executed]]:
    held = 0
    for group in groups:
        if held >= limit:
            return
        held += len(group)
        yield group
