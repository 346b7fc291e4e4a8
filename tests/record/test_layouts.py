"""Channels last is recorded alike by the dispatch modes and by the profiler."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import lightning_predict as lp
from lightning_predict.kernels.corrections import transposed_matmuls
from lightning_predict.record.meta_device import with_cuda_strides
from lightning_predict.record.operand_strides import (
    CHANNELS_LAST,
    FIRST_TRANSPOSED,
    IMAGES_AT,
    SECOND_FACTOR_POSITION,
    SECOND_TRANSPOSED,
    is_channels_last,
    is_transposed,
)
from lightning_predict.record.profiler import ProfilerRecorder
from lightning_predict.record.trace import Operation
from tests.record.test_dispatch import operations_of


def step(device: str, layout: torch.memory_format) -> None:
    model: nn.Module = nn.Conv2d(3, 8, 3, device=device).to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.zeros(2, 3, 8, 8, device=device).to(memory_format=layout).requires_grad_()
    model(images).sum().backward()


def recorded(run: Callable[[str], None], recorder: str) -> Sequence[Operation]:
    """Record a step on the CPU or the meta device, or on the CPU by the profiler."""
    if recorder != "profiler":
        return operations_of(lambda: run(recorder))
    profiler = ProfilerRecorder(cuda=False)
    profiler.start()
    run("cpu")
    profiler.stop()
    return profiler.trace().operations


def convolutions(operations: Sequence[Operation]) -> dict[str, bool]:
    return {o.name: bool(o.arguments.get(CHANNELS_LAST)) for o in operations if o.name in IMAGES_AT}


@pytest.mark.parametrize("recorder", ["cpu", "meta", "profiler"])
@pytest.mark.parametrize(("layout", "is_last"), [(torch.contiguous_format, False), (torch.channels_last, True)])
def test_memory_format_of_convolutions_is_recorded(recorder: str, layout: torch.memory_format, is_last: bool) -> None:
    formats = convolutions(recorded(lambda device: step(device, layout), recorder))
    assert formats == {"aten::convolution": is_last, "aten::convolution_backward": is_last}


class Block(nn.Module):
    """What lies between two convolutions of a residual network, and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        data = functional.relu(self.norm(self.first(images)))
        data = data + self.pointwise(self.depthwise(data))
        result: torch.Tensor = self.up(functional.max_pool2d(data, 2))
        return result


@pytest.mark.parametrize("precision", [None, "16-mixed"])
@pytest.mark.parametrize(("layout", "is_last"), [(torch.contiguous_format, False), (torch.channels_last, True)])
def test_memory_format_reaches_every_convolution_on_meta(
    layout: torch.memory_format, is_last: bool, precision: str | None
) -> None:
    with torch.device("meta"):
        model: nn.Module = Block().to(memory_format=layout)  # type: ignore[call-overload]
        images = torch.empty(2, 4, 8, 8).to(memory_format=layout)
    trace = lp.capture(lambda: model(images).sum().backward(), precision=precision)
    formats = [bool(o.arguments.get(CHANNELS_LAST)) for o in trace.operations if o.name in IMAGES_AT]
    assert formats == [is_last] * 8  # four, forward and backward


@pytest.mark.parametrize("sizes", [(2, 4, 6, 6), (2, 4, 5, 6, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolution_on_meta_has_the_strides_of_cuda(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    layout = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    images = torch.empty(sizes, device="meta", dtype=dtype)
    weight = torch.empty(8, 4, *(3 for _ in sizes[2:]), device="meta", dtype=dtype).to(memory_format=layout)
    output = torch.empty(2, 8, *(size - 2 for size in sizes[2:]), device="meta", dtype=dtype)
    gradients = (torch.empty_like(images), torch.empty_like(weight), None)
    # Channels last where either lies so, and never in float64: `cudnn_conv_suggest_memory_format`.
    forward = with_cuda_strides("aten::convolution", (images, weight), output)
    backward = with_cuda_strides("aten::convolution_backward", (output, images, weight), gradients)
    for result in (forward, backward[0]):
        assert is_channels_last(result.shape, result.stride()) == (dtype is torch.float32)
    assert with_cuda_strides("aten::relu", (images,), output) is output


@given(st.lists(st.integers(2, 5), min_size=4, max_size=5))
def test_channels_last_agrees_with_torch(sizes: list[int]) -> None:
    layout = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    images = torch.zeros(sizes)
    assert not is_channels_last(images.shape, images.stride())
    last = images.to(memory_format=layout)
    assert is_channels_last(last.shape, last.stride())


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ((4, 4), (1, 4)),  # no image
        ((2, 3, 8, 8), ()),  # not recorded
        ((2, 1, 8, 8), (64, 1, 8, 1)),  # one channel or one pixel lies alike in both formats
        ((2, 8, 1, 1), (8, 1, 1, 1)),
    ],
)
def test_ambiguous_strides_are_not_channels_last(sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert not is_channels_last(sizes, strides)


def products(operations: Sequence[Operation], word: str = SECOND_TRANSPOSED) -> list[bool]:
    return [bool(o.arguments.get(word)) for o in operations if o.name in SECOND_FACTOR_POSITION]


def products_step(device: str) -> None:
    layer, data = nn.Linear(8, 4, device=device), torch.ones(2, 8, device=device)
    layer(data).square().sum().backward()
    keys = torch.ones(2, 5, 8, device=device)
    torch.bmm(keys, keys.transpose(1, 2))
    torch.mm(data, torch.ones(8, 4, device=device))


# The layer reads its weight transposed, its gradient reads (outputs)T x data, attention transposes its keys.
PRODUCTS_TRANSPOSED = [True, False, True, False]
FIRST_FACTORS_TRANSPOSED = [False, True, False, False]


@pytest.mark.parametrize("recorder", ["cpu", "meta", "profiler"])
def test_transposed_factors_are_recorded(recorder: str) -> None:
    operations = recorded(products_step, recorder)
    assert products(operations) == PRODUCTS_TRANSPOSED
    assert products(operations, FIRST_TRANSPOSED) == FIRST_FACTORS_TRANSPOSED
    if recorder == "profiler":  # which sees no results
        return
    # Followed through the views alone, as in traces that were recorded before, it is the same.
    before = [
        replace(o, arguments={k: v for k, v in o.arguments.items() if k != SECOND_TRANSPOSED}) for o in operations
    ]
    places = [index for index, o in enumerate(operations) if o.name in SECOND_FACTOR_POSITION]
    assert [index in transposed_matmuls(before) for index in places] == PRODUCTS_TRANSPOSED
    assert transposed_matmuls(operations) == transposed_matmuls(before)


@pytest.mark.parametrize(
    ("sizes", "strides", "expected"),
    [
        ((4, 8), (1, 4), True),
        ((2, 4, 8), (32, 1, 4), True),
        ((4, 8), (8, 1), False),
        ((4, 8), (), False),  # not recorded
        ((1, 8), (1, 1), False),  # one row: both orders are one
    ],
)
def test_column_major_matrices_are_transposed(sizes: tuple[int, ...], strides: tuple[int, ...], expected: bool) -> None:
    assert is_transposed(sizes, strides) is expected
