"""`CostBudget`: stop a run that will cost too much, before it has cost much.

The first steps are timed; if the run that follows from them breaks the budget, it ends there, with a checkpoint. From
then on the actual use is watched, over resumes too. Example::

    from lightning.pytorch import Trainer
    from lightning_predict.callbacks import CostBudget

    Trainer(max_epochs=10, callbacks=[CostBudget(usd=50, usd_per_hour=1.2)]).fit(model)
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from lightning_predict.callbacks.arguments import check_choice, check_steps
from lightning_predict.callbacks.bases import Callback, rank_zero_info, warn
from lightning_predict.callbacks.budget import Verdict, judge_use
from lightning_predict.callbacks.budget_judging import judge_first_forecast, judge_later_use
from lightning_predict.callbacks.budget_terms import Terms
from lightning_predict.callbacks.budget_watch import BudgetWatch, Question
from lightning_predict.callbacks.budget_words import log_budget, warn_and_log
from lightning_predict.callbacks.guard import harmless
from lightning_predict.callbacks.last_checkpoint import Machine, save_where_it_stands, say_if_moved
from lightning_predict.callbacks.ledger import Ledger
from lightning_predict.callbacks.remaining import Remaining, remaining
from lightning_predict.callbacks.trainer_state import (
    answer_of_rank_zero,
    device_clock,
    position_of,
    reason_for_no_extras,
    unmet_minimums,
)
from lightning_predict.errors import BudgetExceededError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


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

    _is_active: bool = False
    _watch: BudgetWatch | None = None
    _clock: Callable[[], float] = staticmethod(perf_counter)
    _validation_start: float | None = None
    _validation_seconds: float | None = None

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

    @harmless
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin anew; the time counts from here."""
        if stage != "fit":
            return
        self._rest()
        self.stopping_reason = None
        self._warned = set()
        self._machine_before = self._machine
        self._ledger.open(forget=self.scope == "run")
        mode = reason_for_no_extras(trainer)
        if mode is not None:
            warn(f"CostBudget does nothing under Trainer({mode}).")
            return
        self._clock = device_clock(trainer.strategy.root_device)
        self._is_active = True

    @harmless
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Time the batches of the sanity check."""
        if self._is_active and trainer.sanity_checking:
            self._validation_start = self._clock()

    @harmless
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """The fastest counts: the first bears one-off costs, and another callback may record the second."""
        if self._validation_start is not None:
            seconds, self._validation_start = self._clock() - self._validation_start, None
            self._validation_seconds = min(seconds, self._validation_seconds or seconds)

    @harmless
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the price, say what would override a stop, and end at once if earlier fits used up the budget."""
        if not self._is_active:
            return
        limits = answer_of_rank_zero(trainer, lambda: self.terms.limits_of(trainer, self._ledger))
        if not limits:
            self._rest()
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
            validation_seconds=self._validation_seconds,
        )
        self._decide(trainer, self._watch, "use", lambda: judge_use(limits, 0.0), can_save=False)

    @harmless
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Workers that start are not a wait for a batch."""
        if self._watch is not None:
            self._watch.pause()

    @harmless
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Neither is validation, which is timed by itself."""
        if self._watch is not None:
            self._watch.validation_starts()

    @harmless
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What it took counts for the ones to come."""
        if self._watch is not None:
            self._watch.validation_ends(batches=int(sum(trainer.num_val_batches)))

    @harmless
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Time the step in the warm-up."""
        if self._watch is not None:
            self._watch.batch_starts()

    @harmless
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """At the end of a step, forecast once after the warm-up and look at the actual use from then on."""
        watch = self._watch
        if watch is None or watch.batch_passes_quietly():
            return
        question = watch.batch_ends(optimizer_steps_done=trainer.global_step)
        if question is None:
            return
        pace = watch.pace(is_manual=not pl_module.automatic_optimization)

        def left() -> Remaining:
            return remaining(position_of(trainer, batches_done=trainer.fit_loop.batch_idx + 1, pace=pace))

        if question == "use":
            self._decide(trainer, watch, "use", lambda: judge_later_use(trainer, watch, left, self._warned))
        else:
            self._decide(trainer, watch, "forecast", lambda: judge_first_forecast(trainer, watch, left()))

    @harmless
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say at the very end, too, why there was no more training."""
        if self.stopping_reason is not None:
            rank_zero_info(f"CostBudget ended this fit: {self.stopping_reason}.")

    @harmless
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Keep what was used; teardown is not called then."""
        self._rest()
        self._ledger.close()

    @harmless
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep what was used."""
        self._rest()
        self._ledger.close()

    def give_up(self, error: Exception) -> None:
        """Warn once and do nothing until the next fit."""
        self._rest()
        warn(f"CostBudget is off, and training goes on without a budget: {type(error).__name__}: {error}")

    def _rest(self) -> None:
        self._is_active = False
        self._watch = None
        self._validation_start = self._validation_seconds = None

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
            self._rest()  # There is nothing more to say.
        elif verdict.action == "stop":
            self._end(trainer, verdict.reason, can_save=can_save)
        elif verdict.action == "warn" and question not in self._warned:
            self._warned.add(question)
            warn_and_log(trainer, verdict.reason)

    def _end(self, trainer: Trainer, reason: str, *, can_save: bool) -> None:
        """End the run, with a checkpoint of where it stands."""
        self._rest()
        self.stopping_reason = reason
        saved = save_where_it_stands(trainer) if can_save else ""
        if self.on_exceed == "raise":
            raise BudgetExceededError(f"CostBudget: {reason}.{saved}")
        trainer.should_stop = True
        rank_zero_info(f"CostBudget ends this run: {reason}.{saved}")
