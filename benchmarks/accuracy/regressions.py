"""Score the regressions of whole runs beyond the fitted ones.

Published errors of the same kind stand next to them for context: they were measured on other GPUs, frameworks and
settings.

A sweep is simulated: each step is recorded on the meta device and predicted by this package, on one GPU and on several.
So its times are as smooth, and as wrong, as the predictions; the study shows how far linear regressions extrapolate,
not how long training takes. Published training throughputs, on one to eight GPUs and on one GPU of many kinds, are
measured sweeps, and so is one on the processor at hand.

Each axis is split as in the published experiments: values below a limit are fitted, values above are predicted.
Example::

    print_report(evaluate_regressions(throughputs=Path("validation/training_throughput.csv")), Console())
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.accuracy.many_gpus import ScalingCase, read_scaling_cases
from benchmarks.accuracy.throughput import read_throughput_cases
from benchmarks.accuracy.workloads.classifiers import VGG19, alexnet, googlenet, vgg
from benchmarks.accuracy.workloads.deep_speech import DeepSpeech
from benchmarks.accuracy.workloads.recorded import without_pauses
from benchmarks.accuracy.workloads.resnet import ResNet50
from benchmarks.result_files import Figure
from benchmarks.training.report import report_table
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.prediction import predict
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Flags, Trace
from lightning_predict.regression.end_to_end import (
    DEFAULT_OPTIONS,
    MIN_RUNS,
    RegressionOptions,
    fit_regression,
    terms_of,
    values_of,
)
from lightning_predict.regression.layers import fit_layers, layers_of
from lightning_predict.regression.runs import VARIABLES, WORDS, PastRun, RunSetting, Variable

NOMINAL_FLOPS_PER_SECOND: Final = 1e11
"""Stands for the processor's power, which is the same in all runs and so says nothing."""

IMAGE_SIZE: Final = 32
CLASSES: Final = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExtrapolationScore:
    """Errors on runs beyond the fitted ones.

    Attributes:
        variable: Along which the regression was extrapolated.
        limit: Largest value that was fitted.
        fitted: Runs that were fitted.
        errors: predicted / actual - 1 of each run beyond; -1 where the regression fell to 0 or below.
        inside: Share of the runs beyond that lie in the 90 % interval; None if there was none.
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
    """Split runs into those up to a limit, and those beyond it.

    Raises:
        InvalidArgumentError: A run does not say the variable, or one of the two is too few.
    """
    known = [(run, run.setting.value(variable)) for run in runs]
    missing = sum(value is None for _, value in known)
    if missing:
        raise InvalidArgumentError(f"{missing} of {len(runs)} runs do not say their {WORDS[variable]} ({variable}).")
    within = tuple(run for run, value in known if value is not None and value <= limit)
    beyond = tuple(run for run, value in known if value is not None and value > limit)
    if len(within) < MIN_RUNS or not beyond:
        raise InvalidArgumentError(
            f"{len(within)} runs have a {WORDS[variable]} of up to {limit:g} and {len(beyond)} a larger one; expected "
            f"at least {MIN_RUNS} to fit and 1 to predict."
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
        MissingDependencyError: SciPy is not installed.
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


def small_network() -> nn.Module:
    """Three convolutions and a classifier, for images of 32 x 32."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, CLASSES))


