"""The table of attacks in the documentation is what the suite recorded."""

import pytest

from tests import attack_table
from tests.attack_table import (
    BACK_ENDS,
    HEADS,
    NOT_HELD,
    PAGE,
    SWITCH,
    expected,
    load,
    meant_for,
    record,
    row,
    with_table,
    words,
)
from tests.attacks import ATTACKS, ERROR, NOTHING, OOM, Attack


def test_the_page_shows_what_was_recorded():
    page = PAGE.read_text()
    assert page == with_table(page, load()), "run  python -m tests.attack_table"


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_every_attack_is_recorded_with_the_end_that_it_must_have(back_end):
    """After a change of an attack: run the suite on all back ends with WMRL_RECORD_ATTACKS=1."""
    assert load()["ends"][back_end] == {
        attack.name: words(expected(back_end, attack)) for attack in meant_for(back_end)
    }


def test_every_attack_has_a_row_and_those_not_held_are_named():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [tuple(line.strip("| ").split(" | ")) for line in rows]
    found = {cells[0]: cells[1:] for cells in rows if len(cells) == len(HEADS)}
    assert {attack.name for attack in ATTACKS} <= set(found)
    for attack in ATTACKS:
        assert (found[attack.name][2] == NOT_HELD) == (not attack.unsafe)
        assert NOT_HELD not in found[attack.name][:2]


def test_a_row_says_where_a_watcher_ends_it_differently():
    ends = {
        "bubblewrap": {"a bomb": "oom", "a nap": "timeout"},
        "watcher": {"a bomb": "error"},
        "docker": {"a bomb": "oom", "a nap": "timeout"},
        "unsafe": {"a nap": "timeout"},
    }
    assert row("a bomb", ends) == ("a bomb", "oom (watcher: error)", "oom", NOT_HELD)
    assert row("a nap", ends) == ("a nap", "timeout", "timeout", "timeout")


def test_only_a_run_that_is_to_be_recorded_is(tmp_path, monkeypatch):
    monkeypatch.setattr(attack_table, "RESULTS", tmp_path / "results.json")
    monkeypatch.delenv(SWITCH, raising=False)
    first, last = ATTACKS[0], ATTACKS[-1]
    record("docker", first, ERROR, "engine 1")
    assert load() == {}
    monkeypatch.setenv(SWITCH, "1")
    for attack, end in ((last, NOTHING), (first, OOM), (first, ERROR), (Attack("gone", "", OOM), OOM)):
        record("docker", attack, end, "engine 2")
    assert list(load()["ends"]["docker"].items()) == [(first.name, "error"), (last.name, "ok, no submission")]
    assert load()["with"]["docker"] == "engine 2"
