import pytest

from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.tasks import MAX_JOINTS, MAX_OBJECTS, TASKS, libero_task


def test_there_are_ten_and_each_is_found_by_its_number():
    assert [task.index for task in TASKS] == list(range(10))
    assert all(libero_task(task.index) is task and libero_task(task) is task for task in TASKS)


def test_the_largest_fits_the_observation_exactly():
    assert max(len(task.objects) for task in TASKS) == MAX_OBJECTS
    assert max(len(task.joints) for task in TASKS) == MAX_JOINTS


def test_instructions_are_in_the_names_and_goals_speak_of_objects_that_are_observed():
    for task in TASKS:
        assert task.name.endswith("_".join(task.instruction.split()))
        assert all(predicate[1].startswith(task.objects) for predicate in task.goal)


def test_the_moka_pots_need_a_stove_that_is_on():
    assert ("turnon", "flat_stove_1") in libero_task(8).goal


@pytest.mark.parametrize("task", [-1, 10, "3", None, True, 2.0])
def test_another_number_has_its_sentence(task):
    with pytest.raises(ConfigError, match="task must be a number from 0 to 9, not "):
        libero_task(task)
