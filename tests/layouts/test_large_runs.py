"""What large runs use, by hand: each strategy is predicted, with its memory, or refused in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.layouts import model_parallel
from lightning_predict.layouts.data_parallel import update_seconds
from lightning_predict.layouts.gradients import parameter_bytes
from lightning_predict.layouts.groups import data_group, expert_data_group, expert_group, tensor_group
from lightning_predict.layouts.model_parallel import TENSOR_HIDDEN, model_stages
from lightning_predict.layouts.overlap import OVERLAP_COSTS, slowest_of
from lightning_predict.layouts.pipeline_parallel import (
    block_stages,
    bubble_ratio,
    overlapping_micro_batches,
    pass_micro_batches,
    passes_of,
    simulated_micro_batches,
)
from lightning_predict.layouts.recomputation import recomputed_part
from lightning_predict.layouts.strategy import Recompute, Strategy, parse_strategy
from lightning_predict.layouts.tensor_parallel import split_model
from lightning_predict.memory.rank_memory import RankMemory, can_simulate, even_bytes
from lightning_predict.record.trace import Operation, Parameter, TensorInfo, Trace
from lightning_predict.timeline.host import HostModel
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from tests.layouts.example_blocks import (
    HIDDEN,
    MODELS,
    NORMS_REL,
    STREAM_BYTES,
    TOKENS,
    WEIGHT_BYTES,
    on_layouts,
    timed_as,
    trace_of,
)
from tests.layouts.test_memory import ACTIVATION_BYTES, SINGLE_BYTES, TRACE, with_activations

A100, H100 = gpu("A100-SXM-80GB"), gpu("H100-SXM-80GB")
FAST = Interconnect(intra_node_bytes_per_second=1e15, inter_node_bytes_per_second=1e15)
FORWARD, BACKWARD, NORMS, UPDATE = 3.1, 4.2, 0.3, 0.5


def on(
    blocks: int, words: str, layout: Layout, *, links: Interconnect = FAST, trace: Trace | None = None
) -> StepPrediction:
    own, seconds = trace_of(blocks)
    own = trace or own
    timed = timed_as(own, seconds)
    (step,) = predict_steps(own, timed, [layout.gpu])
    (found,) = on_layouts(
        own, timed, [layout.gpu], [step], [layout], parse_strategy(words), interconnect=links, models=MODELS
    )
    return found


def with_wait(seconds: float, count: int) -> float:
    return seconds * (1 + float(OVERLAP_COSTS.speed_deviation(np.array(seconds))) * slowest_of(count))


def memory(words: str, count: int, *, trace: Trace = TRACE, single: float = SINGLE_BYTES, nodes: int = 1) -> float:
    layout, strategy = Layout(H100, count // nodes, nodes), parse_strategy(words)
    if can_simulate(trace):
        return RankMemory(trace).tensor_bytes(layout, strategy)
    return even_bytes(single, trace, layout, strategy)


def test_an_interleaved_pipeline_waits_half_as_long() -> None:
    # Four blocks, two stages of two parts each, four micro-batches of 14.6 / 4 s a stage: 4 + 1 / 2 turns.
    found = on(4, "ddp,pipeline=2,virtual=2,micro_batches=4", Layout(A100, 2))
    assert found.seconds == pytest.approx(with_wait(4.5 * 2 * 7.3 / 4 + UPDATE / 2, 2), rel=NORMS_REL)
    assert block_stages(Strategy(pipeline=2, virtual=2), 4) == (0, 1, 0, 1)
    # Each micro-batch is handed over three times as often between the two: out, back and out again.
    stages = {
        words: model_stages(*_made(4), [A100], HostModel(), MODELS, parse_strategy(words))[0].sent_tensors
        for words in ("ddp,pipeline=2,micro_batches=4", "ddp,pipeline=2,micro_batches=4,virtual=2")
    }
    assert list(stages.values()) == [1, 3]


def _made(blocks: int) -> tuple[Trace, Any]:
    trace, seconds = trace_of(blocks)
    return trace, timed_as(trace, seconds)


def test_an_interleaved_pipeline_exchanges_behind_its_last_round() -> None:
    assert overlapping_micro_batches(Strategy(pipeline=8), 64) == 1
    assert overlapping_micro_batches(Strategy(pipeline=8, virtual=2), 64) == 8
    assert overlapping_micro_batches(Strategy(pipeline=8, virtual=2), 4) == 4
    # Two replicas of two stages: what their slow links exchange hides behind twice the passes, of as much work.
    links = Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES / 0.2)
    words = ("ddp,pipeline=2,micro_batches=4,virtual=2", ",overlap_grad_reduce=false")
    layout = Layout(A100, 4)
    hidden = [on(4, "".join(words[:count]), layout, links=links).seconds for count in (2, 1)]
    assert hidden[1] < hidden[0]


def test_a_zero_bubble_pipeline_fills_the_gaps_with_gradients_of_weights() -> None:
    # Where a third of the time is the gradients of weights, a third of 1F1B's bubble is left.
    strategy = parse_strategy("ddp,pipeline=2,schedule=zero_bubble,micro_batches=4")
    assert bubble_ratio(strategy, 1 / 3) == pytest.approx(1 / 3)
    assert bubble_ratio(replace(strategy, schedule="1f1b"), 1 / 3) == 1
    found = on(4, strategy.name, Layout(A100, 2))
    assert found.seconds <= on(4, "ddp,pipeline=2,micro_batches=4", Layout(A100, 2)).seconds
    assert any("gradients of weights where a stage would wait" in note for note in found.notes)
    assert pass_micro_batches([1.0, 1.0], 4, idle=0.0) == 4


def test_sequence_parallelism_shares_norms_too() -> None:
    plain, shared = (on(2, f"ddp,tensor=2{more}", Layout(A100, 2)) for more in ("", ",sequence=true"))
    assert plain.device_seconds == pytest.approx(2 * (NORMS + 3.5) + UPDATE / 2, rel=NORMS_REL)
    assert shared.device_seconds == pytest.approx(2 * (NORMS / 2 + 3.5) + UPDATE / 2, rel=NORMS_REL)
    # A reduce_scatter and an all_gather carry half as much each as an all_reduce.
    bus = Interconnect(intra_node_bytes_per_second=STREAM_BYTES / 0.25)
    both = [on(2, f"ddp,tensor=2{more}", Layout(A100, 2), links=bus) for more in ("", ",sequence=true")]
    assert both[1].communication_seconds == pytest.approx(both[0].communication_seconds, rel=NORMS_REL)


def test_context_parallelism_cuts_tokens_and_passes_keys_and_values_around(monkeypatch: pytest.MonkeyPatch) -> None:
    # Half of the passes on each GPU; the two replicas of the weights share no update.
    found = on(2, "ddp,context=2", Layout(A100, 2))
    assert found.device_seconds == pytest.approx(2 * 7.3 / 2 + UPDATE, rel=NORMS_REL)
    # Keys and values of 256 x 8 x 128 x 4 samples in float32, three rings of a block, on two GPUs half of them over
    # the link; attention takes 1.5 s a block and hides them.
    ring = 2 * TOKENS * HIDDEN * 4
    bus = Interconnect(intra_node_bytes_per_second=ring / 2 / 0.1)
    slower = on(2, "ddp,context=2", Layout(A100, 2), links=bus)
    gradients = 2 * WEIGHT_BYTES / (ring / 2 / 0.1)
    assert slower.communication_seconds == pytest.approx(2 * 3 * 0.1 + OVERLAP_COSTS.slowdown * gradients, rel=0.02)
    assert slower.seconds - found.seconds < 2 * gradients * OVERLAP_COSTS.slowdown
    # Which ring it is, is not told: the high end has half of the attention's 2 x (1 + 2) / 2 s again.
    monkeypatch.setattr(model_parallel, "RING_OVERHEAD", np.zeros(3))
    sure = on(2, "ddp,context=2", Layout(A100, 2))
    assert sure.seconds == found.seconds
    assert found.high_seconds - sure.high_seconds == pytest.approx(1.5, rel=0.02)
    model = split_model(trace_of(2)[0])
    written_out = replace(model, blocks=tuple(replace(block, ring_bytes=0.0) for block in model.blocks))
    with pytest.raises(InvalidArgumentError, match=r"context=2 passes keys and values.*needs fused attention"):
        written_out.check_context(2)


def test_tensor_parallelism_over_machines() -> None:
    layout = Layout(H100, 2, 4)
    group = tensor_group(layout, Strategy(tensor=4))
    assert (group.layout.gpus_per_node, group.layout.nodes, group.groups_per_node) == (2, 2, 1)
    # Two replicas, each of whole machines: one of their GPUs in each of two machines.
    data = data_group(layout, Strategy(tensor=4))
    assert (data.layout.gpus_per_node, data.layout.nodes, data.groups_per_node) == (1, 2, 2)
    slow = Interconnect(intra_node_bytes_per_second=1e15, inter_node_bytes_per_second=STREAM_BYTES / 0.1)
    found = on(2, "ddp,tensor=4", Layout(A100, 2, 2), links=slow)
    # Four all_reduces over two machines, as a tree: the message once through 92 % of the network.
    assert found.communication_seconds == pytest.approx(4 * 0.1 / 0.92, rel=0.01)


def test_hybrid_sharding_over_groups_of_any_size() -> None:
    assert Strategy(data="hybrid").sharded_count(Layout(H100, 8, 4)) == 8
    assert Strategy(data="hybrid", shard=16).sharded_count(Layout(H100, 8, 4)) == 16
    lasting = 2 * 4 * WEIGHT_BYTES
    gathered = 2 * WEIGHT_BYTES
    assert memory("hybrid,shard=2", 8) == pytest.approx(lasting / 2 + gathered + 2 * ACTIVATION_BYTES)
    assert memory("hybrid,shard=4", 8, nodes=4) == pytest.approx(lasting / 4 + gathered + 2 * ACTIVATION_BYTES)
    with pytest.raises(InvalidArgumentError, match=r"shard=3 does not fit the 8 GPUs of 8xH100"):
        memory("hybrid,shard=3", 8)


def test_an_optimizer_in_the_hosts_memory() -> None:
    # The state is not there; of gradients half is.
    stays = 2 * WEIGHT_BYTES + WEIGHT_BYTES + 2 * ACTIVATION_BYTES
    assert memory("zero2,offload=optimizer", 2) == pytest.approx(stays)
    plain, moved = (on(2, f"zero1{more}", Layout(A100, 2)) for more in ("", ",offload=optimizer"))
    # Its processors take 3 x 4 bytes of state in both directions and a gradient of 4 for each of 8 Mi parameters at
    # 200 GB/s; half of 32 MiB goes up over PCIe at 80 % of 31.5 GB/s. The GPUs' 0.25 s of updating are gone.
    elements = 2 * WEIGHT_BYTES / 4
    host = (2 * 3 * 4 + 4) * elements / 200e9 + 4 * elements / 2 / (0.8 * A100.pcie_bytes_per_second)
    assert plain.seconds - moved.seconds == pytest.approx(UPDATE / 2 - host, abs=0.02)


def test_offloaded_update_moves_state_twice_and_gradients_once() -> None:
    """Of 1 GB of state on each of four GPUs: read and written at 200 GB/s; 0.25 GB of parameters over a link each."""
    low, middle, high = update_seconds(trained_bytes=0.25e9, state_bytes=1e9, gpu=A100, gpus_per_node=4)
    assert middle == pytest.approx(4 * (2 * 1e9 + 0.25e9) / 200e9 + 0.25e9 / (0.8 * A100.pcie_bytes_per_second))
    assert low < middle < high


def test_products_in_float8_where_the_gpu_has_units_for_it() -> None:
    plain, narrow = (on(2, f"ddp{more}", Layout(H100, 2)) for more in ("", ",fp8=tensorwise"))
    assert narrow.device_seconds < plain.device_seconds
    blockwise = on(2, "ddp,fp8=blockwise", Layout(H100, 2))
    assert blockwise.device_seconds <= narrow.device_seconds  # no pass for the largest value
    with pytest.raises(InvalidArgumentError, match="A100-SXM-80GB has no units for float8"):
        on(2, "ddp,fp8=tensorwise", Layout(A100, 2))


def test_recomputation_takes_the_forward_pass_of_blocks_again_and_keeps_their_inputs_alone() -> None:
    none, selective, full = (on(2, f"ddp,recompute={what}", Layout(A100, 2)) for what in ("none", "selective", "full"))
    assert full.device_seconds - none.device_seconds == pytest.approx(2 * FORWARD, rel=1e-3)
    assert selective.device_seconds - none.device_seconds == pytest.approx(2 * 1.0, rel=1e-3)  # attention alone
    # No storage of this trace enters a block; one block's 16 MiB are there while it is computed again.
    lasting = 2 * 4 * WEIGHT_BYTES + 2 * WEIGHT_BYTES  # with DDP's buckets
    expected = lasting + ACTIVATION_BYTES
    assert memory("ddp,recompute=full", 2) == pytest.approx(expected)
    trace, _ = trace_of(2)
    twice = tuple(replace(each, phase="backward") for each in trace.operations[:8]) * 2
    again = replace(trace, operations=(*trace.operations[:8], *twice, *trace.operations[8:]))
    timed = timed_as(again, [1.0] * len(again.operations))
    with pytest.raises(InvalidArgumentError, match="recompute=full of a step that was recorded with activation check"):
        model_stages(again, timed, [A100], HostModel(), MODELS, Strategy(recompute="full"))


def test_recomputation_by_operation_keeps_attention_and_every_second_product() -> None:
    none, layers, operations, full = (
        on(2, f"ddp,recompute={what}", Layout(A100, 2)).device_seconds
        for what in ("none", "layers", "operations", "full")
    )
    assert layers - none == pytest.approx((full - none) / 2, rel=1e-3)  # one of two blocks
    assert none < operations < full

    def repeated(names: Sequence[str], recompute: Recompute) -> Sequence[int]:
        return recomputed_part(
            [Operation(name=name.split()[-1], phase="forward", module=" ".join(name.split()[:-1])) for name in names],
            recompute,
        )

    assert repeated(["aten::mm", "aten::silu", "aten::mm", "aten::mm"], "operations") == [1, 2]
    attention = ["aten::mm", "aten::scaled_dot_product_attention", "aten::mm", "aten::add"]
    assert repeated(attention, "operations") == [2, 3]
    # Batched products of experts do not belong to attention.
    experts = [*attention, "experts aten::bmm", "experts aten::silu", "experts aten::bmm"]
    assert repeated(experts, "operations") == [2, 3, 4, 5, 6]
    assert list(repeated(experts, "selective")) == [1]


def test_recomputed_blocks_add_up_again() -> None:
    bus = Interconnect(intra_node_bytes_per_second=STREAM_BYTES / 0.25)
    none, full = (on(2, f"ddp,tensor=2,recompute={what}", Layout(A100, 2), links=bus) for what in ("none", "full"))
    # One all_reduce a block forward and one backward; recomputation repeats the forward one.
    assert none.communication_seconds == pytest.approx(4 * 0.25, rel=1e-3)
    assert full.communication_seconds == pytest.approx(6 * 0.25, rel=1e-3)


def test_gradients_after_the_backward_pass_hide_behind_nothing() -> None:
    bus = Interconnect(intra_node_bytes_per_second=2 * WEIGHT_BYTES / 1.0)
    behind, after = (on(2, f"ddp{more}", Layout(A100, 2), links=bus) for more in ("", ",overlap_grad_reduce=false"))
    plain = on(2, "ddp", Layout(A100, 2))
    assert after.seconds - plain.seconds == pytest.approx(OVERLAP_COSTS.slowdown * 1.0, rel=0.03)
    assert behind.seconds < after.seconds


def test_mixed_precision_of_fsdp_gathers_half_as_much() -> None:
    bus = Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES / 0.01)
    whole, half = (on(2, f"fsdp{more}", Layout(A100, 2), links=bus) for more in ("", ",param_dtype=bfloat16"))
    assert half.communication_seconds == pytest.approx(whole.communication_seconds / 2, rel=1e-2)
    # Shards in float32; two units of half the size.
    expected = 2 * 4 * WEIGHT_BYTES / 2 + 2 * WEIGHT_BYTES / 2 + 2 * ACTIVATION_BYTES
    assert memory("fsdp,param_dtype=bfloat16", 2) == pytest.approx(expected)


def test_float32_copies_of_the_parameters_are_shared_like_the_optimizers_state() -> None:
    # The update alone meets 32 MiB of copies and 64 MiB of moments, and writes 32 MiB of gradients in float32.
    elements = 2 * WEIGHT_BYTES // 4
    half = TRACE.memory.parameter_bytes
    assert half is not None
    copy, gradient = (TensorInfo((elements,), "float32", id=number) for number in (900, 901))
    moments = tuple(TensorInfo((elements,), "float32", id=number) for number in (902, 903))
    update = (
        Operation(name="aten::_to_copy", phase="other", outputs=(gradient,)),
        Operation(name="aten::_fused_adamw_", phase="optimizer", inputs=(copy, gradient, *moments)),
    )
    trace = replace(TRACE, operations=(*TRACE.operations, *update))
    copies = 4 * elements
    sharded = memory("fsdp", 4, trace=trace, single=SINGLE_BYTES + copies)
    lasting = (2 * 4 * WEIGHT_BYTES + copies) / 4 + 2 * WEIGHT_BYTES
    assert sharded == pytest.approx(lasting + max(2 * ACTIVATION_BYTES, copies / 4))


def test_an_interleaved_schedule_and_gpipe_hold_more_at_once() -> None:
    def in_flight(words: str, stage: int) -> int:
        strategy, held = parse_strategy(words), [0]
        for is_backward, _, _ in passes_of(strategy, stage, simulated_micro_batches(strategy, stage, 16)):
            held.append(held[-1] + (-1 if is_backward else 1))
        assert held[-1] == 0
        return max(held)

    assert [in_flight("ddp,pipeline=4", stage) for stage in range(4)] == [4, 3, 2, 1]
    # Two parts of half the blocks; (p - 1) / (p v) = 3 / 8 more in the first stage.
    assert in_flight("ddp,pipeline=4,virtual=2", 0) == 2 * 4 * 1.375
    assert in_flight("ddp,pipeline=4,virtual=2", 3) == 5
    assert in_flight("ddp,pipeline=4,schedule=gpipe", 3) == 16
    trace = with_activations(4)
    single = 4 * (4 * WEIGHT_BYTES + ACTIVATION_BYTES)
    found = [
        memory(f"ddp,pipeline=2,micro_batches=4{more}", 2, trace=trace, single=single)
        for more in ("", ",virtual=2", ",schedule=gpipe")
    ]
    # Two blocks a stage; 2, 2 x 1.25 and 4 of four micro-batches at once.
    lasting = 2 * 4 * WEIGHT_BYTES
    assert found == pytest.approx([lasting + 2 * ACTIVATION_BYTES * share for share in (0.5, 0.625, 1.0)])


def mixture(blocks: int, experts: int) -> tuple[Trace, list[float]]:
    """Each block has experts of 4 MiB each, in one parameter, that 1,024 routed tokens visit."""
    trace, seconds = trace_of(blocks)
    tables = tuple(
        Parameter(name=f"blocks.{block}.experts.weight", shape=(experts, HIDDEN, HIDDEN), dtype="float32")
        for block in range(blocks)
    )
    visits = [
        Operation(
            name="aten::_grouped_mm",
            phase="forward",
            module=f"blocks.{block}.experts",
            inputs=(TensorInfo((TOKENS, HIDDEN), "float32"), TensorInfo((experts, HIDDEN, HIDDEN), "float32")),
        )
        for block in range(blocks)
    ]
    forward = 4 * blocks
    operations = (*trace.operations[:forward], *visits, *trace.operations[forward:])
    memory = replace(
        trace.memory,
        parameter_bytes=(trace.memory.parameter_bytes or 0) + blocks * experts * HIDDEN * HIDDEN * 4,
        gradient_bytes=(trace.memory.gradient_bytes or 0) + blocks * experts * HIDDEN * HIDDEN * 4,
    )
    return (
        replace(trace, operations=operations, parameters=(*trace.parameters, *tables), memory=memory),
        [*seconds[:forward], *([0.5] * blocks), *seconds[forward:]],
    )


def test_experts_are_dealt_out_and_tokens_travel_to_them() -> None:
    trace, seconds = mixture(2, 4)
    timed = timed_as(trace, seconds)
    (step,) = predict_steps(trace, timed, [A100])

    def moved(words: str) -> StepPrediction:
        bus = Interconnect(intra_node_bytes_per_second=TOKENS * HIDDEN * 4 / 2 / 0.1)
        (found,) = on_layouts(
            trace, timed, [A100], [step], [Layout(A100, 2)], parse_strategy(words), interconnect=bus, models=MODELS
        )
        return found

    # Four all-to-alls a layer, half of the data goes to the other of two GPUs, 0.1 s each; room for half as many again.
    even, roomy = moved("ddp,expert=2"), moved("ddp,expert=2,capacity=1.5")
    assert roomy.communication_seconds - even.communication_seconds == pytest.approx(0.5 * 2 * 4 * 0.1, rel=0.02)
    assert roomy.device_seconds - even.device_seconds == pytest.approx(2 * 0.5 * 0.5, rel=0.02)
    assert any("Experts are dealt out over 2 GPUs" in note for note in even.notes)
    # Half of the experts' 2 x 16 MiB, of their gradients, and of those in DDP's buckets.
    single = (trace.memory.parameter_bytes or 0) + (trace.memory.gradient_bytes or 0) + 4 * WEIGHT_BYTES
    layout = Layout(A100, 2)
    whole, dealt = (even_bytes(single, trace, layout, parse_strategy(one)) for one in ("ddp", "ddp,expert=2"))
    experts = 2 * 4 * HIDDEN * HIDDEN * 4
    # The optimizer's state goes by the share of parameters.
    share = experts / 2 / (experts + 2 * WEIGHT_BYTES)
    assert whole - dealt == pytest.approx(3 * experts / 2 + share * 4 * WEIGHT_BYTES)
    with pytest.raises(
        InvalidArgumentError, match="expert_launches=true launches what each expert multiplies, and the"
    ):
        on(2, "ddp,expert_launches=true", Layout(A100, 2))
    with pytest.raises(InvalidArgumentError, match="expert=3 does not divide the 4 experts; choose one of 1, 2, 4"):
        model_stages(trace, timed, [A100], HostModel(), MODELS, Strategy(expert=3))
    with pytest.raises(InvalidArgumentError, match="the trace names none: no parameter has 'expert' in its name"):
        on(2, "ddp,expert=2", Layout(A100, 2))


@pytest.mark.parametrize(("words", "each"), [("expert=2", 1), ("expert=2,fp8=tensorwise", 3), ("expert=4", 1)])
def test_experts_may_be_launched_one_by_one(words: str, each: int) -> None:
    trace, seconds = mixture(2, 4)
    plain, apart = (
        model_stages(
            trace, timed_as(trace, seconds), [H100], HostModel(), MODELS, parse_strategy(f"ddp,{words}{more}")
        )[0]
        for more in ("", ",expert_launches=true")
    )
    # Of four experts, a GPU's own; in float8 two operands of each are cast by launches of their own.
    own = 4 // parse_strategy(words).expert * each
    visits = [
        (one, other) for one, other in zip(plain.work, apart.work, strict=True) if "experts" in (one.module or "")
    ]
    assert [(one.launches, other.launches) for one, other in visits] == [(1, own)] * 2
    assert all(one.seconds.sum() == pytest.approx(other.seconds.sum()) for one, other in visits)
    launching = HostModel().overheads("forward")
    more = 2 * (own - 1) * (launching.launch + launching.between_launches)
    assert apart.passes.host_seconds - plain.passes.host_seconds == pytest.approx(more)
    # Before the experts of each of the two layers the host waits for how many tokens go to each.
    assert [sum(one.waits for one in stage.work) for stage in (plain, apart)] == [0, 2]


def test_gradients_of_experts_pass_among_those_that_hold_the_same_ones() -> None:
    """Two blocks of experts of 4 x 4 MiB over eight GPUs, under a bus that takes a second for a GiB."""
    trace, seconds = mixture(2, 4)
    timed = timed_as(trace, seconds)
    (step,) = predict_steps(trace, timed, [A100])
    layout, experts, dense = Layout(A100, 8), 2 * 4 * HIDDEN * HIDDEN * 4, 2 * WEIGHT_BYTES

    def exchanged(count: int, size: float) -> float:
        """The all_reduce of this size among the given number of GPUs, at the same time as other work."""
        return 2 * (count - 1) / count * size / 2**30 * OVERLAP_COSTS.slowdown

    def moved(words: str) -> float:
        bus = Interconnect(intra_node_bytes_per_second=2**30)
        strategy = parse_strategy(f"{words},capacity=1.0" if "expert" in words else words)
        (found,) = on_layouts(trace, timed, [A100], [step], [layout], strategy, interconnect=bus, models=MODELS)
        routed = 0.0
        if strategy.expert > 1:  # four all-to-alls a layer
            routed = 2 * 4 * (strategy.expert - 1) / strategy.expert * TOKENS * HIDDEN * 4 / 2**30
        return found.communication_seconds - routed

    whole = exchanged(8, dense + experts)
    assert moved("ddp") == pytest.approx(whole, rel=0.02)
    # Each GPU holds half, or a quarter, of the experts, and exchanges their gradients with four, or two, GPUs.
    for expert in (2, 4):
        wanted = exchanged(8, dense) + exchanged(8 // expert, experts / expert)
        assert moved(f"ddp,expert={expert}") == pytest.approx(wanted, rel=0.02)
    # In numbers, for two: 32 MiB among eight GPUs pass a link 7/4 times, 16 MiB of experts among four 3/2 times,
    # together 80 MiB, half as long again with other work.
    assert moved("ddp,expert=2") == pytest.approx(80 / 1024 * 1.5, rel=0.02)
    # Over as many GPUs as there are, no other GPU has the same; ZeRO 1 then gathers what is not of experts alone.
    trace, seconds = mixture(2, 8)
    timed = timed_as(trace, seconds)
    (step,) = predict_steps(trace, timed, [A100])
    assert moved("ddp,expert=8") == pytest.approx(exchanged(8, dense), rel=0.05)
    assert moved("zero1,expert=8") == pytest.approx(exchanged(8, dense), rel=0.05)  # scattered, then gathered


def test_fsdp_shards_experts_among_the_gpus_that_hold_the_same_ones() -> None:
    bus = Interconnect(intra_node_bytes_per_second=2**30)
    layout, dense = Layout(A100, 8), 2 * WEIGHT_BYTES
    trace, seconds = mixture(2, 8)
    timed, experts = timed_as(trace, seconds), 2 * 8 * HIDDEN * HIDDEN * 4
    (step,) = predict_steps(trace, timed, [A100])

    def moved(expert: int) -> float:
        strategy = Strategy(data="fsdp", expert=expert)
        (found,) = on_layouts(trace, timed, [A100], [step], [layout], strategy, interconnect=bus, models=MODELS)
        routed = 2 * 4 * (expert - 1) / expert * TOKENS * HIDDEN * 4 / 2**30
        return found.communication_seconds - routed

    def exchanged(count: int, size: float) -> float:
        """Three gathers (the recorded experts run behind both blocks) and one scatter among this number of GPUs."""
        return 4 * (count - 1) / count * size / 2**30 * OVERLAP_COSTS.slowdown

    assert moved(2) == pytest.approx(exchanged(8, dense) + exchanged(4, experts / 2), rel=0.02)
    assert moved(8) == pytest.approx(exchanged(8, dense), rel=0.02)  # no other GPU has the same experts


def test_fsdp_scatters_no_gradients_of_frozen_parameters() -> None:
    bus = Interconnect(intra_node_bytes_per_second=2 * WEIGHT_BYTES / 1.0)
    whole, _ = trace_of(2)
    *others, last = whole.parameters
    frozen = replace(whole, parameters=(*(replace(one, requires_grad=False) for one in others), last))
    share = parameter_bytes(last) / sum(map(parameter_bytes, whole.parameters))
    assert 0 < share < 1 / 2
    moved = [on(2, "fsdp", Layout(A100, 2), links=bus, trace=one).communication_seconds for one in (whole, frozen)]
    # Two gathers of all weights, and one scatter of the trained ones.
    assert moved[1] / moved[0] == pytest.approx((2 + share) / 3, rel=0.02)


def test_tensor_parallel_gpus_may_hold_whole_experts_of_their_own() -> None:
    """Megatron's expert-tensor-parallel size of 1: sixteen GPUs deal out 16 experts, though there are 8 replicas."""
    trace, _ = mixture(2, 16)
    layout, words = Layout(A100, 8, 2), "zero1,tensor=2,expert=16"
    with pytest.raises(InvalidArgumentError, match=r"does not divide the 8 data-parallel group.*expert_tensor=1"):
        parse_strategy(words).replicas(layout)
    strategy = parse_strategy(f"{words},expert_tensor=1")
    assert strategy.replicas(layout) == 8
    assert expert_group(layout, strategy).layout.count == 16
    assert expert_data_group(layout, strategy).layout.count == 1
    timed = timed_as(trace, [1.0] * len(trace.operations))
    shared, whole = (
        model_stages(trace, timed, [A100], HostModel(), MODELS, one)[0]
        for one in (parse_strategy("zero1,tensor=2,expert=8"), strategy)
    )
    # As many weights either way: two experts' halves, or one expert. The tokens of half a sequence are sent.
    assert sum(map(parameter_bytes, shared.parameters)) == sum(map(parameter_bytes, whole.parameters))
    assert sum(whole.routed_bytes) == pytest.approx(sum(shared.routed_bytes) / 2)


