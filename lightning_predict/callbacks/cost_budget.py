"""`CostBudget`: callback that stops a run before it exceeds its budget.

The first steps are timed, and the rest is forecast: a forecast above the budget is a warning at first, and stops the
run with a checkpoint once 79 % of the budget is used. The dollars, hours and CO2 that the run has used are compared
with the budget; a resumed run continues the earlier totals. The final checkpoint stores the used amounts and the reason
for the stop. Example::

    from lightning.pytorch import Trainer
    from lightning_predict.callbacks import CostBudget

    Trainer(max_epochs=10, callbacks=[CostBudget(usd=50, hours=12)]).fit(model)
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Literal

from typing_extensions import Unpack

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.guard import fallback_on_error, log_exceptions
from lightning_predict.callbacks.arguments import check_choice, check_steps
from lightning_predict.callbacks.budget_files import Account
from lightning_predict.callbacks.budget_fit import BudgetFit, BudgetSettings
from lightning_predict.callbacks.hooks import NO_FIT, FitCallback
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.output import print_sentence
from lightning_predict.callbacks.trainer_state import inactive_mode
from lightning_predict.observe.ledger_file import LEDGER_STEM
from lightning_predict.observe.meters import QUANTITIES, BudgetArguments, Terms

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


STATE_KEY: Final = "lightning_predict.CostBudget"
"""Key of used amounts in checkpoints of a budget in dollars that stops the run; other keys start with it."""

CHECKPOINT_NAME: Final = f"{LEDGER_STEM}.ckpt"  # File name of the checkpoint of the first run in a folder


def _warn_state_lost(budget: CostBudget, error: Exception) -> None:
    """Warn, once per fit, that checkpoints are written without the used amounts."""
    if not budget._has_lost_state:
        budget._has_lost_state = True
        warn(f"CostBudget: this checkpoint lacks the used amounts: {type(error).__name__}: {error}")


class CostBudget(FitCallback):
    """Keep a run within a budget of dollars, hours or kilograms of CO2, or before a deadline.

    The used amounts are checked after every batch. A warning appears at 80 % of the budget. The run stops at 100 %
    minus the cost of the final validation, at most one batch late. The used amounts are saved once a minute to
    `lightning_predict_budget.json` in `default_root_dir`. If a killed run is resumed from its checkpoint, or if Slurm
    or torchrun restarts its job, the amounts used before still count.

    The first forecast comes after 16 steps and 3 s, half of the run, or 30 s, whichever is first. The forecast is
    repeated each time the number of steps has doubled, and each minute. If a forecast exceeds the budget, a warning
    appears once. The run stops before the next batch if even its best pace so far, held to the end, would exceed the
    budget, once 79 % of the budget is used. Many runs that fit their budget are slow for more than their first half.
    All ranks decide together, at agreed batches, at most half a minute apart. Rank zero makes the decision. An error on
    any rank turns the budget off on all ranks.

    If a run is stopped between two optimizer updates (gradient accumulation), the gradients since the last update are
    lost, because no checkpoint contains them.

    A stopped run leaves its checkpoint `lightning_predict_budget.ckpt` in `default_root_dir`; if another run has this
    name, `lightning_predict_budget-NAME.ckpt`. Lightning validates once more before `fit` returns, as after early
    stopping. The budget reserves time for this final validation, and the checkpoint includes the forecast cost of the
    validation. A validation that uses up the budget is finished if the excess is at most 5 %. Otherwise `fit` returns
    after the checkpoint, without metrics of the validation, because metrics of a part of the data would be misleading.
    To continue, pass the checkpoint and a larger budget to `fit`.

    Args:
        usd: Budget in US dollars.
        usd_per_hour: Your price of all machines of this run; None uses the listed offers for the GPU in use.
        scope: `cumulative` includes the amounts used before a resume; `run` counts this fit only.
        on_exceed: Action if the budget is exceeded: `stop` without an exception, `warn` once, or `raise` a
            BudgetExceededError.
        warmup_steps: Minimum number of steps before the first forecast, regardless of their duration.
        **limits: Further limits and what they depend on: `hours`, `deadline`, `kg_co2`, `offer`, ...; see
            `observe.meters.BudgetArguments`.

    Attributes:
        terms: The limits and prices as given.

    Raises:
        InvalidArgumentError: There is no limit, a limit is not positive or has passed, or a choice is unknown.
        UnknownOfferError: No offer with this name is listed.
    """

    def __init__(
        self,
        usd: float | Decimal | Fraction | None = None,
        *,
        usd_per_hour: float | Decimal | Fraction | None = None,
        scope: Literal["cumulative", "run"] = "cumulative",
        on_exceed: Literal["stop", "warn", "raise"] = "stop",
        warmup_steps: int = 3,
        **limits: Unpack[BudgetArguments],
    ) -> None:
        self.terms = Terms.checked(usd=usd, usd_per_hour=usd_per_hour, **limits)
        if not self.terms.description:
            names = ", ".join([*QUANTITIES, "deadline"][:-1])
            raise InvalidArgumentError(f"CostBudget got no limit; give at least one of {names} and deadline.")
        check_choice("scope", scope, ("cumulative", "run"))
        check_choice("on_exceed", on_exceed, ("stop", "warn", "raise"))
        check_steps("warmup_steps", warmup_steps)
        self.scope = scope
        self.on_exceed = on_exceed
        self.warmup_steps = warmup_steps
        names = "+".join((*self.terms.limits, *(["deadline"] if self.terms.deadline else [])))
        self.state_key = ".".join(
            (STATE_KEY, *(word for word in (names, scope, on_exceed) if word not in ("usd", "cumulative", "stop")))
        )
        self._account = Account()
        self._has_lost_state = False

    @property
    def stopping_reason(self) -> str | None:
        """Reason why the run was stopped; None if it was not stopped."""
        return self._account.stopping_reason

    state_key = STATE_KEY
    """Key in checkpoints. A Trainer may have several budgets that differ in the kinds of limits, the scope or the
    action. Amounts do not count, so that a run can be resumed with more."""

    @log_exceptions
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore the used amounts that a budget of another kind has stored, or an earlier version of this package."""
        states = checkpoint.get("callbacks") or {}
        saved = {key: state for key, state in states.items() if str(key).startswith(STATE_KEY)}
        if saved and self.state_key not in saved:
            earlier = f"{STATE_KEY}.warn" if self.on_exceed == "warn" else STATE_KEY  # once for all limits and scopes
            for state in [saved[earlier]] if earlier in saved else saved.values():  # the most of each amount counts
                self.load_state_dict(state)

    @fallback_on_error(dict, _warn_state_lost)
    def state_dict(self) -> dict[str, Any]:
        """Return the used amounts, the machine and the reason for a stop, as plain values.

        On an error, return an empty state with a warning, because the checkpoint is worth more than this state.
        """
        fit = self._budget_fit
        state = self._account.state(0.0 if fit is None else fit.later_seconds)
        if fit is not None:
            fit.files.stated_seconds = state["seconds"]
        return state

    @property
    def _budget_fit(self) -> BudgetFit | None:
        return self._fit if isinstance(self._fit, BudgetFit) else None

    @fallback_on_error(
        lambda: None,
        lambda _, error: warn(
            "CostBudget cannot read the used amounts from the checkpoint and counts from here: "
            f"{type(error).__name__}: {error}"
        ),
    )
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the used amounts from a checkpoint, unless `scope` is `run`."""
        self._account.load(state_dict, counts_earlier=self.scope == "cumulative")

    @log_exceptions
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reset for a new fit. Time counts from here."""
        if stage != "fit":
            return
        self._follow(NO_FIT)
        self._account.stopping_reason = None
        self._has_lost_state = False
        mode = inactive_mode(trainer)
        settings = BudgetSettings(
            terms=self.terms,
            counts_earlier=self.scope == "cumulative",
            on_exceed=self.on_exceed,
            warmup_steps=self.warmup_steps,
        )
        if mode is None:
            self._follow(BudgetFit(self._account, settings, trainer, switch_off=lambda: self._follow(NO_FIT)))
        self._account.ledger.open(forget=not settings.counts_earlier)
        if (fit := self._budget_fit) is None:
            warn(f"CostBudget does nothing under Trainer({mode}).")
        elif trainer.is_global_zero:
            fit.observe()

    @log_exceptions
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Repeat the reason for the stop at the very end."""
        if self.stopping_reason is not None:
            print_sentence(trainer, f"CostBudget ended this fit: {self.stopping_reason}.")

    def _close(self, *, ended: bool) -> None:
        self._account.ledger.close()
        super()._close(ended=ended)

    def give_up(self, error: Exception) -> None:
        """Warn once, and do nothing until the next fit.

        With several ranks, this rank only stores its error. The next joint decision then turns the budget off on all
        ranks.
        """
        fit = self._budget_fit
        if fit is None or fit.is_alone:
            self._follow(NO_FIT)
            warn(f"CostBudget is off, and training continues without a budget: {type(error).__name__}: {error}")
        else:
            fit.fail(error)
