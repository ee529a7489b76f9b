"""Watching one process: its output is drained, its time is kept, its end is noticed."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal, Protocol

from wmrl_envs.sandbox.job import Limits
from wmrl_envs.sandbox.output import Capture

__all__ = ["SETUP_S", "TICK_S", "Ending", "Process", "supervise"]

Cause = Literal["exit", "timeout", "output_limit", "oom", "cancelled"]

CHUNK = 1 << 16
MAX_OUTPUT = 64 << 20
TICK_S = 0.1
SETUP_S = 60.0
DRAIN_S = 5.0


@dataclass(frozen=True)
class Ending:
    """How a watched process ended.

    Attributes:
        cause: ``exit`` by itself, or what it was killed for.
        exit_code: As `subprocess` has it: negative for a signal.
        stdout: Output, cut in the middle.
        stderr: Likewise.
        ended_at: When, by `time.monotonic`.
    """

    cause: Cause
    exit_code: int
    stdout: str
    stderr: str
    ended_at: float


class Process(Protocol):
    """What can be followed to its end, as `subprocess.Popen` can."""

    pid: int
    returncode: int | Any
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def wait(self) -> int:
        """Wait for the end."""
        ...


class _Watch:
    """What is waited for: two output pipes, read as they fill in bounded memory, and other descriptors."""

    def __init__(self, process: Process, keep: int) -> None:
        self.stdout, self.stderr = Capture(keep), Capture(keep)
        self._selector = selectors.DefaultSelector()
        for pipe, capture in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, capture)

    def add(self, descriptor: int) -> None:
        """Wait for one more."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def remove(self, descriptor: int) -> None:
        """Wait for it no longer."""
        self._selector.unregister(descriptor)

    def wait(self, timeout_s: float) -> set[int]:
        """Take the output that is there; which of the added descriptors became ready."""
        ready = set()
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                ready.add(key.fd)
            elif chunk := os.read(key.fd, CHUNK):
                key.data.feed(chunk)
            else:
                self._selector.unregister(key.fd)
        return ready

    def drain(self) -> None:
        """Take what is left after everything was killed; whoever still holds a pipe is not waited for."""
        deadline = time.monotonic() + DRAIN_S
        while self._selector.get_map() and time.monotonic() < deadline:
            self.wait(TICK_S)
        self._selector.close()


def supervise(
    process: Process,
    limits: Limits,
    ready: int,
    cancel: threading.Event | None = None,
    out_of_memory: Callable[[], bool] = lambda: False,
    kill: Callable[[int], None] = lambda pid: os.killpg(pid, signal.SIGKILL),
    end: Callable[[int], int] = os.pidfd_open,
) -> Ending:
    """Follow a process to its end, which comes at the latest when the time limit is over.

    Its stdout and stderr must be pipes, and unless `kill` is given it must lead a process group of its own.
    When it ends, all its descendants are killed: a grandchild that holds the pipe keeps nobody waiting.

    Args:
        process: A process that was just started.
        limits: The limits of time and output are kept here; the others are the caller's.
        ready: Descriptor that can be read once the program itself begins. Its time is limited from there:
            on a busy machine it may take the sandbox a while to stand.
        cancel: Once set, the process is ended with the cause ``cancelled``.
        out_of_memory: Asked about ten times a second; True ends the process with the cause ``oom``.
        kill: Ends the process and all its descendants, given the number of the process.
        end: Opens a descriptor that can be read once the process has ended, given its number.
    """
    watch = _Watch(process, limits.output_bytes)
    clock = _Clock(limits.timeout_s)
    ended = end(process.pid)
    watch.add(ended)
    watch.add(ready)
    try:
        cause = _follow(watch, clock, ended, ready, cancel or threading.Event(), out_of_memory)
    finally:
        ended_at = time.monotonic()
        kill(process.pid)
        process.wait()
        watch.remove(ended)
        if not clock.running:
            watch.remove(ready)
        watch.drain()
        os.close(ended)
    return Ending(cause, process.returncode, watch.stdout.text(), watch.stderr.text(), ended_at)


class _Clock:
    """First the time to set up, then the program's own."""

    def __init__(self, timeout_s: float) -> None:
        self.running = False
        self._timeout_s = timeout_s
        self._since = time.monotonic()

    def start(self) -> None:
        self.running, self._since = True, time.monotonic()

    def remaining(self) -> float:
        return self._since + (self._timeout_s if self.running else SETUP_S) - time.monotonic()


def _follow(
    watch: _Watch,
    clock: _Clock,
    ended: int,
    ready: int,
    cancel: threading.Event,
    out_of_memory: Callable[[], bool],
) -> Cause:
    while (remaining := clock.remaining()) > 0:
        came = watch.wait(min(TICK_S, remaining))
        if ready in came:
            watch.remove(ready)
            clock.start()
        if ended in came:
            return "exit"
        if watch.stdout.total + watch.stderr.total > MAX_OUTPUT:
            return "output_limit"
        if cancel.is_set():
            return "cancelled"
        if out_of_memory():
            return "oom"
    return "timeout"
