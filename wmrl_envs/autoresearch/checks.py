"""What can be wrong with a competition's folder, found before a training run finds it.

`check_competition` holds the checks that are cheap enough for every load. It reports all that it finds;
`load_competition` raises the first error among it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from wmrl_envs.autoresearch.matching import positions, to_float
from wmrl_envs.autoresearch.tables import UnreadableError, read_table

if TYPE_CHECKING:
    from wmrl_envs.autoresearch.competition import Competition, Half

__all__ = ["HALVES", "Check", "Finding", "Severity", "check_competition", "check_ids", "run_checks"]

Severity = Literal["error", "warning"]
HALVES: tuple[Half, Half] = ("public", "private")


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Attributes:
        severity: ``error`` makes the competition unusable, ``warning`` makes it doubtful.
        where: The file, relative to the competition's folder.
        message: The rest of a sentence that begins with the file.
    """

    severity: Severity
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where} {self.message}"


Check = Callable[["Competition"], Iterable[Finding]]
"""Looks at one side of a competition, and says what it finds."""


def check_competition(competition: Competition) -> list[Finding]:
    """Check a competition's tables against each other, the answers' values and the leaderboards.

    Args:
        competition: The competition; its files need not be in order.

    Returns:
        Everything that was found, errors first. Empty for a sound competition.
    """
    findings = run_checks(competition, [_columns])
    if not findings:  # the other checks rely on the columns
        findings = run_checks(competition, (_description, _answers, _values, check_ids, _leaderboards))
    return findings


def run_checks(competition: Competition, checks: Iterable[Check]) -> list[Finding]:
    """What some checks find, errors first, nothing twice: several may stumble over one unreadable table."""
    findings = dict.fromkeys(finding for check in checks for finding in _run(check, competition))
    return sorted(findings, key=lambda finding: finding.severity)


def _run(check: Check, competition: Competition) -> list[Finding]:
    """What one check finds; a table that it cannot read is a finding."""
    try:
        return list(check(competition))
    except UnreadableError as error:
        return [_error(competition.place(error.path), error.problem)]


def _columns(competition: Competition) -> Iterator[Finding]:
    """The tables have the columns that competition.yaml names."""
    wanted = [competition.id_column, *competition.target_columns]
    for where, exact in (
        ("public/sample_submission.csv", wanted),
        ("private/answers.csv", [*wanted, "half"]),
    ):
        columns = competition.columns(where)
        if sorted(columns) != sorted(exact):
            yield _error(where, f"has the columns {', '.join(columns)}, expected {', '.join(exact)}.")
    train, test = competition.columns("public/train.csv"), competition.columns("public/test.csv")
    for target in competition.target_columns:
        if target not in train:
            yield _error("public/train.csv", f"lacks the target column '{target}'.")
        if target in test:
            yield _error(
                "public/test.csv", f"holds the target column '{target}', which gives the answers away."
            )
    if competition.id_column not in test:
        yield _error("public/test.csv", f"lacks the id column '{competition.id_column}'.")
    for half in HALVES:
        where = f"private/{half}_leaderboard.csv"
        if "score" not in competition.columns(where):
            yield _error(where, "has no column 'score'.")


def _description(competition: Competition) -> Iterator[Finding]:
    if not competition.description:
        yield _error("public/description.md", "is empty: say in words what to predict.")


def _answers(competition: Competition) -> Iterator[Finding]:
    """There are answers, each with an id of its own and in one of the halves."""
    where, table = "private/answers.csv", competition.answers()
    ids = table[competition.id_column].str.strip()
    if (ids == "").any():
        yield _error(where, "has a row without an id.")
    if not competition.answer_ids().is_unique:
        yield _error(where, f"has the id '{ids[ids.duplicated()].iloc[0]}' more than once.")
    strange = table["half"][~table["half"].isin(HALVES)]
    if len(strange):
        yield _error(where, f"has the half '{strange.iloc[0]}': it must be 'public' or 'private'.")
    for half in HALVES:
        if not (table["half"] == half).any():
            yield _error(where, f"has no row in the {half} half.")


def _values(competition: Competition) -> Iterator[Finding]:
    """The answers are what the metric takes."""
    metric = competition.metric
    if len(competition.target_columns) > 1 and not metric.several_targets:
        yield _error("competition.yaml", f"names several target columns, but {metric.name} takes one.")
    for target in competition.target_columns:
        yield from _numbers(competition, target)
        if metric.prediction == "label":
            yield from _labels(competition, target)


def _numbers(competition: Competition, target: str) -> Iterator[Finding]:
    where, table, metric = "private/answers.csv", competition.answers(), competition.metric
    values = to_float(table[target])
    finite = np.isfinite(values)
    if metric.answers == "any":
        return
    if not finite.all():
        row = table.iloc[int(np.argmin(finite))]
        yield _error(
            where,
            f"has {target} = '{row[target]}' for the id '{row[competition.id_column]}': no finite number.",
        )
    elif metric.answers == "non_negative" and (values < 0).any():
        yield _error(where, f"has negative values of {target}, which {metric.name} does not take.")
    elif metric.answers == "binary":
        for half in HALVES:
            labels = set(values[(table["half"] == half).to_numpy()])
            if labels and labels != {0.0, 1.0}:
                shown = ", ".join(f"{label:g}" for label in sorted(labels)[:5])
                yield _error(
                    where, f"has {target} = {shown} in the {half} half, {metric.name} needs 0 and 1."
                )


def _labels(competition: Competition, target: str) -> Iterator[Finding]:
    answers = competition.answers()[target]
    unknown = answers[positions(answers, competition.training_labels(target)) < 0]
    if len(unknown):
        yield _error("private/answers.csv", f"has {target} = '{unknown.iloc[0]}', which no training row has.")


def check_ids(competition: Competition) -> Iterator[Finding]:
    """The sample submission has the ids of the answers, each once."""
    where, id_column = competition.place(competition.sample_path), competition.id_column
    sample = read_table(competition.sample_path, columns=[id_column], text=[id_column])[id_column]
    answers = competition.answer_ids()
    if not answers.is_unique:  # that is a finding of another check
        return
    found = positions(sample, answers)
    counts = np.bincount(found[found >= 0], minlength=len(answers))
    if (found < 0).any():
        yield _error(where, f"has the id '{sample[found < 0].iloc[0]}', which is not among the answers.")
    if (counts > 1).any():
        yield _error(where, f"has the id '{answers[int(np.argmax(counts))]}' more than once.")
    if (counts == 0).any():
        yield _error(where, f"lacks the id '{answers[int(np.argmin(counts))]}' of the answers.")


def _leaderboards(competition: Competition) -> Iterator[Finding]:
    for half in HALVES:
        where, board = f"private/{half}_leaderboard.csv", competition.leaderboard(half)
        if not board:
            yield _error(where, "has no entries.")
        elif not np.isfinite(board).any():
            yield _error(where, "has no finite score.")


def _error(where: str, message: str) -> Finding:
    return Finding("error", where, message)
