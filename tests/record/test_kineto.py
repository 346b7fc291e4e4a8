"""Imported profiles: one written by hand for CUDA, and real ones of a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_predict.base.note import is_decisive
from lightning_predict.record.imports import import_trace
from lightning_predict.record.trace import Operation, Trace
from tests.record.kineto_files import V100, Device, steps, write
from tests.record.test_dispatch import operations_of
from tests.record.test_events import event
from tests.record.workloads import counted, mixed_step, names, perceptron_step

TRACES = Path(__file__).parents[1] / "traces"
SYNTHETIC = TRACES / "synthetic_cuda_step.json"
LOADER = "enumerate(DataLoader)#"


@pytest.fixture(scope="module")
def cuda() -> Trace:
    """The hand-written CUDA step."""
    return import_trace(SYNTHETIC)


def the(trace: Trace, name: str) -> Operation:
    """The one operation of a name."""
    (call,) = [operation for operation in trace.operations if operation.name == name]
    return call


def test_step_has_operations_with_phases_and_kernels(cuda: Trace) -> None:
    assert [(o.phase, o.name, len(o.kernels)) for o in cuda.operations] == [
        ("other", "aten::_to_copy", 1),  # the batch's copy to the device
        ("other", "aten::zero_", 1),  # zero_grad
        ("forward", "aten::convolution", 2),  # the convolution and its bias, below aten::conv2d
        ("forward", "aten::t", 0),
        ("forward", "aten::addmm", 1),  # below aten::linear
        ("forward", "aten::lstm", 2),
        ("forward", "aten::scaled_dot_product_attention", 1),
        ("forward", "triton::triton_poi_fused_relu_0", 1),
        ("forward", "aten::sum", 1),
        ("forward", "FusedLayerFunction", 1),  # a kernel that no operator launched: named after the call around
        ("backward", "aten::expand", 0),
        ("backward", "aten::scaled_dot_product_attention_backward", 2),
        ("backward", "aten::lstm_backward", 1),  # two nodes and, between them, one that adds to .grad
        ("backward", "aten::detach", 0),
        ("backward", "aten::t", 0),
        ("backward", "aten::mm", 1),
        ("backward", "aten::mm", 1),
        ("backward", "aten::convolution_backward", 2),
        ("backward", "aten::add_", 1),
        ("optimizer", "aten::_foreach_norm", 1),  # clipping, in the closure, after the backward pass
        ("optimizer", "aten::_fused_adamw_", 1),
        ("other", "unattributed", 1),
    ]


def test_every_kernel_gpu_and_software_version_is_read(cuda: Trace) -> None:
    # The durations of the file's kernels, copies and fills from 2000 us on add up to 193 us.
    assert sum(kernel.seconds for kernel in cuda.kernels) == pytest.approx(193e-6)
    assert len(cuda.kernels) == 22
    lost = "Kernels launched outside every known operation: 1, 5.2% of the device time (stray_kernel)."  # 10 of 193
    assert lost in cuda.notes
    assert (cuda.device, cuda.recorder) == ("cuda", "kineto")
    assert (cuda.gpu_reported_name, cuda.gpu_memory_bytes) == ("NVIDIA A100-SXM4-40GB", 42405855232)
    assert (cuda.software["cuda_runtime_version"], cuda.optimizer_steps) == ("12060", 1)
    assert "does not contain the TF32 setting" in cuda.notes[-1]


def test_kernel_has_the_fields_of_the_driver(cuda: Trace) -> None:
    (kernel,) = the(cuda, "aten::addmm").kernels
    assert kernel.name == "ampere_sgemm_128x64_tn"
    assert kernel.seconds == pytest.approx(12e-6)
    assert (kernel.grid, kernel.block) == ((1, 1, 1), (128, 1, 1))
    assert (kernel.registers_per_thread, kernel.shared_memory_bytes, kernel.stream) == (122, 12544, 7)
    # The step begins at 2000 us; cuLaunchKernelEx ran from 2450 for 7 us, the kernel from 2460.
    assert kernel.start_seconds == pytest.approx(460e-6)
    assert kernel.launch_start_seconds == pytest.approx(450e-6)
    assert kernel.launch_seconds == pytest.approx(7e-6)
    copy = the(cuda, "aten::_to_copy").kernels[0]
    assert (copy.name, copy.grid) == ("Memcpy HtoD (Pageable -> Device)", (0, 0, 0))
    stray = the(cuda, "unattributed").kernels[0]
    assert (stray.stream, stray.launch_start_seconds) == (20, None)


def test_operations_have_host_times_inputs_and_arguments(cuda: Trace) -> None:
    convolution = the(cuda, "aten::convolution")
    assert convolution.host_start_seconds == pytest.approx(205e-6)
    assert convolution.host_seconds == pytest.approx(110e-6)
    # The backward pass of the LSTM ran in two nodes of 15 and 100 us, from 3200 us on.
    backward = the(cuda, "aten::lstm_backward")
    assert backward.host_start_seconds == pytest.approx(1200e-6)
    assert backward.host_seconds == pytest.approx(115e-6)
    assert the(cuda, "unattributed").host_start_seconds is None
    assert cuda.profiled_seconds == pytest.approx(3000e-6)
    assert [tensor.shape for tensor in convolution.inputs] == [(2, 3, 16, 16), (8, 3, 3, 3), (8,)]
    assert convolution.arguments["padding"] == [1, 1]
    lstm = the(cuda, "aten::lstm")
    assert [tensor.shape for tensor in lstm.inputs] == [
        (32, 4, 16),
        (1, 32, 16),
        (1, 32, 16),
        (64, 16),
        (64, 16),
        (64,),
        (64,),
    ]
    assert lstm.arguments["batch_first"] is True
    assert the(cuda, "aten::lstm_backward").inputs == lstm.inputs
    attention = the(cuda, "aten::scaled_dot_product_attention")
    assert attention.arguments["is_causal"] is True
    assert attention.arguments["compute_dtype"] == "float16"  # float32 came in, flash attention ran in 16 bits
    update = the(cuda, "aten::_fused_adamw_")
    assert len(update.inputs) == 4 * 4 + 4  # parameters, gradients, two moments; four step counts
    assert update.arguments["beta2"] == 0.999


def test_waits_are_synchronizations_and_loader_calls(cuda: Trace, tmp_path: Path) -> None:
    # The step begins at 2000; item() synchronizes from 2037 to 2045.
    (own,) = cuda.waits
    assert own.start_seconds == pytest.approx(37e-6)
    assert own.seconds == pytest.approx(8e-6)
    assert own.cause == "device"
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::exp", "pid": 1, "tid": 1, "ts": 100, "dur": 9, "args": {}},
        {"ph": "X", "cat": "user_annotation", "name": f"{LOADER}Iter.__next__", "pid": 1, "tid": 1, "ts": 0, "dur": 50},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventSynchronize", "pid": 1, "tid": 1, "ts": 120, "dur": 7},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventQuery", "pid": 1, "tid": 1, "ts": 130, "dur": 7},
    ]
    path = tmp_path / "waits.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    assert [(wait.cause, round(wait.seconds * 1e6)) for wait in import_trace(path).waits] == [
        ("loader", 50),
        ("device", 7),
    ]


def test_waits_of_threads_without_launches_are_ignored(tmp_path: Path) -> None:
    # Thread 1 computes and synchronizes; thread 9, which pins memory, waits for its copies.
    device = Device()
    device.product(0, 30)
    for thread, start in ((1, 100), (9, 40), (9, 150)):
        device.events.append({**event("cudaStreamSynchronize", start, 20, "cuda_runtime"), "tid": thread})
    path = tmp_path / "threads.json"
    path.write_text(json.dumps({"traceEvents": device.events}))
    (wait,) = import_trace(path, gpu="T4").waits
    assert wait.start_seconds == pytest.approx(100e-6)


@pytest.mark.parametrize(("head", "category"), [({"with_stack": 1}, "cpu_op"), ({}, "python_function"), ({}, "cpu_op")])
def test_python_stacks_are_detected_by_header_or_events(head: dict[str, int], category: str, tmp_path: Path) -> None:
    event = {"ph": "X", "name": "aten::exp", "pid": 1, "tid": 1, "ts": 100, "dur": 9, "args": {}}
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps(head | {"traceEvents": [event | {"cat": "cpu_op"}, event | {"cat": category}]}))
    assert import_trace(path).has_python_stacks == (bool(head) or category == "python_function")


def test_real_profiles_have_the_operations_and_phases_of_the_dispatch_recorder() -> None:
    trace = import_trace(TRACES / "cpu_mixed.json.gz")
    step = mixed_step("cpu")
    step()
    assert counted(trace.operations) == counted(operations_of(step))
    assert (trace.device, trace.optimizer_steps) == ("cpu", 1)
    whole = [(o.name, o.arguments) for o in trace.operations if o.name.startswith(("aten::lstm", "aten::scaled"))]
    seen = [(o.name, o.arguments) for o in operations_of(step) if o.name.startswith(("aten::lstm", "aten::scaled"))]
    assert whole == seen
    assert len(whole) == 6  # two attentions and one LSTM, forward and backward
    trace = import_trace(TRACES / "cpu_closure.json.gz")
    step = perceptron_step(clip=True, foreach=True)
    step()
    assert counted(trace.operations) == counted(operations_of(step))
    assert {o.phase for o in trace.operations if "norm" in o.name} == {"optimizer"}  # clipping
    assert {o.phase for o in trace.operations if o.name == "aten::_foreach_zero_"} == {"other"}
    assert names(trace.operations, "optimizer")[-1].startswith("aten::_foreach")


def test_real_profiles_have_casts_and_the_matmuls_of_compiled_code() -> None:
    trace = import_trace(TRACES / "cpu_mixed_bfloat16.json.gz")
    assert trace.flags.autocast_dtype == "bfloat16"
    products = [o for o in trace.operations if o.name == "aten::addmm"]
    assert {tensor.dtype for o in products for tensor in o.inputs} == {"bfloat16"}
    assert {o.phase for o in trace.operations if o.name == "aten::_to_copy"} == {"forward", "backward"}
    trace = import_trace(TRACES / "cpu_compiled.json.gz")
    assert trace.compiled
    shapes = [(o.phase, [tensor.shape for tensor in o.inputs]) for o in trace.operations if o.name == "aten::addmm"]
    # Linear(8, 16) and Linear(16, 4) on 4 rows; the output that compiled code passes along is left out.
    assert shapes == [("forward", [(16,), (4, 8), (8, 16)]), ("forward", [(4,), (4, 16), (16, 4)])]
    assert "aten::mm" in names(trace.operations, "backward")


def test_import_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from lightning_predict.record.imports import import_trace; "
        f"import_trace({str(SYNTHETIC)!r}).save({str(tmp_path / 'x.json')!r}); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("size", "visible", "nodes"), [(8, 1, 1), (4, 1, 1), (16, 1, 2), (16, 8, 2), (8, 4, 2), (1, 1, 1)]
)
def test_number_of_machines_follows_from_visible_gpus(size: int, visible: int, nodes: int, tmp_path: Path) -> None:
    rows = [{"id": number, "name": V100, "totalGlobalMem": 16_945_512_448} for number in range(visible)]
    file = write(
        tmp_path / "rank0.json",
        list(steps([2])),
        distributedInfo={"rank": 0, "world_size": size},
        deviceProperties=rows,
    )
    trace = import_trace(file)
    assert (trace.world_size, trace.num_nodes) == (size, nodes)


@pytest.mark.parametrize(("updates", "known"), [(0, "no update of an optimizer"), (3, "3 updates of an optimizer")])
def test_unmarked_file_is_noted_as_one_step(updates: int, known: str, tmp_path: Path) -> None:
    device = Device()
    device.product(10, 50)
    done = [event("Optimizer.step#SGD.step", 100 + 20 * number, 10, "user_annotation") for number in range(updates)]
    (note,) = [one for one in import_trace(write(tmp_path / "a.json", [*device.events, *done])).notes if "marks" in one]
    assert note == f"The file marks no steps (ProfilerStep#): all of it counts as one step, with {known}."
    assert is_decisive(note)
