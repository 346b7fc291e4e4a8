"""Fits on several ranks with gloo, one scenario after another: `python -m tests.callbacks.ranks FOLDER SCENARIO ...`.

Each process finds its rank in the environment, as torchrun sets it, and writes its observations of each scenario to
`<scenario>.<rank>.json` in the folder. A fault is a function that fails on one rank from its n-th call on.
"""

import contextlib
import errno
import importlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
from lightning_utilities.core import rank_zero
from torch._C._distributed_c10d import TCPStore

from lightning_predict.callbacks import CostBudget, RuntimePredictor, budget_fit
from lightning_predict.observe import budget
from lightning_predict.observe.rank_agreement import StoreAgreement
from tests.callbacks.small import Small
from tests.processes import Ran, Started

TIMEOUT_SECONDS: Final = 300
"""Of the process group, a meeting waits a third of it: no busy machine keeps a rank away for so long."""

SHORT_SECONDS: Final = 9  # The same where a rank does not come, which the other one waits for
BATCHES: Final = 8  # Batches of an epoch on each rank; there are two epochs


@dataclass(frozen=True)
class Scenario:
    """What happens on the ranks."""

    callbacks: Callable[[], list[Any]]  # Makes the callbacks of each rank
    fails_on: int | None = None  # The rank on which the fault is; None without
    fault: str = ""  # Module, its class and function, or its function
    call: int = 0  # Number of the first call that fails, counted from 0
    # Raised there, or returned where it is no exception; None ends the process
    error: object = field(default_factory=lambda: ZeroDivisionError("by zero"))
    filters: bool = False  # Warnings are exceptions
    timeout_seconds: float = TIMEOUT_SECONDS  # Of the collectives of the strategy


def within() -> list[Any]:
    """A budget that is never used up; the ranks meet after every batch."""
    return [RuntimePredictor(["T4"], print_table=False), CostBudget(hours=1000)]


def over() -> list[Any]:
    """A budget that the first batch uses up."""
    return [CostBudget(hours=1e-9)]


def _settings_of_rank() -> dict[str, Any]:
    return {"on_exceed": "stop", "warmup_steps": 4} if os.environ["RANK"] == "0" else {"on_exceed": "raise"}


HOOKS: Final = "lightning_predict.callbacks."
FIT: Final = "lightning_predict.observe."
FULL: Final = OSError(errno.ENOSPC, "No space left on device")

SCENARIOS: Final[dict[str, Scenario]] = {  # By name
    "ok": Scenario(within),
    "stop": Scenario(over),
    "warn": Scenario(lambda: [CostBudget(hours=1e-9, on_exceed="warn")]),
    "raise": Scenario(lambda: [CostBudget(hours=1e-9, on_exceed="raise")]),
    "disk full on rank 0": Scenario(over, 0, "lightning.pytorch.strategies.strategy:Strategy.save_checkpoint", 0, FULL),
    "rank 1 cannot collect the checkpoint": Scenario(over, 1, HOOKS + "cost_budget:CostBudget.on_save_checkpoint"),
    "rank 0 has no limits": Scenario(within, 0, FIT + "meters:Terms.start"),
    "rank 0 cannot count": Scenario(within, 0, FIT + "budget:BudgetWatch.due_check"),
    "rank 0 cannot count later": Scenario(within, 0, FIT + "budget:BudgetWatch.due_check", 6),
    "rank 0 cannot judge": Scenario(within, 0, FIT + "budget:check_forecast"),
    "rank 0 cannot judge the use": Scenario(within, 0, FIT + "budget:check_use"),
    "rank 0 cannot log": Scenario(within, 0, HOOKS + "budget_fit:BudgetFit._log"),
    "rank 0 cannot begin": Scenario(within, 0, HOOKS + "budget_fit:observer_of"),
    "rank 0 has no clock": Scenario(within, 0, FIT + "run_observer:RunObserver.on_batch_start"),
    "rank 1 cannot open its ledger": Scenario(within, 1, FIT + "meters:Ledger.open"),
    "rank 1 cannot count": Scenario(
        within, 1, FIT + "rank_agreement:AgreementSchedule.on_batch_end", 4, timeout_seconds=SHORT_SECONDS
    ),
    "rank 1 cannot meet": Scenario(
        within, 1, FIT + "rank_agreement:StoreAgreement.agree", 1, timeout_seconds=SHORT_SECONDS
    ),
    "rank 1 watches nothing": Scenario(within, 1, FIT + "budget:BudgetWatch.due_check"),
    "validation uses the budget up": Scenario(
        within,
        0,
        HOOKS + "budget_fit:BudgetFit._decide_in_validation",
        1,
        {"action": "stop", "reason": "it is used up"},
    ),
    "warnings are errors": Scenario(
        lambda: [CostBudget(usd=1, hours=1e-9, usd_per_hour=1, on_exceed="warn")], filters=True
    ),
    "ranks are set differently": Scenario(lambda: [CostBudget(hours=1e-9, **_settings_of_rank())]),
    "rank 1 dies": Scenario(within, 1, HOOKS + "cost_budget:CostBudget.on_train_batch_end", 4, None),
}


