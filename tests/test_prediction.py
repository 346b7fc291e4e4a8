"""The whole pipeline on hand-made traces, with the bundled weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import lightning_predict as lp
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError, UnknownOperationError
from lightning_predict.cost.prediction import Charges
from lightning_predict.hardware.layouts import layout_of, layouts_of
from lightning_predict.kernels.measured_scaling import RATIO_EXPONENTS, transferable_residuals
from lightning_predict.kernels.operations import shape_batch
from lightning_predict.kernels.roofline import roofline_seconds
from lightning_predict.prediction import predict_workload, remaining_steps
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Flags, Kernel, Memory, Operation, TensorInfo, Trace
from lightning_predict.run.workload import Workload

DATA = TensorInfo((4096, 4096), "float32")
PRODUCT = Operation(name="aten::mm", phase="forward", inputs=(DATA, DATA), outputs=(DATA,))
TRACE = Trace(
    operations=(PRODUCT, replace(PRODUCT, phase="backward"), replace(PRODUCT, phase="backward")),
    device="cpu",
    recorder="dispatch",
    samples=8,
    flags=Flags(matmul_tf32=False),
    memory=Memory(parameter_bytes=10 * 2**30, gradient_bytes=2**30, optimizer_state_bytes=2**30),
)

EXPONENT = RATIO_EXPONENTS["same units"]


def test_predictions_are_in_requested_order_and_proportional_to_products() -> None:
    result = lp.predict(TRACE, gpus=["nvidia-l4", "Tesla T4", "L4"])
    assert list(result) == ["L4", "T4"]
    assert result["T4"].iteration_seconds > result["L4"].iteration_seconds > 0
    product = lp.operator_seconds("linear", "T4", dtype="float32", b=1, m=4096, n=4096, k=4096)
    assert math.isclose(lp.predict(TRACE, gpus=["T4"])["T4"].iteration_seconds, 3 * float(product))
    assert tuple(lp.predict(TRACE, gpus=["1xT4", "1x1xL4", "T4"])) == ("T4", "L4")


def test_run_has_total_cost_and_sample_rate() -> None:
    row = lp.predict(TRACE, gpus=["T4"], iterations=1000, usd_per_hour=0.5)["T4"]
    assert row.total_seconds is not None
    assert math.isclose(row.total_seconds, 1000 * row.iteration_seconds)
    assert row.cost_usd is not None
    assert math.isclose(row.cost_usd, row.total_seconds / 3600 * 0.5)
    assert row.samples_per_second is not None
    assert math.isclose(row.samples_per_second, 8 / row.iteration_seconds)
    assert row.iteration_seconds_low < row.iteration_seconds < row.iteration_seconds_high


def test_step_that_exceeds_memory_does_not_fit() -> None:
    result = lp.predict(TRACE, gpus=["T4", "P4"])
    # Parameters of 12 GiB, and a workspace of 2 x 4096 + 8 x 16 KiB for each of two threads.
    assert result["T4"].memory_bytes == 12 * 2**30 + 2 * 8320 * 1024
    assert (result["T4"].fits, result["P4"].fits) == (True, False)
    assert (result["T4"].memory_fit, result["P4"].memory_fit) == ("fits", "exceeds")
    # 16 GiB less a 16th for ECC, 1.3 % for the driver, 450 MiB for the context. With an even chance, a run needs 4.0 %
    # more than predicted: the root of 0.94 x 1.15.
    needed = math.sqrt(0.94 * 1.15) * (12 * 2**30 + 2 * 8320 * 1024)
    free = 16 * 2**30 * 15 / 16 * 0.987 - 450 * 2**20 - needed
    assert result["T4"].memory_free_bytes == pytest.approx(free)
    assert (result["P4"].memory_free_bytes or 0) < 0


def test_reported_memory_of_the_gpu_in_use_decides_the_fit() -> None:
    used = replace(TRACE, device="cuda", gpu_reported_name="Tesla T4", gpu_memory_bytes=13 * 2**30)
    row = lp.predict(used, gpus=["T4"])["T4"]
    assert row.memory_fit == "tight"
    needed = math.sqrt(0.94 * 1.15) * (12 * 2**30 + 2 * 8320 * 1024)
    assert row.memory_free_bytes == pytest.approx(13 * 2**30 - 450 * 2**20 - needed)


def test_unknown_values_are_none_and_coverage_adds_up_to_one() -> None:
    row = lp.predict(replace(TRACE, memory=Memory(), samples=None), gpus=["T4"])["T4"]
    assert (row.total_seconds, row.cost_usd, row.memory_bytes, row.fits, row.samples_per_second) == (None,) * 5
    unknown = Operation(name="my::op", phase="forward", inputs=(DATA,), outputs=(DATA,))
    for row in lp.predict(replace(TRACE, operations=(PRODUCT, unknown)), gpus=["T4", "RTX-4090"]).values():
        assert math.isclose(sum(row.coverage.values()), 1.0)


def test_validation_is_part_of_the_total() -> None:
    workload = Workload(training_iterations=10, validation_iterations=4)
    check = replace(TRACE, operations=(PRODUCT,))
    row = predict_workload(TRACE, layouts_of(["T4"]), workload, Assumptions(), validation=check)["T4"]
    assert row.validation_seconds is not None
    assert row.total_seconds is not None
    assert math.isclose(row.validation_seconds, 4 * row.iteration_seconds / 3)
    assert math.isclose(row.total_seconds, 10 * row.iteration_seconds + row.validation_seconds)
    # In the recorded batch, user code waited for 0.3 s; a later batch took 0.2 s with its wait, so the first was cold.
    cold = replace(check, waited_seconds=0.3, step_seconds=(0.2,))
    waiting = predict_workload(TRACE, layouts_of(["T4"]), workload, Assumptions(), validation=cold)["T4"]
    assert math.isclose(waiting.validation_seconds or 0, row.validation_seconds + 4 * 0.2)
    assert waiting.remaining is not None
    assert row.remaining is not None
    below = math.hypot(4 * 0.2, row.remaining.middle - row.remaining.low)  # elsewhere, it may not wait; independent
    assert math.isclose(waiting.remaining.low, waiting.remaining.middle - below)
    estimated = predict_workload(TRACE, layouts_of(["T4"]), workload, Assumptions())["T4"]
    assert estimated.validation_is_estimated
    assert math.isclose(estimated.validation_seconds or 0, row.validation_seconds)  # a third is forward


def measured_trace() -> Trace:
    """The product measured on a T4 at 40 ms."""
    kernel = Kernel(
        name="volta_sgemm_128x64_nn",
        seconds=0.040,
        grid=(32, 64, 1),
        block=(128, 1, 1),
        registers_per_thread=122,
        shared_memory_bytes=12544,
        stream=7,
        start_seconds=0.0,
    )
    return replace(
        TRACE,
        operations=(replace(PRODUCT, kernels=(kernel,)),),
        device="cuda",
        recorder="profiler",
        gpu_reported_name="Tesla T4",
        gpu_memory_bytes=15 * 2**30,
        step_seconds=(0.041, 0.0415, 0.042),
    )


def test_measured_step_is_used_on_the_gpu_in_use_if_it_is_in_the_catalogue() -> None:
    result = lp.predict(measured_trace(), gpus=["T4", "L4"])
    assert result.used_gpu == "T4"
    assert result["T4"].iteration_seconds == result["T4"].measured_seconds == 0.0415
    assert result["T4"].coverage == {"measured": 1.0}
    assert result["L4"].measured_seconds is None
    assert gpu_in_use(replace(measured_trace(), gpu_reported_name="NVIDIA Imaginary 9000")) is None
    assert gpu_in_use(TRACE) is None


def test_measured_kernels_or_steps_correct_predictions_of_other_gpus() -> None:
    alone = lp.predict(replace(TRACE, operations=(PRODUCT,)), gpus=["T4", "L4"])
    direct = alone["L4"].device_seconds
    ratio = 0.040 * direct / alone["T4"].device_seconds
    scaled = lp.predict(measured_trace(), gpus=["L4"])["L4"].device_seconds
    # Other kernels for the same units: three quarters of the trusted part of the measurement beyond the prediction.
    believed = float(transferable_residuals(np.array([math.log(ratio / direct)]), np.array([0]))[0])
    assert scaled == pytest.approx(direct * math.exp(0.75 * believed))
    assert min(direct, ratio) < scaled < max(direct, ratio)
    predicted = alone["T4"].iteration_seconds
    result = lp.predict(replace(measured_trace(), operations=(PRODUCT,)), gpus=["T4", "L4"])
    assert result["T4"].unmeasured_seconds == pytest.approx(predicted)
    assert result["L4"].unmeasured_seconds is None
    factor = (0.0415 / predicted) ** EXPONENT
    assert result["L4"].iteration_seconds == pytest.approx(alone["L4"].iteration_seconds * factor)
    assert any("corrected by a factor of" in note for note in result["L4"].notes)
    assert lp.predict(measured_trace(), gpus=["T4"])["T4"].unmeasured_seconds == pytest.approx(predicted)


def test_a_faster_host_makes_a_launch_bound_step_faster() -> None:
    tiny = TensorInfo((4, 4), "float32")
    trace = replace(TRACE, operations=(replace(PRODUCT, inputs=(tiny, tiny), outputs=(tiny,)),) * 100)
    usual, fast = (lp.predict(trace, ["H100-SXM-80GB"], host=factor)["H100-SXM-80GB"] for factor in (1, 0.5))
    assert fast.host_seconds == pytest.approx(usual.host_seconds / 2)
    assert fast.iteration_seconds == pytest.approx(usual.iteration_seconds / 2)
    large = [lp.predict(TRACE, ["T4"], host=factor)["T4"].iteration_seconds for factor in (1, 0.5)]
    assert large[0] == pytest.approx(large[1])  # the device bounds it


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_invalid_host_factor_is_rejected(factor: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"or a ratio of times; give a number above 0, for example 0\.5"):
        lp.predict(TRACE, ["T4"], host=factor)


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ([], "gpus is empty; name at least one GPU"),
        (
            "T4",
            r"gpus='T4' is no group of GPUs; expected all, .*, or a list of names, for example \['T4'\]",
        ),
        (["0xT4"], r"The layout '0xT4' has 1 machine\(s\) of 0 GPU\(s\)"),
    ],
)
def test_bad_lists_of_gpus(gpus: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        lp.predict(TRACE, gpus=gpus)


def test_unknown_gpu_error_suggests_similar_names() -> None:
    with pytest.raises(UnknownGpuError, match="H100"):
        lp.predict(TRACE, gpus=["H1000"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"iterations": -1}, "iterations=-1 is negative"),
        ({"iterations": 1.5}, "iterations=1.5 is not a whole number; give the number of remaining steps"),
        ({"iterations": "9"}, "iterations='9' is not a number; expected a finite number"),
        ({"iterations": True}, "iterations=True is not a number"),
        ({"loader_seconds": math.nan}, "loader_seconds=nan is not a number"),
        ({"num_nodes": 0}, "num_nodes=0; a layout has at least one whole machine"),
        ({"num_nodes": 1.5}, "num_nodes=1.5; a layout has at least one whole machine"),
        ({"strategy": "magic"}, "strategy='magic' is not known"),
        ({"usd_per_hour": 0}, "usd_per_hour=0 is not a price"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        lp.predict(TRACE, gpus=["T4"], **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("convert", [torch.tensor, np.float32, np.array, Fraction])
def test_numbers_of_torch_and_numpy_give_the_same_json(convert: Callable[[int], Any]) -> None:
    # A cost was a tensor, which JSON cannot hold.
    def answer(number: Callable[[int], Any]) -> str:
        arguments = {name: number(100) for name in ("iterations", "evaluation_seconds", "loader_seconds")}
        charges = Charges(setup_minutes=number(2), minimum_minutes=number(3), storage_usd=number(4))
        return lp.predict(TRACE, ["T4"], charges=charges, **arguments).to_json()

    assert answer(convert) == answer(int)
    assert layout_of("8xL4", num_nodes=convert(2)).name == "2x8xL4"
    rate = lp.predict(TRACE, ["T4"], loader_samples_per_second=convert(100))
    assert rate.to_json() == lp.predict(TRACE, ["T4"], loader_samples_per_second=100).to_json()


def test_operator_seconds_are_near_measurements_and_broadcast_arrays() -> None:
    # Mean of two published timings of this very product: 0.178462 and 0.166026 ms (NVIDIA aiconfigurator).
    seconds = lp.operator_seconds("linear", "H100-SXM-80GB", dtype="bfloat16", b=1, m=4096, n=4096, k=4096)
    assert isinstance(seconds, float)
    assert math.isclose(seconds, 0.172244e-3, rel_tol=0.10)
    m = np.array([[128.0], [4096.0]])
    seconds = lp.operator_seconds("linear", "A100-SXM-80GB", dtype="bfloat16", m=m, n=[512, 1024, 2048], k=512)
    assert isinstance(seconds, np.ndarray)
    assert seconds.shape == (2, 3)
    single = lp.operator_seconds("linear", "A100-SXM-80GB", dtype="bfloat16", m=4096, n=1024, k=512)
    assert math.isclose(float(seconds[1, 1]), float(single), rel_tol=1e-5)
    with pytest.raises(UnknownOperationError, match=r"'lineer' is not known. Known operations: .*linear"):
        lp.operator_seconds("lineer", "T4", m=1, n=1, k=1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "tf32", "float64"])
@pytest.mark.parametrize("gpu", ["T4", "H100-SXM-80GB", "RTX-4090", "K80"])
def test_no_operation_is_faster_than_its_bound(gpu: str, dtype: str) -> None:
    words = {"batch": 32, "in_channels": 64, "out_channels": 64, "kernel_size": 3, "image_size": 56, "padding": 1}
    seconds = lp.operator_seconds("conv2d", gpu, dtype=dtype, **words)  # type: ignore[arg-type]
    assert isinstance(seconds, float)
    effective = "float32" if dtype == "tf32" and lp.gpu(gpu).peak_flops_per_second.get("tf32") is None else dtype
    bound = roofline_seconds(shape_batch("conv2d", effective, **words), [lp.gpu(gpu)], least=True)
    assert seconds >= float(bound[0, 0])


def test_float8_uses_hopper_rate_and_is_rejected_without_units() -> None:
    sixteen, eight = (
        float(lp.operator_seconds("linear", "H100-SXM-80GB", dtype=dtype, m=8192, n=8192, k=8192))
        for dtype in ("bfloat16", "float8")
    )
    # By the ratio of the peaks in TFLOP/s, but for the launch.
    assert eight == pytest.approx(sixteen * 989.4 / 1978.9, rel=5e-3)
    with pytest.raises(InvalidArgumentError, match="A100-SXM-80GB has no units for float8"):
        lp.operator_seconds("linear", "A100-SXM-80GB", dtype="float8", m=64, n=64, k=64)


def coverage_of(operation: Operation, gpu: str = "T4") -> dict[str, float]:
    """Shares of at least a percent: the few launches in addition to an operation do not matter."""
    coverage = lp.predict(replace(TRACE, operations=(operation,)), gpus=[gpu])[gpu].coverage
    return {method: round(share, 2) for method, share in coverage.items() if share >= 0.01}


def test_coverage_is_mlp_only_for_operations_in_the_training_data() -> None:
    data, half = TensorInfo((64, 128, 1024), "float32"), TensorInfo((32, 64, 56, 56), "float16")
    hidden, filters = TensorInfo((1, 128, 1024), "float32"), TensorInfo((64, 64, 3, 3), "float16")
    assert coverage_of(PRODUCT) == {"mlp": 1.0}
    lstm = Operation(
        name="aten::lstm", phase="forward", inputs=(data, hidden), outputs=(data,), arguments={"num_layers": 1}
    )
    assert coverage_of(lstm) == {"proxy": 1.0}  # products, gates as transfers
    convolution = Operation(
        name="aten::convolution",
        phase="forward",
        inputs=(half, filters),
        outputs=(half,),
        arguments={"padding": [1, 1]},
    )
    assert coverage_of(convolution) == {"formula": 1.0}  # of tiles and bytes
    assert coverage_of(replace(PRODUCT, inputs=(TensorInfo((8192, 8192), "bfloat16"),) * 2)) == {
        "proxy": 1.0
    }  # emulated
    assert coverage_of(Operation(name="my::op", phase="forward", inputs=(DATA,), outputs=(DATA,))) == {"bytes": 1.0}


def test_unmeasured_gpus_report_extrapolated_share() -> None:
    result = lp.predict(replace(TRACE, operations=(PRODUCT,)), gpus=["T4", "RTX-4090"])
    assert (result["T4"].base_share, result["RTX-4090"].base_share) == (0.0, 1.0)
    assert result.as_dict()["predictions"][1]["base_share"] == 1.0


# --- What surrounds a step, and a machine's own rates


def test_total_includes_stated_loader_and_evaluation() -> None:
    step = lp.predict(TRACE, gpus=["T4"])["T4"].iteration_seconds
    slow = lp.predict(TRACE, gpus=["T4"], iterations=100, loader_seconds=3 * step, evaluation_seconds=60)["T4"]
    assert slow.total_seconds == pytest.approx(100 * 3 * step + 60)
    hidden = lp.predict(TRACE, gpus=["T4"], iterations=100, loader_samples_per_second=8 / (step / 2))["T4"]
    assert hidden.total_seconds == pytest.approx(100 * step)  # eight samples load in half a step
    # Two micro-batches of four samples each, at 100 samples a second.
    workload = remaining_steps(replace(TRACE, batches=2), 10, loader_samples_per_second=100.0)
    assert workload.loader.seconds_per_batch == pytest.approx(4 / 100)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"loader_seconds": -1.0}, "loader_seconds=-1.0 is no time"),
        ({"loader_samples_per_second": 0.0}, "loader_samples_per_second=0.0 cannot be used"),
        ({"loader_samples_per_second": 9.0, "loader_seconds": 1.0}, "no loader_seconds beside it"),
        ({"evaluation_seconds": 60.0}, "needs the number of steps"),
    ],
)
def test_impossible_surroundings_are_rejected(words: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        lp.predict(TRACE, gpus=["T4"], **words)  # type: ignore[arg-type]


def test_measured_rate_sets_the_time_of_matmuls() -> None:
    product = replace(
        PRODUCT, inputs=(replace(DATA, dtype="bfloat16"),) * 2, outputs=(replace(DATA, dtype="bfloat16"),)
    )
    trace = replace(TRACE, operations=(product,))
    half, full = (lp.predict(trace, ["B200"], measured={"bf16": rate})["B200-SXM-180GB"] for rate in (700e12, 1400e12))
    assert half.iteration_seconds / full.iteration_seconds == pytest.approx(2, rel=0.05)
    with pytest.raises(InvalidArgumentError, match="does not name its GPU"):
        lp.predict(trace, ["B200", "H200"], measured={"bf16": 700e12})