def test_what_zero_gathers_hides_behind_the_next_forward_pass() -> None:
    """Parameters over two GPUs and a bus that takes a second for half of them, which the forward pass hides."""
    bus = Interconnect(intra_node_bytes_per_second=WEIGHT_BYTES)
    words = ("zero1", "zero1,overlap_param_gather=true")
    after, behind = (on(2, one, Layout(A100, 2), links=bus) for one in words)
    assert behind.communication_seconds == pytest.approx(after.communication_seconds)
    # Both blocks' parameters, half of which passes each link, would take a second and half of it again at the same time
    # as the step.
    gathering = OVERLAP_COSTS.slowdown * 1.0
    # Overlapped communication slows the work that overlaps with it.
    assert after.seconds - behind.seconds == pytest.approx((1 - OVERLAP_COSTS.contention) * gathering, abs=0.02)
    with pytest.raises(InvalidArgumentError, match="overlap_param_gather=true is of zero1 and zero2"):
        parse_strategy("fsdp,overlap_param_gather=true")


def test_products_hide_a_part_of_what_tensor_parallelism_exchanges() -> None:
    bus = Interconnect(intra_node_bytes_per_second=2**30)
    words = ("ddp,tensor=2", "ddp,tensor=2,overlap_tensor=true")
    plain, hidden = (on(2, one, Layout(A100, 2), links=bus) for one in words)
    assert hidden.communication_seconds == pytest.approx(plain.communication_seconds)
    # One of two parts is exposed anyhow.
    could = plain.communication_seconds / 2
    assert plain.seconds - hidden.seconds == pytest.approx(TENSOR_HIDDEN * could, rel=0.05)
    with pytest.raises(InvalidArgumentError, match="overlap_tensor=true needs tensor parallelism"):
        parse_strategy("ddp,overlap_tensor=true")


