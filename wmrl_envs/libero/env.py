"""`LiberoEnv`: a task of LIBERO-Long as a Gymnasium environment, in MuJoCo, drawn without a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.package import MUJOCO_VERSION, LiberoPackage, load_package
from wmrl_envs.libero.rendering import Backend, Picture, RendererSettings, choose_backend
from wmrl_envs.libero.simulator import ROBOT_VALUES, Simulator
from wmrl_envs.libero.tasks import INIT_STATES, MAX_JOINTS, MAX_OBJECTS, libero_task
from wmrl_envs.libero.views import CAMERAS, Orientation, checked_cameras, checked_size, one_of, orient

__all__ = ["CAMERAS", "HORIZON", "NO_OPERATION", "LiberoEnv", "Observations", "Orientation", "orient"]

Observations = Literal["state", "images", "both"]
Observation = dict[str, NDArray[Any]]

HORIZON = 520
SETTLING_STEPS = 10
NO_OPERATION = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
_OPTIONS = ("env_seed", "group", "init_state")


class LiberoEnv(gym.Env[Observation, NDArray[Any]]):
    """A Franka arm in a scene of LIBERO-Long; the reward is 1.0 when the task is done.

    An action holds seven numbers in [-1, 1] for 50 ms: the hand's translation (times 5 cm), its rotation
    (times 0.5 rad), and the gripper, -1 to open and +1 to close. What lies outside is clipped, as the
    controller does.

    `reset` follows LIBERO's protocol: seed, reset, one of the 50 stored initial states, 10 steps in which
    nothing moves but what falls. The episode then has 520 steps. It is *terminated* when the goal holds,
    and *truncated*, without a reward, after the last step. Equal seeds, states and actions give equal bits,
    in physics and pixels.

    Options of `reset`:

    - ``init_state``: 0 to 49; without it one is drawn from the env's own generator;
    - ``env_seed``: the seed of what the initial state does not hold, such as the poses of fixtures. It
      stays for later episodes. Without it, it is the ``seed`` that `reset` was last given, and 0 if it
      never was;
    - ``group``, which this environment leaves to the reward wrapper around it.

    The observation is a dict. State: ``robot`` (16: hand position in m, its quaternion xyzw, two fingers,
    seven arm joints), ``objects`` (8, 7: position and quaternion of each of `LiberoTask.objects`),
    ``joints`` (3: those of `LiberoTask.joints`); rows that a task lacks are 0, so that all tasks have the
    same spaces. Images: for each camera ``{camera}_image``, uint8 of shape (height, width, 3). As
    LIBERO's, the observation was sampled a few milliseconds before the end of the action; `render` and
    `picture` show the scene as it is now.

    ``info`` has the same keys at every step: ``task``, ``instruction``, ``init_state``, ``env_seed``,
    ``step`` (actions so far) and ``success`` (whether the goal has held at any step so far).

    The simulator is built at the first `reset`, which takes seconds, and pictures are drawn only where one is
    returned: while ``observing`` is False, `step` returns the pictures of the last step that was observed,
    unless the episode ends with it. `ActionChunks` uses that to draw once for a chunk.

    Args:
        task: 0 to 9.
        observations: ``state``, ``images`` or ``both``.
        cameras: Whose pictures.
        image_size: Height and width of pictures, or one number for both.
        orientation: What is done to what OpenGL draws, which stands on its head. ``vertical_flip`` gives
            the scene as a person sees it (MiniVLA, Robometer), ``rotate_180`` what the OpenVLA family was
            trained on, ``none`` what LIBERO returns.
        antialiasing: Whether edges are smoothed, as in LIBERO. Without, drawing takes about half as long, and
            pictures differ.
        terminate_on_success: Whether the episode ends when the goal holds. Without, it goes on for all steps;
            the reward comes once, at the first step at which it held.
        horizon: Steps of an episode.
        rebuild: Build the model again at each reset, as LIBERO does: the same bits, at many times the cost.
        backend: ``egl`` or ``osmesa``; None tries what works.
        assets: Folder of LIBERO's meshes, for a package that lacks them.
        mujoco_version: The version of MuJoCo that must be installed, because results differ between versions;
            None for any that LIBERO can use.
        render_mode: ``rgb_array`` makes `render` return the first camera's picture, upright, of 256 x 256.

    Raises:
        ConfigError: An argument is out of its range.
        MissingExtraError: LIBERO is not installed (from `reset`, as are the following).
        SimulatorError: LIBERO or an OpenGL library cannot be used as installed.

    Example:
        >>> import gymnasium as gym
        >>> env = gym.make("wmrl_envs:wmrl/LiberoLong-v0", task=8)
        >>> env.unwrapped.task.instruction
        'put both moka pots on the stove'
        >>> sorted(env.observation_space.keys()), env.action_space.shape
        (['joints', 'objects', 'robot'], (7,))
        >>> observation, info = env.reset(seed=0, options={"init_state": 3})  # doctest: +SKIP
        >>> env.close()
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        task: int = 0,
        observations: Observations = "state",
        cameras: tuple[str, ...] | list[str] = ("agentview",),
        image_size: int | tuple[int, int] = 128,
        orientation: Orientation = "vertical_flip",
        antialiasing: bool = True,
        terminate_on_success: bool = True,
        horizon: int = HORIZON,
        rebuild: bool = False,
        backend: Backend | None = None,
        assets: str | Path | None = None,
        mujoco_version: str | None = MUJOCO_VERSION,
        render_mode: str | None = None,
    ) -> None:
        one_of("observations", observations, get_args(Observations))
        one_of("orientation", orientation, get_args(Orientation))
        one_of("backend", backend, (None, *get_args(Backend)))
        one_of("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        if horizon < 1:
            raise ConfigError(f"horizon must be at least 1 step, not {horizon}.")
        self.task = libero_task(task)
        self.observations = observations
        self.cameras = checked_cameras(cameras)
        self.image_size = checked_size(image_size)
        self.orientation: Orientation = orientation
        self.antialiasing = antialiasing
        self.terminate_on_success = terminate_on_success
        self.horizon = horizon
        self.rebuild = rebuild
        self.backend = backend
        self.assets = assets
        self.mujoco_version = mujoco_version
        self.render_mode = render_mode
        self.render_size = (256, 256)
        self.observing = True
        self.observation_space: spaces.Dict = self._space()  # type: ignore[assignment]
        self.action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.package: LiberoPackage | None = None
        self.simulator: Simulator | None = None
        self._backend: Backend | None = None
        self._env_seed = 0
        self._init_state = 0
        self._steps = 0
        self._success = False
        self._over = True
        self._pictures: Observation = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Seed of the draws of initial states from now on, and of the fixtures' poses.
            options: See the class.

        Returns:
            The observation, and the info.

        Raises:
            ConfigError: There is no such option, or its value is out of range.
            MissingExtraError: LIBERO is not installed.
            SimulatorError: LIBERO or an OpenGL library cannot be used as installed.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigError(f"Unknown reset option '{unknown[0]}': choose among {', '.join(_OPTIONS)}.")
        if seed is not None:
            self._env_seed = int(seed) % 2**32
        env_seed = options.get("env_seed")
        if env_seed is not None:
            self._env_seed = _checked_number("env_seed", env_seed, 2**32)
        init_state = options.get("init_state")
        drawn = int(self.np_random.integers(INIT_STATES)) if init_state is None else init_state
        self._init_state = _checked_number("init_state", drawn, INIT_STATES)
        simulator = self._built()
        self._over = True  # until it has begun
        simulator.reset(self._init_state, self._env_seed)
        for _ in range(SETTLING_STEPS):
            simulator.step(NO_OPERATION)
        self._steps, self._success, self._over = 0, False, False
        return self.observation(), self._info()

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action.

        Returns:
            The observation, the reward, whether the goal ends the episode, whether its length does, and the
            info.

        Raises:
            ResetNeeded: No episode has begun, or it is over.
            ConfigError: The action has another shape, or is not a number somewhere.
        """
        if self._over or self.simulator is None:
            raise ResetNeeded("No episode is going on: call reset() before step().")
        holds = self.simulator.step(_checked_action(action))
        self._steps += 1
        reward = 1.0 if holds and not self._success else 0.0
        self._success = self._success or holds
        terminated = self._success and self.terminate_on_success
        truncated = not terminated and self._steps >= self.horizon
        self._over = terminated or truncated
        return self.observation(), reward, terminated, truncated, self._info()

    def observation(self) -> Observation:
        """What is to be seen now; see ``observing``. Arrays are the caller's own."""
        simulator = self._begun()
        seen: Observation = {}
        if self.observations != "images":
            for name, values in zip(("robot", "objects", "joints"), simulator.seen, strict=True):
                seen[name] = values.copy()
        if self.observations != "state":
            if self.observing or self._over or self._steps == 0:
                self._pictures = {f"{name}_image": self._draw(name) for name in self.cameras}
            seen |= {name: picture.copy() for name, picture in self._pictures.items()}
        return seen

    def picture(
        self,
        camera: str = "agentview",
        size: int | tuple[int, int] | None = None,
        orientation: Orientation | None = None,
    ) -> Picture:
        """A picture of the scene as it is now.

        Args:
            camera: Which of `CAMERAS`.
            size: Height and width, or one number for both; None for the env's own.
            orientation: As for the class; None for the env's own.

        Returns:
            uint8 of shape (height, width, 3).

        Raises:
            ConfigError: There is no such camera, or no such size.
            SimulatorError: No OpenGL library draws here.
        """
        [camera] = checked_cameras((camera,))
        size = self.image_size if size is None else checked_size(size)
        return self._draw(camera, size, orientation, sampled=False)

    def _draw(
        self,
        camera: str,
        size: tuple[int, int] | None = None,
        orientation: Orientation | None = None,
        sampled: bool = True,
    ) -> Picture:
        simulator = self._begun()
        if self._backend is None:
            self._backend = choose_backend(self.backend)
        sides = zip(self.image_size, self.render_size, size or (1, 1), strict=True)
        height, width = (max(choices) for choices in sides)
        settings = RendererSettings((height, width), self.antialiasing, self._backend)
        return orient(
            simulator.draw(camera, size or self.image_size, settings, sampled),
            orientation or self.orientation,
        )

    def render(self) -> Picture | None:
        """The first camera's picture, upright, in render mode ``rgb_array``."""
        if self.render_mode is None:
            gym.logger.warn(
                "render() gives nothing without a render mode: make the env with render_mode='rgb_array'."
            )
            return None
        return self.picture(self.cameras[0], self.render_size, "vertical_flip")

    def physics_state(self) -> NDArray[np.float64]:
        """All of the physics as one vector: where these are equal bit for bit, so is what follows."""
        return self._begun().physics_state()

    def versions(self) -> dict[str, str]:
        """What the physics depend on, to be kept with results: versions of LIBERO and MuJoCo."""
        package = self.check_installation()
        return {package.distribution: package.version, "mujoco": package.mujoco}

    def close(self) -> None:
        """Release the simulator; `reset` builds another one."""
        if self.simulator is not None:
            self.simulator.close()
            self.simulator = None
        self._over = True

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the simulator: the copy builds its own."""
        return {**self.__dict__, "simulator": None, "_over": True, "_pictures": {}}

    def check_installation(self) -> LiberoPackage:
        """Check what `reset` would trip over, once: LIBERO, its files, MuJoCo, and OpenGL where it will be
        needed.

        Raises:
            MissingExtraError: LIBERO is not installed.
            SimulatorError: LIBERO or an OpenGL library cannot be used as installed.
        """
        if self.package is None:
            package = load_package(self.assets, self.mujoco_version)
            if self.observations != "state" or self.render_mode is not None:
                self._backend = choose_backend(self.backend)
            self.package = package
        return self.package

    def _built(self) -> Simulator:
        if self.simulator is None:
            self.package = self.check_installation()
            self.simulator = Simulator(self.task, self.package, self.rebuild)
        return self.simulator

    def _begun(self) -> Simulator:
        if self.simulator is None:
            raise ResetNeeded("No episode has begun: call reset() first.")
        return self.simulator

    def _info(self) -> dict[str, Any]:
        return {
            "task": self.task.index,
            "instruction": self.task.instruction,
            "init_state": self._init_state,
            "env_seed": self._env_seed,
            "step": self._steps,
            "success": self._success,
        }

    def _space(self) -> spaces.Dict:
        members: dict[str, spaces.Space[Any]] = {}
        if self.observations != "images":
            for name, shape in (
                ("robot", (ROBOT_VALUES,)),
                ("objects", (MAX_OBJECTS, 7)),
                ("joints", (MAX_JOINTS,)),
            ):
                members[name] = spaces.Box(-np.inf, np.inf, shape, np.float32)
        if self.observations != "state":
            for camera in self.cameras:
                members[f"{camera}_image"] = spaces.Box(0, 255, (*self.image_size, 3), np.uint8)
        return spaces.Dict(members)


def _checked_number(name: str, value: Any, end: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < end:
        raise ConfigError(f"{name} must be a whole number from 0 to {end - 1}, not {value!r}.")
    return int(value)


def _checked_action(action: NDArray[Any]) -> NDArray[np.float64]:
    try:
        values = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"An action is seven numbers, not {action!r:.60}.") from error
    if values.shape != (7,) or not np.isfinite(values).all():
        raise ConfigError(f"An action is seven finite numbers, not {values.tolist()!s:.80}.")
    return np.clip(values, -1.0, 1.0)
