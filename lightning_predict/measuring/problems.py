"""Describe a benchmark: a way to draw problems of an operation, and a problem as calls of torch.

Sizes are drawn evenly over their logarithms, most of them as networks have them. The calls are the forward pass, and
each part of the backward pass that has a name of its own. Every call works on tensors made once, so that timing it
times the operation alone. Example::

    relu = Benchmark(draw=draw_matrix, calls=lambda shape, dtype, device: both("relu", ...))
    relu.calls({"rows": 1024, "cols": 512}, torch.bfloat16, torch.device("cuda"))["relu_backward"]()
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from lightning_predict.kernels.operations import operation_names

Words = dict[str, int]
Drawer = Callable[[random.Random], Words]

MULTIPLE_SHARE: Final = 0.7
"""Share of sizes that are multiples of 8, as most layers are; the rest is any number."""


def size(draw: random.Random, low: int, high: int) -> int:
    """Return a size between two bounds, even over its logarithm."""
    value = round(low * math.exp(math.log(high / low) * draw.random()))
    if value >= 16 and draw.random() < MULTIPLE_SHARE:
        value = round(value / 8) * 8
    return min(max(value, low), high)


Call = Callable[[], object]
Calls = dict[str, Call]
Maker = Callable[[Words, torch.dtype, torch.device], Calls]


@final
@dataclass(frozen=True, slots=True)
class Benchmark:
    """An operation that can be measured.

    Attributes:
        draw: A random problem.
        calls: Calls of a problem by the name of the operation that they time, from its shape, the dtype of its tensors
            and where they live.
    """

    draw: Drawer
    calls: Maker


def made(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Return a tensor of random numbers."""
    return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)


def both(operation: str, forward: Callable[[], Any], inputs: list[Tensor]) -> Calls:
    """Give the forward pass without autograd's records, and the backward pass over one kept graph where it has a name.

    Args:
        operation: Its name.
        forward: Calls it.
        inputs: Tensors whose gradients the backward pass computes.
    """

    def without_records() -> object:
        with torch.no_grad():
            return forward()

    calls: Calls = {operation: without_records}
    if f"{operation}_backward" in operation_names():
        output = forward()
        gradient = torch.ones_like(output)
        calls[f"{operation}_backward"] = lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)
    return calls
