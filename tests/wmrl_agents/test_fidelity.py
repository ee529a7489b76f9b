"""`wmrl fidelity` on miniature runs and policies: what is asked, what is reported, what is refused."""

import json
import re
import sqlite3
from xml.etree import ElementTree

import pytest

import wmrl_agents.fidelity
from tests.stubs import TabularPolicy, TokenEvaluator, program_tokens
from tests.wmrl_agents.test_cli import refused
from tests.wmrl_agents.test_report import Page, train
from wmrl_agents.cli import main
from wmrl_agents.executed import error_type, executed_in_run, play_and_execute, some_groups
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.runs import create_run, load_run
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards import Prediction


class TokenWorldModel:
    """Predicts what a `TokenEvaluator` would say, and flatters; a 2 at the start cannot be read."""

    def __init__(self):
        self.asked = []

    def predict(self, requests):
        self.asked += requests
        return [self.answer(program_tokens(request.solution)) for request in requests]

    def answer(self, tokens):
        cost = {"seconds": 0.25, "prompt_tokens": 90, "new_tokens": 10}
        if tokens[:1] == [2]:
            return Prediction(None, error="The answer names no status.", **cost)
        if 3 in tokens:
            run = Outcome("error", stderr="Traceback ...\nKeyError: 3")
            return Prediction(0.0, outcome=Evaluation(run, source="world_model"), **cost)
        score = 0.25 + 0.75 * tokens.count(1) / len(tokens)
        graded = Evaluation(Outcome("ok"), Grade("ok", percentile=score), source="world_model")
        return Prediction(score, outcome=graded, **cost)


@pytest.fixture
def world_model(monkeypatch):
    model = TokenWorldModel()
    monkeypatch.setattr(wmrl_agents.fidelity, "_world_model", lambda config, store: model)
    return model


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "real", reward_source="real")


def test_a_run_is_measured_from_its_store(run_dir, world_model, tmp_path, capsys):
    output = tmp_path / "deep" / "numbers.json"
    assert main(["fidelity", str(run_dir), "--world-model", "tokens", "--output", str(output)]) == 0
    executed = executed_in_run(run_dir, load_run(run_dir))
    assert len(world_model.asked) == len(executed)
    numbers = json.loads(output.read_text())
    fidelity = numbers["fidelity"]
    assert numbers["world_model"] == "tokens"
    assert (fidelity["solutions"], fidelity["tasks"]) == (len(executed), 2)
    unread = [one for one in executed if program_tokens(one.solution.code)[0] == 2]
    assert fidelity["unreadable"] == pytest.approx(len(unread) / len(executed))
    assert fidelity["problems"] == {"The answer names no status.": len(unread)}
    # Statuses are right wherever there is an answer; scores are those of the evaluator, but flattered.
    assert fidelity["status_agreement"] == pytest.approx(1 - fidelity["unreadable"])
    for real, raw, _ in fidelity["scores"]:
        assert raw == pytest.approx(0.25 + 0.75 * real) or (real, raw) == (0.0, 0.0)
    assert (fidelity["seconds"], fidelity["tokens"]) == (0.25, 100.0)
    assert numbers["bounds"]["group_size"] == 4
    assert set(fidelity["raw"]["bias"]) == {"value", "low", "high"}
    text = capsys.readouterr().out
    for part in (
        "mean absolute error",
        "debiased",
        "KeyError",
        "x The answer names no status.",
        "is worth about",
    ):
        assert part in text or part == "KeyError"
    assert str(output) in text


def test_the_page_stands_alone(run_dir, world_model, tmp_path):
    output = tmp_path / "numbers.json"
    assert main(["fidelity", str(run_dir), "--output", str(output)]) == 0
    page = Page(output.with_suffix(".html"))
    assert not {"script", "link", "img", "iframe", "a"} & set(page.tags)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    drawings = re.findall(r"<svg.*?</svg>", page.source, re.DOTALL)
    assert len(drawings) >= 3
    for drawing in drawings:
        assert ElementTree.fromstring(drawing).get("aria-label")
    for part in (
        "Calibration",
        "Bias by level",
        "Rows: executed. Columns: predicted.",
        "cross-fitted by task",
    ):
        assert part in page.text


