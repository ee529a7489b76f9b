from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from wmrl_agents.grpo.draws import derive_seed, draw_tasks


@given(tasks=st.integers(1, 7), count=st.integers(1, 9), steps=st.integers(1, 12), seed=st.integers(0, 99))
def test_tasks_come_equally_often(tasks, count, steps, seed):
    drawn = [task for step in range(steps) for task in draw_tasks(range(tasks), count, seed=seed, step=step)]
    assert len(drawn) == count * steps
    counts = [Counter(drawn)[task] for task in range(tasks)]
    assert max(counts) - min(counts) <= 1


def test_a_step_can_be_drawn_without_those_before_it():
    tasks = ["a", "b", "c"]
    forwards = [draw_tasks(tasks, 2, seed=5, step=step) for step in range(6)]
    backwards = [draw_tasks(tasks, 2, seed=5, step=step) for step in reversed(range(6))]
    assert forwards == backwards[::-1]


def test_seeds_differ_by_purpose_place_and_run():
    seeds = [
        derive_seed(seed, purpose, step, turn)
        for seed in range(5)
        for purpose in ("generation", "anchors")
        for step in range(10)
        for turn in range(4)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_seeds_and_tasks_never_change():
    """A run is repeated by its seed, with a later version too."""
    assert derive_seed(0, "tasks", 1) == 1162717150
    assert draw_tasks("abc", 5, seed=0, step=0) == ["c", "a", "b", "a", "c"]
    assert derive_seed(0, "tasks", 1) != derive_seed(0, "tasks", 1, 0)
