"""Batches that are smaller than the loader's batch size, or dataclasses with slots."""

import random
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_predict.callbacks.lightning_packages import samples_of, shapes_of
from lightning_predict.callbacks.trainer_loop import sequence_length
from lightning_predict.callbacks.trainer_state import position_of
from lightning_predict.observe.optimizer_steps import WindowSize
from tests.callbacks.small import Rows, Small


@dataclass(slots=True)
class Slotted:
    """A batch as chemprop makes it."""

    rows: Tensor
    targets: Tensor | None = None


def test_slots_and_mappings_of_other_libraries_are_read() -> None:
    assert samples_of(Slotted(torch.zeros(4, 2), torch.zeros(4))) == 4
    shapes = shapes_of(Slotted(torch.zeros(4, 2)))
    assert shapes is not None
    assert ((4, 2), "torch.float32") in shapes
    assert shapes != shapes_of(Slotted(torch.zeros(5, 2)))

    class Encoding(UserDict[str, Tensor]):
        """As transformers' BatchEncoding."""

    batch = Encoding(input_ids=torch.zeros(2, 9, dtype=torch.int64))
    assert (samples_of(batch), sequence_length(batch)) == (2, 9)
    assert shapes_of(batch) == (("input_ids",), ((2, 9), "torch.int64"))


class Drawing(dict[str, Any]):
    """A batch whose methods draw a random number."""

    def __getattribute__(self, name: str) -> Any:
        torch.rand(1)
        return super().__getattribute__(name)

    def __iter__(self) -> Any:
        torch.rand(1)
        return super().__iter__()


class Hostile:
    """A batch that refuses everything, and draws a random number for each attribute that it lacks."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __getattr__(self, name: str) -> Any:
        torch.rand(1)
        raise RuntimeError(name)

    def __iter__(self) -> Any:
        raise RuntimeError("no iteration")

    __len__ = __bool__ = __eq__ = __hash__ = __repr__ = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize(
    "batch",
    [
        Drawing(rows=torch.zeros(4, 2)),
        [Drawing(rows=torch.zeros(4, 2))],
        Hostile(torch.zeros(4, 2)),
        (Hostile, object()),
    ],
    ids=["mapping", "list", "object", "classes"],
)
def test_batch_is_read_without_the_code_of_the_user(batch: Any) -> None:
    before = torch.get_rng_state()
    facts = samples_of(batch), shapes_of(batch), sequence_length(batch)
    assert torch.equal(torch.get_rng_state(), before)
    is_mapping = isinstance(batch, (Drawing, list))
    assert (facts[0], facts[1] is not None, facts[2]) == (4 if is_mapping else None, is_mapping, None)


class DrawsForItsShape:
    """An array whose shape is code of the user."""

    @property
    def shape(self) -> torch.Size:
        torch.rand(1)
        return torch.Size((4, 2))


def test_random_numbers_continue_after_drawing_shapes_and_are_not_saved_for_plain_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_rng_state()
    assert (samples_of([DrawsForItsShape()]), shapes_of([DrawsForItsShape()])) == (4, ((0,), ((4, 2), "None")))
    assert torch.equal(torch.get_rng_state(), before)
    # Saving and restoring them takes 0.1 ms within each timed step.
    monkeypatch.delattr(random, "getstate")
    assert samples_of({"rows": torch.zeros(4, 2), "names": ["a", "b"], "pair": (torch.zeros(4), None)}) == 4


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
