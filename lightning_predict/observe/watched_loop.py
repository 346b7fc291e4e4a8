"""`watch`: predictions, a budget and an outcome for your own training loop, in plain torch or Fabric.

Example::

    with lp.watch(total_steps=10_000, usd=5.0, model=model, optimizers=[optimizer]) as run:
        for batch in run.batches(loader):
            train(batch)              # up to and including optimizer.step()
            run.step()
            if run.should_stop:
                break
    print(run.outcome.sentence)

Each `step()` ends one step and begins the next. A trainer with validation, checkpoints or step hooks reports them to
the `observer`. It also replaces `facts`, the function that returns the inputs of a forecast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import BudgetExceededError, InvalidArgumentError
from lightning_predict.base.files import STOPPED_VARIABLE, mark
from lightning_predict.base.guard import CAUGHT, fallback_on_error, log_exceptions, log_warning, own_error
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import seconds_to_hours
from lightning_predict.cost.prediction import UserPrice
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.observe.budget import (
    BudgetWatch,
    Ledger,
    batches_between_checks,
    gpu_name_in_use,
    limits_of_fit,
    price_of_run,
)
from lightning_predict.observe.clock import device_clock, host_clock, ledger_clock
from lightning_predict.observe.forecast import ForecastInputs, ForecastSchedule, RestOfRun, TimedForecast, rough_note
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
from lightning_predict.observe.rank_agreement import (
    WAIT_SECONDS,
    JointStop,
    MissingRankError,
    agreement_of_ranks,
    rank_in_use,
)
from lightning_predict.observe.recorder import Session, StepRecorder
from lightning_predict.observe.remaining import Position
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.prediction import predict_workload
from lightning_predict.reports.format import duration_interval, print_text
from lightning_predict.reports.ranking import lines_of_run
from lightning_predict.run.history import read_history

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from lightning_predict.record.trace import Trace
    from lightning_predict.reports.predictions import Predictions

Batch = TypeVar("Batch")


def watch(
    *,
    total_steps: int | None = None,
    usd: float | None = None,
    hours: float | None = None,
    gpus: str | Sequence[str] = ALL,
    model: torch.nn.Module | None = None,
    optimizers: Sequence[Optimizer] = (),
    device: torch.device | str | None = None,
    usd_per_hour: float | None = None,
    on_exceed: Literal["stop", "raise"] = "stop",
    warmup_steps: int = 3,
    samples_per_step: int | None = None,
    print_table: bool = True,
) -> WatchedRun:
    """Watch a training loop. Use the result in a `with` statement, and call its `step()` after each step.

    Args:
        total_steps: Number of optimizer steps of the loop. None (unknown) predicts steps, but no total.
        usd: Budget in US dollars. The budget needs a price: `usd_per_hour`, or a listed price of the GPU in use.
        hours: Budget in hours.
        gpus: `all`, `datacenter`, `consumer`, or names of the GPUs and layouts to predict, as for `predict`.
        model: Model to train, for its memory and the names of its modules.
        optimizers: Optimizers of the model.
        device: The training device. If None, the device of the model's parameters is used, or else the CPU.
        usd_per_hour: Your price of the machine in use.
        on_exceed: What to do if the budget is exceeded: set `should_stop`, or raise a BudgetExceededError.
        warmup_steps: Number of steps to time before a step is recorded.
        samples_per_step: Number of samples per step, to compute throughputs.
        print_table: Whether to print the table, the advice and the outcome.

    Raises:
        UnknownGpuError: The catalogue does not contain one of the names.
        InvalidArgumentError: A number is not positive, or a choice is unknown.
    """
    for name, amount in (("total_steps", total_steps), ("usd", usd), ("hours", hours), ("usd_per_hour", usd_per_hour)):
        if amount is not None and not amount > 0:
            raise InvalidArgumentError(f"{name}={amount!r}; expected a number above 0, or None.")
    if on_exceed not in ("stop", "raise"):
        raise InvalidArgumentError(f"on_exceed={on_exceed!r} is not known; expected 'stop' or 'raise'.")
    run = WatchedRun(
        total_steps=total_steps,
        usd=usd,
        hours=hours,
        gpus=gpus,
        model=model,
        optimizers=optimizers,
        device=device,
        usd_per_hour=usd_per_hour,
        raises=on_exceed == "raise",
        warmup_steps=warmup_steps,
        samples=samples_per_step,
        show=print if print_table else None,
    )
    run.asks_ranks = usd is not None or hours is not None
    return run


def _say_failure(error: Exception) -> None:
    log_warning(f"watch stopped predicting; the loop continues: {type(error).__name__}: {error}")


@final
class WatchedRun:
    """Training loop that is watched; see `watch`.

    Attributes:
        observer: Times of the loop so far. Report validation and checkpoints to the observer.
        predictions: Predictions; None before the first prediction.
        trace: Recorded step; None before a step is recorded.
        outcome: Comparison of predicted and actual time; None before the end of the loop.
        should_stop: Whether the budget is exceeded.
        stopping_reason: Reason for stopping as text; None if the budget is not exceeded.
        facts: Returns the facts about the run after a number of steps. A trainer may replace this function.
        prices: Prices of GPUs, by name or one price for all; None uses listed offers.
        deadline_hours: Maximum hours for the rest of the run, which the ranking respects; None for no limit.
        optimizers: Optimizers, for their memory.
        verbose: Whether to show methods, sources of prices and every note, too.
        batches_per_step: Number of batches per step, if a trainer accumulates gradients.
        world_size: Number of processes of the run.
        asks_ranks: Whether the budget stops all ranks of `torch.distributed` after the same step.
        notes: Returns notes about costs that the totals lack. A trainer may replace this function.
        memory_risks: Later parts of the run that may not fit in the memory of the GPU in use. Each part is also logged.
        memory_facts: Returns the facts about later parts of the run. A trainer may replace this function.
        on_prediction: Called with every prediction.
        on_failure: Called with the error if a prediction fails. Predictions stop after a failure.
    """

    def __init__(
        self,
        *,
        total_steps: int | None,
        usd: float | None,
        hours: float | None,
        gpus: str | Sequence[str],
        model: Any,
        optimizers: Sequence[Optimizer],
        device: torch.device | str | None,
        usd_per_hour: float | None,
        raises: bool,
        warmup_steps: int,
        samples: int | None,
        show: Callable[[str], None] | None,
    ) -> None:
        import torch

        found = next(iter(model.parameters()), None) if model is not None else None
        self._device = torch.device(device if device is not None else ("cpu" if found is None else found.device))
        self._layouts = layouts_to_predict(gpus, usd_per_hour=usd_per_hour)
        self._model, self.optimizers = model, tuple(optimizers)
        self._total_steps, self._samples = total_steps, samples
        self._terms = (usd, hours, usd_per_hour)
        self._raises, self._print = raises, show
        self.observer = RunObserver(host_clock(), is_asynchronous=self._device.type != "cpu")
        self.predictions: Predictions | None = None
        self.trace: Trace | None = None
        self.outcome: Outcome | None = None
        self.should_stop = False
        self.stopping_reason: str | None = None
        self.facts: Callable[[int], ForecastInputs] = self._plain_facts
        self.prices: UserPrice = None
        self.deadline_hours: float | None = None
        self.verbose = False
        self.batches_per_step = 1
        self.world_size = 1
        self.notes: Callable[[], tuple[str, ...]] = tuple
        self.asks_ranks = False
        self.memory_risks: tuple[MemoryRisk, ...] = ()
        self.memory_facts: Callable[[], MemoryFacts] = self._plain_memory_facts
        self._loader: Any = None
        self.on_prediction: Callable[[Predictions], None] = lambda _: None
        self.on_failure: Callable[[Exception], None] = _say_failure
        self._steps = 0
        self._recorder: StepRecorder | None = StepRecorder(
            warmup_steps=warmup_steps,
            capture_steps=1,
            clock=device_clock(self._device),
            host_clock=None if self._device.type == "cpu" else host_clock(),
            new_session=self._new_session,
            optimizers=self.optimizers,
            count=self.observer.windows,
        )
        self._schedule, self._has_advised = ForecastSchedule(batches=total_steps), False
        self._ledger = Ledger(ledger_clock())
        self._watch: BudgetWatch | None = None
        self._last_printed_forecast: TimedForecast | None = None
        self._joint: JointStop | None = None
        self._rank, self._has_met = 0, False
        self._reason: str | None = None
        self._failure: str | None = None
        self._is_in_step = self._is_off = False
        self._timer: OutcomeTimer | None = None
        self._waits_outside = False

    def __enter__(self) -> WatchedRun:
        self._opens()
        return self

    @log_exceptions
    def _opens(self) -> None:
        usd, hours, price = self._terms
        self._ledger.open(forget=True)
        if self.asks_ranks:
            self._joins()
        if usd is not None:
            gpu, processes = gpu_name_in_use(self._device), self.world_size
            of_run = price_of_run(usd_per_hour=price, offer=None, gpu=gpu, world_size=processes, num_nodes=1)
            self._ledger.usd_per_second = seconds_to_hours(of_run.usd_per_hour or 0.0)
            if of_run.warning is not None:
                log_warning(f"watch: {of_run.warning}")
        limits = limits_of_fit(self._ledger, usd=usd, hours=hours, deadline=None)
        self._watch = (
            BudgetWatch(limits, self._ledger, schedule=ForecastSchedule(batches=self._total_steps)) if limits else None
        )
        self.observer.on_epoch_start()

    def _joins(self) -> None:
        """Prepare the joint decisions of several ranks, of which the first prints."""
        self._rank, ranks = rank_in_use()
        agreement = agreement_of_ranks(self._rank, ranks, WAIT_SECONDS)
        if ranks > 1 and agreement is not None:
            self._joint, self.world_size = JointStop(agreement), ranks
            self._print = self._print if self._rank == 0 else None

    @log_exceptions
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()
        if self._timer is not None and kind is None:
            self.outcome = self._timer.compare(batches_seen=self.observer.batches)
        if self.outcome is not None:
            self._show(f"{self.outcome.sentence}.")

    @log_exceptions
    def stop(self) -> None:
        """Stop the recording and the clock of the budget."""
        self._ledger.close()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()

    def give_up(self, error: Exception) -> None:
        """Stop recording, predicting and budgeting after an error, and report it once. The loop continues."""
        if self._is_off:
            return
        recorder, self._recorder = self._recorder, None
        self._is_off, self._timer, self._failure = True, None, f"{type(error).__name__}: {error}"
        with contextlib.suppress(*CAUGHT):  # an error while stopping is a consequence of the first error
            if recorder is not None:
                recorder.stop()
        self.on_failure(error)
        if self._terms[:2] != (None, None):
            log_warning("watch failed: the budget is no longer enforced.")

    @property
    @fallback_on_error(lambda: None, give_up)
    def remaining(self) -> Interval[float] | None:
        """Remaining seconds on the machine in use, with their 90 % interval; None if still unknown."""
        return self.observer.remaining

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader, and time the waits for batches separately. A step may take several batches."""
        self._waits_outside, self._loader = True, loader
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self.start_step()
            yield batch

    @log_exceptions
    def step(self) -> None:
        """End an optimizer step and begin the next.

        Raises:
            BudgetExceededError: The budget is exceeded, and `on_exceed` is `"raise"`.
        """
        self.end_step()
        if not self._waits_outside:
            self.start_step()

    @log_exceptions
    def start_step(self) -> None:
        """Begin a step, unless one is in progress."""
        if self._is_in_step or self._is_off:
            return
        self._is_in_step = True
        self.observer.on_batch_start()
        recorder = self._recorder
        if recorder is not None:
            left = None if self._total_steps is None else max(0, self._total_steps - self._steps - 1)
            with self._guarded():
                recorder.on_batch_start(full_windows_after=left, next_is_short=False)
                if recorder.is_recording:
                    self.observer.batch_is_recorded()

    @log_exceptions
    def end_step(self) -> None:
        """End a step.

        Raises:
            BudgetExceededError: The budget is exceeded, and `on_exceed` is `"raise"`.
        """
        if not self._is_off:
            self._count_step()
        if not self._is_off:
            self._ask_budget()
        self._check_budget()  # also after an error: other ranks wait for this rank

    @log_exceptions
    def _count_step(self) -> None:
        self._is_in_step = False
        self._steps += 1
        self.observer.on_batch_end(lambda: self._steps)
        with self._guarded():
            self._record()
        with self._guarded():
            if self.trace is not None and self._schedule.is_due(self.observer.batches, self.observer.training_seconds):
                self._predict() if self._schedule.has_started else self._rest_now()

    def _record(self) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        trace = recorder.on_batch_end(samples=self._samples)
        self._recorder = None if recorder.is_finished else recorder
        if trace is None:
            return
        self.trace, self._recorder = replace(trace, world_size=self.world_size), None
        self.observer.memory = trace.memory
        self.observer.step_is_measured(trace)
        self._schedule.is_due(self.observer.batches, self.observer.training_seconds)
        self._predict()
        self.memory_risks = tuple(memory_risks(replace(self.trace, batches=self.batches_per_step), self.memory_facts()))
        for one in self.memory_risks:
            log_warning(f"watch, memory: {one.sentence}")

    def _plain_memory_facts(self) -> MemoryFacts:
        """Return the facts about the rest of the run, from the optimizers and from the loader passed to `batches`."""
        assert self.trace is not None
        length = recorded_length(self.trace)
        return MemoryFacts(
            state_bytes=sum(missing_state_bytes(optimizer) or 0 for optimizer in self.optimizers),
            length=length,
            longest=None if length is None else longest_sequence(self._loader),
        )

    def _rest_now(self, observer: RunObserver | None = None) -> RestOfRun:
        rest = (observer or self.observer).rest(self.facts(self._steps), samples=self._samples)
        if observer is None:
            self.observer.latest = TimedForecast(rest, self.observer.now())
        return rest

    def _predict(self) -> None:
        """Predict the rest of the run. Show first the table, then the recommendation, and later each new forecast."""
        assert self.trace is not None
        is_rough = not self._schedule.has_started
        rest, began = self._rest_now(), self.observer.now()
        if self.predictions is not None and rest.counts.batches == 0:
            return
        if (
            self._has_advised
            and self._last_printed_forecast is not None
            and self._last_printed_forecast.holds(rest, began)
        ):
            return
        assumptions = Assumptions(history=read_history(), usd_per_hour=self._prices())
        found = predict_workload(
            with_current_step_time(self.trace, rest.batch_times),
            self._layouts,
            rest.workload,
            assumptions,
            forecast=rest.forecast,
        )
        subject = "" if rest.forecast is None else "Rest of this run: "
        heading = None if found.heading is None else f"{subject}{found.heading}"
        is_first, self.predictions = (
            self.predictions is None,
            replace(
                found,
                is_running=True,
                heading=heading,
                notes=(*found.notes, *self.notes(), *rough_note(rest, is_rough=is_rough)),
            ),
        )
        if is_first:
            self._show(self.predictions.text(verbose=self.verbose))
        if not is_rough:
            when = f"After {self._steps:,} steps"
            left = rest.pace_in_words if rest.forecast is None else f"{duration_interval(rest.forecast)} are left"
            news = f"{when}: {left}"
            ranking = None if self._has_advised else self.predictions.ranking(deadline_hours=self.deadline_hours)
            lines = () if ranking is None else lines_of_run(ranking, when=f"{when}: ", news=f"{news}.")
            self._show("\n".join(lines or (f"{news}.",)))
            self._has_advised = True
        self.on_prediction(self.predictions)
        self._last_printed_forecast = TimedForecast(rest, self.observer.now())
        expected = expected_outcome(self.trace, rest, self.predictions, num_gpus=1)
        if expected is not None and (self._timer is None or not is_rough):
            self._timer = OutcomeTimer(expected, clock=self.observer.now, batches_seen=self.observer.batches)
        if self._timer is not None:
            self._timer.exclude_since(since=began)
        self.observer.exclude_interruption()

    def _show(self, text: str) -> None:
        failure = None if self._print is None else print_text(lambda: text, self._print)
        if failure is not None:
            log_warning(f"watch could not print its prediction: {failure}")

    def _prices(self) -> UserPrice:
        """Return the given prices, or the price of the GPU in use."""
        name, price = gpu_name_in_use(self._device), self._terms[2]
        return self.prices if self.prices is not None or name is None or price is None else {name: price}

    def _check_budget(self) -> None:
        """Stop if the budget is exceeded, on all ranks after the same step."""
        if self.should_stop:
            return
        reason = self._reason if self._joint is None else self._joint_reason(self._joint)
        if reason is None or self._is_off:
            return
        self.should_stop, self.stopping_reason = True, reason
        mark(STOPPED_VARIABLE)
        if self._raises:
            raise BudgetExceededError(f"watch: {reason}.")
        if self._rank == 0:
            log_warning(f"watch: {reason}. Stop this loop.")

    def _joint_reason(self, joint: JointStop) -> str | None:
        """Return the common reason to stop. If not all ranks watch their loop, this process decides alone."""
        self._joint = None  # an error in the exchange is the last one
        try:
            reason = joint.reason(
                lambda: {"reason": self._reason, "batches": batches_between_checks(self.observer)}, self._failure
            )
        except MissingRankError as error:
            if self._has_met:
                raise
            self._rank = 0
            log_warning(f"watch: {error}, so this process decides alone. Watch the loop on every rank.")
            return self._reason
        self._joint, self._has_met = joint, True
        return reason

    @log_exceptions
    def _ask_budget(self) -> None:
        """Compare use and forecast with the budget, if a comparison is due on this rank."""
        watch = self._watch
        if watch is None or self._reason is not None or self._rank != 0:
            return
        elapsed = self._ledger.elapsed_seconds
        question = watch.due_check(self.observer.batches, self.observer.training_seconds, elapsed=elapsed)
        if question is None:
            return
        rest = None if question == "use" else self._rest_now()
        verdict = watch.check(question, rest, without_stalls=lambda: self._rest_now(self.observer.without_stalls()))
        if verdict.action == "warn":
            log_warning(f"watch: {verdict.reason}.")
        self._reason = verdict.reason if verdict.action == "stop" else None

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Catch errors in predictions, so that the loop continues.

        The first error is reported, and then nothing more is predicted.
        """
        try:
            yield
        except CAUGHT as error:
            recorder, self._recorder, self.trace = self._recorder, None, None
            if recorder is not None:
                recorder.stop()
            self.on_failure(own_error(error))

    def _plain_facts(self, steps: int) -> ForecastInputs:
        position = Position(
            epoch=0,
            batches_done=steps,
            batches_per_epoch=None,
            optimizer_steps_done=steps,
            max_steps=self._total_steps,
            accumulation={0: 1},
        )
        return ForecastInputs(position=position)

    def _new_session(self) -> Session:
        from lightning_predict.record.session import CaptureSession

        return CaptureSession(device=self._device, model=self._model, optimizers=self.optimizers)
