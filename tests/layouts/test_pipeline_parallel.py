"""Stages, micro-batches and the bubble by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import RING_HOP_SECONDS, Interconnect
from lightning_predict.layouts.overlap import Links
from lightning_predict.layouts.pipeline_parallel import (
    block_stages,
    micro_batches_of,
    overlapping_micro_batches,
    pass_micro_batches,
    passes_of,
    send_seconds,
    simulated_micro_batches,
    stage_of_blocks,
    stages_of,
)
from lightning_predict.layouts.strategy import Strategy, parse_strategy
from lightning_predict.record.trace import Operation, Phase

H100 = gpu("H100-SXM-80GB")
LINKS = Interconnect(intra_node_bytes_per_second=1e9, inter_node_bytes_per_second=1e8)


@given(st.integers(1, 100), st.integers(1, 100))
def test_numbers_of_blocks_per_stage_differ_by_at_most_one(blocks: int, stages: int) -> None:
    if stages > blocks:
        with pytest.raises(InvalidArgumentError, match=f"pipeline={stages} stages for {blocks} transformer block"):
            stage_of_blocks(blocks, stages)
        return
    assigned = stage_of_blocks(blocks, stages)
    counts = [assigned.count(stage) for stage in range(stages)]
    assert list(assigned) == sorted(assigned)
    assert sum(counts) == blocks
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("blocks", "words", "stages"),
    [
        (8, "pipeline=4,last_stage=1", (0, 0, 0, 1, 1, 2, 2, 3)),
        (8, "pipeline=2,last_stage=5", (0, 0, 0, 1, 1, 1, 1, 1)),
        (8, "pipeline=4,first_stage=1", (0, 1, 1, 1, 2, 2, 3, 3)),
        (6, "pipeline=4,first_stage=1,last_stage=1", (0, 1, 1, 2, 2, 3)),
        (6, "pipeline=2,first_stage=2,last_stage=4", (0, 0, 1, 1, 1, 1)),
        (4, "pipeline=2,virtual=2", (0, 1, 0, 1)),
    ],
)
def test_end_stages_and_interleaved_stages(blocks: int, words: str, stages: tuple[int, ...]) -> None:
    assert block_stages(parse_strategy(words), blocks) == stages


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pipeline=4,last_stage=6", "leaves 2 to 3 other stage"),
        ("pipeline=2,first_stage=1,last_stage=1", "leaves 6 to 0 other stage"),
        ("pipeline=8,virtual=2", "pipeline=8 x virtual=2 stages for 8 transformer"),
    ],
)
def test_each_stage_needs_a_block(words: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        block_stages(parse_strategy(words), 8)


@pytest.mark.parametrize(
    ("seconds", "micro_batches", "idle", "turns"),
    [
        # Four stages, eight micro-batches: three turns of eleven are waiting, (p - 1) / m = 3 / 8 of the ideal.
        ([5.0] * 4, 8, 1.0, 11),
        ([5.0], 1, 1.0, 1),
        ([5.0], 8, 1.0, 8),
        # 2 + 1 s for the first micro-batch, and 2 s for each of three others: 9 s are 4.5 times the slowest one's 2 s.
        ([2.0, 1.0], 4, 1.0, 4.5),
        ([0.0, 0.0], 3, 1.0, 4),
        ([1.0, 1.0], 4, 0.0, 4),
    ],
)
def test_length_of_schedule_by_hand(seconds: list[float], micro_batches: int, idle: float, turns: float) -> None:
    assert pass_micro_batches(seconds, micro_batches, idle=idle) == turns


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=16), st.integers(1, 64))
def test_bubble_is_at_most_that_of_equal_stages(seconds: list[float], micro_batches: int) -> None:
    turns = pass_micro_batches(seconds, micro_batches)
    assert micro_batches * (1 - 1e-9) <= turns <= (micro_batches + len(seconds) - 1) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("strategy", "samples", "micro_batches"),
    [
        (Strategy(), 7, 1),
        (Strategy(micro_batches=4), 7, 4),
        (Strategy(pipeline=4), None, 16),
        (Strategy(pipeline=4), 6, 6),
        (Strategy(pipeline=4, micro_batches=5), 6, 5),
        (Strategy(pipeline=4, micro_batches=5), None, 5),
    ],
)
def test_number_of_micro_batches(strategy: Strategy, samples: int | None, micro_batches: int) -> None:
    assert micro_batches_of(strategy, samples) == micro_batches
    with pytest.raises(InvalidArgumentError, match=r"micro_batches=8 of a batch of 6 sample.*choose at most 6"):
        micro_batches_of(Strategy(pipeline=4, micro_batches=8), 6)


@pytest.mark.parametrize(
    ("words", "micro_batches", "overlapping"),
    [("pipeline=8", 64, 1), ("pipeline=8,virtual=2", 64, 8), ("pipeline=8,virtual=2", 4, 4)],
)
def test_last_round_of_interleaved_pipeline_overlaps_with_replicas(
    words: str, micro_batches: int, overlapping: int
) -> None:
    assert overlapping_micro_batches(parse_strategy(words), micro_batches) == overlapping


@pytest.mark.parametrize(
    ("words", "stage", "most"),
    [
        *(("pipeline=4", stage, 4 - stage) for stage in range(4)),
        # Two parts of half the blocks; (p - 1) / (p v) = 3 / 8 more in the first stage.
        ("pipeline=4,virtual=2", 0, 2 * 4 * 1.375),
        ("pipeline=4,virtual=2", 3, 5),
        ("pipeline=4,schedule=gpipe", 3, 16),
    ],
)
def test_most_micro_batches_in_flight(words: str, stage: int, most: float) -> None:
    strategy, held = parse_strategy(words), [0]
    for is_backward, _, _ in passes_of(strategy, stage, simulated_micro_batches(strategy, stage, 16)):
        held.append(held[-1] + (-1 if is_backward else 1))
    assert held[-1] == 0
    assert max(held) == most


def test_operations_outside_blocks_belong_to_preceding_block() -> None:
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
    assigned = list(stages_of(work, {"layers.0": 0, "layers.1": 1}, (0, 1)))
    assert assigned == [0, 0, 0, 1, 1, 1, 1, 0, 0] * 2 + [None, None]


@pytest.mark.parametrize(
    ("layout", "words", "seconds"),
    [
        (Layout(H100, 8), "pipeline=8", 0.1),  # 100 MB over 1 GB/s
        (Layout(H100, 8), "tensor=4,pipeline=2", 0.025 + 0.075),  # a quarter is sent, three quarters are gathered
        (Layout(H100, 8, 2), "pipeline=2", 8.0 + RING_HOP_SECONDS),  # eight GPUs send 100 MB each through 100 MB/s
        (Layout(H100, 8, 2), "pipeline=4", 4.0),  # two stages in each machine: four GPUs send to the next
    ],
)
def test_time_to_send_an_activation(layout: Layout, words: str, seconds: float) -> None:
    low, middle, high = send_seconds(100e6, Links(layout, LINKS), parse_strategy(words))
    assert middle == pytest.approx(seconds, rel=0.01)
    assert low < middle < high


@given(st.floats(1e3, 1e10), st.floats(1, 10), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_larger_activations_never_take_less(size: float, factor: float, tensor: int, nodes: int) -> None:
    strategy = Strategy(tensor=tensor, pipeline=2)
    less, more = (send_seconds(each, Links(Layout(H100, 8, nodes), LINKS), strategy) for each in (size, size * factor))
    assert np.all(less <= more * (1 + 1e-12))
