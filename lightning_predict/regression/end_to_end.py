"""End-to-end regression: predicts the time of a run from the times of runs with other settings.

Seconds per iteration are a linear function of terms. A `Term` is a product of variables or their inverses. Candidates
are all products of the varying variables up to a degree; a stepwise selection keeps the significant terms. (Gianniti,
Zhang and Ardagna, CLOSER 2019, model the time of the whole run: iterations times seconds per iteration.) Relative
errors are minimised, because the times of runs differ by orders of magnitude. Terms that cannot hold beyond the past
runs are excluded. Example::

    >>> from lightning_predict.regression.runs import PastRun, RunSetting
    >>> settings = [RunSetting(iterations=100, batch_size=size, gpu="T4") for size in (8, 16, 32, 64, 128)]
    >>> runs = [PastRun(model="net", setting=one, seconds=2.0 + 0.5 * one.batch_size) for one in settings]
    >>> regression = fit_regression(runs)
    >>> print(regression.formula)
    seconds per iteration = 0.02 + 0.005 * batch_size
    >>> estimate = regression.predict(RunSetting(iterations=100, batch_size=256, gpu="T4"))
    >>> round(estimate.seconds, 6), estimate.extrapolations[0].note
    (130.0, 'batch size 256 is 2 times the largest of the past runs (128)')
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from statistics import NormalDist
from typing import Final

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import CONFIDENCE, Interval
from lightning_predict.kernels.operations import Array
from lightning_predict.regression.runs import VARIABLES, WORDS, PastRun, RunSetting, Variable


@dataclass(frozen=True, slots=True)
class Term:
    """Product of variables: a term of the regression. Each factor has the exponent 1, -1 or 2."""

    variables: tuple[Variable, ...]
    exponents: tuple[int, ...]

    @property
    def factors(self) -> tuple[tuple[Variable, int], ...]:
        """Variables with their exponents."""
        return tuple(zip(self.variables, self.exponents, strict=True))

    @property
    def name(self) -> str:
        """Formula of the product, as text."""
        above = [name if exponent == 1 else f"{name}^{exponent}" for name, exponent in self.factors if exponent > 0]
        below = [name for name, exponent in self.factors if exponent < 0]
        parts = [" * ".join(above) or "1", *below]
        return " / ".join(parts)

    def values(self, columns: Mapping[Variable, Array]) -> Array:
        """Return the value of the product for each run, shape (runs,)."""
        values: Array = np.prod([columns[name] ** float(power) for name, power in self.factors], axis=0)
        return values


_RATES: Final[tuple[Variable, ...]] = ("flops_per_second", "bytes_per_second")

ONLY_INVERTED: Final[tuple[Variable, ...]] = (*_RATES, "num_gpus")
"""Variables that are always inverted. A term that grows with the computing power cannot hold for a faster GPU, and the
communication per GPU grows as (n - 1) / n."""

SQUARED: Final[tuple[Variable, ...]] = ("batch_size", "inner_modules", "sequence_length")
"""Variables whose squares are candidates, from degree 2 on: attention and some losses compare all pairs."""

RUNS_PER_TERM: Final = 3  # Minimum number of runs per term, because some of many candidates fit a few runs by chance


def terms_of(
    variables: Sequence[Variable],
    *,
    degree: int = 2,
    not_inverted: Collection[Variable] = (),
    squared: Collection[Variable] = (),
) -> tuple[Term, ...]:
    """Return all products of up to `degree` different variables, short products first, then squares.

    Variables in `not_inverted` can be 0. Squares stand alone or with the batch size, and may be divided by a rate of
    the GPU.
    """
    terms: list[Term] = []
    for length in range(1, min(degree, len(variables)) + 1):
        for chosen in combinations(variables, length):
            if set(_RATES) <= set(chosen):  # times of computing and of moving data add up
                continue
            powers = [(1,) if name in not_inverted else (-1,) if name in ONLY_INVERTED else (1, -1) for name in chosen]
            terms += [Term(chosen, exponents) for exponents in product(*powers)]
    rates = [name for name in variables if name in _RATES]
    if {"batch_size", "sequence_length"} <= set(variables) and degree > 1:  # tokens
        terms += [Term(("batch_size", "sequence_length", rate), (1, 1, -1)) for rate in rates]
    squares = [Term((name,), (2,)) for name in variables if name in squared and degree > 1]
    if "batch_size" in variables:  # each sample, or pair of samples, can cost the square of its length
        others = [square.variables[0] for square in squares if square.variables != ("batch_size",)]
        powers_of_batch = (1, 2) if "batch_size" in squared else (1,)
        squares += [Term(("batch_size", name), (power, 2)) for power, name in product(powers_of_batch, others)]
    by_rate = [Term((*square.variables, rate), (*square.exponents, -1)) for square, rate in product(squares, rates)]
    return (*terms, *squares, *by_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """A variable whose value in the setting to predict is outside the range of the past runs."""

    variable: Variable
    requested_value: float
    lowest: float
    highest: float

    @property
    def is_above(self) -> bool:
        """Whether the value is above the range."""
        return self.requested_value > self.highest

    @property
    def factor(self) -> float | None:
        """Value divided by the nearest end of the range: above 1 beyond the maximum; None if this end is 0."""
        nearest = self.highest if self.is_above else self.lowest
        return self.requested_value / nearest if nearest else None

    @property
    def note(self) -> str:
        """Text that states how far the value is outside the past runs."""
        nearest = self.highest if self.is_above else self.lowest
        kind = "largest" if self.is_above else "smallest"
        kind = "only one" if self.lowest == self.highest else kind
        times = "beyond" if self.factor is None else f"{self.factor:.3g} times"
        return f"{WORDS[self.variable]} {self.requested_value:g} is {times} the {kind} of the past runs ({nearest:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """Time of a run, predicted from past runs; None if the regression predicts 0 or less, far outside the past runs."""

    setting: RunSetting
    time: Interval[float] | None
    extrapolations: tuple[Extrapolation, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Predicted seconds; None if `time` is None."""
        return None if self.time is None else self.time.middle

    @property
    def low_seconds(self) -> float | None:
        """Lower end of the 90 % interval; None if `time` is None."""
        return None if self.time is None else self.time.low

    @property
    def high_seconds(self) -> float | None:
        """Upper end of the 90 % interval; None if `time` is None."""
        return None if self.time is None else self.time.high


