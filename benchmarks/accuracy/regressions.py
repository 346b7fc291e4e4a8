"""Score the regressions: of layers on published measurements, of whole runs beyond the fitted ones.

Published errors of the same kind stand next to them for context: they were measured on other GPUs, frameworks and
settings.

A sweep is simulated: each step is recorded on the meta device and predicted by this package, on one GPU and on several.
So its times are as smooth, and as wrong, as the predictions; what it shows is how far linear regressions reach, not how
long training takes.

The measured ones are one-layer steps of TensorFlow 1 with random shapes (CDECatapult/ml-performance-prediction,
Apache-2.0); what is scored is a share of the shapes, drawn by a hash, that no fit saw. Random shapes are hard on a
line: a filter of 7 x 7 on one channel and one of 1 x 1 on 49 have the same complexity.

Each axis is split as in the published experiments: what is below a limit is fitted, what is above is predicted. The
sweeps are simulated by this package, but for published throughputs on one to eight GPUs, and a sweep that
is measured on the processor at hand. Example::

    print_report(evaluate_regressions(Path("measurements"), throughputs=None), Console())
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import nnls
from torch import Tensor, nn

import lightning_predict as lp
from benchmarks.accuracy.many_gpus import ScalingCase, read_scaling_cases
from benchmarks.accuracy.workloads.classifiers import VGG19, alexnet, googlenet, vgg
from benchmarks.accuracy.workloads.deep_speech import DeepSpeech
from benchmarks.accuracy.workloads.recorded import without_pauses
from benchmarks.accuracy.workloads.resnet import ResNet50
from lightning_predict.checked import read_csv
from lightning_predict.errors import InvalidArgumentError, MeasurementTableError, UnknownGpuError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.layouts import layout_of
from lightning_predict.kernels.arrays import BoolArray
from lightning_predict.kernels.estimates import problem_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.translation import translate
from lightning_predict.prediction import predict
from lightning_predict.regression.end_to_end import DEFAULT_OPTIONS, FEWEST_RUNS, RegressionOptions, fit_regression
from lightning_predict.regression.per_layer import LayerTime, fit_layers, fit_line, layer_operations
from lightning_predict.regression.runs import WORDS, PastRun, RunSetting, Variable
from lightning_predict.tracing.session import CaptureSession
from lightning_predict.tracing.trace import Flags, Trace
from lightning_predict.training.report import report_table
from lightning_predict.training.tables import split_rows
from lightning_predict.units import milliseconds_to_seconds

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

    Batch sizes take turns, so that whatever else the machine does strikes all of them alike; it only adds time, so the
    fastest step is the one that was disturbed least.

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
        batch: Data and labels of so many samples.
    """

    network: Callable[[], nn.Module]
    batch: Callable[[int], Batch]


def _images(samples: int) -> Batch:
    return torch.empty(samples, 3, 224, 224), torch.zeros(samples, dtype=torch.int64)


def _speech(samples: int) -> Batch:
    """One second of sound each: 100 spectra, a letter for every second one."""
    return torch.empty(samples, 1, 161, 100), torch.zeros(samples, 50, dtype=torch.int64)


def resnet_of(inner_modules: int) -> nn.Module:
    """A ResNet with so many bottlenecks in each of its four stages."""
    return ResNet50((inner_modules,) * 4)


SWEPT_MODELS: Final[Mapping[str, SweptModel]] = {
    "AlexNet": SweptModel(alexnet, _images),
    "ResNet-50": SweptModel(ResNet50, _images),
    "VGG-19": SweptModel(lambda: vgg(VGG19), _images),
    "DeepSpeech": SweptModel(lambda: DeepSpeech(channels=32, hidden=800, layers=5), _speech),
    "GoogLeNet": SweptModel(googlenet, _images),
}
"""Models by name."""


