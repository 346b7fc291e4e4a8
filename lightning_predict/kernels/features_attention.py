"""Features of fused attention.

A block of the kernel keeps a strip of queries of one head and walks over the keys, so the blocks are
batch x heads x ceil(seq / strip). Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> batch = problem_batch("attention", "bfloat16", batch=1, heads=8, kv_heads=2, seq=64, head_dim=64)
    >>> float(attention_features(batch, [gpu("T4")])["query_groups"][0, 0])  # log2(8 / 2)
    2.0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.features import (
    alignment,
    log2,
    machine_features,
    tile_features,
    work_features,
)
from lightning_predict.kernels.operations import Array, Family, NamedFeatures, ProblemBatch

QUERY_STRIPS: Final = (64, 128, 256)
"""Queries that one block of a fused attention kernel keeps."""

HEAD_DIM_STEPS: Final = (32, 64, 128, 256)
"""Head sizes that kernels are built for; others are padded to the next."""


def attention_features(batch: ProblemBatch, gpus: Sequence[Gpu]) -> NamedFeatures:
    """All features, by name."""
    c = batch.columns
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


ATTENTION: Final = Family(name="attention", dtypes=("float16", "bfloat16"), describe=attention_features)
