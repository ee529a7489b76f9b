"""No sandbox at all: a plain subprocess, for machines where isolation cannot be had and code is trusted."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wmrl_envs.sandbox.interpreter import find_interpreter
from wmrl_envs.sandbox.job import Job, Limits, Result
from wmrl_envs.sandbox.launch import RUNNER, Channel, conclude, fingerprint, job_environment, runner_arguments
from wmrl_envs.sandbox.owner import OWNER, is_gone, this_process
from wmrl_envs.sandbox.scratch import remove_leftovers, scratch_folder
from wmrl_envs.sandbox.supervise import supervise

__all__ = ["UnsafeSandbox"]

MARK = "WMRL_UNSAFE_JOB"
MARKED = re.compile(rf"\0{MARK}=(({OWNER})-[0-9a-f]{{32}})\0".encode())


class UnsafeSandbox:
    """Runs jobs with the rights of the caller: they can read the answers, and write anywhere.

    Time, output, file size and stray processes are taken care of; memory and the number of processes are not.

    Args:
        limits: What one job may use.
        python: Interpreter for the solutions; None for the one that runs this.
    """

    def __init__(self, limits: Limits | None = None, python: str | Path | None = None) -> None:
        self.limits = limits or Limits()
        self.interpreter = find_interpreter(None if python is None else str(python))
        _kill_abandoned()
        remove_leftovers()

    @property
    def fingerprint(self) -> str:
        """See `Sandbox.fingerprint`."""
        return fingerprint("unsafe", self.limits, self.interpreter.digest)

    def run(self, job: Job, cancel: threading.Event | None = None) -> Result:
        """Run one job; see `BubblewrapSandbox.run`."""
        try:
            return self._run(job, cancel)
        except OSError as error:  # no process or folder could be had: the machine is full
            return Result("infrastructure", message=f"The job could not be started: {error}.")

    def _run(self, job: Job, cancel: threading.Event | None) -> Result:
        mark = f"{this_process()}-{uuid.uuid4().hex}"
        with (
            tempfile.TemporaryDirectory(dir=scratch_folder(), ignore_cleanup_errors=True) as folder,
            Channel() as channel,
        ):
            Path(folder, "solution.py").write_bytes(job.code.encode("utf-8", "surrogatepass"))
            python = self.interpreter.executable
            data_dir = str(job.data_dir.resolve())
            environment = job_environment(job, self.limits, python, data_dir, folder, folder)
            command = [str(python), "-s", "-B", "-P", str(RUNNER)]
            process = subprocess.Popen(
                command + runner_arguments(channel.remote, job, self.limits),
                cwd=folder,
                env=environment | {MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(channel.remote,),
                start_new_session=True,
            )
            with process:
                ending = supervise(
                    process, self.limits, channel.local, cancel, kill=lambda pid: _kill_all(pid, mark)
                )
            result = conclude(ending, channel, self.limits, self.interpreter.trees)
            if (
                result.status == "error" and os.statvfs(folder).f_bavail == 0
            ):  # it writes to the machine's own
                message = f"The disk of {folder} is full. {result.message}"
                return dataclasses.replace(result, status="infrastructure", message=message)
            return result


def _kill_all(pid: int, mark: str) -> None:
    """End the process group, and children that left it: they carry the job's mark in their environment."""
    os.killpg(pid, signal.SIGKILL)
    _kill_marked(lambda found, owner: found == mark)


def _kill_abandoned() -> None:
    """End the jobs of owners that were killed: nothing else ends them."""
    _kill_marked(lambda mark, owner: is_gone(owner))


def _kill_marked(is_meant: Callable[[str, str], bool]) -> None:
    """End the processes whose mark is meant."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it is someone else's, or it has just ended
            found = MARKED.search(b"\0" + (entry / "environ").read_bytes())
            if found and is_meant(found[1].decode(), found[2].decode()):
                os.kill(int(entry.name), signal.SIGKILL)
