"""`ActionChunks`: an action is a chunk of several, taken one after the other."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from wmrl_envs.errors import ConfigError

__all__ = ["ActionChunks"]

Obs = TypeVar("Obs")


class ActionChunks(gym.Wrapper[Obs, NDArray[Any], Obs, NDArray[Any]], RecordConstructorArgs, Generic[Obs]):
    """Takes chunks of actions of any environment whose actions are boxes.

    The reward of a chunk is the sum of its actions' rewards. A chunk in which the episode ends, or is cut
    short, ends there: the actions left are not taken. Observation and info are those of the last action
    taken; the info also says under ``actions_taken`` how many there were.

    An environment with an attribute ``observing``, such as `wmrl_envs.libero.LiberoEnv`, is told by False
    that nobody looks at what the inner actions of a chunk lead to, and need not draw it.

    Args:
        env: The environment.
        length: Actions in a chunk.

    Raises:
        ConfigError: The actions are no boxes, or there would be none in a chunk.

    Example:
        >>> import gymnasium as gym
        >>> env = ActionChunks(gym.make("Pendulum-v1"), length=4)
        >>> env.action_space.shape
        (4, 1)
        >>> _ = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> info["actions_taken"]
        4
    """

    def __init__(self, env: gym.Env[Obs, NDArray[Any]], length: int = 8) -> None:
        RecordConstructorArgs.__init__(self, length=length)
        super().__init__(env)
        single = env.action_space
        if not isinstance(single, spaces.Box):
            raise ConfigError(f"Only boxes can be chunked, but the actions are {single}.")
        if length < 1:
            raise ConfigError(f"A chunk has at least 1 action, not {length}.")
        self.length = length
        low, high = (np.repeat(bound[None], length, axis=0) for bound in (single.low, single.high))
        self.action_space = spaces.Box(low, high, dtype=single.dtype.type)
        self._can_look_away = hasattr(env.unwrapped, "observing")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode; the info says that no action was taken."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "actions_taken": 0}

    def step(self, action: NDArray[Any]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Take the actions of a chunk, up to the one that ends the episode.

        Args:
            action: Of shape (length, *shape of an action).

        Returns:
            What the last action led to, with the sum of the rewards.

        Raises:
            ConfigError: The chunk has another shape.
        """
        chunk = np.asarray(action)
        if chunk.shape != self.action_space.shape:
            raise ConfigError(f"A chunk of actions has shape {self.action_space.shape}, not {chunk.shape}.")
        total = 0.0
        for number, single in enumerate(chunk, start=1):
            self._look(number == self.length)
            observation, reward, terminated, truncated, info = self.env.step(single)
            total += float(reward)
            if terminated or truncated:
                break
        self._look(True)
        return observation, total, terminated, truncated, {**info, "actions_taken": number}

    def _look(self, observing: bool) -> None:
        if self._can_look_away:
            self.env.unwrapped.observing = observing  # type: ignore[attr-defined]