@contextlib.contextmanager
def failing(scenario: Scenario, rank: int) -> Iterator[None]:
    """Let the scenario's function fail on its rank."""
    if scenario.fails_on != rank:
        yield
        return
    module, _, path = scenario.fault.partition(":")
    *holders, name = path.split(".")
    holder: Any = importlib.import_module(module)
    for part in holders:
        holder = getattr(holder, part)
    original, calls = getattr(holder, name), [0]

    def fails(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] <= scenario.call:
            return original(*args, **options)
        if scenario.error is None:
            os._exit(1)
        if isinstance(scenario.error, BaseException):
            raise scenario.error
        return scenario.error

    setattr(holder, name, fails)
    try:
        yield
    finally:
        setattr(holder, name, original)


@contextlib.contextmanager
def given_up() -> Iterator[list[str]]:
    """Note the waits of meetings that end without what they waited for."""
    comes, waits = StoreAgreement._comes, list[str]()

    def noting(self: StoreAgreement, key: str, seconds: float) -> bool:
        has_come = comes(self, key, seconds)
        if not has_come:
            waits.append(key)
        return has_come

    StoreAgreement._comes = noting  # type: ignore[method-assign]
    try:
        yield waits
    finally:
        StoreAgreement._comes = comes  # type: ignore[method-assign]


def fit(scenario: Scenario, folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    """Fit, and tell what this rank has seen."""
    small = Small("lightning.pytorch")
    strategy = small.lightning.strategies.DDPStrategy(
        process_group_backend="gloo", timeout=timedelta(seconds=scenario.timeout_seconds)
    )
    for module in (budget, budget_fit):
        module.__dict__["CHECK_SECONDS"] = 0.0  # they meet after every batch
    model, callbacks = small.model(validates=True), scenario.callbacks()
    validated: list[object] = []
    model.on_validation_batch_end = lambda *values: validated.append(values)
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightning_predict").addHandler(handler)
    informed: list[str] = []
    informs = logging.Handler()
    informs.emit = lambda record: informed.append(record.getMessage())  # type: ignore[method-assign]
    lightnings = rank_zero.log  # whichever Lightning package was imported last
    lightnings.addHandler(informs)
    trainer = small.trainer(
        folder, devices=world_size, strategy=strategy, max_epochs=2, callbacks=callbacks, num_sanity_val_steps=0
    )
    ended, start = "", time.monotonic()
    with warnings.catch_warnings(record=not scenario.filters) as caught, failing(scenario, rank), given_up() as waits:
        warnings.simplefilter("always")
        if scenario.filters:
            warnings.filterwarnings("error", category=UserWarning, module="lightning_predict")
            warnings.filterwarnings("error", message="CostBudget")
        try:
            trainer.fit(model, small.loader(BATCHES * world_size), small.loader(3 * world_size))
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
    logging.getLogger("lightning_predict").removeHandler(handler)
    lightnings.removeHandler(informs)
    warned = [str(warning.message) for warning in caught or () if "LightningPredict" in warning.category.__name__]
    (watched,) = (callback for callback in callbacks if isinstance(callback, CostBudget))
    return {
        "batches": model.batches_trained,
        "ended": ended,
        "validated": len(validated),
        "reason": watched.stopping_reason,
        "weights": float(torch.nn.utils.parameters_to_vector(model.parameters()).double().sum()),
        "seconds": time.monotonic() - start,
        "given_up": len(waits),
        "said": warned + logged,
        "informed": [warning for warning in informed if "CostBudget" in warning],
    }


def launched(module: str, *words: str | Path, world_size: int, folder: Path) -> list[Ran]:
    """Run a module on the given number of ranks, as torchrun does, with the store in this process."""
    store = TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)
    shared = {
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
    }
    ranks = [
        Started("-m", module, *words, variables=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, folder=folder)
        for rank in range(world_size)
    ]
    return [rank.wait(1200) for rank in ranks]


def start(folder: Path, world_size: int, scenarios: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Run scenarios on ranks; return the observations of each rank, empty if the rank did not finish."""
    for rank, ran in enumerate(
        launched("tests.callbacks.ranks", folder, *scenarios, world_size=world_size, folder=folder)
    ):
        (folder / f"errors.{rank}.txt").write_text(ran.stderr)
    return {
        scenario: [
            json.loads(path.read_text()) if (path := folder / f"{scenario}.{rank}.json").exists() else {}
            for rank in range(world_size)
        ]
        for scenario in scenarios
    }


def main(folder: Path, scenarios: Sequence[str]) -> None:
    """Run the scenarios on this rank."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in scenarios:
        seen = fit(SCENARIOS[name], folder, rank, world_size)
        (folder / f"{name}.{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
