"""What `benchmarks/default_preset.py` counts."""

import json

import pytest

from benchmarks import default_preset
from wmrl_agents.grpo.config import GRPOConfig, save_config


def write_run(folder, arm, seed, score, valid_rate=0.5):
    run = folder / f"{arm}-{seed}"
    run.mkdir()
    for when, numbers in {"before": (0.25, 0.5), "after": (score, valid_rate)}.items():
        summary = dict(zip(("score", "valid_rate"), numbers, strict=True)) | {
            "valid_score": 0.75,
            "tasks": [],
        }
        (run / f"evaluation-{when}.json").write_text(json.dumps(summary))


def test_runs_are_compared_with_the_control_of_the_same_seed(tmp_path):
    for seed, score in {0: 0.5, 1: 0.25, 10: 0.0}.items():
        write_run(tmp_path, "anchors-alone", seed, score)
    for seed, score in {0: 0.75, 1: 0.25, 2: 1.0}.items():
        write_run(tmp_path, "noise", seed, score)
    found = default_preset.scores(tmp_path)
    assert {arm: list(runs) for arm, runs in found.items()} == {
        "before": [0, 1, 10, 2],
        "anchors-alone": [0, 1, 10],
        "noise": [0, 1, 2],
    }
    gains, mean, low, high = default_preset.difference(found["noise"], found["anchors-alone"])
    assert (gains, mean) == ([0.25, 0.0], 0.125)
    # Two values 0.25 apart have a standard error of 0.125, and t(0.975) with one degree of freedom is 12.706.
    assert (low, high) == (pytest.approx(0.125 - 1.5883, abs=1e-4), pytest.approx(0.125 + 1.5883, abs=1e-4))


def test_the_tables_show_means_and_differences(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "anchors-alone", seed, 0.5)
        write_run(tmp_path, "constant", seed, 0.5)
    write_run(tmp_path, "real", 0, 0.625, valid_rate=0.75)
    assert default_preset.tables(default_preset.scores(tmp_path)).splitlines() == [
        "| rewards | seeds | score | failing | valid ones |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| before | 2 | 0.250 | 50 % | 0.750 |",
        "| anchors-alone | 2 | 0.500 | 50 % | 0.750 |",
        "| real | 1 | 0.625 | 25 % | 0.750 |",
        "| constant | 2 | 0.500 | 50 % | 0.750 |",
        "",
        "| against anchors-alone | each seed | mean | 95 % interval |",
        "| --- | --- | ---: | --- |",
        "| constant | +0.000, +0.000 | +0.000 | +0.000 to +0.000 |",
    ]


def test_what_an_evaluation_could_not_say_is_left_out_of_the_mean(tmp_path):
    for seed, valid in {0: 0.5, 1: None}.items():
        write_run(tmp_path, "noise", seed, 0.25, valid_rate=valid)
    (tmp_path / "noise-2").mkdir()  # under way
    (tmp_path / "noise-2/evaluation-before.json").write_text("{}")
    found = default_preset.scores(tmp_path)
    assert list(found["noise"]) == [0, 1]
    assert "| noise | 2 | 0.250 | 50 % | 0.750 |" in default_preset.tables(found)


def test_a_run_is_begun_or_gone_on_with(tmp_path):
    words = default_preset.command(tmp_path, "noise", 3)
    assert words[:7] == ["train", "--preset", "default", "--world-model", "noise", "--seed", "3"]
    assert words[-2:] == ["--run-dir", str(tmp_path / "noise-3")]
    (tmp_path / "noise-3").mkdir()
    save_config(GRPOConfig(), tmp_path / "noise-3/config.yaml")
    assert default_preset.command(tmp_path, "noise", 3) == [
        "train",
        "--resume",
        str(tmp_path / "noise-3"),
    ]


def test_an_arm_that_there_is_not_is_named_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        default_preset.main([str(tmp_path), "--arms", "wmrl,imagined"])
    assert "there is no arm imagined: name some of wmrl, anchors-alone" in capsys.readouterr().err
