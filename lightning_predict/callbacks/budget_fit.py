"""`BudgetFit`: a budget in one fit. Rank zero observes and judges; all ranks act together on its decisions.

Example::

    fit = BudgetFit(account, settings, trainer, switch_off=lambda: None)
    fit.observe()                # on rank zero
    fit.starts_training()        # finds the limits, and stops at once if earlier fits used up the budget
    fit.batch_ends(batch)        # checks, decides with the other ranks, and stops the run
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from lightning_predict.base.errors import BudgetExceededError, LightningPredictError
from lightning_predict.base.files import STOPPED_VARIABLE, mark
from lightning_predict.base.guard import keeps_random_state, log_warning, own_error
from lightning_predict.callbacks.budget_files import Account, BudgetFiles
from lightning_predict.callbacks.hooks import FitPart
from lightning_predict.callbacks.lightning_packages import end_of_fit, leave_validation, warn
from lightning_predict.callbacks.output import BUDGET_GROUP, log_event, log_values, print_sentence
from lightning_predict.callbacks.trainer_state import (
    batches_of_fit,
    batches_without_step,
    forecast_inputs,
    minimums_preventing_stop,
    prefetched_batches,
)
from lightning_predict.observe.budget import (
    CHECK_SECONDS,
    GO_ON,
    BudgetVerdict,
    BudgetWatch,
    DueCheck,
    batches_between_checks,
    check_use,
)
from lightning_predict.observe.forecast import ForecastSchedule, RestOfRun, end_seconds
from lightning_predict.observe.meters import RentedMachine, Terms
from lightning_predict.observe.rank_agreement import AgreementSchedule, Decision, SingleProcess, rank_agreement
from lightning_predict.observe.run_observer import RunObserver, observer_of
from lightning_predict.reports.format import duration

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Settings of a budget, as given to `CostBudget`."""

    terms: Terms
    counts_earlier: bool  # Whether the amounts used before a resume count
    on_exceed: Literal["stop", "warn", "raise"]
    warmup_steps: int  # Minimum number of steps before the first forecast


