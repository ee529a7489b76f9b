"""One LIBERO scene in MuJoCo: reset to a stored state, step, read, draw; a function of its inputs alone.

What LIBERO leaves to chance is pinned here:

- `reset` draws where fixtures stand from NumPy's *global* generator: it is seeded before, and put back after.
- Each of LIBERO's own resets adds one more draw before those (its list of property samplers grows), so that
  the same seed gives other scenes after each reset in tasks 3, 8 and 9. Here each reset is like the first
  one.
- Its retry loop swallows every exception and never ends; here there are 20 tries, and other errors pass
  through.
- Resetting without rebuilding the model leaves the gripper's last command behind; it is zeroed.

Robosuite samples its sensors a few milliseconds before the end of a step: positions and pictures are those
that were computed before the 24th of the step's 25 physics steps. `SensorClock` finds the same moment, so
that `seen` and ``draw(sampled=True)`` give, bit for bit, what LIBERO gives.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import SimulatorError
from wmrl_envs.libero.package import LiberoPackage
from wmrl_envs.libero.rendering import Picture, Renderer, RendererSettings
from wmrl_envs.libero.tasks import MAX_JOINTS, MAX_OBJECTS, LiberoTask

__all__ = ["ROBOT_VALUES", "Simulator", "numpy_state_kept"]

ROBOT_VALUES = 16
_TRIES = 20
_NO_HORIZON = 1_000_000
_XYZW = [1, 2, 3, 0]


@contextmanager
def numpy_state_kept() -> Iterator[None]:
    """Put NumPy's global generator back as the caller had it."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


class SensorClock:
    """When robosuite 1.4 samples a sensor of 20 Hz, computed as it does, rounding included."""

    PERIOD = 1.0 / 20

    def __init__(self) -> None:
        self._time = 0.0
        self._sampled = False

    def restart(self) -> None:
        """As at a reset."""
        self._time = 0.0

    def tick(self, seconds: float, force: bool) -> bool:
        """Let time pass; returns whether the sensors are sampled now."""
        self._time += seconds
        samples = force or (not self._sampled and self._time <= self.PERIOD)
        self._sampled = self._sampled or samples
        if self._time >= self.PERIOD:
            samples = samples or not self._sampled
            self._time %= self.PERIOD
            self._sampled = False
        return samples


class _PhysicsStep:
    """Computes positions and forces once in a physics step, where robosuite asks for them three times.

    Between its calls of ``forward`` nothing moves, and MuJoCo's ``step`` begins with the same computation:
    the results are the same bits, in two thirds of the time.

    Args:
        sim: Robosuite's ``MjSim``, whose ``forward`` and ``step`` are replaced while this is entered.
    """

    def __init__(self, sim: Any) -> None:
        import mujoco

        self._sim = sim
        self._first, self._second = mujoco.mj_step1, mujoco.mj_step2
        self._splits = sim.model._model.opt.integrator != mujoco.mjtIntegrator.mjINT_RK4
        self._begun = False

    def __enter__(self) -> None:
        if self._splits:
            self._begun = False
            self._sim.forward, self._sim.step = self._forward, self._step

    def __exit__(self, *error: object) -> None:
        if self._splits:
            del self._sim.forward, self._sim.step

    def _forward(self) -> None:
        if not self._begun:
            self._first(self._sim.model._model, self._sim.data._data)
            self._begun = True

    def _step(self) -> None:
        self._forward()
        self._second(self._sim.model._model, self._sim.data._data)
        self._begun = False


