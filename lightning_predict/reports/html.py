"""Write the report as one HTML file: needs no network, follows the reader's light or dark setting, prints.

All text is escaped, no script is in it, and a content security policy forbids the browser to load anything. Charts are
inline SVG in the colours of the page's style. Example::

    Path("report.html").write_text(html_report(result, rank(result, deadline_hours=8)), encoding="utf-8")
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final, final

from lightning_predict.cost.energy import Energy
from lightning_predict.cost.offers import Offer, load_offers
from lightning_predict.cost.prediction import Prediction
from lightning_predict.reports.cost_curve import HEADERS, CostCurve, cost_curves, rows_of
from lightning_predict.reports.format import duration, milliseconds, share, usd, usd_per_hour
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Candidate, Ranking, memory_of, remarks, takes
from lightning_predict.reports.table import IN_USE_MARK, Grid, energy_columns, grid, prediction_notes
from lightning_predict.units import hours_to_seconds, seconds_to_hours, seconds_to_milliseconds

STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --text: #1c2330; --dim: #5c6675; --line: #dfe3ea;
  --accent: #2f6db5; --good: #1f7a4d; --bad: #b3412f; --used: #b86a1d; --muted: #b4bcc8; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --card: #1b212b; --text: #e6eaf0; --dim: #9aa5b4;
  --line: #303947; --accent: #6ea8ea; --good: #5cc492; --bad: #ee8572; --used: #e3a25b; --muted: #566173; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 36px 24px 56px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 12px; }
p { margin: 0 0 8px; }
.sub, .dim, figcaption { color: var(--dim); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px;
  margin-top: 18px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(240px, 1fr)); gap: 14px; margin-top: 22px; }
.card { background: var(--card); border: 1px solid var(--line); border-top: 3px solid var(--accent);
  border-radius: 10px; padding: 14px 18px 16px; }
.card.none { border-top-color: var(--muted); }
.card h2 { font-size: 12px; text-transform: uppercase; letter-spacing: 0.06em; color: var(--dim); margin: 0 0 6px; }
.card .gpu { font-size: 20px; font-weight: 650; margin: 0; overflow-wrap: anywhere; }
.card .what { font-size: 16px; margin: 2px 0 6px; }
.card .dim { font-size: 13px; margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 7px 10px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; font-size: 12.5px; vertical-align: bottom; white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }
td.right, th.right { text-align: right; white-space: nowrap; }
td:first-child { white-space: nowrap; font-weight: 600; }
tr.unfit td { color: var(--dim); }
.badge { display: inline-block; margin-left: 8px; padding: 0 7px; border-radius: 9px; font-size: 11.5px;
  font-weight: 600; line-height: 18px; border: 1px solid currentcolor; }
.badge.best { color: var(--good); } .badge.used { color: var(--used); }
.badge.unfit, .badge.tight { color: var(--bad); }
td.yes { color: var(--good); } tr td.no, td.tight { color: var(--bad); font-weight: 600; }
figure { margin: 0; } figcaption { font-size: 13.5px; margin-top: 6px; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg .grid { stroke: var(--line); stroke-width: 1; fill: none; }
svg text { fill: var(--text); paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round; }
svg .tick, svg .axis { fill: var(--dim); }
svg .name.used { fill: var(--used); font-weight: 600; } svg .name.unfit { fill: var(--dim); }
svg .bar { fill: var(--accent); } svg .bar.used { fill: var(--used); } svg .bar.unfit { fill: var(--muted); }
svg .p0 { fill: #4477aa; } svg .p1 { fill: #ee6677; } svg .p2 { fill: #228833; } svg .p3 { fill: #ccbb44; }
svg .p4 { fill: #66ccee; } svg .p5 { fill: #aa3377; } svg .p6 { fill: #997700; } svg .p7 { fill: #bbbbbb; }
svg .p8 { fill: #44aa99; } svg .p9 { fill: #882255; } svg .p10 { fill: #ddaa66; } svg .p11 { fill: #777777; }
svg .whisker { stroke: var(--text); stroke-width: 1.2; fill: none; opacity: 0.75; }
svg .point { fill: var(--accent); stroke: var(--card); stroke-width: 1.5; } svg .point.used { fill: var(--used); }
svg .point.unfit { fill: var(--muted); }
svg .frontier { stroke: var(--accent); stroke-width: 1.6; fill: none; opacity: 0.55; }
svg .limit { stroke: var(--bad); stroke-width: 1.2; stroke-dasharray: 5 4; fill: none; }
ul { margin: 0; padding-left: 20px; } li { margin: 4px 0; }
a { color: var(--accent); } footer { margin-top: 24px; color: var(--dim); font-size: 13px; }
@media print { body { background: none; } section, .card { break-inside: avoid; } }
"""


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
    """A bar of a chart: its name, middle, interval, the text beside it, and the class of its style."""

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
        """Span all of some values, from 0 where the axis is linear."""
        positive = [value for value in values if value > 0]
        if len(positive) == len(values) and max(values) > LOG_AXIS_SPREAD * min(values):
            return Axis(min(values) / 1.6, max(values) * 1.3, start, end, True)
        low = 0.0 if from_zero else min(values)
        return Axis(low, max(values) * 1.08 or 1.0, start, end, False)

    def pixel(self, value: float) -> float:
        """Place a value on the axis."""
        if self.logarithmic:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Choose round values of the axis."""
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
    """Draw horizontal bars with their intervals, in order; give an empty text without bars.

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
    """Draw bars of shares that add up to 1, each part in the colour of its name; give an empty text without rows.

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
    """Draw squares in the colours of the parts with their names; give them and the top of the last line."""
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
    """Write a round value as an axis shows it: `0.00002`, `5`, `20,000`."""
    if value >= 1 and value == round(value):
        return f"{value:,.0f}"
    return f"{value:.6g}" if value == 0 or value >= 1e-3 else f"{value:.12f}".rstrip("0")


def ticks_apart(axis: Axis) -> list[float]:
    """Choose the ticks whose texts do not touch."""
    shown: list[float] = []
    free_from = -math.inf
    for tick in axis.ticks():
        half = CHARACTER * len(tick_text(tick)) / 2
        if axis.pixel(tick) - half >= free_from:
            shown.append(tick)
            free_from = axis.pixel(tick) + half + 8
    return shown


def scale_note(axis: Axis) -> str:
    """Name the scale of an axis beside its unit where it is logarithmic."""
    return " (logarithmic)" if axis.logarithmic else ""


def _end(x: float, y: float) -> str:
    """Draw the stroke at one end of a whisker."""
    return f"M{x:.1f} {y - 4:.1f}v8"


def grid_line(x1: float, y1: float, x2: float, y2: float) -> str:
    """Draw a thin line."""
    return f'<path class="grid" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def text_at(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    """Draw a text at a place, in the class of its style."""
    return f'<text class="{kind.strip()}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def svg_of(parts: Sequence[str], height: float, title: str) -> str:
    """Join the parts to a whole drawing."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
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
    """A point of a scatter: its name, place, text that appears over it, and the class of its style."""

    name: str
    x: float
    y: float
    title: str
    kind: str = ""


