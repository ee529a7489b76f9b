"""The real scores before and after training: headline numbers and a table by category and task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wmrl_agents.report.run_data import RunData

__all__ = ["EvaluationTable", "Row", "Tile", "evaluation_table", "evaluation_tiles"]

Evaluation = Mapping[str, Any]


@dataclass(frozen=True)
class Tile:
    """A number that is read first.

    Attributes:
        name: What it is.
        value: The number, formatted.
        detail: What it is made of or compared with.
    """

    name: str
    value: str
    detail: str


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What it is about.
        kind: ``total``, ``category`` or ``task``.
        cells: Percentile before, after, its rise; failing before, after; percentile of valid before, after.
    """

    name: str
    kind: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationTable:
    """The table, or in ``text`` why there is none."""

    text: str
    rows: tuple[Row, ...] = ()


def evaluation_tiles(run: RunData) -> list[Tile]:
    """Headline numbers, where both evaluations are there."""
    before, after = run.before, run.after
    if before is None or after is None:
        return []
    measured = f"{after['half']} half, avg@{after['repeats']}"
    return [
        Tile("Percentile", _change(before["score"], after["score"]), f"{_rise(before, after)}; {measured}"),
        Tile(
            "Failing scripts",
            f"{_percent(_failing(before))} → {_percent(_failing(after))}",
            "trajectories without a valid submission",
        ),
        Tile(
            "Valid percentile",
            _change(before["valid_score"], after["valid_score"]),
            "mean over valid submissions",
        ),
    ]


def evaluation_table(run: RunData) -> EvaluationTable:
    """Before and after side by side: in all, by category, by task."""
    known = run.after or run.before
    if known is None:
        return EvaluationTable("This run has not been evaluated.")
    text = (
        f"Each task was played {known['repeats']} times and executed for real. While it plays, the agent "
        f"sees its scores on the public half of the test rows; these are on the {known['half']} half. "
        "'In all' averages over tasks inside each category, then over categories."
    )
    if run.before is None or run.after is None:
        text += f" There is no evaluation {'before' if run.before is None else 'after'} training."
    return EvaluationTable(text, tuple(_rows(run.before or {}, run.after or {})))


def _rows(before: Evaluation, after: Evaluation) -> Iterator[Row]:
    """All, then each category with its tasks under it."""
    yield _row("In all", "total", before, after)
    categories = [one.get("categories", {}) for one in (before, after)]
    tasks = [{task["competition"]: task for task in one.get("tasks", [])} for one in (before, after)]
    for category in sorted({*categories[0], *categories[1]}):
        yield _row(category.capitalize(), "category", *(one.get(category, {}) for one in categories))
        for name, task in {**tasks[0], **tasks[1]}.items():
            if task["category"] == category:
                yield _row(name, "task", *(one.get(name, {}) for one in tasks))


def _row(name: str, kind: str, before: Evaluation, after: Evaluation) -> Row:
    return Row(
        name,
        kind,
        (
            _fixed(before.get("score"), 3),
            _fixed(after.get("score"), 3),
            _rise(before, after),
            _percent(_failing(before)),
            _percent(_failing(after)),
            _fixed(before.get("valid_score"), 3),
            _fixed(after.get("valid_score"), 3),
        ),
    )


def _failing(evaluation: Evaluation) -> float | None:
    valid = evaluation.get("valid_rate")
    return None if valid is None else 1 - valid


def _rise(before: Evaluation, after: Evaluation) -> str:
    earlier, later = before.get("score"), after.get("score")
    return "–" if earlier is None or later is None else f"{later - earlier:+.3f}".replace("-", "−")


def _change(before: float | None, after: float | None) -> str:
    return f"{_fixed(before, 2)} → {_fixed(after, 2)}"


def _fixed(value: float | None, decimals: int) -> str:
    return "–" if value is None else f"{value:.{decimals}f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
