"""Translates the operations of a trace into `OperationShape`s whose time a kernel model can predict.

A translator maps one dispatcher call to the shapes that it computes: `aten::addmm` to a `linear`,
`aten::convolution_backward` to the two halves of a convolution's backward pass. Translators are defined in the file of
their family and are found by the name of the call. If a call has no translator, its time is predicted from its bytes. A
call that only changes metadata takes no time.

A translator returns None for a call with unexpected tensors; the time is then predicted from the bytes, too. Bytes are
a good estimate for the calls in the tables of `memory_bound.py`. For other calls, such as the user's own operators,
only the tensors are known. The interval of such a call extends far upwards, and a note names the call and its share of
the time (`unknown_operation_notes`).

An exception in a translator is a bug of this package. Such an exception does not stop a prediction. The call becomes
`untranslated`: its time is predicted from its bytes, with a very wide interval. `translation_notes` reports the error,
which is kept in the call's `WorkItem`. Example::

    >>> from lightning_predict.record.trace import Flags, Operation, TensorInfo
    >>> a, b = TensorInfo((8, 16), "float16"), TensorInfo((16, 4), "float16")
    >>> translate(Operation(name="aten::mm", phase="forward", inputs=(a, b)), Flags())[0].dims
    (1.0, 8.0, 4.0, 16.0)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lightning_predict.base.answers import NAMES_SHOWN
from lightning_predict.base.ties import NEGLIGIBLE, ordered
from lightning_predict.kernels.memory_bound import is_free, is_known, transfer_of, untranslated
from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    ON_SPARSE_TENSORS,
    Array,
    OperationShape,
    operation_spec,
    translator_of,
)
from lightning_predict.record.torch_releases import MULTI_TENSOR, updates_one_by_one
from lightning_predict.record.trace import Flags, Operation, TensorInfo, Trace

STRICT_VARIABLE: Final = "LIGHTNING_PREDICT_STRICT"
"""Environment variable with which exceptions of translators propagate, for tests: `1`; `0` or unset is off."""

COMPUTE_DTYPES: Final = {  # Compute dtype by tensor dtype, if the names differ
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), "float8"),
    "float4_e2m1fn_x2": "float8",  # the catalogue has no peak for four bits
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
}

COMPLEX_MATMULS: Final = 4  # Number of real matmuls in a matmul of complex numbers


def translate(operation: Operation, flags: Flags) -> tuple[OperationShape, ...]:
    """Return the shapes that an operation computes on a GPU; empty if the operation only changes metadata."""
    return _translated(operation, flags)[0]


def _translated(operation: Operation, flags: Flags) -> tuple[tuple[OperationShape, ...], str | None]:
    """Return the shapes of an operation, and the error message if its translator failed."""
    if is_free(operation):
        return (), None
    try:
        is_sparse = any(tensor.stored_bytes is not None for tensor in operation.inputs)
        translator = translator_of(ON_SPARSE_TENSORS if is_sparse else operation.name)
        shapes = None if translator is None or not operation.inputs else translator(operation, flags)
    except Exception as error:
        if os.environ.get(STRICT_VARIABLE, "0") != "0":
            raise
        tensors = ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in operation.inputs)
        return untranslated(operation), f"{type(error).__name__}: {error}; its tensors: {tensors}"
    return (transfer_of(operation) if shapes is None else shapes), None


def compute_dtype(tensor: TensorInfo, *, tf32: bool = False) -> str:
    """Return the compute dtype of matrix units: float32 becomes `tf32` if the flags allow it."""
    dtype = COMPUTE_DTYPES.get(tensor.dtype, tensor.dtype)
    if dtype == "float32" and tf32:
        return "tf32"
    return dtype if dtype in COMPUTE_BYTES else "float32"


def whole_compute_dtype(inside: object, data: TensorInfo, *, tf32: bool = False) -> str:
    """Return the compute dtype of a call that is one operation, although autocast may change the dtype inside.

    Args:
        inside: The call's argument `compute_dtype`, which is the dtype that autocast used inside the call; None without
            autocast.
        data: Input of the call.
        tf32: Whether the flags allow TF32.
    """
    return compute_dtype(data if inside is None else TensorInfo(data.shape, str(inside)), tf32=tf32)


def is_complex(tensor: TensorInfo) -> bool:
    """Return whether the numbers are complex. A complex matmul takes `COMPLEX_MATMULS` real matmuls."""
    return tensor.dtype.startswith("complex")


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of the tensor as a matrix whose columns are the tensor's last dimension. A scalar is 1 x 1."""
    if not shape:
        return 1, 1
    return math.prod(shape[:-1]), shape[-1]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """Shapes of one place in the trace."""

    operations: tuple[int, ...]  # Indices of the operations in the trace; several if the GPU runs them as one operation
    shapes: tuple[OperationShape, ...]
    launches: int
    unknown: tuple[str, ...] = ()  # Names of operations with known bytes only, without duplicates
    error: str | None = None  # Error message of a translator; None without a failure


