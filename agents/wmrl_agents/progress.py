"""How a run is shown while it goes on: a bar on a terminal, a line a step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wmrl_agents.grpo.phases import phases_of

__all__ = ["shown_progress", "step_line"]


def step_line(metrics: Mapping[str, Any], saved: int) -> str:
    """What a step came to, in a few words.

    Args:
        metrics: The step's metrics.
        saved: Executions that the run has saved so far.
    """
    map_state = "fitted" if metrics["fitted"] else "identity"
    correction = f"rho {metrics['rho']:.2f}  map {map_state}"
    if metrics.get("predictions_ignored"):
        correction = "anchors alone"
    return (
        f"score {_number(metrics['score'])}  real {_number(metrics['score_real'])}  "
        f"{correction}  executions saved {saved}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


@contextmanager
def shown_progress(
    console: Console, steps: int, finished: list[dict[str, Any]]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show the progress of training.

    Args:
        console: Where to.
        steps: Steps in all.
        finished: Metrics of the steps that were finished before, in an earlier part of the run.

    Yields:
        A function to be told the metrics of each finished step.
    """
    saved = sum(map(_saved, finished))
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=steps, completed=len(finished))

        def show(metrics: Mapping[str, Any]) -> None:
            nonlocal saved
            saved += _saved(metrics)
            line = step_line(metrics, saved)
            progress.update(task, advance=1, description=line)
            if not console.is_terminal:
                console.print(
                    f"step {metrics['step'] + 1}/{steps}  {line}  ({phases_of(metrics)})",
                    soft_wrap=True,
                    highlight=False,
                )

        yield show


def _saved(metrics: Mapping[str, Any]) -> int:
    return int(metrics["executions_real_would_use"] - metrics["executions"])
