"""Softmax and normalisations, forward and backward: passes over rows that stay together.

Example::

    >>> from lightning_predict.kernels.translation import translate
    >>> from lightning_predict.tracing.trace import Flags, Operation, TensorInfo
    >>> x = TensorInfo((8, 16), "float32")
    >>> translate(Operation(name="aten::_softmax", phase="forward", inputs=(x,)), Flags())[0].operation
    'softmax'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lightning_predict.kernels.families.elementwise import VECTOR, as_transfer, by_element, of_matrix
from lightning_predict.kernels.operations import Part, Problem, register
from lightning_predict.tracing.trace import Flags, Operation, TensorInfo

LAYER_NORM_BACKWARD_RATIO: Final = 1.5
"""Backward over forward pass, of PyTorch's kernels in cudnn-frontend's tables, bfloat16: one shape alone (2.0, 1.3, 1.3
on the H200, GB200 and GB300). Norms add up their weights' gradients in a second kernel: counts of elements do not tell
how long that takes."""

RMS_NORM_BACKWARD_RATIO: Final = 3.1
"""The same: the median of 36 rows (2.7 on the H200, 3.2 on the GB200, 3.3 on the GB300)."""

RMS_NORM_TRANSFER_RATIO: Final = 1.1
"""Over a transfer of the same bytes: PyTorch's fused rms_norm in the same 36 rows (median 1.09; 0.9 to 1.2 in half of
them), far from the layer_norm and softmax of older libraries that networks were trained on."""


def along(data: TensorInfo, operation: Operation, default: int = -1) -> tuple[int, int]:
    """Rows and columns of a tensor whose columns lie along the operation's dimension."""
    dimension = int(operation.arguments.get("dim", default))
    columns = data.shape[dimension] if -len(data.shape) <= dimension < len(data.shape) else 1
    return data.elements // max(columns, 1), columns


def _along_dimension(name: str, operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    return of_matrix(name, operation.inputs[0], *along(operation.inputs[0], operation))


def _normalised(name: str, operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    position = 1 if name.endswith("_backward") else 0  # behind the gradient
    if len(operation.inputs) <= position:
        return None
    data = operation.inputs[position]
    columns = math.prod(operation.arguments.get("normalized_shape", data.shape[-1:]))
    return of_matrix(name, data, data.elements // max(columns, 1), columns)


def _by_channel(name: str, operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    data = operation.inputs[0]
    columns = math.prod(data.shape[2:])
    if operation.arguments.get("training") is False:  # Known statistics: one pass over the data.
        return None
    return of_matrix(name, data, data.elements // max(columns, 1), columns)


def _times(ratio: float, name: str) -> Callable[[Problem], tuple[Part, ...]]:
    """Make a proxy: another operation of the same shape, so many times."""
    return lambda problem: (Part(ratio, Problem(name, problem.dtype, problem.dims)),)


register(
    # Transcendental counts follow Lin et al.'s measured equivalents.
    replace(
        by_element("softmax", 1, 1, 5),
        aten=("aten::_softmax", "aten::_log_softmax"),
        translator=_along_dimension,
        families=(VECTOR,),
        reduces_rows=True,
        proxy=None,
    ),
    replace(
        by_element("softmax_backward", 2, 1, 4),
        aten=("aten::_softmax_backward_data", "aten::_log_softmax_backward_data"),
        translator=_along_dimension,
        families=(VECTOR,),
        reduces_rows=True,
        proxy=None,
    ),
    # As long as the softmax, which reads and writes as much.
    replace(by_element("log_softmax", 1, 1), proxy=_times(1.0, "softmax")),
    replace(by_element("log_softmax_backward", 2, 1), proxy=_times(1.0, "softmax_backward")),
    replace(
        by_element("layer_norm", 1, 1, 8),
        aten=("aten::native_layer_norm",),
        translator=_normalised,
        families=(VECTOR,),
        reduces_rows=True,
        proxy=None,
    ),
    replace(
        by_element("layer_norm_backward", 2, 1, 14),
        aten=("aten::native_layer_norm_backward",),
        translator=_normalised,
        proxy=_times(LAYER_NORM_BACKWARD_RATIO, "layer_norm"),
    ),
    replace(
        by_element("rms_norm", 1, 1, 5),
        aten=("aten::_fused_rms_norm",),
        translator=_normalised,
        proxy=as_transfer(RMS_NORM_TRANSFER_RATIO),
    ),
    replace(
        by_element("rms_norm_backward", 2, 1, 10),
        aten=("aten::_fused_rms_norm_backward",),
        translator=_normalised,
        proxy=_times(RMS_NORM_BACKWARD_RATIO, "rms_norm"),
    ),
    # In training, batch and group norm read their input twice: once for the statistics, once to normalise.
    replace(
        by_element("batch_norm", 2, 1, 8),
        aten=(
            "aten::native_batch_norm",
            "aten::cudnn_batch_norm",
            "aten::_native_batch_norm_legit",
            "aten::_batch_norm_with_update",
        ),
        translator=_by_channel,
        families=(VECTOR,),
    ),
    replace(
        by_element("batch_norm_backward", 4, 1, 14),
        aten=(
            "aten::native_batch_norm_backward",
            "aten::cudnn_batch_norm_backward",
            "aten::batch_norm_backward",
        ),
        translator=_by_channel,
        families=(VECTOR,),
    ),
    replace(
        by_element("group_norm", 2, 1, 8),
        aten=("aten::native_group_norm",),
        translator=_by_channel,
        families=(VECTOR,),
    ),
    replace(
        by_element("group_norm_backward", 4, 1, 14),
        aten=("aten::native_group_norm_backward",),
        translator=_by_channel,
        families=(VECTOR,),
    ),
)
