"""What a policy has to offer: to play, and to be trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray

from wmrl_agents.policies.base import Policy, Prompt, Sample

if TYPE_CHECKING:  # it imports transformers
    from wmrl_agents.policies.token_statistics import TokenStatistics

__all__ = ["ActingPolicy", "PlayingPolicy", "TrainablePolicy"]


class PlayingPolicy(Protocol):
    """A policy that replies."""

    @property
    def max_context(self) -> int | None:
        """Most tokens of a record, the reply included; None if there is no limit."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Most tokens of one reply."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text."""
        ...

    def begin(self, system: str, user: Any) -> Prompt:
        """See `Policy`."""
        ...

    def extend(self, sample: Sample, user: Any) -> Prompt:
        """See `Policy`."""
        ...

    def sample(self, prompts: Sequence[Prompt], *, seed: int) -> list[Sample]:
        """See `Policy`."""
        ...


class TrainablePolicy(PlayingPolicy, Policy, Protocol):
    """A policy with parameters, per-token statistics and a directory form."""

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Its trainable parameters, always in the same order."""
        ...

    @property
    def keeps_start(self) -> bool:
        """Whether `frozen_copy` gives the weights that training began with, however long it has gone on."""
        ...

    def frozen_copy(self) -> Any:
        """A copy that no training changes, fit to be a reference."""
        ...

    def note_update(self) -> None:
        """Be told that its parameters have changed."""
        ...

    def token_statistics(
        self, samples: Sequence[Prompt], reference: Any = None, *, entropy: bool = False
    ) -> TokenStatistics:
        """Log-probability, KL to ``reference`` and entropy at each own token, differentiable."""
        ...

    def save(self, directory: Path) -> Any:
        """Write it as a directory that a policy of the same class loads."""
        ...


@runtime_checkable
class ActingPolicy(TrainablePolicy, Protocol):
    """A policy whose replies are chunks of actions."""

    def check(self, task: str, observation: Any) -> None:
        """Refuse what cannot be decided on.

        Raises:
            ConfigError: The task is unknown, or the observation lacks what is needed.
        """
        ...

    def sample(self, prompts: Sequence[Prompt], *, seed: int, greedy: bool = False) -> list[Sample]:
        """See `Policy`; ``greedy`` takes the likeliest token each time."""
        ...

    def chunk(self, sample: Sample) -> NDArray[Any]:
        """The actions that the last reply of a record means, one row each."""
        ...
