"""Moving the arm of a LIBERO scene by waypoints, with the whole state of the simulator in view.

Skills are generators of actions: each action is computed from the state as it is when it is asked for, so
whoever steps the environment steps the skill. `wmrl_envs.libero.scripted` puts them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.libero.simulator import Simulator

__all__ = ["CLOSED", "OPEN", "Actions", "Arm", "Vector", "downward", "vector"]

Vector = NDArray[np.float64]
Actions = Iterator[Vector]

# One action moves the hand by 5 cm and turns it by 0.5 rad at most.
_METRES, _RADIANS = 0.05, 0.5
# The frame between the fingers at yaw 0: it points down, and the fingers open along y.
_DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
OPEN, CLOSED = -1.0, 1.0


def vector(*values: float) -> Vector:
    """A vector of these values."""
    return np.array(values, dtype=np.float64)


def downward(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> NDArray[np.float64]:
    """The hand's rotation (3, 3): pointing down, then rolled about x, pitched about y, turned about z."""
    return _about(2, yaw) @ _about(1, pitch) @ _about(0, roll) @ _DOWN


def _about(axis: int, angle: float) -> NDArray[np.float64]:
    cos, sin = math.cos(angle), math.sin(angle)
    first, second = (axis + 1) % 3, (axis + 2) % 3
    rotation = np.eye(3)
    rotation[first, first] = rotation[second, second] = cos
    rotation[first, second], rotation[second, first] = -sin, sin
    return rotation


class Arm:
    """The arm in its scene: what can be read, and the skills.

    Args:
        simulator: The scene.

    Attributes:
        grip: The gripper's command, -1 to open and +1 to close.
        rotation: The hand's rotation that is held, of shape (3, 3).
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.grip = OPEN
        self.rotation = downward()

    # What can be read.

    @property
    def position(self) -> Vector:
        """Where the point between the fingers is."""
        return np.array(self.simulator.data.site_xpos[self._site])

    @property
    def turned(self) -> NDArray[np.float64]:
        """The hand's rotation, of shape (3, 3)."""
        return np.array(self.simulator.data.site_xmat[self._site]).reshape(3, 3)

    @property
    def _site(self) -> int:
        return int(self.simulator.env.robots[0].eef_site_id)

    def origin(self, name: str) -> Vector:
        """Where the origin of an object is."""
        return np.array(self.simulator.data.xpos[self.simulator.env.obj_body_id[name]])

    def axes(self, name: str) -> NDArray[np.float64]:
        """An object's rotation, of shape (3, 3)."""
        return np.array(self.simulator.data.xmat[self.simulator.env.obj_body_id[name]]).reshape(3, 3)

    def site(self, name: str) -> Vector:
        """Where a site is."""
        return np.array(self.simulator.data.site(name).xpos)

    def joint(self, name: str) -> float:
        """The position of a drawer, a door or a knob."""
        return float(self.simulator.data.joint(name).qpos[0])

    def corners(self, name: str) -> NDArray[np.float64]:
        """Corners of the boxes around an object's collision shapes, of shape (corners, 3)."""
        return np.concatenate(self.boxes(name))

    def boxes(self, name: str) -> list[NDArray[np.float64]]:
        """Of each collision shape of an object the eight corners of its box."""
        model, data = self.simulator.model, self.simulator.data
        bodies = {self.simulator.env.obj_body_id[name]}
        for body in range(min(bodies) + 1, model.nbody):
            if model.body_parentid[body] in bodies:
                bodies.add(body)
        signs = np.stack(np.meshgrid([-1, 1], [-1, 1], [-1, 1]), axis=-1).reshape(-1, 3)
        boxes = []
        for shape in range(model.ngeom):
            if model.geom_bodyid[shape] in bodies and (
                model.geom_contype[shape] or model.geom_conaffinity[shape]
            ):
                box = model.geom_aabb[shape]
                local = box[:3] + signs * box[3:]
                boxes.append(data.geom_xpos[shape] + local @ np.array(data.geom_xmat[shape]).reshape(3, 3).T)
        return boxes

    def box(self, name: str) -> tuple[Vector, Vector]:
        """Lowest and highest coordinates of an object."""
        corners = self.corners(name)
        return corners.min(axis=0), corners.max(axis=0)

    def middle(self, name: str) -> Vector:
        """The middle of an object's box."""
        low, high = self.box(name)
        return (low + high) / 2

    # Skills.

    def move(
        self,
        target: Vector,
        steps: int = 80,
        tolerance: float = 0.006,
        speed: float = 1.0,
        angle: float = 0.06,
    ) -> Actions:
        """Go straight to a point, and turn to `rotation`.

        Args:
            target: The point.
            steps: Actions at most; a hand that is held up gives up then.
            tolerance: Distance in m at which it has arrived.
            speed: Largest part of the largest translation along any axis.
            angle: Angle in rad at which it is turned.
        """
        for _ in range(steps):
            way = target - self.position
            turn = _rotation_vector(self.rotation @ self.turned.T)
            if np.linalg.norm(way) < tolerance and np.linalg.norm(turn) < angle:
                return
            push = way / _METRES
            push *= min(1.0, speed / max(np.abs(push).max(), 1e-9))
            yield self._action(np.concatenate([push, np.clip(turn / _RADIANS, -1.0, 1.0)]))

    def by(self, x: float = 0.0, y: float = 0.0, z: float = 0.0, **how: float) -> Actions:
        """Go by so many metres from here."""
        yield from self.move(self.position + vector(x, y, z), **how)  # type: ignore[arg-type]

    def grasp(self, steps: int = 14) -> Actions:
        """Close the gripper."""
        self.grip = CLOSED
        yield from self.wait(steps)

    def release(self, steps: int = 12) -> Actions:
        """Open the gripper."""
        self.grip = OPEN
        yield from self.wait(steps)

    def wait(self, steps: int) -> Actions:
        """Stay."""
        for _ in range(steps):
            yield self._action(np.zeros(6))

    def _action(self, motion: Vector) -> Vector:
        return np.append(motion, self.grip)


def _rotation_vector(rotation: NDArray[np.float64]) -> Vector:
    """Axis times angle of a rotation of shape (3, 3)."""
    axis = 0.5 * vector(
        rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]
    )
    sine = float(np.linalg.norm(axis))
    if sine < 1e-9:
        return np.zeros(3)
    angle = math.atan2(sine, (float(np.trace(rotation)) - 1) / 2)
    return axis / sine * angle
