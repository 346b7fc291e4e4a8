"""Learn from whole steps what no table of single operations shows: factors by kind of work, and how wide steps scatter.

A step is a sum over kinds of work, so to first order log(measured / predicted) is the sum of the logarithms of their
factors, each weighted by its share of the step, and of effects of the GPU, of the source (a machine and its software)
and of the model. All are normal with mean 0: factors around 1 with `FACTOR_DEVIATION`, effects with deviations that the
cases themselves tell (EM of a linear mixed model). The posterior mean of the factors corrects predictions; effects of a
GPU, source or model are not carried to others, and the interval must cover them. Example::

    fit = fit_steps(cases)
    fit.factors["products/float32"], fit.deviations["source"]
    corrected_left_out(cases, key=lambda case: case.gpu)   # each GPU by factors that did not see it
    fit_spread(cases)                                      # the interval that holds nine in ten of them
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware import gpu_names
from lightning_predict.kernels.operations import Array
from lightning_predict.own_weights.training.tuning import weighted_quantile
from lightning_predict.reports.published_cases import StepDescription
from lightning_predict.uncertainty import UNMEASURED_GPU_HALF_WIDTH, StepSpread

FACTOR_DEVIATION: Final = 0.15
"""Deviation of the logarithm of a factor before any case was seen: an assumption. With it one kind of work in eight is
more than a quarter off."""

LEAST_DEVIATION: Final = 0.02
"""Deviations are at least that of two runs of one program."""

TABLE_CASES: Final = 200
"""Cases above which a larger table counts no more."""

ROUNDS: Final = 40
"""Rounds of EM; deviations change by less than 1 % in the last ten."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A published step on one GPU.

    Attributes:
        table: Table that it is from.
        source: Machine and software that timed it, as far as the table tells.
        gpu: Our name of the GPU.
        model: Model with its precision, layout and mode.
        measured_seconds: Published time.
        predicted: Prediction without a measurement, in seconds.
        shares: Share of the predicted device time by kind of work; they add up to 1.
        is_model: It is a step of a whole model; a module of a few operations errs as these do.
        baselines: Seconds of the device by simpler predictors, by their name.
        samples: Samples of the step, where the table counts them.
        step: Kind of model and precision; None if unknown.
    """

    table: str
    source: str
    gpu: str
    model: str
    measured_seconds: float
    predicted: Interval[float]
    shares: Mapping[str, float]
    is_model: bool = True
    baselines: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None
    step: StepDescription | None = None

    @property
    def log_ratio(self) -> float:
        """Logarithm of measured over predicted."""
        return math.log(self.measured_seconds / self.predicted.middle)

    @property
    def width(self) -> float:
        """High end of the interval over its low end."""
        return self.predicted.high / self.predicted.low

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured time."""
        return self.predicted.low <= self.measured_seconds <= self.predicted.high


EFFECTS: Final[Mapping[str, Callable[[StepCase], Hashable]]] = {
    "gpu": lambda case: case.gpu,
    "source": lambda case: (case.table, case.source),
    "model": lambda case: (case.table, case.model),
}
"""Random effects, each with a value a group of cases."""


@final
@dataclass(frozen=True, slots=True)
class StepFit:
    """Results of the cases.

    Attributes:
        factors: Measured over predicted time by kind of work.
        errors: Deviation of the logarithm of each.
        deviations: Deviations of the logarithms of effects, and of the remainder, by `gpu`, `source`, `model`, `rest`.
    """

    factors: Mapping[str, float]
    errors: Mapping[str, float]
    deviations: Mapping[str, float]

    def log_factor(self, case: StepCase) -> float:
        """Compute the logarithm of the factor on a case's prediction, to first order."""
        return math.fsum(share * math.log(self.factors.get(kind, 1.0)) for kind, share in case.shares.items())


def fit_steps(cases: Sequence[StepCase], kinds: Iterable[str] | None = None) -> StepFit:
    """Fit factors and effects.

    Args:
        cases: Published steps that the device bounds.
        kinds: Kinds of work that have a factor; None for all that the cases hold.
    """
    named = sorted({kind for case in cases for kind in case.shares} if kinds is None else kinds)
    blocks = [np.array([[case.shares.get(kind, 0.0) for kind in named] for case in cases]).reshape(len(cases), -1)]
    blocks += [_indicators([key(case) for case in cases]) for key in EFFECTS.values()]
    design = np.hstack(blocks)
    owner = np.repeat(np.arange(len(blocks)), [block.shape[1] for block in blocks])
    ratios = np.array([case.log_ratio for case in cases])
    sizes = {table: sum(case.table == table for case in cases) for table in {case.table for case in cases}}
    weights = np.array([min(1.0, TABLE_CASES / sizes[case.table]) for case in cases])
    variances = np.array([FACTOR_DEVIATION**2, 0.01, 0.01, 0.01])
    rest = 0.01
    gram, right = design.T @ (weights[:, None] * design), design.T @ (weights * ratios)
    for _ in range(ROUNDS):
        covariance = np.linalg.inv(gram / rest + np.diag(1 / variances[owner]))
        mean = covariance @ right / rest
        second = mean**2 + np.diag(covariance)
        for block in range(1, len(blocks)):
            variances[block] = max(float(second[owner == block].mean()), LEAST_DEVIATION**2)
        spread = float((weights * (ratios - design @ mean) ** 2).sum() + np.trace(covariance @ gram))
        rest = max(spread / float(weights.sum()), LEAST_DEVIATION**2)
    count = len(named)
    found = dict(zip((*EFFECTS, "rest"), (*np.sqrt(variances[1:]).tolist(), math.sqrt(rest)), strict=True))
    return StepFit(
        dict(zip(named, np.exp(mean[:count]).tolist(), strict=True)),
        dict(zip(named, np.sqrt(np.diag(covariance)[:count]).tolist(), strict=True)),
        found,
    )


