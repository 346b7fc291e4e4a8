"""A session around somebody else's step: which recorder, what surrounds the step, and nothing left behind."""

import shutil
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _get_current_dispatch_mode

from lightning_predict.base.errors import CaptureError
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.profiler import ProfilerRecorder, _peak_of
from lightning_predict.record.session import CaptureSession
from tests.processes import run
from tests.record.test_hooks import hooks_left
from tests.record.workloads import Training, names, perceptron_step

CPU = torch.device("cpu")


def session_of(step: Training, **options: Any) -> CaptureSession:
    """A finished session of one step."""
    session = CaptureSession(
        device=CPU, model=step.model, optimizers=[step.optimizer], **{"compiled": False, **options}
    )
    session.start()
    step()
    session.stop()
    return session


def nothing_is_left() -> bool:
    """True where no mode, hook or profiler of a session is on."""
    return (
        _get_current_dispatch_mode() is None
        and _get_current_function_mode() is None
        and hooks_left() == 0
        and not torch._C._autograd._profiler_enabled()
    )


def test_trace_has_the_environment_of_the_step() -> None:
    step = perceptron_step()
    step()
    trace = session_of(step).trace(step_seconds=[0.1, 0.2], loader_seconds=[0.01], samples=4, batches=2)
    assert (trace.device, trace.recorder, trace.compiled) == ("cpu", "dispatch", False)
    assert [parameter.name for parameter in trace.parameters] == ["0.weight", "0.bias", "3.weight", "3.bias"]
    # Linear(8, 16) and Linear(16, 4): 144 + 68 = 212 floats; AdamW keeps twice that, and four step counts.
    assert trace.memory.parameter_bytes == trace.memory.gradient_bytes == 212 * 4
    assert trace.memory.optimizer_state_bytes == 2 * 212 * 4 + 4 * 4
    assert trace.memory.peak_bytes is None
    assert (trace.step_seconds, trace.loader_seconds) == ((0.1, 0.2), (0.01,))
    assert (trace.samples, trace.batches, trace.optimizer_steps) == (4, 2, 1)
    assert trace.profiled_seconds is not None
    assert trace.profiled_seconds > 0
    assert trace.software["torch"] == torch.__version__
    assert trace.gpu_reported_name is None
    assert nothing_is_left()


def test_leaves_are_parameters_and_peak_memory_is_read_from_allocations() -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    session = CaptureSession(device=CPU, compiled=False)
    session.start()
    (torch.ones(4, 3) @ weight).sum().backward()
    trace = session.trace()
    assert [(parameter.name, parameter.shape) for parameter in trace.parameters] == [("parameter_0", (3, 2))]
    assert trace.memory.parameter_bytes == trace.memory.gradient_bytes == 24

    def event(total: int, size: int, kind: int) -> dict[str, Any]:
        return {"name": "[memory]", "args": {"Total Allocated": total, "Bytes": size, "Device Type": kind}}

    # 300 bytes are allocated when 200 of them are released; the host's allocations do not count.
    events = [event(250, 50, 1), event(100, -200, 1), event(900, 900, 0), {"name": "aten::add"}]
    assert _peak_of({"traceEvents": events}) == 300
    assert _peak_of({"traceEvents": events[2:]}) is None


def test_compiled_code_and_fused_evaluation_use_the_profiler() -> None:
    step = perceptron_step()
    assert session_of(step, compiled=True).trace().recorder == "profiler"
    assert session_of(step, compiled=True).trace().compiled is True
    teacher = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    step.model.add_module("teacher", teacher)
    expected = teacher(torch.ones(1, 3, 8))
    results = []
    session = CaptureSession(device=CPU, model=step.model, compiled=False)
    session.start()
    with torch.no_grad():
        results.append(teacher(torch.ones(1, 3, 8)))
    assert session.trace().recorder == "profiler"
    assert torch.allclose(results[0], expected, atol=1e-6)


def test_session_may_pause() -> None:
    step = perceptron_step()
    for compiled in (False, True):
        session = CaptureSession(device=CPU, model=step.model, compiled=compiled)
        for _ in range(2):
            session.start()
            step()
            session.stop()
            step.data.exp()
        trace = session.trace()
        assert names(trace.operations).count("aten::addmm") == 4
        assert "aten::exp" not in names(trace.operations)
        assert trace.optimizer_steps == 2


def test_second_profiler_is_rejected() -> None:
    for compiled in (False, True):
        session = CaptureSession(device=CPU, compiled=compiled)
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as users:
            with pytest.raises(CaptureError, match="Another profiler is running"):
                session.start()
            torch.zeros(2).exp()
        assert "aten::exp" in {event.name for event in users.events() or ()}
        with pytest.raises(CaptureError, match="Nothing was recorded"):
            session.trace()
    assert nothing_is_left()


