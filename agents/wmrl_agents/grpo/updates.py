"""The updates of one batch: gradient, checks, optimiser.

Usually there is one update a batch: nothing is stale, and nothing is clipped. With more ``updates_per_batch``
the whole batch is used again, with the ratio to the policy that sampled it clipped. It is always the whole
batch: the weights of fusion are normalised over it, so parts of it would have steps of different sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.gradients import GradientStatistics
from wmrl_agents.grpo.learners import Learners
from wmrl_agents.policies.base import Sample
from wmrl_envs.errors import WMRLError

__all__ = ["LARGEST_MISMATCH", "Update", "update_policy"]

# Per token. Sound engines differ by the rounding of their number format: vLLM in bfloat16 by 0.05 on average.
LARGEST_MISMATCH = {"float64": 0.05, "float32": 0.05, "bfloat16": 0.15}


@dataclass(frozen=True)
class Update:
    """What the updates of a batch saw.

    Attributes:
        statistics: Those of the first one, made by the policy that sampled.
        grad_norm: Length of its gradient before it was shortened.
        clipped: Share of own tokens that were clipped in the later ones; None where there are none.
    """

    statistics: GradientStatistics
    grad_norm: float
    clipped: float | None


def update_policy(
    learners: Learners,
    optimizer: torch.optim.Optimizer,
    config: GRPOConfig,
    samples: Sequence[Sample],
    coefficients: Sequence[float],
    *,
    step: int,
) -> Update:
    """Make the updates of one batch.

    Args:
        learners: The policy on all processes.
        optimizer: That of its parameters.
        config: The run's settings.
        samples: The batch.
        coefficients: One number per trajectory.
        step: Number of the step, for what is said about errors.

    Raises:
        WMRLError: Log-probabilities of training and of sampling differ, in any step, because a sampler may
            miss an update; or a gradient is not finite. Nothing comes of that update then.
    """
    optimizer.zero_grad()  # an update that was refused leaves its gradient behind
    first, norm = _gradient(learners, config, samples, coefficients, None, step)
    _compare(first, LARGEST_MISMATCH[config.dtype])
    _apply(learners, optimizer)
    later = GradientStatistics()
    for _ in range(config.updates_per_batch - 1):
        clip = (config.clip_low, config.clip_high)
        later += _gradient(learners, config, samples, coefficients, clip, step)[0]
        _apply(learners, optimizer)
    return Update(first, norm, later.clipped / later.tokens if later.tokens else None)


def _gradient(
    learners: Learners,
    config: GRPOConfig,
    samples: Sequence[Sample],
    coefficients: Sequence[float],
    clip: tuple[float, float] | None,
    step: int,
) -> tuple[GradientStatistics, float]:
    """The gradient of one update, shortened if asked for, and its length before."""
    statistics = learners.accumulate(samples, coefficients, clip)
    longest = float("inf") if config.max_grad_norm is None else config.max_grad_norm
    norm = float(torch.nn.utils.clip_grad_norm_(learners.policy.parameters(), longest))
    if not norm < float("inf"):
        raise WMRLError(
            f"The gradient of step {step} is not finite: lower the learning rate, "
            "or use a number format with a larger range."
        )
    return statistics, norm


def _apply(learners: Learners, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()
    learners.share_weights()


def _compare(statistics: GradientStatistics, largest: float) -> None:
    """Refuse to train on samples that the policy would not have drawn."""
    if not statistics.mismatch <= largest:
        raise WMRLError(
            "The policy does not train what it samples: log-probabilities in training and in sampling differ "
            f"by {statistics.mismatch:.3f} a token, more than {largest}. Nothing was updated. Check "
            "that the sampler has the weights of the last update and the same temperature, that it samples "
            "from the whole distribution (no top-p, top-k or penalties), that it pads with an attention "
            "mask, and that both compute in the same dtype."
        )
