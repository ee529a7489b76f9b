"""Demonstrations of LIBERO-Long: collected from the scripted expert, replayed and drawn on demand, or read.

A demonstration of ours is one ``.npz`` file, an episode, without pictures:

- ``actions`` (steps, 7), float64, exactly as they were taken, and ``intended``, the same without the noise
  that was added to them: what an expert would do in a state that noise led to is worth learning, the noise is
  not (Laskey et al., 2017, "DART");
- ``robot`` (steps + 1, 16), ``objects`` (steps + 1, 8, 7), ``joints`` (steps + 1, 3), float32: what
  `LiberoEnv` observed before each action and after the last;
- ``final_state``, float64: all of the physics after the last action;
- ``about``, JSON: format, task, name, instruction, init_state, env_seed, noise, success, and the versions
  of what simulated it.

Since the simulation is a function of these, `replay` gives the pictures of any camera and size, and says so
if the machine that replays does not come to the same ``final_state``.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import ConfigError, MissingExtraError, SimulatorError
from wmrl_envs.libero.arm import Vector
from wmrl_envs.libero.env import LiberoEnv, Observation
from wmrl_envs.libero.scripted import expert_actions
from wmrl_envs.libero.tasks import INIT_STATES, MAX_JOINTS, MAX_OBJECTS, libero_task

__all__ = [
    "Demonstration",
    "OfficialDemonstration",
    "collect",
    "load_demonstration",
    "read_demonstrations",
    "read_official",
    "record",
    "replay",
    "replay_in",
    "save_demonstration",
]

FORMAT = 2
_PARTS: Mapping[str, tuple[int, ...]] = {"robot": (16,), "objects": (MAX_OBJECTS, 7), "joints": (MAX_JOINTS,)}
_ARRAYS = ("actions", "intended", *_PARTS, "final_state")


@dataclass(frozen=True)
class Demonstration:
    """One episode; see the module for shapes.

    Attributes:
        task: Number of the task.
        init_state: Number of the initial state.
        env_seed: Seed of the fixtures' poses.
        noise: Standard deviation of what was added to the expert's motions.
        success: Whether the goal held.
        versions: What simulated it.
        actions: What was done.
        intended: What the expert wanted to be done.
        robot: What was observed of the arm.
        objects: What was observed of the things around it.
        joints: What was observed of drawers, doors and knobs.
        final_state: The physics at the end.
    """

    task: int
    init_state: int
    env_seed: int
    noise: float
    success: bool
    versions: dict[str, str]
    actions: NDArray[np.float64]
    intended: NDArray[np.float64]
    robot: NDArray[np.float32]
    objects: NDArray[np.float32]
    joints: NDArray[np.float32]
    final_state: NDArray[np.float64]

    @property
    def instruction(self) -> str:
        """What the robot was told."""
        return libero_task(self.task).instruction

    @property
    def file_name(self) -> str:
        """Where `collect` keeps it, below its folder."""
        return _file_name(self.task, self.init_state, self.env_seed)


def record(env: LiberoEnv, init_state: int, env_seed: int = 0, noise: float = 0.0) -> Demonstration:
    """Let the scripted expert play one episode, and keep it, whatever came of it.

    Args:
        env: An environment that observes the ``state``; it is reset.
        init_state: Number of the initial state.
        env_seed: Seed of the fixtures' poses, and of the noise.
        noise: Standard deviation of what is added to each action's motion.
    """
    if env.observations == "images":
        raise ConfigError("A demonstration holds the state: make the env with observations='state'.")
    observation, info = env.reset(options={"init_state": init_state, "env_seed": env_seed})
    generator = np.random.default_rng(env_seed)
    intended, actions, seen = [], [], [observation]
    for action in expert_actions(env):
        intended.append(action)
        actions.append(_disturbed(action, noise, generator))
        observation, _, terminated, truncated, info = env.step(actions[-1])
        seen.append(observation)
        if terminated or truncated:
            break
    return Demonstration(
        task=env.task.index,
        init_state=init_state,
        env_seed=env_seed,
        noise=noise,
        success=bool(info["success"]),
        versions=env.versions(),
        actions=np.array(actions),
        intended=np.array(intended),
        final_state=env.physics_state(),
        **{part: np.stack([one[part] for one in seen]) for part in _PARTS},
    )


def _disturbed(action: Vector, noise: float, generator: np.random.Generator) -> Vector:
    """The action with noise on its motion; the gripper does what it was told."""
    motion = action[:6] + generator.normal(0.0, noise, 6) if noise else action[:6]
    return np.append(np.clip(motion, -1.0, 1.0), action[6])


def collect(
    folder: str | Path,
    tasks: Iterable[int],
    init_states: Sequence[int] = range(INIT_STATES),
    env_seeds: Sequence[int] = (0,),
    noise: float = 0.0,
) -> Iterator[Demonstration]:
    """Play episodes and keep each as a file; those that are there already are read, not played again.

    Args:
        folder: Where they go, as ``task-N/init-NN-seed-N.npz``.
        tasks: Numbers of the tasks.
        init_states: Numbers of the initial states.
        env_seeds: Seeds of the fixtures' poses, an episode each.
        noise: Standard deviation of what is added to each action's motion.

    Yields:
        Each episode, with or without success, as soon as its file is there.
    """
    folder = Path(folder)
    for task in tasks:
        env = LiberoEnv(task)
        try:
            for init_state in init_states:
                for env_seed in env_seeds:
                    path = folder / _file_name(env.task.index, init_state, env_seed)
                    if not path.is_file():
                        save_demonstration(folder, record(env, init_state, env_seed, noise))
                    yield load_demonstration(path)
        finally:
            env.close()


def save_demonstration(folder: str | Path, demonstration: Demonstration) -> Path:
    """Write a demonstration's file below a folder, aside first and then renamed; returns its path."""
    task = libero_task(demonstration.task)
    about = {
        "format": FORMAT,
        "task": task.index,
        "name": task.name,
        "instruction": task.instruction,
        "init_state": demonstration.init_state,
        "env_seed": demonstration.env_seed,
        "noise": demonstration.noise,
        "success": demonstration.success,
        "versions": demonstration.versions,
    }
    arrays = {part: getattr(demonstration, part) for part in _ARRAYS}
    path = Path(folder) / demonstration.file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, about=np.array(json.dumps(about)), **arrays)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content.getvalue())
    return unfinished.rename(path)


