"""Wait until a device has done its work: what a clock must do before it says that a step has ended.

CUDA (and ROCm, which torch calls CUDA), Metal, Intel's XPU and others queue their work; a clock that does not wait
times launches. Example::

    wait = wait_for(torch.device("mps"))   # None for the CPU, where an operation returns once it is done
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def wait_for(device: torch.device) -> Callable[[], object] | None:
    """Return a function that waits for a device; None where there is nothing to wait for, or no known way to.

    `torch.accelerator` (from torch 2.6) serves every kind of device that torch was built with; before it, each kind
    has a module of its own. XLA computes when it is asked to, and waits by a function of its own.
    """
    if device.type in ("cpu", "meta"):
        return None
    if device.type == "cuda":
        return partial(torch.cuda.synchronize, device)
    if device.type == "xla":
        xla: Any = sys.modules.get("torch_xla.core.xla_model")
        return None if xla is None else partial(xla.wait_device_ops, [str(device)])
    accelerator: Any = getattr(torch, "accelerator", None)
    current = None if accelerator is None else accelerator.current_accelerator()
    if current is not None and current.type == device.type:
        return partial(accelerator.synchronize, device)
    module: Any = getattr(torch, device.type, None)
    return getattr(module, "synchronize", None)
