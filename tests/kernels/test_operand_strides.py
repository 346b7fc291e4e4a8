"""Classes of kernels that strides tell: element-wise work that loads one by one, transposing copies, joined tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.families.norm import SOFTMAX_STEP_CYCLES
from lightning_predict.kernels.operations import OperationShape, problem
from lightning_predict.kernels.roofline import minimum_latencies
from lightning_predict.kernels.translation import translate
from lightning_predict.record.imports import import_trace
from lightning_predict.record.operand_strides import CONTIGUOUS_ELEMENTS, READ_IN_PASSES, contiguous_elements
from lightning_predict.record.trace import Flags, Operation, TensorInfo
from tests.record.kineto_files import Device, mark, write
from tests.record.test_events import event

H100 = gpu("H100-SXM-80GB")


def recorded(step: Callable[[], Any], name: str) -> Operation:
    (found,) = (one for one in lp.capture(step, warmup_steps=0).operations if one.name == name)
    return found


def cycles_an_element(operation: Operation) -> float | None:
    """Cycles of a multiprocessor for an element of the result; None where the bytes alone count."""
    (found,) = translate(operation, Flags())
    return found.dims[3] / found.dims[2] if found.operation == "limited_transfer" else None


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
    found = recorded(lambda: step(x), name)
    assert found.arguments.get(CONTIGUOUS_ELEMENTS) == beside
    assert (cycles_an_element(found) is None) == (beside is None)


def test_dimensions_of_one_element_lie_anyhow() -> None:
    assert contiguous_elements("aten::add", [((1, 8), (8, 1)), ((1, 8), (1, 1))], {}) is None
    assert contiguous_elements("aten::add", [((0, 8), (8, 1)), ((0, 8), (1, 0))], {}) is None


def test_a_transposing_copy_takes_a_sector_for_each_element() -> None:
    def copy(beside: int) -> Operation:
        keys = TensorInfo((8, 12, 64, 3137), "bfloat16")
        given = {"memory_format": "contiguous_format", CONTIGUOUS_ELEMENTS: beside}
        return Operation(name="aten::clone", phase="forward", inputs=(keys,), arguments=given)

    # Of 32 bytes one number of 2 is used, four are, or all 16: 2.1 cycles, a quarter, or what issuing one load takes.
    assert [cycles_an_element(copy(beside)) for beside in (1, 2, 16, 512)] == pytest.approx(
        [2.1, 1.05, 1 / 1.3, 1 / 1.3]
    )


def test_a_copy_into_rows_of_an_older_trace_loads_one_by_one_without_strides() -> None:
    x = TensorInfo((64, 64), "bfloat16")
    into_rows = {"memory_format": "contiguous_format"}
    assert (
        cycles_an_element(Operation(name="aten::clone", phase="forward", inputs=(x,), arguments=into_rows)) is not None
    )
    assert cycles_an_element(Operation(name="aten::clone", phase="forward", inputs=(x,))) is None


def test_joined_tensors_of_a_file_are_all_written() -> None:
    x = TensorInfo((64, 64), "float32")
    (found,) = translate(Operation(name="aten::cat", phase="forward", inputs=(x, x)), Flags())
    assert found == OperationShape("transfer", "float32", (2 * 64 * 64 * 4, 2 * 64 * 64 * 4, 2 * 64 * 64))


def test_uneven_rows_of_softmax_wait_for_single_loads_in_three_passes() -> None:
    uneven = minimum_latencies([problem("softmax_in_passes", "bfloat16", rows=264 * 10, cols=3137)], [H100])[0, 0]
    # 10 rounds of two blocks on 132 multiprocessors; 3,137 numbers are 4 loads of 1,024 threads, three times.
    assert uneven * H100.boost_clock_hz / SOFTMAX_STEP_CYCLES == pytest.approx(10 * 12)


def test_softmax_takes_cycles_an_element_by_where_a_row_is_kept() -> None:
    columns = (1000, 1024, 1032, 24_576, 24_584)  # a warp keeps 1,024, a block 48 KiB of shared memory
    for operation in ("softmax", "log_softmax"):
        problems = [problem(operation, "bfloat16", rows=264 * 10, cols=one) for one in columns]
        cycles = minimum_latencies(problems, [H100])[0] * H100.boost_clock_hz * 132 / (264 * 10 * np.array(columns))
        assert cycles == pytest.approx([0.43, 0.43, 0.8, 0.43, 0.7])
    wide = minimum_latencies([problem("softmax", "float32", rows=264 * 10, cols=12_292)], [H100])[0, 0]
    assert wide * H100.boost_clock_hz * 132 / (264 * 10 * 12_292) == pytest.approx(0.7)  # 4 bytes an element


def test_long_uneven_rows_are_loaded_wide_as_far_as_they_fill_the_block() -> None:
    for name in ("softmax", "softmax_in_passes"):  # 9,217 numbers do not fit into nine registers a thread
        found = minimum_latencies([problem(name, "bfloat16", rows=264, cols=8192 + 1025)], [H100])[0, 0]
        assert found * H100.boost_clock_hz == pytest.approx(3 * (1 + 2) * SOFTMAX_STEP_CYCLES)


def test_odd_rows_of_softmax_stay_in_registers_unless_the_recorded_kernel_is_older() -> None:
    """Our H200 takes 1.31 ms for 47,752 rows of 8,821; 82,960 rows of 5,185 took 2.19 ms on an H100 in an older one."""
    now = lp.operator_seconds("log_softmax", "H200-SXM-141GB", dtype="bfloat16", rows=47_752, cols=8821)
    assert now == pytest.approx(1.312e-3, rel=0.05)
    data = TensorInfo((82_960, 5185), "bfloat16")
    times = []
    for name, arguments in (("softmax", {}), ("softmax_in_passes", {READ_IN_PASSES: True})):
        softmax = Operation(
            name="aten::_softmax", phase="forward", inputs=(data,), outputs=(data,), arguments=arguments
        )
        (found,) = translate(softmax, Flags())
        assert found.operation == name
        rows, cols = map(int, found.dims)
        times.append(lp.operator_seconds(name, "H100-SXM-80GB", dtype="bfloat16", rows=rows, cols=cols))
    assert times[1] == pytest.approx(2.187e-3, rel=0.1)
    assert times[0] < times[1] / 1.5


def test_the_backward_pass_of_max_pooling_looks_for_each_position_in_its_windows() -> None:
    gradient, image = TensorInfo((8, 16, 28, 28), "float32"), TensorInfo((8, 16, 56, 56), "float32")
    given = {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]}
    inputs = (gradient, image, TensorInfo((8, 16, 28, 28), "int64"))
    name = "aten::max_pool2d_with_indices_backward"
    moved, placed = translate(Operation(name=name, phase="backward", inputs=inputs, arguments=given), Flags())
    pixels = 8 * 16 * 56 * 56
    assert moved.dims[:2] == ((4 + 8) * pixels / 4, 2 * 4 * pixels)  # the image is zeroed, then written
    assert placed.dims[3] == pytest.approx((2.3 + 0.23 * 9 / 4) * pixels)  # a position, and 9/4 windows around it
    last = Operation(name=name, phase="backward", inputs=inputs, arguments={**given, "channels_last": True})
    assert translate(last, Flags())[1].dims[3] == pytest.approx(1.26 * pixels * 9 / 4)


def test_topk_of_short_rows_waits_for_its_passes() -> None:
    short, wide = (
        minimum_latencies([problem("topk", dtype, rows=16, cols=64)], [H100])[0, 0] for dtype in ("bfloat16", "float32")
    )
    assert short * H100.boost_clock_hz == pytest.approx(7e3 * 2 + 14e3)
    assert wide > short


def look_up(**details: Any) -> Operation:
    table = TensorInfo((8, 512, 1024), "bfloat16")
    return Operation(name="aten::index", phase="forward", inputs=(table,), **details)


def test_rows_that_a_look_up_reads_again_come_from_the_cache() -> None:
    rows = 2 * 512 * 1024
    (found,) = translate(look_up(outputs=(TensorInfo((512, 512, 1024), "bfloat16"),)), Flags())
    assert found.dims[:2] == (int(8 * rows + 0.45 * (512 - 8) * rows), 512 * rows)
    (few,) = translate(look_up(outputs=(TensorInfo((2, 512, 1024), "bfloat16"),)), Flags())
    assert few.dims[:2] == (2 * rows, 2 * rows)


def imported(tmp_path: Path, name: str, *inside: dict[str, Any], kernel: str, **args: Any) -> Operation:
    """Read a call of a file that ran one kernel."""
    device = Device(shapes=False)
    device.product(10, 50, name=name, kernel=kernel, **args)
    (found,) = import_trace(write(tmp_path / "p.json", [mark(1, 0, 100), *device.events, *inside])).operations
    return found


def of_tensor(sizes: list[int], strides: list[int], **more: Any) -> dict[str, Any]:
    return {"Input Dims": [sizes], "Input type": ["c10::BFloat16"], "Input Strides": [strides], **more}


def test_the_result_of_a_look_up_is_told_by_the_view_that_its_kernel_reads(tmp_path: Path) -> None:
    texts: dict[str, Any] = {"Concrete Inputs": ["", "[512, 512, 1024]", "[0, 1024, 1]", ""]}
    view = event("aten::as_strided", 11, 2, **of_tensor([8, 512, 1024], [524288, 1024, 1]), **texts)
    given = of_tensor([8, 512, 1024], [524288, 1024, 1])
    found = imported(tmp_path, "aten::index", view, kernel="gather", **given)
    assert [(one.shape, one.dtype) for one in found.outputs] == [((512, 512, 1024), "bfloat16")]


def test_a_copy_of_a_file_is_placed_by_what_ran(tmp_path: Path) -> None:
    given = of_tensor([64, 1024], [1024, 1])
    found = imported(tmp_path, "aten::_to_copy", kernel="Memcpy HtoD (Pageable -> Device)", **given)
    assert (found.inputs[0].device, found.outputs[0].device) == ("cpu", "cuda")
    unmeasured = replace(found, kernels=())
    assert translate(unmeasured, Flags()) == (OperationShape("host_copy", "uint8", (64 * 1024 * 2.0,)),)


def test_a_list_of_a_file_has_elements_of_the_size_that_its_kernel_moves(tmp_path: Path) -> None:
    given = {"Input Dims": [[[4, 8], [4, 8]], []], "Input type": ["TensorList", "Scalar"]}
    steps = {"Input Strides": [[[16, 1], [16, 1]], []], "Concrete Inputs": ["", "-1"]}
    kernel = "CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>"
    found = imported(tmp_path, "aten::cat", kernel=kernel, **given, **steps)
    assert {one.dtype for one in found.inputs} == {"bfloat16"}
    assert found.arguments == {"dim": -1, CONTIGUOUS_ELEMENTS: 8}  # gaps of 8 between rows of 8


def test_a_sum_over_rows_waits_for_the_root_of_their_number() -> None:
    # A bias's gradient of 25,088 x 384 in bfloat16 took 33.5 us on the H200, its traffic explains 7.6 of it.
    h200 = gpu("H200-SXM-141GB")
    data, kept = TensorInfo((25_088, 384), "bfloat16"), TensorInfo((1, 384), "bfloat16")

    def summed(dim: list[int]) -> tuple[OperationShape, ...]:
        arguments = {"dim": dim, "keepdim": True}
        return translate(
            Operation(name="aten::sum", phase="backward", inputs=(data,), outputs=(kept,), arguments=arguments), Flags()
        )

    moved, waiting = summed([0])
    assert moved.dims[0] == 2 * 25_088 * 384
    assert minimum_latencies([waiting], [h200])[0, 0] == pytest.approx(297 * 25_088**0.5 / h200.boost_clock_hz)
    assert len(summed([1])) == len(summed([0, 1])) == 1
    loss = TensorInfo((), "float32")  # torch sums it over a dimension that it does not have
    call = Operation(name="aten::sum", phase="forward", inputs=(loss,), outputs=(loss,), arguments={"dim": [0]})
    assert [one.operation for one in translate(call, Flags())] == ["transfer"]
