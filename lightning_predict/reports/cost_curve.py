"""Scaling curves: time, cost and efficiency over the number of GPUs, to find where more GPUs stop paying off.

A curve holds all predicted layouts of one GPU model. Efficiency is the throughput per GPU relative to the smallest
layout. Example::

    result = lp.predict(trace, [one.name for one in layouts_up_to("8x8xH100-SXM-80GB")], strategy="fsdp")
    for curve in cost_curves(result):
        print(curve.gpu, curve.pays_up_to.name, curve.points[-1].efficiency)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from lightning_predict.base.ties import clearly_less
from lightning_predict.base.units import seconds_to_hours
from lightning_predict.cost.prediction import Prediction
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.reports.format import duration, known_columns, share, significant, usd
from lightning_predict.reports.predictions import Predictions

MIN_POINTS: Final = 3  # Minimum number of layouts in a curve. A GPU with fewer predicted layouts has no curve.
MIN_GAIN: Final = 0.5  # More GPUs pay off with this share of the smallest layout's throughput per GPU each
SAMPLES: Final = 1_000_000  # Number of samples in the "per million samples" column


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One layout of a scaling curve."""

    name: str
    gpus: int
    samples_per_second: float  # Throughput of the whole layout
    seconds: float | None  # Remaining time of the run; None if the length of the run is unknown
    usd: float | None  # Cost of the remaining run; None if the time or the price is unknown
    usd_per_million_samples: float | None  # Cost of training on a million samples; None without a price
    efficiency: float  # Throughput per GPU, relative to the smallest layout
    fits: bool | None  # Whether a step fits into the memory of each GPU; None if unknown
    provider: str | None = None  # Provider whose price is used; None without a price
    precision: str | None = None  # Precision of the step, if the GPU emulates the recorded one


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Scaling curve of one GPU model; `points` are sorted by the number of GPUs."""

    gpu: str
    points: tuple[CurvePoint, ...]

    @property
    def fitting(self) -> tuple[CurvePoint, ...]:
        """The points of layouts that hold the step, or may hold it."""
        return tuple(point for point in self.points if point.fits is not False)

    @property
    def pays_up_to(self) -> CurvePoint:
        """The largest layout up to which more GPUs pay off (`MIN_GAIN`), of those that fit if any does."""
        points = self.fitting or self.points
        best = points[0]
        each = best.samples_per_second / best.gpus
        for before, point in pairwise(points):
            added = (point.samples_per_second - before.samples_per_second) / (point.gpus - before.gpus)
            if added < MIN_GAIN * each:
                break
            best = point
        return best

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences for a report: where more GPUs stop paying off, where the provider changes, another precision."""
        changed = [point for point in self.points if point.precision is not None]
        names = ", ".join(point.name for point in changed)
        emulated = changed and f"{names}: predicted in {changed[0].precision}, because bfloat16 is emulated."
        return tuple(filter(None, (self.sentence, self.providers, emulated or None)))

    @property
    def providers(self) -> str | None:
        """Sentence that names the provider of each layout; None if all layouts have the same provider."""
        names: dict[str, list[str]] = {}
        for point in self.points:
            if point.provider is not None:
                names.setdefault(point.provider, []).append(point.name)
        if len(names) < 2:
            return None
        parts = (f"{', '.join(layouts)}: {provider}" for provider, layouts in names.items())
        return f"The provider and its price change along this curve ({'; '.join(parts)})."

    @property
    def sentence(self) -> str:
        """Sentence that names the largest layout up to which more GPUs pay off, in time or in money."""
        points, best = self.fitting, self.pays_up_to
        if len(points) < 2:
            where = f"only on {points[0].name}" if points else "on none of these layouts"
            others = "Try another --strategy, as fsdp; `lightning-predict parallel` finds those that fit."
            return f"The step fits {where}. {others}"
        first, last = points[0], points[-1]
        alone, together = (point.usd_per_million_samples for point in (first, best))
        saved, cost = "time", ""
        if alone is not None and together is not None and best != first:
            saved = "time and money" if clearly_less(together, alone) else "time, not money,"
            cost = f" A million samples cost {usd(together)} on {best.name}, {usd(alone)} on {first.name}."
        start = f"Further GPUs save {saved} up to {best.name}"
        if best == last:
            largest = "that fits" if last != self.points[-1] else "asked for"
            return f"{start}, the largest {largest}, at {share(last.efficiency)} efficiency.{cost}"
        following = points[points.index(best) + 1]
        return (
            f"{start} ({share(best.efficiency)} efficiency); in {following.name} each of those added does less than "
            f"{share(MIN_GAIN)} of the work of one alone.{cost}"
        )


def layouts_up_to(layout: str | Layout) -> tuple[Layout, ...]:
    """Return the layouts of 1, 2, 4, ... GPUs up to `layout`, with as few machines as possible."""
    largest = layout_of(layout) if isinstance(layout, str) else layout
    inside = [2**power for power in range(largest.gpus_per_node.bit_length()) if 2**power <= largest.gpus_per_node]
    machines = [2**power for power in range(1, largest.nodes.bit_length()) if 2**power <= largest.nodes]
    layouts = [Layout(largest.gpu, count) for count in dict.fromkeys([*inside, largest.gpus_per_node])]
    layouts += [replace(largest, nodes=count) for count in machines]
    return tuple({layout.name: layout for layout in [*layouts, largest]}.values())


def cost_curves(predictions: Predictions) -> tuple[CostCurve, ...]:
    """Return a curve for each GPU model with at least `MIN_POINTS` layouts and a known number of samples per step."""
    by_gpu: dict[str, list[Prediction]] = {}
    for row in predictions.values():
        if row.samples_per_second is not None:
            by_gpu.setdefault(row.layout.gpu.name, []).append(row)
    return tuple(_curve(name, own) for name, own in by_gpu.items() if len(own) >= MIN_POINTS)


def _curve(name: str, predictions: Sequence[Prediction]) -> CostCurve:
    ordered = sorted(predictions, key=lambda row: row.num_gpus)
    first = (ordered[0].samples_per_second or 0.0) / ordered[0].num_gpus
    points = []
    for row in ordered:
        throughput = row.samples_per_second or 0.0
        price = row.usd_per_hour
        million = None if price is None else price * seconds_to_hours(SAMPLES / throughput)
        efficiency = throughput / row.num_gpus / first
        points.append(
            CurvePoint(
                name=row.gpu,
                gpus=row.num_gpus,
                samples_per_second=throughput,
                seconds=row.total_seconds,
                usd=row.cost_usd,
                usd_per_million_samples=million,
                efficiency=efficiency,
                fits=row.fits,
                provider=row.price.provider,
                precision=row.precision,
            )
        )
    return CostCurve(name, tuple(points))


HEADERS: Final = ("GPUs", "samples/s", "efficiency", "per million samples", "total", "cost", "fits")


def table_of(curve: CostCurve) -> tuple[list[str], list[list[str]]]:
    """Return the headers and the rows of cell texts; columns without any known value are omitted."""
    rows = [
        [
            point.name,
            significant(point.samples_per_second),
            share(point.efficiency),
            "" if point.usd_per_million_samples is None else usd(point.usd_per_million_samples),
            "" if point.seconds is None else duration(point.seconds),
            "" if point.usd is None else usd(point.usd),
            {True: "yes", False: "no", None: ""}[point.fits],
        ]
        for point in curve.points
    ]
    return known_columns(HEADERS, rows)
