"""Kept memory of the examples, and of the allocator."""

from dataclasses import replace
from typing import Any, Final

import pytest

from lightning_predict.hardware import gpu
from lightning_predict.memory.breakdown import memory_breakdown
from lightning_predict.memory.libraries import context_bytes, nccl_bytes
from lightning_predict.memory.simulation import blocks_of, gradient_bytes, least_reserved_bytes
from lightning_predict.memory.step_memory import step_memory
from lightning_predict.record.trace import Trace
from tests.kept import Kept, example, many_calls, numbers

GPUS: Final = ("T4", "A100-SXM-80GB", "H100-SXM-80GB")
VARIANTS: Final[dict[str, dict[str, Any]]] = {"as recorded": {}, "without gradients": {"gradient_bytes": None}}


def traces(name: str) -> dict[str, Trace]:
    trace = many_calls() if name == "many calls" else example(name)
    return {word: replace(trace, memory=replace(trace.memory, **values)) for word, values in VARIANTS.items()}


@pytest.mark.parametrize("name", ["many calls", "gpt2", "resnet", "tabular", "dlrm", "vit"])
def test_memory_matches_kept_values(kept: Kept, name: str) -> None:
    values: dict[str, object] = {}
    for word, trace in traces(name).items():
        need = step_memory(trace)
        values[word] = (
            [] if need is None else [need.persistent_bytes, need.temporary_bytes, need.update_bytes, need.slack_bytes]
        )
    trace = traces(name)["as recorded"]
    values["allocator"] = [gradient_bytes(trace), least_reserved_bytes(blocks_of(trace))]
    parts = memory_breakdown(trace, gpu("H100-SXM-80GB"))
    values["parts"] = (
        [] if parts is None else [value for value in numbers(parts.parts) if isinstance(value, int | float)]
    )
    kept(f"memory of {name}", values)


def test_memory_of_gpus_matches_kept_values(kept: Kept) -> None:
    values = {}
    for name in GPUS:
        card = gpu(name)
        values[name] = [
            context_bytes(card).middle,
            context_bytes(card, release=(1, 12)).middle,
            nccl_bytes(card, communicators=3, all_to_all_peers=5).middle,
        ]
    kept("gpus", values)
