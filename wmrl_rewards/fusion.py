"""Fusion: from scores to the coefficients a with ĝ = Σ a[k, i] · s[k, i].

s[k, i] is the score vector of member i of group k (the gradient of its log-probability). Every trainer
consumes a; advantages, 1/n, weights and their normalisation are inside it.

``inverse_variance`` is the paper's Equation (5) in the form that it is implemented in::

    ĝ = (ρ Σ_{k∈E} ĝ_k + Σ_{k∈WM} ĝ_k) / (ρ |E| + |WM|),    ĝ_k = (1/n) Σ_i (r_i − mean r) s_i

with the true scores on anchor groups E and the calibrated ones on the others. ``anchors_alone`` is the
control that drops the predicted groups. ``rectified`` is not in the paper: all groups by their calibrated
scores, plus c times the anchors' mean difference to the truth; c = 1 is unbiased for any world model::

    ĝ = mean_all[ĝ_k(calibrated)] + c · mean_E[ĝ_k(real) − ĝ_k(calibrated)]

There is no division by the standard deviation: it would erase the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_envs.evaluation import Source
from wmrl_rewards.errors import RewardError

__all__ = [
    "FUSION_METHODS",
    "FusionMethod",
    "all_equal",
    "fuse",
    "group_scale",
    "members_apart",
    "score_matrix",
]

FusionMethod = Literal["inverse_variance", "anchors_alone", "rectified"]
FUSION_METHODS: tuple[FusionMethod, ...] = ("inverse_variance", "anchors_alone", "rectified")
Floats = NDArray[np.float64]
# Scores this close, relative to the largest, differ by what single precision leaves of equal ones (8 ulp).
_RESIDUE = 8 * float(np.finfo(np.float32).eps)
_NOTHING = 1e-100  # the square of a smaller difference is no number any more


def all_equal(scores: ArrayLike) -> bool:
    """Whether the scores of a group differ by no more than rounding does; True if fewer than two are there.

    Args:
        scores: Scores of the members, shape (n,); NaN where missing.

    Example:
        >>> all_equal([0.1 + 0.2, 0.3, float("nan")]), all_equal([0.3, 0.300001])
        (True, False)
    """
    row = np.asarray(scores, dtype=np.float64)
    return not bool(_differing(row[None], np.abs(row[None]))[0])


def members_apart(predicted: ArrayLike, real: ArrayLike) -> tuple[Floats, Floats] | None:
    """An anchor group's members that have both scores, if these can show anything of what is inside groups.

    Args:
        predicted: Predictions, shape (n,); NaN where missing.
        real: True scores, shape (n,); NaN where missing.

    Returns:
        Both, of the members left; None if fewer than two are, or their true scores are all equal.

    Raises:
        RewardError: The two are not lists of one length.
    """
    predictions, truths = np.asarray(predicted, dtype=np.float64), np.asarray(real, dtype=np.float64)
    if predictions.ndim != 1 or predictions.shape != truths.shape:
        raise RewardError(
            "A group comes as two lists of one length, not as arrays of the shapes "
            f"{predictions.shape} and {truths.shape}."
        )
    present = ~(np.isnan(predictions) | np.isnan(truths))
    return None if all_equal(truths[present]) else (predictions[present], truths[present])


def fuse(
    sources: Sequence[Source],
    real: ArrayLike,
    calibrated: ArrayLike,
    rho: float,
    method: FusionMethod = "inverse_variance",
    correction: float = 0.5,
) -> Floats:
    """Coefficients of one optimiser step.

    Args:
        sources: Who graded each group, of length m: ``"real"`` marks an anchor.
        real: True scores, shape (m, n); NaN where missing. Read on anchor groups only.
        calibrated: Calibrated scores, shape (m, n); NaN where missing. ``inverse_variance`` and
            ``anchors_alone`` do not read them on anchor groups.
        rho: Weight of an anchor group against a predicted one; only ``inverse_variance`` uses it.
        method: See the module.
        correction: The c of ``rectified``.

    Returns:
        Array a of shape (m, n). A missing member gets 0, and its group's mean and 1/n run over the members
        left; a group with fewer than two left gets 0 and does not count in any sum of groups. A group whose
        scores are all equal, up to rounding in single precision, gets 0 and does count: its mean gradient is
        known to be 0.

    Raises:
        RewardError: Shapes do not agree, a score is infinite, a source is unknown, or rho is not positive.
    """
    anchors = _anchors(sources, rho)
    real_scores, calibrated_scores = score_matrix(real, len(anchors)), score_matrix(calibrated, len(anchors))
    if real_scores.shape != calibrated_scores.shape:
        raise RewardError(
            f"real {real_scores.shape} and calibrated {calibrated_scores.shape} differ in shape."
        )
    if method == "rectified":
        return _rectified(anchors, real_scores, calibrated_scores, correction)
    if method == "inverse_variance":
        weights = np.where(anchors, float(rho), 1.0)
    elif method == "anchors_alone":
        weights = anchors.astype(np.float64)
    else:
        raise RewardError(f"The fusion must be one of {', '.join(FUSION_METHODS)}, not {method!r}.")
    scores = np.where(anchors[:, None], real_scores, calibrated_scores)
    return _weighted_mean(scores, weights, np.abs(scores))


def group_scale(sources: Sequence[Source], rho: float) -> Floats:
    """Factors c_k = w_k · m / Σw that turn a trainer's plain mean over groups into the fused one.

    Centring is linear, so scaling a group's rewards before a trainer centres them equals scaling its
    advantages, as long as the trainer does not divide by the standard deviation.

    Args:
        sources: Who graded each group, of length m.
        rho: Weight of an anchor group.

    Returns:
        Array of shape (m,) with mean 1.
    """
    weights = np.where(_anchors(sources, rho), float(rho), 1.0)
    return np.asarray(weights * (len(weights) / weights.sum()))


def _differing(scores: Floats, sizes: Floats) -> NDArray[np.bool_]:
    """Which groups' scores differ by more than rounding in numbers of these sizes; shape (m,)."""
    present = ~np.isnan(scores)
    lowest = np.where(present, scores, np.inf).min(axis=1, initial=np.inf)
    highest = np.where(present, scores, -np.inf).max(axis=1, initial=-np.inf)
    largest = np.where(present, sizes, 0.0).max(axis=1, initial=0.0)
    with np.errstate(invalid="ignore"):  # nothing is there at all
        return np.asarray(highest - lowest > np.maximum(_RESIDUE * largest, _NOTHING))


