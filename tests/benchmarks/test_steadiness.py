import pytest

from benchmarks import steadiness


def test_flat_is_steady_and_growth_is_not():
    flat = steadiness.judge([10**9] * 200, [1.0, 3.0] * 100)
    assert flat["steady"]
    assert flat["memory_growth"] == 0
    assert flat["seconds_ratio"] == 1
    leak = steadiness.judge([10**9 + step * 2 * 10**5 for step in range(200)], [1.0] * 200)
    assert leak["memory_growth"] == pytest.approx(0.034, abs=0.001)
    assert not leak["steady"]
    slower = steadiness.judge([10**9] * 200, [1.0 + 0.001 * step for step in range(200)])
    assert slower["seconds_ratio"] == pytest.approx(1.1745 / 1.0445)
    assert not slower["steady"]


def test_what_comes_before_step_20_does_not_count():
    verdict = steadiness.judge(
        [step * 10**8 for step in range(20)] + [2 * 10**9] * 60, [9.0] * 20 + [1.0] * 60
    )
    assert verdict["steady"]


def test_a_short_run_gives_every_number(tmp_path):
    config = steadiness.GRPOConfig(
        steps=2,
        competitions=("digits",),
        groups_per_step=2,
        group_size=2,
        max_turns=1,
        max_new_tokens=24,
        threads=1,
    )
    memory, seconds = steadiness.measure(config, tmp_path / "run")
    assert len(memory) == len(seconds) == 2
    assert all(0 < size < 2**36 for size in memory)
    assert all(second > 0 for second in seconds)
