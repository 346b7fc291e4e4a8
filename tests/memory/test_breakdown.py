"""Memory of a step by use and module."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.advice.memory_savings import memory_report
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.memory.breakdown import memory_breakdown
from lightning_predict.record.trace import Memory, Trace
from lightning_predict.reports.memory import folded_modules
from tests.known import known

BLOCKS, WIDTH, ROWS = 8, 512, 16 * 1024


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A row of eight blocks; each keeps two activations of 32 MiB."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(BLOCKS)))
        data = torch.empty(ROWS, WIDTH)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return lp.capture(step, samples_per_step=ROWS)


def test_parts_add_up_to_process_and_the_table(trace: Trace) -> None:
    found = known(memory_breakdown(trace, gpu("L4")))
    parts = {part.name: part.bytes for part in found.parts}
    parameters = BLOCKS * (WIDTH * WIDTH + WIDTH) * 4
    assert parts["parameters and buffers"] == parameters
    assert parts["optimizer state"] == pytest.approx(2 * parameters, rel=0.01)
    # 16,384 x 512 x 4 bytes are 32 MiB: of each block its product, for GELU, and GELU's result, for the next product.
    # The backward pass, whose gradients pass by, has left the last block when most lives.
    assert parts["activations"] == pytest.approx(2 * (BLOCKS - 1) * 32 * MEBIBYTE, abs=64)
    assert found.total_bytes == pytest.approx(sum(parts.values()))
    assert found.phase in ("forward", "backward")
    # `trace memory` said 19.9 and 21.0 GiB where the table said 20.7, and listed ten single blocks.
    report = known(memory_report(trace, gpu("L4")))
    assert report.breakdown.total_bytes == pytest.approx(known(report.need.process).middle)
    names = [one.name for one in folded_modules(report.breakdown.modules)]
    assert len([name for name in names if name.startswith("*.")]) == 2  # products and GELUs of all blocks
    assert not any(name.startswith("0.") for name in names)


def test_activations_are_listed_by_module_or_unknown_without_tensors(trace: Trace) -> None:
    found = memory_breakdown(trace, gpu("L4"))
    sizes = {part.name: part.bytes for part in known(found).modules}
    assert sizes["0.0"] == sizes["1.0"] == 32 * MEBIBYTE
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)
    assert memory_breakdown(replace(trace, memory=Memory()), gpu("L4")) is None
    unseen = tuple(replace(operation, outputs=()) for operation in trace.operations)
    assert memory_breakdown(replace(trace, operations=unseen), gpu("L4")) is None
