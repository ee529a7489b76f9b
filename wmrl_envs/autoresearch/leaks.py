"""Does a public file give the answers away? A scan of everything that a test row can be joined with.

A column gives a target away if it determines it, on the test rows, in a way that cannot be chance:

- rows with the same value have the same answer (a code of the label, whatever its spelling), or
- sorted by the column, each label is one unbroken stretch (an area under the curve of 1), or
- the column sorts the rows as the target does, or the other way round (a logarithm of it, a rank).

Each of these can happen by chance where rows are few, so each is weighed by the logarithm of that chance, had
the answers been dealt to the rows at random. An id that is different in every row determines everything, and
its chance is 1: that is no leak.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lgamma, log
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wmrl_envs.autoresearch.checks import Finding
from wmrl_envs.autoresearch.matching import positions, to_float
from wmrl_envs.autoresearch.tables import UnreadableError, read_table

if TYPE_CHECKING:
    from wmrl_envs.autoresearch.competition import Competition

__all__ = ["find_leaks", "gives_away", "side_tables"]

LOG_CHANCE = log(1e-6)
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def find_leaks(competition: Competition) -> Iterator[Finding]:
    """Everything in the public files that gives a target away.

    Raises:
        UnreadableError: A table cannot be read.
    """
    answers = competition.answers()
    for clue in _clues(competition):
        for target in competition.target_columns:
            if gives_away(clue.values, answers[target].iloc[clue.rows]):
                message = f"gives the answers away: {clue.name} tells {target} of the test rows."
                yield Finding("error", clue.where, message)


def gives_away(values: pd.Series, answers: pd.Series) -> bool:
    """Whether values determine answers in a way that is no chance; see the module for what counts.

    Args:
        values: A column, one value a row.
        answers: The answers of the same rows, in the same order.

    Example:
        >>> answers = pd.Series([0, 1, 1, 0, 1] * 8)
        >>> gives_away(answers.map({0: "blue", 1: "red"}), answers)
        True
        >>> gives_away(pd.Series(range(40)), answers)
        False
    """
    labels = pd.factorize(answers)[0]
    if len(labels) == 0 or labels.max() < 1:
        return False
    if _groups_are_pure(pd.factorize(values.astype(str).str.strip())[0], labels):
        return True
    numbers = to_float(values)
    finite = np.isfinite(numbers)
    return _is_sorted_by(numbers[finite], labels[finite]) or _has_the_same_order(
        numbers[finite], to_float(answers)[finite]
    )


def _groups_are_pure(groups: NDArray, labels: NDArray) -> bool:
    sizes = np.bincount(groups)
    if len(np.unique(np.stack([groups, labels]), axis=1).T) != len(sizes):
        return False
    shares = np.bincount(labels) / len(labels)
    lengths, counts = np.unique(sizes, return_counts=True)
    chances = [log(float((shares**length).sum())) for length in lengths]
    return float(np.dot(counts, chances)) < LOG_CHANCE


def _is_sorted_by(numbers: NDArray, labels: NDArray) -> bool:
    order = np.argsort(numbers, kind="stable")
    numbers, labels = numbers[order], labels[order]
    changes = labels[1:] != labels[:-1]
    classes = len(np.unique(labels))
    if changes.sum() != classes - 1 or (np.diff(numbers)[changes] == 0).any():
        return False
    return lgamma(classes + 1) - _log_arrangements(labels) < LOG_CHANCE


def _has_the_same_order(numbers: NDArray, answers: NDArray) -> bool:
    if not np.isfinite(answers).all() or len(np.unique(numbers)) < 2 or len(np.unique(answers)) < 2:
        return False
    correlation = np.corrcoef(pd.Series(numbers).rank(), pd.Series(answers).rank())[0, 1]
    return bool(abs(correlation) > 1 - 1e-9) and log(2) - _log_arrangements(answers) < LOG_CHANCE


def _log_arrangements(answers: NDArray) -> float:
    """Logarithm of the number of ways in which the answers can be dealt to the rows."""
    counts = np.unique(answers, return_counts=True)[1]
    return lgamma(len(answers) + 1) - sum(lgamma(count + 1) for count in counts)


@dataclass(frozen=True)
class _Clue:
    """Something that is known of test rows: values, and the numbers of the answers that they belong to."""

    where: str
    name: str
    values: pd.Series
    rows: NDArray[np.intp]


def _clues(competition: Competition) -> Iterator[_Clue]:
    test = read_table(competition.test_path, text=[competition.id_column])
    rows = positions(test[competition.id_column], competition.answer_ids())
    where = competition.place(competition.test_path)
    yield _clue(where, "the order of the rows", pd.Series(np.arange(len(test))), rows)
    yield from _table_clues(competition, where, test)
    sample = read_table(competition.sample_path, text=[competition.id_column])
    yield from _table_clues(competition, competition.place(competition.sample_path), sample)
    for where, table in side_tables(competition):
        yield from _table_clues(competition, where, table)
    for path in sorted(competition.public_dir.rglob("*.npz")):
        yield from _array_clues(competition, path, rows)
    yield from _folder_clues(competition)


def side_tables(competition: Competition) -> Iterator[tuple[str, pd.DataFrame]]:
    """Tables in the public folder besides those that every competition has, each with where it stands.

    Raises:
        UnreadableError: A table cannot be read.
    """
    own = {competition.train_path, competition.test_path, competition.sample_path}
    for path in sorted(competition.public_dir.rglob("*")):
        if path.suffix in _SEPARATORS and path not in own:
            table = read_table(path, separator=_SEPARATORS[path.suffix])
            yield competition.place(path), table


def _clue(where: str, name: str, values: pd.Series, rows: NDArray[np.intp]) -> _Clue:
    """Only rows that are test rows, and of several on one test row the first."""
    found, first = np.unique(rows, return_index=True)
    first = first[found >= 0]
    return _Clue(where, name, values.iloc[first].reset_index(drop=True), rows[first])


def _table_clues(competition: Competition, where: str, table: pd.DataFrame) -> Iterator[_Clue]:
    if competition.id_column in table:
        rows = positions(table[competition.id_column], competition.answer_ids())
        for column in table:
            yield _clue(where, f"the column '{column}'", table[column], rows)


def _array_clues(competition: Competition, path: Path, rows: NDArray[np.intp]) -> Iterator[_Clue]:
    """Arrays of one number for each test row, which are in the order of test.csv."""
    where = competition.place(path)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            columns = {name: arrays[name].squeeze() for name in arrays.files}
    except (ValueError, OSError) as error:
        raise UnreadableError(path, f"cannot be read as arrays: {str(error).splitlines()[0]}.") from error
    for name, array in columns.items():
        if array.shape == rows.shape:
            yield _clue(where, f"the array '{name}'", pd.Series(array), rows)


def _folder_clues(competition: Competition) -> Iterator[_Clue]:
    """Files that are called like test rows, sorted into folders that might be called like labels."""
    files = [path for path in sorted(competition.public_dir.rglob("*/*")) if path.is_file()]
    if files:
        rows = positions(pd.Series([path.stem for path in files]), competition.answer_ids())
        folders = pd.Series([path.parent.name for path in files])
        yield _clue(
            competition.place(competition.public_dir), "the name of each file's folder", folders, rows
        )
