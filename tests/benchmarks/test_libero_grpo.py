"""What `benchmarks/libero_grpo.py` counts."""

import json
from pathlib import Path

import pytest

from benchmarks import libero_grpo


def evaluation(path, rows):
    episodes = [
        {"task": 5, "init_state": state, "env_seed": seed, "success": won} for state, seed, won in rows
    ]
    path.write_text(json.dumps({"episodes": episodes}))
    return libero_grpo.success(path)


def test_the_gain_is_that_of_paired_episodes_averaged_over_states(tmp_path):
    before = evaluation(tmp_path / "a.json", [(0, 0, False), (0, 1, True), (1, 0, False), (1, 1, False)])
    after = evaluation(tmp_path / "b.json", [(1, 1, True), (1, 0, False), (0, 1, True), (0, 0, True)])
    found = libero_grpo.gain(before, after, [0, 1])
    assert (found["before"], found["after"], found["gain"]) == (0.25, 0.75, 0.5)
    # Both states gain one episode of two: whichever are drawn, the mean is a half.
    assert (found["low"], found["high"]) == (0.5, 0.5)


def test_the_interval_is_over_states_and_not_over_their_episodes():
    # One state of two gains everything: a draw of two states has a mean of 0, 1/2 or 1.
    before = {(state, seed): 0.0 for state in (0, 1) for seed in range(50)}
    after = {key: float(key[0] == 0) for key in before}
    found = libero_grpo.gain(before, after, [0, 1])
    assert (found["low"], found["gain"], found["high"]) == (0.0, 0.5, 1.0)


def test_other_episodes_are_not_compared():
    with pytest.raises(SystemExit, match="different episodes"):
        libero_grpo.gain({(0, 0): 1.0}, {(0, 1): 1.0}, [0])


def test_the_table_shows_each_arm_and_split():
    numbers = {"before": 0.4, "after": 0.55, "gain": 0.15, "low": -0.01, "high": 0.3}
    shown = libero_grpo.table({"wmrl": {"all": numbers, "seen": numbers}})
    assert shown.splitlines() == [
        "| rewards | all | seen |",
        "| --- | ---: | ---: |",
        "| wmrl | 55 (+15, -1 to +30) | 55 (+15, -1 to +30) |",
    ]


def test_gains_are_those_of_all_arms_that_were_evaluated(tmp_path):
    rows = [(state, 0, False) for state in (3, 4, 20, 30)]
    evaluation(tmp_path / "evaluation-before.json", rows)
    evaluation(tmp_path / "evaluation-wmrl.json", [(state, seed, state < 16) for state, seed, _ in rows])
    evaluation(tmp_path / "evaluation-anchors-alone.json", rows)
    found = libero_grpo.gains(tmp_path)
    assert list(found) == ["anchors alone", "wmrl"]
    shown = {name: one["gain"] for name, one in found["wmrl"].items()}
    assert shown == {"all": 0.5, "seen": 1, "unseen": 0}


def test_an_arm_that_there_is_not_is_named_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        libero_grpo.main([str(tmp_path), "--arms", "wmrl,imagined"])
    assert "there is no arm imagined: name some of real, world model" in capsys.readouterr().err


def test_the_published_table_is_that_of_the_published_numbers():
    root = Path(__file__).parents[2]
    results = json.loads((root / "benchmarks/libero_grpo.json").read_text(encoding="utf-8"))
    assert list(results) == list(libero_grpo.ARMS)
    assert libero_grpo.table(results) in (root / "docs/embodied.md").read_text(encoding="utf-8")
