"""`RunSession`: a run that is watched, from its first batch to the comparison with its prediction.

A session predicts the rest of the run from a recorded step, updates the forecast, and compares it with the actual time.
The training loop around it (a Trainer of Lightning or Hugging Face, Fabric, a loop in `lp.watch`) is a `Loop`, which
reports the inputs of a forecast and shows the results.

The first prediction is based on a few steps. When enough steps were timed (`ForecastSchedule`), a recommendation
follows. Later, the forecast is recomputed each time the number of steps has doubled. If it leaves the interval that was
printed before, or recommends another GPU, one line is printed and the prediction is published again. Example::

    session = RunSession(loop, PredictionRequest(layouts=layouts_of(["T4", "L4"])), observer, RunResults())
    session.predict(trace)
    # ... training goes on ...
    if session.is_due():
        session.renew()
    session.compare_outcome()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.files import history_path, in_hook
from lightning_predict.base.guard import keeps_random_state, log_warning, own_error
from lightning_predict.base.timeout import PATIENCE_SECONDS, run_with_timeout
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.observe.forecast import ForecastInputs, ForecastSchedule, RestOfRun, TimedForecast
from lightning_predict.observe.memory_risks import (
    MemoryFacts,
    MemoryRisk,
    longest_sequence,
    memory_risks,
    missing_state_bytes,
    recorded_length,
)
from lightning_predict.observe.predicted_vs_actual import (
    Outcome,
    OutcomeTimer,
    expected_outcome,
    with_current_step_time,
)
from lightning_predict.observe.remaining import HookMoment, Position
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.reports.format import duration, duration_interval, print_text, width_at_hand
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Ranking, lines_of_run, rank, ranking_lines, with_article
from lightning_predict.run.history import HistoryRecord, append_record, read_history
from lightning_predict.run.workload import Workload

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lightning_predict.advice.advice_text import Advice

NOTICEABLE_SHARE: Final = 0.05
"""Minimum change of the host time (loader, checkpoints), relative to the run's time, that triggers a new prediction."""

NOTICEABLE_HOST_SECONDS: Final = 60.0  # Minimum change of the host seconds of a run that triggers a new prediction

