"""`CostBudget`: callback that stops a run that will exceed its budget, before it has cost much.

The first steps are timed. If the forecast from these steps exceeds the budget, the run stops with a checkpoint. Later,
the dollars, hours and CO2 that the run has used are compared with the budget; a resumed run continues the earlier
totals. The final checkpoint stores the used amounts and the reason for the stop. Example::

    from lightning.pytorch import Trainer
    from lightning_predict.callbacks import CostBudget

    Trainer(max_epochs=10, callbacks=[CostBudget(usd=50, hours=12)]).fit(model)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, final
from uuid import uuid4

from lightning_predict.callbacks.arguments import (
    amount_of,
    check_choice,
    check_name,
    check_steps,
    future_time,
    hours_of,
)
from lightning_predict.callbacks.lightning_packages import (
    LIGHTNINGS_OWN,
    end_of_fit,
    leave_validation,
    warn,
)
from lightning_predict.callbacks.observing import ObservingCallback
from lightning_predict.callbacks.output import BUDGET_GROUP, log_event, log_values, print_sentence
from lightning_predict.callbacks.trainer_state import (
    batches_of_fit,
    batches_without_step,
    forecast_inputs,
    inactive_mode,
    minimums_preventing_stop,
    prefetched_batches,
    resumes_data,
)
from lightning_predict.checked import positive_number
from lightning_predict.cost.energy import energy
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Charges, check_price
from lightning_predict.errors import BudgetExceededError, InvalidArgumentError, LightningPredictError
from lightning_predict.files import FILE_SECONDS, STOPPED_VARIABLE, in_hook, mark
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.guard import (
    fallback_on_error,
    log_exceptions,
    log_exceptions_unless,
    log_warning,
    own_error,
)
from lightning_predict.observe.budget import (
    CHECK_SECONDS,
    GO_ON,
    BudgetVerdict,
    BudgetWatch,
    DueCheck,
    Ledger,
    Limit,
    batches_between_checks,
    check_use,
    gpu_name_in_use,
    limits_of_fit,
    named_offer,
    price_of_run,
)
from lightning_predict.observe.clock import ledger_clock
from lightning_predict.observe.forecast import ForecastSchedule, RestOfRun, end_seconds
from lightning_predict.observe.ledger_file import (
    LEDGER_SECONDS,
    LEDGER_STEM,
    LedgerPlace,
    SavedLedger,
    find_ledger,
    save_ledger,
)
from lightning_predict.observe.rank_agreement import (
    AgreementSchedule,
    Decision,
    RankAgreement,
    SingleProcess,
    rank_agreement,
    wait_seconds,
)
from lightning_predict.observe.run_observer import RunObserver, observer_of
from lightning_predict.reports.format import duration, significant
from lightning_predict.reports.format import usd_of_steps as dollars
from lightning_predict.reports.format import usd_per_hour as in_words
from lightning_predict.units import grams_to_kilograms, hours_to_seconds, seconds_to_hours, watts_to_kilowatts

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from lightning_predict.cost.grids import PowerGrid


CHECKPOINT_NAME: Final = f"{LEDGER_STEM}.ckpt"
"""File name of the checkpoint of the first run in a folder."""


@final
@dataclass(frozen=True, slots=True)
class RentedMachine:
    """Machine on which a fit runs.

    Attributes:
        device: Catalogue name of the GPU; the device type if the catalogue lacks the device.
        world_size: Number of processes.
    """

    device: str
    world_size: int

    @staticmethod
    def of(trainer: Trainer) -> RentedMachine:
        """Return the machine of this fit."""
        device = trainer.strategy.root_device
        return RentedMachine(gpu_name_in_use(device) or device.type, trainer.world_size)

    @staticmethod
    def of_state(state: dict[str, Any]) -> RentedMachine | None:
        """Return the machine that a checkpoint stores; None without a stored machine."""
        return RentedMachine(state["device"], state["world_size"]) if {"device", "world_size"} <= state.keys() else None

    def __str__(self) -> str:
        return f"{self.world_size} x {self.device}"


def _warn_state_lost(budget: CostBudget, error: Exception) -> None:
    """Warn, once per fit, that checkpoints are written without the used amounts."""
    if "state" not in budget._warned:
        budget._warned.add("state")
        warn(f"CostBudget: this checkpoint lacks the used amounts: {type(error).__name__}: {error}")


def _say_state_is_unread(_: CostBudget, error: Exception) -> None:
    """Warn that the used amounts in a checkpoint are ignored."""
    warn(
        "CostBudget cannot read the used amounts from the checkpoint and counts from here: "
        f"{type(error).__name__}: {error}"
    )


@final
class _Fit:
    """State of one fit.

    Attributes:
        schedule: Decides after which batches the ranks decide; None for one process.
        overrun: Reason to stop the run after the current validation.
        validation_interval: Validation batches between two checks; None for no checks.
        kept_seconds: Time of the last write of the ledger file.
        stated_seconds: Used seconds in the last checkpoint of any kind.
        saved_seconds: Used seconds in the budget's own checkpoint; None before the checkpoint is written.
        judge: Returns a verdict; None if there is nothing to check, and on ranks other than zero.
        quiet_batches: Number of batches before which no forecast is due.
        quiet_until: Time of the observer before which no forecast is due.
        next_check: Time of the ledger's clock before which no other check is due.
    """

    def __init__(self, trainer: Trainer, rank_agreement: RankAgreement, folder: str) -> None:
        self.rank_agreement = rank_agreement
        self.optimizer_steps_done: Callable[[], int] = lambda: trainer.global_step
        self.quiet_batches: float = 0
        self.quiet_until = self.next_check = 0.0
        self.place = LedgerPlace.of(folder, LEDGER_STEM)
        self.stated_seconds = 0.0
        self.saved_seconds: float | None = None
        self.schedule: AgreementSchedule | None = None
        self.failure: str | None = None
        self.has_ended = self.is_saving = False
        self.overrun: str | None = None
        self.validation_interval: int | None = None
        self.validated_batches, self.kept_seconds = 0, 0.0
        self.observer: RunObserver | None = None
        self.watch: BudgetWatch | None = None
        self.judge: Callable[[], BudgetVerdict] | None = None


class CostBudget(ObservingCallback):
    """Keep a run within a budget of dollars, hours or kilograms of CO2, or before a deadline.

    The used amounts are checked after every batch. A warning appears at 80 % of the budget. The run stops at 100 %
    minus the cost of the final validation, at most one batch late. The used amounts are saved once a minute to
    `lightning_predict_budget.json` in `default_root_dir`. If a killed run is resumed from its checkpoint, or if Slurm
    or torchrun restarts its job, the amounts used before still count.

    The first forecast comes after 16 steps and 3 s, half of the run, or 30 s, whichever is first. The forecast is
    repeated each time the number of steps has doubled. If even the low end of the forecast exceeds the budget, also
    without the longest stalls, the run stops before the next batch. If only the middle of the forecast exceeds the
    budget, a warning appears once. A forecast every minute may also warn. All ranks decide together, at agreed batches,
    at most half a minute apart. Rank zero makes the decision. An error on any rank turns the budget off on all ranks.

    If a run is stopped between two optimizer updates (gradient accumulation), the gradients since the last update are
    lost, because no checkpoint contains them.

    A stopped run leaves its checkpoint `lightning_predict_budget.ckpt` in `default_root_dir`. Lightning validates once
    more before `fit` returns, as after early stopping. The budget reserves time for this final validation, and the
    checkpoint includes the forecast cost of the validation. A validation that uses up the budget is finished if the
    excess is at most 5 %. Otherwise `fit` returns after the checkpoint, without metrics of the validation, because
    metrics of a part of the data would be misleading. To continue, pass the checkpoint and a larger budget to `fit`.

    Args:
        usd: Budget in US dollars.
        hours: Budget in hours, or a timedelta.
        deadline: A datetime, or a time in ISO format, for example `2030-01-31T18:00`; local without a time zone.
        usd_per_hour: Your price of all machines of this run; None uses the listed offers for the GPU in use.
        offer: The listed offer that you pay for, for example `AWS g5.xlarge`.
        scope: `cumulative` includes the amounts used before a resume; `run` counts this fit only.
        on_exceed: Action if the budget is exceeded: `stop` without an exception, `warn` once, or `raise` a
            BudgetExceededError.
        warmup_steps: Minimum number of steps before the first forecast, regardless of their duration.
        kg_co2: Budget in kilograms of CO2-equivalent; requires `grid`.
        grid: The electric grid: grams of CO2 per kWh, a place (`Frankfurt`) or a country (`France`, `FR`).
        watts: Power of all machines of this run; None uses the power limits of the GPUs, an upper estimate.
        pue: Power usage effectiveness of the data centre, a factor on the power; 1 for the machines alone.
        setup_minutes: Minutes of paid machine time before training.
        storage_usd: Dollars for storage and data transfer, which count as used from the start.
        webhook: An https address that gets a JSON notice at 80 % and at the stop, for example of Slack or Discord.

    Attributes:
        terms: The limits and prices as given.
        stopping_reason: Reason why the run was stopped; None if it was not stopped.

    Raises:
        InvalidArgumentError: There is no limit, a limit is not positive or has passed, or a choice is unknown.
        UnknownOfferError: No offer with this name is listed.
    """

    def __init__(
        self,
        usd: float | Decimal | Fraction | None = None,
        *,
        hours: float | Decimal | Fraction | timedelta | None = None,
        deadline: str | datetime | None = None,
        usd_per_hour: float | Decimal | Fraction | None = None,
        offer: str | None = None,
        scope: Literal["cumulative", "run"] = "cumulative",
        on_exceed: Literal["stop", "warn", "raise"] = "stop",
        warmup_steps: int = 3,
        kg_co2: float | Decimal | Fraction | None = None,
        grid: str | float | None = None,
        watts: float | None = None,
        pue: float = 1.0,
        setup_minutes: float = 0.0,
        storage_usd: float = 0.0,
        webhook: str | None = None,
    ) -> None:
        self.terms = Terms.checked(
            usd=usd,
            hours=hours,
            deadline=deadline,
            usd_per_hour=usd_per_hour,
            offer=offer,
            emissions=Emissions.checked(kg_co2=kg_co2, grid=grid, watts=watts, pue=pue),
            charges=Charges(setup_minutes=setup_minutes, storage_usd=storage_usd),
        )
        check_choice("scope", scope, ("cumulative", "run"))
        check_choice("on_exceed", on_exceed, ("stop", "warn", "raise"))
        check_steps("warmup_steps", warmup_steps)
        self.scope = scope
        self.on_exceed = on_exceed
        self.webhook = webhook
        if webhook is not None:
            from lightning_predict.callbacks.notices import check_webhook

            check_webhook(webhook)
        self.warmup_steps = warmup_steps
        self.stopping_reason: str | None = None
        self._ledger = Ledger(ledger_clock())
        self._warned: set[str] = set()
        self._run = uuid4().hex
        self._machine: RentedMachine | None = None
        self._fit: _Fit | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the terms and the used amounts for copying and pickling, without the state of a running fit."""
        return {name: value for name, value in vars(self).items() if name not in LIGHTNINGS_OWN} | {"_fit": None}

    state_key = "lightning_predict.CostBudget"
    """Key in checkpoints, equal for all budgets, so that a run can be resumed with a larger budget."""

    @fallback_on_error(dict, _warn_state_lost)
    def state_dict(self) -> dict[str, Any]:
        """Return the used amounts, the machine and the reason for a stop, as plain values.

        On an error, return an empty state with a warning, because the checkpoint is worth more than this state.
        """
        machine, fit = {} if self._machine is None else asdict(self._machine), self._fit
        # The final validation comes after the run's last checkpoint, so its cost is added.
        later = fit.watch.end_seconds if fit is not None and fit.is_saving and fit.watch is not None else 0.0
        used = {
            "seconds": self._ledger.seconds + later,
            "usd": self._ledger.usd + later * self._ledger.usd_per_second,
            "kg_co2": self._ledger.kg_co2 + later * self._ledger.kg_co2_per_second,
            "kg_co2_seconds": self._ledger.kg_co2_seconds + (later if self._ledger.kg_co2_per_second else 0.0),
        }
        if fit is not None:
            fit.stated_seconds = used["seconds"]
        return used | machine | {"run": self._run, "stopping_reason": self.stopping_reason}

    @fallback_on_error(lambda: None, _say_state_is_unread)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the used amounts from a checkpoint, unless `scope` is `run`."""
        seconds, usd = (amount_before(state_dict, name) for name in ("seconds", "usd"))
        if self.scope == "cumulative":
            emitted = [
                amount_before(state_dict, name) if name in state_dict else 0.0 for name in ("kg_co2", "kg_co2_seconds")
            ]
            self._ledger.resume(seconds=seconds, usd=usd, kg_co2=emitted[0], kg_co2_seconds=emitted[1])
        self._machine = RentedMachine.of_state(state_dict)
        run = state_dict.get("run")  # absent in checkpoints of early versions
        self._run = run if isinstance(run, str) and run else self._run

    @log_exceptions
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset for a new fit. Time counts from here."""
        if stage != "fit":
            return
        self._fit = self.stopping_reason = None
        self._warned = set()
        mode = inactive_mode(trainer)
        if mode is None:
            agreement = rank_agreement(trainer)  # before any code that may fail on one rank only
            self._fit = _Fit(trainer, agreement, os.fspath(trainer.default_root_dir))
        self._ledger.open(forget=self.scope == "run")
        if self._fit is None:
            warn(f"CostBudget does nothing under Trainer({mode}).")
        elif trainer.is_global_zero:
            import_module("lightning_predict.timeline.step_prediction")  # for forecasts, so that no step waits
            self._fit.observer = observer_of(trainer, device=trainer.strategy.root_device)

    @log_exceptions
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Start timing a validation batch."""
        if (observer := self._observer) is not None:
            observer.validation.on_batch_start()

    @log_exceptions
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop timing a validation batch. End the run if the validation would exceed the budget by far.

        The fit ends at once, without its later hooks. A validation that is cut short would report means over a few
        batches, which could select a wrong best checkpoint.

        Raises:
            BudgetExceededError: The budget is used up.
        """
        fit = self._fit
        if fit is None:
            return
        if trainer.sanity_checking:
            if fit.observer is not None:
                fit.observer.validation.on_batch_end()
            return
        fit.validated_batches += 1
        interval = 1 if isinstance(fit.rank_agreement, SingleProcess) else fit.validation_interval
        is_due = interval is not None and fit.validated_batches % interval == 0
        self._on_rank_zero(fit, is_due, lambda: self._validation_batch_ends(trainer, fit))
        if not is_due or self.on_exceed == "warn" or minimums_preventing_stop(trainer):
            return
        decision = self._agree(fit, lambda: self._judge_validation(trainer, fit))
        if decision["action"] == "warn":
            fit.overrun = decision["reason"]  # the run will end after this validation
        elif decision["action"] == "stop":
            self._end_within_validation(trainer, fit, decision["reason"])

    @log_exceptions
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the price, report settings that prevent a stop, and stop at once if earlier fits used up the budget."""
        fit = self._fit
        if fit is None:
            return
        if fit.observer is not None:
            is_manual = not pl_module.automatic_optimization
            fit.observer.windows.start_training(optimizer_steps_done=trainer.global_step, is_manual=is_manual)
        fit.schedule = None if isinstance(fit.rank_agreement, SingleProcess) else AgreementSchedule()
        batches = _validation_batches(trainer)
        decision = self._agree(
            fit, lambda: self._open(trainer, fit) | self._settings | {"checkpoint": fit.place.checkpoint}, alike=batches
        )
        fit.place = replace(fit.place, checkpoint=decision["checkpoint"])
        self._follow(decision)
        self._act(trainer, fit, decision, can_save=False)

    @log_exceptions
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude validation from the wait for the loader, because it is timed separately."""
        if self._fit is not None:
            self._fit.validated_batches = 0
        if (observer := self._observer) is not None:
            observer.on_validation_start(is_check=trainer.sanity_checking)

    @log_exceptions
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the forecast of later validations from this validation. End the run if the budget is used up."""
        fit = self._fit
        if fit is None:
            return
        overrun, fit.overrun, fit.quiet_batches = fit.overrun, None, 0  # the forecast of the end changes
        self._on_rank_zero(fit, False, lambda: self._validation_ends(trainer, fit))
        if overrun is not None and not fit.has_ended:
            self._end(trainer, fit, overrun, can_save=True)

    def _is_start_done(self) -> bool:
        """Time the start of a batch, unless another callback did."""
        fit = self._fit
        if fit is not None and fit.observer is not None and fit.observer.batch_start is None:
            fit.observer.on_batch_start()
        return True

    @log_exceptions_unless(_is_start_done)
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Start timing the batch."""

    def _is_end_done(self) -> bool:
        """Time the end of a batch. Return whether no check is due."""
        fit = self._fit
        if fit is None or fit.has_ended:
            return True
        observer = fit.observer
        if observer is None or fit.schedule is not None:
            return False
        if observer.batch_start is not None:
            observer.on_batch_end(fit.optimizer_steps_done)
        is_quiet = observer.windows.batches < fit.quiet_batches and observer.ended < fit.quiet_until
        return is_quiet and self._ledger.clock() < fit.next_check

    @log_exceptions_unless(_is_end_done)
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the used amounts and, if a forecast is due, the forecast."""
        fit = self._fit
        if fit is None or fit.has_ended:
            return
        schedule = fit.schedule
        is_due = schedule is not None and schedule.on_batch_end()
        if schedule is None:
            self._count_batch(trainer, fit, is_due=False)
        else:
            self._on_rank_zero(fit, is_due, lambda: self._count_batch(trainer, fit, is_due=is_due))
        if is_due or (schedule is None and fit.judge is not None):
            decision = self._agree(fit, lambda: self._decide(trainer, fit), alike=_validation_batches(trainer))
            if schedule is not None:
                schedule.agree_after(decision["batches"])
            self._act(trainer, fit, decision, can_save=True)

    @log_exceptions
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Repeat the reason for the stop at the very end."""
        if self.stopping_reason is not None:
            print_sentence(trainer, f"CostBudget ended this fit: {self.stopping_reason}.")

    @log_exceptions
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Record the used amounts; teardown is not called after an exception."""
        self._close(trainer, ended=False)

    @log_exceptions
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record the used amounts."""
        self._close(trainer, ended=True)

    def give_up(self, error: Exception) -> None:
        """Warn once, and do nothing until the next fit.

        With several ranks, this rank only stores its error. The next joint decision then turns the budget off on all
        ranks.
        """
        failure, fit = f"{type(error).__name__}: {error}", self._fit
        if fit is None or isinstance(fit.rank_agreement, SingleProcess):
            self._fit = None
            warn(f"CostBudget is off, and training continues without a budget: {failure}")
        else:
            fit.failure = fit.failure or failure
            fit.watch = fit.observer = fit.judge = None

    def _close(self, trainer: Trainer, *, ended: bool) -> None:
        """End the fit and its ledger; report an error that was not shared with the other ranks."""
        fit, self._fit = self._fit, None
        self._ledger.close()
        if fit is not None and trainer.is_global_zero and (fit.kept_seconds or fit.saved_seconds is not None):
            self._write_ledger(trainer, fit, ended=ended)
        if fit is not None and fit.failure is not None:
            say = warn if trainer.is_global_zero else log_warning
            say(f"CostBudget was off at the end of this fit: {fit.failure}")

    def _on_rank_zero(self, fit: _Fit, is_due: bool, look: Callable[[], None]) -> None:
        """Run `look` on rank zero. If the ranks decide now, an error in `look` is shared with the other ranks."""
        if fit.observer is None or fit.failure is not None:
            return
        try:
            look()
        except Exception as error:
            own_error(error)
            if not is_due or isinstance(fit.rank_agreement, SingleProcess):
                raise
            self.give_up(error)

    def _agree(self, fit: _Fit, ask: Callable[[], Decision], alike: int | None = None) -> Decision:
        """Decide together with the other ranks. An error on any rank is raised on all, which turns the budget off."""
        try:
            return fit.rank_agreement.agree(ask, failure=fit.failure, alike=None if alike is None else str(alike))
        except Exception:
            self._fit = None
            raise

    # --- Only on rank zero

    def _open(self, trainer: Trainer, fit: _Fit) -> dict[str, Any]:
        """Determine the limits of this fit, and check the amounts used by earlier fits."""
        self._find_ledger(trainer)
        limits = self.terms.limits_of(trainer, self._ledger)
        if not limits:
            return {"action": "off"}
        before, self._machine = self._machine, RentedMachine.of(trainer)
        if before is not None and before != self._machine:
            warn(
                f"CostBudget: this run moved from {before} to {self._machine}. Earlier use keeps its price; the rest "
                "is forecast from steps on this machine."
            )
        minimums = minimums_preventing_stop(trainer)
        if minimums and self.on_exceed == "stop":
            warn(f"CostBudget cannot stop this run before {minimums}, which Lightning enforces.")
        fit.watch = BudgetWatch(
            limits,
            self._ledger,
            schedule=ForecastSchedule(
                batches_per_window=trainer.accumulate_grad_batches, batches=batches_of_fit(trainer)
            ),
            warmup_steps=self.warmup_steps * trainer.accumulate_grad_batches,
        )
        if trainer.world_size > 1:
            print_sentence(
                trainer,
                f"CostBudget: {trainer.world_size} ranks decide together every {duration(CHECK_SECONDS)} (or every "
                "batch, if longer). The run may exceed its budget by that much.",
            )
        fit.judge = lambda: check_use(limits, 0.0)
        return self._decide(trainer, fit)

    def _find_ledger(self, trainer: Trainer) -> None:
        """Find the files of this run, and restore the used amounts from its ledger if they exceed the checkpoint's."""
        fit, folder, before = self._fit, os.fspath(trainer.default_root_dir), self._ledger.seconds_before
        assert fit is not None
        try:
            place = in_hook(
                folder,
                lambda: find_ledger(folder, run=self._run, resumed_seconds=before),
                seconds=wait_seconds(trainer, FILE_SECONDS),
            )
        except (OSError, InvalidArgumentError) as error:
            own_error(error)
            warn(f"CostBudget cannot read the ledger in {folder}: {error}")
            return
        fit.place, kept = place, place.kept
        if kept is None or self.scope == "run":
            return
        missing = kept.seconds - before
        if missing > 0:
            self._run = kept.run
            self._ledger.resume(
                seconds=kept.seconds, usd=kept.usd, kg_co2=kept.kg_co2, kg_co2_seconds=kept.kg_co2_seconds
            )
            print_sentence(
                trainer, f"CostBudget adds {duration(missing)} that {place.ledger} records and the checkpoint does not."
            )

    def _keep_ledger(self, trainer: Trainer, fit: _Fit, elapsed: float) -> None:
        """Save the used amounts to the ledger file, once a minute."""
        if elapsed >= fit.kept_seconds + LEDGER_SECONDS:
            fit.kept_seconds = elapsed
            self._write_ledger(trainer, fit)

    def _write_ledger(self, trainer: Trainer, fit: _Fit, *, ended: bool = False) -> None:
        path = fit.place.ledger
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        kept = SavedLedger(
            run=self._run,
            seconds=self._ledger.seconds,
            usd=self._ledger.usd,
            kg_co2=self._ledger.kg_co2,
            kg_co2_seconds=self._ledger.kg_co2_seconds,
            date=now,
            ended=ended,
            saved_seconds=fit.saved_seconds,
        )
        try:
            in_hook(path, lambda: save_ledger(path, kept), seconds=wait_seconds(trainer, FILE_SECONDS))
        except Exception as error:  # a failed write never turns the budget off
            own_error(error)
            if "ledger" not in self._warned:
                self._warned.add("ledger")
                warn(f"CostBudget could not write {path}: {type(error).__name__}: {error}")

    def _count_batch(self, trainer: Trainer, fit: _Fit, *, is_due: bool) -> None:
        """Count a batch, and prepare the next check. If the ranks decide now, always prepare a check."""
        watch, observer = fit.watch, fit.observer
        if watch is None or observer is None:
            return
        observer.on_batch_end(fit.optimizer_steps_done)
        elapsed = self._ledger.elapsed_seconds
        self._keep_ledger(trainer, fit, elapsed)
        question = None
        if is_due or fit.schedule is None:
            question = watch.due_check(observer.batches, observer.training_seconds, elapsed=elapsed)
            batches, seconds = watch.nothing_until(observer.batches)
            fit.quiet_batches, fit.quiet_until = 0 if question else batches, observer.time_at(seconds)
            fit.next_check = self._ledger.time_at(min(watch.next_seconds, fit.kept_seconds + LEDGER_SECONDS))
        if question is not None or is_due:
            fit.judge = lambda: self._judge_now(trainer, watch, observer, question or "use")

    def _judge_now(
        self, trainer: Trainer, watch: BudgetWatch, observer: RunObserver, question: DueCheck
    ) -> BudgetVerdict:
        """Check the used amounts and, if requested, the forecast of the rest of the run."""
        rest: RestOfRun | None = None

        def forecast(observer: RunObserver) -> RestOfRun:
            inputs = forecast_inputs(
                trainer, window_size=observer.windows.window_size, batches_per_epoch=observer.batches_per_epoch
            )
            rest = observer.rest(inputs)
            return rest if self.on_exceed == "stop" else replace(rest, end_seconds=0.0)

        if question != "use":
            observer.buffered = prefetched_batches(trainer)
            rest = forecast(observer)
            if rest.forecast is None and question == "forecast" and not self._warned:
                self._warned.add("length")
                pace = "" if rest.pace_in_words is None else f" {rest.pace_in_words}."
                what = "a warning follows" if self.on_exceed == "warn" else "it ends"
                print_sentence(
                    trainer, f"CostBudget: the length of this run is unknown; {what} once the budget is used up.{pace}"
                )
        verdict = watch.check(
            question,
            rest,
            without_stalls=lambda: forecast(observer.without_stalls()),
            may_end_earlier=bool(trainer.early_stopping_callbacks),
        )
        if rest is not None or verdict.action == "stop":
            log_budget(trainer, watch, exceeded=verdict.action == "stop", reason=verdict.reason)
        return verdict

    def _decide(self, trainer: Trainer, fit: _Fit) -> dict[str, Any]:
        """Check the budget, report the result, and decide for all ranks."""
        observer, judge, fit.judge = fit.observer, fit.judge, None
        if fit.watch is None or observer is None:
            raise LightningPredictError("nothing was watched")
        verdict = GO_ON if judge is None else judge()
        validation = observer.validation.times()
        batch_seconds = None if validation is None or validation.batch is None else validation.batch.middle
        decision: dict[str, Any] = {
            "action": "go on",
            "batches": batches_between_checks(observer),
            "validation_interval": None if not batch_seconds else max(1, math.ceil(CHECK_SECONDS / batch_seconds)),
        }
        if verdict.action in ("warn", "stop"):
            send_notices(trainer, self.webhook, verdict)
        if verdict.action == "warn":
            warn_and_log(trainer, verdict.reason)
        if verdict.action != "stop":
            return decision
        if self.on_exceed == "warn":
            warn(f"CostBudget: {verdict.reason}.")
            return decision | {"action": "off"}  # everything was reported already
        lost = batches_without_step(trainer, observer.windows)
        return decision | {"action": "stop", "reason": verdict.reason, "lost": lost}

    def _validation_batch_ends(self, trainer: Trainer, fit: _Fit) -> None:
        if fit.observer is not None:
            fit.observer.validation.on_batch_end()
        if fit.watch is not None:
            self._keep_ledger(trainer, fit, self._ledger.elapsed_seconds)

    def _validation_ends(self, trainer: Trainer, fit: _Fit) -> None:
        """Update the forecast of the final validation from the last validation."""
        if fit.observer is None:
            return
        fit.observer.on_validation_end()
        if fit.watch is not None and self.on_exceed == "stop":
            fit.watch.set_end_seconds(
                end_seconds(_validation_batches(trainer) or 0, None, fit.observer.validation.times())
            )

    def _judge_validation(self, trainer: Trainer, fit: _Fit) -> Decision:
        """Check the used amounts during a validation."""
        batches, validation = _validation_batches(trainer), None
        if fit.observer is not None:
            validation = fit.observer.validation.times()
        rest = None
        if validation is not None and validation.batch is not None and batches is not None:
            rest = max(0, batches - fit.validated_batches) * (validation.batch.middle + validation.wait.middle)
        verdict = GO_ON if fit.watch is None else fit.watch.check_validation(rest)
        if verdict.action == "stop":
            send_notices(trainer, self.webhook, verdict)
        return {"action": verdict.action, "reason": verdict.reason}

    # --- On every rank

    @property
    def _settings(self) -> dict[str, Any]:
        """Settings that must be the same on every rank."""
        return {"on_exceed": self.on_exceed, "warmup_steps": self.warmup_steps}

    def _follow(self, decision: Decision) -> None:
        """Adopt the settings of rank zero. Log a message if this rank had other settings."""
        own, common = self._settings, {name: decision[name] for name in self._settings}
        if own == common:
            return
        self.on_exceed, self.warmup_steps = common["on_exceed"], common["warmup_steps"]
        given, instead = (", ".join(f"{name}={value!r}" for name, value in one.items()) for one in (own, common))
        log_warning(
            f"CostBudget: this rank got {given}, but rank zero got {instead}. Rank zero's values apply on all ranks."
        )

    def _act(self, trainer: Trainer, fit: _Fit, decision: Decision, *, can_save: bool) -> None:
        # Ranks with different numbers of validation batches would deadlock.
        fit.validation_interval = decision.get("validation_interval") if decision.get("alike") else None
        if decision["action"] == "off":
            self._fit = None
        elif decision["action"] == "stop":
            self._end(trainer, fit, decision["reason"], can_save=can_save, lost=decision["lost"])

    def _end(self, trainer: Trainer, fit: _Fit, reason: str, *, can_save: bool, lost: int = 0) -> None:
        """End the run, with a checkpoint if `can_save`. The gradients of the last `lost` batches are lost."""
        self.stopping_reason, fit.has_ended = reason, True
        mark(STOPPED_VARIABLE)
        if self.on_exceed == "stop":
            trainer.should_stop = True
        batches = "batch" if lost == 1 else f"{lost:,} batches"
        saved = f" Gradients of the last {batches} without an optimizer step are lost." if lost else ""
        saved += self._save(trainer, fit) if can_save else ""
        if self.on_exceed == "raise":
            raise BudgetExceededError(f"CostBudget: {reason}.{saved}")
        print_sentence(trainer, f"CostBudget ends this run: {reason}.{saved}")

    def _end_within_validation(self, trainer: Trainer, fit: _Fit, reason: str) -> None:
        """End the run, with a checkpoint, by an exception.

        `fit` catches the exception if the budget is to stop the run.

        Raises:
            BudgetExceededError: Always, except if a launcher would pass the exception on to the script; the validation
                then continues.
        """
        end = end_of_fit(trainer) if self.on_exceed == "stop" else BudgetExceededError
        if end is None:
            fit.overrun = reason
            return
        saved = "" if fit.has_ended else self._save(trainer, fit)  # already saved if the run was told to stop
        self.stopping_reason, fit.has_ended = self.stopping_reason or reason, True
        batches = _validation_batches(trainer)
        of = "" if batches is None else f" of {batches:,}"
        message = (
            f"CostBudget: {reason}. Validation stopped after {fit.validated_batches:,}{of} batches (the rest would "
            f"take too long); its metrics are dropped.{saved}{saved and ' A resume continues after this validation.'}"
        )
        mark(STOPPED_VARIABLE)
        if self.on_exceed == "stop":
            print_sentence(trainer, message)
            leave_validation(trainer)
        raise end(message)

    def _save(self, trainer: Trainer, fit: _Fit) -> str:
        """Write a checkpoint. Return a sentence with its path, and with the order of data after a resume.

        This must be called on every rank. If any rank fails to write, the result is empty, and a warning is shown.
        """
        path, problem = fit.place.checkpoint, ""
        try:
            fit.is_saving = not trainer.validating
            try:
                trainer.save_checkpoint(path, weights_only=False)
            except BaseException as error:  # a full disk must not keep the run alive
                if isinstance(error, KeyboardInterrupt | SystemExit):  # torch's CheckpointException is no Exception
                    raise
                own_error(error)
                lines = str(error).strip().splitlines() or [""]
                problem = f"{type(error).__name__}: {', '.join(dict.fromkeys((lines[0], lines[-1])))}"
                try:
                    trainer.strategy.barrier("Trainer.save_checkpoint")  # the other ranks wait for this rank there
                except Exception as another:
                    problem += f"; then {type(another).__name__}: {another}"
            fit.rank_agreement.agree(dict, failure=problem or None)
            fit.saved_seconds = fit.stated_seconds
            where = f" Its checkpoint is {path}."
            if trainer.is_last_batch or resumes_data(trainer):
                return where
            return (
                f"{where} The loader has no state_dict: a resume trains the remaining number of batches of this epoch, "
                "but starts from the epoch's first batch."
            )
        except Exception as error:
            words = str(error) if isinstance(error, LightningPredictError) else f"{type(error).__name__}: {error}"
            warn(f"CostBudget could not write {path}: {words}")
            return ""
        finally:
            fit.is_saving = False


