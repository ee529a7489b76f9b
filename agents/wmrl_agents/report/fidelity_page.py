"""The page of ``wmrl fidelity``: numbers, calibration curves, bias by level, and the bound over the steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wmrl_agents.measurement import ERRORS, Measurement, expectations, shown
from wmrl_agents.report.evaluations import Tile
from wmrl_agents.report.excerpts import clean
from wmrl_agents.report.figures import (
    Figure,
    diagonal,
    errors_caption,
    legend_of,
    reliability_series,
    square,
)
from wmrl_agents.report.page import render_page, write_page
from wmrl_agents.report.svg import Chart, Series, format_number, line_chart
from wmrl_rewards.bounds import Bounds
from wmrl_rewards.fidelity import Fidelity

__all__ = ["write_fidelity_page"]


@dataclass(frozen=True)
class _Statuses:
    """The confusion matrix: predicted statuses across, executed ones down."""

    columns: list[str]
    rows: list[tuple[str, list[int]]]


def write_fidelity_page(measurement: Measurement, path: Path) -> Path:
    """Write the page about a world model, without scripts and without the network.

    Args:
        measurement: What was measured.
        path: Where it goes.

    Returns:
        Its path.
    """
    fidelity = measurement.fidelity
    text = render_page(
        "fidelity.html",
        title=f"Fidelity of {measurement.world_model}",
        heading=measurement.world_model,
        lead=clean(
            f"Asked about {fidelity.solutions} executed solutions of {measurement.source}: "
            f"{fidelity.tasks} tasks, {fidelity.groups} groups, "
            f"{fidelity.informative_groups} of them with different real scores."
        ),
        notices=[],
        tiles=_tiles(fidelity),
        errors=[
            (label, shown(getattr(fidelity.raw, name)), shown(getattr(fidelity.calibrated, name)))
            for label, name in ERRORS
        ],
        cross_fitted_by=fidelity.cross_fitted_by,
        statuses=_statuses(fidelity),
        problems=fidelity.problems,
        expectations=expectations(measurement),
        figures=[_calibration(fidelity), _bias(fidelity), _bound(measurement.bounds)],
    )
    return write_page(path, text)


def _tiles(fidelity: Fidelity) -> list[Tile]:
    before, after = fidelity.raw.absolute_error.value, fidelity.calibrated.absolute_error.value
    change = f"{format_number(before, 2)} → {format_number(after, 2)}"
    return [
        Tile("Mean absolute error", change, "as predicted, and debiased"),
        Tile(
            "Noise η̂²",
            format_number(fidelity.calibrated.eta2.value),
            "debiased; from 1 on there is no signal",
        ),
        Tile(
            "Status right", f"{fidelity.status_agreement:.0%}", f"by chance {fidelity.status_by_chance:.0%}"
        ),
        Tile("Unreadable", f"{fidelity.unreadable:.1%}", "answers without a score"),
        Tile(
            "Seconds",
            format_number(fidelity.seconds),
            f"a prediction; {format_number(fidelity.real_seconds)} an execution; "
            f"{format_number(fidelity.tokens)} tokens",
        ),
    ]


def _statuses(fidelity: Fidelity) -> _Statuses:
    columns = sorted({status for row in fidelity.statuses.values() for status in row})
    rows = [(real, [row.get(one, 0) for one in columns]) for real, row in fidelity.statuses.items()]
    return _Statuses(columns, rows)


def _calibration(fidelity: Fidelity) -> Figure:
    real, raw, calibrated = np.array(fidelity.scores).T
    drawings = []
    series: list[Series] = []
    for scores, label, what in (
        (raw, "predicted score", "As predicted"),
        (calibrated, "calibrated score", "Debiased"),
    ):
        series = [*reliability_series(scores, real), diagonal()]
        drawings.append((errors_caption(what, scores, real), line_chart(square(label), series)))
    text = (
        "Each faint dot is a solution; the line joins the means of equally many. On the diagonal predictions "
        f"are right on average. The debiasing map was cross-fitted by {fidelity.cross_fitted_by}."
    )
    return Figure("Calibration", text, drawings, legend_of(series))


def _bias(fidelity: Fidelity) -> Figure:
    """Mean prediction on each level of the real score: what B is the largest deviation of."""
    title = "Bias by level of the real score"
    real = [level.real for level in fidelity.levels]
    predicted = [level.predicted for level in fidelity.levels]
    series = [
        Series("mean prediction", real, predicted, 1),
        Series("mean prediction", real, predicted, 1, "dots"),
        diagonal(),
    ]
    chart = Chart(title, "real score", "mean predicted score", (-0.02, 1.02), (-0.02, 1.02), 480, 320)
    text = (
        "Levels hold about equally many solutions; equal scores share one. B is the largest distance to the "
        "diagonal. Where the line does not rise, no monotone map can tell the levels apart."
    )
    return Figure(title, text, [("", line_chart(chart, series))], legend_of(series))


def _bound(bounds: Bounds) -> Figure:
    """The bias terms of Theorems 3 and 4 over the steps."""
    title = "Bound on the cost of bias"
    if bounds.t0 is None:
        why = (
            "Mean predictions do not rise from level to level, or there is no bias: there is nothing to draw."
        )
        return Figure(title, "", missing=why)
    steps = np.linspace(0, bounds.steps, 101)
    falling = bounds.bias_term / (1 + steps / bounds.t0)
    ends = [0.0, float(bounds.steps)]
    series = [
        Series("with debiasing (Theorem 4)", steps.tolist(), falling.tolist(), 1),
        Series("without (Theorem 3)", ends, [bounds.bias_term] * 2, 0, "dashes"),
    ]
    highest = 1.1 * bounds.bias_term
    chart = Chart(title, "step", "bias term, in M²/μ", y_range=(0.0, highest), counts=True)
    text = (
        f"T₀ is {format_number(bounds.t0)} steps. An upper bound in units of constants that nobody knows: "
        "read the shape, not the size. "
        f"The lemma behind it holds with 95 % probability from step {format_number(bounds.valid_from, 2)} on."
    )
    return Figure(title, text, [("", line_chart(chart, series))], legend_of(series))