def test_scored_programs_are_the_trajectories_and_every_turn_is_more(run_dir):
    config = load_run(run_dir)
    scored = executed_in_run(run_dir, config)
    everything = executed_in_run(run_dir, config, every_turn=True)
    with sqlite3.connect(run_dir / "run.sqlite") as connection:
        stored = connection.execute("SELECT COUNT(*), TOTAL(score) FROM evaluations").fetchone()
        real = connection.execute(
            'SELECT DISTINCT step, "group", member, real FROM trajectories '
            'JOIN evaluations USING (step, "group", member) ORDER BY 1, 2, 3'
        ).fetchall()
    assert (len(everything), sum(one.score for one in everything)) == pytest.approx(stored)
    assert [one.score for one in scored] == [row[3] for row in real]
    assert [one.group for one in scored] == [row[:2] for row in real]
    assert {len(one.group) for one in everything} == {3}
    best = executed_in_run(run_dir, config.replace(trajectory_score="best"))
    assert sum(one.score for one in best) > sum(one.score for one in scored)
    assert {one.error for one in scored if one.status == "error"} == {None}  # "3" names no exception


def test_limits_take_whole_groups_at_random(run_dir):
    executed = executed_in_run(run_dir, load_run(run_dir))
    some = some_groups(executed, 20, seed=1)
    groups = {one.group for one in some}
    assert 20 <= len(some) < 20 + 4
    assert len(some) == sum(one.group in groups for one in executed)
    assert some == some_groups(executed, 20, seed=1) != some_groups(executed, 20, seed=2)
    assert some_groups(executed, None, seed=1) == some_groups(executed, 10_000, seed=1) == executed


def test_a_policy_plays_as_many_episodes_as_asked_for():
    competitions = [load_competition(name) for name in ("digits", "sms-spam")]
    config = GRPOConfig(group_size=4, max_turns=2)
    executor = TokenEvaluator()
    executed = play_and_execute(TabularPolicy(), competitions, config, executor, 9)
    # In groups of 3; an episode without a program gives nothing.
    assert {one.group for one in executed} == {(number,) for number in range(6)}
    assert all(sum(one.task == c.name for one in executed) <= 9 for c in competitions)
    assert len(executed) > 12
    assert executed == play_and_execute(TabularPolicy(), competitions, config, TokenEvaluator(), 9)
    everything = play_and_execute(TabularPolicy(), competitions, config, TokenEvaluator(), 9, every_turn=True)
    assert len(everything) == len(executor.seen)


def test_a_policy_is_measured(world_model, monkeypatch, tmp_path, capsys):
    class Closing(TokenEvaluator):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.closed = True

    executor = Closing()
    monkeypatch.setattr(wmrl_agents.fidelity, "make_executor", lambda config, cache: executor)
    monkeypatch.setattr(wmrl_agents.fidelity, "load_playing_policy", lambda config, source: TabularPolicy())
    output = tmp_path / "numbers.json"
    settings = ["--preset", "smoke", "--competitions", "digits", "--trajectories", "6"]
    assert main(["fidelity", "table", *settings, "--output", str(output)]) == 0
    assert executor.closed
    numbers = json.loads(output.read_text())
    assert numbers["source"] == "table"
    assert 0 < numbers["fidelity"]["solutions"] <= 6
    assert numbers["fidelity"]["cross_fitted_by"] == "group"
    assert "playing 6 episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("Traceback (most recent call last):\n  File\nKeyError: 'id'\n", "KeyError"),
        ("sklearn.exceptions.NotFittedError: not fitted", "NotFittedError"),
        ("MemoryError", "MemoryError"),
        ("a warning of some kind", None),
        ("", None),
        ("3", None),
    ],
)
def test_the_type_of_an_error_is_its_last_line(stderr, expected):
    assert error_type(stderr) == expected


