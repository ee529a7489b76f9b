"""`LiberoEnv`, without a simulator: spaces, arguments, and what is said about them."""

import pickle
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

import wmrl_envs  # noqa: F401  (registers the environments)
from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.env import LiberoEnv, orient

ID = "wmrl/LiberoLong-v0"


def test_spaces_are_the_same_for_all_tasks_and_need_no_simulator():
    spaces = [(env.observation_space, env.action_space) for env in map(LiberoEnv, range(10))]
    assert all(pair == spaces[0] for pair in spaces)
    shapes = {name: space.shape for name, space in spaces[0][0].spaces.items()}
    assert shapes == {"robot": (16,), "objects": (8, 7), "joints": (3,)}


def test_images_have_a_space_each_of_the_size_that_was_asked_for():
    env = LiberoEnv(
        3, observations="both", cameras=["agentview", "robot0_eye_in_hand"], image_size=(48, np.int64(64))
    )
    assert env.observation_space["agentview_image"] == gym.spaces.Box(0, 255, (48, 64, 3), np.uint8)
    assert set(env.observation_space.spaces) == {
        "robot",
        "objects",
        "joints",
        "agentview_image",
        "robot0_eye_in_hand_image",
    }
    images = LiberoEnv(3, observations="images", image_size=32).observation_space
    assert set(images.spaces) == {"agentview_image"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": 10}, "task must be a number from 0 to 9, not 10"),
        ({"observations": "pixels"}, "observations must be one of 'state', 'images', 'both', not 'pixels'"),
        ({"orientation": "flip"}, "orientation must be one of 'vertical_flip', 'rotate_180', 'none'"),
        ({"orientation": None}, "orientation must be one of"),
        ({"cameras": ["front"]}, "a camera must be one of 'agentview', .*, not 'front'"),
        ({"cameras": []}, "cameras must name one or more"),
        ({"cameras": ["agentview", "agentview"]}, "each once"),
        ({"image_size": 0}, "image_size must be a height and a width from 1 to 4096"),
        ({"image_size": (64, 64, 3)}, "image_size must be"),
        ({"horizon": 0}, "horizon must be at least 1 step, not 0"),
        ({"backend": "glfw"}, "backend must be one of None, 'egl', 'osmesa', not 'glfw'"),
        ({"render_mode": "human"}, "render_mode must be one of None, 'rgb_array', not 'human'"),
    ],
)
def test_an_argument_out_of_range_has_its_sentence(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        LiberoEnv(**arguments)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"init_state": 50}, "init_state must be a whole number from 0 to 49, not 50"),
        ({"init_state": 1.5}, "init_state must be a whole number"),
        ({"env_seed": -1}, "env_seed must be a whole number from 0"),
        (
            {"initial_state": 3},
            "Unknown reset option 'initial_state': choose among env_seed, group, init_state",
        ),
    ],
)
def test_a_reset_option_out_of_range_has_its_sentence(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        LiberoEnv(0).reset(options=options)


def test_without_an_episode_it_asks_for_a_reset():
    env = LiberoEnv(0, render_mode="rgb_array")
    for use in (lambda: env.step(np.zeros(7)), env.render, env.physics_state, env.observation):
        with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            use()
    env.close()
    env.close()


def test_it_can_be_pickled_before_it_is_built():
    copy = pickle.loads(pickle.dumps(LiberoEnv(4, image_size=32)))
    assert (copy.task.index, copy.image_size) == (4, (32, 32))


def test_importing_and_making_it_loads_no_simulator():
    program = (
        f"import sys, gymnasium, wmrl_envs; gymnasium.make('{ID}', task=2)\n"
        "print([name for name in ('libero', 'mujoco', 'robosuite', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(["vertical_flip", "rotate_180", "none"]))
def test_turning_twice_gives_the_picture_back(height, width, orientation):
    picture = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    assert np.array_equal(orient(orient(picture, orientation), orientation), picture)


def test_which_pixel_goes_where():
    picture = np.zeros((2, 3, 3), np.uint8)
    picture[0, 0] = 1  # lower left, as OpenGL gives it
    assert np.argwhere(orient(picture, "none")[..., 0]).tolist() == [[0, 0]]
    assert np.argwhere(orient(picture, "vertical_flip")[..., 0]).tolist() == [[1, 0]]
    assert np.argwhere(orient(picture, "rotate_180")[..., 0]).tolist() == [[1, 2]]


def test_render_without_a_mode_warns():
    env = LiberoEnv(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert env.render() is None
    assert "render_mode='rgb_array'" in str(caught[0].message)
