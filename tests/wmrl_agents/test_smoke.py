"""The command with nothing replaced: the tiny coder, its world model, bubblewrap, a bundled competition."""

import json
import sqlite3

import pytest

from tests.wmrl_agents.test_cli import without_times
from wmrl_agents.cli import main

TASK = ["--preset", "smoke", "--competitions", "breast-cancer", "--max-turns", "1"]
SMALL = [*TASK, "--groups-per-step", "2", "--group-size", "2"]

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke")
    cache = ["--execution-cache", str(folder / "executions.sqlite")]
    assert main(["train", *SMALL, *cache, "--run-dir", str(folder / "whole"), "--steps", "4"]) == 0
    assert main(["train", *SMALL, *cache, "--run-dir", str(folder / "halves"), "--steps", "2"]) == 0
    assert main(["train", "--resume", str(folder / "halves"), "--steps", "4"]) == 0
    return folder / "whole"


def test_two_steps_and_a_resume_equal_four(run_dir):
    halves = run_dir.with_name("halves")
    assert without_times(halves) == without_times(run_dir)
    weights = "checkpoints/step-4/policy/model.safetensors"
    assert (halves / weights).read_bytes() == (run_dir / weights).read_bytes()


def test_anchors_were_executed_and_the_others_were_not(run_dir):
    with sqlite3.connect(run_dir / "run.sqlite") as connection:
        rows = connection.execute(
            "SELECT trajectories.source, evaluations.source, status, seconds "
            'FROM evaluations JOIN trajectories USING (step, "group", member)'
        ).fetchall()
    executed = [row for row in rows if row[:2] == ("real", "real")]
    assert len(executed) == 4 * 2
    assert all(seconds > 0 for *_, seconds in executed)
    assert any(status == "ok" for _, _, status, _ in executed)
    rescued = sum(step["rescued"] for step in without_times(run_dir))
    assert sum(row[:2] == ("world_model", "real") for row in rows) == rescued


def test_log_probabilities_of_training_are_those_of_sampling(run_dir):
    assert without_times(run_dir)[0]["logp_mismatch"] < 1e-4


def test_a_run_and_a_model_are_evaluated_on_the_private_half(run_dir, tmp_path, capsys):
    cache = ["--execution-cache", str(run_dir.with_name("executions.sqlite"))]
    assert main(["evaluate", str(run_dir), "--repeats", "2"]) == 0
    numbers = json.loads((run_dir / "evaluation-train-private.json").read_text())
    assert (numbers["half"], numbers["repeats"], numbers["missing"]) == ("private", 2, 0)
    assert [task["competition"] for task in numbers["tasks"]] == ["breast-cancer"]
    assert "avg@2" in capsys.readouterr().out
    output = tmp_path / "numbers.json"
    arguments = [*TASK, *cache, "--repeats", "2", "--output", str(output)]
    assert main(["evaluate", "tiny-coder", *arguments]) == 0
    assert 0 <= json.loads(output.read_text())["score"] <= 1


def test_a_world_model_that_knows_nothing_leaves_no_trace_in_the_weights(tmp_path):
    """Where it has to show first that it sees, training with it is training with the anchors alone."""
    cache = ["--execution-cache", str(tmp_path / "executions.sqlite"), "--steps", "3"]
    ways = {
        "alone": ["--reward-source", "anchors_alone"],
        "noise": ["--world-model", "noise", "--presume-blind", "true"],
        "trusted": ["--world-model", "noise"],
    }
    learned = {}
    for name, way in ways.items():
        run = ["--run-dir", str(tmp_path / name), "--group-size", "4"]
        assert main(["train", *SMALL, *cache, *way, *run]) == 0
        learned[name] = (tmp_path / name / "checkpoints/step-3/policy/model.safetensors").read_bytes()
    assert learned["noise"] == learned["alone"] != learned["trusted"]