def test_error_types_are_read_from_what_the_agent_was_told(tmp_path):
    run = train(tmp_path / "run", steps=2, reward_source="real")
    with sqlite3.connect(run / "run.sqlite") as connection:
        told = "status: error\nstdout:\nhello\nstderr:\nTraceback\nValueError: no"
        connection.execute(
            "UPDATE turns SET observation = ? WHERE observation LIKE 'status: error%'", (told,)
        )
    errors = {one.error for one in executed_in_run(run, load_run(run)) if one.status == "error"}
    assert errors == {"ValueError"}


def test_what_cannot_be_measured_is_refused(run_dir, world_model, tmp_path, capsys):
    predicted = train(tmp_path / "predicted", steps=1, reward_source="world_model")
    assert "executed nothing" in refused(capsys, "fidelity", str(predicted))
    create_run(tmp_path / "new", GRPOConfig())
    assert "has not made a step yet" in refused(capsys, "fidelity", str(tmp_path / "new"))
    (tmp_path / "new" / "run.sqlite").write_text("{ this is no database, but long enough to be taken for one")
    assert "cannot be read" in refused(capsys, "fidelity", str(tmp_path / "new"))
    run = str(run_dir)
    assert "--limit must be at least 1" in refused(capsys, "fidelity", run, "--limit", "0")
    assert "--trajectories must be at least 1" in refused(capsys, "fidelity", run, "--trajectories", "-3")
    assert "--output names the JSON file" in refused(capsys, "fidelity", run, "--output", "page.html")
    assert "group_size must be at least 2" in refused(capsys, "fidelity", run, "--group-size", "1")


def test_a_world_model_that_cannot_be_had_is_refused(run_dir, tmp_path, capsys):
    assert "no model directory" in refused(
        capsys, "fidelity", str(run_dir), "--world-model", str(tmp_path / "no" / "model")
    )
    assert "after a '#'" in refused(
        capsys, "fidelity", str(run_dir), "--world-model", "http://127.0.0.1:1/v1"
    )


def test_a_competition_that_is_gone_is_named(tmp_path, world_model, capsys):
    run = train(tmp_path / "run", steps=1, reward_source="real")
    with sqlite3.connect(run / "run.sqlite") as connection:
        connection.execute("UPDATE trajectories SET competition = 'titanik'")
    assert "Unknown competition 'titanik'" in refused(capsys, "fidelity", str(run))


def test_a_world_model_without_any_answer_is_said(run_dir, monkeypatch, capsys):
    class Silent:
        def predict(self, requests):
            return [Prediction(None, error="The server is gone.") for _ in requests]

    monkeypatch.setattr(wmrl_agents.fidelity, "_world_model", lambda config, store: Silent())
    assert "No prediction at all: The server is gone." in refused(capsys, "fidelity", str(run_dir))


def test_a_policy_that_writes_no_program_is_said():
    silent = TabularPolicy()
    silent.table.data[:, 5] = 50.0  # ends each reply at once
    with pytest.raises(ConfigError, match="wrote no program"):
        play_and_execute(silent, [load_competition("digits")], GRPOConfig(max_turns=1), TokenEvaluator(), 2)


@pytest.mark.slow
@pytest.mark.sandbox
def test_the_whole_command_with_nothing_replaced(tmp_path, capsys):
    output = tmp_path / "numbers.json"
    settings = ["--preset", "smoke", "--competitions", "breast-cancer", "--max-turns", "1"]
    command = ["fidelity", "tiny-coder", *settings, "--trajectories", "4", "--output", str(output)]
    assert main(command) == 0
    first = json.loads(output.read_text())
    assert first["fidelity"]["tokens"] > 100
    assert (tmp_path / "predictions.sqlite").is_file()
    # A second time nothing is executed or predicted again, and what it cost is still known.
    assert main(command) == 0
    second = json.loads(output.read_text())
    for name in ("scores", "statuses", "real_seconds", "tokens"):
        assert second["fidelity"][name] == first["fidelity"][name]
