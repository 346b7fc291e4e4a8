"""Readers and scores of published collectives and of steps of several cards, on made-up rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from benchmarks.accuracy.collectives import (
    collective_tables,
    read_bus_cases,
    read_milabench_ratios,
    read_sia_ratios,
)
from benchmarks.accuracy.published_steps import RECORDED
from lightning_predict.kernels.interconnect import PCIE_MACHINES, Interconnect

STEP: Final = Path(__file__).parent.parent.parent / "examples" / "resnet.json.gz"

NCCL = """\
gpu,gpus,nodes,operation,message_bytes,busbw_gb_s,p2p,link,topology,source
RTX-4090,4,1,all_reduce,1073741824,25.3,patched,PCIe 4.0 x16,root complex,here
RTX-4090,2,1,all_reduce,1073741824,2.2,off,PCIe 4.0 x16,container,here
H100-SXM-80GB,16,2,all_reduce,1073741824,300,on,NVLink switch,,here
H100-PCIe,2,1,all_reduce,1073741824,115.4,on,NVLink bridge,pair with a bridge,here
Nobody-1000,4,1,all_reduce,1073741824,25.3,on,PCIe,,here
"""
SIA = """\
app,cluster,gpu,kind,n_nodes,n_gpus,gpus_by_node,local_batch,step_seconds,sync_seconds
imagenet,rtx,RTX-2080-Ti,placements,1,1,1,200,0.5,0
imagenet,rtx,RTX-2080-Ti,placements,1,4,4,200,0.54,0.02
imagenet,rtx,RTX-2080-Ti,placements,2,4,22,200,0.6,0.1
yolov3,rtx,RTX-2080-Ti,placements,1,4,4,8,0.7,0.1
"""
MILABENCH = """\
gpu,n_gpus,bench,model,precision,batch_size,step_ms
L40S,1,lightning,ResNet-152,bf16,128,228
L40S,4,lightning-gpus,ResNet-152 in Lightning,bf16,128,237
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("nccl.csv", NCCL), ("sia.csv", SIA), ("milabench.csv", MILABENCH)):
        (tmp_path / name).write_text(text)
    for file in ("sia/imagenet-200.json.gz", "milabench/lightning-128.json.gz"):
        (tmp_path / RECORDED / file).parent.mkdir(parents=True)
        shutil.copy(STEP, tmp_path / RECORDED / file)
    return tmp_path


def test_rows_are_read_with_the_kind_of_machine_that_they_describe(folder: Path) -> None:
    cases = read_bus_cases(folder / "nccl.csv")
    assert [(one.layout.name, one.kind) for one in cases] == [
        ("4xRTX-4090", "root"),
        ("2xRTX-4090", "virtual"),
        ("2x8xH100-SXM-80GB", None),
    ]
    found = cases[0].predicted(Interconnect(pcie="root"))
    assert found.middle == pytest.approx(PCIE_MACHINES["root"].share * 32e9, rel=0.01)
    assert found.low < found.middle < found.high


def test_steps_are_compared_with_that_of_one_card_in_one_machine(folder: Path) -> None:
    (sia,) = read_sia_ratios(folder / "sia.csv")
    assert (sia.layout.name, sia.single_seconds, sia.seconds) == ("4xRTX-2080-Ti", 0.5, 0.54)
    assert sia.predicted().middle > 0.5
    (milabench,) = read_milabench_ratios(folder / "milabench.csv")
    assert (milabench.layout.name, milabench.batch, milabench.seconds) == ("4xL40S", 128, 0.237)


def test_the_report_has_a_row_for_each_kind_and_each_machine(folder: Path) -> None:
    console = Console(width=160, record=True)
    for table in collective_tables(folder):
        console.print(table)
    text = console.export_text()
    for words in (
        "no NVLink, one machine, kind told",
        "NVLink, several machines",
        "sia imagenet, 4xRTX-2080-Ti",
        "all",
    ):
        assert words in text
