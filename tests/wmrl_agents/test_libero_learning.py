"""What is learned from demonstrations of LIBERO, through the command, on episodes that are made up."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from wmrl_agents.cli import main
from wmrl_agents.libero_learning import demonstrated, progress_rollouts
from wmrl_agents.policies.vla.libero_view import libero_states
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_envs.libero import demonstrations
from wmrl_rewards import ProgressModel


def episode(seed, task=0, success=True, steps=20):
    generator = np.random.default_rng(seed)
    return demonstrations.Demonstration(
        task=task,
        init_state=seed,
        env_seed=0,
        noise=0.0,
        success=success,
        versions={"mujoco": "made up"},
        actions=generator.uniform(-1.2, 1.2, (steps, 7)),
        intended=generator.uniform(-1.2, 1.2, (steps, 7)),
        robot=generator.normal(size=(steps + 1, 16)).astype(np.float32),
        objects=generator.normal(size=(steps + 1, 8, 7)).astype(np.float32),
        joints=generator.normal(size=(steps + 1, 3)).astype(np.float32),
        final_state=np.zeros(4),
    )


@pytest.fixture
def folder(tmp_path):
    for seed in range(4):
        demonstrations.save_demonstration(tmp_path / "demos", episode(seed, success=seed != 3))
    return tmp_path / "demos"


def run(*arguments):
    return main(["libero", *map(str, arguments)])


SHORT = ("--steps", 4, "--batch-size", 8, "--hidden", 16, "--codes", 8, "--report-every", 2)


def test_successes_become_examples():
    episodes = [episode(0), episode(1, success=False), episode(2)]
    found = demonstrated(episodes)
    assert len(found) == 2
    assert found[0].actions == pytest.approx(np.clip(episodes[0].intended, -1, 1))
    assert found[1].task == "put both the alphabet soup and the tomato sauce in the basket"
    expected = libero_states(episodes[2].robot, episodes[2].objects, episodes[2].joints)
    assert np.array_equal(found[1].states, expected)


def test_successes_that_stop_on_their_way_keep_their_progress():
    whole, cut, failed = progress_rollouts([episode(0), episode(1, success=False)])
    assert (whole.success, cut.success, failed.success) == (True, False, False)
    assert whole.labels is None
    assert failed.labels is None
    labels = np.array(cut.labels)
    stop = int(np.argmax(labels == labels[-1]))
    assert labels == pytest.approx(np.minimum(np.arange(21), stop) / 20)
    assert np.array_equal(cut.frames[: stop + 1], whole.frames[: stop + 1])
    assert (cut.frames[stop:] == whole.frames[stop]).all()


def test_a_policy_is_trained_and_gone_on_with(folder, tmp_path, capsys):
    arguments = (
        "sft",
        "--demos",
        folder,
        "--tasks",
        "0",
        "--init-states",
        "0,1,2",
        "--run-dir",
        tmp_path / "run",
    )
    assert run(*arguments, *SHORT) == 0
    said = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["step"] for line in said[:-1]] == [2, 4]
    policy = SmallVLA.load(tmp_path / "run" / "checkpoints" / "step-4")
    assert policy.state_size == 99
    assert run(*arguments, *SHORT) == 0
    assert "Going on from step 4 of 4." in capsys.readouterr().out


def test_a_model_of_progress_is_trained(folder, tmp_path, capsys):
    assert (
        run(
            "progress",
            "--demos",
            folder,
            "--tasks",
            "0",
            "--init-states",
            "0,1,3",
            "--steps",
            2,
            "--out",
            tmp_path / "model",
        )
        == 0
    )
    assert "The model of progress is in" in capsys.readouterr().out
    model = ProgressModel.load(tmp_path / "model")
    assert (model.fitted, model.state_size) == (True, 99)


def test_no_episode_of_the_initial_states_is_one_sentence(folder, tmp_path, capsys):
    assert run("sft", "--demos", folder, "--init-states", "30", "--run-dir", tmp_path / "run") == 2
    assert "begins at the initial states 30" in capsys.readouterr().err


def test_listing_the_commands_loads_no_torch():
    program = (
        "import sys; from wmrl_agents.libero import _parser; _parser(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_episodes_need_no_class_of_their_own():
    one = episode(0)
    plain = SimpleNamespace(
        **{
            name: getattr(one, name)
            for name in ("instruction", "success", "intended", "robot", "objects", "joints")
        }
    )
    assert len(demonstrated([plain])) == 1
