"""Leaderboard percentile: what share of a board a score would stand level with or above."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wmrl_envs.errors import CompetitionError

__all__ = ["percentile"]


def percentile(score: float | None, board: Sequence[float], higher_is_better: bool) -> float:
    """Rank a score on a leaderboard.

    With N entries, of which b are strictly better than the score, the position is b + 1 and the percentile
    is (N - position + 1) / N = (N - b) / N. Ties take the best rank. A score worse than the whole board
    gives 0, one that nobody beats gives 1.

    Args:
        score: Metric value. None, NaN and infinities never rank: they give 0.
        board: Metric values of the board, in any order. NaN entries stand last.
        higher_is_better: Direction of the metric.

    Returns:
        A number in [0, 1].

    Raises:
        CompetitionError: The board is empty.

    Example:
        >>> percentile(0.8, [0.9, 0.8, 0.7, 0.6], higher_is_better=True)
        0.75
    """
    if len(board) == 0:
        raise CompetitionError("The leaderboard has no entries, so that no score can be ranked on it.")
    if score is None or not math.isfinite(score):
        return 0.0
    entries = np.asarray(board, dtype=np.float64)
    better = entries > score if higher_is_better else entries < score
    return (len(entries) - int(np.count_nonzero(better))) / len(entries)
