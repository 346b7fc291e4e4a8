"""From what a Trace recorded to problems that a kernel model can time.

A translator turns one dispatcher-level operation into the problems it computes: `aten::addmm` into a `linear`,
`aten::convolution_backward` into the two halves of a convolution's backward pass. Translators stand in the file of
their family and are found by the operation's name; an operation without one is timed by the bytes it touches, and one
that only changes metadata costs nothing. Example::

    >>> from lightning_predict.tracing.records import Flags, Operation, TensorInfo
    >>> a, b = TensorInfo((8, 16), "float16"), TensorInfo((16, 4), "float16")
    >>> translate(Operation(name="aten::mm", phase="forward", inputs=(a, b)), Flags())[0].dims
    (1.0, 8.0, 4.0, 16.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.free_operations import is_free
from lightning_predict.kernels.operations import COMPUTE_BYTES, Problem, operation_kind
from lightning_predict.kernels.traffic import transfer_of
from lightning_predict.tracing.records import Flags, Operation, TensorInfo, Trace

Translator = Callable[[Operation, Flags], tuple[Problem, ...]]

_TRANSLATORS: Final[dict[str, Translator]] = {}

COMPUTE_DTYPES: Final = {"float8_e4m3fn": "float8", "float8_e5m2": "float8"}
"""Compute dtype of a tensor dtype, where the names differ."""


def translates(*names: str) -> Callable[[Translator], Translator]:
    """Register a translator for these operations.

    Raises:
        InvalidArgumentError: One of them has a translator already.
    """

    def add(translator: Translator) -> Translator:
        for name in names:
            if name in _TRANSLATORS:
                raise InvalidArgumentError(
                    f"Operation {name!r} has the translator {_TRANSLATORS[name].__name__}; {translator.__name__} "
                    "cannot be a second one."
                )
            _TRANSLATORS[name] = translator
        return translator

    return add


def has_translator(name: str) -> bool:
    """True where the operation is known by its own formula, not only by the bytes it touches."""
    return name in _TRANSLATORS


def translate(operation: Operation, flags: Flags) -> tuple[Problem, ...]:
    """Problems that the operation computes on a GPU; none where it only changes metadata.

    A translator that finds other inputs than it expects hands over to the bytes touched: nothing becomes free.
    """
    if is_free(operation):
        return ()
    translator = _TRANSLATORS.get(operation.name)
    if translator is not None:
        try:
            return translator(operation, flags)
        except (IndexError, KeyError, TypeError, ValueError, InvalidArgumentError):
            pass  # An unusual overload: its bytes are still known.
    return transfer_of(operation)


def compute_dtype(tensor: TensorInfo, *, tf32: bool = False) -> str:
    """Dtype that the matrix units compute in: float32 becomes `tf32` where the flags allow it."""
    dtype = COMPUTE_DTYPES.get(tensor.dtype, tensor.dtype)
    if dtype == "float32" and tf32:
        return "tf32"
    return dtype if dtype in COMPUTE_BYTES else "float32"


def whole_compute_dtype(operation: Operation, *, tf32: bool = False) -> str:
    """Dtype that a call recorded whole computes in: autocast may cast inside it, which `compute_dtype` then says."""
    data = operation.inputs[0]
    inside = operation.arguments.get("compute_dtype")
    return compute_dtype(data if inside is None else TensorInfo(data.shape, str(inside)), tf32=tf32)


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    """A tensor as a matrix whose columns are its last dimension; a scalar is 1 x 1."""
    if not shape:
        return 1, 1
    return math.prod(shape[:-1]), shape[-1]


@final
@dataclass(frozen=True, slots=True)
class WorkItem:
    """Problems that belong to one place in the trace.

    Attributes:
        operations: Indices of the trace's operations that it stands for (several where the GPU would run them as one).
        problems: What they compute.
        launches: Kernels that the host launches for it.
    """

    operations: tuple[int, ...]
    problems: tuple[Problem, ...]
    launches: int


def work_items(trace: Trace) -> tuple[WorkItem, ...]:
    """The trace's work in order, as a GPU would run it.

    Where the trace was not recorded on CUDA, two things run otherwise there, and are rewritten:

    * `torch.optim` updates one tensor at a time; on CUDA its default is the multi-tensor (foreach) implementation. So
      the optimizer's equal single-tensor operations are merged into one item with the sum of their traffic.
    * Dropout draws a mask, scales it and multiplies; on CUDA that is one kernel, and its mask has one byte an element,
      for the backward pass too.
    """
    elsewhere = trace.device != "cuda"
    dropouts = _dropouts(trace.operations) if elsewhere else {}
    inside = {index for indices in dropouts.values() for index in indices}
    masks = frozenset(trace.operations[drawn].inputs[0].id for drawn in dropouts)
    items: list[WorkItem] = []
    updates: dict[str, list[int]] = {}
    for index, operation in enumerate(trace.operations):
        if index in dropouts:
            items.append(WorkItem(dropouts[index], _dropout_problem(operation), 1))
        if index in inside:
            continue
        is_dropout = operation.name == "aten::mul" and any(tensor.id in masks for tensor in operation.inputs)
        problems = _dropout_backward(operation, masks) if is_dropout else translate(operation, trace.flags)
        if elsewhere and operation.phase == "optimizer" and problems and all(map(_is_vector_work, problems)):
            updates.setdefault(operation.name, []).append(index)
        elif problems or operation.kernels:
            items.append(WorkItem((index,), problems, len(operation.kernels) or len(problems)))
    for indices in updates.values():
        merged = _sum_transfers(transfer_of(trace.operations[i]) for i in indices)
        items.append(WorkItem(tuple(indices), (merged,), 1))
    return tuple(items)


def _is_vector_work(problem: Problem) -> bool:
    return operation_kind(problem.operation).units == "vector"


def _sum_transfers(transfers: Iterable[tuple[Problem, ...]]) -> Problem:
    dims = [problem.dims for problems in transfers for problem in problems]
    read, written, flops = (math.fsum(column) for column in zip(*dims, strict=True))
    return Problem("transfer", "float32", (read, written, flops))


def _dropouts(operations: Sequence[Operation]) -> dict[int, tuple[int, ...]]:
    """Dropouts as (mask drawn, mask scaled, data multiplied), by the index of the first.

    The three are told by the mask's storage: drawn in place by `bernoulli_`, divided in place, read by a product.
    """
    computing = [index for index, operation in enumerate(operations) if not is_free(operation)]
    found: dict[int, tuple[int, ...]] = {}
    for drawn, scaled, product in zip(computing, computing[1:], computing[2:], strict=False):
        names = (operations[drawn].name, operations[scaled].name, operations[product].name)
        if names != ("aten::bernoulli_", "aten::div_", "aten::mul") or not operations[drawn].inputs:
            continue
        mask = operations[drawn].inputs[0].id
        scales_it = mask is not None and operations[scaled].inputs[0].id == mask
        if scales_it and any(tensor.id == mask for tensor in operations[product].inputs):
            found[drawn] = (drawn, scaled, product)
    return found


def _dropout_problem(drawn: Operation) -> tuple[Problem, ...]:
    """Dropout of a tensor like the mask."""
    mask = drawn.inputs[0]
    rows, columns = rows_and_columns(mask.shape)
    if rows < 1 or columns < 1:
        return ()
    return (Problem("dropout", compute_dtype(mask), (float(rows), float(columns))),)


def _dropout_backward(product: Operation, masks: frozenset[int | None]) -> tuple[Problem, ...]:
    """The gradient is read, with a byte of the mask for each element, and written."""
    gradient = next((tensor for tensor in product.inputs if tensor.id not in masks), product.inputs[0])
    size, elements = float(gradient.size_bytes), float(gradient.elements)
    return (Problem("transfer", "float32", (size + elements, size, 2 * elements)),) if elements else ()
