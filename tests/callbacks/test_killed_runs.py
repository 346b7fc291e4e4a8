"""A run that `kill -9` ends between two hourly checkpoints: the ledger knows its usage, to within a minute."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_predict.base import files
from lightning_predict.callbacks import CostBudget
from lightning_predict.observe.clock import clock_of_fits
from lightning_predict.observe.ledger_file import LEDGER_NAME, LEDGER_SECONDS, read_ledger
from lightning_predict.testing import Clock
from tests.callbacks.small import Small
from tests.processes import run

BATCHES, BATCH_SECONDS = 400, 20.0
HOUR = 180  # Batches from one checkpoint to the next: an hour of them


def hourly(folder: Path, *, in_batch: Callable[[int], None] = lambda _: None, resumes: bool = False) -> float:
    """Train for 8,000 s of a clock of its own; returns the final count of the budget."""
    small, time = Small("lightning.pytorch"), Clock()
    model = small.model()
    step = model.training_step

    def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
        time.advance(BATCH_SECONDS)
        in_batch(batch_idx)
        return step(batch, batch_idx)

    model.training_step = training_step
    with clock_of_fits(time):
        budget = CostBudget(hours=1000)
        hours = small.lightning.callbacks.ModelCheckpoint(
            folder, filename="hour", every_n_train_steps=HOUR, enable_version_counter=False
        )
        trainer = small.trainer(folder, max_epochs=1, callbacks=[budget, hours], enable_checkpointing=True)
        trainer.fit(model, small.loader(BATCHES), ckpt_path=str(folder / "hour.ckpt") if resumes else None)
    return float(budget.state_dict()["seconds"])


def kill() -> None:
    """End this process as the system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_batch(number: int) -> Callable[[int], None]:
    """Kill it in the midst of a training step."""
    return lambda batch_idx: kill() if batch_idx == number else None


def kill_while_it_writes(number: int) -> Callable[[int], None]:
    """Kill it where the ledger is next put into its place, after a batch of this number."""

    def kill_later(batch_idx: int) -> None:
        if batch_idx == number:
            files.os.replace = lambda *_: kill()  # type: ignore[attr-defined]

    return kill_later


@pytest.mark.parametrize("how", [kill_in_batch, kill_while_it_writes])
@pytest.mark.filterwarnings("ignore:.*dataloader is not resumable", "ignore:Checkpoint directory .* is not empty")
def test_the_ledger_of_a_killed_run_is_within_a_minute(how: Callable[[int], Any], tmp_path: Path) -> None:
    # 280 batches and the one in which it is killed: 5,620 s, the hour-old checkpoint knows 3,600 of it.
    ran = run("-m", "tests.callbacks.test_killed_runs", tmp_path, how.__name__)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert (tmp_path / "hour.ckpt").exists()
    kept = read_ledger(tmp_path / LEDGER_NAME)
    assert kept is not None
    killed = int((tmp_path / "batches").read_text()) * BATCH_SECONDS
    assert killed >= 281 * BATCH_SECONDS
    # Where it is killed while it writes, the batch counts after which it would have.
    assert 0 <= killed - kept.use.seconds <= LEDGER_SECONDS + (BATCH_SECONDS if how is kill_while_it_writes else 0)
    assert kept.use.seconds > HOUR * BATCH_SECONDS + 1800
    # Resumed from the checkpoint it trains the other 220 batches, and counts all that both used but for that minute.
    left = (BATCHES - HOUR) * BATCH_SECONDS
    assert hourly(tmp_path, resumes=True) == pytest.approx(kept.use.seconds + left)


if __name__ == "__main__":
    place, kind = Path(sys.argv[1]), sys.argv[2]
    kills = {"kill_in_batch": kill_in_batch, "kill_while_it_writes": kill_while_it_writes}[kind](280)

    def counted(batch_idx: int) -> None:
        (place / "batches").write_text(str(batch_idx + 1))
        kills(batch_idx)

    hourly(place, in_batch=counted)