def recorded_step(model: SweptModel, samples: int) -> Trace:
    """One training step in float32, without TF32, on the meta device.

    Args:
        model: The network and its batches.
        samples: Of the batch.
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
        name: Of the model.
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


SHAPE: Final = ("batch", "in_channels", "out_channels", "kernel_size", "image_size", "stride", "same_padding")
COLUMNS: Final = ("gpu", *SHAPE, "optimizer", "latency_ms")

STEPS: Final = {"0": "forward", "": "not stated"}
"""What was timed by the column `optimizer`; all else is a training step. Where it is not stated, both are mixed."""

METHODS: Final = ("line, as published", "line, relative errors", "with tensor sizes", "own model, with tensor sizes")
"""Least squares on the complexity; the same on relative errors; on the complexity and the elements of images, outputs
and filters; the same with the predicted time of the convolution instead of the complexity."""


@final
@dataclass(frozen=True, slots=True)
class ConvolutionScore:
    """Errors on shapes that no fit saw.

    Attributes:
        gpu: As the table spells it.
        steps: `forward`, `training`, or `not stated`.
        rows: That were scored.
        errors: Mean of |predicted / measured - 1| by method.
        medians: Median of the same.
    """

    gpu: str
    steps: str
    rows: int
    errors: Mapping[str, float]
    medians: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True)
class NetworkScore:
    """A network predicted from layers of the same at other batch sizes, or of another network.

    Attributes:
        gpu: Where.
        fitted: Network whose layers were fitted.
        predicted: Network that was predicted.
        errors: predicted / simulated - 1 of the step's layers together, for each batch size.
    """

    gpu: str
    fitted: str
    predicted: str
    errors: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """Mean of the absolute errors."""
        return float(np.abs(self.errors).mean())


def convolution_scores(path: Path, *, seed: int = 0) -> tuple[ConvolutionScore, ...]:
    """Scores of every GPU and kind of step in the table.

    Args:
        path: The table, gzip.
        seed: Of the choice of held-out shapes.

    Raises:
        MeasurementTableError: A column is missing, or a value is not a number above 0.
        OSError: The file cannot be read.
    """
    groups: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for row in read_csv(path, MeasurementTableError, columns=COLUMNS):
        seconds = milliseconds_to_seconds(row.member("latency_ms").parsed().positive())
        shape = [row.member(word).parsed().any_number() for word in SHAPE]
        steps = STEPS.get(row.member("optimizer").text(), "training")
        groups.setdefault((row.member("gpu").text(), steps), []).append((*shape, seconds))
    return tuple(_score(gpu, steps, np.array(rows), seed) for (gpu, steps), rows in sorted(groups.items()))


def _score(gpu: str, steps: str, table: Array, seed: int) -> ConvolutionScore:
    columns = dict(zip(SHAPE, table[:, :-1].T, strict=True))
    seconds = table[:, -1]
    held_out = split_rows(columns, seed=seed).held_out
    same = columns["same_padding"] > 0
    size, taps, stride = columns["image_size"], columns["kernel_size"], columns["stride"]
    outputs = np.where(same, np.ceil(size / stride), np.floor((size - taps) / stride) + 1)
    pairs = columns["in_channels"] * columns["out_channels"] * taps**2
    complexity = columns["batch"] * pairs * outputs**2
    sizes = (
        columns["batch"] * columns["in_channels"] * size**2,
        columns["batch"] * columns["out_channels"] * outputs**2,
        pairs,
    )
    padding = np.where(same, np.maximum((outputs - 1) * stride + taps - size, 0) / 2, 0)
    fitted, rest = ~held_out, held_out
    predictions = {
        method: fit_line(complexity[fitted], seconds[fitted], relative=relative).at_all(complexity[rest])
        for method, relative in zip(METHODS, (False, True), strict=False)
    }
    predictions[METHODS[2]] = _several((complexity, *sizes), seconds, fitted)
    own = _own_seconds(gpu, columns, padding)
    if own is not None:
        predictions[METHODS[3]] = _several((own, *sizes), seconds, fitted)
    errors = {method: np.abs(values / seconds[rest] - 1) for method, values in predictions.items()}
    return ConvolutionScore(
        gpu=gpu,
        steps=steps,
        rows=int(rest.sum()),
        errors={method: float(values.mean()) for method, values in errors.items()},
        medians={method: float(np.median(values)) for method, values in errors.items()},
    )


def _several(features: Sequence[Array], seconds: Array, fitted: BoolArray) -> Array:
    """Least squares of relative errors with coefficients of at least 0, on the rows that were not fitted."""
    matrix = np.column_stack([np.ones_like(seconds), *features])
    matrix /= np.sqrt((matrix**2).mean(axis=0))
    coefficients, _ = nnls(matrix[fitted] / seconds[fitted, None], np.ones(int(fitted.sum())))
    predicted: Array = matrix[~fitted] @ coefficients
    return predicted


def _own_seconds(gpu: str, columns: Mapping[str, Array], padding: Array) -> Array | None:
    """Device time of the forward convolution as this package predicts it; None for GPUs without a row."""
    try:
        find_gpu(gpu)
    except UnknownGpuError:
        return None
    words: dict[str, Any] = {word: columns[word] for word in SHAPE if word != "same_padding"}
    return np.asarray(lp.operator_seconds("conv2d", gpu, padding=padding, **words))


def simulated_layers(trace: Trace, gpu: str) -> tuple[LayerTime, ...]:
    """The layers of a recorded step with the device times that this package predicts.

    Args:
        trace: A step.
        gpu: Name of a GPU.
    """
    card = find_gpu(gpu)
    pairs = layer_operations(trace)
    problems = [translate(operation, trace.flags) for operation, _ in pairs]
    flat = [one for several in problems for one in several]
    seconds = problem_times(flat, [card], kernel_models((card.name,), None)).seconds[0].tolist()
    found, position = [], 0
    for (_, layer), several in zip(pairs, problems, strict=True):
        found.append(LayerTime(layer=layer, gpu=card.name, seconds=sum(seconds[position : position + len(several)])))
        position += len(several)
    return tuple(found)


def network_scores(
    gpus: Sequence[str], *, fitted_sizes: Sequence[int], predicted_sizes: Sequence[int]
) -> tuple[NetworkScore, ...]:
    """AlexNet predicted from its own layers at other batch sizes, and from GoogLeNet's.

    Args:
        gpus: GPUs.
        fitted_sizes: Batch sizes of the layers that are fitted.
        predicted_sizes: Batch sizes that are predicted.
    """
    fitted = {
        name: [recorded_step(SWEPT_MODELS[name], size) for size in fitted_sizes] for name in ("AlexNet", "GoogLeNet")
    }
    asked = [recorded_step(SWEPT_MODELS["AlexNet"], size) for size in predicted_sizes]
    scores = []
    for gpu in gpus:
        actual = [simulated_layers(trace, gpu) for trace in asked]
        for name, traces in fitted.items():
            regression = fit_layers([one for trace in traces for one in simulated_layers(trace, gpu)])
            errors = []
            for layers in actual:
                covered = [one for one in layers if (one.gpu, one.layer.kind, one.layer.direction) in regression.lines]
                predicted = regression.predict([one.layer for one in covered], covered[0].gpu).seconds
                errors.append(predicted / sum(one.seconds for one in layers) - 1)
            scores.append(NetworkScore(gpu, name, "AlexNet", tuple(errors)))
    return tuple(scores)


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


CONVOLUTION_TABLE: Final = "conv2d_train_step.csv.gz"

FITTED_LAYER_SIZES: Final = (16, 64)
PREDICTED_LAYER_SIZES: Final = (32, 128)
LAYER_GPUS: Final = ("T4", "P100-PCIe-16GB", "V100-PCIe-32GB")

PUBLISHED_LAYERS: Final = {"AlexNet": "4.75", "GoogLeNet": "9.29"}
"""Mean error in percent of AlexNet from its own layers and from GoogLeNet's (Ardagna et al., SBAC-PAD 2018)."""

