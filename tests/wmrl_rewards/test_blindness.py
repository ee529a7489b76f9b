import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards import BlindnessTest, WorldModelReward, fuse

NAN = float("nan")


def observed(groups, **options):
    test = BlindnessTest(**options)
    for predicted, real in groups:
        test.observe(predicted, real)
    return test


GROUPS = [
    ([0.1, 0.5, 0.2, 0.9], [0.0, 0.4, 0.4, 0.8]),
    ([0.3, 0.1, 0.9], [1.0, 0.2, 0.5]),
    ([0.3, 0.1], [0.2, 0.9]),
]
MIRRORED = [(predicted, [1 - score for score in real]) for predicted, real in GROUPS]


@pytest.mark.parametrize("groups", [GROUPS[:1], GROUPS, MIRRORED])
def test_agreement_is_judged_by_its_moments_among_all_pairings(groups):
    seen = variance = third = 0.0
    for predicted, real in groups:
        deviations = np.array(real) - np.mean(real)
        pairings = [np.dot(order, deviations) for order in itertools.permutations(predicted)]
        assert np.mean(pairings) == pytest.approx(0, abs=1e-12)
        seen += np.dot(predicted, deviations)
        variance += np.var(pairings)
        third += np.mean(np.power(pairings, 3))
    test, z = observed(groups), seen / variance**0.5
    assert test.z == pytest.approx(z)
    assert test.chance == pytest.approx(stats.pearson3.sf(z, third / variance**1.5))


def test_without_skewness_the_agreement_is_normal():
    test = observed([([0.1, 0.9], [0.3, 0.8])] * 5)
    assert test.chance == pytest.approx(stats.norm.sf(5**0.5))


@pytest.mark.parametrize("size", [4, 16])
def test_the_level_holds_where_hardly_any_member_succeeds(size):
    """One lucky guess in a group has z = (size - 1) ** 0.5, and comes once in ``size`` groups."""
    rng, runs = np.random.default_rng(4), 500
    one = np.eye(size)[0]
    shown = passed = lucky = 0
    for _ in range(runs):
        test, zs = BlindnessTest(), []
        for k in range(64):
            test.observe(rng.permutation(one), one)
            zs.append(test.z)
            passed += k == 7 and not test.blind
            shown += test.shown
            if test.shown:
                break
        lucky += max(zs) >= 3
    assert max(passed, shown) < stats.binom.ppf(0.999, runs, 0.01)
    assert lucky > 0.02 * runs  # as many as would pass if z were taken for normal


def test_a_guessing_world_model_is_found_blind_and_a_noisy_one_that_sees_is_not():
    rng = np.random.default_rng(0)
    truths = rng.random((40, 8))
    guesses = observed(zip(rng.random((40, 8)), truths, strict=True))
    noisy = observed(zip(truths + rng.normal(0, 0.6, (40, 8)), truths, strict=True))
    assert guesses.blind
    assert not noisy.blind
    assert noisy.z > 4 > 2.3 > guesses.z


def test_a_guessing_world_model_passes_as_often_as_the_level_says():
    rng = np.random.default_rng(1)
    runs = 4000
    passed = sum(
        not observed(zip(rng.random((8, 6)), rng.random((8, 6)) ** 3, strict=True)).blind for _ in range(runs)
    )
    assert stats.binomtest(passed, runs, 0.01).pvalue > 1e-3


def test_one_that_always_says_the_same_is_blind_and_one_that_is_wrong_side_up_too():
    same = ([0.7] * 6, [0.1, 0.2, 0.9, 0.4, 0.3, 0.6])
    upside_down = (np.linspace(1, 0, 6), np.linspace(0, 1, 6))
    assert observed([same] * 8).z is None
    assert observed([same] * 8).blind
    assert observed([upside_down] * 8).blind


def test_it_judges_after_warm_up_and_by_recent_groups():
    good, bad = ([0.1, 0.5, 0.9], [0.2, 0.4, 0.8]), ([0.9, 0.5, 0.1], [0.2, 0.4, 0.8])
    assert not observed([bad] * 7).blind
    assert observed([bad] * 8).blind
    assert observed([bad] * 8 + [good] * 10, window=10).blind is False
    assert observed([good] * 8 + [bad] * 10, window=10).blind is True


def test_it_is_shown_to_see_at_3_and_until_it_falls_below_2_33():
    right, wrong = ([0.0, 0.5, 1.0], [0.0, 0.5, 1.0]), ([1.0, 0.5, 0.0], [0.0, 0.5, 1.0])
    test, told = BlindnessTest(), []
    for predicted, real in [right] * 6 + [wrong] * 2 + [right]:
        test.observe(predicted, real)
        told.append((round(test.z, 2), test.shown))
    # A single group has z = +-2 ** 0.5, and k groups have their sum over k ** 0.5.
    rising = [(1.41, False), (2.0, False), (2.45, False), (2.83, False), (3.16, True), (3.46, True)]
    assert told == [*rising, (2.67, True), (2.0, False), (2.36, False)]


def test_a_guessing_world_model_is_seldom_shown_to_see_however_often_one_looks():
    rng, runs, shown = np.random.default_rng(2), 500, 0
    for _ in range(runs):
        test = BlindnessTest()
        for predicted, real in zip(rng.random((64, 6)), rng.random((64, 6)) ** 3, strict=True):
            test.observe(predicted, real)
            if test.shown:
                shown += 1
                break
    assert shown < stats.binom.ppf(0.999, runs, 0.01)


