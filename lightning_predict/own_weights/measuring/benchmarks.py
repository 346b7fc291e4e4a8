"""Micro-benchmarks of operations: shapes, and the torch calls to time.

Shapes are those of named models (`shapes.csv.gz`); sizes of an operation of no such model are drawn log-uniformly. The
calls are the forward pass, and each part of the backward pass under its own name. All tensors are created before a
call, so only the operation is timed. To add an operation, add a row to `BENCHMARKS`. Example::

    >>> shapes = draw_shapes("linear", 3, seed=0)
    >>> len(shapes), sorted(shapes[0])
    (3, ['k', 'm', 'n'])
    >>> calls = BENCHMARKS["relu"].calls({"rows": 4, "cols": 8}, torch.float32, torch.device("cpu"))
    >>> sorted(calls)
    ['relu', 'relu_backward']
"""

from __future__ import annotations

import csv
import gzip
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_predict.base.errors import UnknownOperationError
from lightning_predict.kernels.operations import operation_names

Words = dict[str, int]
Drawer = Callable[[random.Random], Words]

EAGER: Final = "eager"  # Value in the column `timed` for a call that was timed without a CUDA graph

GRAPHS: Final = "graphs"
"""Value in the column `timed` for a call that was timed with CUDA graphs, whose replay is no part of its time."""

MULTIPLE_SHARE: Final = 0.83  # Share of sizes rounded to a multiple of 8; in total, 85 % of the sizes are multiples


def size(draw: random.Random, low: int, high: int) -> int:
    """Return a log-uniform size between two bounds."""
    value = round(low * math.exp(math.log(high / low) * draw.random()))
    if value >= 8 and draw.random() < MULTIPLE_SHARE:
        value = round(value / 8) * 8
    return min(max(value, low), high)


Sizes = tuple[int, int] | list[int]  # Lowest and highest size, or the values to choose from


def drawer(**words: Sizes) -> Drawer:
    """Return a function that draws each word of a shape, in this order."""

    def draw_words(draw: random.Random) -> Words:
        return {
            word: draw.choice(sizes) if isinstance(sizes, list) else size(draw, *sizes) for word, sizes in words.items()
        }

    return draw_words


TimedCall = Callable[[], object]
Calls = dict[str, TimedCall]
Maker = Callable[[Words, torch.dtype, torch.device], Calls]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Micro-benchmark: draws a random shape, and makes the calls to time, by name of the timed operation."""

    draw: Drawer
    calls: Maker


def made(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Return a tensor of random numbers."""
    return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)


def forward_and_backward(operation: str, forward: Callable[[], object], inputs: list[Tensor]) -> Calls:
    """Return the forward call without autograd and, if the backward operation has a name, the backward call."""

    def without_records() -> object:
        with torch.no_grad():
            return forward()

    calls: Calls = {operation: without_records}
    if f"{operation}_backward" in operation_names():
        output = forward()
        assert isinstance(output, Tensor)
        gradient = torch.randn_like(output)  # random, because constant gradients draw less power and run faster
        calls[f"{operation}_backward"] = lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)
    return calls


# --- Layers: matmuls, attention, recurrent layers, embedding bags