def measured_sweep(
    *, batch_sizes: Iterable[int], steps: int, clock: Callable[[], float] = time.perf_counter
) -> list[PastRun]:
    """The fastest training step at each batch size, as a run of `steps` iterations.

    Batch sizes alternate, so other work on the machine affects all of them equally. Other work only adds time, so the
    fastest step was disturbed least.

    Args:
        batch_sizes: Samples of a step.
        steps: Steps of each size, after one to warm up.
        clock: Seconds that only grow.

    Raises:
        InvalidArgumentError: No step.
    """
    if steps < 1:
        raise InvalidArgumentError(f"steps={steps}; expected at least 1.")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = small_network()
        batches = {
            size: (torch.rand(size, 3, IMAGE_SIZE, IMAGE_SIZE), torch.randint(CLASSES, (size,))) for size in batch_sizes
        }
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    times: dict[int, list[float]] = {size: [] for size in batches}
    for turn in range(steps + 1):
        for size, (images, labels) in batches.items():
            start = clock()
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
            if turn:
                times[size].append(clock() - start)
    return [
        PastRun(
            model="small network on this processor",
            setting=RunSetting(iterations=steps, batch_size=size, flops_per_second=NOMINAL_FLOPS_PER_SECOND),
            seconds=min(found) * steps,
        )
        for size, found in times.items()
    ]


ITERATIONS: Final = 1000
"""Of every simulated run; a run has no start-up, so they do not matter."""

Batch = tuple[Tensor, Tensor]


@final
@dataclass(frozen=True, slots=True)
class SweptModel:
    """A network and its batches.

    Attributes:
        network: Makes it, on the current device.
        batch: Data and labels with the given number of samples.
    """

    network: Callable[[], nn.Module]
    batch: Callable[[int], Batch]


def _images(samples: int) -> Batch:
    return torch.empty(samples, 3, 224, 224), torch.zeros(samples, dtype=torch.int64)


def _speech(samples: int) -> Batch:
    """One second of sound each: 100 spectra, a letter for every second one."""
    return torch.empty(samples, 1, 161, 100), torch.zeros(samples, 50, dtype=torch.int64)


def resnet_of(inner_modules: int) -> nn.Module:
    """A ResNet with the given number of bottlenecks in each of its four stages."""
    return ResNet50((inner_modules,) * 4)


SWEPT_MODELS: Final[Mapping[str, SweptModel]] = {
    "AlexNet": SweptModel(alexnet, _images),
    "ResNet-50": SweptModel(ResNet50, _images),
    "VGG-19": SweptModel(lambda: vgg(VGG19), _images),
    "DeepSpeech": SweptModel(lambda: DeepSpeech(channels=32, hidden=800, layers=5), _speech),
}
"""Models by name."""


def recorded_step(model: SweptModel, samples: int) -> Trace:
    """One training step in float32, without TF32, on the meta device.

    Args:
        model: The network and its batches.
        samples: Samples of the batch.
    """
    with torch.device("meta"):
        network, (data, labels) = model.network(), model.batch(samples)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    session = CaptureSession(device=data.device, model=network, optimizers=[optimizer])
    for is_recorded in (False, True):  # the first step makes the momentum
        if is_recorded:
            session.start()
        optimizer.zero_grad()
        logits = network(data)
        nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)).backward()
        optimizer.step()
        if is_recorded:
            session.stop()
    return replace(without_pauses(session.trace()), flags=Flags(matmul_tf32=False, cudnn_tf32=False), samples=samples)


def runs_from(
    name: str, steps: Mapping[int, Trace], gpus: Sequence[str], *, inner_modules: int | None = None
) -> list[PastRun]:
    """Recorded steps, predicted as runs.

    Args:
        name: Name of the model.
        steps: By samples of a GPU.
        gpus: GPUs and layouts, for example `T4` and `4xT4`.
        inner_modules: How deep the model is, where that varies.
    """
    runs = []
    for samples, trace in steps.items():
        predictions = predict(trace, gpus, history=False)
        for entry in gpus:
            layout = layout_of(entry)
            setting = RunSetting(
                iterations=ITERATIONS,
                batch_size=samples,
                gpu=layout.gpu.name,
                num_gpus=layout.count,
                inner_modules=inner_modules,
            )
            seconds = predictions[layout.name].iteration_seconds * ITERATIONS
            runs.append(PastRun(model=name, setting=setting, seconds=seconds))
    return runs


