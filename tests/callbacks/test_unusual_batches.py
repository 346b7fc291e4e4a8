"""Batches that are smaller than the loader's batch size, or dataclasses with slots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_predict.callbacks.lightning_packages import samples_of, shapes_of
from lightning_predict.callbacks.trainer_state import position_of
from lightning_predict.observe.optimizer_steps import WindowSize
from tests.callbacks.small import Rows, Small


@dataclass(slots=True)
class Slotted:
    """A batch as chemprop makes it."""

    rows: Tensor
    targets: Tensor | None = None


def test_a_dataclass_with_slots_is_read_like_one_without() -> None:
    assert samples_of(Slotted(torch.zeros(4, 2), torch.zeros(4))) == 4
    shapes = shapes_of(Slotted(torch.zeros(4, 2)))
    assert shapes is not None
    assert ((4, 2), "torch.float32") in shapes
    assert shapes != shapes_of(Slotted(torch.zeros(5, 2)))


@pytest.mark.parametrize(
    ("rows", "batch_size", "share"),
    [
        (20, 32, 1.0),  # the only batch of an epoch has 20 rows each time: no other is larger
        (40, 32, 0.25),  # 32 and 8
        (64, 32, 1.0),
    ],
)
def test_a_batch_larger_than_the_data_is_a_full_one(tmp_path: Path, rows: int, batch_size: int, share: float) -> None:
    small = Small("lightning.pytorch")
    trainer = small.trainer(tmp_path, max_epochs=1)
    trainer.fit(small.model(), DataLoader(Rows(rows // 4), batch_size=batch_size))
    assert (
        position_of(
            trainer, batches_done=0, window_size=WindowSize(batches_per_window=None, steps_per_window=1.0)
        ).last_batch_share
        == share
    )