def scatter(points: Sequence[Point], line: Sequence[tuple[float, float]], limit: float | None, *, title: str) -> str:
    """Draw points of hours (x) and US dollars (y), a line through some of them, and a limit on x.

    Without points the text is empty. Times are shown in the unit in which the longest is read best.
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
    """Choose the unit in which so many hours are read best, and say how many of it an hour has."""
    for unit, per_hour in (("hours", 1.0), ("minutes", 60.0), ("seconds", hours_to_seconds(1.0))):
        if hours * per_hour >= 1:
            return unit, per_hour
    return "milliseconds", seconds_to_milliseconds(hours_to_seconds(1.0))


def _together(points: Sequence[Point], places: Sequence[tuple[float, float]]) -> dict[tuple[float, float], list[Point]]:
    """Group points by their places; those that cannot be told apart share the place of the first."""
    groups: dict[tuple[float, float], list[Point]] = {}
    for point, place in zip(points, places, strict=True):
        near = next((other for other in groups if math.dist(other, place) < _TOUCHING), place)
        groups.setdefault(near, []).append(point)
    return groups


def _place_labels(names: Sequence[str], places: Sequence[tuple[float, float]]) -> list[tuple[float, float, str]]:
    """Place each label beside its point, where there is room so that it covers no point and no earlier label."""
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


TITLE = "What this training run takes on other GPUs"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_report(
    predictions: Predictions,
    ranking: Ranking,
    *,
    title: str = TITLE,
    energies: Mapping[str, Energy | None] | None = None,
    offers: Sequence[Offer] | None = None,
    made_on: datetime.date | None = None,
) -> str:
    """Write a whole HTML document.

    Args:
        predictions: What to show.
        ranking: Of the same predictions.
        title: Heading of the page.
        energies: Energy by GPU name, for its columns; None leaves them out.
        offers: Offers that the prices come from, for their sources; None takes those that ship with the package.
        made_on: Date on the page; today where None.
    """
    made_on = made_on or datetime.date.today()
    shown = grid(predictions, extra=energy_columns(energies) if energies else ())
    body = "".join(
        (
            f'<header><h1>{escape(title)}</h1><p class="sub">{escape(_subtitle(predictions, made_on))}</p></header>',
            _cards(ranking),
            _charts(predictions, ranking),
            _cost_curves(predictions),
            _critical_path(predictions),
            _table(predictions, ranking, shown),
            _prices(predictions, load_offers() if offers is None else offers),
            _notes(predictions, ranking, shown),
            "<footer>Made by lightning-predict. Predictions, not promises: intervals say how sure they are.</footer>",
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _subtitle(predictions: Predictions, made_on: datetime.date) -> str:
    recorded = "Predicted from one recorded training step"
    if predictions.used_gpu is not None:
        recorded += f", recorded on {predictions.used_gpu}"
    iterations = next((one.iterations for one in predictions.values()), None)
    steps = "" if iterations is None else f" {iterations:,} iterations to come."
    return f"{recorded}.{steps} {made_on.day} {made_on:%B %Y}."


def _cards(ranking: Ranking) -> str:
    cards = [_card("Cheapest", ranking.cheapest, ranking, "no price is known")]
    cards.append(_card("Fastest", ranking.fastest, ranking, "the run fits on none of these GPUs"))
    if ranking.deadline_hours is not None:
        name = f"Best within {duration(hours_to_seconds(ranking.deadline_hours))}"
        reason = "the length of the run is not known" if ranking.per_iteration else "no GPU is fast enough"
        cards.append(_card(name, ranking.within_deadline, ranking, reason))
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(name: str, candidate: Candidate | None, ranking: Ranking, otherwise: str) -> str:
    if candidate is None:
        return f'<div class="card none"><h2>{escape(name)}</h2><p class="gpu dim">None: {escape(otherwise)}</p></div>'
    offer = candidate.prediction.offer or "no price known"
    memory = memory_of(candidate) or "not known"
    interval = f"90 % interval: {duration(candidate.time.low)} to {duration(candidate.time.high)}"
    return (
        f'<div class="card"><h2>{escape(name)}</h2><p class="gpu">{escape(candidate.gpu)}</p>'
        f'<p class="what">{escape(takes(candidate, ranking))}</p>'
        f'<p class="dim">{escape(interval)}</p><p class="dim">Memory: {escape(memory)}</p>'
        f'<p class="dim">{escape(offer)}</p></div>'
    )


def _charts(predictions: Predictions, ranking: Ranking) -> str:
    priced = [one for one in predictions.values() if one.total_seconds is not None and one.cost_usd is not None]
    points = [
        Point(
            one.gpu,
            seconds_to_hours(one.total_seconds or 0.0),
            one.cost_usd or 0.0,
            f"{one.gpu}: {duration(one.total_seconds or 0.0)}, {usd(one.cost_usd or 0.0)}",
            _kind(one, predictions),
        )
        for one in priced
    ]
    line = [(seconds_to_hours(one.seconds), one.cost_usd) for one in ranking.frontier if one.cost_usd is not None]
    bars = [
        Bar(
            one.gpu,
            seconds_to_milliseconds(one.iteration_seconds),
            seconds_to_milliseconds(one.iteration_seconds_low),
            seconds_to_milliseconds(one.iteration_seconds_high),
            f"{milliseconds(one.iteration_seconds)} ms",
            _kind(one, predictions),
        )
        for one in predictions.values()
    ]
    hours = _figure(
        "Time against dollars",
        scatter(points, line, ranking.deadline_hours, title="Time and cost of the run on each GPU"),
        "One point a GPU; down and left is better. The line joins those that no other beats in both"
        + ("; grey: the run does not fit." if any(one.fits is False for one in priced) else "."),
    )
    return hours + _figure(
        "Time of one iteration",
        bar_chart(bars, title="Predicted time of one iteration", unit="milliseconds"),
        "The prediction, and its 90 % interval."
        + (f" Orange: {predictions.used_gpu}, in use now." if predictions.used_gpu in predictions else ""),
    )


def _cost_curves(predictions: Predictions) -> str:
    """Draw throughput over the number of GPUs, beside what it would be if none waited, and list time and dollars."""
    sections = []
    for curve in cost_curves(predictions):
        rows = rows_of(curve)
        cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        heads = "".join(f"<th>{escape(head)}</th>" for head in HEADERS)
        sections.append(
            _figure(
                f"More {curve.gpu}",
                curve_chart(curve),
                f"{curve.sentence} The thin line is the throughput without any waiting.",
            )
            + f'<section><div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>'
            "</section>"
        )
    return "".join(sections)


def curve_chart(curve: CostCurve) -> str:
    """Draw the throughput of a curve, both axes logarithmic."""
    bottom = _HEIGHT - 48
    first = curve.points[0]
    ideal = [first.samples_per_second / first.gpus * point.gpus for point in curve.points]
    x_axis = Axis.over([float(point.gpus) for point in curve.points], 64, WIDTH - 90)
    y_axis = Axis.over([*ideal, *(point.samples_per_second for point in curve.points)], bottom, 12)
    parts = [grid_line(64, y_axis.pixel(tick), WIDTH - 16, y_axis.pixel(tick)) for tick in y_axis.ticks()]
    parts += [text_at(56, y_axis.pixel(tick) + 4, tick_text(tick), "end", "tick") for tick in y_axis.ticks()]
    for point, perfect in zip(curve.points, ideal, strict=True):
        x, y = x_axis.pixel(point.gpus), y_axis.pixel(point.samples_per_second)
        parts.append(text_at(x, bottom + 18, f"{point.gpus}", "middle", "tick"))
        kind = "unfit" if point.fits is False else ""
        words = f"{point.name}: {tick_text(point.samples_per_second)} samples/s, {share(point.efficiency)}"
        parts.append(
            f'<circle class="point {kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(words)}</title></circle>'
        )
        parts.append(text_at(x + 8, y + 16, share(point.samples_per_second / perfect), "start", "name"))
    for style, values in (("grid", ideal), ("frontier", [point.samples_per_second for point in curve.points])):
        places = zip(curve.points, values, strict=True)
        path = "L".join(f"{x_axis.pixel(point.gpus):.1f} {y_axis.pixel(value):.1f}" for point, value in places)
        parts.append(f'<path class="{style}" d="M{path}"/>')
    parts.append(text_at((64 + WIDTH) / 2, bottom + 40, "GPUs" + scale_note(x_axis), "middle", "axis"))
    return svg_of(parts, _HEIGHT, f"Samples a second over the number of {curve.gpu}")


def _critical_path(predictions: Predictions) -> str:
    rows = [
        (one.gpu, one.verdict.critical_path, f"{one.verdict.bound_by}: {100 * one.verdict.gain:.0f} %")
        for one in predictions.values()
        if one.verdict is not None and one.verdict.critical_path
    ]
    return _figure(
        "What takes the time",
        share_chart(rows, title="Critical path of a step by module"),
        "Share of a step by module: the time in which the device works for it, or waits for its launches. Beside it, "
        "what bounds the step, and how much of it a GPU twice as fast would save.",
    )


def _figure(heading: str, svg: str, caption: str) -> str:
    if not svg:
        return ""
    return (
        f"<section><h2>{escape(heading)}</h2><figure>{svg}<figcaption>{escape(caption)}</figcaption></figure></section>"
    )


def _kind(prediction: Prediction, predictions: Predictions) -> str:
    if prediction.fits is False:
        return "unfit"
    return "used" if prediction.gpu == predictions.used_gpu else ""


def _table(predictions: Predictions, ranking: Ranking, shown: Grid) -> str:
    kinds = ["right" if column.justify == "right" else "" for column in shown.columns]
    heads = "".join(
        f'<th class="{kind}">{escape(column.header).replace(chr(10), "<br>")}</th>'
        for column, kind in zip(shown.columns, kinds, strict=True)
    )
    rows = []
    for prediction, row in zip(predictions.values(), shown.rows, strict=True):
        cells = "".join(
            f'<td class="{_cell_class(column.title, text, kind)}">{escape(text).replace(" %", "&nbsp;%")}</td>'
            for column, text, kind in zip(shown.columns[1:], row[1:], kinds[1:], strict=True)
        )
        name = escape(row[0].removesuffix(f" {IN_USE_MARK}")) + _badges(prediction, predictions, ranking)
        rows.append(f'<tr class="{"unfit" if prediction.fits is False else ""}"><td>{name}</td>{cells}</tr>')
    return (
        f'<section><h2>All GPUs</h2><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _cell_class(title: str, text: str, kind: str) -> str:
    return f"{kind} {text}".strip() if title == "fits" and text in ("yes", "tight", "no") else kind


def _badges(prediction: Prediction, predictions: Predictions, ranking: Ranking) -> str:
    chosen = {"cheapest": ranking.cheapest, "fastest": ranking.fastest, "in time": ranking.within_deadline}
    if prediction.fits is False:
        return '<span class="badge unfit">does not fit</span>'
    words = [word for word, one in chosen.items() if one is not None and one.gpu == prediction.gpu]
    badges = [f'<span class="badge best">{word}</span>' for word in words]
    if prediction.memory_fit == "tight":
        badges.append('<span class="badge tight">narrow</span>')
    if prediction.gpu == predictions.used_gpu:
        badges.append('<span class="badge used">in use</span>')
    return "".join(badges)


def _prices(predictions: Predictions, offers: Sequence[Offer]) -> str:
    sources = {(offer.gpu, offer.label): offer for offer in offers}
    rows = []
    for one in predictions.values():
        if one.usd_per_hour is not None:
            offer = sources.get((one.gpu, one.offer or ""))
            where = ("", "") if offer is None else (escape(offer.region or ""), _link(offer.source))
            rows.append((escape(one.gpu), escape(usd_per_hour(one.usd_per_hour)), escape(one.offer or ""), *where))
    if not rows:
        return ""
    heads = ("GPU", "machine", "offer (date)", "region", "source")
    filled = [number for number in range(len(heads)) if any(row[number] for row in rows)]
    head = "".join(f"<th>{heads[number]}</th>" for number in filled)
    lines = "".join("<tr>" + "".join(f"<td>{row[number]}</td>" for number in filled) + "</tr>" for row in rows)
    return (
        f'<section><h2>Prices</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div></section>"
    )


def _link(source: str) -> str:
    """Write a source, as a link where it is an address."""
    if not source.startswith("https://"):
        return escape(source)
    shown = source.removeprefix("https://").removeprefix("www.").split("/")[0]
    return f'<a href="{escape(source)}" rel="noreferrer">{escape(shown)}</a>'


def _notes(predictions: Predictions, ranking: Ranking, shown: Grid) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in _all_notes(predictions, ranking, shown))
    return f"<section><h2>Notes</h2><ul>{items}</ul></section>" if items else ""


def _all_notes(predictions: Predictions, ranking: Ranking, shown: Grid) -> Iterable[str]:
    for column in shown.columns:
        if column.notes is not None:
            yield from (note.removeprefix(f"{IN_USE_MARK} ") for note in column.notes(predictions))
    yield from remarks(ranking)
    yield from prediction_notes(predictions)
