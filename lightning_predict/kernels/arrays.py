"""Sums over groups of columns, for all GPUs at once.

Example::

    >>> summed_by_owner(np.array([[1.0, 2.0, 4.0]]), np.array([1, 0, 1]), 2)
    array([[2., 5.]])
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]


def summed_by_owner(values: FloatArray, owners: IndexArray, count: int) -> FloatArray:
    """Add up the columns of each owner.

    Args:
        values: Shape (gpus, parts).
        owners: Owner of each part, shape (parts,), each below `count`.
        count: Number of owners.

    Returns:
        Shape (gpus, count); owners without parts are 0.
    """
    if values.shape[1] == count and np.array_equal(owners, np.arange(count)):
        return values  # one part each
    rows = values.shape[0]
    # One flat histogram: row r's owners are numbered from r x count.
    flat = (owners[None, :] + count * np.arange(rows)[:, None]).ravel()
    total = np.bincount(flat, weights=values.ravel(), minlength=rows * count)
    return total.astype(np.float64).reshape(rows, count)
