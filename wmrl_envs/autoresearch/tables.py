"""Read a competition's files; what cannot be read raises one sentence that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from wmrl_envs.errors import CompetitionError

__all__ = ["UnreadableError", "read_columns", "read_table", "read_text"]


class UnreadableError(CompetitionError):
    """A file of a competition cannot be read.

    Attributes:
        path: The file.
        problem: The rest of the sentence that begins with the file.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


def read_text(path: Path) -> str:
    """A text, without the white space around it.

    Raises:
        UnreadableError: The file is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except (UnicodeDecodeError, OSError) as error:
        raise UnreadableError(path, f"cannot be read as UTF-8 text: {error}.") from error


def read_columns(path: Path) -> list[str]:
    """Names of a table's columns, repetitions included.

    Raises:
        UnreadableError: The file is no CSV table in UTF-8.
    """
    header = _read(path, header=None, nrows=1, dtype=str)
    return header.iloc[0].tolist()


def read_table(
    path: Path, columns: list[str] | None = None, text: list[str] | None = None, separator: str = ","
) -> pd.DataFrame:
    """A table whose empty cells are empty texts, never NaN.

    Args:
        path: The file.
        columns: Columns to read, all of them for None.
        text: Columns to read as text, as they stand; the others are numbers where all their cells are.
        separator: What stands between two cells.

    Raises:
        UnreadableError: The file is no CSV table in UTF-8.
    """
    return _read(path, usecols=columns, dtype=dict.fromkeys(text or [], str), sep=separator)


def _read(path: Path, **options: Any) -> pd.DataFrame:
    try:
        return pd.read_csv(path, na_filter=False, low_memory=False, **options)
    except (ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UnreadableError(path, f"cannot be read as a CSV table: {reason}.") from error
