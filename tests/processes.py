"""Looking for processes from the outside: who carries a mark in its environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path


def marked(mark: str) -> list[str]:
    """Command lines of the processes that carry a mark in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it is someone else's, or it has just ended
            continue
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens elsewhere."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def cgroups_of(process: int) -> list[str]:
    """Names of the control groups that sandboxes of a process have made and not removed.

    Not by `rglob`, which stumbles over a group that another run's sandbox removes meanwhile.
    """
    names = [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    return [name for name in names if name.startswith(f"wmrl-{process}-")]
