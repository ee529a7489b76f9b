"""`Policy`: samples replies as token ids, and gives the log-probabilities that training differentiates.

A multi-turn trajectory is *one* token record that only grows: the tokens that were sampled stay as they were
sampled (nothing is decoded and encoded again), and a mask tells them from the environment's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

__all__ = ["Policy", "Prompt", "Sample"]


@dataclass(frozen=True)
class Prompt:
    """Tokens up to where the agent speaks next.

    Attributes:
        token_ids: The whole context so far.
        mask: True where the agent itself sampled the token (in an earlier turn).
        log_probs: Log-probability at which it was sampled; 0.0 where ``mask`` is False.
    """

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    log_probs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.mask) == len(self.log_probs):
            raise ValueError(
                f"token_ids, mask and log_probs must be of one length, not {len(self.token_ids)}, "
                f"{len(self.mask)} and {len(self.log_probs)}."
            )


@dataclass(frozen=True)
class Sample(Prompt):
    """A prompt together with the reply that was sampled after it (the whole record so far).

    Attributes:
        text: The new reply, decoded.
        truncated: Whether the reply hit the token limit instead of ending by itself.
        version: Number of updates that the weights had seen which sampled the reply.
    """

    text: str = ""
    truncated: bool = False
    version: int = 0

    @property
    def num_own_tokens(self) -> int:
        """Number of tokens that the agent sampled, over all turns."""
        return sum(self.mask)


@runtime_checkable
class Policy(Protocol):
    """An agent that can be trained."""

    def begin(self, system: str, user: Any) -> Prompt:
        """Token record of a new trajectory, ready for the first reply.

        Args:
            system: What is said once: the system prompt of a language model, the task of a robot.
            user: What is said or seen first: a text, or an `Observation`.
        """
        ...

    def extend(self, sample: Sample, user: Any) -> Prompt:
        """The record after ``sample`` with the environment's next message appended.

        Raises:
            WMRLError: The chat template rewrites earlier turns, so that no appending can be right.
        """
        ...

    def sample(self, prompts: Sequence[Prompt], *, seed: int) -> list[Sample]:
        """Sample one reply to each prompt; the same prompts and seed give the same samples."""
        ...

    def log_probs(self, samples: Sequence[Prompt]) -> torch.Tensor:
        """Log-probability of each token given those before it.

        Returns:
            Float tensor of shape (len(samples), longest - 1), right-padded with 0; entry ``t`` belongs to
            token ``t + 1``. Differentiable in the policy's parameters.
        """
        ...
