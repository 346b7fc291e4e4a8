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

import numpy as np

from lightning_predict.kernels.operations import Array, Columns, OperationKind, Problem, register
from lightning_predict.kernels.translation import translates, whole_compute_dtype
from lightning_predict.tracing.records import Flags, Operation

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
        words=_WORDS,
        defaults=_DEFAULTS,
        units="tensor",
        flops=_flops,
        elements_moved=lambda c: 2 * _queries(c) + 2 * _keys(c),
    ),
    OperationKind(
        name="attention_backward",
        words=_WORDS,
        defaults=_DEFAULTS,
        units="tensor",
        flops=lambda c: BACKWARD_PRODUCTS * _flops(c),
        elements_moved=lambda c: 4 * _queries(c) + 4 * _keys(c),
    ),
    # Eager: all scores are computed and pass through memory, masked or not; the backward pass keeps them.
    OperationKind(
        name="eager_attention",
        words=_WORDS,
        defaults=_DEFAULTS,
        units="tensor",
        flops=_all_flops,
        elements_moved=lambda c: 2 * _queries(c) + 2 * _keys(c) + _scores(c),
    ),
    OperationKind(
        name="eager_attention_backward",
        words=_WORDS,
        defaults=_DEFAULTS,
        units="tensor",
        flops=lambda c: 2 * _all_flops(c),
        elements_moved=lambda c: 4 * _queries(c) + 4 * _keys(c) + _scores(c),
    ),
)


def _whole_attention(operation: Operation, *, backward: bool, tf32: bool) -> tuple[Problem, ...]:
    """Queries (..., heads, seq, head_dim), keys and values (..., kv_heads, kv_seq, head_dim)."""
    query, key = operation.inputs[0], operation.inputs[1]
    *outer, heads, seq, head_dim = query.shape if len(query.shape) > 3 else (1, *query.shape)
    kv_heads, kv_seq = (key.shape[-3] if len(key.shape) > 2 else 1), key.shape[-2]
    batch = math.prod(outer)
    causal = float(bool(operation.arguments.get("is_causal", False)))
    dtype = whole_compute_dtype(operation, tf32=tf32)
    if dtype == "float64":  # No fused kernel computes in double precision: two products and a softmax.
        return _unfused(batch * heads, seq, kv_seq, head_dim, backward=backward)
    dims = (batch, heads, kv_heads, seq, kv_seq, head_dim, causal)
    name = "attention_backward" if backward else "attention"
    return (Problem(name, dtype, tuple(float(value) for value in dims)),)


def _unfused(b: int, seq: int, kv_seq: int, head_dim: int, *, backward: bool) -> tuple[Problem, ...]:
    scores = Problem("bmm", "float64", (float(b), float(seq), float(kv_seq), float(head_dim)))
    values = Problem("bmm", "float64", (float(b), float(seq), float(head_dim), float(kv_seq)))
    softmax = "softmax_backward" if backward else "softmax"
    products = (scores, values) * (2 if backward else 1)
    return (*products, Problem(softmax, "float64", (float(b * seq), float(kv_seq))))


@translates("aten::scaled_dot_product_attention")
def _forward(operation: Operation, flags: Flags) -> tuple[Problem, ...]:
    return _whole_attention(operation, backward=False, tf32=flags.matmul_tf32)


@translates("aten::scaled_dot_product_attention_backward")
def _backward(operation: Operation, flags: Flags) -> tuple[Problem, ...]:
    return _whole_attention(operation, backward=True, tf32=flags.matmul_tf32)
