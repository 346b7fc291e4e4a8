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

FEWEST_PAIRS: Final = 10
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
        is_own: The gain is a time that the recorded step itself holds, so that no pair is asked for.
    """

    pairs: int
    source: str
    median_error: float
    coverage: float
    power: float
    least: float
    share: float
    limits: str = ""
    is_own: bool = False

    @property
    def is_enough(self) -> bool:
        """Whether a number may be shown."""
        return self.is_own or self.pairs >= FEWEST_PAIRS

    def half_width(self, gain: float) -> float:
        """Return the half-width of a gain's interval, in logarithms."""
        return self.least + self.share * abs(math.log(gain))

    def told(self, simulated: float) -> Interval[float]:
        """Return the gain that is told for a simulated one, with its 90 % interval."""
        gain = float(simulated**self.power)
        return Interval.around(gain, math.exp(self.half_width(gain)))


EVIDENCE: Final[Mapping[str, Evidence]] = {
    "amp train": Evidence(
        pairs=25,
        source="whole trainings of BERT and Transformer-XL in FP32 (TF32) and FP16 on 8 GPUs, per sample",
        median_error=0.248,
        coverage=0.88,
        power=1.0,  # two families are too few for a power of their own
        least=0.25,
        share=0.2,
        limits="they ran apex's O2, and BERT another optimizer: autocast itself gains less",
    ),
    "half train": Evidence(
        pairs=56,
        source="torchvision's VGG, DenseNet and SqueezeNet by model.half() on four cards, 2019-20",
        median_error=0.117,
        coverage=0.89,
        power=0.8,  # that of inference; 0.6 on VGG's small batches alone
        least=0.334,
        share=0.0,
    ),
    "half infer": Evidence(
        pairs=56,
        source="torchvision's VGG, DenseNet and SqueezeNet by model.half() on four cards, 2019-20",
        median_error=0.085,
        coverage=0.91,
        power=0.8,
        least=0.334,
        share=0.0,
    ),
    "channels_last train": Evidence(
        pairs=241,
        source="timm in float16 autocast on the RTX 3090, torch 1.10 to 1.12",
        median_error=0.046,
        coverage=0.80,
        power=0.9,
        least=0.18,  # 0.145 holds 80 % of families left out
        share=0.1,
    ),
    "channels_last infer": Evidence(
        pairs=905,
        source="timm in float16 autocast on the RTX 3090 and 4090, torch 1.10 to 2.4",
        median_error=0.046,
        coverage=0.86,
        power=1.15,
        least=0.135,
        share=0.1,
    ),
    "compile infer": Evidence(
        pairs=905,
        source="KernelBench's modules in float32, forward, of at least 1 ms on six GPUs",
        median_error=0.069,
        coverage=0.88,
        power=0.9,
        least=0.278,
        share=0.2,
    ),
    "compile infer mixed": Evidence(
        pairs=239,
        source="timm in float16 autocast on the RTX 4090 and 5090, torch 2.4 to 2.9",
        median_error=0.104,
        coverage=0.88,
        power=1.2,
        least=0.245,
        share=0.0,
    ),
    "loader": Evidence(
        pairs=0,
        source="the waits for the loader that were timed in this very step: at most these are saved",
        median_error=0.0,
        coverage=1.0,
        power=1.0,
        least=0.05,
        share=0.0,
        is_own=True,
    ),
    "batch": Evidence(
        pairs=12,
        source="GPT-2 and GPT-3 in float32 on seven GPUs, 2 to 4 times the batch",
        median_error=0.034,
        coverage=0.92,
        power=1.0,
        least=0.08,
        share=0.0,
        limits="one family of models",
    ),
}
"""Evidence by kind, mode, and `mixed` under autocast, as far as these are told apart."""


def evidence_for(change: Change, trace: Trace) -> Evidence | None:
    """Find the evidence of a change of a step; None if there is not enough to state a number."""
    mode = "train" if has_backward(trace) else "infer"
    mixed = () if trace.flags.autocast_dtype is None else (f"{change.kind} {mode} mixed",)
    for key in (*mixed, f"{change.kind} {mode}", change.kind):
        found = EVIDENCE.get(key)
        if found is not None and found.is_enough:
            return found
    return None
