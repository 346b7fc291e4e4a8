"""Rows of a table of predictions: which GPUs are shown, for which period, and what limits each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lightning_predict.base.interval import Interval
from lightning_predict.base.ties import clearly_less
from lightning_predict.base.units import seconds_to_hours
from lightning_predict.cost.prediction import AbstractPredictions, MachineInUse, Prediction
from lightning_predict.reports.format import duration
from lightning_predict.run.workload import STEPS_SHOWN

LARGE_PART: Final = 0.1  # Share of a total or of GPU time from which other parts or methods are named without `verbose`
TableLine = Prediction | MachineInUse  # What a table row describes


def lines_of(predictions: AbstractPredictions, *, fold: bool = False) -> tuple[TableLine, ...]:
    """Return the rows: first the machine in use, then the other GPUs in the requested order.

    GPUs without enough memory come last.

    Args:
        predictions: The predictions.
        fold: Omit GPUs that a cheaper, equally fast GPU represents; see `folded_gpus`.
    """
    own = predictions.get(predictions.used_gpu or "")
    left_out = folded_gpus(predictions) if fold else ()
    others = (row for row in predictions.values() if row is not own and row.gpu not in left_out)
    first: list[TableLine] = [line for line in (predictions.machine, own) if line is not None]
    return (*first, *sorted(others, key=lambda row: row.fits is False))


def folded_gpus(predictions: AbstractPredictions) -> dict[str, Prediction]:
    """Find GPUs that take as long as a cheaper GPU because the loader, the host or a wait is the bottleneck.

    Returns:
        The cheaper GPU that represents each of these GPUs, by GPU name. Their rows would differ only in price and name.
    """
    span = shown_period(predictions)
    alike: dict[tuple[str, str, str | None], list[Prediction]] = {}
    for row in predictions.values():
        seconds = span.seconds(row)
        if row.gpu == predictions.used_gpu or seconds is None or row.usd_per_hour is None:
            continue  # a GPU without a price may be cheaper
        if bound_by(row) in ("loader", "host", "wait"):
            alike.setdefault((bound_by(row), duration(seconds.middle), row.memory_fit), []).append(row)
    standing: dict[str, Prediction] = {}
    for group in alike.values():
        cheapest = min(group, key=lambda row: row.usd_per_hour or 0.0)
        standing.update({row.gpu: cheapest for row in group if row is not cheapest})
    return standing


@dataclass(frozen=True, slots=True)
class ShownPeriod:
    """Period of the shown times and costs: the run, or if its length is unknown, `STEPS_SHOWN` recorded steps.

    A row whose step has more samples than the recorded step takes fewer steps for the same samples.
    """

    title: str
    is_whole: bool = True

    def seconds(self, line: TableLine) -> Interval[float] | None:
        """Return the time of the period in one row, with its interval; None if unknown."""
        return line.remaining if self.is_whole else line.cycle.scaled(line.run.shown_iterations)

    def cost_usd(self, line: TableLine) -> float | None:
        """Return the cost of the period in one row; None if unknown."""
        price, seconds = line.price, self.seconds(line)
        if self.is_whole:
            return price.cost_usd
        return (
            None
            if seconds is None or price.usd_per_hour is None
            else (seconds_to_hours(seconds.middle) * price.usd_per_hour)
        )


def shown_period(predictions: AbstractPredictions) -> ShownPeriod:
    """Choose the period for which times and costs are shown."""
    if predictions and all(row.total_seconds is None for row in predictions.values()):
        return ShownPeriod(f"{STEPS_SHOWN:,} steps", is_whole=False)
    return ShownPeriod("rest of the run" if predictions.is_running else "total")


def name_in_use(name: str, predictions: AbstractPredictions) -> str:
    """Return the name of the machine in use: `this L4`, or `L4 (recorded)` if only a recording of the run exists."""
    return f"this {name}" if predictions.is_running else f"{name} (recorded)"


def bound_by(prediction: Prediction) -> str:
    """Return the bottleneck of a step, with a question mark if it is uncertain."""
    if clearly_less(prediction.iteration_seconds, prediction.loader_seconds) and prediction.run.loader_is_reliable:
        return "loader"
    verdict = prediction.verdict
    if verdict is not None and verdict.bound_by in ("links", "bubble", "wait"):
        return verdict.bound_by
    if is_bound_by_links(prediction):
        return "links"
    bound = "host" if clearly_less(prediction.device_seconds, prediction.host_seconds) else "device"
    return f"{bound}?" if verdict is not None and verdict.is_doubtful else bound


def is_bound_by_links(prediction: Prediction) -> bool:
    """Return whether waiting for other GPUs takes half of a step or more."""
    return prediction.added_seconds >= prediction.iteration_seconds / 2
