"""Steps of GPUs that hold parts of a model, from a trace whose times are round numbers (`example_blocks.py`).

A block takes 3.1 s forward and 4.2 s backward, of which norms 0.1 and 0.2 s; the update takes 0.5 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.layouts import data_parallel, model_parallel
from lightning_predict.layouts.data_parallel import update_seconds
from lightning_predict.layouts.gradients import parameter_bytes
from lightning_predict.layouts.groups import expert_data_group, expert_group
from lightning_predict.layouts.model_parallel import TENSOR_HIDDEN, Stage, model_stages
from lightning_predict.layouts.overlap import OVERLAP_COSTS, Links
from lightning_predict.layouts.pipeline_parallel import bubble_ratio
from lightning_predict.layouts.recomputation import recomputed_part
from lightning_predict.layouts.strategy import DATA_STRATEGIES, DataStrategy, Recompute, Strategy, parse_strategy
from lightning_predict.layouts.tensor_parallel import split_model
from lightning_predict.record.trace import Operation, Trace
from lightning_predict.timeline.host import Host, HostModel
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from tests.layouts.example_blocks import (
    A100,
    EXPERT_BYTES,
    HIDDEN,
    MODELS,
    NORMS_REL,
    STREAM_BYTES,
    TOKENS,
    WEIGHT_BYTES,
    mixture,
    step_on,
    timed_as,
    trace_of,
    with_wait,
)

H100 = gpu("H100-SXM-80GB")
FORWARD, BACKWARD, NORMS, UPDATE = 3.1, 4.2, 0.3, 0.5


def bus(bytes_per_second: float) -> Interconnect:
    return Interconnect(intra_node_bytes_per_second=bytes_per_second)


def single(blocks: int) -> StepPrediction:
    trace, seconds = trace_of(blocks)
    return predict_steps(trace, timed_as(trace, seconds), [A100])[0]


def stages_of(trace: Trace, words: str, seconds: list[float] | None = None) -> tuple[Stage, ...]:
    timed = timed_as(trace, seconds or [1.0] * len(trace.operations))
    target = H100 if "fp8" in words else A100
    return model_stages(trace, timed, [target], HostModel(), MODELS, parse_strategy(words))


# --- Tensor parallelism


def test_tensor_parallelism_divides_all_but_norms_with_exposed_all_reduces() -> None:
    # Norms whole, the rest halved: 2 x (0.3 + 7.0 / 2); half of the update.
    prediction = step_on(2, "tensor=2", 2)
    device = 2 * (NORMS + 3.5) + UPDATE / 2
    assert prediction.seconds == pytest.approx(with_wait(device, 2), rel=1e-3)
    assert prediction.device_seconds == pytest.approx(device, rel=1e-3)
    assert prediction.forward_seconds == pytest.approx(2 * (0.1 + 1.5), rel=1e-3)
    assert prediction.optimizer_seconds == pytest.approx(UPDATE / 2, rel=1e-3)
    assert prediction.added_seconds == pytest.approx(prediction.seconds - prediction.device_seconds, rel=1e-3)
    assert prediction.gpu == "2xA100-SXM-80GB"
    assert prediction.verdict is not None
    assert prediction.verdict.bound_by == "device"
    assert any("Each block is split over 2 GPUs by heads and inner width" in note for note in prediction.notes)
    # One projection a block leads back to the stream: one all_reduce forward, one backward, of two blocks. On two GPUs
    # the bus carries the message once, 0.25 s each; no slowdown, as no computation runs at the same time.
    prediction = step_on(2, "tensor=2", 2, links=bus(STREAM_BYTES / 0.25))
    assert prediction.communication_seconds == pytest.approx(4 * 0.25, rel=1e-3)
    assert prediction.seconds == pytest.approx(with_wait((2 * (NORMS + 3.5) + UPDATE / 2 + 1.0), 2), rel=1e-3)
    # Without a backward pass, half of the all_reduces and no gradients.
    inference = step_on(2, "tensor=2", 4, links=bus(STREAM_BYTES / 0.25), trains=False)
    assert inference.communication_seconds == pytest.approx(2 * 0.25, rel=1e-3)
    assert inference.seconds == pytest.approx(with_wait((2 * (0.1 + 1.5) + 0.5), 4), rel=1e-3)
    assert inference.forward_seconds == pytest.approx(2 * (0.1 + 1.5) + 0.5, rel=1e-3)


def test_waits_hide_all_reduces_and_a_slow_host_bounds_the_step() -> None:
    # All work takes less than 2 us and the host a hundred times that: four all_reduces of small messages fit in
    # between. The framework that divides the step makes the host slower.
    trace, seconds = trace_of(2)
    short = [1e-7 * each for each in seconds]
    (step,) = predict_steps(trace, timed_as(trace, short), [A100])
    assert step.bound_by == "host"
    hidden, exposed = (
        step_on(trace, "tensor=2", 2, seconds=short, step=step, links=bus(STREAM_BYTES / each)) for each in (1e-7, 0.25)
    )
    assert 0 < hidden.communication_seconds < step.seconds - step.device_seconds
    assert hidden.seconds == pytest.approx(with_wait(OVERLAP_COSTS.framework_host * step.seconds, 2), rel=0.02)
    assert exposed.seconds > 4 * 0.25
    # The host's microseconds are stretched until they take four fifths of the device's 15.1 s in the framework that
    # divides the step. Split over two GPUs the device takes little more than half of that, but makes as many launches.
    usual = single(2)
    host = Host(0.8 * usual.device_seconds / usual.host_seconds / OVERLAP_COSTS.framework_host)
    trace, seconds = trace_of(2)
    (step,) = predict_steps(trace, timed_as(trace, seconds), [A100], host=host)
    assert step.seconds == pytest.approx(usual.seconds, rel=0.02)
    prediction = step_on(2, "tensor=2", 2, step=step, host=host)
    assert prediction.device_seconds < 0.6 * usual.device_seconds
    assert prediction.seconds == pytest.approx(with_wait(0.8 * usual.device_seconds, 2), rel=0.03)


def test_sequence_parallelism_divides_norms_and_machines_use_the_network() -> None:
    plain, shared = (step_on(2, f"tensor=2{more}", 2) for more in ("", ",sequence"))
    assert plain.device_seconds == pytest.approx(2 * (NORMS + 3.5) + UPDATE / 2, rel=NORMS_REL)
    assert shared.device_seconds == pytest.approx(2 * (NORMS / 2 + 3.5) + UPDATE / 2, rel=NORMS_REL)
    # A reduce_scatter and an all_gather carry half as much each as an all_reduce.
    both = [step_on(2, f"tensor=2{more}", 2, links=bus(STREAM_BYTES / 0.25)) for more in ("", ",sequence")]
    assert both[1].communication_seconds == pytest.approx(both[0].communication_seconds, rel=NORMS_REL)
    slow = Interconnect(intra_node_bytes_per_second=1e15, inter_node_bytes_per_second=STREAM_BYTES / 0.1)
    prediction = step_on(2, "tensor=4", Layout(A100, 2, 2), links=slow)
    # Four all_reduces over two machines, as a tree: the message once through the network.
    assert prediction.communication_seconds == pytest.approx(4 * 0.1, rel=0.01)


def test_overlap_hides_a_part_of_collectives_and_gradients() -> None:
    plain, hidden = (step_on(2, words, 2, links=bus(2**30)) for words in ("tensor=2", "tensor=2,overlap_tensor"))
    assert hidden.communication_seconds == pytest.approx(plain.communication_seconds)
    # One of two parts is exposed anyhow.
    assert plain.seconds - hidden.seconds == pytest.approx(TENSOR_HIDDEN * plain.communication_seconds / 2, rel=0.05)
    links = bus(2 * WEIGHT_BYTES / 1.0)
    overlapping, after = (step_on(2, f"ddp{more}", 2, links=links) for more in ("", ",overlap_grad_reduce=false"))
    assert after.seconds - step_on(2, "ddp", 2).seconds == pytest.approx(OVERLAP_COSTS.slowdown * 1.0, rel=0.03)
    assert overlapping.seconds < after.seconds


# --- Context parallelism and recomputation


def test_context_parallelism_divides_tokens_and_adds_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    # Half of the passes on each GPU; the two replicas of the weights share no update.
    prediction = step_on(2, "context=2", 2)
    assert prediction.device_seconds == pytest.approx(2 * 7.3 / 2 + UPDATE, rel=NORMS_REL)
    # Keys and values of 256 x 8 x 128 x 4 samples in float32, three rings of a block, on two GPUs half of them over
    # the link; attention takes 1.5 s a block and hides them.
    ring = 2 * TOKENS * HIDDEN * 4
    rate = ring / 2 / 0.1
    slower = step_on(2, "context=2", 2, links=bus(rate))
    gradients = 2 * WEIGHT_BYTES / rate
    assert slower.communication_seconds == pytest.approx(2 * 3 * 0.1 + OVERLAP_COSTS.slowdown * gradients, rel=0.02)
    assert slower.seconds - prediction.seconds < 2 * gradients * OVERLAP_COSTS.slowdown
    # The implementation of the ring is unknown. At the high end, attention is dealt out unevenly: the last of two GPUs
    # has 1.5 blocks instead of one, half of the attention's 2 x (1 + 2) / 2 s again.
    monkeypatch.setattr(model_parallel, "ring_overhead", lambda _context: np.zeros(3))
    exact = step_on(2, "context=2", 2)
    assert exact.seconds == prediction.seconds
    assert prediction.high_seconds - exact.high_seconds == pytest.approx(1.5, rel=0.02)
    model = split_model(trace_of(2)[0])
    unfused = replace(model, blocks=tuple(replace(block, ring_bytes=0.0) for block in model.blocks))
    with pytest.raises(InvalidArgumentError, match=r"context=2 passes keys and values.*needs fused attention"):
        unfused.check_context(2)


def test_recomputation_repeats_forward_passes_and_their_all_reduces() -> None:
    none, selective, layers, operations, full = (
        step_on(2, f"recompute={what}", 2).device_seconds
        for what in ("none", "selective", "layers", "operations", "full")
    )
    assert full - none == pytest.approx(2 * FORWARD, rel=1e-3)
    assert selective - none == pytest.approx(2 * 1.0, rel=1e-3)  # attention alone
    assert layers - none == pytest.approx((full - none) / 2, rel=1e-3)  # one of two blocks
    assert none < operations < full
    # One all_reduce a block forward and one backward; recomputation repeats the forward one.
    for what, count in (("none", 4), ("full", 6)):
        prediction = step_on(2, f"tensor=2,recompute={what}", 2, links=bus(STREAM_BYTES / 0.25))
        assert prediction.communication_seconds == pytest.approx(count * 0.25, rel=1e-3)
    trace, _ = trace_of(2)
    twice = tuple(replace(each, phase="backward") for each in trace.operations[:8]) * 2
    again = replace(trace, operations=(*trace.operations[:8], *twice, *trace.operations[8:]))
    with pytest.raises(InvalidArgumentError, match="recompute=full of a step that was recorded with activation check"):
        stages_of(again, "recompute=full")


ATTENTION = ["aten::mm", "aten::scaled_dot_product_attention", "aten::mm", "aten::add"]
EXPERTS = [*ATTENTION, "experts aten::bmm", "experts aten::silu", "experts aten::bmm"]


@pytest.mark.parametrize(
    ("names", "recompute", "repeated"),
    [
        (["aten::mm", "aten::silu", "aten::mm", "aten::mm"], "operations", [1, 2]),
        (ATTENTION, "operations", [2, 3]),
        # Batched matmuls of experts are not attention.
        (EXPERTS, "operations", [2, 3, 4, 5, 6]),
        (EXPERTS, "selective", [1]),
    ],
)
def test_recomputed_operations_of_a_block(names: Sequence[str], recompute: Recompute, repeated: list[int]) -> None:
    operations = [
        Operation(name=name.split()[-1], phase="forward", module=name.rpartition(" ")[0] or None) for name in names
    ]
    assert list(recomputed_part(operations, recompute)) == repeated


# --- Pipelines


def test_pipelines_of_two_and_interleaved_stages_by_hand() -> None:
    # Two blocks a stage, four micro-batches: 2 x 7.3 / 4 s each; 4 + 2 - 1 turns, and half of the update.
    prediction = step_on(4, "pipeline=2,micro_batches=4", 2)
    assert prediction.seconds == pytest.approx(with_wait((5 * 2 * 7.3 / 4 + UPDATE / 2), 2), rel=NORMS_REL)
    # A GPU computes in four of the five turns.
    assert prediction.device_seconds == pytest.approx(2 * 7.3 + UPDATE / 2, rel=NORMS_REL)
    assert prediction.forward_seconds == pytest.approx(5 * 2 * FORWARD / 4, rel=0.1)  # norms are more of it
    assert any(
        "2 stages split the recorded batch into 4 micro-batches" in note and "20 %" in note for note in prediction.notes
    )
    # Each stage sends one activation or gradient of a quarter of the stream a micro-batch: 0.1 s; five turns.
    slower = step_on(4, "pipeline=2,micro_batches=4", 2, links=bus(STREAM_BYTES / 4 / 0.1))
    assert slower.communication_seconds == pytest.approx(4 * 0.1, rel=1e-2)
    assert slower.seconds - prediction.seconds == pytest.approx(5 * 0.1, rel=3e-2)
    # Four blocks, two stages of two parts each, four micro-batches of 14.6 / 4 s a stage: 4 + 1 / 2 turns.
    prediction = step_on(4, "pipeline=2,virtual=2,micro_batches=4", 2)
    assert prediction.seconds == pytest.approx(with_wait(4.5 * 2 * 7.3 / 4 + UPDATE / 2, 2), rel=NORMS_REL)
    # Each micro-batch is sent three times as often between the two: out, back and out again.
    trace, seconds = trace_of(4)
    words = "pipeline=2,micro_batches=4"
    assert [stages_of(trace, own, seconds)[0].sent_tensors for own in (words, f"{words},virtual=2")] == [1, 3]
    # Two replicas of two stages: the exchange over slow links overlaps with twice the passes, of as much work.
    links = bus(WEIGHT_BYTES / 0.2)
    late, early = (
        step_on(4, f"{words},virtual=2{more}", 4, links=links).seconds for more in (",overlap_grad_reduce=false", "")
    )
    assert early < late


def test_slowest_stage_limits_pipeline_and_zero_bubble_fills_it() -> None:
    # Three blocks in two stages, two of them in the first one: 7.3 and 3.65 s a micro-batch. The first one passes both,
    # the second one waits for the longer.
    prediction = step_on(3, "pipeline=2,micro_batches=2", 2)
    assert prediction.seconds == pytest.approx(with_wait((7.3 + 3.65 + 7.3 + UPDATE * 2 / 3), 2), rel=NORMS_REL)
    # If a third of the time is the gradients of weights, a third of 1F1B's bubble is left.
    strategy = parse_strategy("ddp,pipeline=2,schedule=zero_bubble,micro_batches=4")
    assert bubble_ratio(strategy, 1 / 3) == pytest.approx(1 / 3)
    assert bubble_ratio(replace(strategy, schedule="1f1b"), 1 / 3) == 1
    prediction = step_on(4, strategy, 2)
    assert prediction.seconds <= step_on(4, "pipeline=2,micro_batches=4", 2).seconds
    assert any("gradients of weights where a stage would wait" in note for note in prediction.notes)


def test_micro_batches_without_pipeline_run_one_after_another() -> None:
    # Four times a quarter, and one update; gradients are exchanged at the same time as the last one.
    links = bus(WEIGHT_BYTES / 0.5)
    split, whole = (step_on(2, words, 2, links=links) for words in ("micro_batches=4", "ddp"))
    assert split.device_seconds == pytest.approx(whole.device_seconds, rel=NORMS_REL)
    assert split.communication_seconds == pytest.approx(whole.communication_seconds, rel=NORMS_REL)
    assert split.seconds >= whole.seconds
    same = step_on(without_modules(2), "micro_batches=4", 2, step=single(2))
    assert same.seconds == pytest.approx(step_on(2, "micro_batches=4", 2).seconds, rel=1e-2)


def without_modules(blocks: int) -> Trace:
    trace, _ = trace_of(blocks)
    return replace(trace, operations=tuple(replace(operation, module=None) for operation in trace.operations))


# --- Replicas


@pytest.mark.parametrize(("blocks", "words", "seconds"), [(2, "tensor=2", 0.5), (4, "pipeline=2,micro_batches=4", 1.0)])
def test_replicas_exchange_gradients_of_their_part(blocks: int, words: str, seconds: float) -> None:
    # Two replicas. With tensor parallelism, each GPU has half of 2 x 16 MiB of gradients; with a pipeline, half of
    # 4 x 16 MiB. The bus carries 16 MiB in 0.5 s, slower during computation.
    alone, both = (step_on(blocks, words, count, links=bus(WEIGHT_BYTES / 0.5)) for count in (2, 4))
    exchanged = both.communication_seconds - alone.communication_seconds
    assert exchanged == pytest.approx(OVERLAP_COSTS.slowdown * seconds, rel=1e-2)
    assert both.seconds > alone.seconds


def test_zero_gathers_parameters_during_next_forward_pass() -> None:
    # Both blocks' parameters, half of which passes each link, would take a second and half of it again at the same time
    # as the step. Overlapped communication slows the work that overlaps with it.
    after, overlapping = (
        step_on(2, words, 2, links=bus(WEIGHT_BYTES)) for words in ("zero1", "zero1,overlap_param_gather")
    )
    assert overlapping.communication_seconds == pytest.approx(after.communication_seconds)
    saved = (1 - OVERLAP_COSTS.contention_on(Layout(A100, 2))) * OVERLAP_COSTS.slowdown * 1.0
    assert after.seconds - overlapping.seconds == pytest.approx(saved, abs=0.02)


def test_fsdp_gathers_for_each_micro_batch_but_once_in_a_pipeline() -> None:
    links = bus(WEIGHT_BYTES / 0.01)
    once, often, piped = (
        step_on(2, f"fsdp,{more}", count, links=links).communication_seconds
        for more, count in (("micro_batches=1", 2), ("micro_batches=4", 2), ("pipeline=2,micro_batches=4", 4))
    )
    assert often == pytest.approx(4 * once, rel=1e-2)
    assert piped < once
    # Four blocks of 16 MiB in two stages, two replicas: 32 MiB of a stage, each way 0.2 s, and half as long again
    # with other work. The gather before the first block, a half of it, and the scatter do not overlap.
    words, links = "fsdp,pipeline=2,micro_batches=4", bus(WEIGHT_BYTES / 0.2)
    alone, both = (step_on(4, words, count, links=links) for count in (2, 4))
    each = OVERLAP_COSTS.slowdown * 0.2
    assert both.communication_seconds - alone.communication_seconds == pytest.approx(2 * each, rel=1e-2)
    assert step_on(4, words, 4, links=bus(WEIGHT_BYTES / 0.4)).seconds - both.seconds > 1.5 * each


def test_fsdp_communicates_in_param_dtype_and_no_frozen_gradients() -> None:
    whole, half = (
        step_on(2, f"fsdp{more}", 2, links=bus(WEIGHT_BYTES / 0.01)) for more in ("", ",param_dtype=bfloat16")
    )
    assert half.communication_seconds == pytest.approx(whole.communication_seconds / 2, rel=1e-2)
    trace, _ = trace_of(2)
    *others, last = trace.parameters
    frozen = replace(trace, parameters=(*(replace(each, requires_grad=False) for each in others), last))
    share = parameter_bytes(last) / sum(map(parameter_bytes, trace.parameters))
    assert 0 < share < 1 / 2
    moved = [step_on(each, "fsdp", 2, links=bus(2 * WEIGHT_BYTES)).communication_seconds for each in (trace, frozen)]
    # Two gathers of all weights, and one scatter of the trained ones.
    assert moved[1] / moved[0] == pytest.approx((2 + share) / 3, rel=0.02)


def test_offloaded_optimizer_updates_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, offloaded = (step_on(2, f"zero1{more}", 2) for more in ("", ",offload=optimizer"))
    # Its processors take 3 x 4 bytes of state in both directions and a gradient of 4 for each of 8 Mi parameters at
    # 200 GB/s; half of 32 MiB goes up over PCIe at 80 % of 31.5 GB/s. The GPUs' 0.25 s of updating are gone.
    elements = 2 * WEIGHT_BYTES / 4
    host = (2 * 3 * 4 + 4) * elements / 200e9 + 4 * elements / 2 / (0.8 * A100.pcie_bytes_per_second)
    assert plain.seconds - offloaded.seconds == pytest.approx(UPDATE / 2 - host, abs=0.02)
    monkeypatch.setattr(data_parallel, "HOST_BYTES_PER_SECOND", 2e9)
    slower = step_on(2, "zero1,offload=optimizer", 2).seconds - offloaded.seconds
    assert slower == pytest.approx((2 * 3 * 4 + 4) * elements * (1 / 2e9 - 1 / 200e9), rel=1e-2)
    monkeypatch.undo()
    # Of 1 GB of state on each of four GPUs: read and written at 200 GB/s; 0.25 GB of parameters over a link each.
    low, middle, high = update_seconds(trained_bytes=0.25e9, state_bytes=1e9, gpu=A100, gpus_per_node=4)
    assert middle == pytest.approx(4 * (2 * 1e9 + 0.25e9) / 200e9 + 0.25e9 / (0.8 * A100.pcie_bytes_per_second))
    assert low < middle < high


def test_float8_needs_units_and_models_blocks_to_divide() -> None:
    plain, tensorwise, blockwise = (
        step_on(2, f"ddp{more}", Layout(H100, 2)).device_seconds for more in ("", ",fp8=tensorwise", ",fp8=blockwise")
    )
    assert blockwise <= tensorwise < plain  # a scale per block needs no pass for the maximum
    with pytest.raises(InvalidArgumentError, match="A100-SXM-80GB has no units for float8"):
        step_on(2, "fp8=tensorwise", 2)
    with pytest.raises(InvalidArgumentError, match="shares transformer blocks, and the trace holds none"):
        step_on(without_modules(2), "tensor=2", 2, step=single(2))
    with pytest.raises(InvalidArgumentError, match=r"pipeline=4 stages for 2 transformer block\(s\).*at most 2"):
        step_on(2, "pipeline=4", 4)


# --- Experts


def exchanged(count: int, size: float) -> float:
    """Return the time of an all_reduce among the given number of GPUs during other work, over a bus of 1 GiB/s."""
    return 2 * (count - 1) / count * size / 2**30 * OVERLAP_COSTS.slowdown


def moved(experts: int, words: str) -> float:
    """Return the communication of replicas of two blocks of experts on eight GPUs, over a bus of 1 GiB/s."""
    trace, seconds = mixture(2, experts)
    strategy = parse_strategy(words)
    communication = step_on(trace, strategy, 8, seconds=seconds, links=bus(2**30)).communication_seconds
    routed = 2 * 4 * (strategy.expert - 1) / strategy.expert * TOKENS * HIDDEN * 4 / 2**30  # four all-to-alls a layer
    return communication - (routed if strategy.expert > 1 else 0.0)


def test_tokens_are_sent_to_distributed_experts() -> None:
    trace, seconds = mixture(2, 4)
    links = bus(TOKENS * HIDDEN * 4 / 2 / 0.1)
    # Four all-to-alls a layer, half of the data goes to the other of two GPUs, 0.1 s each; half as many tokens more.
    even, uneven = (
        step_on(trace, f"expert=2{more}", 2, seconds=seconds, links=links) for more in ("", ",capacity=1.5")
    )
    assert uneven.communication_seconds - even.communication_seconds == pytest.approx(0.5 * 2 * 4 * 0.1, rel=0.02)
    assert uneven.device_seconds - even.device_seconds == pytest.approx(2 * 0.5 * 0.5, rel=0.02)
    assert any("Experts are dealt out over 2 GPUs" in note for note in even.notes)


@pytest.mark.parametrize(
    ("experts", "words", "message"),
    [
        (0, "expert_launches", "expert_launches=true launches what each expert multiplies, and the"),
        (0, "expert=2", "the trace names none: no parameter has 'expert' in its name"),
        (4, "expert=3", "expert=3 does not divide the 4 experts; choose one of 1, 2, 4"),
    ],
)
def test_expert_degree_must_divide_experts(experts: int, words: str, message: str) -> None:
    trace, seconds = mixture(2, experts) if experts else trace_of(2)
    with pytest.raises(InvalidArgumentError, match=message):
        stages_of(trace, words, seconds)


@pytest.mark.parametrize(("words", "each"), [("expert=2", 1), ("expert=2,fp8=tensorwise", 3), ("expert=4", 1)])
def test_experts_launched_separately_have_more_launches_of_equal_time(words: str, each: int) -> None:
    trace, seconds = mixture(2, 4)
    (plain,), (apart,) = (stages_of(trace, f"{words}{more}", seconds) for more in ("", ",expert_launches"))
    # Of four experts, a GPU's own; in float8 two operands of each are cast by launches of their own.
    own = 4 // parse_strategy(words).expert * each
    visits = [(a, b) for a, b in zip(plain.work, apart.work, strict=True) if "experts" in (a.module or "")]
    assert [(a.launches, b.launches) for a, b in visits] == [(1, own)] * 2
    assert all(a.seconds.sum() == pytest.approx(b.seconds.sum()) for a, b in visits)
    launching = HostModel().overheads("forward")
    more = 2 * (own - 1) * (launching.launch + launching.between_launches)
    assert apart.passes.host_seconds - plain.passes.host_seconds == pytest.approx(more)
    # Before the experts of each of the two layers the host waits for how many tokens go to each.
    assert [sum(operation.waits for operation in stage.work) for stage in (plain, apart)] == [0, 2]


@pytest.mark.parametrize(
    ("experts", "words", "gpus_of_experts", "held", "rel"),
    [
        (4, "ddp", 8, 4, 0.02),
        # Each GPU holds half, or a quarter, of the experts, and exchanges their gradients with four, or two, GPUs. In
        # numbers, for two: 32 MiB among eight GPUs pass a link 7/4 times, 16 MiB of experts among four 3/2 times,
        # together 80 MiB, half as long again with other work.
        (4, "expert=2", 4, 2, 0.02),
        (4, "expert=4", 2, 1, 0.02),
        # No other GPU has the same experts. ZeRO 1 scatters and gathers the other parameters.
        (8, "expert=8", 1, 1, 0.05),
        (8, "zero1,expert=8", 1, 1, 0.05),
    ],
)
def test_expert_gradients_are_exchanged_among_gpus_with_same_experts(
    experts: int, words: str, gpus_of_experts: int, held: int, rel: float
) -> None:
    expected = exchanged(8, 2 * WEIGHT_BYTES) + exchanged(gpus_of_experts, 2 * held * EXPERT_BYTES)
    assert moved(experts, words) == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize(("expert", "gpus_of_experts", "held"), [(2, 4, 4), (8, 1, 1)])
def test_fsdp_shards_experts_among_gpus_with_same_experts(expert: int, gpus_of_experts: int, held: int) -> None:
    # Three gathers (the recorded experts run behind both blocks) and one scatter: twice an all_reduce.
    expected = 2 * (exchanged(8, 2 * WEIGHT_BYTES) + exchanged(gpus_of_experts, 2 * held * EXPERT_BYTES))
    assert moved(8, f"fsdp,expert={expert}") == pytest.approx(expected, rel=0.02)


def test_tensor_parallel_gpus_may_hold_whole_experts() -> None:
    # Megatron's expert-tensor-parallel size of 1: sixteen GPUs deal out 16 experts, though there are 8 replicas.
    trace, _ = mixture(2, 16)
    layout, words = Layout(A100, 8, 2), "zero1,tensor=2,expert=16"
    with pytest.raises(InvalidArgumentError, match=r"does not divide the 8 data-parallel group.*expert_tensor=1"):
        parse_strategy(words).replicas(layout)
    strategy = parse_strategy(f"{words},expert_tensor=1")
    assert strategy.replicas(layout) == 8
    links = Links(layout, CATALOGUE)
    assert [group(links, strategy).layout.count for group in (expert_group, expert_data_group)] == [16, 1]
    (shared,), (whole,) = (stages_of(trace, own) for own in ("zero1,tensor=2,expert=8", strategy.name))
    # As many weights either way: two experts' halves, or one expert. The tokens of half a sequence are sent.
    assert sum(map(parameter_bytes, shared.parameters)) == sum(map(parameter_bytes, whole.parameters))
    assert sum(whole.routed_bytes) == pytest.approx(sum(shared.routed_bytes) / 2)


# --- Any layout


def test_corrections_are_kept_and_work_of_unknown_shape_is_noted() -> None:
    step = single(2)
    corrected = replace(step, interval=step.interval.scaled(2))
    plain, twice = (step_on(2, "tensor=2", 2, step=each) for each in (step, corrected))
    # The wait for the slowest grows less than the step.
    assert twice.seconds == pytest.approx(2 * plain.seconds, rel=5e-3)
    assert step_on(2, "tensor=8,pipeline=2", 1, step=step) is step
    trace, seconds = trace_of(2)
    timed = timed_as(trace, seconds)
    fused = replace(timed, items=(replace(timed.items[0], shapes=()), *timed.items[1:]))
    found = step_on(trace, "tensor=2", 2, timed=fused, step=single(2))
    assert any("1 operations of unknown shape (fused kernels) are taken to be whole" in note for note in found.notes)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(DATA_STRATEGIES),
    st.sampled_from([(1, 2), (2, 1), (2, 2), (4, 1), (8, 1), (4, 2)]),
    st.sampled_from([1, 2]),
    st.floats(1e9, 1e12),
    st.floats(1, 4),
)
def test_divided_work_and_slower_links_are_bounded(
    data: DataStrategy, degrees: tuple[int, int], nodes: int, bandwidth: float, factor: float
) -> None:
    tensor, pipeline = degrees
    step, strategy = single(2), Strategy(data=data, tensor=tensor, pipeline=pipeline)
    fast, slow = (
        step_on(
            2,
            strategy,
            Layout(A100, 8, nodes),
            links=Interconnect(intra_node_bytes_per_second=rate, inter_node_bytes_per_second=rate),
            step=step,
        )
        for rate in (bandwidth, bandwidth / factor)
    )
    # No GPU does less than its even share, or more than all of it.
    assert step.device_seconds / (tensor * pipeline) * (1 - 1e-6) <= fast.device_seconds
    assert fast.device_seconds <= step.device_seconds * (1 + 1e-6)
    assert fast.seconds <= slow.seconds * (1 + 1e-9)
    assert fast.communication_seconds <= slow.communication_seconds * (1 + 1e-9)
    assert fast.low_seconds <= fast.seconds <= fast.high_seconds


@pytest.mark.parametrize(
    ("words", "count", "rate", "scale", "bound_by"),
    [
        ("tensor=2", 2, 1e15, 1.0, "device"),
        ("pipeline=4,micro_batches=1", 4, 1e15, 1.0, "bubble"),
        ("tensor=2", 2, STREAM_BYTES / 10, 1.0, "links"),
        ("tensor=2", 2, 1e15, 1e-9, "host"),
    ],
)
def test_verdict_of_divided_step(words: str, count: int, rate: float, scale: float, bound_by: str) -> None:
    trace, seconds = trace_of(4)
    prediction = step_on(trace, words, count, seconds=[scale * each for each in seconds], links=bus(rate))
    assert prediction.verdict is not None
    assert prediction.verdict.bound_by == bound_by
