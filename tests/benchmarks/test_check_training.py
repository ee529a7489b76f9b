import json

import pytest

from benchmarks.check_training import check_run

STEP = {"executions": 14, "executions_real_would_use": 100, "fitted": True, "rho": 2.0}
EARLY = {**STEP, "fitted": False, "rho": 1.0}


def write_run(folder, score, valid_score, steps):
    for when, numbers in {"before": (0.25, 0.5), "after": (score, valid_score)}.items():
        summary = dict(zip(("score", "valid_score"), numbers, strict=True))
        (folder / f"evaluation-{when}.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


def test_a_good_run_passes(tmp_path):
    checks = check_run(write_run(tmp_path, 0.375, 0.625, [EARLY, STEP]))
    assert [check.measured for check in checks] == [0.125, 0.125, 0.14, 0.5]
    assert all(check.holds for check in checks)


@pytest.mark.parametrize(
    ("run", "failing"),
    [
        ((0.3125, 0.625, [STEP]), 0),
        ((0.375, 0.515625, [STEP]), 1),
        ((0.375, 0.625, [{**STEP, "executions": 16}]), 2),
        ((0.375, 0.625, [EARLY, EARLY, STEP]), 3),
        ((0.375, 0.625, [EARLY, {**STEP, "rho": 1.0}]), 3),
        ((0.375, 0.625, [EARLY, {**STEP, "predictions_ignored": True}]), 3),
    ],
)
def test_each_shortfall_is_seen(tmp_path, run, failing):
    checks = check_run(write_run(tmp_path, *run))
    assert [index for index, check in enumerate(checks) if not check.holds] == [failing]
