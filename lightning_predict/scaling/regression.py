"""`EndToEndRegression`: seconds per iteration as a linear function of what is set before a run.

It is fitted by `regression_fit.fit_regression`. Example::

    regression = fit_regression(runs)
    print(regression.formula)     # seconds per iteration = 0.02 + 0.005 * batch_size
    estimate = regression.predict(RunSetting(iterations=1000, batch_size=256, gpu="T4"))
    estimate.seconds, estimate.low_seconds, estimate.high_seconds, estimate.extrapolations
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.scaling.features import Term
from lightning_predict.scaling.run_estimates import Extrapolation, RunEstimate
from lightning_predict.scaling.runs import WORDS, RunSetting, Variable

FloatArray = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.9
"""Share of new runs that should lie in the interval."""


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
        left_out_error: Mean of |predicted / actual - 1| of runs that were left out of the fit, features selected anew;
            None with too few runs.
        notes: What was left out, in words.
        residual_variance: Mean square of the relative residuals, or of the absolute ones: those of the fit, or those of
            the runs that were left out where they are larger.
        degrees_of_freedom: Runs less coefficients and intercept, at least 1.
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
    left_out_error: float | None
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

        The interval is that of a new observation under the regression: spread of the residuals and uncertainty of the
        coefficients, by Student's t; it does not know how wrong the chosen terms are outside their range.

        Raises:
            InvalidArgumentError: The setting lacks a variable that the runs have.
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
            low_seconds=max(0.0, middle - half) * iterations,
            high_seconds=(middle + half) * iterations,
            extrapolations=outside,
        )

    def _half_width(self, row: FloatArray, middle: float) -> float:
        """Half of the interval, in seconds per iteration."""
        from scipy import stats  # the fit needed it already

        own = middle**2 if self.relative else 1.0
        variance = self.residual_variance * (own + float(row @ self.covariance @ row))
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.degrees_of_freedom))
        return quantile * float(np.sqrt(variance))


def columns_of(settings: Sequence[RunSetting], variables: Sequence[Variable]) -> dict[Variable, FloatArray]:
    """Values of variables that every setting has, one array of shape (settings,) each."""
    return {name: np.array([one.value(name) for one in settings], dtype=np.float64) for name in variables}


def _after_number(name: str) -> str:
    """A term's name behind its coefficient."""
    return name[1:] if name.startswith("1 / ") else f" * {name}"
