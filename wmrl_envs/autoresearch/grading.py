"""Grade a submission: read it within bounds, check it against the test rows, score it, rank the score.

A submission is foreign data. It is read as CSV and nothing else, rows are matched by id and never by order,
all test rows must be there, and only those of one half are scored.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wmrl_envs.autoresearch.competition import Competition, Half
from wmrl_envs.autoresearch.leaderboard import percentile
from wmrl_envs.evaluation import Grade, GradeStatus

__all__ = ["grade"]

_FREE_BYTES = 1024 * 1024
_GROWTH = 40  # a submission may be so many times as long as the sample submission: 0 against -1.2345678901234567e-10
_SHOWN = 60
_LARGEST_INT = 2**63 - 1


class _Refused(Exception):
    """The submission is refused: status and sentence."""

    def __init__(self, status: GradeStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def grade(competition: Competition, submission_path: str | Path | None, half: Half = "public") -> Grade:
    """Grade a submission file.

    Ids that are all whole numbers, and distinct as such, are compared as numbers: 7, ``7.0``, ``007`` and
    ``" 7"`` name one row. All other ids are compared as text, without blanks around it. Labels likewise.

    Args:
        competition: The competition.
        submission_path: The file, or None if there is none.
        half: Which half of the test rows is scored, and ranked on the board of the same name. The rows of
            both halves must be there and in order.

    Returns:
        Status ``ok`` with score and percentile, or what is wrong with one sentence on it. Nothing that a
        submission holds raises.
    """
    key = _answer_key(competition)
    try:
        table = _read(submission_path, key)
        predictions = _predictions(table, _positions(table.pop(key.id_column), key), competition, key)
    except _Refused as refused:
        return Grade(refused.status, message=refused.message)
    rows = key.halves == half
    return _score(competition, key.answers[rows], predictions[rows], half)


def _score(competition: Competition, answers: NDArray, predictions: NDArray, half: Half) -> Grade:
    name = competition.metric.name
    try:
        with np.errstate(all="ignore"):
            score = competition.metric(answers, predictions)
    except Exception as error:  # whatever a metric raises is this status, and must not end a training run
        return Grade("metric_error", message=f"{name} failed: {_short(error)}.")
    if not np.isfinite(score):
        return Grade(
            "metric_error", message=f"{name} is {score} for this submission, which cannot be ranked."
        )
    rank = percentile(score, competition.leaderboard(half), competition.metric.higher_is_better)
    return Grade("ok", score=score, percentile=rank)


@dataclass(frozen=True)
class _AnswerKey:
    """What a submission is checked against, worked out once for a competition."""

    id_column: str
    columns: tuple[str, ...]
    ids: pd.Index
    answers: NDArray
    halves: NDArray
    labels: tuple[
        frozenset | None, ...
    ]  # for each target the labels that training rows have; None for numbers
    numeric_labels: tuple[bool, ...]
    max_bytes: int

    @property
    def numeric_ids(self) -> bool:
        """Whether ids are compared as numbers."""
        return self.ids.dtype == np.int64


@lru_cache(maxsize=64)
def _answer_key(competition: Competition) -> _AnswerKey:
    table = competition.answers()
    targets = list(competition.target_columns)
    ids = table[competition.id_column].str.strip()
    as_numbers = _whole_numbers(ids)
    labels: list[frozenset | None] = [None] * len(targets)
    numeric = [False] * len(targets)
    if competition.metric.prediction == "label":
        train = pd.read_csv(
            competition.public_dir / "train.csv", usecols=targets, dtype=str, keep_default_na=False
        )
        for column, target in enumerate(targets):
            values = train[target].str.strip()
            numbers = _whole_numbers(values.drop_duplicates())
            numeric[column] = numbers is not None
            labels[column] = frozenset(values if numbers is None else numbers.tolist())
    answers = [_as_answers(table[t], competition, n) for t, n in zip(targets, numeric, strict=True)]
    return _AnswerKey(
        id_column=competition.id_column,
        columns=(competition.id_column, *targets),
        ids=pd.Index(ids.to_numpy(object) if as_numbers is None else as_numbers),
        answers=_stack(answers),
        halves=table["half"].to_numpy(object),
        labels=tuple(labels),
        numeric_labels=tuple(numeric),
        max_bytes=_FREE_BYTES + _GROWTH * (competition.public_dir / "sample_submission.csv").stat().st_size,
    )


def _as_answers(values: pd.Series, competition: Competition, numeric_label: bool) -> NDArray:
    if competition.metric.prediction != "label":
        return values.to_numpy(np.float64)
    return values.to_numpy(np.int64) if numeric_label else values.astype(str).str.strip().to_numpy(object)


def _stack(columns: list[NDArray]) -> NDArray:
    """One target as (rows,), several as (rows, targets)."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _whole_numbers(values: pd.Series) -> NDArray[np.int64] | None:
    """Texts as whole numbers, or None if one is none or two of them would become one."""
    numbers = pd.to_numeric(values, errors="coerce")
    if numbers.dtype == np.int64 and numbers.is_unique:
        return numbers.to_numpy()
    return None


# --- reading -------------------------------------------------------------------------------------------------


def _read(path: str | Path | None, key: _AnswerKey) -> pd.DataFrame:
    """The submission as a table with the right columns."""
    data = _read_bytes(path, key.max_bytes)
    _check_header(data, key)
    text = {} if key.numeric_ids else {key.id_column: str}
    for column, labels, numeric in zip(key.columns[1:], key.labels, key.numeric_labels, strict=True):
        if labels is not None and not numeric:
            text[column] = str
    try:
        table = pd.read_csv(io.BytesIO(data), dtype=text, na_filter=False, low_memory=False)
    except (ValueError, OverflowError) as error:
        raise _Refused("unreadable", f"The submission is not a CSV table: {_short(error)}.") from error
    return table


