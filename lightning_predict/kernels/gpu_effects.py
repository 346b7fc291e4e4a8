"""What a GPU's whole steps take over what its figures and networks say, where several sources say the same of it.

A step that is too slow on one card in one source may be that source's: its host, its cooling, its software. Where two
sources of different makers err by the same sign, it is the card's: boards that boost beyond their sheet, or hold less.
The mean of the sources' logarithms counts by n / (n + 1) for n sources, so that two that agree move predictions by two
thirds of what they say, and one by nothing. `python -m benchmarks.accuracy FOLDER --of steps` prints what each source
says of each GPU. Example::

    >>> round(gpu_effect("RTX-4090"), 3), gpu_effect("T4")
    (0.923, 1.0)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Final

SOURCES_SAY: Final[Mapping[str, Mapping[str, float]]] = {
    "RTX-3090": {"training benchmarks": -0.04, "timm": -0.04},
    "RTX-4090": {"training benchmarks": -0.12, "timm": -0.12},
}
"""Median logarithm of measured over predicted time of device-bound whole steps, by GPU and source: those of which at
least two sources say the same sign and more than 0.03, of 22 GPUs and six tables. 29 and 98 rows of the RTX 3090, 66 of
timm on the RTX 4090; its training benchmarks are kept apart from these scores and were found 13 % too slow. With either
source left out nothing is moved, and the other is 4 % (RTX 3090) and 12 to 13 % (RTX 4090) too slow; with the effect of
one source taken in full, the other is within 1 %. No other GPU passes: of the L40S four sources say +0.10, +0.05, +0.05
and 0.00."""


def gpu_effect(name: str) -> float:
    """Return the factor by which device times on a GPU are multiplied."""
    said = tuple(SOURCES_SAY.get(name, {}).values())
    if len(said) < 2:
        return 1.0
    return math.exp(statistics.fmean(said) * len(said) / (len(said) + 1))
