"""The metric registry: scikit-learn's functions, each with its direction and what it takes as predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import CompetitionError

__all__ = ["METRICS", "Metric", "get_metric"]

Prediction = Literal["probability", "label", "number", "sample"]
Answers = Literal["any", "binary", "finite", "non_negative"]


@dataclass(frozen=True)
class Metric:
    """A named metric.

    Attributes:
        name: Name in the registry, the one that tasks and observations use.
        function: Maps (answers, predictions), both of shape (rows,) or (rows, targets), to a float.
        higher_is_better: Direction.
        bounds: Smallest and largest value that it can take.
        prediction: What a submission holds: the probability of class 1, a class label, a number, or what
            the sample submission shows.
        answers: What answers must be: ``binary`` is 0 and 1, both of them in each half of the test rows.
        unit_interval: Whether predictions must lie in [0, 1].
        several_targets: Whether it takes several target columns.
    """

    name: str
    function: Callable[[NDArray, NDArray], float]
    higher_is_better: bool
    bounds: tuple[float, float]
    prediction: Prediction
    answers: Answers = "any"
    unit_interval: bool = False
    several_targets: bool = False

    def __call__(self, answers: NDArray, predictions: NDArray) -> float:
        """Score predictions against answers."""
        return float(self.function(answers, predictions))

    @property
    def direction(self) -> str:
        """``higher is better`` or ``lower is better``."""
        return "higher is better" if self.higher_is_better else "lower is better"


def _scikit(name: str, **kwargs: object) -> Callable[[NDArray, NDArray], float]:
    """A function of `sklearn.metrics`, imported when first called: the import takes most of a second."""

    def score(answers: NDArray, predictions: NDArray) -> float:
        import sklearn.metrics

        return float(getattr(sklearn.metrics, name)(answers, predictions, **kwargs))

    return score


def _rmsle(answers: NDArray, predictions: NDArray) -> float:
    """Root mean squared logarithmic error; negative predictions count as 0, as competition hosts do."""
    difference = np.log1p(np.clip(predictions, 0, None)) - np.log1p(answers)
    return float(np.sqrt(np.mean(difference**2)))


def _balanced_accuracy(answers: NDArray, predictions: NDArray) -> float:
    """Mean recall over the answers' labels; scikit-learn's own warns of labels that only predictions have."""
    return _scikit("recall_score", average="macro", labels=np.unique(answers))(answers, predictions)


def _quadratic_kappa(answers: NDArray, predictions: NDArray) -> float:
    """Cohen's kappa with quadratic weights: 1 - E[(a - p)^2] / E[(a' - p)^2] with a' independent of p.

    It depends on the values alone; scikit-learn's depends on which labels happen to occur, since it weighs by
    their rank.
    """
    disagreement = float(np.mean((answers - predictions) ** 2.0))
    by_chance = float(np.var(answers) + np.var(predictions) + (np.mean(answers) - np.mean(predictions)) ** 2)
    return 1.0 if disagreement == 0 else 1.0 - disagreement / by_chance


_SHARE = (0.0, 1.0)
_PROBABILITY: dict[str, Any] = {"prediction": "probability", "answers": "binary"}
_ERROR: dict[str, Any] = {"higher_is_better": False, "bounds": (0.0, inf), "prediction": "number"}

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("roc_auc", _scikit("roc_auc_score"), True, _SHARE, several_targets=True, **_PROBABILITY),
        Metric("average_precision", _scikit("average_precision_score"), True, _SHARE, **_PROBABILITY),
        Metric(
            "log_loss",
            _scikit("log_loss", labels=[0, 1]),
            False,
            (0.0, inf),
            unit_interval=True,
            **_PROBABILITY,
        ),
        Metric("brier", _scikit("brier_score_loss"), False, _SHARE, unit_interval=True, **_PROBABILITY),
        Metric("accuracy", _scikit("accuracy_score"), True, _SHARE, "label"),
        Metric("balanced_accuracy", _balanced_accuracy, True, _SHARE, "label"),
        Metric("f1", _scikit("f1_score", zero_division=0.0), True, _SHARE, "label", "binary"),
        Metric("macro_f1", _scikit("f1_score", average="macro", zero_division=0.0), True, _SHARE, "label"),
        Metric("quadratic_kappa", _quadratic_kappa, True, (-1.0, 1.0), "label", "finite"),
        Metric("r2", _scikit("r2_score"), True, (-inf, 1.0), "number", "finite", several_targets=True),
        Metric("rmse", _scikit("root_mean_squared_error"), answers="finite", several_targets=True, **_ERROR),
        Metric("mae", _scikit("mean_absolute_error"), answers="finite", several_targets=True, **_ERROR),
        Metric("rmsle", _rmsle, answers="non_negative", **_ERROR),
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