def _read_bytes(path: str | Path | None, max_bytes: int) -> bytes:
    if path is None or not Path(path).is_file():
        raise _Refused("no_submission", "No file was written to SUBMISSION_PATH.")
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise _Refused("unreadable", f"The submission is longer than {max_bytes:,} bytes.")
    if not data.strip():
        raise _Refused("unreadable", "The submission is empty.")
    if b"\0" in data:
        raise _Refused("unreadable", "The submission is a binary file, not CSV text.")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Refused("unreadable", f"The submission is not UTF-8 text (byte {error.start}).") from error
    return data.removeprefix(b"\xef\xbb\xbf")


def _check_header(data: bytes, key: _AnswerKey) -> None:
    """Look at the first two records only, so that a million columns cost nothing."""
    try:
        records = list(islice(csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8", newline="")), 2))
    except csv.Error as error:
        raise _Refused("unreadable", f"The submission is not a CSV table: {_short(error)}.") from error
    header = records[0]
    if sorted(header) != sorted(key.columns):
        shown = ", ".join(repr(name[:_SHOWN]) for name in header[: len(key.columns) + 3])
        more = f" and {len(header) - len(key.columns) - 3} more" if len(header) > len(key.columns) + 3 else ""
        expected = ", ".join(repr(name) for name in key.columns)
        raise _Refused(
            "bad_columns", f"The submission must have the columns {expected}; it has {shown}{more}."
        )
    if len(records) > 1 and len(records[1]) > len(header):
        raise _Refused(
            "unreadable", f"The first row has {len(records[1])} fields, the header has {len(header)}."
        )


# --- checking ------------------------------------------------------------------------------------------------


def _positions(ids: pd.Series, key: _AnswerKey) -> NDArray:
    """For each answer the row of the submission that has its id."""
    if len(ids) == 0:
        raise _Refused("bad_ids", f"The submission has no rows; it needs one for each of {len(key.ids)} ids.")
    index = pd.Index(_numeric_ids(ids) if key.numeric_ids else ids.str.strip().to_numpy(object))
    if not index.is_unique:
        repeated = index[index.duplicated()]
        raise _Refused("bad_ids", f"{_count(len(repeated), 'row')} repeated, first id {_quote(repeated[0])}.")
    positions = index.get_indexer(key.ids)
    missing = key.ids[positions < 0]
    if len(missing):
        raise _Refused(
            "bad_ids", f"{len(missing)} of {len(key.ids)} test ids are missing, first {_quote(missing[0])}."
        )
    if len(index) > len(key.ids):
        unknown = index[~index.isin(key.ids)]
        raise _Refused(
            "bad_ids", f"{_count(len(unknown), 'id')} not in the test set, first {_quote(unknown[0])}."
        )
    return positions


def _numeric_ids(ids: pd.Series) -> NDArray[np.int64]:
    if ids.dtype == np.int64:
        return ids.to_numpy()
    numbers = _to_float(ids)
    whole = np.isfinite(numbers) & (np.abs(numbers) < _LARGEST_INT) & (numbers == np.trunc(numbers))
    if not whole.all():
        raise _Refused("bad_ids", f"The id {_quote(ids.iloc[int(np.argmin(whole))])} is not in the test set.")
    return numbers.astype(np.int64)


def _predictions(
    table: pd.DataFrame, positions: NDArray, competition: Competition, key: _AnswerKey
) -> NDArray:
    """Predictions in the order of the answers."""
    columns = []
    for target, labels, numeric in zip(key.columns[1:], key.labels, key.numeric_labels, strict=True):
        given = table[target]
        if labels is None:
            values, right, rule = _numbers(given, competition.metric.unit_interval)
        elif numeric:
            values, right, rule = _numeric_labels(given, labels)
        else:
            values, right, rule = _text_labels(given, labels)
        if not right.all():
            wrong = np.flatnonzero(~right[positions])
            row = positions[wrong[0]]
            raise _Refused(
                "bad_values",
                f"{target} must be {rule}; {_count(len(wrong), 'row')} not, first id {_quote(key.ids[wrong[0]])} "
                f"with {_quote(given.iloc[row])}.",
            )
        columns.append(values[positions])
    return _stack(columns)


_Checked = tuple[NDArray, NDArray, str]


def _numbers(given: pd.Series, unit_interval: bool) -> _Checked:
    values = _to_float(given)
    if unit_interval:
        return values, (values >= 0) & (values <= 1), "a probability between 0 and 1"
    return values, np.isfinite(values), "a finite number"


def _numeric_labels(given: pd.Series, labels: frozenset) -> _Checked:
    values = _to_float(given)
    right = np.isin(values, np.asarray(sorted(labels), dtype=np.float64))
    return np.where(right, values, 0).astype(np.int64), right, f"one of {_listing(labels)}"


def _text_labels(given: pd.Series, labels: frozenset) -> _Checked:
    values = given.str.strip()
    return values.to_numpy(object), values.isin(labels).to_numpy(), f"one of {_listing(labels)}"


def _to_float(values: pd.Series) -> NDArray[np.float64]:
    """Numbers as they are, texts that are numbers as such, everything else NaN."""
    if values.dtype.kind in "iuf":
        return values.to_numpy(np.float64)
    return pd.to_numeric(values.astype(str), errors="coerce").to_numpy(np.float64)


def _listing(labels: frozenset) -> str:
    shown = [str(label)[:_SHOWN] for label in sorted(labels)]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


def _quote(value: object) -> str:
    return repr(str(value)[:_SHOWN])


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
