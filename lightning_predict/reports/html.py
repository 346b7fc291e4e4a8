"""The report as one self-contained HTML file: works offline, supports light and dark mode, phones, and printing.

`report.html.j2` is the page, whose texts are all escaped. One script sorts, filters and rescales the table; the page's
address stores the user's selection. The content security policy identifies the script by its hash. It allows no other
script and no external content.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from lightning_predict.base.escaping import visible_text
from lightning_predict.base.units import bytes_to_gibibytes, hours_to_seconds, seconds_to_hours
from lightning_predict.cost.offers import Offer, load_offers
from lightning_predict.cost.prediction import MachineInUse, Prediction
from lightning_predict.reports.charts import (
    Point,
    scatter,
    share_chart,
)
from lightning_predict.reports.cost_curve import cost_curves, table_of
from lightning_predict.reports.format import duration, usd, usd_per_hour
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import (
    RankedGpu,
    Ranking,
    advice,
    memory_of,
    remarks,
    sold_together,
    time_and_cost_text,
)
from lightning_predict.reports.table import grid
from lightning_predict.reports.table_columns import Column, Grid, columns_of
from lightning_predict.reports.table_notes import energy_note, table_notes

STYLE: Final = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
SCRIPT: Final = Path(__file__).with_name("report.js").read_text(encoding="utf-8")
"""JavaScript that sorts and filters the table. The page is complete without JavaScript."""

TITLE: Final = "What this training run takes on other GPUs"


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
    """Return the whole HTML document. Without `offers`, it cites the package's. `sections` must be escaped."""
    shown = grid(predictions, columns=columns)
    notes = (energy_note(predictions),) if "kilowatt_hours" in columns else ()
    return _page().render(
        title=title,
        subtitle=_subtitle(predictions, made_on or datetime.date.today()),
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        script_hash=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(),
        cards=tuple(_cards(ranking)),
        advice=(*advice(ranking), *remarks(ranking)),
        steps=_adjustable_steps(predictions),
        columns=[{"kind": _kind_of(column), "header_lines": column.header.split("\n")} for column in shown.columns],
        rows=tuple(_rows(predictions, ranking, shown)),
        time_and_dollars=_time_and_dollars(predictions, ranking),
        sections=Markup(sections),
        curves=tuple(_curves(predictions)),
        critical_path=_critical_path(predictions),
        methods=_methods(predictions),
        prices=_prices(predictions, load_offers() if offers is None else offers),
        notes=(*table_notes(predictions, shown, verbose=True), *notes),
    )


