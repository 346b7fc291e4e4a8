"""Decisions about a budget, on rank zero: what is observed, when it is checked, and the verdict for all ranks.

Example::

    decisions = BudgetDecisions(settings, files, observer, steps_done=lambda: trainer.global_step)
    decision = decisions.open(trainer)           # {"action": "go on", "batches": 1, ...}
    decisions.count_batch(trainer, is_due=True, is_alone=False)
    decision = decisions.decide(trainer)         # {"action": "stop", "reason": "...", ...}
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

from lightning_predict.base.errors import LightningPredictError
from lightning_predict.callbacks.budget_account import BudgetFiles, RentedMachine
from lightning_predict.callbacks.budget_terms import Terms
from lightning_predict.callbacks.lightning_packages import warn
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
from lightning_predict.observe.rank_agreement import Decision
from lightning_predict.observe.run_observer import RunObserver
from lightning_predict.reports.format import duration

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Settings of a budget, as given to `CostBudget`.

    Attributes:
        terms: Limits and prices.
        counts_earlier: Whether the amounts used before a resume count.
        on_exceed: Action if the budget is exceeded.
        warmup_steps: Minimum number of steps before the first forecast.
        webhook: Address of notices; None for no notice.
    """

    terms: Terms
    counts_earlier: bool
    on_exceed: Literal["stop", "warn", "raise"]
    warmup_steps: int
    webhook: str | None


@final
class BudgetDecisions:
    """Rank zero's part of a budget in one fit.

    Attributes:
        observer: Observes the fit.
        steps_done: Returns the number of optimizer steps so far.
        judge: Returns a verdict; None if there is nothing to check.
        quiet_batches: Number of batches before which no forecast is due.
        quiet_until: Time of the observer before which no forecast is due.
        next_check: Time of the ledger's clock before which no other check is due.
    """

    def __init__(
        self, settings: BudgetSettings, files: BudgetFiles, observer: RunObserver, *, steps_done: Callable[[], int]
    ) -> None:
        self.settings = settings
        self.files = files
        self.observer = observer
        self.steps_done = steps_done
        self.judge: Callable[[], BudgetVerdict] | None = None
        self.quiet_batches: float = 0
        self.quiet_until = self.next_check = 0.0
        self._watch: BudgetWatch | None = None
        self._knows_length = True

    @property
    def end_seconds(self) -> float:
        """Forecast time of the final validation, in seconds."""
        return 0.0 if self._watch is None else self._watch.end_seconds

    def open(self, trainer: Trainer) -> Decision:
        """Determine the limits of this fit, and check the amounts used by earlier fits."""
        account, settings = self.files.account, self.settings
        self.files.find(trainer, counts_earlier=settings.counts_earlier)
        limits = settings.terms.limits_of(trainer, account.ledger)
        if not limits:
            return {"action": "off"}
        before, account.machine = account.machine, RentedMachine.of(trainer)
        if before is not None and before != account.machine:
            warn(
                f"CostBudget: this run moved from {before} to {account.machine}. Earlier use keeps its price; the rest "
                "is forecast from steps on this machine."
            )
        minimums = minimums_preventing_stop(trainer)
        if minimums and settings.on_exceed == "stop":
            warn(f"CostBudget cannot stop this run before {minimums}, which Lightning enforces.")
        self._watch = BudgetWatch(
            limits,
            account.ledger,
            schedule=ForecastSchedule(
                batches_per_window=trainer.accumulate_grad_batches, batches=batches_of_fit(trainer)
            ),
            warmup_steps=settings.warmup_steps * trainer.accumulate_grad_batches,
        )
        if trainer.world_size > 1:
            print_sentence(
                trainer,
                f"CostBudget: {trainer.world_size} ranks decide together every {duration(CHECK_SECONDS)} (or every "
                "batch, if longer). The run may exceed its budget by that much.",
            )
        self.judge = lambda: check_use(limits, 0.0)
        return self.decide(trainer)

    def count_batch(self, trainer: Trainer, *, is_due: bool, is_alone: bool) -> None:
        """Count a batch, and prepare the next check.

        Args:
            trainer: The trainer.
            is_due: Whether the ranks decide now, so that a check is always prepared.
            is_alone: Whether this is the only rank, which decides whenever a check is due.
        """
        watch, observer = self._watch, self.observer
        if watch is None:
            return
        observer.on_batch_end(self.steps_done)
        ledger = self.files.account.ledger
        elapsed = ledger.elapsed_seconds
        self.files.keep(trainer, elapsed)
        question = None
        if is_due or is_alone:
            question = watch.due_check(observer.batches, observer.training_seconds, elapsed=elapsed)
            batches, seconds = watch.nothing_until(observer.batches)
            self.quiet_batches, self.quiet_until = 0 if question else batches, observer.time_at(seconds)
            self.next_check = ledger.time_at(min(watch.next_seconds, self.files.next_seconds))
        if question is not None or is_due:
            self.judge = lambda: self._judge_now(trainer, watch, question or "use")

    def _judge_now(self, trainer: Trainer, watch: BudgetWatch, question: DueCheck) -> BudgetVerdict:
        """Check the used amounts and, if requested, the forecast of the rest of the run."""
        rest: RestOfRun | None = None
        if question != "use":
            self.observer.buffered = prefetched_batches(trainer)
            rest = self._forecast(trainer, self.observer)
            if rest.forecast is None and question == "forecast" and self._knows_length:
                self._knows_length = False
                pace = "" if rest.pace_in_words is None else f" {rest.pace_in_words}."
                what = "a warning follows" if self.settings.on_exceed == "warn" else "it ends"
                print_sentence(
                    trainer, f"CostBudget: the length of this run is unknown; {what} once the budget is used up.{pace}"
                )
        verdict = watch.check(
            question,
            rest,
            without_stalls=lambda: self._forecast(trainer, self.observer.without_stalls()),
            may_end_earlier=bool(trainer.early_stopping_callbacks),
        )
        if rest is not None or verdict.action == "stop":
            _log_budget(trainer, watch, verdict)
        return verdict

    def _forecast(self, trainer: Trainer, observer: RunObserver) -> RestOfRun:
        """Forecast the rest of the run; the final validation counts only if the budget stops the run."""
        inputs = forecast_inputs(
            trainer, window_size=observer.windows.window_size, batches_per_epoch=observer.batches_per_epoch
        )
        rest = observer.rest(inputs)
        return rest if self.settings.on_exceed == "stop" else replace(rest, end_seconds=0.0)

    def decide(self, trainer: Trainer) -> Decision:
        """Check the budget, report the result, and decide for all ranks.

        Raises:
            LightningPredictError: The fit was not opened.
        """
        judge, self.judge = self.judge, None
        if self._watch is None:
            raise LightningPredictError("nothing was watched")
        verdict = GO_ON if judge is None else judge()
        validation = self.observer.validation.times()
        batch_seconds = None if validation is None or validation.batch is None else validation.batch.middle
        decision: dict[str, Any] = {
            "action": "go on",
            "batches": batches_between_checks(self.observer),
            "validation_interval": None if not batch_seconds else max(1, math.ceil(CHECK_SECONDS / batch_seconds)),
        }
        if verdict.action in ("warn", "stop"):
            _send_notices(trainer, self.settings.webhook, verdict)
        if verdict.action == "warn":
            _warn_and_log(trainer, verdict.reason)
        if verdict.action != "stop":
            return decision
        if self.settings.on_exceed == "warn":
            warn(f"CostBudget: {verdict.reason}.")
            return decision | {"action": "off"}  # everything was reported already
        lost = batches_without_step(trainer, self.observer.windows)
        return decision | {"action": "stop", "reason": verdict.reason, "lost": lost}

    def on_validation_batch_end(self, trainer: Trainer) -> None:
        """Time a validation batch, and keep the ledger."""
        self.observer.validation.on_batch_end()
        if self._watch is not None:
            self.files.keep(trainer, self.files.account.ledger.elapsed_seconds)

    def on_validation_end(self, trainer: Trainer) -> None:
        """Update the forecast of the final validation from the last validation."""
        self.quiet_batches = 0  # the forecast of the end changes
        self.observer.on_validation_end()
        if self._watch is not None and self.settings.on_exceed == "stop":
            batches = validation_batches(trainer) or 0
            self._watch.set_end_seconds(end_seconds(batches, None, self.observer.validation.times()))

    def decide_in_validation(self, trainer: Trainer, validated_batches: int) -> Decision:
        """Check the used amounts during a validation."""
        batches, validation, rest = validation_batches(trainer), self.observer.validation.times(), None
        if validation is not None and validation.batch is not None and batches is not None:
            rest = max(0, batches - validated_batches) * (validation.batch.middle + validation.wait.middle)
        verdict = GO_ON if self._watch is None else self._watch.check_validation(rest)
        if verdict.action == "stop":
            _send_notices(trainer, self.settings.webhook, verdict)
        return {"action": verdict.action, "reason": verdict.reason}