class Simulator:
    """A task's scene.

    Args:
        task: The task.
        package: The installed package.
        rebuild: Build the model again at each reset, as LIBERO does. Without, a reset takes a fraction of the
            time and gives, bit for bit, the same.

    Raises:
        SimulatorError: The package's task is not that of LIBERO-Long.
    """

    def __init__(self, task: LiberoTask, package: LiberoPackage, rebuild: bool = False) -> None:
        self.task = task
        self.init_states = package.init_states(task)
        control_env = package.load()
        self._errors = _randomization_error()
        with numpy_state_kept():
            self._wrapper = control_env(
                bddl_file_name=str(package.problem_file(task)),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                ignore_done=True,
                horizon=_NO_HORIZON,
                hard_reset=rebuild,
            )
        self.env: Any = self._wrapper.env
        goal = tuple(tuple(predicate) for predicate in self.env.parsed_problem["goal_state"])
        if goal != task.goal:
            raise SimulatorError(
                f"Task {task.index} of {package.distribution} {package.version} has another goal than "
                f"LIBERO-Long's, {goal} for {task.goal}: install the extra with  pip install 'wmrl[libero]'."
            )
        self.env._update_observables = self._sense  # not each sensor 25 times a step
        self.env._get_observations = self._collect
        self._samplers = list(self.env.object_property_initializers)
        self._rebuild = rebuild
        self._positions = self._seen_positions = self.data.qpos.copy()
        self._renderer: Renderer | None = None
        self._clock = SensorClock()

    def reset(self, init_state: int, seed: int) -> None:
        """Put the scene into a stored state.

        Args:
            init_state: Number of the state.
            seed: Seed of what the state does not hold: the poses of fixtures, and the arm's posture.

        Raises:
            SimulatorError: LIBERO finds no places for the fixtures in 20 tries.
        """
        if self._rebuild:
            self.close_renderer()
        with numpy_state_kept():
            self.env.seed(seed)
            for _ in range(_TRIES):
                try:
                    self._reset_scene()
                    break
                except self._errors:
                    continue
            else:
                raise SimulatorError(
                    f"LIBERO found no places for the fixtures of task {self.task.index} in {_TRIES} tries "
                    f"with seed {seed}: choose another seed."
                )
            self._wrapper.set_init_state(self.init_states[init_state])
        self._physics_step = _PhysicsStep(self.env.sim)

    def _reset_scene(self) -> None:
        # LIBERO's first reset draws from each property sampler twice: once of the constructor's, once of
        # its own.
        self.env.object_property_initializers[:] = self._samplers * (1 if self._rebuild else 2)
        self._clock.restart()
        self._find_addresses()
        self.env.reset()
        self._robot.gripper.current_action = np.zeros_like(self._robot.gripper.current_action)

    def _find_addresses(self) -> None:
        model = self.model
        self._hand = model.body(self._robot.robot_model.eef_name).id
        self._bodies = [self.env.obj_body_id[name] for name in self.task.objects]
        self._joints = [int(model.joint(name).qposadr[0]) for name in self.task.joints]

    def step(self, action: NDArray[np.float64]) -> bool:
        """Take one action of shape (7,), 50 ms; returns whether the goal holds now."""
        self._colours = self.model.site_rgba.copy()
        with self._physics_step:
            _, _, success, _ = self.env.step(action)
        return bool(success)

    def _sense(self, force: bool = False) -> None:
        """Stands for robosuite's sensors, which are asked after each physics step."""
        if self._clock.tick(self.env.model_timestep, force):
            self.seen = self.robot_state(), self.object_state(), self.joint_state()
            self._seen_positions = self._positions
        self._positions = self.data.qpos.copy()  # what the next physics step computes poses from

    def _collect(self, force_update: bool = False) -> dict[str, Any]:
        """Stands for robosuite's collection of what its sensors saw."""
        if force_update:
            self._sense(force=True)
        return {}

    @property
    def model(self) -> Any:
        """The ``mujoco.MjModel``."""
        return self.env.sim.model._model

    @property
    def data(self) -> Any:
        """The ``mujoco.MjData``."""
        return self.env.sim.data._data

    @property
    def _robot(self) -> Any:
        return self.env.robots[0]

    def robot_state(self) -> NDArray[np.float32]:
        """Position (3) and quaternion xyzw (4) of the hand, fingers (2), arm joints (7)."""
        robot, data = self._robot, self.data
        values = np.empty(ROBOT_VALUES, dtype=np.float32)
        values[:3] = data.site_xpos[robot.eef_site_id]
        values[3:7] = data.xquat[self._hand][_XYZW]
        values[7:9] = data.qpos[robot._ref_gripper_joint_pos_indexes]
        values[9:] = data.qpos[robot._ref_joint_pos_indexes]
        return values

    def object_state(self) -> NDArray[np.float32]:
        """Position (3) and quaternion xyzw (4) of each of the task's objects; further rows are 0."""
        values = np.zeros((MAX_OBJECTS, 7), dtype=np.float32)
        count = len(self._bodies)
        values[:count, :3] = self.data.xpos[self._bodies]
        values[:count, 3:] = self.data.xquat[self._bodies][:, _XYZW]
        return values

    def joint_state(self) -> NDArray[np.float32]:
        """Positions of the task's drawers, doors and knobs; further values are 0."""
        values = np.zeros(MAX_JOINTS, dtype=np.float32)
        values[: len(self._joints)] = self.data.qpos[self._joints]
        return values

    def physics_state(self) -> NDArray[np.float64]:
        """Time, positions, velocities and the fixtures' poses: equal bits, equal future."""
        state = self.env.sim.get_state()
        model = self.model
        fixtures = [model.body_pos[self._bodies].ravel(), model.body_quat[self._bodies].ravel()]
        return np.concatenate([[state.time], state.qpos, state.qvel, *fixtures])

    def draw(self, camera: str, size: tuple[int, int], settings: RendererSettings, sampled: bool) -> Picture:
        """A camera's picture, first row at the bottom; see `Renderer`.

        Args:
            camera: Name of the camera.
            size: Height and width.
            settings: What the renderer is made with, when there is none yet.
            sampled: Show what the sensors saw, not the scene as it is now.
        """
        if self._renderer is None:
            self._renderer = Renderer(self.model, settings)
        if not sampled:
            return self._renderer.draw(self.data, camera, *size)
        now = self.model.site_rgba.copy()
        self.model.site_rgba[:] = self._colours
        picture = self._renderer.draw(self._renderer.scene_at(self._seen_positions), camera, *size)
        self.model.site_rgba[:] = now
        return picture

    def close_renderer(self) -> None:
        """Release the renderer; the next picture makes another."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def close(self) -> None:
        """Release the scene."""
        self.close_renderer()
        self._wrapper.close()
        gc.collect()  # robosuite's objects hold each other in cycles, hundreds of megabytes of them


def _randomization_error() -> type[Exception]:
    from robosuite.utils.errors import RandomizationError

    return RandomizationError
