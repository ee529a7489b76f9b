r"""The gradient of one step, accumulated over micro-batches that cannot change it.

With coefficients :math:`a_{k,i}` (advantage, fusion weight and 1/n in one number, see `wmrl_rewards.fuse`)
the policy gradient of the paper's Eq. (1) and (5) is

.. math:: \hat g = \sum_{k,i} a_{k,i} s_{k,i}, \quad s_{k,i} = \sum_t \nabla \log \pi(\text{own token } t),

which is the gradient of one weighted sum of log-probabilities. What is minimised adds two terms that no
fusion weight touches, means over all N trajectories of sums over their own tokens:

.. math:: -\sum_j a_j \sum_t \log\pi + \frac1N \sum_j \sum_t (\beta \mathrm{KL}_t - \epsilon \mathrm{H}_t).

``sequence_mean`` divides every inner sum, in all three terms, by the trajectory's number of own tokens.

Everything is a sum with denominators that are known before the first micro-batch, so their number, order and
padding change nothing but rounding, and neither does who computes which of them: the processes of a run each
take a share of the micro-batches, and their gradients are added.

The first update of a batch is made by the policy that sampled it: there the ratio to that policy is 1, and
nothing can be clipped. In the updates that follow, where there are any, a token contributes PPO's

.. math:: \min\big(r a, \mathrm{clip}(r, 1 - c_-, 1 + c_+)\, a\big), \quad r = \pi / \pi_{\text{sampled}},

in place of :math:`a \log\pi`; its gradient at :math:`r = 1` is the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from wmrl_agents.grpo.roles import TrainablePolicy
from wmrl_agents.policies.base import Sample

__all__ = ["GradientStatistics", "accumulate_gradients", "length_scales", "micro_batches"]

LossReduction = Literal["sum", "sequence_mean"]


@dataclass(frozen=True)
class GradientStatistics:
    """What was seen on the way; those of several shares add up.

    Attributes:
        tokens: Number of own tokens.
        kl_sum: KL divergence to the reference, summed over them.
        entropy_sum: Entropy, likewise.
        mismatch_sum: Absolute difference between the log-probabilities of now and of sampling, likewise.
        clipped: Number of own tokens whose gradient was clipped away.
        sequence_mismatch: Largest absolute difference between a whole trajectory's log-probabilities.
    """

    tokens: int = 0
    kl_sum: float = 0.0
    entropy_sum: float = 0.0
    mismatch_sum: float = 0.0
    clipped: int = 0
    sequence_mismatch: float = 0.0

    def __add__(self, other: GradientStatistics) -> GradientStatistics:
        return GradientStatistics(
            self.tokens + other.tokens,
            self.kl_sum + other.kl_sum,
            self.entropy_sum + other.entropy_sum,
            self.mismatch_sum + other.mismatch_sum,
            self.clipped + other.clipped,
            max(self.sequence_mismatch, other.sequence_mismatch),
        )

    @property
    def kl(self) -> float:
        """Mean KL divergence to the reference per own token."""
        return self.kl_sum / max(1, self.tokens)

    @property
    def entropy(self) -> float:
        """Mean entropy per own token."""
        return self.entropy_sum / max(1, self.tokens)

    @property
    def mismatch(self) -> float:
        """Mean absolute difference between the log-probabilities of now and of sampling, per own token."""
        return self.mismatch_sum / max(1, self.tokens)


def micro_batches(
    lengths: Sequence[int],
    micro_batch: int,
    micro_batch_tokens: int | None = None,
    kin: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """Trajectories that share a forward and a backward pass: what begins alike, long ones with long ones.

    Args:
        lengths: Tokens of each trajectory's record.
        micro_batch: Trajectories in one pass at most.
        micro_batch_tokens: Tokens in one pass at most, padding included; None for no limit. A trajectory that
            is longer alone has a pass of its own.
        kin: What each trajectory begins with; None if that does not matter.

    Returns:
        Positions in ``lengths``, each once.

    Example:
        >>> micro_batches([3, 9, 4, 2], micro_batch=8, micro_batch_tokens=9)
        [[1], [2, 0], [3]]
    """
    limit = float("inf") if micro_batch_tokens is None else micro_batch_tokens
    batches: list[list[int]] = []
    families: dict[Hashable, list[int]] = {}
    for j in sorted(range(len(lengths)), key=lambda j: -lengths[j]):
        families.setdefault(None if kin is None else kin[j], []).append(j)
    for j in chain.from_iterable(families.values()):
        last = batches[-1] if batches else []
        longest = max(lengths[i] for i in [*last, j])  # all are padded to it
        if last and len(last) < micro_batch and (len(last) + 1) * longest <= limit:
            last.append(j)
        else:
            batches.append([j])
    return batches


def length_scales(samples: Sequence[Sample], loss_reduction: LossReduction) -> list[float]:
    """What each trajectory's sums over its own tokens are multiplied with."""
    if loss_reduction == "sum":
        return [1.0] * len(samples)
    return [1.0 / max(1, sample.num_own_tokens) for sample in samples]


