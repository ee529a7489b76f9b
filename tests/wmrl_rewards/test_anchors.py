import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.errors import ConfigError
from wmrl_rewards import AnchorSampler


@pytest.mark.parametrize(
    ("fraction", "groups", "anchors"),
    [(0.1, 8, 1), (0.1, 20, 2), (0.1, 1, 1), (0.01, 8, 1), (0.25, 8, 2), (0.5, 8, 4), (1.0, 8, 8)],
)
def test_the_number_of_anchors_is_exact_at_every_step(fraction, groups, anchors):
    sampler = AnchorSampler(fraction, seed=3)
    assert {len(sampler.draw(groups)) for _ in range(50)} == {anchors}


@given(fraction=st.floats(0.001, 1), groups=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_anchors_are_distinct_positions_in_ascending_order(fraction, groups, seed):
    drawn = AnchorSampler(fraction, seed).draw(groups)
    assert drawn == sorted(set(drawn))
    assert all(type(position) is int and 0 <= position < groups for position in drawn)


def test_every_position_is_drawn_equally_often():
    sampler = AnchorSampler(0.25, seed=0)
    counts = Counter(position for _ in range(4000) for position in sampler.draw(8))
    # 2 of 8 in 4000 draws: mean 1000, standard deviation 27.4; five of them are allowed
    assert all(abs(counts[position] - 1000) < 137 for position in range(8))


def test_the_same_seed_draws_the_same_anchors_and_another_one_others():
    first, second, other = (AnchorSampler(0.25, seed) for seed in (5, 5, 6))
    draws = [[sampler.draw(16) for _ in range(8)] for sampler in (first, second, other)]
    assert draws[0] == draws[1] != draws[2]


def test_a_restored_sampler_goes_on_where_it_was():
    sampler = AnchorSampler(0.25, seed=1)
    sampler.draw(8)
    state = json.loads(json.dumps(sampler.state_dict()))
    expected = [sampler.draw(8) for _ in range(20)]
    restored = AnchorSampler(0.25, seed=99)
    restored.load_state_dict(state)
    assert [restored.draw(8) for _ in range(20)] == expected


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan")])
def test_a_fraction_outside_of_zero_to_one_is_refused(fraction):
    with pytest.raises(ConfigError, match="anchor fraction"):
        AnchorSampler(fraction)


def test_a_step_without_groups_is_refused():
    with pytest.raises(ConfigError, match="at least one group"):
        AnchorSampler().draw(0)