def test_zero_divides_the_state_of_experts_among_those_that_hold_the_same_ones() -> None:
    trace, _ = mixture(2, 8)
    experts, dense = 2 * 8 * HIDDEN * HIDDEN * 4, 2 * WEIGHT_BYTES
    state = 2 * (experts + dense)
    trace = replace(trace, memory=replace(trace.memory, optimizer_state_bytes=state))
    single = (trace.memory.parameter_bytes or 0) + (trace.memory.gradient_bytes or 0) + state
    for expert in (1, 2, 8):
        words = f"zero1,expert={expert}" if expert > 1 else "zero1"
        found = even_bytes(single, trace, Layout(A100, 8), parse_strategy(words))
        # Parameters, gradients and their buckets; of the state an eighth, of experts' an eighth of all of them, too.
        assert found == pytest.approx(3 * (dense + experts / expert) + state / 8)
        # In MiB: 32 in addition to the experts' 64; two states of 32 among eight GPUs, of an expert's among those that
        # hold it.
        by_hand = {1: 3 * 96 + 8 + 16, 2: 3 * (32 + 32) + 8 + 2 * 32 / 4, 8: 3 * (32 + 8) + 8 + 2 * 8 / 1}
        assert found / MEBIBYTE == pytest.approx(by_hand[expert])


