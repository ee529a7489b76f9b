"""What was executed once is not executed again: results by content, in one SQLite file.

A solution's generators are seeded from its content, so a result is a function of code, public data, limits
and packages; these four make the key. What else it may depend on, as time and threads, is looked for by
running a sample twice. The recorded cost stays with the result, so that an account of executions and seconds
is the same with a full cache as with an empty one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from wmrl_envs.database import SharedDatabase
from wmrl_envs.errors import SandboxError
from wmrl_envs.evaluation import Grade
from wmrl_envs.sandbox.job import Job, Result
from wmrl_envs.sandbox.scratch import new_file

__all__ = ["CacheStats", "ExecutionCache"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS executions (
    key TEXT PRIMARY KEY,
    result TEXT NOT NULL,
    submission BLOB
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS grades (
    key TEXT NOT NULL,
    grader TEXT NOT NULL,
    grade TEXT NOT NULL,
    PRIMARY KEY (key, grader)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rechecks (
    key TEXT PRIMARY KEY,
    same INTEGER NOT NULL
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds.

    Attributes:
        entries: Stored results by status, the most frequent first.
        grades: Number of stored grades.
        seconds: What the stored results once cost, in seconds of execution.
        submission_bytes: Size of all submissions, compressed.
        file_bytes: Size of the whole file.
        rechecked: Results whose program was run a second time.
        differing: Those of them that ended otherwise then: they depend on time, threads or chance.
    """

    entries: dict[str, int]
    grades: int
    seconds: float
    submission_bytes: int
    file_bytes: int
    rechecked: int = 0
    differing: int = 0


class ExecutionCache:
    """Results of executions and their grades; any number of threads and processes may share the file.

    Args:
        path: The SQLite file; it and its folder are made if they do not exist. Not on a network file system.

    Raises:
        SandboxError: The file is not such a cache, or cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._database = SharedDatabase(path, SCHEMA, "execution cache", SandboxError)

    def __len__(self) -> int:
        with self._database.transaction() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM executions").fetchone()[0])

    @classmethod
    def existing(cls, path: str | Path) -> ExecutionCache:
        """Open a cache that is there already; nothing is made, and no other kind of file is touched.

        Raises:
            SandboxError: There is no such file, or it is not a cache.
        """
        uri = f"{Path(path).absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        except sqlite3.Error as error:
            raise SandboxError(f"There is no execution cache at {path}: {error}.") from error
        if not {"executions", "grades"} <= tables:
            raise SandboxError(f"{path} is a database, but not an execution cache.")
        return cls(path)

    def stats(self) -> CacheStats:
        """Count what is stored."""
        status = "SELECT json_extract(result, '$.status') AS s, COUNT(*) FROM executions"
        sums = "SELECT TOTAL(json_extract(result, '$.seconds')), TOTAL(LENGTH(submission)) FROM executions"
        with self._database.transaction() as connection:
            entries = dict(connection.execute(f"{status} GROUP BY s ORDER BY 2 DESC, s").fetchall())
            grades = connection.execute("SELECT COUNT(*) FROM grades").fetchone()[0]
            seconds, submission_bytes = connection.execute(sums).fetchone()
            rechecks = connection.execute("SELECT COUNT(*), COUNT(*) - TOTAL(same) FROM rechecks").fetchone()
        size = self.path.stat().st_size
        return CacheStats(entries, grades, seconds, int(submission_bytes), size, *map(int, rechecks))

    def clear(self) -> int:
        """Remove all results and grades, and give their room back to the disk.

        Returns:
            Number of removed results.
        """
        with self._database.transaction() as connection:
            removed = connection.execute("DELETE FROM executions").rowcount
            connection.execute("DELETE FROM grades")
            connection.execute("DELETE FROM rechecks")
        with self._database.transaction() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return removed

    @staticmethod
    def key(job: Job, fingerprint: str) -> str:
        """Name of a job's result.

        Args:
            job: The job.
            fingerprint: `Sandbox.fingerprint` of where it runs.
        """
        code = hashlib.sha256(job.code.encode("utf-8", "surrogatepass")).hexdigest()
        parts = [code, folder_digest(job.data_dir), fingerprint, sorted(job.env.items())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def load(self, key: str) -> Result | None:
        """The stored result; its submission, if any, is a new temporary file that the caller deletes."""
        query = "SELECT result, submission FROM executions WHERE key = ?"
        with self._database.transaction() as connection:
            row = connection.execute(query, (key,)).fetchone()
        if row is None:
            return None
        result = Result(**json.loads(row[0]))
        return result if row[1] is None else dataclasses.replace(result, submission_path=_write(row[1]))

    def store(self, key: str, result: Result) -> None:
        """Keep a result; the first one to be stored under a key stays.

        A result with the status ``infrastructure`` says nothing about the job and is not kept.
        """
        if result.status == "infrastructure":
            return
        fields = {
            f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name != "submission_path"
        }
        submission = result.submission_path and zlib.compress(result.submission_path.read_bytes(), 1)
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO executions VALUES (?, ?, ?)", (key, json.dumps(fields), submission)
            )

    def load_grade(self, key: str, grader: str) -> Grade | None:
        """The stored grade of a stored result."""
        query = "SELECT grade FROM grades WHERE key = ? AND grader = ?"
        with self._database.transaction() as connection:
            row = connection.execute(query, (key, grader)).fetchone()
        return None if row is None else Grade(**json.loads(row[0]))

    def store_grade(self, key: str, grader: str, grade: Grade) -> None:
        """Keep a grade.

        Args:
            key: The result's key.
            grader: Names everything that the grade depends on besides the submission.
            grade: The grade.
        """
        row = (key, grader, json.dumps(dataclasses.asdict(grade)))
        with self._database.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO grades VALUES (?, ?, ?)", row)

    def store_recheck(self, key: str, same: bool) -> None:
        """Note whether a second run of a result's program ended alike; once it did not, that stays noted."""
        changed = "ON CONFLICT (key) DO UPDATE SET same = MIN(same, excluded.same)"
        with self._database.transaction() as connection:
            connection.execute(f"INSERT INTO rechecks VALUES (?, ?) {changed}", (key, int(same)))

    def is_repeatable(self, key: str) -> bool | None:
        """Whether a second run ended alike; None if there was none."""
        with self._database.transaction() as connection:
            row = connection.execute("SELECT same FROM rechecks WHERE key = ?", (key,)).fetchone()
        return None if row is None else bool(row[0])


def _write(compressed: bytes) -> Path:
    with new_file("submission-") as (file, path):
        file.write(zlib.decompress(compressed))
    return path


def folder_digest(folder: Path) -> str:
    """Hash of names and contents of all files in a folder.

    They are read once; again only if something directly in the folder changes. (A hundred thousand images in
    a folder below it are not looked through for every solution.)
    """
    stats = {entry.name: entry.stat() for entry in os.scandir(folder)}
    signature = tuple((name, s.st_size, s.st_mtime_ns) for name, s in sorted(stats.items()))
    return _content_digest(folder.resolve(), signature)


@lru_cache(maxsize=512)
def _content_digest(folder: Path, signature: tuple[tuple[str, int, int], ...]) -> str:
    """`signature` says when the stored value is out of date."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(folder)}\0{content}\0".encode("utf-8", "surrogateescape"))
    return total.hexdigest()
