"""Several jobs at once over one sandbox: bounded, fair over groups, cancelled at once."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar, overload

from wmrl_envs.sandbox.job import Job, Result, Sandbox

__all__ = ["SandboxPool"]

RETRY_AFTER_S = (0.5, 2.0)
T = TypeVar("T")
Task = tuple[Job, Callable[[Result], Any], "Future[Any]"]


class SandboxPool:
    """Runs jobs in parallel on daemon threads; what fails by the machine's fault is tried three times.

    Groups take turns: the jobs of a group that asked for many do not hold up a group that asked for one.
    Within a group, first come, first served.

    Args:
        sandbox: Where the jobs run.
        workers: How many at once; None for as many as the sandbox's share of processors allows.

    Example:
        >>> from pathlib import Path
        >>> from wmrl_envs.sandbox import UnsafeSandbox
        >>> with SandboxPool(UnsafeSandbox(), workers=2) as pool:
        ...     [result.stdout for result in pool.map([Job(f"print({n})", Path(".")) for n in range(3)])]
        ['0\\n', '1\\n', '2\\n']
    """

    def __init__(self, sandbox: Sandbox, workers: int | None = None) -> None:
        self.sandbox = sandbox
        self.workers = workers or max(1, len(os.sched_getaffinity(0)) // max(1, sandbox.limits.cpus))
        self._cancel = threading.Event()
        self._changed = threading.Condition()
        self._waiting: OrderedDict[Hashable, deque[Task]] = OrderedDict()
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
    def submit(self, job: Job, group: Hashable = None) -> Future[Result]: ...
    @overload
    def submit(self, job: Job, group: Hashable = None, *, then: Callable[[Result], T]) -> Future[T]: ...
    def submit(
        self, job: Job, group: Hashable = None, *, then: Callable[[Result], Any] = lambda result: result
    ) -> Future[Any]:
        """Queue a job.

        Args:
            job: What to run.
            group: Jobs of different groups take turns.
            then: Applied to the result in the worker's thread; the future holds what it returns.

        Raises:
            RuntimeError: The pool is closed.
        """
        future: Future[Any] = Future()
        with self._changed:
            if self._cancel.is_set():
                raise RuntimeError("The pool is closed: make a new one.")
            self._waiting.setdefault(group, deque()).append((job, then, future))
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
        for _, _, future in dropped:
            future.cancel()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            job, then, future = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(then(self._run(job)))
            except BaseException as error:  # whatever it was, it belongs to whoever waits for the future
                future.set_exception(error)

    def _run(self, job: Job) -> Result:
        """Run a job; where the machine failed, not the job, try again after a while."""
        for pause_s in RETRY_AFTER_S:
            result = self.sandbox.run(job, self._cancel)
            if result.status != "infrastructure":
                return result
            self._cancel.wait(pause_s)
        return self.sandbox.run(job, self._cancel)

    def _next(self) -> Task | None:
        with self._changed:
            while not self._waiting:
                if self._cancel.is_set():
                    return None
                self._changed.wait()
            group, queue = self._waiting.popitem(last=False)
            task = queue.popleft()
            if queue:
                self._waiting[group] = queue
            return task