def load_demonstration(path: str | Path) -> Demonstration:
    """Read a demonstration's file.

    Raises:
        ConfigError: There is no such file, or it is not in this format.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            parts = {part: arrays[part] for part in _ARRAYS}
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']}, not {FORMAT}")
        _check_shapes(parts)
        fields = {name: about[name] for name in ("init_state", "env_seed", "noise", "success", "versions")}
        return Demonstration(task=libero_task(about["task"]).index, **fields, **parts)
    except FileNotFoundError as error:
        raise ConfigError(f"There is no demonstration at {path}.") from error
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, ConfigError) as error:
        raise ConfigError(f"{path} is not a demonstration of `wmrl libero demos`: {error}") from error


def _check_shapes(parts: Mapping[str, NDArray[Any]]) -> None:
    steps = len(parts["actions"])
    expected = dict.fromkeys(("actions", "intended"), (steps, 7)) | {
        name: (steps + 1, *shape) for name, shape in _PARTS.items()
    }
    for name, shape in expected.items():
        if parts[name].shape != shape or not np.isfinite(parts[name]).all():
            raise ValueError(f"{name} must hold finite numbers of shape {shape}, not {parts[name].shape}")


def read_demonstrations(
    folder: str | Path, tasks: Iterable[int] | None = None, success: bool | None = True
) -> Iterator[Demonstration]:
    """The demonstrations below a folder, by task, initial state and seed.

    Args:
        folder: As for `collect`.
        tasks: Only these tasks; None for all.
        success: Only those with success (True) or without (False); None for all.

    Raises:
        ConfigError: There are no files, or one is not in the format.
    """
    chosen = "*" if tasks is None else sorted({libero_task(task).index for task in tasks})
    paths = [path for one in chosen for path in sorted(Path(folder).glob(f"task-{one}/init-*-seed-*.npz"))]
    if not paths:
        raise ConfigError(
            f"There are no demonstrations in {folder}: collect some with  wmrl libero demos --out DIR."
        )
    for path in paths:
        demonstration = load_demonstration(path)
        if success is None or demonstration.success == success:
            yield demonstration


def replay(demonstration: Demonstration, **settings: Any) -> Iterator[Observation]:
    """Simulate a demonstration again, observing what was not kept.

    Args:
        demonstration: The demonstration.
        settings: Arguments of `LiberoEnv`, such as ``observations="images"`` and ``image_size=224``.

    Yields:
        The observation before each action, and the one after the last.

    Raises:
        SimulatorError: This machine comes to another final state, so that the pictures are not of this
            episode.
    """
    env = LiberoEnv(demonstration.task, **settings)
    try:
        yield from replay_in(env, demonstration)
    finally:
        env.close()


def replay_in(
    env: LiberoEnv, demonstration: Demonstration, moments: Collection[int] | None = None
) -> Iterator[Observation]:
    """`replay` in an environment of the demonstration's task, which may have played others before.

    Args:
        env: The environment; it is reset.
        demonstration: The demonstration.
        moments: Only what is seen after so many actions is observed, and drawn; None for all.
    """
    wanted = range(len(demonstration.actions) + 1) if moments is None else moments
    options = {"init_state": demonstration.init_state, "env_seed": demonstration.env_seed}
    observation, _ = env.reset(options=options)
    if 0 in wanted:
        yield observation
    for moment, action in enumerate(demonstration.actions, start=1):
        env.observing = moment in wanted
        observation, *_ = env.step(action)
        if env.observing:
            yield observation
    if not np.array_equal(env.physics_state(), demonstration.final_state):
        raise SimulatorError(
            f"The replay of {demonstration.file_name} came to another state: it was recorded with "
            f"{demonstration.versions}, here is {env.versions()}."
        )


def _file_name(task: int, init_state: int, env_seed: int) -> str:
    return f"task-{task}/init-{init_state:02d}-seed-{env_seed}.npz"


@dataclass(frozen=True)
class OfficialDemonstration:
    """An episode of LIBERO's own data sets.

    Attributes:
        name: Its name in the file, such as ``demo_0``.
        instruction: What the robot was told.
        actions: Of shape (steps, 7).
        states: Of the simulator, before each action: time, positions, velocities; of shape (steps, numbers).
        observations: By name, such as ``agentview_rgb`` (steps, height, width, 3), which stands on its
            head, and ``ee_states`` (steps, 6).
    """

    name: str
    instruction: str
    actions: NDArray[np.float64]
    states: NDArray[np.float64]
    observations: dict[str, NDArray[Any]]


def read_official(path: str | Path, images: bool = True) -> Iterator[OfficialDemonstration]:
    """The episodes of an HDF5 file of LIBERO's data sets, by number.

    Args:
        path: Such as ``libero_10/KITCHEN_SCENE8_put_both_moka_pots_on_the_stove_demo.hdf5``.
        images: Whether pictures are read, which take nearly all of the memory.

    Raises:
        MissingExtraError: h5py is not installed.
        ConfigError: The file is missing, or is not one of these.
    """
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("h5py", "libero") from error
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.")
    try:
        with h5py.File(path, "r") as file:
            group = file["data"]
            instruction = _instruction(group.attrs)
            for name in sorted(group, key=lambda name: int(name.removeprefix("demo_"))):
                yield _official(name, instruction, group[name], images)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a file of LIBERO's demonstrations: {error}") from error


def _instruction(attributes: Any) -> str:
    said = json.loads(attributes["problem_info"])["language_instruction"]
    text = "".join(said) if isinstance(said, list) else str(said)
    return text.strip().strip('"')


def _official(name: str, instruction: str, group: Any, images: bool) -> OfficialDemonstration:
    wanted = [key for key in group["obs"] if images or not key.endswith("_rgb")]
    return OfficialDemonstration(
        name=name,
        instruction=instruction,
        actions=np.asarray(group["actions"], dtype=np.float64),
        states=np.asarray(group["states"], dtype=np.float64),
        observations={key: np.asarray(group["obs"][key]) for key in wanted},
    )
