"""Who keeps the limits of memory and processes on this machine: control groups, or a watcher."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Protocol

from wmrl_envs.sandbox.cgroup import CgroupGuards, find_layouts
from wmrl_envs.sandbox.job import Limits
from wmrl_envs.sandbox.mounts import WRITABLE

__all__ = ["Guard", "Guards", "Watcher", "WatcherGuards", "find_guards"]

KIB = 1024
RESIDENT = re.compile(r"^(VmRSS|RssShmem):\s+(\d+) kB$", re.MULTILINE)


class Guard(Protocol):
    """Keeps the limits of one job.

    Attributes:
        prefix: Command to put in front of the job's.
        data_bytes: Limit of private memory per process, to be set inside; 0 for none.
    """

    prefix: list[str]
    data_bytes: int

    def exceeded(self, pid: int) -> bool:
        """Asked while the job runs: whether it has to be killed for its memory."""
        ...

    def killed_for_memory(self) -> bool:
        """Asked at the end: whether a process was killed for its memory."""
        ...

    def peak_bytes(self) -> int | None:
        """Asked at the end: the largest memory use."""
        ...

    def close(self) -> None:
        """Clear up."""
        ...


class Guards(Protocol):
    """Makes guards."""

    name: str

    def new(self, limits: Limits) -> Guard:
        """A guard for one job."""
        ...


class WatcherGuards:
    """Where no control group can be had: the memory of a job's processes is added up ten times a second."""

    name = "watcher"

    def new(self, limits: Limits) -> Guard:
        """A watcher for one job."""
        return Watcher(limits)


class Watcher:
    """Adds up the memory of a process, of all that descend from it, and of the files that they keep in it.

    Between two looks a process could take much; so each gets the job's whole limit as its own hard limit too.
    What is shared, between processes or with such a file, is counted once as far as it can be told.
    """

    def __init__(self, limits: Limits) -> None:
        self.prefix: list[str] = []
        self.data_bytes = limits.memory_bytes
        self._limit = limits.memory_bytes
        self._peak = 0

    def exceeded(self, pid: int) -> bool:
        """Look once."""
        pids = _descendants(pid)
        sizes = [_resident_bytes(p) for p in pids]
        own, shared = sum(own for own, _ in sizes), sum(shared for _, shared in sizes)
        self._peak = max(self._peak, own + max(shared, _file_bytes(pids)))
        return self._peak > self._limit

    def killed_for_memory(self) -> bool:
        """False: whoever is killed by a watcher is killed as a whole, while it runs."""
        return False

    def peak_bytes(self) -> int | None:
        """The most that a look found; None if the job ended before the first."""
        return self._peak or None

    def close(self) -> None:
        """Nothing is left to clear."""


def _descendants(pid: int) -> list[int]:
    """The process and its children's children; orphans stay below bubblewrap's process 1."""
    found = [pid]
    for parent in found:
        for task in _list(Path(f"/proc/{parent}/task")):
            found += [int(child) for child in _read(task / "children").split()]
    return found


def _resident_bytes(pid: int) -> tuple[int, int]:
    """Resident memory of a process: its own, and what it shares with others or maps of a file in memory."""
    sizes = dict(RESIDENT.findall(_read(Path(f"/proc/{pid}/status"))))
    shared = int(sizes.get("RssShmem", 0)) * KIB
    return int(sizes.get("VmRSS", 0)) * KIB - shared, shared


def _file_bytes(pids: list[int]) -> int:
    """Size of all files in the file systems in memory, seen through the first process that is inside."""
    for pid in pids:
        root = f"/proc/{pid}/root"
        try:
            if not os.path.samefile(root, "/"):
                return sum(_used_bytes(root + folder) for folder in WRITABLE)
        except OSError:  # it has just ended, or its file systems are not all there yet
            continue
    return 0


def _used_bytes(folder: str) -> int:
    size = os.statvfs(folder)
    return (size.f_blocks - size.f_bfree) * size.f_frsize


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it has just ended
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has just ended
        return ""


@cache
def find_guards() -> Guards:
    """The best that this machine and this user's rights allow."""
    for layout in find_layouts():
        try:
            return CgroupGuards(layout)
        except (OSError, subprocess.SubprocessError):
            continue  # the group is there but not ours to use
    return WatcherGuards()
