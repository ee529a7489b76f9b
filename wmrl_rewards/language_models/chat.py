"""A chat template as token ids: whole prompts, and what is appended between a reply and the next one.

A multi-turn record must only grow. Encoding the whole dialogue anew at every turn changes tokens that were
sampled (another split of the same text), and drops what a template removes from earlier turns; training would
then see other tokens than generation did. So the words between two replies are cut out of a rendered template
and appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError

from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.base import Message

__all__ = ["ChatFormat", "opening"]

_QUESTION = "First question?"
_ANSWER = "A plain answer."
# Reasoning blocks are what templates like to remove from earlier turns.
_REASONED_ANSWER = "<think>\nA thought.\n</think>\n\nA plain answer."


def opening(system: str, user: str) -> list[Message]:
    """The first messages of a dialogue; an empty system prompt gives no system message."""
    first = [Message(role="system", content=system)] if system else []
    return [*first, Message(role="user", content=user)]


class ChatFormat:
    """Turns messages into token ids with a tokenizer's own chat template.

    Special tokens that are *spelled out* inside a message (a program that prints ``<|im_end|>``) are broken
    up by a space, so that no text can end its own turn and speak as somebody else. Where a template refuses
    or ignores system messages, the system prompt opens the user's first message: it is never lost.

    Args:
        tokenizer: A Hugging Face tokenizer.
        chat_template: Jinja template to use instead of the tokenizer's.
        thinking: Passed to the template as ``enable_thinking``; None leaves the choice to the template.

    Raises:
        WMRLError: There is no chat template, or it knows no ``enable_thinking`` and one is asked for.
    """

    def __init__(
        self, tokenizer: Any, chat_template: str | None = None, thinking: bool | None = None
    ) -> None:
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        if not tokenizer.chat_template:
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise WMRLError(f"The tokenizer '{name}' has no chat template: pass one as chat_template.")
        if thinking is not None and "enable_thinking" not in str(tokenizer.chat_template):
            raise WMRLError(
                "The chat template does not know enable_thinking, so that thinking cannot be switched on or "
                "off: leave the setting out, or pass a chat_template that knows it."
            )
        self.tokenizer = tokenizer
        self._arguments = {} if thinking is None else {"enable_thinking": thinking}
        added = tokenizer.added_tokens_decoder.values()
        self._special = sorted({token.content for token in added if token.special}, key=len, reverse=True)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a dialogue, up to where the assistant speaks next.

        Raises:
            WMRLError: The template refuses the dialogue.
        """
        return self._encode(self._render(self.place_system(messages)))

    def place_system(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as the template takes them: with a system prompt where it has no place of its own."""
        if len(messages) < 2 or messages[0]["role"] != "system" or self._takes_system:
            return list(messages)
        system, first, *rest = messages
        return [Message(role=first["role"], content=f"{system['content']}\n\n{first['content']}"), *rest]

    def continuation(self, user: str) -> list[int]:
        """Token ids between the last word of a reply and the first one of the next reply.

        Args:
            user: The message in between.

        Raises:
            WMRLError: The template rewrites earlier turns, so that no appending can be right.
        """
        if not self._only_appends:
            raise WMRLError(
                "The chat template rewrites earlier turns (it drops <think> blocks, for example), so that "
                "the tokens of a multi-turn dialogue would not be those that were sampled: pass a "
                "chat_template that leaves earlier turns as they are, or use a single turn."
            )
        return self._encode(self._after_answer(user))

    @property
    def takes_instructions(self) -> bool:
        """False where ``tokenizer_config.json`` has ``"takes_instructions": false``: a model for one job."""
        return bool(getattr(self.tokenizer, "init_kwargs", {}).get("takes_instructions", True))

    @cached_property
    def end_of_turn(self) -> int | None:
        """Id of the first special token that the template writes after a reply; None if there is none."""
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        return next((i for i in self._encode(self._after_answer(_QUESTION)) if i in special), None)

    @cached_property
    def opens_thinking(self) -> bool:
        """Whether the template itself writes the ``<think>`` with which a reply begins."""
        return self._render(opening("", _QUESTION)).rstrip().endswith("<think>")

    @cached_property
    def _takes_system(self) -> bool:
        marker = "Instructions of the system."
        try:
            return marker in self._render(opening(marker, _QUESTION))
        except WMRLError:
            return False

    @cached_property
    def _only_appends(self) -> bool:
        """Whether each prompt begins with the one before it and the reply to that, in text and in tokens."""
        dialogue = self.place_system(opening("Instructions.", _QUESTION))
        before = self._render(dialogue)
        for user in ("Second question?", "Third question?"):
            dialogue += [
                Message(role="assistant", content=_REASONED_ANSWER),
                Message(role="user", content=user),
            ]
            after = self._render(dialogue)
            expected = before + _REASONED_ANSWER + self._after_answer(user)
            suffix = self._encode(self._after_answer(user))
            if after != expected or self._encode(after)[-len(suffix) :] != suffix:
                return False
            before = after
        return True

    def _after_answer(self, user: str) -> str:
        rendered = self._render(
            [
                Message(role="user", content=_QUESTION),
                Message(role="assistant", content=_ANSWER),
                Message(role="user", content=user),
            ]
        )
        return rendered.partition(_ANSWER)[2]

    def _render(self, messages: Sequence[Message]) -> str:
        harmless = [{"role": m["role"], "content": self._break_up(m["content"])} for m in messages]
        try:
            return self.tokenizer.apply_chat_template(
                harmless, tokenize=False, add_generation_prompt=True, **self._arguments
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise WMRLError(f"The chat template refuses a dialogue of {roles}: {error}") from error

    def _break_up(self, text: str) -> str:
        for token in self._special:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)
