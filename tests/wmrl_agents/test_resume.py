import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.outcomes import run_outcome
from tests.stubs import TabularPolicy
from tests.wmrl_agents.killed_run import CONFIG, POINTS, parts
from wmrl_agents.grpo.checkpoint import latest_checkpoint
from wmrl_agents.grpo.trainer import GRPOTrainer

ROOT = Path(__file__).parents[2]


def train(run_dir, **changes):
    trainer = GRPOTrainer(CONFIG.replace(**changes), run_dir, parts())
    assert trainer.train()
    return trainer


def outcome(run_dir):
    return run_outcome(run_dir, lambda folder: torch.load(folder / "table.pt", weights_only=True).tolist())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(run_dir)
    result = outcome(run_dir)
    assert [step["step"] for step in result["metrics"]] == list(range(CONFIG.steps))
    assert result["metrics"][-1]["fitted"]
    assert result["metrics"][-1]["rho"] > 1
    assert result["rows"]["pairs"]
    assert result["checkpoints"] == ["step-6", "step-7"]
    return result


def test_a_run_is_the_same_each_time(tmp_path, uninterrupted):
    train(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("first", [1, 3, 6])
def test_some_steps_and_a_resume_equal_all_steps(tmp_path, uninterrupted, first):
    train(tmp_path / "run", steps=first)
    train(tmp_path / "run")
    result = outcome(tmp_path / "run")
    assert result.pop("checkpoints")[-1] == "step-7"
    assert result == {name: value for name, value in uninterrupted.items() if name != "checkpoints"}


def test_another_seed_is_another_run(tmp_path, uninterrupted):
    train(tmp_path / "run", seed=12)
    assert outcome(tmp_path / "run")["weights"] != uninterrupted["weights"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder with one killed run for each point, and the signals that ended them."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.wmrl_agents.killed_run", str(folder)]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return folder, json.loads(output)


@pytest.mark.parametrize("point", POINTS)
def test_kill_9_and_resume_equals_the_uninterrupted_run(killed, uninterrupted, point):
    folder, signals = killed
    assert signals[point] == signal.SIGKILL
    finished = latest_checkpoint(folder / point)
    assert finished is not None
    assert 0 < finished.step < CONFIG.steps
    train(folder / point)
    assert outcome(folder / point) == uninterrupted


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, uninterrupted):
    trainer = GRPOTrainer(CONFIG, tmp_path / "run", parts())
    trainer.step()
    assert latest_checkpoint(tmp_path / "run") is None
    train(tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_checkpoint_needs_the_pairs_that_it_was_made_with(tmp_path):
    from wmrl_rewards import RewardError

    train(tmp_path / "run", steps=4)
    with sqlite3.connect(tmp_path / "run" / "run.sqlite") as connection:
        connection.execute("DELETE FROM pairs WHERE step = 1")
    with pytest.raises(RewardError, match="pairs"):
        GRPOTrainer(CONFIG, tmp_path / "run", parts())


def test_checkpoints_are_read_without_running_anything(tmp_path):
    """A checkpoint from elsewhere must not be able to execute code."""
    import pickle

    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    train(tmp_path / "run", steps=2)
    checkpoint = latest_checkpoint(tmp_path / "run")
    torch.save({"state": {}, "param_groups": [Payload()]}, checkpoint.path / "optimizer.pt")
    with pytest.raises(pickle.UnpicklingError):
        GRPOTrainer(CONFIG, tmp_path / "run", parts())
    assert not (tmp_path / "executed").exists()


def test_a_copied_run_goes_on_elsewhere(tmp_path, uninterrupted):
    train(tmp_path / "run", steps=4)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    train(tmp_path / "elsewhere")
    assert json.dumps(outcome(tmp_path / "elsewhere")["weights"]) == json.dumps(uninterrupted["weights"])


def test_a_run_does_not_go_on_under_other_prompts(tmp_path, monkeypatch):
    from wmrl_agents.grpo import versions
    from wmrl_envs.errors import ConfigError
    from wmrl_rewards.world_models import prompts

    train(tmp_path / "run", steps=4)
    before = outcome(tmp_path / "run")
    with monkeypatch.context() as changed:
        changed.setattr(prompts, "SYSTEM", "Guess.")
        with pytest.raises(
            ConfigError, match=r"have changed.*\(world model\).*begin a new run from its weights"
        ):
            GRPOTrainer(CONFIG, tmp_path / "run", parts())
    with monkeypatch.context() as changed:
        changed.setattr(versions, "no_code_text", lambda reply: "Once more.")
        with pytest.raises(ConfigError, match=r"\(feedback\)"):
            GRPOTrainer(CONFIG, tmp_path / "run", parts())
    with monkeypatch.context() as changed:
        changed.setattr(TabularPolicy, "begin", lambda self, system, user: self._given((7, 6)))
        with pytest.raises(ConfigError, match=r"\(agent\)"):
            GRPOTrainer(CONFIG, tmp_path / "run", parts())
    assert outcome(tmp_path / "run") == before
    train(tmp_path / "run")


def test_a_checkpoint_older_than_the_record_of_prompts_goes_on(tmp_path, uninterrupted):
    train(tmp_path / "run", steps=4)
    path = latest_checkpoint(tmp_path / "run").path / "state.json"
    state = json.loads(path.read_text())
    del state["prompts"]
    path.write_text(json.dumps(state))
    train(tmp_path / "run")
    assert outcome(tmp_path / "run")["weights"] == uninterrupted["weights"]


def test_other_surroundings_are_told_in_one_sentence():
    from wmrl_agents.grpo.versions import environment_changes
    from wmrl_agents.runs import environment

    now = environment()
    assert environment_changes(now, environment()) is None
    assert environment_changes({}, now) is None
    before = json.loads(json.dumps(now))
    before["libraries"]["torch"] = "1.0"
    before["machine"]["threads"] = 96
    sentence = environment_changes(before, now)
    assert f"torch 1.0, now {now['libraries']['torch']}; threads 96, now" in sentence
    assert "need not be bit for bit" in sentence
    assert "\n" not in sentence
