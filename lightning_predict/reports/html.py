"""The report as one self-contained HTML file: works offline, supports light and dark mode, phones, and printing.

All text is escaped. The file has no scripts, and its content security policy forbids the browser to load anything.
Example::

    Path("report.html").write_text(html_report(result, rank(result, deadline_hours=8)), encoding="utf-8")
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Final

from lightning_predict.cost.offers import Offer, load_offers
from lightning_predict.cost.prediction import MachineInUse, Prediction
from lightning_predict.reports.charts import (
    HEIGHT,
    Axis,
    Bar,
    Point,
    bar_chart,
    for_both_screens,
    frame,
    scatter,
    share_chart,
    svg_of,
    text_at,
    tick_text,
)
from lightning_predict.reports.cost_curve import CostCurve, cost_curves, table_of
from lightning_predict.reports.format import duration, milliseconds, share, usd, usd_per_hour
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import RankedGpu, Ranking, advice, memory_of, remarks, time_and_cost_text
from lightning_predict.reports.table import Grid, columns_of, energy_note, grid, table_notes
from lightning_predict.units import hours_to_seconds, seconds_to_hours, seconds_to_milliseconds

STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --text: #1c2330; --dim: #5c6675; --line: #dfe3ea;
  --accent: #2f6db5; --good: #1f7a4d; --bad: #b3412f; --used: #9c5510; --muted: #8f99a8; --track: #eef1f5; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --card: #1b212b; --text: #e6eaf0; --dim: #9aa5b4;
  --line: #303947; --accent: #6ea8ea; --good: #5cc492; --bad: #ee8572; --used: #e3a25b; --muted: #77849a;
  --track: #242c38; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 56px; }
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
.advice { font-size: 16px; } .advice p { margin: 0 0 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 7px 10px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; font-size: 12.5px; vertical-align: bottom; }
tbody tr:last-child > * { border-bottom: 0; }
td.right, th.right { text-align: right; white-space: nowrap; }
tbody th { white-space: nowrap; font-weight: 600; font-size: 14px; color: var(--text); vertical-align: top; }
tr.unfit > * { color: var(--dim); }
tr.used > * { background: color-mix(in srgb, var(--used) 9%, var(--card)); }
.badge { display: inline-block; margin-left: 8px; padding: 0 7px; border-radius: 9px; font-size: 11.5px;
  font-weight: 600; line-height: 18px; border: 1px solid currentcolor; }
.badge.best { color: var(--good); }
.badge.unfit, .badge.tight { color: var(--bad); }
td.bad { color: var(--bad); font-weight: 600; }
figure { margin: 0; } figcaption { font-size: 13.5px; margin-top: 6px; }
svg { max-width: 100%; height: auto; display: block; font: 12px system-ui, -apple-system, "Segoe UI", Roboto,
  sans-serif; }
svg .grid { stroke: var(--line); stroke-width: 1; fill: none; }
svg text { fill: var(--text); } svg .tick, svg .axis { fill: var(--dim); }
svg .number { fill: var(--card); font-weight: 650; font-size: 11px; }
svg .point { fill: var(--accent); } svg .point.used { fill: var(--used); } svg .point.unfit { fill: var(--dim); }
svg .frontier { stroke: var(--accent); stroke-width: 1.6; fill: none; opacity: 0.55; }
svg .limit { stroke: var(--bad); stroke-width: 1.2; stroke-dasharray: 5 4; fill: none; }
.narrow { display: none; }
.bar { display: grid; grid-template-columns: minmax(90px, 24%) 1fr minmax(72px, auto); gap: 12px; align-items: center;
  margin: 5px 0; font-size: 14px; }
.bar .name { text-align: right; overflow-wrap: anywhere; } .bar.used .name { color: var(--used); font-weight: 600; }
.bar.unfit { color: var(--dim); } .bar .value { font-variant-numeric: tabular-nums; min-width: 92px; }
.track { position: relative; height: 18px; background: var(--track); border-radius: 3px; }
.track i { position: absolute; display: block; }
.fill { left: 0; top: 2px; bottom: 2px; background: var(--accent); border-radius: 2px; }
.bar.used .fill, .bar.used .dot { background: var(--used); } .bar.unfit .fill, .bar.unfit .dot { background:
  var(--muted); }
.dot { top: 3px; width: 12px; height: 12px; margin-left: -6px; border-radius: 6px; background: var(--accent); }
.whisker { top: 8px; height: 2px; min-width: 2px; background: var(--text); opacity: 0.75; }
.shares { display: flex; overflow: hidden; } .shares i { position: static; height: 100%; }
.p0 { background: #4477aa; } .p1 { background: #ee6677; } .p2 { background: #228833; } .p3 { background: #ccbb44; }
.p4 { background: #66ccee; } .p5 { background: #aa3377; } .p6 { background: #997700; } .p7 { background: #44aa99; }
.p8 { background: #999999; }
.key { list-style: none; padding: 0; margin: 10px 0 0; display: flex; flex-wrap: wrap; gap: 4px 18px; font-size:
  13.5px; }
.key li { margin: 0; overflow-wrap: anywhere; }
.key i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; border-radius: 2px; vertical-align:
  -1px; }
.key b { display: inline-block; min-width: 18px; margin-right: 6px; color: var(--accent); }
details summary { cursor: pointer; font-size: 17px; font-weight: 650; } details[open] summary { margin-bottom: 12px; }
ul { margin: 0; padding-left: 20px; } li { margin: 4px 0; overflow-wrap: anywhere; }
a { color: var(--accent); } footer { margin-top: 24px; color: var(--dim); font-size: 13px; }
@media (max-width: 700px) {
  main { padding: 18px 10px 36px; } section { padding: 14px 12px; } h1 { font-size: 22px; }
  .wide { display: none; } .narrow { display: block; }
  .bar { grid-template-columns: 1fr auto; gap: 2px 12px; margin: 9px 0; }
  .bar .name { text-align: left; } .bar .value { text-align: right; min-width: 0; }
  .bar .track { grid-column: 1 / -1; grid-row: 2; }
  th, td { padding: 6px 8px; } table { font-size: 13.5px; }
    table.all thead { display: none; } table.all tr { display: block; padding: 8px 0; border-bottom: 1px solid
    var(--line); }
    table.all tbody th, table.all td { display: flex; justify-content: space-between; gap: 12px; text-align: left;
    border: 0;
    padding: 2px 4px; white-space: normal; }
  table.all tbody th { font-size: 15px; } table.all td.right { text-align: right; }
  table.all td::before { content: attr(data-label); color: var(--dim); } table.all td:empty { display: none; }
}
table.sizes { table-layout: fixed; } table.sizes td { overflow-wrap: anywhere; }
table.sizes th:first-child { width: 5em; }
@media print {
  body { background: none; font-size: 12px; } main { max-width: none; padding: 0; } h1 { font-size: 20px; }
  section { padding: 10px 12px; margin-top: 10px; } .advice { font-size: 13px; }
  .card, tr, figure { break-inside: avoid; }
  h2 { break-after: avoid; } .scroll { overflow: visible; } table { font-size: 10.5px; }
  th, tbody th { font-size: 10.5px; } th, td { padding: 3px 5px; } tbody th, th.right { white-space: normal; }
  .badge { font-size: 9px; line-height: 13px; margin-left: 4px; padding: 0 4px; }
}
"""


