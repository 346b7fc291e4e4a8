"""Memory format of convolutions on the meta device, where torch says channels first whatever a GPU would give.

On CUDA a convolution gives channels last where its images or its weight lie so (`cudnn_conv_suggest_memory_format` in
`ATen/native/ConvUtils.h`; float64 never does); on the meta device every other operation of torch keeps the format, and
this one loses it. Example::

    >>> images = torch.empty(2, 8, 4, 4, device="meta").to(memory_format=torch.channels_last)
    >>> as_on_cuda("aten::convolution", (images, torch.empty(6, 8, 1, 1, device="meta")),
    ...            torch.empty(2, 6, 4, 4, device="meta")).stride()
    (96, 1, 24, 6)
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._prims_common import suggest_memory_format

from lightning_predict.tracing.tensors import is_dense

_FORWARD: Final = frozenset({"aten::convolution", "aten::_convolution"})
_BACKWARD: Final = "aten::convolution_backward"
CONVOLUTIONS: Final = _FORWARD | {_BACKWARD}

_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the number of dimensions."""


def as_on_cuda(name: str, args: tuple[Any, ...], output: Any) -> Any:
    """Return the result of an operation on meta tensors with the strides that it would have on a GPU.

    Args:
        name: Qualified name of the operation.
        args: Its arguments by position.
        output: Its result.
    """
    if name in _FORWARD and _is_meta(output) and _is_last(args[:2]):
        return _laid_out(output)
    if name == _BACKWARD and isinstance(output, tuple) and _is_meta(output[0]) and _is_last(args[1:3]):
        return (_laid_out(output[0]), *output[1:])
    return output


def _is_meta(tensor: object) -> bool:
    """True for an ordinary tensor on the meta device of four or five dimensions."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "meta":
        return False
    return tensor.dim() in _CHANNELS_LAST and is_dense(tensor)


def _is_last(images_and_weight: tuple[Any, ...]) -> bool:
    """Tell whether cuDNN would compute in channels last."""
    tensors = [one for one in images_and_weight if _is_meta(one)]
    return any(suggest_memory_format(one) in _CHANNELS_LAST.values() for one in tensors) and all(
        one.dtype is not torch.float64 for one in tensors
    )


def _laid_out(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=_CHANNELS_LAST[tensor.dim()])
