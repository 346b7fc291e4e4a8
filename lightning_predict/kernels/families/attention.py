"""Scaled-dot-product attention, fused and eager, forward and backward.

The forward pass has two matmuls of (seq x head_dim) and (kv_seq x head_dim) per head, 4·B·H·S·T·D FLOPs. A causal mask
over a square reduces the FLOPs to the share (S + 1) / 2S. The backward pass has five such matmuls (it recomputes the
scores), 2.5 times the forward FLOPs. In memory, q and the output have `heads` heads; k and v have `kv_heads` heads. The
backward pass also reads the output's gradient and writes three gradients.

The tables of causal attention come from inference servers, whose kernels read keys and values from a paged cache. Up to
4,000 tokens, these kernels are slower than unmasked attention, which encoders run on plain tensors. Training also uses
plain tensors. The time of its causal attention (`causal_attention`) is therefore that of unmasked attention to as many
keys as a query reads under the mask, in whole blocks. The server's time is an upper bound. Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> batch = shape_batch("attention", "bfloat16", batch=1, heads=2, seq=8, head_dim=4)
    >>> float(batch.flops[0])  # 4 x 2 x 8 x 8 x 4
    2048.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.norm import SOFTMAX_BACKWARD
from lightning_predict.kernels.features import alignment, log2, machine_features, tile_features, work_features
from lightning_predict.kernels.operations import (
    Alternative,
    Array,
    Columns,
    CountedShape,
    Formula,
    NamedFeatures,
    NetworkSpec,
    OperationShape,
    OperationSpec,
    ShapeBatch,
    Surrogate,
    register,
    translates,
)
from lightning_predict.kernels.roofline import (
    SHORTEST_KERNEL_SECONDS,
    TYPICAL_UTILISATION,
    issue_rate,
    per_gpu,
    roofline_seconds,
)
from lightning_predict.kernels.translation import whole_compute_dtype
from lightning_predict.record.signatures import ATTENTION_KERNEL, WRITTEN_OUT, has_wider_mask
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from lightning_predict.uncertainty import FORMULA_SPREAD

_SHAPE = ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim", "causal")
_DEFAULTS_WITHOUT_MASK: dict[str, float | str] = {"kv_heads": "heads", "kv_seq": "seq"}
_DEFAULTS: dict[str, float | str] = {**_DEFAULTS_WITHOUT_MASK, "causal": 0}
FUSED_ATTENTION: Final = ("attention", "attention_backward", "causal_attention", "causal_attention_backward")
"""Names of attention operations that run as one kernel, forward and backward."""

ATTENTION_DROPOUT: Final = "attention_dropout"
"""Name of the work that a fused kernel does to draw and apply the mask of dropout."""

BACKWARD_MATMULS: Final = 2.5
"""Number of matmuls in the backward pass over the forward pass: five against two."""

BACKWARD_RATE: Final = 0.85
"""FLOPs per second of the backward pass relative to the forward pass. It also reads the gradient's product with the
output and converts the gradient of the queries, which the forward pass does not have."""


_BACKWARD_TIME: Final = BACKWARD_MATMULS / BACKWARD_RATE


def _visible_share(c: Columns) -> Array:
    """Return the share of scores that a causal mask keeps, aligned at the top left."""
    seq, kv_seq = c["seq"], c["kv_seq"]
    shorter = np.minimum(seq, kv_seq)
    # Row i attends to min(i + 1, kv_seq) keys; the sum over rows is a triangle and, below it, full rows.
    visible = shorter * (shorter + 1) / 2 + np.maximum(seq - kv_seq, 0) * kv_seq
    return np.where(c["causal"] > 0, visible / (seq * kv_seq), 1.0)


def _under_a_mask(c: Columns) -> Columns:
    return {**c, "causal": np.ones_like(c["seq"])}


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


QUERY_STRIPS: Final = (64, 128, 256)
"""Number of queries that one block of a fused attention kernel handles."""

HEAD_DIM_STEPS: Final = (32, 64, 128, 256)
"""Head sizes that kernels are built for. Other sizes are padded to the next size."""


def attention_features(batch: ShapeBatch, gpus: Sequence[Gpu]) -> NamedFeatures:
    """Return the network inputs of fused attention, by name.

    A block of the kernel handles a strip of queries of one head and loops over the keys. The number of blocks is
    therefore batch x heads x ceil(seq / strip).
    """
    c = batch.columns  # each (shapes,)
    names = ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim")
    named: dict[str, Array] = {name: log2(c[name])[None, :] for name in names}
    named["copies"] = log2(c["batch"] * c["heads"])[None, :]
    named["query_groups"] = log2(c["heads"] / c["kv_heads"])[None, :]
    named["causal"] = c["causal"][None, :]
    named["causal_seq"] = (c["causal"] * log2(c["seq"]))[None, :]
    steps = np.array(HEAD_DIM_STEPS, dtype=np.float64)
    padded = steps[np.minimum(np.searchsorted(steps, c["head_dim"]), len(steps) - 1)]
    named["head_dim_filled"] = log2(np.minimum(c["head_dim"] / padded, 1.0))[None, :]
    named["head_dim_alignment"] = alignment(c["head_dim"])
    named["seq_alignment"] = alignment(c["seq"])
    one = np.ones_like(c["seq"])
    named |= tile_features(c["seq"], one, c["batch"] * c["heads"], gpus, [(strip, 1) for strip in QUERY_STRIPS])
    packed = c["seq"] * c["heads"] / c["kv_heads"]
    named |= {
        f"packed_{k}": v for k, v in tile_features(packed, one, c["batch"] * c["kv_heads"], gpus, [(128, 1)]).items()
    }
    return named | work_features(batch, gpus) | machine_features(batch, gpus)


BUILT_HEAD_DIMS: Final = ((32, 32.0), (64, 64.0), (96, 80.0), (128, 128.0), (160, 160.0), (192, 192.0), (256, 256.0))
"""Head sizes of FlashAttention's kernels (its `HEADDIM_SWITCH`), with the measured size that represents each kernel.

