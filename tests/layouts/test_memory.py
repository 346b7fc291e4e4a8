"""Tensors of ranks that hold parts of a model, by hand.

Two blocks of 16 MiB of weights each; with gradients and two states a parameter that makes 4 x 16 MiB a block.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.gradients import parameter_bytes
from lightning_predict.layouts.model_parallel import stage_parameters
from lightning_predict.layouts.strategy import DATA_STRATEGIES, DataStrategy, Strategy, parse_strategy
from lightning_predict.layouts.tensor_parallel import split_model
from lightning_predict.memory.rank_memory import RankMemory, even_bytes
from lightning_predict.record.trace import Memory, Operation, Parameter, Phase, TensorInfo, Trace
from tests.known import known
from tests.layouts.example_blocks import HIDDEN, TOKENS, WEIGHT_BYTES, trace_of

H100 = gpu("H100-SXM-80GB")
VOCABULARY = 32 * HIDDEN
TABLE_BYTES = VOCABULARY * HIDDEN * 4


def kept(identity: int, shape: tuple[int, ...], module: str) -> tuple[Operation, Operation]:
    """A tensor that a forward operation writes and a backward operation reads."""
    tensor = TensorInfo(shape, "float32", id=identity)
    phases: tuple[Phase, Phase] = ("forward", "backward")
    wrote, read = (Operation(name="aten::relu", phase=phase, module=module) for phase in phases)
    return replace(wrote, outputs=(tensor,)), replace(read, inputs=(tensor,))


def with_activations(blocks: int) -> Trace:
    """Each block leaves its stream, and an inner tensor of three times its width; 4 x 4 MiB each."""
    trace, _ = trace_of(blocks)
    pairs = [
        pair
        for block in range(blocks)
        for pair in (
            kept(2 * block, (4, 256, HIDDEN), f"blocks.{block}.norm"),
            kept(2 * block + 1, (4, 256, 3 * HIDDEN), f"blocks.{block}.perceptron"),
        )
    ]
    forward, backward = [pair[0] for pair in pairs], [pair[1] for pair in reversed(pairs)]
    return replace(trace, operations=(*trace.operations[: 4 * blocks], *forward, *backward))


ACTIVATION_BYTES = 4 * TOKENS * HIDDEN * 4
TRACE = with_activations(2)
SINGLE_BYTES = 2 * (4 * WEIGHT_BYTES + ACTIVATION_BYTES)
FIRST_BACKWARD = next(index for index, operation in enumerate(TRACE.operations) if operation.phase == "backward")


def with_operations(*operations: Operation) -> Trace:
    """Return the trace with operations between its forward and backward passes."""
    return replace(
        TRACE, operations=(*TRACE.operations[:FIRST_BACKWARD], *operations, *TRACE.operations[FIRST_BACKWARD:])
    )


def tensors(words: str, count: int, *, trace: Trace = TRACE, nodes: int = 1) -> float:
    return RankMemory(trace).tensor_bytes(Layout(H100, count // nodes, nodes), parse_strategy(words))


@pytest.mark.parametrize(
    ("words", "gpus", "nodes", "lasting", "activations"),
    [
        # Lasting memory is in units of a block's weights: 8 on one GPU. Of a block's activations, the stream is a
        # quarter and its inner tensor three quarters.
        ("ddp", 2, 1, 8 + 2, 2),  # DDP's buckets hold the gradients once more
        ("ddp,tensor=2", 2, 1, 4, 2 * (1 / 4 + 3 / 8)),  # the stream is whole
        ("ddp,tensor=2", 4, 1, 4 + 1, 2 * (1 / 4 + 3 / 8)),
        ("ddp,tensor=4", 4, 2, 2, 2 * (1 / 4 + 3 / 16)),
        ("ddp,tensor=2,sequence", 2, 1, 4, 1),
        ("ddp,context=2", 2, 1, 8 + 2, 1),
        ("ddp,micro_batches=4", 2, 1, 8 + 2, 2 / 4),
        # The first stage holds one block, and two of four micro-batches at once.
        ("ddp,pipeline=2,micro_batches=4", 2, 1, 4, 1 / 2),
        ("ddp,pipeline=2,micro_batches=1", 2, 1, 4, 1),
        ("ddp,pipeline=2,micro_batches=4,schedule=zero_bubble", 2, 1, 4, 1 / 2),
        ("ddp,tensor=2,pipeline=2,micro_batches=2", 4, 1, 2, 1 / 4 + 3 / 8),
        ("ddp,fp8=tensorwise", 2, 1, 8 + 2, 2),  # kept storages stay as recorded
        ("ddp,overlap_grad_reduce=false", 2, 1, 8 + 2, 2),
        ("ddp,recompute=full", 2, 1, 8 + 2, 1),  # one block exists while it is computed again
        ("zero2,offload=optimizer", 2, 1, 2 + 1, 2),
        # Two replicas of a part: half of gradients and states stay; FSDP also gathers all parameters of the part.
        ("zero2,tensor=2", 4, 1, 4 - 1.5, 2 * (1 / 4 + 3 / 8)),
        ("fsdp,tensor=2", 4, 1, 4 - 2 + 1, 2 * (1 / 4 + 3 / 8)),
        ("fsdp,param_dtype=bfloat16", 2, 1, 4 + 1, 2),  # two units of half the size
        ("hybrid,shard=2", 8, 1, 4 + 2, 2),
        ("hybrid,shard=4", 8, 4, 2 + 2, 2),
        # In a pipeline, gathered parameters and whole sums of gradients are kept.
        ("fsdp,pipeline=2,micro_batches=4", 4, 1, 1 + 1 / 2 + 1 + 1, 1 / 2),
        ("fsdp,pipeline=2,micro_batches=4,reduce_dtype=bfloat16", 4, 1, 1 + 1 / 2 + 1 + 1 / 2, 1 / 2),
    ],
)
def test_tensors_of_a_rank_by_hand(words: str, gpus: int, nodes: int, lasting: float, activations: float) -> None:
    expected = lasting * WEIGHT_BYTES + activations * ACTIVATION_BYTES
    assert tensors(words, gpus, nodes=nodes) == pytest.approx(expected)


@pytest.mark.parametrize(("more", "share"), [("", 0.5), (",virtual=2", 0.625), (",schedule=gpipe", 1.0)])
def test_interleaved_schedule_and_gpipe_keep_more_micro_batches(more: str, share: float) -> None:
    # Two blocks a stage; 2, 2 x 1.25 and 4 of four micro-batches at once.
    needed = tensors(f"ddp,pipeline=2,micro_batches=4{more}", 2, trace=with_activations(4))
    assert needed == pytest.approx(2 * 4 * WEIGHT_BYTES + 2 * ACTIVATION_BYTES * share)


def test_least_filled_stage_of_a_pipeline_holds_fewer_blocks() -> None:
    trace = with_activations(3)  # the first stage of two has two of the three blocks, and keeps two micro-batches
    strategy, layout, ranks = Strategy(pipeline=2, micro_batches=4), Layout(H100, 2), RankMemory(trace)
    most = 2 * 4 * WEIGHT_BYTES + 2 * ACTIVATION_BYTES * 2 / 4
    assert ranks.tensor_bytes(layout, strategy) == most
    # The bound of the search lacks nothing here.
    assert ranks.lower_bounds(layout, strategy) == [most, 4 * WEIGHT_BYTES + ACTIVATION_BYTES / 4]
    least = known(ranks.least_filled(layout, strategy))
    assert least.persistent_bytes + least.temporary_bytes == 4 * WEIGHT_BYTES + ACTIVATION_BYTES / 4
    assert ranks.least_filled(layout, Strategy()) is None


def test_busiest_experts_keep_more_activations() -> None:
    # Of each block's four widths of activations three are its experts'; half as many tokens more, half as much more.
    named = tuple(
        replace(each, module=(each.module or "").replace("perceptron", "experts") or None) for each in TRACE.operations
    )
    table = Parameter(name="blocks.0.experts.weight", shape=(4, 1, 1), dtype="float32")
    trace = replace(TRACE, operations=named, parameters=(*TRACE.parameters, table))
    even, uneven = (tensors(f"ddp,expert=2{more}", 2, trace=trace) for more in ("", ",capacity=1.5"))
    assert uneven - even == pytest.approx(0.5 * 3 / 4 * 2 * ACTIVATION_BYTES)
    # The other of two GPUs gets half as many tokens: 2 - 1.5 times as many as with balanced routing.
    ranks, layout = RankMemory(trace), Layout(H100, 2)
    least = known(ranks.least_filled(layout, parse_strategy("ddp,expert=2,capacity=1.5")))
    assert even - least.tensor_bytes == pytest.approx(0.5 * 3 / 4 * 2 * ACTIVATION_BYTES)
    assert ranks.least_filled(layout, parse_strategy("ddp,expert=2")) is None


@pytest.mark.parametrize(("again", "activations"), [(False, 0.25 + 0.75 / 2), (True, 1 / 2)])
def test_gathered_matmul_inputs_are_kept_whole_or_gathered_again(again: bool, activations: float) -> None:
    # The stream of each block, a quarter of its kept storages, is multiplied there.
    matmuls = [
        Operation(
            name="aten::mm",
            phase="forward",
            inputs=(TensorInfo((4, 256, HIDDEN), "float32", id=2 * block),),
            module=f"blocks.{block}.norm",
        )
        for block in range(2)
    ]
    needed = tensors(f"ddp,tensor=2,sequence,gather_again={again}", 2, trace=with_operations(*matmuls))
    assert needed == pytest.approx(2 * (2 * WEIGHT_BYTES + ACTIVATION_BYTES * activations))


@pytest.mark.parametrize(("words", "parts", "replicas"), [("ddp,tensor=2", 2, 1), ("ddp", 1, 2), ("zero1", 1, 2)])
def test_gradients_reduced_in_another_dtype_are_added_in_one_buffer(words: str, parts: int, replicas: int) -> None:
    half = replace(TRACE, parameters=tuple(replace(parameter, dtype="bfloat16") for parameter in TRACE.parameters))
    # nanotron and Megatron keep 4 bytes for each value, of a single replica and of two.
    elements = 2 * WEIGHT_BYTES / 4
    without, reduced = (tensors(f"{words}{more}", 2, trace=half) for more in ("", ",reduce_dtype=float32"))
    buckets = 2 * elements if replicas > 1 else 0  # torch's own, as large as the gradients
    # A gradient is freed when it was added to the buffer.
    assert reduced == pytest.approx(without - buckets - 2 * WEIGHT_BYTES / parts + 4 * elements / parts)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("ddp", 4),
        ("ddp,recompute=full", 2),  # the output of the loss; later, one block is computed again at a time
        ("ddp,recompute=full,tensor=2,sequence,gather_again", 2),  # the output of this loss is not divided
    ],
)
def test_temporary_tensors_of_the_loss_are_not_recomputed(words: str, count: int) -> None:
    # As large as the activations of both blocks, written after the forward pass and read at once.
    lost = TensorInfo((2 * ACTIVATION_BYTES // 4,), "float32", id=100)
    wrote = Operation(name="aten::relu", phase="backward", outputs=(lost,), module="head")
    read = Operation(name="aten::relu", phase="backward", inputs=(lost,), module="head")
    parts = parse_strategy(words).tensor
    needed = tensors(words, parts, trace=with_operations(wrote, read)) - 8 * WEIGHT_BYTES / parts
    assert needed == count * ACTIVATION_BYTES


def trace_with_gradient(weight_mebibytes: int, *operations: Operation, gradient: int) -> Trace:
    return Trace(
        operations=operations,
        device="meta",
        recorder="dispatch",
        parameters=(Parameter(name="body.weight", shape=(weight_mebibytes, MEBIBYTE), dtype="uint8"),),
        memory=Memory(
            parameter_bytes=weight_mebibytes * MEBIBYTE,
            gradient_bytes=weight_mebibytes * MEBIBYTE,
            forward_gradient_bytes=0,
        ),
        held=(gradient,),
    )


def test_gradients_after_the_peak_do_not_count() -> None:
    weight, data, gradient = (TensorInfo((16, MEBIBYTE), "uint8", id=number) for number in range(3))
    hidden, scratch = (TensorInfo((size, MEBIBYTE), "uint8", id=number) for number, size in ((3, 40), (4, 32)))
    first = Operation(name="aten::mul", phase="forward", inputs=(data, weight), outputs=(hidden,))
    passing = Operation(name="aten::exp", phase="forward", inputs=(hidden,), outputs=(scratch,))
    last = Operation(name="aten::mul", phase="backward", inputs=(hidden,), outputs=(gradient,))
    trace = trace_with_gradient(16, first, last, gradient=2)
    # The gradient is written while weight, batch and hidden are there: 16 + 16 + 40 + 16, of which it is a part.
    assert tensors("ddp", 2, trace=trace) / MEBIBYTE == 88 + 16
    assert tensors("fsdp", 2, trace=trace) / MEBIBYTE == 8 + 16 + 16 + 56 + 8  # whole until its shard exists
    # With as much again freed before it is written, it does not count: 16 + 16 + 40 + 32.
    trace = trace_with_gradient(16, first, passing, last, gradient=2)
    assert tensors("ddp", 2, trace=trace) / MEBIBYTE == 104 + 16
    assert tensors("fsdp", 2, trace=trace) / MEBIBYTE == 8 + 16 + 88
    # If it is added up, the one of the micro-batch before is there.
    assert tensors("fsdp,accumulate=2", 2, trace=trace) / MEBIBYTE == 8 + 16 + 88 + 8


def test_gradients_stay_whole_without_synchronisation_until_last_batch() -> None:
    """KempnerForge, 70B on 32 GPUs: 22.8 GiB were predicted with scattered sums; 93.2 GiB were measured."""
    scattered, whole = (
        tensors(f"fsdp,accumulate=4,reduce_dtype=float32,no_sync={no_sync}", 2) for no_sync in (False, True)
    )
    # Two blocks of gradients, of which the scattered sums are half.
    assert whole - scattered == pytest.approx(2 * WEIGHT_BYTES - 2 * WEIGHT_BYTES / 2)
    assert tensors("fsdp,no_sync", 2) == tensors("fsdp", 2)  # a single batch is scattered at once


def test_float32_copies_of_parameters_are_sharded_like_optimizer_state() -> None:
    # The update alone meets 32 MiB of copies and 64 MiB of moments, and writes 32 MiB of gradients in float32.
    elements = 2 * WEIGHT_BYTES // 4
    copy, gradient, *moments = (TensorInfo((elements,), "float32", id=number) for number in range(900, 904))
    update = (
        Operation(name="aten::_to_copy", phase="other", outputs=(gradient,)),
        Operation(name="aten::_fused_adamw_", phase="optimizer", inputs=(copy, gradient, *moments)),
    )
    trace = replace(TRACE, operations=(*TRACE.operations, *update))
    copies = 4 * elements
    lasting = (2 * 4 * WEIGHT_BYTES + copies) / 4 + 2 * WEIGHT_BYTES
    assert tensors("fsdp", 4, trace=trace) == pytest.approx(lasting + max(2 * ACTIVATION_BYTES, copies / 4))


@pytest.mark.parametrize(("strategy", "table_bytes"), [("pipeline=2", TABLE_BYTES), ("tensor=4", 2 * TABLE_BYTES / 4)])
def test_embedding_is_in_the_first_stage(strategy: str, table_bytes: float) -> None:
    look_up = Operation(
        name="aten::embedding",
        phase="forward",
        module="tokens",
        inputs=(TensorInfo((VOCABULARY, HIDDEN), "float32"), TensorInfo((4, 256), "int64")),
    )
    head = Operation(name="aten::relu", phase="forward", module="head")
    tables = [
        Parameter(name=f"{name}.weight", shape=(VOCABULARY, HIDDEN), dtype="float32") for name in ("tokens", "head")
    ]
    operations = (look_up, *TRACE.operations[:12], head, *TRACE.operations[12:])
    sizes = []
    for parameters in (TRACE.parameters, (*TRACE.parameters, *tables)):
        trace = replace(TRACE, operations=operations, parameters=parameters)
        first = stage_parameters(trace, split_model(trace), parse_strategy(strategy))[0]
        sizes.append(sum(map(parameter_bytes, first)))
    assert sizes[1] - sizes[0] == table_bytes


@given(st.sampled_from(DATA_STRATEGIES), st.sampled_from([1, 2]))
def test_higher_tensor_degree_never_needs_more_memory(data: DataStrategy, pipeline: int) -> None:
    sizes = [tensors(f"{data},tensor={tensor},pipeline={pipeline}", 16) for tensor in (1, 2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True)


def test_hybrid_shards_must_fit_the_gpus() -> None:
    assert Strategy(data="hybrid").sharded_count(Layout(H100, 8, 4)) == 8
    assert Strategy(data="hybrid", shard=16).sharded_count(Layout(H100, 8, 4)) == 16
    with pytest.raises(InvalidArgumentError, match=r"shard=3 does not fit the 8 GPUs of 8xH100"):
        tensors("hybrid,shard=3", 8)


# --- Recordings without tensors


UNITS = Trace(
    operations=(),
    device="cpu",
    recorder="dispatch",
    parameters=(
        Parameter(name="layers.0.weight", shape=(100,), dtype="float32"),
        Parameter(name="layers.1.weight", shape=(50,), dtype="float32"),
        Parameter(name="head.weight", shape=(50,), dtype="float32", requires_grad=False),
    ),
    memory=Memory(parameter_bytes=800, gradient_bytes=600, optimizer_state_bytes=1200),
)
"""Units of 400, 200 and (the root) 200 bytes; 600 bytes can be trained; 1,000 bytes of activations make 3,600."""


@pytest.mark.parametrize(
    ("data", "layout", "expected"),
    [
        *((data, Layout(H100), 3600) for data in DATA_STRATEGIES),
        ("ddp", Layout(H100, 4), 3600 + 600),  # buckets as large as the gradients
        ("zero1", Layout(H100, 4), 3600 + 600 - 900),  # a quarter of the optimizer's state
        ("zero2", Layout(H100, 4), 3600 - 900 - 450),  # and of the gradients
        # A quarter of all three, and the three largest units whole: 400 + 200 + 200.
        ("fsdp", Layout(H100, 4), 3600 - 0.75 * (1200 + 600 + 800) + 800),
        # Inside machines of two only, for any number of machines.
        ("hybrid", Layout(H100, 2, 8), 3600 - 0.5 * (1200 + 600 + 800) + 800),
    ],
)
def test_even_division_of_state_by_hand(data: DataStrategy, layout: Layout, expected: float) -> None:
    assert even_bytes(3600, UNITS, layout, Strategy(data=data)) == expected


@given(st.sampled_from(["zero1", "zero2", "fsdp"]), st.integers(2, 64))
def test_more_gpus_never_need_more_memory_each(data: DataStrategy, count: int) -> None:
    few, many = (even_bytes(3600, UNITS, Layout(H100, own), Strategy(data=data)) for own in (count, count + 1))
    assert many <= few


@pytest.mark.parametrize(
    ("gpus", "strategy", "expected"),
    [
        # A quarter of the experts, a third of the parameters, is on each GPU. Two GPUs share it; eight share the
        # others.
        (8, Strategy(data="zero2", expert=4), 800 * (2 / 3 + 1 / 12) + 1800 * (2 / 3 / 8 + 1 / 12 / 2) + 1000),
        # Two stages of a pipeline leave four GPUs to share; all units of a stage are whole.
        (8, Strategy(data="fsdp", pipeline=2), (1200 + 600 + 800) / 2 / 4 + 900 / 2 + 500),
        # Two replicas keep buckets as large as the trained parameters.
        (2, Strategy(), 1200 + 800 + 600 + 1000 + 900),
    ],
)
def test_even_division_with_experts_and_stages(gpus: int, strategy: Strategy, expected: float) -> None:
    experts = Parameter(name="layers.0.experts.weight", shape=(75,), dtype="float32")
    trace = replace(UNITS, parameters=(experts, *UNITS.parameters[:2]))
    assert even_bytes(3600, trace, Layout(H100, gpus), strategy) == pytest.approx(expected)
