"""Embeddings: row look-ups, and bags (sums) of them, with L2 hits for repeated rows.

A batch of B bags looks up L rows each from a table of E rows of D float32 numbers. The L2 hit rate (Lin et al., HiPC
2022, section on embedding lookup) is:

    X = min(0.9 · L2 / (tables active at once) / 4D, E, B·L)      rows that fit in L2 (of 4 bytes per number)
    U = E · (1 - (1 - 1/E)^(B·L))                                 distinct rows
    hit rate = 1 - U / (B·L)                                      if U <= X
               1 - (X + (B·L - X) · (E - X) / E) / (B·L)          otherwise

In the backward pass, the rows of a bag are updated together and count as hits only if all of them are cached. X / E
then becomes the product over i < L of (X - i) / (E - i), the ratio of sets of L cached rows to all sets of L rows. With
`alpha`, rows have unequal frequencies: the probability of the r-th most frequent row is proportional to 1 / r^alpha
(Zipf). U is then the sum of 1 - (1 - p_r)^(B·L), and L2 holds the rows of the last t look-ups, which contain X distinct
rows (Che's approximation).

Traffic is counted in sectors of 32 bytes. Indices, offsets and the output come from DRAM. Rows always pass through L2,
and come from DRAM on an L2 miss. The time is the longer of the DRAM time and the L2 time. For rows of up to 32 numbers,
it is multiplied by 1.55; for up to 64 numbers, by 1.1 (short rows leave threads idle). Example::

    >>> from lightning_predict.hardware import gpu
    >>> bags = {"bags": 1024, "lookups": 1, "rows": 10, "dim": 64, "alpha": 0}
    >>> columns = {word: np.array([float(value)]) for word, value in bags.items()}
    >>> round(float(hit_rate(columns, [gpu("V100")])[0, 0]), 2)  # ten rows, asked for a thousand times
    0.99
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.elementwise import VECTOR, as_transfer, by_element, of_matrix
from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    Array,
    Columns,
    Formula,
    OperationShape,
    OperationSpec,
    ShapeBatch,
    register,
    translates,
)
from lightning_predict.kernels.roofline import SECTOR_BYTES, SHORTEST_KERNEL_SECONDS, per_gpu, roofline_seconds
from lightning_predict.kernels.translation import compute_dtype
from lightning_predict.record.trace import Flags, Operation
from lightning_predict.uncertainty import SURROGATE_SPREAD

WARPS_PER_MULTIPROCESSOR: Final = 45  # Resident warps of the look-up kernel per SM
SHORT_ROW_FACTORS: Final = ((32, 1.55), (64, 1.1))

ZIPF: Final = "zipf_alpha"
"""Argument of a look-up and its backward pass with the exponent of Zipf's law for row frequencies.

Recorders do not write this argument; see `embeddings/tables.py`."""


def _look_up(name: str, operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    if len(operation.inputs) < 2 or len(operation.inputs[0].shape) != 2:
        return None
    table, indices = operation.inputs[:2]
    return of_matrix(name, table, indices.elements, table.shape[-1])


def _rows_once(c: Columns) -> Array:
    """Return the elements of the distinct rows that are looked up."""
    return unique_rows(c) * c["dim"]


def _bags_once(c: Columns) -> Array:
    return c["bags"] * c["dim"]


register(
    replace(
        by_element("embedding", 1, 1, 0),
        aten=("aten::embedding",),
        translator=_look_up,
        estimators=(VECTOR, as_transfer()),
    ),
    # Scatter-add of gradient rows into a zeroed table: gradient rows are read, table rows are read and written.
    replace(by_element("embedding_backward", 2, 1), estimators=(VECTOR, as_transfer())),
)


EXACT_RANKS: Final = 256
"""Number of ranks of Zipf's law that are computed individually.

