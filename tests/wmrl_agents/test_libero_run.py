"""A few actions of LIBERO itself through the trainer and the evaluation: `make test-libero`."""

import json

import numpy as np
import pytest
import torch

from tests.wmrl_envs.libero.installed import needs_libero, played
from wmrl_agents.cli import main
from wmrl_agents.grpo.checkpoint import latest_checkpoint
from wmrl_agents.policies.vla.action_tokens import ResidualCodec
from wmrl_agents.policies.vla.libero_view import STATE_SIZE
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_agents.runs import read_metrics
from wmrl_envs.libero.demonstrations import save_demonstration
from wmrl_envs.libero.tasks import TASKS
from wmrl_envs.libero.views import PictureView
from wmrl_rewards import ProgressModel, ProgressRollout

WORDS = TASKS[5].instruction
SETTINGS = {
    "preset": "libero-cpu",
    "libero-tasks": "5",
    "init-states": "0-1",
    "horizon": "16",
    "steps": "2",
    "groups-per-step": "2",
    "group-size": "2",
    "anchor-fraction": "0.5",
    "evaluate-before": "false",
    "evaluate-after": "false",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A policy that moves at random, and a model of progress that has seen nothing of LIBERO."""
    folder = tmp_path_factory.mktemp("models")
    books = torch.randn(2, 16, 56, generator=torch.Generator().manual_seed(0)) * 0.3
    SmallVLA((WORDS,), ResidualCodec(books), state_size=STATE_SIZE, hidden=16).save(folder / "policy")
    states = np.random.default_rng(0).normal(size=(12, STATE_SIZE)).astype(np.float32)
    model = ProgressModel([WORDS], observed="states", state_size=STATE_SIZE)
    model.fit([ProgressRollout(states, WORDS, True)], steps=5)
    model.save(folder / "progress")
    return folder


def train(models, run_dir, **changes):
    settings = {"policy": models / "policy", "world-model": models / "progress", **SETTINGS, **changes}
    flags = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    assert main(["train", "--run-dir", str(run_dir), *flags]) == 0
    weights = SmallVLA.load(latest_checkpoint(run_dir).policy_dir).network.state_dict()
    return {name: value.tolist() for name, value in weights.items()}


@needs_libero
def test_two_steps_of_it_in_two_processes(models, tmp_path):
    weights = train(models, tmp_path / "run")
    first, second = read_metrics(tmp_path / "run")
    assert (first["turns"], first["tokens"], first["missing"]) == (8, 16, 0)
    assert (first["executions"], first["executions_real_would_use"]) == (2, 4)
    assert 0 <= first["score_calibrated"] <= 1
    assert first["seconds_wait"] > 0
    assert np.isfinite(second["grad_norm"])
    assert weights != train(models, tmp_path / "other", seed=1)
    assert weights == train(models, tmp_path / "again")
    table = tmp_path / "table.json"
    arguments = ["--suite", "libero_10", "--states", "0,20", "--repeats", "2", "--output", str(table)]
    assert main(["evaluate", str(tmp_path / "run"), *arguments]) == 0
    summary = json.loads(table.read_text())
    assert [summary[name]["states"] for name in ("in_domain", "out_of_distribution", "overall")] == [1, 1, 2]
    assert all(len(one["actions_hash"]) == 16 and one["actions"] == 16 for one in summary["episodes"])


@needs_libero
def test_pictures_are_seen_too(models, tmp_path):
    books = ResidualCodec(torch.zeros(1, 2, 56))
    SmallVLA((WORDS,), books, pictures=True, hidden=8).save(tmp_path / "policy")
    settings = {"policy": tmp_path / "policy", "world-model": "noise", "observations": "images"}
    train(models, tmp_path / "run", **settings, steps="1", **{"image-size": "64", "simulators": "1"})
    [step] = read_metrics(tmp_path / "run")
    assert (step["turns"], step["missing"]) == (8, 0)
    assert main(["libero", "show", str(tmp_path / "run"), "--task", "5", "--init-state", "7"]) == 0
    assert {path.name for path in (tmp_path / "run" / "episodes").iterdir()} == {
        f"task-5-state-07-seed-0.{ending}" for ending in ("gif", "png", "json")
    }


@needs_libero
@pytest.mark.slow
def test_from_demonstrations_to_pictures_to_models_to_a_run(tmp_path, capsys):
    for state in (0, 1):
        save_demonstration(tmp_path / "demos", played(state, steps=12))
    shown = ["--demos", str(tmp_path / "demos"), "--tasks", "5", "--observations", "images"]
    shown += ["--image-size", "32"]
    small = ["--steps", "4", "--batch-size", "8", "--hidden", "8", "--codes", "4", "--held-out", "0"]
    assert main(["libero", "sft", *shown, *small, "--run-dir", str(tmp_path / "sft")]) == 0
    assert "Drew 3 pictures of task-5/init-01-seed-0.npz" in capsys.readouterr().out
    assert main(["libero", "progress", *shown, "--steps", "2", "--out", str(tmp_path / "progress")]) == 0
    # Before actions 0 and 8 they are there; the end is new.
    assert "Drew 1 pictures of task-5/init-01-seed-0.npz" in capsys.readouterr().out
    assert main(["libero", "sft", *shown, *small, "--run-dir", str(tmp_path / "again")]) == 0
    assert "Drew" not in capsys.readouterr().out
    first, again = (SmallVLA.load(tmp_path / name / "checkpoints" / "step-4") for name in ("sft", "again"))
    assert first.view == PictureView(image_size=32)
    weights = [policy.network.state_dict() for policy in (first, again)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())

    settings = {"policy": tmp_path / "sft", "world-model": tmp_path / "progress", "observations": "images"}
    settings |= {"steps": "1", "groups-per-step": "1", "anchor-fraction": "1", "simulators": "1"}
    train(tmp_path, tmp_path / "run", **settings, **{"image-size": "32"})
    [step] = read_metrics(tmp_path / "run")
    assert (step["turns"], step["missing"], step["rescued"]) == (4, 0, 0)
    capsys.readouterr()
    asked = ["--suite", "libero_10", "--states", "0", "--image-size", "64"]
    assert main(["evaluate", str(tmp_path / "run"), *asked]) == 2
    assert "with image_size 32, not 64: say --image-size 32" in " ".join(capsys.readouterr().err.split())
