"""Waits until a device has finished its work (synchronization), which timing a step needs.

CUDA (and ROCm, which torch calls CUDA), Metal, Intel's XPU and others execute asynchronously. Without a wait, a clock
would only time the launches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def wait_for(device: torch.device) -> Callable[[], object] | None:
    """Return a function that waits for a device; None if no wait is needed or supported.

    `torch.accelerator` (from torch 2.6) supports every device type for which torch was built. In earlier releases, each
    device type has its own module. XLA executes lazily, and has its own wait function.
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
