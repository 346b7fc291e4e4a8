"""The report as one HTML file: needs no network, follows the reader's light or dark setting, prints.

All text is escaped, no script is in it, and a content security policy forbids the browser to load anything. Example::

    Path("report.html").write_text(html_report(result, rank(result, deadline_hours=8)), encoding="utf-8")
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from lightning_predict.cost.energy import Energy
from lightning_predict.cost.offers import load_offers
from lightning_predict.cost.records import Offer, Prediction
from lightning_predict.reports.columns import Grid, grid
from lightning_predict.reports.energy import energy_columns
from lightning_predict.reports.footnotes import IN_USE_MARK, prediction_notes
from lightning_predict.reports.format import duration, milliseconds, usd, usd_per_hour
from lightning_predict.reports.html_charts import Bar, bar_chart, share_chart
from lightning_predict.reports.html_scatter import Point, scatter
from lightning_predict.reports.html_style import STYLE
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Candidate, Ranking, memory_of, remarks, takes
from lightning_predict.units import hours_to_seconds, seconds_to_hours, seconds_to_milliseconds

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
    """A whole HTML document.

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
    interval = f"90 % interval: {duration(candidate.low_seconds)} to {duration(candidate.high_seconds)}"
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
    """A source, as a link where it is an address."""
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
