"""A local Hugging Face model as a `LanguageModel`, sampled reproducibly and without surprises.

The next token is drawn by the inverse of the cumulative distribution from random numbers that are fixed for
each reply beforehand (by seed, prompt and number of the sample). So a reply depends on its prompt and the
seed, not on what else is in the batch, torch's global generator is never touched, and the log-probability of
each token is recorded as it is drawn. The rules that a model's ``generation_config.json`` may bring along
(top-k, repetition penalty, ...) are switched off: the distribution is the one that `Sampling` says.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)

from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.base import Generation, Message, Sampling
from wmrl_rewards.language_models.chat import ChatFormat
from wmrl_rewards.language_models.loading import load_model, load_tokenizer, plain_decode, too_long
from wmrl_rewards.language_models.prefixes import can_share_prefixes, read_prefixes, share_prefixes
from wmrl_rewards.language_models.stopping import CompleteReplies

__all__ = ["HuggingFaceModel"]


class HuggingFaceModel:
    """Chat generation with any causal language model of the Hugging Face layout.

    Args:
        model: A model directory, the name of a model, or a loaded model.
        tokenizer: Its tokenizer; needed with a loaded model, else read from the same place.
        device: Where to run; None takes the accelerator if there is one. A loaded model stays where it is.
        dtype: Type of the weights; None takes that of the checkpoint, but float32 instead of float16 on a
            processor, which computes float16 several times more slowly.
        chat_template: Jinja template to use instead of the tokenizer's.
        thinking: Whether the template asks for thinking; None leaves that to the template.
        max_batch_tokens: Most tokens, padding and new ones included, that are held in one batch.

    Raises:
        WMRLError: The model cannot be loaded, or has no tokenizer or chat template.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel,
        tokenizer: Any = None,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        chat_template: str | None = None,
        thinking: bool | None = None,
        max_batch_tokens: int = 65_536,
    ) -> None:
        if isinstance(model, PreTrainedModel):
            if tokenizer is None:
                raise WMRLError("A model that is already loaded needs its tokenizer: pass both.")
            self.model = model
        else:
            self.model = load_model(model, device, dtype)
            tokenizer = load_tokenizer(model) if tokenizer is None else tokenizer
        self.model.eval()
        self.tokenizer = tokenizer
        self.chat = ChatFormat(tokenizer, chat_template, thinking)
        self.max_batch_tokens = max_batch_tokens
        self.eos_token_ids = _eos_token_ids(self.model, self.chat)

    @property
    def max_context(self) -> int | None:
        """Most tokens, new ones included, that the model was made for; None if it does not say."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def takes_instructions(self) -> bool:
        """Whether the model can be told what to do; see `ChatFormat`."""
        return self.chat.takes_instructions

    @cached_property
    def fingerprint(self) -> str:
        """Names weights, tokenizer and chat template, as they are when it is first asked for."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.named_weights().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
        fast = getattr(self.tokenizer, "backend_tokenizer", None)
        words = sorted(self.tokenizer.get_vocab().items()) if fast is None else fast.to_str()
        digest.update(json.dumps([words, self.tokenizer.chat_template, self.eos_token_ids]).encode())
        return digest.hexdigest()

    def named_weights(self) -> dict[str, torch.Tensor]:
        """The weights that replies come from, by name."""
        return self.model.state_dict()

    @contextmanager
    def in_use(self) -> Iterator[PreTrainedModel]:
        """The model while something is computed with it."""
        yield self.model

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens and without any beautifying."""
        return plain_decode(self.tokenizer, token_ids)

    def generate(
        self, conversations: Sequence[Sequence[Message]], sampling: Sampling, samples: int = 1
    ) -> list[list[Generation]]:
        """Generate replies; see `LanguageModel`.

        A conversation that is too long for the model gives generations with an ``error``.
        """
        prompts = [self.chat.prompt(conversation) for conversation in conversations]
        errors = [self.overflow(len(prompt), sampling.max_new_tokens) for prompt in prompts]
        fitting = [prompt for prompt, error in zip(prompts, errors, strict=True) if error is None]
        replies = iter(self.complete(fitting, sampling, samples))
        return [
            next(replies) if error is None else [Generation("", finished=False, error=error)] * samples
            for error in errors
        ]

    def overflow(self, prompt_tokens: int, max_new_tokens: int) -> str | None:
        """One sentence if so long a prompt leaves no room for a reply, else None."""
        return too_long(prompt_tokens, max_new_tokens, self.max_context)

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        samples: int = 1,
        stop: Callable[[str], bool] | None = None,
    ) -> list[list[Generation]]:
        """Continue token ids.

        Args:
            prompts: Token ids of each prompt.
            sampling: How to sample.
            samples: Replies to each prompt.
            stop: Whether a reply is complete; it is asked at the end of each line that fences a block. The
                reply then ends with the token that ended the line.

        Returns:
            The replies to each prompt, in the order of the prompts.
        """
        rows = [list(prompt) for prompt in prompts for _ in range(samples)]
        noise = _noise(rows, sampling)
        generations: list[Generation] = [Generation("")] * len(rows)
        for batch in self._batches([len(row) for row in rows], sampling.max_new_tokens):
            replies = self._generate([rows[i] for i in batch], noise[batch], sampling, stop)
            for i, reply in zip(batch, replies, strict=True):
                generations[i] = reply
        return [generations[i : i + samples] for i in range(0, len(rows), samples)]

    def _batches(self, lengths: Sequence[int], max_new_tokens: int) -> Iterator[list[int]]:
        """Row indices, longest first, in batches that stay within the token budget."""
        waiting = sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True)
        while waiting:
            size = max(1, self.max_batch_tokens // (lengths[waiting[0]] + max_new_tokens))
            yield waiting[:size]
            waiting = waiting[size:]

    def _generate(
        self,
        rows: list[list[int]],
        noise: np.ndarray,
        sampling: Sampling,
        stop: Callable[[str], bool] | None,
    ) -> list[Generation]:
        pad = self.eos_token_ids[0] if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        draw = _Draw(torch.from_numpy(noise).to(self.model.device), sampling)
        config = GenerationConfig(
            max_new_tokens=sampling.max_new_tokens,
            do_sample=False,
            eos_token_id=list(self.eos_token_ids),
            pad_token_id=pad,
            use_cache=True,
        )
        self.model.eval()
        with self.in_use() as model, _without_own_generation_config(model):
            prompt = _read(model, rows, pad)
            width = prompt["input_ids"].shape[1]
            complete = CompleteReplies(self.decode, stop, width, len(rows))
            output: Any = model.generate(  # type: ignore[operator]
                **prompt,
                generation_config=config,
                logits_processor=LogitsProcessorList([draw]),
                stopping_criteria=StoppingCriteriaList([] if stop is None else [complete]),
            )
        new_ids = output[:, width:].tolist()
        log_probs = torch.stack(draw.log_probs, dim=1).tolist()
        return [self._reply(*row) for row in zip(new_ids, log_probs, complete.lengths, strict=True)]

    def _reply(self, token_ids: list[int], log_probs: list[float], length: int | None) -> Generation:
        end = next((i + 1 for i, token in enumerate(token_ids) if token in self.eos_token_ids), None)
        end = length if end is None or (length is not None and length < end) else end
        token_ids, log_probs = token_ids[:end], log_probs[:end]
        if not np.isfinite(log_probs).all():
            raise WMRLError(
                "The language model gives probabilities that are not numbers: its weights are broken."
            )
        return Generation(self.decode(token_ids), tuple(token_ids), tuple(log_probs), end is not None)


@torch.no_grad()
def _read(model: PreTrainedModel, rows: list[list[int]], pad: int) -> dict[str, Any]:
    """Prompts as arguments of `generate`, padded on the left; what they begin with in common is read here."""
    cut = share_prefixes(rows, [len(row) - 1 for row in rows]) if can_share_prefixes(model) else None
    starts = [0] * len(rows) if cut is None else cut.lengths()
    rests = [row[start:] for row, start in zip(rows, starts, strict=True)]
    width = max(len(rest) for rest in rests)
    ids = torch.tensor([[pad] * (width - len(rest)) + rest for rest in rests], device=model.device)
    seen = [[0] * (width - len(rest)) + [1] * len(rest) for rest in rests]
    attention = torch.tensor(seen, device=model.device)
    if cut is None:
        return {"input_ids": ids, "attention_mask": attention}
    cache, before, before_seen = read_prefixes(model, cut, pad)
    return {
        "input_ids": torch.cat([before, ids], dim=1),
        "attention_mask": torch.cat([before_seen, attention], dim=1),
        **cache,
    }


class _Draw(LogitsProcessor):
    """Chooses each next token, notes its log-probability, and leaves `generate` no other choice."""

    def __init__(self, noise: torch.Tensor, sampling: Sampling) -> None:
        self.noise = noise
        self.sampling = sampling
        self.log_probs: list[torch.Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Map scores of shape (rows, vocabulary) to 0 for the chosen token and -inf for all others."""
        log_probs = torch.log_softmax(scores / (self.sampling.temperature or 1.0), dim=-1)
        if self.sampling.top_p < 1:
            log_probs = _nucleus(log_probs, self.sampling.top_p)
        if self.sampling.temperature == 0:
            chosen = scores.argmax(dim=-1, keepdim=True)
        else:
            chosen = _inverse_cdf(log_probs, self.noise[:, len(self.log_probs)])
        self.log_probs.append(log_probs.gather(1, chosen).squeeze(1))
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)


