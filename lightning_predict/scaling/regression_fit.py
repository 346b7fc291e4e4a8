"""End-to-end regression: the time of a run from the times of runs with other settings.

Seconds per iteration are a linear function of the setting's variables, their inverses and products, of which a stepwise
selection keeps the significant ones (Gianniti, Zhang and Ardagna, CLOSER 2019, regress the whole run's time, which is
iterations times that). Relative errors are minimised, as runs differ by orders of magnitude, and terms that cannot hold
beyond the runs are left out: see `RegressionOptions`, which can be set as published. Example::

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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.scaling.features import Term, terms_of
from lightning_predict.scaling.regression import EndToEndRegression, FloatArray, columns_of
from lightning_predict.scaling.runs import VARIABLES, WORDS, PastRun, Variable

if TYPE_CHECKING:
    from lightning_predict.scaling.stepwise import StepwiseRegression

FEWEST_RUNS: Final = 3
"""Of fewer, there is nothing to regress."""

FOLDS: Final = 10
"""Parts in which runs are left out of the fit, to see how well they are predicted."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionOptions:
    """How features are made and selected.

    Attributes:
        degree: Variables of a product at most.
        inverses: Take inverses of the variables, too.
        p_enter: A feature enters below this p-value.
        p_remove: A feature leaves above this p-value.
        runs_per_term: Runs that each term needs: among a hundred candidates some fit a handful of runs by chance.
        relative: Minimise relative errors; absolute ones otherwise, as the published regressions do.
        only_inverted: Variables that are inverted in every term. The published regressions take them as they are, too;
            but no term that grows with the computing power can hold for a faster GPU, and what each of n GPUs exchanges
            grows as (n - 1) / n.
        costs_add_up: Terms without the number of GPUs are costs, and so is the constant: none of them is negative.
    """

    degree: int = 2
    inverses: bool = True
    p_enter: float = 0.05
    p_remove: float = 0.1
    runs_per_term: int = 3
    relative: bool = True
    only_inverted: tuple[Variable, ...] = ("flops_per_second", "num_gpus")
    costs_add_up: bool = True


DEFAULT_OPTIONS: Final = RegressionOptions()


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
    chosen = of_one_model(runs, model)
    regression = _fit(chosen, options)
    if len(chosen) <= FEWEST_RUNS:
        return regression
    errors = np.array(left_out_errors(chosen, options=options))
    residuals = errors if options.relative else errors * [run.seconds_per_iteration for run in chosen]
    return replace(
        regression,
        left_out_error=float(np.abs(errors).mean()),
        # The residuals of the fit know nothing of the selection, which has already seen them.
        residual_variance=max(regression.residual_variance, float((residuals**2).mean())),
    )


def left_out_errors(
    runs: Sequence[PastRun], *, options: RegressionOptions = DEFAULT_OPTIONS, folds: int = FOLDS
) -> tuple[float, ...]:
    """Errors (predicted / actual - 1) of all runs in order, each by a regression of the other folds.

    Args:
        runs: Runs of one model.
        options: How features are made and selected.
        folds: Parts in which the runs are left out; every n-th run is one part.

    Raises:
        InvalidArgumentError: Too few runs.
        MissingDependencyError: scikit-learn or SciPy is not installed.
    """
    if len(runs) <= FEWEST_RUNS:
        raise InvalidArgumentError(f"{len(runs)} runs; leaving one out needs at least {FEWEST_RUNS + 1}.")
    count = min(folds, len(runs))
    errors = [0.0] * len(runs)
    for fold in range(count):
        regression = _fit([run for i, run in enumerate(runs) if i % count != fold], options)
        for index in range(fold, len(runs), count):
            run = runs[index]
            errors[index] = (regression.predict(run.setting).seconds or 0.0) / run.seconds - 1
    return tuple(errors)


def _fit(chosen: Sequence[PastRun], options: RegressionOptions) -> EndToEndRegression:
    """One selection and fit, whose interval rests on its own residuals."""
    known, notes = _known_variables(chosen)
    columns = columns_of([run.setting for run in chosen], known)
    varying = tuple(name for name in known if np.ptp(columns[name]) > 0)
    zero = tuple(name for name in varying if (columns[name] == 0).any())
    terms = terms_of(
        varying,
        degree=options.degree,
        inverses=options.inverses,
        not_inverted=zero,
        only_inverted=options.only_inverted,
    )
    target = np.array([run.seconds_per_iteration for run in chosen])
    # scikit-learn refuses a table without columns; one of ones is never selected beside the intercept.
    matrix = np.column_stack([term.values(columns) for term in terms] or [np.ones(len(chosen))])
    # Divided by their size, so that rounding treats 1e14 FLOP/s like 4 GPUs; the intercept stands for their means.
    scales = np.sqrt((matrix**2).mean(axis=0))
    estimator = _estimator(terms, len(chosen), options)
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
        left_out_error=None,
        notes=(*notes, *_left_out(known, varying, zero, columns), *_unused(varying, [terms[i] for i in kept])),
        residual_variance=estimator.residual_variance_,
        degrees_of_freedom=estimator.degrees_of_freedom_,
        covariance=estimator.unscaled_covariance_,
        scales=scales[kept],
        relative=options.relative,
    )


def _estimator(terms: Sequence[Term], runs: int, options: RegressionOptions) -> StepwiseRegression:
    """What selects among the terms, not yet fitted.

    Raises:
        MissingDependencyError: scikit-learn or SciPy is not installed.
    """
    from lightning_predict.scaling.stepwise import StepwiseRegression

    return StepwiseRegression(
        p_enter=options.p_enter,
        p_remove=options.p_remove,
        max_features=max(1, runs // options.runs_per_term),
        non_negative=_costs(terms) if options.costs_add_up else (),
        non_negative_intercept=options.costs_add_up,
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


def _costs(terms: Sequence[Term]) -> tuple[int, ...]:
    """Indices of the terms that are costs. Those of 1 / n are not: (n - 1) / n has them with a minus."""
    return tuple(index for index, term in enumerate(terms) if "num_gpus" not in term.variables)


def _unused(varying: Sequence[Variable], selected: Sequence[Term]) -> tuple[str, ...]:
    """Variables that vary and that no selected term has, in words."""
    used = {name for term in selected for name in term.variables}
    unused = [WORDS[name] for name in varying if name not in used]
    return (f"The runs differ in these, and their times not significantly: {', '.join(unused)}.",) if unused else ()


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
