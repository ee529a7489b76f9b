"""Temporary files that do not outlive their owner, not even one that was killed with -9.

Each process has one folder and holds a lock on it: on the folder itself, since a file in it could be missing
when the process is killed early. The kernel takes the lock away from a process that dies, however it dies.
The next process to start removes the folders that nobody holds.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

__all__ = ["new_file", "remove_leftovers", "scratch_folder"]

PREFIX = "wmrl-scratch-"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def scratch_folder() -> Path:
    """This process's own folder, closed to other users; made again where somebody removed it."""
    folder = _scratch_folder(os.getpid(), tempfile.gettempdir())
    if not folder.is_dir():
        _scratch_folder.cache_clear()
        folder = _scratch_folder(os.getpid(), tempfile.gettempdir())
    return folder


@lru_cache(maxsize=1)
def _scratch_folder(pid: int, parent: str) -> Path:
    """Made anew after a fork, so that parent and child do not remove each other's."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        if _hold(folder):
            atexit.register(_remove_own, folder, pid)
            return folder


def _hold(folder: Path) -> bool:
    """Lock a new folder for as long as this process lives; False if it was taken for an abandoned one."""
    try:
        descriptor = os.open(folder, FOLDER)
    except FileNotFoundError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for whoever is removing it
    if folder.exists():
        return True  # the descriptor stays open, and so the lock is kept
    os.close(descriptor)
    return False


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def new_file(prefix: str) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file in the scratch folder, open for writing, and its path; if writing fails, it is removed."""
    descriptor, name = tempfile.mkstemp(prefix=prefix, dir=scratch_folder())
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, Path(name)
    except BaseException:  # what is left of it would only fill a full disk further
        os.unlink(name)
        raise


def remove_leftovers() -> None:
    """Remove the scratch folders of processes that are gone; those of other users are not ours to remove."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, in use, or just removed by somebody else
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    descriptor = os.open(folder, FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
