"""An expert for LIBERO-Long that sees the whole state: it collects demonstrations, it is no policy to learn
from state.

It knows where everything is, moves by waypoints, and stops when the environment says that the goal holds.
Which of the initial states it solves is in docs/libero.md, as `wmrl libero expert` found it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.arm import CLOSED, Actions, Arm, Vector, downward, vector
from wmrl_envs.libero.env import LiberoEnv

__all__ = ["PLANS", "expert_actions"]

# The palm is 9 cm above the fingertips; half of its width along and across the fingers' line, with some room.
_TALL = 0.09
_PALM = (0.045, 0.11)


def expert_actions(env: LiberoEnv) -> Iterator[Vector]:
    """The expert's actions from the state in which the environment is; ask for each after the one before
    was taken.

    Args:
        env: An environment whose episode has begun.

    Raises:
        ConfigError: There is no plan for this task.
    """
    plan = PLANS.get(env.task.index)
    if plan is None:
        raise ConfigError(
            f"The scripted expert has no plan for task {env.task.index}: {env.task.instruction}."
        )
    if env.simulator is None:
        raise ConfigError("The expert needs an episode: call reset() first.")
    arm = Arm(env.simulator)
    yield from plan(arm)
    yield from arm.wait(env.horizon)


# Picking up and putting down.


def narrow_yaw(arm: Arm, name: str) -> float:
    """The turn that lays the fingers along an object's narrowest horizontal side, a small one if any."""
    ground = arm.corners(name)[:, :2]
    turns = np.linspace(-math.pi / 2, math.pi / 2, 36, endpoint=False)

    def cost(yaw: float) -> float:
        return float(np.ptp(ground @ vector(-math.sin(yaw), math.cos(yaw)))) + 0.003 * abs(yaw)

    return float(min(turns, key=cost))


def clear_spot(arm: Arm, name: str, yaw: float) -> Vector:
    """Where (x, y) to grasp an object: its middle, or beside it if the open fingers would hit another."""
    across = vector(-math.sin(yaw), math.cos(yaw))
    along = vector(math.cos(yaw), math.sin(yaw))
    middle = arm.middle(name)[:2]
    reach = (np.ptp(arm.corners(name)[:, :2] @ along) / 2) - 0.012
    others = [arm.box(other) for other in arm.simulator.task.objects if other != name]

    def clearance(spot: Vector) -> float:
        fingers = [spot + side * across for side in (-0.05, 0.05)]
        gaps = [np.maximum(low[:2] - at, at - high[:2]).max() for low, high in others for at in fingers]
        return float(min(gaps, default=1.0))

    offsets = [part * reach for part in (0.0, 0.4, -0.4, 0.8, -0.8)]
    spots = [middle + offset * along for offset in offsets]
    clear = [spot for spot in spots if clearance(spot) > 0.015]
    return clear[0] if clear else max(spots, key=clearance)


def leaning(arm: Arm, name: str, spot: Vector, yaw: float) -> float:
    """The pitch that leads the palm past a tall neighbour, whose top it would hit beside the object."""
    along, across = vector(math.cos(yaw), math.sin(yaw)), vector(-math.sin(yaw), math.cos(yaw))
    for other in arm.simulator.task.objects:
        low, high = arm.box(other)
        if other == name or high[2] - low[2] < _TALL:
            continue
        ground = arm.corners(other)[:, :2] - spot
        beside, before = ground @ along, ground @ across
        if beside.min() < _PALM[0] and beside.max() > -_PALM[0] and np.abs(before).min() < _PALM[1]:
            return -math.copysign(0.4, float(beside.mean()))
    return 0.0


