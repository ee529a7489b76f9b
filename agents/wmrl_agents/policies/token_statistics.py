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

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from wmrl_agents.policies.base import Prompt

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
    ids = _pad([record.token_ids for record in records], torch.long).to(device)
    attention = _pad([[1] * len(record.token_ids) for record in records], torch.long).to(device)
    mask = _pad(counts, torch.bool)[:, 1:].to(device)
    targets = ids[:, 1:][mask]

    logits = _logits_at(model, ids, attention, mask)
    others = None
    if reference is not None:
        with torch.no_grad(), reference() as other:
            others = _logits_at(other, ids, attention, mask)
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


def _logits_at(model: PreTrainedModel, ids: Tensor, attention: Tensor, mask: Tensor) -> Tensor:
    """Logits that predict the masked tokens, shape (tokens, vocabulary)."""
    model.eval()
    _let_layers_checkpoint(model)
    with _output_layer_sees(model.get_output_embeddings(), mask):
        return model(input_ids=ids, attention_mask=attention, use_cache=False).logits[0]


def _let_layers_checkpoint(model: PreTrainedModel) -> None:
    """Layers compute their activations again only where they believe to be in training.

    Only the layer itself is told so: dropout is in the modules inside it, and stays off.
    """
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = module.gradient_checkpointing


@contextmanager
def _output_layer_sees(layer: nn.Module, mask: Tensor) -> Iterator[None]:
    """Give the output layer only the hidden states before the masked tokens, as one row of a batch of one."""

    def gather(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0][:, :-1][mask].unsqueeze(0),)

    handle = layer.register_forward_pre_hook(gather)
    try:
        yield
    finally:
        handle.remove()


def _pad(rows: Sequence[Sequence[int]], dtype: torch.dtype) -> Tensor:
    """Rows of different lengths as one tensor, padded with 0 on the right.

    On the right each token keeps its position, and no real token can attend to padding: it comes later.
    """
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=dtype)
