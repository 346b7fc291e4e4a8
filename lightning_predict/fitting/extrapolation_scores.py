"""How far end-to-end regressions reach: along batch size, number of GPUs, computing power and depth.

Each axis is split as in the published experiments: what is below a limit is fitted, what is above is predicted. The
sweeps are simulated by this package (`sweeps.py`), but for published throughputs on one to eight GPUs, and a sweep that
is measured on the processor at hand. Example::

    for score in axis_scores(AXES, models=("AlexNet",)):
        print(score.model, score.axis, score.where, score.score.mean_error)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lightning_predict.fitting.cpu_sweep import measured_sweep
from lightning_predict.fitting.evaluation_scaling_cases import ScalingCase, read_scaling_cases
from lightning_predict.fitting.sweeps import depth_sweep, simulated_sweep
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.regression.end_to_end import ExtrapolationScore, RegressionOptions, extrapolation_score
from lightning_predict.regression.runs import PastRun, RunSetting, Variable

PUBLISHED_SOURCE: Final = "Gianniti, Zhang and Ardagna, CLOSER 2019; measured on K80, M60, P600 and GTX 1080 Ti"

PUBLISHED: Final[Mapping[tuple[str, Variable], str]] = {
    ("AlexNet", "batch_size"): "0.4 - 11",
    ("ResNet-50", "batch_size"): "0.7 - 21",
    ("VGG-19", "batch_size"): "0.9 - 28",
    ("DeepSpeech", "batch_size"): "3 - 22",
    ("AlexNet", "num_gpus"): "5 - 25",
    ("ResNet-50", "num_gpus"): "5 - 25",
    ("VGG-19", "num_gpus"): "9 - 24",
    ("DeepSpeech", "num_gpus"): "12 - 21",
    ("AlexNet", "flops_per_second"): "5 - 8",
    ("ResNet-50", "flops_per_second"): "10 - 18",
    ("DeepSpeech", "flops_per_second"): "10 - 12",
    ("ResNet", "inner_modules"): "8 - 28",
}
"""Published mean errors in percent, by network and axis, over frameworks and GPUs; of other sweeps, for context."""


AS_PUBLISHED: Final = RegressionOptions(relative=False, only_inverted=(), costs_add_up=False)
"""All inverses and products, coefficients of either sign, absolute errors. Runs for each term are ours."""


PUBLISHED_LARGEST_FITTED: Final = 4
"""GPUs up to which published throughputs are fitted."""


ALL_BENCHMARKS: Final = "all benchmarks"
"""What the published throughputs of all networks together are called."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What is swept, and up to where it is fitted.

    Attributes:
        models: Names of networks.
        batch_sizes: Samples of one GPU.
        largest_fitted_batch: Limit along the batch size.
        gpus: GPUs of the sweeps over batch size and number of GPUs.
        numbers: Numbers of GPUs.
        largest_fitted_number: Limit along the number of GPUs.
        slower: GPUs that are fitted in the sweep over computing power.
        faster: GPUs that are predicted from them.
        depths: Inner modules of the ResNets; none sweeps no depth.
        largest_fitted_depths: Limits along the depth, each tried.
        depth_batch_sizes: Samples of one GPU in the sweep over the depth.
    """

    models: Sequence[str] = ("AlexNet", "ResNet-50", "VGG-19", "DeepSpeech")
    batch_sizes: Sequence[int] = (8, 16, 24, 32, 48, 64, 128, 256)
    largest_fitted_batch: int = 64
    gpus: Sequence[str] = ("T4", "P100-PCIe-16GB", "V100-PCIe-32GB")
    numbers: Sequence[int] = (1, 2, 3, 4, 6, 8)
    largest_fitted_number: int = 4
    slower: Sequence[str] = ("P4", "T4", "P100-PCIe-16GB", "V100-PCIe-32GB")
    faster: Sequence[str] = ("A100-PCIe-40GB", "L4", "H100-SXM-80GB")
    depths: Sequence[int] = (1, 2, 3, 4, 5, 6, 8, 12)
    largest_fitted_depths: Sequence[int] = (4, 6)
    depth_batch_sizes: Sequence[int] = (16, 64)


@final
@dataclass(frozen=True, slots=True)
class AxisScore:
    """One extrapolation.

    Attributes:
        model: Name of the network.
        where: GPUs of the runs.
        score: Errors beyond the limit.
        error_as_published: Mean error with all features and without bounds on coefficients, as the published
            regressions are.
        is_measured: The runs were measured here; simulated otherwise.
    """

    model: str
    where: str
    score: ExtrapolationScore
    error_as_published: float
    is_measured: bool = False

    @property
    def published(self) -> str | None:
        """Published errors of the same network and axis; None without."""
        return PUBLISHED.get((self.model, self.score.variable))


def axis_scores(plan: SweepPlan) -> list[AxisScore]:
    """Simulate the sweeps, fit and extrapolate."""
    scores: list[AxisScore] = []
    for model in plan.models:
        layouts = [f"{count}x{gpu}" for gpu in plan.gpus for count in plan.numbers]
        alone = [gpu for gpu in (*plan.slower, *plan.faster) if gpu not in plan.gpus or 1 not in plan.numbers]
        runs = simulated_sweep(model, batch_sizes=plan.batch_sizes, gpus=[*layouts, *alone])
        scores += _over_batch_size(model, runs, plan)
        scores += _over_numbers(model, runs, plan)
        scores += _over_powers(model, runs, plan)
    if plan.depths:
        scores += _over_depth(plan)
    return scores


def cpu_scores(
    *, batch_sizes: Sequence[int] = (4, 8, 12, 16, 24, 32, 48, 64, 96), largest_fitted: int = 32, steps: int = 15
) -> list[AxisScore]:
    """Measure a sweep over the batch size on this processor, fit and extrapolate.

    Args:
        batch_sizes: Samples of a step.
        largest_fitted: Limit.
        steps: Steps of each size, of which the fastest counts.
    """
    runs = measured_sweep(batch_sizes=batch_sizes, steps=steps)
    return [_scored("small network", "this processor", runs, "batch_size", largest_fitted, is_measured=True)]


def published_number_scores(path: Path) -> list[AxisScore]:
    """Published training throughputs: one to four GPUs are fitted and eight predicted, each benchmark by itself.

    Args:
        path: `training_throughput.csv`, of which the rows count that the scaling report takes.

    Raises:
        MeasurementTableError: A missing column.
        OSError: The file cannot be read.
    """
    sweeps: dict[tuple[str, str, str, int], list[PastRun]] = {}
    for case in read_scaling_cases(path)[0]:
        key = (case.model, case.system, case.precision, case.batch)
        alone = case.batch / case.single_per_second  # in proportion to the seconds, whatever units the table counts
        runs = sweeps.setdefault(key, [_published_run(case, 1, alone)])
        runs.append(_published_run(case, case.count, alone / case.efficiency))
    scores: dict[str, list[AxisScore]] = {}
    for (model, system, _, _), runs in sweeps.items():
        numbers = {run.setting.num_gpus for run in runs}
        if {1, 2, 4, 8} <= numbers:
            score = _scored(model, system, runs, "num_gpus", PUBLISHED_LARGEST_FITTED, is_measured=True)
            scores.setdefault(model, []).append(score)
    everything = [one for members in scores.values() for one in members]
    pooled = [_pooled(model, members) for model, members in sorted(scores.items())]
    return [*pooled, _pooled(ALL_BENCHMARKS, everything)] if everything else []


def _published_run(case: ScalingCase, count: int, seconds: float) -> PastRun:
    setting = RunSetting(iterations=1, batch_size=case.batch, gpu=case.gpu, num_gpus=count)
    return PastRun(model=case.model, setting=setting, seconds=seconds)


def _pooled(model: str, members: Sequence[AxisScore]) -> AxisScore:
    """Several regressions of one benchmark as one score."""
    errors = tuple(error for one in members for error in one.score.errors)
    hits = [one.score.inside for one in members if one.score.inside is not None]
    score = ExtrapolationScore(
        variable="num_gpus",
        limit=PUBLISHED_LARGEST_FITTED,
        fitted=sum(one.score.fitted for one in members),
        errors=errors,
        inside=statistics.fmean(hits) if hits else None,
        formula=f"{len(members)} regressions",
    )
    published = statistics.fmean(one.error_as_published for one in members)
    return AxisScore(model, f"{len(members)} published sweeps", score, published, is_measured=True)


def _scored(
    model: str, where: str, runs: Sequence[PastRun], variable: Variable, limit: float, *, is_measured: bool = False
) -> AxisScore:
    score = extrapolation_score(runs, variable, limit=limit)
    published = extrapolation_score(runs, variable, limit=limit, options=AS_PUBLISHED)
    return AxisScore(model, where, score, published.mean_error, is_measured)


def _over_batch_size(model: str, runs: Sequence[PastRun], plan: SweepPlan) -> Iterable[AxisScore]:
    """One regression for each GPU and number of GPUs, as published."""
    for gpu in plan.gpus:
        for count in plan.numbers:
            chosen = _of(runs, gpu, count)
            yield _scored(model, f"{count} x {gpu}", chosen, "batch_size", plan.largest_fitted_batch)


def _over_numbers(model: str, runs: Sequence[PastRun], plan: SweepPlan) -> Iterable[AxisScore]:
    """One regression for each GPU, over all batch sizes."""
    for gpu in plan.gpus:
        chosen = [run for run in runs if run.setting.gpu == find_gpu(gpu).name]
        yield _scored(model, gpu, chosen, "num_gpus", plan.largest_fitted_number)


def _over_powers(model: str, runs: Sequence[PastRun], plan: SweepPlan) -> Iterable[AxisScore]:
    """One regression over all batch sizes and the slower GPUs, one GPU a run; each faster GPU is predicted."""
    slow = [run for gpu in plan.slower for run in _of(runs, gpu, 1)]
    limit = max(run.setting.value("flops_per_second") or 0.0 for run in slow)
    for gpu in plan.faster:
        yield _scored(model, f"{len(plan.slower)} GPUs, {gpu}", [*slow, *_of(runs, gpu, 1)], "flops_per_second", limit)


def _over_depth(plan: SweepPlan) -> Iterable[AxisScore]:
    """One regression for each GPU and limit."""
    runs = depth_sweep(inner_modules=plan.depths, batch_sizes=plan.depth_batch_sizes, gpus=plan.gpus)
    for gpu in plan.gpus:
        for limit in plan.largest_fitted_depths:
            yield _scored("ResNet", gpu, _of(runs, gpu, 1), "inner_modules", limit)


def _of(runs: Sequence[PastRun], gpu: str, count: int) -> list[PastRun]:
    name = find_gpu(gpu).name
    return [run for run in runs if run.setting.gpu == name and run.setting.num_gpus == count]
