"""End-to-end regression: the time of a run from the times of runs with other settings.

Seconds per iteration are a linear function of the setting's variables, their inverses and products, of which a stepwise
selection keeps the significant ones (Gianniti, Zhang and Ardagna, CLOSER 2019, regress the whole run's time, which is
iterations times that). Relative errors are minimised, as runs differ by orders of magnitude. Example::

    >>> from lightning_predict.scaling.runs import PastRun, RunSetting
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.errors import InvalidArgumentError, MissingDependencyError
from lightning_predict.scaling.features import Term, terms_of
from lightning_predict.scaling.run_estimates import Extrapolation, RunEstimate
from lightning_predict.scaling.runs import VARIABLES, WORDS, PastRun, RunSetting, Variable

FloatArray = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.9
"""Share of new runs that should lie in the interval."""

FEWEST_RUNS: Final = 3
"""Of fewer, there is nothing to regress."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionOptions:
    """How features are made and selected.

    Attributes:
        degree: Variables of a product at most.
        inverses: Take inverses of the variables, too.
        p_enter: A feature enters below this p-value.
        p_remove: A feature leaves above this p-value.
        relative: Minimise relative errors; absolute ones otherwise, as the published regressions do.
    """

    degree: int = 2
    inverses: bool = True
    p_enter: float = 0.05
    p_remove: float = 0.1
    relative: bool = True


DEFAULT_OPTIONS: Final = RegressionOptions()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class EndToEndRegression:
    """A regression of one model's runs.

    Attributes:
        model: Name of the model.
        runs: Number of runs that were fitted.
        intercept: Seconds per iteration without any term.
        terms: Selected terms.
        coefficients: Of each term, seconds per iteration for a unit of it, shape (terms,).
        ranges: Least and largest value of every variable that the runs have.
        mean_error: Mean of |fitted / actual - 1| over the runs.
        notes: What was left out, in words.
        residual_variance: Of the relative residuals, or of the absolute ones.
        degrees_of_freedom: Runs less coefficients.
        covariance: Inverse of XᵀWX of the constant and the terms divided by `scales`.
        scales: Size of each term, shape (terms,).
        relative: Relative errors were minimised.
    """

    model: str
    runs: int
    intercept: float
    terms: tuple[Term, ...]
    coefficients: FloatArray
    ranges: Mapping[Variable, tuple[float, float]]
    mean_error: float
    notes: tuple[str, ...]
    residual_variance: float
    degrees_of_freedom: int
    covariance: FloatArray = field(repr=False)
    scales: FloatArray = field(repr=False)
    relative: bool = True

    @property
    def formula(self) -> str:
        """The regression as an equation in seconds, SI units and counts."""
        parts = [f"{self.intercept:.4g}"]
        for value, term in zip(self.coefficients, self.terms, strict=True):
            sign = "-" if value < 0 else "+"
            parts.append(f"{sign} {abs(value):.4g}{_after_number(term.name)}")
        return f"seconds per iteration = {' '.join(parts)}"

    def extrapolations(self, setting: RunSetting) -> tuple[Extrapolation, ...]:
        """Variables of a setting outside the range of the runs.

        Raises:
            InvalidArgumentError: The setting lacks a variable that the runs have.
        """
        found = []
        for variable, (low, high) in self.ranges.items():
            value = setting.value(variable)
            if value is None:
                raise InvalidArgumentError(
                    f"The past runs of {self.model} differ in their {WORDS[variable]}; give {variable} for the run to "
                    "predict, too."
                    if low < high
                    else f"The past runs of {self.model} have {variable}={low:g}; give it for the run to predict, too."
                )
            if not low <= value <= high:
                found.append(Extrapolation(variable=variable, asked=value, lowest=low, highest=high))
        return tuple(found)

    def predict(self, setting: RunSetting) -> RunEstimate:
        """Time of a run with another setting.

        The interval is that of a new observation under the regression: residual spread and uncertainty of the
        coefficients, by Student's t; it does not know how wrong the chosen terms are outside their range.

        Raises:
            InvalidArgumentError: The setting lacks a variable that the runs have.
            MissingDependencyError: SciPy is not installed.
        """
        outside = self.extrapolations(setting)
        columns = columns_of([setting], tuple({name for term in self.terms for name in term.variables}))
        values = np.array([term.values(columns)[0] for term in self.terms])
        middle = self.intercept + float(values @ self.coefficients)
        if middle <= 0:
            return RunEstimate(
                setting=setting, seconds=None, low_seconds=None, high_seconds=None, extrapolations=outside
            )
        half = self._half_width(np.array([1.0, *(values / self.scales)]), middle)
        iterations = setting.iterations
        return RunEstimate(
            setting=setting,
            seconds=middle * iterations,
            low_seconds=None if half is None else max(0.0, middle - half) * iterations,
            high_seconds=None if half is None else (middle + half) * iterations,
            extrapolations=outside,
        )

    def _half_width(self, row: FloatArray, middle: float) -> float | None:
        """Half of the interval, in seconds per iteration; None without degrees of freedom."""
        if self.degrees_of_freedom < 1:
            return None
        try:
            from scipy import stats
        except ImportError as error:
            raise MissingDependencyError(
                "The interval of a regression needs SciPy, which is not installed: "
                "pip install lightning-predict[fitting]"
            ) from error
        own = middle**2 if self.relative else 1.0
        variance = self.residual_variance * (own + float(row @ self.covariance @ row))
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.degrees_of_freedom))
        return quantile * float(np.sqrt(variance))


