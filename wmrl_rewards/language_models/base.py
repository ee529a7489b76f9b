"""`LanguageModel`: batched chat generation, used by world models, agents and evaluation alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, runtime_checkable

from wmrl_envs.errors import ConfigError

__all__ = ["Generation", "LanguageModel", "Message", "Sampling", "takes_instructions", "takes_schema"]


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
        schema: JSON schema that a reply has to follow. It binds where the engine can bind it (see
            `takes_schema`), and is left out elsewhere: a reply may always be something else.

    Raises:
        ConfigError: A number is out of its range.
    """

    max_new_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}.")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature must be 0 (greedy) or a positive number, not {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], not {self.top_p}.")
        if self.seed is not None and self.seed < 0:
            raise ConfigError(f"seed must not be negative, but is {self.seed}.")


@dataclass(frozen=True)
class Generation:
    """One generated text.

    Attributes:
        text: Decoded text without special tokens.
        token_ids: Sampled token ids, the end-of-turn token included if it was sampled.
        log_probs: Their log-probabilities under the sampling distribution (at temperature 0: under the
            model's own one); empty where the engine hides them.
        finished: Whether the text came to its end (False: it hit ``max_new_tokens``).
        error: Why there is no text, where there is none; one bad reply never costs the others.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    finished: bool = True
    error: str | None = None


@runtime_checkable
class LanguageModel(Protocol):
    """A chat model behind any engine.

    An engine that can bind replies to `Sampling.schema` has an attribute ``takes_schema`` that is true.
    A model that was trained for one job, with nothing but the question before it, has ``takes_instructions``
    that is false.
    """

    def generate(
        self, conversations: Sequence[Sequence[Message]], sampling: Sampling, samples: int = 1
    ) -> list[list[Generation]]:
        """Generate ``samples`` replies to each conversation, in their order."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text under this model's tokenizer."""
        ...


def takes_schema(model: LanguageModel) -> bool:
    """Whether a model's engine says that it can bind replies to a JSON schema."""
    return bool(getattr(model, "takes_schema", False))


def takes_instructions(model: LanguageModel) -> bool:
    """Whether a model can be told what to do: one that was trained for one job alone says that it cannot."""
    return bool(getattr(model, "takes_instructions", True))
