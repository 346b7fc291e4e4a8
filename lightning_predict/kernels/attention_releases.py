"""How much longer fused attention takes with the kernels that an older release of torch brings.

The tables' attention is the best of its time: FlashAttention 2 on Ampere and Ada, FlashAttention 3 and cuDNN on Hopper,
cuDNN on Blackwell's data-centre chips. `scaled_dot_product_attention` takes FlashAttention 1 in torch 2.0 and 2.1 and
FlashAttention 2 after that, which knows Ampere's instructions alone; where cuDNN serves, it is the default from 2.11 on
(pytorch/pytorch 141133 and 138522, huggingface/transformers 48163). Example::

    >>> from lightning_predict.gpus import gpu
    >>> flash_generation("2.6", gpu("H100-SXM-80GB")), flash_generation("2.11", gpu("H100-SXM-80GB"))
    (2, 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.families.attention import FUSED_ATTENTION
from lightning_predict.kernels.operations import Array, Problem
from lightning_predict.tracing.older_releases import release_of

SECOND_GENERATION: Final = (2, 2)
"""First release of torch with FlashAttention 2."""

CUDNN_BY_DEFAULT: Final = (2, 11)
"""First release of torch whose wheels take cuDNN's attention on Hopper and Blackwell without being asked."""

FIRST_GENERATION_LOSS: Final = 0.9
FIRST_GENERATION_TOKENS: Final = 6000.0
"""FlashAttention 1 over 2 is 1 + loss · s / (s + tokens) at s keys: 1.4 at 4,096, 1.8 at 32,768, where Dao (2023) says
"around twice". Read off MPT's steps of the 1b model at 2,048 to 32,768 tokens on the A100-40GB, whose attention would
have to take 1.28, 1.53, 1.67 and 1.78 times as long at 4,096 to 32,768; the 7b model's, left out, 1.72 at 16,384, where
this says 1.66 (training data: those rows of mpt_fsdp.csv)."""

ON_HOPPER: Final = (1.75, 1.6)
"""FlashAttention 2 over 3, forward and backward: the middles of 1.5 to 2.0 and 1.5 to 1.75 (Shah et al., 2024). One
H100 of others took 1.92 forward at 4,608 tokens (pytorch/pytorch 142132). Nothing is fitted."""

ON_BLACKWELL: Final = (3.0, 2.85)
"""The same on Blackwell's data-centre chips over cuDNN, where FlashAttention 2 is taken to do as much in a clock of a
multiprocessor as on Hopper: an assumption."""

ASKED_FOR: Final = ("cudnn", "overrideable")
"""Parts of the names of operations that say which kernel they run."""


def flash_generation(release: str | None, gpu: Gpu) -> int:
    """Return the generation of attention's kernels: 1, 2, or 3 for the best there is.

    Args:
        release: Release of torch; None or an unknown one counts as current.
        gpu: The GPU.
    """
    known = release_of({"torch": release or ""})
    if known is not None and known < SECOND_GENERATION:
        return 1
    has_newer = gpu.generation.has_group_products
    return 2 if not has_newer or (known is not None and known < CUDNN_BY_DEFAULT) else 3


def attention_factors(
    problems: Sequence[Problem], names: Sequence[str], gpus: Sequence[Gpu], software: Mapping[str, str]
) -> Array:
    """Return the time of problems with the kernels of a release over that with the tables', (gpus, problems) or 1 x 1.

    Args:
        problems: Of any operation; attention alone is concerned.
        names: Names of the operations that they are of.
        gpus: The GPUs.
        software: Versions, as `Trace.software` holds them.
    """
    release = software.get("torch")
    generations = [flash_generation(release, gpu) for gpu in gpus]
    concerned = [
        problem.operation in FUSED_ATTENTION
        and problem.dtype in ("float16", "bfloat16")
        and not any(word in name for word in ASKED_FOR)
        for problem, name in zip(problems, names, strict=True)
    ]
    is_current = all(
        _factor(gpu, own, backward=False, keys=1.0) == 1 for gpu, own in zip(gpus, generations, strict=True)
    )
    if is_current or not any(concerned):
        return np.ones((1, 1))
    found = np.ones((len(gpus), len(problems)))
    for row, (gpu, generation) in enumerate(zip(gpus, generations, strict=True)):
        for column, (problem, is_concerned) in enumerate(zip(problems, concerned, strict=True)):
            if is_concerned:
                found[row, column] = _factor(
                    gpu,
                    generation,
                    backward=problem.operation.endswith("_backward"),
                    keys=problem.shape["kv_seq"],
                )
    return found


def _factor(gpu: Gpu, generation: int, *, backward: bool, keys: float) -> float:
    """Return the time of a generation's kernels over that of the tables'."""
    if generation == 3:
        return 1.0
    second = {"hopper": ON_HOPPER, "blackwell": ON_BLACKWELL}.get(gpu.generation.chip, (1.0, 1.0))[backward]
    loss = FIRST_GENERATION_LOSS * keys / (keys + FIRST_GENERATION_TOKENS) if generation == 1 else 0.0
    return second * (1 + loss)
