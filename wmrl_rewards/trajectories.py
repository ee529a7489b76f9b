"""What a finished episode is worth, for real and to a world model: the two kinds of environments."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np

from wmrl_envs.evaluation import Evaluation, Evaluator
from wmrl_rewards.errors import RewardError
from wmrl_rewards.prediction import PredictionRequest, WorldModel

if TYPE_CHECKING:
    from wmrl_envs.autoresearch.episode import Episode

__all__ = ["EpisodeScorer", "ReturnScorer", "Scored", "TrajectoryScorer", "trajectory_scorer"]

Scored = tuple[float | None, str | None]
"""A score, and why there is none."""

_TOLERANCE = 1e-6
_IMMUTABLE = (int, float, str, bytes, np.generic)


class TrajectoryScorer(Protocol):
    """Follows the episodes of one environment and scores them."""

    def reset_options(self, options: dict[str, Any], anchor: bool) -> dict[str, Any]:
        """What the environment is to be told of the caller's options for the next episode."""
        ...

    def begin(self, observation: Any) -> None:
        """Follow a new episode."""
        ...

    def step(self, action: Any, observation: Any, reward: float) -> None:
        """Follow a step."""
        ...

    def settled(self) -> float | None:
        """Real score of the finished episode, if it needs neither execution nor prediction."""
        ...

    def real(self, anchor: bool) -> Scored:
        """Real score of the finished episode."""
        ...

    def predicted(self, anchor: bool) -> Scored:
        """What the world model says in its place."""
        ...


def trajectory_scorer(
    env: gym.Env[Any, Any], world_model: WorldModel, score: Callable[[float], float] | None
) -> TrajectoryScorer:
    """The scorer that fits an environment: an AutoResearch one says its episode and its evaluator."""
    if env.has_wrapper_attr("episode") and env.has_wrapper_attr("evaluator"):
        return EpisodeScorer(env, world_model)
    return ReturnScorer(env, world_model, score)


class ReturnScorer:
    """Any environment: the score is the return, the world model sees (observation, action) pairs."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        world_model: WorldModel,
        score: Callable[[float], float] | None,
    ) -> None:
        self._task = type(env.unwrapped).__name__ if env.spec is None else env.spec.id
        self._world_model = world_model
        self._score = score
        self.begin(None)

    def reset_options(self, options: dict[str, Any], anchor: bool) -> dict[str, Any]:
        """Everything but the group, which other environments do not know."""
        return {name: value for name, value in options.items() if name != "group"}

    def begin(self, observation: Any) -> None:
        """Follow a new episode."""
        self._history: list[tuple[Any, Any]] = []
        self._observation = _copied(observation)
        self._return = 0.0

    def step(self, action: Any, observation: Any, reward: float) -> None:
        """Follow a step."""
        self._history.append((self._observation, _copied(action)))
        self._observation = _copied(observation)
        self._return += reward

    def settled(self) -> float | None:
        """Never known beforehand."""
        return None

    def real(self, anchor: bool) -> Scored:
        """The return, mapped to [0, 1].

        Raises:
            RewardError: The score is not in [0, 1].
        """
        score = self._return if self._score is None else float(self._score(self._return))
        if not -_TOLERANCE <= score <= 1 + _TOLERANCE:
            what = "an episode's return is" if self._score is None else f"score({self._return}) is"
            raise RewardError(f"{what} {score}, not in [0, 1]: pass a `score` that maps every return there.")
        return min(max(score, 0.0), 1.0), None

    def predicted(self, anchor: bool) -> Scored:
        """Ask the world model about the whole episode."""
        request = PredictionRequest(
            task=self._task, history=tuple(self._history), context={"observation": self._observation}
        )
        (prediction,) = self._world_model.predict([request])
        if prediction.score is not None and not 0 <= prediction.score <= 1:
            raise RewardError(
                f"The world model predicted the score {prediction.score}, which is not in [0, 1]."
            )
        return prediction.score, prediction.error


class EpisodeScorer:
    """An AutoResearch environment: predicted episodes are played by the world model, nothing is executed."""

    def __init__(self, env: gym.Env[Any, Any], world_model: WorldModel) -> None:
        from wmrl_rewards.world_models.predicted_evaluator import PredictedEvaluator

        self._env = env
        self._predictor = PredictedEvaluator(world_model)
        self._given: Evaluator | None = None

    @property
    def _episode(self) -> Episode:
        episode: Episode = self._env.get_wrapper_attr("episode")
        return episode

    def reset_options(self, options: dict[str, Any], anchor: bool) -> dict[str, Any]:
        """Everything, with the world model in the evaluator's place unless the group is an anchor."""
        self._given = options.get("evaluator")
        return options if anchor else {**options, "evaluator": self._predictor}

    def begin(self, observation: Any) -> None:
        """The environment keeps the episode; only the half of the rows that is scored can change."""
        self._predictor.half = self._episode.half

    def step(self, action: Any, observation: Any, reward: float) -> None:
        """The environment keeps the episode."""

    def settled(self) -> float | None:
        """0 where no program was sent."""
        return 0.0 if self._episode.scored is None else None

    def real(self, anchor: bool) -> Scored:
        """The episode's own score on an anchor; elsewhere its programs are executed now."""
        if anchor:
            return self._own()
        return self._under(self._given or self._env.get_wrapper_attr("default_evaluator"))

    def predicted(self, anchor: bool) -> Scored:
        """The episode's own score where the world model played; on an anchor it is asked now."""
        if self._episode.scored is None:
            return None, None
        return self._under(self._predictor) if anchor else self._own()

    def _own(self) -> Scored:
        scored = self._episode.scored
        assert scored is not None
        return _scored(scored[1])

    def _under(self, evaluator: Evaluator) -> Scored:
        """Score of the same programs under another evaluator, by the same rule."""
        episode = self._episode
        assert episode.scored is not None
        solutions = [episode.scored[0]]
        if episode.trajectory_score == "best":
            solutions = [turn.solution for turn in episode.turns if turn.solution is not None]
        scored = [_scored(evaluation) for evaluation in evaluator.evaluate(solutions)]
        return max(scored, key=lambda pair: -1.0 if pair[0] is None else pair[0])


def _scored(evaluation: Evaluation) -> Scored:
    if evaluation.score is not None:
        return evaluation.score, None
    return None, evaluation.error or f"The evaluation ended with the status {evaluation.status}."


def _copied(value: Any) -> Any:
    """A copy that the environment cannot change any more: some reuse the arrays that they return."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value if isinstance(value, _IMMUTABLE) else deepcopy(value)
