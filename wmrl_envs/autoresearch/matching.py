"""When do two spellings name the same row, or the same label?

If all reference values are whole numbers, and distinct as such, values are compared as numbers: 7, ``7.0``,
``007`` and ``" 7"`` are one. Otherwise they are compared as text, without the blanks around it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["positions", "reference_index", "to_float"]


def reference_index(texts: pd.Series) -> pd.Index:
    """The values to compare with: int64 if all are whole numbers and stay distinct, else text.

    Args:
        texts: Values as they stand in a file.
    """
    numbers = pd.to_numeric(texts, errors="coerce")
    if numbers.dtype.kind == "f" and _whole(numbers.to_numpy(), 2.0**53).all():
        numbers = numbers.astype(np.int64)
    if len(texts) and numbers.dtype == np.int64 and numbers.is_unique:
        return pd.Index(numbers.to_numpy())
    return pd.Index(texts.str.strip().to_numpy(object), dtype=object)


def positions(values: pd.Series, reference: pd.Index) -> NDArray[np.intp]:
    """Where each value stands in a reference of distinct values; -1 for a value that is not there."""
    if reference.dtype != np.int64:
        return _text_positions(values.astype(str), reference)
    numbers = _numbers(values).to_numpy()
    if numbers.dtype == np.int64:
        return reference.get_indexer(pd.Index(numbers))
    whole = _whole(numbers, 2.0**63)
    found = reference.get_indexer(pd.Index(np.where(whole, numbers, 0).astype(np.int64)))
    return np.where(whole, found, -1)


def _text_positions(texts: pd.Series, reference: pd.Index) -> NDArray[np.intp]:
    """The usual case first, since hashing texts is slow: the same values in the same order."""
    if np.array_equal(texts.to_numpy(object), reference.to_numpy(object)):
        return np.arange(len(reference))
    found = reference.get_indexer(pd.Index(texts.to_numpy(object), dtype=object))
    if (found >= 0).all():
        return found
    return reference.get_indexer(pd.Index(texts.str.strip().to_numpy(object), dtype=object))


def to_float(values: pd.Series) -> NDArray[np.float64]:
    """Numbers as they are, texts that are numbers as such, everything else NaN."""
    return _numbers(values).to_numpy(np.float64)


def _numbers(values: pd.Series) -> pd.Series:
    return values if values.dtype.kind in "iuf" else pd.to_numeric(values.astype(str), errors="coerce")


def _whole(numbers: NDArray, limit: float) -> NDArray[np.bool_]:
    return np.isfinite(numbers) & (np.abs(numbers) < limit) & (numbers == np.trunc(numbers))