@dataclass(frozen=True, kw_only=True, eq=False)
class EndToEndRegression:
    """Fitted regression of one model's past runs."""

    model: str
    runs: int
    intercept: float  # Constant of the regression, in seconds per iteration
    terms: tuple[Term, ...]
    coefficients: Array  # Coefficients of the terms, in seconds per iteration per unit of the term, shape (terms,)
    ranges: Mapping[Variable, tuple[float, float]]  # Minimum and maximum of every variable over the runs
    mean_error: float  # Mean of |fitted / actual - 1| over the runs
    # Mean of |predicted / actual - 1| in cross-validation, which selects terms in each fold; None with too few runs
    cross_validation_error: float | None
    notes: tuple[str, ...]
    residual_variance: float  # Mean square of relative (or absolute) residuals of fit or cross-validation, the larger
    degrees_of_freedom: int  # Number of runs minus number of coefficients and intercept, at least 1
    covariance: Array = field(repr=False)  # Inverse of XᵀWX; X's columns are a constant and the terms over `scales`
    scales: Array = field(repr=False)
    relative: bool = True
    # Regression with, or without, squares of variables of few values (`CLEAR_VALUES`), if both are plausible
    rival: EndToEndRegression | None = None
    # By variable, and whether beyond its largest value: the power of the distance by which times exceed the prediction
    # of a fit without the runs at that end, if its interval misses most of them
    trends: Mapping[tuple[Variable, bool], float] = field(default_factory=dict)

    @property
    def formula(self) -> str:
        """The regression as an equation, in seconds, SI units and counts."""
        parts = [f"{self.intercept:.4g}"]
        for value, term in zip(self.coefficients, self.terms, strict=True):
            sign = "-" if value < 0 else "+"
            product = term.name[1:] if term.name.startswith("1 / ") else f" * {term.name}"
            parts.append(f"{sign} {abs(value):.4g}{product}")
        return f"seconds per iteration = {' '.join(parts)}"

    def extrapolations(self, setting: RunSetting) -> tuple[Extrapolation, ...]:
        """Return the variables of a setting whose values are outside the range of the past runs."""
        beyond = []
        for variable, (low, high) in self.ranges.items():
            value = setting.value(variable)
            if value is None and variable == "flops_per_byte":
                continue
            if value is None and variable == "bytes_per_second":
                if low == high:
                    continue
                raise InvalidArgumentError(
                    f"The past runs of {self.model} are of GPUs that differ in their memory bandwidth; name the GPU of "
                    "the run to predict instead of its computing power, or give bytes_per_second."
                )
            if value is None:
                raise InvalidArgumentError(
                    f"The past runs of {self.model} differ in their {WORDS[variable]}; give {variable} for the run to "
                    "predict, too."
                    if low < high
                    else f"The past runs of {self.model} have {variable}={low:g}; give it for the run to predict, too."
                )
            if not low <= value <= high:
                beyond.append(Extrapolation(variable=variable, requested_value=value, lowest=low, highest=high))
        return tuple(beyond)

    def predict(self, setting: RunSetting) -> RunEstimate:
        """Predict the time of a run with another setting.

        The interval is the prediction interval of a new observation with Student's t. Outside the range of the past
        runs, the interval widens with the distance, because the selected terms may be wrong there
        (`EXTRAPOLATION_SPREAD`).

        Raises:
            InvalidArgumentError: The setting lacks a variable that the past runs have.
        """
        outside = self.extrapolations(setting)
        columns = values_of([setting], tuple({name for term in self.terms for name in term.variables}))
        values = np.array([term.values(columns)[0] for term in self.terms])  # (terms,)
        middle = self.intercept + float(values @ self.coefficients)
        if middle <= 0:
            return RunEstimate(setting=setting, time=None, extrapolations=outside)
        half = self._half_width(np.array([1.0, *(values / self.scales)]), middle, outside)
        interval = Interval(middle * self._trend(outside, -1) - half, middle, middle * self._trend(outside, 1) + half)
        time = interval.clamp_min(0.0).scaled(setting.iterations)
        other = self.rival.predict(setting).time if self.rival and outside else None
        if other is not None:
            time = replace(time, low=min(time.low, other.low), high=max(time.high, other.high))
        return RunEstimate(setting=setting, time=time, extrapolations=outside)

    def _trend(self, outside: Sequence[Extrapolation], sign: int) -> float:
        """Return the factor by which trends move the upper (sign 1) or the lower (-1) end of an interval."""
        powers = [
            abs(math.log(one.factor or 1.0)) * self.trends.get((one.variable, one.is_above), 0.0) for one in outside
        ]
        return math.exp(sign * _QUANTILE * sum(max(sign * power, 0.0) for power in powers))

    def _half_width(self, row: Array, middle: float, outside: Sequence[Extrapolation]) -> float:
        """Return the half width of the interval, in seconds per iteration."""
        from scipy import stats  # installed, because the fit needs SciPy

        own = middle**2 if self.relative else 1.0
        variance = self.residual_variance * (own + float(row @ self.covariance @ row))
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.degrees_of_freedom))
        beyond = _QUANTILE * middle * math.hypot(*map(_spread_beyond, outside))
        return math.hypot(quantile * float(np.sqrt(variance)), beyond)


