"""`ForecastUpdates`: the first prediction of a fit, its updates during the run, and the final comparison.

The first prediction is based on only a few steps of this machine. When enough steps were timed
(`observe.forecast.ForecastSchedule`), a recommendation follows. Later, the forecast is recomputed each time the number
of steps has doubled. If the new forecast leaves the interval that was printed before, or recommends another GPU, one
line is printed and the prediction is logged again. Example::

    updates = ForecastUpdates(request, observer_of(trainer, device=device))
    predictions = updates.predict(trainer, trace=trace, validation=None, window_size=WindowSize(), moment="batch end")
    # ... training goes on ...
    outcome = updates.compare_outcome(trainer)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from lightning_predict.base.files import FILE_SECONDS, history_path, in_hook
from lightning_predict.base.guard import own_error
from lightning_predict.base.interval import Interval
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.output import (
    OutputOptions,
    log_and_save,
    log_values,
    print_on_rank_zero,
    print_sentence,
)
from lightning_predict.callbacks.rest_prediction import (
    PredictionRequest,
    RestPrediction,
    earlier_runs,
    predict_rest,
    steps_done,
)
from lightning_predict.callbacks.trainer_state import batches_of_fit, forecast_inputs, prefetched_batches
from lightning_predict.observe.forecast import ForecastSchedule, TimedForecast
from lightning_predict.observe.optimizer_steps import WindowSize
from lightning_predict.observe.predicted_vs_actual import Outcome, OutcomeTimer
from lightning_predict.observe.rank_agreement import wait_seconds
from lightning_predict.observe.remaining import HookMoment
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.record.trace import Trace
from lightning_predict.reports.format import duration, duration_interval, width_at_hand
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import lines_of_run, rank
from lightning_predict.run.history import append_record
from lightning_predict.run.workload import Workload

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

NOTICEABLE_SHARE: Final = 0.05
"""Minimum relative change of the host time (loader, checkpoints) that triggers a new prediction.

