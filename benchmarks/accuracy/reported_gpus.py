"""Find the GPU that a published table names by what its driver reported."""

from __future__ import annotations

import re
from typing import Final

from lightning_predict.base.errors import UnknownGpuError
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu

_MAKER: Final = re.compile(r"^(NVIDIA )?(GeForce )?")


def reported_gpu(name: str) -> Gpu:
    """Return the GPU; of several cards that report one name, the one that is sold under it without a size.

    Raises:
        UnknownGpuError: The catalogue holds none.
    """
    try:
        return find_gpu(name)
    except UnknownGpuError:
        short = _MAKER.sub("", name)
        if short == name:
            raise
        return find_gpu(short)
