"""The report as one self-contained HTML file: works offline, supports light and dark mode, phones, and printing.

All text is escaped. One script sorts, filters and rescales the table; the page's address stores the user's selection.
The content security policy identifies the script by its hash. It allows no other script and no external content.

Example::

    Path("report.html").write_text(html_report(result, rank(result, deadline_hours=8)), encoding="utf-8")
"""

from __future__ import annotations

import base64
import datetime
import hashlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from lightning_predict.cost.offers import Offer, load_offers
from lightning_predict.cost.prediction import MachineInUse, Prediction
from lightning_predict.escaping import html_text as escape
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
from lightning_predict.reports.table import Grid, grid
from lightning_predict.reports.table_columns import columns_of
from lightning_predict.reports.table_notes import energy_note, table_notes
from lightning_predict.units import bytes_to_gibibytes, hours_to_seconds, seconds_to_hours, seconds_to_milliseconds

STYLE: Final = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
SCRIPT: Final = Path(__file__).with_name("report.js").read_text(encoding="utf-8")
"""JavaScript that sorts and filters the table. The page is complete without JavaScript."""


TITLE = "What this training run takes on other GPUs"
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; form-action 'none'; base-uri 'none'"
)


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
        columns: Names of optional columns to show.
        offers: Offers that the prices come from, cited as sources; None uses the offers of the package.
        made_on: Date on the page; None for today.
        sections: Further sections after the table and the charts, as HTML. Text in these sections must be escaped.
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
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>{body}</main>"
        f"<script>{SCRIPT}</script></body></html>\n"
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
    """Draw the throughput of a scaling curve on log-log axes."""
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
        rows.append(
            f'<tr class="{kind}"{_data(line)}><th scope="row"><span>{escape(row[0])}{badges}</span></th>{cells}</tr>'
        )
    return (
        f'<section><h2>All GPUs</h2>{_controls(predictions)}<div class="scroll"><table class="all">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _data(line: Prediction | MachineInUse) -> str:
    """Return the numbers of a row as HTML attributes, for the script that recomputes time and cost."""
    total = None if line.total is None else line.total.middle
    price, cost = line.price.usd_per_hour, line.price.cost_usd
    fixed = None if None in (total, price, cost) else cost - seconds_to_hours(total) * price  # type: ignore[operator,arg-type]
    values: dict[str, str | float | None] = {
        "total": total,
        "step": line.cycle.middle,
        "price": price,
        "fixed": fixed,
        "provider": line.price.provider,
    }
    if isinstance(line, Prediction):
        values |= {
            "memory": round(bytes_to_gibibytes(line.layout.gpu.memory_bytes)),
            "fits": int(line.fits is not False),
        }
    return "".join(
        f' data-{name}="{escape(value if isinstance(value, str) else f"{value:.9g}")}"'
        for name, value in values.items()
        if value is not None
    )


def _controls(predictions: Predictions) -> str:
    """Return the form with the sliders of the table; hidden until the script shows the form."""
    steps = next((one.iterations for one in predictions.values() if one.iterations is not None), None)
    fixed = any(one.is_cut_off for one in predictions.values())
    sliders = {
        "steps": ("Steps", "-40", "40", "0"),
        "deadline": ("Deadline", "0", "100", "100"),
        "price": ("Price up to", "0", "1", "1"),
    }
    return (
        f'<form class="controls" id="controls" data-steps="{0 if fixed or steps is None else steps}" hidden>'
        '<label>Sort by<select name="sort"></select></label><label>Provider<select name="provider"></select></label>'
        '<label>GPU memory<select name="memory"></select></label>'
        + "".join(
            f"<label>{word}<output></output>"
            f'<input type="range" name="{name}" min="{low}" max="{high}" value="{at}"></label>'
            for name, (word, low, high, at) in sliders.items()
        )
        + '<button type="reset">Reset</button><p class="found" role="status"></p></form>'
    )


def _methods(predictions: Predictions) -> str:
    """Return a collapsed section with the step's interval and the prediction methods of each GPU."""
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
    if not source.startswith("https://"):
        return escape(source)
    shown = source.removeprefix("https://").removeprefix("www.").split("/")[0]
    return f'<a href="{escape(source)}" rel="noreferrer">{escape(shown)}</a>'


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section><h2>Notes</h2><ul>{items}</ul></section>" if items else ""
