"""The ten tasks of LIBERO-Long as data: what is asked, what stands in the scene, what counts as done.

Everything that must be known before a simulator is built is here, so that spaces are static. Goals and the
digests of the initial states are those of LIBERO's own repository (and of hf-libero 0.1.4, whose files are
the same); a package that has others is refused, because its numbers would not be LIBERO-Long's.
"""

from __future__ import annotations

from dataclasses import dataclass

from wmrl_envs.errors import ConfigError

__all__ = ["INIT_STATES", "MAX_JOINTS", "MAX_OBJECTS", "TASKS", "LiberoTask", "libero_task"]

INIT_STATES = 50
MAX_OBJECTS = 8
MAX_JOINTS = 3

Predicate = tuple[str, ...]


@dataclass(frozen=True)
class LiberoTask:
    """A task of LIBERO-Long.

    Attributes:
        index: Its number in the suite, 0 to 9.
        name: Its name, which is also that of its files.
        instruction: What the robot is told.
        objects: Things whose poses the observation holds, in its order: those that can be moved, then
            fixtures.
        joints: Joints of fixtures (drawers, doors, knobs) whose positions the observation holds, in its
            order.
        goal: Predicates that must all hold, as LIBERO's parser writes them.
        states_digest: First 16 digits of the SHA-256 of the 50 initial states, as little-endian float64.
    """

    index: int
    name: str
    instruction: str
    objects: tuple[str, ...]
    joints: tuple[str, ...]
    goal: tuple[Predicate, ...]
    states_digest: str


_GROCERIES = (
    "alphabet_soup_1",
    "cream_cheese_1",
    "tomato_sauce_1",
    "ketchup_1",
    "orange_juice_1",
    "milk_1",
    "butter_1",
    "basket_1",
)


def _in_basket(*names: str) -> tuple[Predicate, ...]:
    return tuple(("in", name, "basket_1_contain_region") for name in names)


TASKS: tuple[LiberoTask, ...] = (
    LiberoTask(
        0,
        "LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_the_tomato_sauce_in_the_basket",
        "put both the alphabet soup and the tomato sauce in the basket",
        _GROCERIES,
        (),
        _in_basket("alphabet_soup_1", "tomato_sauce_1"),
        "0a3fec5f02eebb70",
    ),
    LiberoTask(
        1,
        "LIVING_ROOM_SCENE2_put_both_the_cream_cheese_box_and_the_butter_in_the_basket",
        "put both the cream cheese box and the butter in the basket",
        _GROCERIES,
        (),
        _in_basket("cream_cheese_1", "butter_1"),
        "b1052d497a7e006f",
    ),
    LiberoTask(
        2,
        "KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it",
        "turn on the stove and put the moka pot on it",
        ("chefmate_8_frypan_1", "moka_pot_1", "flat_stove_1"),
        ("flat_stove_1_button",),
        (("turnon", "flat_stove_1"), ("on", "moka_pot_1", "flat_stove_1_cook_region")),
        "9631343c40bbe5de",
    ),
    LiberoTask(
        3,
        "KITCHEN_SCENE4_put_the_black_bowl_in_the_bottom_drawer_of_the_cabinet_and_close_it",
        "put the black bowl in the bottom drawer of the cabinet and close it",
        ("akita_black_bowl_1", "wine_bottle_1", "white_cabinet_1", "wine_rack_1"),
        ("white_cabinet_1_bottom_level", "white_cabinet_1_middle_level", "white_cabinet_1_top_level"),
        (
            ("close", "white_cabinet_1_bottom_region"),
            ("in", "akita_black_bowl_1", "white_cabinet_1_bottom_region"),
        ),
        "9b5e7c410fc67376",
    ),
    LiberoTask(
        4,
        "LIVING_ROOM_SCENE5_put_the_white_mug_on_the_left_plate_"
        "and_put_the_yellow_and_white_mug_on_the_right_plate",
        "put the white mug on the left plate and put the yellow and white mug on the right plate",
        ("porcelain_mug_1", "red_coffee_mug_1", "white_yellow_mug_1", "plate_1", "plate_2"),
        (),
        (("on", "porcelain_mug_1", "plate_1"), ("on", "white_yellow_mug_1", "plate_2")),
        "a7356fbcba37b1fd",
    ),
    LiberoTask(
        5,
        "STUDY_SCENE1_pick_up_the_book_and_place_it_in_the_back_compartment_of_the_caddy",
        "pick up the book and place it in the back compartment of the caddy",
        ("black_book_1", "white_yellow_mug_1", "desk_caddy_1"),
        (),
        (("in", "black_book_1", "desk_caddy_1_back_contain_region"),),
        "adc7c3fd13bfd80e",
    ),
    LiberoTask(
        6,
        "LIVING_ROOM_SCENE6_put_the_white_mug_on_the_plate_"
        "and_put_the_chocolate_pudding_to_the_right_of_the_plate",
        "put the white mug on the plate and put the chocolate pudding to the right of the plate",
        ("porcelain_mug_1", "red_coffee_mug_1", "plate_1", "chocolate_pudding_1"),
        (),
        (
            ("on", "porcelain_mug_1", "plate_1"),
            ("on", "chocolate_pudding_1", "living_room_table_plate_right_region"),
        ),
        "646804b35c86e619",
    ),
    LiberoTask(
        7,
        "LIVING_ROOM_SCENE1_put_both_the_alphabet_soup_and_the_cream_cheese_box_in_the_basket",
        "put both the alphabet soup and the cream cheese box in the basket",
        ("alphabet_soup_1", "cream_cheese_1", "tomato_sauce_1", "ketchup_1", "basket_1"),
        (),
        _in_basket("alphabet_soup_1", "cream_cheese_1"),
        "fec6c3312d8d73c4",
    ),
    LiberoTask(
        8,
        "KITCHEN_SCENE8_put_both_moka_pots_on_the_stove",
        "put both moka pots on the stove",
        ("moka_pot_1", "moka_pot_2", "flat_stove_1"),
        ("flat_stove_1_button",),
        (
            ("on", "moka_pot_1", "flat_stove_1_cook_region"),
            ("on", "moka_pot_2", "flat_stove_1_cook_region"),
            ("turnon", "flat_stove_1"),
        ),
        "dcd0faf3d4c1e13a",
    ),
    LiberoTask(
        9,
        "KITCHEN_SCENE6_put_the_yellow_and_white_mug_in_the_microwave_and_close_it",
        "put the yellow and white mug in the microwave and close it",
        ("porcelain_mug_1", "white_yellow_mug_1", "microwave_1"),
        ("microwave_1_microjoint",),
        (("in", "white_yellow_mug_1", "microwave_1_heating_region"), ("close", "microwave_1")),
        "a5cdea6ddd43f459",
    ),
)


def libero_task(task: int | LiberoTask) -> LiberoTask:
    """The task of this number.

    Args:
        task: 0 to 9, or the task itself.

    Raises:
        ConfigError: There is no such task.

    Example:
        >>> libero_task(8).instruction
        'put both moka pots on the stove'
    """
    if isinstance(task, LiberoTask):
        return task
    if isinstance(task, bool) or not hasattr(task, "__index__") or not 0 <= int(task) < len(TASKS):
        raise ConfigError(f"task must be a number from 0 to {len(TASKS) - 1}, not {task!r}.")
    return TASKS[int(task)]
