"""How well the gains of each kind of change are foretold: measured pairs, and the interval that holds nine in ten.

A pair is two measured steps that differ by one option. A simulation that sees a part of what a change does foretells
that part of its gain, so that a gain is told as a power of the simulated one. The half-width of its interval is in
logarithms, and grows with the gain, as a change that does much does it in ways that a model gets wrong::

    gain = simulated ** power,    half width = least + share * |log(gain)|

All three were fitted on the pairs of the table that is named; the error and the coverage are of families of models that
were left out of the fit: `python -m benchmarks.accuracy FOLDER --of gains` prints them. A kind without a row, or with
too few pairs, has no number: its gain is what the simulation says, and nobody measured whether that comes true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.changes.change import Change, has_backward
from lightning_predict.interval import Interval
from lightning_predict.tracing.trace import Trace

FEWEST_PAIRS: Final = 20
"""Fewer pairs prove nothing."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measured pairs of one kind of change.

    Attributes:
        pairs: Number of pairs that the foretold gains were compared with.
        source: What they are, in words.
        median_error: Median relative error of the foretold gain.
        coverage: Share of the pairs of families left out whose gain the interval held.
        power: Power of the simulated gain that is told.
        least: Half-width of the interval where nothing changes, in logarithms.
        share: What it grows by, for each unit of the gain's logarithm.
        limits: What the pairs cannot say, in words; empty if nothing is missing.
    """

    pairs: int
    source: str
    median_error: float
    coverage: float
    power: float
    least: float
    share: float
    limits: str = ""

    @property
    def is_enough(self) -> bool:
        """Whether a number may be shown."""
        return self.pairs >= FEWEST_PAIRS

    def half_width(self, gain: float) -> float:
        """Return the half-width of a gain's interval, in logarithms."""
        return self.least + self.share * abs(math.log(gain))

    def told(self, simulated: float) -> Interval[float]:
        """Return the gain that is told for a simulated one, with its 90 % interval."""
        gain = float(simulated**self.power)
        return Interval.around(gain, math.exp(self.half_width(gain)))


EVIDENCE: Final[Mapping[str, Evidence]] = {
    "amp train": Evidence(
        pairs=0,
        source="whole trainings in FP32 or TF32 and in AMP on 30 GPUs",
        median_error=0.0,
        coverage=0.0,
        least=0.1,
        share=0.2,
    ),
}
"""Evidence by kind and mode."""


def evidence_for(change: Change, trace: Trace) -> Evidence | None:
    """Find the evidence of a change of a step; None if there is not enough to state a number."""
    mode = "train" if has_backward(trace) else "infer"
    found = EVIDENCE.get(f"{change.kind} {mode}")
    return found if found is not None and found.is_enough else None
