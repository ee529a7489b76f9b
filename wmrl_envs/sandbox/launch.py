"""What every back end does alike: environment and seeds before a job, its status and submission after it."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import signal
import socket
from collections.abc import Iterable
from concurrent.futures import CancelledError
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from wmrl_envs.errors import SandboxError
from wmrl_envs.evaluation import OutcomeStatus
from wmrl_envs.sandbox.job import Job, Limits, Result
from wmrl_envs.sandbox.output import hide_homes
from wmrl_envs.sandbox.submission import (
    SUBMISSION,
    NoSubmissionError,
    RefusedSubmissionError,
    fetch_submission,
)
from wmrl_envs.sandbox.supervise import Ending

__all__ = [
    "RUNNER",
    "Channel",
    "Connection",
    "check_readable",
    "conclude",
    "fingerprint",
    "job_environment",
    "new_uid",
    "runner_arguments",
]

RUNNER = Path(__file__).with_name("runner.py")
FIRST_UID = 0x70000000  # the last block that no distribution hands out; room for 2**22 process ids x 64 jobs
_JOBS = itertools.count()
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
)


def job_environment(
    job: Job, limits: Limits, python: Path, data_dir: str, work_dir: str, tmp_dir: str
) -> dict[str, str]:
    """The whole environment of a job; nothing is inherited."""
    fixed = {
        "DATA_DIR": data_dir,
        "SUBMISSION_PATH": f"{work_dir}/{SUBMISSION}",
        "HOME": work_dir,
        "TMPDIR": tmp_dir,
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "PYTHONHASHSEED": str(seed_of(job.code)),
        "PYTHONUNBUFFERED": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    return dict.fromkeys(THREAD_VARIABLES, str(limits.cpus)) | fixed | dict(job.env)


def seed_of(code: str) -> int:
    """The same program always gets the same 32-bit seed: a score is a function of the solution."""
    return int.from_bytes(hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()[:4], "big")


def fingerprint(sandbox: str, limits: Limits, environment: str) -> str:
    """What a result depends on besides its job; `environment` is a digest of interpreter and packages."""
    return hashlib.sha256(f"{sandbox}\n{limits}\n{environment}".encode()).hexdigest()


def new_uid() -> int:
    """A user id that no other job at this time has, so that limits per user are limits per job."""
    return FIRST_UID + (os.getpid() % 2**22) * 64 + next(_JOBS) % 64


@lru_cache(maxsize=256)
def check_readable(data_dir: Path) -> None:
    """Solutions do not run as root: what only root may read would look like the solution's failure."""
    for path in (data_dir.resolve(), *data_dir.resolve().rglob("*")):
        needed = 0o005 if path.is_dir() else 0o004
        if path.exists() and path.stat().st_mode & needed != needed:
            raise SandboxError(f"Solutions could not read {path}: run  chmod -R a+rX {data_dir}")


def runner_arguments(channel: int, job: Job, limits: Limits, data_bytes: int = 0) -> list[str]:
    """Command-line arguments of runner.py."""
    numbers = (channel, seed_of(job.code), limits.file_bytes, limits.processes, data_bytes)
    return [str(number) for number in numbers]


class Connection:
    """The caller's end of the socket through which runner.py hands over the job's folder.

    Args:
        end: The socket; closed when the context ends.

    Attributes:
        local: Its descriptor, which can be read once the program begins.
    """

    def __init__(self, end: socket.socket) -> None:
        self._local = end
        self.local = end.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._local.close()

    def receive(self) -> tuple[int, float] | None:
        """Descriptor of the job's folder, and when the program began; None if it never came so far."""
        self._local.setblocking(False)
        try:
            message, descriptors, _, _ = socket.recv_fds(self._local, 64, 1)
        except BlockingIOError:
            return None
        return (descriptors[0], int(message) / 1e9) if descriptors else None


class Channel(Connection):
    """Both ends, for a job that inherits its own.

    Attributes:
        remote: The job's end, to be passed to its process.
    """

    def __init__(self) -> None:
        local, self._remote = socket.socketpair()
        super().__init__(local)
        self.remote = self._remote.fileno()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, frames)
        self.hand_over()

    def hand_over(self) -> None:
        """Close the job's end here, once it has been passed on: many jobs need many descriptors."""
        self._remote.close()


def conclude(
    ending: Ending,
    channel: Connection,
    limits: Limits,
    homes: Iterable[Path] = (),
    *,
    oom: bool = False,
    peak: int | None = None,
) -> Result:
    """Say how a job ended, and fetch its submission if it ended well.

    Args:
        ending: What was seen of its end.
        channel: Over which the job's folder may have come.
        limits: What it was allowed.
        homes: Folders of its interpreter, which its output does not name.
        oom: Whether the kernel ended one of its processes for want of memory.
        peak: Its largest memory in bytes, where that is known.

    Raises:
        CancelledError: The job was killed because nobody wants its result any more.
    """
    if ending.cause == "cancelled":
        raise CancelledError
    received = channel.receive()
    result = Result(
        status="ok",
        exit_code=ending.exit_code if ending.cause == "exit" and ending.exit_code >= 0 else None,
        stdout=hide_homes(ending.stdout, homes),
        stderr=hide_homes(ending.stderr, homes),
        peak_memory_bytes=peak,
    )
    if received is None:
        said = ending.stderr.strip() or f"exit code {ending.exit_code}"
        message = f"The sandbox could not be set up: {said}"
        return dataclasses.replace(result, status="infrastructure", exit_code=None, message=message)
    folder, began = received
    try:
        status, message = _status(ending, limits, oom)
        result = dataclasses.replace(
            result, status=status, message=message, seconds=max(0.0, ending.ended_at - began)
        )
        return _with_submission(result, folder, limits) if status == "ok" else result
    finally:
        os.close(folder)


def _with_submission(result: Result, folder: int, limits: Limits) -> Result:
    try:
        return dataclasses.replace(result, submission_path=fetch_submission(folder, limits.file_bytes))
    except NoSubmissionError as error:
        return dataclasses.replace(result, submission_error="no_submission", message=str(error))
    except RefusedSubmissionError as error:
        return dataclasses.replace(result, submission_error="unreadable", message=str(error))
    except OSError as error:  # the copy failed: the disk is full, or the temporary folder is gone
        message = f"The submission could not be copied: {error}."
        return dataclasses.replace(result, status="infrastructure", message=message)


def _status(ending: Ending, limits: Limits, oom: bool) -> tuple[OutcomeStatus, str]:
    if ending.cause == "timeout":
        return "timeout", f"The program was stopped after {limits.timeout_s:g} seconds."
    if ending.cause == "output_limit":
        return "output_limit", "The program was stopped because it printed without end."
    if ending.cause == "oom" or (oom and ending.exit_code != 0):
        return "oom", f"The program used more than {limits.memory_bytes // 2**20} MiB of memory."
    if ending.exit_code != 0:
        return "error", f"The program {_describe(ending.exit_code)}."
    return "ok", ""


def _describe(exit_code: int) -> str:
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code in range(129, 160) or exit_code < 0:
        return f"was ended by signal {signal.Signals(number).name}"
    return f"ended with exit code {exit_code}"