def test_groups_without_differences_in_the_truth_and_missing_members_do_not_count():
    test = observed(
        [([0.1, 0.9], [0.3, 0.3]), ([0.1, NAN], [0.3, 0.9]), ([0.1, 0.2], [NAN, 0.9])], warmup_groups=1
    )
    assert (test.z, test.blind) == (None, False)
    whole = observed([([0.1, 0.9, 0.3], [0.0, 1.0, 0.4])])
    gaps = observed([([0.1, NAN, 0.9, 0.5, 0.3], [0.0, 0.7, 1.0, NAN, 0.4])])
    assert whole.z == gaps.z


SCORES = st.lists(st.floats(0, 1), min_size=2, max_size=8)


@given(st.lists(SCORES.flatmap(lambda x: st.tuples(st.just(x), st.permutations(x))), min_size=1, max_size=9))
def test_scale_and_offset_of_the_predictions_change_nothing(groups):
    shrunk = [(np.array(predicted) / 4 + 0.5, real) for predicted, real in groups]
    # What counts as rounding (a millionth of the scores) does so sooner after shrinking and shifting.
    if any(0 < np.ptp(predicted) < 1e-5 for predicted, _ in groups):
        return
    one, other = observed(groups).z, observed(shrunk).z
    assert (one is None) == (other is None)
    if one is not None:
        assert one == pytest.approx(other, abs=1e-6)


def test_it_forgets():
    for predicted in ([0.9, 0.5, 0.1], [0.1, 0.5, 0.9]):
        test = observed([(predicted, [0.2, 0.4, 0.8])] * 8)
        assert test.blind != test.shown
        test.forget()
        assert (test.z, test.chance, test.blind, test.shown) == (None, None, False, False)


def test_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match="at least one group"):
        BlindnessTest(window=0)
    with pytest.raises(WMRLError, match="two lists of one length"):
        BlindnessTest().observe([0.1], [0.1, 0.2])


def blind_reward(**options):
    """Rewards that have seen eight anchor groups of a world model that always says the same."""
    reward = WorldModelReward(**options)
    for step in range(8):
        reward.observe(step, ["real", "world_model"], [[0.0, 0.4, 0.8], [NAN] * 3], [[0.5] * 3] * 2)
    return reward


STEP = (["real", "world_model"], [[0.1, 0.2, 0.9], [NAN, NAN, 0.0]], [[0.2, 0.3, 0.4], [0.5, 0.9, NAN]])


@pytest.mark.parametrize("fusion", ["inverse_variance", "rectified"])
def test_predicted_groups_do_not_count_while_the_world_model_is_blind(fusion):
    reward = blind_reward(fusion=fusion)
    expected = fuse(STEP[0], STEP[1], STEP[2], 1.0, "anchors_alone")
    assert reward.ignores_predictions
    assert reward.statistics()["blind"] is True
    assert np.array_equal(reward.coefficients(*STEP), expected)
    for step in range(8, 16):  # then it sees
        reward.observe(step, ["real"], [[0.0, 0.4, 0.8]], [[0.1, 0.2, 0.4]])
    assert not reward.ignores_predictions
    assert reward.coefficients(*STEP)[1].any()


def test_predicted_groups_count_from_the_start_or_once_the_anchors_have_shown_that_it_sees():
    trusting, doubting = WorldModelReward(), WorldModelReward(presume_blind=True)
    assert trusting.coefficients(*STEP)[1].any()
    expected = fuse(STEP[0], STEP[1], STEP[2], 1.0, "anchors_alone")
    assert np.array_equal(doubting.coefficients(*STEP), expected)
    assert doubting.statistics()["predictions_ignored"] is True
    assert doubting.statistics()["blind"] is False  # nobody knows
    for step in range(4):
        doubting.observe(step, ["real"], [[0.0, 0.4, 0.8, 0.2]], [[0.1, 0.2, 0.4, 0.15]])
    assert doubting.statistics()["predictions_ignored"] is False
    assert doubting.coefficients(*STEP)[1].any()
    for step in range(4, 8):
        doubting.observe(step, ["real"], [[0.0, 0.4, 0.8, 0.2]], [[0.8, 0.4, 0.0, 0.6]])
    assert not doubting.coefficients(*STEP)[1].any()


def test_nothing_is_presumed_where_blindness_is_not_ignored():
    reward = WorldModelReward(presume_blind=True, ignore_blind=False)
    assert reward.coefficients(*STEP)[1].any()


def test_it_can_be_switched_off_and_is_still_told():
    reward = blind_reward(ignore_blind=False)
    assert reward.statistics()["blind"] is True
    assert reward.coefficients(*STEP)[1].any()


@pytest.mark.parametrize("presume", [False, True])
def test_a_checkpoint_keeps_the_judgement(presume):
    reward, other = blind_reward(presume_blind=presume), WorldModelReward(presume_blind=presume)
    rng = np.random.default_rng(3)
    for step in range(8, 40):  # some members are missing
        real, predicted = rng.random((2, 2, 5))
        real[rng.random((2, 5)) < 0.2], predicted[rng.random((2, 5)) < 0.2] = NAN, NAN
        reward.observe(step, ["real", "world_model"], real, predicted)
    other.load_state_dict(json.loads(json.dumps(reward.state_dict())))
    assert other.ignores_predictions == reward.ignores_predictions
    assert other.statistics() == reward.statistics()


def test_a_wrapper_says_the_weight_0_while_it_is_blind():
    reward = blind_reward(anchor_fraction=0.5)
    groups = [reward.stream.begin(name) for name in "ab"]
    assert {group.anchor: group.weight for group in groups} == {True: 1.0, False: 0.0}
