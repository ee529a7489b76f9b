import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from wmrl_envs.action_chunks import ActionChunks
from wmrl_envs.errors import ConfigError


class Counter(gym.Env):
    """Ends after so many actions; rewards 1, 2, 3 ...; notes which actions were taken, and who looked."""

    def __init__(self, ends=10, truncates=False, observing=None):
        self.observation_space = Box(0, 1000, (1,), np.float32)
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.ends, self.truncates = ends, truncates
        self.seen = []
        if observing is not None:
            self.observing = observing

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = []
        return np.zeros(1, np.float32), {"options": options}

    def step(self, action):
        self.taken.append(action.tolist())
        self.seen.append(getattr(self, "observing", None))
        over = len(self.taken) >= self.ends
        observation = np.full(1, len(self.taken), np.float32)
        return observation, float(len(self.taken)), over and not self.truncates, over and self.truncates, {}


@given(st.integers(1, 30), st.integers(1, 9), st.booleans())
def test_the_reward_of_an_episode_is_the_same_in_chunks(ends, length, truncates):
    inner = Counter(ends, truncates)
    env = ActionChunks(inner, length)
    env.reset()
    total, taken, over = 0.0, 0, False
    while not over:
        chunk = np.arange(2 * length, dtype=np.float32).reshape(length, 2) / 100 + taken
        observation, reward, terminated, truncated, info = env.step(chunk)
        assert inner.taken[taken:] == chunk[: info["actions_taken"]].tolist()
        assert info["actions_taken"] == min(length, ends - taken)
        total, taken, over = total + reward, taken + info["actions_taken"], terminated or truncated
    assert (taken, total) == (ends, ends * (ends + 1) / 2)
    assert (terminated, truncated) == (not truncates, truncates)
    assert observation == ends


def test_only_the_last_action_is_looked_at():
    inner = Counter(observing=True)
    env = ActionChunks(inner, 4)
    env.reset()
    env.step(np.zeros((4, 2), np.float32))
    assert inner.seen == [False, False, False, True]
    assert inner.observing is True


def test_spaces_bounds_and_options_pass_through():
    env = ActionChunks(Counter(), 3)
    assert env.action_space == Box(-1, 1, (3, 2), np.float32)
    _, info = env.reset(options={"a": 1})
    assert info == {"options": {"a": 1}, "actions_taken": 0}


def test_check_env_has_nothing_to_say():
    check_env(ActionChunks(gym.make("Pendulum-v1").unwrapped, 3), skip_render_check=True)


def test_what_cannot_be_chunked_has_its_sentence():
    inner = Counter()
    with pytest.raises(ConfigError, match="at least 1 action, not 0"):
        ActionChunks(inner, 0)
    inner.action_space = Discrete(3)
    with pytest.raises(ConfigError, match=r"Only boxes can be chunked, but the actions are Discrete\(3\)"):
        ActionChunks(inner, 2)


@pytest.mark.parametrize("shape", [(2,), (2, 2), (4, 2), (3, 2, 1)])
def test_a_chunk_of_another_shape_has_its_sentence(shape):
    env = ActionChunks(Counter(), 3)
    env.reset()
    with pytest.raises(ConfigError, match=r"A chunk of actions has shape \(3, 2\)"):
        env.step(np.zeros(shape, np.float32))
