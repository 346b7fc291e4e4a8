"""The charts of the HTML report as inline SVG: no script, no fonts, colours from the page's style.

Example::

    svg = bar_chart([Bar("T4", 48.0, 45.0, 52.0, "48.0 ms", "used")], unit="ms")
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, final

LOG_AXIS_SPREAD: Final = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

WIDTH: Final = 760
CHARACTER: Final = 7.6
"""Mean width of a character of the charts' text in pixels (12 px system font), a little generous."""
_BAR_HEIGHT: Final = 26
_TICKS: Final = 6
COLOURS: Final = 12
"""Colours that the style sheet has for the parts of a bar."""


@final
@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, middle, interval, the text beside it, and the class of its style."""

    name: str
    value: float
    low: float
    high: float
    label: str
    kind: str = ""


@final
@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values on a range of pixels, logarithmic where the values are far apart."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    @staticmethod
    def over(values: Sequence[float], start: float, end: float, *, from_zero: bool = True) -> Axis:
        """An axis that shows all of some values, from 0 where it is linear."""
        positive = [value for value in values if value > 0]
        if len(positive) == len(values) and max(values) > LOG_AXIS_SPREAD * min(values):
            return Axis(min(values) / 1.6, max(values) * 1.3, start, end, True)
        low = 0.0 if from_zero else min(values)
        return Axis(low, max(values) * 1.08 or 1.0, start, end, False)

    def pixel(self, value: float) -> float:
        """Where a value lies."""
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values of the axis."""
        if self.logarithmic:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps: tuple[int, ...] = (1, 2, 5) if last - first <= 3 else (1,)
            candidates = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            return [tick for tick in candidates if self.low <= tick <= self.high]
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        return [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def bar_chart(bars: Sequence[Bar], *, title: str, unit: str) -> str:
    """Horizontal bars with their intervals, in order; an empty text without bars.

    On a logarithmic axis a bar's length would mean nothing, so there it is a point.
    """
    if not bars:
        return ""
    left = 16 + CHARACTER * max(len(bar.name) for bar in bars)
    right = 16 + CHARACTER * max(len(bar.label) for bar in bars)
    axis = Axis.over([value for bar in bars for value in (bar.low, bar.value, bar.high)], left, WIDTH - right)
    bottom = _BAR_HEIGHT * len(bars) + 8
    parts = [grid_line(axis.pixel(tick), 0, axis.pixel(tick), bottom) for tick in axis.ticks()]
    for row, bar in enumerate(bars):
        middle = row * _BAR_HEIGHT + _BAR_HEIGHT / 2 + 4
        low, high = axis.pixel(bar.low), axis.pixel(bar.high)
        at = axis.pixel(bar.value)
        parts.append(
            f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}{_end(low, middle)}{_end(high, middle)}"/>'
        )
        mark = (
            f'<circle class="point {bar.kind}" cx="{at:.1f}" cy="{middle:.1f}" r="6"/>'
            if axis.logarithmic
            else f'<rect class="bar {bar.kind}" x="{left:.1f}" y="{middle - 8:.1f}" width="{max(at - left, 1):.1f}" '
            'height="16" rx="2"/>'
        )
        # A point lies over its whisker, a bar below it.
        parts.insert(len(parts) if axis.logarithmic else len(parts) - 1, mark)
        parts.append(text_at(left - 8, middle + 4, bar.name, "end", f"name {bar.kind}"))
        parts.append(text_at(max(high, at) + 8, middle + 4, bar.label, "start", "value"))
    parts += [text_at(axis.pixel(tick), bottom + 16, tick_text(tick), "middle", "tick") for tick in ticks_apart(axis)]
    parts.append(text_at((left + WIDTH - right) / 2, bottom + 36, unit + scale_note(axis), "middle", "axis"))
    return svg_of(parts, bottom + 44, title)


def share_chart(rows: Sequence[tuple[str, Mapping[str, float], str]], *, title: str) -> str:
    """Bars of shares that add up to 1, each part in the colour of its name; an empty text without rows.

    Args:
        rows: Name, share by part, and the text beside the bar.
        title: What the chart is called for those who cannot see it.
    """
    if not rows:
        return ""
    parts_in_order = list(dict.fromkeys(part for _, shares, _ in rows for part in shares))
    left = 16 + CHARACTER * max(len(name) for name, _, _ in rows)
    right = 16 + CHARACTER * max(len(label) for _, _, label in rows)
    width = WIDTH - left - right
    drawn = []
    for row, (name, shares, label) in enumerate(rows):
        top, at = row * _BAR_HEIGHT + 5, left
        for part in parts_in_order:
            length = width * shares.get(part, 0.0)
            words = escape(f"{name}: {part} {100 * shares.get(part, 0.0):.0f} %")
            drawn.append(
                f'<rect class="part p{parts_in_order.index(part) % COLOURS}" x="{at:.1f}" y="{top}" '
                f'width="{length:.1f}" height="16"><title>{words}</title></rect>'
            )
            at += length
        drawn += [
            text_at(left - 8, top + 12, name, "end", "name"),
            text_at(WIDTH - right + 8, top + 12, label, "start", "value"),
        ]
    legend, bottom = _legend(parts_in_order, left, _BAR_HEIGHT * len(rows) + 16.0)
    return svg_of([*drawn, *legend], bottom + 20, title)


def _legend(names: Sequence[str], left: float, top: float) -> tuple[list[str], float]:
    """Squares in the colours of the parts with their names, and the top of the last line."""
    drawn = []
    x = left
    for number, name in enumerate(names):
        length = 30 + CHARACTER * len(name)
        if x + length > WIDTH and x > left:
            x, top = left, top + 20
        drawn.append(f'<rect class="part p{number % COLOURS}" x="{x:.1f}" y="{top - 2:.0f}" width="12" height="12"/>')
        drawn.append(text_at(x + 17, top + 8, name, "start", "tick"))
        x += length
    return drawn, top


def tick_text(value: float) -> str:
    """A round value as an axis shows it: `0.00002`, `5`, `20,000`."""
    if value >= 1 and value == round(value):
        return f"{value:,.0f}"
    return f"{value:.6g}" if value == 0 or value >= 1e-3 else f"{value:.12f}".rstrip("0")


def ticks_apart(axis: Axis) -> list[float]:
    """The ticks whose texts do not touch."""
    shown: list[float] = []
    free_from = -math.inf
    for tick in axis.ticks():
        half = CHARACTER * len(tick_text(tick)) / 2
        if axis.pixel(tick) - half >= free_from:
            shown.append(tick)
            free_from = axis.pixel(tick) + half + 8
    return shown


def scale_note(axis: Axis) -> str:
    """What is said of an axis beside its unit."""
    return " (logarithmic)" if axis.logarithmic else ""


def _end(x: float, y: float) -> str:
    """The stroke at one end of a whisker."""
    return f"M{x:.1f} {y - 4:.1f}v8"


def grid_line(x1: float, y1: float, x2: float, y2: float) -> str:
    """A thin line."""
    return f'<path class="grid" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def text_at(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    """A text at a place, in the class of its style."""
    return f'<text class="{kind.strip()}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def svg_of(parts: Sequence[str], height: float, title: str) -> str:
    """The parts as a whole drawing."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
