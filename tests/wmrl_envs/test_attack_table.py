"""The table of attacks in the documentation is the one of the suite."""

from tests.attack_table import HEADS, PAGE, row, with_table
from tests.attacks import ERROR, LIMITS, NOTHING, OOM, Attack


def test_the_page_shows_the_suite_as_it_is():
    page = PAGE.read_text()
    assert page == with_table(page), "run  python -m tests.attack_table"


def test_a_row_names_what_is_not_held():
    assert row(Attack("a bomb", "", OOM, watcher=ERROR)) == (
        "a bomb",
        "oom (watcher: error)",
        "oom",
        "**not held**",
    )
    held = row(Attack("a nap", "", NOTHING, LIMITS, unsafe=True))
    assert held == ("a nap", *["ok, no submission"] * 3)
    assert len(held) == len(HEADS)