WIDTH: Final = 160


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionReport:
    """All scores.

    Attributes:
        convolutions: Of measured one-layer steps.
        networks: Of networks by their layers, simulated.
        axes: Of extrapolations, simulated and measured.
    """

    convolutions: tuple[ConvolutionScore, ...]
    networks: tuple[NetworkScore, ...]
    axes: tuple[AxisScore, ...]


def evaluate_regressions(
    tables: Path | None,
    *,
    plan: SweepPlan = SweepPlan(),  # frozen
    with_networks: bool = True,
    throughputs: Path | None = None,
    measures_cpu: bool = False,
) -> RegressionReport:
    """Fit and score everything.

    Args:
        tables: Folder with `conv2d_train_step.csv.gz`; None leaves the measured layers out.
        plan: Of the simulated sweeps.
        with_networks: Score networks by their layers, too.
        throughputs: Table of published training throughputs; None leaves them out.
        measures_cpu: Measure a sweep on this processor, too.

    Raises:
        MeasurementTableError: The table is missing or wrong.
    """
    convolutions: tuple[ConvolutionScore, ...] = ()
    if tables is not None:
        path = tables / CONVOLUTION_TABLE
        if not path.is_file():
            raise MeasurementTableError(
                f"No {CONVOLUTION_TABLE} in {str(tables)!r}: one-layer training steps of CDECatapult/"
                "ml-performance-prediction (Apache-2.0), columns gpu, batch, in_channels, ... and latency_ms."
            )
        convolutions = convolution_scores(path)
    networks: tuple[NetworkScore, ...] = ()
    if with_networks:
        networks = network_scores(LAYER_GPUS, fitted_sizes=FITTED_LAYER_SIZES, predicted_sizes=PREDICTED_LAYER_SIZES)
    measured = [] if throughputs is None else published_number_scores(throughputs)
    measured += cpu_scores() if measures_cpu else []
    return RegressionReport(convolutions=convolutions, networks=networks, axes=(*axis_scores(plan), *measured))


