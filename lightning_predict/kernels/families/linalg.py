"""Factorisations and solvers of dense matrices: solve, inverse, determinant, Cholesky, QR, eigenvalues, SVD.

FLOPs are from the textbook (Golub and Van Loan, Matrix Computations, 4th edition), for a matrix of m x n, m >= n:

    Cholesky (4.2)                       n³ / 3
    LU with partial pivoting (3.2)       n² (m - n / 3), so 2 n³ / 3 for a square
    two triangular solves (3.1)          n² for each of them and each right-hand side
    QR by Householder (5.2)              2 n² (m - n / 3); as much again for the thin Q
    symmetric eigenvalues (8.3)          4 n³ / 3; 9 n³ with vectors
    eigenvalues (7.5)                    10 n³; 25 n³ with vectors
    singular values (8.6, Golub-Reinsch) 4 n² (m - n / 3); 14 m n² + 8 n³ with thin vectors

These algorithms are sequential: each column depends on the previous column. Each operation therefore has a number of
dependent kernels. Their interval is wide, because no measurements were available.
These algorithms never use TF32. Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> round(float(shape_batch("cholesky", "float32", n=300).flops[0]))  # 300³ / 3
    9000000
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

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
from lightning_predict.kernels.translation import COMPLEX_MATMULS, compute_dtype, is_complex
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from lightning_predict.uncertainty import UNKNOWN_SPREAD


def _kernels(a_column: float) -> Callable[[Columns], Array]:
    """Make the function that counts dependent kernels, from their number per column."""

    def count(c: Columns) -> Array:
        return np.maximum(a_column * np.minimum(c.get("m", c["n"]), c["n"]), 1.0)

    return count


def _tall(c: Columns) -> tuple[Array, Array]:
    return np.maximum(c["m"], c["n"]), np.minimum(c["m"], c["n"])


def _householder(c: Columns) -> Array:
    m, n = _tall(c)
    return c["batch"] * 2 * n**2 * (m - n / 3)


def _singular(c: Columns) -> Array:
    m, n = _tall(c)
    vectors = 14 * m * n**2 + 8 * n**3
    return c["batch"] * np.where(c["values_only"] > 0, 4 * n**2 * (m - n / 3), vectors)


def _sides(c: Columns) -> Array:
    return c["batch"] * c["m"] * c["n"]


def _square(c: Columns) -> Array:
    return c["batch"] * c["n"] ** 2


def _vectors(c: Columns) -> Array:
    return 1 - c["values_only"]


def _factorisation(
    name: str,
    words: tuple[str, ...],
    flops: Callable[[Columns], Array],
    reads: Callable[[Columns], Array],
    writes: Callable[[Columns], Array],
    kernels: Callable[[Columns], Array],
) -> OperationSpec:
    defaults: dict[str, float | str] = {"batch": 1, "values_only": 0, "m": "n", "columns": 1}
    return OperationSpec(
        name=name,
        shape=words,
        defaults={word: value for word, value in defaults.items() if word in words},
        units="tensor",
        flops=flops,
        reads=reads,
        writes=writes,
        estimators=(RooflineEfficiency(spread=UNKNOWN_SPREAD, sequential_kernels=kernels),),
    )


register(
    _factorisation(
        "matrix_exponential",
        ("batch", "n"),
        lambda c: 2 * 8 * c["batch"] * c["n"] ** 3,  # eight products
        _square,
        _square,
        _kernels(0),
    ),
    _factorisation("cholesky", ("batch", "n"), lambda c: c["batch"] * c["n"] ** 3 / 3, _square, _square, _kernels(1)),
    _factorisation(
        "lu",
        ("batch", "n", "m"),
        lambda c: _householder(c) / 2,
        _sides,
        _sides,
        _kernels(2),  # the pivot search is a separate kernel
    ),
    _factorisation(
        "triangular_solve",
        ("batch", "n", "columns"),
        lambda c: c["batch"] * c["n"] ** 2 * c["columns"],
        lambda c: c["batch"] * (c["n"] ** 2 / 2 + c["n"] * c["columns"]),
        lambda c: c["batch"] * c["n"] * c["columns"],
        _kernels(1 / 32),  # blocks of 32 columns
    ),
    _factorisation(
        "qr",
        ("batch", "n", "m", "values_only"),
        lambda c: _householder(c) * (1 + _vectors(c)),
        _sides,
        lambda c: _sides(c) * (1 + _vectors(c)),
        _kernels(2),
    ),
    _factorisation(
        "eigh",
        ("batch", "n", "values_only"),
        lambda c: c["batch"] * c["n"] ** 3 * np.where(c["values_only"] > 0, 4 / 3, 9.0),
        _square,
        lambda c: _square(c) * _vectors(c),
        _kernels(16),
    ),
    _factorisation(
        "eig",
        ("batch", "n", "values_only"),
        lambda c: c["batch"] * c["n"] ** 3 * np.where(c["values_only"] > 0, 10.0, 25.0),
        _square,
        lambda c: 2 * _square(c) * _vectors(c),
        _kernels(64),  # largely on the host
    ),
    _factorisation(
        "svd",
        ("batch", "n", "m", "values_only"),
        _singular,
        _sides,
        lambda c: 2 * _sides(c) * _vectors(c),
        _kernels(64),
    ),
)


@dataclass(frozen=True, slots=True)
class _Matrices:
    """A tensor as a batch of matrices; complex matrices count `COMPLEX_MATMULS` times."""

    batch: int
    rows: int
    columns: int
    dtype: str

    def operation_shape(self, operation: str, *dims: float) -> OperationShape:
        """Return the factorisation of all matrices; `dims` follow the batch."""
        return OperationShape(operation, self.dtype, (float(self.batch), *map(float, dims)))


def _matrices(tensor: TensorInfo) -> _Matrices | None:
    if len(tensor.shape) < 2:
        return None
    *batch, rows, columns = tensor.shape
    count = math.prod(batch) * (COMPLEX_MATMULS if is_complex(tensor) else 1)
    return _Matrices(count, rows, columns, compute_dtype(tensor))


def _right_hand_sides(tensor: TensorInfo, matrices: _Matrices) -> float:
    """Return the number of right-hand sides per matrix, from a tensor of (..., n, columns) or of vectors (..., n)."""
    batch = matrices.batch / (COMPLEX_MATMULS if is_complex(tensor) else 1)
    return max(tensor.elements / max(batch * matrices.rows, 1), 1.0)


_Recipe = Callable[[_Matrices, float, Operation], tuple[OperationShape, ...]]


def _lu(a: _Matrices, _columns: float, _operation: Operation) -> tuple[OperationShape, ...]:
    return (a.operation_shape("lu", a.columns, a.rows),)


def _two_solves(a: _Matrices, columns: float, _operation: Operation) -> tuple[OperationShape, ...]:
    return (a.operation_shape("triangular_solve", a.rows, columns),) * 2


def _solve(a: _Matrices, columns: float, operation: Operation) -> tuple[OperationShape, ...]:
    return (*_lu(a, columns, operation), *_two_solves(a, columns, operation))


def _triangular(a: _Matrices, columns: float, _operation: Operation) -> tuple[OperationShape, ...]:
    return (a.operation_shape("triangular_solve", a.rows, columns),)


def _reflected(a: _Matrices, columns: float, _operation: Operation) -> tuple[OperationShape, ...]:
    """Count the application of reflectors to a matrix as matmuls: 4 m n columns."""
    return (OperationShape("bmm", a.dtype, (float(a.batch), float(a.rows), columns, 2.0 * a.columns)),)


def _least_squares(a: _Matrices, columns: float, operation: Operation) -> tuple[OperationShape, ...]:
    r = (
        a.operation_shape("qr", a.columns, a.rows, 1),
        a.operation_shape("triangular_solve", min(a.rows, a.columns), columns),
    )
    return (*r, *_reflected(a, columns, operation))


def _svd(a: _Matrices, _columns: float, operation: Operation) -> tuple[OperationShape, ...]:
    values_only = operation.arguments.get("compute_uv") is False
    shapes = (a.operation_shape("svd", a.columns, a.rows, values_only),)
    shorter, longer = sorted((a.rows, a.columns))
    if values_only or not operation.arguments.get("full_matrices") or shorter == longer:
        return shapes
    # The remaining vectors of the longer side: 4 m n (m - n).
    return (
        *shapes,
        OperationShape("bmm", a.dtype, (float(a.batch), float(longer), float(longer - shorter), 2.0 * shorter)),
    )


def _pseudo_inverse(a: _Matrices, columns: float, operation: Operation) -> tuple[OperationShape, ...]:
    shorter, longer = sorted((a.rows, a.columns))
    product = (float(a.batch), float(longer), float(shorter), float(shorter))
    return (*_svd(a, columns, operation), OperationShape("bmm", a.dtype, product))


_BY_FIRST: Final[dict[str, _Recipe]] = {
    **dict.fromkeys(("_linalg_solve_ex", "linalg_solve", "linalg_solve_ex", "linalg_tensorsolve"), _solve),
    **dict.fromkeys(("linalg_inv", "linalg_inv_ex", "inverse"), lambda a, _, own: _solve(a, a.columns, own)),
    **dict.fromkeys(
        ("_linalg_det", "linalg_det", "det", "_linalg_slogdet", "linalg_slogdet", "slogdet", "logdet"), _lu
    ),
    **dict.fromkeys(("linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex", "_lu_with_info"), _lu),
    **dict.fromkeys(("linalg_lu_solve", "linalg_ldl_solve"), _two_solves),
    **dict.fromkeys(
        ("linalg_cholesky", "linalg_cholesky_ex", "cholesky", "linalg_ldl_factor", "linalg_ldl_factor_ex"),
        lambda a, _, _own: (a.operation_shape("cholesky", a.columns),),
    ),
    "cholesky_inverse": lambda a, _, own: _two_solves(a, a.columns, own),
    "linalg_solve_triangular": _triangular,
    **dict.fromkeys(
        ("linalg_qr", "qr"),
        lambda a, _, own: (a.operation_shape("qr", a.columns, a.rows, own.arguments.get("mode") == "r"),),
    ),
    # Reflectors, or their product, are half of a QR factorisation with Q.
    **dict.fromkeys(
        ("geqrf", "linalg_householder_product", "orgqr"),
        lambda a, _, _own: (a.operation_shape("qr", a.columns, a.rows, 1),),
    ),
    "ormqr": _reflected,
    "linalg_lstsq": _least_squares,
    **dict.fromkeys(
        ("_linalg_eigh", "linalg_eigh", "linalg_eigvalsh"),
        lambda a, _, own: (a.operation_shape("eigh", a.columns, own.arguments.get("compute_v") is False),),
    ),
    "linalg_eig": lambda a, _, _own: (a.operation_shape("eig", a.columns, 0),),
    **dict.fromkeys(
        ("linalg_eigvals", "_linalg_eigvals"), lambda a, _, _own: (a.operation_shape("eig", a.columns, 1),)
    ),
    **dict.fromkeys(("_linalg_svd", "linalg_svd", "svd", "linalg_svdvals"), _svd),
    **dict.fromkeys(("linalg_pinv", "pinverse"), _pseudo_inverse),
    **dict.fromkeys(
        ("linalg_matrix_exp", "matrix_exp"), lambda a, _, _own: (a.operation_shape("matrix_exponential", a.columns),)
    ),
}
"""Operations with the matrix as first input, and right-hand sides, if any, as last input."""

_BY_SECOND: Final[dict[str, _Recipe]] = {  # Operations with right-hand sides as first input
    **dict.fromkeys(("lu_solve", "_cholesky_solve_helper", "cholesky_solve"), _two_solves),
    "triangular_solve": _triangular,
}


@translates(*(f"aten::{name}" for name in _BY_FIRST))
def _matrix_first(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    sides = operation.inputs[-1] if len(operation.inputs) > 1 else None
    return _shapes(_BY_FIRST[operation.name.removeprefix("aten::")], operation, operation.inputs[0], sides)


@translates(*(f"aten::{name}" for name in _BY_SECOND))
def _matrix_second(operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    if len(operation.inputs) < 2:
        return None
    sides, matrix = operation.inputs[:2]
    return _shapes(_BY_SECOND[operation.name.removeprefix("aten::")], operation, matrix, sides)


def _shapes(
    recipe: _Recipe, operation: Operation, matrix: TensorInfo, sides: TensorInfo | None
) -> tuple[OperationShape, ...] | None:
    matrices = _matrices(matrix)
    if matrices is None:
        return None
    if min(matrices.batch, matrices.rows, matrices.columns) < 1:
        return ()
    return recipe(matrices, 1.0 if sides is None else _right_hand_sides(sides, matrices), operation)
