"""Converts images to channels last, which tensor cores prefer for convolutions and batch norms.

`model.to(memory_format=torch.channels_last)` converts the filters. The outputs of convolutions, element-wise
operations, pooling and batch norm keep this format. Group norm copies its input back to channels first, so the next
convolution must convert again. A view into tokens is no longer an image, so it ends the format. Example::

    >>> from lightning_predict.record.trace import Operation, TensorInfo, Trace
    >>> images, filters, result = (TensorInfo((8, 3, 56, 56), "float16", id=0), TensorInfo((64, 3, 3, 3), "float16"),
    ...                            TensorInfo((8, 64, 56, 56), "float16", id=1))
    >>> step = Operation(name="aten::convolution", phase="forward", inputs=(images, filters), outputs=(result,))
    >>> in_channels_last(Trace(operations=(step,), device="meta", recorder="dispatch")).operations[0].arguments
    {'channels_last': True}
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from lightning_predict.record.operand_strides import CHANNELS_LAST, IMAGES_AT, IMAGES_POSITION
from lightning_predict.record.trace import Operation, TensorInfo, Trace

_COPIES_BACK: Final = frozenset({"aten::native_group_norm", "aten::native_group_norm_backward"})
"""Operations that support only channels first."""


def in_channels_last(trace: Trace) -> Trace:
    """Return the step with channels-last images, and with copies before operations that need channels first."""
    return replace(trace, operations=tuple(_laid(trace)))


def _laid(trace: Trace) -> Iterator[Operation]:
    last: set[int] = set()
    is_blind = not any(operation.outputs for operation in trace.operations)
    number = 1 + max(
        (tensor.id or 0 for operation in trace.operations for tensor in (*operation.inputs, *operation.outputs)),
        default=0,
    )
    for operation in trace.operations:
        if operation.phase == "optimizer" or not operation.inputs:
            yield operation
            continue
        changed, turns = operation, False
        place = IMAGES_POSITION.get(operation.name)
        if operation.name in _COPIES_BACK:
            inputs = list(operation.inputs)
            for index, tensor in enumerate(inputs[: 1 + operation.name.endswith("backward")]):
                if tensor.id in last:
                    inputs[index], number = replace(tensor, id=number), number + 1
                    yield replace(
                        operation, name="aten::clone", inputs=(tensor,), outputs=(inputs[index],), arguments={}
                    )
            changed = replace(operation, inputs=tuple(inputs))
        elif place is not None and len(operation.inputs) > place and _is_image(operation.inputs[place]):
            images = operation.inputs[place]
            is_first = operation.name in IMAGES_AT and operation.phase == "forward" and images.id not in last
            if images.id in last or is_blind:
                changed = replace(operation, arguments={**operation.arguments, CHANNELS_LAST: True})
            turns = operation.name in IMAGES_AT or images.id in last
            if is_first and images.shape[1] <= _DATA_CHANNELS and not is_blind and images.id is not None:
                changed = replace(operation, arguments={**operation.arguments, CHANNELS_LAST: True})
                last.add(images.id)  # the backward pass reads them again
        else:
            turns = any(tensor.id in last and _is_image(tensor) for tensor in operation.inputs)
        yield changed
        for tensor in operation.outputs:
            if tensor.id is not None and tensor.id not in {tensor.id for tensor in operation.inputs}:
                (last.add if turns and _is_image(tensor) else last.discard)(tensor.id)


_DATA_CHANNELS: Final = 4  # Maximum number of channels of input data, which is converted together with the model


def _is_image(tensor: TensorInfo) -> bool:
    return len(tensor.shape) == 4 and tensor.shape[1] > 1 and math.prod(tensor.shape[2:]) > 1


def image_layouts(trace: Trace) -> list[bool]:
    """Return whether the images of each convolution are channels last."""
    return [
        bool(operation.arguments.get(CHANNELS_LAST))
        for operation in trace.operations
        if (place := IMAGES_AT.get(operation.name)) is not None
        and len(operation.inputs) > place
        and _is_image(operation.inputs[place])
    ]
