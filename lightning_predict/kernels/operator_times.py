"""GPU time of a single operation for given shapes, as a function of plain numbers and arrays.

Example::

    import lightning_predict as lp

    lp.operator_seconds("linear", "H100-SXM-80GB", dtype="bfloat16", b=1, m=4096, n=4096, k=[1024, 2048])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, shape_batch
from lightning_predict.kernels.timing import compute_dtype_on, predict_operation_times
from lightning_predict.weights.source import AnyWeights


def operator_seconds(
    operation: str,
    gpu: str,
    *,
    dtype: str = "float32",
    weights: AnyWeights = None,
    **shape: float | Sequence[float] | npt.NDArray[np.generic],
) -> float | npt.NDArray[np.float64]:
    """Predict the GPU seconds of one call of an operation.

    Args:
        operation: Name, for example `linear`, `bmm`, `conv2d`, `attention`, `layer_norm`, `add`. The suffix `_backward`
            selects the backward pass (for convolutions, `_backward_input` or `_backward_weight`).
        gpu: Name of a GPU.
        dtype: `float64`, `float32`, `tf32`, `float16`, `bfloat16`, `float8`. Times of matmuls in TF32 and float8 are
            the times in bfloat16, multiplied by the ratio of the rooflines.
        weights: Folder, file or https:// address of model weights; None uses the package's weights.
        **shape: Shape parameters of the operation, scalars or arrays that broadcast: `b`, `m`, `n`, `k` for matmuls;
            `batch`, `in_channels`, `out_channels`, `kernel_size`, `image_size`, `stride`, `padding` for convolutions;
            `batch`, `heads`, `kv_heads`, `seq`, `head_dim`, `causal` for attention; `rows`, `cols` for other
            operations.

    Returns:
        A float for scalars, otherwise an array of the broadcast shape.

    Raises:
        UnknownOperationError: The operation or a shape parameter is unknown; the message lists the known names.
        InvalidArgumentError: The dtype is unknown, a value is out of range, or the GPU does not support float8.
        UnknownGpuError: The GPU is not in the catalogue.
    """
    target = find_gpu(gpu)
    shape.pop("implementation", None)  # all fused kernels of one class have the same predicted time
    batch = shape_batch(operation, compute_dtype_on(str(dtype), target), **shape)
    columns = np.stack(list(batch.columns.values()), axis=1)
    shapes = [OperationShape(operation, batch.dtype, tuple(row)) for row in columns.tolist()]
    seconds = predict_operation_times(shapes, [target], kernel_models((target.name,), weights)).seconds[0]
    if all(np.ndim(value) == 0 for value in shape.values()):
        return float(seconds[0])
    broadcast: npt.NDArray[np.float64] = seconds.reshape(np.broadcast_shapes(*map(np.shape, shape.values())))
    return broadcast
