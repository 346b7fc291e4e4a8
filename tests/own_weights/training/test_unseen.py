from __future__ import annotations

from rich.console import Console

from benchmarks.training.publishing import unseen_cells, unseen_markdown, unseen_table
from lightning_predict.weights.manifest import HeldOutError, Manifest
from lightning_predict.weights.store import BUNDLED, read_manifest
from tests.own_weights.training.example import manifest_of_base

ERROR = HeldOutError(rows=20, mean=0.125, median=0.1, coverage=0.9)


def test_each_gpu_that_was_left_out_is_a_row() -> None:
    assert unseen_cells(manifest_of_base({"linear/bfloat16/L4": ERROR})) == [
        ("linear", "bfloat16", "L4", "20", "10.0", "12.5", "90.0")
    ]
    assert "| linear | bfloat16 | L4 | 20 | 10.0 | 12.5 | 90.0 |" in unseen_markdown(
        manifest_of_base({"linear/bfloat16/L4": ERROR})
    )
    console = Console(width=120)
    with console.capture() as captured:
        console.print(unseen_table(manifest_of_base({"linear/bfloat16/L4": ERROR})))
    assert "left out" in captured.get()
    assert "12.5" in captured.get()


def test_without_a_base_there_is_nothing_to_say() -> None:
    assert unseen_cells(Manifest(recipe="r", seed=0, files={})) == []


def test_the_bundled_weights_name_the_gpus_that_users_ask_about() -> None:
    bundled = read_manifest(BUNDLED)
    assert bundled is not None
    found = {cells[:3] for cells in unseen_cells(bundled)}
    for name in ("L40S", "H200-SXM-141GB", "RTX-PRO-6000-Server", "A100-SXM-80GB", "B200-SXM-180GB"):
        assert ("linear", "bfloat16", name) in found
    for name in ("H100-SXM-80GB", "L4", "V100-PCIe-32GB"):
        assert ("linear", "float32", name) in found