_QUANTILE: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

EXTRAPOLATION_SPREAD: Final[Mapping[Variable, float]] = {
    "num_gpus": 0.4,
    "flops_per_second": 0.3,
    "bytes_per_second": 0.3,
    "flops_per_byte": 0.5,
}
"""Standard deviation of the relative error per log unit of distance beyond the past runs.

`num_gpus` was chosen on 218 published sweeps over one to eight GPUs, fitted to up to four GPUs and evaluated on
eight: coverage rises from 66 to 90 %. The rates of a GPU were chosen on 96 simulated runs on faster GPUs: coverage
rises from 52 to 93 %. On data that was not used for the choice, coverage is 88 % (sweeps), and 93 and 95 % (44
published runs)."""

OTHER_SPREAD: Final = 0.1  # Standard deviation of the relative error per log unit of distance, for other variables


def _spread_beyond(outside: Extrapolation) -> float:
    """Return the relative standard deviation that a variable outside the past runs adds to the interval."""
    factor = outside.factor
    distance = 1.0 if not factor else abs(math.log(factor))
    return EXTRAPOLATION_SPREAD.get(outside.variable, OTHER_SPREAD) * distance


def values_of(settings: Sequence[RunSetting], variables: Sequence[Variable]) -> dict[Variable, Array]:
    """Return the value of each variable in each setting, as arrays of shape (settings,)."""
    return {name: np.array([setting.value(name) for setting in settings], dtype=np.float64) for name in variables}


