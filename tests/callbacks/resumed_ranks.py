"""Part of a run on one or two ranks: `python -m tests.callbacks.resumed_ranks FOLDER first|rest CASE ...`.

The first part saves a checkpoint, from which the rest continues on another number of ranks. A batch takes a second of
a simulated clock.
"""

import contextlib
import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard

from lightning_predict.callbacks import CostBudget, RuntimePredictor, budget_files, budget_fit
from lightning_predict.observe import budget
from lightning_predict.observe.clock import clock_of_fits
from lightning_predict.testing import Clock
from tests.callbacks.rank_surroundings import ShardedOnGloo
from tests.callbacks.small import Small

BATCHES: Final = 48  # Batches of an epoch on one rank, and twice as many as on two ranks

EPOCHS: Final = 4

OFFER: Final = "AWS g5.xlarge"  # Offer of a machine with one GPU, so that two ranks cost twice as much

ENDS: Final[dict[str, dict[str, Any]]] = {  # By end of the first part: options of the Trainer
    "an epoch": {"max_epochs": 1},
    "within an epoch": {"max_steps": 10},
    "lost after its checkpoint": {"max_epochs": 1},
}

LOST: Final = 6  # Batches after the checkpoint of a part that ends with an error

CASES: Final = tuple(
    f"{strategy}, {end}, {how}" for strategy in ("ddp", "fsdp") for end in ENDS for how in ("plain", "watched")
)
SHORT_USD: Final = 0.04  # Dollars, less than the first epoch and the rest cost

SHORT: Final = tuple(f"{strategy}, an epoch, short" for strategy in ("ddp", "fsdp"))
"""Rests with a budget that is too small for them."""


class LostError(Exception):
    """Error of the script."""


def watchers(how: str) -> list[Any]:
    """Return both callbacks; none for a plain run."""
    if how == "plain":
        return []
    budget = CostBudget(usd=SHORT_USD if how == "short" else 1000.0, hours=1000, offer=OFFER)
    return [RuntimePredictor(["T4"], print_table=False, learn_from_history=False), budget]


def shard(model: Any) -> None:
    """Shard the network once."""
    if not isinstance(model.network, FSDPModule):
        fully_shard(model.network, mesh=model.device_mesh["data_parallel"])


def fit(case: str, folder: Path, rank: int, world_size: int, *, is_first: bool, path: Path) -> dict[str, Any]:
    """Fit a part, and return what this rank has seen."""
    strategy, end, how = case.split(", ")
    clock, small = Clock(), Small("lightning.pytorch")
    model = small.model()
    plain = model.training_step
    is_lost = end.startswith("lost") and is_first
    ends: dict[str, Any] = {}

    def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
        if model.batches_trained == LOST and is_lost and path.exists():
            raise LostError
        clock.advance(1.0)
        return plain(batch, batch_idx)

    def on_train_end() -> None:
        parameters = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
        ends["weights"] = float(torch.nn.utils.parameters_to_vector(parameters).double().sum())

    model.training_step, model.on_train_end = training_step, on_train_end
    if strategy == "fsdp":
        model.configure_model = lambda: shard(model)
    options: dict[str, Any] = {"process_group_backend": "gloo", "timeout": timedelta(seconds=60)}

    def trainer_with(callbacks: list[Any], **more: Any) -> Any:
        parallel = ShardedOnGloo(world_size, 1, **options) if strategy == "fsdp" else DDPStrategy(**options)
        return small.trainer(folder, devices=world_size, strategy=parallel, callbacks=callbacks, **more)

    with warnings.catch_warnings(record=True) as caught, clock_of_fits(clock):
        warnings.simplefilter("always")
        ours = watchers(how)
        trainer = trainer_with(ours, **(ENDS[end] if is_first else {"max_epochs": EPOCHS}))
        trainer.fit(model, small.loader(BATCHES), ckpt_path=None if is_first else path)
        if is_first:
            trainer.save_checkpoint(path)
        if is_lost:
            model.batches_trained, ours = 0, watchers(how)
            with contextlib.suppress(LostError):
                trainer_with(ours, max_epochs=2).fit(model, small.loader(BATCHES), ckpt_path=path)
    outcome = ours[0].outcome if ours else None
    return ends | {
        "batches": model.batches_trained,
        "steps": trainer.global_step,
        "random": torch.get_rng_state().tolist()[:64],
        "used": {name: ours[1].state_dict()[name] for name in ("seconds", "usd")} if ours else {},
        "clock": clock(),
        "reason": ours[1].stopping_reason if ours else None,
        "forecast": None if outcome is None else [outcome.predicted_seconds, outcome.actual_seconds],
        "said": [str(warning.message) for warning in caught if "LightningPredict" in warning.category.__name__],
    }


def main(folder: Path, part: str, cases: list[str]) -> None:
    """Run a part of the cases on this rank."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for module, name in ((budget, "CHECK_SECONDS"), (budget_fit, "CHECK_SECONDS"), (budget_files, "LEDGER_SECONDS")):
        module.__dict__[name] = 0.0  # the ranks meet, and the ledger is written, after every batch
    for case in cases:
        torch.manual_seed(3)
        place = folder / case
        place.mkdir(exist_ok=True)
        path = (folder / case.replace("short", "watched")) / "part.ckpt"
        seen = fit(case, place, rank, world_size, is_first=part == "first", path=path)
        (place / f"{part}.{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
