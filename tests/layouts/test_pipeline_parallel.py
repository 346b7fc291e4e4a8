"""Stages, micro-batches and the bubble by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import RING_HOP_SECONDS, Interconnect
from lightning_predict.layouts.pipeline_parallel import (
    micro_batches_of,
    pass_micro_batches,
    send_seconds,
    stage_of_blocks,
    stages_of,
)
from lightning_predict.layouts.strategy import Strategy, parse_strategy
from lightning_predict.record.trace import Operation, Phase

H100 = gpu("H100-SXM-80GB")
LINKS = Interconnect(intra_node_bytes_per_second=1e9, inter_node_bytes_per_second=1e8)


@given(st.integers(1, 100), st.integers(1, 100))
def test_stages_differ_by_one_block_at_most(blocks: int, stages: int) -> None:
    if stages > blocks:
        with pytest.raises(InvalidArgumentError, match=f"pipeline={stages} stages for {blocks} transformer block"):
            stage_of_blocks(blocks, stages)
        return
    found = stage_of_blocks(blocks, stages)
    counts = [found.count(stage) for stage in range(stages)]
    assert list(found) == sorted(found)
    assert sum(counts) == blocks
    assert max(counts) - min(counts) <= 1


def test_the_first_and_the_last_stage_may_have_other_blocks_than_the_rest() -> None:
    assert stage_of_blocks(8, 4, last_stage=1) == (0, 0, 0, 1, 1, 2, 2, 3)
    assert stage_of_blocks(8, 2, last_stage=5) == (0, 0, 0, 1, 1, 1, 1, 1)
    assert stage_of_blocks(8, 4, first_stage=1) == (0, 1, 1, 1, 2, 2, 3, 3)
    assert stage_of_blocks(6, 4, first_stage=1, last_stage=1) == (0, 1, 1, 2, 2, 3)
    assert stage_of_blocks(6, 2, first_stage=2, last_stage=4) == (0, 0, 1, 1, 1, 1)
    for stages, ends, left in ((4, {"last_stage": 6}, "2 to 3"), (2, {"first_stage": 1, "last_stage": 1}, "6 to 0")):
        with pytest.raises(InvalidArgumentError, match=f"leaves {left} other stage"):
            stage_of_blocks(8, stages, **ends)
    for words in ("ddp,last_stage=3", "ddp,first_stage=3", "ddp,pipeline=2,virtual=2,last_stage=3"):
        with pytest.raises(InvalidArgumentError, match="is of a pipeline of one stage a GPU"):
            parse_strategy(words)
    found = parse_strategy(
        "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 2"
    )
    assert (found.first_stage, found.last_stage) == (1, 2)


def test_the_bubble() -> None:
    # Four stages, eight micro-batches: three turns of eleven are waiting, (p - 1) / m = 3 / 8 of the ideal.
    assert pass_micro_batches([5.0] * 4, 8) == 11
    assert pass_micro_batches([5.0], 1) == 1
    assert pass_micro_batches([5.0], 8) == 8
    # 2 + 1 s for the first micro-batch, and 2 s for each of three others: 9 s are 4.5 times the slowest one's 2 s.
    assert pass_micro_batches([2.0, 1.0], 4) == 4.5
    assert pass_micro_batches([0.0, 0.0], 3) == 4


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=16), st.integers(1, 64))
def test_no_bubble_is_larger_than_that_of_equal_stages(seconds: list[float], micro_batches: int) -> None:
    assert (
        micro_batches * (1 - 1e-9)
        <= pass_micro_batches(seconds, micro_batches)
        <= (micro_batches + len(seconds) - 1) * (1 + 1e-9)
    )


def test_micro_batches() -> None:
    assert micro_batches_of(Strategy(), 7) == 1
    assert micro_batches_of(Strategy(micro_batches=4), 7) == 4
    assert micro_batches_of(Strategy(pipeline=4), None) == 16
    assert micro_batches_of(Strategy(pipeline=4), 6) == 6
    assert micro_batches_of(Strategy(pipeline=4, micro_batches=5), 6) == 5
    assert micro_batches_of(Strategy(pipeline=4, micro_batches=5), None) == 5
    with pytest.raises(InvalidArgumentError, match=r"micro_batches=8 of a batch of 6 sample.*choose at most 6"):
        micro_batches_of(Strategy(pipeline=4, micro_batches=8), 6)


def test_what_lies_outside_of_blocks_goes_with_the_one_before() -> None:
    one_batch: list[tuple[Phase, str | None]] = [
        ("forward", "tokens"),
        ("forward", "layers.0.norm"),
        ("forward", None),
        ("forward", "layers.1.norm"),
        ("forward", "head"),
        ("backward", None),
        ("backward", "layers.1.norm"),
        ("backward", "layers.0.norm"),
        ("backward", "tokens"),
    ]
    update: list[tuple[Phase, str | None]] = [("optimizer", None), ("other", None)]
    work = [Operation(name="any", phase=phase, module=module) for phase, module in (*one_batch, *one_batch, *update)]
    found = list(stages_of(work, {"layers.0": 0, "layers.1": 1}, (0, 1)))
    assert found == [0, 0, 0, 1, 1, 1, 1, 0, 0] * 2 + [None, None]


def test_handing_over_inside_a_machine() -> None:
    # 100 MB over 1 GB/s, and the latency of the smallest message.
    seconds = send_seconds(100e6, Layout(H100, 8), Strategy(pipeline=8), LINKS)
    assert seconds[1] == pytest.approx(0.1, rel=0.01)
    assert seconds[0] < seconds[1] < seconds[2]


def test_gpus_that_share_a_block_send_a_part_each() -> None:
    # A quarter of 100 MB sent, then three quarters of it gathered.
    seconds = send_seconds(100e6, Layout(H100, 8), Strategy(tensor=4, pipeline=2), LINKS)
    assert seconds[1] == pytest.approx(0.025 + 0.075, rel=0.01)


def test_between_machines_all_gpus_of_one_send_at_once() -> None:
    # Eight GPUs send 100 MB each through 100 MB/s.
    seconds = send_seconds(100e6, Layout(H100, 8, 2), Strategy(pipeline=2), LINKS)
    assert seconds[1] == pytest.approx(8.0 + RING_HOP_SECONDS, rel=1e-6)
    # Two stages in each machine: four GPUs at the end of one send to the next.
    assert send_seconds(100e6, Layout(H100, 8, 2), Strategy(pipeline=4), LINKS)[1] == pytest.approx(4.0, rel=1e-3)


@given(st.floats(1e3, 1e10), st.floats(1, 10), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_larger_activations_never_take_less(size: float, factor: float, tensor: int, nodes: int) -> None:
    strategy = Strategy(tensor=tensor, pipeline=2)
    less, more = (send_seconds(each, Layout(H100, 8, nodes), strategy, LINKS) for each in (size, size * factor))
    assert np.all(less <= more * (1 + 1e-12))