def validation_batches(trainer: Trainer) -> int | None:
    """Return the number of batches of a validation run; None if unknown, or without validation."""
    batches = sum(trainer.num_val_batches) if trainer.num_val_batches else 0
    return int(batches) if 0 < batches < math.inf else None


def _log_budget(trainer: Trainer, watch: BudgetWatch, verdict: BudgetVerdict) -> None:
    """Log the used, allowed and forecast amounts and, if the budget is exceeded, the reason."""
    exceeded = verdict.action == "stop"
    refusals = log_values(trainer, BUDGET_GROUP, watch.metrics() | {"exceeded": float(exceeded)})
    if exceeded:
        refusals += log_event(trainer, BUDGET_GROUP, "exceeded", verdict.reason)
    for refusal in refusals:
        warn(refusal)


def _send_notices(trainer: Trainer, webhook: str | None, verdict: BudgetVerdict) -> None:
    """Send an alert of Weights & Biases and a webhook notice about a warning or a stop."""
    from lightning_predict.callbacks.notices import notify

    event = "exceeded" if verdict.action == "stop" else "warned"
    for refusal in notify(trainer, webhook, event=event, reason=verdict.reason):
        warn(refusal)


def _warn_and_log(trainer: Trainer, reason: str) -> None:
    """Show a warning, and log it as an event."""
    warn(f"CostBudget: {reason}.")
    refusals = log_values(trainer, BUDGET_GROUP, {"warned": 1.0})
    for refusal in refusals + log_event(trainer, BUDGET_GROUP, "warned", reason):
        warn(refusal)
