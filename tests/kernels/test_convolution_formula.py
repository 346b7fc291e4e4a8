"""Convolutions that no network knows: rules for every GPU, and the kernels of a real step."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.kernels.families.convolution import PLACING_CYCLES
from lightning_predict.kernels.models import BundledModels, kernel_models
from lightning_predict.kernels.operations import (
    Array,
    Formula,
    OperationShape,
    batch_shapes,
    operation_shape,
    operation_spec,
)
from lightning_predict.kernels.roofline import SINGLE_LOAD_CYCLES, limited_transfer
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.kernels.translation import translate
from lightning_predict.record.trace import Flags, Operation, TensorInfo

GPUS = [gpu(name) for name in gpu_names()]
PASSES = ("conv2d", "conv2d_backward_input", "conv2d_backward_weight")
DTYPES = ("tf32", "float16", "bfloat16", "float32")


@pytest.fixture(scope="module")
def models() -> BundledModels:
    return kernel_models(())


def by_formula(*shapes: OperationShape) -> Array:
    """Seconds of shapes of one operation and dtype, shape (gpus, shapes)."""
    formula, *_ = operation_spec(shapes[0].operation).of(Formula)
    return formula.seconds(batch_shapes(shapes), GPUS).middle


@st.composite
def convolutions(draw: st.DrawFn) -> OperationShape:
    """Plain, grouped and depthwise ones with filters that fit their images."""
    width = draw(st.sampled_from([3, 8, 24, 64, 96, 256]))
    groups = draw(st.sampled_from([1, 1, width, *(each for each in (4, 8, 32) if width % each == 0)]))
    size = draw(st.sampled_from([7, 14, 29, 56, 112]))
    taps = draw(st.sampled_from([1, 3, 5, 7]))
    return operation_shape(
        draw(st.sampled_from(PASSES)),
        draw(st.sampled_from(DTYPES)),
        batch=draw(st.sampled_from([1, 3, 16, 100])),
        in_channels=width,
        out_channels=width * draw(st.sampled_from([1, 2])),
        image_size=size,
        kernel_size=taps,
        stride=draw(st.sampled_from([1, 2])),
        padding=taps // 2,
        groups=groups,
        channels_last=draw(st.sampled_from([0, 1])),
    )


def changed(item: OperationShape, **words: float) -> OperationShape:
    return operation_shape(item.operation, item.dtype, **(item.parameters | words))


@settings(max_examples=25, deadline=None)
@given(convolutions())
def test_nothing_beats_its_flops_and_its_bytes(item: OperationShape) -> None:
    batch = batch_shapes([item])
    seconds = by_formula(item)[:, 0]
    flops, moved = float(batch.flops[0]), float(batch.bytes_moved[0])
    # Boards above their boost clock beat the peak that is stated at it.
    peaks = ((one.peak(item.dtype) or 0.0, one.peak_flops_per_second["float32"]) for one in GPUS)
    fastest = np.array([max(both) * one.overclock for both, one in zip(peaks, GPUS, strict=True)])
    bandwidth = np.array([max(one.dram_bytes_per_second, one.l2_bytes_per_second) for one in GPUS])
    assert (seconds >= flops / fastest).all()
    assert (seconds >= moved / bandwidth).all()


@settings(max_examples=25, deadline=None)
@given(convolutions())
def test_twice_the_batch_never_takes_less(item: OperationShape) -> None:
    once, twice = by_formula(item, changed(item, batch=2 * item.parameters["batch"])).T
    assert (twice >= once * (1 - 1e-6)).all()


@pytest.mark.parametrize("dtype", ["float32", "tf32"])
@pytest.mark.parametrize("operation", PASSES)
def test_depthwise_filters_of_four_bytes_wait_for_each_tap_with_channels_last(operation: str, dtype: str) -> None:
    words = {"batch": 64, "in_channels": 192, "out_channels": 192, "image_size": 56, "kernel_size": 7, "padding": 3}
    item = operation_shape(operation, dtype, **words, groups=192, channels_last=1)
    seconds = by_formula(item)[[one.name for one in GPUS].index("L40S"), 0]
    # 142 multiprocessors hold 1,536 threads each; every one takes 1.05 µs for one tap of one output.
    assert seconds == pytest.approx(64 * 192 * 56 * 56 * 49 * 1.05e-6 / (142 * 1536), rel=1e-3)
    half = by_formula(replace(item, dtype="float16"))[[one.name for one in GPUS].index("L40S"), 0]
    assert half < seconds / 10  # cuDNN has kernels for these


def test_small_squares_of_four_bytes_take_as_long_as_their_traffic() -> None:
    """KernelBench's module 82 on the H100-PCIe: 1.4 ms compiled, with the copies of its images."""
    where = [one.name for one in GPUS].index("H100-PCIe-80GB")
    words = {"batch": 16, "in_channels": 64, "out_channels": 64, "image_size": 512, "groups": 64, "channels_last": 1}
    square = by_formula(operation_shape("conv2d", "tf32", kernel_size=3, **words))[where, 0]
    assert square == pytest.approx(1.4e-3, rel=0.25)


