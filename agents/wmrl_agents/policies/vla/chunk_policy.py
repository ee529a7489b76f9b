"""`ChunkPolicy`: what every policy has in common that decides chunks of actions, token by token.

A subclass gives the logits of a decision's tokens, for training all at once and for acting one after the
other. Everything else is here, and keeps the contract of `wmrl_agents.grpo.roles.TrainablePolicy`: records
that grow, reproducible sampling, log-probabilities, exact KL divergence and entropy for the gradient.

Tokens are drawn by the inverse of the cumulative distribution from random numbers that are fixed beforehand
by the seed and by what was seen and said so far. So a decision does not depend on what else is in the batch,
and torch's global generator is never touched.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wmrl_agents.policies.base import Prompt, Sample
from wmrl_agents.policies.token_statistics import TokenStatistics
from wmrl_agents.policies.vla.action_tokens import ActionCodec
from wmrl_agents.policies.vla.records import ChunkRecord, Observation
from wmrl_envs.errors import ConfigError

__all__ = ["ChunkPolicy"]


class ChunkPolicy(ABC):
    """A policy that looks, and says the tokens of the next chunk of actions.

    Args:
        codec: What the tokens mean.
        temperature: Temperature of the policy, above 0.
        batch_size: Decisions that are computed at once.

    Raises:
        ConfigError: A setting is out of its range.
    """

    network: nn.Module

    def __init__(self, codec: ActionCodec, *, temperature: float = 1.0, batch_size: int = 1024) -> None:
        if not temperature > 0 or batch_size < 1:
            raise ConfigError("temperature must be above 0 and batch_size at least 1.")
        self.codec = codec
        self.temperature = temperature
        self.batch_size = batch_size

    @abstractmethod
    def check(self, task: str, observation: Observation) -> None:
        """Refuse what cannot be decided on.

        Raises:
            ConfigError: The task is unknown, or the observation lacks what is needed.
        """

    @abstractmethod
    def _context(self, tasks: Sequence[str], observations: Sequence[Observation]) -> Any:
        """What is computed once for a batch of decisions, before the first token."""

    @abstractmethod
    def _next_logits(self, context: Any, tokens: Tensor) -> Tensor:
        """Logits (N, codes) of the token after ``tokens`` (N, k), with k tokens said already."""

    @abstractmethod
    def _all_logits(self, context: Any, tokens: Tensor) -> Tensor:
        """Logits (N, tokens, codes) of each of ``tokens`` (N, tokens) after those before it."""

    @property
    def max_context(self) -> int | None:
        """Most tokens of a record: there is no limit, since each decision is made from what is seen."""
        return None

    @property
    def max_new_tokens(self) -> int:
        """Tokens of a decision."""
        return self.codec.num_tokens

    @property
    def keeps_start(self) -> bool:
        """Whether `frozen_copy` gives the weights that training began with: it gives those of now."""
        return False

    def note_update(self) -> None:
        """Be told that the parameters have changed: nothing is kept that was made of them."""
        return

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text, which such a policy does not say."""
        return 0

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that are trained, always in the same order."""
        return (parameter for parameter in self.network.parameters() if parameter.requires_grad)

    def frozen_copy(self) -> Any:
        """A copy with the weights of this moment, which no training changes: the reference of the KL term."""
        twin = copy.copy(self)
        twin.network = copy.deepcopy(self.network).requires_grad_(False)
        return twin

    def begin(self, system: str, user: Any) -> ChunkRecord:
        """Record of a new trajectory, ready for the first decision.

        Args:
            system: The task, in words.
            user: The first `Observation`.
        """
        self.check(system, user)
        tokens = self.codec.num_tokens
        return ChunkRecord((0,), (False,), (0.0,), task=system, observations=(user,), tokens_per_chunk=tokens)

    def extend(self, sample: Sample, user: Any) -> ChunkRecord:
        """The record after a decision, with what is seen next."""
        record = _record(sample)
        if record.waiting:
            raise ConfigError("A record takes the next observation after its decision, not before.")
        self.check(record.task, user)
        return replace(record, observations=(*record.observations, user))

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], *, seed: int, greedy: bool = False) -> list[Sample]:
        """Decide the next chunk of each record; the same records and seed give the same decisions.

        Args:
            prompts: Records that wait for a decision.
            seed: Decides what is drawn.
            greedy: Take the likeliest token each time, instead of drawing one.
        """
        records = [_record(prompt) for prompt in prompts]
        if not all(record.waiting for record in records):
            raise ConfigError("A record is decided on after an observation: extend it first.")
        drawn = _uniform(records, seed, self.codec.num_tokens)
        self.network.eval()
        samples: list[Sample] = []
        for start in range(0, len(records), self.batch_size):
            part = slice(start, start + self.batch_size)
            numbers = None if greedy else torch.from_numpy(drawn[part]).to(self.device)
            samples += self._decide(records[part], numbers)
        return samples

    def chunk(self, sample: Sample) -> NDArray[np.float32]:
        """The actions that the last decision of a record means, of shape (8, 7), for the environment."""
        return self.codec.decode([_record(sample).decisions[-1]])[0]

    def log_probs(self, samples: Sequence[Prompt]) -> Tensor:
        """Log-probability of each token; see `Policy`."""
        return self.token_statistics(samples).log_probs

    def token_statistics(
        self, samples: Sequence[Prompt], reference: Any = None, *, entropy: bool = False
    ) -> TokenStatistics:
        """Log-probability, exact KL divergence and entropy of each token, differentiable.

        Args:
            samples: Records; an observation that waits for its decision is left aside.
            reference: Policy to measure the KL divergence from; None leaves ``kl`` None.
            entropy: Whether to compute the entropy; False leaves it None.
        """
        records = [_record(sample) for sample in samples]
        decided = [
            (record.task, seen, tokens)
            for record in records
            for seen, tokens in zip(record.observations, record.decisions, strict=False)
        ]
        blocks = [
            self._statistics(decided[start : start + self.batch_size], reference, entropy)
            for start in range(0, len(decided), self.batch_size)
        ]
        lengths = [len(record.token_ids) - 1 for record in records]
        mask = torch.arange(max(lengths, default=0)) < torch.tensor(lengths)[:, None]
        mask = mask.to(self.device)

        def spread(number: int) -> Tensor:
            values = torch.cat([block[number] for block in blocks]).flatten()
            return torch.zeros(mask.shape, dtype=values.dtype, device=mask.device).masked_scatter(
                mask, values
            )

        if not blocks:
            nothing = torch.zeros(mask.shape, device=mask.device)
            return TokenStatistics(
                log_probs=nothing,
                kl=None if reference is None else nothing,
                entropy=nothing if entropy else None,
                mask=mask,
            )
        return TokenStatistics(
            log_probs=spread(0),
            kl=None if reference is None else spread(1),
            entropy=spread(2) if entropy else None,
            mask=mask,
        )

    def imitation_loss(
        self, tasks: Sequence[str], observations: Sequence[Observation], codes: NDArray[np.int64]
    ) -> Tensor:
        """Mean negative log-probability of the tokens that an expert would have said; differentiable.

        Args:
            tasks: The task of each decision.
            observations: What is seen before it.
            codes: Its tokens, of shape (N, tokens).
        """
        tokens = torch.as_tensor(codes, device=self.device)
        logits = self._all_logits(self._context(tasks, observations), tokens)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    def _decide(self, records: Sequence[ChunkRecord], drawn: Tensor | None) -> list[Sample]:
        tasks = [record.task for record in records]
        context = self._context(tasks, [record.observations[-1] for record in records])
        tokens = torch.zeros((len(records), 0), dtype=torch.long, device=self.device)
        chosen_log_probs = []
        for k in range(self.codec.num_tokens):
            log_probs = self._log_softmax(self._next_logits(context, tokens))
            token = log_probs.argmax(dim=-1) if drawn is None else _inverse(log_probs, drawn[:, k])
            chosen_log_probs.append(log_probs.gather(1, token[:, None]))
            tokens = torch.cat([tokens, token[:, None]], dim=1)
        values = torch.cat(chosen_log_probs, dim=1).tolist()
        return [
            replace(
                record,
                token_ids=record.token_ids + tuple(row),
                mask=record.mask + (True,) * len(row),
                log_probs=record.log_probs + tuple(value),
            )
            for record, row, value in zip(records, tokens.tolist(), values, strict=True)
        ]

    def _statistics(
        self, decided: Sequence[tuple[str, Observation, tuple[int, ...]]], reference: Any, entropy: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, KL divergence and entropy, each (N, tokens)."""
        tasks, seen = [task for task, _, _ in decided], [one for _, one, _ in decided]
        tokens = torch.tensor([row for _, _, row in decided], device=self.device)
        self.network.eval()
        log_p = self._log_softmax(self._all_logits(self._context(tasks, seen), tokens))
        chosen = log_p.gather(2, tokens.unsqueeze(2)).squeeze(2)
        kl = uncertainty = torch.zeros_like(chosen)
        if reference is not None:
            with torch.no_grad():
                log_q = reference._log_softmax(reference._all_logits(reference._context(tasks, seen), tokens))
            kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
        if entropy:
            uncertainty = -(log_p.exp() * log_p).sum(dim=-1)
        return chosen, kl, uncertainty

    def _log_softmax(self, logits: Tensor) -> Tensor:
        at_least_float32 = logits if logits.dtype == torch.float64 else logits.float()
        return torch.log_softmax(at_least_float32 / self.temperature, dim=-1)


def _record(sample: Prompt) -> ChunkRecord:
    if not isinstance(sample, ChunkRecord):
        raise ConfigError(f"A policy of chunks works on its own records, not on a {type(sample).__name__}.")
    return sample


def _inverse(log_probs: Tensor, drawn: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes a number in [0, 1)."""
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    # Rounding may leave the sum below 1: scaled, so that no token beyond the last one is meant.
    place = drawn[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, place, right=True).squeeze(1).clamp(max=log_probs.shape[-1] - 1)


def _uniform(records: Sequence[ChunkRecord], seed: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) of each record, by seed, content and the number of equal records before it."""
    seen: Counter[bytes] = Counter()
    rows = []
    for record in records:
        digest = hashlib.sha256(repr((seed, record.task, record.token_ids)).encode())
        for array in (record.observations[-1].state, record.observations[-1].image):
            digest.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
        key = digest.digest()
        entropy = [seen[key], *np.frombuffer(key, dtype=np.uint32).tolist()]
        seen[key] += 1
        rows.append(np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy))).random(count))
    return np.stack(rows) if rows else np.zeros((0, count))
