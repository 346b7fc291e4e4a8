"""Pooling of images, forward and backward.

Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> float(problem_batch("avg_pool2d", "float32", batch=1, channels=1, image_size=4).bytes_moved[0])  # 16 + 4
    80.0
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_predict.kernels.families.elementwise import as_transfer
from lightning_predict.kernels.operations import Array, Columns, OperationKind, register


def _pooled(c: Columns) -> Array:
    """Elements of the output."""
    rows = np.maximum(np.floor((c["height"] - c["kernel_size"]) / c["stride"]) + 1, 1)
    columns = np.maximum(np.floor((c["width"] - c["kernel_size"]) / c["stride"]) + 1, 1)
    pooled: Array = c["batch"] * c["channels"] * rows * columns
    return pooled


def _image(c: Columns) -> Array:
    return c["batch"] * c["channels"] * c["height"] * c["width"]


def _pooling(name: str, reads: Callable[[Columns], Array], writes: Callable[[Columns], Array]) -> OperationKind:
    return OperationKind(
        name=name,
        shape=("batch", "channels", "height", "width", "kernel_size", "stride"),
        defaults={"width": "height", "kernel_size": 2, "stride": "kernel_size"},
        spellings={"image_size": ("height", "width")},
        units="vector",
        flops=lambda c: _pooled(c) * c["kernel_size"] ** 2,
        reads=reads,
        writes=writes,
        proxy=as_transfer(),
    )


def _with_places(c: Columns) -> Array:
    """Elements of the values, and of their places as 8 bytes each."""
    return 3 * _pooled(c)


register(
    _pooling("avg_pool2d", _image, _pooled),
    _pooling("max_pool2d", _image, _with_places),
    # The same tensors the other way round: the gradient and the places are read, the image is written.
    _pooling("avg_pool2d_backward", _pooled, _image),
    _pooling("max_pool2d_backward", _with_places, _image),
)
