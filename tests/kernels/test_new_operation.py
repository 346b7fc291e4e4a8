"""A new operation is one registration: its call is translated, its shape timed, and its name listed.

A new GPU is one row of a TOML file; the two are predicted together.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.catalogue import CATALOGUE_FOLDER, SOURCES_FILE, load_catalogue
from lightning_predict.kernels import operations
from lightning_predict.kernels.operations import CountedShape, OperationShape, OperationSpec, Surrogate, register
from lightning_predict.record.trace import Flags, Operation, TensorInfo, Trace
from lightning_predict.testing import registrations


def _of_toy(name: str, operation: Operation, _flags: Flags) -> tuple[OperationShape, ...] | None:
    return (OperationShape(name, "float32", (float(operation.inputs[0].elements),)),)


def _as_transfer(shape: OperationShape) -> tuple[CountedShape, ...]:
    size = 4 * shape.parameters["length"]
    return (CountedShape(1.0, OperationShape("transfer", "float32", (size, size, 0.0))),)


@pytest.fixture
def toy() -> Iterator[str]:
    with registrations():
        register(
            OperationSpec(
                name="toy",
                shape=("length",),
                units="vector",
                flops=lambda c: c["length"],
                reads=lambda c: c["length"],
                writes=lambda c: c["length"],
                aten=("mine::toy",),
                translator=_of_toy,
                estimators=(Surrogate(_as_transfer),),
            )
        )
        yield "toy"


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


TOY_GPU = """
[gpu.TOY]
reported_names = ["NVIDIA TOY"]
compute_capability = "8.6"
launch_year = 2026
streaming_multiprocessors = 40
boost_clock_mhz = 1000
float32_tflops = 10.24
dram_gb_per_s = 100
l2_mib = 4
l2_gb_per_s = 1000
memory_gib = 8
memory_kind = "GDDR6"
pcie_gb_per_s = 16
power_watts = 75
single_source = true
sources = ["techpowerup"]
"""


def test_a_gpu_of_one_file_and_an_operation_of_one_registration_are_predicted_together(
    toy: str, tmp_path: Path
) -> None:
    shutil.copy(CATALOGUE_FOLDER / SOURCES_FILE, tmp_path)
    shared = (CATALOGUE_FOLDER / "ampere.toml").read_text(encoding="utf-8").partition("[gpu.")[0]
    (tmp_path / "ampere.toml").write_text(shared + TOY_GPU, encoding="utf-8")
    (new,) = load_catalogue(tmp_path)
    tensor = TensorInfo((2**24,), "float32", device="cuda")
    call = Operation(name="mine::toy", phase="forward", inputs=(tensor,), outputs=(tensor,))
    twice = Trace(operations=(call, call), device="meta", recorder="dispatch")
    predictions = lp.predict(twice, gpus=[new, "T4"])
    # 64 MiB read and as many written, twice, at 100 GB/s at most; networks know such copies to reach half of that.
    least = 2 * 2 * 2**26 / 100e9
    assert least < predictions["TOY"].device_seconds < 2 * least
    # The T4's memory is 3.2 times as fast.
    assert predictions["TOY"].device_seconds / predictions["T4"].device_seconds == pytest.approx(3.2, rel=0.2)


def test_calls_without_a_translator_are_refused_and_registrations_end() -> None:
    kind = operations.operation_spec("add")
    with pytest.raises(InvalidArgumentError, match="'other' has calls alone; give `aten` and `translator`"):
        register(
            OperationSpec(name="other", shape=("n",), units="vector", flops=kind.flops, reads=kind.reads, aten=("a",))
        )
    with registrations():
        register(operations.by_bytes("passing"))
        assert "passing" in operations.operation_names()
    assert "passing" not in operations.operation_names()
