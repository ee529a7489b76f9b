"""What loading a competition does not look for, because it takes reading every file: run it before training.

`wmrl_envs.autoresearch.checks` holds what every load checks. `inspect_competition` adds what only a look at
all of the data can tell: files that give the answers away, tables that forgot the test rows, boards that are
not what they seem.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wmrl_envs.autoresearch.checks import (
    HALVES,
    Finding,
    Severity,
    check_competition,
    check_ids,
    run_checks,
)
from wmrl_envs.autoresearch.competition import Competition, open_competition
from wmrl_envs.autoresearch.grading import grade
from wmrl_envs.autoresearch.leaks import find_leaks, side_tables
from wmrl_envs.autoresearch.matching import positions, to_float
from wmrl_envs.autoresearch.sources.foreign import ForeignCompetition
from wmrl_envs.autoresearch.sources.formats import foreign_competition
from wmrl_envs.autoresearch.tables import read_columns, read_table
from wmrl_envs.errors import CompetitionError

__all__ = ["inspect_competition", "inspect_folder"]

_TABLES = (".csv", ".tsv")
_TEXTS = (*_TABLES, ".txt", ".md", ".json", ".jsonl")
_EMPTY = ("", "nan", "na", "null", "none")
_SUSPICIOUS_PERCENTILE = 0.9


def inspect_folder(root: Path, dojo_root: str | Path | None = None) -> list[Finding]:
    """Inspect a folder, whatever is in it; see `inspect_competition`.

    Args:
        root: The folder, in the layout of this project or in another that is known.
        dojo_root: See `load_competition`.
    """
    try:
        foreign = foreign_competition(root.resolve().parent, root.resolve().name, _resolved(dojo_root))
        return inspect_competition(foreign or open_competition(root))
    except CompetitionError as error:
        return [Finding("error", ".", f"is no competition. {error}")]


def _resolved(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).resolve()


def inspect_competition(competition: Competition) -> list[Finding]:
    """Check a competition as `check_competition` does, and look into all of its files besides.

    Args:
        competition: The competition; its files need not be in order.

    Returns:
        Everything that was found, errors first. What relies on sound tables is looked for only if
        `check_competition` has found no error. Of a competition in another layout, whose tables and grader
        are its authors' own, what can be told of those.
    """
    if isinstance(competition, ForeignCompetition):
        return run_checks(competition, _FOREIGN)
    if any(finding.severity == "error" for finding in check_competition(competition)):
        return run_checks(competition, (check_competition, _encodings))
    return run_checks(competition, (check_competition, _encodings, *_DEEPER))


def _encodings(competition: Competition) -> Iterator[Finding]:
    """Texts are UTF-8; tables must be, since solutions read them with default settings."""
    for path in sorted(competition.public_dir.rglob("*")):
        if path.suffix in _TEXTS and path.is_file() and (problem := _not_utf8(path)):
            severity: Severity = "error" if path.suffix in _TABLES else "warning"
            yield Finding(severity, competition.place(path), problem)


def _not_utf8(path: Path) -> str:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not _is_utf8(line):
                return f"is not UTF-8: line {number} holds other bytes. Save it as UTF-8."
    return ""


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _boards(competition: Competition) -> Iterator[Finding]:
    for path in competition.board_paths:
        scores = to_float(read_table(path, columns=["score"])["score"])
        yield from _board(competition, competition.place(path), scores)


def _board(competition: Competition, where: str, scores: NDArray[np.float64]) -> Iterator[Finding]:
    """A board as it stands in its file: best first, with scores that the metric can take."""
    metric, finite = competition.metric, scores[np.isfinite(scores)]
    if len(finite) < len(scores):
        missing = len(scores) - len(finite)
        yield Finding("warning", where, f"has {missing} entries without a finite score.")
    low, high = metric.bounds
    outside = finite[(finite < low) | (finite > high)]
    if len(outside):
        yield Finding("error", where, f"has the score {outside[0]:g}, which {metric.name} cannot take.")
    steps = np.diff(finite) if metric.higher_is_better else -np.diff(finite)
    if not steps.any():
        yield Finding("error", where, f"has no score but {finite[0]:g}, so that percentiles tell nothing.")
    elif (steps >= 0).all():
        problem = f"is sorted worst first, since for {metric.name} {metric.direction}: mend board or metric."
        yield Finding("error", where, problem)
    elif (steps > 0).any():
        yield Finding("warning", where, "is not sorted best first: it is sorted when it is read.")


def _test_ids(competition: Competition) -> Iterator[Finding]:
    """The rows of test.csv are those of the answers, each once."""
    where, id_column = competition.place(competition.test_path), competition.id_column
    answers = competition.answer_ids()
    if not answers.is_unique:
        return
    ids = read_table(competition.test_path, columns=[id_column], text=[id_column])[id_column]
    found = positions(ids, answers)
    counts = np.bincount(found[found >= 0], minlength=len(answers))
    if (found < 0).any():
        yield Finding(
            "error", where, f"has the id '{ids[found < 0].iloc[0]}', which is not among the answers."
        )
    if (counts == 0).any():
        missing = answers[int(np.argmin(counts))]
        yield Finding("error", where, f"lacks the id '{missing}', for which an answer is asked.")
    if (counts > 1).any():
        repeated = answers[int(np.argmax(counts))]
        yield Finding("warning", where, f"has the id '{repeated}' more than once.")


def _targets(competition: Competition) -> Iterator[Finding]:
    """The training rows have targets."""
    targets = list(competition.target_columns)
    train = read_table(competition.train_path, columns=targets, text=targets)
    for target in targets:
        empty = int((train[target].str.strip() == "").sum())
        if empty:
            yield Finding("warning", "public/train.csv", f"has {empty} rows without a value of {target}.")


def _side_tables(competition: Competition) -> Iterator[Finding]:
    """Tables that add to the rows by their id know the test rows as well as the training rows."""
    id_column = competition.id_column
    if id_column not in read_columns(competition.train_path):
        return
    trained = set(
        read_table(competition.train_path, columns=[id_column], text=[id_column])[id_column].str.strip()
    )
    answers = competition.answers()[id_column].str.strip()
    for where, table in side_tables(competition):
        if id_column not in table:
            continue
        known = set(table[id_column].astype(str).str.strip())
        missing = [row for row in answers if row not in known]
        if missing and known >= trained:
            yield Finding(
                "error" if len(missing) == len(answers) else "warning",
                where,
                f"has the ids of all training rows, but lacks {len(missing)} of the {len(answers)} "
                f"test rows, first '{missing[0]}'.",
            )


def _sample(competition: Competition) -> Iterator[Finding]:
    """The sample submission can be graded, and is no good."""
    where = competition.place(competition.sample_path)
    for half in HALVES:
        result = grade(competition, competition.sample_path, half)
        if result.status != "ok":
            yield Finding("error", where, f"cannot be graded on the {half} half: {result.message}")
        elif result.percentile is not None and result.percentile >= _SUSPICIOUS_PERCENTILE:
            yield Finding(
                "warning",
                where,
                f"reaches the percentile {result.percentile:.2f} on the {half} board: is the direction of "
                f"{competition.metric.name} that of the board?",
            )


_DEEPER = (_boards, _test_ids, _targets, _side_tables, _sample, find_leaks)


def _foreign_answers(competition: Competition) -> Iterator[Finding]:
    """The answers have what the sample submission asks for, each row once and with a value."""
    where, columns = competition.place(competition.answers_path), read_columns(competition.answers_path)
    missing = [c for c in (competition.id_column, *competition.target_columns) if c not in columns]
    if missing:
        yield Finding("warning", where, f"lacks {', '.join(missing)}, which the sample submission has.")
    if competition.id_column in missing:
        return
    answers, ids = competition.answers(), competition.answer_ids()
    if not ids.is_unique:
        twice = ids[ids.duplicated()][0]
        yield Finding("warning", where, f"has the id '{twice}' more than once.")
    for target in competition.target_columns:
        if target in missing:
            continue
        empty = answers[target].astype(str).str.strip().str.lower().isin(_EMPTY)
        if empty.any():
            row = answers[competition.id_column][empty].iloc[0]
            yield Finding("error", where, f"has no value of {target} for the id '{row}'.")


def _foreign_labels(competition: Competition) -> Iterator[Finding]:
    """Answers in words are among those of the training rows."""
    known, asked = _columns_of(competition.train_path), _columns_of(competition.answers_path)
    for target in competition.target_columns:
        if target not in known & asked:
            continue
        answers = competition.answers()[target]
        strange = answers[positions(answers.astype(str), competition.training_labels(target)) < 0]
        if len(strange) and not np.isfinite(to_float(answers)).all():
            message = f"has {target} = '{strange.iloc[0]}', which no training row has."
            yield Finding("warning", competition.place(competition.answers_path), message)


def _foreign_rows(competition: Competition) -> Iterator[Finding]:
    """Ids of sample, test rows and side tables fit the answers, and nothing gives the answers away."""
    id_column = competition.id_column
    asked = _columns_of(competition.answers_path)
    if id_column not in asked:
        return
    yield from check_ids(competition)
    if id_column in _columns_of(competition.test_path):
        yield from _test_ids(competition)
        if asked.issuperset(competition.target_columns):
            yield from find_leaks(competition)
    if id_column in _columns_of(competition.train_path):
        yield from _side_tables(competition)


def _foreign_sample(competition: Competition) -> Iterator[Finding]:
    """The competition's own grader takes the sample submission."""
    where = competition.place(competition.sample_path)
    try:
        result = grade(competition, competition.sample_path)
    except CompetitionError as error:
        yield Finding("error", where, f"cannot be graded: {error}")
        return
    if result.status != "ok":
        yield Finding("error", where, f"cannot be graded: {result.message}")
    elif (
        result.percentile is not None
        and result.percentile >= _SUSPICIOUS_PERCENTILE
        and competition.board_paths
    ):
        yield Finding(
            "warning", where, f"reaches the percentile {result.percentile:.2f}: is the board complete?"
        )


def _columns_of(path: Path) -> set[str]:
    """Columns of a table that need not be there."""
    return set(read_columns(path)) if path.is_file() else set()


_FOREIGN = (_encodings, _boards, _foreign_answers, _foreign_labels, _foreign_rows, _foreign_sample)
