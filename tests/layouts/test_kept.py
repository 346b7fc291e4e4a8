"""Kept steps and memory of layouts under many strategies, and results of a search."""

from typing import Final

import pytest

from lightning_predict.assumptions import Assumptions
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.layout_search.ranking import best_layouts
from lightning_predict.layouts.strategy import parse_strategy
from lightning_predict.run.workload import Workload
from lightning_predict.step_predictor import StepPredictor
from tests.kept import Kept, ends, example

EVERYWHERE: Final = (
    "ddp",
    "ddp,bucket_cap_mb=3",
    "ddp,overlap_grad_reduce=false,reduce_dtype=bfloat16",
    "ddp,accumulate=4",
)
SPLITS: Final = ("zero1,offload=optimizer", "fsdp", "hybrid,shard=4")
BLOCKS: Final = (
    "zero1,overlap_param_gather=true,recompute=operations",
    "zero2,recompute=layers",
    "fsdp,param_dtype=bfloat16,recompute=full",
    "ddp,tensor=4,sequence=true",
    "fsdp,tensor=2,overlap_tensor=true,sequence=true",
    "ddp,pipeline=3,tensor=2",
    "ddp,context=4",
)
STAGES: Final = (
    "hybrid,shard=4,recompute=selective",
    "ddp,pipeline=4,micro_batches=8",
    "zero1,pipeline=2,virtual=3,tensor=2",
    "ddp,pipeline=4,first_stage=2,last_stage=2,schedule=gpipe",
    "ddp,pipeline=4,schedule=zero_bubble,recompute=selective",
    "ddp,accumulate=3,fp8=rowwise",
    "fsdp,fp8=mx,reduce_dtype=float32",
)
EXPERTS: Final = ("zero1,expert=4,capacity=1.25,tensor=2",)
TABLES: Final = ("ddp", "ddp,embedding=table_wise", "ddp,embedding=row_wise", "ddp,embedding=auto")
CASES: Final = {
    "resnet": ("4x8xH100-SXM-80GB", (*EVERYWHERE, *SPLITS)),
    "tabular": ("8xA100-SXM-80GB", BLOCKS),
    "gpt2": ("4x8xH100-SXM-80GB", STAGES),
    "mixtral-8x7b": ("4x8xH100-SXM-80GB", EXPERTS),
    "dlrm": ("8xA100-SXM-80GB", TABLES),
}
WORKLOAD: Final = Workload(training_iterations=1000, validation_iterations=37, samples_per_iteration=16)


@pytest.mark.parametrize("name", CASES)
def test_layouts_match_kept_values(kept: Kept, name: str) -> None:
    layout, strategies = layout_of(CASES[name][0]), CASES[name][1]
    step = StepPredictor(example(name), [layout.gpu], Assumptions(), WORKLOAD)
    values = {}
    for words in strategies:
        if layout.count % (parse_strategy(words).model_parallel * parse_strategy(words).context) == 0:
            prediction = step.predict_layout(layout, parse_strategy(words))
            values[words] = [*ends(prediction.iteration), prediction.communication_seconds, prediction.memory_bytes]
    kept(f"layouts of {name}", values)


def test_links_match_kept_values(kept: Kept) -> None:
    values = {}
    for word, links in (
        ("slow network", Interconnect(inter_node_bytes_per_second=3e9)),
        ("slow links", Interconnect(intra_node_bytes_per_second=20e9)),
        ("a switch", Interconnect(pcie="switch")),
        ("a virtual machine", Interconnect(pcie="virtual")),
    ):
        step = StepPredictor(example("tabular"), [gpu("L4")], Assumptions(interconnect=links))
        values[word] = step.predict_layout(layout_of("2x8xL4"), parse_strategy("fsdp")).iteration_seconds
    kept("links", values)


def test_search_matches_kept_values(kept: Kept) -> None:
    ranked = best_layouts(example("tabular"), ["2x2xL4"], iterations=1000, count=6)
    kept("search", {candidate.strategy.name: candidate.prediction.iteration_seconds for candidate in ranked})
