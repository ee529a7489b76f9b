"""What a job in bubblewrap sees of the file system, as command-line options."""

from __future__ import annotations

from pathlib import Path

from wmrl_envs.sandbox.interpreter import USR, Interpreter
from wmrl_envs.sandbox.launch import RUNNER

__all__ = ["DATA", "JOB", "SANDBOX_RUNNER", "TMP", "mounts"]

DATA, JOB, TMP = "/data", "/job", "/tmp"
WRITABLE = (TMP, "/dev/shm", JOB)
SANDBOX_RUNNER = "/sandbox/runner.py"
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")


def mounts(interpreter: Interpreter, data_dir: Path, source: int, writable_bytes: int | None) -> list[str]:
    """Options for the whole file system of one job.

    Args:
        interpreter: Its folders keep their paths.
        data_dir: Public data, seen as `DATA`.
        source: Descriptor from which solution.py is read.
        writable_bytes: Size of each file system that the job may write to; None for bubblewrap's default.
    """
    return [
        *_system(),
        *_writable(writable_bytes),
        *_interpreter(interpreter),
        *_answers(data_dir.resolve(), interpreter),
        *("--ro-bind", str(data_dir.resolve()), DATA),
        *_folder("/sandbox"),
        *("--ro-bind", str(RUNNER), SANDBOX_RUNNER),
        *("--perms", "0644", "--file", str(source), f"{JOB}/solution.py"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", JOB),
    ]


def _system() -> list[str]:
    """/usr, a few harmless files of /etc, processes and devices of the sandbox's own."""
    options = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        root = Path("/", name)
        if root.is_symlink():
            options += ["--symlink", str(root.readlink()), str(root)]
        elif root.is_dir():
            options += ["--ro-bind", str(root), str(root)]
    for name in ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return [*options, "--proc", "/proc", "--dev", "/dev"]


def _writable(size: int | None) -> list[str]:
    """In memory: they count as the job's memory, cannot fill a disk, and vanish with the job."""
    sized = [] if size is None else ["--size", str(size)]
    return [word for folder in WRITABLE for word in ("--perms", "0777", *sized, "--tmpfs", folder)]


def _interpreter(interpreter: Interpreter) -> list[str]:
    """The interpreter's folders at their own paths, this project's packages in them empty."""
    options = []
    for tree in interpreter.trees:
        for parent in reversed(tree.parents[:-1]):
            options += _folder(str(parent))
        options += ["--ro-bind", str(tree), str(tree)]
    for folder in interpreter.masked:
        options += _empty(folder)
    return options


def _answers(data_dir: Path, interpreter: Interpreter) -> list[str]:
    """A competition may lie inside of what is visible: the folder beside its public one is emptied."""
    private = data_dir.parent / "private"
    if not private.is_dir() or any(private.is_relative_to(folder) for folder in interpreter.masked):
        return []
    return _empty(private) if any(private.is_relative_to(tree) for tree in (USR, *interpreter.trees)) else []


def _folder(path: str) -> list[str]:
    """Made open: as a mere parent bubblewrap would make it 0700, closed to an ordinary user."""
    return ["--perms", "0755", "--dir", path]


def _empty(folder: Path) -> list[str]:
    return ["--perms", "0000", "--tmpfs", str(folder), "--remount-ro", str(folder)]
