"""Known answers: predictions whose bias and noise were set by hand, and what the theorems make of them."""

import json
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from wmrl_envs.errors import WMRLError
from wmrl_rewards import AnchorWeight, IsotonicDebiaser, Judged, measure_fidelity, training_bounds
from wmrl_rewards.estimates import Estimate, largest, pivotal, rank_correlation, score_levels

# A spread that leaves room for bias and noise, so that nothing is clipped.
LOW, HIGH = 0.2, 0.7


def judged(seed=0, *, tasks=4, groups=8, size=8, predict=lambda real, noise: real, sigma=0.0):
    """Solutions with uniform real scores and predictions made from them."""
    rng = np.random.default_rng(seed)
    return [
        Judged(f"task {task}", group, real, float(np.clip(predict(real, rng.normal(0, sigma)), 0, 1)))
        for task in range(tasks)
        for group in range(groups)
        for real in rng.uniform(LOW, HIGH, size).tolist()
    ]


def shifted(real, noise):
    return real + 0.1 + noise


def bent(real, noise):
    """A monotone distortion whose bias is largest at the lower end: 0.15 at 0.2, 0 at 0.7."""
    return real + 0.3 * (HIGH - real) + noise


def covers(estimate, value):
    return estimate.low <= value <= estimate.high


def test_a_perfect_world_model_has_no_errors():
    found = measure_fidelity(judged(), resamples=20)
    for name in ("mean_error", "absolute_error", "bias", "noise", "typical_bias", "typical_noise", "eta2"):
        assert getattr(found.raw, name) == Estimate(0.0, 0.0, 0.0)
    assert found.raw.rank_in_group.value == pytest.approx(1.0)
    assert found.raw.rank_overall.value == pytest.approx(1.0)
    assert all(point.predicted == point.real for point in found.raw.curve)
    assert (found.unreadable, found.status_agreement, found.status_by_chance) == (0.0, 1.0, 1.0)
    # A map interpolates between the other tasks' scores: nearly, not wholly, the identity.
    assert found.calibrated.absolute_error.value < 0.005


def test_bias_and_noise_that_were_set_are_found():
    found = measure_fidelity(judged(predict=shifted, sigma=0.05), resamples=200)
    assert covers(found.raw.mean_error, 0.1)
    assert covers(found.raw.bias, 0.1)
    assert covers(found.raw.noise, 0.05)
    assert found.raw.typical_bias.value == pytest.approx(0.1, abs=0.01)
    assert found.raw.typical_noise.value == pytest.approx(0.05, abs=0.005)
    # Var(noise) / Var(real) = 0.05² / (0.5² / 12)
    assert covers(found.raw.eta2, 0.12)
    # The mean absolute error of a normal error of mean 0.1 and deviation 0.05 is 0.1008.
    assert found.raw.absolute_error.value == pytest.approx(0.1008, abs=0.006)


def test_intervals_cover_what_they_should():
    """Of 40 intervals for each of B, σ and η̂² most hold the truth: 33 is 3 σ below 95 %, 30 below 90 %."""
    hits = {"bias": 0, "noise": 0, "eta2": 0}
    for seed in range(40):
        cases = judged(seed, tasks=2, groups=8, predict=shifted, sigma=0.05)
        found = measure_fidelity(cases, resamples=100, seed=seed)
        hits["bias"] += covers(found.raw.bias, 0.1)
        hits["noise"] += covers(found.raw.noise, 0.05)
        hits["eta2"] += covers(found.raw.eta2, 0.12)
    assert hits["bias"] >= 33
    assert hits["noise"] >= 33
    assert hits["eta2"] >= 30  # of a ratio over 16 groups


def test_debiasing_removes_a_monotone_distortion():
    found = measure_fidelity(judged(predict=bent, sigma=0.01), resamples=0)
    # On the lowest of six levels the mean real score is 0.2 + 0.5/12: bias 0.3 · (0.5 − 0.0417) = 0.1375.
    assert found.raw.bias.value == pytest.approx(0.1375, abs=0.006)
    assert found.calibrated.bias.value < 0.02
    assert found.calibrated.absolute_error.value < found.raw.absolute_error.value / 4
    assert all(abs(point.predicted - point.real) < 0.02 for point in found.calibrated.curve)
    assert found.raw.bias.low is None


def test_calibration_is_cross_fitted_by_task():
    """Where each task has a bias of its own, the others' map cannot remove it."""
    offset = {"task 0": -0.1, "task 1": 0.1}
    cases = [replace(one, predicted=one.real + offset[one.task]) for one in judged(tasks=2)]
    found = measure_fidelity(cases, resamples=0)
    assert found.cross_fitted_by == "task"
    # The map of one adds 0.1 where 0.1 is already too much: twice the error, up to the edges.
    assert found.calibrated.absolute_error.value > 0.14
    by_hand = IsotonicDebiaser(min_pairs=1)
    by_hand.update(*np.array([(one.predicted, one.real) for one in cases if one.task == "task 1"]).T)
    first = [one for one in cases if one.task == "task 0"]
    expected = by_hand([one.predicted for one in first])
    assert [scores[2] for scores in found.scores[: len(first)]] == pytest.approx(expected.tolist())