@settings(max_examples=25, deadline=None)
@given(convolutions())
def test_channels_last_is_never_slower_without_groups(item: OperationShape) -> None:
    assume(item.parameters["groups"] == 1 and item.parameters["in_channels"] != 3)  # odd channels are padded
    first, last = by_formula(changed(item, channels_last=0), changed(item, channels_last=1)).T
    assert (last <= first).all()


def grouped(operation: str, width: int, *, channels_last: int) -> OperationShape:
    channels = 16 * width
    shape = {"batch": 64, "in_channels": channels, "out_channels": channels, "image_size": 28}
    shape |= {"kernel_size": 3, "padding": 1, "groups": 16}
    return operation_shape(operation, "float16", channels_last=channels_last, **shape)


@pytest.mark.parametrize("width", [24, 56, 64, 128])
def test_gradients_in_groups_are_several_times_slower_channels_last(width: int) -> None:
    """RegNets and NFNets train at 0.3 to 0.7 of their speed channels last (RTX 3090, torch 1.12)."""
    for half in ("conv2d_backward_input", "conv2d_backward_weight"):
        first, last = (
            by_formula(grouped(half, width, channels_last=each))[GPUS.index(gpu("RTX-3090"))] for each in (0, 1)
        )
        assert last > 2 * first


def test_groups_without_kernels_are_copied_and_float64_has_its_own_rate() -> None:
    # Our own H200 takes 368 us for this layer of RegNetY-032: 300 of them copy images and results.
    sizes = {"batch": 128, "in_channels": 576, "out_channels": 576, "image_size": 14, "kernel_size": 3, "padding": 1}
    item = operation_shape("conv2d", "bfloat16", groups=24, channels_last=1, **sizes)
    card = gpu("H200-SXM-141GB")
    cycles = 2 * 128 * 576 * 14 * 14 * 32 / 24 * PLACING_CYCLES  # images and results, padded
    copies = cycles / (card.streaming_multiprocessors * card.boost_clock_hz)
    assert copies < by_formula(item)[GPUS.index(card), 0] < 368e-6
    # GeForce boards have one lane for it in 32 or 64.
    item = operation_shape(
        "conv2d", "float64", batch=64, in_channels=256, out_channels=256, image_size=28, kernel_size=3
    )
    least = float(batch_shapes([item]).flops[0]) / np.array([one.peak("float64") or math.nan for one in GPUS])
    assert (by_formula(item)[:, 0] > least)[~np.isnan(least)].all()


def test_groups_with_kernels_gain_channels_last() -> None:
    for half in PASSES:
        first, last = (by_formula(grouped(half, 8, channels_last=each))[GPUS.index(gpu("RTX-3090"))] for each in (0, 1))
        assert last < first


@pytest.mark.parametrize(
    ("words", "is_served"),
    [
        ({}, True),
        ({"kernel_size": 5, "padding": 2}, True),
        ({"in_channels": 24}, False),
        ({"image_size": 6}, False),
        ({"kernel_size": 7, "padding": 3}, False),
        ({"dilation": 2, "padding": 2}, False),
        ({"stride": 2}, False),
        ({"stride": 2, "in_channels": 256}, True),
        ({"stride": 2, "in_channels": 256, "image_size": 14}, False),
        ({"stride": 2, "in_channels": 512, "image_size": 14}, True),
    ],
)
def test_depthwise_filters_in_float16_are_handed_to_the_library_as_torch_does(
    words: dict[str, int], is_served: bool
) -> None:
    """As `use_cudnn_depthwise` of PyTorch's Convolution.cpp decides; in bfloat16 it computes them by its own kernel."""
    shape = {"batch": 256, "in_channels": 192, "image_size": 56, "kernel_size": 3, "padding": 1, **words}
    shape |= {"out_channels": shape["in_channels"], "groups": shape["in_channels"]}
    half, brain = (
        by_formula(operation_shape("conv2d", dtype, **shape))[GPUS.index(gpu("A100-SXM-40GB")), 0]
        for dtype in ("float16", "bfloat16")
    )
    assert bool(half < 0.9 * brain) is is_served
    if not words:
        # 200 instructions an output and 10 a tap, the library needs 0.4 of it; 9.75e12 a second (19.5 TFLOP/s).
        assert half == pytest.approx(256 * 192 * 56 * 56 * 290 * 0.4 / 9.75e12, rel=1e-2)


