"""Runs whose world model is no language model: what knows nothing is told apart from what learns."""

import json

import numpy as np
import pytest

from tests.stubs import TabularPolicy, TokenEvaluator
from wmrl_agents import GRPOConfig, GRPOTrainer
from wmrl_agents.cli import main
from wmrl_agents.grpo.metrics import blindness
from wmrl_agents.grpo.parts import build_parts
from wmrl_agents.report import write_report
from wmrl_agents.runs import read_metrics
from wmrl_envs.errors import ConfigError

BASE = GRPOConfig(
    steps=24,
    groups_per_step=4,
    group_size=6,
    max_turns=1,
    learning_rate=0.02,
    min_pairs=12,
    refit_every=12,
    warmup_groups=2,
    competitions=("digits", "sms-spam"),
    sandbox="unsafe",
)


def train(run_dir, steps=BASE.steps, **changes):
    """A run with the world model that the config names; what is executed are `TabularPolicy`'s programs."""
    config = BASE.replace(**changes)
    parts = build_parts(config, run_dir.parent / "executions.sqlite")
    parts.load_policy, parts.executor = TabularPolicy.load, TokenEvaluator()
    trainer = GRPOTrainer(config, run_dir, parts)
    trainer.train(should_stop=lambda: trainer.next_step >= steps)
    return trainer


@pytest.mark.parametrize("name", ["noise", "constant"])
def test_what_knows_nothing_is_found_blind_and_said_to_be(tmp_path, name):
    trainer = train(tmp_path / "run", world_model=name)
    metrics = read_metrics(tmp_path / "run")
    blind = [step["step"] for step in metrics if step["blind"]]
    assert len(blind) > 10
    assert blind[0] >= 8  # a step has one anchor group here, and judgement waits for eight
    rows = trainer.store._connection.execute(
        "SELECT DISTINCT step FROM trajectories WHERE source = 'world_model'"
    ).fetchall()
    assert [step for (step,) in rows] == [step["step"] for step in metrics if not step["blind"]]
    sentence = blindness(metrics, ignored=True)
    assert sentence.startswith(f"The world model was blind in {len(blind)} of 24 steps")
    assert "did not count" in sentence
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert f"blind in {len(blind)} of 24 steps" in page


@pytest.mark.parametrize("name", ["noise", "constant"])
def test_what_knows_nothing_changes_nothing_where_it_has_to_show_first_that_it_does(tmp_path, name):
    alone = train(tmp_path / "alone", reward_source="anchors_alone", steps=12)
    blind = train(tmp_path / "blind", world_model=name, presume_blind=True, steps=12)
    assert blind.policy.table.tolist() == alone.policy.table.tolist()
    metrics = [read_metrics(trainer.run_dir) for trainer in (alone, blind)]
    shared = ("score", "executions", "executions_real_would_use", "tokens", "kl", "grad_norm")
    assert [[step[key] for key in shared] for step in metrics[0]] == [
        [step[key] for key in shared] for step in metrics[1]
    ]
    assert metrics[1][-1]["pairs"] > 0
    sentence = blindness(metrics[1], ignored=True)
    assert "did not count" in sentence
    last = next(step["step"] for step in metrics[1] if step["blind"])  # counted from 1, as in progress
    assert f"the last of them step {last}, the world model played no groups" in sentence


def test_one_that_sees_counts_once_that_has_been_shown(tmp_path):
    trainer = train(tmp_path / "run", world_model="learned", learning_rate=0.001, presume_blind=True)
    metrics = read_metrics(trainer.run_dir)
    ignored = [step["predictions_ignored"] for step in metrics]
    assert ignored[0]
    assert not ignored[-1]
    played = trainer.store._connection.execute(
        "SELECT DISTINCT step FROM trajectories WHERE source = 'world_model'"
    ).fetchall()
    assert [step for (step,) in played] == [step for step, left_out in enumerate(ignored) if not left_out]


def test_the_report_does_not_say_so_of_one_that_sees(tmp_path):
    trainer = train(tmp_path / "run", world_model="learned", steps=4)
    assert blindness(read_metrics(trainer.run_dir), ignored=True) is None


def test_a_run_told_not_to_ignore_it_says_so(tmp_path):
    train(tmp_path / "run", world_model="noise", ignore_blind=False)
    assert "counted all the same" in blindness(read_metrics(tmp_path / "run"), ignored=False)


def test_one_that_learns_sees_more_and_more(tmp_path):
    train(tmp_path / "run", world_model="learned", learning_rate=0.001)
    metrics = read_metrics(tmp_path / "run")
    assert metrics[0]["signal_z"] is None
    assert metrics[-1]["signal_z"] > 2.3
    assert not metrics[-1]["blind"]


@pytest.mark.parametrize("settings", [{}, {"presume_blind": True, "learning_rate": 0.001}])
def test_one_that_learns_goes_on_where_it_was(tmp_path, settings):
    runs = {}
    for name, stops in (("whole", [24]), ("parts", [3, 9, 17, 24])):
        for steps in stops:
            train(tmp_path / name, world_model="learned", steps=steps, **settings)
        runs[name] = [
            {key: value for key, value in step.items() if not key.startswith("seconds_")}
            for step in read_metrics(tmp_path / name)
        ]
    assert runs["whole"] == runs["parts"]
    played = [not step["predictions_ignored"] for step in runs["whole"]]
    assert any(played)
    assert all(played) == (settings == {})


@pytest.mark.parametrize("name", ["learned", "noise", "constant"])
def test_their_predictions_are_not_stored_and_a_run_says_so(tmp_path, name):
    with pytest.raises(ConfigError, match=f"prediction_cache: what the world model '{name}' says"):
        train(tmp_path / "run", world_model=name, prediction_cache=str(tmp_path / "predictions.sqlite"))


def test_fidelity_asks_one_that_learns_before_it_is_told(tmp_path):
    train(tmp_path / "run", world_model="learned", reward_source="real", learning_rate=0.001)
    output = tmp_path / "numbers.json"
    assert main(["fidelity", str(tmp_path / "run"), "--world-model", "learned", "--output", str(output)]) == 0
    scores = json.loads(output.read_text())["fidelity"]["scores"]
    assert {predicted for _, predicted, _ in scores[:6]} == {0.5}
    real, predicted, _ = np.array(scores[len(scores) // 2 :], dtype=float).T
    assert 0.5 < np.corrcoef(real, predicted)[0, 1] < 1
