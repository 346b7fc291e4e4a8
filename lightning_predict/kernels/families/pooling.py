"""Pooling of images, forward and backward.

Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> float(shape_batch("avg_pool2d", "float32", batch=1, channels=1, image_size=4).bytes_moved[0])  # 16 + 4
    80.0
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.elementwise import as_transfer
from lightning_predict.kernels.memory_bound import bytes_read, bytes_written
from lightning_predict.kernels.operations import (
    COMPUTE_BYTES,
    Array,
    Columns,
    OperationShape,
    OperationSpec,
    ShapeBatch,
    register,
    translates,
)
from lightning_predict.kernels.roofline import issue_rate, limited_transfer
from lightning_predict.record.trace import Flags, Operation, TensorInfo


def _pooled(c: Columns) -> Array:
    rows = np.maximum(np.floor((c["height"] - c["kernel_size"]) / c["stride"]) + 1, 1)
    columns = np.maximum(np.floor((c["width"] - c["kernel_size"]) / c["stride"]) + 1, 1)
    pooled: Array = c["batch"] * c["channels"] * rows * columns
    return pooled


def _image(c: Columns) -> Array:
    return c["batch"] * c["channels"] * c["height"] * c["width"]


WINDOW_CYCLES: Final = 1.5
WINDOW_CYCLES_AN_ELEMENT: Final = 0.26  # SM cycles for indices: a constant per window, and one per element of it


MAX_BACKWARD_CYCLES: Final = (2.3, 0.23)
AVG_BACKWARD_CYCLES: Final = (3.9, 0.75)
"""SM cycles in the backward passes of max and average pooling: per position, and per window that contains the
position.

PyTorch's kernels visit each position of the image and look up the windows around it. On the H200, a position in one
window takes 2.5 cycles (max) or 4.6 (average). In 12 windows, it takes 5.1 or 13 (torch 2.11, own measurements of
2026-11-27, windows of 2 to 7 at strides of 2 to 7, bfloat16 and float32). ResNet-50 (2.25 windows) takes 2.9 cycles
on the A100, 2.8 on the RTX 2080 Ti, and 4.3 on the V100 (2.1 with torch 1.9)."""


def window_cycles(elements: float) -> float:
    """Return SM cycles for one window with this number of elements."""
    return WINDOW_CYCLES + WINDOW_CYCLES_AN_ELEMENT * elements


def _placed(batch: ShapeBatch, gpu: Gpu) -> Array:
    c = batch.columns
    cycles = _pooled(c) * (WINDOW_CYCLES + WINDOW_CYCLES_AN_ELEMENT * c["kernel_size"] ** 2)
    seconds: Array = cycles / issue_rate(gpu)
    return seconds


_Count = TypeVar("_Count", float, Array)


def _backward_cycles(cycles: tuple[float, float], positions: _Count, window_elements: _Count) -> _Count:
    """Return SM cycles of a backward pass that visits each position, and the windows that contain the position.

    `cycles` are per position, and per window that contains the position.
    """
    by_position, by_window = cycles
    return by_position * positions + by_window * window_elements


def _visited(cycles: tuple[float, float]) -> Callable[[ShapeBatch, Gpu], Array]:
    """Make the latency function of a backward pass."""

    def latency(batch: ShapeBatch, gpu: Gpu) -> Array:
        c = batch.columns
        seconds: Array = _backward_cycles(cycles, _image(c), _pooled(c) * c["kernel_size"] ** 2) / issue_rate(gpu)
        return seconds

    return latency


def _kind(
    name: str,
    reads: Callable[[Columns], Array],
    writes: Callable[[Columns], Array],
    latency: Callable[[ShapeBatch, Gpu], Array] = _placed,
) -> OperationSpec:
    return OperationSpec(
        name=name,
        shape=("batch", "channels", "height", "width", "kernel_size", "stride"),
        defaults={"width": "height", "kernel_size": 2, "stride": "kernel_size"},
        spellings={"image_size": ("height", "width")},
        units="vector",
        flops=lambda c: _pooled(c) * c["kernel_size"] ** 2,
        reads=reads,
        writes=writes,
        estimators=(as_transfer(),),
        latency=latency,
    )


def _with_places(c: Columns) -> Array:
    """Return the values and their indices of 8 bytes each, in elements of 4 bytes."""
    return 3 * _pooled(c)


register(
    _kind("avg_pool2d", _image, _pooled),
    _kind("max_pool2d", _image, _with_places),
    # The backward pass reads the gradient and the indices, and writes the image.
    _kind("avg_pool2d_backward", _pooled, _image, _visited(AVG_BACKWARD_CYCLES)),
    _kind("max_pool2d_backward", _with_places, _image, _visited(MAX_BACKWARD_CYCLES)),
)


@translates(
    "aten::avg_pool2d",
    "aten::avg_pool3d",
    "aten::max_pool2d_with_indices",
    "aten::max_pool3d_with_indices",
    "aten::avg_pool2d_backward",
    "aten::avg_pool3d_backward",
    "aten::max_pool2d_with_indices_backward",
    "aten::max_pool3d_with_indices_backward",
)
def _pooling(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    kernel = operation.arguments.get("kernel_size")
    if not isinstance(kernel, list | tuple | int):
        return None
    dimensions = 3 if "pool3d" in operation.name else 2
    sizes = [kernel] * dimensions if isinstance(kernel, int) else list(kernel)
    taps = math.prod(sizes * dimensions if len(sizes) == 1 else sizes)
    pooled = operation.inputs[0] if "backward" in operation.name else _first_output(operation)
    if pooled is None:
        return None
    if operation.name.startswith("aten::max") and "backward" in operation.name:
        return _max_backward(operation, taps)
    if "backward" in operation.name:
        image = operation.inputs[1] if len(operation.inputs) > 1 else pooled
        cycles = _backward_cycles(AVG_BACKWARD_CYCLES, float(image.elements), float(pooled.elements * taps))
    else:
        cycles = pooled.elements * window_cycles(float(taps))
    read, written = float(bytes_read(operation)), float(bytes_written(operation))
    return (limited_transfer(read, written, float(pooled.elements), cycles=cycles),) if pooled.elements else ()


def _max_backward(operation: Operation, taps: int) -> tuple[OperationShape, ...] | None:
    """Count zeroing the gradient, and a pass that searches the windows around each position."""
    gradient, image = operation.inputs[:2]
    if not gradient.elements or not image.elements:
        return ()
    size, places = float(image.size_bytes), float(gradient.size_bytes + COMPUTE_BYTES["int64"] * gradient.elements)
    cycles = _backward_cycles(MAX_BACKWARD_CYCLES, float(image.elements), float(gradient.elements * taps))
    moved = OperationShape("transfer", "float32", (places, 2 * size, float(image.elements)))
    return (moved, limited_transfer(0, 0, 0, cycles=cycles))


@translates("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d", "aten::adaptive_max_pool2d")
def _adaptive_pooling(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate with windows of the size ratio between the image and the result."""
    data, pooled = operation.inputs[0], _first_output(operation)
    if pooled is None or not pooled.elements:
        return None
    cycles = pooled.elements * window_cycles(data.elements / pooled.elements)
    read, written = float(bytes_read(operation)), float(bytes_written(operation))
    return (limited_transfer(read, written, float(data.elements), cycles=cycles),)


def _first_output(operation: Operation) -> TensorInfo | None:
    return operation.outputs[0] if operation.outputs else None
