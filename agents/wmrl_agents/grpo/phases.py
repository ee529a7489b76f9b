"""Where the time of a step goes, by the clock on the wall.

The leading process does one thing at a time: it generates, predicts, trains, waits for executions, or does
something else; these five add up to the step. Executions go on beside all of them, so the time during which
at least one of them was under way is counted for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Literal

__all__ = ["Phases", "phases_of", "time_by_phase"]

Phase = Literal["generate", "predict", "train", "wait"]
PHASES: tuple[Phase, ...] = ("generate", "predict", "train", "wait")
_WORKERS = {"generate": "generating", "train": "on gradients", "execute": "executing"}


class Phases:
    """Stopwatches of a step.

    Args:
        clock: Tells the time in seconds.

    Example:
        >>> phases = Phases(clock=iter([0.0, 1.0, 3.0, 10.0]).__next__)
        >>> with phases("generate"):
        ...     pass
        >>> phases.take()["seconds_generate"]
        2.0
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._busy_since = 0.0
        self._executing = 0.0
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._begun = clock()

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """Time what is done inside."""
        started = self._clock()
        try:
            yield
        finally:
            self._spent[phase] += self._clock() - started

    def watch(self, execution: Future[Any]) -> None:
        """Count an execution as under way until it is done."""
        with self._lock:
            if self._running == 0:
                self._busy_since = self._clock()
            self._running += 1
        execution.add_done_callback(self._ended)

    def _ended(self, execution: Future[Any]) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._executing += self._clock() - self._busy_since

    def take(self) -> dict[str, float]:
        """Seconds since the last call, by phase, and begin anew."""
        now = self._clock()
        with self._lock:
            executing, self._executing = self._executing, 0.0
        spent, self._spent = self._spent, dict.fromkeys(PHASES, 0.0)
        whole, self._begun = now - self._begun, now
        return {
            **{f"seconds_{phase}": seconds for phase, seconds in spent.items()},
            "seconds_other": whole - sum(spent.values()),
            "seconds_execute": executing,
            "seconds_step": whole,
        }


def phases_of(metrics: Mapping[str, Any]) -> str:
    """A step's time in a few words, with the phases that took a twentieth of it.

    Example:
        >>> phases_of({"seconds_step": 10.0, "seconds_generate": 6.0, "seconds_train": 4.0})
        '10.0 s: generate 6.0, train 4.0'
    """
    whole = metrics["seconds_step"]
    seconds = {phase: metrics.get(f"seconds_{phase}", 0.0) for phase in PHASES}
    said = [f"{phase} {spent:.1f}" for phase, spent in seconds.items() if spent >= whole / 20]
    return f"{whole:.1f} s" + (f": {', '.join(said)}" if said else "")


def time_by_phase(metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Two sentences on where the time of a run's steps went; None if no step says.

    Args:
        metrics: One mapping a step.
    """
    timed = [step for step in metrics if "seconds_generate" in step]
    total = {
        name: sum(step[f"seconds_{name}"] for step in timed)
        for name in (*PHASES, "other", "step", "execute", *(f"workers_{worker}" for worker in _WORKERS))
    }
    if not total["step"]:
        return None
    shares = ", ".join(f"{phase} {total[phase] / total['step']:.0%}" for phase in (*PHASES, "other"))
    work = ", ".join(f"{total[f'workers_{worker}']:.1f} s {what}" for worker, what in _WORKERS.items())
    return (
        f"{len(timed)} steps took {total['step']:.1f} s by the clock: {shares}; executions were under way "
        f"during {total['execute'] / total['step']:.0%}. Processes and sandboxes together spent {work}."
    )