def simulated_sweep(name: str, *, batch_sizes: Iterable[int], gpus: Sequence[str]) -> list[PastRun]:
    """Runs of a model at all batch sizes on all GPUs and layouts.

    Args:
        name: A key of `SWEPT_MODELS`.
        batch_sizes: Samples of one GPU.
        gpus: GPUs and layouts.

    Raises:
        InvalidArgumentError: Another model.
        UnknownGpuError: A GPU that the catalogue does not hold.
    """
    model = SWEPT_MODELS.get(name)
    if model is None:
        raise InvalidArgumentError(f"{name!r} has no sweep; choose one of {', '.join(SWEPT_MODELS)}.")
    return runs_from(name, {size: recorded_step(model, size) for size in batch_sizes}, gpus)


LAYERS_PUBLISHED: Final[Mapping[str, str]] = {"AlexNet": "4.75", "GoogLeNet": "9.29"}
"""Published mean errors in percent of AlexNet's whole iterations, from the layers of each network (SBAC-PAD 2018)."""

LAYER_GPUS: Final = ("K80", "M60", "GTX-1080-Ti", "T4", "V100-PCIe-32GB")
LAYER_BATCHES: Final = (16, 32, 64, 128, 256)
LAYER_BATCHES_FITTED: Final = (16, 32, 64)
"""Of AlexNet, where it is predicted from itself: the larger batches are new."""


@final
@dataclass(frozen=True, slots=True)
class LayerScore:
    """AlexNet's steps from the layers of a network.

    Attributes:
        fitted: The network.
        gpu: The GPU of both.
        errors: Predicted / whole step - 1, of each batch size that was not fitted.
    """

    fitted: str
    gpu: str
    errors: tuple[float, ...]


def layer_scores(
    gpus: Sequence[str] = LAYER_GPUS,
    *,
    batches: Sequence[int] = LAYER_BATCHES,
    fitted: Sequence[int] = LAYER_BATCHES_FITTED,
    networks: Mapping[str, Callable[[], nn.Module]] = {"AlexNet": alexnet, "GoogLeNet": googlenet},
) -> list[LayerScore]:
    """Predict whole networks by lines over layers: AlexNet from its own smaller batches, and from GoogLeNet.

    No source publishes the layers' times of both on one GPU, so these are this package's predictions of each call.

    Args:
        gpus: Each by itself.
        batches: Samples of a step.
        fitted: Those of AlexNet that are fitted to predict the others.
        networks: Functions that make both networks.
    """
    found = tuple(find_gpu(name) for name in gpus)
    models = kernel_models(tuple(one.name for one in found), None)
    traces = {
        name: {size: recorded_step(SweptModel(make, _images), size) for size in batches}
        for name, make in networks.items()
    }
    times = {
        (name, size): predict_work_times(trace, found, origin=None, models=models).seconds  # (gpus, calls)
        for name, own in traces.items()
        for size, trace in own.items()
    }
    scores = []
    for name in networks:
        sizes = fitted if name == "AlexNet" else batches
        for row, one in enumerate(found):
            regression = fit_layers(
                layer for size in sizes for layer in layers_of(traces[name][size], times[name, size][row].tolist())
            )
            errors = [
                regression.predict(traces["AlexNet"][size]).seconds / float(times["AlexNet", size][row].sum()) - 1
                for size in batches
                if name != "AlexNet" or size not in fitted
            ]
            scores.append(LayerScore(name, one.name, tuple(errors)))
    return scores


def layers_table(scores: Sequence[LayerScore]) -> Table:
    """Tabulate mean errors of whole networks, by GPU and network fitted."""
    table = report_table(
        "Lines over layers, by whole networks: AlexNet's device time",
        ("fitted", "on"),
        ("steps", "mean error %", "published %"),
    )
    for name in dict.fromkeys(score.fitted for score in scores):
        own = [score for score in scores if score.fitted == name]
        for score in own:
            table.add_row(name, score.gpu, str(len(score.errors)), _percent(_mean(score.errors)), "")
        every = [error for score in own for error in score.errors]
        table.add_row(name, "all", str(len(every)), _percent(_mean(every)), LAYERS_PUBLISHED[name])
        table.add_section()
    return table


