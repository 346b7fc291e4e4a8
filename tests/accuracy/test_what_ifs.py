"""The study of what-ifs: pairs of recordings that differ in one option."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import lightning_predict as lp
from benchmarks.accuracy.what_ifs import SecondRecording, change, difference, recomputed_pairs, recorded_pairs
from lightning_predict.record.trace import Trace


def layers(dtype: torch.dtype) -> Trace:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(dtype)
        rows = torch.empty(4096, 1024, dtype=dtype)
    return lp.capture(lambda: model(rows).square().mean().backward(), warmup_steps=0)


def test_a_what_if_is_compared_with_the_second_recording() -> None:
    def pair(dtype: torch.dtype) -> SecondRecording:
        return SecondRecording(
            kind="half",
            model="layers",
            before=lambda: layers(torch.float32),
            after=lambda: layers(dtype),
            changed=change("half"),
            gpus=("T4",),
        )

    assert abs(difference(pair(torch.float16)).largest) < 0.01
    assert difference(pair(torch.float32)).largest < -0.5  # float16 is far faster than what was not changed


def test_recordings_are_paired_by_their_names(tmp_path: Path) -> None:
    for name in ("traces_pairs/torchvision/vgg11_float_train", "traces_pairs/torchvision/vgg11_half_train"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.json.gz").touch()
    for batch in (8, 32, 128):
        (tmp_path / "traces_memory").mkdir(exist_ok=True)
        (tmp_path / "traces_memory" / f"convit_tiny_{batch}.json.gz").touch()
    found = [(one.kind, one.model) for one in recorded_pairs(tmp_path)]
    assert found == [("half", "vgg11_half_train"), ("batch size", "convit_tiny_32"), ("batch size", "convit_tiny_128")]


def test_every_architecture_is_checkpointed_in_every_precision() -> None:
    names = [one.model for one in recomputed_pairs()]
    assert len(names) == len(set(names)) == 24
    assert "U-Net 320 bf16-mixed" in names
