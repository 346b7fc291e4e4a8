"""What generations have, the vendor of a GPU, and the notes about an unmeasured GPU."""

from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.hardware.records import GENERATIONS, NVIDIA, generation_of
from lightning_predict.hardware.user_gpus import read_gpus
from lightning_predict.testing import example_trace


def test_generations_ascend_and_new_vendors_inherit_from_their_model() -> None:
    for rows in GENERATIONS.values():
        assert list(rows) == sorted(rows)
        assert min(rows) == (0, 0)
    assert generation_of("Intel", (9, 0)) == generation_of(NVIDIA, (9, 0))


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("P100-PCIe-16GB", ["has_winograd"], ["has_tensor_cores", "has_fast_stacked_memory"]),
        ("V100-SXM2-16GB", ["has_tensor_cores"], ["streams_norms"]),
        ("T4", ["streams_norms"], ["streams_softmax"]),
        ("A100-SXM-80GB", ["streams_softmax"], ["has_large_workspaces"]),
        ("L4", [], ["has_warp_group_matmul"]),
        ("H100-SXM-80GB", ["has_warp_group_matmul"], []),
        ("RTX-5090", ["has_large_workspaces"], ["has_warp_group_matmul"]),
    ],
)
def test_a_gpu_has_what_its_generation_brought(name: str, has: list[str], lacks: list[str]) -> None:
    generation = gpu(name).generation
    assert all(getattr(generation, feature) for feature in has)
    assert not any(getattr(generation, feature) for feature in lacks)


@pytest.mark.parametrize(
    ("name", "row", "vendor"),
    [("MI300P", "", "AMD"), ("Max-1550", 'vendor = "Intel"', "Intel"), ("H100-96GB", "", "NVIDIA")],
)
def test_a_file_of_ones_own_says_the_vendor_or_its_name_does(name: str, row: str, vendor: str, tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text(f'[gpu.{name}]\nlike = "H100-SXM-80GB"\n{row}\n', encoding="utf-8")
    (board,) = read_gpus(path)
    assert (board.vendor, board.architecture) == (vendor, "hopper")
    assert board.generation == generation_of(NVIDIA, (9, 0))


def test_a_card_of_another_maker_is_marked_and_named_in_the_plain_table(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text('[gpu.MI300P]\nlike = "H100-SXM-80GB"\nmemory_gib = 192\n', encoding="utf-8")
    (card,) = read_gpus(path)
    text = str(lp.predict(example_trace(), [card, "T4"], history=False))
    assert "MI300P †" in text
    text = " ".join(text.split())
    assert "MI300P: not validated, may be several times too fast" in " ".join(text.split())
    assert "data sheet" not in str(lp.predict(example_trace(), ["T4"], history=False))