The kernels pad smaller heads with zeros: heads of 72 take 0.98 to 1.09 times as long as heads of 80 on the tables'
nine GPUs. The tables have no sizes below 64 or from 81 to 127."""


MEASURED_WIDTHS: Final = (64.0, 80.0)
"""Least and greatest head size of attention without a mask in the tables."""


def _with_built_heads(batch: ShapeBatch) -> ShapeBatch:
    """Round head sizes up to the sizes that kernels are built for; measured sizes are unchanged."""
    head_dim = batch.columns["head_dim"]
    sizes, stands_for = (np.array(column, dtype=np.float64) for column in zip(*BUILT_HEAD_DIMS, strict=True))
    place = np.searchsorted(sizes, head_dim)
    built = np.append(stands_for, np.inf)[place]
    least, greatest = MEASURED_WIDTHS
    is_measured = (head_dim > least) & (head_dim <= greatest)
    padded = np.where(is_measured | (place == len(sizes)), head_dim, built)
    if np.array_equal(padded, head_dim):
        return batch
    return replace(batch, columns={**batch.columns, "head_dim": padded})


ATTENTION: Final = NetworkSpec(
    name="attention", dtypes=("float16", "bfloat16"), describe=attention_features, built_for=_with_built_heads
)


WIDEST_FLOPS_PER_CLOCK: Final = 1024.0
"""TF32 FLOPs per clock and multiprocessor with the instructions of Ampere."""

SINGLE_RATE: Final = 0.1
"""Share of the TF32 rate that PyTorch's memory-efficient attention reaches in float32."""


