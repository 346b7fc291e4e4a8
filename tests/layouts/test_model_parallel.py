"""Steps of GPUs that hold parts of a model, from a trace whose times are round numbers (`example_blocks.py`).

A block takes 3.1 s forward and 4.2 s backward, of which norms 0.1 and 0.2 s; the update takes 0.5 s.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.layouts.overlap import OVERLAP_COSTS, slowest_of
from lightning_predict.layouts.strategy import DATA_STRATEGIES, Strategy
from lightning_predict.timeline.host import Host
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from tests.layouts.example_blocks import MODELS, NORMS_REL, STREAM_BYTES, WEIGHT_BYTES, on_layouts, timed_as, trace_of

A100 = gpu("A100-SXM-80GB")
FAST = Interconnect(intra_node_bytes_per_second=1e15, inter_node_bytes_per_second=1e15)
FORWARD, BACKWARD, NORMS, UPDATE = 3.1, 4.2, 0.3, 0.5


def single(blocks: int, *, trains: bool = True) -> StepPrediction:
    trace, seconds = trace_of(blocks, trains=trains)
    return predict_steps(trace, timed_as(trace, seconds), [A100])[0]


def on(
    blocks: int,
    strategy: Strategy,
    count: int,
    *,
    nodes: int = 1,
    interconnect: Interconnect = FAST,
    trains: bool = True,
    step: StepPrediction | None = None,
) -> StepPrediction:
    trace, seconds = trace_of(blocks, trains=trains)
    (found,) = on_layouts(
        trace,
        timed_as(trace, seconds),
        [A100],
        [step or single(blocks, trains=trains)],
        [Layout(A100, count, nodes)],
        strategy,
        interconnect=interconnect,
        models=MODELS,
    )
    return found


def with_wait(seconds: float, count: int) -> float:
    """All wait for the slowest, whose mean pace over long steps differs less."""
    return seconds * (1 + float(OVERLAP_COSTS.speed_deviation(np.array(seconds))) * slowest_of(count))


def test_blocks_over_two_gpus() -> None:
    # Norms whole, the rest halved: 2 x (0.3 + 7.0 / 2); half of the update.
    found = on(2, Strategy(tensor=2), 2)
    assert found.seconds == pytest.approx(with_wait((2 * (NORMS + 3.5) + UPDATE / 2), 2), rel=1e-3)
    assert found.device_seconds == pytest.approx(2 * (NORMS + 3.5) + UPDATE / 2, rel=1e-3)
    assert found.forward_seconds == pytest.approx(2 * (0.1 + 1.5), rel=1e-3)
    assert found.optimizer_seconds == pytest.approx(UPDATE / 2, rel=1e-3)
    assert found.added_seconds == pytest.approx(found.seconds - found.device_seconds, rel=1e-3)
    assert found.gpu == "2xA100-SXM-80GB"
    assert found.verdict is not None
    assert found.verdict.bound_by == "device"
    assert any("Each block is split over 2 GPUs by heads and inner width" in note for note in found.notes)


def test_nothing_hides_the_all_reduces_of_a_block() -> None:
    # One projection a block leads back to the stream: one all_reduce forward, one backward, of two blocks. On two GPUs
    # the bus carries the message once, 0.25 s each; no slowdown, as no computation runs at the same time.
    bus = Interconnect(intra_node_bytes_per_second=STREAM_BYTES / 0.25)
    found = on(2, Strategy(tensor=2), 2, interconnect=bus)
    assert found.communication_seconds == pytest.approx(4 * 0.25, rel=1e-3)
    assert found.seconds == pytest.approx(with_wait((2 * (NORMS + 3.5) + UPDATE / 2 + 1.0), 2), rel=1e-3)


def test_the_devices_waits_for_the_host_hide_them() -> None:
    # All work takes less than 2 us and the host a hundred times that: four all_reduces of small messages fit in
    # between. The framework that divides the step makes the host slower.
    trace, seconds = trace_of(2)
    timed = timed_as(trace, [1e-7 * each for each in seconds])
    (step,) = predict_steps(trace, timed, [A100])
    assert step.bound_by == "host"
    at_once, long = (Interconnect(intra_node_bytes_per_second=STREAM_BYTES / each) for each in (1e-7, 0.25))
    hidden, exposed = (
        on_layouts(trace, timed, [A100], [step], [Layout(A100, 2)], Strategy(tensor=2), interconnect=bus, models=MODELS)
        for bus in (at_once, long)
    )
    assert 0 < hidden[0].communication_seconds < step.seconds - step.device_seconds
    assert hidden[0].seconds == pytest.approx(with_wait(OVERLAP_COSTS.framework_host * step.seconds, 2), rel=0.02)
    assert exposed[0].seconds > 4 * 0.25


def test_a_pipeline_of_two_stages() -> None:
    # Two blocks a stage, four micro-batches: 2 x 7.3 / 4 s each; 4 + 2 - 1 turns, and half of the update.
    found = on(4, Strategy(pipeline=2, micro_batches=4), 2)
    assert found.seconds == pytest.approx(with_wait((5 * 2 * 7.3 / 4 + UPDATE / 2), 2), rel=NORMS_REL)
    # A GPU computes in four of the five turns.
    assert found.device_seconds == pytest.approx(2 * 7.3 + UPDATE / 2, rel=NORMS_REL)
    assert found.forward_seconds == pytest.approx(5 * 2 * FORWARD / 4, rel=0.1)  # norms are more of it
    assert any(
        "2 stages split the recorded batch into 4 micro-batches" in note and "20 %" in note for note in found.notes
    )


def test_the_longest_stage_sets_the_pace() -> None:
    # Three blocks in two stages, two of them in the first one: 7.3 and 3.65 s a micro-batch. The first one passes both,
    # the second one waits for the longer.
    found = on(3, Strategy(pipeline=2, micro_batches=2), 2)
    assert found.seconds == pytest.approx(with_wait((7.3 + 3.65 + 7.3 + UPDATE * 2 / 3), 2), rel=NORMS_REL)


def test_micro_batches_without_a_pipeline_follow_each_other() -> None:
    # Four times a quarter, and one update; gradients are exchanged at the same time as the last one.
    bus = Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES / 0.5)
    found = on(2, Strategy(micro_batches=4), 2, interconnect=bus)
    whole = on(2, Strategy(), 2, interconnect=bus)
    assert found.device_seconds == pytest.approx(whole.device_seconds, rel=NORMS_REL)
    assert found.communication_seconds == pytest.approx(whole.communication_seconds, rel=NORMS_REL)
    assert found.seconds >= whole.seconds
    nameless, seconds = trace_of(2)
    nameless = replace(nameless, operations=tuple(replace(each, module=None) for each in nameless.operations))
    (same,) = on_layouts(
        nameless,
        timed_as(nameless, seconds),
        [A100],
        [single(2)],
        [Layout(A100, 2)],
        Strategy(micro_batches=4),
        interconnect=FAST,
        models=MODELS,
    )
    assert same.seconds == pytest.approx(on(2, Strategy(micro_batches=4), 2).seconds, rel=1e-2)


def test_fsdp_gathers_for_each_micro_batch() -> None:
    bus = Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES / 0.01)
    once, often = (on(2, Strategy(data="fsdp", micro_batches=parts), 2, interconnect=bus) for parts in (1, 4))
    assert often.communication_seconds == pytest.approx(4 * once.communication_seconds, rel=1e-2)
    # A pipeline keeps gathered parameters.
    piped = on(2, Strategy(data="fsdp", pipeline=2, micro_batches=4), 4, interconnect=bus)
    assert piped.communication_seconds < once.communication_seconds


def test_fsdp_in_a_pipeline_gathers_once_and_scatters_behind_the_last_backward_pass() -> None:
    # Four blocks of 16 MiB in two stages, two replicas: 32 MiB of a stage, each way 0.2 s, and half as long again
    # with other work. The gather before the first block, a half of it, and the scatter do not overlap.
    bus = Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES / 0.2)
    strategy = Strategy(data="fsdp", pipeline=2, micro_batches=4)
    alone, both = (on(4, strategy, count, interconnect=bus) for count in (2, 4))
    each = OVERLAP_COSTS.slowdown * 0.2
    exchanged = both.communication_seconds - alone.communication_seconds
    assert exchanged == pytest.approx(2 * each, rel=1e-2)
    slow = on(4, strategy, 4, interconnect=Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES / 0.4))
    assert slow.seconds - both.seconds > 1.5 * each


def test_what_stages_hand_over_stands_in_the_way() -> None:
    # Each stage sends one activation or gradient of a quarter of the stream a micro-batch: 0.1 s; five turns.
    bus = Interconnect(intra_node_bytes_per_second=STREAM_BYTES / 4 / 0.1)
    slower, faster = (
        on(4, Strategy(pipeline=2, micro_batches=4), 2, interconnect=bus),
        on(4, Strategy(pipeline=2, micro_batches=4), 2),
    )
    assert slower.communication_seconds == pytest.approx(4 * 0.1, rel=1e-2)
    assert slower.seconds - faster.seconds == pytest.approx(5 * 0.1, rel=3e-2)


def test_replicas_exchange_their_part_of_the_gradients() -> None:
    # Two replicas of two GPUs. Of 2 x 16 MiB of gradients each GPU has half, 16 MiB, in one bucket behind the first and
    # one behind the rest; the bus carries them once, slowed down by concurrent work.
    bus = Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES / 0.5)
    alone, both = (on(2, Strategy(tensor=2), count, interconnect=bus) for count in (2, 4))
    assert both.communication_seconds - alone.communication_seconds == pytest.approx(
        OVERLAP_COSTS.slowdown * 0.5, rel=1e-2
    )
    assert both.seconds > alone.seconds


def test_each_stages_replicas_exchange_that_stages_gradients() -> None:
    # Four blocks of 16 MiB in two stages, two replicas: 32 MiB, which take 1 s alone.
    bus = Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES / 0.5)
    strategy = Strategy(pipeline=2, micro_batches=4)
    alone, both = (on(4, strategy, count, interconnect=bus) for count in (2, 4))
    assert both.communication_seconds - alone.communication_seconds == pytest.approx(
        OVERLAP_COSTS.slowdown * 1.0, rel=1e-2
    )


def test_inference_has_half_the_all_reduces_and_no_gradients() -> None:
    bus = Interconnect(intra_node_bytes_per_second=STREAM_BYTES / 0.25)
    found = on(2, Strategy(tensor=2), 4, interconnect=bus, trains=False)
    assert found.communication_seconds == pytest.approx(2 * 0.25, rel=1e-3)
    assert found.seconds == pytest.approx(with_wait((2 * (0.1 + 1.5) + 0.5), 4), rel=1e-3)
    assert found.forward_seconds == pytest.approx(2 * (0.1 + 1.5) + 0.5, rel=1e-3)


def test_corrections_of_the_single_step_are_kept() -> None:
    step = single(2)
    corrected = replace(step, interval=step.interval.scaled(2))
    plain, twice = (on(2, Strategy(tensor=2), 2, step=each) for each in (step, corrected))
    # The wait for the slowest grows less than the step.
    assert twice.seconds == pytest.approx(2 * plain.seconds, rel=5e-3)


def test_one_gpu_is_the_single_step_whatever_the_degrees() -> None:
    step = single(2)
    assert on(2, Strategy(tensor=8, pipeline=2), 1, step=step) is step


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(DATA_STRATEGIES),
    st.sampled_from([(1, 2), (2, 1), (2, 2), (4, 1), (8, 1), (4, 2)]),
    st.sampled_from([1, 2]),
    st.floats(1e9, 1e12),
    st.floats(1, 4),
)
def test_relations_of_any_layout(
    data: str, degrees: tuple[int, int], nodes: int, bandwidth: float, factor: float
) -> None:
    tensor, pipeline = degrees
    strategy = Strategy(data=data, tensor=tensor, pipeline=pipeline)  # type: ignore[arg-type]
    step = single(2)
    fast, slow = (
        on(
            2,
            strategy,
            8,
            nodes=nodes,
            interconnect=Interconnect(intra_node_bytes_per_second=bus, inter_node_bytes_per_second=bus),
            step=step,
        )
        for bus in (bandwidth, bandwidth / factor)
    )
    # No GPU does less than its even share, or more than all of it.
    assert step.device_seconds / (tensor * pipeline) * (1 - 1e-6) <= fast.device_seconds
    assert fast.device_seconds <= step.device_seconds * (1 + 1e-6)
    assert fast.seconds <= slow.seconds * (1 + 1e-9)
    assert fast.communication_seconds <= slow.communication_seconds * (1 + 1e-9)
    assert fast.low_seconds <= fast.seconds <= fast.high_seconds


def test_a_model_without_blocks_is_refused() -> None:
    trace, seconds = trace_of(2)
    nameless = replace(trace, operations=tuple(replace(each, module=None) for each in trace.operations))
    with pytest.raises(InvalidArgumentError, match="shares transformer blocks, and the trace holds none"):
        on_layouts(nameless, timed_as(nameless, seconds), [A100], [single(2)], [Layout(A100, 2)], Strategy(tensor=2))


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"pipeline=4 stages for 2 transformer block\(s\).*at most 2"):
        on(2, Strategy(pipeline=4), 4)


def test_work_of_unknown_shape_is_said() -> None:
    trace, seconds = trace_of(2)
    timed = timed_as(trace, seconds)
    fused = replace(timed, items=(replace(timed.items[0], problems=()), *timed.items[1:]))
    (found,) = on_layouts(
        trace, fused, [A100], [single(2)], [Layout(A100, 2)], Strategy(tensor=2), interconnect=FAST, models=MODELS
    )
    assert any("1 operations of unknown shape (fused kernels) are taken to be whole" in note for note in found.notes)


def test_a_slower_host_bounds_the_parts_of_a_model_that_the_device_bounds_whole() -> None:
    # The host's microseconds are stretched until they take four fifths of the device's 15.1 s in the framework that
    # divides the step. Split over two GPUs the device takes little more than half of that, but makes as many launches.
    trace, seconds = trace_of(2)
    timed = timed_as(trace, seconds)
    usual = single(2)
    factor = 0.8 * usual.device_seconds / usual.host_seconds / OVERLAP_COSTS.framework_host
    (step,) = predict_steps(trace, timed, [A100], host=Host(factor))
    assert step.seconds == pytest.approx(usual.seconds, rel=0.02)
    (found,) = on_layouts(
        trace, timed, [A100], [step], [Layout(A100, 2)], Strategy(tensor=2), models=MODELS, host=Host(factor)
    )
    assert found.device_seconds < 0.6 * usual.device_seconds
    assert found.seconds == pytest.approx(with_wait(0.8 * usual.device_seconds, 2), rel=0.03)
