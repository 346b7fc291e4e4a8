"""How well a regression reaches beyond its runs: fit those up to a limit, predict those beyond it.

The axes are those of Gianniti, Zhang and Ardagna: batch size, number of GPUs, computing power (a faster GPU than any
before) and depth (more inner modules). Example::

    >>> from lightning_predict.scaling.runs import PastRun, RunSetting
    >>> settings = [RunSetting(iterations=100, batch_size=size, gpu="T4") for size in (8, 16, 32, 64, 128)]
    >>> runs = [PastRun(model="net", setting=one, seconds=2.0 + 0.5 * one.batch_size) for one in settings]
    >>> score = extrapolation_score(runs, "batch_size", limit=32)
    >>> score.fitted, len(score.errors), round(score.mean_error, 6)
    (3, 2, 0.0)
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.scaling.regression_fit import DEFAULT_OPTIONS, FEWEST_RUNS, RegressionOptions, fit_regression
from lightning_predict.scaling.runs import WORDS, PastRun, Variable


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExtrapolationScore:
    """Errors on runs beyond the fitted ones.

    Attributes:
        variable: Along which the regression was extrapolated.
        limit: Largest value that was fitted.
        fitted: Runs that were fitted.
        errors: predicted / actual - 1 of each run beyond; -1 where the regression fell to 0 or below.
        inside: Share of the runs beyond that lie in the 90 % interval; None where there was none.
        formula: The regression.
    """

    variable: Variable
    limit: float
    fitted: int
    errors: tuple[float, ...]
    inside: float | None
    formula: str

    @property
    def mean_error(self) -> float:
        """Mean of the absolute errors."""
        return statistics.fmean(map(abs, self.errors))

    @property
    def median_error(self) -> float:
        """Median of the absolute errors."""
        return statistics.median(map(abs, self.errors))


def split_beyond(
    runs: Sequence[PastRun], variable: Variable, limit: float
) -> tuple[tuple[PastRun, ...], tuple[PastRun, ...]]:
    """Runs up to a limit, and those beyond it.

    Raises:
        InvalidArgumentError: A run does not say the variable, or one of the two is too few.
    """
    known = [(run, run.setting.value(variable)) for run in runs]
    missing = sum(value is None for _, value in known)
    if missing:
        raise InvalidArgumentError(f"{missing} of {len(runs)} runs do not say their {WORDS[variable]} ({variable}).")
    within = tuple(run for run, value in known if value is not None and value <= limit)
    beyond = tuple(run for run, value in known if value is not None and value > limit)
    if len(within) < FEWEST_RUNS or not beyond:
        raise InvalidArgumentError(
            f"{len(within)} runs have a {WORDS[variable]} of up to {limit:g} and {len(beyond)} a larger one; expected "
            f"at least {FEWEST_RUNS} to fit and 1 to predict."
        )
    return within, beyond


def extrapolation_score(
    runs: Sequence[PastRun],
    variable: Variable,
    *,
    limit: float,
    options: RegressionOptions = DEFAULT_OPTIONS,
) -> ExtrapolationScore:
    """Fit the runs up to a limit and predict those beyond it.

    Args:
        runs: Runs of one model.
        variable: The axis.
        limit: Largest value to fit.
        options: How features are made and selected.

    Raises:
        InvalidArgumentError: As `split_beyond` and `fit_regression`.
        MissingDependencyError: scikit-learn or SciPy is not installed.
    """
    within, beyond = split_beyond(runs, variable, limit)
    regression = fit_regression(within, options=options)
    estimates = [(run, regression.predict(run.setting)) for run in beyond]
    hits = [
        one.low_seconds <= run.seconds <= one.high_seconds
        for run, one in estimates
        if one.low_seconds is not None and one.high_seconds is not None
    ]
    return ExtrapolationScore(
        variable=variable,
        limit=limit,
        fitted=len(within),
        errors=tuple((one.seconds or 0.0) / run.seconds - 1 for run, one in estimates),
        inside=statistics.fmean(map(float, hits)) if hits else None,
        formula=regression.formula,
    )
