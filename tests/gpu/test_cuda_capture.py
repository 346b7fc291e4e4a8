"""Recording on a real GPU: kernels, phases, the same names as everywhere, and nothing changed."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as functional

from lightning_predict.record.attribution import CUDA_GRAPH
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.recording import capture
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace
from tests.gpu.record_traces import workloads
from tests.known import known
from tests.record.workloads import counted, mixed_step, names, perceptron_step

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def mixed() -> Trace:
    """One captured step of the model of all layers."""
    return capture(mixed_step("cuda"), warmup_steps=3, samples_per_step=2)


def test_the_step_ran_on_the_gpu_and_its_kernels_were_measured(mixed: Trace) -> None:
    assert (mixed.device, mixed.recorder) == ("cuda", "profiler")
    assert mixed.gpu_reported_name == torch.cuda.get_device_name(0)
    assert mixed.gpu_memory_bytes == torch.cuda.get_device_properties(0).total_memory
    assert mixed.has_measured_kernels
    for kernel in mixed.kernels:
        assert kernel.seconds > 0
        assert kernel.start_seconds >= known(kernel.launch_start_seconds)
    computing = [kernel for kernel in mixed.kernels if not kernel.name.startswith(("Memcpy", "Memset"))]
    assert all(min(kernel.grid) >= 1 and min(kernel.block) >= 1 for kernel in computing)


def test_kernels_are_whole_attributed_and_memory_measured(mixed: Trace) -> None:
    for operation in mixed.operations:
        if operation.name in ("aten::addmm", "aten::convolution", "aten::native_layer_norm", "aten::lstm_backward"):
            assert operation.kernels, operation.name
    total = sum(kernel.seconds for kernel in mixed.kernels)
    stray = sum(k.seconds for o in mixed.operations if o.name == "unattributed" for k in o.kernels)
    assert stray <= 0.05 * total
    for name, count in (("lstm", 1), ("scaled_dot_product_attention", 2), ("_fused_rms_norm", 1)):
        for direction in (f"aten::{name}", f"aten::{name}_backward"):
            operations = [operation for operation in mixed.operations if operation.name == direction]
            assert len(operations) == count, direction
            assert all(operation.kernels for operation in operations), direction
    inner = {"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward", "aten::_softmax"}
    assert inner.isdisjoint(names(mixed.operations))
    first = {
        phase: next(i for i, o in enumerate(mixed.operations) if o.phase == phase)
        for phase in ("forward", "backward", "optimizer")
    }
    assert first["forward"] < first["backward"] < first["optimizer"]
    clipping = [o for o in mixed.operations if "norm" in o.name and "foreach" in o.name]
    assert {operation.phase for operation in clipping} == {"optimizer"}
    memory = mixed.memory
    assert known(memory.peak_bytes) >= known(memory.parameter_bytes)


def test_the_profiler_names_operations_as_the_dispatch_recorder_does() -> None:
    step = mixed_step("cuda")
    trace = capture(step)
    recorder = DispatchRecorder(step.model)
    recorder.start()
    step()
    recorder.stop()
    assert recorder.failure is None
    assert counted(trace.operations) == counted(recorder.operations)


def test_a_captured_step_keeps_weights_and_random_numbers() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    plain, watched = perceptron_step("cuda", seed=3), perceptron_step("cuda", seed=3)
    states = []
    for step in (plain, watched):
        torch.manual_seed(11)
        for index in range(50):
            if step is watched and index == 5:
                session = CaptureSession(device=CUDA, model=step.model, optimizers=[step.optimizer])
                session.start()
                step()
                assert session.trace().has_measured_kernels
            else:
                step()
        states.append(torch.cuda.get_rng_state())
    torch.use_deterministic_algorithms(False)
    assert torch.equal(*states)
    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision_is_seen(dtype: torch.dtype) -> None:
    step = perceptron_step("cuda")

    def cast() -> None:
        with torch.autocast("cuda", dtype=dtype):
            loss = step.model(step.data).sum()
        loss.backward()

    trace = capture(cast)
    assert trace.flags.autocast_dtype == str(dtype).removeprefix("torch.")
    products = [o for o in trace.operations if o.name == "aten::addmm"]
    assert {tensor.dtype for o in products for tensor in o.inputs} == {trace.flags.autocast_dtype}


@pytest.mark.parametrize(
    ("options", "name"), [({"foreach": True}, "aten::_foreach_addcdiv_"), ({"fused": True}, "aten::_fused_adamw_")]
)
def test_updates_are_seen_with_their_kernels(options: dict[str, bool], name: str) -> None:
    step = perceptron_step("cuda", dropout=0.1, clip=False, foreach=options.get("foreach"), fused=options.get("fused"))
    update = next(o for o in capture(step).operations if o.name == name)
    assert update.phase == "optimizer"
    assert update.kernels


def test_a_batch_that_is_copied_to_the_gpu_is_other() -> None:
    step = perceptron_step("cuda")
    batch = torch.randn(4, 8)

    def copied() -> None:
        step.data = batch.to("cuda")
        step()

    copies = [o for o in capture(copied).operations if any("HtoD" in kernel.name for kernel in o.kernels)]
    assert copies
    assert {operation.phase for operation in copies} == {"other"}


@pytest.mark.parametrize("name", ["mixed", "mixed_bfloat16", "closure"])
def test_every_workload_that_is_recorded_for_the_tests_can_be_captured(name: str) -> None:
    assert capture(workloads("cuda")[name], warmup_steps=2).has_measured_kernels


def test_attention_kernels_of_every_dtype_stay_inside_the_attention() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        query = torch.randn(2, 4, 64, 32, device="cuda", dtype=dtype, requires_grad=True)

        def step(query: torch.Tensor = query) -> None:
            functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()

        operations = [o for o in capture(step).operations if "attention" in o.name]
        assert names(operations) == [
            "aten::scaled_dot_product_attention",
            "aten::scaled_dot_product_attention_backward",
        ]
        assert all(operation.kernels for operation in operations)


COMPILED = """
import torch
from lightning_predict.record.attribution import CUDA_GRAPH
from lightning_predict.record.recording import capture
from tests.record.workloads import perceptron_step

