import pytest

from benchmarks.sandbox import Check, main


@pytest.mark.slow
@pytest.mark.sandbox
def test_it_measures_every_promise_on_a_small_scale(capsys):
    """How the numbers come out on a busy machine is not for a test to say."""
    assert main(["--quick"]) in (0, 1)
    said = capsys.readouterr().out
    for promise in (
        "bubblewrap: added",
        "bubblewrap: throughput",
        "limited: throughput",
        "a hit in the cache",
    ):
        assert promise in said
    assert "(at most 60: " in said
    assert "(at least 0.93: " in said
    assert "(at most 2: " in said


@pytest.mark.parametrize(
    ("check", "holds", "ending"),
    [
        (Check("x", 60.0, "ms", at_most=60.0), True, "(at most 60: holds)"),
        (Check("x", 60.1, "ms", at_most=60.0), False, "(at most 60: FAILS)"),
        (Check("x", 0.93, "", at_least=0.93), True, "(at least 0.93: holds)"),
        (Check("x", 0.92, "", at_least=0.93), False, "(at least 0.93: FAILS)"),
        (Check("x", 5.0, "s"), True, "5.00 s"),
    ],
)
def test_a_promise_is_kept_up_to_its_bound(check, holds, ending):
    assert check.holds == holds
    assert str(check).endswith(ending)
