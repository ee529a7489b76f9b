"""What a step's groups tell those that score, count and store them, whatever was played.

Two kinds of rollouts stand behind this: programs in a sandbox (`rollouts`) and chunks of actions in a
simulator (`embodied_rollouts`). The trainer asks neither which one it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from wmrl_agents.grpo.phases import Phases
from wmrl_agents.policies.base import Sample
from wmrl_envs.evaluation import Evaluation, Source

__all__ = ["EvaluationRow", "GroupRollouts", "PlayedGroup", "PlayedTrajectory", "TurnRow"]

TurnRow = tuple[int, str, str, str | None, str, bool]
EvaluationRow = tuple[int, str, Evaluation]


class PlayedTrajectory(Protocol):
    """A trajectory that is over."""

    @property
    def sample(self) -> Sample | None:
        """Its token record; None if the policy said nothing."""
        ...

    def scores(self, source: Source) -> tuple[float | None, float | None]:
        """Real and predicted score, None where they are missing or not to be known.

        Args:
            source: Who evaluates its group.
        """
        ...

    @property
    def executed(self) -> list[tuple[str, Evaluation]]:
        """Real evaluations that were used, each with a name of what was executed."""
        ...

    @property
    def predicted(self) -> list[Evaluation]:
        """What the world model said, in place of real evaluations or beside them."""
        ...

    @property
    def num_evaluated(self) -> int:
        """Evaluations that it took, by whatever source."""
        ...

    @property
    def num_turns(self) -> int:
        """How often the policy spoke or decided."""
        ...

    @property
    def num_truncated(self) -> int:
        """How often it was cut off at its limit."""
        ...

    @property
    def rescued(self) -> bool:
        """Whether its real score was taken because its prediction was missing."""
        ...

    def turn_rows(self) -> Sequence[TurnRow]:
        """For each turn its number, kind, reply, code, observation, and whether the reply was cut off."""
        ...

    def evaluation_rows(self) -> Sequence[EvaluationRow]:
        """For each evaluation its turn, a name of what was evaluated, and the evaluation."""
        ...


class PlayedGroup(Protocol):
    """Trajectories on one task, evaluated by one source."""

    @property
    def index(self) -> int:
        """Number of the group in its step."""
        ...

    @property
    def name(self) -> str:
        """Name of the task."""
        ...

    @property
    def category(self) -> str:
        """What kind of task it is."""
        ...

    @property
    def source(self) -> Source:
        """Who evaluates it."""
        ...

    @property
    def trajectories(self) -> Sequence[PlayedTrajectory]:
        """Its members."""
        ...


class GroupRollouts(Protocol):
    """Plays the groups of a step; `Any` stands for what only they themselves look into: tasks and groups."""

    @property
    def phases(self) -> Phases:
        """Where the time goes."""
        ...

    def draw(self, step: int) -> list[Any]:
        """The tasks of a step, one for each group."""
        ...

    def group(self, index: int, task: Any, source: Source) -> Any:
        """A group that is still to be played."""
        ...

    def play(self, groups: Sequence[Any], size: int, *, seed: int) -> None:
        """Fill groups with ``size`` finished trajectories each; ``seed`` decides all sampling."""
        ...

    def versions(self) -> dict[str, str]:
        """A hash for each thing that a run depends on and that must not change within it."""
        ...

    def learn(self, groups: Sequence[Any]) -> None:
        """Tell a world model that learns what came of a step."""
        ...

    def learn_again(self, run_dir: Path) -> None:
        """Tell it what a run that goes on has seen so far, and nothing else."""
        ...

    def close(self) -> None:
        """Stop what still runs."""
        ...