def pick(
    arm: Arm,
    name: str,
    at: Vector | None = None,
    yaw: float | None = None,
    depth: float = 0.030,
    lift: float = 0.22,
) -> Actions:
    """Grasp an object from above and lift it.

    Args:
        arm: The arm.
        name: The object.
        at: Where to grasp it (x, y); None for its middle, or near it where that is clear.
        yaw: How the hand is turned; None for the narrow side.
        depth: How far below the object's top the fingers reach, in m.
        lift: How high it is lifted, in m.
    """
    low, high = arm.box(name)
    z = max(low[2] + 0.010, high[2] - depth)
    turn = narrow_yaw(arm, name) if yaw is None else yaw
    spot = clear_spot(arm, name, turn) if at is None else at
    arm.rotation = downward(turn, pitch=leaning(arm, name, spot, turn) if at is None else 0.0)
    x, y = spot
    yield from arm.move(vector(x, y, max(high[2] + 0.10, z + 0.12)), tolerance=0.01)
    yield from arm.move(vector(x, y, z), speed=0.6)
    yield from arm.grasp()
    yield from arm.by(z=lift, tolerance=0.02)


def drop(arm: Arm, name: str, x: float, y: float, release_at: float, height: float) -> Actions:
    """Carry the held object until its middle is above a point, lower the hand, let go, and rise again."""
    here = arm.position
    yield from arm.move(vector(here[0], here[1], height), tolerance=0.02)
    yield from arm.move(vector(x, y, height), tolerance=0.01)
    off = (arm.middle(name) - arm.position)[:2]
    target = vector(x - off[0], y - off[1], height)
    yield from arm.move(target, tolerance=0.008, steps=40)
    yield from arm.move(vector(target[0], target[1], release_at), tolerance=0.01, speed=0.6)
    yield from arm.release()
    yield from arm.move(vector(target[0], target[1], height), tolerance=0.02, steps=40)


def into_basket(*names: str) -> Callable[[Arm], Actions]:
    """The plan for groceries: one beside the other into the basket."""

    def plan(arm: Arm) -> Actions:
        for number, name in enumerate(names):
            low, high = arm.box("basket_1")
            x, y = (low + high)[:2] / 2
            yield from pick(arm, name)
            aside = 0.03 if number % 2 == 0 else -0.03
            yield from drop(arm, name, x + aside, y, release_at=high[2] + 0.02, height=high[2] + 0.13)

    return plan


def mug_onto(arm: Arm, mug: str, plate: str) -> Actions:
    """Grasp a mug by its rim and set it down upright on the middle of a plate."""
    height = arm.box(mug)[1][2] + 0.15
    yield from pick(arm, mug, at=arm.origin(mug)[:2] + vector(0.0, 0.040), yaw=0.0, depth=0.025)
    here = arm.position
    yield from arm.move(vector(here[0], here[1], height), tolerance=0.02)
    aim = arm.origin(plate)
    target = aim
    for _ in range(2):  # the mug swings while it is carried
        target = aim - (arm.origin(mug) - arm.position)
        yield from arm.move(vector(target[0], target[1], height))
    lower = arm.origin(mug)[2] - (aim[2] + 0.012)
    yield from arm.move(vector(target[0], target[1], arm.position[2] - lower), tolerance=0.005, speed=0.5)
    yield from arm.release()
    yield from arm.move(vector(target[0], target[1], height), tolerance=0.02, steps=50)


def two_mugs(arm: Arm) -> Actions:
    """Task 4."""
    yield from mug_onto(arm, "porcelain_mug_1", "plate_1")
    yield from mug_onto(arm, "white_yellow_mug_1", "plate_2")


def mug_and_pudding(arm: Arm) -> Actions:
    """Task 6."""
    yield from mug_onto(arm, "porcelain_mug_1", "plate_1")
    place = arm.site("living_room_table_plate_right_region")
    low = arm.box("chocolate_pudding_1")[0][2]
    yield from pick(arm, "chocolate_pudding_1")
    held = arm.position[2] - arm.box("chocolate_pudding_1")[0][2]
    yield from drop(arm, "chocolate_pudding_1", place[0], place[1], low + held + 0.006, low + held + 0.15)


def book_into_caddy(arm: Arm) -> Actions:
    """Task 5: carry the book upright above the back compartment, turn it along the compartment, lower it."""
    book = "black_book_1"
    yield from pick(arm, book, depth=0.035, lift=0.25)
    arm.rotation = downward(math.copysign(math.pi / 2, narrow_yaw(arm, book)))
    aim = arm.site("desk_caddy_1_back_contain_region")
    for _ in range(2):
        off = arm.middle(book) - arm.position
        yield from arm.move(vector(aim[0] - off[0], aim[1] - off[1], arm.position[2]), tolerance=0.005)
    yield from arm.by(z=-0.12, speed=0.4)
    yield from arm.release()


