"""Teaching a world model that learns from what a run executes: it is asked first and told afterwards.

Its lessons are not part of a checkpoint. All executions are in the run's store, and learning the same from
there again gives the same world model, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from wmrl_agents.executed import executed_in_run
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.rollouts import Group
from wmrl_envs.evaluation import Solution
from wmrl_rewards.prediction import PredictionRequest
from wmrl_rewards.world_models.learned import LearnedWorldModel
from wmrl_rewards.world_models.predicted_evaluator import prediction_request

__all__ = ["teach", "teach_again"]


def teach(learner: LearnedWorldModel, groups: Iterable[Group]) -> None:
    """Tell what a step executed: every program that has a real score, in the order of the store."""
    executed = (pair for group in groups for member in group.trajectories for pair in member.executions)
    learner.learn(*_lessons([(solution, e.score) for solution, e in executed if e.score is not None]))


def teach_again(learner: LearnedWorldModel, run_dir: Path, config: GRPOConfig) -> None:
    """Tell what a run that goes on has executed so far, and nothing else."""
    executed = executed_in_run(run_dir, config, every_turn=True)
    learner.fit(*_lessons([(one.solution, one.score) for one in executed]))


def _lessons(executed: list[tuple[Solution, float]]) -> tuple[list[PredictionRequest], list[float]]:
    requests = [prediction_request(solution, "public") for solution, _ in executed]
    return requests, [score for _, score in executed]
