"""What a finished episode is worth, for real and to a world model: the two kinds of environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from wmrl_envs.evaluation import Evaluation, Evaluator, Solution
from wmrl_rewards.errors import RewardError
from wmrl_rewards.prediction import PredictionRequest, WorldModel, predict_checked

if TYPE_CHECKING:
    from wmrl_envs.autoresearch.episode import Episode
    from wmrl_rewards.world_models.predicted_evaluator import PredictedEvaluator

__all__ = [
    "EpisodeScorer",
    "ReturnScorer",
    "Scored",
    "TrajectoryScorer",
    "trajectory_scorer",
    "trajectory_scorers",
]

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

    @classmethod
    def real(cls, scorers: Sequence[Self], anchors: Sequence[bool]) -> list[Scored]:
        """Real scores of several finished episodes, had at once; for each, whether it is an anchor's."""
        ...

    @classmethod
    def predicted(cls, scorers: Sequence[Self], anchors: Sequence[bool]) -> list[Scored]:
        """What the world model says in their place, asked once for all."""
        ...


def trajectory_scorer(
    env: gym.Env[Any, Any], world_model: WorldModel, score: Callable[[float], float] | None
) -> TrajectoryScorer:
    """The scorer that fits an environment: an AutoResearch one says its episode and its evaluator."""
    if env.has_wrapper_attr("episode") and env.has_wrapper_attr("evaluator"):
        return EpisodeScorer(env, _predictor(world_model), lambda: env.get_wrapper_attr("default_evaluator"))
    return ReturnScorer(_task(env), world_model, score)


def trajectory_scorers(
    envs: VectorEnv[Any, Any, Any], world_model: WorldModel, score: Callable[[float], float] | None
) -> list[TrajectoryScorer]:
    """A scorer for each member of a vector environment."""
    inner: Any = envs.unwrapped
    if not hasattr(inner, "members"):
        return [ReturnScorer(_task(envs), world_model, score) for _ in range(envs.num_envs)]
    predictor = _predictor(world_model)  # one for all, so that a step's programs are one batch
    return [EpisodeScorer(env, predictor, lambda: inner.default_evaluator) for env in inner.members]


def _predictor(world_model: WorldModel) -> PredictedEvaluator:
    from wmrl_rewards.world_models.predicted_evaluator import PredictedEvaluator

    return PredictedEvaluator(world_model)


def _task(env: Any) -> str:
    return type(env.unwrapped).__name__ if env.spec is None else str(env.spec.id)


class ReturnScorer:
    """Any environment: the score is the return, the world model sees (observation, action) pairs."""

    def __init__(
        self, task: str, world_model: WorldModel, score: Callable[[float], float] | None = None
    ) -> None:
        self._task = task
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

    @classmethod
    def real(cls, scorers: Sequence[Self], anchors: Sequence[bool]) -> list[Scored]:
        """The returns, mapped to [0, 1].

        Raises:
            RewardError: A score is not in [0, 1].
        """
        return [(scorer._mapped_return(), None) for scorer in scorers]

    def _mapped_return(self) -> float:
        score = self._return if self._score is None else float(self._score(self._return))
        if not -_TOLERANCE <= score <= 1 + _TOLERANCE:
            what = "an episode's return is" if self._score is None else f"score({self._return}) is"
            raise RewardError(f"{what} {score}, not in [0, 1]: pass a `score` that maps every return there.")
        return min(max(score, 0.0), 1.0)

    @classmethod
    def predicted(cls, scorers: Sequence[Self], anchors: Sequence[bool]) -> list[Scored]:
        """Ask the world model about the whole episodes."""
        if not scorers:
            return []
        predictions = predict_checked(scorers[0]._world_model, [scorer._request() for scorer in scorers])
        return [(prediction.score, prediction.error) for prediction in predictions]

    def _request(self) -> PredictionRequest:
        return PredictionRequest(
            task=self._task, history=tuple(self._history), context={"observation": self._observation}
        )


class EpisodeScorer:
    """An AutoResearch environment: predicted episodes are played by the world model, nothing is executed.

    Args:
        env: The environment, or the member of a vector environment.
        predictor: The world model in an evaluator's place; one for all scorers that are asked together.
        default_evaluator: Gives who executes where an episode names nobody.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        predictor: PredictedEvaluator,
        default_evaluator: Callable[[], Evaluator],
    ) -> None:
        self._env = env
        self._predictor = predictor
        self._default_evaluator = default_evaluator
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

    @classmethod
    def real(cls, scorers: Sequence[Self], anchors: Sequence[bool]) -> list[Scored]:
        """The episodes' own scores on anchors; elsewhere their programs are executed now."""
        executors = [
            None if anchor else scorer._given or scorer._default_evaluator()
            for scorer, anchor in zip(scorers, anchors, strict=True)
        ]
        return cls._scores(scorers, executors)

    @classmethod
    def predicted(cls, scorers: Sequence[Self], anchors: Sequence[bool]) -> list[Scored]:
        """The episodes' own scores where the world model played; on anchors it is asked now."""
        predictors = [
            scorer._predictor if anchor else None for scorer, anchor in zip(scorers, anchors, strict=True)
        ]
        return cls._scores(scorers, predictors)

    @classmethod
    def _scores(cls, scorers: Sequence[Self], evaluators: Sequence[Evaluator | None]) -> list[Scored]:
        """Scores under other evaluators, each asked once for all; under the episode's own for None."""
        scores: list[Scored] = [scorer._own() for scorer in scorers]
        for evaluator in {id(evaluator): evaluator for evaluator in evaluators if evaluator}.values():
            asked = [number for number, other in enumerate(evaluators) if other is evaluator]
            programs = [scorers[number]._programs() for number in asked]
            evaluations = iter(evaluator.evaluate([solution for batch in programs for solution in batch]))
            for number, batch in zip(asked, programs, strict=True):
                scores[number] = scorers[number]._best([next(evaluations) for _ in batch])
        return scores

    def _own(self) -> Scored:
        scored = self._episode.scored
        return (None, None) if scored is None else self._scored(scored[1])

    def _programs(self) -> list[Solution]:
        """The programs that can give the episode's score, by its own rule."""
        episode = self._episode
        if episode.scored is None:
            return []
        if episode.trajectory_score == "final":
            return [episode.scored[0]]
        return [turn.solution for turn in episode.turns if turn.solution is not None]

    def _best(self, evaluations: Sequence[Evaluation]) -> Scored:
        scored = [self._scored(evaluation) for evaluation in evaluations]
        return max(scored, key=lambda pair: -1.0 if pair[0] is None else pair[0], default=(None, None))

    def _scored(self, evaluation: Evaluation) -> Scored:
        score = self._episode.worth(evaluation)
        if score is not None:
            return score, None
        return None, evaluation.error or f"The evaluation ended with the status {evaluation.status}."


def _copied(value: Any) -> Any:
    """A copy that the environment cannot change any more: some reuse the arrays that they return."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value if isinstance(value, _IMMUTABLE) else deepcopy(value)
