"""Rows that begin alike are read once, and nothing comes out differently."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from wmrl_rewards.language_models.prefixes import (
    can_share_prefixes,
    positions,
    read_prefixes,
    share_prefixes,
)

WORDS = 50


def qwen(**changes):
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.4}
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, **changes)).double().eval()


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=64, n_embd=16, n_layer=2, n_head=4, initializer_range=0.4
    )
    return GPT2LMHeadModel(config).double().eval()


MODELS = {
    "rotary": qwen(),
    "eager": qwen(attn_implementation="eager"),
    "learned positions": gpt2(),
}


def alone(model, row):
    """Logits of a row read on its own, whole."""
    return model(input_ids=torch.tensor([row])).logits[0]


def shared(model, rows, cut):
    """Logits of the rests, one by one row, after prefixes that were read together."""
    named, _, before = read_prefixes(model, cut, pad=0)
    starts = cut.lengths()
    width = max(len(row) - start for row, start in zip(rows, starts, strict=True))
    rests = [row[start:] + [0] * (width - len(row) + start) for row, start in zip(rows, starts, strict=True)]
    seen = [[1] * (len(row) - s) + [0] * (width - len(row) + s) for row, s in zip(rows, starts, strict=True)]
    attention = torch.cat([before, torch.tensor(seen)], dim=1)
    places = torch.tensor(starts)[:, None] + torch.arange(width)
    output = model(input_ids=torch.tensor(rests), attention_mask=attention, position_ids=places, **named)
    return [logits[: len(row) - s] for logits, row, s in zip(output.logits, rows, starts, strict=True)]


ROWS = [
    [7, 8, 9, 10, 11, 12, 1, 2],
    [7, 8, 9, 10, 11, 12, 3],
    [20, 21, 22, 23, 24, 25, 26, 4],
    [20, 21, 22, 23, 24, 25, 26, 5, 6],
    [30],
]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_what_follows_is_what_reading_the_whole_row_gives(model):
    cut = share_prefixes(ROWS, [len(row) - 1 for row in ROWS])
    assert sorted(cut.prefixes) == [(), (7, 8, 9, 10, 11, 12), (20, 21, 22, 23, 24, 25, 26)]
    for row, start, logits in zip(ROWS, cut.lengths(), shared(model, ROWS, cut), strict=True):
        torch.testing.assert_close(logits, alone(model, row)[start:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_gradients_reach_the_weights_through_the_shared_part(model):
    cut = share_prefixes(ROWS, [len(row) - 1 for row in ROWS])
    weights = list(model.parameters())
    one = torch.autograd.grad(
        sum(logits.square().sum() for logits in shared(model, ROWS, cut)), weights, allow_unused=True
    )
    wholes = zip(ROWS, cut.lengths(), strict=True)
    other = torch.autograd.grad(
        sum(alone(model, row)[start:].square().sum() for row, start in wholes), weights, allow_unused=True
    )
    # Qwen's norms compute in single precision whatever the weights are.
    tolerance = 1e-8 if isinstance(model, GPT2LMHeadModel) else 1e-4
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=12)


@settings(deadline=None)
@given(st.lists(st.tuples(TOKENS, st.integers(0, 11)), min_size=1, max_size=8))
def test_every_cut_keeps_the_rows_and_saves_a_fifth(drawn):
    rows = [row for row, _ in drawn]
    at_most = [min(limit, len(row) - 1) for row, limit in drawn]
    cut = share_prefixes(rows, at_most)
    if cut is None:
        return
    for row, limit, cluster, length in zip(rows, at_most, cut.cluster, cut.lengths(), strict=True):
        assert cut.prefixes[cluster] == tuple(row[:length])
        assert length <= limit
    rest = max(len(row) - length for row, length in zip(rows, cut.lengths(), strict=True))
    read = len(cut.prefixes) * max(map(len, cut.prefixes)) + len(rows) * rest
    assert read < 0.8 * len(rows) * max(map(len, rows))


def cheapest_by_trying(rows, at_most):
    """Tokens outside of all prefixes plus those in them, over every way to part the rows into clusters."""
    if not rows:
        return 0
    best = None
    for members in range(2 ** (len(rows) - 1)):
        mine = [0, *(i + 1 for i in range(len(rows) - 1) if members >> i & 1)]
        shared = min(at_most[i] for i in mine)
        while any(rows[i][:shared] != rows[0][:shared] for i in mine):
            shared -= 1
        others = [i for i in range(len(rows)) if i not in mine]
        cost = shared + sum(len(rows[i]) - shared for i in mine)
        cost += cheapest_by_trying([rows[i] for i in others], [at_most[i] for i in others])
        best = cost if best is None else min(best, cost)
    return best


@settings(deadline=None, max_examples=60)
@given(st.lists(TOKENS, min_size=2, max_size=5))
def test_the_cut_is_the_one_that_reads_the_fewest_tokens(rows):
    at_most = [len(row) - 1 for row in rows]
    cut = share_prefixes(rows, at_most)
    if cut is not None:
        rests = sum(len(row) - length for row, length in zip(rows, cut.lengths(), strict=True))
        assert rests + sum(map(len, cut.prefixes)) == cheapest_by_trying(rows, at_most)


def test_rows_that_share_nothing_are_left_whole():
    assert share_prefixes([[1, 2, 3], [4, 5, 6]], [2, 2]) is None
    assert share_prefixes([[1, 2, 3], [1, 2, 3]], [0, 0]) is None
    assert share_prefixes([], []) is None


def test_models_whose_memory_is_no_plain_cache_are_left_alone():
    assert all(can_share_prefixes(model) for model in MODELS.values())
    windowed = qwen(use_sliding_window=True, sliding_window=4, max_window_layers=0)
    assert not can_share_prefixes(windowed)


def test_positions_count_real_tokens():
    assert positions(torch.tensor([[0, 0, 1, 1], [1, 0, 1, 1]])).tolist() == [[0, 0, 0, 1], [0, 0, 1, 2]]