def _indicators(keys: Sequence[Hashable]) -> Array:
    """Make one column for each distinct key, 1 where a case has it."""
    columns = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    table = np.zeros((len(keys), len(columns)))
    table[np.arange(len(keys)), [columns[key] for key in keys]] = 1.0
    return table


def corrected_left_out(
    cases: Sequence[StepCase], key: Callable[[StepCase], Hashable], kinds: Iterable[str] | None = None
) -> tuple[StepCase, ...]:
    """Correct every case by factors that saw no case of its group.

    Args:
        cases: Published steps that the device bounds.
        key: Group that is left out, such as the GPU.
        kinds: See `fit_steps`.
    """
    named = None if kinds is None else tuple(kinds)
    groups = dict.fromkeys(map(key, cases))
    fits = {group: fit_steps([case for case in cases if key(case) != group], named) for group in groups}
    return tuple(corrected(case, fits[key(case)]) for case in cases)


STANDARD_DEVIATIONS: Final = 1.645
"""Standard deviations of a normal distribution that hold nine in ten."""


LEAST_HELD: Final = 0.85
"""Share of every table's cases that the interval holds at least, where all tables together ask for less."""


def fit_spread(cases: Sequence[StepCase]) -> StepSpread:
    """Choose the spread that holds nine in ten cases, each table weighing as much as another.

    The error that all operations of a step share consists of the deviations of the GPU's and of the source's effect on
    whole models, and not less where one table's operations happen to be right; the share of the operations' own
    half-width is then the least that is enough, as conformal prediction asks, and holds `LEAST_HELD` of each table.

    Args:
        cases: Published steps with the operations' own intervals.
    """
    shared = STANDARD_DEVIATIONS * _shared_deviation([case for case in cases if case.is_model])
    needed = []
    for case in cases:
        own = case.predicted
        end = own.high if case.measured_seconds > own.middle else own.low
        beyond = math.sqrt(max(case.log_ratio**2 - shared**2, 0.0))
        needed.append(beyond / abs(math.log(end / own.middle)))
    by_table: dict[str, list[float]] = defaultdict(list)
    for case, kept in zip(cases, needed, strict=True):
        by_table[case.table].append(kept)
    least = max(float(np.quantile(own, LEAST_HELD, method="higher")) for own in by_table.values())
    return StepSpread(
        operations_factor=max(weighted_quantile(np.array(needed), _weights(cases)), least),
        new_source=shared,
        new_chip=UNMEASURED_GPU_HALF_WIDTH,
        known_gpus=known_boards(case.gpu for case in cases),
    )


def _shared_deviation(cases: Sequence[StepCase]) -> float:
    """Find the deviation of what another GPU and another source do to whole steps.

    Constants were chosen on rows of some tables, which therefore deviate less than others will: it is the largest that
    is found with each table left out once.
    """
    tables = dict.fromkeys(case.table for case in cases)
    rest = [[case for case in cases if case.table != table] for table in tables] if len(tables) > 1 else [cases]
    found = [fit_steps(some).deviations for some in rest]
    return max(math.hypot(one["gpu"], one["source"]) for one in found)


def _weights(cases: Sequence[StepCase]) -> Array:
    """Weigh the cases: weights add up to 1, each table's to as much as another's."""
    sizes = Counter(case.table for case in cases)
    return np.array([1 / len(sizes) / sizes[case.table] for case in cases])


def spread_out(case: StepCase, spread: StepSpread, besides: float = 0.0) -> StepCase:
    """Return the case with an interval that is spread out, by the additional uncertainty of an unmeasured GPU."""
    own = case.predicted
    low, high = spread.widened(own.low / own.middle, own.high / own.middle, besides)
    return replace(case, predicted=Interval(own.middle * low, own.middle, own.middle * high))


def corrected(case: StepCase, fit: StepFit) -> StepCase:
    """Return the case with its prediction multiplied by a fit's factors."""
    return replace(case, predicted=case.predicted.scaled(math.exp(fit.log_factor(case))))


def spread_left_out(cases: Sequence[StepCase], key: Callable[[StepCase], Hashable]) -> tuple[StepCase, ...]:
    """Give every case the interval of a spread that saw no case of its group; its chip may be new, too."""
    groups = dict.fromkeys(map(key, cases))
    spreads = {group: fit_spread([case for case in cases if key(case) != group]) for group in groups}
    return tuple(spread_as_new(case, spreads[key(case)]) for case in cases)


def spread_as_new(case: StepCase, spread: StepSpread) -> StepCase:
    """Return the case with the interval of a step that ships: wider for a chip that the spread does not know."""
    return spread_out(case, spread, float(spread.of_new_chips([case.gpu])[0]))


def known_boards(names: Iterable[str]) -> frozenset[str]:
    """Return all GPUs of the catalogue with the chip of one of these GPUs."""

    def chip(name: str) -> tuple[object, ...]:
        own = find_gpu(name)
        return own.vendor, own.compute_capability, own.streaming_multiprocessors

    chips = {chip(name) for name in names if name in gpu_names()}
    return frozenset(name for name in gpu_names() if chip(name) in chips)
