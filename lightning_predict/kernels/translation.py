"""Translate what a Trace recorded into problems that a kernel model can time.

A translator turns one dispatcher-level operation into the problems it computes: `aten::addmm` into a `linear`,
`aten::convolution_backward` into the two halves of a convolution's backward pass. Translators stand in the file of
their family and are found by the operation's name; an operation without one is timed by the bytes it touches, and one
that only changes metadata costs nothing.

A translator gives None for a call that it does not know (other tensors than it expects): its bytes are still known.
Bytes are right for the calls of the tables in `traffic.py`; of any other, such as an operator of one's own, nothing is
known but its tensors, so its interval reaches far up and it is named with its share of the time
(`unknown_operation_notes`).

Anything that it raises is a bug of ours: no reason to end a prediction, but none to be silent either. The call counts
as `untranslated`, its bytes with a very wide interval, and its work item says so (`translation_notes`). Example::

    >>> from lightning_predict.tracing.trace import Flags, Operation, TensorInfo
    >>> a, b = TensorInfo((8, 16), "float16"), TensorInfo((16, 4), "float16")
    >>> translate(Operation(name="aten::mm", phase="forward", inputs=(a, b)), Flags())[0].dims
    (1.0, 8.0, 4.0, 16.0)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    ON_SPARSE_TENSORS,
    Array,
    Problem,
    operation_kind,
    translator_of,
)
from lightning_predict.kernels.traffic import is_free, is_known, transfer_of, untranslated
from lightning_predict.tracing.recorded_on import updates_one_by_one
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
    """Find the problems that an operation computes on a GPU; none if it only changes metadata.

    Raises:
        Exception: What a translator raised, and only where `STRICT_VARIABLE` asks for it.
    """
    return _translated(operation, flags)[0]


def _translated(operation: Operation, flags: Flags) -> tuple[tuple[Problem, ...], str | None]:
    """Find an operation's problems, and the error in words where its translator failed."""
    if is_free(operation):
        return (), None
    try:
        is_sparse = any(tensor.stored_bytes is not None for tensor in operation.inputs)
        translator = translator_of(ON_SPARSE_TENSORS if is_sparse else operation.name)
        problems = None if translator is None or not operation.inputs else translator(operation, flags)
    except Exception as error:
        if os.environ.get(STRICT_VARIABLE, "0") != "0":
            raise
        shapes = ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in operation.inputs)
        return untranslated(operation), f"{type(error).__name__}: {error}; its tensors: {shapes}"
    return (transfer_of(operation) if problems is None else problems), None


def compute_dtype(tensor: TensorInfo, *, tf32: bool = False) -> str:
    """Find the dtype that the matrix units compute in: float32 becomes `tf32` where the flags allow it."""
    dtype = COMPUTE_DTYPES.get(tensor.dtype, tensor.dtype)
    if dtype == "float32" and tf32:
        return "tf32"
    return dtype if dtype in COMPUTE_BYTES else "float32"


def whole_compute_dtype(inside: object, data: TensorInfo, *, tf32: bool = False) -> str:
    """Find the dtype that a call recorded whole computes in.

    Args:
        inside: The call's argument `compute_dtype`: what autocast cast to inside it; None if it cast nothing.
        data: What the call was given.
        tf32: The flags allow TF32.
    """
    return compute_dtype(data if inside is None else TensorInfo(data.shape, str(inside)), tf32=tf32)