@pytest.mark.parametrize(("groups", "name"), [(3, "group"), (1, "solution")])
def test_one_task_is_cross_fitted_by_what_there_is(groups, name):
    found = measure_fidelity(judged(tasks=1, groups=groups, predict=bent), resamples=5)
    assert found.cross_fitted_by == name
    assert found.calibrated.absolute_error.value < found.raw.absolute_error.value


def test_eta2_is_that_of_the_anchor_weight():
    cases = judged(predict=bent, sigma=0.1)
    weight = AnchorWeight(window=1000)
    for start in range(0, len(cases), 8):
        members = cases[start : start + 8]
        weight.observe([one.predicted for one in members], [one.real for one in members])
    assert measure_fidelity(cases, resamples=0).raw.eta2.value == pytest.approx(weight.eta2)


def test_a_blind_world_model_has_no_signal_inside_groups():
    constant = measure_fidelity(judged(predict=lambda real, noise: 0.5), resamples=20)
    assert constant.raw.eta2.value == pytest.approx(1.0)
    assert constant.raw.rank_in_group.value == 0.0
    noise = measure_fidelity(judged(predict=lambda real, noise: 0.5 + noise, sigma=0.1), resamples=20)
    assert noise.raw.eta2.value > 1.2
    assert abs(noise.raw.rank_in_group.value) < 0.1
    # The map goes flat: what is left is the spread of the truth.
    assert noise.calibrated.eta2.value == pytest.approx(1.0, abs=0.15)


def test_groups_of_equal_scores_say_nothing_about_groups():
    cases = [
        Judged("t", group, float(group == 1), 0.25 * group + 0.1 * k) for group in (0, 1) for k in (1, 2)
    ]
    found = measure_fidelity(cases, resamples=10)
    assert found.informative_groups == 0
    assert found.raw.eta2 == Estimate(None)
    assert found.raw.rank_in_group == Estimate(None)
    assert training_bounds(found).effective_groups is None


def test_few_groups_give_no_interval():
    few = measure_fidelity(judged(tasks=2, groups=2, predict=shifted, sigma=0.05), resamples=20)
    assert few.informative_groups == 4
    assert few.raw.eta2.value > 0
    assert (few.raw.eta2.low, few.raw.rank_in_group.high) == (None, None)
    assert few.raw.bias.low is not None


def test_statuses_errors_and_reasons_are_counted():
    kinds = [
        ("ok", "ok", None, None),
        ("ok", "error", None, "KeyError"),
        ("error", "error", "KeyError", "KeyError"),
        ("error", "error", "KeyError", "NameError"),
        ("error", "error", None, "NameError"),
    ]
    cases = [
        Judged("t", 0, 0.5, 0.5, real, predicted, real_error=first, predicted_error=second)
        for real, predicted, first, second in kinds
    ]
    cases += [Judged("t", 0, 0.0, None, "timeout", "missing", problem="No status.", real_seconds=8.0)] * 3
    found = measure_fidelity(cases, resamples=0)
    assert found.statuses == {
        "error": {"error": 3},
        "timeout": {"missing": 3},
        "ok": {"ok": 1, "error": 1},
    }
    assert found.status_agreement == 4 / 8
    # ok: 2 of 8 and 1 of 8; error: 3 of 8 and 4 of 8.
    assert found.status_by_chance == (2 * 1 + 3 * 4) / 64
    assert found.error_agreement == 0.5
    assert found.unreadable == 3 / 8
    assert found.problems == {"No status.": 3}
    assert (found.solutions, len(found.scores)) == (8, 5)
    assert found.real_seconds == 8.0
    json.dumps(asdict(found))


def test_what_predictions_cost_and_how_far_their_samples_lie_apart():
    cases = [
        Judged("t", 0, 0.5, 0.5, samples=(0.4, 0.6), seconds=1.0, tokens=100, real_seconds=10.0),
        Judged("t", 0, 0.5, 0.5, samples=(0.5, 0.5), seconds=3.0, tokens=300, real_seconds=20.0),
        Judged("t", 0, 0.5, 0.5, samples=(0.5,)),
    ]
    found = measure_fidelity(cases, resamples=0)
    assert (found.seconds, found.tokens, found.real_seconds) == (2.0, 200.0, 15.0)
    assert found.sampling_noise == pytest.approx(0.1)  # variances 0.02 and 0


