"""The default sandbox: bubblewrap, which needs no daemon and adds some 50 ms to a job.

A job sees its interpreter and /usr (read-only), the public data (read-only), and fresh file systems in memory
for what it writes. It sees no network, no other process, none of the user's files and environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from wmrl_envs.errors import SandboxError
from wmrl_envs.sandbox.guards import Guard, find_guards
from wmrl_envs.sandbox.interpreter import Interpreter, find_interpreter
from wmrl_envs.sandbox.job import Job, Limits, Result
from wmrl_envs.sandbox.launch import (
    Channel,
    check_readable,
    conclude,
    fingerprint,
    job_environment,
    new_uid,
    runner_arguments,
)
from wmrl_envs.sandbox.mounts import DATA, JOB, SANDBOX_RUNNER, TMP, mounts
from wmrl_envs.sandbox.scratch import remove_leftovers
from wmrl_envs.sandbox.seccomp import assemble_filter
from wmrl_envs.sandbox.supervise import supervise

__all__ = ["BubblewrapSandbox"]

MISSING = (
    "Solutions run isolated by bubblewrap, which is not installed here: apt-get install bubblewrap. "
    "(Unsafe execution, if you ask for it, isolates nothing: a solution could read every file, answers too.)"
)
OLDEST = (0, 5)  # the first with --perms and --clearenv
SIZES_SINCE = (0, 7)
NO_NESTING_SINCE = (0, 8)
DROP_ROOT = ("--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--")
NAMESPACES = ("ipc", "pid", "net", "uts", "cgroup-try")


@dataclass(frozen=True)
class _Bubblewrap:
    path: str
    version: tuple[int, ...]


_WORKING: set[tuple[_Bubblewrap, Interpreter]] = set()


class BubblewrapSandbox:
    """Runs each job in fresh namespaces, under a system call filter; safe to call from several threads.

    Memory and processes are limited by control groups where this user may make them, else by a watcher.

    Args:
        limits: What one job may use.
        python: Interpreter for the solutions; None for the one that runs this.

    Raises:
        SandboxError: bubblewrap is missing, too old, or cannot isolate on this machine.

    Example:
        >>> sandbox = BubblewrapSandbox(Limits(timeout_s=10))
        >>> sandbox.run(Job(code="print('hello')", data_dir=Path("/usr/bin"))).stdout
        'hello\\n'
    """

    def __init__(self, limits: Limits | None = None, python: str | Path | None = None) -> None:
        self.limits = limits or Limits()
        self.interpreter = find_interpreter(None if python is None else str(python))
        self._bubblewrap = _find_bubblewrap(shutil.which("bwrap"))
        self._guards = find_guards()
        self._filter = assemble_filter()
        self._check()

    @property
    def fingerprint(self) -> str:
        """See `Sandbox.fingerprint`."""
        return fingerprint("bubblewrap", self.limits, self.interpreter.digest)

    @property
    def version(self) -> str:
        """Version of bubblewrap."""
        return ".".join(map(str, self._bubblewrap.version))

    @property
    def isolation(self) -> str:
        """By what means a job has no rights, in words."""
        return "a user id of its own for each job" if os.geteuid() == 0 else "a user namespace for each job"

    @property
    def memory_limiter(self) -> str:
        """Who keeps the limits of memory and processes: "cgroup v2", "cgroup v1" or "watcher"."""
        return self._guards.name

    def run(self, job: Job, cancel: threading.Event | None = None) -> Result:
        """Run one job; see `Sandbox.run`.

        Returns:
            How it ended. Its `submission_path`, if any, is a private temporary file: the caller deletes it.

        Raises:
            SandboxError: The data cannot be read by the user that solutions run as.
        """
        if os.geteuid() == 0:
            check_readable(job.data_dir)
        try:
            return self._run(job, cancel)
        except OSError as error:  # no process, descriptor or group could be had: the machine is full
            return Result("infrastructure", message=f"The sandbox could not be started: {error}.")

    def _run(self, job: Job, cancel: threading.Event | None) -> Result:
        with ExitStack() as stack:
            channel = stack.enter_context(Channel())
            guard = self._guards.new(self.limits)
            stack.callback(guard.close)
            with self._start(job, guard, channel) as process:
                ending = supervise(
                    process, self.limits, channel.local, cancel, lambda: guard.exceeded(process.pid)
                )
            return conclude(
                ending,
                channel,
                self.limits,
                self.interpreter.trees,
                oom=guard.killed_for_memory(),
                peak=guard.peak_bytes(),
            )

    def _start(self, job: Job, guard: Guard, channel: Channel) -> subprocess.Popen[bytes]:
        with (
            _in_memory(job.code.encode("utf-8", "surrogatepass")) as source,
            _in_memory(self._filter) as calls,
        ):
            process = subprocess.Popen(
                [*guard.prefix, *self._command(job, guard, channel.remote, source.fileno(), calls.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(channel.remote, source.fileno(), calls.fileno()),
                start_new_session=True,
            )
        channel.hand_over()
        return process

    def _command(self, job: Job, guard: Guard, channel: int, source: int, calls: int) -> list[str]:
        python = self.interpreter.executable
        environment = job_environment(job, self.limits, python, DATA, JOB, TMP)
        size = self.limits.file_bytes if self._bubblewrap.version >= SIZES_SINCE else None
        return [
            *(self._bubblewrap.path, *self._isolation(), "--seccomp", str(calls)),
            *mounts(self.interpreter, job.data_dir, source, size),
            *("--clearenv", *(w for name, value in environment.items() for w in ("--setenv", name, value))),
            *("--", *self._drop_root(), str(python), "-s", "-B", "-P", SANDBOX_RUNNER),
            *runner_arguments(channel, job, self.limits, guard.data_bytes),
        ]

    def _isolation(self) -> list[str]:
        """Namespaces. Root keeps the capabilities with which setpriv becomes an ordinary user inside."""
        options = [*(f"--unshare-{name}" for name in NAMESPACES), "--hostname", "sandbox"]
        options += ["--die-with-parent", "--new-session"]
        if os.geteuid() == 0:
            keep = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
            return [*options, "--cap-drop", "ALL", *(w for name in keep for w in ("--cap-add", name))]
        nesting = ["--disable-userns"] if self._bubblewrap.version >= NO_NESTING_SINCE else []
        return ["--unshare-user", *nesting, *options]

    def _drop_root(self) -> list[str]:
        """As root every job gets a user id of its own, so that limits per user are limits per job."""
        if os.geteuid() != 0:
            return []
        uid = new_uid()
        return ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={uid}", *DROP_ROOT]

    def _check(self) -> None:
        """Run an empty program once: better one clear sentence now than a failure for each solution."""
        if (self._bubblewrap, self.interpreter) in _WORKING:
            return
        remove_leftovers()
        result = self.run(Job(code="", data_dir=Path(__file__).parent))
        if result.status == "infrastructure":
            raise SandboxError(f"bubblewrap is installed but cannot isolate here. {result.message}")
        _WORKING.add((self._bubblewrap, self.interpreter))


@lru_cache(maxsize=4)
def _find_bubblewrap(path: str | None) -> _Bubblewrap:
    if path is None:
        raise SandboxError(MISSING)
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    numbers = re.findall(r"\d+", said)
    version = tuple(int(number) for number in numbers)
    if version < OLDEST:
        raise SandboxError(f"{path} is too old ({said.strip()!r}): bubblewrap 0.5 or newer is needed.")
    return _Bubblewrap(path, version)


def _in_memory(content: bytes) -> BinaryIO:
    """An anonymous file that holds the content, at its beginning."""
    file = os.fdopen(os.memfd_create("wmrl"), "w+b")
    file.write(content)
    file.seek(0)
    return file