def is_complex(tensor: TensorInfo) -> bool:
    """Return whether the numbers are complex, of which one product takes `COMPLEX_PRODUCTS` of real ones."""
    return tensor.dtype.startswith("complex")


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    """See a tensor as a matrix whose columns are its last dimension; a scalar is 1 x 1."""
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
        unknown: Names of its operations that are timed by their bytes, as no more is known of them, each once.
        error: What the translator of one of them raised, in words; None if none failed.
    """

    operations: tuple[int, ...]
    problems: tuple[Problem, ...]
    launches: int
    unknown: tuple[str, ...] = ()
    error: str | None = None


def work_items(trace: Trace) -> tuple[WorkItem, ...]:
    """List the trace's work in order, as a GPU would run it.

    Where the trace was not recorded on CUDA, two things run otherwise there, and are rewritten:

    * `torch.optim` updates one tensor at a time; on CUDA its default is the multi-tensor (foreach) implementation. So
      the optimizer's equal single-tensor operations are merged into one item with the sum of their traffic; not for
      a release before that became the default.
    * Dropout draws a mask, scales it and multiplies; on CUDA that is one kernel, and its mask has one byte per element,
      for the backward pass too.
    * The gradient of `gather` adds into zeros; under a dispatch mode autograd does so out of place, on CUDA in place.
    """
    elsewhere = trace.device != "cuda"
    merges = elsewhere and not updates_one_by_one(trace)
    firsts = _firsts(trace.operations)
    translated: dict[int, tuple[tuple[Problem, ...], str | None]] = {}
    known: dict[int, bool] = {}
    dropouts = _dropouts(trace.operations, firsts) if elsewhere else {}
    inside = {index for indices in dropouts.values() for index in indices}
    masks = frozenset(trace.operations[drawn].inputs[0].id for drawn in dropouts)
    transposed: set[tuple[int | None, tuple[int, ...]]] = set()
    items: list[WorkItem] = []
    updates: dict[str, list[WorkItem]] = {}
    for index, operation in enumerate(trace.operations):
        if operation.name == "aten::t":
            transposed.update((tensor.id, tensor.shape) for tensor in operation.outputs if tensor.id is not None)
        if index in dropouts:
            items.append(WorkItem(dropouts[index], _dropout_problem(operation), 1))
        if index in inside:
            continue
        error = None
        if operation.name == "aten::mul" and any(tensor.id in masks for tensor in operation.inputs):
            problems = _dropout_backward(operation, masks)
        elif elsewhere and operation.name == "aten::scatter_add" and operation.phase == "backward":
            problems = _added_in_place(operation)
        else:
            first = firsts[index]
            if first not in translated:
                translated[first] = _translated(operation, trace.flags)
            problems, error = translated[first]
            if operation.name == "aten::mm" and any((one.id, one.shape) in transposed for one in operation.inputs[:1]):
                problems = tuple(map(_of_transposed_left, problems))
        if not problems and not operation.kernels:
            continue
        if firsts[index] not in known:
            known[firsts[index]] = is_known(operation)
        unknown = () if not problems or known[firsts[index]] else (operation.name,)
        item = WorkItem((index,), problems, len(operation.kernels) or len(problems), unknown, error)
        if merges and operation.phase == "optimizer" and problems and all(map(_is_vector_work, problems)):
            updates.setdefault(operation.name, []).append(item)
        else:
            items.append(item)
    return (*items, *(_merged(trace, updating, firsts) for updating in updates.values()))


def _firsts(operations: Sequence[Operation]) -> list[int]:
    """Find for each operation the place of the first that computes the same: a model repeats its layers.

    It is all that a translator looks at: name, phase, arguments and what the tensors are, not which storages they view.
    One whose kernels were recorded is its own. In one loop, as a trace has thousands of operations.
    """
    places: dict[tuple[object, ...], int] = {}
    firsts = []
    for index, operation in enumerate(operations):
        if operation.kernels:
            firsts.append(index)
            continue
        key: list[object] = [operation.name, operation.phase, repr(operation.arguments)]
        for tensors in (operation.inputs, operation.outputs):
            key.append(len(tensors))
            for one in tensors:
                key += (one.shape, one.dtype, one.device, one.stored_elements, one.stored_bytes)
        firsts.append(places.setdefault(tuple(key), index))
    return firsts


def _of_transposed_left(product: Problem) -> Problem:
    """Return a product whose left factor is a transposed view by the sizes that its rows in memory have.

    The rows of that factor are m elements long, not k, and it is by rows of odd length that tensor cores are fed slowly
    (`misaligned_seconds`). The library computes the transposed product, (n, m, k), so that m counts as columns do.
    """
    if product.operation != "linear":
        return product
    b, m, n, k = product.dims
    return replace(product, dims=(b, n, m, k)) if m % 2 == 1 else product


def _added_in_place(operation: Operation) -> tuple[Problem, ...]:
    """Count what is added and where as read, and the touched elements as read and written."""
    added = operation.inputs[-1]
    size, elements = float(added.size_bytes), float(added.elements)
    indices = math.fsum(tensor.size_bytes for tensor in operation.inputs[1:-1])
    return (Problem("transfer", "float32", (2 * size + indices, size, elements)),) if elements else ()


def _merged(trace: Trace, items: Sequence[WorkItem], firsts: Sequence[int]) -> WorkItem:
    """Merge the updates of single tensors by equal operations into one multi-tensor operation."""
    indices = tuple([index for item in items for index in item.operations])
    transfers = {first: transfer_of(trace.operations[first]) for first in {firsts[index] for index in indices}}
    problem = _sum_transfers([transfers[firsts[index]] for index in indices])
    errors = (item.error for item in items if item.error is not None)
    return WorkItem(indices, (problem,), 1, items[0].unknown, next(errors, None))


def _is_vector_work(problem: Problem) -> bool:
    return operation_kind(problem.operation).units == "vector"


def _sum_transfers(transfers: Iterable[tuple[Problem, ...]]) -> Problem:
    dims = [problem.dims for problems in transfers for problem in problems]
    read, written, flops = (math.fsum(column) for column in zip(*dims, strict=True))
    return Problem("transfer", "float32", (read, written, flops))


def _dropouts(operations: Sequence[Operation], firsts: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Find dropouts as (mask drawn, mask scaled, data multiplied), by the index of the first.

    The three are told by the mask's storage: drawn in place by `bernoulli_`, divided in place, read by a product.
    """
    free = {first: is_free(operations[first]) for first in set(firsts)}
    computing = [index for index, first in enumerate(firsts) if not free[first]]
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
    """Return the dropout of a tensor like the mask."""
    mask = drawn.inputs[0]
    rows, columns = rows_and_columns(mask.shape)
    if rows < 1 or columns < 1:
        return ()
    return (Problem("dropout", compute_dtype(mask), (float(rows), float(columns))),)


