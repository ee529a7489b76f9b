import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards import IsotonicDebiaser

SCORES = st.floats(0, 1)
# Few distinct values, so that ties, levels and flat blocks are common.
LEVELS = st.integers(0, 8).map(lambda k: k / 8)
PAIRS = st.lists(st.tuples(LEVELS, LEVELS), min_size=1, max_size=40)
METHODS = [{}, {"strict": "centered"}, {"method": "inverse"}]


def fitted(pairs, **options):
    debiaser = IsotonicDebiaser(min_pairs=1, refit_every=1, **options)
    debiaser.update(*np.transpose(pairs))
    return debiaser


def min_max_isotonic(x, y):
    """Isotonic regression at the distinct x by its min-max formula: another route than pooling."""
    knots = sorted(set(x))
    sums = [sum(b for a, b in zip(x, y, strict=True) if a == knot) for knot in knots]
    counts = [sum(a == knot for a in x) for knot in knots]

    def average(u, v):
        return sum(sums[u : v + 1]) / sum(counts[u : v + 1])

    size = range(len(knots))
    return knots, [min(max(average(u, v) for u in size if u <= k) for v in size if v >= k) for k in size]


def test_equation_4_worked_out_by_hand():
    # 0.5 and 0.3 are in the wrong order and pooled to 0.4
    debiaser = fitted([(0.2, 0.5), (0.4, 0.3), (0.6, 0.9)])
    assert debiaser([0.2, 0.3, 0.4, 0.5, 0.6]) == pytest.approx([0.4, 0.4, 0.4, 0.65, 0.9])


def test_beyond_the_pairs_the_map_is_constant():
    debiaser = fitted([(0.2, 0.3), (0.6, 0.9)])
    assert debiaser([0.0, 0.1, 0.7, 1.0]).tolist() == [0.3, 0.3, 0.9, 0.9]


@given(PAIRS)
def test_equation_4_agrees_with_the_min_max_formula(pairs):
    knots, expected = min_max_isotonic(*zip(*pairs, strict=True))
    assert fitted(pairs)(knots) == pytest.approx(expected, abs=1e-12)


@given(PAIRS, st.lists(SCORES, min_size=1))
def test_equation_4_is_scikit_learns_isotonic_regression(pairs, new):
    from sklearn.isotonic import IsotonicRegression

    regression = IsotonicRegression(y_min=0, y_max=1, increasing=True, out_of_bounds="clip")
    regression.fit(*np.transpose(pairs))
    assert fitted(pairs)(new) == pytest.approx(regression.predict(new), abs=1e-12)


def test_the_inverse_worked_out_by_hand():
    # mean predictions per true score: 0 -> 0.3, 0.5 -> 0.7, 1 -> 0.6; the last two are pooled at 0.65,
    # where both true scores become their mean 0.75
    pairs = [(0.2, 0.0), (0.4, 0.0), (0.7, 0.5), (0.6, 1.0)]
    debiaser = fitted(pairs, method="inverse")
    assert debiaser([0.1, 0.3, 0.475, 0.65, 0.9]) == pytest.approx([0, 0, 0.375, 0.75, 0.75])


def test_the_inverse_undoes_a_monotone_distortion_without_shrinking():
    # True scores 0, .25, .5, .75, 1 are distorted to their squares, seen with symmetric noise.
    pairs = [(r * r * 0.8 + 0.1 + noise, r) for r in (0, 0.25, 0.5, 0.75, 1) for noise in (-0.1, 0, 0.1)]
    debiaser = fitted(pairs, method="inverse")
    assert debiaser([0.1, 0.15, 0.3, 0.55, 0.9]) == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_centered_worked_out_by_hand():
    # blocks: {0.2, 0.4} at 0.4, centred at 0.3; {0.6} at 0.9
    debiaser = fitted([(0.2, 0.5), (0.4, 0.3), (0.6, 0.9)], strict="centered")
    assert debiaser([0.3, 0.45, 0.6]) == pytest.approx([0.4, 0.65, 0.9])


@given(PAIRS)
def test_centered_rises_strictly_between_the_centres_of_blocks(pairs):
    debiaser = fitted(pairs, strict="centered")
    flat = fitted(pairs)
    heights = flat([predicted for predicted, _ in pairs])
    centres = [
        np.mean([p for (p, _), height in zip(pairs, heights, strict=True) if height == level])
        for level in sorted(set(heights))
    ]
    grid = np.linspace(min(centres), max(centres), 7)
    if len(centres) > 1:
        assert (np.diff(debiaser(grid)) > 0).all()


@pytest.mark.parametrize("options", METHODS)
@given(pairs=PAIRS, new=st.lists(SCORES, min_size=2))
def test_every_map_keeps_the_order_and_the_range(options, pairs, new):
    calibrated = fitted(pairs, **options)(sorted(new))
    assert (np.diff(calibrated) >= -1e-12).all()
    assert (calibrated >= 0).all()
    assert (calibrated <= 1).all()


