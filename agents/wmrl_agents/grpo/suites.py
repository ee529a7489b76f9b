"""What a run plays: programs on competitions, or a robot in LIBERO, chosen by the setting ``task_suite``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.draws import draw_tasks
from wmrl_agents.grpo.embodied_rollouts import EmbodiedRollouts
from wmrl_agents.grpo.learning import teach, teach_again
from wmrl_agents.grpo.parts import Parts, load_competitions
from wmrl_agents.grpo.played import GroupRollouts
from wmrl_agents.grpo.robots import RobotSuite, load_suite
from wmrl_agents.grpo.roles import ActingPolicy, TrainablePolicy
from wmrl_agents.grpo.rollouts import Batch, Group, Rollouts, rollout_settings
from wmrl_agents.grpo.versions import prompt_versions
from wmrl_agents.policies.base import Sample
from wmrl_envs.autoresearch import Competition
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluator, Source

__all__ = ["ProgramRollouts", "load_tasks", "make_rollouts"]

Sampler = Callable[[Sequence[Batch]], list[list[Sample]]]


def load_tasks(config: GRPOConfig, parts: Parts | None = None) -> Sequence[Competition] | RobotSuite:
    """What there is to train on.

    Args:
        config: The run's settings.
        parts: They may bring a suite of their own.

    Raises:
        WMRLError: A competition cannot be had or is held out, or there is no such task of the robot.
    """
    if config.task_suite != "autoresearch":
        return load_suite(config) if parts is None or parts.robots is None else parts.robots
    competitions = load_competitions(config)
    for competition in competitions:
        if competition.split != "train":
            raise ConfigError(f"Competition '{competition.name}' is held out: it is there to evaluate on.")
    return competitions


def make_rollouts(
    config: GRPOConfig,
    tasks: Sequence[Competition] | RobotSuite,
    parts: Parts,
    policy: TrainablePolicy,
    predictor: Evaluator | None,
    sample: Sampler,
) -> GroupRollouts:
    """Who plays the groups of a run.

    Args:
        config: Its settings.
        tasks: What `load_tasks` gave.
        parts: Its sandbox and world models.
        policy: Who replies or acts.
        predictor: The world model that programs are shown to.
        sample: Samples batches of prompts, each with its seed.
    """
    if isinstance(tasks, RobotSuite):
        if not isinstance(policy, ActingPolicy):
            raise ConfigError("A robot is moved by a policy of chunks of actions: name one with --policy.")
        return EmbodiedRollouts(config, tasks, policy, parts.world_model, sample)
    return ProgramRollouts(config, tasks, parts, policy, predictor, sample)


class ProgramRollouts(Rollouts):
    """`Rollouts` of a run: it draws its competitions and teaches a world model that learns.

    Args: see `make_rollouts`.
    """

    def __init__(
        self,
        config: GRPOConfig,
        competitions: Sequence[Competition],
        parts: Parts,
        policy: TrainablePolicy,
        predictor: Evaluator | None,
        sample: Sampler,
    ) -> None:
        super().__init__(policy, parts.executor, predictor, rollout_settings(config), sample=sample)
        self.config = config
        self.competitions = competitions
        self.learner = parts.learner

    def draw(self, step: int) -> list[Any]:
        """The competitions of a step. See `GroupRollouts`."""
        config = self.config
        return draw_tasks(self.competitions, config.groups_per_step, seed=config.seed, step=step)

    def group(self, index: int, task: Competition, source: Source) -> Group:
        """See `GroupRollouts`."""
        return Group(index, task, source)

    def versions(self) -> dict[str, str]:
        """See `GroupRollouts`."""
        return prompt_versions(self, self.competitions)

    def learn(self, groups: Sequence[Group]) -> None:
        """See `GroupRollouts`."""
        if self.learner is not None:
            teach(self.learner, groups)

    def learn_again(self, run_dir: Path) -> None:
        """See `GroupRollouts`."""
        if self.learner is not None:
            teach_again(self.learner, run_dir, self.config)

    def close(self) -> None:
        """Stop executions that still run."""
        if self.executor is not None:
            self.executor.close()