TITLE = "What this training run takes on other GPUs"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_report(
    predictions: Predictions,
    ranking: Ranking,
    *,
    title: str = TITLE,
    columns: Collection[str] = (),
    offers: Sequence[Offer] | None = None,
    made_on: datetime.date | None = None,
    sections: str = "",
) -> str:
    """Return the whole HTML document.

    Args:
        predictions: The predictions to show.
        ranking: Ranking of the same predictions.
        title: Heading of the page.
        columns: Names of fields whose columns are shown on request.
        offers: Offers behind the prices, for their sources; None uses the offers of the package.
        made_on: Date on the page; None for today.
        sections: Further sections after the table and its charts, as HTML with escaped text.
    """
    made_on = made_on or datetime.date.today()
    shown = grid(predictions, columns=columns)
    notes = (energy_note(predictions),) if "kilowatt_hours" in columns else ()
    body = "".join(
        (
            f'<header><h1>{escape(title)}</h1><p class="sub">{escape(_subtitle(predictions, made_on))}</p></header>',
            _cards(ranking),
            _advice(ranking),
            _table(predictions, ranking, shown),
            _charts(predictions, ranking),
            sections,
            _cost_curves(predictions),
            _critical_path(predictions),
            _methods(predictions),
            _prices(predictions, load_offers() if offers is None else offers),
            _notes((*table_notes(predictions, shown, verbose=True), *notes)),
            "<footer>Made by lightning-predict. All times are predictions; intervals are at 90 %.</footer>",
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _subtitle(predictions: Predictions, made_on: datetime.date) -> str:
    heading = predictions.heading
    if heading is None:
        heading = "Predicted from one recorded training step"
        if predictions.used_gpu is not None:
            heading += f", recorded on {predictions.used_gpu}"
    return f"{heading}. {made_on.day} {made_on:%B %Y}."


def _advice(ranking: Ranking) -> str:
    words = "".join(f"<p>{escape(text)}</p>" for text in (*advice(ranking), *remarks(ranking)))
    return f'<section class="advice">{words}</section>' if words else ""


def _cards(ranking: Ranking) -> str:
    cards = [_card("Cheapest", ranking.cheapest, ranking, "no price known")]
    cards.append(_card("Fastest", ranking.fastest, ranking, "the run does not fit on any of these GPUs"))
    if ranking.deadline_hours is not None:
        name = f"Best within {duration(hours_to_seconds(ranking.deadline_hours))}"
        reason = "the length of the run is unknown" if ranking.per_iteration else "no GPU is fast enough"
        cards.append(_card(name, ranking.within_deadline, ranking, reason))
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(name: str, candidate: RankedGpu | None, ranking: Ranking, otherwise: str) -> str:
    if candidate is None:
        return f'<div class="card none"><h2>{escape(name)}</h2><p class="gpu dim">None: {escape(otherwise)}</p></div>'
    offer = candidate.prediction.offer or "no price known"
    memory = memory_of(candidate) or "unknown"
    interval = f"90 % interval: {duration(candidate.time.low)} to {duration(candidate.time.high)}"
    return (
        f'<div class="card"><h2>{escape(name)}</h2><p class="gpu">{escape(candidate.gpu)}</p>'
        f'<p class="what">{escape(time_and_cost_text(candidate, ranking))}</p>'
        f'<p class="dim">{escape(interval)}</p><p class="dim">Memory: {escape(memory)}</p>'
        f'<p class="dim">{escape(offer)}</p></div>'
    )


def _charts(predictions: Predictions, ranking: Ranking) -> str:
    known = [one for one in predictions.values() if one.total_seconds is not None and one.cost_usd is not None]
    priced = [one for one in known if one.fits is not False] or known
    left_out = [one.gpu for one in known if one not in priced]
    points = [
        Point(
            one.gpu,
            seconds_to_hours(one.total_seconds or 0.0),
            one.cost_usd or 0.0,
            f"{duration(one.total_seconds or 0.0)}, {usd(one.cost_usd or 0.0)}",
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
        "One point per GPU; lower left is better. The line is the Pareto frontier of time and cost"
        + (f". Left out (does not fit): {', '.join(left_out)}." if left_out else "."),
    )
    return hours + _figure(
        "Time of one iteration",
        bar_chart(bars, unit="milliseconds"),
        "Prediction with 90 % interval."
        + (f" Orange: {predictions.used_gpu}, in use now." if predictions.used_gpu in predictions else ""),
    )


def _cost_curves(predictions: Predictions) -> str:
    """Draw throughput over the number of GPUs, next to ideal scaling, with a table of time and cost."""
    sections = []
    for curve in cost_curves(predictions):
        headers, rows = table_of(curve)
        cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in headers)
        sections.append(
            _figure(
                f"More {curve.gpu}",
                for_both_screens(lambda width, curve=curve: curve_chart(curve, width)),  # type: ignore[misc]
                f"{' '.join(curve.sentences)} The thin line is the throughput without waits.",
            )
            + f'<section><div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>'
            "</section>"
        )
    return "".join(sections)


def curve_chart(curve: CostCurve, width: int) -> str:
    """Draw the throughput of a curve on log-log axes."""
    first = curve.points[0]
    ideal = [first.samples_per_second / first.gpus * point.gpus for point in curve.points]
    x_axis = Axis.over([float(point.gpus) for point in curve.points], 72, width - 48)
    y_axis = Axis.over([*ideal, *(point.samples_per_second for point in curve.points)], HEIGHT - 48, 12)
    parts = frame(x_axis, y_axis, width, "GPUs", dollars=False)
    for style, values in (("grid", ideal), ("frontier", [point.samples_per_second for point in curve.points])):
        places = zip(curve.points, values, strict=True)
        path = "L".join(f"{x_axis.pixel(point.gpus):.1f} {y_axis.pixel(value):.1f}" for point, value in places)
        parts.append(f'<path class="{style}" d="M{path}"/>')
    for point, perfect in zip(curve.points, ideal, strict=True):
        x, y = x_axis.pixel(point.gpus), y_axis.pixel(point.samples_per_second)
        kind = "unfit" if point.fits is False else ""
        words = f"{point.name}: {tick_text(point.samples_per_second)} samples/s, {share(point.efficiency)}"
        parts.append(
            f'<circle class="point {kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(words)}</title></circle>'
        )
        parts.append(text_at(x + 8, y + 16, share(point.samples_per_second / perfect), "start", "name"))
    return svg_of(parts, width, HEIGHT, f"Samples a second over the number of {curve.gpu}")


def _critical_path(predictions: Predictions) -> str:
    rows = [
        (one.gpu, one.verdict.critical_path, f"{one.verdict.bound_by}: {100 * one.verdict.gain:.0f} %")
        for one in predictions.values()
        if one.verdict is not None and one.verdict.critical_path
    ]
    return _figure(
        "Time by module",
        share_chart(rows),
        "Share of a step by module: GPU time, and waits for its kernel launches. Right: the bottleneck, and the share "
        "of the step that a GPU twice as fast would save.",
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
        f'<th scope="col" class="{kind}">{escape(column.header).replace(chr(10), "<br>")}</th>'
        for column, kind in zip(shown.columns, kinds, strict=True)
    )
    rows = []
    for line, row in zip(shown.lines, shown.rows, strict=True):
        cells = "".join(
            f'<td class="{_cell_class(text, kind)}" data-label="{escape(column.title)}">'
            f"{escape(text).replace(' %', '&nbsp;%')}</td>"
            for column, text, kind in zip(shown.columns[1:], row[1:], kinds[1:], strict=True)
        )
        is_used = isinstance(line, MachineInUse) or line.gpu == predictions.used_gpu
        badges = "" if isinstance(line, MachineInUse) else _badges(line, ranking)
        kind = "used" if is_used else ("unfit" if isinstance(line, Prediction) and line.fits is False else "")
        rows.append(f'<tr class="{kind}"><th scope="row"><span>{escape(row[0])}{badges}</span></th>{cells}</tr>')
    return (
        f'<section><h2>All GPUs</h2><div class="scroll"><table class="all"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _methods(predictions: Predictions) -> str:
    """Return a collapsed section with the interval of a step and the prediction methods."""
    brief = [column.title for column in columns_of(predictions)]
    columns = [column for column in columns_of(predictions, verbose=True) if column.title not in brief[1:]]
    heads = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(one.gpu)}</th>'
        + "".join(f"<td>{escape(column.cell(one) or 'unknown')}</td>" for column in columns[1:])
        + "</tr>"
        for one in predictions.values()
    )
    if not rows:
        return ""
    return (
        f'<section><details><summary>How each time was predicted</summary><div class="scroll"><table><thead><tr>{heads}'
        f"</tr></thead><tbody>{rows}</tbody></table></div></details></section>"
    )


def _cell_class(text: str, kind: str) -> str:
    return f"{kind} bad".strip() if text.startswith(("too large", "tight")) else kind


def _badges(prediction: Prediction, ranking: Ranking) -> str:
    chosen = {"cheapest": ranking.cheapest, "fastest": ranking.fastest, "in time": ranking.within_deadline}
    if prediction.fits is False:
        return '<span class="badge unfit">does not fit</span>'
    words = [word for word, one in chosen.items() if one is not None and one.gpu == prediction.gpu]
    badges = [f'<span class="badge best">{word}</span>' for word in words]
    if prediction.memory_fit == "tight":
        badges.append('<span class="badge tight">tight</span>')
    return "".join(badges)


def _prices(predictions: Predictions, offers: Sequence[Offer]) -> str:
    rows = []
    for one in predictions.values():
        if one.usd_per_hour is not None:
            same_gpu = (o.with_gpus(one.layout.gpus_per_node) for o in offers if o.gpu == one.layout.gpu.name)
            offer = next((o for o in same_gpu if o is not None and o.label == one.offer), None)
            where = ("", "") if offer is None else (escape(offer.region or ""), _link(offer.source))
            rows.append((escape(one.gpu), escape(usd_per_hour(one.usd_per_hour)), escape(one.offer or ""), *where))
    if not rows:
        return ""
    heads = ("GPU", "machine", "offer (date)", "region", "source")
    filled = [number for number in range(len(heads)) if any(row[number] for row in rows)]
    head = "".join(f'<th scope="col">{heads[number]}</th>' for number in filled)
    lines = "".join("<tr>" + "".join(f"<td>{row[number]}</td>" for number in filled) + "</tr>" for row in rows)
    return (
        f'<section><h2>Prices</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div></section>"
    )


def _link(source: str) -> str:
    """Return a source, as a link if it is a URL."""
    if not source.startswith("https://"):
        return escape(source)
    shown = source.removeprefix("https://").removeprefix("www.").split("/")[0]
    return f'<a href="{escape(source)}" rel="noreferrer">{escape(shown)}</a>'


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section><h2>Notes</h2><ul>{items}</ul></section>" if items else ""