def _inverse_cdf(log_probs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds the random number; never one of probability 0."""
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    threshold = noise.unsqueeze(1) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, threshold, right=True)
    return chosen.clamp(max=log_probs.shape[1] - 1)


def _nucleus(log_probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest set of tokens that holds `top_p` of the probability, normalised."""
    ordered, order = log_probs.sort(dim=-1, descending=True)
    mass_before = ordered.exp().cumsum(dim=-1) - ordered.exp()
    ordered = ordered.masked_fill(mass_before >= top_p, -torch.inf)
    return torch.log_softmax(torch.empty_like(ordered).scatter(1, order, ordered), dim=-1)


def _noise(rows: Sequence[Sequence[int]], sampling: Sampling) -> np.ndarray:
    """One uniform number in [0, 1) per row and step: a function of seed, prompt and number of the sample."""
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    noise = np.zeros((len(rows), sampling.max_new_tokens))
    if sampling.temperature > 0:
        seen: Counter[bytes] = Counter()
        for row, numbers in zip(rows, noise, strict=True):
            digest = hashlib.sha256(np.asarray(row, dtype=np.int64).tobytes()).digest()
            key = [seed, seen[digest], int.from_bytes(digest[:16], "little")]
            np.random.default_rng(key).random(out=numbers)
            seen[digest] += 1
    # Below the largest double under 1, so that the product with a rounded total stays below that total.
    return np.minimum(noise, 1 - 2.0**-50)


@contextmanager
def _without_own_generation_config(model: PreTrainedModel) -> Iterator[None]:
    """`generate` fills what a config leaves open from the model's own; here there is nothing to fill from."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def _eos_token_ids(model: PreTrainedModel, chat: ChatFormat) -> tuple[int, ...]:
    """Every token that ends a reply: by generation config, model, tokenizer or chat template."""
    found: list[int] = []
    generation_config = model.generation_config or GenerationConfig()
    for ids in (
        generation_config.eos_token_id,
        model.config.get_text_config().eos_token_id,
        chat.tokenizer.eos_token_id,
        chat.end_of_turn,
    ):
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not found:
        raise WMRLError("Neither model nor tokenizer names a token that ends a text (eos_token).")
    return tuple(dict.fromkeys(found))