SECONDS_WORTH_A_LINE: Final = 10.0
"""Minimum remaining time in seconds to print a change or the outcome. In a shorter run, start and end dominate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """What a user asks of a session."""

    layouts: tuple[Layout, ...]
    # Assumptions of the user. Strategy and history are added for each prediction.
    assumptions: Assumptions = field(default_factory=Assumptions)
    batches_per_epoch: int | None = None  # Batches per epoch, for a loader without a length; None if not given
    reads_history: bool = True  # Whether earlier runs of the same model correct predictions
    writes_history: bool = False
    strategy: Strategy | None = None  # How several GPUs share the work; None for the strategy of the loop
    deadline_hours: float | None = None  # Maximum hours of the run, which the ranking respects; None for no limit


@dataclass(slots=True)
class RunResults:
    """Results of a session, which are kept after the run; None or empty before. See `Predicts`."""

    trace: Trace | None = None
    predictions: Predictions | None = None
    outcome: Outcome | None = None
    memory_risks: tuple[MemoryRisk, ...] = ()
    advice: Advice | None = None


class Predicts:
    """Base of the objects that show a user the results of a session."""

    _results: RunResults

    @property
    def trace(self) -> Trace | None:
        """Recorded step, with other kinds of steps in `other_steps`; None before a step is recorded."""
        return self._results.trace

    @property
    def predictions(self) -> Predictions | None:
        """Predictions; None before the first prediction."""
        return self._results.predictions

    @property
    def outcome(self) -> Outcome | None:
        """Comparison of predicted and actual time; None before the end of training."""
        return self._results.outcome

    @property
    def memory_risks(self) -> tuple[MemoryRisk, ...]:
        """Later parts of the run that may not fit in the memory of the GPU in use. Each is also logged."""
        return self._results.memory_risks


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """Finished batches and optimizer steps of a whole run, and its number of batches (None if unknown)."""

    batches: int
    steps: int
    batches_of_run: int | None


class Loop:
    """Training loop around a session: its progress, and the output of results.

    This class is a loop of steps, without validation and checkpoints. Each trainer has a subclass.

    Args:
        total_steps: Number of optimizer steps of the loop; None if unknown.
        show: Prints a text; None prints nothing.
        verbose: Whether to show methods, sources of prices and every note, too.

    Attributes:
        name: Name of the watcher at the start of messages.
        decides_alone: Whether a rank decides about the budget alone if the others do not watch their loop.
        world_size: Number of processes.
        num_nodes: Number of machines.
        batches_per_step: Number of batches of a recorded step, if the loop reports only whole steps; None otherwise.
        loader: Loader of the training batches; None if unknown.
    """

    name = "watch"
    decides_alone = True
    world_size: int = 1
    num_nodes: int = 1
    batches_per_step: int | None = None

    def __init__(self, total_steps: int | None, *, show: Callable[[str], object] | None, verbose: bool = False) -> None:
        self.total_steps, self.print, self.verbose = total_steps, show, verbose
        self.steps = 0
        self.optimizers: tuple[Optimizer, ...] = ()
        self.loader: object = None

    def inputs(self, moment: HookMoment) -> ForecastInputs:  # noqa: ARG002
        """Return the inputs of a forecast: here the position in the steps, which is all that is known."""
        return ForecastInputs(
            position=Position(
                epoch=0,
                batches_done=self.steps,
                batches_per_epoch=None,
                optimizer_steps_done=self.steps,
                max_steps=self.total_steps,
                accumulation={0: 1},
            )
        )

    def progress(self) -> LoopProgress:
        """Return the finished part of the whole run, with its length. Here, a batch is a whole step."""
        return LoopProgress(self.steps, self.steps, self.total_steps)

    def memory_facts(self, trace: Trace) -> MemoryFacts:
        """Return the facts about later parts of the run that determine their memory."""
        length = recorded_length(trace)
        return MemoryFacts(
            state_bytes=sum(missing_state_bytes(optimizer) or 0 for optimizer in self.optimizers),
            length=length,
            longest=None if length is None else longest_sequence(self.loader),
        )

    def strategy(self) -> Strategy:
        """Return how the loop would share the work among several GPUs."""
        return Strategy()

    def notes(self, work: Workload) -> tuple[str, ...]:  # noqa: ARG002
        """Return notes about the basis of the totals, and about costs that they lack."""
        return ()

    def patience_seconds(self, longest: float) -> float:
        """Return how long the loop may wait for files and predictions; at most `longest`."""
        return longest

    def show(self, text: Callable[[], str]) -> None:
        """Print a text of several lines, if tables are printed."""
        failure = None if self.print is None else print_text(text, self.print)
        if failure is not None:
            self.warn(f"{self.name} could not print its prediction: {failure}")

    def table(self, predictions: Predictions, reason: str | None) -> str:  # noqa: ARG002
        """Return the table of predictions, below the reason for a new table."""
        return predictions.text(verbose=self.verbose)

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self.show(lambda: sentence)

    def warn(self, message: str) -> None:
        """Show a warning."""
        log_warning(message)

    def fails(self, error: Exception) -> None:
        """Report an error, after which nothing is predicted any more."""
        log_warning(f"{self.name} stopped predicting; the loop continues: {type(error).__name__}: {error}")

    def publish(self, predictions: Predictions, ranking: Ranking) -> None:
        """Log and save new predictions."""

    def log(self, values: Mapping[str, float]) -> None:
        """Log values of the outcome."""

    @property
    def is_at_epoch_end(self) -> bool:
        """Whether the last batch was the last of an epoch."""
        return False


class RunSession:
    """A run that is watched."""

    def __init__(self, loop: Loop, request: PredictionRequest, observer: RunObserver, results: RunResults) -> None:
        self.loop, self.request, self.observer, self.results = loop, request, observer, results
        self.rest: RestOfRun | None = None  # Rest of the run at the last prediction; None before
        self.batches_at_end = math.inf  # Number of batches of the observer at the end of the run; `math.inf` if unknown
        self.usd_per_hour: float | None = None
        self._validation: Trace | None = None
        self._outcome_timer: OutcomeTimer | None = None
        self._last_printed: TimedForecast | None = None
        self._schedule: ForecastSchedule | None = None
        self._has_advised, self._seen = False, observer.seen
        self._started_at = 0.0

    @property
    def advises(self) -> bool:
        """Whether enough steps were timed for a recommendation."""
        return self._schedule is not None and self._schedule.has_started

    def nothing_until(self) -> tuple[float, float]:
        """Return the number of batches and the observer's time before which no update is due."""
        if self._schedule is None:
            return 0, 0.0
        batches, seconds = self._schedule.nothing_until(self.observer.batches)
        return min(batches, self.batches_at_end), self.observer.time_at(seconds)

    def is_due(self) -> bool:
        """Return whether the number of steps has doubled, so that an update is due."""
        observer, schedule = self.observer, self._schedule
        return schedule is not None and schedule.is_due(observer.batches, observer.training_seconds)

    @keeps_random_state
    def predict(
        self,
        trace: Trace | None = None,
        *,
        validation: Trace | None = None,
        moment: HookMoment = "batch end",
        reason: str | None = None,
    ) -> None:
        """Predict the rest of the run; print and publish the predictions.

        Args:
            trace: Recorded step; None keeps the last one.
            validation: Recorded validation batch; None keeps the last one.
            moment: Current hook.
            reason: Sentence above the table that says why the run is predicted again.
        """
        self._started_at = self.observer.now()
        self._validation = validation or self._validation
        if trace is not None:
            self._take(trace)
        predictions = self._predict(moment)
        ranking = rank(predictions, deadline_hours=self.request.deadline_hours)
        self.loop.show(lambda: self.loop.table(predictions, reason))
        if self.advises:
            self.loop.show(lambda: "\n".join(ranking_lines(ranking, width=width_at_hand())) + "\n")
        self.loop.publish(predictions, ranking)

    def exclude_display_time(self) -> None:
        """Exclude the time that was spent on predicting and printing from the run's time."""
        if self._outcome_timer is not None:
            self._outcome_timer.exclude_since(since=self._started_at)

    @keeps_random_state
    def renew(self, moment: HookMoment = "batch end") -> None:
        """Recompute the forecast. Predict again if it is outside the printed interval, or after a first epoch."""
        before, said, predicted = self.rest, self._last_printed, self.results.predictions
        if before is None or said is None or predicted is None:
            return
        rest = self._rest(moment)
        now = self.observer.now()
        self.observer.latest = TimedForecast(rest, now)
        # The first validation and the first epoch replace what the first prediction assumed.
        is_corrected = moment == "batch start" and self._seen != self.observer.seen
        if is_corrected:
            self.is_due()  # so that the next batch does not predict again
        if rest.counts.batches == 0 or not (self.advises or is_corrected):
            return
        is_first, self._has_advised = self.advises and not self._has_advised, self.advises
        has_left = not said.holds(rest, now)
        if not (is_first or has_left or is_corrected or host_time_changed(predicted, before.workload, rest.workload)):
            return
        self._started_at = now
        predictions = self._predict(moment, is_first_reliable=is_first)
        ranking = rank(predictions, deadline_hours=self.request.deadline_hours)
        self.loop.publish(predictions, ranking)
        if is_first:
            when = f"{self.loop.name}, after {self.loop.progress().steps:,} steps: "
            lines = lines_of_run(ranking, when=when, news=self._news(predictions), width=width_at_hand())
            self.loop.show(lambda: "\n".join(lines) + "\n")
        elif has_left or cheapest_of(predictions) != cheapest_of(predicted):
            left = said.left(now)
            instead = None if left is None else max(0.0, left.middle)
            seconds = [known for known in (instead, rest.forecast and rest.forecast.middle) if known is not None]
            if max(seconds, default=math.inf) >= SECONDS_WORTH_A_LINE:
                self.loop.say(self._news(predictions, instead))
        self.exclude_display_time()

    @keeps_random_state
    def warn_of_memory(self) -> None:
        """Warn about each later part of the run that may not fit on the GPU in use, once per part."""
        trace, told = self.results.trace, {risk.kind for risk in self.results.memory_risks}
        if trace is None or gpu_in_use(trace) is None:
            return
        facts = replace(self.loop.memory_facts(trace), validation=self._validation)
        step = trace if self.loop.batches_per_step is None else replace(trace, batches=self.loop.batches_per_step)
        for risk in memory_risks(step, facts):
            if risk.kind not in told:
                self.results.memory_risks += (risk,)
                self.loop.warn(f"{self.loop.name}, memory: {risk.sentence}")

    @keeps_random_state
    def compare_outcome(self) -> None:
        """Compare the actual time with the first reliable prediction, if anything was trained since, and store it."""
        if self._outcome_timer is None:
            return
        outcome = self.results.outcome = self._outcome_timer.compare(batches_seen=self.loop.progress().batches)
        if outcome is None:
            return
        if max(outcome.actual_seconds, outcome.predicted_seconds) >= SECONDS_WORTH_A_LINE:
            self.loop.say(f"{self.loop.name}: {outcome.sentence}.")
        self.loop.log(outcome.metrics())
        # A run that is stopped within an epoch has one more validation than the predicted time of this part includes.
        is_told = outcome.is_whole or self.loop.is_at_epoch_end
        record = outcome.record() if self.request.writes_history and is_told else None
        if record is None:
            return
        try:
            in_hook(history_path(), lambda: append_record(record), seconds=self.loop.patience_seconds(PATIENCE_SECONDS))
        except OSError as error:
            own_error(error)
            self.loop.warn(f"{self.loop.name} could not remember this run: {type(error).__name__}: {error}")

    def earlier_runs(self, trace: Trace, *, is_renewed: bool = False) -> Sequence[HistoryRecord]:
        """Read earlier runs of the model. Runs on the layout in use correct only the first prediction."""
        if not self.request.reads_history:
            return ()
        try:
            records = in_hook(history_path(), read_history, seconds=self.loop.patience_seconds(PATIENCE_SECONDS))
        except OSError as error:
            own_error(error)
            if not is_renewed:  # warned already otherwise
                self.loop.warn(f"{self.loop.name} predicts without earlier runs: {type(error).__name__}: {error}")
            return ()
        from lightning_predict.step_predictor import layout_in_use

        origin = gpu_in_use(trace) if is_renewed else None
        used = None if origin is None else layout_in_use(trace, origin).name
        return tuple(record for record in records if record.layout != used)

    def assumptions(self, trace: Trace, *, is_renewed: bool = False) -> Assumptions:
        """Return the user's assumptions with the strategy of the loop and earlier runs."""
        strategy = self.loop.strategy() if self.request.strategy is None else self.request.strategy
        return replace(
            self.request.assumptions, strategy=strategy, history=self.earlier_runs(trace, is_renewed=is_renewed)
        )

    def _take(self, trace: Trace) -> None:
        """Store a recorded step, and copy its memory and device time to the observer."""
        loop, observer = self.loop, self.observer
        trace = trace.changed(lambda step: replace(step, world_size=loop.world_size, num_nodes=loop.num_nodes))
        self.results.trace = trace
        # A checkpoint has its full size only after all optimizers have stepped.
        observer.memory = max(
            (kind.trace.memory for kind in trace.kinds), key=lambda memory: memory.optimizer_state_bytes or 0
        )
        observer.step_is_measured(trace)
        if self._schedule is None:
            progress = loop.progress()
            whole, before = progress.batches_of_run, progress.batches - observer.batches
            self._schedule = ForecastSchedule(
                batches_per_window=trace.batches, batches=None if whole is None else whole - before
            )
            self._schedule.is_due(observer.batches, observer.training_seconds)
            self._has_advised = self._schedule.has_started

    def _rest(self, moment: HookMoment) -> RestOfRun:
        trace = self.results.trace
        assert trace is not None
        return self.observer.rest(self.loop.inputs(moment), batches_per_window=trace.batches, samples=trace.samples)

    def _predict(self, moment: HookMoment, *, is_first_reliable: bool = False) -> Predictions:
        """Predict the rest of the run, and store the predictions as the last printed ones."""
        loop, observer, trace = self.loop, self.observer, self.results.trace
        assert trace is not None
        rest = self._rest(moment)
        trace = with_current_step_time(trace, rest.batch_times)
        assumptions = self.assumptions(trace, is_renewed=self.rest is not None)
        longest = loop.patience_seconds(PATIENCE_SECONDS)

        from lightning_predict.prediction import predict_workload

        given = trace, self.request.layouts, rest.workload, assumptions
        try:
            predictions = run_with_timeout(
                longest, lambda: predict_workload(*given, validation=self._validation, forecast=rest.forecast)
            )
        except TimeoutError as error:
            own_error(error)
            raise LightningPredictError(
                f"the prediction took more than {longest:g} s, the limit during training. Ask for fewer "
                "GPUs, or predict later from the recorded step (save_trace=...)"
            ) from None
        steps = f"{rest.steps} step{'' if rest.steps == 1 else 's'}"
        is_rough = rest.batch_times is not None and not self.advises
        rough = (f"Rough first estimate ({steps}). A recommendation follows after more steps.",) if is_rough else ()
        predictions = self.results.predictions = replace(
            predictions,
            notes=(*predictions.notes, *loop.notes(rest.workload), *rough),
            heading=_heading(predictions, loop.progress().steps),
            is_running=True,
        )
        self.rest, self._last_printed, self._seen = rest, TimedForecast(rest, observer.now()), observer.seen
        observer.latest = self._last_printed
        self.batches_at_end = math.inf if rest.counts.batches is None else observer.batches + rest.counts.batches
        observer.exclude_interruption()
        expected = expected_outcome(trace, rest, predictions, num_gpus=loop.world_size)
        self.usd_per_hour = None if expected is None else expected.usd_per_hour
        if expected is not None and (self._outcome_timer is None or is_first_reliable):
            self._outcome_timer = OutcomeTimer(expected, clock=observer.now, batches_seen=loop.progress().batches)
        return predictions

    def _news(self, predictions: Predictions, instead_of_seconds: float | None = None) -> str:
        """Return a line with the forecast for this machine and the recommended GPU, and the previous forecast."""
        assert self.rest is not None
        when = f"{self.loop.name}, after {self.loop.progress().steps:,} steps"
        rest, used = self.rest, predictions.used_gpu
        forecast = rest.forecast
        if forecast is None:
            return f"{when}: {rest.pace_in_words}. The number of remaining steps is unknown."
        before = "" if instead_of_seconds is None else f" (before: {duration(instead_of_seconds)})"
        if instead_of_seconds == 0:
            before = ", later than predicted"
        limit = rest.workload.time_limit_seconds
        until = ", until its time limit" if limit is not None and forecast.middle >= limit else ""
        most = "at most " if rest.counts.at_most and not until else ""
        name, there = cheapest_of(predictions), ""
        best = None if name is None or name == used else predictions[name].remaining_seconds
        if name is not None and best is not None and not predictions[name].is_cut_off:  # a limit is equal for all GPUs
            there = f" On {with_article(name)}: {most}{duration(best)}."
        return f"{when}: {most}{duration_interval(forecast)} left on {used or 'this machine'}{until}{before}.{there}"


