from __future__ import annotations

from dataclasses import replace

import pytest

from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.recorded_on import code_path_notes
from lightning_predict.record.trace import Flags, Kernel, Operation, TensorInfo, Trace

WEIGHT = TensorInfo((8, 3, 3, 3), "float16")
PRODUCT = Operation(name="aten::mm", phase="forward", inputs=(TensorInfo((4, 4), "float32"),) * 2)


def convolution(dtype: str, **arguments: bool) -> Operation:
    images = TensorInfo((2, 3, 8, 8), dtype)
    return Operation(name="aten::convolution", phase="forward", inputs=(images, WEIGHT), arguments=arguments)


def trace(*operations: Operation) -> Trace:
    return Trace(operations=operations, device="cpu", recorder="dispatch")


CONVERTS = (
    "Convolutions in 16 bits read images channels first: cuDNN converts most of them for the tensor cores, which is "
    "predicted. memory_format=torch.channels_last avoids it."
)


def test_a_plain_step_needs_no_note() -> None:
    assert code_path_notes(trace(PRODUCT)) == ()


@pytest.mark.parametrize(
    ("dtype", "is_last", "is_said"),
    [("float16", False, True), ("bfloat16", False, True), ("float16", True, False), ("float32", False, False)],
)
def test_16_bit_convolutions_with_channels_first_are_said(dtype: str, is_last: bool, is_said: bool) -> None:
    arguments = {CHANNELS_LAST: True} if is_last else {}
    assert (CONVERTS in code_path_notes(trace(convolution(dtype, **arguments)))) == is_said


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 3, 1, 1)])
def test_one_channel_or_one_pixel_lies_alike_in_both_layouts(shape: tuple[int, ...]) -> None:
    """As after the pooling of a squeeze-and-excitation block, in a step that is channels last elsewhere."""
    images = TensorInfo(shape, "float16")
    one = Operation(name="aten::convolution", phase="forward", inputs=(images, WEIGHT))
    assert CONVERTS not in code_path_notes(trace(one))


def test_the_images_of_a_backward_pass_are_its_second_tensor() -> None:
    gradient, images = TensorInfo((2, 8, 6, 6), "float16"), TensorInfo((2, 3, 8, 8), "float16")
    backward = Operation(name="aten::convolution_backward", phase="backward", inputs=(gradient, images, WEIGHT))
    assert CONVERTS in code_path_notes(trace(backward))
    assert CONVERTS not in code_path_notes(trace(replace(backward, arguments={CHANNELS_LAST: True})))


@pytest.mark.parametrize("is_on", [True, False])
def test_the_switch_of_cudnns_choice_is_said_beside_convolutions(is_on: bool) -> None:
    one = replace(trace(convolution("float32")), flags=Flags(cudnn_benchmark=is_on))
    word = "on" if is_on else "off"
    assert code_path_notes(one) == (f"cudnn.benchmark is {word}; predictions of convolutions do not tell on from off.",)
    assert code_path_notes(replace(one, recorder="kineto")) == ()  # a file does not say


def test_what_was_measured_holds_it_all() -> None:
    kernel = Kernel(
        name="k",
        seconds=1e-6,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        registers_per_thread=0,
        shared_memory_bytes=0,
        stream=7,
        start_seconds=0,
    )
    measured = trace(replace(convolution("float16"), kernels=(kernel,)))
    assert code_path_notes(measured) == ()
    assert code_path_notes(replace(measured, compiled=True, compile_seconds=54.6)) == (
        "torch.compile took 55 s, once; predicted times leave it out.",
    )


def test_a_compiled_step_without_kernels_is_said_to_be_incomplete() -> None:
    (note,) = code_path_notes(replace(trace(PRODUCT), compiled=True))
    assert note.startswith("The compiled step was recorded without its kernels: matmuls and convolutions are predicted")
