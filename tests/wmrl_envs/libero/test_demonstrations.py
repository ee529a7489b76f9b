import dataclasses
import json
import sys

import numpy as np
import pytest

from wmrl_agents.libero import main, numbers
from wmrl_envs.errors import ConfigError, MissingExtraError, SimulatorError
from wmrl_envs.libero.demonstrations import (
    Demonstration,
    collect,
    load_demonstration,
    read_demonstrations,
    read_official,
    replay,
    save_demonstration,
)
from wmrl_envs.libero.env import LiberoEnv
from wmrl_envs.libero.scripted import PLANS, expert_actions

from .installed import needs_libero


def made_up(task=3, init_state=7, env_seed=0, success=True, steps=5):
    random = np.random.default_rng(0)
    shapes = {"robot": (16,), "objects": (8, 7), "joints": (3,)}
    return Demonstration(
        task=task,
        init_state=init_state,
        env_seed=env_seed,
        noise=0.1,
        success=success,
        versions={"mujoco": "3.17.0"},
        actions=random.uniform(-1, 1, (steps, 7)),
        intended=random.uniform(-1, 1, (steps, 7)),
        final_state=random.normal(size=20),
        **{
            name: random.normal(size=(steps + 1, *shape)).astype(np.float32) for name, shape in shapes.items()
        },
    )


def same(one, other):
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def test_what_is_saved_is_what_is_read(tmp_path):
    demonstration = made_up()
    path = save_demonstration(tmp_path, demonstration)
    assert path == tmp_path / "task-3/init-07-seed-0.npz"
    assert same(load_demonstration(path), demonstration)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_they_are_read_in_order_and_by_what_came_of_them(tmp_path):
    for task, init_state, success in [(3, 10, True), (3, 2, False), (1, 4, True)]:
        save_demonstration(tmp_path, made_up(task, init_state, success=success))

    def found(**filters):
        return [(one.task, one.init_state) for one in read_demonstrations(tmp_path, **filters)]

    assert found() == [(1, 4), (3, 10)]
    assert found(success=None) == [(1, 4), (3, 2), (3, 10)]
    assert found(success=False) == [(3, 2)]
    assert found(tasks=[3]) == [(3, 10)]


def test_a_folder_without_any_has_its_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"There are no demonstrations in .*wmrl libero demos --out DIR"):
        list(read_demonstrations(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": np.zeros((5, 6))},
        {"robot": np.zeros((5, 16), np.float32)},
        {"objects": np.full((6, 8, 7), np.nan, np.float32)},
        {"final_state": np.array(["a"], dtype=object)},
        {"about": np.array("{}")},
        {"about": np.array("[")},
        {"about": np.array(json.dumps({"format": 2}))},
    ],
    ids=["shape", "length", "not finite", "an object", "nothing about it", "no JSON", "a later format"],
)
def test_a_file_that_is_none_has_its_sentence(tmp_path, changes):
    path = save_demonstration(tmp_path, made_up())
    with np.load(path) as arrays:
        content = {**arrays, **changes}
    np.savez(path, **content)
    with pytest.raises(ConfigError, match="is not a demonstration of `wmrl libero demos`"):
        load_demonstration(path)


def test_bytes_that_are_none_have_their_sentence(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(ConfigError, match="There is no demonstration at "):
        load_demonstration(path)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ConfigError, match="is not a demonstration"):
        load_demonstration(path)


def official(path, **changes):
    h5py = pytest.importorskip("h5py", reason="needs the extra libero")
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = changes.get(
            "problem_info", json.dumps({"language_instruction": ["put", " it", " there"]})
        )
        for number in (10, 2):
            group = data.create_group(f"demo_{number}")
            group["actions"] = np.full((3, 7), number)
            group["states"] = np.zeros((3, 47))
            group["obs/ee_states"] = np.zeros((3, 6))
            group["obs/agentview_rgb"] = np.zeros((3, 8, 8, 3), np.uint8)
    return path


def test_liberos_own_demonstrations_are_read_by_number(tmp_path):
    path = official(tmp_path / "a.hdf5")
    episodes = list(read_official(path))
    assert [episode.name for episode in episodes] == ["demo_2", "demo_10"]
    assert episodes[0].instruction == "put it there"
    assert episodes[1].actions.tolist() == [[10.0] * 7] * 3
    assert set(episodes[0].observations) == {"ee_states", "agentview_rgb"}
    assert set(next(read_official(path, images=False)).observations) == {"ee_states"}


def test_a_file_that_is_not_liberos_has_its_sentence(tmp_path):
    pytest.importorskip("h5py", reason="needs the extra libero")
    with pytest.raises(ConfigError, match="There is no file"):
        next(read_official(tmp_path / "b.hdf5"))
    (tmp_path / "c.hdf5").write_bytes(b"nothing")
    for path in (tmp_path / "c.hdf5", official(tmp_path / "d.hdf5", problem_info="[")):
        with pytest.raises(ConfigError, match="is not a file of LIBERO's demonstrations"):
            next(read_official(path))


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"wmrl\[libero\]"):
        next(read_official(tmp_path / "a.hdf5"))


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "5-3"])
def test_numbers_that_cannot_be_read_have_their_sentence(text):
    with pytest.raises(ConfigError, match="--tasks"):
        numbers(text, "--tasks")


def test_the_expert_has_a_plan_for_each_task():
    assert sorted(PLANS) == list(range(10))


def test_the_expert_asks_for_an_episode():
    with pytest.raises(ConfigError, match=r"call reset\(\)"):
        next(expert_actions(LiberoEnv(0)))


@needs_libero
@pytest.mark.slow
@pytest.mark.parametrize("task", range(10))
def test_the_expert_solves_each_task_and_its_replay_is_the_same(tmp_path, task):
    [demonstration] = collect(tmp_path, [task], init_states=[2])
    assert demonstration.success
    assert demonstration.versions["mujoco"]
    again = list(replay(demonstration))
    assert np.array_equal(np.stack([seen["robot"] for seen in again]), demonstration.robot)


@needs_libero
@pytest.mark.slow
def test_collecting_goes_on_where_it_stopped_and_pictures_are_drawn_on_demand(tmp_path, capsys, monkeypatch):
    command = ["demos", "--tasks", "5", "--init-states", "0-1", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "Task 5: 2 of 2 episodes are demonstrations." in capsys.readouterr().out
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")} == kept
    [first, _] = sorted(kept)
    short = load_demonstration(first)
    pictures = replay(short, observations="images", image_size=16)
    assert next(pictures)["agentview_image"].shape == (16, 16, 3)
    pictures.close()


@needs_libero
@pytest.mark.slow
def test_noise_is_in_what_is_done_and_not_in_what_was_intended(tmp_path):
    [calm] = collect(tmp_path / "calm", [5], init_states=[0])
    assert np.array_equal(calm.actions, calm.intended)
    [shaken] = collect(tmp_path / "shaken", [5], init_states=[0], noise=0.2)
    off = shaken.actions - shaken.intended
    assert (off[:, 6] == 0).all()
    free = np.abs(shaken.actions[:, :6]) < 1
    assert off[:, :6][free].std() == pytest.approx(0.2, rel=0.15)
    assert np.array_equal(shaken.intended[0], calm.intended[0])


@needs_libero
@pytest.mark.slow
def test_a_replay_that_comes_out_differently_says_so(tmp_path):
    [demonstration] = collect(tmp_path, [5], init_states=[0])
    changed = dataclasses.replace(demonstration, final_state=demonstration.final_state + 1e-9)
    with pytest.raises(SimulatorError, match="came to another state: it was recorded with"):
        list(replay(changed))