@pytest.mark.parametrize(
    ("words", "gpus", "nodes", "lasting", "activations"),
    [
        # Shares of the four times the weights that one GPU holds (parameters, gradients, two states), and of the
        # activations, of which each block's stream is a quarter and its inner tensor three.
        ("ddp,tensor=4", 4, 2, 1 / 4, 1 / 4 + 3 / 4 / 4),  # over two machines of two; the stream is whole on each
        ("ddp,tensor=2,sequence=true", 2, 1, 1 / 2, 1 / 2),
        ("ddp,context=2", 2, 1, 5 / 4, 1 / 2),  # DDP's buckets hold the gradients once more
        ("ddp,pipeline=2,micro_batches=4,schedule=zero_bubble", 2, 1, 1 / 2, 1 / 4),  # as 1F1B: two of four at once
        ("ddp,fp8=tensorwise", 2, 1, 5 / 4, 1.0),  # kept storages stay as recorded
        ("ddp,overlap_grad_reduce=false", 2, 1, 5 / 4, 1.0),
        ("ddp,tensor=2,pipeline=2,micro_batches=2", 4, 1, 1 / 4, 1 / 2 * (1 / 4 + 3 / 8)),
    ],
)
def test_memory_of_a_gpu_by_hand(words: str, gpus: int, nodes: int, lasting: float, activations: float) -> None:
    expected = lasting * 2 * 4 * WEIGHT_BYTES + activations * 2 * ACTIVATION_BYTES
    assert memory(words, gpus, nodes=nodes) == pytest.approx(expected)


