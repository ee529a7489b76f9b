import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wmrl_envs.errors import WMRLError
from wmrl_rewards import fuse, group_scale
from wmrl_rewards.fusion import FUSION_METHODS, all_equal

NAN = np.nan


@st.composite
def steps(draw, missing=True):
    """Sources, real, calibrated and rho of a step; any score may be missing."""
    groups, members = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    score = st.floats(0, 1) | st.just(NAN) if missing else st.floats(0, 1)
    sources = draw(st.lists(st.sampled_from(["real", "world_model"]), min_size=groups, max_size=groups))
    real = draw(hnp.arrays(float, (groups, members), elements=score))
    calibrated = draw(hnp.arrays(float, (groups, members), elements=score))
    return sources, real, calibrated, draw(st.floats(1, 4))


def group_gradient(scores, vectors):
    """One group's estimate, member by member; None if fewer than two members have a score."""
    present = [i for i, score in enumerate(scores) if not np.isnan(score)]
    if len(present) < 2:
        return None
    mean = sum(scores[i] for i in present) / len(present)
    return sum((scores[i] - mean) * vectors[i] for i in present) / len(present)


def weighted(gradients, weights):
    kept = [(g, w) for g, w in zip(gradients, weights, strict=True) if g is not None and w > 0]
    if not kept:
        return 0.0
    return sum(w * g for g, w in kept) / sum(w for _, w in kept)


def gradient_by_loops(sources, real, calibrated, rho, vectors, method, correction=0.5):
    """Equation (5) and its relatives, written as they are printed."""
    anchors = [k for k, source in enumerate(sources) if source == "real"]
    if method in ("inverse_variance", "anchors_alone"):
        scores = [real[k] if k in anchors else calibrated[k] for k in range(len(sources))]
        gradients = [group_gradient(row, v) for row, v in zip(scores, vectors, strict=True)]
        other = 1.0 if method == "inverse_variance" else 0.0
        anchor = rho if method == "inverse_variance" else 1.0
        return weighted(gradients, [anchor if k in anchors else other for k in range(len(sources))])
    both = np.where(np.isnan(real), NAN, calibrated)
    seen = [both[k] if k in anchors else calibrated[k] for k in range(len(sources))]
    everyone = [group_gradient(row, v) for row, v in zip(seen, vectors, strict=True)]
    differences = [group_gradient(real[k] - both[k], vectors[k]) for k in anchors]
    return weighted(everyone, [1.0] * len(everyone)) + correction * weighted(
        differences, [1.0] * len(anchors)
    )


def test_equation_5_worked_out_by_hand():
    # rho 2: weights 2/4, 1/4, 1/4; the anchor's predictions are not looked at
    coefficients = fuse(
        ["real", "world_model", "world_model"],
        real=[[1.0, 0.0], [NAN, NAN], [NAN, NAN]],
        calibrated=[[0.3, 0.9], [0.6, 0.2], [0.5, 0.5]],
        rho=2.0,
    )
    assert coefficients == pytest.approx(np.array([[0.125, -0.125], [0.025, -0.025], [0.0, 0.0]]))


def test_missing_members_worked_out_by_hand():
    coefficients = fuse(
        ["real", "world_model", "world_model"],
        real=[[0.9, NAN, 0.3], [NAN] * 3, [NAN] * 3],
        calibrated=[[NAN] * 3, [0.5, NAN, NAN], [0.1, 0.4, 0.7]],
        rho=3.0,
    )
    # the second group has one member left: not counted, so the weights are 3/4 and 1/4
    expected = [[0.75 * 0.3 / 2, 0, -0.75 * 0.3 / 2], [0, 0, 0], [-0.25 * 0.3 / 3, 0, 0.25 * 0.3 / 3]]
    assert coefficients == pytest.approx(np.array(expected))


def test_a_missing_member_is_not_a_zero():
    present = fuse(["real"], [[0.8, 0.6]], [[NAN, NAN]], 1.0)
    missing = fuse(["real"], [[0.8, 0.6, NAN]], [[NAN] * 3], 1.0)
    as_zero = fuse(["real"], [[0.8, 0.6, 0.0]], [[NAN] * 3], 1.0)
    assert missing[0, :2] == pytest.approx(present[0])
    assert missing[0] != pytest.approx(as_zero[0])


