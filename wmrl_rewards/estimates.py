"""Numbers from a sample and how sure they are: levels, ranks, calibration curves, bootstrap intervals."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import NormalDist, fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CurvePoint",
    "Estimate",
    "calibration_curve",
    "codes",
    "largest",
    "mean",
    "mean_at",
    "members",
    "pivotal",
    "rank_correlation",
    "resample",
    "score_levels",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

_LEVELS, _LEVEL_AT_LEAST = 6, 20
_BINS, _BIN_AT_LEAST = 8, 8


class Estimate(NamedTuple):
    """A number and its 95 % interval; None where the data do not give one."""

    value: float | None
    low: float | None = None
    high: float | None = None


class CurvePoint(NamedTuple):
    """A bin of solutions with similar predictions: mean prediction, mean real score, how many."""

    predicted: float
    real: float
    size: int


def score_levels(real: Floats, at_most: int = _LEVELS, at_least: int = _LEVEL_AT_LEAST) -> Integers:
    """Level of each score, from 0 for the lowest: about equally many on each, equal scores never apart.

    Args:
        real: Scores, shape (n,).
        at_most: Largest number of levels.
        at_least: Scores on a level, as long as there is more than one.
    """
    values, place, counts = np.unique(real, return_inverse=True, return_counts=True)
    enough = max(at_least, len(real) / at_most)
    level_of = np.zeros(len(values), dtype=np.intp)
    level, held = 0, 0
    for number, count in enumerate(counts):
        if held >= enough:
            level, held = level + 1, 0
        level_of[number] = level
        held += count
    if level > 0 and held < enough / 2:  # too few are left over at the top for a level of their own
        level_of[level_of == level] = level - 1
    return level_of[place]


def resample(tasks: Integers, groups: Integers, generator: np.random.Generator) -> tuple[Integers, Integers]:
    """Positions drawn anew, and their groups: the groups of each task, or the members of its only one."""
    drawn: list[Integers] = []
    for task in members(tasks):
        of_task = [task[member] for member in members(groups[task])]
        if len(of_task) == 1:
            drawn.append(generator.choice(of_task[0], len(of_task[0])))
        else:
            drawn += [of_task[number] for number in generator.integers(len(of_task), size=len(of_task))]
    sizes = [len(part) for part in drawn]
    return np.concatenate(drawn), np.repeat(np.arange(len(drawn)), sizes)


def pivotal(
    value: float | None, drawn: Sequence[float | None], within: tuple[float, float] = (0.0, np.inf)
) -> Estimate:
    """A number with its pivotal bootstrap interval.

    It turns the resamples around the number: where these lie too high by what the number itself is too high,
    plain quantiles would count that twice.

    Args:
        value: The number in the sample.
        drawn: The same number in each resample.
        within: Smallest and largest value that it can have.
    """
    known = [one for one in drawn if one is not None]
    if value is None or len(known) < 2:
        return Estimate(value)
    low, high = np.quantile(known, (0.025, 0.975))
    return Estimate(value, float(max(2 * value - high, within[0])), float(min(2 * value - low, within[1])))


def largest(values: Floats, drawn: Sequence[Floats]) -> Estimate:
    """The largest of several numbers, with an interval that holds the largest true one 95 times of 100.

    The largest of noisy numbers is too large, the more so the more there are. So the lower end is that of
    simultaneous lower bounds (Bonferroni), the upper end that of ordinary upper bounds.

    Args:
        values: The numbers in the sample, shape (k,).
        drawn: The same numbers in each resample, NaN where a resample has none.
    """
    if len(drawn) < 2:
        return Estimate(float(values.max()))
    spread = np.nanstd(drawn, axis=0, ddof=1)
    lower, upper = (NormalDist().inv_cdf(1 - 0.025 / number) for number in (len(values), 1))
    low, high = (values - lower * spread).max(), (values + upper * spread).max()
    return Estimate(float(values.max()), max(float(low), 0.0), float(high))


def calibration_curve(scores: Floats, real: Floats) -> tuple[CurvePoint, ...]:
    """Mean score and mean real score in bins of equally many, lowest scores first."""
    number = max(1, min(_BINS, scores.size // _BIN_AT_LEAST))
    bins = np.array_split(np.argsort(scores, kind="stable"), number)
    return tuple(CurvePoint(mean_at(scores, part), mean_at(real, part), len(part)) for part in bins)


def mean_at(values: Floats, where: NDArray[np.generic]) -> float:
    """Mean of some of the values."""
    return float(values[where].mean())


def members(numbers: Integers) -> list[Integers]:
    """Positions of each code."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


def codes(names: Sequence[Hashable]) -> Integers:
    """Numbers for names, from 0 in the order in which they come first."""
    number = {name: code for code, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], dtype=np.intp)


def rank_correlation(some: Floats, others: Floats) -> float | None:
    """Spearman's correlation; None if the others are all equal, 0 if the first ones are."""
    first, second = _ranks(some), _ranks(others)
    first, second = first - first.mean(), second - second.mean()
    if not second.any():
        return None
    return float(first @ second / np.sqrt((first @ first) * (second @ second))) if first.any() else 0.0


def _ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[place]


def mean(values: Sequence[float | int | None]) -> float | None:
    """Mean of the values that are there; None if none is."""
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
