"""`ChatPolicy`: any chat model behind any engine as an agent that can be evaluated, not trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wmrl_agents.policies.base import Prompt, Sample
from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.base import LanguageModel, Message, Sampling

__all__ = ["ChatPolicy"]


@dataclass(frozen=True)
class _ChatPrompt(Prompt):
    """A dialogue of which only the words are known."""

    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class _ChatSample(Sample):
    messages: tuple[Message, ...] = ()


class ChatPolicy:
    """Plays episodes through the messages of a chat; its token records are empty.

    Args:
        language_model: Who replies.
        max_new_tokens: Most tokens of one reply.
        temperature: Sampling temperature.
    """

    max_context: int | None = None

    def __init__(
        self, language_model: LanguageModel, *, max_new_tokens: int, temperature: float = 1.0
    ) -> None:
        self.language_model = language_model
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text."""
        return self.language_model.count_tokens(text)

    def begin(self, system: str, user: str) -> Prompt:
        """A new dialogue, ready for the first reply."""
        messages = (Message(role="system", content=system), Message(role="user", content=user))
        return _ChatPrompt((), (), (), messages=messages)

    def extend(self, sample: Sample, user: str) -> Prompt:
        """The dialogue with the environment's next message appended."""
        assert isinstance(sample, _ChatSample)
        return _ChatPrompt((), (), (), messages=(*sample.messages, Message(role="user", content=user)))

    def sample(self, prompts: Sequence[Prompt], *, seed: int) -> list[Sample]:
        """One reply to each prompt.

        Raises:
            WMRLError: The engine gave no reply to one of them.
        """
        sampling = Sampling(self.max_new_tokens, self.temperature, seed=seed)
        dialogues = [prompt.messages for prompt in prompts if isinstance(prompt, _ChatPrompt)]
        replies = self.language_model.generate(dialogues, sampling)
        samples: list[Sample] = []
        for dialogue, (reply,) in zip(dialogues, replies, strict=True):
            if reply.error is not None:
                raise WMRLError(reply.error)
            messages = (*dialogue, Message(role="assistant", content=reply.text))
            truncated = not reply.finished
            samples.append(_ChatSample((), (), (), reply.text, truncated, messages=messages))
        return samples
