"""`LearnedWorldModel`: a scikit-learn regressor on features of a request, able to learn as a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_envs.errors import ConfigError
from wmrl_rewards.errors import RewardError
from wmrl_rewards.prediction import Prediction, PredictionRequest

__all__ = ["LearnedWorldModel", "code_features"]

Floats = NDArray[np.float64]

_CODE_FEATURES, _TASK_FEATURES = 512, 64
_NOTHING = "The request holds nothing to judge."


class LearnedWorldModel:
    """Predicts scores by regression; the smallest world model there is, and the one that others have to beat.

    It learns from episodes whose real score is known: from a set of them with `fit`, or with `learn` from the
    anchors of a run as they come. A trainer asks first and tells the truth afterwards, so that each
    prediction is of something that the model has not seen.

    Args:
        features: Turns a request into numbers, the same count for every request; None is `code_features`.
        regressor: Any scikit-learn regressor; None is ridge regression on standardised features with the
            penalty chosen by leave-one-out. Predictions are clipped to [0, 1].
        prior: Score in [0, 1] that it answers before it has learned anything; None gives no score then.

    Example:
        >>> model = LearnedWorldModel(lambda request: [len(request.history)])
        >>> short, long = (PredictionRequest("walk", history=[(0, 0)] * n) for n in (1, 9))
        >>> model.predict([short])[0].error
        'The world model has not been fitted yet.'
        >>> model.fit([short, long] * 10, [0.0, 1.0] * 10)
        >>> [round(prediction.score, 2) for prediction in model.predict([long, short])]
        [1.0, 0.0]
    """

    def __init__(
        self,
        features: Callable[[PredictionRequest], ArrayLike] | None = None,
        regressor: Any = None,
        prior: float | None = None,
    ) -> None:
        if prior is not None and not 0 <= prior <= 1:
            raise ConfigError(f"The prior score must lie in [0, 1], not be {prior}.")
        self.features = code_features if features is None else features
        self.regressor = _default_regressor() if regressor is None else regressor
        self.prior = prior
        self._rows: list[Floats] = []
        self._scores: list[float] = []

    def fit(self, requests: Sequence[PredictionRequest], scores: Sequence[float]) -> None:
        """Learn from episodes whose real score is known, in place of all that was learned before.

        Raises:
            RewardError: There is not one score in [0, 1] for each request.
        """
        rows = self._checked(requests, scores)
        self._rows, self._scores = [], []
        self._take(rows, scores)

    def learn(self, requests: Sequence[PredictionRequest], scores: Sequence[float]) -> None:
        """Learn from further episodes, besides all earlier ones.

        Raises:
            RewardError: There is not one score in [0, 1] for each request.
        """
        self._take(self._checked(requests, scores), scores)

    def predict(self, requests: Sequence[PredictionRequest]) -> list[Prediction]:
        """Predict a batch.

        There is no score for a request that holds nothing to judge, where ``features`` fails, and, without a
        prior, before anything was learned.
        """
        if not self._rows:
            return [self._untaught(request) for request in requests]
        rows = [self._row(request) for request in requests]
        known = [row for row in rows if not isinstance(row, Prediction)]
        scores = iter(np.clip(self.regressor.predict(np.stack(known)), 0, 1) if known else ())
        return [row if isinstance(row, Prediction) else Prediction(float(next(scores))) for row in rows]

    def _checked(self, requests: Sequence[PredictionRequest], scores: Sequence[float]) -> list[Floats]:
        if len(requests) != len(scores) or not all(0 <= score <= 1 for score in scores):
            raise RewardError(f"{len(requests)} requests need as many scores in [0, 1].")
        return [np.asarray(self.features(request), dtype=np.float64) for request in requests]

    def _take(self, rows: Sequence[Floats], scores: Sequence[float]) -> None:
        if not rows:
            return
        self.regressor.fit(
            np.stack([*self._rows, *rows]), np.array([*self._scores, *scores], dtype=np.float64)
        )
        self._rows += rows
        self._scores += [float(score) for score in scores]

    def _untaught(self, request: PredictionRequest) -> Prediction:
        if self.prior is None:
            return Prediction(None, error="The world model has not been fitted yet.")
        return Prediction(self.prior) if request.holds_anything else Prediction(None, error=_NOTHING)

    def _row(self, request: PredictionRequest) -> Floats | Prediction:
        """Features of a request, or a prediction that says why there are none."""
        if not request.holds_anything:
            return Prediction(None, error=_NOTHING)
        try:
            row = np.asarray(self.features(request), dtype=np.float64)
        except Exception as error:  # The user's function; the other requests of the batch must not be lost.
            return Prediction(None, error=f"features() failed for this request: {error!r}.")
        width = len(self._rows[0])
        if row.shape != (width,) or not np.isfinite(row).all():
            problem = f"features() must give {width} finite numbers, not an array of shape {row.shape}."
            return Prediction(None, error=problem)
        return row


def code_features(request: PredictionRequest) -> Floats:
    """Which words and pairs of words a program holds, and which task it is for.

    Words are names, numbers and the literals of a program, hashed into a fixed number of columns: nothing has
    to be learned before the first program. The task has columns of its own, so that a level can be learned
    for each; differences inside a group are told by the program alone.

    Returns:
        Array of shape (577,): the program's words, its length, the task.
    """
    code = request.solution or ""
    words = _hashing(_CODE_FEATURES).transform([code]).toarray()[0]
    task = _hashing(_TASK_FEATURES).transform([request.task]).toarray()[0]
    return np.concatenate([words, [np.log1p(len(code))], task])


@cache
def _hashing(columns: int) -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(
        n_features=columns, token_pattern=r"[A-Za-z_]\w*|\d+(?:\.\d+)?", ngram_range=(1, 2), lowercase=False
    )


def _default_regressor() -> Any:
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-3, 5, 17)))