def cheapest_of(predictions: Predictions) -> str | None:
    """Return the name of the recommended GPU; None without a recommendation."""
    cheapest = predictions.ranking().cheapest
    return None if cheapest is None else cheapest.gpu


def host_time_changed(predictions: Predictions, before: Workload, now: Workload) -> bool:
    """Return whether the host time of the run differs noticeably from the host time in the prediction."""
    totals = [each.remaining_seconds for each in predictions.values() if each.remaining_seconds is not None]
    if not totals or before.training is None or now.training is None or not before.training.batches:
        return False
    share = now.training.batches / before.training.batches
    change = abs(_host_seconds(now) - _host_seconds(before) * share)
    return change >= max(NOTICEABLE_HOST_SECONDS, NOTICEABLE_SHARE * min(totals) * share)


def _host_seconds(workload: Workload) -> float:
    """Return the seconds that the host adds on every GPU. A loader's time counts fully, even if it overlaps."""
    batches = 0 if workload.training is None else workload.training.batches
    return (
        workload.loader.seconds_per_batch * batches
        + workload.validation_wait.middle * (workload.validation_iterations or 0)
        + workload.between.middle
        + (0.0 if workload.checkpoints.total is None else workload.checkpoints.total.middle)
    )


def _heading(predictions: Predictions, steps: int) -> str | None:
    if predictions.heading is None:
        return None
    what, _, place = predictions.heading.partition(", recorded on ")
    subject = "Rest of this run: " if any(each.iterations is not None for each in predictions.values()) else ""
    return f"{subject}{what}, recorded on this {place} at step {steps:,}"
