"""From what a Trace recorded to problems that a kernel model can time.

A translator turns one dispatcher-level operation into the problems it computes: `aten::addmm` into a `linear`,
`aten::convolution_backward` into the two halves of a convolution's backward pass. Translators stand in the file of
their family and are found by the operation's name; an operation without one is timed by the bytes it touches, and one
that only changes metadata costs nothing.

A translator gives None for a call that it does not know (other tensors than it expects): its bytes are still known.
Anything that it raises is a bug of ours: no reason to end a prediction, but none to be silent either. The call counts
as `untranslated`, its bytes with a very wide interval, and `translation_notes` names it. Example::

    >>> from lightning_predict.tracing.trace import Flags, Operation, TensorInfo
    >>> a, b = TensorInfo((8, 16), "float16"), TensorInfo((16, 4), "float16")
    >>> translate(Operation(name="aten::mm", phase="forward", inputs=(a, b)), Flags())[0].dims
    (1.0, 8.0, 4.0, 16.0)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.kernels.families.sparse import sparse_problems
from lightning_predict.kernels.free_operations import is_free
from lightning_predict.kernels.operations import COMPUTE_BYTES, Problem, operation_kind, translator_of
from lightning_predict.kernels.traffic import transfer_of, untranslated
from lightning_predict.tracing.trace import Flags, Operation, TensorInfo, Trace

STRICT_VARIABLE: Final = "LIGHTNING_PREDICT_STRICT"
"""Environment variable that lets a translator's error through, for tests: `1` does, nothing or `0` does not."""

COMPUTE_DTYPES: Final = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), "float8"),
    "float4_e2m1fn_x2": "float8",  # no peak of the catalogue is for four bits
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
}
"""Compute dtype of a tensor dtype, where the names differ."""

COMPLEX_PRODUCTS: Final = 4
"""Products of real numbers in one of complex numbers."""


def translate(operation: Operation, flags: Flags) -> tuple[Problem, ...]:
    """Problems that the operation computes on a GPU; none where it only changes metadata.

    Raises:
        Exception: What a translator raised, and only where `STRICT_VARIABLE` asks for it.
    """
    if is_free(operation):
        return ()
    try:
        problems = _translated(operation, flags)
    except Exception:
        if os.environ.get(STRICT_VARIABLE, "0") != "0":
            raise
        return untranslated(operation)
    return transfer_of(operation) if problems is None else problems


def _translated(operation: Operation, flags: Flags) -> tuple[Problem, ...] | None:
    """What the operation's translator says; None without one, and for a call that it does not know."""
    if any(tensor.stored_bytes is not None for tensor in operation.inputs):
        return sparse_problems(operation)
    translator = translator_of(operation.name)
    return translator(operation, flags) if translator is not None and operation.inputs else None


def translation_notes(trace: Trace) -> tuple[str, ...]:
    """One note an operation whose translator failed, with the first error: a bug of ours, to be reported."""
    errors: dict[str, str] = {}
    for operation in trace.operations:
        if operation.name in errors or is_free(operation):
            continue
        try:
            _translated(operation, trace.flags)
        except Exception as error:
            shapes = ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in operation.inputs)
            errors[operation.name] = f"{type(error).__name__}: {error}; its tensors: {shapes}"
    return tuple(
        f"{name} could not be translated ({error}). It counts by the bytes that it touches, at least; please report it."
        for name, error in errors.items()
    )


def compute_dtype(tensor: TensorInfo, *, tf32: bool = False) -> str:
    """Dtype that the matrix units compute in: float32 becomes `tf32` where the flags allow it."""
    dtype = COMPUTE_DTYPES.get(tensor.dtype, tensor.dtype)
    if dtype == "float32" and tf32:
        return "tf32"
    return dtype if dtype in COMPUTE_BYTES else "float32"


def whole_compute_dtype(inside: object, data: TensorInfo, *, tf32: bool = False) -> str:
    """Dtype that a call recorded whole computes in.

    Args:
        inside: The call's argument `compute_dtype`: what autocast cast to inside it; None where it cast nothing.
        data: What the call was given.
        tf32: The flags allow TF32.
    """
    return compute_dtype(data if inside is None else TensorInfo(data.shape, str(inside)), tf32=tf32)


def is_complex(tensor: TensorInfo) -> bool:
    """True for complex numbers, of which one product takes `COMPLEX_PRODUCTS` of real ones."""
    return tensor.dtype.startswith("complex")


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
        scales_it = mask is not None and any(tensor.id == mask for tensor in operations[scaled].inputs[:1])
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
