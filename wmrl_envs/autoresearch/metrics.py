"""The metric registry: scikit-learn's functions, each with its direction and what it takes as predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import CompetitionError

__all__ = ["METRICS", "Metric", "get_metric"]

Prediction = Literal["probability", "label", "number"]


@dataclass(frozen=True)
class Metric:
    """A named metric.

    Attributes:
        name: Name in the registry, the one that tasks and observations use.
        function: Maps (answers, predictions), both of shape (rows,), to a float.
        higher_is_better: Direction.
        prediction: What a submission holds: the probability of the positive class, a class label, or a number.
        unit_interval: Whether predictions must lie in [0, 1].
    """

    name: str
    function: Callable[[NDArray, NDArray], float]
    higher_is_better: bool
    prediction: Prediction
    unit_interval: bool = False

    def __call__(self, answers: NDArray, predictions: NDArray) -> float:
        """Score predictions against answers."""
        return float(self.function(answers, predictions))

    @property
    def direction(self) -> str:
        """``higher is better`` or ``lower is better``."""
        return "higher is better" if self.higher_is_better else "lower is better"


def _scikit(name: str, **kwargs: object) -> Callable[[NDArray, NDArray], float]:
    """A function of `sklearn.metrics`, imported when it is first called: the import takes most of a second."""

    def score(answers: NDArray, predictions: NDArray) -> float:
        import sklearn.metrics

        return float(getattr(sklearn.metrics, name)(answers, predictions, **kwargs))

    return score


def _rmsle(answers: NDArray, predictions: NDArray) -> float:
    """Root mean squared logarithmic error; negative predictions count as 0, as competition hosts do."""
    difference = np.log1p(np.clip(predictions, 0, None)) - np.log1p(answers)
    return float(np.sqrt(np.mean(difference**2)))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("roc_auc", _scikit("roc_auc_score"), True, "probability"),
        Metric("average_precision", _scikit("average_precision_score"), True, "probability"),
        Metric("log_loss", _scikit("log_loss", labels=[0, 1]), False, "probability", unit_interval=True),
        Metric("brier", _scikit("brier_score_loss"), False, "probability", unit_interval=True),
        Metric("accuracy", _scikit("accuracy_score"), True, "label"),
        Metric("balanced_accuracy", _scikit("balanced_accuracy_score"), True, "label"),
        Metric("f1", _scikit("f1_score", zero_division=0.0), True, "label"),
        Metric("macro_f1", _scikit("f1_score", average="macro", zero_division=0.0), True, "label"),
        Metric("quadratic_kappa", _scikit("cohen_kappa_score", weights="quadratic"), True, "label"),
        Metric("rmse", _scikit("root_mean_squared_error"), False, "number"),
        Metric("mae", _scikit("mean_absolute_error"), False, "number"),
        Metric("r2", _scikit("r2_score"), True, "number"),
        Metric("rmsle", _rmsle, False, "number"),
    )
}


def get_metric(name: str) -> Metric:
    """Look a metric up by name.

    Raises:
        CompetitionError: There is no such metric; the sentence lists those that are.
    """
    if name not in METRICS:
        raise CompetitionError(f"Unknown metric '{name}': choose one of {', '.join(sorted(METRICS))}.")
    return METRICS[name]
