r"""The gradient of one step, accumulated over micro-batches that cannot change it.

With coefficients :math:`a_{k,i}` (advantage, fusion weight and 1/n in one number, see `wmrl_rewards.fuse`)
the policy gradient of the paper's Eq. (1) and (5) is

.. math:: \hat g = \sum_{k,i} a_{k,i} s_{k,i}, \quad s_{k,i} = \sum_t \nabla \log \pi(\text{own token } t),

which is the gradient of one weighted sum of log-probabilities. What is minimised adds two terms that no
fusion weight touches, means over all N trajectories of sums over their own tokens:

.. math:: -\sum_j a_j \sum_t \log\pi + \frac1N \sum_j \sum_t (\beta \mathrm{KL}_t - \epsilon \mathrm{H}_t).

Everything is a sum with denominators that are known before the first micro-batch, so their number, order and
padding change nothing but rounding. There is no ratio to an older policy and so nothing to clip: a batch is
used for exactly one step, by the policy that sampled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from wmrl_agents.grpo.roles import TrainablePolicy
from wmrl_agents.policies.base import Sample

__all__ = ["GradientStatistics", "accumulate_gradients"]


@dataclass(frozen=True)
class GradientStatistics:
    """What was seen on the way, per own token.

    Attributes:
        tokens: Number of own tokens.
        kl: Mean KL divergence to the reference.
        entropy: Mean entropy.
        mismatch: Mean absolute difference between the log-probabilities of training and of sampling.
    """

    tokens: int
    kl: float
    entropy: float
    mismatch: float


def accumulate_gradients(
    policy: TrainablePolicy,
    samples: Sequence[Sample],
    coefficients: Sequence[float],
    *,
    reference: Any = None,
    kl_coefficient: float = 0.0,
    entropy_coefficient: float = 0.0,
    loss_reduction: Literal["sum", "sequence_mean"] = "sum",
    micro_batch: int = 8,
) -> GradientStatistics:
    """Add the gradient of a step's loss to the ``.grad`` of the policy's parameters.

    Args:
        policy: The policy that sampled.
        samples: Whole trajectories, one token record each.
        coefficients: One number per trajectory, as `wmrl_rewards.fuse` makes them.
        reference: Frozen policy of the KL term; needed only if its coefficient is above 0.
        kl_coefficient: Weight of the KL term.
        entropy_coefficient: Weight of the entropy bonus.
        loss_reduction: ``sequence_mean`` divides each trajectory's sums by its number of own tokens.
        micro_batch: Trajectories in one backward pass.

    Returns:
        Statistics over all own tokens.
    """
    if len(samples) != len(coefficients):
        raise ValueError(f"{len(samples)} trajectories need as many coefficients, not {len(coefficients)}.")
    own = [max(1, sample.num_own_tokens) for sample in samples]
    scales = [1.0 if loss_reduction == "sum" else 1.0 / count for count in own]
    totals = torch.zeros(4, dtype=torch.float64)
    by_length = sorted(range(len(samples)), key=lambda j: -len(samples[j].token_ids))
    for start in range(0, len(by_length), micro_batch):
        rows = by_length[start : start + micro_batch]
        batch = [samples[j] for j in rows]
        seen = policy.token_statistics(batch, reference if kl_coefficient > 0 else None, entropy=True)
        kl = torch.zeros_like(seen.log_probs) if seen.kl is None else seen.kl
        entropy = torch.zeros_like(seen.log_probs) if seen.entropy is None else seen.entropy
        scale = kl.new_tensor([scales[j] for j in rows])
        weight = kl.new_tensor([coefficients[j] for j in rows])
        regulariser = (kl_coefficient * kl - entropy_coefficient * entropy) / len(samples)
        per_token = regulariser - weight[:, None] * seen.log_probs
        (per_token.sum(dim=1) * scale).sum().backward()
        gap = (seen.log_probs.detach() - _sampled(batch, kl)) * seen.mask
        sums = [values.detach().sum() for values in (seen.mask, kl, entropy, gap.abs())]
        totals += torch.stack(sums).to("cpu", torch.float64)
    tokens = int(totals[0])
    mean_kl, mean_entropy, mismatch = (totals[1:] / max(1, tokens)).tolist()
    return GradientStatistics(tokens, mean_kl, mean_entropy, mismatch)


def _sampled(batch: Sequence[Sample], like: torch.Tensor) -> torch.Tensor:
    """Log-probabilities as they were recorded when the tokens were sampled."""
    sampled = torch.zeros_like(like)
    for row, sample in enumerate(batch):
        sampled[row, : len(sample.log_probs) - 1] = like.new_tensor(sample.log_probs[1:])
    return sampled
