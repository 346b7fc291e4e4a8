"""What a run has used, over all its fits, in checkpoints and in the ledger file; and the budget's own checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.files import in_hook
from lightning_predict.base.guard import own_error
from lightning_predict.base.timeout import PATIENCE_SECONDS
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.output import print_sentence
from lightning_predict.callbacks.trainer_state import resumes_data
from lightning_predict.observe.clock import ledger_clock
from lightning_predict.observe.ledger_file import (
    LEDGER_SECONDS,
    LEDGER_STEM,
    LedgerPlace,
    SavedLedger,
    find_ledger,
    is_run_name,
    jobs_in_use,
    own_place,
    remove_own,
    save_own,
)
from lightning_predict.observe.meters import Ledger, RentedMachine, Use
from lightning_predict.observe.rank_agreement import RankAgreement, wait_seconds
from lightning_predict.reports.format import duration

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

FIRST_SECONDS: Final = 5.0  # Seconds of a fit until its ledger is written for the first time


class Account:
    """Use of a run, over all its fits."""

    def __init__(self) -> None:
        self.ledger = Ledger(ledger_clock())
        self.run = uuid4().hex  # Name of the run, equal in its checkpoints and its ledger file
        self.machine: RentedMachine | None = None  # RentedMachine of the last fit; None before the first fit
        self.stopping_reason: str | None = None  # Reason why the run was stopped; None if it was not stopped

    def state(self, later_seconds: float) -> dict[str, Any]:
        """Return the use and the machine as plain values for a checkpoint."""
        use, machine = self.ledger.use.after(later_seconds, self.ledger.rates), self.machine
        place = {} if machine is None else {"device": machine.device, "world_size": machine.world_size}
        return {**use.plain(), **place, "run": self.run, "stopping_reason": self.stopping_reason}

    def load(self, state: Mapping[str, Any], *, counts_earlier: bool) -> None:
        """Restore the run from a checkpoint, with its use if this counts."""
        use, run = Use.parse(state), state.get("run")  # early versions stored no name and no machine
        if counts_earlier:
            self.ledger.resume(use)
        device, processes = state.get("device"), state.get("world_size")
        self.machine = None
        if isinstance(device, str) and device.isprintable() and isinstance(processes, int):
            self.machine = RentedMachine(device, processes)
        self.run = run if is_run_name(run) else self.run


class BudgetFiles:
    """Ledger file and checkpoint of a budget in one fit.

    Attributes:
        place: Paths of the files; of the first name in the folder until the ledger is written.
        kept_seconds: Used seconds of this fit at the last write of the ledger file.
        stated_seconds: Used seconds of the run in the last checkpoint of any kind.
        saved_seconds: Used seconds of the run in the budget's own checkpoint; None before it is written.
        is_saving: Whether the budget's own checkpoint is being written, before the final validation.
    """

    def __init__(self, account: Account, trainer: Trainer) -> None:
        self._account, self._trainer = account, trainer
        self._folder = os.fspath(trainer.default_root_dir)
        self.place = LedgerPlace.of(self._folder, LEDGER_STEM)
        self.kept_seconds = self.stated_seconds = 0.0
        self.saved_seconds: float | None = None
        self.is_saving = self._has_warned = False
        self._owner, self._process = "", 0

    @property
    def owner(self) -> str:
        """Random name of this fit in this process. A forked process is another owner."""
        if self._process != os.getpid():
            self._owner, self._process = uuid4().hex[:16], os.getpid()
            self.saved_seconds = None  # the parent's checkpoint
        return self._owner

    def find(self, *, counts_earlier: bool) -> None:
        """Find the ledger that this run continues, and restore its use if it exceeds the checkpoint's."""
        account, folder, trainer = self._account, self._folder, self._trainer
        before = account.ledger.before.seconds
        try:
            seconds = wait_seconds(trainer, PATIENCE_SECONDS)
            place, unread = in_hook(folder, lambda: find_ledger(folder, run=account.run), seconds=seconds)
        except OSError as error:
            own_error(error)
            place, unread = None, [f"{folder}: {error}"]
        if unread:
            more = "" if len(unread) == 1 else f", and {len(unread) - 1:,} more"
            warn(f"CostBudget cannot read the ledger {unread[0]}{more}. What such a run used does not count.")
        if place is None or place.kept is None:
            return
        self.place, kept = place, place.kept
        missing = kept.use.seconds - before
        if missing <= 0 or not counts_earlier:
            return
        account.run = kept.run
        account.ledger.resume(kept.use)
        print_sentence(
            trainer, f"CostBudget adds {duration(missing)} that {place.ledger} records and the checkpoint does not."
        )

    @property
    def next_seconds(self) -> float:
        """Used seconds of this fit at which the ledger file is due: doubled each time, so that half is never lost."""
        return self.kept_seconds + min(max(self.kept_seconds, FIRST_SECONDS), LEDGER_SECONDS)

    def keep(self, elapsed: float) -> None:
        """Write the used amounts to the ledger file, at least once a minute."""
        if elapsed >= self.next_seconds:
            self.kept_seconds = elapsed
            self.write()

    def close(self, *, ended: bool) -> None:
        """Write the ledger file of a fit that ends, or remove it if no later run can need it."""
        is_long = self._account.ledger.use.seconds >= LEDGER_SECONDS
        may_go_on = not ended and (self.stated_seconds > 0.0 or bool(jobs_in_use()))
        if is_long or may_go_on or self.saved_seconds is not None:
            self.write(ended=ended)
        elif self.kept_seconds:
            self._use_file(lambda: remove_own(self.place, self.owner))

    def write(self, *, ended: bool = False) -> bool:
        """Write the used amounts to the ledger file. Return whether this succeeds; a failure is warned of once."""
        saved = SavedLedger(
            run=self._account.run,
            use=self._account.ledger.use,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            ended=ended,
            owner=self.owner,
            saved_seconds=self.saved_seconds,
        )

        def save() -> None:
            has_checkpoint = self.saved_seconds is not None
            self.place = save_own(self._folder, saved, place=self.place, has_checkpoint=has_checkpoint)

        return self._use_file(save)

    def _use_file(self, work: Callable[[], None]) -> bool:
        path = self.place.ledger
        try:
            in_hook(path, work, seconds=wait_seconds(self._trainer, PATIENCE_SECONDS))
        except Exception as error:
            own_error(error)
            if not self._has_warned:
                self._has_warned = True
                warn(f"CostBudget could not write {path}: {type(error).__name__}: {error}")
            return False
        return True

    def claim_checkpoint(self) -> str:
        """Return a path for the budget's own checkpoint that no other run writes, as the ledger beside it is ours."""
        if not self.write():
            self.place = own_place(self._folder, self.owner)
        return self.place.checkpoint

    def use_checkpoint(self, path: str) -> None:
        """Adopt the checkpoint path of rank zero."""
        self.place = replace(self.place, checkpoint=path)

    def save_checkpoint(self, agreement: RankAgreement) -> str:
        """Write a checkpoint. Return a sentence with its path, and with the order of data after a resume.

        This must be called on every rank. If any rank fails to write, the result is empty, and a warning is shown.
        """
        path, trainer = self.place.checkpoint, self._trainer
        self.is_saving = not trainer.validating
        try:
            agreement.agree(dict, failure=_failure_of_save(trainer, path))
            self.saved_seconds = self.stated_seconds
            where = f" Its checkpoint is {path}."
            if trainer.is_last_batch or resumes_data(trainer):
                return where
            return (
                f"{where} The loader has no state_dict: a resume trains the remaining number of batches of this epoch, "
                "but starts from the epoch's first batch."
            )
        except Exception as error:
            own_error(error)
            words = str(error) if isinstance(error, LightningPredictError) else f"{type(error).__name__}: {error}"
            warn(f"CostBudget could not write {path}: {words}")
            return ""
        finally:
            self.is_saving = False


def _failure_of_save(trainer: Trainer, path: str) -> str | None:
    """Save a checkpoint on this rank. Return the failure in words; None if it is saved."""
    try:
        trainer.save_checkpoint(path, weights_only=False)
    except BaseException as error:  # a full disk must not keep the run alive
        if isinstance(error, KeyboardInterrupt | SystemExit):  # torch's CheckpointException is no Exception
            raise
        own_error(error)
        lines = str(error).strip().splitlines() or [""]
        failure = f"{type(error).__name__}: {', '.join(dict.fromkeys((lines[0], lines[-1])))}"
        try:
            trainer.strategy.barrier("Trainer.save_checkpoint")  # the other ranks wait for this rank there
        except Exception as another:
            failure += f"; then {type(another).__name__}: {another}"
        return failure
    return None
