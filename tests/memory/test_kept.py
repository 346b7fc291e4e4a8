"""What fills a GPU in every example, and what its allocator makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from lightning_predict.cost.memory import memory_need, safe_bytes, step_memory, total_bytes, usable_bytes
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import layout_of
from lightning_predict.memory.breakdown import memory_breakdown
from lightning_predict.memory.libraries import (
    context_bytes,
    convolved_share,
    cublas_bytes,
    nccl_bytes,
    trial_bytes,
    workspace_bytes,
)
from lightning_predict.memory.simulation import (
    blocks_of,
    fullest_moments,
    gradient_bytes,
    least_reserved_bytes,
    simulated,
)
from lightning_predict.tracing.trace import Trace
from tests.kept import Kept, example, many_calls, numbers

GPUS: Final = ("T4", "A100-SXM-80GB", "H100-SXM-80GB")
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "as recorded": {},
    "without gradients": {"gradient_bytes": None},
    "before an update": {"optimizer_state_bytes": None},
}


def traces(name: str) -> dict[str, Trace]:
    trace = many_calls() if name == "many calls" else example(name)
    return {word: replace(trace, memory=replace(trace.memory, **values)) for word, values in VARIANTS.items()}


@pytest.mark.parametrize("name", ["many calls", "gpt2", "resnet", "tabular", "dlrm", "vit"])
def test_steps(kept: Kept, name: str) -> None:
    found: dict[str, object] = {}
    for word, trace in traces(name).items():
        blocks = blocks_of(trace)
        moments = [
            [one.index, one.total_bytes, one.gradient_bytes, one.state_bytes, one.batch_bytes, one.update_bytes]
            for one in fullest_moments(blocks)
        ]
        found[word] = [
            gradient_bytes(trace),
            *numbers(simulated(blocks)),
            *numbers(simulated(blocks, expandable_segments=True)),
            least_reserved_bytes(blocks),
            *numbers(moments),
            *numbers(step_memory(trace)),
        ]
    trace = traces(name)["as recorded"]
    convolutions = [sum(size for _, size in of(trace)) for of in (workspace_bytes, trial_bytes)]
    found["convolutions"] = [convolved_share(trace), *convolutions]
    forward = replace(trace, operations=tuple(one for one in trace.operations if one.phase == "forward"))
    for word, one in (("parts", trace), ("parts of a forward pass", forward)):
        parts = memory_breakdown(one, gpu("H100-SXM-80GB"))
        found[word] = [] if parts is None else [parts.operation, *numbers(parts.parts), *numbers(parts.modules)[:20]]
    kept(f"memory of {name}", found)


def test_gpus(kept: Kept) -> None:
    found = {}
    for name in GPUS:
        one = gpu(name)
        found[name] = [
            *numbers(context_bytes(one)),
            *numbers(context_bytes(one, release=(1, 12))),
            *numbers(nccl_bytes(one, communicators=3, all_to_all_peers=5)),
            cublas_bytes(one, handles=2),
            total_bytes(one),
            usable_bytes(one),
            safe_bytes(one),
            *(
                part
                for size in (0.5, 0.85, 0.95, 1.1)
                for part in numbers(memory_need(layout_of(name), size * total_bytes(one)))
            ),
        ]
    kept("gpus", found)
