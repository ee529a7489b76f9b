"""`SharedDatabase`: one SQLite file that any number of threads and processes read and write at once."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wmrl_envs.errors import ConfigError, WMRLError

__all__ = ["SharedDatabase"]

BUSY_S = 60.0


class SharedDatabase:
    """Connections to a file, one per thread and process; what is committed survives a kill.

    Args:
        path: The SQLite file; it and its folder are made if they do not exist. Not on a network file system.
        schema: Statements that make its tables where they are not there.
        what: What the file is, for errors: ``prediction store``.
        error: Class of the errors.

    Raises:
        WMRLError: The file cannot be opened, or is no database; of the class `error`.
    """

    def __init__(
        self, path: str | Path, schema: str, what: str, error: type[WMRLError] = ConfigError
    ) -> None:
        self.path = Path(path)
        self.what = what
        self.error = error
        self._local = threading.local()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise error(f"The {what} {path} cannot be made: {problem.strerror}.") from problem
        with self.transaction() as connection:
            connection.executescript(schema)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, whatever happens in between.

        Raises:
            WMRLError: The file cannot be used; of the class `error`.
        """
        try:
            with self._connection() as connection:
                yield connection
        except sqlite3.Error as problem:
            raise self.error(f"The {self.what} {self.path} cannot be used: {problem}.") from problem

    def _connection(self) -> sqlite3.Connection:
        """One connection per thread and process: SQLite's do not survive a fork."""
        if getattr(self._local, "pid", None) != os.getpid():
            connection = sqlite3.connect(self.path, timeout=BUSY_S)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._local.pid, self._local.connection = os.getpid(), connection
        return self._local.connection
