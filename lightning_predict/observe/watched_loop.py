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
the `observer`, and describes itself with a `Loop` of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar

from typing_extensions import Unpack

from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import BudgetExceededError, InvalidArgumentError
from lightning_predict.base.files import STOPPED_VARIABLE, mark
from lightning_predict.base.guard import CAUGHT, fallback_on_error, log_exceptions, log_warning, own_error
from lightning_predict.base.interval import Interval
from lightning_predict.base.timeout import PATIENCE_SECONDS
from lightning_predict.cost.priced_gpus import ALL, layouts_to_predict
from lightning_predict.observe.budget import BudgetWatch, batches_between_checks
from lightning_predict.observe.clock import device_clock, host_clock, ledger_clock
from lightning_predict.observe.forecast import ForecastSchedule, RestOfRun
from lightning_predict.observe.meters import BudgetArguments, Ledger, RentedMachine, Terms, gpu_name_in_use
from lightning_predict.observe.rank_agreement import (
    AgreementSchedule,
    MissingRankError,
    RankAgreement,
    agreement_of_ranks,
    rank_in_use,
)
from lightning_predict.observe.recorder import StepRecorder
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.observe.run_session import Loop, PredictionRequest, Predicts, RunResults, RunSession

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from lightning_predict.record.session import CaptureSession

Batch = TypeVar("Batch")


def watch(
    *values: object,
    total_steps: int | None = None,
    usd: float | None = None,
    gpus: str | Sequence[str] = ALL,
    model: torch.nn.Module | None = None,
    optimizers: Sequence[Optimizer] = (),
    device: torch.device | str | None = None,
    usd_per_hour: float | None = None,
    on_exceed: Literal["stop", "raise"] = "stop",
    warmup_steps: int = 3,
    samples_per_step: int | None = None,
    print_table: bool = True,
    **limits: Unpack[BudgetArguments],
) -> WatchedRun:
    """Watch a training loop. Use the result in a `with` statement, and call its `step()` after each step.

    Args:
        values: Values without a name, which are refused.
        total_steps: Number of optimizer steps of the loop. None (unknown) predicts steps, but no total.
        usd: Budget in US dollars. The budget needs a price: `usd_per_hour`, or a listed price of the GPU in use.
        gpus: `all`, `datacenter`, `consumer`, or names of the GPUs and layouts to predict, as for `predict`.
        model: Model to train, for its memory and the names of its modules.
        optimizers: Optimizers of the model.
        device: The training device. If None, the device of the model's parameters is used, or else the CPU.
        usd_per_hour: Your price of the machine in use.
        on_exceed: What to do if the budget is exceeded: set `should_stop`, or raise a BudgetExceededError.
        warmup_steps: Number of steps to time before a step is recorded.
        samples_per_step: Number of samples per step, to compute throughputs.
        print_table: Whether to print the table, the advice and the outcome.
        **limits: Further limits: `hours`, `deadline`, `kg_co2`, ..., as for `CostBudget`.

    Raises:
        UnknownGpuError: The catalogue does not contain one of the names.
        InvalidArgumentError: A number is not positive, or a choice is unknown.
    """
    if values:
        raise InvalidArgumentError(
            f"watch got {len(values)} values without names; expected names, such as watch(total_steps=1000, usd=50)."
        )
    if total_steps is not None and not total_steps > 0:
        raise InvalidArgumentError(f"total_steps={total_steps!r}; expected a number above 0, or None.")
    if on_exceed not in ("stop", "raise"):
        raise InvalidArgumentError(f"on_exceed={on_exceed!r} is not known; expected 'stop' or 'raise'.")
    import torch

    parameter = next(iter(model.parameters()), None) if model is not None else None
    if device is None:
        device = "cpu" if parameter is None else parameter.device
    device = torch.device(device)
    terms, gpu = Terms.checked(usd=usd, usd_per_hour=usd_per_hour, **limits), gpu_name_in_use(device)
    prices = None if gpu is None or usd_per_hour is None else {gpu: usd_per_hour}
    loop = Loop(total_steps, show=print if print_table else None)
    loop.optimizers = tuple(optimizers)
    return WatchedRun(
        loop,
        PredictionRequest(
            layouts=layouts_to_predict(gpus, usd_per_hour=usd_per_hour), assumptions=Assumptions(usd_per_hour=prices)
        ),
        terms,
        model=model,
        device=device,
        raises=on_exceed == "raise",
        warmup_steps=warmup_steps,
        samples=samples_per_step,
    )