@settings(max_examples=25, deadline=None)
@given(convolutions())
def test_groups_are_never_slower_than_the_dense_convolution(item: OperationShape) -> None:
    skips = max(item.parameters["stride_height"], item.parameters["stride_width"]) > 1
    assume(not (skips and item.operation == "conv2d_backward_input"))  # four times as slow: see GROUPED_GRADIENT
    assume(not item.parameters["channels_last"])  # which leaves some groups slow kernels: see GROUPED_LAST_GRADIENT
    in_groups, dense = by_formula(item, changed(item, groups=1)).T
    assert (in_groups <= dense * (1 + 1e-6)).all()


@settings(max_examples=5, deadline=None)
@given(convolutions())
def test_a_lower_precision_is_never_slower_than_float32(item: OperationShape) -> None:
    assume(not (item.parameters["channels_last"] and item.parameters["groups"] > 1))
    shipped = kernel_models(())
    single = predict_operation_times([replace(item, dtype="float32")], GPUS, shipped).seconds[:, 0]
    for dtype in ("tf32", "float16"):
        lower = predict_operation_times([replace(item, dtype=dtype)], GPUS, shipped).seconds[:, 0]
        emulated = np.array([dtype in one.emulated_dtypes for one in GPUS])  # their catalogue states a rate of its own
        # Networks compute in single precision, whose last digit depends on what else is asked for at once.
        assert (lower <= single * (1 + 1e-6))[~emulated].all()


def test_two_gpus_of_one_peak_and_bandwidth_get_one_time(models: BundledModels) -> None:
    """Weights for the products of one of them are no reason for another time of its convolutions."""
    item = operation_shape(
        "conv2d", "float16", batch=64, in_channels=256, out_channels=256, image_size=28, kernel_size=3
    )
    times = predict_operation_times([item], [gpu("A100-SXM-80GB"), gpu("A800-SXM-80GB")], models)
    assert models.has_own_weights("A100-SXM-80GB", "linear", "bfloat16")
    assert not models.has_own_weights("A800-SXM-80GB", "linear", "bfloat16")
    # The sustained rate was measured on one of them, and is by power on the other.
    assert times.seconds[0, 0] == pytest.approx(times.seconds[1, 0], rel=0.03)


def test_depthwise_filters_and_patches_take_about_their_traffic(models: BundledModels) -> None:
    # On an L4, 2 x 51 MB of images and outputs in float32 take 0.34 ms; nine copies of the images would be 1.7 ms.
    words = {"batch": 64, "in_channels": 64, "out_channels": 64, "image_size": 56, "kernel_size": 3, "padding": 1}
    item = operation_shape("conv2d", "tf32", **words, channels_last=1)
    assert 0.34e-3 < predict_operation_times([item], [gpu("L4")], models).seconds[0, 0] < 0.9e-3
    # ConvNeXt's: 64 x 96 x 56 x 56 in 16 bits are 38.5 MB, read and written at an A100's 1.56 TB/s in 50 µs.
    words = {"batch": 64, "in_channels": 96, "out_channels": 96, "groups": 96, "image_size": 56, "padding": 3}
    item = operation_shape("conv2d", "float16", kernel_size=7, channels_last=1, **words)
    a100, v100 = predict_operation_times([item], [gpu("A100-SXM-40GB"), gpu("V100-SXM2-16GB")], models).seconds[:, 0]
    assert 50e-6 < a100 < 1.2e-3  # it was 5.9 ms
    assert a100 < v100


