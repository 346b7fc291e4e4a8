"""What `release=` and `host=` of a prediction decide."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.corrections import torch_version_factor
from lightning_predict.kernels.translation import work_items
from lightning_predict.record.torch_releases import for_torch_release
from lightning_predict.record.trace import Kernel, Operation, TensorInfo, Trace
from lightning_predict.timeline.host import HOSTS, SERVER_HOST, host_of
from lightning_predict.uncertainty import SLOWEST_HOST

GEMM = Kernel(
    name="gemm",
    seconds=1e-3,
    grid=(1, 1, 1),
    block=(128, 1, 1),
    registers_per_thread=32,
    shared_memory_bytes=0,
    stream=7,
    start_seconds=0.0,
)


@pytest.fixture(scope="module")
def step() -> Trace:
    """A training step of two small linear layers, so that launches decide it."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        data = torch.empty(8, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return lp.capture(run)


def launches(trace: Trace, phase: str) -> int:
    """Kernels that the host launches in a phase."""
    return sum(item.launches for item in work_items(trace) if trace.operations[item.operations[0]].phase == phase)


def test_before_torch_2_0_attention_is_two_products_and_a_softmax() -> None:
    query = TensorInfo((8, 12, 1024, 64), "float16")
    ahead = Operation(name="aten::scaled_dot_product_attention", phase="forward", inputs=(query,) * 3, outputs=(query,))
    back = replace(ahead, name="aten::scaled_dot_product_attention_backward", phase="backward")
    trace = Trace(operations=(ahead, back), device="meta", recorder="dispatch", software={"torch": "2.13.0"})
    for release, names in (
        ("2.0", ["attention", "attention_backward"]),
        ("1.13", ["eager_attention", "eager_attention_backward"]),
    ):
        items = work_items(for_torch_release(trace, release))
        assert [shape.operation for item in items for shape in item.shapes] == names
        assert {shape.dtype for item in items for shape in item.shapes} == {"float16"}
    # Scores of 1,024 x 1,024 for each of 96 heads, 0.2 GB, are written and read where a fused kernel keeps them.
    old, new = (lp.predict(trace, ["V100-SXM2-32GB"], release=release, history=False) for release in ("1.13", "2.0"))
    assert old["V100-SXM2-32GB"].step.device_seconds > 1.5 * new["V100-SXM2-32GB"].step.device_seconds


def test_before_torch_2_0_gradients_are_zeroed_and_updates_launched_singly(step: Trace) -> None:
    old = for_torch_release(step, "1.13")
    assert old.software["torch"] == "1.13"
    # Four parameters: each gradient is filled with zeros before the step and added to in the backward pass.
    assert launches(old, "other") == launches(step, "other") + 4
    assert launches(old, "backward") == launches(step, "backward") + 4
    # SGD with momentum: buf.mul_, buf.add_ and param.add_, for each tensor or for all together.
    assert launches(old, "optimizer") == 4 * 3
    assert launches(step, "optimizer") == 3
    zeros = [operation for operation in old.operations if operation.name == "aten::zero_"]
    assert sorted(operation.inputs[0].shape for operation in zeros) == [(64,), (64,), (64, 64), (64, 64)]


def test_gradient_additions_run_in_reverse_parameter_order(step: Trace) -> None:
    old = for_torch_release(step, "1.8")
    phases = [operation.phase for operation in old.operations]
    assert phases == sorted(phases, key=["other", "forward", "backward", "optimizer"].index)
    added = [one for one in old.operations if one.name == "aten::add_" and one.phase == "backward"]
    assert [operation.inputs[0].shape for operation in added] == [(64,), (64, 64), (64,), (64, 64)]


def test_current_release_and_inference_change_no_operation(step: Trace) -> None:
    assert for_torch_release(step, None) is step
    assert for_torch_release(step, "2.4").operations == step.operations
    # A step of an older release already says what its own loop did, and so does one that fills its gradients.
    old = for_torch_release(step, "1.13")
    assert for_torch_release(old, "1.11").operations == old.operations
    asked_again = for_torch_release(replace(old, software={"torch": "2.1"}), "1.8")
    assert [operation.name for operation in asked_again.operations] == [operation.name for operation in old.operations]
    forward = replace(step, operations=tuple(one for one in step.operations if one.phase == "forward"))
    assert for_torch_release(forward, "1.13").operations == forward.operations


