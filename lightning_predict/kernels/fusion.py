"""A step as `torch.compile` would run it, from the eager one: point-wise work between products becomes one kernel.

Inductor leaves products, convolutions, attention and look-ups to their libraries, and fuses element-wise operations and
reductions that hand data to each other. A fused kernel reads what it needs from outside, and writes what is used
outside; what it hands on inside never reaches memory. So it is timed by the bytes that it touches. Example::

    >>> from lightning_predict.tracing.trace import Operation, TensorInfo, Trace
    >>> a, b, c = (TensorInfo((1024,), "float32", id=number) for number in range(3))
    >>> relu = Operation(name="aten::relu", phase="forward", inputs=(a,), outputs=(b,))
    >>> twice = Operation(name="aten::mul", phase="forward", inputs=(b,), outputs=(c,))
    >>> (kernel,) = fused(Trace(operations=(relu, twice), device="meta", recorder="dispatch")).operations
    >>> kernel.name, kernel.inputs == (a,), kernel.outputs == (c,)
    ('triton::fused', True, True)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.operations import operation_kind
from lightning_predict.kernels.traffic import LOOK_UPS, is_free
from lightning_predict.kernels.translation import translate
from lightning_predict.tracing.trace import Operation, TensorInfo, Trace

FUSED: Final = "triton::fused"
"""Name of a fused kernel."""

_GATHERS: Final = ("embedding", "index", "scatter", "gather", "sort", "topk", "pool", "upsample", "native_batch_norm")
"""Parts of the names of operations that read or write by position, or pass over their input more than once."""


def fused(trace: Trace) -> Trace:
    """Fuse the point-wise work of a step. The optimizer is left as it is: it runs outside the compiled model.

    Args:
        trace: An eager step in which tensors can be followed: recorded on the CPU or the meta device.

    Raises:
        InvalidArgumentError: A step that was compiled already, or whose tensors cannot be followed.
    """
    if trace.compiled or trace.has_measured_kernels or not any(one.outputs for one in trace.operations):
        raise InvalidArgumentError(
            "Only an eager step whose tensors were followed can be fused; record it without torch.compile, on the CPU "
            "or on the meta device."
        )
    last_read = {tensor.id: index for index, operation in enumerate(trace.operations) for tensor in operation.inputs}
    replaced: dict[int, Operation | None] = {}
    for group in _groups(trace):
        kernel = _kernel([trace.operations[index] for index in group], last=group[-1], last_read=last_read)
        replaced |= {**dict.fromkeys(group), group[0]: kernel}
    kept = (replaced.get(index, operation) for index, operation in enumerate(trace.operations))
    operations = tuple(operation for operation in kept if operation is not None)
    kernels = sum(operation.name == FUSED for operation in operations)
    note = f"As torch.compile would run it: {len(replaced)} point-wise operations in {kernels} fused kernels."
    return replace(trace, operations=operations, notes=(*trace.notes, note))


def _groups(trace: Trace) -> Iterator[list[int]]:
    """Find the operations of each fused kernel: neighbours of which each reads what one before it wrote."""
    group: list[int] = []
    written: set[int | None] = set()
    for index, operation in enumerate(trace.operations):
        if is_free(operation):
            continue
        joins = _is_pointwise(operation, trace)
        if group and not (joins and any(tensor.id in written for tensor in operation.inputs)):
            if len(group) > 1:
                yield group
            group, written = [], set()
        if joins:
            group.append(index)
            written |= {tensor.id for tensor in operation.outputs}
    if len(group) > 1:
        yield group


def _is_pointwise(operation: Operation, trace: Trace) -> bool:
    if operation.phase not in ("forward", "backward") or not operation.outputs:
        return False
    if any(tensor.id is None for tensor in (*operation.inputs, *operation.outputs)):
        return False
    if operation.name in LOOK_UPS or any(word in operation.name for word in _GATHERS):
        return False
    problems = translate(operation, trace.flags)
    return bool(problems) and all(operation_kind(one.operation).units == "vector" for one in problems)


def _kernel(operations: Sequence[Operation], *, last: int, last_read: dict[int | None, int]) -> Operation:
    """Make one kernel of these; `last` is the position of the last of them in the trace."""
    read: dict[int | None, TensorInfo] = {}
    written: dict[int | None, TensorInfo] = {}
    for operation in operations:
        read |= {tensor.id: tensor for tensor in operation.inputs if tensor.id not in written | read}
        written |= {tensor.id: tensor for tensor in operation.outputs}
    # What nobody reads in this step may be its result, or be kept for the next.
    used = tuple(tensor for number, tensor in written.items() if last_read.get(number, last + 1) > last)
    return replace(
        operations[0],
        name=FUSED,
        inputs=tuple(read.values()),
        outputs=used,
        arguments={"operations": [operation.name for operation in operations]},
    )
