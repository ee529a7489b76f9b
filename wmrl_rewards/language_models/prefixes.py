"""Sharing the tokens that rows of a batch begin with: members of a group have one task, and read it once.

A batch of rows is cut into clusters that begin alike. The model reads each beginning once; its keys and
values stand in the cache of every row of the cluster, and only what differs is read row by row:

    prefixes  (clusters, longest prefix)     padded on the right
    rests     (rows, longest rest)           padded as the caller needs it

No token of a prefix sees the padding behind it. Attention masks keep it from the rests, and positions count
real tokens only, so that nothing but the order of sums differs from reading every row whole. Gradients flow
through the shared keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

__all__ = [
    "SharedPrefixes",
    "can_share_prefixes",
    "output_layer_sees",
    "positions",
    "read_prefixes",
    "share_prefixes",
]

_WORTH_IT = 0.8  # of the tokens that reading every row whole would take
_Tokens = Sequence[int]


@dataclass(frozen=True)
class SharedPrefixes:
    """How a batch is cut.

    Attributes:
        prefixes: Token ids of each cluster's beginning; the longest that its rows share.
        cluster: For each row the number of its cluster.
    """

    prefixes: list[tuple[int, ...]]
    cluster: list[int]

    def lengths(self) -> list[int]:
        """For each row how many of its tokens are in its prefix."""
        return [len(self.prefixes[cluster]) for cluster in self.cluster]


def share_prefixes(rows: Sequence[_Tokens], at_most: Sequence[int]) -> SharedPrefixes | None:
    """Cut a batch so that as few tokens as possible are read.

    Args:
        rows: Token ids of each row.
        at_most: For each row the longest prefix that may be cut from it.

    Returns:
        The cut, or None if it would not save a fifth of the tokens, padding included.

    Example:
        >>> cut = share_prefixes([[7, 8, 9, 1], [5], [7, 8, 9, 2]], at_most=[3, 0, 3])
        >>> cut.prefixes, cut.cluster
        ([(), (7, 8, 9)], [1, 0, 1])
    """
    order = sorted(range(len(rows)), key=lambda row: tuple(rows[row]))
    clusters = _cheapest([rows[row] for row in order], [at_most[row] for row in order])
    cluster = [0] * len(rows)
    prefixes = []
    for number, (start, stop, shared) in enumerate(clusters):
        prefixes.append(tuple(rows[order[start]][:shared]))
        for row in order[start:stop]:
            cluster[row] = number
    cut = SharedPrefixes(prefixes, cluster)
    whole = len(rows) * max(map(len, rows), default=0)
    rest = max((len(row) - shared for row, shared in zip(rows, cut.lengths(), strict=True)), default=0)
    in_pieces = len(prefixes) * max(map(len, prefixes), default=0) + len(rows) * rest
    return cut if in_pieces < _WORTH_IT * whole else None


def _cheapest(rows: list[_Tokens], at_most: list[int]) -> list[tuple[int, int, int]]:
    """Runs (start, stop, tokens shared) of sorted rows that save the most tokens.

    Rows that begin alike stand together when sorted, so the best cut is found by going through the places
    where the last run can begin. A row alone is its own prefix, as far as it may.
    """
    alike = [_common(*pair) for pair in pairwise(rows)]
    best = [(0, 0, 0)]  # for each stop: tokens saved, start of the last run, tokens that this run shares
    for stop in range(1, len(rows) + 1):
        shared = at_most[stop - 1]
        options = []
        for start in range(stop - 1, -1, -1):
            shared = min(shared, at_most[start], alike[start] if start < stop - 1 else shared)
            saved = best[start][0] + (stop - start - 1) * shared
            options.append((saved, start, shared))
        best.append(max(options))
    runs = []
    stop = len(rows)
    while stop > 0:
        _, start, shared = best[stop]
        runs.append((start, stop, shared))
        stop = start
    return runs[::-1]


def _common(one: _Tokens, other: _Tokens) -> int:
    shortest = min(len(one), len(other))
    return next((place for place in range(shortest) if one[place] != other[place]), shortest)


def can_share_prefixes(model: PreTrainedModel) -> bool:
    """Whether a model keeps plain keys and values and takes positions; windows and recurrent states cannot be
    shared this way."""
    if "position_ids" not in _arguments(model):
        return False
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def read_prefixes(
    model: PreTrainedModel, cut: SharedPrefixes, pad: int
) -> tuple[dict[str, DynamicCache], Tensor, Tensor]:
    """Let the model read each prefix once; differentiable.

    Args:
        model: The model.
        cut: What to read.
        pad: A token id to pad with; nothing attends to it.

    Returns:
        The cache with a row for each row of the batch, as an argument by the name that the model has for it;
        token ids and attention mask of the prefixes, of shape (rows, longest prefix), padded on the right.
    """
    width = max(map(len, cut.prefixes))
    rows = [list(prefix) + [pad] * (width - len(prefix)) for prefix in cut.prefixes]
    seen = [[1] * len(prefix) + [0] * (width - len(prefix)) for prefix in cut.prefixes]
    ids, attention = torch.tensor(rows, device=model.device), torch.tensor(seen, device=model.device)
    everything = torch.ones_like(attention)  # padding sees what is before it: to see nothing may give NaN
    cache = DynamicCache(config=model.config)
    named = {"cache" if "cache" in _arguments(model) else "past_key_values": cache}
    with output_layer_sees(model, lambda hidden: hidden[:, -1:]):  # nobody reads what it says
        model(
            input_ids=ids,
            attention_mask=everything,
            position_ids=positions(everything),
            use_cache=True,
            **named,
        )
    which = torch.tensor(cut.cluster, device=model.device)
    cache.batch_select_indices(which)
    return named, ids[which], attention[which]


def positions(attention: Tensor) -> Tensor:
    """Positions that count real tokens only, shape (rows, tokens)."""
    return (attention.cumsum(dim=-1) - 1).clamp(min=0)


@contextmanager
def output_layer_sees(model: PreTrainedModel, choose: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Give the output layer only what ``choose`` makes of the hidden states (rows, tokens, features)."""

    def gather(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (choose(inputs[0]),)

    layer: Any = model.get_output_embeddings()
    handle = layer.register_forward_pre_hook(gather)
    try:
        yield
    finally:
        handle.remove()


def _arguments(model: PreTrainedModel) -> Mapping[str, Any]:
    """Arguments of the model's own forward, under any adapter."""
    under_adapter: Any = getattr(model, "get_base_model", lambda: model)
    return inspect.signature(under_adapter().forward).parameters
