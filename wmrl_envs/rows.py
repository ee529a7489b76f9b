"""Gymnasium's form for the infos of many environments: of each key an array, and which rows have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["stack_rows"]


def stack_rows(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Stack the infos of several environments, which all have the same keys.

    Arrays hold objects, so that a None stays one and a score the number that it is.

    Args:
        rows: The info of each environment; None for one that has nothing to tell.

    Returns:
        For each key an array of shape (rows,), and under ``_key`` a mask of the rows that have it.

    Example:
        >>> stack_rows([{"score": 0.5}, None])["_score"].tolist()
        [True, False]
    """
    told = np.array([row is not None for row in rows], dtype=bool)
    stacked: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows if row is not None for key in row):
        column = np.full(len(rows), None, dtype=object)
        for number, row in enumerate(rows):
            column[number] = None if row is None else row[key]
        stacked[key], stacked[f"_{key}"] = column, told.copy()
    return stacked