def test_starting_twice_and_recording_nothing_are_errors() -> None:
    session = CaptureSession(device=CPU, compiled=False)
    session.start()
    with pytest.raises(CaptureError, match=r"recording already; call stop\(\)"):
        session.start()
    torch.zeros(2).exp()
    assert "aten::exp" in names(session.trace().operations)
    assert nothing_is_left()
    with pytest.raises(CaptureError, match=r"Nothing was recorded: call start\(\), run the step, then stop\(\)"):
        CaptureSession(device=CPU).trace()
    session = CaptureSession(device=CPU, compiled=False)
    session.start()
    with pytest.raises(CaptureError, match="no torch operation ran on this thread"):
        session.trace()


@pytest.mark.parametrize(("recorder", "compiled"), [(DispatchRecorder, False), (ProfilerRecorder, True)])
@pytest.mark.parametrize("broken", ["start", "stop"])
def test_failing_start_or_stop_is_reported(
    recorder: type, compiled: bool, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(recorder, broken)

    def fail(self: Any) -> None:
        original(self)
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(recorder, broken, fail)
    session = CaptureSession(device=CPU, compiled=compiled)
    if broken == "start":
        with pytest.raises(CaptureError, match="The step cannot be recorded: a bug of ours"):
            session.start()
    else:
        session.start()
        torch.zeros(2).exp()
        session.stop()
        with pytest.raises(CaptureError, match=r"recording it failed: ZeroDivisionError: a bug of ours"):
            session.trace()
    assert nothing_is_left()


COMPILED = """
import torch
from lightning_predict.record.session import CaptureSession
from torch._dynamo.utils import counters
from tests.record.workloads import perceptron_step

def kernels(step):
    "Names of the compiled graphs that one step calls."
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as run:
        step()
    return sorted(event.name for event in run.events() if "CompiledFxGraph" in event.name)

step = perceptron_step(dropout=0.0)
step.model = torch.compile(step.model)
for _ in range(3):
    step()
before, frames, output = kernels(step), dict(counters["frames"]), None
step.optimizer.param_groups[0]["lr"] = 0.0   # so that one output can be compared with the next
step.optimizer.param_groups[0]["weight_decay"] = 0.0
expected = step.model(step.data)

session = CaptureSession(device=torch.device("cpu"), model=step.model, optimizers=[step.optimizer])
session.start()
step()
session.stop()
trace = session.trace()

assert trace.compiled and trace.recorder == "profiler", trace.recorder
assert len(before) == 2 and kernels(step) == before, (before, kernels(step))
assert dict(counters["frames"]) == frames, counters["frames"]
assert torch.equal(step.model(step.data), expected)
products = [operation.phase for operation in trace.operations if operation.name in ("aten::addmm", "aten::mm")]
assert products.count("forward") == 2 and products.count("backward") == 3, products
assert trace.compiled and trace.compile_seconds > 0, trace.compile_seconds
print("as before")
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_code_stays_compiled() -> None:
    ran = run(COMPILED)
    assert ran.stdout == "as before\n", ran.stderr


IMPORTED = """
import gc

import torch

import lightning_predict as lp
from lightning_predict.record.environment import own_tensor_kinds


def recorded():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU())
        images = torch.empty(8, 3, 32, 32)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(images).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = lp.capture(step, precision="16-mixed")
    return trace.recorder, trace.flags.autocast_dtype, lp.predict(trace, ["T4"], history=False)["T4"]


before = recorded()


class Tagged(torch.Tensor):
    pass


class Base(torch.Tensor):  # as torchvision's TVTensor: only its kinds are created
    pass


class Picture(Base):
    def __new__(cls, data):
        return torch.as_tensor(data).as_subclass(cls)


kinds = Base, Tagged
assert bool(own_tensor_kinds())
after = recorded()
assert before[:2] == ("dispatch", "float16"), before[:2]
assert after == before
del Tagged, kinds
gc.collect()
print(bool(own_tensor_kinds()))
"""


def test_imported_tensor_subclass_changes_no_recording() -> None:
    ran = run(IMPORTED)
    assert ran.stdout.split() == ["False"], ran.stderr


CREATED = """
import torch

import lightning_predict as lp

{before}
model = torch.nn.Linear(3, 2)
steps = []


def step():
    steps.append(1)
    {inside}
    model(Labelled(torch.ones(4, 3)).as_subclass(torch.Tensor)).sum().backward()


trace = lp.capture(step)
print(trace.recorder, len(steps), "aten::addmm" in {{one.name for one in trace.operations}})
"""


@pytest.mark.parametrize(("place", "recorder", "attempts"), [("before", "dispatch", "2"), ("inside", "profiler", "3")])
def test_step_that_creates_a_tensor_subclass_is_recorded(place: str, recorder: str, attempts: str) -> None:
    """A subclass that the step itself defines is found only after a failed attempt, and then profiled."""
    code = {"before": "", "inside": "", place: "class Labelled(torch.Tensor): pass"}
    ran = run(CREATED.format(**code))
    assert ran.stdout.split() == [recorder, attempts, "True"], ran.stderr
