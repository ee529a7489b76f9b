"""`ChatPolicy`: any `LanguageModel`, an endpoint for example, as an agent to evaluate but not to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from wmrl_agents.policies.base import Prompt, Sample
from wmrl_envs.autoresearch.replies import parse
from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.base import LanguageModel, Message, Sampling
from wmrl_rewards.language_models.chat import opening

__all__ = ["ChatPolicy", "ChatPrompt", "ChatSample"]


@dataclass(frozen=True)
class ChatPrompt(Prompt):
    """A dialogue as messages; an endpoint keeps its tokens to itself.

    Attributes:
        messages: The dialogue so far.
    """

    token_ids: tuple[int, ...] = ()
    mask: tuple[bool, ...] = ()
    log_probs: tuple[float, ...] = ()
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class ChatSample(Sample):
    """A dialogue with the new reply as its last message.

    Attributes:
        messages: The dialogue so far, the reply included.
    """

    token_ids: tuple[int, ...] = ()
    mask: tuple[bool, ...] = ()
    log_probs: tuple[float, ...] = ()
    messages: tuple[Message, ...] = ()


class ChatPolicy:
    """Samples replies from a language model behind any engine; see `Policy`.

    Args:
        language_model: The language model.
        max_new_tokens: Most tokens of one reply.
        temperature: Temperature of the sampling.
        top_p: Nucleus mass of the sampling.
    """

    max_context: int | None = None

    def __init__(
        self,
        language_model: LanguageModel,
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> None:
        self.language_model = language_model
        self.sampling = Sampling(max_new_tokens, temperature, top_p)

    @property
    def max_new_tokens(self) -> int:
        """Most tokens of one reply."""
        return self.sampling.max_new_tokens

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text, as well as the engine knows it."""
        return self.language_model.count_tokens(text)

    def begin(self, system: str, user: str) -> ChatPrompt:
        """A new dialogue, ready for the first reply; an empty system prompt is left out."""
        return ChatPrompt(messages=tuple(opening(system, user)))

    def extend(self, sample: Sample, user: str) -> ChatPrompt:
        """The dialogue after a reply with the environment's next message appended."""
        return ChatPrompt(messages=(*_messages(sample), Message(role="user", content=user)))

    def sample(self, prompts: Sequence[Prompt], *, seed: int) -> list[Sample]:
        """Sample one reply to each prompt; the seed is as good as the engine's.

        Raises:
            WMRLError: A reply could not be had.
        """
        dialogues = [_messages(prompt) for prompt in prompts]
        replies = self.language_model.generate(dialogues, replace(self.sampling, seed=seed))
        samples: list[Sample] = []
        for dialogue, (reply,) in zip(dialogues, replies, strict=True):
            if reply.error is not None:
                raise WMRLError(f"The policy gave no reply: {reply.error}")
            text = reply.text[: parse(reply.text).end]  # without observations that it invented
            said = (*dialogue, Message(role="assistant", content=text))
            samples.append(ChatSample(text=text, truncated=not reply.finished, messages=said))
        return samples

    def log_probs(self, samples: Sequence[Prompt]) -> NoReturn:
        """Not to be had.

        Raises:
            WMRLError: Always: an endpoint cannot be differentiated.
        """
        raise WMRLError(
            "A policy behind an endpoint can be evaluated, but not trained: name a model directory."
        )


def _messages(record: Prompt) -> tuple[Message, ...]:
    if not isinstance(record, ChatPrompt | ChatSample):
        raise TypeError(f"a ChatPolicy continues its own records, not a {type(record).__name__}")
    return record.messages
