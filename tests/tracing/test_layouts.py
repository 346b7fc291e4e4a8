"""Channels last is recorded alike by the dispatch modes and by the profiler."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_predict.tracing.code_paths import CHANNELS_LAST, IMAGES_AT, is_channels_last
from lightning_predict.tracing.profiler import ProfilerRecorder
from lightning_predict.tracing.trace import Operation
from tests.tracing.test_dispatch import operations_of


def step(device: str, layout: torch.memory_format) -> None:
    model: nn.Module = nn.Conv2d(3, 8, 3, device=device).to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.zeros(2, 3, 8, 8, device=device).to(memory_format=layout).requires_grad_()
    model(images).sum().backward()


def convolutions(operations: list[Operation] | tuple[Operation, ...]) -> dict[str, bool]:
    return {o.name: bool(o.arguments.get(CHANNELS_LAST)) for o in operations if o.name in IMAGES_AT}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("layout", "is_last"), [(torch.contiguous_format, False), (torch.channels_last, True)])
def test_the_layout_of_a_convolution_is_recorded(device: str, layout: torch.memory_format, is_last: bool) -> None:
    found = convolutions(operations_of(lambda: step(device, layout)))
    assert found == {"aten::convolution": is_last, "aten::convolution_backward": is_last}


@pytest.mark.parametrize(("layout", "is_last"), [(torch.contiguous_format, False), (torch.channels_last, True)])
def test_the_profiler_records_it_as_well(layout: torch.memory_format, is_last: bool) -> None:
    recorder = ProfilerRecorder(cuda=False)
    recorder.start()
    step("cpu", layout)
    recorder.stop()
    found = convolutions(recorder.trace().operations)
    assert found == {"aten::convolution": is_last, "aten::convolution_backward": is_last}


@given(st.lists(st.integers(2, 5), min_size=4, max_size=5))
def test_torch_has_the_same_idea_of_it(sizes: list[int]) -> None:
    layout = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    images = torch.zeros(sizes)
    assert not is_channels_last(images.shape, images.stride())
    last = images.to(memory_format=layout)
    assert is_channels_last(last.shape, last.stride())


def test_what_is_no_image_has_no_layout() -> None:
    assert not is_channels_last((4, 4), (1, 4))
    assert not is_channels_last((2, 3, 8, 8), ())  # not recorded
    assert not is_channels_last((2, 1, 8, 8), (64, 1, 8, 1))  # one channel: both layouts are one
    assert not is_channels_last((2, 8, 1, 1), (8, 1, 1, 1))  # one pixel, likewise