MIN_RUNS: Final = 3  # Minimum number of runs for a regression

SQUARES_GAIN: Final = 4.0
"""Factor by which squares must reduce the residual variance, because they decide most of an extrapolation. Fewer terms
that leave less are better without it: a length and its inverse together imitate a square within the past runs."""

MIN_RUNS_OF_SQUARES: Final = 12  # Minimum number of runs for squares: a square fits a few runs by chance

CLEAR_VALUES: Final = 5
"""Number of values of a variable from which runs tell its square from other laws, such as the longer of a host's fixed
time and a GPU's. With fewer values, an interval beyond the runs holds the prediction without the square, too."""

FOLDS: Final = 10  # Number of folds in cross-validation


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionOptions:
    """Options for creating and selecting terms."""

    max_terms: int | None = None  # Maximum number of terms; None for all significant terms
    degree: int = 2  # Maximum number of variables in a product
    relative: bool = True  # Whether to minimise relative errors; otherwise absolute errors, as published


DEFAULT_OPTIONS: Final = RegressionOptions()


def fit_regression(
    runs: Sequence[PastRun], *, model: str | None = None, options: RegressionOptions = DEFAULT_OPTIONS
) -> EndToEndRegression:
    """Fit a regression to the runs of one model.

    Args:
        runs: Past runs.
        model: Name of the model; None if all runs are of one model.
        options: How to create and select terms.

    Raises:
        InvalidArgumentError: There are too few runs, the runs are of several models and `model` is None, or only some
            runs have a variable.
        MissingDependencyError: SciPy is not installed.
    """
    chosen = of_one_model(runs, model)
    regression = _fit(chosen, options)
    if len(chosen) <= MIN_RUNS:
        return regression
    trends = dict(_trends(chosen, options, regression))
    words = ", ".join(f"{'largest' if is_above else 'smallest'} {WORDS[name]}" for name, is_above in trends)
    errors = np.array(left_out_errors(chosen, options=options))
    residuals = errors if options.relative else errors * [run.seconds_per_iteration for run in chosen]
    return replace(
        regression,
        trends=trends,
        notes=(*regression.notes, *([_TREND_NOTE.format(words)] if trends else ())),
        cross_validation_error=float(np.abs(errors).mean()),
        # The residuals of the fit underestimate the error, because terms were selected to make residuals small.
        residual_variance=max(regression.residual_variance, float((residuals**2).mean())),
    )


_TREND_NOTE: Final = "Without these runs, the fit misses them, so the interval beyond them is wider: {}."


def _trends(
    runs: Sequence[PastRun], options: RegressionOptions, regression: EndToEndRegression
) -> Iterator[tuple[tuple[Variable, bool], float]]:
    """Yield the trends of a regression (see `EndToEndRegression.trends`)."""
    for name in SQUARED:
        by_value: dict[float, list[PastRun]] = {}
        for run in runs:
            by_value.setdefault(run.setting.value(name) or 0.0, []).append(run)
        values = sorted(by_value)
        ends = [] if len(values) < MIN_RUNS or not values[0] else [(values[0], values[1]), (values[-1], values[-2])]
        for end, neighbour in ends:
            others = [run for run in runs if run not in by_value[end]]
            if len(others) <= MIN_RUNS:
                continue
            fit = _fit(others, options, regression.terms)
            pairs = [(run.seconds, time) for run in by_value[end] if (time := fit.predict(run.setting).time)]
            missed = sum(not time.low <= seconds <= time.high for seconds, time in pairs)
            if 2 * missed > len(by_value[end]):
                excess = float(np.mean([math.log(seconds / time.middle) for seconds, time in pairs]))
                yield (name, end > neighbour), excess / abs(math.log(end / neighbour))