class WatchedRun(Predicts):
    """Training loop that is watched; see `watch`.

    `records` states whether this process records a step and predicts.

    Attributes:
        observer: Times of the loop so far. Report validation and checkpoints to the observer.
        stopping_reason: Reason for stopping as text; None if the budget is not exceeded.
    """

    def __init__(
        self,
        loop: Loop,
        request: PredictionRequest,
        terms: Terms,
        *,
        model: torch.nn.Module | None,
        device: torch.device,
        raises: bool = False,
        warmup_steps: int,
        samples: int | None = None,
        records: bool = True,
        wait_seconds: float | None = None,
    ) -> None:
        self._results = RunResults()
        self._loop, self._terms, self._device, self._model = loop, terms, device, model
        self._raises, self._samples = raises, samples
        self._wait_seconds = PATIENCE_SECONDS if wait_seconds is None else wait_seconds
        self.observer = RunObserver(host_clock(), is_asynchronous=device.type != "cpu")
        self.session = RunSession(loop, request, self.observer, self._results)
        self.should_stop = False
        self.stopping_reason: str | None = None
        self._recorder: StepRecorder | None = None
        if records:
            self._recorder = StepRecorder(
                warmup_steps=warmup_steps,
                clock=device_clock(device),
                host_clock=None if device.type == "cpu" else host_clock(),
                new_session=self._new_session,
                optimizers=loop.optimizers,
                count=self.observer.windows,
            )
        self._ledger = Ledger(ledger_clock())
        self._watch: BudgetWatch | None = None
        self._agreement: RankAgreement | None = None
        self._schedule = AgreementSchedule()
        self._rank, self._has_met = 0, False
        self._reason: str | None = None
        self._failure: str | None = None
        self._is_in_step = self._is_off = self._waits_outside = False
        self._predicts = records

    def __enter__(self) -> WatchedRun:
        self._opens()
        return self

    @log_exceptions
    def _opens(self) -> None:
        loop = self._loop
        self._ledger.open(forget=True)
        if self._terms.description:
            self._joins()
        allowed = self._terms.start(RentedMachine.of(self._device, world_size=loop.world_size), self._ledger)
        for warning in allowed.warnings:
            log_warning(f"{loop.name}: {warning}")
        if allowed.meters:
            self._watch = BudgetWatch(allowed.meters, self._ledger, schedule=ForecastSchedule(batches=loop.total_steps))
        self.observer.on_epoch_start()

    def _joins(self) -> None:
        """Prepare the joint decisions of several ranks, of which the first prints."""
        self._rank, ranks = rank_in_use()
        if ranks < self._loop.world_size:
            raise InvalidArgumentError(
                "a budget of several processes needs torch.distributed, which is not initialized"
            )
        agreement = agreement_of_ranks(self._rank, ranks, self._wait_seconds)
        if ranks > 1 and agreement is not None:
            self._agreement, self._loop.world_size = agreement, ranks
            self._loop.print = self._loop.print if self._rank == 0 else None

    @log_exceptions
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()
        if self._predicts and kind is None:
            self.session.compare_outcome()

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
        self._is_off, self._failure = True, f"{type(error).__name__}: {error}"
        self._stop_predicting(error)
        if self._terms.description:
            log_warning(f"{self._loop.name} failed: the budget is no longer enforced.")

    @property
    def has_failed(self) -> bool:
        """Whether an error ended the predictions."""
        return self._is_off or not self._predicts

    @property
    @fallback_on_error(lambda: None, give_up)
    def remaining(self) -> Interval[float] | None:
        """Remaining seconds on the machine in use, with their 90 % interval; None if still unknown."""
        return self.observer.remaining

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Add an optimizer that a trainer has used, for its memory."""
        if optimizer not in self._loop.optimizers:
            self._loop.optimizers = (*self._loop.optimizers, optimizer)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader, and time the waits for batches separately. A step may take several batches."""
        self._waits_outside, self._loop.loader = True, loader
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
        recorder, loop = self._recorder, self._loop
        if recorder is not None:
            left = None if loop.total_steps is None else max(0, loop.total_steps - loop.steps - 1)
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
        loop, session = self._loop, self.session
        self._is_in_step = False
        loop.steps += 1
        self.observer.on_batch_end(lambda: loop.steps)
        with self._guarded():
            recorder = self._recorder
            trace = None if recorder is None else recorder.on_batch_end(samples=self._samples)
            if trace is not None:
                self._recorder = None
                session.predict(trace)
                session.exclude_display_time()
                session.warn_of_memory()
            elif self._predicts and session.is_due():
                session.renew()

    def _stop_predicting(self, error: Exception) -> None:
        recorder, self._recorder, self._predicts = self._recorder, None, False
        with contextlib.suppress(*CAUGHT):  # an error while stopping is a consequence of the first error
            if recorder is not None:
                recorder.stop()
        self._loop.fails(error)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Catch errors in predictions: the first is reported, nothing more is predicted, and the loop continues."""
        try:
            yield
        except CAUGHT as error:
            self._stop_predicting(own_error(error))

    def _check_budget(self) -> None:
        """Stop if the budget is exceeded, on all ranks after the same step."""
        if self.should_stop:
            return
        reason = self._reason if self._agreement is None else self._joint_reason(self._agreement)
        if reason is None or self._is_off:
            return
        self.should_stop, self.stopping_reason = True, reason
        mark(STOPPED_VARIABLE)
        if self._raises:
            raise BudgetExceededError(f"{self._loop.name}: {reason}.")
        if self._rank == 0:
            log_warning(f"{self._loop.name}: {reason}. Stop this loop.")

    def _joint_reason(self, agreement: RankAgreement) -> str | None:
        """Return the common reason to stop. If not all ranks watch their loop, this process decides alone."""
        if not self._schedule.on_batch_end():
            return None
        self._agreement = None  # an error in the exchange is the last one
        try:
            decision = agreement.agree(
                lambda: {"reason": self._reason, "batches": batches_between_checks(self.observer)},
                failure=self._failure,
            )
        except MissingRankError as error:
            if self._has_met or not self._loop.decides_alone:
                raise
            self._rank = 0
            log_warning(f"{self._loop.name}: {error}, so this process decides alone. Watch the loop on every rank.")
            return self._reason
        self._schedule.agree_after(decision["batches"])
        self._agreement, self._has_met = agreement, True
        reason: str | None = decision["reason"]
        return reason

    @log_exceptions
    def _ask_budget(self) -> None:
        """Compare use and forecast with the budget, if a comparison is due on this rank."""
        watch = self._watch
        if watch is None or self._reason is not None or self._rank != 0:
            return
        elapsed = self._ledger.elapsed_seconds
        due = watch.due_check(self.observer.batches, self.observer.training_seconds, elapsed=elapsed)
        if due is None:
            return
        rest = None if due == "use" else self._rest(self.observer)
        verdict = watch.check(rest, at_best=lambda: self._rest(self.observer.at_best()))
        if verdict.action == "warn":
            log_warning(f"{self._loop.name}: {verdict.reason}.")
        self._reason = verdict.reason if verdict.action == "stop" else None

    def _rest(self, observer: RunObserver) -> RestOfRun:
        return observer.rest(self._loop.inputs("batch end"), samples=self._samples)

    def _new_session(self) -> CaptureSession:
        from lightning_predict.record.session import CaptureSession

        return CaptureSession(device=self._device, model=self._model, optimizers=self._loop.optimizers)