def test_intervals_are_the_same_for_the_same_seed():
    cases = judged(predict=shifted, sigma=0.05)
    first, same, other = (measure_fidelity(cases, resamples=30, seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first.raw.bias != other.raw.bias
    assert first.raw.bias.value == other.raw.bias.value


def test_nothing_to_measure_is_said():
    with pytest.raises(WMRLError, match="No solution has been executed"):
        measure_fidelity([])
    with pytest.raises(WMRLError, match=r"No prediction at all: The server is gone\."):
        measure_fidelity([Judged("t", 0, 0.5, None, problem="The server is gone.")])
    with pytest.raises(WMRLError, match=r"task 't' is 1\.5"):
        measure_fidelity([Judged("t", 0, 0.5, 1.5)])
    assert measure_fidelity([Judged("t", 0, 0.5, 0.25)]).raw.absolute_error.value == 0.25


scores = st.lists(st.integers(0, 5).map(lambda n: n / 5), min_size=2, max_size=12)


@given(scores, st.randoms(use_true_random=False))
def test_rank_correlation_is_spearmans(real, random):
    some = [random.choice((0.0, 0.25, 0.5, 1.0)) for _ in real]
    found = rank_correlation(np.array(some), np.array(real))
    if len(set(real)) == 1:
        assert found is None
    elif len(set(some)) == 1:
        assert found == 0.0
    else:
        assert found == pytest.approx(spearmanr(some, real).statistic)


@given(st.lists(st.integers(0, 9).map(lambda n: n / 9), min_size=1, max_size=300))
def test_levels_keep_order_and_equal_scores_together(real):
    levels = score_levels(np.array(real))
    assert sorted(set(levels.tolist())) == list(range(levels.max() + 1))
    assert levels.max() < 6
    ordered = sorted(zip(real, levels.tolist(), strict=True))
    assert all(a[1] <= b[1] and (a[0] != b[0] or a[1] == b[1]) for a, b in pairwise(ordered))
    if levels.max() > 0:
        assert np.bincount(levels).min() >= 10


def test_pivotal_intervals_turn_resamples_around():
    drawn = np.linspace(0.5, 1.5, 101).tolist()  # 95 % of them between 0.525 and 1.475
    assert pivotal(0.9, drawn) == pytest.approx((0.9, 1.8 - 1.475, 1.8 - 0.525))
    assert pivotal(0.5, drawn).low == 0.0
    assert pivotal(0.5, drawn, (-1.0, 0.4)).high == 0.4
    assert pivotal(None, drawn) == Estimate(None)
    assert pivotal(0.5, [None, 0.5]) == Estimate(0.5)


def test_the_largest_of_several_has_the_largest_bounds():
    drawn = [np.array([0.5 + step, 0.25, 0.3]) for step in (-0.1, 0.0, 0.1)]
    # A spread of 0.1 on the first, none on the others; 2.394 is the normal quantile of 1 - 0.025/3.
    found = largest(np.array([0.5, 0.25, 0.3]), drawn)
    assert found == pytest.approx((0.5, 0.3, 0.5 + 0.196), abs=1e-3)
    assert largest(np.array([0.9, 0.25, 0.3]), drawn).low == pytest.approx(0.9 - 0.2394, abs=1e-3)
    assert largest(np.array([0.5, 0.25]), []) == Estimate(0.5)


def test_the_theorems_with_numbers_worked_out_by_hand():
    """Two levels, 0.25 and 0.75, predicted as 0.375 and 0.625: B = 0.125, and no noise."""
    cases = [
        Judged(f"t{task}", group, real, 0.25 + real / 2)
        for task in range(2)
        for group in range(10)
        for real in (0.25, 0.75)
    ]
    found = measure_fidelity(cases, resamples=0)
    assert [tuple(level) for level in found.levels] == [(0.375, 0.25, 20), (0.625, 0.75, 20)]
    bounds = training_bounds(found, groups_per_step=8, group_size=8, anchor_fraction=0.25, steps=100)
    assert bounds.anchors_per_step == 2
    assert bounds.bias_term == 32 / 64
    assert bounds.bias_term_calibrated == 0.0
    assert bounds.noise_term == 0.0
    assert (bounds.variance_ratio, bounds.effective_groups) == (1.0, 8.0)
    # Δ_ℓ = 1/2, Δ_φ = 1/4, q = 1/2, a = 16: c_f² = (2 · 2)² / (2 · 8) = 1, T₀ = 1 / B² = 64.
    assert bounds.t0 == pytest.approx(64)
    assert bounds.contraction == pytest.approx(1 + 100 / 64)
    # 8 log(2 · 2 · 100 / 0.05) / (8 / 16)
    assert bounds.valid_from == pytest.approx(16 * np.log(8000))


def test_noise_costs_groups():
    found = measure_fidelity(judged(predict=lambda r, noise: r + noise, sigma=0.1, groups=30), resamples=0)
    bounds = training_bounds(found, groups_per_step=10, group_size=4)
    eta2 = found.calibrated.eta2.value
    assert bounds.variance_ratio == 1 + eta2
    assert bounds.effective_groups == pytest.approx(1 + 9 / (1 + eta2))
    assert bounds.noise_term == pytest.approx(4 * found.calibrated.noise.value**2)


def test_levels_that_the_world_model_confuses_promise_nothing():
    bounds = training_bounds(measure_fidelity(judged(predict=lambda real, noise: 1 - real), resamples=0))
    assert (bounds.t0, bounds.contraction, bounds.valid_from) == (None, None, None)
