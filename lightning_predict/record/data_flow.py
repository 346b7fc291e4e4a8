"""Adds data flow to a GPU profile, from the same step as recorded by the dispatch recorder.

The profiler times operations, but does not see their results. The dispatch recorder sees the results, but slows down
the step. Therefore, on a GPU, one more step is run under the dispatch recorder, or the same step is captured on the
meta device. Both recordings list the same calls in the same order, except for calls that only one recorder sees.
Operations are matched by name and shapes, in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.trace import Operation, TensorInfo, Trace

MIN_MATCHED: Final = 0.9  # Minimum share of the operations with kernels for which a match must be found


NO_DATA_FLOW: Final = (  # Reason why a change needs another recording of the step
    "the recording lacks the data flow; capture the same step on the meta device or CPU and pass it as `followed`"
)


def with_data_flow(trace: Trace, dispatch_trace: Trace) -> Trace:
    """Add tensors and modules to a profile, from the same step captured by the dispatch recorder.

    Args:
        trace: A profile of a GPU.
        dispatch_trace: The same step, with tensor ids.
    """
    if not any(operation.outputs for operation in dispatch_trace.operations):
        raise InvalidArgumentError("The followed step holds no results of operations; capture it on the meta device.")
    matched = _matched(trace.operations, dispatch_trace.operations)
    launching = [place for place, one in enumerate(trace.operations) if one.kernels] or range(len(trace.operations))
    share = sum(place in matched for place in launching) / max(len(launching), 1)
    if share < MIN_MATCHED:
        raise InvalidArgumentError(
            f"Of the operations that ran on the GPU only {share:.0%} are in the followed step, by names and shapes; "
            "capture the same step: the same model, batch and precision."
        )
    operations = tuple(
        _with_tensors(operation, dispatch_trace.operations[matched[place]]) if place in matched else operation
        for place, operation in enumerate(trace.operations)
    )
    return replace(
        trace,
        operations=operations,
        held=dispatch_trace.held,
        buffers=dispatch_trace.buffers,
        parameters=trace.parameters or dispatch_trace.parameters,
        samples=trace.samples if trace.samples is not None else dispatch_trace.samples,
        memory=trace.memory
        if trace.memory.parameter_bytes is not None
        else replace(dispatch_trace.memory, peak_bytes=trace.memory.peak_bytes),
    )


def has_data_flow(trace: Trace) -> bool:
    """Return whether the trace contains the data flow between operations."""
    return any(operation.outputs for operation in trace.operations)


def _matched(recorded: Sequence[Operation], dispatch_operations: Sequence[Operation]) -> dict[int, int]:
    """Map indices of operations in the profile to indices of operations in the other recording."""
    one, other = ([_key(operation) for operation in side] for side in (recorded, dispatch_operations))
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return {a + step: b + step for a, b, length in matcher.get_matching_blocks() for step in range(length)}


def _key(operation: Operation) -> tuple[object, ...]:
    return operation.name, tuple(tensor.shape for tensor in operation.inputs if tensor.shape)


def _with_tensors(recorded: Operation, dispatch_operation: Operation) -> Operation:
    device = next((tensor.device for tensor in recorded.inputs if tensor.device), "cuda")

    def there(operation: Operation) -> Operation:
        inputs = tuple(replace(tensor, device=device) for tensor in operation.inputs)
        outputs = tuple(replace(tensor, device=device) for tensor in operation.outputs)
        return replace(operation, inputs=inputs, outputs=outputs)

    own = there(dispatch_operation)
    return replace(
        recorded,
        inputs=own.inputs,
        outputs=own.outputs,
        freed=dispatch_operation.freed,
        arguments={**own.arguments, **recorded.arguments},
        module=recorded.module or dispatch_operation.module,
    )


def storages_without_maker(
    operations: Iterable[Operation], parameters: Iterable[tuple[Sequence[int], str]]
) -> dict[int, TensorInfo]:
    """Return the first tensors of storages that the backward pass reads first, although no operation wrote them.

    Gradients of an earlier step, which have the size and dtype of a parameter, are left out.

    Args:
        operations: Operations of a step, with storage ids.
        parameters: Shape and dtype of each parameter.
    """
    kinds = {(math.prod(shape), dtype) for shape, dtype in parameters}
    known, tensors = set[int | None]({None}), dict[int, TensorInfo]()
    for operation in operations:
        for tensor in operation.inputs:
            if tensor.id in known:
                continue
            if operation.phase == "backward" and tensor.id is not None and (tensor.elements, tensor.dtype) not in kinds:
                tensors.setdefault(tensor.id, tensor)
            known.add(tensor.id)
        for tensor in operation.outputs:
            known.add(tensor.id)
    return tensors
