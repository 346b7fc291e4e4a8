"""Switches of torch that a step is recorded under."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tf32(*, products: bool, convolutions: bool = True, tries_algorithms: bool = False) -> Iterator[None]:
    """Set torch's switches of TF32 and of cuDNN's trials of algorithms, and restore them.

    Args:
        products: Matrix products in float32 run as TF32.
        convolutions: So do convolutions.
        tries_algorithms: `torch.backends.cudnn.benchmark`.
    """
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = products, convolutions, tries_algorithms
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
