"""Detach CUPTI after a recording, so that the rest of the run is as fast as before it.

The profiler of torch leaves CUPTI, NVIDIA's tracing library, attached to the process. Kernel launches then stay slower:
on an H200 with torch 2.11 and CUDA 13.0, a step limited by the host took 3.52 ms before four recordings and 4.15 ms
after them. With the environment variable `TEARDOWN_CUPTI=1` it took 3.82 and 3.81 ms. The profiler reads the variable
when it stops.

PyTorch sets the variable to 0 for CUDA graphs: before CUDA 13, attaching CUPTI again after it was detached can end a
process that holds graphs. So it is detached from CUDA 13 on alone, and never against the user's own setting.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

VARIABLE: Final = "TEARDOWN_CUPTI"

FIRST_CUDA: Final = 13
"""First major version of CUDA that CUPTI is detached on: the first on which attaching it again was tried."""


@contextmanager
def detached_afterwards() -> Iterator[None]:
    """Let a profiler that stops inside detach CUPTI, where that is safe."""
    version = torch.version.cuda
    if version is None or int(version.partition(".")[0]) < FIRST_CUDA or VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