class BudgetFit(FitPart):
    """A budget in one fit."""

    def __init__(
        self, account: Account, settings: BudgetSettings, trainer: Trainer, *, switch_off: Callable[[], None]
    ) -> None:
        self._trainer = trainer
        self._agreement = rank_agreement(trainer)  # before any code that may fail on one rank only
        # Whether this is the only process, so that nothing is decided together
        self.is_alone = isinstance(self._agreement, SingleProcess)
        # Error on this rank that the other ranks do not know yet; None without an error
        self.failure: str | None = None
        self.files = BudgetFiles(account, trainer)
        self._account, self._settings, self._switch_off = account, settings, switch_off
        self._schedule: AgreementSchedule | None = None
        self._watch: BudgetWatch | None = None
        self._judge: Callable[[], BudgetVerdict] | None = None  # of a check that is due
        # Before these, no forecast and no other check is due.
        self._quiet_batches: float = 0
        self._quiet_until = self._next_check = 0.0
        self._knows_length = True
        self._cannot_forecast = False
        self._has_ended = False
        self._overrun: str | None = None  # reason to stop the run after the current validation
        self._validation_interval: int | None = None  # batches between two checks
        self._validated = 0

    def observe(self) -> None:
        """Observe the fit, on rank zero."""
        import_module("lightning_predict.timeline.step_prediction")  # for forecasts, so that no step waits
        self.observer = observer_of(self._trainer, device=self._trainer.strategy.root_device)

    def fail(self, error: Exception) -> None:
        """Store an error, which the next joint decision tells the other ranks."""
        self.failure = self.failure or f"{type(error).__name__}: {error}"
        self.observer = None

    @property
    def later_seconds(self) -> float:
        """Seconds of this fit after the checkpoint that is being written: the final validation, if known."""
        return self._watch.end_seconds if self.files.is_saving and self._watch is not None else 0.0

    # --- Hooks

    def starts_training(self) -> None:
        """Find the price, report settings that prevent a stop, and stop at once if earlier fits used up the budget."""
        super().starts_training()
        self._schedule = None if self.is_alone else AgreementSchedule()
        common = {"on_exceed": self._settings.on_exceed, "warmup_steps": self._settings.warmup_steps}
        decision = self._agree(
            lambda observer: {**self._open(observer), **common}, alike=_validation_batches(self._trainer)
        )
        agreed = {name: decision[name] for name in common}
        if agreed != common:
            self._settings = replace(self._settings, **agreed)
            given, instead = (
                ", ".join(f"{name}={value!r}" for name, value in values.items()) for values in (common, agreed)
            )
            log_warning(
                f"CostBudget: this rank got {given}, but rank zero got {instead}. Rank zero's values apply on all "
                "ranks."
            )
        self._act(decision, can_save=False)

    def batch_starts_quietly(self) -> bool:
        """Time the start of a batch, unless another callback did."""
        observer = self.observer
        if observer is not None and observer.batch_start is None:
            observer.on_batch_start()
        return True

    def batch_ends_quietly(self) -> bool:
        """Time the end of a batch. Return whether no check is due."""
        if self._has_ended:
            return True
        observer = self.observer
        if observer is None or self._schedule is not None:
            return False
        if observer.batch_start is not None:
            observer.on_batch_end(self._steps_done)
        is_quiet = observer.windows.batches < self._quiet_batches and observer.ended < self._quiet_until
        return is_quiet and self._account.ledger.clock() < self._next_check

    def batch_ends(self, batch: object) -> None:
        """Check the used amounts and, if a forecast is due, the forecast."""
        schedule = self._schedule
        is_due = schedule is not None and schedule.on_batch_end()
        self._on_rank_zero(lambda observer: self._count_batch(observer, is_due=is_due), is_shared=is_due)
        if is_due or (schedule is None and self._judge is not None):
            decision = self._agree(self._decide, alike=_validation_batches(self._trainer))
            if schedule is not None:
                schedule.agree_after(decision["batches"])
            self._act(decision, can_save=True)

    def validation_starts(self) -> None:
        """Count the batches of a validation."""
        super().validation_starts()
        self._validated = 0

    def validation_batch_ends(self, outputs: object, batch: object, *_: object) -> None:
        """End the run if the validation would exceed the budget by far.

        The fit ends at once, without its later hooks. A validation that is cut short would report means over a few
        batches, which could select a wrong best checkpoint.
        """
        super().validation_batch_ends(outputs, batch)
        if self._trainer.sanity_checking:
            return
        self._validated += 1
        interval = 1 if self.is_alone else self._validation_interval
        is_due = interval is not None and self._validated % interval == 0
        self._on_rank_zero(self._keep_ledger, is_shared=is_due)
        if not is_due or self._settings.on_exceed == "warn" or minimums_preventing_stop(self._trainer):
            return
        decision = self._agree(self._decide_in_validation)
        if "checkpoint" in decision:
            self.files.use_checkpoint(decision["checkpoint"])
        if decision["action"] == "warn":
            self._overrun = decision["reason"]  # the run will end after this validation
        elif decision["action"] == "stop":
            self._end_within_validation(decision["reason"])

    def validation_ends(self) -> None:
        """Update the forecast of later validations from this validation. End the run if the budget is used up."""
        super().validation_ends()
        overrun, self._overrun = self._overrun, None
        self._on_rank_zero(self._expect_validation)
        if overrun is not None and not self._has_ended:
            self._end(overrun, can_save=True)

    def closes(self, *, ended: bool) -> None:
        """Write the ledger file; report an error that was not shared with the other ranks."""
        if self._trainer.is_global_zero:
            self.files.close(ended=ended)
        if self.failure is not None:
            say = warn if self._trainer.is_global_zero else log_warning
            say(f"CostBudget was off at the end of this fit: {self.failure}")

    # --- Rank zero

    @keeps_random_state
    def _open(self, observer: RunObserver) -> Decision:
        """Determine the limits of this fit, and check the amounts used by earlier fits."""
        account, settings, trainer = self._account, self._settings, self._trainer
        self.files.find(counts_earlier=settings.counts_earlier)
        machine = RentedMachine.of(
            trainer.strategy.root_device, world_size=trainer.world_size, num_nodes=trainer.num_nodes
        )
        allowed = settings.terms.start(machine, account.ledger)
        for warning in allowed.warnings:
            warn(f"CostBudget: {warning}.")
        print_sentence(trainer, f"CostBudget allows {allowed.sentence}.")
        if not allowed.meters:
            return {"action": "off"}
        before, account.machine = account.machine, machine
        if before is not None and str(before) != str(machine):
            warn(
                f"CostBudget: this run moved from {before} to {machine}. Earlier use keeps its price; the rest "
                "is forecast from steps on this machine."
            )
        minimums = minimums_preventing_stop(trainer)
        if minimums and settings.on_exceed == "stop":
            warn(f"CostBudget cannot stop this run before {minimums}, which Lightning enforces.")
        batches = trainer.accumulate_grad_batches
        self._watch = BudgetWatch(
            allowed.meters,
            account.ledger,
            schedule=ForecastSchedule(batches_per_window=batches, batches=batches_of_fit(trainer)),
            warmup_steps=settings.warmup_steps * batches,
        )
        if trainer.world_size > 1:
            print_sentence(
                trainer,
                f"CostBudget: {trainer.world_size} ranks decide together every {duration(CHECK_SECONDS)} (or every "
                "batch, if longer). The run may exceed its budget by that much.",
            )
        self._judge = lambda: check_use(allowed.meters, 0.0)
        return self._decide(observer)

    def _keep_ledger(self, observer: RunObserver) -> None:
        if self._watch is not None:
            self.files.keep(self._account.ledger.elapsed_seconds)

    def _count_batch(self, observer: RunObserver, *, is_due: bool) -> None:
        """Count a batch, and prepare the next check."""
        watch, ledger = self._watch, self._account.ledger
        if watch is None:
            return
        observer.on_batch_end(self._steps_done)
        elapsed, due = ledger.elapsed_seconds, None
        self.files.keep(elapsed)
        if is_due or self.is_alone:
            due = watch.due_check(observer.batches, observer.training_seconds, elapsed=elapsed)
            batches, seconds = watch.nothing_until(observer.batches)
            self._quiet_batches, self._quiet_until = 0 if due else batches, observer.time_at(seconds)
            self._next_check = ledger.time_at(min(watch.next_seconds, self.files.next_seconds))
        if due is not None or is_due:
            self._judge = lambda: self._check(observer, watch, due or "use")

    @keeps_random_state
    def _check(self, observer: RunObserver, watch: BudgetWatch, due: DueCheck) -> BudgetVerdict:
        """Check the used amounts and, if requested, the forecast of the rest of the run.

        If a forecast fails, for example because the package was removed, the used amounts still end the run.
        """
        rest: RestOfRun | None = None
        try:
            if due != "use" and not self._cannot_forecast:
                rest = self._forecast_rest(observer)
            verdict = watch.check(
                rest,
                at_best=lambda: self._forecast(observer, at_best=True),
                may_end_earlier=bool(self._trainer.early_stopping_callbacks),
            )
        except Exception as error:
            own_error(error)
            warn(f"CostBudget cannot forecast this run, and checks used amounts only: {type(error).__name__}: {error}")
            rest, self._cannot_forecast = None, True
            verdict = watch.check(None)
        if rest is not None or verdict.action == "stop":
            self._log(watch, verdict)
        return verdict

    def _forecast_rest(self, observer: RunObserver) -> RestOfRun:
        """Forecast the rest of the run. Tell once if its length is unknown."""
        observer.buffered = prefetched_batches(self._trainer)
        rest = self._forecast(observer)
        if rest.forecast is None and self._knows_length:
            self._knows_length = False
            pace = "" if rest.pace_in_words is None else f" {rest.pace_in_words}."
            what = "a warning follows" if self._settings.on_exceed == "warn" else "it ends"
            words = f"CostBudget: the length of this run is unknown; {what} once the budget is used up.{pace}"
            print_sentence(self._trainer, words)
        return rest

    def _forecast(self, observer: RunObserver, *, at_best: bool = False) -> RestOfRun:
        """Forecast the rest of the run; the final validation counts only if the budget stops the run."""
        inputs = forecast_inputs(
            self._trainer, window_size=observer.windows.window_size, batches_per_epoch=observer.batches_per_epoch
        )
        if at_best:
            observer = observer.at_best(inputs.position.batches_per_window)
        rest = observer.rest(inputs)
        return rest if self._settings.on_exceed == "stop" else replace(rest, end_seconds=0.0)

    def _decide(self, observer: RunObserver) -> Decision:
        """Check the budget, report the result, and decide for all ranks."""
        trainer, on_exceed, judge = self._trainer, self._settings.on_exceed, self._judge
        self._judge = None
        verdict = GO_ON if judge is None else judge()
        whole = batches_of_fit(trainer)
        if verdict.action == on_exceed == "stop" and whole == trainer.fit_loop.total_batch_idx + 1:
            verdict = BudgetVerdict("warn", verdict.reason)  # after the last batch, nothing is left to stop
        validation = observer.validation.times()
        batch_seconds = None if validation is None or validation.batch is None else validation.batch.middle
        decision: dict[str, Any] = {
            "action": "go on",
            "batches": batches_between_checks(observer),
            "validation_interval": None if not batch_seconds else max(1, math.ceil(CHECK_SECONDS / batch_seconds)),
        }
        if verdict.action == "warn":
            warn(f"CostBudget: {verdict.reason}.")
            _report(lambda: log_values(trainer, BUDGET_GROUP, {"warned": 1.0}))
            _report(lambda: log_event(trainer, BUDGET_GROUP, "warned", verdict.reason))
        if verdict.action != "stop":
            return decision
        if on_exceed == "warn":
            warn(f"CostBudget: {verdict.reason}.")
            return decision | {"action": "off"}  # everything was reported already
        lost = batches_without_step(trainer, observer.windows)
        checkpoint = self.files.claim_checkpoint()
        return decision | {"action": "stop", "reason": verdict.reason, "lost": lost, "checkpoint": checkpoint}

    def _expect_validation(self, observer: RunObserver) -> None:
        """Update the forecast of the final validation from the last validation."""
        self._quiet_batches = 0  # the forecast of the end changes
        if self._watch is not None and self._settings.on_exceed == "stop":
            batches = _validation_batches(self._trainer) or 0
            self._watch.set_end_seconds(end_seconds(batches, None, observer.validation.times()))

    def _decide_in_validation(self, observer: RunObserver) -> Decision:
        """Check the used amounts during a validation."""
        batches, validation, rest = _validation_batches(self._trainer), observer.validation.times(), None
        if validation is not None and validation.batch is not None and batches is not None:
            rest = max(0, batches - self._validated) * (validation.batch.middle + validation.wait.middle)
        verdict = GO_ON if self._watch is None else self._watch.check_validation(rest)
        decision = {"action": verdict.action, "reason": verdict.reason}
        return decision if verdict.action == "go on" else decision | {"checkpoint": self.files.claim_checkpoint()}

    def _log(self, watch: BudgetWatch, verdict: BudgetVerdict) -> None:
        """Log the used, allowed and forecast amounts and, if the budget is exceeded, the reason."""
        exceeded = verdict.action == "stop"
        _report(lambda: log_values(self._trainer, BUDGET_GROUP, watch.metrics() | {"exceeded": float(exceeded)}))
        if exceeded:
            _report(lambda: log_event(self._trainer, BUDGET_GROUP, "exceeded", verdict.reason))

    # --- All ranks

    def _on_rank_zero(self, look: Callable[[RunObserver], None], *, is_shared: bool = False) -> None:
        """Run `look` on rank zero. If the ranks decide now, an error in `look` is shared with the other ranks."""
        if self.observer is None or self.failure is not None:
            return
        try:
            look(self.observer)
        except Exception as error:
            own_error(error)
            if self.is_alone or not is_shared:
                raise
            self.fail(error)

    def _agree(self, ask: Callable[[RunObserver], Decision], alike: int | None = None) -> Decision:
        """Decide together with the other ranks. An error on any rank is raised on all, which turns the budget off."""

        def decide() -> Decision:
            if self.observer is None:
                raise LightningPredictError("nothing was watched")
            return ask(self.observer)

        try:
            return self._agreement.agree(decide, failure=self.failure, alike=None if alike is None else str(alike))
        except Exception:
            self._switch_off()
            raise

    def _act(self, decision: Decision, *, can_save: bool) -> None:
        # Ranks with different numbers of validation batches would deadlock.
        self._validation_interval = decision.get("validation_interval") if decision.get("alike") else None
        if decision["action"] == "off":
            self._switch_off()
        elif decision["action"] == "stop":
            self.files.use_checkpoint(decision["checkpoint"])
            self._end(decision["reason"], can_save=can_save, lost=decision["lost"])

    def _end(self, reason: str, *, can_save: bool, lost: int = 0) -> None:
        """End the run, with a checkpoint if `can_save`. The gradients of the last `lost` batches are lost."""
        self._account.stopping_reason, self._has_ended = reason, True
        mark(STOPPED_VARIABLE)
        if self._settings.on_exceed == "stop":
            self._trainer.should_stop = True
        batches = "batch" if lost == 1 else f"{lost:,} batches"
        saved = f" Gradients of the last {batches} without an optimizer step are lost." if lost else ""
        saved += self.files.save_checkpoint(self._agreement) if can_save else ""
        if self._settings.on_exceed == "raise":
            raise BudgetExceededError(f"CostBudget: {reason}.{saved}")
        print_sentence(self._trainer, f"CostBudget ends this run: {reason}.{saved}")

    def _end_within_validation(self, reason: str) -> None:
        """End the run, with a checkpoint, by an exception, which `fit` catches if the budget is to stop the run."""
        trainer, stops = self._trainer, self._settings.on_exceed == "stop"
        end = end_of_fit(trainer) if stops else BudgetExceededError
        if end is None:
            self._overrun = reason
            return
        # A run that was told to stop has saved already.
        saved = "" if self._has_ended else self.files.save_checkpoint(self._agreement)
        self._account.stopping_reason, self._has_ended = self._account.stopping_reason or reason, True
        batches = _validation_batches(trainer)
        of = "" if batches is None else f" of {batches:,}"
        message = (
            f"CostBudget: {reason}. Validation stopped after {self._validated:,}{of} batches (the rest would "
            f"take too long); its metrics are dropped.{saved}{saved and ' A resume continues after this validation.'}"
        )
        mark(STOPPED_VARIABLE)
        if stops:
            print_sentence(trainer, message)
            leave_validation(trainer)
        raise end(message)


def _validation_batches(trainer: Trainer) -> int | None:
    """Return the number of batches of a validation run; None if unknown, or without validation."""
    batches = sum(trainer.num_val_batches) if trainer.num_val_batches else 0
    return int(batches) if 0 < batches < math.inf else None


def _report(tell: Callable[[], Iterable[str]]) -> None:
    """Tell loggers or a person about a decision. An error there never changes the decision."""
    try:
        for refusal in tell():
            warn(refusal)
    except Exception as error:
        own_error(error)
        warn(f"CostBudget could not report this: {type(error).__name__}: {error}")
