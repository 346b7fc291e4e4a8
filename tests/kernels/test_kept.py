"""Counts and times of every operation: a formula or a constant that changes moves some of it."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from lightning_predict.fusion.kernels import fused
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.kernels import operations
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect, collective_seconds
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import (
    COLLECTIVES,
    Array,
    OperationShape,
    OperationSpec,
    batch_shapes,
    operation_names,
    operation_spec,
)
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.kernels.translation import STRICT_VARIABLE, translate, work_items
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from tests.kept import Kept, example, many_calls, overall

GPUS: Final = tuple(map(gpu, ("V100-SXM2-16GB", "T4", "A100-SXM-80GB", "RTX 4090", "H100-SXM-80GB")))
DTYPES: Final = ("float32", "float16")
SHAPE_PARAMETERS: Final = (  # Odd sizes with everything that may be left out, and even ones without
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


def dims(kind: OperationSpec, sizes: dict[str, float]) -> Iterator[float]:
    """Yield the sizes of an operation, with its defaults."""
    values: dict[str, float] = {}
    for word in (*(name for name in kind.shape if name not in kind.defaults), *kind.defaults):
        default = kind.defaults.get(word)
        values[word] = sizes.get(word, values[default] if isinstance(default, str) else float(default or 0))
    yield from (values[word] for word in kind.shape)


SHAPES: Final = [
    OperationShape(name, dtype, tuple(dims(operation_spec(name), sizes)))
    for name in operation_names()
    for dtype in DTYPES
    for sizes in SHAPE_PARAMETERS
]


def test_seconds_by_networks(kept: Kept) -> None:
    """One number for each operation: the mean over GPUs, dtypes and shapes, which each of them moves."""
    shapes = [shape for shape in SHAPES if operation_spec(shape.operation).units != "fabric"]
    interval = predict_operation_times(shapes, GPUS, kernel_models(tuple(one.name for one in GPUS))).interval
    averages = means(shapes, interval.middle, lambda shape: shape.operation)
    tables = (interval.low, interval.high)
    kept("seconds by networks", averages | {"low and high ends": [overall(table.ravel()) for table in tables]})


def test_seconds_by_rooflines(kept: Kept) -> None:
    shapes = [shape for shape in SHAPES if operation_spec(shape.operation).units != "fabric"]
    seconds = predict_operation_times(shapes, GPUS, None).interval.middle
    kept("seconds by rooflines", means(shapes, seconds, lambda shape: operation_spec(shape.operation).units))


def means(
    shapes: Sequence[OperationShape], seconds: Array, group: Callable[[OperationShape], str]
) -> dict[str, object]:
    """Return the mean time of each group of shapes over GPUs; `seconds` has the axes (gpus, shapes)."""
    columns = defaultdict[str, list[int]](list)
    for column, shape in enumerate(shapes):
        columns[group(shape)].append(column)
    return {name: overall(seconds[:, own].ravel()) for name, own in columns.items()}


def test_steps(kept: Kept) -> None:
    """Families of whole steps, both GPUs together."""
    values = dict[str, object]()
    for name in ("resnet", "gpt2", "dlrm", "mixtral-8x7b"):
        gpus = (GPUS[1], GPUS[-1])
        timed = predict_work_times(
            example(name), gpus, origin=None, models=kernel_models(tuple(one.name for one in gpus))
        )
        spent: defaultdict[str, float] = defaultdict(float)
        for column, family in enumerate(timed.families):
            spent[family] += float(timed.seconds[:, column].sum())
        largest = sorted(spent, key=lambda family: -spent[family])[:4]
        values |= {f"{name}: {family}": spent[family] for family in largest}
    kept("steps", values)


@pytest.mark.parametrize("software", [{"torch": "1.13.1"}, {"torch": "2.7.0", "cuda": "12.6"}, {"torch": "2.0.1"}])
def test_releases(kept: Kept, software: dict[str, str]) -> None:
    gpus = GPUS[2:]
    trace = replace(example("gpt2"), software=software)
    timed = predict_work_times(trace, gpus, origin=None, models=kernel_models(tuple(one.name for one in gpus)))
    kept(f"release {software['torch']}", {"gpt2": timed.seconds.sum(axis=1).tolist()})


def test_fusion(kept: Kept) -> None:
    values = {}
    for name in ("resnet", "gpt2", "vit"):
        trace = fused(example(name))
        shapes = [shape for item in work_items(trace) for shape in item.shapes]
        moved = sum(float(batch_shapes([shape]).bytes_moved[0]) for shape in set(shapes))
        values[name] = [len(trace.operations), len(shapes), moved]
    kept("fused", values)


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


def weight(shapes: Iterable[OperationShape]) -> float:
    """Add up the logarithms of all sizes, each place with a weight of its own."""
    return sum(math.log1p(abs(size)) * (3 + place) for shape in shapes for place, size in enumerate(shape.dims))


def test_translators(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes of all calls, grouped by the module of their translators."""
    monkeypatch.setenv(STRICT_VARIABLE, "0")  # an error is a note, and counts
    shapes = defaultdict[str, list[OperationShape]](list)
    for name, translator in sorted(operations._TRANSLATORS.items()):
        module = getattr(translator, "func", translator).__module__.rpartition(".")[2]
        for _, operation in called(name):
            shapes[module] += translate(operation, Flags(matmul_tf32=True))
    kept("translators", {module: [len(translated), weight(translated)] for module, translated in shapes.items()})


def test_known_calls_cut_short(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "0")
    values = dict[str, list[float]]()
    for trace in (many_calls(), example("dlrm"), example("resnet"), example("lora")):
        shapes = list[OperationShape]()
        for operation in {call.name: call for call in trace.operations}.values():
            ways = [operation, replace(operation, arguments={}), replace(operation, outputs=())]
            ways += [replace(operation, inputs=operation.inputs[:count]) for count in range(len(operation.inputs))]
            ways += [
                replace(operation, inputs=tuple(replace(one, shape=change(one.shape)) for one in operation.inputs))
                for change in (lambda shape: (1,) * len(shape), lambda shape: (0, *shape[1:]), lambda shape: shape[:-1])
            ]
            shapes += [shape for way in ways for shape in translate(way, Flags(matmul_tf32=False))]
        values[str(len(values))] = [len(shapes), weight(shapes)]
    kept("calls cut short", values)


def test_collectives(kept: Kept) -> None:
    layouts = ("8xV100", "4xT4", "32x8xH100", "18x4xGB200")
    sizes = np.array([1e3, 3e5, 7e7, 4e9])
    values = {}
    for layout in map(layout_of, layouts):
        for word, links in (("", CATALOGUE), (" by a slow network", Interconnect(inter_node_bytes_per_second=12.5e9))):
            times = [collective_seconds(operation, sizes, layout, interconnect=links) for operation in COLLECTIVES]
            middle = [estimate.middle for estimate in times]
            values[f"{layout.name}{word}"] = [
                overall(np.concatenate([estimate.low for estimate in times])),
                *map(overall, zip(*middle, strict=True)),
            ]
    kept("collectives", values)
