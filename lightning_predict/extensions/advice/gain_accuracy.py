"""Accuracy of predicted gains by kind of change, from measured pairs, and the parameters of the gains' 90 % intervals.

A pair is two measured steps that differ in one option. A simulation that models only part of a change predicts only
part of its gain. Therefore the reported gain is a power of the simulated gain, with a shift for effects that the model
lacks. The half width of its interval is in log units and grows with the gain::

    gain = simulated ** power * exp(shift),    half width = least + share * |log(gain)|

Beyond the largest gain of the pairs, the power is not validated, so the gain grows like the simulated gain. All four
parameters were fitted on the pairs named in the table's `source`. `python -m benchmarks.accuracy FOLDER --of gains`
prints two errors: of the simulation, which was not fitted to any pair, and of the reported gain, with each model family
left out of the fit. Under `advice`, it prints the errors of gains from the rows below.

`MeasuredPairs.calibrated_gain` chooses the predictor. A number is reported only if there are enough pairs. The
alternative to the simulation is a constant: the median gain of the other model families. The simulated gain is used
only if it beats this constant on families to which neither was fitted. Otherwise, the constant is used, and corrected
by the amount by which the simulation is outside the constant's interval. For example, a host-bound step doubles its
throughput with its batch, although no pair of the table did. A kind of change without a row has no number, because its
simulated gain was never compared with measurements.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.extensions.advice.change import Change, has_backward
from lightning_predict.interval import Interval
from lightning_predict.tracing.trace import Trace

MIN_PAIRS: Final = 10
"""Minimum number of pairs for which a gain is reported as a number."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPairs:
    """Measured pairs of one kind of change.

    Attributes:
        pairs: Number of pairs that were compared with predicted gains.
        source: Description of the pairs.
        families: Number of model families among the pairs.
        median_error: Median relative error of the simulated gain.
        constant_error: Median relative error of the constant, which is the median gain of the other families.
        constant: Median gain of all pairs, where each family has equal weight.
        coverage: Share of the pairs whose gain is inside the reported interval.
        power: Exponent of the simulated gain.
        max_validated_gain: Largest simulated gain of the pairs. Beyond it, the exponent is 1.
        base_half_width: Half width of the interval for a gain of 1, in log units.
        half_width_slope: Increase of the half width per log unit of the gain.
        shift: Constant that is added to the logarithm of every gain.
        limits: Limitations of the pairs as text; empty if there are none.
        is_own: Whether the gain is a measured time of the recorded step itself, so that no pairs are needed.
    """

    pairs: int
    families: int
    source: str
    median_error: float
    constant_error: float
    constant: float
    coverage: float
    power: float
    base_half_width: float
    half_width_slope: float
    shift: float = 0.0
    max_validated_gain: float = math.inf
    limits: str = ""
    is_own: bool = False

    @property
    def is_enough(self) -> bool:
        """Whether there are enough pairs to report a number."""
        return self.is_own or self.pairs >= MIN_PAIRS

    def half_width(self, gain: float) -> float:
        """Return the half width of a gain's interval in log units."""
        return self.base_half_width + self.half_width_slope * abs(math.log(gain))

    @property
    def words(self) -> str:
        """Sentence about the predictor that is used (simulation or constant), and the errors of both."""
        if self.is_own:
            return self.source
        own = ("simulated", self.median_error), ("a constant", self.constant_error)
        (told, error), (other, other_error) = own if self.is_simulated else own[::-1]
        source = f"{self.source}; {self.limits}" if self.limits else self.source
        return (
            f"{told}, {error:.0%} off in the median ({other} {other_error:.0%}): {self.pairs} pairs, {source}"
        ).replace("%", " %")

    @property
    def is_simulated(self) -> bool:
        """Whether the simulation beats the constant, and is used."""
        return self.is_own or self.median_error <= self.constant_error

    def calibrated_gain(self, simulated: float) -> Interval[float]:
        """Return the reported gain for a simulated gain, with its 90 % interval."""
        within = min(simulated, self.max_validated_gain)
        told = self.power * math.log(within) + math.log(simulated / within) + self.shift
        if not self.is_simulated:
            beyond = told - math.log(self.constant)
            told = math.log(self.constant) + math.copysign(max(0.0, abs(beyond) - self.base_half_width), beyond)
        gain = math.exp(told)
        return Interval.from_factor(gain, math.exp(self.half_width(gain)))


_PASCAL_CONTRADICTS: Final = "of one chip without tensor cores two sources say 0.79 to 1.13 and 0.72 to 1.26"
"""GP102: the TITAN Xp is slower in 24 of 28 of these pairs, while the GTX 1080 Ti is faster in 27 of 30 of the same
benchmark (all inference). Both have the same chip, so the chip alone cannot explain the difference."""

