"""Widen intervals by how far whole steps scatter around predictions from shapes alone.

An operation's interval comes from operations that were timed alone, many on the same machine. A whole step on another
machine has its GPU's clocks and power limit, its libraries, and what no table of operations holds; these go together
for all of its operations, so that they do not average out. Both parts were calibrated on published steps of GPUs and
sources that were left out (`benchmarks/accuracy/step_calibration.py`; `python -m benchmarks.accuracy FOLDER --of
steps`). Example::

    >>> spread = StepSpread(kept=0.5, log_half_width=0.3)
    >>> low, high = spread.applied(0.8, 1.25)  # sqrt((0.5 * 0.223)**2 + 0.3**2) = 0.32
    >>> round(low, 2), round(high, 2)
    (0.73, 1.38)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final, overload

import numpy as np

from lightning_predict import checked
from lightning_predict.errors import WeightsFormatError
from lightning_predict.kernels.operations import Array

SPREAD_FILE: Final = Path(__file__).parent.parent / "weights" / "files" / "whole_steps.json"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """Two parts of the logarithm of an interval's half-width; their squares add.

    Attributes:
        kept: Share that is kept of the half-width from the operations' own intervals.
        log_half_width: What all operations of a step have in common.
    """

    kept: float
    log_half_width: float

    @overload
    def applied(self, low: float, high: float) -> tuple[float, float]: ...
    @overload
    def applied(self, low: Array, high: Array) -> tuple[Array, Array]: ...
    def applied(self, low: float | Array, high: float | Array) -> tuple[float | Array, float | Array]:
        """Return the ends of a step's interval from those of its operations, both over the middle.

        Args:
            low: At most 1, above 0.
            high: At least 1.
        """
        below, above = (np.hypot(self.kept * np.log(end), self.log_half_width) for end in (low, high))
        return np.exp(-below), np.exp(above)


UNCALIBRATED: Final = StepSpread(kept=1.0, log_half_width=0.0)
"""The operations' own intervals."""


@cache
def bundled_spread() -> StepSpread:
    """Return the spread that ships with the weights."""
    return read_spread(SPREAD_FILE)


def read_spread(path: Path) -> StepSpread:
    """Read a spread from a file that `write_spread` of the accuracy study wrote.

    Raises:
        WeightsFormatError: The file does not hold one.
        OSError: It cannot be read.
    """
    spread = checked.read_json(path, WeightsFormatError).member("spread")
    return StepSpread(kept=spread.member("kept").number(), log_half_width=spread.member("log_half_width").number())
