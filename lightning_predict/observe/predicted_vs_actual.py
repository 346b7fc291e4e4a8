"""Compares the predicted with the actual time of a run on the machine in use, after the run.

Example::

    watch = OutcomeTimer(expected, clock=monotonic, batches_seen=4)
    outcome = watch.compare(batches_seen=1004)
    outcome.sentence      # "the rest of this run took 52.0 s, and 50.0 s were predicted (4 % more)"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from lightning_predict.base.interval import Interval
from lightning_predict.base.units import seconds_to_hours, seconds_to_milliseconds
from lightning_predict.observe.forecast import BatchTimes, RestOfRun
from lightning_predict.record.trace import Trace, measured_seconds
from lightning_predict.reports.format import duration, usd
from lightning_predict.reports.predictions import Predictions
from lightning_predict.run.history import HistoryRecord, fingerprint_of, model_fingerprint_of

MIN_BATCHES: Final = 20  # Minimum batches after the prediction for a run to be stored in the history and logged


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected time and price of the rest of the run on the machine in use."""

    gpu: str | None  # Catalogue name of the machine's GPU; None without a GPU
    fingerprint: str  # Fingerprint of the step's operations
    samples: int | None  # Number of samples per step
    step_seconds: float
    batch_seconds: float  # Time of a training batch, including the wait for the loader
    batches: int | None  # Number of remaining training batches; None if unknown
    # Time of the rest of the run, computed from the measured steps; None if its length is unknown, or if a time limit
    # ends it
    total_seconds: float | None
    # Time of the rest of the run that was shown to the user. The history of earlier runs may have corrected this time.
    # None if `total_seconds` is None.
    shown: Interval[float] | None = None
    usd_per_hour: float | None = None  # Price in dollars per hour; None if unknown
    offer: str | None = None  # Source and date of the price
    model: str | None = None  # Fingerprint of the model, independent of the batch size; None if unknown
    num_gpus: int = 1


def with_current_step_time(trace: Trace, batch_times: BatchTimes | None) -> Trace:
    """Scale the step times of a trace, so that their mean over all kinds of steps is the current step time."""
    if batch_times is None:
        return trace
    seconds, before = batch_times.step_seconds * trace.batches, measured_seconds(trace)
    if before is None or before <= 0:
        return replace(trace, step_seconds=(seconds,)) if not trace.other_steps else trace
    ratio = seconds / before

    def at_tempo(kind: Trace) -> Trace:
        if kind.running_step_seconds is not None:
            return replace(kind, running_step_seconds=kind.running_step_seconds * ratio)
        return replace(kind, step_seconds=tuple(seconds * ratio for seconds in kind.step_seconds))

    return trace.changed(at_tempo)


