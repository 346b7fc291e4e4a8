"""Matrix products: `linear` and `bmm`, (b, m, k) x (b, k, n).

Work: 2·b·m·n·k. Traffic: both factors read, the product written. Example::

    >>> from lightning_predict.kernels.operations import problem_batch
    >>> float(problem_batch("bmm", "float32", b=2, m=3, n=5, k=4).flops[0])  # 2 x 2 x 3 x 5 x 4
    240.0
"""

from __future__ import annotations

from lightning_predict.kernels.operations import Array, Columns, OperationKind, register


def _flops(c: Columns) -> Array:
    return 2 * c["b"] * c["m"] * c["n"] * c["k"]


def _bmm_elements(c: Columns) -> Array:
    return c["b"] * (c["m"] * c["k"] + c["k"] * c["n"] + c["m"] * c["n"])


def _linear_elements(c: Columns) -> Array:
    # The weight (k, n) is one for all b.
    return c["b"] * c["m"] * (c["k"] + c["n"]) + c["k"] * c["n"]


register(
    OperationKind(
        name="linear",
        words=("b", "m", "n", "k"),
        defaults={"b": 1},
        units="tensor",
        flops=_flops,
        elements_moved=_linear_elements,
    ),
    OperationKind(
        name="bmm",
        words=("b", "m", "n", "k"),
        defaults={},
        units="tensor",
        flops=_flops,
        elements_moved=_bmm_elements,
    ),
)