The change is relative to the total time of the run."""

NOTICEABLE_HOST_SECONDS: Final = 60.0
"""Minimum change of the host time of a run, in seconds, that triggers a new prediction."""

SECONDS_WORTH_A_LINE: Final = 10.0
"""Minimum remaining time in seconds to print a change or the outcome. In a shorter run, start and end dominate."""


@final
class ForecastUpdates:
    """Predictions of a fit over time.

    `predict` makes a prediction and stores it as the last printed forecast. `renew` recomputes the forecast, and calls
    `predict` again only if the forecast has changed. `compare_outcome` compares the first reliable prediction with the
    actual time.

    Attributes:
        predicted_gains: Gain that the advice predicts for each suggested change, by name, as (low, middle, high).
    """

    def __init__(
        self, request: PredictionRequest, observer: RunObserver, output_options: OutputOptions | None = None
    ) -> None:
        self.observer = observer
        self.output_options = output_options or OutputOptions()
        self._request = request
        self._outcome_timer: OutcomeTimer | None = None
        self._rest_prediction: RestPrediction | None = None
        self._last_printed_forecast: TimedForecast | None = None
        self._trace: Trace | None = None
        self._validation: Trace | None = None
        self._window_size = WindowSize()
        self._started_at = 0.0
        self._schedule: ForecastSchedule | None = None
        self._has_advised = False
        self.predicted_gains: dict[str, tuple[float, float, float]] = {}

    @property
    def has_predicted(self) -> bool:
        """Whether the first prediction was made."""
        return self._trace is not None

    @property
    def advises(self) -> bool:
        """Whether enough steps were timed for a recommendation."""
        return self._schedule is not None and self._schedule.has_started

    @property
    def remaining(self) -> Interval[float] | None:
        """Remaining seconds of the run on this machine; None before a prediction, or if the run's end is unknown."""
        return self.observer.remaining

    def left_in_words(self) -> str | None:
        """Format the remaining time and cost of the run on this machine; None if unknown."""
        answer = self._rest_prediction
        expected, at_most = (None, False) if answer is None else (answer.expected, answer.rest.counts.at_most)
        price = None if expected is None else expected.usd_per_hour
        from lightning_predict.callbacks.progress_bar import left_in_words

        return left_in_words(self.remaining, usd_per_hour=price, at_most=at_most)

    def nothing_until(self) -> tuple[float, float]:
        """Return the number of batches and the observer's time before which no update is due."""
        if self._schedule is None:
            return 0, 0.0
        batches, seconds = self._schedule.nothing_until(self.observer.batches)
        return batches, self.observer.time_at(seconds)

    def is_due(self) -> bool:
        """Return whether the number of steps has doubled, so that an update is due."""
        observer, schedule = self.observer, self._schedule
        return schedule is not None and schedule.is_due(observer.batches, observer.training_seconds)

    def predict(
        self,
        trainer: Trainer,
        *,
        trace: Trace | None = None,
        validation: Trace | None = None,
        window_size: WindowSize | None = None,
        moment: HookMoment,
        is_first_reliable: bool = False,
    ) -> Predictions:
        """Predict the rest of the run. Omitted arguments keep their last values.

        Args:
            trainer: Trainer of the fit.
            trace: Recorded step.
            validation: Recorded validation batch.
            window_size: Observed number of batches and of optimizer steps per accumulation window.
            moment: Current hook.
            is_first_reliable: Whether this is the first reliable prediction, from which the outcome is measured.
        """
        self._started_at = self.observer.now()
        is_renewed = self._rest_prediction is not None
        self._trace, self._validation = trace or self._trace, validation or self._validation
        self._window_size = window_size or self._window_size
        if self._trace is None:
            raise ValueError("Nothing was recorded yet.")
        if trace is not None:
            self._update_clock(trainer, trace)
        batches = trainer.fit_loop.total_batch_idx + 1
        if self._schedule is None:
            whole, before = batches_of_fit(trainer), batches - self.observer.batches
            self._schedule = ForecastSchedule(
                batches_per_window=self._trace.batches, batches=None if whole is None else whole - before
            )
            self._schedule.is_due(self.observer.batches, self.observer.training_seconds)
            self._has_advised = self._schedule.has_started
        answer = predict_rest(
            trainer,
            self._request,
            self._trace,
            validation=self._validation,
            window_size=self._window_size,
            observer=self.observer,
            moment=moment,
            is_renewed=is_renewed,
            is_rough=not self.advises,
        )
        self._rest_prediction, self._last_printed_forecast = answer, TimedForecast(answer.rest, self.observer.now())
        self.observer.latest = self._last_printed_forecast
        self.observer.exclude_interruption()
        if answer.expected is not None and (self._outcome_timer is None or is_first_reliable):
            self._outcome_timer = OutcomeTimer(answer.expected, clock=self.observer.now, batches_seen=batches)
        return answer.predictions

    def exclude_display_time(self) -> None:
        """Exclude the time that was spent on predicting and printing from the run's time."""
        if self._outcome_timer is not None:
            self._outcome_timer.exclude_since(since=self._started_at)

    def renew(self, trainer: Trainer, *, moment: HookMoment) -> Predictions | None:
        """Recompute the forecast. Predict again if the new forecast is outside the printed interval.

        Returns:
            The new predictions, which were also logged; None if the previous predictions are still valid.
        """
        before, said, trace = self._rest_prediction, self._last_printed_forecast, self._trace
        if before is None or said is None or trace is None:
            return None
        inputs = forecast_inputs(
            trainer,
            window_size=self._window_size,
            moment=moment,
            batches_per_epoch=before.batches_per_epoch or self.observer.batches_per_epoch,
        )
        rest = self.observer.rest(inputs, batches_per_window=trace.batches, samples=trace.samples)
        now = self.observer.now()
        self.observer.latest = TimedForecast(rest, now)
        if rest.counts.batches == 0 or not self.advises:
            return None
        is_first, self._has_advised = not self._has_advised, True
        has_left = not said.holds(rest, now)
        if not (is_first or has_left or host_time_changed(before, rest.workload)):
            return None
        choice = cheapest_of(before.predictions)
        predictions = self.predict(trainer, moment=moment, is_first_reliable=is_first)
        ranking = rank(predictions, deadline_hours=self.output_options.deadline_hours)
        log_and_save(predictions, ranking, trainer, self.output_options)
        answer = self._rest_prediction or before
        if is_first:
            when = f"RuntimePredictor, after {steps_done(trainer, self.observer):,} steps: "
            lines = lines_of_run(ranking, when=when, news=self._news(trainer, answer), width=width_at_hand())
            if self.output_options.with_table:
                print_on_rank_zero(trainer, lambda: "\n".join(lines) + "\n")
        elif has_left or cheapest_of(predictions) != choice:
            left = said.left(now)
            instead = None if left is None else max(0.0, left.middle)
            if max(0.0 if rest.forecast is None else rest.forecast.middle, instead or 0.0) >= SECONDS_WORTH_A_LINE:
                print_sentence(trainer, self._news(trainer, answer, instead))
        self.exclude_display_time()
        return predictions

    def _news(self, trainer: Trainer, answer: RestPrediction, instead_of_seconds: float | None = None) -> str:
        """Return a line with the new forecast and, for comparison, the previous forecast."""
        steps = steps_done(trainer, self.observer)
        return f"RuntimePredictor: after {steps:,} steps, {_news(answer, instead_of_seconds)}."

    def compare_outcome(self, trainer: Trainer) -> Outcome | None:
        """Compare the actual time with the first reliable prediction; None if nothing was trained.

        The comparison is stored in the history.
        """
        if self._outcome_timer is None:
            return None
        outcome = self._outcome_timer.compare(batches_seen=trainer.fit_loop.total_batch_idx + 1)
        if outcome is None:
            return None
        if max(outcome.actual_seconds, outcome.predicted_seconds) >= SECONDS_WORTH_A_LINE:
            print_sentence(trainer, f"RuntimePredictor: {outcome.sentence}.")
        for refusal in log_values(trainer, "predict", outcome.metrics()):
            warn(refusal)
        # A run that is stopped within an epoch has one more validation than the predicted time of this part includes.
        is_told = outcome.is_whole or trainer.is_last_batch
        record = outcome.record() if self._request.uses_history and is_told else None
        if record is not None and self._trace is not None:
            from lightning_predict.run.measured_gains import architecture_of, own_gain, settings_of

            record = replace(
                record,
                architecture=architecture_of(self._trace),
                settings=settings_of(self._trace),
                foretold=self.predicted_gains,
            )
            gained = own_gain(earlier_runs(trainer, self._request, self._trace, is_renewed=False), record)
            if gained is not None:
                print_sentence(trainer, f"RuntimePredictor: {gained.sentence(record)}.")
            try:
                in_hook(history_path(), lambda: append_record(record), seconds=wait_seconds(trainer, FILE_SECONDS))
            except OSError as error:
                own_error(error)
                warn(f"RuntimePredictor could not remember this run: {type(error).__name__}: {error}")
        return outcome

    def _update_clock(self, trainer: Trainer, trace: Trace) -> None:
        """Copy the recorded step's memory, prefetched batches and device time to the run's clock."""
        # A checkpoint has its full size only after all optimizers have stepped.
        self.observer.memory = max(
            (kind.trace.memory for kind in trace.kinds), key=lambda one: one.optimizer_state_bytes or 0
        )
        self.observer.buffered = prefetched_batches(trainer)
        self.observer.step_is_measured(trace)


