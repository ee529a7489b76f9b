"""What `wmrl_envs.libero.LiberoEnv` shows, as a policy of chunks and a model of progress see it.

A state is 99 numbers: the arm (16), the poses of up to 8 things (56), where each of them is seen from the
hand (24), and joints of drawers, doors and knobs (3). What to grasp is at a fixed place seen from the hand,
wherever it stands: that is what the differences are for. Rows that a task lacks are 0, the differences too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmrl_agents.policies.vla.records import Observation
from wmrl_envs.errors import ConfigError

__all__ = ["STATE_SIZE", "libero_observation", "libero_states"]

_ROBOT, _OBJECTS, _POSE, _JOINTS = 16, 8, 7, 3
STATE_SIZE = _ROBOT + _OBJECTS * (_POSE + 3) + _JOINTS


def libero_states(robot: ArrayLike, objects: ArrayLike, joints: ArrayLike) -> NDArray[np.float32]:
    """States of any number of moments.

    Args:
        robot: Of shape (..., 16), the hand's position first.
        objects: Of shape (..., 8, 7), position and quaternion of each; rows of zeros stand for nothing.
        joints: Of shape (..., 3).

    Returns:
        Of shape (..., 99).

    Raises:
        ConfigError: The shapes are others.
    """
    arm, things, hinges = (np.asarray(part, dtype=np.float32) for part in (robot, objects, joints))
    before = arm.shape[:-1]
    if (arm.shape, things.shape, hinges.shape) != (
        (*before, _ROBOT),
        (*before, _OBJECTS, _POSE),
        (*before, _JOINTS),
    ):
        raise ConfigError(
            f"A state of LIBERO is made of shapes (16,), (8, 7) and (3,), not {arm.shape}, {things.shape} "
            f"and {hinges.shape}."
        )
    there = things.any(axis=-1, keepdims=True)
    from_hand = np.where(there, things[..., :3] - arm[..., None, :3], 0)
    flat = [part.reshape(*before, -1) for part in (things, from_hand)]
    return np.concatenate([arm, *flat, hinges], axis=-1)


def libero_observation(seen: Mapping[str, Any], camera: str | None = None) -> Observation:
    """An environment's observation for a policy.

    Args:
        seen: What `LiberoEnv` returned.
        camera: Whose picture the policy looks at; None for one that looks at none.

    Raises:
        ConfigError: The picture is not among what was observed.
    """
    state = libero_states(seen["robot"], seen["objects"], seen["joints"]) if "robot" in seen else None
    if camera is None:
        return Observation(state)
    image = seen.get(f"{camera}_image")
    if image is None:
        raise ConfigError(
            f"The environment shows no picture of {camera}: make it with observations='both' or 'images' and "
            f"cameras=('{camera}',)."
        )
    return Observation(state, image)
