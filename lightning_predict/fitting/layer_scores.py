"""How well t = β0 + β1 * complexity predicts a layer: on measured one-layer steps, and on whole networks.

The measured ones are one-layer steps of TensorFlow 1 with random shapes (CDECatapult/ml-performance-prediction,
Apache-2.0); what is scored is a share of the shapes, drawn by a hash, that no fit saw. Random shapes are hard on a
line: a filter of 7 x 7 on one channel and one of 1 x 1 on 49 have the same complexity. Example::

    for score in convolution_scores(Path("tables/conv2d_train_step.csv.gz")):
        print(score.gpu, score.steps, score.errors["line"])
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from scipy.optimize import nnls

import lightning_predict as lp
from lightning_predict.errors import MeasurementTableError, UnknownGpuError
from lightning_predict.fitting.splits import BoolArray, split_rows
from lightning_predict.fitting.sweeps import SWEPT_MODELS, recorded_step
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.kernels.estimates import problem_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.translation import translate
from lightning_predict.regression.per_layer import LayerTime, fit_layers, fit_line, layer_operations
from lightning_predict.tracing.records import Trace
from lightning_predict.units import milliseconds_to_seconds

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
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise MeasurementTableError(f"{path} has no column {', '.join(missing)}.")
        for line, row in enumerate(reader, start=2):
            try:
                values = (*(float(row[word]) for word in SHAPE), milliseconds_to_seconds(float(row["latency_ms"])))
            except ValueError as error:
                raise MeasurementTableError(f"{path}, line {line}: {error}; expected numbers.") from None
            if not values[-1] > 0:
                raise MeasurementTableError(
                    f"{path}, line {line}: latency_ms is {row['latency_ms']}; expected above 0."
                )
            groups.setdefault((row["gpu"], STEPS.get(row["optimizer"], "training")), []).append(values)
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
