"""Benchmarks of work on a matrix of rows and columns: element-wise families, norms, reductions, look-ups, sorting.

Example::

    >>> import random
    >>> sorted(MATRICES["sort"].draw(random.Random(0)))
    ['cols', 'rows']
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional

from lightning_predict.measuring.problems import Benchmark, Calls, Words, both, made, size

LARGEST_K: Final = 8
"""How many of a row `topk` finds."""


@final
@dataclass(frozen=True, slots=True)
class Matrices:
    """Operands, each (rows, cols) where nothing else is said.

    Attributes:
        data: Random numbers; its gradient is computed.
        other: Numbers above 1; its gradient is computed.
        scale: One number a column; its gradient is computed.
        places: A random row for each row, shape (rows,).
        space: Where results may be written.
    """

    data: Tensor
    other: Tensor
    scale: Tensor
    places: Tensor
    space: Tensor

    @property
    def images(self) -> Tensor:
        """One image whose channels are the rows, so that rows and columns mean what they say."""
        return self.data[None]

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return 8 if self.data.shape[0] % 8 == 0 else 1


Forward = Callable[[Matrices], Tensor]

BY_DATA: Final[Mapping[str, Forward]] = {
    "add": lambda x: x.data + x.other,
    "add_scalar": lambda x: x.data + 1.5,
    "sub": lambda x: x.data - x.other,
    "mul": lambda x: x.data * x.other,
    "mul_scalar": lambda x: x.data * 1.5,
    "div": lambda x: x.data / x.other,
    "div_scalar": lambda x: x.data / 1.5,
    "pow_scalar": lambda x: torch.pow(x.data, 2.0),
    "neg": lambda x: -x.data,
    "exp": lambda x: torch.exp(x.data),
    "relu": lambda x: torch.relu(x.data),
    "leaky_relu": lambda x: functional.leaky_relu(x.data),
    "gelu": lambda x: functional.gelu(x.data),
    "silu": lambda x: functional.silu(x.data),
    "sigmoid": lambda x: torch.sigmoid(x.data),
    "tanh": lambda x: torch.tanh(x.data),
    "where": lambda x: torch.where(x.data.detach() > 0, x.data, x.other),
    "softmax": lambda x: torch.softmax(x.data, -1),
    "log_softmax": lambda x: torch.log_softmax(x.data, -1),
    "batch_norm": lambda x: functional.batch_norm(x.images, None, None, training=True),
    "group_norm": lambda x: functional.group_norm(x.images, x.groups),
    "dropout": lambda x: functional.dropout(x.data, 0.1),
    "embedding": lambda x: functional.embedding(x.places, x.data),
    "cross_entropy": lambda x: functional.cross_entropy(x.data, x.places % x.data.shape[1]),
    "sum": lambda x: x.data.sum(-1),
    "mean": lambda x: x.data.mean(-1),
    "max": lambda x: torch.amax(x.data, -1),
    "argmax": lambda x: torch.argmax(x.data, -1),
    "topk": lambda x: torch.topk(x.data, min(LARGEST_K, x.data.shape[1])).values,
    "sort": lambda x: torch.sort(x.data).values,
    "concat": lambda x: torch.cat(x.data.tensor_split(2)),
    "copy": lambda x: x.space.copy_(x.data),
    "gather": lambda x: torch.index_select(x.data, 0, x.places),
    "scatter": lambda x: x.space.index_add_(0, x.places, x.data),
}
"""Operations that have a gradient to `data` alone, or none that has a name."""

BY_OTHER: Final[Mapping[str, Forward]] = {
    "pow": lambda x: torch.pow(x.other, x.other),
    "log": lambda x: torch.log(x.other),
    "sqrt": lambda x: torch.sqrt(x.other),
}
"""Operations on positive numbers."""

BY_SCALE: Final[Mapping[str, Forward]] = {
    "layer_norm": lambda x: functional.layer_norm(x.data, (x.data.shape[1],), x.scale, x.scale),
    "rms_norm": lambda x: functional.rms_norm(x.data, (x.data.shape[1],), x.scale),
}
"""Operations that have a gradient to `data` and to `scale`."""


def _draw_matrix(draw: random.Random) -> Words:
    return {"rows": size(draw, 1, 65536), "cols": size(draw, 16, 16384)}


def _matrices(words: Words, dtype: torch.dtype, device: torch.device) -> Matrices:
    rows, cols = words["rows"], words["cols"]
    return Matrices(
        data=made(device, dtype, rows, cols).requires_grad_(),
        other=(made(device, dtype, rows, cols).abs() + 1).requires_grad_(),
        scale=made(device, dtype, cols).requires_grad_(),
        places=torch.randint(rows, (rows,), device=device),
        space=made(device, dtype, rows, cols),
    )


def _calls(
    name: str, forward: Forward, wanted: tuple[str, ...], words: Words, dtype: torch.dtype, device: torch.device
) -> Calls:
    """Calls of one operation; `wanted`: operands whose gradients its backward pass computes."""
    matrices = _matrices(words, dtype, device)
    return both(name, lambda: forward(matrices), [getattr(matrices, operand) for operand in wanted])


MATRICES: Final[Mapping[str, Benchmark]] = {
    name: Benchmark(_draw_matrix, partial(_calls, name, forward, wanted))
    for table, wanted in ((BY_DATA, ("data",)), (BY_OTHER, ("other",)), (BY_SCALE, ("data", "scale")))
    for name, forward in table.items()
}
"""Benchmarks by operation."""
