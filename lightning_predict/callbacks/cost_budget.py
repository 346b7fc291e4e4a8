"""`CostBudget`: stop a run that will cost too much, before it has cost much.

The first steps are timed; if the run that follows from them breaks the budget, it ends there, with a checkpoint. From
then on the actual use is watched, over resumes too. The checkpoint that it leaves says what to know before going on.
Example::

    from lightning.pytorch import Trainer
    from lightning_predict.callbacks import CostBudget
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, final
from lightning_predict.callbacks.bases import warn
from lightning_predict.callbacks.price import gpu_in_use
from lightning_predict.callbacks.trainer_state import resumes_data
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, final
from lightning_predict.callbacks.arguments import check_amount, check_choice, check_steps, future_time
from lightning_predict.callbacks.bases import Callback, rank_zero_info, warn
from lightning_predict.callbacks.budget import GO_ON, BudgetWatch, Ledger, Limit, Question, Verdict, judge_use, limits_of_fit
from lightning_predict.callbacks.guard import never_raises
from lightning_predict.callbacks.price import gpu_in_use, named_offer, price_of_run
from lightning_predict.callbacks.rest_of_run import Rest, rest_of_run
from lightning_predict.callbacks.run_clock import RunClock, run_clock_of
from lightning_predict.callbacks.showing import log_event, log_values
from lightning_predict.callbacks.trainer_state import answer_of_rank_zero, batches_in_store, device_clock, reason_for_no_extras, unmet_minimums
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import check_price
from lightning_predict.errors import BudgetExceededError, InvalidArgumentError
from lightning_predict.reports.format import usd_per_hour as in_words
from lightning_predict.units import seconds_to_hours

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch import LightningModule, Trainer


CHECKPOINT_NAME: Final = "lightning_predict_budget.ckpt"


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """What a fit runs on.

    Attributes:
        device: Our name of the GPU, else the kind of device.
        world_size: Processes.
    """

    device: str
    world_size: int

    @staticmethod
    def of(trainer: Trainer) -> Machine:
        """The machine of this fit."""
        device = trainer.strategy.root_device
        return Machine(gpu_in_use(device) or device.type, trainer.world_size)

    @staticmethod
    def of_state(state: dict[str, Any]) -> Machine | None:
        """The machine that a checkpoint names; None where it names none."""
        return Machine(state["device"], state["world_size"]) if {"device", "world_size"} <= state.keys() else None

    def as_state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.world_size} x {self.device}"


def say_if_moved(before: Machine | None, now: Machine) -> None:
    """Warn where a run goes on on another machine.

    Args:
        before: The machine before; None where there was none, or it is not known.
        now: The machine now.
    """
    if before is not None and before != now:
        warn(
            f"CostBudget: this run was on {before} before, and is on {now} now. What was used counts as it was paid "
            "for; the rest is forecast from steps on what is in use now."
        )


def save_where_it_stands(trainer: Trainer) -> str:
    """Write a checkpoint of the whole state to `default_root_dir`; to be called on every rank, at the end of a batch.

    Returns:
        A sentence on where it is, and on the data order after a resume; empty where it could not be written, which is
        warned about.
    """
    path = os.path.join(trainer.default_root_dir, CHECKPOINT_NAME)
    try:
        trainer.save_checkpoint(path, weights_only=False)
    except Exception as error:  # A full disk must not keep the run going.
        warn(f"CostBudget could not write {path}: {type(error).__name__}: {error}")
        return ""
    if trainer.is_last_batch or resumes_data(trainer):
        return f" Its checkpoint is {path}."
    return (
        f" Its checkpoint is {path}. The loader has no state_dict: a resume trains as many batches as were left of "
        "this epoch, but Lightning begins again with the epoch's first."
    )


class CostBudget(Callback):
    """Keep a run within dollars, hours or a deadline.

    After `warmup_steps` steps the rest of the run is forecast from their times. Where even the low end of the forecast
    breaks the budget, the run ends before the next batch; where only the middle does, there is one warning. While
    training goes on, the forecast is made again every minute from how it went, with one warning if it has come to break
    the budget; another comes at 80 % of the budget, and the run ends at 100 %. All ranks decide together, and never
    within an accumulation window.

    A run that ends this way leaves its checkpoint `lightning_predict_budget.ckpt` in `default_root_dir`; Lightning
    validates once more before `fit` returns, as it does after early stopping. To go on, give `fit` that checkpoint and
    a larger budget.

    Args:
        usd: US dollars.
        hours: Hours.
        deadline: A time in ISO format, local without a zone, for example `2030-01-31T18:00`.
        usd_per_hour: Your price of all machines of this run; None takes the listed offers for the GPU in use.
        offer: The listed offer that you pay for, for example `AWS g5.xlarge`.
        scope: Count what was used before a resume, too (`cumulative`), or this fit alone (`run`).
        on_exceed: What to do when the budget is exceeded: `stop`, `warn` once, or `raise` a BudgetExceededError.
        warmup_steps: Steps to time before the forecast.

    Attributes:
        terms: The budget as it was given.
        stopping_reason: Why the run was ended; None where it was not.

    Raises:
        InvalidArgumentError: No limit, one that is not positive or has passed, or an unknown choice.
        UnknownOfferError: No offer of that name is listed.
    """

    _watch: BudgetWatch | None = None
    _run_clock: RunClock | None = None
    _clock: Callable[[], float] = staticmethod(perf_counter)

    def __init__(
        self,
        usd: float | None = None,
        *,
        hours: float | None = None,
        deadline: str | None = None,
        usd_per_hour: float | None = None,
        offer: str | None = None,
        scope: Literal["cumulative", "run"] = "cumulative",
        on_exceed: Literal["stop", "warn", "raise"] = "stop",
        warmup_steps: int = 3,
    ) -> None:
        self.terms = Terms.checked(usd=usd, hours=hours, deadline=deadline, usd_per_hour=usd_per_hour, offer=offer)
        check_choice("scope", scope, ("cumulative", "run"))
        check_choice("on_exceed", on_exceed, ("stop", "warn", "raise"))
        check_steps("warmup_steps", warmup_steps)
        self.scope = scope
        self.on_exceed = on_exceed
        self.warmup_steps = warmup_steps
        self.stopping_reason: str | None = None
        self._ledger = Ledger()
        self._warned: set[str] = set()
        self._machine: Machine | None = None
        self._machine_before: Machine | None = None

    @property
    def state_key(self) -> str:
        """The same for every budget, so that a run can be resumed with a larger one."""
        return "lightning_predict.CostBudget"

    def state_dict(self) -> dict[str, Any]:
        """What was used so far and on what, and why the run was ended, as plain values."""
        machine = {} if self._machine is None else self._machine.as_state()
        used = {"seconds": self._ledger.seconds, "usd": self._ledger.usd}
        return used | machine | {"stopping_reason": self.stopping_reason}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what was used before the checkpoint, unless each fit counts alone."""
        if self.scope == "cumulative":
            self._ledger.resume(seconds=state_dict["seconds"], usd=state_dict["usd"])
        self._machine_before = Machine.of_state(state_dict)

    @never_raises
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin anew; the time counts from here."""
        if stage != "fit":
            return
        self._deactivate()
        self.stopping_reason = None
        self._warned = set()
        self._machine_before = self._machine
        self._ledger.open(forget=self.scope == "run")
        mode = reason_for_no_extras(trainer)
        if mode is not None:
            warn(f"CostBudget does nothing under Trainer({mode}).")
            return
        self._clock = device_clock(trainer.strategy.root_device)
        self._run_clock = run_clock_of(trainer, device_clock=self._clock)

    @never_raises
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time the start of the validation loader's workers."""
        if self._run_clock is not None:
            self._run_clock.sanity_check_starts()

    @never_raises
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Time the batches of validation."""
        if self._run_clock is not None:
            self._run_clock.validation_batch_starts()

    @never_raises
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Time the batches of validation."""
        if self._run_clock is not None:
            self._run_clock.validation_batch_ends()

    @never_raises
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the price, say what would override a stop, and end at once if earlier fits used up the budget."""
        if self._run_clock is None:
            return
        limits = answer_of_rank_zero(trainer, lambda: self.terms.limits_of(trainer, self._ledger))
        if not limits:
            self._deactivate()
            return
        self._machine = Machine.of(trainer)
        say_if_moved(self._machine_before, self._machine)
        minimums = unmet_minimums(trainer)
        if minimums and self.on_exceed == "stop":
            warn(f"CostBudget cannot stop this run before {minimums}: Lightning trains on until then.")
        self._watch = BudgetWatch(
            limits,
            self._ledger,
            warmup_steps=self.warmup_steps,
            clock=self._clock,
            optimizer_steps_done=trainer.global_step,
            ranks_agree=trainer.world_size > 1,
        )
        self._decide(trainer, self._watch, "use", lambda: judge_use(limits, 0.0), can_save=False)

    @never_raises
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude the start of workers from the wait for a batch."""
        if self._run_clock is not None:
            self._run_clock.epoch_starts()
        if self._watch is not None:
            self._watch.pause()

    @never_raises
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time what lies between two epochs."""
        if self._run_clock is not None:
            self._run_clock.epoch_ends()

    @never_raises
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Time the writing of checkpoints."""
        if self._run_clock is not None:
            self._run_clock.checkpoint_is_collected(self)

    @never_raises
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude validation from the loader's wait; it is timed by itself."""
        if self._run_clock is not None:
            self._run_clock.validation_starts(is_check=trainer.sanity_checking)
        if self._watch is not None:
            self._watch.pause()

    @never_raises
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take what it took for the ones to come."""
        if self._run_clock is not None:
            self._run_clock.validation_ends()

    @never_raises
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Time the step."""
        if self._run_clock is not None:
            self._run_clock.batch_starts()
        if self._watch is not None:
            self._watch.batch_starts()

    @never_raises
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """At the end of a step, forecast once after the warm-up and look at the actual use from then on."""
        watch, clock = self._watch, self._run_clock
        if watch is None or clock is None:
            return
        clock.batch_ends()
        if watch.batch_passes_quietly():
            return
        question = watch.batch_ends(optimizer_steps_done=trainer.global_step)
        if question is None:
            return
        if question == "forecast" and not clock.is_settled:  # A RuntimePredictor knows which steps it has recorded.
            clock.settle(
                watch.batch_seconds,
                batches_per_window=1,
                buffered=batches_in_store(trainer),
                is_asynchronous=trainer.strategy.root_device.type != "cpu",
            )
        pace = watch.pace(is_manual=not pl_module.automatic_optimization)

        def rest() -> Rest:
            return rest_of_run(trainer, clock, pace=pace)

        if question == "use":
            self._decide(trainer, watch, "use", lambda: judge_later_use(trainer, watch, rest, self._warned))
        else:
            self._decide(trainer, watch, "forecast", lambda: judge_first_forecast(trainer, watch, rest()))

    @never_raises
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say at the very end, too, why there was no more training."""
        if self.stopping_reason is not None:
            rank_zero_info(f"CostBudget ended this fit: {self.stopping_reason}.")

    @never_raises
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Keep what was used; teardown is not called then."""
        self._deactivate()
        self._ledger.close()

    @never_raises
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep what was used."""
        self._deactivate()
        self._ledger.close()

    def give_up(self, error: Exception) -> None:
        """Warn once and do nothing until the next fit."""
        self._deactivate()
        warn(f"CostBudget is off, and training goes on without a budget: {type(error).__name__}: {error}")

    def _deactivate(self) -> None:
        self._watch = self._run_clock = None

    def _decide(
        self,
        trainer: Trainer,
        watch: BudgetWatch,
        question: Question,
        judge: Callable[[], Verdict],
        *,
        can_save: bool = True,
    ) -> None:
        """Judge on rank zero, and do what follows on every rank."""
        every = watch.windows_between_checks
        verdict, watch.windows_between_checks = answer_of_rank_zero(trainer, lambda: (judge(), every))
        if question == "forecast" or verdict.action == "stop":
            log_budget(trainer, watch, exceeded=verdict.action == "stop", reason=verdict.reason)
        if verdict.action == "stop" and self.on_exceed == "warn":
            warn(f"CostBudget: {verdict.reason}.")
            self._deactivate()  # There is nothing more to say.
        elif verdict.action == "stop":
            self._end(trainer, verdict.reason, can_save=can_save)
        elif verdict.action == "warn" and question not in self._warned:
            self._warned.add(question)
            warn_and_log(trainer, verdict.reason)

    def _end(self, trainer: Trainer, reason: str, *, can_save: bool) -> None:
        """End the run, with a checkpoint of where it stands."""
        self._deactivate()
        self.stopping_reason = reason
        saved = save_where_it_stands(trainer) if can_save else ""
        if self.on_exceed == "raise":
            raise BudgetExceededError(f"CostBudget: {reason}.{saved}")
        trainer.should_stop = True
        rank_zero_info(f"CostBudget ends this run: {reason}.{saved}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A budget; None is no limit.

    Attributes:
        usd: US dollars.
        hours: Hours.
        deadline: A time with a zone.
        usd_per_hour: The user's own price of all machines of the run.
        offer: The offer that the user named.
    """

    usd: float | None
    hours: float | None
    deadline: datetime | None
    usd_per_hour: float | None
    offer: Offer | None

    @staticmethod
    def checked(
        *,
        usd: float | None = None,
        hours: float | None = None,
        deadline: str | None = None,
        usd_per_hour: float | None = None,
        offer: str | None = None,
    ) -> Terms:
        """The terms that the arguments of `CostBudget` set.

        Args:
            usd: US dollars.
            hours: Hours.
            deadline: A time in ISO format.
            usd_per_hour: The user's own price.
            offer: Name of a listed offer.

        Raises:
            InvalidArgumentError: No limit, or one that is not positive or has passed.
            UnknownOfferError: No offer of that name is listed.
        """
        if usd is None and hours is None and deadline is None:
            raise InvalidArgumentError("CostBudget got no limit; give at least one of usd, hours and deadline.")
        check_amount("usd", usd)
        check_amount("hours", hours)
        check_price(usd_per_hour)
        return Terms(
            usd=usd,
            hours=hours,
            deadline=None if deadline is None else future_time("deadline", deadline),
            usd_per_hour=usd_per_hour,
            offer=None if offer is None else named_offer(offer),
        )

    def limits_of(self, trainer: Trainer, ledger: Ledger) -> tuple[Limit, ...]:
        """The limits of a fit that begins; the ledger gets the price of what it runs on.

        Args:
            trainer: The Trainer that is fitting.
            ledger: What the run has taken.
        """
        if self.usd is not None:
            price = price_of_run(
                usd_per_hour=self.usd_per_hour,
                offer=self.offer,
                gpu=gpu_in_use(trainer.strategy.root_device),
                world_size=trainer.world_size,
                num_nodes=trainer.num_nodes,
            )
            ledger.usd_per_second = seconds_to_hours(price.usd_per_hour or 0.0)
            if price.warning is not None:
                warn(f"CostBudget: {price.warning}.")
            elif price.usd_per_hour is not None:
                rank_zero_info(f"CostBudget counts {in_words(price.usd_per_hour)} ({price.source}).")
        return limits_of_fit(ledger, usd=self.usd, hours=self.hours, deadline=self.deadline)


