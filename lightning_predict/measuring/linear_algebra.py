"""Benchmarks of factorisations, solvers and Fourier transforms, which run in float32 and float64 alone.

Example::

    >>> import random
    >>> sorted(LINEAR_ALGEBRA["cholesky"].draw(random.Random(0)))
    ['batch', 'n']
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from lightning_predict.measuring.problems import Benchmark, Calls, Words, both, made, size

_Factorise = Callable[[Tensor], Any]


def _draw_square(draw: random.Random) -> Words:
    return {"batch": size(draw, 1, 64), "n": size(draw, 8, 2048)}


def _draw_tall(draw: random.Random) -> Words:
    square = _draw_square(draw)
    return {**square, "m": square["n"] * draw.choice([1, 1, 2, 4])}


def _draw_triangular(draw: random.Random) -> Words:
    return {**_draw_square(draw), "columns": size(draw, 1, 512)}


def _draw_transform(draw: random.Random) -> Words:
    return {"batch": size(draw, 1, 4096), "length": size(draw, 16, 65536), "real": draw.choice([0, 1])}


def _of(operation: str, factorise: _Factorise) -> Callable[[Words, torch.dtype, torch.device], Calls]:
    """Calls of a factorisation on random matrices (batch, m, n), square where the problem has no m."""

    def calls(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
        batch = words.get("batch", 1)
        matrix = made(device, dtype, batch, words.get("m", words["n"]), words["n"])
        return both(operation, lambda: factorise(matrix), [])

    return calls


def _of_symmetric(operation: str, factorise: _Factorise) -> Callable[[Words, torch.dtype, torch.device], Calls]:
    """Calls of a factorisation on random matrices (batch, n, n) that are symmetric and positive definite."""

    def calls(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
        root = made(device, dtype, words.get("batch", 1), words["n"], words["n"])
        matrix = root @ root.mT + words["n"] * torch.eye(words["n"], dtype=dtype, device=device)
        return both(operation, lambda: factorise(matrix), [])

    return calls


def _triangular(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    batch, n = words.get("batch", 1), words["n"]
    matrix = made(device, dtype, batch, n, n).triu() + n * torch.eye(n, dtype=dtype, device=device)
    sides = made(device, dtype, batch, n, words.get("columns", 1))
    return both("triangular_solve", lambda: torch.linalg.solve_triangular(matrix, sides, upper=True), [])


def _transform(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    data = made(device, dtype, words.get("batch", 1), words["length"])
    if words.get("real", 0):
        return both("fft", lambda: torch.fft.rfft(data), [])
    numbers = torch.complex(data, data)
    return both("fft", lambda: torch.fft.fft(numbers), [])


LINEAR_ALGEBRA: Final[Mapping[str, Benchmark]] = {
    "cholesky": Benchmark(_draw_square, _of_symmetric("cholesky", torch.linalg.cholesky)),
    "lu": Benchmark(_draw_tall, _of("lu", torch.linalg.lu_factor)),
    "qr": Benchmark(_draw_tall, _of("qr", torch.linalg.qr)),
    "svd": Benchmark(_draw_tall, _of("svd", lambda matrix: torch.linalg.svd(matrix, full_matrices=False))),
    "eigh": Benchmark(_draw_square, _of_symmetric("eigh", torch.linalg.eigh)),
    "eig": Benchmark(_draw_square, _of("eig", torch.linalg.eig)),
    "matrix_exponential": Benchmark(_draw_square, _of("matrix_exponential", torch.linalg.matrix_exp)),
    "triangular_solve": Benchmark(_draw_triangular, _triangular),
    "fft": Benchmark(_draw_transform, _transform),
}
"""Benchmarks by operation."""
