"""Collects the shapes of operations in training steps of named models, for the command `measure`.

Every model is recorded on the meta device, and its operations are timed from their shapes on one GPU. For each
operation with a micro-benchmark, `PER_OPERATION` shapes are drawn, the longest most often. Example::

    python -m benchmarks.training.network_shapes lightning_predict/own_weights/measuring/shapes.csv.gz
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import OperationShape, operation_spec
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.kernels.translation import work_items
from lightning_predict.own_weights.measuring.benchmarks import BENCHMARKS
from lightning_predict.record.named_models.names import shipped_models

PER_OPERATION: Final = 60  # Most shapes of one operation; operations of most networks have four times as many

MATRIX_TIMES: Final = 4
MATRICES: Final = ("linear", "bmm", "conv2d", "attention")

GPU: Final = "H100-SXM-80GB"  # GPU whose predicted times weight the shapes

IMAGE_MODELS: Final = 80
TEXT_MODELS: Final = 60
NOISE_MODELS: Final = 6  # Numbers of models of timm, one of a family, of transformers and of diffusers

PRECISIONS: Final = ("bf16-mixed", "bf16-mixed", "bf16-true", "32")

Words = tuple[tuple[str, int], ...]


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names of models, drawn by a seed, with the options of a step."""
    draw = random.Random("steps of networks")
    known = import_module("timm").list_models()
    families = {name.partition("_")[0]: name for name in draw.sample(known, len(known))}
    images = [f"timm:{name}" for _, name in sorted(families.items())]
    texts, noises = (
        [f"{library}:{name}" for name in sorted({model.name for model in shipped_models(library).values()})]
        for library in ("hf", "diffusers")
    )
    for name in draw.sample(images, IMAGE_MODELS):
        yield name, {"batch_size": draw.choice([32, 64, 128]), "precision": draw.choice(PRECISIONS)}
    for name in draw.sample(texts, TEXT_MODELS):
        sizes = {"batch_size": draw.choice([1, 4, 16]), "length": draw.choice([128, 512, 1024])}
        yield name, {**sizes, "precision": draw.choice(PRECISIONS)}
    for name in draw.sample(noises, NOISE_MODELS):
        yield name, {"batch_size": draw.choice([1, 4])}


def base_of(operation: str) -> str:
    """Return the operation whose micro-benchmark times a pass."""
    return operation.partition("_backward")[0]


def words_of(shape: OperationShape) -> Words | None:
    """Return a shape in the words of its micro-benchmark; None if it has none."""
    operation = base_of(shape.operation)
    if operation not in BENCHMARKS:
        return None
    spec, given = operation_spec(operation), dict(zip(operation_spec(shape.operation).shape, shape.dims, strict=True))
    words = BENCHMARKS[operation].draw(random.Random(0))
    for name in set(spec.shape) - set(words):
        default = spec.defaults.get(name)
        usual = given.get(default) if isinstance(default, str) else default
        if given.get(name, usual) != usual:
            return None
    if not set(words) <= set(given) or any(value != int(value) for value in given.values()):
        return None
    return tuple((name, int(given[name])) for name in words)


def seconds_by_shape(trace: lp.Trace) -> Mapping[tuple[str, Words], float]:
    """Return the predicted seconds of each shape of a step, all passes and calls together."""
    shapes = [shape for item in work_items(trace) for shape in item.shapes]
    kept = [(shape, words) for shape in shapes if (words := words_of(shape)) is not None]
    if not kept:
        return {}
    card = gpu(GPU)
    times = predict_operation_times([shape for shape, _ in kept], [card], kernel_models((card.name,)))
    found: dict[tuple[str, Words], float] = defaultdict(float)
    for (shape, words), seconds in zip(kept, times.seconds[0], strict=True):
        found[base_of(shape.operation), words] += float(seconds)
    return found


def drawn(weights: Mapping[Words, float], count: int, name: str) -> list[Words]:
    """Return shapes drawn without replacement, each as often as its share of the time says."""
    draw = random.Random(name)
    keys = {words: draw.random() ** (1.0 / max(weight, 1e-12)) for words, weight in sorted(weights.items())}
    return sorted(sorted(keys, key=keys.__getitem__, reverse=True)[:count])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.network_shapes")
    parser.add_argument("output", type=Path)
    options = parser.parse_args(arguments)
    shares: dict[str, dict[Words, float]] = defaultdict(lambda: defaultdict(float))
    for name, settings in steps():
        try:
            found = seconds_by_shape(lp.step_of(name, **settings))
        except lp.LightningPredictError as error:
            print(f"{name}: {str(error)[:100]}", file=sys.stderr, flush=True)
            continue
        total = sum(found.values())
        print(f"{name}: {len(found)} shapes", file=sys.stderr, flush=True)
        for (operation, words), seconds in found.items():
            shares[operation][words] += seconds / total
    write(options.output, shares)
    return 0


def write(path: Path, shares: Mapping[str, Mapping[Words, float]]) -> None:
    """Write the shapes of each operation; the file depends on the shapes alone."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for operation, weights in sorted(shares.items()):
        count = PER_OPERATION * (MATRIX_TIMES if operation in MATRICES else 1)
        rows.writerows(
            (operation, *(f"{name}={value}" for name, value in words)) for words in drawn(weights, count, operation)
        )
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(text.getvalue().encode())


if __name__ == "__main__":
    sys.exit(main())
