"""Order in which operations are measured: most useful shapes first.

A network is tuned only if its family of operations has at least `MIN_OWN_ROWS` rows; otherwise, the rows are not used.
Therefore the families in `FAMILY_ORDER` are measured one after another, each until it has enough rows. Then, each other
operation gets twice `MIN_FACTOR_ROWS` shapes, for a correction factor. Other families and more shapes follow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from typing import Final

from lightning_predict.kernels.operations import (
    NetworkSpec,
    network_spec,
    network_specs,
    operation_names,
    operation_spec,
    shape_batch,
)
from lightning_predict.own_weights.measuring.benchmarks import Words, draw_shapes
from lightning_predict.own_weights.training.factors import MIN_FACTOR_ROWS
from lightning_predict.own_weights.training.tables import split_rows
from lightning_predict.own_weights.training.tuning import MIN_OWN_ROWS

FAMILY_ORDER: Final = ("convolution_tensor", "matmul_half", "vector")
"""Families of operations with the largest shares of a typical training step, largest share first."""

USUAL_SHAPES: Final = 200  # Default number of shapes per operation and dtype
LOADED_SHAPES: Final = 2  # Number of shapes of an operation and dtype that are also measured under load
LOADED_FLOPS: Final = 100_000_000_000.0  # Minimum FLOPs of a call that is measured under load: about 0.2 ms on an H100
MARGIN: Final = 1.05  # Factor on the number of planned rows, because some shapes do not fit in memory


@dataclass(frozen=True, slots=True)
class ShapeToMeasure:
    """A shape of an operation in one dtype, to be measured."""

    operation: str
    dtype: str  # A key of `run.DTYPES`
    parameters: Words = field(hash=False)
    calls: tuple[str, ...]  # Names of the calls to time. A row of the first call marks the shape as measured.
    is_loaded: bool = False  # Whether the sustained time is measured, too

    def __str__(self) -> str:
        return f"{self.operation} {self.dtype} {self.parameters}"


@cache
def calls_of(operation: str) -> tuple[str, ...]:
    """Return the names of the forward and backward calls of an operation."""
    backwards = [name for name in operation_names() if name.startswith(f"{operation}_backward")]
    return (operation, *backwards)


def shapes_by_worth(
    operations: Sequence[str],
    dtypes: Sequence[str],
    count: int | None,
    *,
    seed: int,
    is_possible: Callable[[ShapeToMeasure], bool] = lambda _: True,
) -> list[ShapeToMeasure]:
    """Return all shapes to measure, most useful shapes first; arguments as in `run.measure`."""

    def shapes(operation: str, number: int) -> list[Words]:
        """Return shapes of an operation; a larger number starts with those of a smaller one."""
        return draw_shapes(operation, number if count is None else min(number, count), seed=seed)

    order: list[ShapeToMeasure] = []
    known = network_specs()
    for name in FAMILY_ORDER:
        order += _of_family(known[name], operations, dtypes, shapes, is_possible)
    order += _for_factors(operations, dtypes, shapes)
    for name in known:
        if name not in FAMILY_ORDER:
            order += _of_family(known[name], operations, dtypes, shapes, is_possible)
    rest = USUAL_SHAPES if count is None else count
    order += _round_robin(
        (operation, dtype, calls_of(operation), shapes(operation, rest))
        for operation in operations
        for dtype in dtypes_of(operation, dtypes)
    )
    return _with_loads(_once(order))


def dtypes_of(operation: str, dtypes: Sequence[str]) -> Sequence[str]:
    """Return the dtypes in which an operation is measured, without equivalent dtypes.

    If only the number of bytes matters, all dtypes are equivalent. TF32 is equivalent to float32 in operations without
    matmuls.
    """
    kind = operation_spec(operation)
    if kind.element_bytes is not None:
        return dtypes[:1]
    if kind.units != "tensor" and "float32" in dtypes:
        return [dtype for dtype in dtypes if dtype != "tf32"]
    return dtypes


Shapes = Callable[[str, int], list[Words]]  # Function that returns a number of shapes of an operation


_Part = tuple[str, str, tuple[str, ...], list[Words]]  # Operation, dtype, passes and shapes


def _of_family(
    family: NetworkSpec,
    operations: Sequence[str],
    dtypes: Sequence[str],
    shapes: Shapes,
    is_possible: Callable[[ShapeToMeasure], bool],
) -> list[ShapeToMeasure]:
    """Return the shapes of a family to measure until the family has enough rows."""
    needed = MARGIN * MIN_OWN_ROWS
    pairs = [
        (operation, dtype, learned)
        for operation in operations
        for dtype in dtypes
        if dtype in family.dtypes
        and (learned := tuple(name for name in calls_of(operation) if network_spec(name, dtype) is family))
    ]
    if not pairs:
        return []
    count = math.ceil(2 * needed / sum(len(learned) for *_, learned in pairs))  # some are held out, some not possible
    order = []
    fitted = 0
    for shape in _round_robin(
        (operation, dtype, learned, shapes(operation, count)) for operation, dtype, learned in pairs
    ):
        if fitted >= needed:
            break
        if is_possible(shape):
            order.append(shape)
            columns = shape_batch(shape.operation, shape.dtype, **shape.parameters).columns
            fitted += len(shape.calls) * bool(split_rows(columns, seed=0).fitted[0])
    return order


def _for_factors(operations: Sequence[str], dtypes: Sequence[str], shapes: Shapes) -> list[ShapeToMeasure]:
    """Return shapes for every call that has no trainable network."""
    return list(
        _round_robin(
            (operation, dtype, passes, shapes(operation, 2 * MIN_FACTOR_ROWS))
            for operation in operations
            for dtype in dtypes_of(operation, dtypes)
            if (passes := tuple(name for name in calls_of(operation) if network_spec(name, dtype) is None))
        )
    )


def _round_robin(parts: Iterator[_Part] | Sequence[_Part]) -> Iterator[ShapeToMeasure]:
    """Yield the first shape of each part, then the second shape of each part, and so on."""
    rows = [
        [ShapeToMeasure(operation, dtype, words, passes) for words in shapes]
        for operation, dtype, passes, shapes in parts
    ]
    for turn in zip_longest(*rows):
        yield from (entry for entry in turn if entry is not None)


def _with_loads(order: Sequence[ShapeToMeasure]) -> list[ShapeToMeasure]:
    """Mark the first `LOADED_SHAPES` long shapes of each operation and dtype that are measured under load, too."""
    marked, count = [], Counter[tuple[str, str]]()
    for shape in order:
        is_loaded = count[shape.operation, shape.dtype] < LOADED_SHAPES and _is_long(shape)
        count[shape.operation, shape.dtype] += is_loaded
        marked.append(replace(shape, is_loaded=True) if is_loaded else shape)
    return marked


def _is_long(requested: ShapeToMeasure) -> bool:
    family = network_spec(requested.calls[0], requested.dtype)
    batch = shape_batch(requested.operation, requested.dtype, **requested.parameters)
    is_matrix = family is not None and family.name in FAMILY_ORDER and batch.spec.units == "tensor"
    return is_matrix and float(batch.flops[0]) >= LOADED_FLOPS


def _once(order: Sequence[ShapeToMeasure]) -> list[ShapeToMeasure]:
    """Remove calls that an earlier entry of the order measures."""
    seen: set[tuple[str, str, tuple[tuple[str, int], ...]]] = set()
    kept = []
    for shape in order:
        words = tuple(sorted(shape.parameters.items()))
        new = tuple(name for name in shape.calls if (name, shape.dtype, words) not in seen)
        seen |= {(name, shape.dtype, words) for name in new}
        if new:
            kept.append(ShapeToMeasure(shape.operation, shape.dtype, shape.parameters, new))
    return kept
