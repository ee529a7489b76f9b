"""The world-model seam: `PredictionRequest` in, `Prediction` out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from wmrl_envs.evaluation import Evaluation
from wmrl_rewards.errors import RewardError

__all__ = ["Prediction", "PredictionRequest", "WorldModel", "check_world_model"]


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


@dataclass(frozen=True)
class Prediction:
    """A world model's answer.

    Attributes:
        score: Predicted score in [0, 1]; None where none could be had (never 0 in that case).
        outcome: The predicted evaluation, for models that predict outcomes rather than bare scores.
        samples: Scores of the single samples that ``score`` was made from, if there were several.
        error: Why there is no score.
    """

    score: float | None
    outcome: Evaluation | None = None
    samples: Sequence[float] = ()
    error: str | None = None


@runtime_checkable
class WorldModel(Protocol):
    """Anything that predicts scores: a prompted or trained language model, a regressor, Robometer."""

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Predict a batch.

        Args:
            requests: Any number of requests.

        Returns:
            One prediction per request, in their order; failures are predictions without a score.
        """
        ...


def check_world_model(world_model: WorldModel, requests: Sequence[PredictionRequest] | None = None) -> None:
    """Check that a world model keeps the contract that rewards rely on.

    Args:
        world_model: The world model.
        requests: At least two questions of the kind it is made for. None asks about three programs for the
            bundled competition ``breast-cancer``.

    Raises:
        RewardError: One sentence for each breach: the number of answers, their type, a score outside [0, 1],
            a missing score without a reason, an answer that depends on the other requests of the batch or
            on their order, a request that was changed.
    """
    asked = _example_requests() if requests is None else list(requests)
    before = [deepcopy(vars(request)) for request in asked]
    predictions = world_model.predict(asked)
    breaches = _wrong_answers(predictions, len(asked))
    if breaches:
        raise RewardError("\n".join(breaches))
    if world_model.predict([]) != []:
        breaches.append("predict([]) must return an empty list.")
    if not _same_scores(world_model.predict(asked[::-1])[::-1], predictions):
        breaches.append(
            "Scores change with the order of the requests: each must depend on its request alone."
        )
    if not _same_scores([world_model.predict([request])[0] for request in asked], predictions):
        breaches.append("Scores change with the batch: each must depend on its request alone.")
    if not all(_equal(vars(request), old) for request, old in zip(asked, before, strict=True)):
        breaches.append("predict() changed a request: copy what you want to change.")
    if breaches:
        raise RewardError("\n".join(breaches))


def _wrong_answers(predictions: object, num_requests: int) -> list[str]:
    if not isinstance(predictions, list) or not all(isinstance(answer, Prediction) for answer in predictions):
        return ["predict() must return a list of Prediction."]
    if len(predictions) != num_requests:
        return [f"predict() gave {len(predictions)} answers to {num_requests} requests."]
    breaches = []
    for number, prediction in enumerate(predictions):
        score = prediction.score
        if score is None and not prediction.error:
            breaches.append(f"Prediction {number} has no score and does not say why: set its error.")
        elif score is not None and not isinstance(score, float):
            breaches.append(f"Prediction {number} has a score of type {type(score).__name__}, not float.")
        elif score is not None and not 0 <= score <= 1:
            breaches.append(f"Prediction {number} has the score {score}, which is not in [0, 1].")
    return breaches


def _same_scores(some: Sequence[Prediction], others: Sequence[Prediction]) -> bool:
    """Whether the scores agree, up to what batching does to floating-point sums."""
    pairs = [(one.score, other.score) for one, other in zip(some, others, strict=True)]
    return all(
        one is other if one is None or other is None else math.isclose(one, other, abs_tol=1e-4)
        for one, other in pairs
    )


def _equal(one: object, other: object) -> bool:
    """Equality that also looks inside arrays and containers."""
    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return True


def _example_requests() -> list[PredictionRequest]:
    from wmrl_envs.autoresearch.competition import load_competition
    from wmrl_envs.autoresearch.prompts import task_text

    competition = load_competition("breast-cancer")
    constant = (
        "import os, pandas as pd\n"
        "sample = pd.read_csv(os.path.join(os.environ['DATA_DIR'], 'sample_submission.csv'))\n"
        "sample.to_csv(os.environ['SUBMISSION_PATH'], index=False)\n"
    )
    return [
        PredictionRequest(
            task=task_text(competition),
            solution=solution,
            context={"competition": competition, "split": "public"},
        )
        for solution in (constant, "print('no submission')\n", "raise ValueError('broken')\n")
    ]