def _linear(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    data = made(device, dtype, words["m"], words["k"]).requires_grad_()
    weight = made(device, dtype, words["n"], words["k"]).requires_grad_()
    return forward_and_backward("linear", lambda: functional.linear(data, weight), [data, weight])


def _bmm(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    left = made(device, dtype, words["b"], words["m"], words["k"]).requires_grad_()
    right = made(device, dtype, words["b"], words["k"], words["n"]).requires_grad_()
    return forward_and_backward("bmm", lambda: torch.bmm(left, right), [left, right])


def _attention(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    query, key, value = _heads(words, dtype, device)
    causal, grouped = bool(words["causal"]), words["heads"] != words["kv_heads"]

    def forward() -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

    return forward_and_backward("attention", forward, [query, key, value])


def _heads(words: Words, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    counts = (words["heads"], words["kv_heads"], words["kv_heads"])
    return [
        made(device, dtype, words["batch"], heads, words["seq"], words["head_dim"]).requires_grad_() for heads in counts
    ]


def _eager_attention(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    """Return the calls of unfused attention: scores, scaling, additive mask, softmax, and matmul with the values."""
    query, key, value = _heads(words, dtype, device)
    future = torch.triu(torch.full((words["seq"], words["seq"]), float("-inf"), device=device, dtype=dtype), 1)

    def forward() -> Tensor:
        scores = (query @ key.transpose(-1, -2)) * words["head_dim"] ** -0.5
        return torch.softmax(scores + future if words["causal"] else scores, -1) @ value

    return forward_and_backward("eager_attention", forward, [query, key, value])


def _recurrent(name: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    kinds: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
    layer = kinds[name](
        words["input_size"], words["hidden"], words["layers"], bidirectional=words["directions"] == 2
    ).to(device, dtype)
    data = made(device, dtype, words["steps"], words["batch"], words["input_size"]).requires_grad_()
    return forward_and_backward(name, lambda: layer(data)[0], [data, *layer.parameters()])


def _embedding_bag(words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    """Return only the forward call. torch has no backward call that updates rows in place."""
    table = made(device, dtype, words["rows"], words["dim"])
    rows = torch.randint(words["rows"], (words["bags"], words["lookups"]), device=device)
    return {"embedding_bag": lambda: functional.embedding_bag(rows, table, mode="sum")}


_RECURRENT: Final = drawer(
    batch=(1, 256), steps=(1, 256), input_size=(16, 2048), hidden=(16, 2048), layers=[1, 1, 2, 4], directions=[1, 1, 2]
)

_TOKENS: Final[dict[str, Sizes]] = {"seq": (64, 1024), "head_dim": [32, 64, 128], "causal": [0, 1]}

LAYERS: Final[Mapping[str, Benchmark]] = {
    "linear": Benchmark(drawer(m=(1, 16384), n=(16, 16384), k=(16, 16384)), _linear),
    "bmm": Benchmark(drawer(b=(1, 512), m=(16, 2048), n=(16, 2048), k=(16, 2048)), _bmm),
    "attention": Benchmark(drawer(batch=(1, 64), heads=[8, 16, 32], kv_heads=[4, 8], **_TOKENS), _attention),
    "eager_attention": Benchmark(drawer(batch=(1, 64), heads=[8], kv_heads=[8], **_TOKENS), _eager_attention),
    **{name: Benchmark(_RECURRENT, partial(_recurrent, name)) for name in ("lstm", "gru", "rnn")},
    "embedding_bag": Benchmark(
        drawer(bags=(64, 16384), lookups=(1, 128), rows=(1024, 4 * 2**20), dim=[16, 32, 64, 128, 256]), _embedding_bag
    ),
}


# --- Images: convolutions in one to three dimensions and transposed, and pooling

SIDES: Final[Mapping[str, tuple[str, ...]]] = {  # Names of the spatial dimensions of the input, by convolution
    "conv1d": ("length",),
    "conv2d": ("height", "width"),
    "conv3d": ("depth", "height", "width"),
    "conv_transpose2d": ("height", "width"),
}

LONGEST: Final = {"conv1d": 16384, "conv2d": 224, "conv3d": 48, "conv_transpose2d": 112}
"""Maximum size of a spatial dimension, by convolution."""

ODD_SHARE: Final = 0.1  # Share of convolutions that are not square; also the share of convolutions that are dilated
PICTURE_SHARE: Final = 0.05  # Share of convolutions whose input has three channels
CHANNELS_LAST_SHARE: Final = 0.6  # Share of convolutions with channels-last inputs, which most 16-bit training uses

_FORMATS: Final = {  # torch's channels-last memory format by operation; conv1d has no such format
    "conv2d": torch.channels_last,
    "conv_transpose2d": torch.channels_last,
    "conv3d": torch.channels_last_3d,
}


def _word(operation: str, setting: str, side: str) -> str:
    """Return the name of the shape parameter for a setting of one dimension; names of conv1d lack the dimension."""
    if operation == "conv1d":
        return "kernel_size" if setting == "kernel" else setting
    return f"{setting}_{side}"


def _draw_convolution(operation: str, draw: random.Random) -> Words:
    sides = SIDES[operation]
    kernel = draw.choice([1, 1, 3, 3, 3, 5, 7])
    is_square, dilation = draw.random() >= ODD_SHARE, 2 if draw.random() < ODD_SHARE else 1
    stride = draw.choice([1, 1, 1, 2])
    least = max(7, dilation * (kernel - 1) + 1)
    image = size(draw, least, LONGEST[operation])
    is_depthwise = draw.random() < 0.15
    channels = 3 if draw.random() < PICTURE_SHARE else size(draw, 8, 1024 // len(sides))
    words = {
        "batch": size(draw, 1, 256 // len(sides)),
        "in_channels": channels,
        "out_channels": channels if is_depthwise else size(draw, 8, 1024 // len(sides)),
        "groups": channels if is_depthwise else 1,
    }
    if operation in _FORMATS:
        words["channels_last"] = int(draw.random() < CHANNELS_LAST_SHARE)
    for side in sides:
        taps = kernel if is_square or side == sides[-1] else 1
        words |= {
            side: image if is_square else size(draw, least, LONGEST[operation]),
            _word(operation, "kernel", side): taps,
            _word(operation, "stride", side): stride,
            _word(operation, "padding", side): dilation * (taps // 2),
            _word(operation, "dilation", side): dilation,
        }
    return words


def _convolution(operation: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    sides, groups = SIDES[operation], words["groups"]
    taps, stride, padding, dilation = (
        [words.get(_word(operation, setting, side), default) for side in sides]
        for setting, default in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    )
    is_transposed = operation == "conv_transpose2d"
    channels = (words["in_channels"], words["out_channels"] // groups)
    channels = channels if is_transposed else (words["out_channels"], words["in_channels"] // groups)
    data = made(device, dtype, words["batch"], words["in_channels"], *(words[side] for side in sides))
    weight = made(device, dtype, *channels, *taps)
    if words.get("channels_last"):
        data, weight = (tensor.to(memory_format=_FORMATS[operation]) for tensor in (data, weight))
    settings = (stride, padding, dilation, is_transposed, [0] * len(sides), groups)

    def forward() -> Tensor:
        output: Tensor = torch.ops.aten.convolution(data, weight, None, *settings)
        return output

    gradient = torch.randn_like(forward())  # in the memory format of the output

    def backward(mask: list[bool]) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(gradient, data, weight, None, *settings, mask)

    return {
        operation: forward,
        f"{operation}_backward_input": backward([True, False, False]),
        f"{operation}_backward_weight": backward([False, True, False]),
    }


def _draw_pooling(draw: random.Random) -> Words:
    kernel = draw.choice([2, 2, 3, 7])
    image = size(draw, 14, 224)
    return {
        "batch": size(draw, 1, 256),
        "channels": size(draw, 8, 512),
        "height": image,
        "width": image,
        "kernel_size": kernel,
        "stride": draw.choice([2, kernel]),
    }


def _pooling(name: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    pools: dict[str, Callable[..., Tensor]] = {"avg_pool2d": functional.avg_pool2d, "max_pool2d": functional.max_pool2d}
    data = made(device, dtype, words["batch"], words["channels"], words["height"], words["width"]).requires_grad_()
    return forward_and_backward(name, lambda: pools[name](data, words["kernel_size"], words["stride"]), [data])


IMAGES: Final[Mapping[str, Benchmark]] = {
    **{name: Benchmark(partial(_draw_convolution, name), partial(_convolution, name)) for name in SIDES},
    **{name: Benchmark(_draw_pooling, partial(_pooling, name)) for name in ("avg_pool2d", "max_pool2d")},
}


# --- Matrices of rows and columns: element-wise operations, norms, reductions, lookups, sorting

LARGEST_K: Final = 8  # Number of elements per row that `topk` returns


@dataclass(frozen=True, slots=True)
class Matrices:
    """Operands of the benchmarks, of shape (rows, cols) unless stated otherwise."""

    data: Tensor  # Random numbers; requires a gradient
    other: Tensor  # Numbers above 1; requires a gradient
    scale: Tensor  # One number per column, shape (cols,); requires a gradient
    places: Tensor  # Random row index for each row, shape (rows,)
    space: Tensor

    @property
    def images(self) -> Tensor:
        """`data` as one image, with the rows as channels."""
        return self.data[None]

    @property
    def images_last(self) -> Tensor:
        """`data` as one channels-last image, with the columns as channels."""
        return self.data.view(1, -1, 1, self.data.shape[1]).permute(0, 3, 1, 2)

    @property
    def groups(self) -> int:
        """Number of channel groups."""
        return 8 if self.data.shape[0] % 8 == 0 else 1


Forward = Callable[[Matrices], Tensor]

BY_DATA: Final[Mapping[str, Forward]] = {
    "add": lambda x: x.data + x.other,
    "add_scalar": lambda x: x.data + 1.5,
    "sub": lambda x: x.data - x.other,
    "mul": lambda x: x.data * x.other,
    "mul_scalar": lambda x: x.data * 1.5,
    "div": lambda x: x.data / x.other,
    "div_scalar": lambda x: x.data / 1.5,
    "pow_scalar": lambda x: torch.pow(x.data, 2.0),
    "neg": lambda x: -x.data,
    "exp": lambda x: torch.exp(x.data),
    "relu": lambda x: torch.relu(x.data),
    "leaky_relu": lambda x: functional.leaky_relu(x.data),
    "gelu": lambda x: functional.gelu(x.data),
    "silu": lambda x: functional.silu(x.data),
    "sigmoid": lambda x: torch.sigmoid(x.data),
    "tanh": lambda x: torch.tanh(x.data),
    "where": lambda x: torch.where(x.data.detach() > 0, x.data, x.other),
    "softmax": lambda x: torch.softmax(x.data, -1),
    "log_softmax": lambda x: torch.log_softmax(x.data, -1),
    "batch_norm": lambda x: functional.batch_norm(x.images, None, None, training=True),
    "batch_norm_last": lambda x: functional.batch_norm(x.images_last, None, None, training=True),
    "group_norm": lambda x: functional.group_norm(x.images, x.groups),
    "dropout": lambda x: functional.dropout(x.data, 0.1),
    "embedding": lambda x: functional.embedding(x.places, x.data),
    "cross_entropy": lambda x: functional.cross_entropy(x.data, x.places % x.data.shape[1]),
    "sum": lambda x: x.data.sum(-1),
    "mean": lambda x: x.data.mean(-1),
    "max": lambda x: torch.amax(x.data, -1),
    "argmax": lambda x: torch.argmax(x.data, -1),
    "topk": lambda x: torch.topk(x.data, min(LARGEST_K, x.data.shape[1])).values,
    "sort": lambda x: torch.sort(x.data).values,
    "concat": lambda x: torch.cat(x.data.tensor_split(2)),
    "copy": lambda x: x.space.copy_(x.data),
    "gather": lambda x: torch.index_select(x.data, 0, x.places),
    "scatter": lambda x: x.space.index_add_(0, x.places, x.data),
}
"""Operations with a gradient only for `data`, or without a named backward operation."""

BY_OTHER: Final[Mapping[str, Forward]] = {  # Operations on positive numbers, with a gradient for `other`
    "pow": lambda x: torch.pow(x.other, x.other),
    "log": lambda x: torch.log(x.other),
    "sqrt": lambda x: torch.sqrt(x.other),
}

BY_SCALE: Final[Mapping[str, Forward]] = {  # Operations with a gradient for `data` and `scale`
    "layer_norm": lambda x: functional.layer_norm(x.data, (x.data.shape[1],), x.scale, x.scale),
    "rms_norm": lambda x: functional.rms_norm(x.data, (x.data.shape[1],), x.scale),
}


def _matrices(words: Words, dtype: torch.dtype, device: torch.device) -> Matrices:
    rows, cols = words["rows"], words["cols"]
    return Matrices(
        data=made(device, dtype, rows, cols).requires_grad_(),
        other=(made(device, dtype, rows, cols).abs() + 1).requires_grad_(),
        scale=made(device, dtype, cols).requires_grad_(),
        places=torch.randint(rows, (rows,), device=device),
        space=made(device, dtype, rows, cols),
    )


def _calls(
    name: str, forward: Forward, wanted: tuple[str, ...], words: Words, dtype: torch.dtype, device: torch.device
) -> Calls:
    """Return the calls of one operation."""
    matrices = _matrices(words, dtype, device)
    return forward_and_backward(name, lambda: forward(matrices), [getattr(matrices, operand) for operand in wanted])


MATRICES: Final[Mapping[str, Benchmark]] = {
    name: Benchmark(drawer(rows=(1, 65536), cols=(16, 16384)), partial(_calls, name, forward, wanted))
    for table, wanted in ((BY_DATA, ("data",)), (BY_OTHER, ("other",)), (BY_SCALE, ("data", "scale")))
    for name, forward in table.items()
}


# --- Operations around a model: optimizer updates, casts, copies from host memory

TENSORS: Final = 24  # Maximum number of parameter tensors of an optimizer step
BY_BYTES: Final = {2: torch.float16, 4: torch.float32, 8: torch.float64}  # Floating-point dtype by bytes per number


def _optimizer(name: str, parameters: list[Tensor], *, fused: bool, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimizer, in its fused or foreach implementation."""
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": partial(torch.optim.SGD, momentum=0.9),
        "adagrad": torch.optim.Adagrad,
    }
    make = makers[name]
    if name in ("adam", "adamw"):  # in a CUDA graph, the host must not read the step count
        make = partial(make, capturable=device.type == "cuda")
    return make(parameters, lr=1e-4, fused=True) if fused else make(parameters, lr=1e-4, foreach=True)


def _update(name: str, words: Words, dtype: torch.dtype, device: torch.device) -> Calls:
    each, rest = divmod(words["parameters"], TENSORS)
    counts = [each + (index < rest) for index in range(TENSORS)]
    parameters = [made(device, dtype, count).requires_grad_() for count in counts if count]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = _optimizer(name, parameters, fused=bool(words["fused"]), device=device)

    def step() -> object:
        optimizer.step()
        return optimizer

    return {name: step}


def _draw_cast(draw: random.Random) -> Words:
    source, target = draw.choice([(4, 2), (2, 4), (8, 4), (4, 8)])
    return {"rows": size(draw, 1, 65536), "cols": size(draw, 16, 16384), "source_bytes": source, "target_bytes": target}


def _cast(words: Words, _dtype: torch.dtype, device: torch.device) -> Calls:
    data = made(device, BY_BYTES[words["source_bytes"]], words["rows"], words["cols"])
    return {"cast": lambda: data.to(BY_BYTES[words["target_bytes"]])}


def _host_copy(words: Words, _dtype: torch.dtype, device: torch.device) -> Calls:
    """Return the call of an asynchronous copy from pinned host memory, as in a data loader."""
    source = torch.empty(words["size_bytes"], dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(words["size_bytes"], dtype=torch.uint8, device=device)
    return {"host_copy": lambda: target.copy_(source, non_blocking=True)}


UPDATES: Final[Mapping[str, Benchmark]] = {
    **{
        name: Benchmark(drawer(parameters=(1024, 2**28), fused=[0, 1]), partial(_update, name))
        for name in ("adam", "adamw", "sgd", "adagrad")
    },
    "cast": Benchmark(_draw_cast, _cast),
    "host_copy": Benchmark(drawer(size_bytes=(1024, 2**30)), _host_copy),
}


# --- All benchmarks

BENCHMARKS: Final[Mapping[str, Benchmark]] = {**LAYERS, **IMAGES, **MATRICES, **UPDATES}
"""Micro-benchmarks by operation, each including the backward pass of the operation."""


def benchmark_of(operation: str) -> Benchmark:
    """Return the benchmark of an operation."""
    benchmark = BENCHMARKS.get(operation)
    if benchmark is None:
        raise UnknownOperationError(f"No benchmark for {operation!r}; there are: {', '.join(sorted(BENCHMARKS))}.")
    return benchmark


BATCHES: Final = (0.25, 0.5, 2.0, 4.0)
"""Factors on the first size of a network's shape, its batch size, once each of these shapes was drawn."""


@cache
def network_shapes() -> Mapping[str, tuple[Words, ...]]:
    """Return shapes of operations in training steps of 140 named models, the longest calls most often.

    `benchmarks/training/network_shapes.py` collects them. The first size of a shape is that of the batch.
    """
    shapes: dict[str, list[Words]] = {}
    with gzip.open(Path(__file__).with_name("shapes.csv.gz"), "rt", encoding="utf-8") as file:
        for operation, *words in csv.reader(file):
            pairs = (word.partition("=") for word in words)
            shapes.setdefault(operation, []).append({name: int(value) for name, _, value in pairs})
    return {operation: tuple(own) for operation, own in shapes.items()}


def known_shapes(operation: str) -> tuple[Words, ...]:
    """Return an operation's shapes in networks; of one on matrices that networks lack, those of the others."""
    known = network_shapes()
    if operation in known or operation not in MATRICES:
        return known.get(operation, ())
    return tuple(shape for other in sorted(known.keys() & MATRICES.keys()) for shape in known[other])


def draw_shapes(operation: str, count: int, *, seed: int) -> list[Words]:
    """Return `count` shapes of an operation, which depend only on the seed.

    They are the shapes of networks, then the same with other batch sizes; random ones if networks have none.
    """
    benchmark = benchmark_of(operation)
    draw, known = random.Random(f"{operation} {seed}"), known_shapes(operation)
    shapes: list[Words] = []
    while len(shapes) < count and known:
        is_first = not shapes
        for words in draw.sample(known, len(known)):
            first, size = next(iter(words.items()))
            shapes.append({**words, first: size if is_first else max(round(draw.choice(BATCHES) * size), 1)})
    return shapes[:count] if known else [benchmark.draw(draw) for _ in range(count)]
