"""Two ranks under DDP and FSDP whose surroundings fail on one of them: `python -m tests.callbacks.rank_surroundings`.

    torchrun --nproc-per-node 2 -m tests.callbacks.rank_surroundings FOLDER CASE ...

Faults are real: a rank sleeps, a rank gets SIGKILL, and a limit of the file size makes every write of a rank fail.
FSDP is torch's `fully_shard` on gloo: Lightning's strategy for it asks for CUDA, but a class of its own may not.
"""

import contextlib
import itertools
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from lightning_predict.callbacks import CostBudget, RuntimePredictor, budget_files, budget_fit
from lightning_predict.observe import budget
from tests.callbacks.small import Small

BATCHES: Final = 24  # Batches of an epoch on each rank; there are two epochs
TIMEOUT: Final = timedelta(seconds=30)  # Of the process group; a joint decision waits a third of it
AT_BATCH: Final = 6  # Number of batches before the fault


class ShardedOnGloo(ModelParallelStrategy):
    """FSDP on the CPU."""


@dataclass(frozen=True)
class Case:
    """A fit on two ranks."""

    sharded: bool  # FSDP instead of DDP
    has_ours: bool = True  # Both callbacks watch the fit
    fault: str = ""  # Fault of one rank: `sleep`, `kill` or `disk`; empty without.
    rank: int = 0  # The rank of the fault
    hours: float = 1000.0  # Budget


CASES: Final = {  # Fits that end, one after another in the same two processes
    f"{'fsdp' if sharded else 'ddp'} {name}": make(sharded)  # type: ignore[no-untyped-call]
    for sharded in (False, True)
    for name, make in {
        "plain": lambda sharded: Case(sharded, has_ours=False),
        "watched": lambda sharded: Case(sharded),
        "rank 0 stalls": lambda sharded: Case(sharded, fault="sleep", rank=0, hours=0.02),
        "rank 1 stalls": lambda sharded: Case(sharded, fault="sleep", rank=1, hours=0.02),
        "the disk of rank 0 is full": lambda sharded: Case(sharded, fault="disk", rank=0),
        "the disk of rank 1 is full": lambda sharded: Case(sharded, fault="disk", rank=1),
        "over budget": lambda sharded: Case(sharded, hours=1e-9),
        "over budget, the disk of rank 0 is full": lambda sharded: Case(sharded, fault="disk", rank=0, hours=1e-9),
        "over budget, the disk of rank 1 is full": lambda sharded: Case(sharded, fault="disk", rank=1, hours=1e-9),
    }.items()
}

KILLED: Final = {  # Fits that a rank does not survive, each in processes of its own
    f"{'fsdp' if sharded else 'ddp'}, rank {rank} is killed, {'watched' if has_ours else 'plain'}": Case(
        sharded, has_ours, "kill", rank
    )
    for sharded, rank, has_ours in itertools.product((False, True), (0, 1), (False, True))
}


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let every write of this process to a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def callbacks(folder: Path, case: Case) -> list[Any]:
    """Return both callbacks with every file that they can write."""
    if not case.has_ours:
        return []
    predictor = RuntimePredictor(
        ["T4", "8xT4"], print_table=False, json_file=folder / "predictions.json", save_trace=folder / "trace.json"
    )
    return [predictor, CostBudget(hours=case.hours)]


def fit(case: Case, folder: Path, rank: int) -> dict[str, Any]:
    """Fit, and return what this rank has seen."""
    folder.mkdir(exist_ok=True)
    small = Small("lightning.pytorch")
    model, ours = small.model(validates=True), callbacks(folder, case)
    ends: dict[str, float] = {}

    def training_step(batch: torch.Tensor, batch_idx: int, plain: Callable[..., Any] = model.training_step) -> Any:
        if model.batches_trained == AT_BATCH and case.rank == rank:
            if case.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(2 if case.fault == "sleep" else 0)
        return plain(batch, batch_idx)

    def on_train_end() -> None:
        parameters = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
        ends["weights"] = float(torch.nn.utils.parameters_to_vector(parameters).double().sum())

    model.training_step, model.on_train_end = training_step, on_train_end
    if case.sharded:
        model.configure_model = lambda: fully_shard(model.network, mesh=model.device_mesh["data_parallel"])
    options: dict[str, Any] = {"process_group_backend": "gloo", "timeout": TIMEOUT}
    trainer = small.trainer(
        folder,
        devices=2,
        strategy=ShardedOnGloo(2, 1, **options) if case.sharded else DDPStrategy(**options),
        max_epochs=2,
        callbacks=ours,
        num_sanity_val_steps=0,
    )
    ended, start = "", time.monotonic()
    is_full = case.fault == "disk" and case.rank == rank
    with warnings.catch_warnings(record=True) as caught, full_disk() if is_full else contextlib.nullcontext():
        warnings.simplefilter("always")
        try:
            trainer.fit(model, small.loader(2 * BATCHES), small.loader(6))
        except Exception as error:
            ended = type(error).__name__
    return ends | {
        "batches": model.batches_trained,
        "random": torch.get_rng_state().tolist()[:64],
        "ended": ended,
        "reason": ours[1].stopping_reason if ours else None,
        "predicted": bool(ours) and ours[0].predictions is not None,
        "seconds": time.monotonic() - start,
        "said": [str(warning.message) for warning in caught if "LightningPredict" in warning.category.__name__],
        "files": sorted(path.name for path in folder.iterdir()),
    }


def main(folder: Path, names: list[str]) -> None:
    """Run the cases on this rank."""
    rank = int(os.environ["RANK"])
    for module, name in ((budget, "CHECK_SECONDS"), (budget_fit, "CHECK_SECONDS"), (budget_files, "LEDGER_SECONDS")):
        module.__dict__[name] = 0.0  # the ranks meet, and the ledger is written, after every batch
    for name in names:
        os.environ["LIGHTNING_PREDICT_HISTORY"] = str(folder / name / "history.jsonl")
        torch.manual_seed(3)
        seen = fit((CASES | KILLED)[name], folder / name, rank)
        (folder / f"{name}.{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
