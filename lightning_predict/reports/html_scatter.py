"""Time against dollars as inline SVG: a point a GPU, a line through the best, a limit for the deadline.

Example::

    svg = scatter([Point("T4", 3.2, 1.12, "T4: 3 h 12 min, $1.12")], [], 4.0, title="Time and cost")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final, final

from lightning_predict.reports.html_charts import (
    CHARACTER,
    WIDTH,
    Axis,
    grid_line,
    scale_note,
    svg_of,
    text_at,
    tick_text,
    ticks_apart,
)

_HEIGHT: Final = 380
_OFFSETS: Final = (4, -8, 16, -20, 28, -32, 40, -44, 52)
"""Heights at which a label is tried, in pixels below the point's, the nearest first."""
_FAR: Final = 24
"""Pixels between a point and its label from which a line joins them."""
_TOUCHING: Final = 4
"""Pixels between two points below which they look like one."""


@final
@dataclass(frozen=True, slots=True)
class Point:
    """One point of a scatter: its name, place, text that appears over it, and the class of its style."""

    name: str
    x: float
    y: float
    title: str
    kind: str = ""


def scatter(points: Sequence[Point], line: Sequence[tuple[float, float]], limit: float | None, *, title: str) -> str:
    """Points of hours (x) and US dollars (y), a line through some of them, and a limit on x; empty without points.

    Times are shown in the unit in which the longest is read best.
    """
    if not points:
        return ""
    unit, per_hour = _time_unit(max(point.x for point in points))
    points = [replace(point, x=point.x * per_hour) for point in points]
    line = [(x * per_hour, y) for x, y in line]
    limit = None if limit is None else limit * per_hour
    bottom = _HEIGHT - 48
    x_axis = Axis.over([point.x for point in points], 64, WIDTH - 90)
    y_axis = Axis.over([point.y for point in points], bottom, 12)
    parts = [grid_line(x_axis.pixel(tick), 8, x_axis.pixel(tick), bottom) for tick in x_axis.ticks()]
    parts += [grid_line(64, y_axis.pixel(tick), WIDTH - 16, y_axis.pixel(tick)) for tick in y_axis.ticks()]
    parts += [
        text_at(x_axis.pixel(tick), bottom + 18, tick_text(tick), "middle", "tick") for tick in ticks_apart(x_axis)
    ]
    parts += [text_at(56, y_axis.pixel(tick) + 4, f"${tick_text(tick)}", "end", "tick") for tick in y_axis.ticks()]
    parts.append(text_at((64 + WIDTH) / 2, bottom + 40, unit + scale_note(x_axis), "middle", "axis"))
    if limit is not None and x_axis.low < limit <= x_axis.high:
        at = x_axis.pixel(limit)
        parts.append(f'<path class="limit" d="M{at:.1f} 8V{bottom}"/>' + text_at(at - 6, 20, "deadline", "end", "tick"))
    if len(line) > 1:
        path = "L".join(f"{x_axis.pixel(x):.1f} {y_axis.pixel(y):.1f}" for x, y in line)
        parts.append(f'<path class="frontier" d="M{path}"/>')
    placed = [(x_axis.pixel(point.x), y_axis.pixel(point.y)) for point in points]
    for point, (x, y) in zip(points, placed, strict=True):
        title = f"<title>{escape(point.title)}</title>"
        parts.append(f'<circle class="point {point.kind}" cx="{x:.1f}" cy="{y:.1f}" r="5">{title}</circle>')
    groups = _together(points, placed)
    names = [", ".join(point.name for point in group) for group in groups.values()]
    labels = _place_labels(names, list(groups))
    for ((x, y), group), name, (label_x, label_y, anchor) in zip(groups.items(), names, labels, strict=True):
        kinds = {point.kind for point in group}
        if abs(label_y - y) > _FAR:
            parts.append(grid_line(x, y, label_x, label_y - 4))
        parts.append(text_at(label_x, label_y, name, anchor, f"name {kinds.pop() if len(kinds) == 1 else ''}"))
    return svg_of(parts, _HEIGHT, title)


def _time_unit(hours: float) -> tuple[str, float]:
    """The unit in which so many hours are read best, and how many of it an hour has."""
    for unit, per_hour in (("hours", 1.0), ("minutes", 60.0), ("seconds", 3600.0)):
        if hours * per_hour >= 1:
            return unit, per_hour
    return "milliseconds", 3.6e6


def _together(points: Sequence[Point], places: Sequence[tuple[float, float]]) -> dict[tuple[float, float], list[Point]]:
    """Points by their places; those that cannot be told apart share the first one's."""
    groups: dict[tuple[float, float], list[Point]] = {}
    for point, place in zip(points, places, strict=True):
        near = next((other for other in groups if math.dist(other, place) < _TOUCHING), place)
        groups.setdefault(near, []).append(point)
    return groups


def _place_labels(names: Sequence[str], places: Sequence[tuple[float, float]]) -> list[tuple[float, float, str]]:
    """A place for each label, beside its point, that no point and no earlier label covers where there is one."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    labels = []
    for name, (x, y) in zip(names, places, strict=True):
        width = CHARACTER * len(name)
        beside = ((10, "start"), (-10, "end"))
        choices = [(x + dx, y + dy, anchor) for dy in _OFFSETS for dx, anchor in beside]
        choices[2:2] = [(x, y - 10, "middle"), (x, y + 20, "middle")]
        boxes = [_box(choice, width) for choice in choices]
        free = [
            number for number, box in enumerate(boxes)
            if box[0] > 60 and box[2] < WIDTH and not any(_overlap(box, other) for other in taken)
        ]  # fmt: skip
        chosen = free[0] if free else 0
        taken.append(boxes[chosen])
        labels.append(choices[chosen])
    return labels


def _box(choice: tuple[float, float, str], width: float) -> tuple[float, float, float, float]:
    x, y, anchor = choice
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, y - 10, left + width, y + 3


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
