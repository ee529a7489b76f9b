"""Grade a submission: read it within bounds, check it against the test rows, score it, rank the score.

A submission is foreign data. It is read as CSV and nothing else, rows are matched by id and never by order,
all test rows must be there, and only those of one half are scored.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wmrl_envs.autoresearch.checks import HALVES
from wmrl_envs.autoresearch.competition import Competition, Half
from wmrl_envs.autoresearch.matching import positions, to_float
from wmrl_envs.evaluation import Grade, GradeStatus
from wmrl_envs.sandbox.job import Sandbox

__all__ = [
    "RefusedError",
    "finite",
    "grade",
    "longest_submission",
    "read_submission",
    "score_submission",
]

# A submission may be so many times as long as the sample: "0" may become "-1.2345678901234567e-10".
_GROWTH = 40
_FREE_BYTES = 1024 * 1024
_LONGEST_QUOTE = 60
_LABELS_SHOWN = 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RefusedError(Exception):
    """The submission is refused: status and sentence.

    Attributes:
        grade: Both as a grade.
    """

    def __init__(self, status: GradeStatus, message: str) -> None:
        super().__init__(message)
        self.grade = Grade(status, message=message)


@dataclass(frozen=True)
class _Key:
    """What a submission is checked against, worked out once a competition.

    Attributes:
        ids: Ids of all test rows.
        answers: Shape (rows,), or (rows, targets) for several targets.
        rows: Of each half, the numbers of its rows.
        labels: For each target the labels of the training rows, None where the targets are numbers.
        max_bytes: Longest submission that is read.
    """

    ids: pd.Index
    answers: NDArray
    rows: dict[Half, NDArray[np.intp]]
    labels: tuple[pd.Index | None, ...]
    max_bytes: int


def grade(
    competition: Competition,
    submission_path: str | Path | None,
    half: Half = "public",
    sandbox: Sandbox | None = None,
) -> Grade:
    """Grade a submission file: with the competition's own grader where it has one, else as this module says.

    Ids and labels are compared as `wmrl_envs.autoresearch.matching` says: 7, ``7.0`` and ``" 7"`` are one.

    Args:
        competition: The competition.
        submission_path: The file, or None if there is none.
        half: Which half of the test rows is scored, and ranked on the board of the same name. The rows of
            the other half are checked all the same.
        sandbox: Where a competition's own grader runs; None for bubblewrap with the default limits.

    Returns:
        Status ``ok`` with score and percentile, or what is wrong with one sentence on it. Nothing that a
        submission holds raises.

    Raises:
        CompetitionError: The competition's own grader is out of order.
        SandboxError: The sandbox for that grader is.
    """
    try:
        score = score_submission(competition, submission_path, half, sandbox)
    except RefusedError as refused:
        return refused.grade
    return Grade("ok", score=score, percentile=competition.rank(score, half))


def score_submission(
    competition: Competition,
    submission_path: str | Path | None,
    half: Half = "public",
    sandbox: Sandbox | None = None,
) -> float:
    """The metric's value for a submission file; the arguments are those of `grade`.

    Raises:
        RefusedError: The submission has none.
        CompetitionError: The competition's own grader is out of order.
    """
    if competition.grader is not None:
        return competition.grader.score(competition, submission_path, sandbox)
    key = _answer_key(competition)
    table = _read(submission_path, competition, key)
    rows = _rows(table[competition.id_column], key.ids)
    columns = [
        _predictions(table[target], rows, labels, competition, key.ids)
        for target, labels in zip(competition.target_columns, key.labels, strict=True)
    ]
    scored = key.rows[half]
    return _score(competition, key.answers[scored], _side_by_side(columns)[scored])


def _score(competition: Competition, answers: NDArray, predictions: NDArray) -> float:
    name = competition.metric.name
    try:
        with np.errstate(all="ignore"):
            score = competition.metric(answers, predictions)
    except Exception as error:  # whatever a metric raises is this status: it must not end a training run
        raise RefusedError("metric_error", f"{name} failed: {_first_line(error)}.") from error
    return finite(score, name)


def finite(score: float, name: str) -> float:
    """A score as it is, if it can be ranked.

    Raises:
        RefusedError: It is NaN or infinite.
    """
    if not np.isfinite(score):
        raise RefusedError("metric_error", f"{name} is {score} for this submission, which cannot be ranked.")
    return score


@lru_cache(maxsize=64)
def _answer_key(competition: Competition) -> _Key:
    table, targets = competition.answers(), competition.target_columns
    labels: tuple[pd.Index | None, ...] = (None,) * len(targets)
    answers = [to_float(table[target]) for target in targets]
    if competition.metric.prediction == "label":
        known = [competition.training_labels(target) for target in targets]
        answers = [_coded(positions(table[t], k), k) for t, k in zip(targets, known, strict=True)]
        labels = tuple(known)
    return _Key(
        ids=competition.answer_ids(),
        answers=_side_by_side(answers),
        rows={half: competition.rows(half) for half in HALVES},
        labels=labels,
        max_bytes=longest_submission(competition),
    )


def _coded(places: NDArray[np.intp], labels: pd.Index) -> NDArray:
    """Labels for a metric: numbers as they are, texts by their place among the training labels."""
    return labels.to_numpy()[places] if labels.dtype == np.int64 else places


def _side_by_side(columns: list[NDArray]) -> NDArray:
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _read(path: str | Path | None, competition: Competition, key: _Key) -> pd.DataFrame:
    """The submission as a table with the right columns."""
    data = read_submission(path, key.max_bytes)
    expected = [competition.id_column, *competition.target_columns]
    _check_header(data, expected)
    text: dict[Hashable, type[str]] = {} if key.ids.dtype == np.int64 else {competition.id_column: str}
    for target, labels in zip(competition.target_columns, key.labels, strict=True):
        if labels is not None and labels.dtype != np.int64:
            text[target] = str
    try:
        table = pd.read_csv(io.BytesIO(data), dtype=text, na_filter=False, low_memory=False)
    except (ValueError, OverflowError) as error:
        raise RefusedError("unreadable", f"The submission is no CSV table: {_first_line(error)}.") from error
    if not isinstance(table.index, pd.RangeIndex) or sorted(table.columns) != sorted(expected):
        raise RefusedError("unreadable", "The submission is no CSV table: its rows do not fit its header.")
    return table


def longest_submission(competition: Competition) -> int:
    """Length in bytes of the longest submission that is read."""
    return _FREE_BYTES + _GROWTH * competition.sample_path.stat().st_size


def read_submission(path: str | Path | None, max_bytes: int) -> bytes:
    """The bytes of a submission: UTF-8 text of a bounded length.

    Raises:
        RefusedError: There is no file, or it is something else.
    """
    if path is None or not Path(path).is_file():
        raise RefusedError("no_submission", "No file was written to SUBMISSION_PATH.")
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1).removeprefix(_BYTE_ORDER_MARK)
    if len(data) > max_bytes:
        raise RefusedError("unreadable", f"The submission is longer than {max_bytes:,} bytes.")
    if not data.strip():
        raise RefusedError("unreadable", "The submission is empty.")
    if b"\0" in data:
        raise RefusedError("unreadable", "The submission is a binary file, not CSV text.")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError(
            "unreadable", f"The submission is no UTF-8 text: see byte {error.start}."
        ) from error
    return data


def _check_header(data: bytes, expected: list[str]) -> None:
    """Look at the first two records only, so that a million columns cost nothing."""
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
    try:
        header, *first_row = islice(filter(None, csv.reader(text)), 2)
    except (csv.Error, ValueError) as error:
        raise RefusedError("unreadable", f"The submission is no CSV table: {_first_line(error)}.") from error
    if sorted(header) != sorted(expected):
        raise RefusedError(
            "bad_columns",
            f"The submission must have the columns {_listing(expected)}; it has {_listing(header)}.",
        )
    if first_row and len(first_row[0]) > len(header):  # pandas would take the surplus for an index
        raise RefusedError(
            "unreadable",
            f"The first row has {len(first_row[0])} fields, but there are {len(header)} columns.",
        )


def _rows(given: pd.Series, ids: pd.Index) -> NDArray[np.intp]:
    """For each test id the row of the submission that has it."""
    found = positions(given, ids)
    unknown = np.flatnonzero(found < 0)
    if len(unknown):
        raise RefusedError(
            "bad_ids",
            f"{_count(len(unknown), 'id')} not in the test set, first {_quote(given.iloc[unknown[0]])}.",
        )
    counts = np.bincount(found, minlength=len(ids))
    for what, wrong in (("repeated", counts > 1), ("missing", counts == 0)):
        if wrong.any():
            first = _quote(ids[int(np.argmax(wrong))])
            raise RefusedError("bad_ids", f"{_count(int(wrong.sum()), 'id')} {what}, first {first}.")
    rows = np.empty(len(ids), dtype=np.intp)
    rows[found] = np.arange(len(found))
    return rows


def _predictions(
    given: pd.Series,
    rows: NDArray[np.intp],
    labels: pd.Index | None,
    competition: Competition,
    ids: pd.Index,
) -> NDArray:
    """One column of predictions, in the order of the answers."""
    if labels is not None:
        places = positions(given, labels)
        values, right, rule = _coded(places, labels), places >= 0, f"one of {_listing(labels)}"
    elif competition.metric.unit_interval:
        values = to_float(given)
        right, rule = (values >= 0) & (values <= 1), "a probability between 0 and 1"
    else:
        values = to_float(given)
        right, rule = np.isfinite(values), "a finite number"
    wrong = np.flatnonzero(~right[rows])
    if len(wrong):
        first = f"{_quote(given.iloc[rows[wrong[0]]])} for id {ids[wrong[0]]}"
        raise RefusedError(
            "bad_values", f"{given.name} must be {rule}; {_count(len(wrong), 'row')} not, first {first}."
        )
    return values[rows]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


def _listing(values: list[str] | pd.Index) -> str:
    shown = [_quote(value) for value in values[:_LABELS_SHOWN]]
    rest = len(values) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _quote(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}...")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(".")