@cache
def _page() -> Template:
    return Environment(
        autoescape=True,
        finalize=lambda value: (
            value if isinstance(value, Markup) or not isinstance(value, str) else visible_text(value)
        ),
        loader=FileSystemLoader(Path(__file__).parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    ).get_template("report.html.j2")


def _subtitle(predictions: Predictions, made_on: datetime.date) -> str:
    heading = predictions.heading
    if heading is None:
        heading = "Predicted from one recorded training step"
        if predictions.used_gpu is not None:
            heading += f", recorded on {predictions.used_gpu}"
    return f"{heading}. {made_on.day} {made_on:%B %Y}."


def _cards(ranking: Ranking) -> Iterable[Mapping[str, object]]:
    yield _card("Cost" if ranking.compared == 1 else "Cheapest", ranking.cheapest, ranking, "no price known")
    yield _card("Fastest", ranking.fastest, ranking, "the run does not fit on any of these GPUs")
    if ranking.deadline_hours is not None:
        heading = f"Best within {duration(hours_to_seconds(ranking.deadline_hours))}"
        reason = "the length of the run is unknown" if ranking.per_iteration else "no GPU is fast enough"
        yield _card(heading, ranking.within_deadline, ranking, reason)


def _card(heading: str, candidate: RankedGpu | None, ranking: Ranking, reason: str) -> Mapping[str, object]:
    if candidate is None:
        return {"heading": heading, "gpu": None, "reason": reason}
    return {
        "heading": heading,
        "gpu": candidate.gpu,
        "time_and_cost": time_and_cost_text(candidate, ranking),
        "details": (
            f"90 % interval: {duration(candidate.time.low)} to {duration(candidate.time.high)}",
            f"Memory: {memory_of(candidate) or 'unknown'}",
            ", ".join(
                filter(None, (candidate.prediction.offer or "no price known", sold_together(candidate.prediction)))
            ),
        ),
    }


def _adjustable_steps(predictions: Predictions) -> int:
    """Return the number of steps that the slider scales; 0 if the length of the run is unknown or fixed."""
    if any(row.is_cut_off for row in predictions.values()):
        return 0
    return next((row.iterations for row in predictions.values() if row.iterations is not None), 0)


def _rows(predictions: Predictions, ranking: Ranking, shown: Grid) -> Iterable[Mapping[str, object]]:
    for line, (name, *texts) in zip(shown.lines, shown.rows, strict=True):
        is_used = isinstance(line, MachineInUse) or line.gpu == predictions.used_gpu
        yield {
            "kind": "used" if is_used else ("unfit" if isinstance(line, Prediction) and line.fits is False else ""),
            "data": _data(line),
            "name": name,
            "badges": () if isinstance(line, MachineInUse) else tuple(_badges(line, ranking)),
            "cells": [
                {
                    "kind": _kind_of(column, text),
                    "label": column.title,
                    "text": text.replace(" %", "\N{NO-BREAK SPACE}%"),
                }
                for column, text in zip(shown.columns[1:], texts, strict=True)
            ],
        }


def _kind_of(column: Column, text: str = "") -> str:
    """Return the style of a cell."""
    is_bad = text.startswith(("too large", "unlikely", "tight"))
    kinds = ("right" if column.justify == "right" else "", "bad" if is_bad else "")
    return " ".join(kind for kind in kinds if kind)


def _data(line: Prediction | MachineInUse) -> Mapping[str, str]:
    """Return the numbers of a row for the script that recomputes time and cost."""
    total = line.remaining_seconds
    price, cost = line.price.usd_per_hour, line.price.cost_usd
    fixed = None if None in (total, price, cost) else cost - seconds_to_hours(total) * price  # type: ignore[operator,arg-type]
    values: dict[str, str | float | None] = {
        "total": total,
        "step": line.cycle.middle,
        "shown": line.run.shown_iterations,
        "price": price,
        "fixed": fixed,
        "provider": line.price.provider,
    }
    if isinstance(line, Prediction):
        values |= {
            "memory": round(bytes_to_gibibytes(line.layout.gpu.memory_bytes)),
            "fits": int(line.fits is not False),
        }
    return {
        name: value if isinstance(value, str) else f"{value:.9g}" for name, value in values.items() if value is not None
    }


def _badges(prediction: Prediction, ranking: Ranking) -> Iterable[Mapping[str, str]]:
    if prediction.fits is False:
        yield {"kind": "unfit", "text": "does not fit"}
        return
    chosen = {"cheapest": ranking.cheapest, "fastest": ranking.fastest, "in time": ranking.within_deadline}
    for text, ranked in chosen.items():
        if ranked is not None and ranked.gpu == prediction.gpu:
            yield {"kind": "best", "text": text}
    if prediction.memory_fit == "tight":
        yield {"kind": "tight", "text": "tight"}


def _time_and_dollars(predictions: Predictions, ranking: Ranking) -> Mapping[str, object]:
    known = [row for row in predictions.values() if row.total_seconds is not None and row.cost_usd is not None]
    priced = [row for row in known if row.fits is not False] or known
    left_out = [row.gpu for row in known if row not in priced]
    points = [
        Point(
            row.gpu,
            seconds_to_hours(row.total_seconds or 0.0),
            row.cost_usd or 0.0,
            f"{duration(row.total_seconds or 0.0)}, {usd(row.cost_usd or 0.0)}",
            _kind(row, predictions),
        )
        for row in priced
    ]
    line = [
        (seconds_to_hours(ranked.seconds), ranked.cost_usd)
        for ranked in ranking.frontier
        if ranked.cost_usd is not None
    ]
    return _drawing(
        "Time against dollars",
        scatter(points, line, ranking.deadline_hours, title="Time and cost of the run on each GPU"),
        "One point per GPU; lower left is better. The line is the Pareto frontier of time and cost"
        + (f". Left out (does not fit): {', '.join(left_out)}." if left_out else "."),
    )


def _kind(prediction: Prediction, predictions: Predictions) -> str:
    if prediction.fits is False:
        return "unfit"
    return "used" if prediction.gpu == predictions.used_gpu else ""


def _drawing(heading: str, svg: str, caption: str) -> Mapping[str, object]:
    return {"heading": heading, "svg": Markup(svg), "caption": caption}


def _curves(predictions: Predictions) -> Iterable[Mapping[str, object]]:
    for curve in cost_curves(predictions):
        headers, rows = table_of(curve)
        yield {
            "heading": f"More {curve.gpu}",
            "sentences": " ".join(curve.sentences),
            "headers": headers,
            "rows": rows,
        }


def _critical_path(predictions: Predictions) -> Mapping[str, object]:
    paths = [
        (row.gpu, row.verdict.critical_path, row.verdict.bound_by, f"{100 * row.verdict.gain:.0f} %")
        for row in predictions.values()
        if row.verdict is not None and row.verdict.critical_path
    ]
    saved = sorted({gain for *_, gain in paths})
    differs = len(saved) > 1
    rows = [(gpu, shares, f"{bound}: {gain}" if differs else bound) for gpu, shares, bound, gain in paths]
    right = (
        "the bottleneck, and the share of the step that a GPU twice as fast would save"
        if differs
        else (f"the bottleneck. A GPU twice as fast would save {saved[0] if saved else ''} of the step in each row")
    )
    return _drawing(
        "Time by module",
        share_chart(rows),
        f"Share of a step by module: GPU time, and waits for its kernel launches. Right: {right}.",
    )


def _methods(predictions: Predictions) -> Mapping[str, object]:
    """Return the step's interval and the prediction methods of each GPU, for a collapsed section."""
    brief = [column.title for column in columns_of(predictions)]
    columns = [column for column in columns_of(predictions, verbose=True) if column.title not in brief[1:]]
    rows = [[row.gpu, *(column.cell(row) or "unknown" for column in columns[1:])] for row in predictions.values()]
    return {"titles": [column.title for column in columns], "rows": rows}


def _prices(predictions: Predictions, offers: Sequence[Offer]) -> Mapping[str, object]:
    """Return the rows of the table of prices, without columns that are empty in each row."""
    rows = []
    for row in predictions.values():
        if row.usd_per_hour is not None:
            same_gpu = (
                offer.with_gpus(row.layout.gpus_per_node) for offer in offers if offer.gpu == row.layout.gpu.name
            )
            offer = next((o for o in same_gpu if o is not None and o.label == row.offer), None)
            region, source = ("", "") if offer is None else (offer.region or "", offer.source)
            texts = (row.gpu, usd_per_hour(row.usd_per_hour), row.offer or "", region)
            rows.append((*({"text": text, "address": None} for text in texts), _link(source)))
    titles = ("GPU", "machine", "offer (date)", "region", "source")
    filled = [number for number in range(len(titles)) if any(row[number]["text"] for row in rows)]
    return {
        "titles": [titles[number] for number in filled],
        "rows": [[row[number] for number in filled] for row in rows],
    }


def _link(source: str) -> Mapping[str, str | None]:
    if not source.startswith("https://"):
        return {"text": source, "address": None}
    shown = source.removeprefix("https://").removeprefix("www.").split("/")[0]
    return {"text": shown, "address": source}
