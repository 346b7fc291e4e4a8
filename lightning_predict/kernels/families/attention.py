"""Scaled-dot-product attention, fused and eager, forward and backward.

The forward pass has two matmuls of (seq x head_dim) and (kv_seq x head_dim) per head, 4·B·H·S·T·D FLOPs. A causal mask
over a square reduces the FLOPs to the share (S + 1) / 2S. The backward pass has five such matmuls (it recomputes the
scores), 2.5 times the forward FLOPs. In memory, q and the output have `heads` heads; k and v have `kv_heads` heads. The
backward pass also reads the output's gradient and writes three gradients.

In 16 bits, a formula predicts the time from the work of the kernel. A block handles 128 queries of a head and loops
over the keys that they read, 128 at a time: two products, and one exponential for each score between them. It begins by
loading the queries and ends by writing the output. The multiprocessors run the blocks in rounds.

Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> batch = shape_batch("attention", "bfloat16", batch=1, heads=2, seq=8, head_dim=4)
    >>> float(batch.flops[0])  # 4 x 2 x 8 x 8 x 4
    2048.0
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.norm import SOFTMAX_BACKWARD
from lightning_predict.kernels.operations import (
    BACKWARD_MATMULS,
    Array,
    Columns,
    CountedShape,
    Formula,
    OperationShape,
    OperationSpec,
    ShapeBatch,
    Surrogate,
    register,
    translates,
)
from lightning_predict.kernels.roofline import (
    OLDER_RATE,
    SHORTEST_KERNEL_SECONDS,
    SINGLE_LOAD_CYCLES,
    TYPICAL_UTILISATION,
    WIDEST_FLOPS_PER_CLOCK,
    issue_rate,
    limited_transfer,
    per_gpu,
    roofline_seconds,
    sustained_flops,
)
from lightning_predict.kernels.translation import whole_compute_dtype
from lightning_predict.record.signatures import ATTENTION_KERNEL, WRITTEN_OUT, is_taken_apart
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from lightning_predict.uncertainty import FORMULA_SPREAD

_SHAPE = ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim", "causal")
_DEFAULTS: dict[str, float | str] = {"kv_heads": "heads", "kv_seq": "seq", "causal": 0}
FUSED_ATTENTION: Final = ("attention", "attention_backward")  # Names of attention in one kernel, forward and backward
ATTENTION_DROPOUT: Final = "attention_dropout"  # Work of a fused kernel to draw and apply the mask of dropout
FUSED_BACKWARD_MATMULS: Final = BACKWARD_MATMULS + 1 / 2  # The same of fused attention, which computes the scores again

BACKWARD_RATE: Final = 0.85
"""FLOPs per second of the backward pass relative to the forward pass. It also reads the gradient's product with the
output and converts the gradient of the queries, which the forward pass does not have."""

WIDE_BACKWARD_TIME: Final = 1.33
"""Time of the backward pass of heads above 128, over that of smaller heads at the same rate: gradients of so many keys
and values fit in the registers of a multiprocessor only for smaller blocks."""


def _visible_share(c: Columns) -> Array:
    """Return the share of scores that a causal mask keeps, aligned at the top left."""
    seq, kv_seq = c["seq"], c["kv_seq"]
    return np.where(c["causal"] > 0, _visible(seq, kv_seq) / (seq * kv_seq), 1.0)


def _visible(rows: Array, columns: Array) -> Array:
    """Return the entries that a causal mask keeps: row i has min(i + 1, columns), a triangle above full rows."""
    shorter = np.minimum(rows, columns)
    kept: Array = shorter * (shorter + 1) / 2 + np.maximum(rows - columns, 0) * columns
    return kept


def _scores(c: Columns) -> Array:
    return c["batch"] * c["heads"] * c["seq"] * c["kv_seq"]


def _all_flops(c: Columns) -> Array:
    return 4 * _scores(c) * c["head_dim"]


def _flops(c: Columns) -> Array:
    return _all_flops(c) * _visible_share(c)


def _queries(c: Columns) -> Array:
    return c["batch"] * c["heads"] * c["seq"] * c["head_dim"]


def _keys(c: Columns) -> Array:
    return c["batch"] * c["kv_heads"] * c["kv_seq"] * c["head_dim"]


def _read_forward(c: Columns) -> Array:
    return _queries(c) + 2 * _keys(c)


def _read_backward(c: Columns) -> Array:
    return 3 * _queries(c) + 2 * _keys(c)


def _gradients(c: Columns) -> Array:
    return _queries(c) + 2 * _keys(c)


BLOCK: Final = 128.0  # Queries, and keys, that a kernel handles together. Blocks on a mask's diagonal are whole.
HEAD_STEP: Final = 32.0  # Step of kernels' head sizes (FlashAttention's `HEADDIM_SWITCH`); zeros pad other heads

BEGIN_AND_END_CYCLES: Final = 5000.0
"""Clock cycles in which a block loads its queries and writes its output. Half a pair of blocks is added if
a multiprocessor has room for one block only, because nothing overlaps its first scores and last values."""

SOFTMAX_INSTRUCTIONS: Final = 4.0  # Instructions for a score beside its exponential: scale, maximum, sum, conversion

WAITED_SHARE: Final = 0.4
"""Share of the shorter of products and softmax that the longer does not hide: each block of keys has one after the
other, and two groups of warps take turns."""

WAITED_SHARE_OF_BLACKWELL: Final = 0.1
"""The same if other warps compute the softmax than those that multiply, as on data-centre Blackwell."""

SINGLE_RATE: Final = 0.1  # Share of the TF32 rate that PyTorch's memory-efficient attention reaches in float32


def attention_seconds(batch: ShapeBatch, gpus: Sequence[Gpu], *, newest: bool = True) -> Array:
    """Return the time of fused attention, forward or backward, shape (gpus, shapes).

    Args:
        batch: Shapes of one operation of `FUSED_ATTENTION`.
        gpus: GPUs whose tensor cores multiply the dtype; in float32, any.
        newest: Whether kernels use the instructions for groups of warps on GPUs that have them, as FlashAttention 3 and
            cuDNN do; FlashAttention 2 does not.
    """
    if batch.dtype == "float32":  # by the FLOPs, because the scores are never in memory
        compute = batch.flops[None, :] / per_gpu(gpus, _single_rate)
    else:
        compute = _forward_seconds(batch, gpus, newest=newest)
    if batch.dtype != "float32" and batch.operation.endswith("_backward"):
        is_wide = batch.columns["head_dim"] > BLOCK
        compute *= FUSED_BACKWARD_MATMULS / BACKWARD_RATE * np.where(is_wide, WIDE_BACKWARD_TIME, 1.0)
    return np.maximum(compute, roofline_seconds(batch, gpus)) + SHORTEST_KERNEL_SECONDS


def _forward_seconds(batch: ShapeBatch, gpus: Sequence[Gpu], *, newest: bool) -> Array:
    """Return the time of a forward pass in 16 bits without its memory accesses; (gpus, shapes)."""
    c = batch.columns
    is_causal = c["causal"] > 0
    strips, keys = np.ceil(c["seq"] / BLOCK), np.ceil(c["kv_seq"] / BLOCK)
    pairs = np.where(is_causal, _visible(strips, keys) / strips, keys)
    longest = np.where(is_causal, np.minimum(strips, keys), keys)
    width = np.ceil(c["head_dim"] / HEAD_STEP) * HEAD_STEP
    pair = np.stack([_pair_cycles(gpu, batch.dtype, width, newest=newest) for gpu in gpus])
    is_alone = per_gpu(gpus, lambda gpu: newest and gpu.generation.has_warp_group_matmul)
    around = BEGIN_AND_END_CYCLES + is_alone * pair / 2
    # Rounds are neither all whole, as those of equal blocks that start together, nor is the work spread evenly.
    even = c["batch"] * c["heads"] * strips / per_gpu(gpus, lambda gpu: gpu.streaming_multiprocessors)
    rounds = (np.ceil(even) + np.maximum(even, 1.0)) / 2
    cycles = np.maximum(rounds * (pairs * pair + around), longest * pair + around)
    return cycles / per_gpu(gpus, lambda gpu: gpu.boost_clock_hz)


def _pair_cycles(gpu: Gpu, dtype: str, width: Array, *, newest: bool) -> Array:
    """Return the cycles of a multiprocessor for one block of queries and one of keys, by the size of the head."""
    flops, scores, clock = 4 * BLOCK**2 * width, BLOCK**2, issue_rate(gpu)
    has_groups = newest and gpu.generation.has_warp_group_matmul
    most = math.inf if has_groups else OLDER_RATE * 2 * WIDEST_FLOPS_PER_CLOCK * clock
    products = flops * clock / min(sustained_flops(gpu, dtype), most)
    exponentials = scores / gpu.generation.exponentials_per_clock
    softmax = exponentials + SOFTMAX_INSTRUCTIONS * scores / gpu.cores_per_multiprocessor
    is_apart = has_groups and gpu.generation.chip == "blackwell"
    waited = (WAITED_SHARE_OF_BLACKWELL if is_apart else WAITED_SHARE) * np.minimum(products, softmax)
    return np.maximum(products, softmax) + waited


def _single_rate(gpu: Gpu) -> float:
    tf32 = gpu.peak("tf32")
    if tf32 is None:
        return TYPICAL_UTILISATION["tensor"] * gpu.peak_flops_per_second["float32"]
    return SINGLE_RATE * min(tf32, WIDEST_FLOPS_PER_CLOCK * issue_rate(gpu))


FUSED: Final = Formula(
    seconds=lambda batch, gpus: Interval.from_factor(attention_seconds(batch, gpus), FORMULA_SPREAD),
    supports=lambda shape: shape.dtype != "float64",
)


MASK_INSTRUCTIONS: Final = 6.5  # Integer instructions to draw and apply one element of a dropout mask, in either pass
INTEGERS_PER_CLOCK: Final = 64.0  # Instructions for integers that a multiprocessor starts in a clock cycle, since Volta


def _mask_seconds(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Interval[Array]:
    """Predict the time of dropout masks, which tensor cores do not hide; (gpus, shapes)."""
    rates = per_gpu(gpus, lambda gpu: INTEGERS_PER_CLOCK * issue_rate(gpu))
    return Interval.from_factor(batch.flops[None, :] / rates, FORMULA_SPREAD)


def _eager_attention(shape: OperationShape) -> tuple[CountedShape, ...]:
    """Return the parts: scores, scaling, mask (if causal), softmax, matmul with the values.

    The backward pass has two matmuls per forward matmul, the gradient of the softmax in two kernels, and the scaling.
    """
    w = shape.parameters
    b, dtype = w["batch"] * w["heads"], shape.dtype
    scores = OperationShape("bmm", dtype, (b, w["seq"], w["kv_seq"], w["head_dim"]))
    values = OperationShape("bmm", dtype, (b, w["seq"], w["head_dim"], w["kv_seq"]))
    matrix = (b * w["seq"], w["kv_seq"])
    scaling = CountedShape(1.0, OperationShape("mul_scalar", dtype, matrix))
    if shape.operation.endswith("_backward"):
        softmax = (CountedShape(1.0, OperationShape(name, dtype, matrix)) for name in SOFTMAX_BACKWARD)
        transposed = OperationShape("bmm", dtype, (b, w["kv_seq"], w["head_dim"], w["seq"]))
        return (CountedShape(1.0, scores), CountedShape(1.0, values), CountedShape(2.0, transposed), *softmax, scaling)
    mask = (CountedShape(1.0, OperationShape("add_scalar", dtype, matrix)),) if w["causal"] else ()
    return (
        CountedShape(1.0, scores),
        scaling,
        *mask,
        CountedShape(1.0, OperationShape("softmax", dtype, matrix)),
        CountedShape(1.0, values),
    )


register(
    OperationSpec(
        name="attention",
        shape=_SHAPE,
        defaults=_DEFAULTS,
        units="tensor",
        flops=_flops,
        reads=_read_forward,
        writes=_queries,
        estimators=(FUSED,),
    ),
    OperationSpec(
        name="attention_backward",
        shape=_SHAPE,
        defaults=_DEFAULTS,
        units="tensor",
        flops=lambda c: FUSED_BACKWARD_MATMULS * _flops(c),
        reads=_read_backward,
        writes=_gradients,
        estimators=(FUSED,),
    ),
    OperationSpec(
        name=ATTENTION_DROPOUT,
        shape=_SHAPE,
        defaults=_DEFAULTS,
        units="vector",
        flops=lambda c: MASK_INSTRUCTIONS * _scores(c) * _visible_share(c),
        reads=lambda c: np.zeros_like(c["seq"]),
        estimators=(Formula(seconds=_mask_seconds),),
    ),
    # Eager: all scores are computed and written to memory, masked or not, and kept for the backward pass.
    OperationSpec(
        name="eager_attention",
        shape=_SHAPE,
        defaults=_DEFAULTS,
        units="tensor",
        flops=_all_flops,
        reads=_read_forward,
        writes=lambda c: _queries(c) + _scores(c),
        estimators=(Surrogate(_eager_attention),),
    ),
    OperationSpec(
        name="eager_attention_backward",
        shape=_SHAPE,
        defaults=_DEFAULTS,
        units="tensor",
        flops=lambda c: 2 * _all_flops(c),
        reads=lambda c: _read_backward(c) + _scores(c),
        writes=_gradients,
        estimators=(Surrogate(_eager_attention),),
    ),
)


def _attention(
    operation: Operation, tensors: Sequence[TensorInfo], *, backward: bool, eager_dtype: str | None = None
) -> tuple[OperationShape, ...] | None:
    """Translate a call with queries (..., heads, seq, head_dim), keys and values (..., kv_heads, kv_seq, head_dim).

    `eager_dtype` is None if a fused kernel takes the call.
    """
    if len(tensors) < 2 or min(len(tensor.shape) for tensor in tensors) < 2:
        return None
    query, key = tensors[:2]
    *outer, heads, seq, head_dim = query.shape if len(query.shape) > 3 else (1, *query.shape)[-4:]
    if len(query.shape) == 2:
        outer, heads = [1], 1
    kv_heads, kv_seq = (key.shape[-3] if len(key.shape) > 2 else 1), key.shape[-2]
    batch = math.prod(outer)
    if min(batch, heads, kv_heads, seq, kv_seq, head_dim) < 1:
        return ()
    # The first product sums over the head size of queries and keys; the second has the width of the values.
    depth = (head_dim + tensors[2].shape[-1]) / 2 if len(tensors) > 2 else head_dim
    # Fused kernels ignore the TF32 flag (`SINGLE_RATE`).
    dtype = whole_compute_dtype(operation.arguments.get("compute_dtype"), query, tf32=False)
    if dtype == "float64":  # No fused kernel supports float64: two products and a softmax.
        return _unfused(batch * heads, seq, kv_seq, head_dim, backward=backward)
    arguments = operation.arguments
    is_causal = bool(arguments.get("is_causal") or arguments.get("causal") or arguments.get("custom_mask_type"))
    dims = tuple(float(value) for value in (batch, heads, kv_heads, seq, kv_seq, depth, is_causal))
    if len(query.shape) > 4 and eager_dtype is None:  # torch's fused kernels take four dimensions
        eager_dtype = dtype
    if eager_dtype is not None:
        return (OperationShape(f"eager_attention{'_backward' * backward}", eager_dtype, dims),)
    attention = OperationShape(f"attention{'_backward' * backward}", dtype, dims)
    if not operation.arguments.get("dropout_p"):
        return (attention,)
    return attention, OperationShape(ATTENTION_DROPOUT, "float32", dims)


def _unfused(b: int, seq: int, kv_seq: int, head_dim: int, *, backward: bool) -> tuple[OperationShape, ...]:
    scores = OperationShape("bmm", "float64", (float(b), float(seq), float(kv_seq), float(head_dim)))
    values = OperationShape("bmm", "float64", (float(b), float(seq), float(head_dim), float(kv_seq)))
    softmax = SOFTMAX_BACKWARD if backward else ("softmax",)
    products = (scores, values) * (2 if backward else 1)
    return (*products, *(OperationShape(name, "float64", (float(b * seq), float(kv_seq))) for name in softmax))


@translates("aten::scaled_dot_product_attention", "aten::scaled_dot_product_attention_backward")
def _whole(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    backward, eager = operation.name.endswith("_backward"), None
    is_apart = is_taken_apart(operation)
    if is_apart:
        eager = "tf32" if flags.matmul_tf32 else "float32"
    elif operation.arguments.get(ATTENTION_KERNEL) == WRITTEN_OUT and operation.inputs:
        own = operation.arguments.get("compute_dtype")
        eager = whole_compute_dtype(own, operation.inputs[0], tf32=flags.matmul_tf32)
    shapes = _attention(operation, operation.inputs[:3], backward=backward, eager_dtype=eager)
    return (*shapes, *_around_products(operation)) if is_apart and shapes and not backward else shapes


def _around_products(operation: Operation) -> Iterator[OperationShape]:
    """Yield what torch runs in a forward pass of attention that it takes apart (`_scaled_dot_product_attention_math`).

    These are the mask's sum, a softmax that is 0 in rows that are masked whole, dropout, and copies of the operands in
    float32 and contiguous rows.
    """
    query, key = operation.inputs[:2]
    rows, columns = query.elements / query.shape[-1], float(key.shape[-2])
    scores, operands = rows * columns, query.elements + 2.0 * key.elements
    yield limited_transfer(4 * scores, 4 * scores, scores, cycles=SINGLE_LOAD_CYCLES * scores)  # the mask is broadcast
    yield OperationShape("vectorized", "float32", (5 * scores, scores, 2 * scores))  # which scores are -inf, which rows
    yield limited_transfer(4 * scores, 4 * scores, scores, cycles=SINGLE_LOAD_CYCLES * scores)  # `where` by row
    if operation.arguments.get("dropout_p"):
        yield OperationShape("dropout", "float32", (rows, columns))
    yield OperationShape("vectorized", "float32", (4 * scores, 2 * scores, scores))
    yield limited_transfer(6 * operands, 8 * operands, operands, cycles=2 * SINGLE_LOAD_CYCLES * operands)


_FUSED: Final = tuple(
    f"aten::_scaled_dot_product_{kernel}{suffix}"
    for kernel in (
        "flash_attention",
        "flash_attention_for_cpu",
        "efficient_attention",
        "cudnn_attention",
        "fused_attention_overrideable",
    )
    for suffix in ("", "_backward")
)


@translates(*_FUSED)
def _fused(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate the fused kernels of the whole call. In a backward pass, the output's gradient comes first."""
    backward = operation.name.endswith("_backward")
    tensors = operation.inputs[1:4] if backward else operation.inputs[:3]
    return _attention(operation, tensors, backward=backward)