def bowl_into_drawer(arm: Arm) -> Actions:
    """Task 3: grasp the bowl by its rim, lower it into the drawer, push the drawer with a tilted hand."""
    bowl, drawer = "akita_black_bowl_1", "white_cabinet_1_bottom_region"
    low, high = arm.box(bowl)
    middle = (low + high) / 2
    rim = vector(middle[0] - (high[0] - low[0]) / 2 + 0.006, middle[1])
    yield from pick(arm, bowl, at=rim, yaw=math.pi / 2, depth=0.018, lift=0.20)
    place = arm.site(drawer)
    target = place
    for _ in range(2):
        off = arm.middle(bowl) - arm.position
        target = vector(place[0] - off[0], place[1] - 0.018 - off[1], 1.14)
        yield from arm.move(target)
    yield from arm.move(vector(target[0], target[1], 1.01), speed=0.5, steps=40)
    yield from arm.release()
    yield from arm.move(vector(target[0], target[1], 1.16), tolerance=0.02)
    front = arm.box("white_cabinet_1")[0][1]
    arm.grip = CLOSED
    arm.rotation = downward(yaw=math.pi / 2, pitch=-0.8)
    yield from arm.move(vector(place[0] + 0.07, front - 0.06, 1.10), tolerance=0.02)
    yield from arm.move(vector(place[0] + 0.07, front - 0.04, 0.965), tolerance=0.015)
    yield from arm.by(y=0.24, speed=0.7, steps=120)


def turn_on_stove(arm: Arm) -> Actions:
    """Grasp the knob from above and turn it."""
    knob = arm.origin("flat_stove_1")
    height = arm.box("flat_stove_1")[1][2]
    x, y = knob[0] - 0.004, knob[1] + 0.001
    arm.rotation = downward()
    yield from arm.move(vector(x, y, height + 0.10), tolerance=0.01)
    yield from arm.move(vector(x, y, height - 0.010), speed=0.5)
    yield from arm.grasp(12)
    for yaw in np.linspace(0.2, 1.4, 7):
        arm.rotation = downward(float(yaw))
        yield from arm.move(vector(x, y, height - 0.010), tolerance=0.01, steps=15)
    yield from arm.release(8)
    yield from arm.by(z=0.15, tolerance=0.02)


def pot_onto_stove(arm: Arm, pot: str, aside: float = 0.0) -> Actions:
    """Grasp a moka pot by the knob of its lid and set it down on the burner."""
    burner = arm.site("flat_stove_1_cook_region")
    top = arm.box(pot)[1]
    lid = min(arm.boxes(pot), key=lambda box: -float(box[:, 2].max()))
    x, y = ((lid.min(axis=0) + lid.max(axis=0)) / 2)[:2]
    arm.rotation = downward()
    yield from arm.move(vector(x, y, top[2] + 0.10), tolerance=0.008)
    yield from arm.move(vector(x, y, top[2] - 0.012), tolerance=0.004, speed=0.5)
    yield from arm.grasp(16)
    yield from arm.by(z=0.10, tolerance=0.02, speed=0.4)
    target = burner
    for _ in range(2):
        off = arm.origin(pot) - arm.position
        target = vector(burner[0] + aside - off[0], burner[1] - off[1], arm.position[2])
        yield from arm.move(target, speed=0.5)
    above = arm.box(pot)[0][2] - (arm.box("flat_stove_1")[0][2] + 0.047)
    yield from arm.by(z=-above, tolerance=0.004, speed=0.3)
    yield from arm.release()
    yield from arm.by(z=0.12, tolerance=0.02)


def stove_and_pot(arm: Arm) -> Actions:
    """Task 2."""
    yield from turn_on_stove(arm)
    yield from pot_onto_stove(arm, "moka_pot_1")


def both_pots(arm: Arm) -> Actions:
    """Task 8."""
    yield from pot_onto_stove(arm, "moka_pot_1", aside=-0.043)
    yield from pot_onto_stove(arm, "moka_pot_2", aside=0.043)