def accumulate_gradients(
    policy: TrainablePolicy,
    samples: Sequence[Sample],
    coefficients: Sequence[float],
    *,
    reference: Any = None,
    kl_coefficient: float = 0.0,
    entropy_coefficient: float = 0.0,
    loss_reduction: LossReduction = "sum",
    micro_batch: int = 8,
    micro_batch_tokens: int | None = None,
    clip: tuple[float, float] | None = None,
    share: tuple[int, int] = (0, 1),
) -> GradientStatistics:
    """Add the gradient of a step's loss to the ``.grad`` of the policy's parameters.

    Args:
        policy: The policy that sampled, or, with ``clip``, one that has been updated since.
        samples: Whole trajectories, one token record each.
        coefficients: One number per trajectory, as `wmrl_rewards.fuse` makes them.
        reference: Frozen policy of the KL term; needed only if its coefficient is above 0.
        kl_coefficient: Weight of the KL term.
        entropy_coefficient: Weight of the entropy bonus.
        loss_reduction: ``sequence_mean`` divides each trajectory's sums by its number of own tokens.
        micro_batch: Trajectories in one backward pass at most.
        micro_batch_tokens: Tokens in one, padding included; None for no limit.
        clip: How far below and above 1 the ratio to the sampling policy counts; None where it is 1.
        share: Which micro-batches: number r of w shares. All trajectories are given all the same, because the
            denominators are theirs.

    Returns:
        Statistics over all own tokens of the share.
    """
    if len(samples) != len(coefficients):
        raise ValueError(f"{len(samples)} trajectories need as many coefficients, not {len(coefficients)}.")
    scales = length_scales(samples, loss_reduction)
    lengths, openings = [len(s.token_ids) for s in samples], [_opening(s) for s in samples]
    batches = micro_batches(lengths, micro_batch, micro_batch_tokens, openings)
    statistics = GradientStatistics()
    for rows in batches[share[0] :: share[1]]:
        batch = [samples[j] for j in rows]
        seen = policy.token_statistics(batch, reference if kl_coefficient > 0 else None, entropy=True)
        sampled = _sampled(batch, seen.log_probs)
        kl = torch.zeros_like(sampled) if seen.kl is None else seen.kl
        entropy = torch.zeros_like(sampled) if seen.entropy is None else seen.entropy
        weight = sampled.new_tensor([coefficients[j] for j in rows])[:, None]
        gain, clipped = _gain(weight, seen.log_probs, sampled, clip)
        regulariser = (kl_coefficient * kl - entropy_coefficient * entropy) / len(samples)
        scale = sampled.new_tensor([scales[j] for j in rows])
        ((regulariser - gain).sum(dim=1) * scale).sum().backward()
        gap = (seen.log_probs.detach() - sampled) * seen.mask
        statistics += GradientStatistics(
            tokens=int(seen.mask.sum()),
            kl_sum=float(kl.detach().double().sum()),
            entropy_sum=float(entropy.detach().double().sum()),
            mismatch_sum=float(gap.double().abs().sum()),
            clipped=int((clipped & seen.mask).sum()),
            sequence_mismatch=float(gap.double().sum(dim=1).abs().max()),
        )
    return statistics


def _opening(sample: Sample) -> tuple[int, ...]:
    """The tokens before the agent's first one."""
    return sample.token_ids[: sample.mask.index(True)] if any(sample.mask) else sample.token_ids


def _gain(
    weight: Tensor, log_probs: Tensor, sampled: Tensor, clip: tuple[float, float] | None
) -> tuple[Tensor, Tensor]:
    """What the policy term gains per token, and which tokens were clipped."""
    if clip is None:
        return weight * log_probs, torch.zeros_like(log_probs, dtype=torch.bool)
    ratio = (log_probs - sampled).exp()
    free, bound = weight * ratio, weight * ratio.clamp(1 - clip[0], 1 + clip[1])
    return torch.minimum(free, bound), bound < free


def _sampled(batch: Sequence[Sample], like: Tensor) -> Tensor:
    """Log-probabilities as they were recorded when the tokens were sampled."""
    sampled = torch.zeros_like(like, requires_grad=False)
    for row, sample in enumerate(batch):
        sampled[row, : len(sample.log_probs) - 1] = like.new_tensor(sample.log_probs[1:])
    return sampled
