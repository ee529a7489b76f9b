"""`measure_fidelity`: how good a world model is, from solutions that were both executed and predicted.

The paper's Equation (3) splits a prediction, r̂ = r + b + ξ, into a bias and a zero-mean noise, of sizes
B = sup |b| and σ = sup std ξ. One prediction a solution cannot tell the two apart solution by solution; what
can be seen is the bias as a function of the true score, as the paper's analysis of the debiasing map has it:
on levels of the true score, each with equally many solutions or one repeated value,

    B = largest |mean of r̂ − r on a level|,    σ = largest standard deviation of r̂ − r on a level.

η̂² is that of `wmrl_rewards.AnchorWeight` over all groups. What debiasing leaves is measured on calibrated
scores that are cross-fitted by task: the map of a task was fitted to the other tasks alone. Intervals are
bootstrap ones of 95 %: groups are drawn anew within their task. With few groups they are somewhat too narrow.

Calibrated scores are shrunk toward the mean of the real ones by as much as predictions are uncertain. On
levels of the real score that is a bias at both ends, which B counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from wmrl_rewards.debiasing import IsotonicDebiaser
from wmrl_rewards.denoising import AnchorWeight
from wmrl_rewards.errors import RewardError
from wmrl_rewards.estimates import (
    CurvePoint,
    Estimate,
    calibration_curve,
    codes,
    largest,
    mean,
    mean_at,
    members,
    pivotal,
    rank_correlation,
    resample,
    score_levels,
)

__all__ = ["Fidelity", "Judged", "ScoreErrors", "measure_fidelity"]

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

_ENOUGH_GROUPS = 5
_RANGES = {"mean_error": (-1.0, 1.0), "rank_in_group": (-1.0, 1.0), "rank_overall": (-1.0, 1.0)}


@dataclass(frozen=True)
class Judged:
    """A solution that was executed, and what the world model said of it.

    Attributes:
        task: Name of its task.
        group: Names the solutions that it is compared with; they are on the same task.
        real: Score by execution, in [0, 1].
        predicted: Score of the world model, in [0, 1]; None if it gave none.
        real_status: How the execution ended.
        predicted_status: How it would have ended; ``missing`` without a prediction.
        real_error: Type of the exception that ended it, if known.
        predicted_error: Type of the exception that was predicted.
        samples: Scores of the single samples behind ``predicted``.
        problem: Why there is no prediction.
        real_seconds: What the execution took.
        seconds: What the prediction took.
        tokens: Tokens that were read and written for it.
    """

    task: str
    group: Hashable
    real: float
    predicted: float | None
    real_status: str = "ok"
    predicted_status: str = "ok"
    real_error: str | None = None
    predicted_error: str | None = None
    samples: Sequence[float] = ()
    problem: str | None = None
    real_seconds: float | None = None
    seconds: float | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class ScoreErrors:
    """How far scores are from the real ones.

    Attributes:
        mean_error: Mean of score minus real score.
        absolute_error: Mean absolute error.
        bias: B, the largest bias on a level of the real score.
        noise: σ, the largest standard deviation of the error on a level.
        typical_bias: Root mean square of the bias over the levels.
        typical_noise: Root mean square of the noise over the levels.
        eta2: η̂², the noise inside groups over the spread of the real scores there; 1 and more is no signal.
            With fewer than five informative groups it has no interval, and neither has the next one.
        rank_in_group: Spearman's correlation with the real scores inside a group, mean over groups whose real
            scores differ; a group whose scores are all equal counts as 0.
        rank_overall: Spearman's correlation over all solutions of all tasks.
        curve: Calibration curve.
    """

    mean_error: Estimate
    absolute_error: Estimate
    bias: Estimate
    noise: Estimate
    typical_bias: Estimate
    typical_noise: Estimate
    eta2: Estimate
    rank_in_group: Estimate
    rank_overall: Estimate
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True)
class Fidelity:
    """How good a world model is.

    Attributes:
        solutions: Number of executed solutions.
        tasks: Number of tasks.
        groups: Number of groups.
        informative_groups: Groups whose real scores differ.
        unreadable: Share without a prediction.
        problems: Why, with how often, the most frequent first.
        statuses: How executions ended, and for each how they were predicted to end, with counts.
        status_agreement: Share of solutions whose status was predicted right (none is wrong).
        status_by_chance: The same share if predictions had nothing to do with the solutions.
        error_agreement: Where execution and prediction both ended in an exception of a known type, the share
            in which it is the same one; None if there is none.
        raw: Errors of the predictions as they are.
        calibrated: Errors of the cross-fitted calibrated ones.
        cross_fitted_by: ``task``; where there is one task only ``group``, or ``solution`` for a single group.
        sampling_noise: Standard deviation of the single samples, where several were drawn: the part of σ that
            more samples average out.
        real_seconds: Mean seconds of an execution.
        seconds: Mean seconds of a prediction.
        tokens: Mean tokens of a prediction, read and written.
        levels: Levels of the real score: mean real score, mean prediction, count.
        scores: (real, raw, calibrated) of each solution with a prediction.
    """

    solutions: int
    tasks: int
    groups: int
    informative_groups: int
    unreadable: float
    problems: dict[str, int]
    statuses: dict[str, dict[str, int]]
    status_agreement: float
    status_by_chance: float
    error_agreement: float | None
    raw: ScoreErrors
    calibrated: ScoreErrors
    cross_fitted_by: str
    sampling_noise: float | None
    real_seconds: float | None
    seconds: float | None
    tokens: float | None
    levels: tuple[CurvePoint, ...] = ()
    scores: tuple[tuple[float, float, float], ...] = field(default=(), repr=False)


def measure_fidelity(judged: Sequence[Judged], *, resamples: int = 500, seed: int = 0) -> Fidelity:
    """Measure a world model.

    Args:
        judged: Executed solutions with what was predicted.
        resamples: Bootstrap resamples behind the intervals; 0 leaves them out.
        seed: Seed of the resampling.

    Raises:
        RewardError: There is nothing to measure, or a score is not in [0, 1].

    Example:
        >>> pairs = [(0.0, 0.1), (0.5, 0.6), (1.0, 0.9), (0.25, 0.35)]
        >>> judged = [Judged("digits", "first", real, predicted) for real, predicted in pairs]
        >>> round(measure_fidelity(judged, resamples=0).raw.absolute_error.value, 3)
        0.1
    """
    for one in judged:
        for score in (one.real, one.predicted):
            if score is not None and not 0 <= score <= 1:
                raise RewardError(f"A score of task '{one.task}' is {score}, which is not in [0, 1].")
    known = [one for one in judged if one.predicted is not None]
    if not known:
        raise RewardError(
            "No solution has been executed." if not judged else f"No prediction at all: {judged[0].problem}"
        )
    real = np.array([one.real for one in known])
    raw = np.array([one.predicted for one in known], dtype=np.float64)
    tasks, groups = codes([one.task for one in known]), codes([(one.task, one.group) for one in known])
    calibrated, cross_fitted_by = _cross_fitted(raw, real, tasks, groups)
    measure = _Measure(real, tasks, groups, resamples, seed)
    levels = [measure.levels == level for level in range(measure.levels.max() + 1)]
    return Fidelity(
        solutions=len(judged),
        tasks=len({one.task for one in judged}),
        groups=len({(one.task, one.group) for one in judged}),
        informative_groups=measure.informative,
        unreadable=1 - len(known) / len(judged),
        problems=dict(Counter(one.problem or "no reason" for one in judged if one.predicted is None)),
        statuses=_confusion([(one.real_status, one.predicted_status) for one in judged]),
        status_agreement=fmean(one.real_status == one.predicted_status for one in judged),
        status_by_chance=_by_chance(judged),
        error_agreement=_error_agreement(judged),
        raw=measure.errors(raw),
        calibrated=measure.errors(calibrated),
        cross_fitted_by=cross_fitted_by,
        sampling_noise=_sampling_noise(known),
        real_seconds=mean([one.real_seconds for one in judged]),
        seconds=mean([one.seconds for one in judged]),
        tokens=mean([one.tokens for one in judged]),
        levels=tuple(CurvePoint(mean_at(raw, one), mean_at(real, one), int(one.sum())) for one in levels),
        scores=tuple(zip(real.tolist(), raw.tolist(), calibrated.tolist(), strict=True)),
    )


class _Measure:
    """Statistics of scores against the real ones, with bootstrap intervals."""

    def __init__(self, real: Floats, tasks: Integers, groups: Integers, resamples: int, seed: int) -> None:
        self.real = real
        self.groups = groups
        self.levels = score_levels(real)
        self.informative = sum(bool(np.ptp(real[member])) for member in members(groups))
        generator = np.random.default_rng(seed)
        self.draws = [resample(tasks, groups, generator) for _ in range(resamples)]

    def errors(self, scores: Floats) -> ScoreErrors:
        everyone = np.arange(len(scores))
        values = self._statistics(scores, everyone, self.groups)
        drawn = [self._statistics(scores, *draw) for draw in self.draws]
        if self.informative < _ENOUGH_GROUPS:  # resamples of so few would all be alike
            drawn = [{**one, "eta2": None, "rank_in_group": None} for one in drawn]
        estimates = {
            name: pivotal(value, [one[name] for one in drawn], _RANGES.get(name, (0.0, np.inf)))
            for name, value in values.items()
        }
        by_level = self._by_level(scores, everyone)
        levels_drawn = [self._by_level(scores, which) for which, _ in self.draws]
        return ScoreErrors(
            bias=largest(np.abs(by_level[0]), [np.abs(one[0]) for one in levels_drawn]),
            noise=largest(by_level[1], [one[1] for one in levels_drawn]),
            curve=calibration_curve(scores, self.real),
            **estimates,
        )

    def _by_level(self, scores: Floats, which: Integers) -> Floats:
        """Mean, standard deviation and share of the errors on each level, shape (3, levels)."""
        error, levels = scores[which] - self.real[which], self.levels[which]
        found = np.full((3, self.levels.max() + 1), np.nan)
        for level in np.unique(levels):
            there = error[levels == level]
            deviation = there.std(ddof=1) if len(there) > 1 else 0.0
            found[:, level] = there.mean(), deviation, len(there) / len(error)
        return found

    def _statistics(self, scores: Floats, which: Integers, groups: Integers) -> dict[str, float | None]:
        biases, deviations, shares = self._by_level(scores, which)
        scores, real = scores[which], self.real[which]
        error = scores - real
        of_group = members(groups)
        weight = AnchorWeight(window=len(of_group))
        for member in of_group:
            weight.observe(scores[member], real[member])
        ranks = [rank_correlation(scores[member], real[member]) for member in of_group]
        return {
            "mean_error": float(error.mean()),
            "absolute_error": float(np.abs(error).mean()),
            "typical_bias": float(np.sqrt(np.nansum(shares * biases**2))),
            "typical_noise": float(np.sqrt(np.nansum(shares * deviations**2))),
            "eta2": weight.eta2,
            "rank_in_group": mean(ranks),
            "rank_overall": rank_correlation(scores, real),
        }


def _cross_fitted(raw: Floats, real: Floats, tasks: Integers, groups: Integers) -> tuple[Floats, str]:
    """Each score under the map of the other tasks (or groups, or solutions), and which of them it was."""
    folds, name = tasks, "task"
    if folds.max() == 0:
        folds, name = groups, "group"
    if folds.max() == 0:
        folds, name = np.arange(len(raw)) % 5, "solution"
    calibrated = raw.copy()
    for fold in range(folds.max() + 1):
        inside = folds == fold
        if inside.all():
            continue
        debiaser = IsotonicDebiaser(min_pairs=1)
        debiaser.update(raw[~inside], real[~inside])
        calibrated[inside] = debiaser(raw[inside])
    return calibrated, name


def _confusion(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for (real, predicted), count in Counter(pairs).most_common():
        table.setdefault(real, {})[predicted] = count
    return table


def _by_chance(judged: Sequence[Judged]) -> float:
    real, predicted = (
        Counter(getattr(one, name) for one in judged) for name in ("real_status", "predicted_status")
    )
    return sum(real[status] * predicted[status] for status in real) / len(judged) ** 2


def _error_agreement(judged: Sequence[Judged]) -> float | None:
    known = [one for one in judged if one.real_error is not None and one.predicted_error is not None]
    return mean([float(one.real_error == one.predicted_error) for one in known])


def _sampling_noise(known: Sequence[Judged]) -> float | None:
    variance = mean([float(np.var(one.samples, ddof=1)) for one in known if len(one.samples) > 1])
    return None if variance is None else float(np.sqrt(variance))
