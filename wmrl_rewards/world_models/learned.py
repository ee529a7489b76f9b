"""`LearnedWorldModel`: a scikit-learn regressor on features of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_rewards.errors import RewardError
from wmrl_rewards.prediction import Prediction, PredictionRequest

__all__ = ["LearnedWorldModel"]

Floats = NDArray[np.float64]


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
        self._width = 0

    def fit(self, requests: Sequence[PredictionRequest], scores: Sequence[float]) -> None:
        """Learn from episodes whose real score is known, in place of all that was learned before.

        Raises:
            RewardError: There is not one score in [0, 1] for each request.
        """
        if len(requests) != len(scores) or not all(0 <= score <= 1 for score in scores):
            raise RewardError(f"{len(requests)} requests need as many scores in [0, 1].")
        rows = np.array([self.features(request) for request in requests], dtype=np.float64)
        self.regressor.fit(rows, np.asarray(scores, dtype=np.float64))
        self._width = rows.shape[1]
        self._fitted = True

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Predict a batch.

        There is no score before the first fit, for a request that holds nothing to judge, and where
        ``features`` fails.
        """
        if not self._fitted:
            return [Prediction(None, error="The world model has not been fitted yet.") for _ in requests]
        rows = [self._row(request) for request in requests]
        known = [row for row in rows if not isinstance(row, Prediction)]
        scores = iter(np.clip(self.regressor.predict(np.stack(known)), 0, 1) if known else ())
        return [row if isinstance(row, Prediction) else Prediction(float(next(scores))) for row in rows]

    def _row(self, request: PredictionRequest) -> Floats | Prediction:
        """Features of a request, or a prediction that says why there are none."""
        if request.solution is None and request.frames is None and not len(request.history):
            return Prediction(None, error="The request holds nothing to judge.")
        try:
            row = np.asarray(self.features(request), dtype=np.float64)
        except Exception as error:  # The user's function; the other requests of the batch must not be lost.
            return Prediction(None, error=f"features() failed for this request: {error!r}.")
        if row.shape != (self._width,) or not np.isfinite(row).all():
            problem = f"features() must give {self._width} finite numbers, not an array of shape {row.shape}."
            return Prediction(None, error=problem)
        return row


def _default_regressor() -> Any:
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-3, 3, 13)))