def test_rectified_worked_out_by_hand():
    sources = ["real", "world_model"]
    real, calibrated = [[1.0, 0.0], [NAN, NAN]], [[0.6, 0.4], [0.8, 0.2]]
    # all groups by calibration: ±.1/4 and ±.3/4; the anchor's truth minus calibration: ±.4/2, times c
    plain = np.array([[0.025, -0.025], [0.075, -0.075]])
    rest = np.array([[0.2, -0.2], [0.0, 0.0]])
    for c in (0.0, 0.5, 1.0):
        assert fuse(sources, real, calibrated, 1.0, "rectified", c) == pytest.approx(plain + c * rest)


@pytest.mark.parametrize("method", FUSION_METHODS)
@given(step=steps(), seed=st.integers(0, 1000))
def test_coefficients_give_the_gradient_of_the_explicit_loops(method, step, seed):
    vectors = np.random.default_rng(seed).normal(size=(*step[1].shape, 3))
    gradient = np.einsum("kn,knd->d", fuse(*step, method), vectors)
    expected = gradient_by_loops(*step, vectors, method)
    assert gradient == pytest.approx(np.broadcast_to(expected, 3), abs=1e-12)


@pytest.mark.parametrize("method", FUSION_METHODS)
@given(step=steps())
def test_advantages_of_every_group_sum_to_zero_and_are_finite(method, step):
    coefficients = fuse(*step, method)
    assert np.isfinite(coefficients).all()
    assert coefficients.sum(axis=1) == pytest.approx(np.zeros(len(coefficients)), abs=1e-12)


@pytest.mark.parametrize("method", FUSION_METHODS)
@given(step=steps(), data=st.data())
def test_a_constant_added_to_a_groups_scores_changes_nothing(method, step, data):
    sources, real, calibrated, rho = step
    shift = data.draw(hnp.arrays(float, (len(sources), 1), elements=st.floats(-1, 1)))
    shifted = fuse(sources, real + shift, calibrated + shift, rho, method)
    assert shifted == pytest.approx(fuse(*step, method), abs=1e-12)


@pytest.mark.parametrize("method", FUSION_METHODS)
@given(step=steps(), data=st.data())
def test_permuting_groups_permutes_the_coefficients(method, step, data):
    sources, real, calibrated, rho = step
    order = data.draw(st.permutations(range(len(sources))))
    permuted = fuse([sources[k] for k in order], real[order], calibrated[order], rho, method)
    assert permuted == pytest.approx(fuse(*step, method)[order], abs=1e-12)


@pytest.mark.parametrize("method", FUSION_METHODS)
@given(step=steps(), source=st.sampled_from(["real", "world_model"]))
def test_a_group_without_scores_changes_nothing(method, step, source):
    sources, real, calibrated, rho = step
    nothing = np.full((1, real.shape[1]), NAN)
    more = fuse([*sources, source], np.vstack([real, nothing]), np.vstack([calibrated, nothing]), rho, method)
    assert more[:-1] == pytest.approx(fuse(*step, method), abs=1e-12)
    assert not more[-1].any()


@pytest.mark.parametrize("method", FUSION_METHODS)
@given(step=steps(missing=False), factor=st.floats(-2, 2), seed=st.integers(0, 1000))
def test_coefficients_are_linear_in_the_scores(method, step, factor, seed):
    sources, real, calibrated, rho = step
    other_real, other_calibrated = np.random.default_rng(seed).random((2, *real.shape))
    combined = fuse(sources, real + factor * other_real, calibrated + factor * other_calibrated, rho, method)
    parts = fuse(*step, method) + factor * fuse(sources, other_real, other_calibrated, rho, method)
    # Differences of a millionth count as rounding, in each of the three on its own.
    assert combined == pytest.approx(parts, abs=1e-6)


def test_equal_scores_give_exactly_zero():
    for score in (0.1, 0.7, 1 / 3):
        assert not fuse(["real"], [[score] * 7], [[NAN] * 7], 1.0).any()


def test_groups_of_uneven_sizes_have_their_own_means():
    coefficients = fuse(["world_model"] * 3, np.full((3, 4), NAN), [[0.9] * 4, [0.1] * 4, [0.5] * 4], 1.0)
    assert not coefficients.any()


def test_a_step_without_any_score_gives_zeros():
    nothing = np.full((2, 3), NAN)
    for method in FUSION_METHODS:
        assert not fuse(["real", "world_model"], nothing, nothing, 2.0, method).any()


