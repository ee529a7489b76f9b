"""Fetching the submission out of a job's folder without trusting anything in it."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from wmrl_envs.sandbox.scratch import new_file

__all__ = ["SUBMISSION", "NoSubmissionError", "RefusedSubmissionError", "fetch_submission"]

SUBMISSION = "submission.csv"


class NoSubmissionError(Exception):
    """The program wrote none. Not a `FileNotFoundError`, which the copy may raise where the machine fails."""


class RefusedSubmissionError(Exception):
    """There is something under the submission's name, but not a plain file of a sane size."""


def fetch_submission(folder: int, max_bytes: int) -> Path:
    """Copy the submission of a finished job into a private temporary file.

    Args:
        folder: Open descriptor of the job's folder, in which nothing runs any more.
        max_bytes: Largest submission that is taken.

    Returns:
        The copy; the caller deletes it.

    Raises:
        NoSubmissionError: There is none.
        RefusedSubmissionError: There is something that is not safe to open.
    """
    with suppress(OSError):
        os.fchmod(folder, 0o700)  # the program may have shut everybody out
    try:
        source = _open_plain_file(folder, max_bytes)
    except FileNotFoundError:
        raise NoSubmissionError(f"The program wrote no {SUBMISSION}.") from None
    except OSError as error:
        raise RefusedSubmissionError(f"{SUBMISSION} was refused: {error.strerror}.") from error
    with os.fdopen(source, "rb") as file:
        return _copy(file)


def _open_plain_file(folder: int, max_bytes: int) -> int:
    """O_NOFOLLOW refuses a symbolic link, O_NONBLOCK does not wait for the other end of a FIFO."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    source = os.open(SUBMISSION, flags, dir_fd=folder)
    found = os.fstat(source)
    reason = None
    if not stat.S_ISREG(found.st_mode):
        reason = "it is not a regular file"
    elif found.st_nlink != 1:
        reason = "it has more than one name"
    elif found.st_size > max_bytes:
        reason = f"it has {found.st_size} bytes, more than the {max_bytes} allowed"
    if reason is not None:
        os.close(source)
        raise RefusedSubmissionError(f"{SUBMISSION} was refused: {reason}.")
    return source


def _copy(source: BinaryIO) -> Path:
    with new_file("submission-") as (target, path):
        shutil.copyfileobj(source, target)
    return path
