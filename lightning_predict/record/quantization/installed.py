"""Makes an installed bitsandbytes work on the meta device while a step is recorded.

The layers of bitsandbytes quantize their weights when they move to a GPU, which never happens on the meta device. Paged
states of bitsandbytes need CUDA. `patches_of_bitsandbytes` lists the replacements for `tracing/absent_cuda.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from typing import Any

import torch

from lightning_predict.record.absent_cuda import note_paged_states
from lightning_predict.record.quantization.optimizers import paged_state


def patches_of_bitsandbytes() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Yield the attributes of bitsandbytes to replace."""
    yield import_module("bitsandbytes.nn").Linear4bit, "forward", _quantizing
    if not torch.cuda.is_available():
        optimizer = import_module("bitsandbytes.optim.optimizer").Optimizer8bit
        yield optimizer, "get_state_buffer", _paged
        yield optimizer, "prefetch_state", _noting


def _quantizing(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def forward(self: Any, *args: Any) -> Any:
        weight = self.weight
        if weight.device.type == "meta" and getattr(weight, "quant_state", self) is None and weight.shape[-1] != 1:
            with torch.no_grad():
                weight._quantize("meta")
        return plain(self, *args)

    return forward


def _paged(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def buffer(self: Any, parameter: Any, dtype: torch.dtype = torch.float32) -> Any:
        least = 1e5  # as in bitsandbytes
        if not self.is_paged or parameter.device.type != "meta" or parameter.numel() < least:
            return plain(self, parameter, dtype=dtype)
        return paged_state(parameter, dtype)

    return buffer


def _noting(plain: Callable[..., None]) -> Callable[..., None]:
    @wraps(plain)
    def prefetch(self: Any, parameter: Any) -> None:
        if parameter.device.type != "meta":
            plain(self, parameter)
            return
        states = [one for one in self.state[parameter].values() if isinstance(one, torch.Tensor)]
        paged = [one for one in states if one.shape == parameter.shape and one.stride() != parameter.stride()]
        note_paged_states(parameter, sum(one.numel() * one.element_size() for one in paged))

    return prefetch
