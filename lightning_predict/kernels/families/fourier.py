"""Fourier transforms: 5 N log2 N floating-point operations for N complex numbers, and half as many for real numbers.

The FFTW benchmark and cuFFT use this count for their rates (Frigo and Johnson, Proc. IEEE 93(2), 2005, section II).
Several dimensions are transformed one after the other, each with a pass through memory. Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> float(shape_batch("fft", "float32", batch=1, length=1024).flops[0])  # 5 x 1024 x 10
    51200.0
"""

from __future__ import annotations

import numpy as np

from lightning_predict.kernels.operations import (
    Array,
    Columns,
    OperationShape,
    OperationSpec,
    RooflineEfficiency,
    register,
    translates,
)
from lightning_predict.kernels.translation import compute_dtype
from lightning_predict.record.trace import Flags, Operation
from lightning_predict.uncertainty import ASSUMED_SPREAD


def _share(c: Columns) -> Array:
    """Return the share of the work and the traffic: half for real numbers."""
    return np.where(c["real"] > 0, 0.5, 1.0)


def _numbers(c: Columns) -> Array:
    """Return how many real numbers the data consist of: two for each complex number. Data are read and written once."""
    numbers: Array = 2 * c["batch"] * c["length"] * _share(c)
    return numbers


register(
    OperationSpec(
        name="fft",
        shape=("batch", "length", "real"),
        defaults={"batch": 1, "real": 0},
        units="vector",
        flops=lambda c: 5 * c["batch"] * c["length"] * np.log2(c["length"]) * _share(c),
        reads=_numbers,
        writes=_numbers,
        # Long transforms pass through memory two or more times. Both values are assumed, without measurements.
        estimators=(RooflineEfficiency(spread=ASSUMED_SPREAD),),
    )
)


@translates("aten::_fft_r2c", "aten::_fft_c2c", "aten::_fft_c2r")
def _transform(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    """Translate into one transform per dimension; with real input or output, each counts half."""
    data = operation.inputs[0]
    dimensions = operation.arguments.get("dim")
    if not isinstance(dimensions, (list, tuple)) or not data.shape:
        return None
    is_real = operation.name != "aten::_fft_c2c"
    sizes = list(data.shape)
    if operation.name == "aten::_fft_c2r" and operation.arguments.get("last_dim_size"):
        sizes[dimensions[-1]] = int(operation.arguments["last_dim_size"])
    numbers = float(np.prod(sizes))
    if numbers < 1:
        return ()
    dtype = compute_dtype(data)
    return tuple(
        OperationShape("fft", dtype, (numbers / sizes[place], float(sizes[place]), float(is_real)))
        for place in dimensions
    )
