"""Charts of the HTML report: shares in HTML, scatter plots and curves in SVG.

HTML bars adapt to the page width. Each SVG drawing exists in two widths, `WIDE` and `NARROW`; the page shows the width
that fits the screen. Points are numbered and explained in a list below the drawing, so that labels cannot overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lightning_predict.base.escaping import html_text as escape
from lightning_predict.base.ties import ordered
from lightning_predict.base.units import hours_to_seconds, seconds_to_milliseconds
from lightning_predict.timeline.verdict import MAX_PARTS

LOG_AXIS_SPREAD: Final = 2.0  # Ratio of the largest to the smallest value above which an axis is logarithmic

WIDE: Final = 760
NARROW: Final = 330  # Widths of a drawing in pixels: on a desktop, and on a phone of 360 pixels including margins
HEIGHT: Final = 340  # Height of a drawing in pixels
CHARACTER: Final = 7.6  # Mean width of a character in pixels (12 px system font), slightly overestimated

_TICKS: Final = 6
_TICKS_NARROW: Final = 4
_LEFT: Final = 64
_RADIUS: Final = 9

OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values mapped to a range of pixels, logarithmic if the values are far apart."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    @staticmethod
    def over(values: Sequence[float], start: float, end: float) -> Axis:
        """Make an axis over values; logarithmic if they are far apart, otherwise linear from 0.

        `start` and `end` are the pixel positions of the lowest and the highest value.
        """
        positive = [value for value in values if value > 0]
        if len(positive) == len(values) and max(values) > LOG_AXIS_SPREAD * min(values):
            return Axis(min(values) / 1.6, max(values) * 1.3, start, end, True)
        return Axis(0.0, max(values) * 1.08 or 1.0, start, end, False)

    def pixel(self, value: float) -> float:
        """Return the pixel position of a value."""
        if self.logarithmic:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round tick values inside the range of the axis."""
        if self.logarithmic:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps: tuple[int, ...] = (1, 2, 5) if last - first <= 3 else (1,)
            steps = (1, 2, 3, 4, 5, 7) if self.high < 10 * self.low else steps
            candidates = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            return [tick for tick in candidates if self.low <= tick <= self.high]
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        return [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def for_both_screens(draw: Callable[[int], str]) -> str:
    """Draw for desktop and phone, and return both drawings as HTML; an empty drawing stays empty."""
    wide = draw(WIDE)
    return wide and f'<div class="wide">{wide}</div><div class="narrow">{draw(NARROW)}</div>'


def top_parts(rows: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Return the names of the `MAX_PARTS` parts with the largest sum over all bars, largest first.

    Args:
        rows: Share by part name, one mapping per bar.
    """
    together: dict[str, float] = {}
    for shares in rows:
        for part, share in shares.items():
            together[part] = together.get(part, 0.0) + share
    return tuple(ordered(together, together.__getitem__, reverse=True)[:MAX_PARTS])


def share_chart(rows: Sequence[tuple[str, Mapping[str, float], str]]) -> str:
    """Draw stacked bars of shares that add up to 1, with one colour per part; return an empty string without rows."""
    if not rows:
        return ""
    named = top_parts([shares for _, shares, _ in rows])
    drawn, has_other = [], False
    for name, shares, label in rows:
        rest = sum(share for part, share in shares.items() if part not in named)
        has_other = has_other or rest > 0
        parts = [(part, shares.get(part, 0.0)) for part in named] + [(OTHER, rest)]
        boxes = "".join(
            f'<i class="p{number}" style="width:{100 * part:.2f}%" title="{escape(words)} {100 * part:.0f} %"></i>'
            for number, (words, part) in enumerate(parts)
            if part > 0
        )
        drawn.append(
            f'<div class="bar"><span class="name">{escape(name)}</span><span class="track shares">{boxes}</span>'
            f'<span class="value">{escape(label)}</span></div>'
        )
    names = (*named, OTHER) if has_other else named
    key = "".join(f'<li><i class="p{number}"></i>{escape(name)}</li>' for number, name in enumerate(names))
    return f'<div class="bars">{"".join(drawn)}</div><ul class="key">{key}</ul>'


def tick_text(value: float) -> str:
    """Format a tick value: `0.00002`, `5`, `20,000`."""
    if value >= 1 and value == round(value):
        return f"{value:,.0f}"
    return f"{value:.6g}" if value == 0 or value >= 1e-3 else f"{value:.12f}".rstrip("0")


def ticks_apart(axis: Axis) -> list[float]:
    """Return the ticks whose labels do not overlap."""
    shown: list[float] = []
    free_from = -math.inf
    for tick in axis.ticks():
        half = CHARACTER * len(tick_text(tick)) / 2
        if axis.pixel(tick) - half >= free_from:
            shown.append(tick)
            free_from = axis.pixel(tick) + half + 8
    return shown


def grid_line(x1: float, y1: float, x2: float, y2: float) -> str:
    """Draw a grid line."""
    return f'<path class="grid" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def text_at(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    """Draw a text at a position, with a CSS class."""
    return f'<text class="{kind.strip()}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def svg_of(parts: Sequence[str], width: int, height: float, title: str) -> str:
    """Join the parts into an SVG document."""
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a scatter plot: name, position, description in the list below, and CSS class."""

    name: str
    x: float
    y: float
    text: str
    kind: str = ""


def scatter(points: Sequence[Point], line: Sequence[tuple[float, float]], limit: float | None, *, title: str) -> str:
    """Draw a scatter plot of hours (x) and US dollars (y), with a line, a limit on x, and a list of the points.

    Return an empty string without points. Times are shown in the unit that suits the longest time. Overlapping points
    share a number.
    """
    if not points:
        return ""
    unit, per_hour = _time_unit(max(point.x for point in points))
    points = [replace(point, x=point.x * per_hour) for point in points]
    line = [(x * per_hour, y) for x, y in line]
    limit = None if limit is None else limit * per_hour
    groups = _together(points)
    drawing = for_both_screens(lambda width: _scatter(groups, line, limit, unit, width, title))
    key = "".join(
        f"<li><b>{number}</b>{escape('; '.join(f'{point.name}: {point.text}' for point in group))}</li>"
        for number, group in enumerate(groups, start=1)
    )
    return f'{drawing}<ul class="key numbers">{key}</ul>'


def _axes(points: Sequence[Point], width: int) -> tuple[Axis, Axis]:
    # On log-log axes, "twice as fast for twice the price" is a straight line, and cheap GPUs do not cluster.
    x_axis = Axis.over([point.x for point in points], _LEFT + _RADIUS, width - 24)
    return x_axis, Axis.over([point.y for point in points], HEIGHT - 48, 16)


def _scatter(
    groups: Sequence[Sequence[Point]],
    line: Sequence[tuple[float, float]],
    limit: float | None,
    unit: str,
    width: int,
    title: str,
) -> str:
    x_axis, y_axis = _axes([point for group in groups for point in group], width)
    bottom = HEIGHT - 48
    parts = frame(x_axis, y_axis, width, unit)
    if limit is not None and x_axis.low < limit <= x_axis.high:
        at = x_axis.pixel(limit)
        parts.append(f'<path class="limit" d="M{at:.1f} 8V{bottom}"/>' + text_at(at - 6, 20, "deadline", "end", "tick"))
    if len(line) > 1:
        path = "L".join(f"{x_axis.pixel(x):.1f} {y_axis.pixel(y):.1f}" for x, y in line)
        parts.append(f'<path class="frontier" d="M{path}"/>')
    for number, group in enumerate(groups, start=1):
        x, y, kind = x_axis.pixel(group[0].x), y_axis.pixel(group[0].y), group[0].kind
        words = escape("; ".join(f"{point.name}: {point.text}" for point in group))
        parts.append(
            f'<circle class="point {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}"><title>{words}</title></circle>'
        )
        parts.append(text_at(x, y + 4, str(number), "middle", "number"))
    return svg_of(parts, width, HEIGHT, title)


def frame(x_axis: Axis, y_axis: Axis, width: int, unit: str) -> list[str]:
    """Draw the grid lines and labels of both axes."""
    bottom = HEIGHT - 48
    wanted = _TICKS if width == WIDE else _TICKS_NARROW
    x_ticks, y_ticks = ticks_apart(x_axis), y_axis.ticks()
    x_ticks = x_ticks[:: math.ceil(len(x_ticks) / wanted)]
    parts = [grid_line(x_axis.pixel(tick), 8, x_axis.pixel(tick), bottom) for tick in x_ticks]
    parts += [grid_line(_LEFT, y_axis.pixel(tick), width - 8, y_axis.pixel(tick)) for tick in y_ticks]
    parts += [text_at(x_axis.pixel(tick), bottom + 18, tick_text(tick), "middle", "tick") for tick in x_ticks]
    parts += [text_at(_LEFT - 8, y_axis.pixel(tick) + 4, f"${tick_text(tick)}", "end", "tick") for tick in y_ticks]
    both_log = x_axis.logarithmic and y_axis.logarithmic
    note = " (both axes logarithmic)" if both_log else " (logarithmic)" if x_axis.logarithmic else ""
    parts.append(text_at((_LEFT + width) / 2, bottom + 40, unit + note, "middle", "axis"))
    return parts


def _time_unit(hours: float) -> tuple[str, float]:
    """Return the most readable unit for a number of hours, and how many of these units make an hour."""
    for unit, per_hour in (("hours", 1.0), ("minutes", 60.0), ("seconds", hours_to_seconds(1.0))):
        if hours * per_hour >= 1:
            return unit, per_hour
    return "milliseconds", seconds_to_milliseconds(hours_to_seconds(1.0))


def _together(points: Sequence[Point]) -> list[list[Point]]:
    """Group the points that would overlap in the narrow drawing, in order."""
    x_axis, y_axis = _axes(points, NARROW)
    groups: list[list[Point]] = []
    for point in points:
        place = x_axis.pixel(point.x), y_axis.pixel(point.y)
        for group in groups:
            if math.dist(place, (x_axis.pixel(group[0].x), y_axis.pixel(group[0].y))) < 2 * _RADIUS:
                group.append(point)
                break
        else:
            groups.append([point])
    return groups