def fit_regression(
    runs: Sequence[PastRun], *, model: str | None = None, options: RegressionOptions = DEFAULT_OPTIONS
) -> EndToEndRegression:
    """Fit the runs of one model.

    Args:
        runs: Past runs.
        model: Which model's; None where they are all of one.
        options: How features are made and selected.

    Raises:
        InvalidArgumentError: Too few runs, runs of several models and none chosen, or a variable that only some runs
            have.
        MissingDependencyError: scikit-learn or SciPy is not installed.
    """
    from lightning_predict.scaling.stepwise import StepwiseRegression

    chosen = of_one_model(runs, model)
    known, notes = _known_variables(chosen)
    columns = columns_of([run.setting for run in chosen], known)
    varying = tuple(name for name in known if np.ptp(columns[name]) > 0)
    zero = tuple(name for name in varying if (columns[name] == 0).any())
    terms = terms_of(varying, degree=options.degree, inverses=options.inverses, not_inverted=zero)
    target = np.array([run.seconds_per_iteration for run in chosen])
    # scikit-learn refuses a table without columns; one of ones is never selected beside the intercept.
    matrix = np.column_stack([term.values(columns) for term in terms] or [np.ones(len(chosen))])
    # Divided by their size, so that rounding treats 1e14 FLOP/s like 4 GPUs; the intercept stands for their means.
    scales = np.sqrt((matrix**2).mean(axis=0))
    estimator = StepwiseRegression(p_enter=options.p_enter, p_remove=options.p_remove)
    estimator.fit(matrix / scales, target, sample_weight=target**-2 if options.relative else None)
    kept = estimator.selected_
    return EndToEndRegression(
        model=chosen[0].model,
        runs=len(chosen),
        intercept=estimator.intercept_,
        terms=tuple(terms[index] for index in kept),
        coefficients=estimator.coef_[kept] / scales[kept],
        ranges={name: (float(columns[name].min()), float(columns[name].max())) for name in known},
        mean_error=float(np.abs(estimator.predict(matrix / scales) / target - 1).mean()),
        notes=(*notes, *_left_out(known, varying, zero, columns)),
        residual_variance=estimator.residual_variance_,
        degrees_of_freedom=estimator.degrees_of_freedom_,
        covariance=estimator.unscaled_covariance_,
        scales=scales[kept],
        relative=options.relative,
    )


def of_one_model(runs: Sequence[PastRun], model: str | None) -> tuple[PastRun, ...]:
    """The runs of a model.

    Raises:
        InvalidArgumentError: Too few, or several models and none chosen.
    """
    models = sorted({run.model for run in runs})
    if model is None and len(models) > 1:
        raise InvalidArgumentError(f"The runs are of {len(models)} models; choose one of {', '.join(models)}.")
    chosen = tuple(run for run in runs if model in (None, run.model))
    if len(chosen) < FEWEST_RUNS:
        whose = "" if model is None else f" of {model!r} (there are runs of {', '.join(models) or 'no model'})"
        raise InvalidArgumentError(f"{len(chosen)} past runs{whose}; a regression needs at least {FEWEST_RUNS}.")
    return chosen


def columns_of(settings: Sequence[RunSetting], variables: Sequence[Variable]) -> dict[Variable, FloatArray]:
    """Values of variables that every setting has, one array of shape (settings,) each."""
    return {name: np.array([one.value(name) for one in settings], dtype=np.float64) for name in variables}


def _known_variables(runs: Sequence[PastRun]) -> tuple[tuple[Variable, ...], tuple[str, ...]]:
    """Variables that all runs have, and which none has in words.

    Raises:
        InvalidArgumentError: Only some have one.
    """
    known: list[Variable] = []
    unknown: list[str] = []
    for name in VARIABLES:
        count = sum(run.setting.value(name) is not None for run in runs)
        if 0 < count < len(runs):
            raise InvalidArgumentError(
                f"{count} of {len(runs)} past runs say their {WORDS[name]} ({name}); expected all of them or none."
            )
        (known if count else unknown).append(name if count else WORDS[name])  # type: ignore[arg-type]
    return tuple(known), ((f"Not known of the runs, and left out: {', '.join(unknown)}.",) if unknown else ())


def _left_out(
    known: Sequence[Variable],
    varying: Sequence[Variable],
    zero: Sequence[Variable],
    columns: Mapping[Variable, FloatArray],
) -> tuple[str, ...]:
    """Which variables, or their inverses, gave no features, in words."""
    constant = [f"{WORDS[name]} ({columns[name][0]:g})" for name in known if name not in varying]
    notes = [f"The same in all runs, and left out: {', '.join(constant)}."] if constant else []
    notes += [f"Not inverted, as it is 0 in a run: {', '.join(WORDS[name] for name in zero)}."] if zero else []
    return tuple(notes)


def _after_number(name: str) -> str:
    """A term's name behind its coefficient."""
    return name[1:] if name.startswith("1 / ") else f" * {name}"
