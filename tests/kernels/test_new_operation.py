"""A new operation is one registration: its call is translated, its problem timed, and its name listed."""

from __future__ import annotations

import pytest

import lightning_predict as lp
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels import operations
from lightning_predict.kernels.operations import OperationKind, Part, Problem, register
from lightning_predict.tracing.trace import Flags, Operation, TensorInfo, Trace


def _of_toy(name: str, operation: Operation, _flags: Flags) -> tuple[Problem, ...] | None:
    return (Problem(name, "float32", (float(operation.inputs[0].elements),)),)


def _as_transfer(problem: Problem) -> tuple[Part, ...]:
    size = 4 * problem.shape["length"]
    return (Part(1.0, Problem("transfer", "float32", (size, size, 0.0))),)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(operations, "_KINDS", dict(operations._KINDS))
    monkeypatch.setattr(operations, "_TRANSLATORS", dict(operations._TRANSLATORS))
    register(
        OperationKind(
            name="toy",
            shape=("length",),
            units="vector",
            flops=lambda c: c["length"],
            reads=lambda c: c["length"],
            writes=lambda c: c["length"],
            aten=("mine::toy",),
            translator=_of_toy,
            proxy=_as_transfer,
        )
    )
    return "toy"


def test_a_registered_operation_is_predicted_from_a_trace(toy: str) -> None:
    tensor = TensorInfo((2**24,), "float32", device="cuda")
    call = Operation(name="mine::toy", phase="forward", inputs=(tensor,), outputs=(tensor,))
    predictions = lp.predict(Trace(operations=(call,), device="meta", recorder="dispatch"), gpus=["T4"])
    # 64 MiB read and as many written, at 320 GB/s at most.
    assert predictions["T4"].device_seconds > 2 * 2**26 / 320e9
    assert not any("mine::toy" in note for note in predictions.notes)  # it is known
    assert lp.operator_seconds(toy, "T4", length=2**24) == pytest.approx(
        lp.operator_seconds("transfer", "T4", read_bytes=2**26, write_bytes=2**26)
    )


def test_calls_without_a_translator_are_refused() -> None:
    kind = operations.operation_kind("add")
    with pytest.raises(InvalidArgumentError, match="'other' has calls alone; give `aten` and `translator`"):
        register(
            OperationKind(name="other", shape=("n",), units="vector", flops=kind.flops, reads=kind.reads, aten=("a",))
        )
