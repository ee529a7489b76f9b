"""What every back end does alike: environment and seeds before a job, its status and submission after it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import socket
from concurrent.futures import CancelledError
from pathlib import Path
from types import TracebackType

from wmrl_envs.evaluation import OutcomeStatus
from wmrl_envs.sandbox.interpreter import Interpreter
from wmrl_envs.sandbox.job import Job, Limits, Result
from wmrl_envs.sandbox.submission import SUBMISSION, RefusedSubmissionError, fetch_submission
from wmrl_envs.sandbox.supervise import Ending

__all__ = ["RUNNER", "Channel", "conclude", "fingerprint", "job_environment", "runner_arguments"]

RUNNER = Path(__file__).with_name("runner.py")
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


def fingerprint(sandbox: str, limits: Limits, interpreter: Interpreter) -> str:
    """What a result depends on besides its job."""
    return hashlib.sha256(f"{sandbox}\n{limits}\n{interpreter.digest}".encode()).hexdigest()


def runner_arguments(channel: int, job: Job, limits: Limits, data_bytes: int = 0) -> list[str]:
    """Command-line arguments of runner.py."""
    numbers = (channel, seed_of(job.code), limits.file_bytes, limits.processes, data_bytes)
    return [str(number) for number in numbers]


class Channel:
    """The caller's end of the socket pair through which runner.py hands over the job's folder.

    Attributes:
        local: The caller's end; it can be read once the program begins.
        remote: The job's end, to be passed to its process.
    """

    def __init__(self) -> None:
        self._local, self._remote = socket.socketpair()
        self.local, self.remote = self._local.fileno(), self._remote.fileno()

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._local.close()
        self._remote.close()

    def receive(self) -> tuple[int, float] | None:
        """Descriptor of the job's folder, and when the program began; None if it never came so far."""
        self._local.setblocking(False)
        try:
            message, descriptors, _, _ = socket.recv_fds(self._local, 64, 1)
        except BlockingIOError:
            return None
        return descriptors[0], int(message) / 1e9


def conclude(
    ending: Ending, channel: Channel, limits: Limits, oom: bool = False, peak: int | None = None
) -> Result:
    """Say how a job ended, and fetch its submission if it ended well.

    Raises:
        CancelledError: The job was killed because nobody wants its result any more.
    """
    if ending.cause == "cancelled":
        raise CancelledError
    received = channel.receive()
    result = Result(
        status="ok",
        exit_code=ending.exit_code if ending.cause == "exit" and ending.exit_code >= 0 else None,
        stdout=ending.stdout,
        stderr=ending.stderr,
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
    except FileNotFoundError as error:
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
