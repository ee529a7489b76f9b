"""`LearnedWorldModel`: a scikit-learn regressor on features of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmrl_rewards.errors import RewardError
from wmrl_rewards.prediction import Prediction, PredictionRequest

__all__ = ["LearnedWorldModel"]


class LearnedWorldModel:
    """Predicts scores by regression; the smallest world model there is.

    Args:
        features: Turns a request into numbers, the same count for every request.
        regressor: Any scikit-learn regressor; None is ridge regression on standardised features with the
            penalty chosen by leave-one-out. Predictions are clipped to [0, 1].

    Example:
        >>> model = LearnedWorldModel(lambda request: [len(request.history)])
        >>> short, long = (PredictionRequest("walk", history=[(0, 0)] * n) for n in (1, 9))
        >>> model.predict([short])[0].error
        'The world model has not been fitted yet.'
        >>> model.fit([short, long] * 10, [0.0, 1.0] * 10)
        >>> [round(prediction.score, 2) for prediction in model.predict([long, short])]
        [1.0, 0.0]
    """

    def __init__(self, features: Callable[[PredictionRequest], ArrayLike], regressor: Any = None) -> None:
        self.features = features
        self.regressor = _default_regressor() if regressor is None else regressor
        self._fitted = False

    def fit(self, requests: Sequence[PredictionRequest], scores: Sequence[float]) -> None:
        """Learn from episodes whose real score is known, in place of all that was learned before.

        Raises:
            RewardError: There is not one score in [0, 1] for each request.
        """
        if len(requests) != len(scores) or not all(0 <= score <= 1 for score in scores):
            raise RewardError(f"{len(requests)} requests need as many scores in [0, 1].")
        self.regressor.fit(self._matrix(requests), np.asarray(scores, dtype=np.float64))
        self._fitted = True

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Predict a batch; predictions have no score before the first fit."""
        if not self._fitted:
            return [Prediction(None, error="The world model has not been fitted yet.") for _ in requests]
        if not requests:
            return []
        scores = np.clip(self.regressor.predict(self._matrix(requests)), 0, 1)
        return [Prediction(float(score)) for score in scores]

    def _matrix(self, requests: Sequence[PredictionRequest]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([self.features(request) for request in requests], dtype=np.float64)


def _default_regressor() -> Any:
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-3, 3, 13)))
