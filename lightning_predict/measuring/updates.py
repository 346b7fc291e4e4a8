"""Benchmarks of what surrounds a model: optimizer updates, casts, and copies from the host's memory.

Example::

    >>> import random
    >>> sorted(UPDATES["adamw"].draw(random.Random(0)))
    ['fused', 'parameters']
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from lightning_predict.measuring.problems import Benchmark, Calls, Words, made, size

TENSORS: Final = 24
"""Tensors that the parameters are spread over, as layers are; fewer where there are fewer parameters."""

BY_BYTES: Final = {2: torch.float16, 4: torch.float32, 8: torch.float64}
"""A floating-point dtype of so many bytes."""


def _draw_update(draw: random.Random) -> Words:
    return {"parameters": size(draw, 1024, 2**28), "fused": draw.choice([0, 1])}


def _optimizer(name: str, parameters: list[Tensor], *, fused: bool, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimizer with one of its two implementations for many tensors."""
    options: dict[str, Any] = {"lr": 1e-4, "fused": True} if fused else {"lr": 1e-4, "foreach": True}
    match name:
        case "adam" | "adamw":
            kind: Any = torch.optim.Adam if name == "adam" else torch.optim.AdamW
            options["capturable"] = device.type == "cuda"  # its step count must not be read by the host in a graph
        case "sgd":
            kind = torch.optim.SGD
            options["momentum"] = 0.9
        case _:
            kind = torch.optim.Adagrad
    optimizer: torch.optim.Optimizer = kind(parameters, **options)
    return optimizer


def _update(name: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    each, rest = divmod(words["parameters"], TENSORS)
    counts = [each + (index < rest) for index in range(TENSORS)]
    parameters = [made(device, dtype, count).requires_grad_() for count in counts if count]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = _optimizer(name, parameters, fused=bool(words["fused"]), device=device)

    def step() -> object:
        optimizer.step()
        return optimizer

    return {name: step}


def _draw_cast(draw: random.Random) -> Words:
    source, target = draw.choice([(4, 2), (2, 4), (8, 4), (4, 8)])
    return {
        "rows": size(draw, 1, 65536),
        "cols": size(draw, 16, 16384),
        "source_bytes": source,
        "target_bytes": target,
    }


def _cast(words: Words, _dtype: torch.dtype, device: torch.device) -> Calls:
    data = made(device, BY_BYTES[words["source_bytes"]], words["rows"], words["cols"])
    return {"cast": lambda: data.to(BY_BYTES[words["target_bytes"]])}


def _draw_host_copy(draw: random.Random) -> Words:
    return {"size_bytes": size(draw, 1024, 2**30)}


def _host_copy(words: Words, _dtype: torch.dtype, device: torch.device) -> Calls:
    """From memory that is pinned, as a data loader's can be, without waiting for it."""
    source = torch.empty(words["size_bytes"], dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(words["size_bytes"], dtype=torch.uint8, device=device)
    return {"host_copy": lambda: target.copy_(source, non_blocking=True)}


UPDATES: Final[Mapping[str, Benchmark]] = {
    **{name: Benchmark(_draw_update, partial(_update, name)) for name in ("adam", "adamw", "sgd", "adagrad")},
    "cast": Benchmark(_draw_cast, _cast),
    "host_copy": Benchmark(_draw_host_copy, _host_copy),
}
"""Benchmarks by operation."""
