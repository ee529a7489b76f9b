"""What a policy that sees and acts saw and said: the record of a trajectory.

Such a policy decides once a chunk: it looks, and says the chunk's tokens. Its record is a `Sample` like that
of a language model, so that gradients are formed from it by the same code: one token that nobody sampled,
then the tokens of the first decision, of the second, and so on, all of them the policy's own. What it saw
before each decision goes along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from wmrl_agents.policies.base import Sample

__all__ = ["ChunkRecord", "Observation"]


@dataclass(frozen=True, eq=False)
class Observation:
    """What is seen when a chunk is decided.

    Attributes:
        state: Numbers, float32 of shape (D,), if the policy reads any.
        image: A picture, uint8 of shape (H, W, 3), upright, if it looks at one.
    """

    state: NDArray[Any] | None = None
    image: NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class ChunkRecord(Sample):
    """A trajectory of decisions, or its beginning.

    Attributes:
        task: The task, in words.
        observations: One for each decision; one more where the next decision is still to come.
        tokens_per_chunk: Tokens of a decision.
    """

    task: str = ""
    observations: tuple[Observation, ...] = ()
    tokens_per_chunk: int = 7

    @property
    def decisions(self) -> list[tuple[int, ...]]:
        """Tokens of each decision so far."""
        size, own = self.tokens_per_chunk, self.token_ids[1:]
        return [own[start : start + size] for start in range(0, len(own), size)]

    @property
    def waiting(self) -> bool:
        """Whether the next thing to come is a decision."""
        return len(self.observations) > len(self.decisions)
