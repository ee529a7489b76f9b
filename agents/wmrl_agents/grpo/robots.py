"""`RobotSuite`: tasks of a robot that a run is about, and where their episodes begin."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.draws import derive_seed, draw_tasks
from wmrl_agents.policies.vla.libero_view import libero_observation
from wmrl_agents.policies.vla.records import Observation
from wmrl_envs.action_chunks import ActionChunks
from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.views import Orientation, PictureView

__all__ = ["RobotStart", "RobotSuite", "draw_starts", "load_suite", "numbers", "view_of"]

ORIENTATION: Orientation = "vertical_flip"  # what MiniVLA, Robometer and small models of ours were trained on


@dataclass(frozen=True)
class RobotStart:
    """Where an episode begins.

    Attributes:
        task: Number of the task.
        init_state: Number of the initial state.
        env_seed: Seed of what the initial state leaves open.
    """

    task: int
    init_state: int
    env_seed: int = 0


@dataclass(frozen=True)
class RobotSuite:
    """Tasks of a robot. Its functions go to other processes, so they can be pickled.

    Attributes:
        name: Its name.
        instructions: The tasks of the run, by number, in words.
        init_states: The initial states that a run trains on.
        num_init_states: How many initial states each task has; those that are not trained on are unseen.
        make_env: Makes the environment of a task. Its actions are chunks (see
            `wmrl_envs.action_chunks.ActionChunks`), `reset` takes the options ``init_state`` and
            ``env_seed``, and the info says under ``success`` whether the goal has held so far.
        observe: Turns what it shows into what a policy sees.
        light: Whether any number of its environments may be simulated in this process.
    """

    name: str
    instructions: Mapping[int, str]
    init_states: tuple[int, ...]
    num_init_states: int
    make_env: Callable[[int], gym.Env[Any, Any]]
    observe: Callable[[Any], Observation]
    light: bool = False


def draw_starts(suite: RobotSuite, count: int, *, seed: int, step: int) -> list[RobotStart]:
    """Where the groups of a step begin: shuffled rounds through the tasks, and in each through its states.

    With as many groups as tasks times a number, each task gets that number of groups, all different while
    there are states left. In training ``env_seed`` is 0.

    Args:
        suite: The tasks.
        count: Groups in a step.
        seed: The run's seed.
        step: Index of the step, from 0.
    """
    tasks = draw_tasks(list(suite.instructions), count, seed=seed, step=step)
    states = suite.init_states
    starts = []
    for position, task in enumerate(tasks, start=step * count):
        turn, place = divmod(position // len(suite.instructions), len(states))
        order = np.random.default_rng(derive_seed(seed, "init_states", task, turn)).permutation(len(states))
        starts.append(RobotStart(task, states[order[place]]))
    return starts


def numbers(parts: Sequence[str], name: str, limit: int) -> tuple[int, ...]:
    """Numbers below a limit, written like ``0`` or ``3-5``; sorted, each once.

    Args:
        parts: What was written.
        name: The setting's name, for what is said about errors.
        limit: The first number that there is not.

    Raises:
        ConfigError: One cannot be read, or is too large.

    Example:
        >>> numbers(("3-5", "0"), "init_states", 50)
        (0, 3, 4, 5)
    """
    found: set[int] = set()
    for part in parts:
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < limit:
            raise ConfigError(f"{name} must be numbers from 0 to {limit - 1}, such as 0,3-5, not '{part}'.")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def load_suite(config: GRPOConfig) -> RobotSuite:
    """The suite that a config names. The simulator itself is built when an episode begins.

    Raises:
        ConfigError: There is no such task or initial state.
    """
    from wmrl_envs.libero.tasks import INIT_STATES, TASKS

    tasks = numbers(config.libero_tasks, "libero_tasks", len(TASKS))
    settings = {
        "observations": config.observations,
        "cameras": (config.camera,),
        "image_size": config.image_size,
        "orientation": ORIENTATION,
        "horizon": config.horizon,
    }
    camera = None if config.observations == "state" else config.camera
    return RobotSuite(
        name=config.task_suite,
        instructions={task: TASKS[task].instruction for task in tasks},
        init_states=numbers(config.init_states, "init_states", INIT_STATES),
        num_init_states=INIT_STATES,
        make_env=partial(_libero_env, settings),
        observe=partial(libero_observation, camera=camera),
    )


def view_of(config: GRPOConfig) -> PictureView:
    """How the pictures of a run are made."""
    return PictureView(config.camera, config.image_size, ORIENTATION)


def _libero_env(settings: Mapping[str, Any], task: int) -> gym.Env[Any, Any]:
    from wmrl_envs.libero.env import LiberoEnv

    return ActionChunks(LiberoEnv(task, **settings), 8)
