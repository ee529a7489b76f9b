import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards import AnchorWeight

NOISY = ([0.5, 0.5], [0.0, 1.0])  # mean square of the centred residual 0.25, spread 0.25
QUIET = ([0.25, 0.75], [0.0, 1.0])  # 0.0625 and 0.25
GOOD = ([0.0, 1.0], [0.0, 1.0])  # 0 and 0.25


def observed(groups, **options):
    weight = AnchorWeight(**options)
    for calibrated, real in groups:
        weight.observe(calibrated, real)
    return weight


def test_eta2_is_a_ratio_of_sums_worked_out_by_hand():
    # residuals -.1, .1, .3 centred -.2, 0, .2: mean square .08/3; truths .2, .5, .8: spread .18/3
    group = ([0.1, 0.6, 1.1], [0.2, 0.5, 0.8])
    assert observed([group]).eta2 == pytest.approx(0.08 / 0.18)
    # with NOISY: (.08/3 + .25) / (.06 + .25); the mean of ratios would be 0.722
    assert observed([group, NOISY]).eta2 == pytest.approx((0.08 / 3 + 0.25) / 0.31)


def test_rho_is_one_in_warm_up_two_at_its_end_and_follows_the_noise_then():
    weight = AnchorWeight(warmup_groups=2)
    seen = []
    for group in [QUIET, QUIET, QUIET, NOISY, NOISY]:
        weight.observe(*group)
        seen.append(weight.rho)
    # eta2_cal = .25; later eta2 = .25, then (3 * .0625 + .25)/1 = .4375, then .6875/1.25 = .55
    assert weight.eta2_cal == 0.25
    assert seen == pytest.approx([1.0, 2.0, 2.0, 1 + 0.4375 / 0.25, 1 + 0.55 / 0.25])


def test_rho_is_bounded():
    assert observed([QUIET] + [NOISY] * 60, warmup_groups=1, window=8).rho == 4.0
    assert observed([QUIET] + [NOISY] * 60, warmup_groups=1, window=8, maximum=3.0).rho == 3.0
    assert 1 < observed([NOISY] + [QUIET] * 60, warmup_groups=1).rho < 2


def test_a_window_forgets_old_groups_but_not_eta2_cal():
    weight = observed([NOISY] * 2 + [QUIET] * 3, warmup_groups=2, window=3)
    assert (weight.eta2, weight.eta2_cal, weight.rho) == (0.25, 1.0, 1.25)


def test_differences_whose_squares_are_no_numbers_are_none():
    assert observed([([0.0, 0.0], [0.0, 6e-268])]).eta2 is None


def test_groups_whose_truths_are_all_equal_are_skipped_not_counted_as_zero():
    solved = ([0.2, 0.9, 0.4], [0.1, 0.1, 0.1])
    assert observed([solved, solved]).eta2 is None
    assert observed([NOISY, solved, solved]).eta2 == 1.0
    assert observed([solved] * 8, warmup_groups=1).rho == 1.0


def test_missing_members_are_left_out():
    nan = np.nan
    whole = observed([([0.5, 0.5], [0.0, 1.0])])
    assert observed([([0.5, nan, 0.5, 0.3], [0.0, 0.7, 1.0, nan])]).eta2 == whole.eta2
    assert observed([([0.5, nan], [0.0, 1.0]), ([nan, nan], [nan, nan]), ([], [])]).eta2 is None


def test_a_single_trajectory_is_no_group():
    assert observed([([0.3], [0.9])] * 20, warmup_groups=1).rho == 1.0


def test_rho_without_any_noise_in_warm_up():
    weight = observed([GOOD] * 8)
    assert (weight.eta2_cal, weight.rho) == (0.0, 1.0)
    weight.observe(*NOISY)
    assert weight.rho == 4.0


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8),
    st.floats(-1, 1),
)
def test_a_constant_error_inside_a_group_is_no_noise(pairs, shift):
    calibrated, real = np.transpose(pairs)
    plain, shifted = observed([(calibrated, real)]), observed([(calibrated + shift, real)])
    if plain.eta2 is None:
        assert shifted.eta2 is None
    elif np.var(real) > 1e-6:
        assert shifted.eta2 == pytest.approx(plain.eta2, abs=1e-6)


def test_the_state_round_trip_is_exact_through_json():
    rng = np.random.default_rng(0)
    weight, restored = AnchorWeight(window=5, warmup_groups=3), AnchorWeight(window=5, warmup_groups=3)
    for _ in range(12):
        weight.observe(*rng.random((2, 4)))
        restored.load_state_dict(json.loads(json.dumps(weight.state_dict())))
        assert (restored.eta2, restored.eta2_cal, restored.rho) == (weight.eta2, weight.eta2_cal, weight.rho)
    following = rng.random((2, 4))
    weight.observe(*following)
    restored.observe(*following)
    assert restored.eta2 == weight.eta2


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"warmup_groups": 0}, {"maximum": 0.5}, {"maximum": np.nan}]
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(ConfigError):
        AnchorWeight(**options)


def test_a_group_of_two_lengths_is_refused():
    with pytest.raises(WMRLError, match="one length"):
        AnchorWeight().observe([0.1, 0.2], [0.1])