def _dropout_backward(product: Operation, masks: frozenset[int | None]) -> tuple[Problem, ...]:
    """Count the gradient as read, with a byte of the mask for each element, and written."""
    gradient = next((tensor for tensor in product.inputs if tensor.id not in masks), product.inputs[0])
    size, elements = float(gradient.size_bytes), float(gradient.elements)
    return (Problem("transfer", "float32", (size + elements, size, 2 * elements)),) if elements else ()


# --- What the user should know of it

UNKNOWN_SPREAD: Final = 10.0
"""Extra factor upwards around an operation of which only the bytes are known. An assumption: a factorisation of a large
matrix (`linalg.solve`, 4096 x 4096, float32) takes at least 20 times as long as its copy on an H100."""

SHARE_TO_NAME: Final = 0.01
"""Least share of the time for an operation to be named."""

MOST_NAMES: Final = 5


def unknown_operation_notes(items: Sequence[WorkItem], seconds: Array, unmeasured: Array) -> tuple[str, ...]:
    """Name the unknown operations that take a share of the time worth a line.

    Args:
        items: A trace's work.
        seconds: Device seconds, shape (gpus, items).
        unmeasured: Share of each item's time that no measured kernel gave, shape (gpus, items).

    Returns:
        One sentence, with shares over all GPUs; none if every operation is known.
    """
    total = seconds.sum(axis=1)
    spent: dict[str, Array] = {}
    for column, item in enumerate(items):
        for name in item.unknown:
            spent[name] = spent.get(name, np.zeros(len(seconds))) + seconds[:, column] * unmeasured[:, column]
    shares = {name: own / np.where(total > 0, total, 1.0) for name, own in spent.items()}
    named = sorted(
        (name for name, share in shares.items() if share.max(initial=0.0) >= SHARE_TO_NAME),
        key=lambda name: (-float(shares[name].max()), name),
    )
    if not named:
        return ()
    texts = [f"{name} ({_range(shares[name])} of the time)" for name in named[:MOST_NAMES]]
    others = f" and {len(named) - MOST_NAMES} more" if len(named) > MOST_NAMES else ""
    if len(named) == 1:
        return (f"{texts[0]} is not known; it is timed as a copy of its tensors and may take far longer.",)
    listed = ", ".join(texts) + others
    return (f"{listed} are not known; they are timed as copies of their tensors and may take far longer.",)


def _range(shares: Array) -> str:
    least, most = round(100 * float(shares.min())), round(100 * float(shares.max()))
    return f"{most} %" if least == most else f"{least}–{most} %"  # noqa: RUF001 (an en dash is meant)


def translation_notes(trace: Trace, items: Iterable[WorkItem]) -> tuple[str, ...]:
    """Name each operation whose translator failed, once, with its first error: a bug of ours, to be reported."""
    errors: dict[str, str] = {}
    for item in items:
        if item.error is not None:
            errors.setdefault(trace.operations[item.operations[0]].name, item.error)
    return tuple(
        f"{name} could not be translated ({error}). It counts by the bytes that it touches, at least; please report it."
        for name, error in errors.items()
    )