Higher ranks are grouped, with `RANKS_PER_DOUBLING` groups per doubling."""
RANKS_PER_DOUBLING: Final = 8


@lru_cache(maxsize=256)
def _zipf(rows: float, alpha: float) -> tuple[Array, Array]:
    """Return (rows per group, probability of each row); the r-th most frequent row has weight 1 / r^alpha."""
    exact = int(min(rows, EXACT_RANKS))
    doublings = math.log2(rows / exact)
    groups = max(math.ceil(RANKS_PER_DOUBLING * doublings), 1) if rows > exact else 0
    edges = np.concatenate([np.arange(exact) + 0.5, (exact + 0.5) * 2.0 ** (np.linspace(0, doublings, groups + 1))])
    edges[-1] = rows + 0.5
    masses = np.diff(np.log(edges)) if alpha == 1 else np.diff(edges ** (1 - alpha)) / (1 - alpha)
    masses[:exact] = np.arange(1, exact + 1, dtype=np.float64)[: len(masses)] ** -alpha
    counts = np.diff(edges)
    return counts, masses / masses.sum() / counts


def _different(asked: float, counts: Array, chances: Array) -> float:
    """Return the expected number of distinct rows among `asked` look-ups."""
    return float((counts * -np.expm1(asked * np.log1p(-np.minimum(chances, 1 - 1e-12)))).sum())


def unique_rows(c: Columns) -> Array:
    """Return the expected number of distinct rows of a batch, shape (shapes,)."""
    asked = c["bags"] * c["lookups"]
    rows: Array = c["rows"] * -np.expm1(asked * np.log1p(-1 / np.maximum(c["rows"], 1 + 1e-9)))
    for place in np.flatnonzero(c["alpha"]).tolist():
        rows[place] = _different(float(asked[place]), *_zipf(float(c["rows"][place]), float(c["alpha"][place])))
    return np.minimum(rows, asked)


def hit_rate(c: Columns, gpus: Sequence[Gpu], *, value_bytes: float = 4, whole_bags: bool = False) -> Array:
    """Estimate the L2 hit rate of look-ups, (gpus, shapes); of `whole_bags` if all rows of a bag hit."""
    asked = c["bags"] * c["lookups"]
    l2 = per_gpu(gpus, lambda gpu: gpu.l2_bytes)
    warps = per_gpu(gpus, lambda gpu: gpu.streaming_multiprocessors * WARPS_PER_MULTIPROCESSOR)
    tables = np.ceil(warps / c["bags"])
    held = np.minimum(np.minimum(l2 / tables / (value_bytes * c["dim"]), c["rows"]), asked)
    unique = unique_rows(c)
    hits = _set_products(held, c["rows"], c["lookups"]) if whole_bags else held / c["rows"]  # (gpus, shapes)
    filled = held.copy()
    for place in np.flatnonzero(c["alpha"]).tolist():
        counts, chances = _zipf(float(c["rows"][place]), float(c["alpha"][place]))
        for row in range(len(gpus)):
            filled[row, place] = _look_ups_for(float(held[row, place]), float(asked[place]), counts, chances)
            mass = float((counts * chances * -np.expm1(-chances * filled[row, place])).sum())
            hits[row, place] = mass ** float(max(c["lookups"][place], 1)) if whole_bags else mass
    misses = np.where(unique <= held, unique, held + (asked - filled) * (1 - hits))
    rate: Array = np.clip(1 - misses / asked, 0.0, 1.0)
    return rate


def _look_ups_for(held: float, asked: float, counts: Array, chances: Array) -> float:
    """Return the number of look-ups until `held` distinct rows were accessed; `asked` if this never happens."""
    low, high = 0.0, asked
    while low < (middle := (low + high) / 2) < high:  # until no number is between them
        low, high = (middle, high) if _different(middle, counts, chances) < held else (low, middle)
    return high


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def _set_products(held: Array, rows: Array, lookups: Array) -> Array:
    """Return the ratio of sets of cached rows to all sets of rows, C(X, L) / C(E, L), shape (gpus, shapes)."""
    rows, lookups = np.broadcast_to(rows, held.shape), np.broadcast_to(np.maximum(lookups, 1.0), held.shape)
    size = np.minimum(lookups, held)
    log_share = _log_gamma(held + 1) - _log_gamma(held - size + 1) - _log_gamma(rows + 1) + _log_gamma(rows - size + 1)
    share: Array = np.where(held >= np.minimum(lookups, rows), np.exp(np.minimum(log_share, 0.0)), 0.0)
    return share


def bag_seconds(batch: ShapeBatch, gpus: Sequence[Gpu]) -> Interval[Array]:
    """Predict the seconds of bags and their interval, shape (gpus, shapes)."""
    c = batch.columns
    value_bytes = COMPUTE_BYTES[batch.dtype]
    row_bytes = _sectors(value_bytes * c["dim"])
    rows = c["bags"] * c["lookups"] * row_bytes
    is_backward = batch.operation.endswith("_backward")
    if is_backward:
        rows = 2 * rows  # an update reads and writes each row
    around = c["bags"] * (3 * SECTOR_BYTES + _sectors(COMPUTE_BYTES["int32"] * c["lookups"]) + row_bytes)
    dram = per_gpu(gpus, lambda gpu: gpu.dram_bytes_per_second)
    cache = per_gpu(gpus, lambda gpu: gpu.l2_bytes_per_second)
    hits = hit_rate(c, gpus, value_bytes=value_bytes, whole_bags=is_backward)
    from_dram = (around + (1 - hits) * rows) / dram
    through_l2 = (around + rows) / cache
    dim = c["dim"]
    (shortest, most), (short, some) = SHORT_ROW_FACTORS
    factor: Array = np.where(dim <= shortest, most, np.where(dim <= short, some, 1.0))
    seconds = np.maximum(from_dram, through_l2) * factor + SHORTEST_KERNEL_SECONDS
    bound = roofline_seconds(batch, gpus, least=True)
    return Interval.from_factor(np.maximum(seconds, bound), SURROGATE_SPREAD).clamp_min(bound)


def _sectors(size_bytes: Array) -> Array:
    """Round bytes up to whole sectors."""
    whole: Array = SECTOR_BYTES * np.ceil(size_bytes / SECTOR_BYTES)
    return whole


@translates("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def _forward(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    if len(operation.inputs) < 2 or len(operation.inputs[0].shape) != 2:
        return None
    table, indices = operation.inputs[0], operation.inputs[1]
    bags = operation.inputs[2].elements if len(operation.inputs) > 2 else math.prod(indices.shape[:1])
    if operation.arguments.get("include_last_offset"):
        bags -= 1
    if min(bags, indices.elements, *table.shape) < 1:
        return ()
    lookups = max(indices.elements / bags, 1.0)
    dims = (bags, lookups, table.shape[0], table.shape[1], operation.arguments.get(ZIPF, 0.0))
    return (OperationShape("embedding_bag", compute_dtype(table), tuple(float(value) for value in dims)),)


@translates("aten::embedding_dense_backward")
def _embedding_backward(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count zeroing the table's gradient, reading each gradient row, and reading and writing the row's table row.

    A thread loads and adds one element in float32, so 16-bit rows take as long as 32-bit rows. NCF's 23 steps in
    float16 on 17 GPUs are 8 % too fast without this rule, and 2 % with the rule (training data).
    """
    gradient = operation.inputs[0]
    if not gradient.shape or "num_weights" not in operation.arguments:
        return None
    rows = float(operation.arguments["num_weights"])
    table_bytes = rows * gradient.size_bytes / max(gradient.elements, 1) * gradient.shape[-1]
    size = float(max(gradient.size_bytes, COMPUTE_BYTES["float32"] * gradient.elements))
    return (OperationShape("transfer", "float32", (2 * size, table_bytes + size, float(gradient.elements))),)


