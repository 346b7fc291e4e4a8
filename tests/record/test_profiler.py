"""Recording with torch.profiler, here on the CPU: the same operations, nothing changed, and never a second profiler."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lightning_predict.record import profiler
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.hooks import ModuleWatch
from lightning_predict.record.profiler import ProfilerRecorder, _later
from lightning_predict.record.trace import PHASES, Kernel, Operation, TensorInfo, Trace
from tests.record.test_dispatch import operations_of
from tests.record.test_hooks import hooks_left
from tests.record.workloads import Step, Training, counted, mixed_step, perceptron_step


def profiled(step: Step) -> Trace:
    recorder = ProfilerRecorder(cuda=False)
    recorder.start()
    step()
    recorder.stop()
    return recorder.trace()


def test_profiler_and_dispatch_recorder_agree_on_all_layers() -> None:
    step = mixed_step("cpu")
    step()
    assert counted(profiled(step).operations) == counted(operations_of(step))


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_profiler_and_dispatch_recorder_agree_on_a_small_step(options: dict[str, Any]) -> None:
    step = perceptron_step(clip=True, **options)
    step()
    # While a mode is on, autograd adds and detaches out of place, and `torch.tensor` is made up of other parts.
    differs: set[tuple[str, str]] = {("backward", "aten::add"), ("backward", "aten::add_")} | {
        (phase, f"aten::{name}") for phase in PHASES for name in ("detach", "detach_", "empty", "lift_fresh")
    }
    seen, watched = (
        [
            (o.name, o.phase, [(t.shape, t.dtype) for t in o.inputs])
            for o in operations
            if (o.phase, o.name) not in differs
        ]
        for operations in (profiled(step).operations, operations_of(step))
    )
    assert seen == watched


def test_profiler_and_dispatch_recorder_agree_on_arguments() -> None:
    step = mixed_step("cpu")
    step()
    seen = [o for o in profiled(step).operations if o.phase == "forward" and o.name != "aten::detach"]
    watched = [o for o in operations_of(step) if o.phase == "forward" and o.name != "aten::detach"]
    compared = 0
    for one, other in zip(seen, watched, strict=True):
        assert one.name == other.name
        for word, value in one.arguments.items():
            assert other.arguments[word] == value, (one.name, word)
            compared += 1
    assert compared > 40


def test_profiled_tensors_have_ids_devices_and_dtypes() -> None:
    step = perceptron_step(foreach=True)
    step()
    trace = profiled(step)
    update = next(o for o in trace.operations if o.name == "aten::_foreach_addcdiv_")
    assert {tensor.dtype for tensor in update.inputs} == {"float32"}
    assert {tensor.device for tensor in update.inputs} == {"cpu"}
    forward, backward = (
        next(o for o in trace.operations if o.name == name) for name in ("aten::relu", "aten::threshold_backward")
    )
    assert forward.inputs[0].id is not None
    assert backward.inputs[1].shape == forward.inputs[0].shape
    ids = [tensor.id for o in trace.operations if o.name == "aten::addmm" for tensor in o.inputs]
    assert len(set(ids)) == len(ids) == 6  # two biases, two weights, the data and the hidden layer


def test_profiling_changes_no_weights_or_random_numbers() -> None:
    plain, watched = perceptron_step(seed=4), perceptron_step(seed=4)
    states = []
    for step in (plain, watched):
        torch.manual_seed(5)
        for index in range(10):
            if step is watched and index == 3:
                profiled(step)
            else:
                step()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_parts_of_a_step_are_joined_in_order() -> None:
    recorder = ProfilerRecorder(cuda=False)
    for value in (1.0, 2.0):
        recorder.start()
        torch.full((2,), value).exp()
        recorder.stop()
    operations = [o for o in recorder.trace().operations if o.name == "aten::exp"]
    starts = [o.host_start_seconds for o in operations]
    assert len(starts) == 2
    assert starts == sorted(starts)  # type: ignore[type-var]


def test_shifted_operation_keeps_all_fields() -> None:
    kernel = Kernel(
        name="gemm",
        seconds=1e-3,
        grid=(1, 2, 3),
        block=(4, 5, 6),
        registers_per_thread=7,
        shared_memory_bytes=8,
        stream=9,
        start_seconds=0.5,
        launch_start_seconds=0.25,
        launch_seconds=1e-6,
        device=1,
    )
    values = {
        "name": "aten::mm",
        "phase": "backward",
        "inputs": (TensorInfo((2,), "float32"),),
        "outputs": (TensorInfo((3,), "float16"),),
        "arguments": {"dim": 1},
        "module": "layer",
        "kernels": (kernel,),
        "host_start_seconds": 0.125,
        "host_seconds": 0.0625,
        "freed": (3,),
        "python_seconds": 0.03,
    }
    operation = Operation(**values)  # type: ignore[arg-type]
    assert set(values) == {field.name for field in fields(Operation)}  # none is forgotten below
    moved = replace(kernel, start_seconds=2.5, launch_start_seconds=2.25)
    assert _later(operation, 2.0) == replace(operation, kernels=(moved,), host_start_seconds=2.125)


def marked(step: Training) -> Trace:
    """A step as a session on CUDA records it, with a mark around each module's call."""
    watch = ModuleWatch(step.model, marks=True)
    watch.open()
    try:
        return profiled(step)
    finally:
        watch.close()


