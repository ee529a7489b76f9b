"""Several jobs at once over one sandbox: bounded, fair over groups, cancelled at once."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, overload

from wmrl_envs.sandbox.job import Job, Result, Sandbox

__all__ = ["IDLE", "RETRY_AFTER_S", "SandboxPool"]

RETRY_AFTER_S = (0.5, 2.0)
IDLE = "while nothing else is to run"
LATE = "It was not started: the time for this step was over."
T = TypeVar("T")


@dataclass(frozen=True)
class _Task:
    job: Job
    then: Callable[[Result], Any]
    future: Future[Any]
    deadline: float


class SandboxPool:
    """Runs jobs in parallel on daemon threads; what fails by the machine's fault is tried again.

    Groups take turns: the jobs of a group that asked for many do not hold up a group that asked for one.
    Within a group, first come, first served.

    Args:
        sandbox: Where the jobs run.
        workers: How many at once; None for as many as the sandbox's share of processors allows.
        retry_after_s: Seconds to wait before each further try of a job that ended as ``infrastructure``.
        clock: Tells the time, in seconds, that deadlines are compared with.
        pause: Waits for a number of seconds; None for a wait that closing the pool ends.

    Example:
        >>> from pathlib import Path
        >>> from wmrl_envs.sandbox import UnsafeSandbox
        >>> with SandboxPool(UnsafeSandbox(), workers=2) as pool:
        ...     [result.stdout for result in pool.map([Job(f"print({n})", Path(".")) for n in range(3)])]
        ['0\\n', '1\\n', '2\\n']
    """

    def __init__(
        self,
        sandbox: Sandbox,
        workers: int | None = None,
        *,
        retry_after_s: Sequence[float] = RETRY_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.workers = workers or max(1, len(os.sched_getaffinity(0)) // max(1, sandbox.limits.cpus))
        self.clock = clock
        self._retry_after_s = tuple(retry_after_s)
        self._cancel = threading.Event()
        self._pause = pause or self._cancel.wait
        self._changed = threading.Condition()
        self._waiting: OrderedDict[Hashable, deque[_Task]] = OrderedDict()
        self._threads = [
            threading.Thread(target=self._work, name=f"sandbox-{n}", daemon=True) for n in range(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    @overload
    def submit(self, job: Job, group: Hashable = None, *, deadline: float = ...) -> Future[Result]: ...
    @overload
    def submit(
        self, job: Job, group: Hashable = None, *, then: Callable[[Result], T], deadline: float = ...
    ) -> Future[T]: ...
    def submit(
        self,
        job: Job,
        group: Hashable = None,
        *,
        then: Callable[[Result], Any] = lambda result: result,
        deadline: float = float("inf"),
    ) -> Future[Any]:
        """Queue a job.

        Args:
            job: What to run.
            group: Jobs of different groups take turns; those of the group `IDLE` run while no others wait.
            then: Applied to the result in the worker's thread; the future holds what it returns.
            deadline: Time by the pool's clock from which the job is not started any more, nor tried again;
                it then ends as ``infrastructure``. One that runs by then runs on.

        Raises:
            RuntimeError: The pool is closed.
        """
        future: Future[Any] = Future()
        with self._changed:
            if self._cancel.is_set():
                raise RuntimeError("The pool is closed: make a new one.")
            self._waiting.setdefault(group, deque()).append(_Task(job, then, future, deadline))
            self._changed.notify()
        return future

    def map(self, jobs: Iterable[Job]) -> list[Result]:
        """Run jobs and wait for all of them; an interrupt kills those that run and drops the others."""
        futures = [self.submit(job) for job in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill what runs, drop what waits, end the threads. Unfinished futures are cancelled."""
        with self._changed:
            self._cancel.set()
            dropped = [task for queue in self._waiting.values() for task in queue]
            self._waiting.clear()
            self._changed.notify_all()
        for task in dropped:
            task.future.cancel()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                task.future.set_result(task.then(self._run(task)))
            except BaseException as error:  # whatever it was, it belongs to whoever waits for the future
                task.future.set_exception(error)

    def _run(self, task: _Task) -> Result:
        """Run a job; where the machine failed, not the job, try again after a while."""
        if self.clock() >= task.deadline:
            return Result("infrastructure", message=LATE)
        result = self._try(task.job)
        for pause_s in self._retry_after_s:
            if result.status != "infrastructure" or self.clock() + pause_s >= task.deadline:
                break
            self._pause(pause_s)
            if self._cancel.is_set():
                raise CancelledError
            result = self._try(task.job)
        return result

    def _try(self, job: Job) -> Result:
        try:
            return self.sandbox.run(job, self._cancel)
        except OSError as error:  # a sandbox that did not foresee it: it is the machine's fault all the same
            return Result("infrastructure", message=f"The job could not be run: {error}.")

    def _next(self) -> _Task | None:
        with self._changed:
            while not self._waiting:
                if self._cancel.is_set():
                    return None
                self._changed.wait()
            group = next((group for group in self._waiting if group != IDLE), IDLE)
            queue = self._waiting.pop(group)
            task = queue.popleft()
            if queue:
                self._waiting[group] = queue
            return task
