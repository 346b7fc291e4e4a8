"""The parts of a block's work that one of several GPUs does, by hand and for any degree."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import (
    NetworkSpec,
    OperationShape,
    batch_shapes,
    operation_names,
    operation_shape,
    operation_spec,
)
from lightning_predict.kernels.roofline import limited_transfer
from lightning_predict.kernels.translation import translate
from lightning_predict.layouts.strategy import Float8
from lightning_predict.layouts.tensor_parallel import (
    COUNTED,
    MEASURED,
    ROWWISE_TIME,
    ShapeTimer,
    ShardSpec,
    WorkSharder,
    part_of,
    scaled,
    split_model,
    vocabulary_messages,
)
from lightning_predict.record.trace import Flags, Operation, Parameter, Phase, TensorInfo, Trace
from tests.layouts.example_blocks import (
    A100,
    HEAD,
    HEADS,
    HIDDEN,
    MODELS,
    ROWS,
    STREAM,
    TOKENS,
    matrix,
    timed_as,
    trace_of,
)

VOCABULARY = 50_000
TRACE, SECONDS = trace_of(2)
TABLE = Parameter(name="tokens.weight", shape=(VOCABULARY, HIDDEN), dtype="float32")
LOOK_UP = Operation(
    name="aten::embedding",
    phase="forward",
    inputs=(matrix(VOCABULARY, HIDDEN), TensorInfo((4, 256), "int64")),
    module="tokens",
)
LAST = Operation(name="aten::mm", phase="forward", inputs=(ROWS, matrix(HIDDEN, VOCABULARY)))
LANGUAGE_MODEL = replace(
    TRACE,
    operations=(LOOK_UP, *TRACE.operations[:8], LAST, *TRACE.operations[8:]),
    parameters=(TABLE, *TRACE.parameters),
)
MODEL = split_model(LANGUAGE_MODEL)
QUARTER, MICRO_BATCHES = ShardSpec(4), ShardSpec(micro_batches=4)


def part(
    name: str, *inputs: TensorInfo, phase: Phase = "forward", module: str | None = "blocks.0", spec: ShardSpec = QUARTER
) -> OperationShape:
    operation = Operation(name=name, phase=phase, inputs=inputs, module=module)
    (whole,) = translate(operation, Flags())
    return part_of(whole, operation, MODEL, MODEL.block(module), spec)


def linear(m: int, n: int, k: int) -> OperationShape:
    return operation_shape("linear", "float32", b=1, m=m, n=n, k=k)


WIDE = 3 * HIDDEN


@pytest.mark.parametrize(
    ("left", "right", "phase", "spec", "expected"),
    [
        # Along the side that is not the stream; if both sides are as wide as the stream, along the outputs.
        (ROWS, matrix(HIDDEN, WIDE), "forward", QUARTER, linear(TOKENS, WIDE // 4, HIDDEN)),
        (matrix(TOKENS, 4096), matrix(4096, HIDDEN), "forward", QUARTER, linear(TOKENS, HIDDEN, 1024)),
        (ROWS, matrix(HIDDEN, HIDDEN), "forward", QUARTER, linear(TOKENS, HIDDEN // 4, HIDDEN)),
        # Gradients of the input: (tokens, outputs) x (outputs, inputs); of the weight: (outputs, tokens) x (tokens,
        # inputs).
        (matrix(TOKENS, WIDE), matrix(WIDE, HIDDEN), "backward", QUARTER, linear(TOKENS, HIDDEN, WIDE // 4)),
        (matrix(WIDE, 999), matrix(999, HIDDEN), "backward", QUARTER, linear(WIDE // 4, HIDDEN, 999)),
        # Micro-batches divide the tokens.
        (ROWS, matrix(HIDDEN, WIDE), "forward", MICRO_BATCHES, linear(TOKENS // 4, WIDE, HIDDEN)),
        (matrix(WIDE, 1000), matrix(1000, HIDDEN), "backward", MICRO_BATCHES, linear(WIDE, HIDDEN, 250)),
    ],
)
def test_part_of_a_linear_layer(
    left: TensorInfo, right: TensorInfo, phase: Phase, spec: ShardSpec, expected: OperationShape
) -> None:
    assert part("aten::mm", left, right, phase=phase, spec=spec) == expected


SCORES, INNER = matrix(32, 256, 256), matrix(4, 256, 4096)


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        # Heads are divided.
        (
            "aten::scaled_dot_product_attention",
            (HEAD,) * 3,
            operation_shape("attention", "float32", batch=4, heads=2, seq=256, head_dim=128),
        ),
        ("aten::bmm", (SCORES, matrix(32, 256, 128)), operation_shape("bmm", "float32", b=8, m=256, n=128, k=256)),
        ("aten::_softmax", (SCORES,), operation_shape("softmax", "float32", rows=32 * 256 / 4, cols=256)),
        # Scores that are as long as the stream is wide are divided, too.
        (
            "aten::_softmax",
            (matrix(4, HEADS, HIDDEN, HIDDEN),),
            operation_shape("softmax", "float32", rows=8 * HIDDEN, cols=HIDDEN),
        ),
        ("aten::add", (INNER, INNER), operation_shape("add", "float32", rows=TOKENS / 4, cols=4096)),
    ],
)
def test_heads_and_inner_width_are_divided(name: str, inputs: tuple[TensorInfo, ...], expected: OperationShape) -> None:
    assert part(name, *inputs) == expected


@pytest.mark.parametrize(
    ("name", "inputs", "module", "dims"),
    [
        ("aten::silu", (HEAD,), "blocks.0", (HEAD.size_bytes / 4,)),
        # The stream is whole, and so are statistics of a norm, one a token.
        ("aten::native_layer_norm", (STREAM,), "blocks.0", (TOKENS, HIDDEN)),
        ("aten::add", (STREAM, STREAM), "blocks.0", (TOKENS, HIDDEN)),
        ("aten::rsqrt", (matrix(4, 256, 1),), "blocks.0", (TOKENS * 4,)),
        # A cast of a weight is divided, although the weight is as wide as the stream.
        ("aten::_to_copy", (matrix(WIDE, HIDDEN),), "blocks.0", (WIDE * HIDDEN,)),
        # Outside blocks, the vocabulary is divided. Every GPU looks up all tokens, among its own rows.
        ("aten::mm", (ROWS, matrix(HIDDEN, VOCABULARY)), None, (1, TOKENS, VOCABULARY // 4, HIDDEN)),
        ("aten::_log_softmax", (matrix(TOKENS, VOCABULARY),), None, (TOKENS / 4, VOCABULARY)),
        ("aten::native_layer_norm", (STREAM,), "norm", (TOKENS, HIDDEN)),
        (LOOK_UP.name, LOOK_UP.inputs, "tokens", (TOKENS, HIDDEN)),
    ],
)
def test_first_dimensions_of_a_part(
    name: str, inputs: tuple[TensorInfo, ...], module: str | None, dims: tuple[float, ...]
) -> None:
    assert part(name, *inputs, module=module).dims[: len(dims)] == dims


def test_micro_batches_divide_rows_and_blocks_but_not_weights() -> None:
    assert part("aten::native_layer_norm", STREAM, spec=MICRO_BATCHES).dims == (TOKENS / 4, HIDDEN)
    heads = part("aten::scaled_dot_product_attention", HEAD, HEAD, HEAD, spec=MICRO_BATCHES)
    assert heads == operation_shape("attention", "float32", batch=1, heads=HEADS, seq=256, head_dim=128)
    weight = Operation(name="aten::_to_copy", phase="forward", inputs=(matrix(WIDE, HIDDEN),))
    assert part("aten::_to_copy", *weight.inputs, spec=MICRO_BATCHES) == translate(weight, Flags())[0]
    # A loss over 1,024 rows is summed up by one block; a quarter of the rows takes it a quarter of the cycles.
    alone = limited_transfer(4096.0, 4.0, 1024.0, blocks=1.0, block_cycles=1e6)
    assert scaled(alone, 0.25).dims == (1024.0, 1.0, 256.0, 0.0, 1.0, 250_000.0)
    # Of eight blocks two are left, as long as before; of two, one half of one.
    many = limited_transfer(4096.0, 4.0, 1024.0, blocks=8.0, block_cycles=1e6)
    assert scaled(many, 0.25).dims[-2:] == (2.0, 1e6)
    assert scaled(scaled(many, 0.25), 0.25).dims[-2:] == (1.0, 0.5e6)


def _setting(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 64.0


@pytest.mark.parametrize("name", operation_names())
def test_work_of_each_operation_follows_its_share(name: str) -> None:
    spec = operation_spec(name)
    if spec.units == "fabric" or name in ("linear_backward", "bmm_backward"):
        pytest.skip("no call of a recorded step is translated into it")
    # 4,096 rows, samples or bytes; settings as they are where nothing is said, other sizes 64.
    large = {*COUNTED, *MEASURED, "batch"}
    dims = tuple(4096.0 if word in large else _setting(spec.defaults.get(word, 64)) for word in spec.shape)
    dtype = next((network.dtypes[0] for network in spec.of(NetworkSpec)), "float32")
    whole = OperationShape(name, dtype, dims)
    operation = Operation(name="aten::any", phase="forward", inputs=(matrix(4, 64),), outputs=(matrix(4, 64),))
    quarter = part_of(whole, operation, split_model(TRACE, needs_blocks=False), None, ShardSpec(micro_batches=4))

    def work(shape: OperationShape) -> float:
        columns = batch_shapes([shape]).columns
        return float((spec.flops(columns) + spec.reads(columns) + spec.writes(columns))[0])

    # Weights are read whole for any rows, and a kernel's inputs may overlap.
    assert work(quarter) <= 0.55 * work(whole), (whole, quarter)


def test_vocabulary_messages_and_seconds_of_one_gpu_are_whole() -> None:
    stream = TOKENS * HIDDEN * 4
    # The looked-up rows; the input of the output layer, and three numbers a token of the loss.
    assert vocabulary_messages(LANGUAGE_MODEL, MODEL) == ([stream], [stream, 3 * TOKENS * 4])
    assert vocabulary_messages(TRACE, split_model(TRACE)) == ([], [])
    assert sharded_seconds(1) == SECONDS


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor", "message"),
    [
        (8, 8, 3, r"tensor=3 does not divide the 8 heads of the block 'blocks.0'; choose one of 1, 2, 4, 8"),
        (8, 2, 4, r"tensor=4 does not divide the 8 heads with 2 of keys and values.*choose one of 1, 2\."),
        (32, 32, 3, r"tensor=3 does not divide the 32 heads.*1, 2, 4, 8, 16, 32"),
    ],
)
def test_tensor_degree_must_divide_heads(heads: int, kv_heads: int, tensor: int, message: str) -> None:
    model = replace(MODEL, blocks=(replace(MODEL.blocks[0], heads=heads, kv_heads=kv_heads),))
    model.check(2)
    with pytest.raises(InvalidArgumentError, match=message):
        model.check(tensor)


def sharded_seconds(degree: int, micro_batches: int = 1, updated: float = 1.0) -> list[float]:
    timed = timed_as(TRACE, SECONDS)
    sharded = WorkSharder(TRACE, timed, split_model(TRACE), ShapeTimer([A100], MODELS)).shard(
        ShardSpec(degree, micro_batches, updated)
    )
    low_by_middle = sharded.interval.low / sharded.seconds
    np.testing.assert_allclose(low_by_middle, timed.interval.low / timed.seconds)
    seconds: list[float] = sharded.seconds[0].tolist()
    return seconds


def test_seconds_follow_share_of_work() -> None:
    # Norms stay; products and attention are halved. The update is of half the parameters.
    block, backward = [0.1, 0.5, 0.5, 0.5], [1.0, 0.5, 0.5, 0.2]
    assert sharded_seconds(2, updated=0.5) == pytest.approx([*block * 2, *backward * 2, 0.25], rel=1e-6)
    # A quarter of the rows: everything but the update.
    quarters = [seconds / 4 for seconds in SECONDS[:-1]] + [0.5]
    times = sharded_seconds(1, micro_batches=4)
    norms = (
        0,
        4,
    )  # of the forward pass: fewer rows fill fewer multiprocessors, so that a quarter takes longer than that
    for index, (seconds, quarter) in enumerate(zip(times, quarters, strict=True)):
        if index in norms:
            assert quarter <= seconds <= 4 * quarter
        else:
            assert seconds == pytest.approx(quarter, rel=1e-6)


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(["T4", "A100-SXM-80GB", "H100-SXM-80GB"]),
    st.integers(1, 512),
    st.sampled_from([16, 64, 128]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_more_gpus_never_increase_work_of_each(
    card: str, tokens: int, width: int, parts: int, with_models: bool
) -> None:

    hidden, inner = 12 * width, 48 * width
    rows, head = matrix(tokens, hidden), matrix(1, 12, tokens, width)
    inputs = {
        "aten::native_layer_norm": (rows,),
        "aten::scaled_dot_product_attention": (head, head, head),
        "aten::gelu": (matrix(tokens, inner),),
    }
    operations = [Operation(name=name, phase="forward", inputs=own, module="layers.0") for name, own in inputs.items()]
    operations += [
        Operation(name="aten::mm", phase="forward", inputs=(matrix(tokens, k), matrix(k, n)), module="layers.0")
        for n, k in [(hidden, hidden), (inner, hidden), (hidden, inner)]
    ]
    trace = Trace(operations=tuple(operations), device="cuda", recorder="kineto")
    target = gpu(card)
    models = kernel_models((target.name,)) if with_models else None
    timed = timed_as(trace, [1.0] * len(operations))
    ratios = [
        WorkSharder(trace, timed, split_model(trace), ShapeTimer([target], models))
        .shard(ShardSpec(degree, parts))
        .seconds[0]
        for degree in (1, 2, 3, 4, 6, 12)
    ]
    assert (ratios[0] <= 1).all()
    for fewer, more in pairwise(ratios):
        assert (more <= fewer).all()


def test_tensor_is_cast_to_float8_once_for_all_its_matmuls() -> None:
    # Four products: three of one input, as of queries, keys and values, and one back. Without compute, casts are left.
    hopper = gpu("H100-SXM-80GB")
    head = replace(HEAD, dtype="bfloat16")

    def seconds(inputs: tuple[int | None, ...], cast: float = 1.0, scales: Float8 = "tensorwise") -> float:
        matmuls = [
            Operation(
                name="aten::mm",
                phase="forward",
                inputs=(
                    TensorInfo((TOKENS, HIDDEN), "bfloat16", id=own),
                    TensorInfo((HIDDEN, HIDDEN), "bfloat16", id=100 + position),
                ),
                module="blocks.0.attention",
            )
            for position, own in enumerate(inputs)
        ]
        attention = Operation(
            name="aten::scaled_dot_product_attention", phase="forward", inputs=(head,) * 3, module="blocks.0.attention"
        )
        trace = Trace(operations=(*matmuls, attention), device="cuda", recorder="kineto")
        timer = ShapeTimer([hopper], None)
        whole = timer.shape_seconds([translate(operation, trace.flags) for operation in trace.operations])[0]
        sharder = WorkSharder(trace, timed_as(trace, whole.tolist()), split_model(trace), timer)
        return float(sharder.shard(ShardSpec(fp8=scales, cast=cast)).seconds.sum())

    shared, apart = seconds((1, 1, 1, 2)), seconds((1, 3, 4, 2))
    assert shared < apart
    # Two inputs' casts less of eight tensors'; of the weights' four, all are gone with an update of many batches.
    many, half = seconds((1, 3, 4, 2), cast=0.0), seconds((1, 3, 4, 2), cast=0.5)
    assert apart - shared == pytest.approx((apart - many) / 2, rel=0.05)
    assert apart - half == pytest.approx((apart - many) / 2, rel=0.05)
    # A cast reads 2 x 2 bytes and writes 2 x 1; with scales of rows it reads 4 x 2: 10 bytes for 6, and slower kernels.
    # Products and attention, which are as many in both, are the remainder without casts.
    rest = seconds((1, 3, 4, 2), cast=0.0) - (apart - many)
    by_rows = seconds((1, 3, 4, 2), scales="rowwise")
    assert by_rows < ROWWISE_TIME * (rest + 10 / 6 * (apart - rest))
    assert by_rows > rest + 10 / 6 * (apart - rest)


def test_gradients_of_micro_batches_are_accumulated() -> None:
    # A sum as large as the weight is read; in a wider dtype, the written bytes grow by the difference.
    gpus = [gpu("A100-SXM-80GB")]
    sharder = WorkSharder(TRACE, timed_as(TRACE, SECONDS), MODEL, ShapeTimer(gpus, MODELS))

    def seconds(**options: Any) -> float:
        return float(sharder.shard(ShardSpec(micro_batches=4, **options)).seconds.sum())

    assert seconds(added=0.75) - seconds() == pytest.approx(2 * (seconds(added=0.75) - seconds(added=0.375)), rel=0.02)
    wide, narrow = seconds(added=0.75, sum_bytes=8), seconds(added=0.75, sum_bytes=4)
    assert narrow == seconds(added=0.75)
    assert wide - seconds() == pytest.approx(3 * (narrow - seconds()), rel=0.02)  # 8 read and 4 more written for 4 read


def test_distributed_experts_process_tokens_of_all_groups() -> None:
    inner, experts, rows = 4 * HIDDEN, 8, 64
    weight = Parameter(name="blocks.0.experts.up", shape=(experts, HIDDEN, inner), dtype="float32")
    model = split_model(replace(TRACE, parameters=(*TRACE.parameters, weight)))

    def of_experts(phase: Phase, *inputs: TensorInfo, result: TensorInfo) -> OperationShape:
        operation = Operation(
            name="aten::bmm", phase=phase, inputs=inputs, outputs=(result,), module="blocks.0.experts"
        )
        (whole,) = translate(operation, Flags())
        return part_of(whole, operation, model, model.block(operation.module), ShardSpec(2, expert=4))

    tokens, results = matrix(experts, rows, HIDDEN), matrix(experts, rows, inner)
    forward = of_experts("forward", tokens, matrix(experts, HIDDEN, inner), result=results)
    assert forward == operation_shape("bmm", "float32", b=2, m=4 * rows, n=inner // 2, k=HIDDEN)
    gradient = of_experts("backward", matrix(experts, HIDDEN, rows), results, result=matrix(experts, HIDDEN, inner))
    assert gradient == operation_shape("bmm", "float32", b=2, m=HIDDEN, n=inner // 2, k=4 * rows)