def work_items(trace: Trace) -> tuple[WorkItem, ...]:
    """Return the trace's work in order, as a GPU would run it.

    If the trace was not recorded on CUDA, three patterns differ from a GPU and are rewritten:

    * On the CPU, `torch.optim` updates one tensor at a time. On CUDA, it uses the multi-tensor (foreach) implementation
      by default. Equal single-tensor operations of the optimizer are merged into one item with their total traffic,
      unless the step chose otherwise or its torch release lacks this default.
    * Dropout draws a mask, scales the mask and multiplies. On CUDA, dropout is one kernel, and the mask has one byte
      per element, also in the backward pass.
    * The gradient of `gather` is added to zeros: out of place under a dispatch mode, in place on CUDA.
    """
    elsewhere = trace.device != "cuda"
    merges = elsewhere and trace.flags.foreach is None and not updates_one_by_one(trace)
    firsts = _firsts(trace.operations)
    translated: dict[int, tuple[tuple[OperationShape, ...], str | None]] = {}
    known: dict[int, tuple[bool, int]] = {}
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
            items.append(WorkItem(dropouts[index], _dropout_shape(operation), 1))
        if index in inside:
            continue
        error = None
        if operation.name == "aten::mul" and any(tensor.id in masks for tensor in operation.inputs):
            shapes = _dropout_backward(operation, masks)
        elif elsewhere and operation.name == "aten::scatter_add" and operation.phase == "backward":
            shapes = _added_in_place(operation)
        else:
            first = firsts[index]
            if first not in translated:
                translated[first] = _translated(operation, trace.flags)
            shapes, error = translated[first]
            if operation.name == "aten::mm" and any((one.id, one.shape) in transposed for one in operation.inputs[:1]):
                shapes = tuple(map(_of_transposed_left, shapes))
        if not shapes and not operation.kernels:
            continue
        if firsts[index] not in known:
            known[firsts[index]] = is_known(operation), len(operation.kernels) or _launches(operation, shapes)
        is_understood, launches = known[firsts[index]]
        unknown = () if not shapes or is_understood else (operation.name,)
        item = WorkItem((index,), shapes, launches, unknown, error)
        is_single = operation.phase == "optimizer" and not operation.name.startswith(MULTI_TENSOR)
        if (
            merges
            and is_single
            and shapes
            and all(operation_spec(shape.operation).units == "vector" for shape in shapes)
        ):
            updates.setdefault(operation.name, []).append(item)
        else:
            items.append(item)
    return (*items, *(_merged(trace, updating, firsts) for updating in updates.values()))