def amount_before(state: dict[str, Any], name: str) -> float:
    """Read a used amount from a checkpoint.

    Raises:
        InvalidArgumentError: The value is not a number of at least 0.
    """
    amount = state.get(name)
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
        raise InvalidArgumentError(f"{name}={amount!r} in the state of CostBudget; expected a number of at least 0.")
    return float(amount)


def _validation_batches(trainer: Trainer) -> int | None:
    """Return the number of batches of a validation run; None if unknown, or without validation."""
    batches = sum(trainer.num_val_batches) if trainer.num_val_batches else 0
    return int(batches) if 0 < batches < math.inf else None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Emissions:
    """Budget of CO2 emissions, with the inputs to compute the emissions.

    Attributes:
        kg_co2: Budget in kilograms of CO2-equivalent.
        grid: Electric grid that feeds the machines.
        watts: Power of all machines; None uses the power limits of the GPUs.
        pue: Power usage effectiveness of the data centre.
    """

    kg_co2: float
    grid: PowerGrid
    watts: float | None
    pue: float

    @staticmethod
    def checked(
        *, kg_co2: float | Decimal | Fraction | None, grid: str | float | None, watts: float | None, pue: float
    ) -> Emissions | None:
        """Parse the CO2 arguments of `CostBudget`; None without a CO2 limit.

        Raises:
            InvalidArgumentError: A limit has no grid, or a number is out of its range.
        """
        if kg_co2 is None:
            if grid is not None or watts is not None or pue != 1:
                raise InvalidArgumentError("grid, watts and pue are for a limit in CO2; give it with kg_co2.")
            return None
        if grid is None:
            raise InvalidArgumentError(
                f"kg_co2={kg_co2} depends on the location of the machines; give grid, a place (europe-west3, "
                "Frankfurt) or grams of CO2 per kWh."
            )
        if (positive_number(pue) or 0.0) < 1:
            raise InvalidArgumentError(f"pue={pue!r} is out of range; expected a number of at least 1.")
        from lightning_predict.cost.grids import grid_of

        return Emissions(
            kg_co2=amount_of("kg_co2", kg_co2),
            grid=grid_of(grid),
            watts=None if watts is None else amount_of("watts", watts),
            pue=float(pue),
        )

    def per_second(self, trainer: Trainer) -> float | None:
        """Return kilograms of CO2 per second of this fit. If the machines' power is unknown, warn and return None."""
        watts, name = self.watts, gpu_name_in_use(trainer.strategy.root_device)
        if watts is None and name is not None:
            watts = energy(0.0, find_gpu(name), busy_share=1.0).watts * trainer.world_size
        if watts is None:
            warn("CostBudget: the power of this machine is unknown, so kg_co2 has no effect; give watts.")
            return None
        grams = self.grid.grams_per_kwh
        data_centre = "" if self.pue == 1 else f", times {self.pue:g} for the data centre"
        print_sentence(trainer, f"CostBudget counts {watts:,.0f} W{data_centre} at {self.grid.sentence}.")
        return seconds_to_hours(grams_to_kilograms(watts_to_kilowatts(watts * self.pue) * grams)) or None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Limits and prices of a budget; None for a limit that is not set.

    Attributes:
        usd: Limit in US dollars.
        hours: Limit in hours.
        deadline: Deadline, a time with a time zone.
        usd_per_hour: The user's own price of all machines of the run.
        offer: Offer that the user named.
        emissions: Limit in CO2.
        charges: Costs other than training time.
    """

    usd: float | None
    hours: float | None
    deadline: datetime | None
    usd_per_hour: float | None
    offer: Offer | None
    emissions: Emissions | None = None
    charges: Charges = field(default_factory=Charges)

    @staticmethod
    def checked(
        *,
        usd: float | Decimal | Fraction | None = None,
        hours: float | Decimal | Fraction | timedelta | None = None,
        deadline: str | datetime | None = None,
        usd_per_hour: float | Decimal | Fraction | None = None,
        offer: str | None = None,
        emissions: Emissions | None = None,
        charges: Charges | None = None,
    ) -> Terms:
        """Parse and check the arguments of `CostBudget`.

        Raises:
            InvalidArgumentError: There is no limit, or a limit is not positive or has passed.
            UnknownOfferError: No offer with this name is listed.
        """
        if usd is None and hours is None and deadline is None and emissions is None:
            raise InvalidArgumentError("CostBudget got no limit; give at least one of usd, hours, deadline and kg_co2.")
        check_name("offer", offer, "AWS g5.xlarge")
        check_price(usd_per_hour)
        return Terms(
            usd=None if usd is None else amount_of("usd", usd),
            hours=None if hours is None else hours_of("hours", hours),
            deadline=None if deadline is None else future_time("deadline", deadline),
            usd_per_hour=None if usd_per_hour is None else float(usd_per_hour),
            offer=None if offer is None else named_offer(offer),
            emissions=emissions,
            charges=charges or Charges(),
        )

    @property
    def description(self) -> str:
        """All limits as given, for example `$20.00 and 6 h`."""
        limits = [
            None if self.usd is None else dollars(self.usd),
            None if self.hours is None else duration(hours_to_seconds(self.hours)),
            None if self.deadline is None else f"time until {self.deadline.astimezone():%Y-%m-%d %H:%M %Z}",
            None if self.emissions is None else f"{significant(self.emissions.kg_co2)} kg CO2",
        ]
        return " and ".join(limit for limit in limits if limit is not None)

    def limits_of(self, trainer: Trainer, ledger: Ledger) -> tuple[Limit, ...]:
        """Print and return the limits of a fit that begins, and set the price in the ledger."""
        counted = ""
        if self.usd is not None:
            price = price_of_run(
                usd_per_hour=self.usd_per_hour,
                offer=self.offer,
                gpu=gpu_name_in_use(trainer.strategy.root_device),
                world_size=trainer.world_size,
                num_nodes=trainer.num_nodes,
            )
            ledger.usd_per_second = seconds_to_hours(price.usd_per_hour or 0.0)
            if price.warning is not None:
                warn(f"CostBudget: {price.warning}.")
            if price.source is not None and price.usd_per_hour is not None:
                counted = f"; it counts {in_words(price.usd_per_hour)} ({price.source})"
            elif price.usd_per_hour is not None:
                counted = f"; it counts {in_words(price.usd_per_hour)}"
        print_sentence(trainer, f"CostBudget allows {self.description}{counted}.")
        emissions = self.emissions
        if emissions is not None:
            ledger.kg_co2_per_second = emissions.per_second(trainer) or 0.0
        return limits_of_fit(
            ledger,
            usd=self.usd,
            hours=self.hours,
            deadline=self.deadline,
            spent_usd=self.charges.cost_usd(0.0, hours_to_seconds(ledger.usd_per_second)),
            kg_co2=None if emissions is None else emissions.kg_co2,
        )


def log_budget(trainer: Trainer, watch: BudgetWatch, *, exceeded: bool, reason: str = "") -> None:
    """Log the used, allowed and forecast amounts and, if the budget is exceeded, the reason."""
    refusals = log_values(trainer, BUDGET_GROUP, watch.metrics() | {"exceeded": float(exceeded)})
    if exceeded:
        refusals += log_event(trainer, BUDGET_GROUP, "exceeded", reason)
    for refusal in refusals:
        warn(refusal)


def send_notices(trainer: Trainer, webhook: str | None, verdict: BudgetVerdict) -> None:
    """Send an alert of Weights & Biases and a webhook notice about a warning or a stop."""
    from lightning_predict.callbacks.notices import notify

    event = "exceeded" if verdict.action == "stop" else "warned"
    for refusal in notify(trainer, webhook, event=event, reason=verdict.reason):
        warn(refusal)


def warn_and_log(trainer: Trainer, reason: str) -> None:
    """Show a warning, and log it as an event."""
    warn(f"CostBudget: {reason}.")
    refusals = log_values(trainer, BUDGET_GROUP, {"warned": 1.0})
    for refusal in refusals + log_event(trainer, BUDGET_GROUP, "warned", reason):
        warn(refusal)