def _mean(errors: Sequence[float]) -> float:
    return statistics.fmean(map(abs, errors))


def depth_sweep(*, inner_modules: Iterable[int], batch_sizes: Sequence[int], gpus: Sequence[str]) -> list[PastRun]:
    """Runs of ResNets of several depths.

    Args:
        inner_modules: Bottlenecks of each stage.
        batch_sizes: Samples of one GPU.
        gpus: GPUs and layouts.

    Raises:
        UnknownGpuError: A GPU that the catalogue does not hold.
    """
    runs = []
    for count in inner_modules:
        model = SweptModel(lambda depth=count: resnet_of(depth), _images)  # type: ignore[misc]
        steps = {size: recorded_step(model, size) for size in batch_sizes}
        runs += runs_from("ResNet", steps, gpus, inner_modules=count)
    return runs


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


AS_PUBLISHED: Final = RegressionOptions(
    variables=tuple(name for name in VARIABLES if name != "bytes_per_second"),
    relative=False,
    only_inverted=(),
    costs_add_up=False,
    work_has_rates=False,
)
"""All inverses and products, coefficients of either sign, absolute errors. Runs for each term are ours."""

FIVE_FEATURES: Final = replace(AS_PUBLISHED, max_terms=5, runs_per_term=1)


def all_features_error(runs: Sequence[PastRun], variable: Variable, *, limit: float) -> float:
    """Fit all inverses and products at once, none of them selected, and return the mean error beyond the limit.

    There are more features than runs: of all solutions, the one with the smallest coefficients of features of one size.

    Args:
        runs: Runs of one model.
        variable: The axis.
        limit: Largest value to fit.

    Raises:
        InvalidArgumentError: As `split_beyond`.
    """
    within, beyond = split_beyond(runs, variable, limit)
    settings = [run.setting for run in (*within, *beyond)]
    known = tuple(name for name in AS_PUBLISHED.variables if all(one.value(name) is not None for one in settings))
    columns = values_of(settings, known)
    varying = tuple(name for name in known if np.ptp(columns[name][: len(within)]) > 0 and columns[name].all())
    features = np.stack([term.values(columns) for term in terms_of(varying)], axis=1)  # (runs, terms)
    fitted = features[: len(within)]
    mean, size = fitted.mean(axis=0), fitted.std(axis=0)
    features = (features - mean) / np.where(size > 0, size, 1.0)
    seconds = np.array([run.seconds_per_iteration for run in (*within, *beyond)])
    middle = seconds[: len(within)].mean()
    found, *_ = np.linalg.lstsq(features[: len(within)], seconds[: len(within)] - middle, rcond=None)
    predicted = features[len(within) :] @ found + middle
    return float(np.abs(np.maximum(predicted, 0.0) / seconds[len(within) :] - 1).mean())


PUBLISHED_LARGEST_FITTED: Final = 4
"""GPUs up to which published throughputs are fitted."""