@pytest.mark.parametrize(
    ("make", "products"),
    [(perceptron_step, {"0", "3"}), (partial(mixed_step, "cpu"), {"perceptron.0", "perceptron.2", "attention"})],
)
def test_profiler_and_dispatch_recorder_agree_on_modules(make: Callable[[], Training], products: set[str]) -> None:
    step = make()
    step()
    recorder = DispatchRecorder(step.model)
    recorder.start()
    step()
    recorder.stop()
    left_out = {"aten::detach", "aten::add", "aten::add_", "aten::detach_"}  # a mode adds and detaches otherwise
    seen, watched = (
        Counter((o.name, o.phase, o.module) for o in operations if o.phase != "optimizer" and o.name not in left_out)
        for operations in (marked(step).operations, recorder.operations)
    )
    assert seen == watched
    assert {module for name, phase, module in seen if name == "aten::mm" and phase == "backward"} == products


def test_open_module_mark_is_closed_at_stop() -> None:
    watch = ModuleWatch(marks=True)
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: watch.close())  # a stop in the middle of a call
    recorder = ProfilerRecorder(cuda=False)
    recorder.start()
    watch.open()
    model(torch.zeros(1, 2))
    recorder.stop()
    assert hooks_left() == 0
    assert "aten::addmm" in {o.name for o in recorder.trace().operations}


@pytest.mark.parametrize("level", [None, "0"])
def test_kineto_is_quiet_unless_a_log_level_is_set(level: str | None) -> None:
    """Kineto of torch 2.13 and 2.14 logs two lines a profile, above errors."""
    code = (
        "import os, torch\nfrom lightning_predict.record.profiler import ProfilerRecorder\n"
        "recorder = ProfilerRecorder(cuda=False)\nrecorder.start()\ntorch.ones(3) + 1\nrecorder.stop()\n"
        "print(os.environ.get('KINETO_LOG_LEVEL'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    given = {} if level is None else {"KINETO_LOG_LEVEL": level}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment | given, check=True
    )
    assert done.stdout.strip() == str(level)
    assert ("profiler_start" in done.stderr) is (level == "0")


@pytest.mark.skipif(profiler._kineto_level() is None, reason="this build of torch hides the level of messages")
def test_kineto_is_quiet_only_during_a_recording() -> None:
    code = (
        "import sys, torch\nfrom lightning_predict.record import profiler\nown = torch.profiler.profile\n"
        "profiler.profile = lambda activities, **options: own(activities=activities[:1], **options)\n"
        "profiler._launch_warm_up_kernels = torch.cuda.synchronize = lambda *_: None\n"
        "for _ in range(2):\n"
        "    recorder = profiler.ProfilerRecorder(cuda=True)\n    recorder.start()\n    torch.ones(3) + 1\n"
        "    recorder.stop()\n    assert recorder.trace().operations\n"
        "print('--- a profile of the user', file=sys.stderr, flush=True)\n"
        "with own(activities=[torch.profiler.ProfilerActivity.CPU]):\n    torch.ones(3) + 1\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    quiet, _, users = done.stderr.partition("--- a profile of the user")
    assert "profiler_st" not in quiet
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    assert users.count("profiler_start") == (release >= (2, 13))


def test_warm_up_kernels_are_not_in_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA, more kernels than a profile may lose run before the step; here the CPU runs them."""
    launch, launched = profiler._launch_warm_up_kernels, []

    def on_the_cpu(kernels: int) -> None:
        launched.append(kernels)
        launch(kernels, device="cpu")

    monkeypatch.setattr(profiler, "_launch_warm_up_kernels", on_the_cpu)
    monkeypatch.setattr(profiler, "profile", partial(_of_the_cpu, profile))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    for session in range(1, 4):
        recorder = ProfilerRecorder(cuda=True)
        recorder.start()
        torch.ones(3).exp()
        recorder.stop()
        assert [one.name for one in recorder.trace().operations if one.name != "aten::ones"] == ["aten::exp"]
        assert launched[-1] >= 4 * session
    assert launched == sorted(launched)


def _of_the_cpu(make: Callable[..., profile], *, activities: object, **options: Any) -> profile:
    return make(activities=[ProfilerActivity.CPU], **options)
