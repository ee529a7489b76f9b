"""Temporary files that do not outlive their owner, not even one that was killed with -9.

Each process has one folder and holds a lock on it; the kernel takes the lock away from a process that dies,
however it dies. Who starts next removes the folders that nobody holds.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

__all__ = ["new_file", "remove_leftovers", "scratch_folder"]

PREFIX = "wmrl-scratch-"
LOCK = "lock"


def scratch_folder() -> Path:
    """This process's own folder, closed to other users."""
    return _scratch_folder(os.getpid(), tempfile.gettempdir())


@lru_cache(maxsize=1)
def _scratch_folder(pid: int, parent: str) -> Path:
    """Made anew after a fork, so that parent and child do not remove each other's."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(folder / "new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # kept open, and so kept, for as long as this process lives
    os.rename(folder / "new", folder / LOCK)  # nobody ever sees it unlocked
    atexit.register(_remove_own, folder, pid)
    return folder


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def new_file(prefix: str) -> tuple[int, Path]:
    """A new file in the scratch folder: its open descriptor and its path."""
    descriptor, name = tempfile.mkstemp(prefix=prefix, dir=scratch_folder())
    return descriptor, Path(name)


def remove_leftovers() -> None:
    """Remove the scratch folders of processes that are gone; those of other users are not ours to remove."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if _is_abandoned(folder / LOCK):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # another user's, or just being made or removed
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