def test_only_filters_that_gather_are_converted() -> None:
    """Images and outputs of 64 x 64 x 56 x 56 in 16 bits are 25.7 MB each, read and written once more."""
    words = {"batch": 64, "in_channels": 64, "out_channels": 64, "image_size": 56}
    for taps, converts in ((3, True), (1, False)):
        item = operation_shape("conv2d", "float16", kernel_size=taps, padding=taps // 2, **words)
        first, last = by_formula(item, changed(item, channels_last=1))[GPUS.index(gpu("T4"))]
        # The T4's L2 holds 4 MiB, so that both ways go to DRAM, at 320 GB/s and 85 % of them.
        expected = 2 * 2 * 64 * 64 * 56 * 56 * 2 / (0.85 * 320e9) if converts else 0.0
        assert first - last == pytest.approx(expected, abs=1e-9)


# Kernels of 7.4 GFLOP each in TF32 on an A100 (32 images), by width and size: microseconds without the conversions.
RESNET = [((64, 56, 1), 99), ((128, 28, 1), 70), ((256, 14, 1), 63), ((512, 7, 1), 75)]


@pytest.mark.parametrize(("shape", "microseconds"), RESNET)
def test_the_kernels_of_a_resnet_step_on_an_a100(shape: tuple[int, int, int], microseconds: float) -> None:
    width, size, stride = shape
    item = operation_shape(
        "conv2d",
        "tf32",
        batch=32,
        in_channels=width,
        out_channels=width,
        image_size=size,
        kernel_size=3,
        stride=stride,
        padding=1,
        channels_last=1,
    )
    predicted = by_formula(item)[GPUS.index(gpu("A100-SXM-40GB")), 0]
    assert abs(math.log(predicted / (microseconds * 1e-6))) < math.log(1.35)


@pytest.mark.parametrize(("pass_", "padded"), [("", "in_channels"), ("_backward_input", "out_channels")])
def test_matrix_units_multiply_eight_channels_at_least(pass_: str, padded: str) -> None:
    words = {"batch": 64, "in_channels": 64, "out_channels": 64, "image_size": 64, "kernel_size": 3, "padding": 1}
    three, eight = (operation_shape(f"conv2d{pass_}", "tf32", **(words | {padded: width})) for width in (3, 8))
    times = by_formula(three, eight)
    # Products of 8 channels either way; of the bytes, which take less, the 64 channels on the other side have most.
    units = GPUS.index(gpu("L40S"))
    assert times[units, 0] == pytest.approx(times[units, 1], rel=0.15)
    lanes = GPUS.index(gpu("V100-SXM2-16GB"))  # no units for TF32: each channel counts
    assert times[lanes, 0] < 0.75 * times[lanes, 1]


@pytest.mark.parametrize(
    ("pass_", "padded", "widest"), [("", "in_channels", 8), ("_backward_input", "out_channels", 32)]
)
def test_volumes_of_few_channels_take_as_long_as_of_padded_ones(pass_: str, padded: str, widest: int) -> None:
    words = {"batch": 16, "in_channels": 64, "out_channels": 64, "image_size": 64, "kernel_size": 3, "padding": 1}
    three, most, more = (
        operation_shape(f"conv3d{pass_}", "tf32", **(words | {padded: width})) for width in (3, widest, 4 * widest)
    )
    times = by_formula(three, most, more)
    for row in (GPUS.index(gpu("L40S")), GPUS.index(gpu("V100-SXM2-16GB"))):
        assert times[row, 0] == pytest.approx(times[row, 1], rel=0.2)  # but for the bytes of the channels themselves
        assert times[row, 2] > 2 * times[row, 1]


# Transposed volumes of KernelBench in TF32, as (channels, to, sizes of the output, batch), with milliseconds on the
# H100-PCIe and the L40S; what of the last two is no convolution was taken off as predicted.
TRANSPOSED_VOLUMES = [
    (32, 32, (63, 127, 255), 4, (3.05, 8.17)),
    (16, 3, (32, 64, 64), 128, (4.72, 15.6)),
    (128, 64, (47, 95, 95), 16, (8.84, 22.1)),
]


@pytest.mark.parametrize(("channels", "source", "sizes", "batch", "measured"), TRANSPOSED_VOLUMES)
def test_transposed_volumes_match_measurements(
    channels: int,
    source: int,
    sizes: tuple[int, int, int],
    batch: int,
    measured: tuple[float, float],
    models: BundledModels,
) -> None:
    sides = dict(zip(("depth", "height", "width"), sizes, strict=True))
    words = {
        "batch": batch,
        "in_channels": channels,
        "out_channels": source,
        "kernel_size": 3,
        "stride": 2,
        "padding": 1,
    }
    item = operation_shape("conv3d_backward_input", "tf32", **words, **sides)
    seconds = predict_operation_times([item], [gpu("H100-PCIe-80GB"), gpu("L40S")], models).seconds[:, 0]
    # 3 to 16 channels were 2.8 and 4.3 times too fast.
    assert np.abs(np.log(seconds * 1e3 / measured)).max() < math.log(2.0)


# KernelBench's transposed convolutions 75 and 81, in groups and with gaps, and their milliseconds.
ODD_GRADIENTS = [
    ({"height": 257, "width": 766, "kernel_height": 3, "kernel_width": 5, "stride_height": 2, "stride_width": 3,
      "padding_height": 1, "padding_width": 2, "dilation_height": 2, "groups": 4}, (7.29, 9.83)),
    ({"height": 318, "width": 638, "kernel_size": 3, "stride": 5, "padding": 1, "dilation": 2}, (2.52, 4.16)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "measured"), ODD_GRADIENTS)
def test_no_kernel_skips_positions_of_odd_gradients(
    shape: dict[str, float], measured: tuple[float, float], models: BundledModels
) -> None:
    item = operation_shape("conv2d_backward_input", "tf32", batch=16, in_channels=64, out_channels=32, **shape)
    seconds = predict_operation_times([item], [gpu("H100-PCIe-80GB"), gpu("L40S")], models).seconds[:, 0]
    assert np.abs(np.log(seconds * 1e3 / measured)).max() < math.log(3.0)  # 81 was six times too fast


def convolution_of(images: TensorInfo, weight: TensorInfo, *, groups: int, is_last: bool, bias: bool) -> Operation:
    arguments = {"stride": [1, 1], "padding": [1, 1], "groups": groups}
    offsets = (TensorInfo((weight.shape[0],), weight.dtype),) if bias else ()
    return Operation(
        name="aten::convolution",
        phase="forward",
        inputs=(images, weight, *offsets),
        arguments=arguments | ({"channels_last": True} if is_last else {}),
    )


@pytest.mark.parametrize("is_last", [False, True])
def test_a_bias_is_one_more_pass_over_the_output(is_last: bool) -> None:
    images, weight = TensorInfo((2, 8, 10, 10), "float16"), TensorInfo((16, 8, 3, 3), "float16")
    (plain,) = translate(convolution_of(images, weight, groups=1, is_last=is_last, bias=False), Flags())
    same, added = translate(convolution_of(images, weight, groups=1, is_last=is_last, bias=True), Flags())
    assert plain == same
    assert plain.parameters["channels_last"] == is_last
    # 2 x 16 x 10 x 10 outputs of two bytes, read and written; the bias is broadcast, so elements are loaded singly.
    assert added == limited_transfer(6400, 6400, 3200, cycles=3200 * SINGLE_LOAD_CYCLES)


@pytest.mark.parametrize(("is_last", "passes"), [(False, 1), (True, 2)])
def test_pytorchs_own_depthwise_kernel_adds_the_bias_itself(is_last: bool, passes: int) -> None:
    images, weight = TensorInfo((2, 8, 10, 10), "float32"), TensorInfo((8, 1, 3, 3), "float32")
    assert len(translate(convolution_of(images, weight, groups=8, is_last=is_last, bias=True), Flags())) == passes
    half, filters = TensorInfo((2, 64, 10, 10), "float16"), TensorInfo((64, 1, 3, 3), "float16")
    assert len(translate(convolution_of(half, filters, groups=64, is_last=is_last, bias=True), Flags())) == 2  # cuDNN's


def test_a_transposed_volume_stays_one() -> None:
    data, weight = TensorInfo((2, 8, 6, 7, 8), "float32"), TensorInfo((8, 4, 3, 3, 3), "float32")
    operation = Operation(
        name="aten::convolution",
        phase="forward",
        inputs=(data, weight),
        arguments={"transposed": True, "stride": [2, 2, 2], "padding": [1, 1, 1], "groups": 1},
    )
    (shape,) = translate(operation, Flags(cudnn_tf32=False))
    # Its output is the image: (6 - 1) x 2 - 2 + 3 = 11 positions, and 13 and 15.
    assert shape.operation == "conv3d_backward_input"
    assert [shape.parameters[side] for side in ("in_channels", "out_channels", "depth", "height", "width")] == [
        4,
        8,
        11,
        13,
        15,
    ]


def test_gradients_with_gaps_are_slower() -> None:
    words = {"batch": 16, "in_channels": 64, "out_channels": 64, "image_size": 64, "kernel_size": 3, "stride": 2}
    plain, gaps = (
        by_formula(operation_shape("conv2d_backward_input", "tf32", dilation=dilation, padding=dilation, **words))[:, 0]
        for dilation in (1, 2)
    )
    units = np.array(["tf32" in one.peak_flops_per_second for one in GPUS])
    # Four positions a step times 1.6, against 1.4; less where memory and conversions count.
    assert (gaps[units] > plain[units]).all()
    assert (gaps[units] < 4 * 1.6 / 1.4 * 1.1 * plain[units]).all()