step = perceptron_step("cuda", dropout=0.0)
step.model = torch.compile(step.model)
trace = capture(step, warmup_steps=3)
assert trace.compiled and trace.recorder == "profiler"
fused = [operation for operation in trace.operations if operation.name.startswith("triton::")]
assert fused and all(operation.kernels for operation in fused), [o.name for o in trace.operations]
products = [operation for operation in trace.operations if operation.name in ("aten::addmm", "aten::mm")]
assert products and all(operation.kernels for operation in products)
"""


def test_compiled_code_shows_products_by_shape_and_fused_kernels_by_name() -> None:
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


def test_operations_know_their_modules_forward_and_backward() -> None:
    step = perceptron_step("cuda")
    products = [(o.phase, o.module) for o in capture(step).operations if o.name in ("aten::addmm", "aten::mm")]
    assert [module for phase, module in products if phase == "forward"] == ["0", "3"]
    assert {module for phase, module in products if phase == "backward"} == {"0", "3"}


def test_a_cuda_graph_is_one_operation_with_all_of_its_kernels() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))).cuda()
    rows = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        model(rows)  # loads the library before it is captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(rows)

    def step() -> None:
        rows.copy_(torch.randn(16, 64, device="cuda"))  # the next batch
        graph.replay()

    trace = capture(step, warmup_steps=2)
    (replay,) = [operation for operation in trace.operations if operation.name == CUDA_GRAPH]
    assert len(replay.kernels) >= 8
    assert len({kernel.launch_start_seconds for kernel in replay.kernels}) == 1
    assert any(note.startswith("CUDA graphs: 1 with") for note in trace.notes)
