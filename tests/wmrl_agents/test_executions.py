"""`wmrl cache` and `wmrl sandbox`, through the command."""

import sqlite3
import sys

import pytest

from wmrl_agents.cli import main
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.parts import make_executor
from wmrl_envs.evaluation import Grade
from wmrl_envs.sandbox import ExecutionCache, Result
from wmrl_rewards.prediction import Prediction
from wmrl_rewards.world_models.cached import PredictionStore


@pytest.fixture
def cache(tmp_path):
    cache = ExecutionCache(tmp_path / "executions.sqlite")
    cache.store("a", Result("ok", exit_code=0, seconds=1.5))
    cache.store("b", Result("ok", exit_code=0, seconds=2.0))
    cache.store("c", Result("timeout", seconds=30.0, stdout="\ud800"))
    cache.store_grade("a", "grader", Grade("ok", 0.5, 0.25))
    return cache


def test_stats_say_what_is_stored(capsys, cache):
    assert main(["cache", "stats", str(cache.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "3 executions: 2 ok, 1 timeout",
        "33.5 seconds of execution that need not be spent again",
        "1 grades",
    ]
    assert lines[3].endswith("MiB on disk, 0.0 MiB of it submissions")


def test_stats_say_what_did_not_end_alike_a_second_time(capsys, cache):
    for key, same in (("a", True), ("b", False), ("c", True)):
        cache.store_recheck(key, same)
    assert main(["cache", "stats", str(cache.path)]) == 0
    assert "3 programs were run twice, 1 of them ended otherwise" in capsys.readouterr().out.splitlines()


def test_clear_empties_the_file_and_says_how_much_that_was(capsys, cache):
    assert main(["cache", "clear", str(cache.path)]) == 0
    assert capsys.readouterr().out == f"Removed 3 executions from {cache.path}.\n"
    assert len(cache) == 0
    assert cache.load_grade("a", "grader") is None
    assert main(["cache", "stats", str(cache.path)]) == 0
    assert capsys.readouterr().out.startswith("0 executions\n0.0 seconds")


def test_a_file_of_predictions_is_told_by_its_content(capsys, tmp_path):
    path = tmp_path / "any name"
    store = PredictionStore(path)
    store.store(
        {
            "a": Prediction(0.5, seconds=1.25, new_tokens=10),
            "b": Prediction(0.25, seconds=2.0, new_tokens=7),
            "c": Prediction(1.0),
        }
    )
    assert main(["cache", "stats", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["3 predictions", "3.2 seconds and 17 new tokens that need not be spent again"]
    assert lines[2].endswith("MiB on disk")
    assert main(["cache", "clear", str(path)]) == 0
    assert capsys.readouterr().out == f"Removed 3 predictions from {path}.\n"
    assert len(store) == 0
    assert main(["cache", "stats", str(path)]) == 0
    assert capsys.readouterr().out.startswith("0 predictions\n0.0 seconds and 0 new tokens")


@pytest.mark.parametrize("command", ["stats", "clear"])
def test_only_a_cache_is_touched(capsys, tmp_path, command):
    other = tmp_path / "run.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE turns (step)")
    before = other.read_bytes()
    assert main(["cache", command, str(other)]) == 2
    assert "is a database, but not an execution cache" in capsys.readouterr().err
    assert other.read_bytes() == before


@pytest.mark.parametrize("content", [None, b"not a database at all, but long enough to look at"])
def test_what_is_no_cache_is_named(capsys, tmp_path, content):
    path = tmp_path / "cache.sqlite"
    if content is not None:
        path.write_bytes(content)
    assert main(["cache", "clear", str(path)]) == 2
    assert f"There is no execution cache at {path}" in capsys.readouterr().err
    assert path.exists() == (content is not None)


def test_a_path_is_asked_for(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["cache", "clear"])
    assert stopped.value.code == 2
    assert "FILE" in capsys.readouterr().err


def test_setup_leaves_a_folder_of_other_things_alone(capsys, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["sandbox", "setup", "--dir", str(tmp_path)]) == 2
    assert "holds other things: name an empty or new folder." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_run_uses_the_python_that_it_is_given(tmp_path):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    config = GRPOConfig(sandbox="unsafe", solution_python=str(python))
    assert make_executor(config, tmp_path / "cache.sqlite").sandbox.interpreter.executable == python
