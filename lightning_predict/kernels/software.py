"""How much longer the same work took with older releases of torch and the libraries of their time.

Networks learnt from torch 2.1 to 2.9. Before, the same steps on the same GPU took longer: cuDNN, cuBLAS and the kernels
of norms get better by a few percent a year. What were as good as they get are float32 products without tensor cores,
and what streams memory: element-wise work, copies, optimizers. A step is predicted for the release that it was recorded
with. Example::

    >>> round(software_factor({"torch": "1.13.1"}), 2)  # a year before 2.1
    1.05
    >>> software_factor({"torch": "2.4.0"}), software_factor({})
    (1.0, 1.0)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, Problem, operation_kind
from lightning_predict.kernels.timing import float32_stands_in

YEARLY_GAIN: Final = 0.05
"""Logarithm of the time that a year of releases saves.

From timm's steps in AMP on one RTX 3090, the same models and batches under torch 1.10 and 2.4, 2.8 years apart, those
without attention, which was fused meanwhile: medians of 1.22 (288 models, channels first) and 1.09 (264, channels
last), 0.073 and 0.031 a year. Nothing else was read off them. Steps of eleven training benchmarks under two containers
on the same GPU agree: 0.046 a year from 1.7 to 1.13 (26 pairs on three GPUs) and from 1.13 to 2.3 (an H100-PCIe). That
float32 products on lanes gained nothing was seen in the same benchmarks, under torch 1.4 on GPUs before Ampere."""

REWRITTEN: Final = ("norm", "softmax")
"""What the names hold of operations outside products whose kernels got better, too. That all other work gained nothing
was chosen on device-bound steps of three tables, of three ways (all gains, these and products, products alone). Median
errors of training benchmarks, timm and torchvision: 6.6, 7.3 and 10.4 % where all gains, 5.6, 7.0 and 8.7 % with this;
6.1, 6.9 and 8.7 % where each table is left out of the choice."""

FIRST_WIDE_LOADS: Final = (1, 5)
"""Release whose element-wise kernels first load several elements at a time. Before, those of 16 bits are taken to have
lagged like products: without that, device-bound steps under torch 1.4 are 7.2 (training benchmarks) and 8.7 %
(torchvision) off in the median, with it 7.1 and 8.5 %, those of the benchmarks in 16 bits 11.4 and 9.0 %."""

_CURRENT: Final = (2, 1)
_YEARS: Final[Mapping[tuple[int, int], float]] = {
    (1, 4): 2020.0,
    (1, 5): 2020.3,
    (1, 6): 2020.6,
    (1, 7): 2020.8,
    (1, 8): 2021.2,
    (1, 9): 2021.5,
    (1, 10): 2021.8,
    (1, 11): 2022.2,
    (1, 12): 2022.5,
    (1, 13): 2022.8,
    (2, 0): 2023.2,
    _CURRENT: 2023.8,
}
"""When releases of torch came out."""


def software_factors(problems: Sequence[Problem], gpus: Sequence[Gpu], software: Mapping[str, str]) -> Array:
    """Return how much longer problems took with a release, (gpus, problems) or 1 x 1; see `software_factor`."""
    factor = software_factor(software)
    if factor == 1:
        return np.ones((1, 1))
    has_wide_loads = (_release(software) or _CURRENT) >= FIRST_WIDE_LOADS
    gains = [[_gains(problem, gpu, has_wide_loads=has_wide_loads) for problem in problems] for gpu in gpus]
    return np.where(np.array(gains, dtype=np.bool_), factor, 1.0)


def _gains(problem: Problem, gpu: Gpu, *, has_wide_loads: bool) -> bool:
    """Return whether newer libraries take less time: products but in float32 or float64 without tensor cores, norms."""
    if operation_kind(problem.operation).units != "tensor":
        is_narrow = problem.dtype in ("float16", "bfloat16") and not has_wide_loads
        return is_narrow or any(word in problem.operation for word in REWRITTEN)
    return not _runs_on_lanes(problem, gpu)


def _runs_on_lanes(problem: Problem, gpu: Gpu) -> bool:
    """Return whether a product runs in float32 or float64 without tensor cores."""
    is_wide = problem.dtype in ("float32", "float64") or (
        problem.dtype == "tf32" and "tf32" not in gpu.peak_flops_per_second
    )
    return is_wide or float32_stands_in(problem.dtype, gpu)


def software_factor(software: Mapping[str, str]) -> float:
    """Return the time of work under the release that a step was recorded with, over that under a current one.

    Args:
        software: Versions, as `Trace.software` holds them; a release of torch that is not known counts as current, and
            one before 1.4 as that.
    """
    release = _release(software)
    if release is None:
        return 1.0
    release = max(release, min(_YEARS))
    years = _YEARS[_CURRENT] - _YEARS.get(release, _YEARS[_CURRENT])
    return math.exp(YEARLY_GAIN * years)


def _release(software: Mapping[str, str]) -> tuple[int, int] | None:
    """Read the release of torch; None where none is named."""
    version = re.match(r"(\d+)\.(\d+)", software.get("torch", ""))
    return None if version is None else (int(version[1]), int(version[2]))
