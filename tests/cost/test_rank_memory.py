"""Memory of a rank under ZeRO and FSDP, by hand.

Eight blocks of 4 MiB of weights; AdamW has two states a parameter.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.base.units import GIBIBYTE, MEBIBYTE
from lightning_predict.fusion.kernels import fused
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.strategy import Strategy, parse_strategy
from lightning_predict.memory.rank_memory import GATHERED_UNITS, RankMemory, even_bytes
from lightning_predict.memory.simulation import Blocks, live_bytes
from lightning_predict.memory.step_memory import DERIVED, step_memory
from lightning_predict.memory.storages import Storage
from lightning_predict.record.trace import Trace
from lightning_predict.step_predictor import memory_need_of
from tests.known import known

A100 = gpu("A100-SXM-80GB")
BLOCKS = 8
WEIGHT_BYTES = 4 * MEBIBYTE


def recorded(rows: int = 64, *, keeps_result: bool = False) -> Trace:
    with torch.device("meta"):
        blocks = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(BLOCKS))
        data = torch.empty(rows, 1024)
    optimizer = torch.optim.AdamW(blocks.parameters())
    kept = list[torch.Tensor]()

    def step() -> None:
        hidden = data
        for block in blocks:
            hidden = block(hidden)
        kept[:] = [hidden] if keeps_result else []
        hidden, loss = data, hidden.exp().sum()  # whose backward pass does not read its input
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return lp.capture(step, samples_per_step=rows)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return recorded()


def rank_blocks(trace: Trace, count: int, strategy: Strategy) -> tuple[Blocks, tuple[Storage, ...]]:
    rank = RankMemory(trace).rank(Layout(A100, count), strategy)
    return rank.blocks, rank.gathered


def test_fsdp_holds_shards_and_zero_whole_gradients_or_shards(trace: Trace) -> None:
    blocks, gathered = rank_blocks(trace, 2, Strategy(data="fsdp"))
    assert sum(blocks.lasting) == BLOCKS * WEIGHT_BYTES // 2
    assert sum(blocks.state) == pytest.approx(2 * BLOCKS * WEIGHT_BYTES // 2, abs=1000)  # and the counts of steps
    assert [storage.size_bytes for storage in gathered] == [WEIGHT_BYTES] * 2 * BLOCKS  # forward and backward
    assert max(live_bytes(gathered, blocks.count)) == (GATHERED_UNITS - 1) * WEIGHT_BYTES  # without a root unit
    shards = [storage for storage in blocks.storages if storage.cause == "gradient"]
    assert [storage.size_bytes for storage in shards] == [WEIGHT_BYTES // 2] * BLOCKS
    whole = [one for one in blocks.storages if one.cause == "backward" and one.size_bytes == WEIGHT_BYTES]
    assert len(whole) == BLOCKS
    copies = [one for one in blocks.storages if one.cause == "update"]  # of one state, by AdamW for all at once
    assert max(live_bytes(copies, blocks.count)) == BLOCKS * WEIGHT_BYTES // 2
    # A whole gradient is freed after the next unit, so two exist at a time, and three while a third is written.
    assert max(live_bytes(whole, blocks.count)) <= 3 * WEIGHT_BYTES
    first, second = (rank_blocks(trace, 4, Strategy(data=data))[0] for data in ("zero1", "zero2"))
    assert sum(first.lasting) == 2 * BLOCKS * WEIGHT_BYTES  # parameters and buckets
    assert sum(second.lasting) == BLOCKS * WEIGHT_BYTES
    sizes = [sum(one.size_bytes for one in each.storages if one.cause == "gradient") for each in (first, second)]
    assert sizes == [BLOCKS * WEIGHT_BYTES, BLOCKS * WEIGHT_BYTES // 4]
    assert sum(first.state) == sum(second.state)
    # Without the backward operations that write gradients, gradients count with the size of the parameters.
    operations = tuple(operation for operation in trace.operations if operation.phase != "optimizer")
    bare = replace(trace, operations=operations, held=None)
    zero1, zero2 = (sum(rank_blocks(bare, 4, Strategy(data=data))[0].lasting) for data in ("zero1", "zero2"))
    parameters = BLOCKS * WEIGHT_BYTES
    assert zero1 == 3 * parameters  # with gradients and buckets
    assert zero2 == parameters + parameters // 4


@pytest.mark.parametrize("words", ["ddp,accumulate=2", "ddp,micro_batches=2", "ddp,micro_batches=2,accumulate=2"])
def test_a_variable_holds_the_result_of_one_micro_batch(words: str) -> None:
    # Until the next forward pass ends: at its peak there is one result more, whatever the number of micro-batches.
    rows, layout, strategy = 2**16, Layout(A100, 2), parse_strategy(words)
    steps = [recorded(rows, keeps_result=keeps) for keeps in (False, True)]
    plain, kept = (RankMemory(step).tensor_bytes(layout, strategy) for step in steps)
    assert kept - plain == rows * 1024 * 4 // (2 if "micro" in words else 1)


@pytest.mark.parametrize("words", ["ddp,accumulate=2", "ddp,micro_batches=2"])
def test_a_compiled_backward_pass_returns_all_gradients_at_its_end(trace: Trace, words: str) -> None:
    for step, together in ((trace, 1), (fused(trace), BLOCKS), (fused(trace, by_blocks=True), 1)):
        blocks, _ = rank_blocks(step, 1, parse_strategy(words))
        passing = [one for one in blocks.storages if one.cause == "backward" and one.size_bytes == WEIGHT_BYTES]
        assert max(live_bytes(passing, blocks.count)) == together * WEIGHT_BYTES


@pytest.mark.parametrize("free", [0.5, 4.0])
def test_a_measured_peak_scales_tensors_and_free_blocks_of_the_simulated_rank(trace: Trace, free: float) -> None:
    layout, strategy = Layout(A100, 4), Strategy(data="fsdp")
    alone = known(step_memory(trace))
    tensors, unused = alone.allocated_on(A100), alone.bytes_on(A100) - alone.allocated_on(A100)
    memory = replace(trace.memory, peak_bytes=2 * tensors, reserved_bytes=round(2 * tensors + free * unused))
    measured = replace(trace, memory=memory)
    found, plain = (
        memory_need_of([(recording, single)], layout, strategy)
        for recording in (measured, trace)
        if (single := step_memory(recording)) is not None
    )
    assert known(found.allocated).middle == pytest.approx(2 * known(plain.allocated).middle)
    needs = [(known(need.reserved).middle, known(need.allocated).middle) for need in (found, plain)]
    (reserved, allocated), (simulated, simulated_allocated) = needs
    assert reserved - allocated == pytest.approx(free * (simulated - simulated_allocated), abs=1)
    assert reserved > allocated


@pytest.mark.parametrize("words", ["ddp", "fsdp", "hybrid,accumulate=2", "zero2,micro_batches=2", "zero1"])
@pytest.mark.parametrize("has_tensors", [True, False])
@pytest.mark.parametrize("measured", [(), ("peak_bytes",), ("reserved_bytes",), ("peak_bytes", "reserved_bytes")])
def test_layout_that_was_not_measured_has_the_interval_of_derived_memory(
    trace: Trace, words: str, has_tensors: bool, measured: tuple[str, ...]
) -> None:
    step = replace(trace, memory=replace(trace.memory, **dict.fromkeys(measured, 5 * GIBIBYTE)))
    if measured and not has_tensors:
        bare = tuple(replace(operation, inputs=(), outputs=()) for operation in step.operations)
        step = replace(step, operations=bare)
    layout, strategy, single = Layout(A100, 8, 4), parse_strategy(words), known(step_memory(step))
    need = memory_need_of([(step, single)], layout, strategy)
    if not measured:
        assert need.memory_bytes == RankMemory(trace).most_filled(layout, strategy).bytes_on(A100)
    elif not has_tensors:
        even = even_bytes(single.bytes_on(A100), step, layout, strategy)
        assert need.memory_bytes == pytest.approx(even)
    reserved, allocated = known(need.reserved), known(need.allocated)
    ends = DERIVED.scaled(reserved.middle)
    assert (reserved.low, reserved.high) == pytest.approx((ends.low, ends.high))
    assert allocated.middle <= reserved.middle
    assert allocated.high / allocated.middle == pytest.approx(min(DERIVED.high, reserved.high / allocated.middle))
