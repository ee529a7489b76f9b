"""`LanguageModelPolicy`: any Hugging Face causal language model as an agent that can be trained."""

from __future__ import annotations

import copy
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from wmrl_agents.policies.base import Prompt, Sample
from wmrl_agents.policies.low_rank import (
    BaseModel,
    LoRAConfig,
    adapter_parameters,
    add_adapter,
    load_adapter,
    merged_weights,
    save_adapter,
)
from wmrl_agents.policies.master_weights import MasterWeights
from wmrl_agents.policies.sampler import OwnWeights, Sampler
from wmrl_agents.policies.token_statistics import TokenStatistics, token_statistics
from wmrl_envs.autoresearch import replies
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards.language_models.base import Generation, Sampling
from wmrl_rewards.language_models.chat import opening
from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

__all__ = ["LanguageModelPolicy"]


class LanguageModelPolicy:
    """A chat model that samples replies and can be differentiated; see `Policy`.

    What is trained is what is sampled: token ids are kept as they were drawn, log-probabilities carry the
    sampling temperature, and there is no dropout in either. Hence the log-probabilities computed from a fresh
    sample are those recorded with it, up to rounding.

    All weights are trained, or with ``lora`` an adapter beside frozen ones. What the optimiser moves is
    always float32: see `low_rank` and `master_weights`.

    Args:
        model: A model directory, or the name of a model. The directory of an adapter is its base with the
            adapter merged in.
        max_new_tokens: Most tokens of one reply.
        temperature: Temperature of the policy, above 0.
        top_p: Must be 1: with the tail cut off, another distribution is sampled than the one that is trained.
        device: Where to run; None takes the accelerator if there is one.
        dtype: Number format to compute in.
        chat_template: Jinja template to use instead of the tokenizer's.
        thinking: Whether the template asks for thinking; None leaves that to the template.
        stop_after_code: Whether a reply ends where its first program is closed.
        lora: Size of an adapter to train in place of all weights.
        adapter: Directory of such an adapter to go on with, as `save` wrote it.
        gradient_checkpointing: Whether each layer is computed again in the backward pass, which takes a third
            more time and the memory of one layer instead of all.
        sampler: Where replies come from; None samples with the weights that are trained.
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
        thinking: bool | None = None,
        stop_after_code: bool = True,
        lora: LoRAConfig | None = None,
        adapter: str | os.PathLike[str] | None = None,
        gradient_checkpointing: bool = False,
        sampler: Sampler | None = None,
        max_batch_tokens: int = 65_536,
    ) -> None:
        if top_p != 1:
            raise ConfigError(
                f"A policy that is trained samples from its whole distribution: top_p must be 1, not {top_p}."
            )
        if not temperature > 0:
            raise ConfigError(f"The temperature of a policy must be above 0, not {temperature}.")
        self.sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
        self.stop_after_code = stop_after_code
        sixteen_bits = dtype.itemsize < 4
        self.language_model = HuggingFaceModel(
            model,
            device=device,
            dtype=torch.float32 if sixteen_bits and lora is None else dtype,
            chat_template=chat_template,
            thinking=thinking,
            max_batch_tokens=max_batch_tokens,
        )
        self.adapts = lora is not None
        self._masters: MasterWeights | None = None
        if lora is not None:
            add_adapter(self.model, lora, str(Path(model).resolve() if Path(model).is_dir() else model))
            if adapter is not None:
                load_adapter(self.model, Path(adapter))
        elif sixteen_bits:
            self._masters = MasterWeights(self.model, dtype)
        if gradient_checkpointing:
            # Two names of one thing: transformers renames it in version 5.
            name = "activation_checkpointing_enable"
            enable = getattr(self.model, name, None) or self.model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        self.sampler: Sampler = OwnWeights(self.language_model) if sampler is None else sampler
        self.version = -1
        self._updates = 0
        self._seen: tuple[int, int] | None = None
        self._given: int | None = None

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
        """What the optimiser moves."""
        if self.adapts:
            return iter(adapter_parameters(self.model))
        return self.model.parameters() if self._masters is None else iter(self._masters.masters.values())

    @property
    def keeps_start(self) -> bool:
        """Whether the weights that training began with are still there: under an adapter."""
        return self.adapts

    def frozen_copy(self) -> LanguageModelPolicy:
        """What no training changes, to be the reference of the KL term.

        That is a copy of the weights as they are now; with an adapter it is the base below it, which takes no
        memory.
        """
        self._refresh()
        twin = copy.copy(self)
        twin._masters = None
        if self.adapts:
            twin.language_model = BaseModel(self.language_model)
        else:
            twin.language_model = copy.copy(self.language_model)
            twin.language_model.model = copy.deepcopy(self.model).requires_grad_(False)
        twin.sampler = OwnWeights(twin.language_model)
        return twin

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write what is trained, with the tokenizer and its chat template.

        Returns:
            A Hugging Face model directory with float32 weights (or float64), or with an adapter its directory
            in peft's layout, which names the base.
        """
        directory = Path(directory)
        if self.adapts:
            save_adapter(self.model, directory)
        elif self._masters is None:
            self.model.save_pretrained(directory)
        else:
            self.model.save_pretrained(directory, state_dict=self._masters.state_dict())
        self.tokenizer.save_pretrained(directory)
        return directory

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights of a plain model that computes what this policy computes; tied ones by both names."""
        self._refresh()
        if self.adapts:
            return merged_weights(self.model)
        return iter(self.model.state_dict().items())

    def note_update(self) -> None:
        """Be told that the weights have changed.

        Most changes are noticed without: torch counts what is written to a parameter. Fused optimisers write
        past that count.
        """
        self._updates += 1

    def _refresh(self) -> None:
        """After an update of the weights, round the masters anew and count a version."""
        seen = (self._updates, sum(parameter._version for parameter in self.parameters()))
        if seen == self._seen:
            return
        self._seen = seen
        self.version += 1
        if self._masters is not None:
            self._masters.round()

    def begin(self, system: str, user: str) -> Prompt:
        """Token record of a new dialogue, ready for the first reply.

        An empty system prompt is left out, and so is any where the model was trained for one job without one.
        """
        chat = self.language_model.chat
        return _given(chat.prompt(opening(system if chat.takes_instructions else "", user)))

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

        With the policy's own weights a reply depends on its prompt, the seed and the number of equal prompts
        before it, not on the others. What an agent invents after its program (an observation, say) is cut.

        Raises:
            WMRLError: A prompt leaves no room for a reply in the model's context.
        """
        self._synchronise()
        for prompt in prompts:
            error = self.language_model.overflow(len(prompt.token_ids), self.max_new_tokens)
            if error is not None:
                raise WMRLError(error)
        stop = self._is_complete if self.stop_after_code else None
        sampling = replace(self.sampling, seed=seed)
        ids, ends = [prompt.token_ids for prompt in prompts], self.language_model.eos_token_ids
        generations = self.sampler.sample(ids, sampling, stop, ends)
        return [self._sample(*pair) for pair in zip(prompts, generations, strict=True)]

    def _sample(self, prompt: Prompt, reply: Generation) -> Sample:
        """The record with a reply, without what was invented after its program."""
        size = len(reply.token_ids)
        text = self._text(reply.token_ids)
        end = replies.parse(text).end
        if len(text) > end:  # halving, because thousands of tokens may have been invented
            lengths = range(size)
            size = bisect_right(lengths, end, key=lambda kept: len(self._text(reply.token_ids[:kept]))) - 1
            text = self._text(reply.token_ids[:size])
        return Sample(
            token_ids=prompt.token_ids + reply.token_ids[:size],
            mask=prompt.mask + (True,) * size,
            log_probs=prompt.log_probs + reply.log_probs[:size],
            text=text,
            truncated=not reply.finished,
            version=self.version,
        )

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._opening + self.language_model.decode(token_ids)

    def _is_complete(self, text: str) -> bool:
        return replies.is_complete(self._opening + text)

    @property
    def _opening(self) -> str:
        """What the template itself writes at the beginning of a reply."""
        return "<think>\n" if self.language_model.chat.opens_thinking else ""

    def _synchronise(self) -> None:
        """Give the sampler the weights of this moment, unless it has them."""
        self._refresh()
        if self._given != self.version:
            self.sampler.load_weights(self.weights(), self.version)
            self._given = self.version

    def log_probs(self, samples: Sequence[Prompt]) -> torch.Tensor:
        """Log-probability of each token, the environment's included; see `Policy`."""
        self._refresh()
        everything = [[True] * len(sample.token_ids) for sample in samples]
        with self.language_model.in_use() as model:
            return token_statistics(
                model, samples, everything, temperature=self.sampling.temperature
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
        self._refresh()
        with self.language_model.in_use() as model:
            return token_statistics(
                model,
                samples,
                [sample.mask for sample in samples],
                temperature=self.sampling.temperature,
                reference=None if reference is None else reference.language_model.in_use,
                entropy=entropy,
            )


def _given(token_ids: Sequence[int]) -> Prompt:
    """A record of tokens that the agent did not sample."""
    return Prompt(tuple(token_ids), (False,) * len(token_ids), (0.0,) * len(token_ids))
