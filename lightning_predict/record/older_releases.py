"""Converts current steps to torch releases before 2.0.

* Before torch 2.0, `torch.optim` updated tensors one by one, and `zero_grad` filled gradients with zeros.
* Before torch 2.0, attention was two matmuls and a softmax.
* Before torch 1.11, softmax kept its input for the backward pass, and before 1.10, ReLU did so.
* Before torch 1.10, autocast ran GELU in float32 (github.com/pytorch/pytorch/pull/59639).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from lightning_predict.record.signatures import ATTENTION, ATTENTION_KERNEL, WRITTEN_OUT
from lightning_predict.record.trace import Operation, TensorInfo, Trace

_READ_INPUT_BEFORE: Final[Mapping[str, tuple[str, tuple[int, int], int]]] = {
    "aten::_softmax_backward_data": ("aten::_softmax", (1, 11), 2),
    "aten::_log_softmax_backward_data": ("aten::_log_softmax", (1, 11), 2),
    "aten::threshold_backward": ("aten::relu", (1, 10), 1),
}
"""Backward operations that read the input of a forward operation in older releases: the forward operation, the first
release that reads only the result, and the position of the input (ReLU read the input instead of the result)."""

_FILLS: Final = frozenset({"aten::zero_", "aten::_foreach_zero_"})

_TOGETHER: Final = "aten::_foreach_"

_LISTS: Final = {"addcmul_": 3, "addcdiv_": 3, "lerp_": 2, "copy_": 2}
"""Number of tensor lists that multi-tensor operations read. Other operations read 2 with a second list, else 1."""


def updated_one_by_one(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Yield the operations. A multi-tensor operation of the optimizer becomes one operation per tensor."""
    for operation in operations:
        if operation.phase != "optimizer" or not operation.name.startswith(_TOGETHER):
            yield operation
            continue
        name = operation.name.removeprefix(_TOGETHER)
        has_other = "alpha" in operation.arguments or name in ("mul_", "div_", "mul", "div", "sub", "maximum_")
        has_number = bool({"scalar", "scalars"} & operation.arguments.keys())
        lists = _LISTS.get(name.removesuffix("_") + "_", 2 if has_other and not has_number else 1)
        count, rest = divmod(len(operation.inputs), lists)
        if rest or operation.inputs[0].device == "cpu":  # the counters of steps, and the number added to each
            count = len(operation.inputs) - 1
        for index in range(count):
            inputs = operation.inputs[index::count][:lists]
            outputs = operation.outputs[index::count] if operation.outputs else inputs[:1]
            yield replace(operation, name=f"aten::{name}", inputs=inputs, outputs=outputs)


def with_attention_written_out(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the operations, with attention as matmuls and a softmax. Memory still counts it as one kernel."""
    written_out = {ATTENTION_KERNEL: WRITTEN_OUT}
    return tuple(
        replace(one, arguments={**one.arguments, **written_out}) if one.name.startswith(ATTENTION) else one
        for one in operations
    )


def with_kept_inputs(operations: Sequence[Operation], release: tuple[int, int]) -> Iterator[Operation]:
    """Yield the operations. Where the release's backward pass reads an input, the input's storage lives until then."""
    inputs: dict[tuple[str, int | None], TensorInfo] = {}
    for operation in operations:
        if operation.phase != "backward" and operation.inputs and operation.outputs:
            inputs[operation.name, operation.outputs[0].id] = operation.inputs[0]
        forward, since, position = _READ_INPUT_BEFORE.get(operation.name, ("", release, 0))
        result = operation.inputs[1] if release < since and len(operation.inputs) == 2 else None
        kept = None if result is None or result.id is None else inputs.get((forward, result.id))
        yield operation if kept is None else replace(operation, inputs=(*operation.inputs[:position], kept))


def with_wide_gelu(trace: Trace, release: tuple[int, int]) -> tuple[Operation, ...]:
    """Let GELU run in float32 under autocast before torch 1.10. Its backward pass keeps the cast input."""
    operations, half = trace.operations, trace.flags.autocast_dtype
    if release >= (1, 10) or half is None or any(parameter.dtype == half for parameter in trace.parameters):
        return operations
    numbers = count(1 + max((each.id or 0 for one in operations for each in (*one.inputs, *one.outputs)), default=0))
    copies: dict[int | None, TensorInfo] = {}
    rewritten: list[Operation] = []
    for one in operations:
        if one.name not in ("aten::gelu", "aten::gelu_backward") or [each.dtype for each in one.outputs] != [half]:
            rewritten.append(one)
            continue
        cast = replace(one, name="aten::_to_copy", arguments={}, freed=())
        for each in one.inputs:
            if each.id not in copies:
                copies[each.id] = replace(each, dtype="float32", id=next(numbers))
                rewritten.append(replace(cast, inputs=(each,), outputs=(copies[each.id],)))
        result = replace(one.outputs[0], dtype="float32", id=next(numbers))
        rewritten.append(replace(one, inputs=tuple(copies[each.id] for each in one.inputs), outputs=(result,)))
        rewritten.append(replace(cast, inputs=(result,), outputs=one.outputs))
    return tuple(rewritten)


def with_kept_gradients(trace: Trace) -> tuple[Operation, ...]:
    """Set gradients to zero before the step, and accumulate into them in the backward pass.

    A step that already sets gradients to zero stays unchanged, because this is the behaviour of its own loop. A step
    without a backward pass stays unchanged, too.
    """
    operations = trace.operations
    is_filled = any(operation.name in _FILLS and operation.phase == "other" for operation in operations)
    backward = [index for index, operation in enumerate(operations) if operation.phase == "backward"]
    if is_filled or not backward:
        return operations
    gradients = [
        TensorInfo(parameter.shape, parameter.dtype, device=_device_of(operations))
        for parameter in trace.parameters
        if parameter.requires_grad
    ]
    zeros = tuple(Operation(name="aten::zero_", phase="other", inputs=(each,), outputs=(each,)) for each in gradients)
    added = tuple(
        Operation(name="aten::add_", phase="backward", inputs=(each, each), outputs=(each,)) for each in gradients
    )
    # Additions are spread over the backward pass, last parameter first. At its end, they would hide host waits.
    last = backward[-1] + 1
    return (*zeros, *_spread(operations, backward, added[::-1]), *operations[last:])


def _spread(
    operations: Sequence[Operation], backward: Sequence[int], added: Sequence[Operation]
) -> Iterator[Operation]:
    """Yield the operations up to the end of the backward pass, with the added operations spread evenly over it."""
    taken, passed = 0, 0
    is_backward = frozenset(backward)
    for index, operation in enumerate(operations[: backward[-1] + 1]):
        yield operation
        if index in is_backward:
            passed += 1
            due = len(added) * passed // len(backward)
            yield from added[taken:due]
            taken = due


def _device_of(operations: Sequence[Operation]) -> str | None:
    return next(
        (tensor.device for operation in operations for tensor in operation.inputs if tensor.device != "cpu"), None
    )
