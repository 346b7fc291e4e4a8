"""Benchmarks of convolutions, in one to three dimensions and transposed, and of pooling.

Example::

    >>> import random
    >>> IMAGES["conv1d"].draw(random.Random(0))["groups"] >= 1
    True
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from lightning_predict.measuring.problems import Benchmark, Calls, Words, both, made, size

SIDES: Final[Mapping[str, tuple[str, ...]]] = {
    "conv1d": ("length",),
    "conv2d": ("height", "width"),
    "conv3d": ("depth", "height", "width"),
    "conv_transpose2d": ("height", "width"),
}
"""Sides of what each convolution slides over."""

LONGEST: Final = {"conv1d": 16384, "conv2d": 224, "conv3d": 48, "conv_transpose2d": 112}
"""Longest side that is drawn."""

ODD_SHARE: Final = 0.1
"""Share of convolutions that are not square, and of those that are dilated."""


def _word(operation: str, setting: str, side: str) -> str:
    """Shape word of a side's setting; a line has one side, so its words do not name it."""
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
    channels = size(draw, 3, 1024 // len(sides))
    words = {
        "batch": size(draw, 1, 256 // len(sides)),
        "in_channels": channels,
        "out_channels": channels if is_depthwise else size(draw, 8, 1024 // len(sides)),
        "groups": channels if is_depthwise else 1,
    }
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
    settings = (stride, padding, dilation, is_transposed, [0] * len(sides), groups)

    def forward() -> Tensor:
        output: Tensor = torch.ops.aten.convolution(data, weight, None, *settings)
        return output

    gradient = torch.ones_like(forward())

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
    pools: dict[str, Callable[..., Tensor]] = {
        "avg_pool2d": functional.avg_pool2d,
        "max_pool2d": functional.max_pool2d,
    }
    data = made(device, dtype, words["batch"], words["channels"], words["height"], words["width"]).requires_grad_()
    return both(name, lambda: pools[name](data, words["kernel_size"], words["stride"]), [data])


IMAGES: Final[Mapping[str, Benchmark]] = {
    **{name: Benchmark(partial(_draw_convolution, name), partial(_convolution, name)) for name in SIDES},
    **{name: Benchmark(_draw_pooling, partial(_pooling, name)) for name in ("avg_pool2d", "max_pool2d")},
}
"""Benchmarks by operation."""