@translates("higher_order::flex_attention", "higher_order::flex_attention_backward")
def _flexible(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate as if nothing were masked, because a trace lacks the tensors with the skipped blocks."""
    backward = operation.name.endswith("_backward")
    return _attention(operation, operation.inputs[:3], backward=backward)


FLASH_EXTENSIONS: Final = (
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_backward",
    "flash_attn::_flash_attn_varlen_forward",
    "flash_attn::_flash_attn_varlen_backward",
    "flash_attn_3::_flash_attn_forward",
    "flash_attn_3::_flash_attn_backward",
    "flash_attn_3::fwd",
    "flash_attn_3::bwd",
    "FlashAttnFunc",
)
"""Calls of the packages FlashAttention 2 and 3, whose tensors have the same order as in torch's own kernels."""


@translates(
    "aten::_flash_attention_forward",
    "aten::_flash_attention_backward",
    "aten::_efficient_attention_forward",
    "aten::_efficient_attention_backward",
    *FLASH_EXTENSIONS,
)
def _heads_last(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate (batch, seq, heads, head_dim), or sequences of different lengths in one row.

    Packed sequences are assumed to have the maximum length. The length of the row divided by the maximum length is the
    number of sequences.
    """
    backward = operation.name.endswith(("_backward", "::bwd"))
    tensors = operation.inputs[1:4] if backward else operation.inputs[:3]
    longest = [operation.arguments.get(f"max_{side}", operation.arguments.get(f"max_seqlen_{side}")) for side in "qkk"]
    swapped = []
    for tensor, length in zip(tensors, longest, strict=False):
        shape = tensor.shape
        if len(shape) == 3 or (len(shape) == 4 and shape[0] == 1 and length):
            *_, tokens, heads, depth = shape
            length = int(length or tokens)
            shape = (max(math.ceil(tokens / max(length, 1)), 1), min(length, tokens), heads, depth)
        if len(shape) != 4:
            return None
        swapped.append(replace(tensor, shape=(shape[0], shape[2], shape[1], shape[3])))
    return _attention(operation, swapped, backward=backward)
