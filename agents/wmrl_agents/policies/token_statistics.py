"""Log-probability, KL divergence and entropy per token, from one forward pass.

KL and entropy are exact sums over the vocabulary, not estimates from the sampled token. Their gradients are
then exact in each context c_t that the policy visited:

    KL_t = sum_v pi(v | c_t) (log pi(v | c_t) - log pi_ref(v | c_t))
    H_t = -sum_v pi(v | c_t) log pi(v | c_t)

The usual one-token estimators are right as *values* only. Differentiated as a loss, k1 = log pi - log pi_ref
has a gradient of mean zero, whatever the reference is, and k3 = r - 1 - log r (with r = pi_ref / pi) has that
of the opposite divergence, KL(pi_ref || pi).

Vocabulary-sized tensors exist only at the tokens that count (those that the agent sampled): the output layer
is given the hidden states of these positions alone. The sums run in blocks that are computed again in the
backward pass, so that no more than one block's probabilities are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from wmrl_agents.policies.base import Prompt
from wmrl_rewards.language_models.prefixes import (
    SharedPrefixes,
    can_share_prefixes,
    output_layer_sees,
    read_prefixes,
    share_prefixes,
)

__all__ = ["TokenStatistics", "token_statistics"]

_BLOCK_ELEMENTS = 2**26


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of a batch of token records.

    Tensors of shape (batch, longest - 1). Entry ``t`` belongs to token ``t + 1``, and is 0 where the mask is
    False.

    Attributes:
        log_probs: Log-probability of the token.
        kl: KL divergence from the reference in the token's context, in nats; None if not asked for.
        entropy: Entropy of the policy in the token's context, in nats; None if not asked for.
        mask: Which tokens count.
    """

    log_probs: Tensor
    kl: Tensor | None
    entropy: Tensor | None
    mask: Tensor


def token_statistics(
    model: PreTrainedModel,
    records: Sequence[Prompt],
    counts: Sequence[Sequence[bool]],
    *,
    temperature: float,
    reference: Callable[[], AbstractContextManager[PreTrainedModel]] | None = None,
    entropy: bool = False,
) -> TokenStatistics:
    """Compute statistics of the tokens that count; differentiable in the model's parameters.

    Args:
        model: The policy's model.
        records: Token records, of any lengths.
        counts: For each token of each record, whether it counts. The first token never does.
        temperature: Temperature of the policy's distribution (and the reference's).
        reference: Gives the model to measure the KL divergence from, for as long as it is in use (it may be
            the policy's with its adapter off); None leaves the divergence out.
        entropy: Whether to compute the entropy.
    """
    device = model.device
    if not records:
        nothing = torch.zeros(0, 0, device=device)
        return TokenStatistics(
            log_probs=nothing,
            kl=None if reference is None else nothing,
            entropy=nothing if entropy else None,
            mask=nothing.bool(),
        )
    mask = _pad(counts, torch.bool)[:, 1:].to(device)
    targets = _pad([record.token_ids for record in records], torch.long).to(device)[:, 1:][mask]

    logits = _logits_at(model, records, counts)
    others = None
    if reference is not None:
        with torch.no_grad(), reference() as other:
            others = _logits_at(other, records, counts)
    blocks = _blocks(logits, others, targets, temperature, entropy)

    def spread(values: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=values.dtype, device=device).masked_scatter(mask, values)

    return TokenStatistics(
        log_probs=spread(blocks[0]),
        kl=None if others is None else spread(blocks[1]),
        entropy=spread(blocks[2]) if entropy else None,
        mask=mask,
    )


def _blocks(
    logits: Tensor, others: Tensor | None, targets: Tensor, temperature: float, entropy: bool
) -> list[Tensor]:
    """Log-probabilities, KL and entropy of all rows, block by block."""
    rows = max(1, _BLOCK_ELEMENTS // logits.shape[-1])
    pieces = []
    for start in range(0, max(1, len(targets)), rows):
        block = slice(start, start + rows)
        pieces.append(
            checkpoint(
                _row_statistics,
                logits[block],
                None if others is None else others[block],
                targets[block],
                temperature,
                entropy,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        )
    return [torch.cat(values) for values in zip(*pieces, strict=True)]


def _row_statistics(
    logits: Tensor, others: Tensor | None, targets: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The three numbers of each row; zeros for those that are not asked for."""
    log_p = torch.log_softmax(_at_least_float32(logits) / temperature, dim=-1)
    chosen = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    kl = uncertainty = torch.zeros_like(chosen)
    if others is not None:
        log_q = torch.log_softmax(_at_least_float32(others) / temperature, dim=-1)
        kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
    if entropy:
        uncertainty = -(log_p.exp() * log_p).sum(dim=-1)
    return chosen, kl, uncertainty


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _logits_at(model: PreTrainedModel, records: Sequence[Prompt], counts: Sequence[Sequence[bool]]) -> Tensor:
    """Logits that predict the tokens that count, record after record, shape (tokens, vocabulary).

    What records begin with in common is read once; see `wmrl_rewards.language_models.prefixes`.
    """
    model.eval()
    cached = not _let_layers_checkpoint(model) and can_share_prefixes(model)
    cut = _cut(records, counts) if cached else None
    starts = [0] * len(records) if cut is None else cut.lengths()
    rests = [record.token_ids[start:] for record, start in zip(records, starts, strict=True)]
    ids = _pad(rests, torch.long).to(model.device)
    attention = _pad([[1] * len(rest) for rest in rests], torch.long).to(model.device)
    wanted = [count[start + 1 :] for count, start in zip(counts, starts, strict=True)]
    mask = _pad(wanted, torch.bool)[:, : ids.shape[1] - 1].to(model.device)
    context: dict[str, Any] = {"use_cache": False}
    if cut is not None:
        cache, _, before = read_prefixes(model, cut, pad=0)
        places = torch.tensor(starts, device=model.device)[:, None] + torch.arange(ids.shape[1]).to(ids)
        attention = torch.cat([before, attention], dim=1)
        context = {"use_cache": True, "position_ids": places, **cache}
    with output_layer_sees(model, lambda hidden: hidden[:, :-1][mask].unsqueeze(0)):
        return model(input_ids=ids, attention_mask=attention, **context).logits[0]


def _cut(records: Sequence[Prompt], counts: Sequence[Sequence[bool]]) -> SharedPrefixes | None:
    """How records share what comes before the first token that counts, if that is worth it.

    The last token of that stays with the record: the first token that counts is predicted from there.
    """
    firsts = [next((i for i, own in enumerate(count) if own), len(count)) for count in counts]
    return share_prefixes([record.token_ids for record in records], [max(0, first - 1) for first in firsts])


def _let_layers_checkpoint(model: PreTrainedModel) -> bool:
    """Layers compute their activations again only where they believe to be in training; whether any does.

    Only the layer itself is told so: dropout is in the modules inside it, and stays off. Such a layer keeps
    no cache.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = layer.gradient_checkpointing
    return any(layer.gradient_checkpointing for layer in layers)


def _pad(rows: Sequence[Sequence[int]], dtype: torch.dtype) -> Tensor:
    """Rows of different lengths as one tensor, padded with 0 on the right.

    On the right each token keeps its position, and no real token can attend to padding: it comes later.
    """
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=dtype)
