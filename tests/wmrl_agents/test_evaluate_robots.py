"""The paper's table by known answers, and the command that makes it."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.dots import dots, policy
from wmrl_agents import GRPOConfig, train
from wmrl_agents.cli import main
from wmrl_agents.evaluate_robots import evaluate_robots, print_robots, summarise_robots
from wmrl_agents.runs import read_metrics

CONFIG = GRPOConfig(task_suite="libero_10", evaluation_repeats=4, simulators=3)


class Scripted:
    """A policy that goes right, as far as a list says for each initial state and repeat."""

    def __init__(self, speed):
        self.policy, self.speed = policy(), speed

    def begin(self, system, user):
        return self.policy.begin(system, user)

    def extend(self, sample, user):
        return self.policy.extend(sample, user)

    def sample(self, prompts, *, seed, greedy=False):
        assert greedy
        return self.policy.sample(prompts, seed=seed, greedy=True)

    def chunk(self, sample):
        begin = float(sample.observations[0].state[0])
        state, repeat = divmod(round(1000 * begin), 10)
        chunk = np.zeros((8, 7), np.float32)
        chunk[:, 0] = self.speed(sample.task, state, repeat)
        return chunk


def test_the_table_of_known_answers():
    # Right: states 0 to 2 always, state 3 in half of the repeats, 4 and 5 never. Left: never.
    def speed(task, state, repeat):
        return 1.0 if state < 3 or (state == 3 and repeat % 2) else 0.1

    summary = evaluate_robots(Scripted(speed), dots(), CONFIG)
    right = summary["tasks"][1]
    assert right["in_domain"] == {"avg": 1.0, "best": 1.0, "all": 1.0, "states": 3}
    assert right["out_of_distribution"] == pytest.approx({"avg": 1 / 6, "best": 1 / 3, "all": 0, "states": 3})
    assert right["overall"] == pytest.approx({"avg": 3.5 / 6, "best": 4 / 6, "all": 3 / 6, "states": 6})
    assert summary["tasks"][0]["overall"] == {"avg": 0.0, "best": 0.0, "all": 0.0, "states": 6}
    assert summary["overall"] == pytest.approx({"avg": 3.5 / 12, "best": 4 / 12, "all": 3 / 12, "states": 12})
    assert len(summary["episodes"]) == 2 * 6 * 4
    # Each repeat has its own seed, but goes as far: only the two speeds of state 3 differ.
    assert summary["equal_repeats"] == 48 - 12 - 2
    first = summary["episodes"][0]
    assert (first["task"], first["init_state"], first["env_seed"]) == (0, 0, 0)
    assert {one["actions"] for one in summary["episodes"] if one["success"]} == {20}


def test_only_some_states():
    summary = evaluate_robots(
        Scripted(lambda task, state, repeat: 1.0), dots(tasks=(1,)), CONFIG, states=(5,)
    )
    assert summary["in_domain"] == {"avg": None, "best": None, "all": None, "states": 0}
    assert summary["out_of_distribution"]["avg"] == 1.0


def test_the_table_is_printed_in_percent():
    summary = evaluate_robots(Scripted(lambda task, state, repeat: 1.0), dots(), CONFIG)
    console = Console(width=100, file=io.StringIO())
    print_robots(console, summary, "RUN")
    text = console.file.getvalue()
    rows = [line.replace("│", " ").split() for line in text.splitlines()]
    assert ["overall", "all", "12", "50.0", "50.0", "50.0"] in rows
    assert ["in-domain", "1", "3", "100.0", "100.0", "100.0"] in rows
    assert "best@4" in text


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=8))
def test_all_is_at_most_average_and_average_at_most_best(tries):
    episodes = [
        {"task": 0, "init_state": state, "success": success, "actions_hash": ""}
        for state, pair in enumerate(tries)
        for success in pair
    ]
    rates = summarise_robots(episodes, seen=range(4))["overall"]
    assert 0 <= rates["all"] <= rates["avg"] <= rates["best"] <= 1
    assert rates["avg"] == pytest.approx(sum(map(sum, tries)) / (2 * len(tries)))


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command with dots where LIBERO would be, a policy and a progress model on disk."""
    from wmrl_agents.grpo import suites
    from wmrl_rewards import ProgressModel, ProgressRollout

    def load_suite(config):
        states = tuple(int(state) for state in config.init_states)
        return replace(dots(tasks=tuple(int(task) for task in config.libero_tasks)), init_states=states)

    monkeypatch.setattr(train, "load_suite", load_suite)
    monkeypatch.setattr(suites, "load_suite", load_suite)
    policy().save(tmp_path / "policy")
    line = np.zeros((20, 3), np.float32)
    line[:, 0] = np.linspace(0, 1, 20)
    model = ProgressModel(["go right"], observed="states", state_size=3)
    model.fit(
        [ProgressRollout(line, "go right", True), ProgressRollout(line / 3, "go right", False)], steps=20
    )
    model.save(tmp_path / "progress")
    return tmp_path


def test_train_and_evaluate_by_command(command, capsys):
    settings = {
        "policy": command / "policy",
        "world-model": command / "progress",
        "libero-tasks": 1,
        "init-states": "0,1",
        "steps": 2,
        "evaluation-repeats": 2,
    }
    flags = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    run = str(command / "run")
    assert main(["train", "--preset", "libero-cpu", "--run-dir", run, *flags]) == 0
    assert len(read_metrics(command / "run")) == 2
    for name in ("before", "after"):
        summary = json.loads((command / "run" / f"robots-evaluation-{name}.json").read_text())
        assert (summary["overall"]["states"], summary["in_domain"]["states"]) == (6, 2)
    out = command / "table.json"
    arguments = ["--suite", "libero_10", "--states", "0-2", "--repeats", "3", "--output", str(out)]
    assert main(["evaluate", run, *arguments]) == 0
    assert len(json.loads(out.read_text())["episodes"]) == 9
    assert "best@3" in capsys.readouterr().out
    flags = ["--libero-tasks", "1", "--init-states", "0"]
    assert main(["evaluate", str(command / "policy"), *flags, *arguments]) == 0
    assert json.loads(out.read_text())["in_domain"]["states"] == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"policy": "tiny-coder"}, "There is no policy of chunks in 'tiny-coder'"),
        ({"world-model": "nothing"}, "There is no model of progress in 'nothing'"),
        ({"lora-rank": "4"}, "trained with lora_rank none, not 4"),
        ({"dtype": "bfloat16"}, "trained with dtype float32, not bfloat16"),
        ({"task-suite": "libero_90"}, "task_suite must be one of autoresearch, libero_10"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(command, capsys, settings, sentence):
    known = {"policy": command / "policy", "world-model": command / "progress", "libero-tasks": 1}
    flags = [text for name, value in (known | settings).items() for text in (f"--{name}", str(value))]
    flags += ["--init-states", "0,1"]
    assert main(["train", "--preset", "libero-cpu", "--run-dir", str(command / "run"), *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_fidelity_is_for_programs(command, capsys):
    assert main(["fidelity", str(command / "policy"), "--task-suite", "libero_10"]) == 2
    assert "wmrl fidelity asks about programs" in capsys.readouterr().err
