"""Notes on the code path of a recording: memory format, cuDNN's choice, compiled code, weights of batch norms."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.hardware.lookup import other_vendor
from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.recorded_on import code_path_notes, unknown_gpu_note
from lightning_predict.record.trace import Flags, Kernel, Operation, TensorInfo, Trace

WEIGHT = TensorInfo((8, 3, 3, 3), "float16")
PRODUCT = Operation(name="aten::mm", phase="forward", inputs=(TensorInfo((4, 4), "float32"),) * 2)
IMAGES = (2, 3, 8, 8)


def convolution(dtype: str, shape: tuple[int, ...] = IMAGES, *, is_last: bool = False) -> Operation:
    arguments = {CHANNELS_LAST: True} if is_last else {}
    inputs = (TensorInfo(shape, dtype), WEIGHT)
    return Operation(name="aten::convolution", phase="forward", inputs=inputs, arguments=arguments)


def backward(*, is_last: bool) -> Operation:
    """Make the backward pass of a convolution, whose images are its second tensor."""
    forward = convolution("float16", is_last=is_last)
    inputs = (TensorInfo((2, 8, 6, 6), "float16"), *forward.inputs)
    return replace(forward, name="aten::convolution_backward", phase="backward", inputs=inputs)


def trace(*operations: Operation) -> Trace:
    return Trace(operations=operations, device="cpu", recorder="dispatch")


CONVERTS = (
    "Convolutions in 16 bits read images channels first: cuDNN converts most of them for the tensor cores, which is "
    "predicted. memory_format=torch.channels_last avoids it."
)


@pytest.mark.parametrize(
    ("operation", "is_noted"),
    [
        (convolution("float16"), True),
        (convolution("bfloat16"), True),
        (convolution("float16", is_last=True), False),
        (convolution("float32"), False),
        (convolution("float16", (2, 1, 8, 8)), False),  # one channel or one pixel lies alike in both layouts
        (convolution("float16", (2, 3, 1, 1)), False),
        (backward(is_last=False), True),
        (backward(is_last=True), False),
        (PRODUCT, False),
    ],
)
def test_convolutions_in_16_bits_with_channels_first_are_noted(operation: Operation, is_noted: bool) -> None:
    assert (CONVERTS in code_path_notes(trace(operation))) == is_noted


@pytest.mark.parametrize(("is_on", "word"), [(True, "on"), (False, "off")])
def test_benchmark_flag_of_cudnn_is_noted_if_known(is_on: bool, word: str) -> None:
    step = replace(trace(convolution("float32")), flags=Flags(cudnn_benchmark=is_on))
    assert code_path_notes(step) == (
        f"cudnn.benchmark is {word}; predictions of convolutions do not tell on from off.",
    )
    assert code_path_notes(replace(step, recorder="kineto")) == ()  # a file does not contain the flag
    assert code_path_notes(trace(PRODUCT)) == ()


def test_measured_step_has_only_a_note_on_compile_time() -> None:
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


def test_compiled_steps_without_kernels_and_gpus_of_other_vendors_are_noted() -> None:
    (note,) = code_path_notes(replace(trace(PRODUCT), compiled=True))
    assert note.startswith("The compiled step was recorded without its kernels: matmuls and convolutions are predicted")
    step = replace(trace(), device="cuda", gpu_reported_name="AMD Radeon Graphics 42", step_seconds=(0.1,))
    assert unknown_gpu_note(step) == (
        "Recorded on AMD Radeon Graphics 42, which is not NVIDIA's. Its 0 measured kernels are ignored: all times "
        "are predicted from shapes. Only its measured step is known of this GPU."
    )


@pytest.mark.parametrize(("precision", "is_noted"), [("16-true", True), ("16-mixed", False), ("bf16-true", False)])
def test_float16_weights_of_batch_norms_are_noted(precision: str, *, is_noted: bool) -> None:
    """CuDNN takes float16 data only with float32 weights."""
    dtype = {"16-true": torch.float16, "16-mixed": torch.float32, "bf16-true": torch.bfloat16}[precision]
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(dtype)
        images = torch.empty(4, 3, 16, 16, dtype=dtype)
    step = lp.capture(lambda: model(images).float().sum().backward(), precision=precision)
    notes = lp.predict(step, ["T4"], history=False).notes
    assert any("Batch norms with float16 weights" in note for note in notes) is is_noted


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AMD Instinct MI300X", True),
        ("Radeon RX 7900 XTX", True),
        ("Intel(R) Data Center GPU Max 1550", True),
        ("Apple M2", True),
        ("NVIDIA GeForce RTX 4090", False),
        ("Tesla V100-SXM2-16GB", False),
    ],
)
def test_other_vendors_are_known_by_their_words(name: str, expected: bool) -> None:
    assert (other_vendor(name) is not None) == expected
