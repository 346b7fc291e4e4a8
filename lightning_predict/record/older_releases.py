"""Converts profiles of older torch releases to current names and arguments, and current steps to releases before 2.0.

* torch 1.8 and 1.9 name the backward pass of a convolution after its library, and list the image before the gradient.
* Before torch 2.1, profiles lack strides and paddings of convolutions. Strides and paddings are derived from the sizes
  of image, filter and result. The result is the gradient in the backward pass, or else the input of a following
  operation.
* Before torch 2.0, `torch.optim` updated tensors one by one, and `zero_grad` filled gradients with zeros.
* Before torch 2.0, attention was two matmuls and a softmax.
* Before torch 1.11, softmax kept its input for the backward pass, and before 1.10, ReLU did so.
* Before torch 1.10, autocast ran GELU in float32 (github.com/pytorch/pytorch/pull/59639).

    >>> solved_geometry(image=224, filter_size=7, result=112)  # ResNet's first convolution: stride 2, padding 3
    (2, 3)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from lightning_predict.record.signatures import ATTENTION, ATTENTION_KERNEL, WRITTEN_OUT
from lightning_predict.record.trace import Operation, TensorInfo, Trace

CONVOLUTION: Final = "aten::convolution"
CONVOLUTION_BACKWARD: Final = "aten::convolution_backward"

_IMAGE_FIRST: Final = frozenset({"aten::cudnn_convolution_backward", "aten::mkldnn_convolution_backward"})
"""Backward passes whose inputs are (image, gradient, weight). The current order is (gradient, image, weight)."""

_LARGEST_STRIDE: Final = 32
_NEXT_READERS: Final = 3
"""Number of operations after a convolution in which the convolution's result is searched as an input.

The reader of the result is usually a bias or a normalisation."""


def with_current_names(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Give operations of older releases their current names, and add missing strides to convolutions."""
    renamed = [_renamed(operation) for operation in operations]
    if not any(_lacks_strides(operation) for operation in renamed):
        return tuple(renamed)
    results: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}
    for operation in renamed:
        if operation.name == CONVOLUTION_BACKWARD and len(operation.inputs) >= 3:
            gradient, image, weight = operation.inputs[:3]
            results[image.shape, weight.shape] = gradient.shape
    return tuple(_completed(renamed, results))


def _renamed(operation: Operation) -> Operation:
    if operation.name not in _IMAGE_FIRST:
        return operation
    inputs = operation.inputs
    if len(inputs) >= 3:
        inputs = (inputs[1], inputs[0], *inputs[2:])
    return replace(operation, name=CONVOLUTION_BACKWARD, inputs=inputs)


def _lacks_strides(operation: Operation) -> bool:
    return operation.name in (CONVOLUTION, CONVOLUTION_BACKWARD) and "stride" not in operation.arguments


def _completed(
    operations: Sequence[Operation], results: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]
) -> Iterator[Operation]:
    for index, operation in enumerate(operations):
        pair = _image_and_weight(operation) if _lacks_strides(operation) else None
        if pair is None:
            yield operation
            continue
        image, weight = pair
        result = results.get((image.shape, weight.shape))
        if result is None and operation.name == CONVOLUTION:
            result = _read_next(operations[index + 1 : index + 1 + _NEXT_READERS], image, weight)
        arguments = None if result is None else convolution_arguments(image.shape, weight.shape, result)
        yield operation if arguments is None else replace(operation, arguments={**operation.arguments, **arguments})


def _image_and_weight(operation: Operation) -> tuple[TensorInfo, TensorInfo] | None:
    tensors = operation.inputs[1:3] if operation.name == CONVOLUTION_BACKWARD else operation.inputs[:2]
    if len(tensors) < 2 or len(tensors[0].shape) != len(tensors[1].shape) or len(tensors[0].shape) < 3:
        return None
    return tensors[0], tensors[1]


def _read_next(after: Sequence[Operation], image: TensorInfo, weight: TensorInfo) -> tuple[int, ...] | None:
    """Return the first shape that a following operation reads and that can be the result of the convolution."""
    for operation in after:
        for tensor in operation.inputs[:1]:
            shape = tensor.shape
            if len(shape) == len(image.shape) and shape[:2] == (image.shape[0], weight.shape[0]):
                return shape
    return None


def convolution_arguments(image: Sequence[int], weight: Sequence[int], result: Sequence[int]) -> dict[str, Any] | None:
    """Derive the arguments of a convolution from its shapes; None if no arguments fit.

    Args:
        image: Shape (batch, channels, *sizes).
        weight: Shape (output channels, channels per group, *sizes).
        result: Shape (batch, channels, *sizes).
    """
    solved = [
        solved_geometry(image=i, filter_size=k, result=r)
        for i, k, r in zip(image[2:], weight[2:], result[2:], strict=True)
    ]
    known = [pair for pair in solved if pair is not None]
    if len(known) < len(solved) or weight[1] < 1 or image[1] % weight[1]:
        return None
    return {
        "stride": [stride for stride, _ in known],
        "padding": [padding for _, padding in known],
        "dilation": [1] * len(known),
        "transposed": False,
        "output_padding": [0] * len(known),
        "groups": image[1] // weight[1],
    }


def solved_geometry(*, image: int, filter_size: int, result: int) -> tuple[int, int] | None:
    """Solve `result = floor((image + 2 padding - filter) / stride) + 1` for stride and padding; None without one.

    Of several solutions, non-overlapping patches are preferred. Otherwise, an odd filter gets a padding of half the
    filter, as in almost all networks. Otherwise, the padding is the smallest possible. The stride is the smallest
    possible.
    """
    if image == filter_size * result:
        return filter_size, 0
    usual = [filter_size // 2] if filter_size % 2 else []
    for padding in (*usual, *range(filter_size)):
        for stride in range(1, _LARGEST_STRIDE + 1):
            if (image + 2 * padding - filter_size) // stride + 1 == result:
                return stride, padding
    return None


# --- A step as torch before 2.0 runs it

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
