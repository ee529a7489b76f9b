"""`LanguageModelPolicy`: any Hugging Face causal language model as an agent that can be trained."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from wmrl_agents.policies.base import Prompt, Sample
from wmrl_agents.policies.token_statistics import TokenStatistics, token_statistics
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards.language_models.base import Sampling
from wmrl_rewards.language_models.chat import opening
from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

__all__ = ["LanguageModelPolicy"]


class LanguageModelPolicy:
    """A chat model that samples replies and can be differentiated; see `Policy`.

    What is trained is what is sampled: token ids are kept as they were drawn, log-probabilities carry the
    sampling temperature, and there is no dropout in either. Hence the log-probabilities computed from a fresh
    sample are those recorded with it, up to rounding.

    Args:
        model: A model directory, or the name of a model.
        max_new_tokens: Most tokens of one reply.
        temperature: Temperature of the policy, above 0.
        top_p: Must be 1: with the tail cut off, another distribution is sampled than the one that is trained.
        device: Where to run; None takes the accelerator if there is one.
        dtype: Type of the weights. Steps of AdamW at 1e-6 vanish in 16-bit weights, hence float32.
        chat_template: Jinja template to use instead of the tokenizer's.
        max_batch_tokens: Most tokens that are held in one batch while sampling.

    Raises:
        ConfigError: A setting is out of its range.
        WMRLError: The model cannot be loaded.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        chat_template: str | None = None,
        max_batch_tokens: int = 65_536,
    ) -> None:
        if top_p != 1:
            raise ConfigError(
                f"A policy that is trained samples from its whole distribution: top_p must be 1, not {top_p}."
            )
        if not temperature > 0:
            raise ConfigError(f"The temperature of a policy must be above 0, not {temperature}.")
        self.sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
        self.language_model = HuggingFaceModel(
            model,
            device=device,
            dtype=dtype,
            chat_template=chat_template,
            max_batch_tokens=max_batch_tokens,
        )

    @property
    def model(self) -> PreTrainedModel:
        """The torch module."""
        return self.language_model.model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.language_model.tokenizer

    @property
    def max_context(self) -> int | None:
        """Most tokens, prompt and reply together; None if the model does not say."""
        return self.language_model.max_context

    @property
    def max_new_tokens(self) -> int:
        """Most tokens of one reply."""
        return self.sampling.max_new_tokens

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text."""
        return self.language_model.count_tokens(text)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The model's parameters."""
        return self.model.parameters()

    def frozen_copy(self) -> LanguageModelPolicy:
        """A copy with the weights of this moment, which no training changes: the reference of the KL term."""
        twin = copy.copy(self)
        twin.language_model = copy.copy(self.language_model)
        twin.language_model.model = copy.deepcopy(self.model).requires_grad_(False)
        return twin

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write a Hugging Face model directory (safetensors, configuration, tokenizer with chat template)."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        return Path(directory)

    def begin(self, system: str, user: str) -> Prompt:
        """Token record of a new dialogue, ready for the first reply; an empty system prompt is left out."""
        return _given(self.language_model.chat.prompt(opening(system, user)))

    def extend(self, sample: Sample, user: str) -> Prompt:
        """The record after a reply with the environment's next message appended.

        A reply that was cut off is closed by the template's end-of-turn token, which the agent did not sample
        and which is therefore not its own.

        Raises:
            WMRLError: The chat template rewrites earlier turns.
        """
        between = self.language_model.chat.continuation(user)
        last = sample.token_ids[-1]
        end = next((i for i, token in enumerate(between) if token in self.language_model.eos_token_ids), None)
        if end is not None and sample.mask[-1] and between[end] == last:
            between = between[end + 1 :]
        given = _given(between)
        return Prompt(
            sample.token_ids + given.token_ids, sample.mask + given.mask, sample.log_probs + given.log_probs
        )

    def sample(self, prompts: Sequence[Prompt], *, seed: int) -> list[Sample]:
        """Sample one reply to each prompt.

        A reply depends on its prompt, the seed and the number of equal prompts before it, not on the others.

        Raises:
            WMRLError: A prompt leaves no room for a reply in the model's context.
        """
        for prompt in prompts:
            error = self.language_model.overflow(len(prompt.token_ids), self.max_new_tokens)
            if error is not None:
                raise WMRLError(error)
        sampling = replace(self.sampling, seed=seed)
        replies = self.language_model.complete([prompt.token_ids for prompt in prompts], sampling)
        return [
            Sample(
                token_ids=prompt.token_ids + reply.token_ids,
                mask=prompt.mask + (True,) * len(reply.token_ids),
                log_probs=prompt.log_probs + reply.log_probs,
                text=reply.text,
                truncated=not reply.finished,
            )
            for prompt, (reply,) in zip(prompts, replies, strict=True)
        ]

    def log_probs(self, samples: Sequence[Prompt]) -> torch.Tensor:
        """Log-probability of each token, the environment's included; see `Policy`."""
        everything = [[True] * len(sample.token_ids) for sample in samples]
        return token_statistics(
            self.model, samples, everything, temperature=self.sampling.temperature
        ).log_probs

    def token_statistics(
        self,
        samples: Sequence[Prompt],
        reference: LanguageModelPolicy | None = None,
        *,
        entropy: bool = False,
    ) -> TokenStatistics:
        """Log-probability, exact KL divergence and entropy at the agent's own tokens, in one forward pass.

        Args:
            samples: Token records.
            reference: Policy to measure the KL divergence from; None leaves ``kl`` None.
            entropy: Whether to compute the entropy; False leaves it None.
        """
        return token_statistics(
            self.model,
            samples,
            [sample.mask for sample in samples],
            temperature=self.sampling.temperature,
            reference=None if reference is None else reference.model,
            entropy=entropy,
        )


def _given(token_ids: Sequence[int]) -> Prompt:
    """A record of tokens that the agent did not sample."""
    return Prompt(tuple(token_ids), (False,) * len(token_ids), (0.0,) * len(token_ids))
