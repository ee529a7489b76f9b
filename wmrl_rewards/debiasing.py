"""Online Debiasing: a monotone map from predicted to real scores, learned from anchor pairs.

Equation (4) of the paper::

    f̂ = argmin over non-decreasing f of  Σ_j (f(r̂_j) − r_j)²

solved by isotonic regression with linear interpolation between its knots. The map is the identity until
``min_pairs`` pairs are there, is fitted then, and again after every ``refit_every`` new pairs.

The paper's proof analyses the other direction, which is ``method="inverse"``: isotonic regression of the
mean prediction on the true score, then the inverse of its interpolation. It shrinks less and is noisier.
Equation (4) shrinks toward E[r | r̂] and so has flat stretches; inside one of them a group loses its order.
``strict="centered"`` is the remedy: each flat block becomes one knot at the mean of its predictions (centred
isotonic regression), so that the map rises strictly between block centres.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_envs.errors import ConfigError
from wmrl_rewards.errors import RewardError

__all__ = ["DebiasingMethod", "IsotonicDebiaser"]

DebiasingMethod = Literal["regression", "inverse"]
Floats = NDArray[np.float64]


class IsotonicDebiaser:
    """The monotone map f̂ and the rule by which it is refitted.

    Args:
        min_pairs: Pairs before the first fit.
        refit_every: New pairs between one fit and the next.
        method: ``regression`` is Equation (4), ``inverse`` the direction of the proof.
        strict: ``"centered"`` makes the map of Equation (4) strictly increasing between block centres.
        window: Fit on that many of the latest pairs only; None uses all.

    Example:
        >>> debiaser = IsotonicDebiaser(min_pairs=2)
        >>> debiaser.update([0.6, 0.8], [0.0, 0.5])
        >>> debiaser([0.7, 0.9])
        array([0.25, 0.5 ])
    """

    def __init__(
        self,
        min_pairs: int = 200,
        refit_every: int = 64,
        method: DebiasingMethod = "regression",
        strict: Literal["centered"] | None = None,
        window: int | None = None,
    ) -> None:
        if min_pairs < 1 or refit_every < 1 or (window is not None and window < 1):
            raise ConfigError("min_pairs, refit_every and the window of pairs must be at least 1.")
        if method not in ("regression", "inverse"):
            raise ConfigError(f"The debiasing method must be 'regression' or 'inverse', not {method!r}.")
        if strict not in (None, "centered"):
            raise ConfigError(f"strict must be 'centered' or None, not {strict!r}.")
        if strict and method == "inverse":
            raise ConfigError(
                "strict='centered' belongs to method='regression': 'inverse' has no flat blocks."
            )
        self.min_pairs = min_pairs
        self.refit_every = refit_every
        self.method = method
        self.strict = strict
        self.window = window
        self._predicted: list[float] = []
        self._real: list[float] = []
        self._pairs_at_fit = 0
        self._knots: tuple[Floats, Floats] | None = None

    @property
    def fitted(self) -> bool:
        """Whether the map has been fitted; it is the identity before."""
        return self._knots is not None

    @property
    def pairs_at_fit(self) -> int:
        """Number of pairs that were known when the map was last fitted."""
        return self._pairs_at_fit

    def frozen(self) -> Callable[[ArrayLike], Floats]:
        """The map as it is now, which later updates leave alone."""
        return partial(_interpolate, self._knots)

    def __call__(self, predicted: ArrayLike, context: Any = None) -> Floats:
        """Calibrate predicted scores.

        Args:
            predicted: Raw scores of any shape; NaN stays NaN. Beyond the pairs seen the map is constant.
            context: Not used by a map of the score alone.

        Returns:
            A new array of the same shape.
        """
        return _interpolate(self._knots, predicted)

    def update(self, predicted: ArrayLike, real: ArrayLike, context: Any = None) -> None:
        """Take new pairs, and refit if that is due.

        Args:
            predicted: Raw scores in [0, 1], shape (p,).
            real: True scores in [0, 1], shape (p,).
            context: Not used by a map of the score alone.

        Raises:
            RewardError: The lengths differ, or a score is missing or outside [0, 1]. Nothing is taken then.
        """
        columns = [np.asarray(column, dtype=np.float64) for column in (predicted, real)]
        if columns[0].ndim != 1 or columns[0].shape != columns[1].shape:
            raise RewardError(
                "Pairs come as two lists of one length, not as arrays of the shapes "
                f"{columns[0].shape} and {columns[1].shape}."
            )
        for name, column in zip(("predicted", "real"), columns, strict=True):
            bad = np.flatnonzero(~((column >= 0) & (column <= 1)))
            if bad.size:
                raise RewardError(f"Row {bad[0]}: the {name} score {column[bad[0]]} is not in [0, 1].")
        self._predicted.extend(columns[0].tolist())
        self._real.extend(columns[1].tolist())
        if self._due():
            self._fit(len(self._predicted))

    def _due(self) -> bool:
        total = len(self._predicted)
        if not self.fitted:
            return total >= self.min_pairs
        return total - self._pairs_at_fit >= self.refit_every

    def _fit(self, num_pairs: int) -> None:
        start = 0 if self.window is None else max(0, num_pairs - self.window)
        predicted = np.array(self._predicted[start:num_pairs])
        real = np.array(self._real[start:num_pairs])
        # Sums of floats depend on their order; a fixed one makes the map a function of the set of pairs.
        order = np.lexsort((real, predicted))
        predicted, real = predicted[order], real[order]
        if self.method == "inverse":
            self._knots = _inverse_knots(predicted, real)
        else:
            self._knots = _regression_knots(predicted, real, centered=self.strict == "centered")
        self._pairs_at_fit = num_pairs

    def state_dict(self) -> dict[str, Any]:
        """Pairs and the number of them that the map was fitted on, fit for JSON."""
        return {
            "predicted": list(self._predicted),
            "real": list(self._real),
            "pairs_at_fit": self._pairs_at_fit,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore bit for bit: the map is fitted again on the same pairs."""
        self._predicted = [float(score) for score in state["predicted"]]
        self._real = [float(score) for score in state["real"]]
        self._knots, self._pairs_at_fit = None, 0
        if state["pairs_at_fit"]:
            self._fit(state["pairs_at_fit"])


