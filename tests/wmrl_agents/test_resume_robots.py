"""A robot's run that was killed at any moment goes on to the same end, bit for bit."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.outcomes import robot_outcome
from tests.wmrl_agents.killed_robot_run import CHANGES, POINTS, make_trainer
from wmrl_agents.grpo.checkpoint import latest_checkpoint

ROOT = Path(__file__).parents[2]
STEPS = CHANGES["steps"]


def train(run_dir):
    trainer = make_trainer(run_dir)
    assert trainer.train()
    trainer.close()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(run_dir)
    result = robot_outcome(run_dir)
    assert [step["step"] for step in result["metrics"]] == list(range(STEPS))
    assert result["metrics"][-1]["fitted"]
    assert all(result["rows"].values())
    return result


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder with one killed run for each point, and the signals that ended them."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.wmrl_agents.killed_robot_run", str(folder)]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return folder, json.loads(output)


@pytest.mark.parametrize("point", POINTS)
def test_kill_9_and_resume_equals_the_uninterrupted_run(killed, uninterrupted, point):
    folder, signals = killed
    assert signals[point] == signal.SIGKILL
    finished = latest_checkpoint(folder / point)
    assert finished is not None
    assert 0 < finished.step < STEPS
    train(folder / point)
    assert robot_outcome(folder / point) == uninterrupted
