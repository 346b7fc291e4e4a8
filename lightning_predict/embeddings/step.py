"""One training step of sharded embedding tables: lookups and updates on each GPU, and communication between GPUs.

The step waits for its slowest GPU twice: vectors are exchanged after the last lookup, and the step ends with the last
update. Overlap and other layers are ignored here, so plans differ only by their sharding. An all-to-all takes as
long as its busiest GPU needs. GPU i sends c_i bytes to each of the n - 1 others, and receives the sum of the others' c.
`alltoall_message` converts the larger amount, on the busiest GPU, to the message of an equally long even all-to-all
(Lin et al., HiPC 2022). Example::

    >>> from lightning_predict.embeddings.tables import EmbeddingTable
    >>> tables = [EmbeddingTable(rows=10**6, dim=64, pooling=20) for _ in range(16)]
    >>> places = [Assignment(table, "table_wise", gpu=index % 8) for index, table in enumerate(tables)]
    >>> plan = sharded_step(places, "8xA100-SXM-80GB", samples=65536)
    >>> round(plan.imbalance, 6), [(one.operation, one.carries) for one in plan.exchanges]
    (1.0, [('alltoall', 'indices'), ('alltoall', 'vectors'), ('alltoall', 'gradients')])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

import numpy as np

from lightning_predict.base.checked import read_json
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import bytes_to_gibibytes, bytes_to_mebibytes, seconds_to_milliseconds
from lightning_predict.embeddings.loads import KINDS, Load, empty_load, loads_of
from lightning_predict.embeddings.tables import EmbeddingTable, OptimizerState
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.timing import KernelModels
from lightning_predict.layouts.overlap import OVERLAP_COSTS, Links
from lightning_predict.record.optimizers import OPTIMIZERS, TABLE_OPTIMIZERS

WHOLE: Final = "table_wise"  # Kind of sharding that places a whole table on one GPU


@dataclass(frozen=True, slots=True)
class Assignment:
    """Sharding of one table."""

    table: EmbeddingTable  # The table
    kind: str  # A key of `KINDS`: `table_wise`, `row_wise`, `column_wise` or `data_parallel`.
    gpu: int | None = None  # Index of the GPU that holds a `table_wise` table; None for other kinds, which use all GPUs


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective of the step, and the name of the data that it carries.

    An uneven all-to-all has the message size of the even all-to-all with the same load on the busiest link.
    """

    operation: str
    carries: str
    message_bytes: float
    time: Interval[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingPlan:
    """Sharding of all tables, with time and memory of a step."""

    layout: str
    samples: int  # Number of samples per step on all GPUs together
    assignments: tuple[Assignment, ...]  # Sharding of each table, in the order of the tables
    time: Interval[float]  # Seconds of a step: slowest lookup, slowest update and all collectives
    forward_seconds: tuple[float, ...]  # Time of lookups on each GPU
    backward_seconds: tuple[float, ...]  # Time of gradients and updates on each GPU
    exchanges: tuple[Exchange, ...]  # Collectives in order; empty on one GPU
    memory_bytes: tuple[float, ...]  # Size of parameters, optimizer state and dense gradients on each GPU

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.time.middle

    @property
    def name(self) -> str:
        """Kind of sharding of all tables; `mixed` if tables have different kinds."""
        kinds = {assignment.kind for assignment in self.assignments}
        return kinds.pop() if len(kinds) == 1 else "mixed"

    @property
    def gpu_seconds(self) -> tuple[float, ...]:
        """Seconds of lookups, gradients and updates on each GPU."""
        return tuple(map(sum, zip(self.forward_seconds, self.backward_seconds, strict=True)))

    @property
    def compute_seconds(self) -> float:
        """Forward time of the slowest GPU plus backward time of the slowest GPU, in seconds."""
        return max(self.forward_seconds) + max(self.backward_seconds)

    @property
    def communication_seconds(self) -> float:
        """Total seconds of all collectives."""
        return sum(exchange.time.middle for exchange in self.exchanges)

    @property
    def imbalance(self) -> float:
        """Time of the slowest GPU divided by the mean time; 1 if the load is balanced."""
        return max(self.gpu_seconds) / (sum(self.gpu_seconds) / len(self.gpu_seconds))

    @property
    def reason(self) -> str:
        """Text that summarizes the step's time and memory."""
        sent = bytes_to_mebibytes(sum(exchange.message_bytes for exchange in self.exchanges))
        exchanged = f", {in_milliseconds(self.communication_seconds)} for exchanging {sent:,.3g} MiB"
        return (
            f"{in_milliseconds(self.compute_seconds)} for look-ups and updates (imbalance {self.imbalance:.2f})"
            f"{exchanged if self.exchanges else ''}; {in_gibibytes(max(self.memory_bytes))} on the fullest GPU"
        )


def sharded_step(
    assignments: Sequence[Assignment],
    layout: Layout | str,
    *,
    samples: int,
    optimizer: str = "sgd",
    interconnect: Interconnect = CATALOGUE,
    models: KernelModels | None = None,
) -> ShardingPlan:
    """Predict one step of sharded tables.

    Args:
        assignments: Sharding of each table.
        layout: The GPUs as a layout or its name, for example `8xA100-SXM-80GB`.
        samples: Number of samples per step on all GPUs together.
        optimizer: One of `TABLE_OPTIMIZERS`: `sgd`, `row_wise_adagrad`, `adagrad` or `adam`.
        interconnect: Known bandwidths of the links between GPUs.
        models: Kernel models; None loads the GPU's weights from the cache or the package.

    Raises:
        InvalidArgumentError: An optimizer is unknown, a GPU is not in the layout, or there are fewer samples
            than GPUs.
        UnknownGpuError: The catalogue does not have the GPU.
        WeightsError: Weights cannot be found or trusted.
    """
    target = layout_of(layout) if isinstance(layout, str) else layout
    state = checked_optimizer(optimizer)
    check_samples(samples, target)
    for assignment in assignments:
        _check_assignment(assignment, target)
    kinds = list(dict.fromkeys(assignment.kind for assignment in assignments))
    models = kernel_models((target.gpu.name,)) if models is None else models
    loads = loads_of([assignment.table for assignment in assignments], kinds, target, samples, state, models)
    return plan_of(assignments, list(map(load_at, assignments, loads)), target, samples, interconnect)


def load_at(assignment: Assignment, loads: Mapping[str, Load]) -> Load:
    """Return the load of a table on its assigned GPU."""
    load = loads[assignment.kind]
    return load if assignment.gpu is None else load.moved_to(assignment.gpu)


def plan_of(
    assignments: Sequence[Assignment], loads: Sequence[Load], layout: Layout, samples: int, interconnect: Interconnect
) -> ShardingPlan:
    """Return the plan for assignments and their loads."""
    load = sum(loads, empty_load(layout.count))
    links, exchanges = training_links(layout, interconnect), list[Exchange]()
    for operation, carries, message_bytes in messages_of(load):
        (ends,) = links.collective(operation, [message_bytes])
        exchanges.append(Exchange(operation, carries, message_bytes, Interval(*ends.tolist())))
    computing = load.forward_seconds.max(axis=1) + load.backward_seconds.max(axis=1)  # (3,): middle, low and high end
    middle, low, high = (float(value) for value in computing)
    time = reduce(Interval.added, (exchange.time for exchange in exchanges), Interval(low, middle, high))
    return ShardingPlan(
        layout=layout.name,
        samples=samples,
        assignments=tuple(assignments),
        time=time,
        forward_seconds=tuple(load.forward_seconds[0].tolist()),
        backward_seconds=tuple(load.backward_seconds[0].tolist()),
        exchanges=tuple(exchanges),
        memory_bytes=tuple(load.memory_bytes.tolist()),
    )


def messages_of(load: Load) -> tuple[tuple[str, str, float], ...]:
    """Return the collectives of a step in order, as (operation, name of the data, message bytes); none on one GPU."""
    if len(load.memory_bytes) == 1:
        return ()
    vectors, sums = alltoall_message(load.vector_bytes), float(load.partial_sum_bytes)
    messages = (
        ("alltoall", "indices", alltoall_message(load.index_bytes)),
        ("alltoall", "vectors", vectors),
        ("reduce_scatter", "partial sums", sums),
        ("alltoall", "gradients", vectors),
        ("all_gather", "gradients of the sums", sums),
        ("all_reduce", "dense gradients", float(load.dense_gradient_bytes)),
    )
    return tuple(message for message in messages if message[2] >= 1)  # less than a byte is a rounding error


def training_links(layout: Layout, interconnect: Interconnect) -> Links:
    """Return links whose collectives are slowed down by overlapping kernels, as in `predict`."""
    return Links(layout, interconnect, OVERLAP_COSTS.slowdown_on(layout))


def alltoall_message(chunk_bytes: Array) -> float:
    """Return the message size of the even all-to-all with the same load on its busiest link (Lin et al.).

    The formula also holds if each GPU receives, instead of sends, a chunk from every other GPU.

    Args:
        chunk_bytes: Bytes that each GPU sends to every other GPU, shape (gpus,), for at least two GPUs.
    """
    gpus = len(chunk_bytes)
    busiest = np.maximum(chunk_bytes.sum() - chunk_bytes, chunk_bytes * (gpus - 1)).max()
    return float(busiest) * gpus / (gpus - 1)


def checked_optimizer(name: str) -> OptimizerState:
    """Return the optimizer state of an optimizer."""
    values = OPTIMIZERS[name].table_values if name in OPTIMIZERS else None
    if values is None:
        raise InvalidArgumentError(f"optimizer={name!r} is not known; choose one of {', '.join(TABLE_OPTIMIZERS)}.")
    return OptimizerState(per_element=values[0], per_row=values[1])


def check_samples(samples: int, layout: Layout) -> None:
    """Raise an error for a step with fewer samples than GPUs."""
    if samples < layout.count:
        raise InvalidArgumentError(
            f"samples={samples!r} for the {layout.count} GPU(s) of {layout.name}; expected at least one sample per GPU."
        )


def _check_assignment(assignment: Assignment, layout: Layout) -> None:
    kind, gpu = assignment.kind, assignment.gpu
    if kind == WHOLE and (gpu is None or not 0 <= gpu < layout.count):
        raise InvalidArgumentError(
            f"A table_wise table is on GPU {gpu!r}; expected 0 to {layout.count - 1}, as {layout.name} has "
            f"{layout.count} GPU(s)."
        )
    if kind != WHOLE and gpu is not None:
        raise InvalidArgumentError(f"A {kind} table is on all GPUs, but gpu={gpu!r}; leave it out.")


def in_milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds."""
    return f"{seconds_to_milliseconds(seconds):.3g} ms"


def in_gibibytes(size_bytes: float) -> str:
    """Format bytes as GiB."""
    return f"{bytes_to_gibibytes(size_bytes):,.3g} GiB"


def plan_document(plan: ShardingPlan, optimizer: str) -> dict[str, object]:
    """Return the contents of a plan file: kind and GPU of each table, layout and optimizer."""
    return {
        "layout": plan.layout,
        "optimizer": optimizer,
        "tables": [
            {
                "name": assignment.table.name,
                "rows": assignment.table.rows,
                "dim": assignment.table.dim,
                "kind": assignment.kind,
                "gpu": assignment.gpu,
            }
            for assignment in plan.assignments
        ],
    }


def read_sharding_plan(path: Path, tables: Sequence[EmbeddingTable]) -> tuple[tuple[Assignment, ...], str]:
    """Return the sharding of each table and the optimizer from a plan written by `lightning-predict shard --output`."""
    document = read_json(path, InvalidArgumentError, name="sharding plan")
    rows = document.member("tables").items()
    if len(rows) != len(tables):
        raise InvalidArgumentError(f"{path} shards {len(rows)} tables, and the step looks up {len(tables)}.")
    assignments = []
    for number, (row, table) in enumerate(zip(rows, tables, strict=True)):
        size = (row.member("rows").integer(minimum=1), row.member("dim").integer(minimum=1))
        if size != (table.rows, table.dim):
            raise InvalidArgumentError(
                f"{path}: table {number} has {size[0]:,} rows of {size[1]}, but in the step, "
                f"{table.name or number!r} has {table.rows:,} of {table.dim}; shard this step again."
            )
        kind = row.member("kind").choice(tuple(KINDS))
        gpu = None if row.member("gpu").value is None else row.member("gpu").integer()
        assignments.append(Assignment(table, kind, gpu))
    return tuple(assignments), document.member("optimizer").choice(TABLE_OPTIMIZERS)
