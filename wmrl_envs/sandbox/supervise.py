"""Watching one process: its output is drained, its time is kept, its end is noticed."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Literal

from wmrl_envs.sandbox.job import Limits
from wmrl_envs.sandbox.output import Capture

__all__ = ["Ending", "supervise"]

Cause = Literal["exit", "timeout", "output_limit", "oom", "cancelled"]

CHUNK = 1 << 16
MAX_OUTPUT = 64 << 20
TICK_S = 0.1
DRAIN_S = 5.0


@dataclass(frozen=True)
class Ending:
    """How a watched process ended.

    Attributes:
        cause: ``exit`` by itself, or what it was killed for.
        exit_code: As `subprocess` has it: negative for a signal.
        stdout: Output, cut in the middle.
        stderr: Likewise.
        seconds: Wall time.
    """

    cause: Cause
    exit_code: int
    stdout: str
    stderr: str
    seconds: float


class _Pipes:
    """The two output pipes of a process, read as they fill, kept in bounded memory."""

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes], keep: int) -> None:
        self.stdout, self.stderr = Capture(keep), Capture(keep)
        self._selector = selectors.DefaultSelector()
        for pipe, capture in ((stdout, self.stdout), (stderr, self.stderr)):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, capture)

    def read(self, timeout_s: float, also: int | None = None) -> bool:
        """Wait for output, take what is there; True if the descriptor `also` became ready."""
        if also is not None and also not in self._selector.get_map():
            self._selector.register(also, selectors.EVENT_READ)
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if key.fd == also:
                continue
            chunk = os.read(key.fd, CHUNK)
            key.data.feed(chunk)
            if not chunk:
                self._selector.unregister(key.fd)
        return any(key.fd == also for key, _ in ready)

    def drain(self, ended: int) -> None:
        """Take what is left after everything was killed; whoever still holds a pipe is not waited for."""
        self._selector.unregister(ended)
        deadline = time.monotonic() + DRAIN_S
        while self._selector.get_map() and time.monotonic() < deadline:
            self.read(TICK_S)
        self._selector.close()


def supervise(
    process: subprocess.Popen[bytes],
    limits: Limits,
    cancel: threading.Event | None = None,
    out_of_memory: Callable[[], bool] = lambda: False,
    kill: Callable[[int], None] = lambda pid: os.killpg(pid, signal.SIGKILL),
) -> Ending:
    """Follow a process to its end, which comes at the latest when the time limit is over.

    The process must lead a process group of its own, and its stdout and stderr must be pipes. When it ends,
    all its descendants are killed: a grandchild that holds the pipe cannot keep anybody waiting.

    Args:
        process: A process that was just started.
        limits: The limits of time and output are kept here; the others are the caller's.
        cancel: Once set, the process is ended with the cause ``cancelled``.
        out_of_memory: Asked about ten times a second; True ends the process with the cause ``oom``.
        kill: Ends the process and all its descendants, whose process group it leads.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    pipes = _Pipes(process.stdout, process.stderr, limits.output_bytes)
    started = time.monotonic()
    ended = os.pidfd_open(process.pid)
    try:
        cause = _wait(pipes, ended, started + limits.timeout_s, cancel or threading.Event(), out_of_memory)
    finally:
        seconds = time.monotonic() - started
        kill(process.pid)
        process.wait()
        pipes.drain(ended)
        os.close(ended)
    return Ending(cause, process.returncode, pipes.stdout.text(), pipes.stderr.text(), seconds)


def _wait(
    pipes: _Pipes, ended: int, deadline: float, cancel: threading.Event, out_of_memory: Callable[[], bool]
) -> Cause:
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return "timeout"
        if pipes.read(min(TICK_S, remaining), ended):
            return "exit"
        if pipes.stdout.total + pipes.stderr.total > MAX_OUTPUT:
            return "output_limit"
        if cancel.is_set():
            return "cancelled"
        if out_of_memory():
            return "oom"
