"""`LanguageModel`: batched chat generation, used by world models, agents and evaluation alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict, runtime_checkable

__all__ = ["Generation", "LanguageModel", "Message", "Sampling"]


class Message(TypedDict):
    """One chat message: ``{"role": "system" | "user" | "assistant", "content": text}``."""

    role: str
    content: str


@dataclass(frozen=True)
class Sampling:
    """How to sample.

    Attributes:
        max_new_tokens: Tokens generated at most.
        temperature: 0 means greedy.
        top_p: Nucleus mass; 1 samples from the whole distribution.
        seed: Seed of the sampling; None draws a fresh one.
    """

    max_new_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True)
class Generation:
    """One generated text.

    Attributes:
        text: Decoded text without special tokens.
        token_ids: Sampled token ids, the end-of-turn token included if it was sampled.
        log_probs: Their log-probabilities under the sampling distribution; empty where the engine hides them.
        finished: Whether the model ended the text itself (False: it hit ``max_new_tokens``).
    """

    text: str
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    finished: bool = True


@runtime_checkable
class LanguageModel(Protocol):
    """A chat model behind any engine."""

    def generate(
        self, conversations: Sequence[Sequence[Message]], sampling: Sampling, samples: int = 1
    ) -> list[list[Generation]]:
        """Generate ``samples`` replies to each conversation, in their order."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text under this model's tokenizer."""
        ...
