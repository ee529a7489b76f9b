"""The figures of a report, each from a `RunData` and each able to say that there is nothing to show."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from wmrl_agents.report.run_data import RunData
from wmrl_agents.report.svg import Chart, Series, format_number, line_chart, stacked_bars
from wmrl_rewards.debiasing import IsotonicDebiaser

__all__ = [
    "Figure",
    "Mark",
    "all_figures",
    "diagonal",
    "errors_caption",
    "legend_of",
    "reliability_series",
    "square",
]

BARS_AT_MOST = 60
BINS, BIN_AT_LEAST = 8, 8
# Colours of the failures, in the order in which they are stacked; all other kinds are lumped together.
KINDS = {
    "error": 7,
    "no_code": 5,
    "no_submission": 2,
    "bad_values": 3,
    "timeout": 4,
    "oom": 8,
    "bad_columns": 6,
    "missing": 1,
    "other": 0,
}


class Mark(NamedTuple):
    """An entry of a legend."""

    label: str
    colour: int
    kind: str


@dataclass(frozen=True)
class Figure:
    """One section of the page.

    Attributes:
        title: Heading.
        text: What it shows and how to read it.
        drawings: One chart or several, each with a caption (may be empty).
        legend: What the marks mean.
        missing: Why there is nothing to draw; empty if there is.
    """

    title: str
    text: str
    drawings: Sequence[tuple[str, Markup]] = ()
    legend: Sequence[Mark] = ()
    missing: str = ""


def all_figures(run: RunData) -> list[Figure]:
    """Every figure, in the order of the page."""
    return [
        score_against_executions(run),
        reliability(run),
        anchor_weight(run),
        failures_by_kind(run),
        flattened_groups(run),
    ]


def score_against_executions(run: RunData) -> Figure:
    """Scores over the executions that were used, and over those that real execution would have used."""
    title = "Score against executions"
    if not run.metrics:
        return Figure(title, "", missing="No step has been made yet.")
    used = np.cumsum([step["executions"] for step in run.metrics]).tolist()
    would_use = np.cumsum([step["executions_real_would_use"] for step in run.metrics]).tolist()
    score = _moving_mean(run.column("score"))
    series = [
        Series("anchors' real score, each step", used, run.column("score_real"), 2, "dots"),
        Series("score that the agent was trained on", used, score, 1),
    ]
    text = (
        "Mean score of a step's trajectories: the real one in anchor groups, the calibrated one elsewhere. "
        f"{_smoothed(run)}"
    )
    if would_use[-1] > used[-1]:
        series.append(Series("the same, had every group been executed", would_use, score, 0, "dashes"))
        text += (
            f"{format_number(used[-1])} programs were executed; executing every group would have taken "
            f"{format_number(would_use[-1])} ({used[-1] / would_use[-1]:.0%} of them were needed)."
        )
    else:
        text += f"All of the {format_number(used[-1])} programs were executed."
    chart = Chart(title, "executions", "score", x_range=(0.0, max(would_use[-1], 1)), height=320, counts=True)
    return Figure(title, text, [("", line_chart(chart, series))], legend_of(series))


def reliability(run: RunData) -> Figure:
    """Predicted against real scores of the anchors, before and after debiasing, with the fitted map."""
    title = "Reliability of the world model"
    if not run.pairs:
        why = "This run has no trajectory that was both predicted and executed."
        return Figure(title, "", missing=why)
    debiaser, calibrated, fitted = _replay(run)
    shown = fitted if fitted.any() else ~fitted
    predicted, real = np.array([pair[1:] for pair in run.pairs])[shown].T
    raw = [*reliability_series(predicted, real), diagonal()]
    if debiaser.fitted:
        grid = np.linspace(0, 1, 201)
        raw.append(Series("debiasing map now", grid.tolist(), debiaser(grid).tolist(), 5))
    drawings = [
        (errors_caption("Before debiasing", predicted, real), line_chart(square("predicted score"), raw))
    ]
    if fitted.any():
        after = [*reliability_series(calibrated[fitted], real), diagonal()]
        caption = errors_caption("After debiasing", calibrated[fitted], real)
        drawings.append((caption, line_chart(square("calibrated score"), after)))
    text = (
        f"Each faint dot is one of {format_number(len(real))} trajectories in anchor groups; the line joins "
        "the means of equally many. On the diagonal predictions are right on average. "
    )
    return Figure(title, text + _about_the_map(run, bool(fitted.any())), drawings, legend_of(raw))


def _about_the_map(run: RunData, fitted: bool) -> str:
    config = run.config
    if not fitted:
        return f"None of them was scored under a fitted map: it is first fitted at {config.min_pairs} pairs."
    text = (
        "Each was calibrated by the map of its own step, which was fitted to earlier steps only; dots from "
        "before the first fit are left out."
    )
    if config.debias and config.reward_source == "wmrl":
        return text
    return f"{text} This run did not train on calibrated scores: debiasing is off."


def anchor_weight(run: RunData) -> Figure:
    """ρ and η̂² over the steps."""
    title = "Weight of the anchors"
    if all(value is None for value in run.column("eta2")):
        why = "No anchor group has been scored under a fitted map, so the noise is unknown and ρ is 1."
        return Figure(title, "", missing=why)
    rho = [Series("ρ", run.steps, run.column("rho"), 1, "steps")]
    noise = [
        Series("η̂²", run.steps, run.column("eta2"), 2, "steps"),
        Series("η̂² at the end of warm-up", run.steps, run.column("eta2_cal"), 5, "dashes"),
        Series("no signal inside groups", [run.steps[0], run.steps[-1]], [1.0, 1.0], 0, "dashes"),
    ]
    top = max(run.config.max_anchor_weight, 1.5)
    drawings = [
        ("Weight ρ of an anchor group", line_chart(_half("Weight rho", "ρ", (0.9, top)), rho)),
        ("Noise η̂² of the calibrated scores", line_chart(_half("Noise eta squared", "η̂²"), noise)),
    ]
    text = (
        "ρ = clip(1 + η̂² / η̂²_cal, 1, maximum). η̂² is the variance of calibrated minus real scores inside "
        "anchor groups over the variance of the real ones; near or above 1 the world model cannot tell the "
        "members of a group apart."
    )
    return Figure(title, text, drawings, legend_of(noise))


def failures_by_kind(run: RunData) -> Figure:
    """How replies without a valid submission ended, over the steps."""
    title = "Failures by kind"
    if not run.endings:
        return Figure(title, "", missing="No reply has been evaluated yet.")
    drawings = []
    shown: set[str] = set()
    for source, caption in (("real", "Executed groups"), ("world_model", "Groups played by the world model")):
        endings = [(step, status, count) for step, who, status, count in run.endings if who == source]
        if not endings:
            continue
        positions, shares = _shares(endings)
        shown |= set(shares)
        layers = [
            Series(_words(kind), positions, shares[kind], colour)
            for kind, colour in KINDS.items()
            if kind in shares
        ]
        chart = _half(f"Failures by kind: {caption}", "share of replies", (0.0, 1.0))
        drawings.append((caption, stacked_bars(chart, positions, layers)))
    text = (
        "Share of replies that led to no valid submission. What the world model plays is what it predicts, "
        "not what would have happened."
    )
    legend = [Mark(_words(kind), colour, "bar") for kind, colour in KINDS.items() if kind in shown]
    return Figure(title, text, drawings, legend)


def flattened_groups(run: RunData) -> Figure:
    """Share of groups whose different predictions the map made all equal."""
    title = "Flattened groups"
    flattened = run.column("flattened_groups")
    if all(value is None for value in flattened):
        return Figure(title, "", missing="No group has had different predictions yet.")
    series = [
        Series("each step", run.steps, flattened, 2, "dots"),
        Series("mean", run.steps, _moving_mean(flattened), 1),
    ]
    chart = Chart(title, "step", "share of groups", y_range=(0.0, 1.0), height=220, counts=True)
    text = (
        "Share of the groups with different predictions in which the map left no difference, so that they "
        f"teach nothing. {_smoothed(run)}"
    )
    return Figure(title, text, [("", line_chart(chart, series))], legend_of(series))


def _replay(run: RunData) -> tuple[IsotonicDebiaser, NDArray[np.float64], NDArray[np.bool_]]:
    """The map at the end, each pair's score under the map of its own step, and whether that was fitted."""
    config = run.config
    debiaser = IsotonicDebiaser(
        config.min_pairs, config.refit_every, config.debias_method, window=config.debias_window
    )
    calibrated: list[float] = []
    fitted: list[bool] = []
    by_step: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for step, predicted, real in run.pairs:
        by_step[step].append((predicted, real))
    for pairs in by_step.values():
        predictions = [predicted for predicted, _ in pairs]
        calibrated += debiaser(predictions).tolist()
        fitted += [debiaser.fitted] * len(pairs)
        debiaser.update(predictions, [real for _, real in pairs])
    return debiaser, np.array(calibrated), np.array(fitted)