GAIN_CALIBRATION: Final[Mapping[str, MeasuredPairs]] = {
    "amp train": MeasuredPairs(
        pairs=71,
        families=5,
        source="whole trainings in FP32 (TF32) and FP16 (ResNet-50, BERT, GNMT, NCF, Transformer-XL) on 16 GPUs",
        median_error=0.104,  # as measured, nothing fitted; with autocast simulated for the same steps, 0.145
        constant_error=0.186,
        constant=1.848,
        coverage=0.92,  # 0.83 with autocast simulated for the same steps
        power=1.0,  # the fitted power of five families, 0.9, does not help on left-out families
        base_half_width=0.28,  # 0.17 covers 84 % of left-out families; the runs did not use autocast
        half_width_slope=0.1,
        limits="their scripts kept all activations in 16 bits; told for autocast of the same steps, gains are 15% off",
    ),
    "half train": MeasuredPairs(
        pairs=56,
        families=3,
        source="torchvision's VGG, DenseNet and SqueezeNet by model.half() on four cards, 2019-20",
        median_error=0.162,
        constant_error=0.237,
        constant=1.069,
        coverage=0.98,
        power=0.8,  # from inference; 0.7 on these three families alone
        base_half_width=0.334,
        half_width_slope=0.0,
        max_validated_gain=2.3,
        limits=_PASCAL_CONTRADICTS,
    ),
    "half infer": MeasuredPairs(
        pairs=56,
        families=3,
        source="torchvision's VGG, DenseNet and SqueezeNet by model.half() on four cards, 2019-20",
        median_error=0.147,
        constant_error=0.345,
        constant=1.456,
        coverage=0.96,
        power=0.8,
        base_half_width=0.334,
        half_width_slope=0.0,
        max_validated_gain=2.3,
        limits=_PASCAL_CONTRADICTS,
    ),
    "channels_last train": MeasuredPairs(
        pairs=76,
        families=17,
        source="timm in float16 autocast on the RTX 3090, torch 1.10 to 1.12",
        median_error=0.037,
        constant_error=0.088,
        constant=1.050,
        coverage=0.89,
        power=1.05,
        shift=0.005,
        base_half_width=0.18,  # 0.081 with a share of 0.5 covers 84 % of left-out families
        half_width_slope=0.1,
        limits="releases of torch before 1.13 alone",
    ),
    "channels_last infer": MeasuredPairs(
        pairs=90,
        families=24,
        source="timm in float16 autocast on the RTX 3090 and 4090, torch 2.1 and 2.4",
        median_error=0.030,
        constant_error=0.063,
        constant=1.010,
        coverage=0.96,
        power=1.0,
        shift=0.01,
        base_half_width=0.125,
        half_width_slope=0.1,
    ),
    "channels_last infer before torch 2.1": MeasuredPairs(
        pairs=96,
        families=16,
        source="timm in float16 autocast on the RTX 3090, torch 1.10 to 1.13",
        median_error=0.036,
        constant_error=0.055,
        constant=1.021,
        coverage=1.00,
        power=0.7,
        shift=0.01,
        base_half_width=0.15,
        half_width_slope=0.2,
    ),
    "compile infer": MeasuredPairs(
        pairs=905,
        families=149,
        source="KernelBench's modules in float32, forward, of at least 1 ms on six GPUs",
        median_error=0.054,
        constant_error=0.130,
        constant=1.040,
        coverage=0.89,
        power=1.0,
        shift=0.01,
        base_half_width=0.189,
        half_width_slope=0.3,
    ),
    "compile infer mixed": MeasuredPairs(
        pairs=94,
        families=24,
        source="timm in float16 autocast on the RTX 4090 and 5090, torch 2.4 to 2.9",
        median_error=0.089,
        constant_error=0.100,
        constant=1.630,
        coverage=0.90,
        power=1.05,
        shift=0.05,
        base_half_width=0.213,
        half_width_slope=0.0,
    ),
    "loader": MeasuredPairs(
        pairs=0,
        families=0,
        source="the waits for the loader that were timed in this very step: at most these are saved",
        median_error=0.0,
        constant_error=0.0,
        constant=1.0,
        coverage=1.0,
        power=1.0,
        base_half_width=0.05,
        half_width_slope=0.0,
        is_own=True,
    ),
    "batch": MeasuredPairs(
        pairs=12,
        families=1,
        source="GPT-2 and GPT-3 in float32 on seven GPUs, 2 to 4 times the batch",
        median_error=0.043,
        constant_error=0.033,
        constant=1.028,
        coverage=0.92,
        power=1.0,
        base_half_width=0.08,
        half_width_slope=0.1,
        limits="one family of models, so that none was left out",
    ),
}
"""Evidence by kind of change and mode; some also by `mixed` (autocast) or by torch version."""

RUNS_REPEAT: Final = 0.05
"""Half width in log units of gains that the user's own runs measured, due to their repeatability. An assumption."""


def calibration_of_runs(measured: Sequence[float], simulated: float) -> MeasuredPairs:
    """Make evidence from the user's own runs with and without a change. The measured gain is reported.

    Args:
        measured: Measured gains of pairs of runs on this GPU.
        simulated: Simulated gain of the current step.
    """
    gain = statistics.median(measured)
    spread = max(abs(math.log(one / gain)) for one in measured)
    pairs = "a run of yours" if len(measured) == 1 else f"{len(measured)} pairs of runs of yours"
    return MeasuredPairs(
        pairs=len(measured),
        families=1,
        source=f"measured in {pairs} of this model, on this GPU, with it and without (simulated: {simulated:.2f})",
        median_error=0.0,
        constant_error=0.0,
        constant=gain,
        coverage=1.0,
        power=1.0,
        shift=math.log(gain / simulated),
        base_half_width=RUNS_REPEAT + spread,
        half_width_slope=0.0,
        is_own=True,
    )


TODAY: Final = (2, 1)
"""First torch version whose channels-last convolutions are about as fast as today's."""


def calibration_for(change: Change, trace: Trace) -> MeasuredPairs | None:
    """Return the evidence for a change of a step; None if there is too little to report a number."""
    mode = "train" if has_backward(trace) else "infer"
    row = f"{change.kind} {mode}"
    closer = () if trace.flags.autocast_dtype is None else (f"{row} mixed",)
    if _is_before_today(trace.software.get("torch", "")):
        closer = (*closer, f"{row} before torch 2.1")
    for key in (*closer, row, change.kind):
        found = GAIN_CALIBRATION.get(key)
        if found is not None and found.is_enough:
            return found
    return None


def _is_before_today(release: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < TODAY