def test_anchors_alone_without_anchors_gives_zeros():
    assert not fuse(["world_model"], [[NAN, NAN]], [[0.2, 0.8]], 1.0, "anchors_alone").any()


@given(step=steps(missing=False))
def test_the_scale_of_groups_turns_a_plain_mean_into_the_fused_one(step):
    sources, real, calibrated, rho = step
    plain = fuse(sources, real, calibrated, 1.0)
    scaled = plain * group_scale(sources, rho)[:, None]
    if real.shape[1] > 1:
        assert scaled == pytest.approx(fuse(*step), abs=1e-12)


def test_the_scale_of_groups_worked_out_by_hand():
    assert group_scale(["real", "world_model", "world_model"], 2.0).tolist() == [1.5, 0.75, 0.75]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["real"], [[0.1, 0.2]], [[0.1]], 1.0), "differ in shape"),
        ((["real"], [0.1, 0.2], [0.1, 0.2], 1.0), r"shape \(1, n\)"),
        ((["real"], [[0.1, 0.2]] * 2, [[0.1, 0.2]] * 2, 1.0), r"shape \(1, n\)"),
        ((["E"], [[0.1, 0.2]], [[0.1, 0.2]], 1.0), "'E'"),
        ((["real"], [[0.1, 0.2]], [[0.1, 0.2]], 0.0), "rho"),
        ((["real"], [[0.1, 0.2]], [[0.1, 0.2]], NAN), "rho"),
        ((["real"], [[np.inf, 0.2]], [[0.1, 0.2]], 1.0), "infinite"),
        ((["real"], [[0.1, 0.2]], [[0.1, 0.2]], 1.0, "mean"), "'mean'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(WMRLError, match=message):
        fuse(*arguments)


SINGLE = np.float32
RESIDUES = {
    "a sum in double precision": [0.1 + 0.2, 0.3, 0.3],
    "single beside double precision": [float(SINGLE(0.3)), 0.3, 0.1 + 0.2],
    "a mean of seven equal values": [float(np.full(7, SINGLE(0.1)).sum(dtype=SINGLE) / SINGLE(7)), 0.1, 0.1],
    "a third, three ways": [1 / 3, float(SINGLE(1) / SINGLE(3)), 1 - 2 / 3],
}


@pytest.mark.parametrize("method", ["inverse_variance", "rectified"])
@pytest.mark.parametrize("source", ["real", "world_model"])
@pytest.mark.parametrize("scores", RESIDUES.values(), ids=RESIDUES)
def test_what_rounding_leaves_of_equal_scores_is_no_advantage(scores, source, method):
    assert len(set(scores)) > 1
    assert all_equal(scores)
    other = "world_model" if source == "real" else "real"
    array = np.array([scores, [0.2, 0.5, 0.8]])
    found = fuse([source, other], array, array, 2.0, method=method)
    assert found[0].tolist() == [0.0, 0.0, 0.0]
    assert np.abs(found[1]).max() > 0.03


def test_rectified_takes_no_advantage_from_rounding_between_the_two_scores():
    real, calibrated = np.array([[0.3, 0.7, 0.9]]), np.array([[0.1 + 0.2, float(SINGLE(0.7)), 0.9]])
    with_correction = fuse(["real"], real, calibrated, 1.0, method="rectified", correction=1.0)
    without = fuse(["real"], real, calibrated, 1.0, method="rectified", correction=0.0)
    assert (with_correction == without).all()


def test_small_true_differences_stay():
    """A thousandth of a percentile counts, and so do scores that are small altogether."""
    scores = np.array([[0.5, 0.50001], [3e-9, 1e-9]])
    found = fuse(["real", "real"], scores, scores, 1.0)
    assert found == pytest.approx(np.array([[-0.5e-5, 0.5e-5], [1e-9, -1e-9]]) / 4, rel=1e-6)


def test_a_group_of_equal_scores_counts_and_a_lost_one_does_not():
    nan = float("nan")
    spread, equal, lost = [0.0, 1.0], [0.5, 0.5], [0.5, nan]
    alone = fuse(["real"], [spread], [spread], 1.0)[0]
    assert fuse(["real"] * 2, [spread, equal], [spread, equal], 1.0)[0].tolist() == (alone / 2).tolist()
    assert fuse(["real"] * 2, [spread, lost], [spread, lost], 1.0)[0].tolist() == alone.tolist()
