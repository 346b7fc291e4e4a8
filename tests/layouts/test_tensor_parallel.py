"""The parts of a block's work that one of several GPUs does, by hand and for any degree."""

from __future__ import annotations

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
from lightning_predict.kernels.operations import OperationShape, batch_shapes, operation_names, operation_spec, problem
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

A100 = gpu("A100-SXM-80GB")
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
SPEAKING = replace(
    TRACE,
    operations=(LOOK_UP, *TRACE.operations[:8], LAST, *TRACE.operations[8:]),
    parameters=(TABLE, *TRACE.parameters),
)
MODEL = split_model(SPEAKING)
QUARTER = ShardSpec(4)


def part(
    name: str, *inputs: TensorInfo, phase: Phase = "forward", module: str | None = "blocks.0", cut: ShardSpec = QUARTER
) -> OperationShape:
    operation = Operation(name=name, phase=phase, inputs=inputs, module=module)
    (whole,) = translate(operation, Flags())
    return part_of(whole, operation, MODEL, MODEL.block(module), cut)


def linear(m: int, n: int, k: int) -> OperationShape:
    return problem("linear", "float32", b=1, m=m, n=n, k=k)


def test_a_linear_layer_is_split_along_the_side_that_is_not_the_stream() -> None:
    assert part("aten::mm", ROWS, matrix(HIDDEN, 3 * HIDDEN)) == linear(TOKENS, 3 * HIDDEN // 4, HIDDEN)
    assert part("aten::mm", matrix(TOKENS, 4096), matrix(4096, HIDDEN)) == linear(TOKENS, HIDDEN, 1024)
    # Where both sides are as wide as the stream, along its outputs.
    assert part("aten::mm", ROWS, matrix(HIDDEN, HIDDEN)) == linear(TOKENS, HIDDEN // 4, HIDDEN)


def test_gradients_of_a_linear_layer() -> None:
    own = {"phase": "backward"}
    wide = 3 * HIDDEN
    # Of its input: (tokens, outputs) x (outputs, inputs). Of its weight: (outputs, tokens) x (tokens, inputs).
    assert part("aten::mm", matrix(TOKENS, wide), matrix(wide, HIDDEN), **own) == linear(TOKENS, HIDDEN, wide // 4)  # type: ignore[arg-type]
    assert part("aten::mm", matrix(wide, 999), matrix(999, HIDDEN), **own) == linear(wide // 4, HIDDEN, 999)  # type: ignore[arg-type]


def test_micro_batches_have_fewer_rows() -> None:
    cut = ShardSpec(micro_batches=4)
    assert part("aten::mm", ROWS, matrix(HIDDEN, 3 * HIDDEN), cut=cut) == linear(TOKENS // 4, 3 * HIDDEN, HIDDEN)
    gradient = part("aten::mm", matrix(3 * HIDDEN, 1000), matrix(1000, HIDDEN), phase="backward", cut=cut)
    assert gradient == linear(3 * HIDDEN, HIDDEN, 250)
    assert part("aten::native_layer_norm", STREAM, cut=cut).dims == (TOKENS / 4, HIDDEN)
    heads = part("aten::scaled_dot_product_attention", HEAD, HEAD, HEAD, cut=cut)
    assert heads == problem("attention", "float32", batch=1, heads=HEADS, seq=256, head_dim=128)
    # A cast of a weight moves as many bytes for any batch.
    weight = matrix(3 * HIDDEN, HIDDEN)
    assert part("aten::_to_copy", weight, cut=cut) == translate(
        Operation(name="aten::_to_copy", phase="forward", inputs=(weight,)), Flags()
    )[0]  # fmt: skip


def test_one_block_that_does_all_rows_does_a_part_of_them() -> None:
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
def test_every_kind_of_work_goes_by_its_share(name: str) -> None:
    kind = operation_spec(name)
    if kind.units == "fabric" or name in ("linear_backward", "bmm_backward"):
        pytest.skip("no call of a recorded step is translated into it")
    # 4,096 rows, samples or bytes; settings as they are where nothing is said, other sizes 64.
    large = {*COUNTED, *MEASURED, "batch"}
    dims = tuple(4096.0 if word in large else _setting(kind.defaults.get(word, 64)) for word in kind.shape)
    whole = OperationShape(name, kind.network_specs[0].dtypes[0] if kind.network_specs else "float32", dims)
    operation = Operation(name="aten::any", phase="forward", inputs=(matrix(4, 64),), outputs=(matrix(4, 64),))
    quarter = part_of(whole, operation, split_model(TRACE, needs_blocks=False), None, ShardSpec(micro_batches=4))

    def work(problem: OperationShape) -> float:
        columns = batch_shapes([problem]).columns
        return float((kind.flops(columns) + kind.reads(columns) + kind.writes(columns))[0])

    # Weights are read whole for any rows, and a kernel's inputs may overlap.
    assert work(quarter) <= 0.55 * work(whole), (whole, quarter)


def test_heads_are_split() -> None:
    own = part("aten::scaled_dot_product_attention", HEAD, HEAD, HEAD)
    assert own == problem("attention", "float32", batch=4, heads=2, seq=256, head_dim=128)
    scores = matrix(32, 256, 256)
    assert part("aten::bmm", scores, matrix(32, 256, 128)) == problem("bmm", "float32", b=8, m=256, n=128, k=256)
    assert part("aten::_softmax", scores) == problem("softmax", "float32", rows=32 * 256 / 4, cols=256)
    assert part("aten::silu", HEAD).dims[0] == HEAD.size_bytes / 4


def test_the_stream_is_whole_and_the_inner_width_is_not() -> None:
    assert part("aten::native_layer_norm", STREAM).dims == (TOKENS, HIDDEN)
    assert part("aten::add", STREAM, STREAM).dims == (TOKENS, HIDDEN)
    inner = matrix(4, 256, 4096)
    assert part("aten::add", inner, inner) == problem("add", "float32", rows=TOKENS / 4, cols=4096)
    # Statistics of the norm, one a token, are whole; a weight that is cast is split though it is as wide as the stream.
    assert part("aten::rsqrt", matrix(4, 256, 1)).dims[0] == TOKENS * 4
    assert part("aten::_to_copy", matrix(3 * HIDDEN, HIDDEN)).dims[0] == 3 * HIDDEN * HIDDEN


def test_scores_as_long_as_the_stream_is_wide_are_split_nevertheless() -> None:
    scores = matrix(4, HEADS, HIDDEN, HIDDEN)
    assert part("aten::_softmax", scores) == problem("softmax", "float32", rows=8 * HIDDEN, cols=HIDDEN)


def test_the_vocabulary_is_split_outside_of_blocks() -> None:
    assert MODEL.vocabulary == VOCABULARY
    assert part("aten::mm", ROWS, matrix(HIDDEN, VOCABULARY), module=None) == linear(TOKENS, VOCABULARY // 4, HIDDEN)
    logits = matrix(TOKENS, VOCABULARY)
    assert part("aten::_log_softmax", logits, module=None).dims == (TOKENS / 4, VOCABULARY)
    assert part("aten::native_layer_norm", STREAM, module="norm").dims == (TOKENS, HIDDEN)
    # Every GPU looks up all tokens, among its own rows.
    assert part(LOOK_UP.name, *LOOK_UP.inputs, module="tokens").dims == (TOKENS, HIDDEN)


def test_messages_of_a_split_vocabulary() -> None:
    stream = TOKENS * HIDDEN * 4
    # The looked-up rows; the input of the output layer, and three numbers a token of the loss.
    assert vocabulary_messages(SPEAKING, MODEL) == ([stream], [stream, 3 * TOKENS * 4])
    assert vocabulary_messages(TRACE, split_model(TRACE)) == ([], [])


def test_a_degree_that_does_not_divide_the_heads_is_refused() -> None:
    with pytest.raises(
        InvalidArgumentError,
        match=r"tensor=3 does not divide the 8 heads of the block 'blocks.0'; choose one of 1, 2, 4, 8",
    ):
        MODEL.check(3)
    (grouped,) = (replace(block, kv_heads=2) for block in MODEL.blocks[:1])
    with pytest.raises(
        InvalidArgumentError,
        match=r"tensor=4 does not divide the 8 heads with 2 of keys and values.*choose one of 1, 2\.",
    ):
        replace(MODEL, blocks=(grouped,)).check(4)
    MODEL.check(8)


def test_thirty_two_heads_over_three_gpus() -> None:
    block = replace(MODEL.blocks[0], heads=32, kv_heads=32)
    with pytest.raises(InvalidArgumentError, match=r"tensor=3 does not divide the 32 heads.*1, 2, 4, 8, 16, 32"):
        replace(MODEL, blocks=(block,)).check(3)


def cut(degree: int, micro_batches: int = 1, updated: float = 1.0) -> list[float]:
    timed = timed_as(TRACE, SECONDS)
    found = WorkSharder(TRACE, timed, split_model(TRACE), ShapeTimer([A100], MODELS)).shard(
        ShardSpec(degree, micro_batches, updated)
    )
    low_by_middle = found.interval.low / found.seconds
    np.testing.assert_allclose(low_by_middle, timed.interval.low / timed.seconds)
    seconds: list[float] = found.seconds[0].tolist()
    return seconds


def test_seconds_go_by_the_share_of_the_work() -> None:
    # Norms stay; products and attention are halved. The update is of half the parameters.
    block, backward = [0.1, 0.5, 0.5, 0.5], [1.0, 0.5, 0.5, 0.2]
    assert cut(2, updated=0.5) == pytest.approx([*block * 2, *backward * 2, 0.25], rel=1e-6)
    # A quarter of the rows: everything but the update.
    quarters = [seconds / 4 for seconds in SECONDS[:-1]] + [0.5]
    found = cut(1, micro_batches=4)
    norms = (
        0,
        4,
    )  # of the forward pass: fewer rows fill fewer multiprocessors, so that a quarter takes longer than that
    for index, (seconds, quarter) in enumerate(zip(found, quarters, strict=True)):
        if index in norms:
            assert quarter <= seconds <= 4 * quarter
        else:
            assert seconds == pytest.approx(quarter, rel=1e-6)


def test_one_gpu_does_exactly_what_was_timed() -> None:
    assert cut(1) == SECONDS


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(["T4", "A100-SXM-80GB", "H100-SXM-80GB"]),
    st.integers(1, 512),
    st.sampled_from([16, 64, 128]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_more_gpus_never_raise_the_work_of_one(
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
    found = [
        WorkSharder(trace, timed, split_model(trace), ShapeTimer([target], models))
        .shard(ShardSpec(degree, parts))
        .seconds[0]
        for degree in (1, 2, 3, 4, 6, 12)
    ]
    assert (found[0] <= 1).all()
    for fewer, more in pairwise(found):
        assert (more <= fewer).all()


def test_a_tensor_is_cast_to_float8_once_for_all_products_of_it() -> None:
    # Four products: three of one input, as of queries, keys and values, and one back. Without compute, casts are left.
    hopper = gpu("H100-SXM-80GB")
    head = replace(HEAD, dtype="bfloat16")

    def seconds(inputs: tuple[int | None, ...], cast: float = 1.0, scales: Float8 = "tensorwise") -> float:
        products = [
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
        trace = Trace(operations=(*products, attention), device="cuda", recorder="kineto")
        clock = ShapeTimer([hopper], None)
        whole = clock.shape_seconds([translate(operation, trace.flags) for operation in trace.operations])[0]
        cutter = WorkSharder(trace, timed_as(trace, whole.tolist()), split_model(trace), clock)
        return float(cutter.shard(ShardSpec(fp8=scales, cast=cast)).seconds.sum())

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


def test_gradients_of_micro_batches_are_added_up() -> None:
    # A sum as large as the weight is read; in a wider dtype, the written bytes grow by the difference.
    gpus = [gpu("A100-SXM-80GB")]
    cutter = WorkSharder(TRACE, timed_as(TRACE, SECONDS), MODEL, ShapeTimer(gpus, MODELS))

    def seconds(**options: Any) -> float:
        return float(cutter.shard(ShardSpec(micro_batches=4, **options)).seconds.sum())

    assert seconds(added=0.75) - seconds() == pytest.approx(2 * (seconds(added=0.75) - seconds(added=0.375)), rel=0.02)
    wide, narrow = seconds(added=0.75, sum_bytes=8), seconds(added=0.75, sum_bytes=4)
    assert narrow == seconds(added=0.75)
    assert wide - seconds() == pytest.approx(3 * (narrow - seconds()), rel=0.02)  # 8 read and 4 more written for 4 read


def test_experts_that_are_dealt_out_take_the_tokens_of_all_groups() -> None:
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
    assert forward == problem("bmm", "float32", b=2, m=4 * rows, n=inner // 2, k=HIDDEN)
    gradient = of_experts("backward", matrix(experts, HIDDEN, rows), results, result=matrix(experts, HIDDEN, inner))
    assert gradient == problem("bmm", "float32", b=2, m=HIDDEN, n=inner // 2, k=4 * rows)