def mug_into_microwave(arm: Arm) -> Actions:
    """Task 9: hold the mug by its handle, push it in, and sweep the door shut."""
    mug, oven = "white_yellow_mug_1", "microwave_1"
    inside = arm.site("microwave_1_heating_region")
    yield from open_door(arm, oven)
    high = arm.box(mug)[1]
    handle = min(arm.boxes(mug), key=lambda box: float(box[:, 1].min()))
    x = float(handle[:, 0].mean())
    y = float(handle[:, 1].min()) + 0.018
    arm.rotation = downward(math.pi / 2)
    yield from arm.move(vector(x, y, door_hinge(arm, oven)[1] + 0.06), tolerance=0.008)
    yield from arm.move(vector(x, y, high[2] - 0.045), speed=0.5)
    yield from arm.grasp(16)
    yield from arm.by(z=0.065, tolerance=0.01, speed=0.4)
    yield from arm.move(vector(inside[0] - 0.045, inside[1] - 0.27, arm.position[2]), speed=0.6)
    floor = arm.origin(oven)[2] + 0.024
    height = arm.position[2] + floor + 0.012 - arm.box(mug)[0][2]  # it sags, and must clear the edge
    yield from arm.move(vector(arm.position[0], arm.position[1], height), steps=15)
    off = arm.middle(mug) - arm.position
    deep = vector(inside[0] - 0.045, inside[1] - 0.05 - off[1], height)
    yield from arm.move(deep, speed=0.4, steps=60)
    yield from arm.by(z=-0.012, steps=15)
    yield from arm.release()
    yield from arm.by(y=-0.14, tolerance=0.02)
    yield from shut_door(arm, oven)


def open_door(arm: Arm, oven: str) -> Actions:
    """Push the door open from within where it leaves too little room."""
    begin = arm.joint("microwave_1_microjoint")
    if begin > -1.35:
        arm.grip = CLOSED
        yield from along_door(arm, oven, np.linspace(begin + 0.45, -1.7, 8), side=-0.03)
        yield from arm.by(z=0.15, tolerance=0.03)


def shut_door(arm: Arm, oven: str) -> Actions:
    """Sweep the closed fingers around the door's hinge."""
    arm.grip = CLOSED
    yield from arm.by(z=0.12, tolerance=0.03)
    arm.rotation = downward()
    hinge, top = door_hinge(arm, oven)
    aside = hinge + vector(-0.12, -0.16)
    yield from arm.move(vector(aside[0], aside[1], top + 0.03), tolerance=0.03, angle=0.3)
    yield from arm.move(vector(aside[0] + 0.05, aside[1] - 0.04, top - 0.06), tolerance=0.02)
    yield from along_door(arm, oven, np.linspace(-math.pi / 2, 0.15, 14), side=0.03)


def along_door(arm: Arm, oven: str, angles: NDArray[np.float64], side: float) -> Actions:
    """Lead the fingers around the hinge, beside where the door is at these angles, beginning above it."""
    hinge, top = door_hinge(arm, oven)
    for number, angle in enumerate(angles):
        outward = vector(math.sin(angle), -math.cos(angle))
        point = hinge + 0.20 * vector(math.cos(angle), math.sin(angle)) + side * outward
        if number == 0 and side < 0:
            yield from arm.move(vector(point[0], point[1], top + 0.05), tolerance=0.02)
        yield from arm.move(vector(point[0], point[1], top - 0.06), tolerance=0.02, steps=20, angle=0.3)


def door_hinge(arm: Arm, oven: str) -> tuple[Vector, float]:
    """Where the door's hinge is (x, y), and how high the door reaches."""
    origin = arm.origin(oven)
    return origin[:2] + vector(-0.186, -0.088), float(arm.box(oven)[1][2])


PLANS: dict[int, Callable[[Arm], Actions]] = {
    0: into_basket("alphabet_soup_1", "tomato_sauce_1"),
    1: into_basket("cream_cheese_1", "butter_1"),
    2: stove_and_pot,
    3: bowl_into_drawer,
    4: two_mugs,
    5: book_into_caddy,
    6: mug_and_pudding,
    7: into_basket("alphabet_soup_1", "cream_cheese_1"),
    8: both_pots,
    9: mug_into_microwave,
}
