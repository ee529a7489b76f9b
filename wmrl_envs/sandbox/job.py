"""What goes into a sandbox and what comes out: `Job`, `Limits`, `Result`; and the `Sandbox` protocol."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from wmrl_envs.evaluation import OutcomeStatus

__all__ = ["Job", "Limits", "Result", "Sandbox"]

MIB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """What one job may use.

    Attributes:
        timeout_s: Wall time in seconds.
        memory_bytes: Memory of all its processes together.
        processes: Number of processes and threads alive at once.
        file_bytes: Size of one file, and of everything in its writable folders.
        output_bytes: How much of stdout, and of stderr, is kept; the middle of longer output is cut.
        cpus: Share of processor cores; also the thread count that numeric libraries are told.
    """

    timeout_s: float = 60.0
    memory_bytes: int = 2048 * MIB
    processes: int = 64
    file_bytes: int = 256 * MIB
    output_bytes: int = 16 * 1024
    cpus: int = 1


@dataclass(frozen=True)
class Job:
    """One program to run.

    Attributes:
        code: Python source text, hostile until shown otherwise.
        data_dir: Public folder of the competition, visible read-only as ``DATA_DIR``.
        env: Further environment variables; nothing of the parent's environment is passed on.
    """

    code: str
    data_dir: Path
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a job ended.

    Attributes:
        status: See `wmrl_envs.evaluation.Outcome`.
        exit_code: Exit code of the program, None if it was killed or never started.
        stdout: Decoded output, cut in the middle.
        stderr: Likewise.
        seconds: Wall time of the program, without the sandbox around it.
        peak_memory_bytes: None where the back end cannot measure it.
        submission_path: A regular file outside the sandbox, owned by the caller, who deletes it (see
            `BubblewrapSandbox.run`); None if the program left none that is safe to open.
        submission_error: For a run that ended well without a usable submission: whether there was none, or
            something that was refused (a link, a device, too large).
        message: Why, for statuses that are not ``ok``, or why there is no submission.
    """

    status: OutcomeStatus
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    peak_memory_bytes: int | None = None
    submission_path: Path | None = None
    submission_error: Literal["no_submission", "unreadable"] | None = None
    message: str = ""


@runtime_checkable
class Sandbox(Protocol):
    """A place to run hostile code in."""

    limits: Limits

    @property
    def fingerprint(self) -> str:
        """Changes with everything besides job that a result depends on: limits, packages, kind of sandbox."""
        ...

    def run(self, job: Job, cancel: threading.Event | None = None) -> Result:
        """Run one job to its end; safe to call from several threads at once.

        Args:
            job: What to run.
            cancel: Once set, the job is killed within a moment.

        Raises:
            concurrent.futures.CancelledError: `cancel` was set before the job had ended.
        """
        ...
