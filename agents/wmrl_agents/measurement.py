"""`Measurement`: a world model's fidelity with its plan of training, and both in words."""

from __future__ import annotations

from dataclasses import dataclass

from wmrl_rewards.bounds import Bounds
from wmrl_rewards.estimates import Estimate
from wmrl_rewards.fidelity import Fidelity

__all__ = ["ERRORS", "Measurement", "expectations", "shown"]

# Row of the table, field of `ScoreErrors`.
ERRORS = (
    ("mean absolute error", "absolute_error"),
    ("mean error", "mean_error"),
    ("bias B (largest on a level)", "bias"),
    ("bias, root mean square", "typical_bias"),
    ("noise sigma (largest on a level)", "noise"),
    ("noise, root mean square", "typical_noise"),
    ("eta² (1 and more: no signal in a group)", "eta2"),
    ("rank correlation in a group", "rank_in_group"),
    ("rank correlation over all tasks", "rank_overall"),
)


@dataclass(frozen=True)
class Measurement:
    """A world model, what it was asked about, and what came of it.

    Attributes:
        world_model: Its name.
        source: The run or policy whose solutions it was asked about.
        fidelity: The numbers.
        bounds: What the theorems say with them.
    """

    world_model: str
    source: str
    fidelity: Fidelity
    bounds: Bounds


def expectations(measurement: Measurement) -> list[str]:
    """What the numbers let one expect of training with this world model, a sentence each."""
    fidelity, bounds = measurement.fidelity, measurement.bounds
    lines = [*_of_groups(fidelity, bounds), *_of_bounds(bounds)]
    if fidelity.real_seconds and fidelity.seconds:
        ratio = fidelity.real_seconds / fidelity.seconds
        lines.append(f"An execution takes {shown(ratio)} times as long as a prediction.")
    return lines


def _of_groups(fidelity: Fidelity, bounds: Bounds) -> list[str]:
    """What a step is worth."""
    eta2 = fidelity.calibrated.eta2
    if eta2.value is None:
        return ["No group has solutions of different real scores, so there is nothing to say of groups."]
    lines = [
        f"A step of {bounds.groups_per_step} groups, {bounds.anchors_per_step} of them executed, is worth "
        f"about {shown(bounds.effective_groups)} executed groups: the variance of a predicted group's "
        f"gradient is {shown(bounds.variance_ratio)} times that of an executed one's."
    ]
    if max(eta2.value, eta2.high or 0.0) >= 1:
        lines.append(
            "There may be no signal inside groups at all: do not expect more than from anchors alone."
        )
    return lines


def _of_bounds(bounds: Bounds) -> list[str]:
    """What the theorems bound."""
    cost = (
        f"Bound on what bias costs: {shown(bounds.bias_term)} M²/μ without debiasing, "
        f"{shown(bounds.bias_term_calibrated)} M²/μ with what a map from other tasks leaves. Bound on what "
        f"noise costs: {shown(bounds.noise_term)} γLM²/μ."
    )
    if bounds.bias_term == 0:
        return [cost]
    if bounds.t0 is None:
        return [
            cost,
            "Mean predictions do not rise from one level of the real score to the next: Theorem 4 promises "
            "nothing about how fast the bias goes away.",
        ]
    return [
        cost,
        f"By Theorem 4 the bound on the bias has halved after T₀ = {shown(bounds.t0)} steps, and is divided "
        f"by {shown(bounds.contraction)} after {bounds.steps}.",
    ]


def shown(number: float | Estimate | None) -> str:
    """A number for people, with its interval if it has one."""
    if not isinstance(number, tuple):
        return "-" if number is None else f"{number:.3g}"
    if number.value is None:
        return "-"
    interval = "" if number.low is None else f" ({number.low:.3f} to {number.high:.3f})"
    return f"{number.value:.3f}{interval}"
