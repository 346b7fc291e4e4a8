"""What a run has used, over all its fits: in memory, in checkpoints and in the ledger file.

Example::

    account = Account()
    account.load(checkpoint["callbacks"]["lightning_predict.CostBudget"], counts_earlier=True)
    files = BudgetFiles(account, "runs")
    files.find(trainer, counts_earlier=True)     # what a killed run used after its last checkpoint
    files.write(trainer)
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, final
from uuid import uuid4

from lightning_predict.base.errors import InvalidArgumentError, LightningPredictError
from lightning_predict.base.files import FILE_SECONDS, in_hook
from lightning_predict.base.guard import own_error
from lightning_predict.callbacks.lightning_packages import warn
from lightning_predict.callbacks.output import print_sentence
from lightning_predict.callbacks.trainer_state import resumes_data
from lightning_predict.observe.budget import Ledger, gpu_name_in_use
from lightning_predict.observe.clock import ledger_clock
from lightning_predict.observe.ledger_file import (
    LEDGER_SECONDS,
    LEDGER_STEM,
    LedgerPlace,
    SavedLedger,
    find_ledger,
    save_ledger,
)
from lightning_predict.observe.rank_agreement import RankAgreement, wait_seconds
from lightning_predict.reports.format import duration

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


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


@final
class Account:
    """Used amounts of a run, over all its fits.

    Attributes:
        ledger: Time, money and CO2.
        run: Name of the run, equal in its checkpoints and its ledger file.
        machine: Machine of the last fit; None before the first fit.
    """

    def __init__(self) -> None:
        self.ledger = Ledger(ledger_clock())
        self.run = uuid4().hex
        self.machine: RentedMachine | None = None

    def state(self, later_seconds: float) -> dict[str, Any]:
        """Return the used amounts and the machine as plain values for a checkpoint.

        Args:
            later_seconds: Time of this fit after the checkpoint, which counts as used.
        """
        ledger = self.ledger
        used = {
            "seconds": ledger.seconds + later_seconds,
            "usd": ledger.usd + later_seconds * ledger.usd_per_second,
            "kg_co2": ledger.kg_co2 + later_seconds * ledger.kg_co2_per_second,
            "kg_co2_seconds": ledger.kg_co2_seconds + (later_seconds if ledger.kg_co2_per_second else 0.0),
        }
        return used | ({} if self.machine is None else asdict(self.machine)) | {"run": self.run}

    def load(self, state: dict[str, Any], *, counts_earlier: bool) -> None:
        """Restore the run from a checkpoint, with its used amounts if they count.

        Raises:
            InvalidArgumentError: A used amount is not a number of at least 0.
        """
        seconds, usd = (amount_before(state, name) for name in ("seconds", "usd"))
        if counts_earlier:
            emitted = [amount_before(state, name) if name in state else 0.0 for name in ("kg_co2", "kg_co2_seconds")]
            self.ledger.resume(seconds=seconds, usd=usd, kg_co2=emitted[0], kg_co2_seconds=emitted[1])
        self.machine = RentedMachine.of_state(state)
        run = state.get("run")  # absent in checkpoints of early versions
        self.run = run if isinstance(run, str) and run else self.run


def amount_before(state: dict[str, Any], name: str) -> float:
    """Read a used amount from a checkpoint.

    Raises:
        InvalidArgumentError: The value is not a number of at least 0.
    """
    amount = state.get(name)
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
        raise InvalidArgumentError(f"{name}={amount!r} in the state of CostBudget; expected a number of at least 0.")
    return float(amount)


@final
class BudgetFiles:
    """Ledger file and checkpoint of a budget in one fit.

    Attributes:
        place: Paths of the files.
        kept_seconds: Used seconds of this fit at the last write of the ledger file.
        stated_seconds: Used seconds of the run in the last checkpoint of any kind.
        saved_seconds: Used seconds of the run in the budget's own checkpoint; None before it is written.
        is_saving: Whether the budget's own checkpoint is being written, before the final validation.
    """

    def __init__(self, account: Account, folder: str) -> None:
        self.account = account
        self.place = LedgerPlace.of(folder, LEDGER_STEM)
        self.kept_seconds = self.stated_seconds = 0.0
        self.saved_seconds: float | None = None
        self.is_saving = self._has_warned = False

    def find(self, trainer: Trainer, *, counts_earlier: bool) -> None:
        """Find the files of this run, and restore the used amounts from its ledger if they exceed the checkpoint's."""
        account, folder = self.account, os.fspath(trainer.default_root_dir)
        before = account.ledger.seconds_before
        try:
            place = in_hook(
                folder,
                lambda: find_ledger(folder, run=account.run, resumed_seconds=before),
                seconds=wait_seconds(trainer, FILE_SECONDS),
            )
        except (OSError, InvalidArgumentError) as error:
            own_error(error)
            warn(f"CostBudget cannot read the ledger in {folder}: {error}")
            return
        self.place, kept = place, place.kept
        missing = 0.0 if kept is None else kept.seconds - before
        if kept is None or missing <= 0 or not counts_earlier:
            return
        account.run = kept.run
        account.ledger.resume(
            seconds=kept.seconds, usd=kept.usd, kg_co2=kept.kg_co2, kg_co2_seconds=kept.kg_co2_seconds
        )
        print_sentence(
            trainer, f"CostBudget adds {duration(missing)} that {place.ledger} records and the checkpoint does not."
        )

    def use_checkpoint(self, path: str) -> None:
        """Adopt the checkpoint path of rank zero."""
        self.place = replace(self.place, checkpoint=path)

    @property
    def next_seconds(self) -> float:
        """Used seconds of this fit at which the ledger file is due."""
        return self.kept_seconds + LEDGER_SECONDS

    def keep(self, trainer: Trainer, elapsed: float) -> None:
        """Write the used amounts to the ledger file, once a minute."""
        if elapsed >= self.next_seconds:
            self.kept_seconds = elapsed
            self.write(trainer)

    def close(self, trainer: Trainer, *, ended: bool) -> None:
        """Write the ledger file of a fit that ends, if there is anything to keep."""
        if self.kept_seconds or self.saved_seconds is not None:
            self.write(trainer, ended=ended)

    def write(self, trainer: Trainer, *, ended: bool = False) -> None:
        """Write the used amounts to the ledger file. A failed write is warned of once, and the budget goes on."""
        path, ledger = self.place.ledger, self.account.ledger
        kept = SavedLedger(
            run=self.account.run,
            seconds=ledger.seconds,
            usd=ledger.usd,
            kg_co2=ledger.kg_co2,
            kg_co2_seconds=ledger.kg_co2_seconds,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            ended=ended,
            saved_seconds=self.saved_seconds,
        )
        try:
            in_hook(path, lambda: save_ledger(path, kept), seconds=wait_seconds(trainer, FILE_SECONDS))
        except Exception as error:
            own_error(error)
            if not self._has_warned:
                self._has_warned = True
                warn(f"CostBudget could not write {path}: {type(error).__name__}: {error}")

    def save_checkpoint(self, trainer: Trainer, agreement: RankAgreement) -> str:
        """Write a checkpoint. Return a sentence with its path, and with the order of data after a resume.

        This must be called on every rank. If any rank fails to write, the result is empty, and a warning is shown.
        """
        path = self.place.checkpoint
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
        problem = f"{type(error).__name__}: {', '.join(dict.fromkeys((lines[0], lines[-1])))}"
        try:
            trainer.strategy.barrier("Trainer.save_checkpoint")  # the other ranks wait for this rank there
        except Exception as another:
            problem += f"; then {type(another).__name__}: {another}"
        return problem
    return None