def _single_seconds(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Interval[Array]:
    """Predict fused attention in float32 by its FLOPs, because the scores are never in memory; (gpus, shapes)."""
    rates = per_gpu(gpus, _single_rate)
    seconds = np.maximum(batch.flops[None, :] / rates, roofline_seconds(batch, gpus)) + SHORTEST_KERNEL_SECONDS
    return Interval.from_factor(seconds, FORMULA_SPREAD)


def _single_rate(gpu: Gpu) -> float:
    tf32 = gpu.peak("tf32")
    if tf32 is None:
        return TYPICAL_UTILISATION["tensor"] * gpu.peak_flops_per_second["float32"]
    widest = WIDEST_FLOPS_PER_CLOCK * gpu.streaming_multiprocessors * gpu.boost_clock_hz
    return SINGLE_RATE * min(tf32, widest)


def _is_single(shape: OperationShape) -> bool:
    return shape.dtype == "float32"


SINGLE_ATTENTION: Final = Formula(seconds=_single_seconds, supports=_is_single)


MASK_INSTRUCTIONS: Final = 6.5
"""Instructions for integers that draw and apply one element of a dropout mask, in the forward or the backward pass."""

INTEGERS_PER_CLOCK: Final = 64.0
"""Instructions for integers that a multiprocessor starts in a clock cycle, since Volta."""


def _mask_seconds(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Interval[Array]:
    """Predict the time of dropout masks, which tensor cores do not hide; (gpus, shapes)."""
    rates = per_gpu(gpus, lambda gpu: INTEGERS_PER_CLOCK * issue_rate(gpu))
    return Interval.from_factor(batch.flops[None, :] / rates, FORMULA_SPREAD)


def _as_matmuls(shape: OperationShape) -> tuple[CountedShape, ...]:
    """Split attention into two batched matmuls. The softmax between them is fused."""
    w = shape.parameters
    b = w["batch"] * w["heads"]
    visible = 0.5 if w["causal"] else 1.0
    scores = OperationShape("bmm", shape.dtype, (b, w["seq"], w["kv_seq"], w["head_dim"]))
    values = OperationShape("bmm", shape.dtype, (b, w["seq"], w["head_dim"], w["kv_seq"]))
    return CountedShape(visible, scores), CountedShape(visible, values)


SOFTMAX_WIDTH: Final = 45.0
"""Head size whose two products take as long as the softmax between them: an exponential is a sixteenth of a clock cycle
of a multiprocessor, in which tensor cores multiply four times 59 (H100) or 32 (A100). FlashAttention 3's published
FLOP/s (H100, 16,384 tokens without a mask) say 60: 497 T for heads of 64 and 648 T for 128. One value, between those of
both GPUs, serves all."""

BLOCK: Final = 128.0
"""Number of queries, and of keys, that a kernel handles together. Blocks on the diagonal of a causal mask are computed
whole, which adds half a block to the keys that a query reads on average. A whole block is added here: a mask reduces
FlashAttention 3's published FLOP/s to 0.63 to 0.91 (H100, 512 to 4,096 tokens, heads of 128), where a block gives 0.67
to 0.94 and half a block 0.80 to 0.97."""


def _whole_blocks(length: float) -> float:
    return max(round(length / BLOCK), 1) * BLOCK


def _with_measured_heads(shape: OperationShape) -> OperationShape | None:
    """Return heads of 64 with keys that take as long as those of wider heads without a mask; None for other heads.

    A query has the same work before its first and after its last key, whatever the size of its head. Networks know of
    wide heads without a mask only what servers' causal kernels do, which are slow for short sequences.
    """
    w, (least, greatest) = shape.parameters, MEASURED_WIDTHS
    width = next((one for size, one in BUILT_HEAD_DIMS if w["head_dim"] <= size), w["head_dim"])
    if width <= greatest or w.get("causal") or w["seq"] < BLOCK or shape.dtype not in ATTENTION.dtypes:
        return None
    seq = _whole_blocks((width + SOFTMAX_WIDTH) / (least + SOFTMAX_WIDTH) * w["seq"])
    longer = seq / w["seq"]
    dims = (w["batch"] / longer, w["heads"], w["kv_heads"], seq, max(round(w["kv_seq"] * longer), 1.0), least, 0.0)
    return OperationShape("attention", shape.dtype, dims)


def _unmasked(times: float, dtype: str, dims: tuple[float, ...]) -> tuple[CountedShape, ...]:
    """Return forward passes without a mask. Bounds do not apply to parts of a sum, so wide heads are replaced here."""
    whole = OperationShape("attention", dtype, (*dims, 0.0))
    return (CountedShape(times, _with_measured_heads(whole) or whole),)


def _as_forward_pass(shape: OperationShape) -> tuple[CountedShape, ...]:
    if shape.parameters["causal"]:
        return (CountedShape(_BACKWARD_TIME, OperationShape("attention", shape.dtype, shape.dims)),)
    return _unmasked(_BACKWARD_TIME, shape.dtype, shape.dims[:-1])


def _without_a_mask(shape: OperationShape) -> tuple[CountedShape, ...]:
    """Return unmasked attention of as many queries to as many keys as a query reads on average under the mask."""
    w = shape.parameters
    times = _BACKWARD_TIME if shape.operation.endswith("_backward") else 1.0
    if w["seq"] != w["kv_seq"]:
        columns = {word: np.array([value]) for word, value in w.items()}
        return _unmasked(times * float(_visible_share(_under_a_mask(columns))[0]), shape.dtype, shape.dims)
    read = min(_whole_blocks(w["seq"] / 2 + BLOCK), w["seq"])
    dims = (w["batch"] * w["seq"] / read, w["heads"], w["kv_heads"], read, read, w["head_dim"])
    return _unmasked(times, shape.dtype, dims)


def _as_a_server(shape: OperationShape) -> OperationShape:
    """Return the attention operation that the servers' tables measured."""
    return OperationShape(shape.operation.removeprefix("causal_"), shape.dtype, (*shape.dims, 1.0))


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
        estimators=(
            ATTENTION,
            SINGLE_ATTENTION,
            Surrogate(_as_matmuls),
            Alternative(shape=_with_measured_heads, bounds_networks=True),
        ),
    ),
    OperationSpec(
        name="attention_backward",
        shape=_SHAPE,
        defaults=_DEFAULTS,
        units="tensor",
        flops=lambda c: BACKWARD_MATMULS * _flops(c),
        reads=_read_backward,
        writes=_gradients,
        estimators=(SINGLE_ATTENTION, Surrogate(_as_forward_pass)),
    ),
    OperationSpec(
        name="causal_attention",
        shape=_SHAPE[:-1],
        defaults=_DEFAULTS_WITHOUT_MASK,
        units="tensor",
        flops=lambda c: _flops(_under_a_mask(c)),
        reads=_read_forward,
        writes=_queries,
        estimators=(Surrogate(_without_a_mask), Alternative(shape=_as_a_server, bounds_networks=True)),
    ),
    OperationSpec(
        name="causal_attention_backward",
        shape=_SHAPE[:-1],
        defaults=_DEFAULTS_WITHOUT_MASK,
        units="tensor",
        flops=lambda c: BACKWARD_MATMULS * _flops(_under_a_mask(c)),
        reads=_read_backward,
        writes=_gradients,
        estimators=(Surrogate(_without_a_mask), Alternative(shape=_as_a_server, bounds_networks=True)),
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
    is_causal = _is_causal(operation)
    dims = tuple(float(value) for value in (batch, heads, kv_heads, seq, kv_seq, depth))
    if len(query.shape) > 4 and eager_dtype is None:  # torch's fused kernels take four dimensions
        eager_dtype = dtype
    if eager_dtype is not None:
        return (OperationShape(f"eager_attention{'_backward' * backward}", eager_dtype, (*dims, float(is_causal))),)
    name = f"{'causal_' * is_causal}attention{'_backward' * backward}"
    attention = OperationShape(name, dtype, dims if is_causal else (*dims, 0.0))
    if not operation.arguments.get("dropout_p"):
        return (attention,)
    return attention, OperationShape(ATTENTION_DROPOUT, "float32", (*dims, float(is_causal)))


def _is_causal(operation: Operation) -> bool:
    arguments = operation.arguments
    return bool(arguments.get("is_causal") or arguments.get("causal") or arguments.get("custom_mask_type"))


def _unfused(b: int, seq: int, kv_seq: int, head_dim: int, *, backward: bool) -> tuple[OperationShape, ...]:
    scores = OperationShape("bmm", "float64", (float(b), float(seq), float(kv_seq), float(head_dim)))
    values = OperationShape("bmm", "float64", (float(b), float(seq), float(head_dim), float(kv_seq)))
    softmax = SOFTMAX_BACKWARD if backward else ("softmax",)
    products = (scores, values) * (2 if backward else 1)
    return (*products, *(OperationShape(name, "float64", (float(b * seq), float(kv_seq))) for name in softmax))


@translates("aten::scaled_dot_product_attention", "aten::scaled_dot_product_attention_backward")
def _whole(operation: Operation, flags: Flags) -> tuple[OperationShape, ...] | None:
    backward = operation.name.endswith("_backward")
    eager = ("tf32" if flags.matmul_tf32 else "float32") if has_wider_mask(operation) else None
    if eager is None and operation.arguments.get(ATTENTION_KERNEL) == WRITTEN_OUT and operation.inputs:
        own = operation.arguments.get("compute_dtype")
        eager = whole_compute_dtype(own, operation.inputs[0], tf32=flags.matmul_tf32)
    return _attention(operation, operation.inputs[:3], backward=backward, eager_dtype=eager)


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
