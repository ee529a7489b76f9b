import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.libero.arm import _rotation_vector, downward
from wmrl_envs.libero.simulator import SensorClock

ANGLE = st.floats(-1.5, 1.5)


@given(ANGLE, ANGLE, ANGLE)
def test_rotations_are_rotations(yaw, pitch, roll):
    rotation = downward(yaw, pitch, roll)
    assert np.allclose(rotation @ rotation.T, np.eye(3))
    assert math.isclose(np.linalg.det(rotation), 1.0)


def test_the_hand_points_down_and_its_fingers_open_along_y():
    approach, fingers = downward() @ [0, 0, 1], downward() @ [1, 0, 0]
    assert np.allclose(approach, [0, 0, -1])
    assert np.allclose(np.abs(fingers), [0, 1, 0])
    assert np.allclose(downward(yaw=math.pi / 2, pitch=-0.8) @ [0, 0, 1], [0, math.sin(0.8), -math.cos(0.8)])


@given(st.floats(0.01, 3.0), st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda v: np.linalg.norm(v) > 0.1))
def test_a_rotation_vector_is_axis_times_angle(angle, axis):
    unit = np.array(axis) / np.linalg.norm(axis)
    cross = np.cross(np.eye(3), unit)
    rotation = np.eye(3) + math.sin(angle) * cross.T @ np.eye(3) + (1 - math.cos(angle)) * (cross.T @ cross.T)
    assert np.allclose(rotation @ unit, unit)
    assert np.allclose(np.abs(_rotation_vector(rotation)), np.abs(unit * angle), atol=1e-6)


def test_no_rotation_is_no_vector():
    assert np.array_equal(_rotation_vector(np.eye(3)), np.zeros(3))


@pytest.mark.parametrize("steps", [3])
def test_sensors_are_sampled_once_a_step_near_its_end(steps):
    clock = SensorClock()
    clock.restart()
    assert clock.tick(0.002, force=True)
    assert clock.tick(0.002, force=True)
    moments = [tick for tick in range(25 * steps) if clock.tick(0.002, force=False)]
    assert moments == [23, 48, 73]
