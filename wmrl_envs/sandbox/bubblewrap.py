"""The default sandbox: bubblewrap, which needs no daemon and adds some 50 ms to a job.

A job sees its interpreter and /usr (read-only), the public data (read-only), and fresh file systems in memory
for what it writes. It sees no network, no other process, none of the user's files and environment.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import BinaryIO

from wmrl_envs.errors import SandboxError
from wmrl_envs.sandbox.interpreter import Interpreter, find_interpreter
from wmrl_envs.sandbox.job import Job, Limits, Result
from wmrl_envs.sandbox.launch import RUNNER, Channel, conclude, fingerprint, job_environment, runner_arguments
from wmrl_envs.sandbox.supervise import supervise

__all__ = ["BubblewrapSandbox"]

MISSING = (
    "Solutions run isolated by bubblewrap, which is not installed here: apt-get install bubblewrap. "
    "(UnsafeSandbox runs them without any isolation: they could read every file, the answers too.)"
)
SANDBOX_RUNNER = "/sandbox/runner.py"
FIRST_UID = 0x70000000  # the last block that no distribution hands out; room for 2**22 process ids x 64 jobs
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")


class BubblewrapSandbox:
    """Runs each job in fresh namespaces; safe to call from several threads.

    Args:
        limits: What one job may use.
        python: Interpreter for the solutions; None for the one that runs this.

    Raises:
        SandboxError: bubblewrap is missing, or the interpreter does not start.

    Example:
        >>> sandbox = BubblewrapSandbox(Limits(timeout_s=10))  # doctest: +SKIP
        >>> sandbox.run(Job(code="print('hello')", data_dir=Path("public"))).stdout  # doctest: +SKIP
        'hello\\n'
    """

    def __init__(self, limits: Limits | None = None, python: str | Path | None = None) -> None:
        self.limits = limits or Limits()
        self.interpreter = find_interpreter(None if python is None else str(python))
        self._bwrap = shutil.which("bwrap")
        if self._bwrap is None:
            raise SandboxError(MISSING)
        self._numbers = itertools.count()

    @property
    def fingerprint(self) -> str:
        """See `Sandbox.fingerprint`."""
        return fingerprint("bubblewrap", self.limits, self.interpreter)

    def run(self, job: Job, cancel: threading.Event | None = None) -> Result:
        """Run one job.

        Returns:
            How it ended. Its `submission_path`, if any, is a private temporary file: the caller deletes it.
        """
        with Channel() as channel, _source_file(job.code) as source:
            command = self._command(job, channel.remote, source.fileno())
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(channel.remote, source.fileno()),
                start_new_session=True,
            )
            with process:
                ending = supervise(process, self.limits, cancel)
            return conclude(ending, channel, self.limits)

    def _command(self, job: Job, channel: int, source: int) -> list[str]:
        environment = job_environment(job, self.limits, "/data", "/job", "/tmp")
        return [
            str(self._bwrap),
            *_isolation(),
            *_system(self.limits.file_bytes),
            *_interpreter(self.interpreter),
            *_hide(job.data_dir.resolve().parent, self.interpreter),
            *("--ro-bind", str(job.data_dir.resolve()), "/data"),
            *("--perms", "0755", "--dir", "/sandbox", "--ro-bind", str(RUNNER), SANDBOX_RUNNER),
            *("--perms", "0644", "--file", str(source), "/job/solution.py"),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/job", "--clearenv"),
            *(word for name, value in environment.items() for word in ("--setenv", name, value)),
            *("--", *self._drop_root(), str(self.interpreter.executable), "-s", "-B", "-P", SANDBOX_RUNNER),
            *runner_arguments(channel, job, self.limits),
        ]

    def _drop_root(self) -> list[str]:
        """As root every job gets a user id of its own, so that limits per user are limits per job."""
        if os.geteuid() != 0:
            return []
        uid = FIRST_UID + (os.getpid() % 2**22) * 64 + next(self._numbers) % 64
        return [
            *("/usr/bin/setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
            *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"),
        ]


def _source_file(code: str) -> BinaryIO:
    """The program in an anonymous file in memory, at its beginning."""
    file = os.fdopen(os.memfd_create("solution"), "w+b")
    file.write(code.encode("utf-8", "surrogatepass"))
    file.seek(0)
    return file


def _isolation() -> list[str]:
    """Namespaces. Root keeps the three capabilities with which setpriv becomes an ordinary user inside."""
    shared = ["ipc", "pid", "net", "uts", "cgroup-try"]
    options = [f"--unshare-{name}" for name in shared]
    options += ["--die-with-parent", "--new-session", "--hostname", "sandbox"]
    if os.geteuid() != 0:
        return ["--unshare-user", "--disable-userns", *options]
    keep = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
    return [*options, "--cap-drop", "ALL", *(word for name in keep for word in ("--cap-add", name))]


def _system(file_bytes: int) -> list[str]:
    """/usr, a few files of /etc, and the file systems in memory that a job may write to."""
    options = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        root = Path("/", name)
        if root.is_symlink():
            options += ["--symlink", str(root.readlink()), str(root)]
        elif root.is_dir():
            options += ["--ro-bind", str(root), str(root)]
    for name in ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/dev/shm", "/job"):
        options += ["--perms", "0777", "--size", str(file_bytes), "--tmpfs", folder]
    return options


def _interpreter(interpreter: Interpreter) -> list[str]:
    """The interpreter's folders at their own paths, this project's packages in them empty."""
    options = []
    for tree in interpreter.trees:
        options += [*_parents(tree), "--ro-bind", str(tree), str(tree)]
    for folder in interpreter.masked:
        options += ["--perms", "0000", "--tmpfs", str(folder), "--remount-ro", str(folder)]
    return options


def _hide(competition: Path, interpreter: Interpreter) -> list[str]:
    """A competition's folder holds its answers: where it lies inside of what is visible it is emptied."""
    visible = (*interpreter.trees, Path("/usr"))
    if not any(competition.is_relative_to(tree) for tree in visible):
        return []
    if any(competition.is_relative_to(folder) for folder in interpreter.masked):
        return []
    return ["--perms", "0000", "--tmpfs", str(competition), "--remount-ro", str(competition)]


def _parents(folder: Path) -> list[str]:
    """Made with mode 0755: bubblewrap would make them 0700, closed to an ordinary user."""
    return [w for parent in reversed(folder.parents[:-1]) for w in ("--perms", "0755", "--dir", str(parent))]
