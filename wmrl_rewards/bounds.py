"""What the paper's theorems say of training with a world model of a measured fidelity.

In units of the unknown constants (M bounds the score vectors, μ and L are those of gradient domination and
smoothness, γ is the step size), Theorem 3 adds to the bound of real execution

    32 B² · M²/μ    for the bias, and    16 σ²/n · γLM²/μ    for the noise,

and Theorem 4 divides the first by 1 + T/T₀ after T steps, with T₀ = c_f²/B². The constant c_f of Lemma 11
follows from its proof: the fitted vertices are off by √(log(2KT/δ) / (2qat)), and the map magnifies that by
at most 2Δ_ℓ/Δ_φ, so c_f = (2Δ_ℓ/Δ_φ) / √(2qa). There are K levels of the real score; Δ_ℓ is the largest gap
between neighbours, Δ_φ the smallest between their mean predictions, q the least share of pairs on a level, a
the number of new pairs a step.

The variance of a predicted group's gradient over that of an executed one is taken as 1 + η̂², as in the rule
for ρ with the normalisation by the spread of the real scores. These are upper bounds and orders of magnitude,
not forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log, sqrt

from wmrl_rewards.anchors import AnchorSampler
from wmrl_rewards.fidelity import Fidelity

__all__ = ["Bounds", "training_bounds"]

_DELTA = 0.05


@dataclass(frozen=True)
class Bounds:
    """What the theorems say, and for which plan of training.

    Attributes:
        groups_per_step: m.
        anchors_per_step: Groups that are executed.
        group_size: n.
        steps: T.
        bias_term: 32 B² of the raw predictions, in M²/μ: no amount of training removes it without debiasing.
        bias_term_calibrated: The same with what debiasing left on tasks that the map had not seen.
        noise_term: 16 σ²/n of the calibrated predictions, in γLM²/μ.
        variance_ratio: V_WM / V_E, taken as 1 + η̂²; None if no group is informative.
        effective_groups: Executed groups that a step's information amounts to: anchors + others / ratio.
        t0: T₀, steps until the bound on the bias has halved; None if mean predictions do not rise from one
            level of the real score to the next, so that the theorem promises nothing.
        contraction: 1 + T/T₀, what the bias term is divided by at the end.
        valid_from: Step from which the lemma's bound holds with 95 % probability.
    """

    groups_per_step: int
    anchors_per_step: int
    group_size: int
    steps: int
    bias_term: float
    bias_term_calibrated: float
    noise_term: float
    variance_ratio: float | None
    effective_groups: float | None
    t0: float | None
    contraction: float | None
    valid_from: float | None


def training_bounds(
    fidelity: Fidelity,
    *,
    groups_per_step: int = 8,
    group_size: int = 8,
    anchor_fraction: float = 0.1,
    steps: int = 100,
) -> Bounds:
    """Put measured numbers into the theorems.

    Args:
        fidelity: What was measured.
        groups_per_step: Groups in a step.
        group_size: Trajectories in a group.
        anchor_fraction: Share of the groups that are executed.
        steps: Steps of the training.
    """
    anchors = AnchorSampler(anchor_fraction).count(groups_per_step)
    raw, calibrated = fidelity.raw, fidelity.calibrated
    bias = raw.bias.value or 0.0
    eta2 = calibrated.eta2.value
    ratio = None if eta2 is None else 1 + eta2
    t0, valid_from = _recalibration(fidelity, bias, anchors * group_size, steps)
    return Bounds(
        groups_per_step=groups_per_step,
        anchors_per_step=anchors,
        group_size=group_size,
        steps=steps,
        bias_term=32 * bias**2,
        bias_term_calibrated=32 * (calibrated.bias.value or 0.0) ** 2,
        noise_term=16 * (calibrated.noise.value or 0.0) ** 2 / group_size,
        variance_ratio=ratio,
        effective_groups=None if ratio is None else anchors + (groups_per_step - anchors) / ratio,
        t0=t0,
        contraction=1 + steps / t0 if t0 else None,
        valid_from=valid_from,
    )


def _recalibration(
    fidelity: Fidelity, bias: float, pairs_per_step: int, steps: int
) -> tuple[float | None, float | None]:
    """T₀ and the first step at which Lemma 11 says something."""
    levels = fidelity.levels
    if len(levels) < 2 or bias == 0:
        return None, None
    neighbours = list(pairwise(levels))
    gap = max(upper.real - lower.real for lower, upper in neighbours)
    separation = min(upper.predicted - lower.predicted for lower, upper in neighbours)
    if separation <= 0:
        return None, None
    share = min(level.size for level in levels) / sum(level.size for level in levels)
    rate = 2 * gap / separation / sqrt(2 * share * pairs_per_step)
    confidence = log(2 * len(levels) * steps / _DELTA)
    return rate**2 / bias**2, 8 * confidence / (share * pairs_per_step * separation**2)
