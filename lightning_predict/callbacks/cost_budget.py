"""`CostBudget`: callback that stops a run that will exceed its budget, before it has cost much.

The first steps are timed. If the forecast from these steps exceeds the budget, the run stops with a checkpoint. Later,
the dollars, hours and CO2 that the run has used are compared with the budget; a resumed run continues the earlier
totals. The final checkpoint stores the used amounts and the reason for the stop. Example::

    from lightning.pytorch import Trainer
    from lightning_predict.callbacks import CostBudget

    Trainer(max_epochs=10, callbacks=[CostBudget(usd=50, hours=12)]).fit(model)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, final

from lightning_predict.base.errors import BudgetExceededError, LightningPredictError
from lightning_predict.base.files import STOPPED_VARIABLE, mark
from lightning_predict.base.guard import (
    fallback_on_error,
    log_exceptions,
    log_exceptions_unless,
    log_warning,
    own_error,
)
from lightning_predict.callbacks.arguments import check_choice, check_steps
from lightning_predict.callbacks.budget_account import Account, BudgetFiles
from lightning_predict.callbacks.budget_decisions import BudgetDecisions, BudgetSettings, validation_batches
from lightning_predict.callbacks.budget_terms import Emissions, Terms
from lightning_predict.callbacks.lightning_packages import LIGHTNINGS_OWN, end_of_fit, leave_validation, warn
from lightning_predict.callbacks.observing import ObservingCallback
from lightning_predict.callbacks.output import print_sentence
from lightning_predict.callbacks.trainer_state import inactive_mode, minimums_preventing_stop
from lightning_predict.cost.prediction import Charges
from lightning_predict.observe.ledger_file import LEDGER_STEM
from lightning_predict.observe.rank_agreement import (
    AgreementSchedule,
    Decision,
    RankAgreement,
    SingleProcess,
    rank_agreement,
)
from lightning_predict.observe.run_observer import RunObserver, observer_of

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


CHECKPOINT_NAME: Final = f"{LEDGER_STEM}.ckpt"
"""File name of the checkpoint of the first run in a folder."""


def _warn_state_lost(budget: CostBudget, error: Exception) -> None:
    """Warn, once per fit, that checkpoints are written without the used amounts."""
    if not budget._has_lost_state:
        budget._has_lost_state = True
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
        rank_agreement: Decides together with the other ranks.
        files: Ledger file and checkpoint.
        decisions: Rank zero's part; None on the other ranks, and after an error.
        schedule: Decides after which batches the ranks decide; None for one process.
        failure: Error on this rank that the other ranks do not know yet; None without an error.
        has_ended: Whether the budget stops the run.
        overrun: Reason to stop the run after the current validation.
        validation_interval: Validation batches between two checks; None for no checks.
        validated_batches: Batches of the current validation.
    """

    def __init__(self, agreement: RankAgreement, files: BudgetFiles) -> None:
        self.rank_agreement = agreement
        self.files = files
        self.decisions: BudgetDecisions | None = None
        self.schedule: AgreementSchedule | None = None
        self.failure: str | None = None
        self.has_ended = False
        self.overrun: str | None = None
        self.validation_interval: int | None = None
        self.validated_batches = 0

    @property
    def observer(self) -> RunObserver | None:
        """Observer of this fit; None on the other ranks, and after an error."""
        return None if self.decisions is None else self.decisions.observer


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
        self._account = Account()
        self._has_lost_state = False
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
        fit, later = self._fit, 0.0
        if fit is not None and fit.files.is_saving and fit.decisions is not None:
            later = fit.decisions.end_seconds  # the final validation comes after the run's last checkpoint
        state = self._account.state(later)
        if fit is not None:
            fit.files.stated_seconds = state["seconds"]
        return state | {"stopping_reason": self.stopping_reason}

    @fallback_on_error(lambda: None, _say_state_is_unread)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the used amounts from a checkpoint, unless `scope` is `run`."""
        self._account.load(state_dict, counts_earlier=self._settings.counts_earlier)

    @log_exceptions
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset for a new fit. Time counts from here."""
        if stage != "fit":
            return
        self._fit = self.stopping_reason = None
        self._has_lost_state = False
        mode = inactive_mode(trainer)
        if mode is None:
            agreement = rank_agreement(trainer)  # before any code that may fail on one rank only
            self._fit = _Fit(agreement, BudgetFiles(self._account, os.fspath(trainer.default_root_dir)))
        settings = self._settings
        self._account.ledger.open(forget=not settings.counts_earlier)
        if self._fit is None:
            warn(f"CostBudget does nothing under Trainer({mode}).")
        elif trainer.is_global_zero:
            import_module("lightning_predict.timeline.step_prediction")  # for forecasts, so that no step waits
            self._fit.decisions = BudgetDecisions(
                settings,
                self._fit.files,
                observer_of(trainer, device=trainer.strategy.root_device),
                steps_done=lambda: trainer.global_step,
            )

    @property
    def _settings(self) -> BudgetSettings:
        return BudgetSettings(
            terms=self.terms,
            counts_earlier=self.scope == "cumulative",
            on_exceed=self.on_exceed,
            warmup_steps=self.warmup_steps,
            webhook=self.webhook,
        )

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
        self._on_rank_zero(fit, is_due, lambda decisions: decisions.on_validation_batch_end(trainer))
        if not is_due or self.on_exceed == "warn" or minimums_preventing_stop(trainer):
            return
        validated = fit.validated_batches
        decision = self._agree(fit, lambda decisions: decisions.decide_in_validation(trainer, validated))
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
        common = self._common_settings
        decision = self._agree(
            fit,
            lambda decisions: {**decisions.open(trainer), **common, "checkpoint": decisions.files.place.checkpoint},
            alike=validation_batches(trainer),
        )
        fit.files.use_checkpoint(decision["checkpoint"])
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
        overrun, fit.overrun = fit.overrun, None
        self._on_rank_zero(fit, False, lambda decisions: decisions.on_validation_end(trainer))
        if overrun is not None and not fit.has_ended:
            self._end(trainer, fit, overrun, can_save=True)

    def _is_start_done(self) -> bool:
        """Time the start of a batch, unless another callback did."""
        fit = self._fit
        decisions = None if fit is None else fit.decisions
        if decisions is not None and decisions.observer.batch_start is None:
            decisions.observer.on_batch_start()
        return True

    @log_exceptions_unless(_is_start_done)
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Start timing the batch."""

    def _is_end_done(self) -> bool:
        """Time the end of a batch. Return whether no check is due."""
        fit = self._fit
        if fit is None or fit.has_ended:
            return True
        decisions = fit.decisions
        if decisions is None or fit.schedule is not None:
            return False
        observer = decisions.observer
        if observer.batch_start is not None:
            observer.on_batch_end(decisions.steps_done)
        is_quiet = observer.windows.batches < decisions.quiet_batches and observer.ended < decisions.quiet_until
        return is_quiet and self._account.ledger.clock() < decisions.next_check

    @log_exceptions_unless(_is_end_done)
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the used amounts and, if a forecast is due, the forecast."""
        fit = self._fit
        if fit is None or fit.has_ended:
            return
        schedule, decisions = fit.schedule, fit.decisions
        is_due = schedule is not None and schedule.on_batch_end()
        if schedule is not None:
            self._on_rank_zero(
                fit, is_due, lambda decisions: decisions.count_batch(trainer, is_due=is_due, is_alone=False)
            )
        elif decisions is not None:
            decisions.count_batch(trainer, is_due=False, is_alone=True)
        if is_due or (schedule is None and decisions is not None and decisions.judge is not None):
            decision = self._agree(fit, lambda decisions: decisions.decide(trainer), alike=validation_batches(trainer))
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
            fit.decisions = None

    def _close(self, trainer: Trainer, *, ended: bool) -> None:
        """End the fit and its ledger; report an error that was not shared with the other ranks."""
        fit, self._fit = self._fit, None
        self._account.ledger.close()
        if fit is not None and trainer.is_global_zero:
            fit.files.close(trainer, ended=ended)
        if fit is not None and fit.failure is not None:
            say = warn if trainer.is_global_zero else log_warning
            say(f"CostBudget was off at the end of this fit: {fit.failure}")

    def _on_rank_zero(self, fit: _Fit, is_due: bool, look: Callable[[BudgetDecisions], None]) -> None:
        """Run `look` on rank zero. If the ranks decide now, an error in `look` is shared with the other ranks."""
        if fit.decisions is None or fit.failure is not None:
            return
        try:
            look(fit.decisions)
        except Exception as error:
            own_error(error)
            if not is_due or isinstance(fit.rank_agreement, SingleProcess):
                raise
            self.give_up(error)

    def _agree(self, fit: _Fit, ask: Callable[[BudgetDecisions], Decision], alike: int | None = None) -> Decision:
        """Decide together with the other ranks. An error on any rank is raised on all, which turns the budget off."""

        def decide() -> Decision:
            if fit.decisions is None:
                raise LightningPredictError("nothing was watched")
            return ask(fit.decisions)

        try:
            return fit.rank_agreement.agree(decide, failure=fit.failure, alike=None if alike is None else str(alike))
        except Exception:
            self._fit = None
            raise

    @property
    def _common_settings(self) -> dict[str, Any]:
        """Settings that must be the same on every rank."""
        return {"on_exceed": self.on_exceed, "warmup_steps": self.warmup_steps}

    def _follow(self, decision: Decision) -> None:
        """Adopt the settings of rank zero. Log a message if this rank had other settings."""
        own = self._common_settings
        common = {name: decision[name] for name in own}
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
        saved += fit.files.save_checkpoint(trainer, fit.rank_agreement) if can_save else ""
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
        saved = (
            "" if fit.has_ended else fit.files.save_checkpoint(trainer, fit.rank_agreement)
        )  # already saved if the run was told to stop
        self.stopping_reason, fit.has_ended = self.stopping_reason or reason, True
        batches = validation_batches(trainer)
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
