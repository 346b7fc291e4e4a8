"""Scaled-dot-product attention, fused and eager, forward and backward.

Forward: two products of (seq x head_dim) and (kv_seq x head_dim) a head, 4·B·H·S·T·D; a causal mask over a square needs
(S + 1) / 2S of it. Backward: five such products, so 2.5 times the forward (the scores are recomputed). Traffic: q and
the output have `heads` heads, k and v `kv_heads`; the backward pass also reads the output's gradient and writes three
gradients. Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("attention", "bfloat16", batch=1, heads=2, seq=8, head_dim=4)
    >>> float(batch.flops[0])  # 4 x 2 x 8 x 8 x 4
    2048.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lightning_predict.kernels.features_attention import ATTENTION
from lightning_predict.kernels.operations import Array, Columns, OperationKind, Problem, register, translates
from lightning_predict.kernels.translation import whole_compute_dtype
from lightning_predict.tracing.trace import Flags, Operation, TensorInfo

_WORDS = ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim", "causal")
_DEFAULTS: dict[str, float | str] = {"kv_heads": "heads", "kv_seq": "seq", "causal": 0}
BACKWARD_PRODUCTS = 2.5
"""Matrix products of the backward pass over those of the forward: five against two."""


def _visible_share(c: Columns) -> Array:
    """Share of the scores that a causal mask lets through, aligned top left."""
    seq, kv_seq = c["seq"], c["kv_seq"]
    shorter = np.minimum(seq, kv_seq)
    # Row i sees min(i + 1, kv_seq) keys; the sum over rows is a triangle and, below it, full rows.
    visible = shorter * (shorter + 1) / 2 + np.maximum(seq - kv_seq, 0) * kv_seq
    return np.where(c["causal"] > 0, visible / (seq * kv_seq), 1.0)


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


register(
    OperationKind(
        name="attention",
        shape=_WORDS,
        defaults=_DEFAULTS,
        units="tensor",
        flops=_flops,
        reads=lambda c: 2 * _queries(c) + 2 * _keys(c),
        families=(ATTENTION,),
    ),
    OperationKind(
        name="attention_backward",
        shape=_WORDS,
        defaults=_DEFAULTS,
        units="tensor",
        flops=lambda c: BACKWARD_PRODUCTS * _flops(c),
        reads=lambda c: 4 * _queries(c) + 4 * _keys(c),
    ),
    # Eager: all scores are computed and pass through memory, masked or not; the backward pass keeps them.
    OperationKind(
        name="eager_attention",
        shape=_WORDS,
        defaults=_DEFAULTS,
        units="tensor",
        flops=_all_flops,
        reads=lambda c: 2 * _queries(c) + 2 * _keys(c) + _scores(c),
    ),
    OperationKind(
        name="eager_attention_backward",
        shape=_WORDS,
        defaults=_DEFAULTS,
        units="tensor",
        flops=lambda c: 2 * _all_flops(c),
        reads=lambda c: 4 * _queries(c) + 4 * _keys(c) + _scores(c),
    ),
)


def _attention(
    operation: Operation, tensors: Sequence[TensorInfo], *, backward: bool, tf32: bool
) -> tuple[Problem, ...] | None:
    """Queries (..., heads, seq, head_dim), keys and values (..., kv_heads, kv_seq, head_dim)."""
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
    # Two products: over the depth of queries and keys, and with the width of the values.
    depth = (head_dim + tensors[2].shape[-1]) / 2 if len(tensors) > 2 else head_dim
    dtype = whole_compute_dtype(operation.arguments.get("compute_dtype"), query, tf32=tf32)
    if dtype == "float64":  # No fused kernel computes in double precision: two products and a softmax.
        return _unfused(batch * heads, seq, kv_seq, head_dim, backward=backward)
    dims = (batch, heads, kv_heads, seq, kv_seq, depth, float(_is_causal(operation)))
    name = "attention_backward" if backward else "attention"
    return (Problem(name, dtype, tuple(float(value) for value in dims)),)


def _is_causal(operation: Operation) -> bool:
    arguments = operation.arguments
    return bool(arguments.get("is_causal") or arguments.get("causal") or arguments.get("custom_mask_type"))


def _unfused(b: int, seq: int, kv_seq: int, head_dim: int, *, backward: bool) -> tuple[Problem, ...]:
    scores = Problem("bmm", "float64", (float(b), float(seq), float(kv_seq), float(head_dim)))
    values = Problem("bmm", "float64", (float(b), float(seq), float(head_dim), float(kv_seq)))
    softmax = "softmax_backward" if backward else "softmax"
    products = (scores, values) * (2 if backward else 1)
    return (*products, Problem(softmax, "float64", (float(b * seq), float(kv_seq))))


@translates("aten::scaled_dot_product_attention", "aten::scaled_dot_product_attention_backward")
def _whole(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    backward = operation.name.endswith("_backward")
    return _attention(operation, operation.inputs[:3], backward=backward, tf32=flags.matmul_tf32)


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
def _fused(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    """The kernels behind the whole call; their backward passes have the output's gradient in front."""
    backward = operation.name.endswith("_backward")
    tensors = operation.inputs[1:4] if backward else operation.inputs[:3]
    return _attention(operation, tensors, backward=backward, tf32=flags.matmul_tf32)


@translates("higher_order::flex_attention", "higher_order::flex_attention_backward")
def _flexible(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    """As if nothing were masked: which blocks are left out stands in tensors that no trace holds."""
    backward = operation.name.endswith("_backward")
    return _attention(operation, operation.inputs[:3], backward=backward, tf32=flags.matmul_tf32)


@translates(
    "aten::_flash_attention_forward",
    "aten::_flash_attention_backward",
    "aten::_efficient_attention_forward",
    "aten::_efficient_attention_backward",
)
def _heads_last(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    """(batch, seq, heads, head_dim); or sequences of many lengths in one row, with the longest length beside them.

    Those are taken to be as long as the longest, and as many as fill the row.
    """
    backward = operation.name.endswith("_backward")
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
    return _attention(operation, swapped, backward=backward, tf32=flags.matmul_tf32)
