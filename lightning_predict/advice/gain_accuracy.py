"""Accuracy of predicted gains by kind of change, from measured pairs, and parameters of the gains' 90 % intervals.

A pair is two measured steps that differ in one option. A simulation may model only part of a change's effect. The
reported gain is therefore a power of the simulated gain, times a factor for effects that the simulation lacks. The half
width of the interval is in log units, and grows with the gain::

    gain = simulated ** power * exp(shift),    half width = least + share * |log(gain)|

Above the largest gain of the pairs, the power is not validated, so the power is 1. All four parameters were fitted to
the pairs named in `source`. `python -m benchmarks.accuracy gains` scores the reported gain.

A gain is reported only if its errors are smaller than those of a constant, which is the median gain of other model
families. If the constant is nearer, advice says "try it" without a number. A kind of change without enough pairs has no
reported gain either; advice then shows the simulated one, and the pairs in its reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lightning_predict.advice.changes import Change, has_backward
from lightning_predict.base.checked import read_toml
from lightning_predict.base.errors import CatalogueError
from lightning_predict.base.interval import Interval
from lightning_predict.record.trace import Trace

MIN_PAIRS: Final = 10  # Minimum number of pairs for which a gain is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPairs:
    """Measured pairs of one kind of change, and the calibration of predicted gains."""

    pairs: int  # Number of pairs that were compared with predicted gains
    families: int  # Number of model families among the pairs
    source: str
    median_error: float  # Median relative error of the simulated gain; of the reported gain if `limits` says so
    constant_error: float  # Median relative error of the constant: the median gain of the other families
    coverage: float  # Share of the pairs whose gain is inside the reported interval
    power: float  # Exponent of the simulated gain
    base_half_width: float  # Half width of the interval of a gain of 1, in log units
    half_width_slope: float  # Increase of the half width per log unit of the gain
    shift: float = 0.0  # Constant that is added to the logarithm of every gain
    max_validated_gain: float = math.inf  # Largest simulated gain of the pairs; the exponent is 1 above it
    limits: str = ""  # Text that describes limitations of the pairs; empty without limitations
    is_own: bool = False  # Whether the gain was measured in the recorded step itself, so no other pairs are needed

    @property
    def is_enough(self) -> bool:
        """Whether there are enough pairs to report a gain, and a constant is not nearer."""
        return self.is_own or (self.pairs >= MIN_PAIRS and self.median_error <= self.constant_error)

    @property
    def is_refuted(self) -> bool:
        """Whether the pairs show that a constant is nearer than the simulation."""
        return self.pairs >= MIN_PAIRS and not self.is_enough

    def half_width(self, gain: float) -> float:
        """Return the half width of a gain's interval in log units."""
        return self.base_half_width + self.half_width_slope * abs(math.log(gain))

    @property
    def words(self) -> str:
        """Sentence with the errors of the simulation and of a constant."""
        if self.is_own:
            return self.source
        source = f"{self.source}; {self.limits}" if self.limits else self.source
        errors = f"{self.median_error:.0%} off in the median (a constant {self.constant_error:.0%})"
        pairs = "1 pair" if self.pairs == 1 else f"{self.pairs} pairs"
        return f"simulated, {errors}: {pairs}, {source}".replace("%", " %")

    def calibrated_gain(self, simulated: float) -> Interval[float]:
        """Return the reported gain for a simulated gain, with its 90 % interval."""
        within = min(simulated, self.max_validated_gain)
        told = self.power * math.log(within) + math.log(simulated / within) + self.shift
        gain = math.exp(told)
        return Interval.from_factor(gain, math.exp(self.half_width(gain)))


GAIN_CALIBRATION: Final[Mapping[str, MeasuredPairs]] = {
    name: MeasuredPairs(**row.mapping())
    for name, row in read_toml(Path(__file__).with_suffix(".toml"), CatalogueError).members().items()
}
"""Evidence by kind of change and mode. Some keys also contain `mixed` (autocast) or the torch version."""


CHANNELS_LAST_FAST_SINCE: Final = (2, 1)
"""First torch version whose channels-last convolutions are about as fast as in current versions."""


def calibration_for(change: Change, trace: Trace, *, allows_few: bool = False) -> MeasuredPairs | None:
    """Return the evidence for a change to a step, which may refute the simulation; None with too few pairs."""
    mode = "train" if has_backward(trace) else "infer"
    row = f"{change.kind} {mode}"
    closer = () if trace.flags.autocast_dtype is None else (f"{row} mixed",)
    numbers = re.match(r"(\d+)\.(\d+)", trace.software.get("torch", ""))
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < CHANNELS_LAST_FAST_SINCE:
        closer = (*closer, f"{row} before torch 2.1")
    for key in (*closer, row, change.kind):
        calibration = GAIN_CALIBRATION.get(key)
        if calibration is not None and (calibration.is_enough or calibration.is_refuted or allows_few):
            return calibration
    return None
