"""`EmbeddingTable`: an embedding table of a recommendation model and its lookups.

A table has rows of `dim` numbers. A sample reads `vectors` vectors from the table, and each vector is the sum of
`pooling` rows. `nn.EmbeddingBag` reads one vector per sample. `nn.Embedding` reads one vector per token; each vector is
a single row. Example::

    >>> table = EmbeddingTable(rows=1_000_000, dim=64, pooling=20)
    >>> table.parameter_bytes, table.vector_bytes_per_sample, table.index_bytes_per_sample()
    (256000000, 256.0, 168.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from lightning_predict.assumptions import Skew
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.families.embedding import ZIPF
from lightning_predict.kernels.memory_bound import LOOK_UP_CALLS
from lightning_predict.kernels.operations import COMPUTE_BYTES
from lightning_predict.kernels.roofline import SECTOR_BYTES
from lightning_predict.kernels.translation import compute_dtype, translate
from lightning_predict.record.trace import DTYPE_BYTES, Operation, Trace

DTYPES: Final = ("float32", "float16", "bfloat16", "float64")
MAX_ALPHA: Final = 4.0  # Maximum exponent of Zipf's law. With larger exponents, lookups read only a few rows.


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingTable:
    """Embedding table and its lookups per sample.

    Raises:
        InvalidArgumentError: The tables of this dtype cannot be sharded.
    """

    rows: int  # Number of rows
    dim: int  # Number of columns
    pooling: float = 1.0  # Mean number of rows that are summed into a vector ("pooling factor")
    vectors: float = 1.0  # Mean number of vectors per sample
    is_pooled: bool = True  # Whether rows are summed; False for `nn.Embedding`, where each row is a vector
    dtype: str = "float32"  # `float32`, `float16`, `bfloat16` or `float64`
    name: str | None = None  # Display name; None shows the table's number
    alpha: float = 0.0  # Skew of the lookups: the exponent of Zipf's law, 0 for uniform lookups

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidArgumentError(
                f"Embedding table {self.name!r}: dtype={self.dtype!r}; expected one of {', '.join(DTYPES)}."
            )

    @property
    def value_bytes(self) -> float:
        """Bytes of one number of the table."""
        return COMPUTE_BYTES[self.dtype]

    @property
    def parameter_bytes(self) -> float:
        """Size of the table in bytes."""
        return self.rows * self.dim * self.value_bytes

    @property
    def vector_bytes_per_sample(self) -> float:
        """Size of a sample's vectors in bytes."""
        return self.vectors * self.dim * self.value_bytes

    def index_bytes_per_sample(self, share: float = 1.0) -> float:
        """Return the bytes of a sample's indices, including the lengths of pooled bags.

        Args:
            share: Share of the rows; only indices that point to these rows count.
        """
        return self.vectors * (self.pooling * share + self.is_pooled) * DTYPE_BYTES["int64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """Number of values that an optimizer stores per element and per row of a table."""

    per_element: float = 0
    per_row: float = 0

    def size_bytes(self, rows: float, dim: float) -> float:
        """Return the size of the optimizer state of `rows` rows in bytes."""
        return DTYPE_BYTES["float32"] * rows * (self.per_element * dim + self.per_row)

    def traffic_bytes(self, rows: float, dim: float) -> float:
        """Return the bytes to read and write the optimizer state of `rows` scattered rows, in whole memory sectors."""
        sectors = math.ceil(DTYPE_BYTES["float32"] * dim / SECTOR_BYTES) * self.per_element + self.per_row
        return 2 * rows * sectors * SECTOR_BYTES


@dataclass(frozen=True, slots=True)
class TracedTables:
    """Embedding tables of a recorded step, in the order of their first lookup, and the samples of its batch."""

    tables: tuple[EmbeddingTable, ...]
    batch_size: int


def tables_of_trace(trace: Trace) -> TracedTables:
    """Return the embedding tables that the forward pass reads. Several lookups of one table are merged.

    If the trace lacks the number of samples, the first lookup determines it: by its number of bags, or by the first
    dimension of its indices.

    Raises:
        InvalidArgumentError: The trace has no lookup, or fewer samples than batches.
    """
    groups: dict[object, list[Operation]] = {}
    for position, operation in enumerate(trace.operations):
        if is_look_up(operation):
            groups.setdefault(_weights(operation, position), []).append(operation)
    if not groups:
        raise InvalidArgumentError(
            f"The trace has no look-up of an embedding table ({', '.join(LOOK_UP_CALLS)}) in its forward pass; record "
            "a training step of a model with nn.EmbeddingBag or nn.Embedding."
        )
    samples = trace.samples
    if samples is None:
        samples = trace.batches * _samples(next(iter(groups.values()))[0], trace)
    if samples < trace.batches:
        raise InvalidArgumentError(f"The trace has {samples} sample(s) in {trace.batches} batches; record it again.")
    tables = tuple(_table(operations, trace, samples) for operations in groups.values())
    return TracedTables(tables, samples // trace.batches)


def is_look_up(operation: Operation) -> bool:
    """Return whether an operation is an embedding lookup of the forward pass."""
    inputs = operation.inputs
    if operation.phase != "forward" or operation.name not in LOOK_UP_CALLS:
        return False
    return len(inputs) > 1 and len(inputs[0].shape) == 2 and inputs[0].elements > 0 and inputs[1].elements > 0


def _weights(operation: Operation, position: int) -> object:
    """Return an identifier of a lookup's table: its storage id, its module, or the position of the lookup."""
    weights = operation.inputs[0]
    if weights.id is not None:
        return weights.id
    return position if operation.module is None else (operation.module, weights.shape)


def _samples(operation: Operation, trace: Trace) -> int:
    if operation.name == "aten::embedding":
        indices = operation.inputs[1]
        return indices.shape[0] if indices.shape else 1
    return max(1, int(_vectors_and_lookups(operation, trace)[0]))


def _vectors_and_lookups(operation: Operation, trace: Trace) -> tuple[float, float]:
    """Return the number of output vectors of a lookup, and the number of rows that the lookup reads."""
    (shape,) = translate(operation, trace.flags)
    if shape.operation == "embedding_bag":
        bags, lookups, *_ = shape.dims
        return bags, bags * lookups
    indices = float(operation.inputs[1].elements)
    return indices, indices


def _table(operations: list[Operation], trace: Trace, samples: int) -> EmbeddingTable:
    first = operations[0]
    weights = first.inputs[0]
    counts = [_vectors_and_lookups(operation, trace) for operation in operations]
    vectors, lookups = (math.fsum(column) for column in zip(*counts, strict=True))
    return EmbeddingTable(
        rows=weights.shape[0],
        dim=weights.shape[1],
        pooling=lookups / vectors,
        vectors=vectors / samples,
        is_pooled=first.name != "aten::embedding",
        dtype=compute_dtype(weights),
        name=first.module,
        alpha=float(first.arguments.get(ZIPF, 0.0)),
    )


BACKWARDS: Final = ("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward")


def with_skew(trace: Trace, skew: Skew) -> Trace:
    """Return the trace with Zipf-distributed lookups, because a recording does not show how often each row is read.

    Args:
        trace: The recorded step.
        skew: One exponent for all tables, or an exponent per table name; other tables have uniform lookups.
    """
    modules = {
        operation.module for operation in trace.operations if is_look_up(operation) and operation.module is not None
    }
    named = dict.fromkeys(modules, float(skew)) if isinstance(skew, (int, float)) else dict(skew)
    unknown = sorted(set(named) - modules)
    if unknown:
        raise InvalidArgumentError(
            f"zipf_alpha names {unknown[0]!r}, which looks up no table; there are {', '.join(sorted(modules))}."
        )
    for name, alpha in named.items():
        if not 0 <= alpha <= MAX_ALPHA:
            raise InvalidArgumentError(f"zipf_alpha={alpha!r} of {name!r}; expected a number from 0 to {MAX_ALPHA:g}.")
    return replace(
        trace,
        operations=tuple(
            replace(operation, arguments={**operation.arguments, ZIPF: named[operation.module]})
            if operation.module in named and (operation.name in LOOK_UP_CALLS or operation.name in BACKWARDS)
            else operation
            for operation in trace.operations
        ),
    )
