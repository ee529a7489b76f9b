"""Charts as inline SVG: lines, dots and stacked bars, drawn without any library, coloured by the page's CSS.

A chart is a `markupsafe.Markup` string, so whatever text goes into it is escaped. Colours are CSS classes
(``c1`` ... ``c8``), so that one chart serves a light and a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from markupsafe import Markup, escape

__all__ = ["Chart", "Series", "format_number", "line_chart", "stacked_bars"]

LEFT, RIGHT, TOP, BOTTOM = 60, 16, 14, 46
PIXELS_PER_X_TICK, PIXELS_PER_Y_TICK = 64, 48
DOTS_AT_MOST = 1500


@dataclass(frozen=True)
class Series:
    """Points of one kind; a y that is None leaves a gap.

    Attributes:
        label: Name in the legend.
        xs: Positions, as many as ``ys``.
        ys: Values.
        colour: Number of the CSS colour, 0 (the muted ink) to 8.
        kind: How it is drawn; ``steps`` holds each value until the next, ``dashes`` is a reference line.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    colour: int = 1
    kind: Literal["line", "steps", "dots", "dashes"] = "line"


@dataclass(frozen=True)
class Chart:
    """What the axes say, and how large the drawing is.

    Attributes:
        title: Read out in place of the picture.
        x_label: What the horizontal axis shows.
        y_label: What the vertical axis shows.
        x_range: Lowest and highest x; None takes them from the data.
        y_range: Likewise for y.
        width: Width in pixels at which text has its natural size; the page scales it.
        height: Height likewise.
        counts: Whether x counts something, so that there are no ticks between whole numbers.
    """

    title: str
    x_label: str
    y_label: str
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    width: int = 720
    height: int = 280
    counts: bool = False


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Pixel position of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int, smallest_step: float = 0.0) -> list[float]:
        """Round values inside the range, about as many as asked for."""
        step = max(_round_step((self.high - self.low) / about), smallest_step)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def format_number(value: float | None, digits: int = 3) -> str:
    """A number as people read it: thousands separated, no idle zeros; an en dash where there is none.

    Example:
        >>> format_number(12345), format_number(0.25), format_number(None)
        ('12,345', '0.25', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e15:
        return f"{value:.{digits}g}"
    if float(value).is_integer() or abs(value) >= 10**digits:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def line_chart(chart: Chart, series: Sequence[Series]) -> Markup:
    """Lines, dots and reference lines in one pair of axes.

    Returns:
        The drawing; a short sentence instead where no series has a point.
    """
    points = [(x, y) for one in series for x, y in zip(one.xs, one.ys, strict=True) if y is not None]
    if not points:
        return _nothing()
    x_axis = _horizontal(chart, _extent([x for x, _ in points], chart.x_range))
    y_axis = _vertical(chart, _padded(_extent([y for _, y in points], chart.y_range), chart.y_range))
    drawn = [_draw(one, x_axis, y_axis) for one in series]
    return _frame(chart, x_axis, y_axis, [*drawn])


def stacked_bars(chart: Chart, positions: Sequence[float], series: Sequence[Series]) -> Markup:
    """One bar a position, the series stacked from the bottom up.

    Args:
        chart: Axes.
        positions: Middle of each bar, ascending.
        series: The layers; their ``ys`` belong to the positions, None counts as nothing.
    """
    if not positions:
        return _nothing()
    gaps = [after - before for before, after in pairwise(positions)]
    width = min(gaps, default=1.0)
    highest = max(sum(one.ys[index] or 0.0 for one in series) for index in range(len(positions)))
    x_axis = _horizontal(chart, (positions[0] - width / 2, positions[-1] + width / 2))
    y_axis = _vertical(chart, chart.y_range or (0.0, highest * 1.05 or 1.0))
    bar = max(abs(x_axis.at(width) - x_axis.at(0.0)) * 0.86, 0.5)
    bars = []
    for index, position in enumerate(positions):
        base = 0.0
        for one in series:
            value = one.ys[index] or 0.0
            if value > 0:
                box = (x_axis.at(position) - bar / 2, y_axis.at(base + value), bar)
                hint = f"{one.label}, {chart.x_label} {format_number(position)}: {format_number(value)}"
                bars.append(_bar(box, y_axis.at(base) - y_axis.at(base + value), one.colour, hint))
            base += value
    return _frame(chart, x_axis, y_axis, bars)


def _bar(box: tuple[float, float, float], height: float, colour: int, hint: str) -> Markup:
    left, top, width = box
    return Markup(
        '<rect class="fill c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
    ).format(colour, left, top, width, height, hint)


def _draw(series: Series, x_axis: _Axis, y_axis: _Axis) -> Markup:
    points = list(zip(series.xs, series.ys, strict=True))
    if series.kind == "dots":
        shown = points[:: math.ceil(len(points) / DOTS_AT_MOST) or 1]
        return Markup("").join(
            Markup(
                '<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}: {}, {}</title></circle>'
            ).format(
                series.colour, x_axis.at(x), y_axis.at(y), series.label, format_number(x), format_number(y)
            )
            for x, y in shown
            if y is not None
        )
    css = "dashes" if series.kind == "dashes" else "line"
    return Markup('<path class="{} c{}" d="{}"><title>{}</title></path>').format(
        css, series.colour, _path(points, x_axis, y_axis, series.kind == "steps"), series.label
    )


def _path(points: Sequence[tuple[float, float | None]], x_axis: _Axis, y_axis: _Axis, in_steps: bool) -> str:
    parts: list[str] = []
    pen_down = False
    for x, y in points:
        if y is None:
            pen_down = False
            continue
        across = f"H{x_axis.at(x):.1f}" if in_steps and pen_down else ""
        parts.append(f"{across}{'L' if pen_down else 'M'}{x_axis.at(x):.1f},{y_axis.at(y):.1f}")
        pen_down = True
    # A point between two gaps has no line: a stroke of no length with round ends makes it a dot.
    return "".join(parts) + ("h0" if parts else "")


def _frame(chart: Chart, x_axis: _Axis, y_axis: _Axis, content: Sequence[Markup]) -> Markup:
    """Axes, grid and labels around the content."""
    across = [
        Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x_axis.at(tick), chart.height - BOTTOM + 18, format_number(tick)
        )
        for tick in x_axis.ticks((chart.width - LEFT - RIGHT) // PIXELS_PER_X_TICK, 1.0 * chart.counts)
    ]
    up = [
        Markup(
            '<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            '<text class="tick" x="{text}" y="{base:.1f}" text-anchor="end">{value}</text>'
        ).format(
            left=LEFT,
            right=chart.width - RIGHT,
            y=y_axis.at(tick),
            text=LEFT - 8,
            base=y_axis.at(tick) + 4,
            value=format_number(tick),
        )
        for tick in y_axis.ticks((chart.height - TOP - BOTTOM) // PIXELS_PER_Y_TICK)
    ]
    middle = (TOP + chart.height - BOTTOM) / 2
    labels = Markup(
        '<line class="axis" x1="{left}" x2="{right}" y1="{floor}" y2="{floor}"/>'
        '<text class="label" x="{right}" y="{below}" text-anchor="end">{x_label}</text>'
        '<text class="label" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        "{y_label}</text>"
    ).format(
        left=LEFT,
        right=chart.width - RIGHT,
        floor=chart.height - BOTTOM,
        below=chart.height - 8,
        middle=middle,
        x_label=chart.x_label,
        y_label=chart.y_label,
    )
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        chart.width, chart.height, chart.title, Markup("").join([*up, *across, labels, *content])
    )


def _nothing() -> Markup:
    return Markup('<p class="missing">{}</p>').format(escape("There is nothing to draw yet."))


def _horizontal(chart: Chart, extent: tuple[float, float]) -> _Axis:
    return _Axis(*_not_empty(extent), LEFT, chart.width - RIGHT)


def _vertical(chart: Chart, extent: tuple[float, float]) -> _Axis:
    return _Axis(*_not_empty(extent), chart.height - BOTTOM, TOP)


def _extent(values: Sequence[float], given: tuple[float, float] | None) -> tuple[float, float]:
    return given or (min(values), max(values))


def _padded(extent: tuple[float, float], given: tuple[float, float] | None) -> tuple[float, float]:
    if given:
        return given
    low, high = extent
    room = 0.06 * (high - low)
    return (low - room if low < 0 else 0.0, high + room)


def _not_empty(extent: tuple[float, float]) -> tuple[float, float]:
    low, high = extent
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _round_step(rough: float) -> float:
    """The nearest 1, 2, 2.5 or 5 times a power of ten that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
