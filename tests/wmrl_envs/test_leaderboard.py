import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.autoresearch.leaderboard import percentile
from wmrl_envs.errors import CompetitionError

NUMBERS = st.one_of(
    st.sampled_from([0.0, 0.5, 0.5, 1.0, -1.0, math.nan, math.inf, -math.inf]),
    st.floats(),
    st.integers(-3, 3).map(float),
)


def by_sorting(score, board, higher_is_better):
    """The definition word by word: sort the board best first and NaN last, look for the score's position."""
    if not math.isfinite(score):
        return 0.0
    sign = -1 if higher_is_better else 1
    ordered = sorted(board, key=lambda entry: (1, 0.0) if math.isnan(entry) else (0, sign * entry))
    position = 1
    for entry in ordered:
        if math.isnan(entry) or sign * entry >= sign * score:
            break
        position += 1
    return min(1.0, max(0.0, (len(board) - position + 1) / len(board)))


def test_agrees_with_sorting_on_ten_thousand_boards():
    rng = np.random.default_rng(0)
    values = np.concatenate([np.round(rng.normal(size=20), 1), [np.nan, np.inf, -np.inf]])
    for _ in range(10_000):
        score, *board = rng.choice(values, size=rng.integers(2, 30)).tolist()
        higher_is_better = bool(rng.integers(2))
        assert percentile(score, board, higher_is_better) == by_sorting(score, board, higher_is_better)


@given(score=NUMBERS, board=st.lists(NUMBERS, min_size=1, max_size=12), higher_is_better=st.booleans())
def test_agrees_with_sorting(score, board, higher_is_better):
    assert percentile(score, board, higher_is_better) == by_sorting(score, board, higher_is_better)


@pytest.mark.parametrize(
    ("score", "higher_is_better", "expected"),
    [
        (0.95, True, 1.0),  # beats all four
        (0.9, True, 1.0),  # level with the best
        (0.8, True, 0.75),  # both 0.8 count as the second rank
        (0.7, True, 0.25),
        (0.1, True, 0.0),
        (0.1, False, 1.0),
        (0.8, False, 0.75),  # only 0.3 is better
        (0.95, False, 0.0),
    ],
)
def test_worked_out_by_hand(score, higher_is_better, expected):
    assert percentile(score, [0.8, 0.3, 0.9, 0.8], higher_is_better) == expected


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, None])
def test_what_is_no_number_never_ranks(score, higher_is_better):
    assert percentile(score, [1.0, math.inf, -math.inf, math.nan], higher_is_better) == 0.0


def test_nan_entries_stand_last():
    assert percentile(0.1, [0.9, math.nan], higher_is_better=True) == 0.5


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(allow_nan=False, allow_infinity=False))
def test_directions_mirror_each_other(board, score):
    mirrored = percentile(-score, [-entry for entry in board], higher_is_better=False)
    assert percentile(score, board, higher_is_better=True) == mirrored


def test_empty_board_is_an_error():
    with pytest.raises(CompetitionError, match="no entries"):
        percentile(0.5, [], higher_is_better=True)
