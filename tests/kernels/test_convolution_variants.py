"""Each variant against torch's own count of FLOPs, and against the translation of a recorded call."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import lightning_predict as lp
from lightning_predict.kernels.families.convolution import PASSES
from lightning_predict.kernels.operations import batch_shapes, operation_shape, surrogates_of
from lightning_predict.kernels.translation import translate
from lightning_predict.record.trace import Flags

SETTINGS: list[dict[str, int]] = [
    {},
    {"stride": 2, "padding": 1},
    {"padding": 2, "dilation": 2},
    {"stride": 2, "padding": 1, "groups": 4},
]
LAYERS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "conv1d": (torch.nn.Conv1d, (17,), (3,)),
    "conv3d": (torch.nn.Conv3d, (9, 20, 17), (3, 5, 2)),
    "conv_transpose2d": (torch.nn.ConvTranspose2d, (20, 17), (3, 5)),
}


def words_of(name: str, settings: dict[str, int]) -> dict[str, float]:
    _, sizes, kernel = LAYERS[name]
    words: dict[str, float] = {"batch": 2, "in_channels": 8, "out_channels": 12, **settings}
    if name == "conv1d":
        return words | {"length": sizes[0], "kernel_size": kernel[0]}
    sides = ("depth", "height", "width")[-len(sizes) :]
    words |= dict(zip(sides, sizes, strict=True))
    return words | {f"kernel_{side}": taps for side, taps in zip(sides, kernel, strict=True)}


def layer_and_data(name: str, settings: dict[str, int]) -> tuple[torch.nn.Module, torch.Tensor]:
    make, sizes, kernel = LAYERS[name]
    layer = make(8, 12, kernel, bias=False, device="meta", **settings)
    return layer, torch.empty(2, 8, *sizes, device="meta", requires_grad=True)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", list(LAYERS))
def test_it_has_the_flops_that_torch_counts_forward_and_backward(name: str, settings: dict[str, int]) -> None:
    layer, data = layer_and_data(name, settings)
    with FlopCounterMode(display=False) as counter:
        output = layer(data)
    forward, *backward = (
        float(batch_shapes([operation_shape(name + suffix, "float32", **words_of(name, settings))]).flops[0])
        for suffix in PASSES
    )
    assert forward == counter.get_total_flops()
    if settings.get("groups", 1) == 1:  # torch counts the backward pass of groups otherwise
        with FlopCounterMode(display=False) as counter:
            output.backward(torch.empty_like(output))
        assert sum(backward) == counter.get_total_flops()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", list(LAYERS))
def test_operation_seconds_equal_the_translated_call(name: str, settings: dict[str, int]) -> None:
    layer, data = layer_and_data(name, settings)
    trace = lp.capture(lambda: layer(data), warmup_steps=0)
    (operation,) = (call for call in trace.operations if call.name == "aten::convolution")
    own = operation_shape(name, "float32", **words_of(name, settings))
    parts = surrogates_of(own)  # a volume has a formula of its own
    expected = own if name == "conv3d" else parts[0].shape
    assert translate(operation, Flags(cudnn_tf32=False)) == (expected,)
    assert [part.times for part in parts] == ([] if name == "conv3d" else [1.0])


def test_transposed_passes_change_places_and_a_volume_is_read_once() -> None:
    words = words_of("conv_transpose2d", {})
    names = [
        surrogates_of(operation_shape(f"conv_transpose2d{suffix}", "float32", **words))[0].shape.operation
        for suffix in PASSES
    ]
    assert names == ["conv2d_backward_input", "conv2d", "conv2d_backward_weight"]
    item = operation_shape("conv3d", "float32", batch=2, in_channels=3, out_channels=5, image_size=8, kernel_size=3)
    # 2 x 3 x 8³ read, 5 x 3 x 27 filters, 2 x 5 x 6³ written.
    assert float(batch_shapes([item]).bytes_moved[0]) == 4 * (2 * 3 * 8**3 + 5 * 3 * 27 + 2 * 5 * 6**3)


def test_output_padding_makes_the_output_larger() -> None:
    words = {
        "batch": 1,
        "in_channels": 4,
        "out_channels": 4,
        "image_size": 7,
        "kernel_size": 3,
        "stride": 2,
        "padding": 1,
    }
    layer = torch.nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, bias=False, device="meta")
    image = layer(torch.empty(1, 4, 7, 7, device="meta"))
    (part,) = surrogates_of(operation_shape("conv_transpose2d", "float32", output_padding=1, **words))
    assert part.shape.dims[3:5] == tuple(image.shape[2:])


def seconds(dtype: str, gpu: str) -> float:
    """Time of one of VGG's convolutions, which float32's kernels do with fewer products (Winograd)."""
    duration = lp.operator_seconds(
        "conv2d",
        gpu,
        dtype=dtype,
        batch=12,
        in_channels=256,
        out_channels=256,
        kernel_size=3,
        image_size=56,
        padding=1,
        stride=1,
    )
    assert isinstance(duration, float)
    return duration


def test_precisions_that_a_gpu_lacks_run_at_the_rates_measured() -> None:
    # VGG-16 in half takes 0.91 of its time in single on a GTX 1080 Ti (torchvision, 2019).
    assert seconds("float16", "GTX-1080-Ti") <= seconds("float32", "GTX-1080-Ti") * 1.001
    # 2 x 12 x 56 x 56 x 256 x 256 x 9 FLOPs at the 5.38 TFLOP/s that people measured, half of float32's rate.
    assert seconds("bfloat16", "GTX-1080-Ti") >= 2 * 12 * 56**2 * 256**2 * 9 / 5.38e12 * 0.999
    # The K80 sustains 2.1 TFLOP/s, and cuDNN's kernels with fewer products begin with Maxwell.
    flops = 2 * 12 * 56**2 * 256**2 * 9
    assert seconds("float32", "K80") >= flops / 2.1e12 * 0.999
    assert seconds("float32", "M60") < flops / 3.2e12