def _weighted_mean(scores: Floats, weights: Floats, sizes: Floats) -> Floats:
    """Coefficients of Σ_k w_k ĝ_k / Σ_k w_k over the groups with at least two members.

    Args:
        scores: Shape (m, n), NaN where missing.
        weights: Shape (m,).
        sizes: Sizes of the numbers that the scores were made from, shape (m, n).
    """
    present = ~np.isnan(scores)
    usable = present.sum(axis=1) >= 2
    total = weights[usable].sum()
    if total == 0:
        return np.zeros_like(scores)
    members = np.maximum(present.sum(axis=1, keepdims=True), 1)
    # Centring on the lowest score first makes the advantages of equal scores exactly 0, not a rounding error,
    # and what had rounding errors before it came here is told from real differences by its size.
    lowest = np.where(present, scores, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    shifted = np.where(present, scores - lowest, 0.0)
    centred = shifted - shifted.sum(axis=1, keepdims=True) / members
    advantages = np.where(present & _differing(scores, sizes)[:, None], centred, 0.0)
    return np.asarray(np.where(usable, weights / total, 0.0)[:, None] * advantages / members)


def _rectified(anchors: NDArray[np.bool_], real: Floats, calibrated: Floats, correction: float) -> Floats:
    # On an anchor a member needs both scores: the correction compares the two on the same trajectories.
    both = np.where(np.isnan(real), np.nan, calibrated)
    calibrated = np.where(anchors[:, None], both, calibrated)
    difference = np.where(anchors[:, None], real - calibrated, np.nan)
    everyone = np.ones(len(anchors))
    sizes = np.fmax(np.abs(real), np.abs(calibrated))
    plain = _weighted_mean(calibrated, everyone, np.abs(calibrated))
    return plain + correction * _weighted_mean(difference, everyone, sizes)


def _anchors(sources: Sequence[Source], rho: float) -> NDArray[np.bool_]:
    unknown = [source for source in sources if source not in ("real", "world_model")]
    if unknown:
        raise RewardError(f"A group's source must be 'real' or 'world_model', not {unknown[0]!r}.")
    if not 0 < rho < float("inf"):
        raise RewardError(f"The anchor weight rho must be positive and finite, not {rho}.")
    return np.array([source == "real" for source in sources], dtype=bool)


def score_matrix(scores: ArrayLike, num_groups: int) -> Floats:
    """The scores of a step as a float array of shape (num_groups, n), NaN where missing; checked."""
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 2 or len(array) != num_groups:
        raise RewardError(
            f"Scores of {num_groups} groups must have the shape ({num_groups}, n), not {array.shape}."
        )
    if np.isinf(array).any():
        raise RewardError("A score is infinite; a missing one is NaN.")
    return array