def cheapest_of(predictions: Predictions) -> str | None:
    """Return the name of the recommended GPU; None without a recommendation."""
    cheapest = predictions.ranking().cheapest
    return None if cheapest is None else cheapest.gpu


def _news(answer: RestPrediction, instead_of_seconds: float | None) -> str:
    """Describe the forecast for this machine and for the recommended GPU, as a phrase."""
    rest, used = answer.rest, answer.predictions.used_gpu
    forecast = rest.forecast
    if forecast is None:
        return f"{rest.pace_in_words}. The number of remaining steps is unknown, because the loader has no length"
    instead = "" if instead_of_seconds is None else f" instead of {duration(instead_of_seconds)}"
    if instead_of_seconds == 0:
        instead = ", later than predicted"
    limit = rest.workload.time_limit_seconds
    until = ", until its time limit," if limit is not None and forecast.middle >= limit else ""
    most = "at most " if rest.counts.at_most and not until else ""
    here = f"{most}{duration_interval(forecast)}{until} on {used or 'this machine'}{instead}"
    name = cheapest_of(answer.predictions)
    one = None if name is None or name == used else answer.predictions[name]
    there = ""
    if one is not None and one.total_seconds is not None and not one.is_cut_off:  # a time limit is equal for all GPUs
        there = f"; {name} {most}{duration(one.total_seconds)}"
    return f"the rest of this run is predicted to take {here}{there}"


def host_time_changed(answer: RestPrediction, now: Workload) -> bool:
    """Return whether the host time of the run differs noticeably from the host time in the prediction."""
    totals = [one.total_seconds for one in answer.predictions.values() if one.total_seconds is not None]
    before = answer.rest.workload
    if not totals or before.training is None or now.training is None or not before.training.batches:
        return False
    said = _host_seconds(before) * now.training.batches / before.training.batches
    share = now.training.batches / before.training.batches
    return abs(_host_seconds(now) - said) >= max(NOTICEABLE_HOST_SECONDS, NOTICEABLE_SHARE * min(totals) * share)


def _host_seconds(workload: Workload) -> float:
    """Return the seconds that the host adds on every GPU.

    The time of a loader counts fully, even if it overlaps with the GPU.
    """
    batches = 0 if workload.training is None else workload.training.batches
    return (
        workload.loader.seconds_per_batch * batches
        + workload.validation_wait_seconds * (workload.validation_iterations or 0)
        + workload.between_seconds
        + (workload.checkpoints.total_seconds or 0.0)
    )