ALL_BENCHMARKS: Final = "all benchmarks"
"""Name of the published throughputs of all networks together."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Variable that is swept, and the limit up to which it is fitted.

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
        error_of_five: Mean error with at most five features, else as published.
        error_as_published: Mean error with all features at once, none selected, and without bounds on coefficients.
        is_measured: The runs were measured here; simulated otherwise.
    """

    model: str
    where: str
    score: ExtrapolationScore
    error_of_five: float
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
        steps: Steps of each size, the fastest step counts.
    """
    runs = measured_sweep(batch_sizes=batch_sizes, steps=steps)
    return [_scored("small network", "this processor", runs, "batch_size", largest_fitted, is_measured=True)]


def published_number_scores(path: Path) -> list[AxisScore]:
    """Published training throughputs: one to four GPUs are fitted and eight predicted, each benchmark by itself.

    Args:
        path: `training_throughput.csv`, with the rows that the scaling report uses.

    Raises:
        MeasurementTableError: A missing column.
        OSError: The file cannot be read.
    """
    sweeps: dict[tuple[str, str, str, int], list[PastRun]] = {}
    for case in read_scaling_cases(path)[0]:
        key = (case.model, case.system, case.precision, case.batch)
        alone = case.batch / case.single_per_second  # in proportion to the seconds, for any units of the table
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


FITTED_POWER: Final = 0.6
"""Share of the GPUs of a benchmark, the slowest, whose published throughputs are fitted to predict the faster ones."""

FEWEST_GPUS: Final = 5


def published_power_scores(path: Path) -> list[AxisScore]:
    """Published training throughputs of one GPU: the slower GPUs are fitted, the faster ones predicted.

    Args:
        path: `training_throughput.csv`.

    Raises:
        MeasurementTableError: A missing column.
        OSError: The file cannot be read.
    """
    sweeps: dict[tuple[str, str, str], list[PastRun]] = {}
    for case in read_throughput_cases(path):
        setting = RunSetting(iterations=1, batch_size=case.batch, gpu=case.gpu)
        run = PastRun(model=case.model, setting=setting, seconds=case.batch / case.measured_per_second)
        sweeps.setdefault((case.model, case.precision, case.software), []).append(run)
    scores: dict[str, list[AxisScore]] = {}
    for (model, precision, software), runs in sweeps.items():
        powers = sorted({run.setting.value("flops_per_second") or 0.0 for run in runs})
        if precision != "FP32" or len(powers) < FEWEST_GPUS:  # half precision runs on units that this power is not of
            continue
        limit = powers[round(FITTED_POWER * len(powers)) - 1]
        scores.setdefault(model, []).append(
            _scored(model, f"one GPU, torch {software}", runs, "flops_per_second", limit, is_measured=True)
        )
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
        variable=members[0].score.variable,
        limit=statistics.median(one.score.limit for one in members),
        fitted=sum(one.score.fitted for one in members),
        errors=errors,
        inside=statistics.fmean(hits) if hits else None,
        formula=f"{len(members)} regressions",
    )
    five = statistics.fmean(one.error_of_five for one in members)
    published = statistics.fmean(one.error_as_published for one in members)
    return AxisScore(model, f"{len(members)} published sweeps", score, five, published, is_measured=True)


def _scored(
    model: str, where: str, runs: Sequence[PastRun], variable: Variable, limit: float, *, is_measured: bool = False
) -> AxisScore:
    score, five = (
        extrapolation_score(runs, variable, limit=limit, options=options)
        for options in (DEFAULT_OPTIONS, FIVE_FEATURES)
    )
    every = all_features_error(runs, variable, limit=limit)
    return AxisScore(model, where, score, five.mean_error, every, is_measured)


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


def evaluate_regressions(
    *,
    plan: SweepPlan = SweepPlan(),
    throughputs: Path | None = None,
    measures_cpu: bool = False,  # frozen
) -> tuple[AxisScore, ...]:
    """Fit and score everything.

    Args:
        plan: Plan of the simulated sweeps.
        throughputs: Table of published training throughputs; None leaves them out.
        measures_cpu: Measure a sweep on this processor, too.

    Raises:
        MeasurementTableError: The table is wrong.
    """
    measured = (
        [] if throughputs is None else [*published_number_scores(throughputs), *published_power_scores(throughputs)]
    )
    measured += cpu_scores() if measures_cpu else []
    return (*axis_scores(plan), *measured)


def print_report(axes: Sequence[AxisScore], console: Console) -> None:
    """Print every score."""
    console.print(_axis_table(axes))
    for table in summary_tables(axes):
        console.print(table)
    console.print(
        f"Published: {PUBLISHED_SOURCE}. Ours are simulated by this package's own predictions where it "
        "does not say measured, so they show the reach of the regression alone. All features: every inverse and "
        "product of the published variables at once; five: at most five of them, selected by t-tests. Coefficients of "
        "either sign and absolute errors, as in the published regressions."
    )


PUBLISHED_AXES: Final[Mapping[Variable, str]] = {"flops_per_second": "faster GPUs", "num_gpus": "eight GPUs"}
"""Names of the extrapolations of all published benchmarks together."""


def published_figures(axes: Sequence[AxisScore]) -> tuple[Figure, ...]:
    """Return mean errors and coverage on all published training benchmarks, as the documentation quotes them."""
    figures = []
    for axis in axes:
        name = PUBLISHED_AXES.get(axis.score.variable)
        if axis.model == ALL_BENCHMARKS and axis.is_measured and name is not None:
            shares = (axis.score.mean_error, axis.error_of_five, axis.score.inside)
            names = (name, f"{name}, five features", f"{name}, inside")
            figures += [
                Figure(name=one, value=f"{100 * value:.0f}", unit="%")
                for one, value in zip(names, shares, strict=True)
                if value is not None
            ]
    return tuple(figures)


def summary_tables(axes: Sequence[AxisScore]) -> tuple[Table, ...]:
    """Errors by network and axis, and the coverage of the intervals."""
    return _summary_table(axes), _inside_table(axes)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _axis_table(scores: Iterable[AxisScore]) -> Table:
    title = "Beyond the fitted runs"
    table = report_table(
        title,
        ("network", "along", "runs", "on"),
        (
            "fitted up to",
            "fitted",
            "predicted",
            "mean error %",
            "median %",
            "in 90 %",
            "five features %",
            "all features %",
        ),
    )
    for score in scores:
        one = score.score
        table.add_row(
            score.model,
            WORDS[one.variable],
            "measured" if score.is_measured else "simulated",
            score.where,
            f"{one.limit:.4g}",
            str(one.fitted),
            str(len(one.errors)),
            _percent(one.mean_error),
            _percent(one.median_error),
            _percent(one.inside),
            _percent(score.error_of_five),
            _percent(score.error_as_published),
        )
    return table


def _summary_table(scores: Sequence[AxisScore]) -> Table:
    table = report_table(
        "Summary: mean errors of the extrapolations above",
        ("network", "along", "runs"),
        ("least %", "median %", "largest %", "five features: median %", "all features: median %", "published %"),
    )
    keys = dict.fromkeys((score.model, score.score.variable, score.is_measured) for score in scores)
    for model, variable, is_measured in keys:
        members = [
            one for one in scores if (one.model, one.score.variable, one.is_measured) == (model, variable, is_measured)
        ]
        errors = [one.score.mean_error for one in members]
        table.add_row(
            model,
            WORDS[variable],
            "measured" if is_measured else "simulated",
            *map(_percent, (min(errors), statistics.median(errors), max(errors))),
            _percent(statistics.median(one.error_of_five for one in members)),
            _percent(statistics.median(one.error_as_published for one in members)),
            members[0].published or "-",
        )
    return table


def _inside_table(scores: Sequence[AxisScore]) -> Table:
    """Count the runs inside the intervals, beyond the fitted runs."""
    table = report_table(
        "Runs beyond the fitted ones in the 90 % interval", ("along", "runs"), ("predicted", "in 90 %")
    )
    single = [one for one in scores if one.model != ALL_BENCHMARKS and one.score.inside is not None]
    for key in dict.fromkeys((one.score.variable, one.is_measured) for one in single):
        own = [one for one in single if (one.score.variable, one.is_measured) == key]
        counts = [len(one.score.errors) for one in own]
        held = sum((one.score.inside or 0.0) * count for one, count in zip(own, counts, strict=True)) / sum(counts)
        table.add_row(WORDS[key[0]], "measured" if key[1] else "simulated", str(sum(counts)), _percent(held))
    return table