@pytest.mark.parametrize(
    ("activation", "before", "kept"),
    [
        (nn.Softmax(dim=-1), (1, 11), 2),
        (nn.LogSoftmax(dim=-1), (1, 11), 2),
        (nn.ReLU(), (1, 10), 1),
        (nn.GELU(), (1, 10), 2),
    ],
)
def test_older_releases_keep_the_input_of_softmax_and_relu_and_widen_that_of_gelu_under_autocast(
    activation: nn.Module, before: tuple[int, int], kept: int
) -> None:
    with torch.device("meta"):
        layers = [nn.Linear(64, 2**20, bias=False), activation, nn.Linear(2**20, 64, bias=False)]
        model = nn.Sequential(*layers, *layers)
        data = torch.empty(256, 64)

    def run() -> None:
        with torch.autocast("cuda", dtype=torch.float16, enabled=isinstance(activation, nn.GELU)):
            loss = model(data).float().sum()
        loss.backward()

    step = lp.capture(run)

    def allocated(release: str | None) -> float:
        need = lp.predict(step, ["A100-80GB"], release=release)["A100-SXM-80GB"].memory.allocated
        assert need is not None
        return need.middle

    major, minor = before
    assert allocated(f"{major}.{minor}") == allocated(None)
    # The peak is at the last activation's backward pass. Softmax reads result and input there, ReLU the input instead
    # of the result; the first activation has kept both. Each of these tensors has 1 GiB. GELU reads gradient and input
    # and writes a gradient, and the first has kept its input: four tensors of 1 GiB instead of 0.5.
    more = allocated(f"{major}.{minor - 1}") - allocated(None)
    assert more == pytest.approx(kept * 256 * 2**20 * 4, rel=0.01)


def test_an_older_release_takes_longer_by_its_kernels_and_its_launches(step: Trace) -> None:
    now, old = (lp.predict(step, ["T4"], release=release)["T4"] for release in (None, "1.13"))
    assert old.iteration_seconds > 1.5 * now.iteration_seconds  # 7 launches become 25
    big = TensorInfo((4096, 4096), "float16")
    product = Operation(name="aten::mm", phase="forward", inputs=(big, big), outputs=(big,))
    trace = Trace(operations=(product,) * 100, device="meta", recorder="dispatch")
    now, old = (lp.predict(trace, ["T4"], release=release)["T4"] for release in (None, "1.13"))
    assert old.iteration_seconds / now.iteration_seconds == pytest.approx(torch_version_factor({"torch": "1.13"}))


def test_measured_kernels_keep_their_release(step: Trace) -> None:
    first, *others = step.operations
    measured = replace(
        step,
        operations=(replace(first, kernels=(GEMM,)), *others),
        device="cuda",
        gpu_reported_name="Tesla T4",
        software={"torch": "2.4.1"},
    )
    predictions = lp.predict(measured, ["L4"], release="1.13")
    assert any("release='1.13' is not used" in note and "under torch 2.4.1" in note for note in predictions.notes)
    assert predictions["L4"].iteration_seconds == lp.predict(measured, ["L4"])["L4"].iteration_seconds


