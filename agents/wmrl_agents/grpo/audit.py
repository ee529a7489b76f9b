r"""The gradient audit: what the theory assumes about group gradients, measured.

The estimator weighs an anchor group ρ times a predicted one. That is optimal if ρ is the ratio of the
variances of their group gradients, V_WM / V_E. ρ is estimated from scores alone; here the gradients
themselves are looked at. On an anchor both exist for the same trajectories: the one under real scores and the
one that the world model's calibrated scores would have given. So no difference between tasks comes in.

Over the anchors of a window (sketches, see `sketches`; the policy term alone):

- ``audit_ratio``: V_WM / V_E, to be compared with ρ;
- ``audit_excess_variance``: how much larger the variance of the fused gradient is than with the best weight
  R = V_WM / V_E,

  .. math:: \frac{\rho^2 |E| + R\,|WM|}{(\rho |E| + |WM|)^2} \cdot \frac{R |E| + |WM|}{R} - 1;

- ``audit_cosine``, ``audit_bias``: angle between the two mean gradients, and length of their difference
  relative to the real one; ``audit_bias_by_chance`` is the length that noise alone would give it. Weights by
  variance do not see bias, so this is where to look for it.

The policy changes while the window fills, which counts as variance in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.gradients import length_scales, micro_batches
from wmrl_agents.grpo.roles import TrainablePolicy
from wmrl_agents.grpo.scores import StepScores
from wmrl_agents.grpo.sketches import GradientSketch
from wmrl_agents.policies.base import Sample
from wmrl_rewards import fuse

__all__ = ["GradientAudit", "excess_variance", "group_coefficients", "sketch_group"]

Floats = NDArray[np.float64]


def excess_variance(ratio: float, rho: float, anchors: int, predicted: int) -> float:
    """Variance of the fused gradient over that of the best weight, minus 1.

    Args:
        ratio: Variance of a predicted group's gradient over that of an anchor's.
        rho: Weight of an anchor group.
        anchors: Number of anchor groups.
        predicted: Number of predicted groups.

    Example:
        >>> excess_variance(2.0, 2.0, 1, 7), round(excess_variance(4.0, 1.0, 1, 7), 4)
        (0.0, 0.2461)
    """
    variance = (rho**2 * anchors + ratio * predicted) / (rho * anchors + predicted) ** 2
    return variance * (ratio * anchors + predicted) / ratio - 1


def group_coefficients(scores: StepScores, k: int) -> tuple[list[list[float]], bool]:
    """Coefficients of a group's own gradient, without weights, for each kind of score that it has.

    Args:
        scores: Scores of the step.
        k: Position of the group.

    Returns:
        One row under calibrated scores; on an anchor one under real scores before it. And whether there are
        two members to compare at all. Where nothing was predicted because there was no program, the real
        score stands in, as it does in predicted groups.
    """
    real = scores.real[k]
    calibrated = np.where(np.isnan(scores.calibrated[k]), real, scores.calibrated[k])
    rows = [calibrated]
    if scores.sources[k] == "real":
        calibrated = np.where(np.isnan(real), np.nan, calibrated)
        rows = [np.where(np.isnan(calibrated), np.nan, real), calibrated]
    usable = int((~np.isnan(rows[-1])).sum()) >= 2
    return [fuse(["real"], row[None], row[None], 1.0)[0].tolist() for row in rows], usable


def sketch_group(
    policy: TrainablePolicy, samples: Sequence[Sample], rows: Sequence[Sequence[float]], config: GRPOConfig
) -> list[Tensor]:
    """Sketches of the gradients Σ a_i s_i of one group, one for each row of coefficients.

    The parameters hold no gradient before and after it.

    Args:
        policy: The policy.
        samples: The group's trajectories.
        rows: Coefficients of the trajectories, one row for each gradient.
        config: Micro-batches, reduction, and the seed of the sketch.
    """
    sketch = GradientSketch(seed=config.seed)
    totals = [torch.zeros(sketch.dimension, dtype=torch.float64) for _ in rows]
    scales = length_scales(samples, config.loss_reduction)
    lengths = [len(sample.token_ids) for sample in samples]
    for batch in micro_batches(lengths, config.micro_batch, config.micro_batch_tokens):
        log_probs = policy.token_statistics([samples[j] for j in batch]).log_probs.sum(dim=1)
        for number, row in enumerate(rows):
            weight = log_probs.new_tensor([row[j] * scales[j] for j in batch])
            (weight * log_probs).sum().backward(retain_graph=number + 1 < len(rows))
            totals[number] += sketch.gradient(policy.parameters())
            for parameter in policy.parameters():
                parameter.grad = None
    return totals


class GradientAudit:
    """Group gradients of the last anchors, as sketches, and what they say.

    Until the map is first fitted, predicted scores are raw; what was seen then is forgotten at the first fit.

    Args:
        window: Anchor groups that are looked at, and as many predicted ones.
    """

    def __init__(self, window: int = 64) -> None:
        self._fitted = False
        self._real: deque[Tensor] = deque(maxlen=window)
        self._calibrated: deque[Tensor] = deque(maxlen=window)
        self._predicted: deque[Tensor] = deque(maxlen=window)

    def begin(self, fitted: bool) -> None:
        """Say whether the scores to come are calibrated by a fitted map."""
        if fitted and not self._fitted:
            for window in (self._real, self._calibrated, self._predicted):
                window.clear()
        self._fitted = fitted

    def observe(self, sketches: Sequence[Tensor]) -> None:
        """Take one group: an anchor's two sketches (real, calibrated), or a predicted group's only one."""
        kept = [sketch.float() for sketch in sketches]
        if len(kept) == 2:
            self._real.append(kept[0])
            self._calibrated.append(kept[1])
        else:
            self._predicted.append(kept[0])

    def statistics(self, rho: float, anchors: int, predicted: int) -> dict[str, float | int | None]:
        """Numbers for the log; None where too little was seen.

        Args:
            rho: Weight that the step used.
            anchors: Anchor groups in the step.
            predicted: Predicted groups in the step.
        """
        real, calibrated = _matrix(self._real), _matrix(self._calibrated)
        variance = {"real": _variance(real), "calibrated": _variance(calibrated)}
        ratio = _quotient(variance["calibrated"], variance["real"])
        bias, chance = _bias(real, calibrated)
        has_both = bool(ratio) and anchors > 0 and predicted > 0
        return {
            "audit_groups": len(real),
            "audit_variance_real": variance["real"],
            "audit_variance_calibrated": variance["calibrated"],
            "audit_variance_predicted": _variance(_matrix(self._predicted)),
            "audit_ratio": ratio,
            "audit_excess_variance": excess_variance(ratio or 1.0, rho, anchors, predicted)
            if has_both
            else None,
            "audit_cosine": _cosine(real, calibrated),
            "audit_bias": bias,
            "audit_bias_by_chance": chance,
        }

    def save(self, path: Path) -> None:
        """Write the windows; tensors and numbers only."""
        torch.save(
            {
                "fitted": self._fitted,
                **{name: list(window) for name, window in self._windows().items()},
            },
            path,
        )

    def load(self, path: Path) -> None:
        """Go on with the windows in a file."""
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        self._fitted = state["fitted"]
        for name, window in self._windows().items():
            window.clear()
            window.extend(state[name])

    def _windows(self) -> dict[str, deque[Tensor]]:
        return {"real": self._real, "calibrated": self._calibrated, "predicted": self._predicted}


def _matrix(window: deque[Tensor]) -> Floats:
    return np.array([sketch.numpy() for sketch in window], dtype=np.float64)


def _variance(gradients: Floats) -> float | None:
    """Mean squared distance from the mean gradient, unbiased; shape (groups, dimension)."""
    if len(gradients) < 2:
        return None
    return float(np.square(gradients - gradients.mean(axis=0)).sum() / (len(gradients) - 1))


def _quotient(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def _cosine(real: Floats, calibrated: Floats) -> float | None:
    if not len(real):
        return None
    one, other = real.mean(axis=0), calibrated.mean(axis=0)
    return _quotient(float(one @ other), float(np.linalg.norm(one) * np.linalg.norm(other)))


def _bias(real: Floats, calibrated: Floats) -> tuple[float | None, float | None]:
    """Length of the mean difference, and what noise alone makes it, relative to the mean real gradient."""
    spread = _variance(calibrated - real) if len(real) else None
    if spread is None:
        return None, None
    length = float(np.linalg.norm(real.mean(axis=0)))
    difference = float(np.linalg.norm((calibrated - real).mean(axis=0)))
    return _quotient(difference, length), _quotient(float(np.sqrt(spread / len(real))), length)
