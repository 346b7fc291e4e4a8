"""Whether a step fits in a GPU's memory: it does, it does narrowly, or it does not.

Example::

    >>> from lightning_predict.gpus import gpu
    >>> usable = usable_bytes(gpu("T4"))  # 16 GiB, less ECC, the driver and the CUDA context
    >>> round(usable / 2**30, 2)
    14.13
    >>> memory_fit(13.5 * 2**30, usable), memory_fit(15 * 2**30, usable)
    ('tight', 'exceeds')
"""

from __future__ import annotations

from typing import Final, Literal

from lightning_predict.gpus.records import Gpu
from lightning_predict.units import MEBIBYTE

MemoryFit = Literal["fits", "tight", "exceeds"]
"""`fits`: with a margin. `tight`: as predicted, but not with the margin. `exceeds`: not even as predicted."""

MARGIN: Final = 0.1
"""Of what is needed, for what no prediction knows: the error of a derived peak, batches that are larger than the
recorded one, and memory that the allocator holds in pieces."""

ECC_SHARE: Final = 1 / 16
"""What ECC takes where its bits are stored in the memory itself: a T4 of 16,384 MiB shows 15,360 in nvidia-smi
(github.com/robbyant-research/MagicQuill/issues/57)."""

STORES_ECC_IN_MEMORY: Final = frozenset("K80 M40 M40-24GB M60 P4 P40 T4 A2 A10 A10G A16 A40 L4 L20 L40 L40S".split())
"""GPUs for servers with GDDR5 or GDDR6, whose ECC is on as shipped."""

DRIVER_SHARE: Final = 0.03
"""What the driver keeps of the rest; torch reports 14.56 of 15 GiB on a T4 (2.9 %), 44.53 of 45 on an L40S (1.0 %),
23.68 of 24 on an RTX 4090 (1.3 %) and 79.1 of 80 on an H100 (1.1 %); the most counts."""

CONTEXT_BYTES: Final = 430 * MEBIBYTE
"""Of the CUDA context of a process, which torch's allocator does not see: 426 MiB on an RTX 6000 Ada with torch 2.10
(github.com/unslothai/unsloth-zoo/pull/1053); "around 400MB" since CUDA 11.7 (github.com/pytorch/pytorch/issues/109888).
"""


def usable_bytes(gpu: Gpu, reported_bytes: float | None = None) -> float:
    """What the tensors of a process can take on a GPU.

    Args:
        gpu: The GPU.
        reported_bytes: What torch reports as its `total_memory`; None derives it from the size as sold.
    """
    if reported_bytes is None:
        ecc = ECC_SHARE if gpu.name in STORES_ECC_IN_MEMORY else 0.0
        reported_bytes = gpu.memory_bytes * (1 - ecc) * (1 - DRIVER_SHARE)
    return max(0.0, reported_bytes - CONTEXT_BYTES)


def memory_fit(needed_bytes: float | None, usable: float) -> MemoryFit | None:
    """The answer; None where the need is not known.

    Args:
        needed_bytes: Peak memory of a step.
        usable: See `usable_bytes`.
    """
    if needed_bytes is None:
        return None
    if needed_bytes * (1 + MARGIN) <= usable:
        return "fits"
    return "tight" if needed_bytes <= usable else "exceeds"
