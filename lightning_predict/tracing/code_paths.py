"""Say what the user should know of the way that a step ran: compiled, with which layout and choice of algorithms.

Predictions follow the trace on each path; where they cannot, it is said here.

Images lie channels first (N, C, H, W) or channels last, as tensor cores want them. A convolution whose images are
channels last bears the argument `channels_last`, whichever way it was recorded, and a product whose second factor is
transposed `second_transposed`. Example::

    >>> from lightning_predict.note import Note
from lightning_predict.tracing.trace import Operation, TensorInfo, Trace
    >>> images = TensorInfo((8, 64, 56, 56), "float16")
    >>> trace = Trace(operations=(Operation(name="aten::convolution", phase="forward", inputs=(images, images)),),
    ...               device="meta", recorder="dispatch")
    >>> code_path_notes(trace)[0][:52]
    'Convolutions in 16 bits read images channels first: '
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lightning_predict.note import Note
from lightning_predict.tracing.trace import Operation, Trace

CHANNELS_LAST: Final = "channels_last"
"""Argument of a convolution or batch norm that reads images in this layout; left out for channels first."""

IMAGES_AT: Final[Mapping[str, int]] = {
    "aten::convolution": 0,
    "aten::_convolution": 0,
    "aten::cudnn_convolution": 0,
    "aten::convolution_backward": 1,
}
"""Convolutions, with the position of the images among their arguments."""

LAYOUT_AT: Final[Mapping[str, int]] = {
    **IMAGES_AT,
    "aten::native_batch_norm": 0,
    "aten::_native_batch_norm_legit": 0,
    "aten::_batch_norm_with_update": 0,
    "aten::cudnn_batch_norm": 0,
    "aten::native_batch_norm_backward": 1,
    "aten::batch_norm_backward": 1,
    "aten::cudnn_batch_norm_backward": 0,
}
"""Calls whose kernels depend on the layout of their images, with the position of these."""

SECOND_TRANSPOSED: Final = "second_transposed"
"""Argument of a product A·Bᵀ, whose second factor lies column by column, as a linear layer's; left out for others."""

FACTORS_AT: Final[Mapping[str, int]] = {"aten::mm": 1, "aten::addmm": 2, "aten::bmm": 1, "aten::baddbmm": 2}
"""Products, with the position of the second factor among their arguments."""


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether neighbours in memory are channels; False where both layouts are the same, too.

    Args:
        shape: Sizes (N, C, *sizes) in two or three dimensions.
        strides: Elements between neighbours in each dimension.
    """
    if len(shape) not in (4, 5) or len(strides) != len(shape):
        return False
    return shape[1] > 1 and math.prod(shape[2:]) > 1 and strides[1] == 1


def is_transposed(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether neighbours in memory are the rows of matrices; False where both orders are the same, too.

    Args:
        shape: Sizes (rows, columns), or of batches of such.
        strides: Elements between neighbours in each dimension.
    """
    if len(shape) not in (2, 3) or len(strides) != len(shape):
        return False
    return min(shape[-2:]) > 1 and strides[-2] == 1


OLDEST_TORCH: Final = (2, 1)
"""Release of the oldest of the products and layers that the networks learnt from; the newest ran on 2.9."""


def code_path_notes(trace: Trace) -> tuple[str, ...]:
    """Note the step's code paths, nothing for a plain eager step without convolutions on a current torch."""
    return (*_of_software(trace), *_of_convolutions(trace), *_of_compilation(trace))


def _of_software(trace: Trace) -> Iterator[str]:
    version = re.match(r"(\d+)\.(\d+)", trace.software.get("torch", ""))
    if version is not None and (int(version[1]), int(version[2])) < OLDEST_TORCH:
        yield (
            f"Recorded with torch {trace.software['torch']}, and predicted for it: measurements are of torch 2.1 to "
            "2.9, and for each year before, 5 % are added. A current release would be as much faster."
        )


def _of_convolutions(trace: Trace) -> Iterator[str]:
    convolutions = [operation for operation in trace.operations if operation.name in IMAGES_AT]
    if trace.has_measured_kernels or not convolutions:
        return  # what ran was measured, with the conversions and the algorithms that it took
    if any(_converts(operation) for operation in convolutions):
        yield (
            "Convolutions in 16 bits read images channels first: cuDNN converts most of them for the tensor cores, "
            "which is predicted. memory_format=torch.channels_last avoids it."
        )
    if trace.recorder == "dispatch":
        setting = "on" if trace.flags.cudnn_benchmark else "off"
        yield Note(
            f"cudnn.benchmark is {setting}; predictions of convolutions do not tell on from off.", is_detail=True
        )


def _converts(operation: Operation) -> bool:
    images = operation.inputs[IMAGES_AT[operation.name]]
    is_last = bool(operation.arguments.get(CHANNELS_LAST))
    is_image = len(images.shape) >= 4 and images.shape[1] > 1 and math.prod(images.shape[2:]) > 1
    return images.dtype in ("float16", "bfloat16") and not is_last and is_image


def _of_compilation(trace: Trace) -> Iterator[str]:
    if not trace.compiled:
        return
    if trace.compile_seconds:
        yield f"torch.compile took {trace.compile_seconds:.0f} s, once; predicted times leave it out."
    if not trace.has_measured_kernels:
        yield (
            "The compiled step was recorded without its kernels: products and convolutions are predicted by their "
            "shapes, fused kernels are not in the trace and count as nothing. Record on CUDA, or without torch.compile."
        )
