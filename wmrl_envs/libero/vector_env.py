"""`LiberoVectorEnv`: many LIBERO environments, each in a process of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray

from wmrl_envs.action_chunks import ActionChunks
from wmrl_envs.errors import ConfigError, SimulatorError
from wmrl_envs.libero.env import LiberoEnv

__all__ = ["LiberoVectorEnv"]


class LiberoVectorEnv(AsyncVectorEnv):
    """Many `LiberoEnv` side by side, of one task or of several.

    Each has a process of its own, started afresh (``spawn``), because one that is forked from a process that
    has drawn hangs. So a script needs ``if __name__ == "__main__":`` around what makes this. Observations
    come through shared memory.

    A member that has ended idles until the caller resets it (autoreset is disabled): its action is not looked
    at, its reward is 0.0, its observation stays and its info is absent. So that a return is a plain sum.

    Options of `reset`: those of `LiberoEnv`, each a value for all members or a *list* of one for each; and
    ``reset_mask``, a bool array that says which members to reset. A group of eight on one initial state is
    ``reset(options={"init_state": 3, "env_seed": 0})``: `seed` alone would give each member its own.

    Args:
        num_envs: Number of members. Each takes 1 to 2.5 GB of memory.
        task: As for `LiberoEnv`, or a list of one for each member.
        chunk_length: Actions in a chunk, see `ActionChunks`; None for single actions.
        settings: All other arguments of `LiberoEnv`, for every member.

    Raises:
        ConfigError: An argument is out of its range.
        SimulatorError: A member's process has ended (from `reset` and `step`).

    Example:
        >>> import gymnasium as gym
        >>> make = functools.partial(gym.make_vec, "wmrl/LiberoLong-v0", num_envs=4)
        >>> envs = make(task=[0, 0, 8, 8], chunk_length=8)  # doctest: +SKIP
        >>> observations, info = envs.reset(options={"init_state": 3, "env_seed": 0})  # doctest: +SKIP
        >>> envs.close()  # doctest: +SKIP
    """

    def __init__(
        self, num_envs: int = 1, task: int | list[int] = 0, chunk_length: int | None = None, **settings: Any
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs must be at least 1, not {num_envs}.")
        tasks = task if isinstance(task, list) else [task] * num_envs
        if len(tasks) != num_envs:
            raise ConfigError(f"task must be one number or a list of {num_envs}, not of {len(tasks)}.")
        makers = [
            functools.partial(_make_member, number, one, chunk_length, settings)
            for number, one in enumerate(tasks)
        ]
        self._members = [maker() for maker in makers]  # so that what is wrong is said here, in one sentence
        self.processes = []
        with self._lost_members_named():
            super().__init__(makers, context="spawn", autoreset_mode=AutoresetMode.DISABLED)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes.

        Args:
            seed: Seed of the first member, the next ones have the numbers after it; or one for each member.
            options: See the class.

        Returns:
            The observations of all members, and the infos of those that were reset.

        Raises:
            ConfigError: An option is unknown, out of range, or has not one value for each member.
            MissingExtraError: LIBERO is not installed.
            SimulatorError: LIBERO cannot be used as installed, or a member's process has ended.
        """
        cast("LiberoEnv", self._members[0].unwrapped).check_installation()
        seeds = int(seed) if isinstance(seed, int | np.integer) else None if seed is None else list(seed)
        options = dict(options or {})
        for name, value in options.items():
            if isinstance(value, list) and len(value) != self.num_envs:
                raise ConfigError(
                    f"{name} must be one value or a list of {self.num_envs}, one for each member, "
                    f"not of {len(value)}."
                )
        with self._lost_members_named():
            return super().reset(seed=seeds, options=options)

    def step_wait(
        self, timeout: float | None = None
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Wait for the members' steps, for at most so many seconds; see Gymnasium's ``AsyncVectorEnv``."""
        with self._lost_members_named():
            return super().step_wait(timeout)

    @contextmanager
    def _lost_members_named(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError) as error:
            for process in self.processes:
                process.kill()
            self.closed = True
            raise SimulatorError(
                f"A process of {self.num_envs} simulators has ended: there may be too little memory, or the "
                'script does not make them below  if __name__ == "__main__":'
            ) from error


class _Member(gym.Wrapper[Any, Any, Any, Any]):
    """What a member's process runs: picks its own options; idles once its episode has ended."""

    def __init__(self, env: gym.Env[Any, Any], number: int) -> None:
        super().__init__(env)
        self.number = number
        self._last: tuple[Any, bool, bool] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        own = {n: v[self.number] if isinstance(v, list) else v for n, v in (options or {}).items()}
        self._last = None
        return super().reset(seed=seed, options=own)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._last is not None:
            observation, terminated, truncated = self._last
            return observation, 0.0, terminated, truncated, {}
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            self._last = observation, terminated, truncated
        return observation, float(reward), terminated, truncated, info


def _make_member(
    number: int, task: int, chunk_length: int | None, settings: dict[str, Any]
) -> gym.Env[Any, Any]:
    env: gym.Env[Any, Any] = LiberoEnv(task=task, **settings)
    return _Member(env if chunk_length is None else ActionChunks(env, chunk_length), number)
