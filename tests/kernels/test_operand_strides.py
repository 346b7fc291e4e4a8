"""Classes of kernels that strides tell: element-wise work that loads one by one, transposing copies, joined tensors."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.operations import OperationShape, operation_shape
from lightning_predict.kernels.roofline import minimum_latencies
from lightning_predict.kernels.translation import translate
from lightning_predict.record.imports import import_trace
from lightning_predict.record.operand_strides import CONTIGUOUS_ELEMENTS, contiguous_elements
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from tests.record.kineto_files import Device, mark, write
from tests.record.test_events import event

H100 = gpu("H100-SXM-80GB")


def recorded(step: Callable[[], Any], name: str) -> Operation:
    (operation,) = (call for call in lp.capture(step, warmup_steps=0).operations if call.name == name)
    return operation


def cycles_an_element(operation: Operation) -> float | None:
    """Cycles of a multiprocessor for an element of the result; None where the bytes alone count."""
    (shape,) = translate(operation, Flags())
    return shape.dims[3] / shape.dims[2] if shape.operation == "limited_transfer" else None


HEADS = (2, 64, 4, 32)  # batch, positions, heads, numbers


@pytest.mark.parametrize(
    ("step", "name", "beside"),
    [
        (lambda x: x + x, "aten::add", None),
        (lambda x: x.transpose(1, 2) + x.transpose(1, 2), "aten::add", None),  # both lie alike
        (lambda x: x.transpose(1, 2) + x.transpose(1, 2).contiguous(), "aten::add", 32),  # runs of a head's numbers
        (lambda x: -x[..., :16], "aten::neg", 16),  # gaps between halves of heads
        (lambda x: x.transpose(1, 2).contiguous(), "aten::clone", 32),
        (lambda x: x.permute(0, 2, 3, 1).contiguous(), "aten::clone", 8),  # 512 / 64 positions
        (lambda x: x.transpose(1, 2).clone(), "aten::clone", None),  # keeps the layout
        (lambda x: torch.cat([x[..., 16:], x[..., :16]], -1), "aten::cat", 16),
        (lambda x: torch.relu(x[:, :, :, ::2]), "aten::relu", 1),
    ],
)
def test_how_operands_lie_is_recorded(step: Callable[[torch.Tensor], Any], name: str, beside: int | None) -> None:
    x = torch.zeros(HEADS, device="meta")
    operation = recorded(lambda: step(x), name)
    assert operation.arguments.get(CONTIGUOUS_ELEMENTS) == beside
    assert (cycles_an_element(operation) is None) == (beside is None)


def test_single_elements_copies_and_joined_tensors_of_old_files_have_no_strides() -> None:
    assert contiguous_elements("aten::add", [((1, 8), (8, 1)), ((1, 8), (1, 1))], {}) is None
    assert contiguous_elements("aten::add", [((0, 8), (8, 1)), ((0, 8), (1, 0))], {}) is None
    x = TensorInfo((64, 64), "bfloat16")
    into_rows = {"memory_format": "contiguous_format"}
    assert (
        cycles_an_element(Operation(name="aten::clone", phase="forward", inputs=(x,), arguments=into_rows)) is not None
    )
    assert cycles_an_element(Operation(name="aten::clone", phase="forward", inputs=(x,))) is None
    x = TensorInfo((64, 64), "float32")
    (shape,) = translate(Operation(name="aten::cat", phase="forward", inputs=(x, x)), Flags())
    assert shape == OperationShape("transfer", "float32", (2 * 64 * 64 * 4, 2 * 64 * 64 * 4, 2 * 64 * 64))


def test_softmax_takes_cycles_an_element() -> None:
    columns = (1000, 1024, 1032, 24_576, 24_584)  # a warp keeps 1,024, a block 48 KiB of shared memory
    for operation in ("softmax", "log_softmax"):
        shapes = [operation_shape(operation, "bfloat16", rows=264 * 10, cols=width) for width in columns]
        cycles = minimum_latencies(shapes, [H100])[0] * H100.boost_clock_hz * 132 / (264 * 10 * np.array(columns))
        assert cycles == pytest.approx([0.43, 0.43, 0.8, 0.43, 0.7])
    wide = minimum_latencies([operation_shape("softmax", "float32", rows=264 * 10, cols=12_292)], [H100])[0, 0]
    assert wide * H100.boost_clock_hz * 132 / (264 * 10 * 12_292) == pytest.approx(0.7)  # 4 bytes an element


def imported(tmp_path: Path, name: str, *inside: dict[str, Any], kernel: str, **args: Any) -> Operation:
    """Read a call of a file that ran one kernel."""
    device = Device(shapes=False)
    device.product(10, 50, name=name, kernel=kernel, **args)
    (operation,) = import_trace(write(tmp_path / "p.json", [mark(1, 0, 100), *device.events, *inside])).operations
    return operation


def of_tensor(sizes: list[int], strides: list[int], **more: Any) -> dict[str, Any]:
    return {"Input Dims": [sizes], "Input type": ["c10::BFloat16"], "Input Strides": [strides], **more}


def test_operands_of_a_profile_are_told_by_views_kernels_and_lists(tmp_path: Path) -> None:
    texts: dict[str, Any] = {"Concrete Inputs": ["", "[512, 512, 1024]", "[0, 1024, 1]", ""]}
    view = event("aten::as_strided", 11, 2, **of_tensor([8, 512, 1024], [524288, 1024, 1]), **texts)
    given = of_tensor([8, 512, 1024], [524288, 1024, 1])
    operation = imported(tmp_path, "aten::index", view, kernel="gather", **given)
    assert [(tensor.shape, tensor.dtype) for tensor in operation.outputs] == [((512, 512, 1024), "bfloat16")]
    given = of_tensor([64, 1024], [1024, 1])
    operation = imported(tmp_path, "aten::_to_copy", kernel="Memcpy HtoD (Pageable -> Device)", **given)
    assert (operation.inputs[0].device, operation.outputs[0].device) == ("cpu", "cuda")
    unmeasured = replace(operation, kernels=())
    assert translate(unmeasured, Flags()) == (OperationShape("host_copy", "uint8", (64 * 1024 * 2.0,)),)
    given = {"Input Dims": [[[4, 8], [4, 8]], []], "Input type": ["TensorList", "Scalar"]}
    steps = {"Input Strides": [[[16, 1], [16, 1]], []], "Concrete Inputs": ["", "-1"]}
    kernel = "CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>"
    operation = imported(tmp_path, "aten::cat", kernel=kernel, **given, **steps)
    assert {tensor.dtype for tensor in operation.inputs} == {"bfloat16"}
    assert operation.arguments == {"dim": -1, CONTIGUOUS_ELEMENTS: 8}  # gaps of 8 between rows of 8