def judge_first_forecast(trainer: Trainer, watch: BudgetWatch, rest: Rest) -> Verdict:
    """Judge the forecast after the warm-up; where early stopping may end the run, a forecast alone does not stop it.

    Args:
        trainer: The Trainer that is fitting.
        watch: The limits, and what was used of them.
        rest: What is still to come.
    """
    if rest.left.batches is None:
        rank_zero_info("CostBudget: the length of this run is not known; it ends once the budget is used up.")
    verdict = watch.judge_forecast(rest.forecast)
    use = watch.judge_use()
    if verdict is GO_ON:
        return use
    if verdict.action == "stop" and trainer.early_stopping_callbacks and use.action != "stop":
        return Verdict("warn", f"{verdict.reason}, unless early stopping ends it before")
    return verdict


def judge_later_use(trainer: Trainer, watch: BudgetWatch, rest: Callable[[], Rest], warned: set[str]) -> Verdict:
    """Judge what is used; now and then, forecast again.

    A forecast that breaks the budget is said once and does not end the run, which the use alone does: what was spent on
    it is not to be lost to a passing slowness.

    Args:
        trainer: The Trainer that is fitting.
        watch: The limits, and what was used of them.
        rest: Computes what is still to come.
        warned: What was warned about; a new forecast is noted there.
    """
    verdict = watch.judge_use()
    if verdict.action == "stop" or not watch.refresh_is_due:
        return verdict
    outlook = watch.judge_forecast(rest().forecast)
    log_budget(trainer, watch, exceeded=False)
    if outlook.action != "go on" and not warned & {"forecast", "refresh"}:
        warned.add("refresh")
        warn_and_log(trainer, f"{outlook.reason}; the run goes on until the budget is used up")
    return verdict


def log_budget(trainer: Trainer, watch: BudgetWatch, *, exceeded: bool, reason: str = "") -> None:
    """Log what is used, allowed and forecast, and the reason in words where the budget is exceeded.

    Args:
        trainer: The Trainer that is fitting.
        watch: What is known.
        exceeded: The budget is.
        reason: Why.
    """
    refusals = log_values(trainer, "budget", watch.metrics() | {"exceeded": float(exceeded)})
    if exceeded:
        refusals += log_event(trainer, "budget", "exceeded", reason)
    for refusal in refusals:
        warn(refusal)


def warn_and_log(trainer: Trainer, reason: str) -> None:
    """Warn, and note it in the loggers.

    Args:
        trainer: The Trainer that is fitting.
        reason: Why.
    """
    warn(f"CostBudget: {reason}.")
    refusals = log_values(trainer, "budget", {"warned": 1.0})
    for refusal in refusals + log_event(trainer, "budget", "warned", reason):
        warn(refusal)