def test_the_fullest_experts_hold_more_activations() -> None:
    # Of each block's four widths of activations three are its experts'; half as many tokens more, half as much more.
    plain = with_activations(2)
    named = tuple(
        replace(each, module=(each.module or "").replace("perceptron", "experts") or None) for each in plain.operations
    )
    table = Parameter(name="blocks.0.experts.weight", shape=(4, 1, 1), dtype="float32")
    trace = replace(plain, operations=named, parameters=(*plain.parameters, table))
    even, uneven = (memory(f"ddp,expert=2{more}", 2, trace=trace) for more in ("", ",capacity=1.5"))
    assert uneven - even == pytest.approx(0.5 * 3 / 4 * 2 * ACTIVATION_BYTES)
    # The other of two GPUs gets half as many tokens: 2 - 1.5 times as many as with balanced routing.
    ranks, layout = RankMemory(trace), Layout(H100, 2)
    least = ranks.least_filled(layout, parse_strategy("ddp,expert=2,capacity=1.5"))
    assert least is not None
    tensors = least.persistent_bytes + max(least.temporary_bytes, least.update_bytes)
    assert even - tensors == pytest.approx(0.5 * 3 / 4 * 2 * ACTIVATION_BYTES)
    assert ranks.least_filled(layout, parse_strategy("ddp,expert=2")) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ddp,virtual=2", "virtual=2 needs pipeline parallelism; ask for pipeline=2 or more"),
        ("ddp,schedule=gpipe", "schedule=gpipe needs pipeline parallelism"),
        ("ddp,pipeline=2,virtual=2,schedule=gpipe", "schedule=gpipe has one stage a GPU"),
        ("ddp,pipeline=4,virtual=2,micro_batches=6", "pipeline=4, which micro_batches=6 is not a multiple of"),
        ("ddp,sequence=true", "sequence=true needs tensor parallelism"),
        ("fsdp,shard=4", "shard=4 is the size of hybrid's groups, and fsdp has none"),
        (
            "ddp,offload=optimizer",
            "offload=optimizer moves a share of the optimizer's state, and ddp does not split it",
        ),
        ("ddp,param_dtype=bfloat16", "param_dtype=bfloat16 is what FSDP gathers in, and ddp gathers nothing"),
        ("fsdp,overlap_grad_reduce=false", "fsdp scatters gradients as they come"),
        ("hybrid,expert=2", "expert=2 with hybrid: experts in groups are not predicted; choose fsdp or zero1"),
        ("ddp,tensor=2,expert=2,expert_tensor=4", "expert_tensor=4 does not divide tensor=2"),
        (
            "zero2,pipeline=2,schedule=zero_bubble",
            "schedule=zero_bubble puts off the gradients that zero2 would scatter",
        ),
        ("ddp,capacity=1.5", "capacity=1.5 needs expert parallelism"),
        ("ddp,recompute=some", "recompute='some'; expected none, selective, operations, layers, full"),
        ("ddp,fp8=delayed", "fp8='delayed'; expected tensorwise, rowwise, blockwise, mx"),
        ("ddp,sequence=perhaps", "sequence='perhaps'; expected true or false"),
        ("ddp,capacity=0.5", "capacity=0.5; expected a factor of at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(words: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_strategy(words)


@pytest.mark.parametrize(
    "words",
    [
        "ddp",
        "fsdp,micro_batches=4,param_dtype=bfloat16",
        "ddp,tensor=8,pipeline=4,micro_batches=8,virtual=2,sequence=true,recompute=selective,overlap_grad_reduce=false",
        "zero1,context=2,expert=4,capacity=1.25,offload=optimizer,fp8=blockwise",
        "hybrid,shard=16",
    ],
)
def test_the_name_of_a_strategy_reads_back(words: str) -> None:
    assert parse_strategy(words).name == words
    assert parse_strategy(parse_strategy(words).name) == parse_strategy(words)


def test_the_verdict_of_a_divided_layout_says_what_it_waits_for() -> None:
    def bound_by(words: str, count: int, *, links: Interconnect = FAST) -> str:
        verdict = on(4, words, Layout(A100, count), links=links).verdict
        assert verdict is not None
        return verdict.bound_by

    assert bound_by("ddp,tensor=2", 2) == "device"
    assert bound_by("ddp,pipeline=4,micro_batches=1", 4) == "bubble"
    slow = Interconnect(intra_node_bytes_per_second=STREAM_BYTES / 10)
    assert bound_by("ddp,tensor=2", 2, links=slow) == "links"
    trace, seconds = trace_of(4)
    timed = timed_as(trace, [1e-9 * each for each in seconds])
    (step,) = predict_steps(trace, timed, [A100])
    (found,) = on_layouts(
        trace, timed, [A100], [step], [Layout(A100, 2)], Strategy(tensor=2), interconnect=FAST, models=MODELS
    )
    assert found.verdict is not None
    assert found.verdict.bound_by == "host"
