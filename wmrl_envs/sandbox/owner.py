"""Who made something that outlives a process: it is removed once its owner is gone, and not before."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["OWNER", "is_gone", "this_process"]

OWNER = r"\d+-\d+-\d+"


def this_process() -> str:
    """A name for this process that no other one ever has: its number, its beginning, its namespace."""
    return f"{os.getpid()}-{_began(os.getpid())}-{_namespace()}"


def is_gone(owner: str) -> bool:
    """Whether the process of such a name is gone; of one in another container we cannot tell, and say no."""
    pid, began, namespace = map(int, owner.split("-"))
    return namespace == _namespace() and _began(pid) != began


def _began(pid: int) -> int | None:
    """In the kernel's ticks since the machine started; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19])


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