def _firsts(operations: Sequence[Operation]) -> list[int]:
    """Return, for each operation, the index of the first operation with the same work, because layers are repeated.

    The comparison includes everything that a translator reads: name, phase, arguments and metadata of tensors, but no
    storages. An operation with recorded kernels is equal only to itself. A single loop is fast enough for the thousands
    of operations of a trace.
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
            for tensor in tensors:
                key += (tensor.shape, tensor.dtype, tensor.device, tensor.stored_elements, tensor.stored_bytes)
        firsts.append(places.setdefault(tuple(key), index))
    return firsts


def _of_transposed_left(product: OperationShape) -> OperationShape:
    """Return a matmul with a transposed left operand as a matmul whose rows have the sizes in memory.

    The rows of the left operand have m elements, not k, and rows of odd length are slow on tensor cores
    (`unaligned_matmul_seconds`). The library computes the transposed matmul, (n, m, k), so m takes the place of the
    columns.
    """
    if product.operation != "linear":
        return product
    b, m, n, k = product.dims
    return replace(product, dims=(b, n, m, k)) if m % 2 == 1 else product


def _added_in_place(operation: Operation) -> tuple[OperationShape, ...]:
    """Return a transfer that reads the added values and their indices, and reads and writes the changed elements."""
    added = operation.inputs[-1]
    size, elements = float(added.size_bytes), float(added.elements)
    indices = math.fsum(tensor.size_bytes for tensor in operation.inputs[1:-1])
    return (OperationShape("transfer", "float32", (2 * size + indices, size, elements)),) if elements else ()


def _merged(trace: Trace, items: Sequence[WorkItem], firsts: Sequence[int]) -> WorkItem:
    """Merge equal single-tensor updates of the optimizer into one multi-tensor operation."""
    indices = tuple([index for item in items for index in item.operations])
    transfers = {first: transfer_of(trace.operations[first]) for first in {firsts[index] for index in indices}}
    dims = [shape.dims for shapes in [transfers[firsts[index]] for index in indices] for shape in shapes]
    read, written, flops = (math.fsum(column) for column in zip(*dims, strict=True))
    shape = OperationShape("transfer", "float32", (read, written, flops))
    errors = (item.error for item in items if item.error is not None)
    updates = [trace.operations[index] for index in indices]
    sizes = [operation.inputs[0].elements for operation in updates if operation.inputs]
    launches = multi_tensor_launches(sizes, sum(tensor.elements > 1 for tensor in updates[0].inputs) or 1)
    return WorkItem(indices, (shape,), launches, items[0].unknown, next(errors, None))


LAUNCHES: Final = {"eager_attention": 14, "eager_attention_backward": 16, "attention_backward": 3}
"""Kernels of an operation that launches several, in recordings of T5, BERT and ViT with torch 2.14. Of convolutions and
norms, `LIBRARY_SECONDS` holds the time of further launches."""


def _launches(operation: Operation, shapes: Sequence[OperationShape]) -> int:
    """Return the number of kernels that an operation without recorded kernels launches."""
    if operation.name.startswith(MULTI_TENSOR):
        return multi_tensor_launches(*_lists(operation))
    if operation.name == "aten::sum" and operation.phase == "backward":
        return 2  # of a bias: its partial sums are counted in memory that is set to 0 before
    return sum(LAUNCHES.get(shape.operation, 1) for shape in shapes)


MOST_TENSORS: Final = (110, 64, 48, 36, 30)
MOST_CHUNKS: Final = 320
CHUNK: Final = 65_536
"""Most tensors of a launch, by the number of lists; most chunks of a launch, and elements of a chunk. The arguments of
a kernel hold no more (`depth_to_max_tensors` of ATen's `MultiTensorApply.cuh`)."""


def multi_tensor_launches(sizes: Sequence[int], lists: int) -> int:
    """Return the number of kernels that update tensors with these numbers of elements, from so many lists at a time."""
    most = MOST_TENSORS[min(lists, len(MOST_TENSORS)) - 1]
    launches = tensors = chunks = 0
    for size in sizes:
        left = math.ceil(size / CHUNK)
        tensors += left > 0
        while left > 0:
            taken = min(left, MOST_CHUNKS - chunks)
            chunks, left = chunks + taken, left - taken
            if chunks == MOST_CHUNKS or (tensors == most and not left):
                launches, chunks, tensors = launches + 1, 0, int(left > 0)
    return max(launches + (chunks > 0), 1)


def _lists(operation: Operation) -> tuple[list[int], int]:
    """Return the sizes of the tensors of a multi-tensor operation, and its number of lists of such tensors."""
    sizes = [tensor.elements for tensor in operation.inputs]
    for lists in range(len(MOST_TENSORS), 1, -1):
        count, rest = divmod(len(sizes), lists)
        if count and not rest and sizes == sizes[:count] * lists:
            return sizes[:count], lists + bool(operation.outputs)
    return sizes, 1 + bool(operation.outputs)


def _dropouts(operations: Sequence[Operation], firsts: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Find dropouts as (mask drawn, mask scaled, data multiplied), by the index of the first of these operations.

    The storage of the mask identifies a dropout: `bernoulli_` draws the mask in place, a division scales it in place,
    and a multiplication reads it.
    """
    free = {first: is_free(operations[first]) for first in set(firsts)}
    computing = [index for index, first in enumerate(firsts) if not free[first]]
    dropouts: dict[int, tuple[int, ...]] = {}
    for drawn, scaled, product in zip(computing, computing[1:], computing[2:], strict=False):
        names = (operations[drawn].name, operations[scaled].name, operations[product].name)
        if names != ("aten::bernoulli_", "aten::div_", "aten::mul") or not operations[drawn].inputs:
            continue
        mask = operations[drawn].inputs[0].id
        scales_it = mask is not None and any(tensor.id == mask for tensor in operations[scaled].inputs[:1])
        if scales_it and any(tensor.id == mask for tensor in operations[product].inputs):
            dropouts[drawn] = (drawn, scaled, product)
    return dropouts


def _dropout_shape(drawn: Operation) -> tuple[OperationShape, ...]:
    """Return the dropout of a tensor with the shape of the mask."""
    mask = drawn.inputs[0]
    rows, columns = rows_and_columns(mask.shape)
    if rows < 1 or columns < 1:
        return ()
    return (OperationShape("dropout", compute_dtype(mask), (float(rows), float(columns))),)


def _dropout_backward(product: Operation, masks: frozenset[int | None]) -> tuple[OperationShape, ...]:
    """Return a transfer that reads and writes the gradient, and reads one byte of the mask per element."""
    gradient = next((tensor for tensor in product.inputs if tensor.id not in masks), product.inputs[0])
    size, elements = float(gradient.size_bytes), float(gradient.elements)
    return (OperationShape("transfer", "float32", (size + elements, size, 2 * elements)),) if elements else ()


# --- Notes for the user


def unknown_operation_notes(items: Sequence[WorkItem], seconds: Array, unmeasured: Array) -> tuple[str, ...]:
    """Return a note on unknown operations that take a relevant share of the time.

    Args:
        items: Work of a trace.
        seconds: GPU seconds, shape (gpus, items).
        unmeasured: Share of each item's time that does not come from measured kernels, shape (gpus, items).

    Returns:
        One note, with the range of the shares over all GPUs; empty if no unknown operation takes a relevant share.
    """
    total = seconds.sum(axis=1)
    spent: dict[str, Array] = {}
    for column, item in enumerate(items):
        for name in item.unknown:
            spent[name] = spent.get(name, np.zeros(len(seconds))) + seconds[:, column] * unmeasured[:, column]
    shares = {name: own / np.where(total > 0, total, 1.0) for name, own in spent.items()}
    worth_naming = sorted(name for name, share in shares.items() if share.max(initial=0.0) >= NEGLIGIBLE)
    named = ordered(worth_naming, lambda name: float(shares[name].max()), reverse=True)
    if not named:
        return ()
    texts = [f"{name} ({_range(shares[name])} of the time)" for name in named[:NAMES_SHOWN]]
    others = f" and {len(named) - NAMES_SHOWN} more" if len(named) > NAMES_SHOWN else ""
    if len(named) == 1:
        return (f"{texts[0]} is unknown. It is timed as a copy of its tensors and may take far longer.",)
    listed = ", ".join(texts) + others
    return (f"{listed} are unknown. They are timed as copies of their tensors and may take far longer.",)


def _range(shares: Array) -> str:
    least, most = round(100 * float(shares.min())), round(100 * float(shares.max()))
    return f"{most} %" if least == most else f"{least}–{most} %"  # noqa: RUF001 (an en dash is meant)


def translation_notes(trace: Trace, items: Iterable[WorkItem]) -> tuple[str, ...]:
    """Return a note for each operation whose translator failed, with its first error, so that users can report it."""
    errors: dict[str, str] = {}
    for item in items:
        if item.error is not None:
            errors.setdefault(trace.operations[item.operations[0]].name, item.error)
    return tuple(
        f"{name} could not be translated ({error}). It is timed by the bytes of its tensors. Please report this."
        for name, error in errors.items()
    )
