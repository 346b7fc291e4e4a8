from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.fusion import FUSED, fused
from lightning_predict.kernels.translation import translate
from lightning_predict.tracing.trace import Flags, Operation, Phase, TensorInfo, Trace

SIZE = 1024


def data(number: int) -> TensorInfo:
    return TensorInfo((SIZE,), "float32", id=number)


def operation(name: str, read: tuple[int, ...], written: int, phase: Phase = "forward") -> Operation:
    return Operation(name=f"aten::{name}", phase=phase, inputs=tuple(map(data, read)), outputs=(data(written),))


def matrix(name: str, read: tuple[int, int], written: int) -> Operation:
    tensors = [TensorInfo((32, 32), "float32", id=number) for number in (*read, written)]
    return Operation(name=f"aten::{name}", phase="forward", inputs=tuple(tensors[:2]), outputs=(tensors[2],))


def trace(*operations: Operation) -> Trace:
    return Trace(operations=operations, device="meta", recorder="dispatch")


def numbers(tensors: tuple[TensorInfo, ...]) -> list[int | None]:
    return [tensor.id for tensor in tensors]


CHAIN = (operation("mul", (0, 1), 2), operation("tanh", (2,), 3), operation("add", (3, 0), 4))


def test_a_chain_is_one_kernel_that_touches_what_is_outside() -> None:
    (kernel,) = fused(trace(*CHAIN)).operations
    assert (kernel.name, kernel.phase) == (FUSED, "forward")
    assert numbers(kernel.inputs) == [0, 1]  # once each, though 0 is read twice
    assert numbers(kernel.outputs) == [4]
    assert kernel.arguments == {"operations": ["aten::mul", "aten::tanh", "aten::add"]}
    # Two tensors read and one written, of 4 kB each; apart they are five and three.
    (problem,) = translate(kernel, Flags())
    assert problem.dims[:2] == (2 * 4 * SIZE, 4 * SIZE)


def test_what_a_later_operation_reads_is_written() -> None:
    backward = operation("tanh_backward", (9, 3), 10, "backward")
    kernel, _ = fused(trace(*CHAIN, operation("mm", (8, 7), 9), backward)).operations[:2]
    assert numbers(kernel.outputs) == [3, 4]  # 3 is saved for the backward pass


def test_a_product_stands_alone_and_ends_a_kernel() -> None:
    operations = fused(
        trace(*CHAIN, matrix("mm", (4, 5), 6), operation("relu", (6,), 7), operation("mul", (7, 0), 8))
    ).operations
    assert [one.name for one in operations] == [FUSED, "aten::mm", FUSED]


def test_views_do_not_end_a_kernel() -> None:
    view = operation("view", (2,), 2)
    operations = fused(trace(CHAIN[0], view, *CHAIN[1:])).operations
    assert [one.name for one in operations] == [FUSED, "aten::view"]


def test_neighbours_that_share_nothing_stay_apart() -> None:
    alone = (operation("mul", (0,), 1), operation("tanh", (2,), 3))
    assert fused(trace(*alone)).operations == alone


@pytest.mark.parametrize("name", ["embedding", "index_select", "gather", "max_pool2d_with_indices", "_embedding_bag"])
def test_look_ups_are_left_to_their_kernels(name: str) -> None:
    operations = (operation(name, (0,), 1), operation("mul", (1,), 2))
    assert fused(trace(*operations)).operations == operations


def test_the_optimizer_runs_outside_the_compiled_model() -> None:
    operations = (operation("mul_", (0,), 0, "optimizer"), operation("add_", (0,), 0, "optimizer"))
    assert fused(trace(*operations)).operations == operations


def test_how_much_was_fused_is_said() -> None:
    note = "As torch.compile would run it: 3 point-wise operations in 1 fused kernels."
    assert fused(trace(*CHAIN)).notes == (note,)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(trace(*CHAIN), compiled=True),
        trace(*(replace(one, outputs=()) for one in CHAIN)),  # a profile does not see them
    ],
)
def test_a_step_that_cannot_be_followed_is_refused(wrong: Trace) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"Only an eager step whose tensors were followed can be fused; record"
    ):
        fused(wrong)


def test_tensors_without_identity_are_never_fused() -> None:
    unseen = tuple(replace(one, inputs=tuple(replace(t, id=None) for t in one.inputs)) for one in CHAIN)
    assert fused(trace(*unseen)).operations == unseen


def test_a_perceptron_keeps_its_products_and_loses_traffic() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 4096), nn.Hardswish(), nn.Linear(4096, 1024))
        rows = torch.empty(8192, 1024, requires_grad=True)

    def step() -> None:
        hidden = model[0](rows)
        model[2](hidden * torch.sigmoid(hidden) + 1.0).sum().backward()

    eager = lp.capture(step, warmup_steps=0)
    compiled = fused(eager)
    for name in ("aten::addmm", "aten::mm"):
        assert [one for one in compiled.operations if one.name == name] == [
            one for one in eager.operations if one.name == name
        ]
    # Forward: sigmoid, mul and add read 1 + 2 + 1 and write 3 tensors of 8192 x 4096 x 4 bytes = 134 MB; fused, 1 is
    # read and 2 are written (the sigmoid is saved for the backward pass). 4 x 134 MB take 0.27 ms at 2 TB/s.
    first = next(one for one in compiled.operations if one.name == FUSED)
    assert first.arguments["operations"] == ["aten::sigmoid", "aten::mul", "aten::add"]
    assert (len(first.inputs), len(first.outputs)) == (1, 2)
    gpu = "A100-SXM-80GB"
    saved = lp.predict(eager, [gpu])[gpu].device_seconds - lp.predict(compiled, [gpu])[gpu].device_seconds
    assert saved > 4 * 8192 * 4096 * 4 / 2.04e12