@pytest.mark.parametrize("options", METHODS)
def test_the_order_of_pairs_does_not_matter_to_the_last_bit(options):
    rng = np.random.default_rng(0)
    pairs = np.column_stack([rng.integers(0, 40, 300) / 39, rng.random(300)])
    pairs = np.concatenate([pairs, pairs[:50]])
    grid = np.linspace(0, 1, 1001)
    expected = fitted(pairs, **options)(grid)
    for _ in range(5):
        assert np.array_equal(fitted(rng.permutation(pairs), **options)(grid), expected)


def test_identity_until_min_pairs_then_refit_after_every_refit_every():
    debiaser = IsotonicDebiaser(min_pairs=4, refit_every=3)
    fits = []
    for _ in range(12):
        debiaser.update([0.5], [1.0])
        fits.append(debiaser.pairs_at_fit)
        assert debiaser.fitted == (debiaser([0.25]).tolist() != [0.25])
    assert fits == [0, 0, 0, 4, 4, 4, 7, 7, 7, 10, 10, 10]


def test_pairs_that_come_at_once_make_one_fit_on_all_of_them():
    debiaser = IsotonicDebiaser(min_pairs=4, refit_every=3)
    debiaser.update([0.5] * 9, [1.0] * 9)
    assert debiaser.pairs_at_fit == 9
    debiaser.update([0.5] * 2, [0.0] * 2)
    assert debiaser([0.5]).tolist() == [1.0]  # not due: the map of nine pairs still stands


def test_a_window_forgets_old_pairs():
    debiaser = IsotonicDebiaser(min_pairs=1, refit_every=1, window=2)
    debiaser.update([0.5, 0.5], [0.0, 0.0])
    debiaser.update([0.5, 0.5], [1.0, 1.0])
    assert debiaser([0.5]).tolist() == [1.0]


def test_a_frozen_map_is_left_alone_by_later_pairs():
    debiaser = IsotonicDebiaser(min_pairs=1, refit_every=1)
    identity = debiaser.frozen()
    debiaser.update([0.5], [1.0])
    assert (identity(0.25).item(), debiaser(0.25).item()) == (0.25, 1.0)


@pytest.mark.parametrize("pairs", [[(0.5, 0.5)], []])
def test_any_shape_goes_and_missing_scores_stay_missing(pairs):
    debiaser = IsotonicDebiaser(min_pairs=1)
    debiaser.update([p for p, _ in pairs], [r for _, r in pairs])
    predicted = np.array([[0.1, np.nan, 0.9], [np.nan, 0.5, 0.2]])
    calibrated = debiaser(predicted)
    assert calibrated.shape == (2, 3)
    assert np.array_equal(np.isnan(calibrated), np.isnan(predicted))
    assert debiaser(0.5).shape == ()
    assert calibrated is not predicted


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.01, 1.01])
@pytest.mark.parametrize("column", ["predicted", "real"])
def test_a_bad_score_is_refused_with_its_row_and_nothing_is_taken(column, bad):
    scores = {"predicted": [0.5] * 4, "real": [0.5] * 4}
    scores[column][2] = bad
    debiaser = IsotonicDebiaser(min_pairs=1)
    with pytest.raises(ValueError, match=f"Row 2: the {column} score {bad}") as caught:
        debiaser.update(**scores)
    assert isinstance(caught.value, WMRLError)
    assert not debiaser.fitted
    assert debiaser.state_dict()["predicted"] == []


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(WMRLError, match=r"\(2,\) and \(1,\)"):
        IsotonicDebiaser().update([0.1, 0.2], [0.1])


@pytest.mark.parametrize("options", [*METHODS, {"window": 30}])
def test_the_state_round_trip_is_exact_through_json(options):
    rng = np.random.default_rng(1)
    debiaser = IsotonicDebiaser(min_pairs=20, refit_every=16, **options)
    restored = IsotonicDebiaser(min_pairs=20, refit_every=16, **options)
    grid = np.linspace(0, 1, 501)
    for _ in range(12):
        pairs = rng.random((2, 7))
        debiaser.update(*pairs)
        restored.update(*pairs)
        restored.load_state_dict(json.loads(json.dumps(debiaser.state_dict())))
        assert np.array_equal(restored(grid), debiaser(grid))
        assert restored.pairs_at_fit == debiaser.pairs_at_fit
    assert debiaser.fitted


@pytest.mark.parametrize(
    "options",
    [
        {"min_pairs": 0},
        {"refit_every": 0},
        {"window": 0},
        {"method": "auto"},
        {"strict": "yes"},
        {"method": "inverse", "strict": "centered"},
    ],
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(ConfigError):
        IsotonicDebiaser(**options)
