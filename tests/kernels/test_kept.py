"""What is counted of every operation, and what it takes: a formula or a constant that changes moves some of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import layout_of
from lightning_predict.kernels import operations
from lightning_predict.kernels.choice import timed_work
from lightning_predict.kernels.collective import COLLECTIVES
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect, collective
from lightning_predict.kernels.fusion import fused
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import (
    Array,
    OperationKind,
    Problem,
    batch_of,
    operation_kind,
    operation_names,
)
from lightning_predict.kernels.timing import problem_times
from lightning_predict.kernels.translation import STRICT_VARIABLE, translate, work_items
from lightning_predict.tracing.trace import Flags, Operation, TensorInfo
from tests.kept import Kept, example, many_calls

GPUS: Final = tuple(map(gpu, ("V100-SXM2-16GB", "T4", "A100-SXM-80GB", "RTX 4090", "H100-SXM-80GB")))
DTYPES: Final = ("float32", "float16")
SHAPES: Final = (
    {
        **dict.fromkeys(("rows", "parameters", "bags", "read_bytes", "message_bytes", "size_bytes"), 40_009),
        **dict.fromkeys(("cols", "m", "write_bytes", "seq", "length", "flops"), 1031),
        **dict.fromkeys(("n", "channels", "hidden", "kv_seq", "dim"), 257),
        **dict.fromkeys(("k", "in_channels", "input_size", "steps"), 96),
        **dict.fromkeys(("height", "width", "depth", "head_dim", "out_channels"), 40),
        **dict.fromkeys(("batch", "heads", "b", "columns", "num_gpus", "lookups"), 6),
        **dict.fromkeys(("kv_heads", "kernel_size", "kernel_height", "kernel_width", "kernel_depth", "blocks"), 3),
        **dict.fromkeys(("stride", "stride_height", "directions", "layers", "groups"), 2),
        "causal": 1,
        "padding_height": 1,
        "cycles": 30_000,
        "block_cycles": 900,
        "alpha": 1.05,
    },
    {
        **dict.fromkeys(("rows", "parameters", "bags", "read_bytes", "message_bytes", "size_bytes"), 13e6),
        **dict.fromkeys(("cols", "channels", "dim", "length", "hidden", "input_size"), 64),
        **dict.fromkeys(("m", "n", "k", "seq", "write_bytes", "flops"), 4096),
        **dict.fromkeys(("in_channels", "out_channels", "head_dim"), 128),
        **dict.fromkeys(("height", "depth", "steps"), 28),
        **dict.fromkeys(("batch", "heads", "b", "num_gpus"), 8),
        **dict.fromkeys(("kernel_size", "kernel_height", "kernel_depth"), 1),
        "real": 1,
        "values_only": 1,
        "fused": 1,
        "channels_last": 1,
    },
)
"""Odd sizes with everything that may be left out, and even ones without."""


def dims(kind: OperationKind, sizes: dict[str, float]) -> Iterator[float]:
    """Yield the sizes of an operation, its defaults where there is none."""
    found: dict[str, float] = {}
    for word in (*(one for one in kind.shape if one not in kind.defaults), *kind.defaults):
        default = kind.defaults.get(word)
        found[word] = sizes.get(word, found[default] if isinstance(default, str) else float(default or 0))
    yield from (found[word] for word in kind.shape)


PROBLEMS: Final = [
    Problem(name, dtype, tuple(dims(operation_kind(name), sizes)))
    for name in operation_names()
    for dtype in DTYPES
    for sizes in SHAPES
]


def named(problems: list[Problem], table: dict[str, np.ndarray]) -> dict[str, object]:
    """List what each row of a table says of each operation, dtype and shape."""
    found = defaultdict[str, list[float]](list)
    for column, problem in enumerate(problems):
        found[f"{problem.operation} {problem.dtype}"].extend(table[row][column] for row in table)
    return dict(found)


def test_work(kept: Kept) -> None:
    rows: dict[str, list[float]] = {}
    for problem in PROBLEMS:
        if problem.dtype == "float32":
            batch = batch_of([problem])
            counts = (batch.flops, batch.least_flops, batch.bytes_read, batch.bytes_written)
            rows.setdefault(problem.operation, []).extend(float(count[0]) for count in counts)
    kept("work", rows)


@pytest.mark.parametrize("by", ["networks", "rooflines"])
def test_seconds(kept: Kept, by: str) -> None:
    models = kernel_models(tuple(one.name for one in GPUS)) if by == "networks" else None
    gpus = GPUS if models else GPUS[1:3]
    problems = [one for one in PROBLEMS if operation_kind(one.operation).units != "fabric"]
    times = problem_times(problems, gpus, models)
    rows = {one.name: row for one, row in zip(gpus, times.seconds, strict=True)}
    ends = {"low": times.interval.low.mean(axis=0), "high": times.interval.high.mean(axis=0)} if models else {}
    kept(f"seconds by {by}", named(problems, rows | ends))


@pytest.mark.parametrize("name", ["many calls", "resnet", "gpt2", "dlrm", "mixtral-8x7b"])
def test_steps(kept: Kept, name: str) -> None:
    trace = many_calls() if name == "many calls" else example(name)
    gpus = (GPUS[1], GPUS[-1])
    timed = timed_work(trace, gpus, origin=None, models=kernel_models(tuple(one.name for one in gpus)))
    found: defaultdict[str, Array] = defaultdict(lambda: np.zeros((3, len(gpus))))
    for column, (item, family) in enumerate(zip(timed.items, timed.families, strict=True)):
        ends = (timed.interval.low, timed.interval.middle, timed.interval.high)
        word = trace.operations[item.operations[0]].name if name == "many calls" else family
        found[f"{word} {timed.phases[column]}"] += np.array([one[:, column] for one in ends])
    kept(f"step of {name}", {word: values.ravel().tolist() for word, values in found.items()})


@pytest.mark.parametrize("software", [{"torch": "1.13.1"}, {"torch": "2.7.0", "cuda": "12.6"}, {"torch": "2.0.1"}])
def test_releases(kept: Kept, software: dict[str, str]) -> None:
    gpus = GPUS[2:]
    trace = replace(example("gpt2"), software=software)
    timed = timed_work(trace, gpus, origin=None, models=kernel_models(tuple(one.name for one in gpus)))
    kept(f"release {software['torch']}", {"gpt2": timed.seconds.sum(axis=1).tolist()})


def test_fusion(kept: Kept) -> None:
    found = {}
    for name in ("resnet", "gpt2", "vit"):
        trace = fused(example(name))
        problems = [problem for item in work_items(trace) for problem in item.problems]
        moved = sum(float(batch_of([one]).bytes_moved[0]) for one in set(problems))
        found[name] = [len(trace.operations), len(problems), len(set(problems)), moved]
    kept("fused", found)


SIZES: Final = (11, 12, 6, 5, 3)
ARGUMENTS: Final[dict[str, object]] = {
    "num_weights": 30_011,
    "groups": 1,
    "stride": [2, 1],
    "padding": [1, 1],
    "dilation": [1, 1],
    "transposed": False,
    "output_padding": [0, 0],
    "dim": 1,
    "k": 2,
    "is_causal": True,
    "normalized_shape": [12],
    "kernel_size": [2, 3],
    "num_layers": 2,
    "hidden_size": 12,
}


def called(name: str) -> Iterator[tuple[str, Operation]]:
    """Yield calls of a name with tensors of all ranks: of several sizes, of one element and without any."""
    for word, sizes in (("several", SIZES), ("one", (1,) * 5), ("none", (0, *SIZES[1:]))):
        for rank in range(5):
            for count in range(1, 6):
                inputs = [TensorInfo(sizes[:rank], dtype) for dtype in ("float32", "float16")[: 1 + (count > 2)]]
                more = [TensorInfo(sizes[: max(rank - 1, 1)], "int64"), TensorInfo(sizes[:2], "float16")]
                tensors = (*inputs, *more, inputs[0])[:count]
                arguments = ARGUMENTS if count % 2 else {}
                yield (
                    word,
                    Operation(name=name, phase="backward", inputs=tensors, outputs=tensors[:1], arguments=arguments),
                )


def test_translators(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "0")  # an error is a note, and counts
    found: dict[str, object] = {}
    for name in sorted(operations._TRANSLATORS):
        counts: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        for word, operation in called(name):
            for problem in translate(operation, Flags(matmul_tf32=True)):
                counts[word][0] += 1
                counts[word][1] += sum(math.log1p(abs(one)) * (3 + place) for place, one in enumerate(problem.dims))
        found[name] = [one for word in counts for one in counts[word]]
    kept("translators", found)


def test_known_calls_cut_short(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "0")
    seen: dict[str, Operation] = {}
    for trace in (many_calls(), example("dlrm"), example("resnet"), example("lora")):
        for operation in trace.operations:
            seen.setdefault(operation.name, operation)
    found = {}
    for name, operation in sorted(seen.items()):
        ways = [operation, replace(operation, arguments={}), replace(operation, outputs=())]
        ways += [replace(operation, inputs=operation.inputs[:count]) for count in range(len(operation.inputs))]
        ways += [
            replace(operation, inputs=tuple(replace(one, shape=change(one.shape)) for one in operation.inputs))
            for change in (lambda shape: (1,) * len(shape), lambda shape: (0, *shape[1:]), lambda shape: shape[:-1])
        ]
        sums = [
            [math.log1p(abs(one)) * (3 + place) for place, one in enumerate(problem.dims)]
            for way in ways
            for problem in translate(way, Flags(matmul_tf32=False))
        ]
        found[name] = [len(sums), sum(map(sum, sums))]
    kept("known calls", found)


def test_collectives(kept: Kept) -> None:
    layouts = ("8xV100-SXM2-16GB", "4xT4", "2x8xA100-SXM-80GB", "32x8xH100-SXM-80GB", "2x4xL4", "18x4xGB200")
    sizes = np.array([1e3, 3e5, 7e7, 4e9])
    found = {}
    for name in layouts:
        layout = layout_of(name)
        for links in (CATALOGUE, Interconnect(inter_node_bytes_per_second=12.5e9)):
            for operation in COLLECTIVES:
                times = collective(operation, sizes, layout, interconnect=links)
                word = f"{operation} on {name}" + ("" if links is CATALOGUE else " by a slow network")
                found[word] = [*times.low, *times.middle, *times.high]
    kept("collectives", found)