def expected_outcome(trace: Trace, rest: RestOfRun, predictions: Predictions, *, num_gpus: int) -> Expected | None:
    """Return the expected time on the machine in use; None if no step was timed."""
    if rest.batch_times is None or rest.batch_times.step_seconds <= 0:
        return None
    own, machine = predictions.get(predictions.used_gpu or ""), predictions.machine
    shown = own.remaining if own is not None else (None if machine is None else machine.remaining)
    price = own.price if own is not None else (None if machine is None else machine.price)
    limit = rest.workload.time_limit_seconds
    is_cut_off = limit is not None and (rest.forecast is None or rest.forecast.high >= limit)
    return Expected(
        gpu=predictions.used_gpu,
        fingerprint=fingerprint_of(trace),
        model=model_fingerprint_of(trace),
        num_gpus=num_gpus,
        samples=trace.samples,
        step_seconds=rest.batch_times.step_seconds * trace.batches,
        batch_seconds=rest.batch_times.step_seconds + rest.batch_times.wait_seconds,
        batches=None if is_cut_off else rest.counts.batches,
        total_seconds=None if is_cut_off or rest.forecast is None else rest.forecast.middle,
        shown=None if is_cut_off else shown,
        usd_per_hour=None if price is None else price.usd_per_hour,
        offer=None if price is None else price.offer,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Comparison of the predicted and the actual time."""

    expected: Expected
    batches: int  # Number of training batches since the prediction
    actual_seconds: float  # Actual time of the batches since the prediction, and of everything between these batches
    predicted: Interval[float]  # Predicted time of these batches that was shown to the user
    measured_seconds: float  # Time of these batches, computed only from the measured steps, for the history

    @property
    def predicted_seconds(self) -> float:
        """Predicted time without its interval."""
        return self.predicted.middle

    @property
    def is_whole(self) -> bool:
        """Whether as many batches were trained as expected, so that the comparison covers the whole rest of the run."""
        return self.expected.batches is None or self.expected.batches == self.batches

    @property
    def sentence(self) -> str:
        """The comparison as a sentence for the user."""
        ratio = self.actual_seconds / self.predicted_seconds - 1.0
        part = "" if self.is_whole else f" for the {self.batches:,} of {self.expected.batches:,} trained batches"
        where = "" if self.expected.gpu is None else f" on {self.expected.gpu}"
        low, high = self.predicted.low, self.predicted.high
        ends = "" if low == high else f" ({duration(low)} to {duration(high)})"
        return (
            f"the rest of this run took {duration(self.actual_seconds)}{where}, {abs(ratio):.0%} "
            f"{'more' if ratio >= 0 else 'less'} than the predicted {duration(self.predicted_seconds)}{ends}{part}"
            f"{self._costs()}"
        ).replace("%", " %")

    def metrics(self) -> dict[str, float]:
        """Return values for loggers by name; empty for a run of fewer than `MIN_BATCHES` batches."""
        if self.batches < MIN_BATCHES:
            return {}
        values = {
            "actual_hours": seconds_to_hours(self.actual_seconds),
            "actual_predicted_hours": seconds_to_hours(self.predicted_seconds),
            "actual_over_predicted": self.actual_seconds / self.predicted_seconds,
            "actual_batch_ms": seconds_to_milliseconds(self.actual_seconds / self.batches),
        }
        price = self.expected.usd_per_hour
        if price is not None:
            values["actual_cost_usd"] = seconds_to_hours(self.actual_seconds) * price
            values["actual_predicted_cost_usd"] = seconds_to_hours(self.predicted_seconds) * price
        return values

    def record(self) -> HistoryRecord | None:
        """Return a record for the history; None if the run was too short, or if its GPU is unknown."""
        if self.expected.gpu is None or self.batches < MIN_BATCHES:
            return None
        return HistoryRecord(
            fingerprint=self.expected.fingerprint,
            gpu=self.expected.gpu,
            samples=self.expected.samples,
            step_seconds=self.expected.step_seconds,
            predicted_seconds=self.measured_seconds,
            actual_seconds=self.actual_seconds,
            date=date.today().isoformat(),
            model=self.expected.model,
            num_gpus=self.expected.num_gpus,
        )

    def _costs(self) -> str:
        price = self.expected.usd_per_hour
        if price is None:
            return ""
        actual, predicted = (
            usd(seconds_to_hours(seconds) * price) for seconds in (self.actual_seconds, self.predicted_seconds)
        )
        offer = "" if self.expected.offer is None else f" (price: {self.expected.offer})"
        return f". It cost {actual}, predicted {predicted}{offer}"


class OutcomeTimer:
    """Timer of the run from a prediction on."""

    def __init__(self, expected: Expected, *, clock: Callable[[], float], batches_seen: int) -> None:
        self._expected = expected
        self._clock = clock
        self._batches_seen = batches_seen
        self._start = clock()
        self._left_out = 0.0

    def exclude_since(self, *, since: float) -> None:
        """Exclude the time since `since`, for example a prediction and its table, because nothing was trained."""
        self._left_out += self._clock() - max(since, self._start)

    def compare(self, *, batches_seen: int) -> Outcome | None:
        """Compare predicted and actual time; None if nothing was trained since the prediction.

        If more or fewer batches were trained than expected, the expected time is scaled to the number of trained
        batches.
        """
        batches, expected = batches_seen - self._batches_seen, self._expected
        actual = self._clock() - self._start - self._left_out
        if batches < 1 or actual <= 0:
            return None
        measured = batches * expected.batch_seconds
        if expected.total_seconds is not None and expected.batches:
            measured = expected.total_seconds * batches / expected.batches
        predicted = Interval(measured, measured, measured)
        if expected.shown is not None and expected.total_seconds:
            predicted = expected.shown.scaled(measured / expected.total_seconds)
        return Outcome(
            expected=expected, batches=batches, actual_seconds=actual, predicted=predicted, measured_seconds=measured
        )
