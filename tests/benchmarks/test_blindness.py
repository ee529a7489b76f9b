"""What `benchmarks/blindness.py` counts."""

import numpy as np

from benchmarks import blindness


def test_one_that_knows_is_shown_and_not_blind_and_one_that_always_errs_is_neither():
    def ladder(rng, size):
        return np.linspace(0, 1, size)

    def upside_down(rng, size):
        return np.linspace(1, 0, size)

    rng = np.random.default_rng(0)
    assert blindness.looks(rng, 4, ladder, ladder, 8).all()
    assert not blindness.looks(rng, 4, ladder, upside_down, 8).any()


def test_the_table_has_a_row_for_each_size_and_kinds(capsys):
    assert blindness.main(["--sizes", "2,3", "--groups", "8", "--runs", "2"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 2 * 3 * 3
    assert rows[0].startswith("| 2 | one success | one success | ")
