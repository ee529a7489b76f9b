"""The world-model seam: `PredictionRequest` in, `Prediction` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from wmrl_envs.evaluation import Evaluation
from wmrl_rewards.errors import RewardError

__all__ = ["Prediction", "PredictionRequest", "WorldModel", "predict_checked"]


@dataclass(frozen=True)
class PredictionRequest:
    """One question to a world model: what would come of this?

    Attributes:
        task: Text of the task, as the agent saw it.
        solution: Source text of the solution to judge, if the task is solved by code.
        frames: Video frames, uint8 of shape (T, H, W, 3), if the task is embodied.
        history: What went before: for text the earlier (solution, observation) pairs of the episode, for a
            classic environment its (observation, action) pairs.
        context: Anything that a world model may use besides; AutoResearch requests carry
            ``{"competition": Competition, "split": "public" | "private"}``, those of a classic environment
            ``{"observation": the last one}``.
    """

    task: str
    solution: str | None = None
    frames: Any = None
    history: Sequence[Any] = ()
    context: Mapping[str, Any] | None = None

    @property
    def holds_anything(self) -> bool:
        """Whether there is anything to judge: a solution, frames or a history."""
        return self.solution is not None or self.frames is not None or len(self.history) > 0


@dataclass(frozen=True)
class Prediction:
    """A world model's answer.

    Attributes:
        score: Predicted score in [0, 1]; None where none could be had (never 0 in that case).
        outcome: The predicted evaluation, for models that predict outcomes rather than bare scores.
        samples: Scores of the single samples that ``score`` was made from, if there were several.
        error: Why there is no score.
        seconds: What it took, as its share of its batch's time; None if the world model does not say. One
            from a store keeps what it once took.
        prompt_tokens: Tokens that were read for it, likewise.
        new_tokens: Tokens that were written for it, all samples together, likewise.

    What a prediction cost is no part of what it says: two that differ in nothing else are equal.
    """

    score: float | None
    outcome: Evaluation | None = None
    samples: Sequence[float] = ()
    error: str | None = None
    seconds: float | None = field(default=None, compare=False)
    prompt_tokens: int | None = field(default=None, compare=False)
    new_tokens: int | None = field(default=None, compare=False)


@runtime_checkable
class WorldModel(Protocol):
    """Anything that predicts scores: a prompted or trained language model, a regressor, Robometer.

    `wmrl_rewards.check_world_model` says whether one keeps the contract.
    """

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Predict a batch.

        Args:
            requests: Any number of requests.

        Returns:
            One prediction per request, in their order; failures are predictions without a score.
        """
        ...


def predict_checked(world_model: WorldModel, requests: Sequence[PredictionRequest]) -> list[Prediction]:
    """Ask a world model, which may be the user's, and refuse what would be a wrong reward.

    Raises:
        RewardError: There is not one answer for each request, or a score is not in [0, 1].
    """
    predictions = world_model.predict(requests) if requests else []
    if len(predictions) != len(requests):
        raise RewardError(
            f"The world model gave {len(predictions)} answers to {len(requests)} requests; "
            "check_world_model() tells what else is wrong with it."
        )
    for prediction in predictions:
        if prediction.score is not None and not 0 <= prediction.score <= 1:
            raise RewardError(
                f"The world model predicted the score {prediction.score}, which is not in [0, 1]."
            )
    return predictions
