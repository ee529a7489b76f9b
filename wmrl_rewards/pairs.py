"""The pool P of (predicted, real) score pairs from anchor groups: what both corrections learn from.

SQLite, in memory or in a file: it is in the standard library, takes a step's pairs in one transaction, and
survives a kill at any moment. The file is the durable store of a run's calibration.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_rewards.errors import RewardError

__all__ = ["Pair", "PairPool", "Pairs"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pairs (
    step INTEGER NOT NULL, "group" INTEGER NOT NULL, member INTEGER NOT NULL,
    predicted REAL NOT NULL, real REAL NOT NULL, context TEXT,
    PRIMARY KEY (step, "group", member)
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Pair:
    """One trajectory of an anchor group, scored twice.

    Attributes:
        predicted: Raw score of the world model, in [0, 1].
        real: Score by execution, in [0, 1].
        step: Training step that it comes from.
        group: Position of its group in the step.
        member: Position in the group.
        context: Anything about the trajectory that a debiaser may use, fit for JSON.
    """

    predicted: float
    real: float
    step: int
    group: int
    member: int
    context: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Pairs:
    """Pairs as columns, in the order (step, group, member).

    Attributes:
        predicted: Raw scores, float of shape (p,).
        real: True scores, float of shape (p,).
        step: Training steps, int of shape (p,).
        group: Positions of the groups in their steps, int of shape (p,).
        member: Positions in the groups, int of shape (p,).
        context: One context or None a pair.
    """

    predicted: NDArray[np.float64]
    real: NDArray[np.float64]
    step: NDArray[np.int64]
    group: NDArray[np.int64]
    member: NDArray[np.int64]
    context: tuple[Mapping[str, Any] | None, ...]

    def __len__(self) -> int:
        return len(self.predicted)

    def rows(self) -> list[Pair]:
        """The same pairs one by one, as Python numbers."""
        columns = (self.predicted, self.real, self.step, self.group, self.member)
        values = zip(*(column.tolist() for column in columns), self.context, strict=True)
        return [Pair(*row) for row in values]


class PairPool:
    """Grows for the whole run; unique by (step, group, member).

    Args:
        path: SQLite file; the pairs live in its table ``pairs``. None keeps them in memory.

    Example:
        >>> pool = PairPool()
        >>> pool.add(predicted=0.8, real=0.5, step=0, group=3, member=1)
        >>> pool.pairs().real
        array([0.5])
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._connection = sqlite3.connect(path or ":memory:", timeout=60, check_same_thread=False)
        with self._connection:
            self._connection.execute(_SCHEMA)

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT COUNT(*) FROM pairs").fetchone()[0])

    def add(
        self,
        predicted: float,
        real: float,
        step: int,
        group: int,
        member: int,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one pair; see `Pair` for the arguments and `add_all` for the errors."""
        self.add_all([Pair(predicted, real, step, group, member, context)])

    def add_all(self, pairs: Iterable[Pair]) -> None:
        """Add pairs in one transaction: all of them or none.

        Raises:
            RewardError: A score is missing or outside [0, 1], or a pair is in the pool already.
        """
        rows = [_row(pair) for pair in pairs]
        try:
            with self._connection:
                self._connection.executemany("INSERT INTO pairs VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            raise RewardError(
                f"A pair of step {rows[0][0]} is in the pool already: call truncate(step) before you "
                "repeat a step."
            ) from error

    def pairs(self, before_step: int | None = None) -> Pairs:
        """All pairs, or those of the steps before one."""
        where = "" if before_step is None else "WHERE step < ?"
        parameters = () if before_step is None else (before_step,)
        rows = self._connection.execute(
            f'SELECT * FROM pairs {where} ORDER BY step, "group", member', parameters
        ).fetchall()
        step, group, member, predicted, real, context = zip(*rows, strict=True) if rows else ((),) * 6
        return Pairs(
            predicted=np.array(predicted, dtype=np.float64),
            real=np.array(real, dtype=np.float64),
            step=np.array(step, dtype=np.int64),
            group=np.array(group, dtype=np.int64),
            member=np.array(member, dtype=np.int64),
            context=tuple(None if text is None else json.loads(text) for text in context),
        )

    def truncate(self, step: int) -> None:
        """Drop the pairs of this step and of later ones, as on going back to a checkpoint."""
        with self._connection:
            self._connection.execute("DELETE FROM pairs WHERE step >= ?", (step,))

    def close(self) -> None:
        """Close the file; the pool cannot be used after it."""
        self._connection.close()


def _row(pair: Pair) -> tuple[int, int, int, float, float, str | None]:
    if not (0 <= pair.predicted <= 1 and 0 <= pair.real <= 1):
        raise RewardError(
            f"Pair (step {pair.step}, group {pair.group}, member {pair.member}) has the scores "
            f"{pair.predicted} and {pair.real}: both must be in [0, 1]."
        )
    context = None if pair.context is None else json.dumps(pair.context)
    return (pair.step, pair.group, pair.member, float(pair.predicted), float(pair.real), context)