def _interpolate(knots: tuple[Floats, Floats] | None, predicted: ArrayLike) -> Floats:
    scores = np.array(predicted, dtype=np.float64)
    if knots is None:
        return scores
    # A map of a single knot would send NaN there.
    return np.where(np.isnan(scores), np.nan, np.interp(scores, *knots))


def _regression_knots(predicted: Floats, real: Floats, centered: bool) -> tuple[Floats, Floats]:
    """Equation (4), as knots of its linear interpolation."""
    from sklearn.isotonic import IsotonicRegression  # here, so that importing the package stays light

    regression = IsotonicRegression(y_min=0, y_max=1, increasing=True, out_of_bounds="clip")
    fitted = regression.fit_transform(predicted, real)
    if not centered:
        return regression.X_thresholds_, regression.y_thresholds_
    levels, centres = _mean_per_level(fitted, predicted)
    return centres, levels


def _inverse_knots(predicted: Floats, real: Floats) -> tuple[Floats, Floats]:
    """Isotonic fit of the mean prediction per true score, inverted.

    True scores whose mean predictions are pooled cannot be told apart: they share one knot, at their mean.
    """
    from sklearn.isotonic import IsotonicRegression

    order = np.lexsort((predicted, real))
    fitted = IsotonicRegression(y_min=0, y_max=1, increasing=True).fit_transform(
        real[order], predicted[order]
    )
    return _mean_per_level(fitted, real[order])


def _mean_per_level(levels: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Distinct ``levels``, ascending, and the mean of the ``values`` at each."""
    distinct, index, counts = np.unique(levels, return_inverse=True, return_counts=True)
    return distinct, np.bincount(index, weights=values) / counts
