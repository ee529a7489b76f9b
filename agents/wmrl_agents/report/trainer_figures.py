"""The figures about the trainer itself: where its time goes, and what the gradient audit has measured."""

from __future__ import annotations

from collections.abc import Sequence

from wmrl_agents.grpo.phases import time_by_phase
from wmrl_agents.report.figures import BARS_AT_MOST, Figure, Mark, legend_of
from wmrl_agents.report.run_data import RunData
from wmrl_agents.report.svg import Chart, Series, line_chart, stacked_bars

__all__ = ["gradient_audit", "trainer_figures", "where_the_time_goes"]

_COLOURS = {"generate": 1, "predict": 2, "train": 5, "wait": 7, "other": 0}


def trainer_figures(run: RunData) -> list[Figure]:
    """All of them, the audit only where there was one."""
    return [where_the_time_goes(run), *([gradient_audit(run)] if run.config.audit_gradients else [])]


def where_the_time_goes(run: RunData) -> Figure:
    """Wall time of the steps by phase."""
    title = "Where the time goes"
    timed = [step for step in run.metrics if "seconds_generate" in step]
    if not timed:
        return Figure(title, "", missing="No step has recorded the time of its phases.")
    width = -(-len(timed) // BARS_AT_MOST)
    bins = [timed[start : start + width] for start in range(0, len(timed), width)]
    places = [(part[0]["step"] + part[-1]["step"]) / 2 for part in bins]
    whole = [max(sum(step["seconds_step"] for step in part), 1e-9) for part in bins]
    layers = [
        Series(
            phase,
            places,
            [
                sum(step[f"seconds_{phase}"] for step in part) / total
                for part, total in zip(bins, whole, strict=True)
            ],
            colour,
        )
        for phase, colour in _COLOURS.items()
    ]
    chart = Chart(title, "step", "share of the step", y_range=(0.0, 1.0), height=250, counts=True)
    text = (
        f"{time_by_phase(timed)} Waiting is the time in which there was nothing to do but wait for "
        "executions, which otherwise run beside everything else."
    )
    legend = [Mark(phase, colour, "bar") for phase, colour in _COLOURS.items()]
    return Figure(title, text, [("", stacked_bars(chart, places, layers))], legend)


def gradient_audit(run: RunData) -> Figure:
    """Measured ratio of variances beside ρ; excess variance; bias of predicted gradients."""
    title = "Gradient audit"
    if all(value is None for value in run.column("audit_ratio")):
        return Figure(title, "", missing="Fewer than two anchor groups with different scores were seen.")
    steps = run.steps
    weight = [
        Series("measured ratio V_WM / V_E", steps, run.column("audit_ratio"), 2),
        Series("ρ, estimated from scores", steps, run.column("rho"), 1, "steps"),
    ]
    excess = [Series("excess variance", steps, run.column("audit_excess_variance"), 5)]
    bias = [
        Series("bias of predicted gradients", steps, run.column("audit_bias"), 7),
        Series("what chance alone makes it", steps, run.column("audit_bias_by_chance"), 0, "dashes"),
    ]
    drawings = [
        ("Weight of an anchor: measured and estimated", line_chart(_half("Variance ratio", "ratio"), weight)),
        ("Variance above that of the best weight", line_chart(_half("Excess variance", "share"), excess)),
        ("Bias, relative to the mean real gradient", line_chart(_half("Gradient bias", "length"), bias)),
    ]
    return Figure(title, _about_the_audit(run), drawings, legend_of([*weight, *excess, *bias]))


def _about_the_audit(run: RunData) -> str:
    cosine = _last(run.column("audit_cosine"))
    text = (
        "Gradients of the same anchors' trajectories under real and under calibrated scores, over the "
        f"anchors of a window ({int(run.metrics[-1].get('audit_groups') or 0)} at the end). The best weight "
        "of an anchor is the ratio of their variances. A bias well above what chance makes it is real, and "
        "no weight removes it."
    )
    if cosine is None:
        return text
    return f"{text} Cosine between the two mean gradients at the end: {cosine:.2f}."


def _last(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return present[-1] if present else None


def _half(title: str, y_label: str) -> Chart:
    return Chart(title, "step", y_label, width=420, height=250, counts=True)
