"""`Simulators`: seats in which episodes of a robot are simulated, each in a process or all in this one.

Who sits where, and what is decided together, follows from the order of the episodes and never from who was
faster. A seat holds one environment, and builds another when an episode of another task sits down.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_agents.grpo.robots import RobotStart, RobotSuite
from wmrl_agents.policies.vla.records import Observation
from wmrl_envs.errors import InfrastructureError

__all__ = ["Seen", "Simulators"]


@dataclass(frozen=True)
class Seen:
    """What a seat shows.

    Attributes:
        observation: What the policy sees next.
        success: Whether the goal has held so far.
        over: Whether the episode has ended.
        actions: Single actions that were taken of the last chunk.
        seconds: What simulating it took.
    """

    observation: Observation
    success: bool
    over: bool
    actions: int
    seconds: float


class Simulators:
    """Seats for episodes.

    Args:
        suite: The tasks.
        count: Number of seats. A single one, or those of a light suite, are in this process.
    """

    def __init__(self, suite: RobotSuite, count: int) -> None:
        self.count = count
        self._here: list[_Seat] = []
        self._processes: list[ProcessPoolExecutor] = []
        if count == 1 or suite.light:
            self._here = [_Seat(suite) for _ in range(count)]
            return
        # Not forked: a renderer that was built before would be shared.
        context = multiprocessing.get_context("spawn")
        self._processes = [
            ProcessPoolExecutor(1, mp_context=context, initializer=_sit_down, initargs=(suite,))
            for _ in range(count)
        ]

    def reset(self, starts: Mapping[int, RobotStart]) -> dict[int, Seen]:
        """Begin episodes in these seats.

        Raises:
            WMRLError: The simulator cannot be had, or a process has ended.
        """
        return self._all(_Seat.reset, starts)

    def step(self, chunks: Mapping[int, NDArray[Any]]) -> dict[int, Seen]:
        """Take a chunk of actions in each of these seats."""
        return self._all(_Seat.step, chunks)

    def close(self) -> None:
        """Close all environments and end all processes."""
        for seat in self._here:
            seat.close()
        for process in self._processes:
            process.shutdown(wait=True, cancel_futures=True)

    def _all(self, do: Callable[[_Seat, Any], Seen], arguments: Mapping[int, Any]) -> dict[int, Seen]:
        if self._here:
            return {number: do(self._here[number], argument) for number, argument in arguments.items()}
        started: dict[int, Future[Seen]] = {}
        try:
            for number, argument in arguments.items():
                started[number] = self._processes[number].submit(_in_seat, do, argument)
            return {number: future.result() for number, future in started.items()}
        except BrokenProcessPool as error:
            raise InfrastructureError(
                f"A process of {self.count} simulators has ended: there may be too little memory for so "
                "many. Resume the run; if it comes again, begin one with fewer --simulators."
            ) from error


class _Seat:
    """One environment at a time."""

    def __init__(self, suite: RobotSuite) -> None:
        self.suite = suite
        self.task: int | None = None
        self.env: gym.Env[Any, Any] | None = None

    def reset(self, start: RobotStart) -> Seen:
        began = perf_counter()
        if self.env is None or start.task != self.task:
            self.close()
            self.task, self.env = start.task, self.suite.make_env(start.task)
        options = {"init_state": start.init_state, "env_seed": start.env_seed}
        observation, info = self.env.reset(options=options)
        return self._seen(observation, info, False, began)

    def step(self, chunk: NDArray[Any]) -> Seen:
        assert self.env is not None, "an episode begins with a reset"
        began = perf_counter()
        observation, _, terminated, truncated, info = self.env.step(chunk)
        return self._seen(observation, info, terminated or truncated, began)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None

    def _seen(self, observation: Any, info: Mapping[str, Any], over: bool, began: float) -> Seen:
        view = self.suite.observe(observation)
        # Environments may show the same arrays again with other content.
        state, image = (None if part is None else np.array(part) for part in (view.state, view.image))
        seen = Observation(state, image)
        actions, success = int(info["actions_taken"]), bool(info["success"])
        return Seen(seen, success, bool(over), actions, perf_counter() - began)


_seat: _Seat | None = None


def _sit_down(suite: RobotSuite) -> None:
    global _seat
    _seat = _Seat(suite)


def _in_seat(do: Callable[[_Seat, Any], Seen], argument: Any) -> Seen:
    assert _seat is not None
    return do(_seat, argument)