@pytest.mark.parametrize("release", ["", "new", 2.1, "2.1x", "2.6 ", "2.1."])
def test_invalid_release_is_rejected(release: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not a release of torch; give one as text, for example '1\.13'"):
        Assumptions(release=release)  # type: ignore[arg-type]


def test_host_class_sets_time_and_interval(step: Trace) -> None:
    by_host = {name: lp.predict(step, ["T4"], host=name)["T4"] for name in HOSTS}
    unknown = lp.predict(step, ["T4"])["T4"]
    for name, host in HOSTS.items():
        prediction = by_host[name]
        assert host.spread is not None
        assert prediction.iteration_seconds == pytest.approx(host.factor * unknown.iteration_seconds)
        # The host bounds the step, so that its interval is the step's.
        assert prediction.iteration_seconds_high / prediction.iteration_seconds == pytest.approx(host.spread, rel=1e-3)
    assert unknown.iteration_seconds_high / unknown.iteration_seconds == pytest.approx(SLOWEST_HOST, rel=1e-3)


def test_a_host_is_a_class_or_a_factor() -> None:
    assert host_of("0.5") == host_of(0.5)
    assert host_of(None).factor == 1
    assert host_of(HOSTS["fast"]) is HOSTS["fast"]
    # Half of the launches are half of the time, of a class and of a host that was timed; the class says nothing of it.
    half = HOSTS["slow"].scaled(0.5)
    assert half.default_model.factor == HOSTS["slow"].factor / 2
    assert half.measured_factor == 0.5
    assert host_of("fast").factor < host_of("median").factor < host_of("slow").factor
    for wrong in ("quick", True, 0, object()):
        with pytest.raises(InvalidArgumentError, match=r"not a CPU class \(fast, median, slow\) or a ratio"):
            host_of(wrong)  # type: ignore[arg-type]


def test_heading_names_release_and_host(step: Trace) -> None:
    heading = lp.predict(step, ["T4"], release="1.13", host="slow").heading
    assert heading is not None
    assert heading.endswith("recorded on the meta device, under torch 1.13, with a slow host")
    by_factor, plain = (lp.predict(step, ["T4"], host=host).heading or "" for host in (0.5, None))
    assert by_factor == f"{plain}, with a host that takes 0.5 times as long"


def profiled_on_t4(step: Trace, **fields: object) -> Trace:
    """The step as a profiler records it on a T4: each operation takes 100 us of the CPU and 1 us of the GPU."""
    timed = [
        replace(
            operation,
            kernels=(
                replace(GEMM, seconds=1e-6, start_seconds=begins, launch_start_seconds=begins, launch_seconds=1e-5),
            ),
            host_start_seconds=begins,
            host_seconds=1e-4,
        )
        for number, operation in enumerate(step.operations)
        for begins in (number * 1e-4,)
    ]
    trace = replace(step, operations=tuple(timed), device="cuda", recorder="profiler", gpu_reported_name="Tesla T4")
    return replace(trace, **fields)  # type: ignore[arg-type]


def test_host_class_replaces_a_profiled_cpu_but_not_a_measured_one(step: Trace) -> None:
    trace = profiled_on_t4(step)
    profiled, fast, slow = (lp.predict(trace, ["L4"], host=host) for host in (None, "fast", "slow"))
    assert fast["L4"].host_seconds < slow["L4"].host_seconds < profiled["L4"].host_seconds
    assert slow["L4"].host_seconds / fast["L4"].host_seconds == pytest.approx(
        HOSTS["slow"].factor / HOSTS["fast"].factor
    )
    assert "with a fast host" in str(fast)
    trace = profiled_on_t4(step, step_seconds=(2e-3,), host_seconds_unprofiled=(1.9e-3,))
    with pytest.raises(InvalidArgumentError, match="'fast' has no effect: the CPU time of this step was measured"):
        lp.predict(trace, ["L4"], host="fast")
    assert lp.predict(trace, ["L4"], host=0.5)["L4"].host_seconds < lp.predict(trace, ["L4"])["L4"].host_seconds


def test_unknown_host_of_a_server_gpu_takes_longer_than_the_table(step: Trace) -> None:
    predictions = lp.predict(step, ["H100-SXM-80GB", "H100-PCIe-80GB", "A100-SXM-80GB", "RTX-4090"])
    table = predictions["A100-SXM-80GB"].host_seconds
    assert predictions["H100-SXM-80GB"].host_seconds == pytest.approx(SERVER_HOST * table)
    assert predictions["H100-PCIe-80GB"].host_seconds == pytest.approx(table)
    asked = lp.predict(step, ["H100-SXM-80GB", "RTX-4090"], host="median")
    assert asked["H100-SXM-80GB"].host_seconds == pytest.approx(asked["RTX-4090"].host_seconds)
    assert any("A usual server's CPU needs" in note for note in predictions["H100-SXM-80GB"].notes)
