"""Frames and reductions: known answers by hand, and what holds for any rollout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.errors import ConfigError
from wmrl_rewards import PredictionRequest
from wmrl_rewards.world_models.progress_values import (
    Progress,
    ProgressWorldModel,
    image_fault,
    reduce_progress,
    uniform_indices,
)

probabilities = st.lists(st.floats(0, 1), min_size=8, max_size=8)


@pytest.mark.parametrize(
    ("length", "indices"),
    [
        (1, [0] * 8),
        (2, [0, 1, 1, 1, 1, 1, 1, 1]),
        (7, [0, 1, 2, 3, 4, 5, 6, 6]),
        (8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (9, [0, 1, 2, 3, 5, 6, 7, 8]),
        (71, [0, 10, 20, 30, 40, 50, 60, 70]),
    ],
)
def test_frames_are_uniform_and_short_rollouts_repeat_the_last(length, indices):
    assert uniform_indices(length).tolist() == indices


@given(st.integers(1, 2000), st.integers(2, 32))
def test_first_and_last_frame_are_always_in_and_order_is_kept(length, count):
    indices = uniform_indices(length, count)
    assert len(indices) == count
    assert (indices[0], indices[-1]) == (0, length - 1)
    gaps = np.diff(indices)
    assert (gaps >= 0).all()
    if length >= count:
        assert gaps.min() >= 1
        assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(
    ("reduction", "score"), [("potential", 0.25), ("final", 0.5), ("mean", 0.46875), ("max", 1.0)]
)
def test_reductions_by_hand(reduction, score):
    assert reduce_progress([0.25, 0.5, 1.0, 0.5, 0.25, 0.25, 0.5, 0.5], reduction) == score


@given(probabilities)
def test_reductions_stay_in_the_unit_interval_and_among_the_values(values):
    assert 0 <= reduce_progress(values, "potential") <= 1
    for reduction in ("final", "mean", "max"):
        assert min(values) - 1e-12 <= reduce_progress(values, reduction) <= max(values)


@given(probabilities, st.floats(0, 1))
def test_a_constant_offset_earns_nothing_by_potential(values, offset):
    shifted = [value / 2 + offset / 2 for value in values]
    expected = reduce_progress(values, "potential") / 2
    assert reduce_progress(shifted, "potential") == pytest.approx(expected, abs=1e-9)


def test_losing_ground_is_no_negative_score():
    assert reduce_progress([0.9] * 7 + [0.1]) == 0.0


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        (None, "holds no frames"),
        ([[1, 2]], "numpy array"),
        ("pixels", "numpy array"),
        (np.zeros((3, 4, 4, 3)), "type uint8"),
        (np.zeros((3, 3, 4, 4), np.uint8), r"not \(3, 3, 4, 4\)"),
        (np.zeros((4, 4, 3), np.uint8), "shape"),
        (np.zeros((0, 4, 4, 3), np.uint8), "no side 0"),
        (np.zeros((2, 0, 4, 3), np.uint8), "no side 0"),
    ],
)
def test_what_is_no_rollout_is_named(frames, fault):
    with pytest.raises(AssertionError, match=fault):
        raise AssertionError(image_fault(frames))


def test_frames_have_no_fault():
    assert image_fault(np.zeros((1, 4, 5, 3), np.uint8)) is None


class Scripted(ProgressWorldModel):
    def progress(self, requests):
        return [request.context["progress"] for request in requests]


def ask(progress, **settings):
    (prediction,) = Scripted(**settings).predict([PredictionRequest("t", context={"progress": progress})])
    return prediction


def test_predictions_reduce_progress_and_never_make_a_score_up():
    eight = (0.0,) * 7 + (0.75,)
    assert ask(Progress(eight)).score == 0.75
    assert ask(Progress(eight), reduction="mean").score == 0.09375
    failed = ask(Progress(error="No camera."))
    assert (failed.score, failed.error) == (None, "No camera.")
    assert ask(Progress()).score is None
    assert ask(Progress()).error


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ConfigError, match="potential, final, mean, max, not 'sum'"):
        Scripted("sum")
