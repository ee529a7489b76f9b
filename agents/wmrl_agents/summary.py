"""What a run came to, in a few lines, and evaluations as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.metrics import blindness, corrections, machine_failures
from wmrl_agents.grpo.phases import time_by_phase

__all__ = ["print_evaluation", "print_summary"]

_ROWS = (("score", "score"), ("failing scripts", "failing"), ("percentile of valid scripts", "valid_score"))


def print_evaluation(console: Console, summary: Mapping[str, Any], title: str) -> None:
    """A table of one evaluation: a row per task, one per category, one for all."""
    table = Table(title=title, title_justify="left")
    table.add_column("task")
    repeats = summary["repeats"]
    for heading in (f"avg@{repeats}", f"best@{repeats}", "failing", "valid"):
        table.add_column(heading, justify="right")
    table.add_column("failures by kind")
    for task in summary["tasks"]:
        failures = ", ".join(f"{kind} {count}" for kind, count in task["failures"].items())
        table.add_row(task["competition"], *_cells(task), failures)
    table.add_section()
    for name, category in summary["categories"].items():
        table.add_row(name, *_cells(category))
    table.add_section()
    table.add_row("all", *_cells(summary))
    console.print(table)
    if summary["missing"]:
        _print(console, f"{summary['missing']} trajectories have no score: the machine failed.")
    for reason, count in summary["missing_reasons"].items():
        _print(console, f"  {count} x {reason}")


def _cells(numbers: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return (
        _number(numbers["score"]),
        _number(numbers["best_score"]),
        _percent(_failing(numbers)),
        _number(numbers["valid_score"]),
    )


def print_summary(
    console: Console,
    config: GRPOConfig,
    metrics: Sequence[Mapping[str, Any]],
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    """What a finished run came to.

    Args:
        console: Where to.
        config: The run's settings.
        metrics: One mapping a step.
        before: Evaluation of the starting policy, if there is one.
        after: Evaluation of the trained one, if there is one.
    """
    if before is not None or after is not None:
        console.print(_comparison(before, after))
    used = sum(step["executions"] for step in metrics)
    would_use = sum(step["executions_real_would_use"] for step in metrics)
    repeated = sum(step["executions_repeated"] for step in metrics)
    share = f" ({used / would_use:.1%})" if would_use else ""
    steps = len(metrics)
    corrected = corrections(metrics)
    lines = (
        f"executions in training: {used} of the {would_use} that real-execution GRPO would have used{share}; "
        f"{repeated} of them repeated an earlier program",
        f"steps with a fitted map: {corrected['mapped']} of {steps}; with rho other than 1: "
        f"{corrected['weighted']} of {steps}; with both: {corrected['both']} of {steps}; the map is fitted "
        f"from {config.min_pairs} pairs on, and again every {config.refit_every} (the paper: 200 and 64)",
    )
    for line in lines:
        _print(console, line)
    time = time_by_phase(metrics)
    if time:
        _print(console, time)
    blind = blindness(metrics, config.ignores_blind)
    if blind:
        _print(console, blind)
    failures = machine_failures(metrics)
    if failures:
        _print(console, f"{sum(failures.values())} executions gave no score, by the machine's fault:")
    for reason, count in failures.items():
        _print(console, f"  {count} x {reason}")


def _print(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _comparison(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Table:
    known = before or after or {}
    title = f"Real execution, {known['half']} half, avg@{known['repeats']}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    for label, name in _ROWS:
        first, second = _value(before, name), _value(after, name)
        change = None if first is None or second is None else second - first
        show = _percent if name == "failing" else _number
        table.add_row(label, show(first), show(second), _signed(change, name == "failing"))
    return table


def _value(summary: Mapping[str, Any] | None, name: str) -> float | None:
    if summary is None:
        return None
    value: float | None = _failing(summary) if name == "failing" else summary[name]
    return value


def _failing(numbers: Mapping[str, Any]) -> float | None:
    return None if numbers["valid_rate"] is None else 1 - numbers["valid_rate"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _signed(change: float | None, percent: bool) -> str:
    if change is None:
        return "-"
    return f"{change:+.0%}" if percent else f"{change:+.3f}"
