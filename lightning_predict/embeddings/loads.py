"""Work that an embedding table causes on each GPU in one step, for each kind of sharding.

A kind of sharding determines the part of the table on each GPU (`TablePart`) and the communication. The loads of
several tables add up. A step has B samples on n GPUs, so each GPU has b = B / n samples:

* `table_wise`: a GPU holds the whole table. `column_wise`: each GPU holds some columns. Such a GPU looks up all B
  samples, and an all-to-all sends each GPU the vectors of its b samples.
* `row_wise`: each GPU holds some rows, and looks up the indices of all B samples that point to these rows. Each GPU has
  the same number of lookups, even for skewed lookups, because indices are hashed. With pooling, each GPU has a partial
  sum of a bag, and a reduce-scatter adds the partial sums. Without pooling, an all-to-all sends each row to the GPU of
  its sample.
* `data_parallel`: each GPU holds a copy of the table, and looks up its own b samples. Gradients are dense, and an
  all-reduce averages them.

Before the lookup, indices are sent to the GPUs that hold the rows. In the backward pass, gradients go the same way. One
kernel computes a sharded table's gradients and updates its rows. A copy has a dense gradient, and an optimizer kernel
updates all rows. To add a kind of sharding, add a row to `KINDS`. Example::

    >>> from lightning_predict.embeddings.tables import EmbeddingTable
    >>> table = EmbeddingTable(rows=10, dim=64, pooling=5)
    >>> [(part.num_gpus, part.rows, part.lookups) for part in KINDS["row_wise"].parts(table, 4, 1024)]
    [(3, 3, 1.5), (1, 1, 0.5)]
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from lightning_predict.embeddings.tables import EmbeddingTable, OptimizerState
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.families.embedding import unique_rows
from lightning_predict.kernels.operations import Array, OperationShape, batch_shapes
from lightning_predict.kernels.timing import KernelModels, predict_operation_times
from lightning_predict.uncertainty import SURROGATE_SPREAD


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """Part of an embedding table on a GPU, with its lookups in a step."""

    rows: int
    dim: int
    bags: float
    lookups: float  # Mean number of local rows that are summed per vector; below 1 if most of a bag is on other GPUs
    num_gpus: int  # Number of consecutive GPUs that each hold a part of this size
    alpha: float = 0.0  # Exponent of Zipf's law for the lookups

    def as_operation(self, operation: str, dtype: str) -> OperationShape:
        """Return the lookup as an operation shape, which the kernel models can time."""
        return OperationShape(
            operation, dtype, (self.bags, self.lookups, float(self.rows), float(self.dim), self.alpha)
        )


@dataclass(frozen=True, slots=True)
class Sharding:
    """A kind of sharding."""

    # Function that returns the parts on the GPUs, in order, from (table, number of GPUs, samples of all GPUs)
    parts: Callable[[EmbeddingTable, int, int], tuple[TablePart, ...]]
    splits_rows: bool = False  # Whether each GPU has only some of the rows of a bag
    replicates: bool = False  # Whether each GPU has a copy of the whole table


def _whole_table(table: EmbeddingTable, samples: float, holders: int) -> tuple[TablePart, ...]:
    bags = samples * table.vectors
    return (
        TablePart(
            rows=table.rows, dim=table.dim, bags=bags, lookups=table.pooling, num_gpus=holders, alpha=table.alpha
        ),
    )


def _table_wise(table: EmbeddingTable, _gpus: int, samples: int) -> tuple[TablePart, ...]:
    return _whole_table(table, samples, 1)


def _data_parallel(table: EmbeddingTable, gpus: int, samples: int) -> tuple[TablePart, ...]:
    return _whole_table(table, local_samples(samples, gpus), gpus)


def _row_wise(table: EmbeddingTable, gpus: int, samples: int) -> tuple[TablePart, ...]:
    """Split a table into equal blocks of rows; some GPUs hold no rows of a small table."""
    block = math.ceil(table.rows / gpus)
    blocks = ((table.rows // block, block), (1, table.rows % block))
    parts = []
    for holders, rows in blocks:
        if holders and rows:
            share = rows / table.rows
            # With pooling, a GPU sums the bag's local rows. Without pooling, a row is on one GPU, so each GPU outputs a
            # share of
            # the rows.
            bags, lookups = (1.0, table.pooling * share) if table.is_pooled else (share, 1.0)
            bags *= samples * table.vectors
            parts.append(
                TablePart(rows=rows, dim=table.dim, bags=bags, lookups=lookups, num_gpus=holders, alpha=table.alpha)
            )
    return tuple(parts)


def _column_wise(table: EmbeddingTable, gpus: int, samples: int) -> tuple[TablePart, ...]:
    """Split a table into column slices of almost equal width; a narrow table leaves some GPUs empty."""
    slices = min(gpus, table.dim)
    width, wider = divmod(table.dim, slices)
    bags = samples * table.vectors
    return tuple(
        TablePart(rows=table.rows, dim=dim, bags=bags, lookups=table.pooling, num_gpus=holders, alpha=table.alpha)
        for holders, dim in ((wider, width + 1), (slices - wider, width))
        if holders
    )


KINDS: Final[Mapping[str, Sharding]] = {
    "table_wise": Sharding(_table_wise),
    "row_wise": Sharding(_row_wise, splits_rows=True),
    "column_wise": Sharding(_column_wise),
    "data_parallel": Sharding(_data_parallel, replicates=True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Work of one step on n GPUs, for one table or the sum of several tables."""

    forward_seconds: Array  # Time of lookups on each GPU: middle, low and high end of the interval, shape (3, n)
    backward_seconds: Array  # Time of gradients and update on each GPU, shape (3, n)
    memory_bytes: Array  # Size of parameters, optimizer state and dense gradients on each GPU, shape (n,)
    index_bytes: Array  # Size of the indices that each GPU receives from every GPU, shape (n,)
    vector_bytes: Array  # Size of the vectors that each GPU sends to every GPU, shape (n,)
    partial_sum_bytes: Array  # Message size of the reduce-scatter of partial sums, shape ()
    dense_gradient_bytes: Array  # Message size of the all-reduce of dense gradients, shape ()

    def __add__(self, other: Load) -> Load:
        return Load(*map(operator.add, self._values, other._values))

    def __sub__(self, other: Load) -> Load:
        return Load(*map(operator.sub, self._values, other._values))

    def moved_to(self, gpu: int) -> Load:
        """Return the load rotated by `gpu` GPUs, which moves the first GPU's work to this GPU."""
        return Load(*(np.roll(value, gpu, axis=-1) if value.ndim else value for value in self._values))

    @property
    def _values(self) -> tuple[Array, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


def empty_load(gpus: int) -> Load:
    """Return a load without any work on `gpus` GPUs."""
    zeros, nothing = np.zeros(gpus), np.zeros(())
    return Load(np.zeros((3, gpus)), np.zeros((3, gpus)), zeros, zeros, zeros, nothing, nothing)


def local_samples(samples: int, gpus: int) -> int:
    """Return the samples per GPU, rounded up."""
    return math.ceil(samples / gpus)


def loads_of(
    tables: Sequence[EmbeddingTable],
    kinds: Sequence[str],
    layout: Layout,
    samples: int,
    optimizer: OptimizerState,
    models: KernelModels | None,
) -> tuple[Mapping[str, Load], ...]:
    """Return the load of each table by kind of sharding. A whole table is placed on the first GPU."""
    parts = {(table, kind): KINDS[kind].parts(table, layout.count, samples) for table in tables for kind in kinds}
    shapes = list(
        dict.fromkeys(
            shape
            for (table, kind), pieces in parts.items()
            for piece in pieces
            for step in _operations(table, kind, piece, optimizer)
            for shape in step
        )
    )
    times = predict_operation_times(shapes, [layout.gpu], models).interval
    columns = np.stack([times.middle[0], times.low[0], times.high[0]])  # (3, shapes)
    seconds = {shape: columns[:, index] for index, shape in enumerate(shapes)}
    loads = {key: _load(*key, pieces, layout, samples, optimizer, seconds) for key, pieces in parts.items()}
    return tuple({kind: loads[table, kind] for kind in kinds} for table in tables)


def _operations(
    table: EmbeddingTable, kind: str, part: TablePart, optimizer: OptimizerState
) -> tuple[tuple[OperationShape, ...], tuple[OperationShape, ...]]:
    forward = part.as_operation("embedding_bag", table.dtype)
    backward = part.as_operation("embedding_bag_backward", table.dtype)
    if not KINDS[kind].replicates:
        return (forward,), (backward,)
    size = table.parameter_bytes
    state = optimizer.size_bytes(table.rows, table.dim)
    # The update fills the gradient; reads gradient, parameters and state; and writes parameters and state.
    update = OperationShape("transfer", "float32", (2 * size + state, 2 * size + state, 2.0 * table.rows * table.dim))
    return (forward,), (backward, update)


def _load(
    table: EmbeddingTable,
    kind: str,
    parts: Sequence[TablePart],
    layout: Layout,
    samples: int,
    optimizer: OptimizerState,
    seconds: Mapping[OperationShape, Array],
) -> Load:
    sharding, gpus = KINDS[kind], layout.count
    forward, backward, memory, indices, vectors = [], [], [], [], []
    sums = sharding.splits_rows and table.is_pooled
    local = 0 if sharding.replicates else local_samples(samples, gpus)
    for part in parts:
        forwards, backwards = _operations(table, kind, part, optimizer)
        forward.append(sum(seconds[shape] for shape in forwards))
        state = np.zeros(3) if sharding.replicates else _state_seconds(part, backwards[0], layout, optimizer)
        backward.append(sum((seconds[shape] for shape in backwards), state))
        held = part.rows * part.dim * table.value_bytes
        memory.append(held * (2 if sharding.replicates else 1) + optimizer.size_bytes(part.rows, part.dim))
        share = part.rows / table.rows
        indices.append(local * table.index_bytes_per_sample(share))
        vectors.append(0.0 if sums else local * table.vector_bytes_per_sample * share * part.dim / table.dim)

    def on_gpus(values: Sequence[Array | float]) -> Array:
        each = np.repeat(np.array(values), [part.num_gpus for part in parts], axis=0)
        padding = [(0, gpus - len(each))] + [(0, 0)] * (each.ndim - 1)
        on_each: Array = np.pad(each, padding).T  # (3, gpus), or (gpus,) without an interval
        return on_each

    return Load(
        on_gpus(forward),
        on_gpus(backward),
        on_gpus(memory),
        on_gpus(indices),
        on_gpus(vectors),
        np.array(gpus * local * table.vector_bytes_per_sample if sums else 0.0),
        np.array(table.parameter_bytes if sharding.replicates else 0.0),
    )


def _state_seconds(part: TablePart, update: OperationShape, layout: Layout, optimizer: OptimizerState) -> Array:
    """Return the time to read and write the optimizer state of the looked-up rows, as part of the update kernel."""
    rows = float(unique_rows(batch_shapes([update]).columns)[0])
    seconds = optimizer.traffic_bytes(rows, part.dim) / layout.gpu.dram_bytes_per_second
    return seconds * np.array([1.0, 1.0 / SURROGATE_SPREAD, SURROGATE_SPREAD])