def reliability_series(scores: NDArray[np.float64], real: NDArray[np.float64]) -> list[Series]:
    """Each trajectory as a dot, and the means of bins of equally many."""
    number = max(1, min(BINS, scores.size // BIN_AT_LEAST))
    bins = np.array_split(np.argsort(scores, kind="stable"), number)
    means = ([float(scores[part].mean()) for part in bins], [float(real[part].mean()) for part in bins])
    return [
        Series("one trajectory", scores.tolist(), real.tolist(), 0, "dots"),
        Series("mean of equally many", *means, 1),
        Series("mean of equally many", *means, 1, "dots"),
    ]


def diagonal() -> Series:
    """Where scores are right on average."""
    return Series("right on average", [0.0, 1.0], [0.0, 1.0], 0, "dashes")


def square(x_label: str) -> Chart:
    """Axes from 0 to 1 for a score against the real one."""
    return Chart(
        f"Reliability: {x_label}", x_label, "real score", (-0.02, 1.02), (-0.02, 1.02), width=400, height=400
    )


def _half(title: str, y_label: str, y_range: tuple[float, float] | None = None) -> Chart:
    """A chart over the steps that shares its row with another one."""
    return Chart(title, "step", y_label, y_range=y_range, width=420, height=250, counts=True)


def errors_caption(what: str, scores: NDArray[np.float64], real: NDArray[np.float64]) -> str:
    """The mean errors, after what they are errors of."""
    error = scores - real
    return f"{what}: mean error {error.mean():+.3f}, mean absolute error {np.abs(error).mean():.3f}"


def _shares(endings: Sequence[tuple[int, str, int]]) -> tuple[list[float], dict[str, list[float]]]:
    """Failing share by kind, over steps or over bins of them."""
    first, last = endings[0][0], endings[-1][0]
    width = math.ceil((last - first + 1) / BARS_AT_MOST)
    bins = range((last - first) // width + 1)
    total = dict.fromkeys(bins, 0)
    counts: dict[str, dict[int, int]] = defaultdict(lambda: dict.fromkeys(bins, 0))
    for step, status, count in endings:
        place = (step - first) // width
        total[place] += count
        if status != "ok":
            counts[status if status in KINDS else "other"][place] += count
    positions = [first + place * width + (width - 1) / 2 for place in bins]
    shares = {kind: [by[place] / max(total[place], 1) for place in bins] for kind, by in counts.items()}
    return positions, shares


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def legend_of(series: Sequence[Series]) -> list[Mark]:
    """One mark for each label that is drawn."""
    drawn = [one for one in series if any(y is not None for y in one.ys)]
    return list({one.label: Mark(one.label, one.colour, one.kind) for one in drawn}.values())


def _window(steps: int) -> int:
    """Steps in a moving mean: a tenth of the run, odd."""
    return 2 * (steps // 20) + 1


def _smoothed(run: RunData) -> str:
    window = _window(len(run.steps))
    return f"The line is smoothed over {window} steps. " if window > 1 else ""


def _moving_mean(values: Sequence[float | None]) -> list[float | None]:
    """Mean over the steps around each one; steps without a value are left out of it."""
    half = _window(len(values)) // 2
    around = [
        [value for value in values[max(0, index - half) : index + half + 1] if value is not None]
        for index in range(len(values))
    ]
    return [sum(window) / len(window) if window else None for window in around]