def print_report(report: RegressionReport, console: Console) -> None:
    """Print every score."""
    if report.convolutions:
        console.print(_convolution_table(report.convolutions))
    if report.networks:
        console.print(_network_table(report.networks))
    if report.axes:
        console.print(_axis_table(report.axes))
        console.print(_summary_table(report.axes))
        console.print(
            f"Published: {PUBLISHED_SOURCE}. Ours are simulated by this package's own predictions where it "
            "does not say measured, so they show the reach of the regression alone. All terms: every inverse and "
            "product, coefficients of either sign and absolute errors, as in the published regressions."
        )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _convolution_table(scores: Iterable[ConvolutionScore]) -> Table:
    title = "One-layer steps of TensorFlow 1, random shapes, held out: mean (median) error %"
    table = report_table(title, ("GPU", "steps"), ("rows", *METHODS))
    for score in scores:
        cells = [
            f"{_percent(score.errors[method])} ({_percent(score.medians[method])})" if method in score.errors else "-"
            for method in METHODS
        ]
        table.add_row(score.gpu, score.steps, str(score.rows), *cells)
    return table


def _network_table(scores: Iterable[NetworkScore]) -> Table:
    title = "Networks by their layers: layers and networks simulated by this package"
    table = report_table(title, ("GPU", "layers of", "network"), ("mean error %", "published %"))
    for score in scores:
        published = PUBLISHED_LAYERS.get(score.fitted, "-")
        table.add_row(score.gpu, score.fitted, score.predicted, _percent(score.mean_error), published)
    return table


def _axis_table(scores: Iterable[AxisScore]) -> Table:
    title = "Beyond the fitted runs"
    table = report_table(
        title,
        ("network", "along", "runs", "on"),
        ("fitted up to", "fitted", "predicted", "mean error %", "median %", "in 90 %", "all terms %"),
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
            _percent(score.error_as_published),
        )
    return table


def _summary_table(scores: Sequence[AxisScore]) -> Table:
    table = report_table(
        "Summary: mean errors of the extrapolations above",
        ("network", "along", "runs"),
        ("least %", "median %", "largest %", "all terms: median %", "published %"),
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
            _percent(statistics.median(one.error_as_published for one in members)),
            members[0].published or "-",
        )
    return table
