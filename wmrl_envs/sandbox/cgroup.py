"""Memory, processes and processor share of a job as the kernel's control groups keep them, version 2 or 1."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wmrl_envs.sandbox.job import Limits
from wmrl_envs.sandbox.owner import OWNER, is_gone, this_process

__all__ = ["Cgroup", "CgroupGuards", "Layout", "find_layouts"]

PERIOD_US = 100_000
CLOSE_S = 5.0
HELPERS = 2  # bubblewrap itself, and its process 1 inside
NAME = re.compile(rf"wmrl-({OWNER})-\d+")
numbers = itertools.count()


def _settings_v1(limits: Limits) -> dict[str, str]:
    memory = str(limits.memory_bytes)
    return {
        "memory.limit_in_bytes": memory,
        "memory.memsw.limit_in_bytes": memory,
        "pids.max": str(limits.processes + HELPERS),
        "cpu.cfs_quota_us": str(limits.cpus * PERIOD_US),
    }


def _settings_v2(limits: Limits) -> dict[str, str]:
    return {
        "memory.max": str(limits.memory_bytes),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(limits.processes + HELPERS),
        "cpu.max": f"{limits.cpus * PERIOD_US} {PERIOD_US}",
    }


@dataclass(frozen=True)
class Layout:
    """Where and how this machine's control groups can be used.

    Attributes:
        name: For reports.
        parents: Folders in which a job's groups are made: one per hierarchy.
        settings: File names and what to write; those that the kernel does not have are optional.
        events: File that counts the out-of-memory kills.
        peak: File with the largest memory use.
    """

    name: str
    parents: tuple[Path, ...]
    settings: Callable[[Limits], dict[str, str]]
    events: str
    peak: str


def find_layouts(proc: Path = Path("/proc/self")) -> list[Layout]:
    """Layouts that look usable to this process, the better one first.

    Args:
        proc: Folder with the files ``cgroup`` and ``mountinfo``.
    """
    groups = _own_groups(proc)
    layouts = []
    unified = groups.get("")
    if unified is not None and (parent := _delegated(unified)) is not None:
        layouts.append(Layout("cgroup v2", (parent,), _settings_v2, "memory.events", "memory.peak"))
    if "memory" in groups and "pids" in groups:
        parents = dict.fromkeys(groups[name] for name in ("memory", "pids", "cpu") if name in groups)
        layout = Layout(
            "cgroup v1", tuple(parents), _settings_v1, "memory.oom_control", "memory.max_usage_in_bytes"
        )
        layouts.append(layout)
    return layouts


def _own_groups(proc: Path) -> dict[str, Path]:
    """Folder of this process's own group for each controller; version 2 has the name ''."""
    mounts: dict[str, tuple[str, Path]] = {}
    for line in (proc / "mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        root, mount_point = fields.split()[3:5]
        kind, _, options = source.split()[:3]
        if kind == "cgroup2":
            mounts[""] = (root, Path(mount_point))
        elif kind == "cgroup":
            mounts |= dict.fromkeys(options.split(","), (root, Path(mount_point)))
    groups = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in mounts:
                root, folder = mounts[controller]
                groups[controller] = folder / path.removeprefix(root).lstrip("/")
    return groups


def _delegated(own: Path) -> Path | None:
    """The nearest group, from our own upwards, in which we may make groups with limits.

    Our own is rarely it: version 2 allows limits only below groups that hold no processes themselves.
    """
    for group in (own, *own.parents):
        control = group / "cgroup.subtree_control"
        if not control.is_file():
            return None
        if {"memory", "pids"} <= set(control.read_text().split()) and os.access(
            group / "cgroup.procs", os.W_OK
        ):
            return group
    return None


class CgroupGuards:
    """Makes a group per job.

    Args:
        layout: Where.

    Raises:
        OSError, subprocess.SubprocessError: It cannot be done here after all.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.name = layout.name
        self._remove_leftovers()
        probe = self.new(Limits())
        try:
            subprocess.run([*probe.prefix, "/bin/true"], check=True, capture_output=True, timeout=10)
        finally:
            probe.close()

    def new(self, limits: Limits) -> Cgroup:
        """A group for one job."""
        return Cgroup(self.layout, limits)

    def _remove_leftovers(self) -> None:
        """Groups of owners that were killed: their jobs die with them, the groups remain."""
        for parent in self.layout.parents:
            for folder in parent.glob("wmrl-*"):
                match = NAME.fullmatch(folder.name)
                if match and is_gone(match[1]):
                    _clear([folder])


class Cgroup:
    """The control group of one job.

    Args:
        layout: Where it is made.
        limits: What it may use.

    Attributes:
        prefix: Command that enters the group and then becomes the command that follows it.
    """

    data_bytes = 0  # no further limit per process is needed

    def __init__(self, layout: Layout, limits: Limits) -> None:
        name = f"wmrl-{this_process()}-{next(numbers)}"
        self._layout = layout
        self._folders = [parent / name for parent in layout.parents]
        try:
            self._make(layout.settings(limits))
        except OSError:
            self.close()
            raise
        enter = " && ".join(f"echo 0 > {shlex.quote(str(f / 'cgroup.procs'))}" for f in self._folders)
        self.prefix = ["/bin/sh", "-c", f'{enter} && exec "$@"', "sh"]

    def _make(self, settings: dict[str, str]) -> None:
        for folder in self._folders:
            folder.mkdir()
        for file, value in settings.items():
            if (path := self._find(file)) is not None:
                path.write_text(value)

    def exceeded(self, pid: int) -> bool:
        """Never: the kernel keeps the limits by itself."""
        return False

    def killed_for_memory(self) -> bool:
        """Whether the kernel had to kill a process of the job because memory ran out."""
        path = self._find(self._layout.events)
        found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE) if path else None
        return found is not None and int(found[1]) > 0

    def peak_bytes(self) -> int | None:
        """Largest memory use so far; None where the kernel does not record it."""
        path = self._find(self._layout.peak)
        return None if path is None else int(path.read_text())

    def close(self) -> None:
        """Kill what is left in the group and remove it."""
        _clear(self._folders)

    def _find(self, file: str) -> Path | None:
        return next((folder / file for folder in self._folders if (folder / file).exists()), None)


def _clear(folders: list[Path]) -> None:
    """Kill what is left in groups and remove them; one that a dying process still holds is left."""
    deadline = time.monotonic() + CLOSE_S
    while (pids := [pid for folder in folders for pid in _pids(folder)]) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _pids(folder: Path) -> list[int]:
    """Processes in a group; none if it is gone. Those that only another container can see are numbered 0."""
    try:
        numbers = (folder / "cgroup.procs").read_text().split()
    except OSError:
        return []
    return [int(number) for number in numbers if number != "0"]