@translates("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward")
def _bag_backward(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Count the gradient of a table from the gradients of its bags.

    A dense gradient is zeroed as a whole, and each row is added at its index. Sorting reads and writes the indices once
    more. A sparse gradient has one row per look-up, copied from its bag; on the meta device, it has the shape of a
    dense gradient.
    """
    if len(operation.inputs) < 2 or "num_weights" not in operation.arguments:
        return None
    gradient, indices = operation.inputs[:2]
    if len(gradient.shape) != 2 or min(gradient.elements, indices.elements) < 1:
        return ()
    bags, dim = gradient.shape
    rows = int(operation.arguments["num_weights"])
    alpha = float(operation.arguments.get(ZIPF, 0.0))
    row_bytes = gradient.size_bytes / bags
    index_bytes = float(indices.size_bytes)
    if operation.arguments.get("sparse"):
        copied = indices.elements * row_bytes
        return (OperationShape("transfer", "float32", (copied + index_bytes, copied + index_bytes, 0.0)),)
    lookups = max(indices.elements / bags, 1.0)
    return (
        OperationShape("transfer", "float32", (index_bytes, rows * row_bytes + index_bytes, 0.0)),
        OperationShape(
            "embedding_bag_backward", compute_dtype(gradient), (float(bags), lookups, float(rows), float(dim), alpha)
        ),
    )


FBGEMM_OPTIMIZERS: Final = (  # Optimizers that FBGEMM fuses into its tables, each with its own look-up function
    "sgd approx_sgd adagrad rowwise_adagrad approx_rowwise_adagrad rowwise_weighted_adagrad "
    "rowwise_adagrad_with_counter adam partial_rowwise_adam lamb partial_rowwise_lamb lars_sgd none"
).split()

ASSUMED_DIM: Final = 64  # Assumed numbers per row if a trace does not contain them


@translates(
    "fbgemm::dense_embedding_codegen_lookup_function",
    *(f"fbgemm::split_embedding_codegen_lookup_{name}_function" for name in FBGEMM_OPTIMIZERS),
    *(f"fbgemm::split_embedding_codegen_lookup_{name}_function_pt2" for name in FBGEMM_OPTIMIZERS),
)
def _tables(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate a look-up in many tables at once, whose tensors hold the rows of all tables.

    The first two 64-bit integer tensors locate the tables. The next two are the indices and the offsets of the bags.
    Per-row optimizer state has one number per row, which gives the mean row length.
    """
    integers = [tensor for tensor in operation.inputs if tensor.dtype == "int64" and len(tensor.shape) == 1]
    numbers = [one for one in operation.inputs if one.dtype.startswith(("float", "bfloat")) and len(one.shape) == 1]
    if len(integers) < 4 or not numbers:
        return None
    _, _, indices, offsets = integers[:4]
    table = max(numbers, key=lambda tensor: tensor.elements)
    bags, asked = offsets.elements - 1, indices.elements
    if min(bags, asked, table.elements) < 1:
        return ()
    # Per-index weights have one number per index; the largest remaining tensor is the per-row state.
    state = [tensor.elements for tensor in numbers if tensor.elements < table.elements and tensor.elements != asked]
    rows = max(state, default=0) or max(table.elements / ASSUMED_DIM, 1.0)
    dims = (bags, asked / bags, rows, table.elements / rows, operation.arguments.get(ZIPF, 0.0))
    return (OperationShape("embedding_bag", compute_dtype(table), tuple(float(value) for value in dims)),)


register(
    *(
        OperationSpec(
            name=name,
            shape=("bags", "lookups", "rows", "dim", "alpha"),
            defaults={"lookups": 1, "alpha": 0},
            units="vector",
            flops=lambda c: c["bags"] * c["lookups"] * c["dim"],
            reads=reads,
            writes=writes,
            estimators=(Formula(seconds=bag_seconds),),
        )
        for name, reads, writes in (
            ("embedding_bag", _rows_once, _bags_once),
            ("embedding_bag_backward", _bags_once, _rows_once),
        )
    )
)