def left_out_errors(runs: Sequence[PastRun], *, options: RegressionOptions = DEFAULT_OPTIONS) -> tuple[float, ...]:
    """Return the cross-validation error (predicted / actual - 1) of each run, in order."""
    if len(runs) <= MIN_RUNS:
        raise InvalidArgumentError(f"{len(runs)} runs; leaving one out needs at least {MIN_RUNS + 1}.")
    count = min(FOLDS, len(runs))
    errors = [0.0] * len(runs)
    for fold in range(count):
        regression = _fit([run for i, run in enumerate(runs) if i % count != fold], options)
        for index in range(fold, len(runs), count):
            run = runs[index]
            errors[index] = (regression.predict(run.setting).seconds or 0.0) / run.seconds - 1
    return tuple(errors)


def _fit(
    chosen: Sequence[PastRun], options: RegressionOptions, among: tuple[Term, ...] | None = None
) -> EndToEndRegression:
    """Select terms, also `among` known ones, and fit their coefficients, without cross-validation."""
    from lightning_predict.regression.stepwise import EXACT, StepwiseFit, fit_stepwise  # needs SciPy

    known, notes = _known_variables(chosen)
    columns = values_of([run.setting for run in chosen], known)
    varying = tuple(name for name in known if np.ptp(columns[name]) > 0)
    zero = tuple(name for name in varying if (columns[name] == 0).any())
    values = {name: len(np.unique(columns[name])) for name in varying if name in SQUARED}
    squared = [name for name, count in values.items() if count > 2 and len(chosen) >= MIN_RUNS_OF_SQUARES]

    def level(term: Term) -> int:
        """Return 0 for a term without a square, 2 for one with the square of a variable of few values, or 1."""
        return max((1 + (values[name] < CLEAR_VALUES) for name, power in term.factors if power == 2), default=0)

    candidates = among or terms_of(varying, degree=options.degree, not_inverted=zero, squared=squared)
    terms = among or tuple(sorted(candidates, key=level))
    if options.degree > 1 and set(_RATES) & set(varying):
        # An equal time per sample on all GPUs would dominate on the fastest GPU.
        terms = tuple(term for term in terms if not _is_work_of_any_gpu(term))
    target = np.array([run.seconds_per_iteration for run in chosen])  # (runs,)
    matrix = np.array([term.values(columns) for term in terms]).reshape(len(terms), len(chosen)).T  # (runs, terms)
    # Scaling makes rounding errors equal for 1e14 FLOP/s and 4 GPUs.
    scales = np.sqrt((matrix**2).mean(axis=0))  # (terms,)

    def selected(count: int) -> StepwiseFit:
        """Fit with the first terms as candidates."""
        # Coefficients of terms without the number of GPUs are costs.
        costs = [index for index, term in enumerate(terms[:count]) if "num_gpus" not in term.variables]
        return fit_stepwise(
            (matrix / scales)[:, :count],
            target,
            target**-2 if options.relative else None,
            max_features=min(max(1, len(chosen) // RUNS_PER_TERM), options.max_terms or len(chosen)),
            non_negative=costs,
            non_negative_intercept=True,
        )

    levels = [0 if among else level(term) for term in terms]
    fit, rival = selected(levels.count(0)), None
    whole = 1.0 if options.relative else float((target**2).mean())
    for limit in sorted(set(levels) - {0}):
        if fit.residual_variance > EXACT * whole:
            curved = selected(sum(own <= limit for own in levels))
            gain = SQUARES_GAIN if len(curved.selected) >= len(fit.selected) else 1.0
            is_better = curved.residual_variance * gain < fit.residual_variance
            if limit > 1 and curved.residual_variance < fit.residual_variance:
                rival = fit if is_better else curved
            fit = curved if is_better else fit
    both_rates: tuple[Variable, ...] = ("flops_per_byte",) if set(_RATES) <= set(known) else ()
    ranges = values_of([run.setting for run in chosen], (*known, *both_rates))

    def regression(fit: StepwiseFit, rival: StepwiseFit | None = None) -> EndToEndRegression:
        kept = list(fit.selected)
        return EndToEndRegression(
            model=chosen[0].model,
            runs=len(chosen),
            intercept=fit.intercept,
            terms=tuple(terms[index] for index in kept),
            coefficients=fit.coefficients / scales[kept],
            ranges={name: (float(values.min()), float(values.max())) for name, values in ranges.items()},
            mean_error=float(np.abs(fit.predict(matrix / scales) / target - 1).mean()),
            cross_validation_error=None,
            notes=(*notes, *_variable_notes(known, varying, zero, columns, [terms[index] for index in kept])),
            residual_variance=fit.residual_variance,
            degrees_of_freedom=fit.degrees_of_freedom,
            covariance=fit.covariance,
            scales=scales[kept],
            relative=options.relative,
            rival=None if rival is None else regression(rival),
        )

    return regression(fit, rival)


def _is_work_of_any_gpu(term: Term) -> bool:
    """Return whether a term grows with the batch size, but contains neither a rate of the GPU nor loading."""
    return any(name == "batch_size" and power > 0 for name, power in term.factors) and not {
        *_RATES,
        "threads",
        "disk_seconds",
    } & set(term.variables)


def of_one_model(runs: Sequence[PastRun], model: str | None) -> tuple[PastRun, ...]:
    """Return the runs of a model."""
    models = sorted({run.model for run in runs})
    if model is None and len(models) > 1:
        raise InvalidArgumentError(f"The runs are of {len(models)} models; choose one of {', '.join(models)}.")
    chosen = tuple(run for run in runs if model in (None, run.model))
    if len(chosen) < MIN_RUNS:
        whose = "" if model is None else f" of {model!r} (there are runs of {', '.join(models) or 'no model'})"
        raise InvalidArgumentError(f"{len(chosen)} past runs{whose}; a regression needs at least {MIN_RUNS}.")
    return chosen


def _known_variables(runs: Sequence[PastRun]) -> tuple[tuple[Variable, ...], tuple[str, ...]]:
    """Return the variables that all runs have, and notes about variables that no run has."""
    known: list[Variable] = []
    unknown: list[str] = []
    for name in VARIABLES:
        count = sum(run.setting.value(name) is not None for run in runs)
        if name == "bytes_per_second" and count < len(runs):  # known only for GPUs with a name
            count = 0
        if 0 < count < len(runs):
            raise InvalidArgumentError(
                f"{count} of {len(runs)} past runs say their {WORDS[name]} ({name}); expected all of them or none."
            )
        (known if count else unknown).append(name if count else WORDS[name])  # type: ignore[arg-type]
    return tuple(known), ((f"Not known of the runs, and left out: {', '.join(unknown)}.",) if unknown else ())


def _variable_notes(
    known: Sequence[Variable],
    varying: Sequence[Variable],
    zero: Sequence[Variable],
    columns: Mapping[Variable, Array],
    selected: Sequence[Term],
) -> Iterator[str]:
    """Yield notes about variables that are constant, not inverted, or in no selected term."""
    constant = [f"{WORDS[name]} ({columns[name][0]:g})" for name in known if name not in varying]
    if constant:
        yield f"The same in all runs, and left out: {', '.join(constant)}."
    if zero:
        yield f"Not inverted, as it is 0 in a run: {', '.join(WORDS[name] for name in zero)}."
    used = {name for term in selected for name in term.variables}
    unused = [WORDS[name] for name in varying if name not in used]
    if unused:
        yield f"The runs differ in these, and their times not significantly: {', '.join(unused)}."
