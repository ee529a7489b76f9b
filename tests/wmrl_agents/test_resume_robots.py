"""A robot's run that was killed at any moment goes on to the same end, bit for bit."""

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wmrl_agents.killed_robot_run import CONFIG, POINTS, make_trainer
from wmrl_agents.grpo.checkpoint import latest_checkpoint
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_agents.runs import read_metrics

ROOT = Path(__file__).parents[2]
QUERIES = (
    "SELECT * FROM trajectories",
    "SELECT * FROM turns",
    'SELECT step, "group", member, source, status, score, content, error FROM evaluations',
    "SELECT * FROM pairs",
)


def train(run_dir):
    trainer = make_trainer(run_dir)
    assert trainer.train()
    trainer.close()


def outcome(run_dir):
    """All that a run leaves but times."""
    checkpoint = latest_checkpoint(run_dir)
    moments = checkpoint.optimizer_state()["state"]
    with sqlite3.connect(run_dir / "run.sqlite") as connection:
        rows = [connection.execute(query).fetchall() for query in QUERIES]
    return {
        "step": checkpoint.step,
        "weights": {
            name: value.tolist()
            for name, value in SmallVLA.load(checkpoint.policy_dir).network.state_dict().items()
        },
        "moments": [{name: value.tolist() for name, value in one.items()} for one in moments.values()],
        "rewards": checkpoint.reward_state(),
        "metrics": [
            {name: value for name, value in step.items() if not name.startswith("seconds_")}
            for step in read_metrics(run_dir)
        ],
        "rows": rows,
        "checkpoints": sorted(path.name for path in (run_dir / "checkpoints").iterdir()),
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(run_dir)
    result = outcome(run_dir)
    assert [step["step"] for step in result["metrics"]] == list(range(CONFIG.steps))
    assert result["metrics"][-1]["fitted"]
    assert all(result["rows"])
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
    assert 0 < finished.step < CONFIG.steps
    train(folder / point)
    assert outcome(folder / point) == uninterrupted
