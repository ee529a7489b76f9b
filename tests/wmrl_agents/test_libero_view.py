"""What LIBERO shows as a state, by hand."""

import numpy as np
import pytest

from wmrl_agents.policies.vla.libero_view import STATE_SIZE, libero_observation, libero_states
from wmrl_envs.errors import ConfigError


def scene():
    robot = np.arange(16) / 10
    objects = np.zeros((8, 7))
    objects[0] = [1, 2, 3, 0, 0, 0, 1]
    objects[2] = [0, 0, 0, 0, 0, 0, 1]  # at the origin, and there
    return {"robot": robot, "objects": objects, "joints": np.array([0.5, 0, 0])}


def test_a_state_by_hand():
    state = libero_states(**scene())
    assert state.shape == (STATE_SIZE,) == (99,)
    assert state.dtype == np.float32
    assert state[:16] == pytest.approx(np.arange(16) / 10)
    assert state[16:72] == pytest.approx(scene()["objects"].flatten())
    from_hand = state[72:96].reshape(8, 3)
    assert from_hand[0] == pytest.approx([1, 1.9, 2.8])
    assert from_hand[2] == pytest.approx([0, -0.1, -0.2])
    assert not from_hand[[1, 3, 4, 5, 6, 7]].any()
    assert state[96:] == pytest.approx([0.5, 0, 0])


def test_many_moments_at_once():
    one = scene()
    many = libero_states(*(np.stack([part, part + 1, part]) for part in one.values()))
    assert many.shape == (3, 99)
    assert np.array_equal(many[0], libero_states(**one))
    assert np.array_equal(many[0], many[2])
    assert not np.array_equal(many[0], many[1])


def test_observations_with_and_without_a_picture():
    picture = np.zeros((8, 8, 3), np.uint8)
    seen = scene() | {"agentview_image": picture}
    assert libero_observation(seen).image is None
    assert np.array_equal(libero_observation(seen).state, libero_states(**scene()))
    assert libero_observation(seen, "agentview").image is picture
    assert libero_observation({"agentview_image": picture}, "agentview").state is None
    with pytest.raises(ConfigError, match=r"cameras=\('frontview',\)"):
        libero_observation(seen, "frontview")


def test_other_shapes_are_refused():
    wrong = scene() | {"joints": np.zeros(2)}
    with pytest.raises(ConfigError, match=r"not \(16,\), \(8, 7\) and \(2,\)"):
        libero_states(**wrong)
