"""A whole fit as on a GPU: window, attribution, prediction, table and outcome, from documents that GPUs recorded."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.profiler import profile

import lightning_predict as lp
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.record import environment
from lightning_predict.record.trace import Operation, Trace, read_trace_json
from tests.callbacks.fake_device import GIB, FakeDevice
from tests.callbacks.small import BATCH_SIZE, FEATURES, Small, network
from tests.known import known
from tests.record.kineto_files import Device, mark
from tests.recordings import recording

STEPS = 60
GPUS = ["T4", "A100-SXM-40GB", "H100-SXM-80GB"]
Document = dict[str, Any]


def small_document(*, products: int = 40, microseconds: float = 200.0) -> Document:
    """A step of products as a profiler exports it: 20 us of host each, a kernel of 200 us behind it."""
    device = Device()
    for number in range(products):
        device.product(1000 + 25.0 * number, microseconds)
    end = max(1000 + 25.0 * products, device.ends) + 100
    return {
        "traceEvents": [mark(0, 900, end), *device.events],
        "deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-32GB"}],
    }


def fitted(
    device: FakeDevice,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    batches: int = STEPS,
    learns: bool = False,
    asked: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> tuple[RuntimePredictor, Any]:
    """Train on the fake device; returns the callback, made with what is `asked` of it, and the model."""
    small = Small("lightning.pytorch")
    predictor = RuntimePredictor(gpus=GPUS, learn_from_history=learns, print_table=False, **asked)
    with device.plugged_in(monkeypatch, SingleDeviceStrategy):
        trainer = small.trainer(folder, callbacks=[predictor], max_epochs=1, **options)
        model = device.drives(small.model())
        trainer.fit(model, small.loader(batches))
    assert trainer.state.finished
    return predictor, model


def check_predictions(predictor: RuntimePredictor) -> Trace:
    """Everything that is shown is a number, in order, and prints; returns the trace."""
    assert predictor.predictions is not None
    assert set(predictor.predictions) == set(GPUS)
    for prediction in predictor.predictions.values():
        ends = prediction.iteration_seconds_low, prediction.iteration_seconds, prediction.iteration_seconds_high
        assert 0 < ends[0] <= ends[1] <= ends[2] < math.inf
        assert sum(prediction.coverage.values()) == pytest.approx(1)
    assert "H100" in predictor.predictions.text(verbose=True)
    return known(predictor.trace)


def test_the_two_readings_and_the_block_come_into_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(small_document(), host_seconds=0.01, device_seconds=0.03)
    predictor, _ = fitted(device, tmp_path, monkeypatch)
    trace = check_predictions(predictor)
    # Alone, the device begins 5 ms after the step and takes 30; in the loop it has the launches before it is done.
    assert trace.step_seconds == pytest.approx([0.035] * len(trace.step_seconds))
    assert trace.host_seconds_unprofiled == pytest.approx([0.01] * len(trace.step_seconds))
    assert trace.running_step_seconds == pytest.approx(0.03)
    assert trace.running_steps == 8
    assert device.recorded == 1
    assert known(predictor.outcome).actual_seconds > 0


def test_a_fit_ends_with_the_weights_that_it_has_without_the_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, watched = fitted(FakeDevice(small_document()), tmp_path, monkeypatch)
    small = Small("lightning.pytorch")
    plain = small.model()
    small.trainer(tmp_path, max_epochs=1).fit(plain, small.loader(STEPS))
    pairs = zip(plain.parameters(), watched.parameters(), strict=True)
    assert all(torch.equal(first, other) for first, other in pairs)


WORK = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
"""Categories of device activities, in newer and older files."""


def without_device_work(document: Document) -> Document:
    """No CUPTI: nothing of the device, and none of its runtime's calls."""
    gone = (*WORK, "cuda_runtime", "cuda_driver", "runtime")
    return _of(document, [event for event in document["traceEvents"] if event.get("cat", "").lower() not in gone])


def without_permission(document: Document) -> Document:
    """Counters are refused: launches without kernels."""
    return _of(document, [event for event in document["traceEvents"] if event.get("cat", "").lower() not in WORK])


def with_lost_buffers(document: Document) -> Document:
    """Every second kernel was lost."""
    kept, number = [], 0
    for event in document["traceEvents"]:
        number += event.get("cat", "").lower() == "kernel"
        if event.get("cat", "").lower() != "kernel" or number % 2:
            kept.append(event)
    return _of(document, kept)


def with_another_process(document: Document) -> Document:
    """Four times as many kernels that nothing of this process launched."""
    kernels = [event for event in document["traceEvents"] if event.get("cat", "").lower() == "kernel"]
    others = [
        {**event, "args": {**event["args"], "correlation": 10**7 + number, "External id": 0, "stream": 99}}
        for number, event in enumerate(kernels * 4)
    ]
    return _of(document, document["traceEvents"] + others)


def with_clocks_that_step_back(document: Document) -> Document:
    """Half of the kernels lie 5 ms before their launches."""
    events, number = [], 0
    for event in document["traceEvents"]:
        number += event.get("cat", "").lower() == "kernel"
        if event.get("cat", "").lower() == "kernel" and number % 2:
            events.append({**event, "ts": float(event["ts"]) - 5000})
        else:
            events.append(event)
    return _of(document, events)


def with_many_events(document: Document) -> Document:
    """A hundred thousand calls of Python functions, as with_stack keeps them."""
    frame = {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 1000.0, "dur": 1.0, "args": {}}
    return _of(document, document["traceEvents"] + [frame] * 100_000)


def _of(document: Document, events: list[Any]) -> Document:
    return {**copy.copy(document), "traceEvents": events}


FAULTS: dict[str, tuple[Callable[[Document], Document], str | None]] = {
    "no CUPTI": (without_device_work, "The profiler recorded nothing on the GPU"),
    "no permission": (without_permission, "The profiler recorded nothing on the GPU"),
    "buffers lost": (with_lost_buffers, None),
    "kernels of another process": (with_another_process, "Kernels launched outside every known operation"),
    "clocks that step back": (with_clocks_that_step_back, None),
    "many events": (with_many_events, None),
}
"""Parts that a profile may lack or contain in addition, and the start of the sentence about them."""


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_profile_gives_predictions_with_a_note(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, note = FAULTS[fault]
    predictor, model = fitted(FakeDevice(damage(small_document())), tmp_path, monkeypatch)
    trace = check_predictions(predictor)
    assert model.batches_trained == STEPS
    assert trace.running_step_seconds == pytest.approx(0.03)
    if note is not None:
        assert any(words.startswith(note) for words in trace.notes), trace.notes


def test_kernels_of_another_process_make_a_recording_that_the_measured_step_contradicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 40 kernels of 0.2 ms and four times as many of another process, in a step that takes 9 ms.
    device = FakeDevice(with_another_process(small_document()), host_seconds=0.002, device_seconds=0.0085)
    predictor, _ = fitted(device, tmp_path, monkeypatch)
    check_predictions(predictor)
    assert any(
        "unattributed" in note or "outside every known" in note for note in known(predictor.predictions)["T4"].notes
    ) or (predictor.trace is not None and any("outside every known" in note for note in predictor.trace.notes))


def test_accumulation_of_64_batches_is_recorded_in_parts_and_runs_without_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(small_document(products=4), host_seconds=0.01, device_seconds=0.03)
    predictor, _ = fitted(device, tmp_path, monkeypatch, batches=64 * 8, accumulate_grad_batches=64)
    trace = check_predictions(predictor)
    assert trace.batches == 64
    assert device.recorded <= 64  # batches between two updates are alike
    assert len(trace.kernels) == 64 * 4
    assert trace.running_step_seconds == pytest.approx(64 * 0.03)
    assert trace.step_seconds == pytest.approx([64 * 0.035] * len(trace.step_seconds))


TAKEN = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"


def failing(function: Callable[..., Any], calls: set[int]) -> Callable[..., Any]:
    """The profiler of torch where another program has CUPTI: it fails at some calls, counted from 0."""
    numbers = count()

    def fails(*args: Any) -> Any:
        if next(numbers) in calls:
            raise RuntimeError(TAKEN)
        return function(*args)

    return fails


# A window of two batches is recorded in two parts. Its profile is exported where the profiler stops.
@pytest.mark.parametrize("where", ["start", "export"])
@pytest.mark.parametrize(
    ("calls", "recorder"), [({0}, "profiler"), ({1}, "profiler"), ({0, 1}, "dispatch"), ({0, 2}, "dispatch")]
)
def test_where_the_profiler_fails_the_step_is_recorded_without_it_and_predicted_from_shapes(
    where: str, calls: set[int], recorder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(without_device_work(small_document()))
    holder: Any = profile if where == "start" else device
    monkeypatch.setattr(holder, where, failing(getattr(holder, where), calls))
    predictor, model = fitted(device, tmp_path, monkeypatch, accumulate_grad_batches=2)
    trace = check_predictions(predictor)
    assert model.batches_trained == STEPS
    assert (trace.recorder, trace.device, trace.batches) == (recorder, "cuda", 2)
    assert trace.operations
    errors = "; then ".join([f"RuntimeError: {TAKEN}"] * len(calls))
    assert [note for note in trace.notes if "profiler" in note] == [
        f"Recording with torch's profiler failed ({errors}), so the step has no GPU times. Times are predicted from "
        "shapes instead."
    ]
    assert "measured" not in known(predictor.predictions)["T4"].coverage


def test_a_validation_that_the_profiler_fails_in_is_recorded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(without_device_work(small_document()))
    monkeypatch.setattr(device, "export", failing(device.export, {0}))
    small = Small("lightning.pytorch")
    predictor = RuntimePredictor(gpus=GPUS, learn_from_history=False, print_table=False)
    with device.plugged_in(monkeypatch, SingleDeviceStrategy):
        trainer = small.trainer(tmp_path, callbacks=[predictor], max_epochs=1, num_sanity_val_steps=3)
        trainer.fit(device.drives(small.model(validates=True)), small.loader(STEPS), small.loader(4))
    check_predictions(predictor)
    assert device.recorded == 2  # the validation's second attempt, and the step


def test_a_profiler_that_fails_in_compiled_code_leaves_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(small_document())
    monkeypatch.setattr(device, "export", failing(device.export, set(range(9))))
    monkeypatch.setattr(environment, "has_compiled_code", lambda *args, **options: True)
    with pytest.warns(UserWarning, match=f"RuntimePredictor is off, and training goes on: .*{TAKEN}"):
        predictor, model = fitted(device, tmp_path, monkeypatch)
    assert model.batches_trained == STEPS
    assert predictor.predictions is None


def document_of_a_small_step(batch: int = BATCH_SIZE) -> Document:
    """Profile of the small model's own step: its calls, a kernel of 100 us behind each."""
    model, rows = network(), torch.randn(batch, FEATURES)

    def train() -> None:
        model.zero_grad()
        model(rows).square().mean().backward()

    step = lp.capture(train)
    device = Device(shapes=False)
    for number, each in enumerate(each for each in step.operations if each.kernels or each.outputs):
        shapes = [list(tensor.shape) for tensor in each.inputs]
        given: dict[str, Any] = {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
        device.product(1000 + 25.0 * number, 100.0, name=each.name, **given)
    end = device.ends + 100
    return {
        "traceEvents": [mark(0, 900, end), *device.events],
        "deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-32GB"}],
    }


def test_one_step_more_is_followed_where_advice_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile does not say which operation hands which tensor to which; compiling asks for it, and answers then."""
    saved = tmp_path / "step.json.gz"
    predictor, model = fitted(
        FakeDevice(document_of_a_small_step()), tmp_path, monkeypatch, asked={"advice": True, "save_trace": saved}
    )
    assert predictor.advice is not None
    assert predictor.advice["compile"].simulated_gain is not None
    assert predictor.advice["batch_size"].simulated_gain is not None
    assert predictor.trace is not None
    assert predictor.trace.has_measured_kernels
    assert any(operation.outputs for operation in predictor.trace.operations)
    assert Trace.load(str(saved)) == predictor.trace
    assert model.batches_trained == STEPS


def test_a_step_that_cannot_be_followed_is_advised_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, model = fitted(FakeDevice(small_document()), tmp_path, monkeypatch, asked={"advice": True})
    assert "capture the same step on the meta device" in (known(predictor.advice)["compile"].why_not or "")
    assert any(
        note.startswith("Tensors could not be followed: Of the operations") for note in known(predictor.trace).notes
    )
    assert model.batches_trained == STEPS


def test_an_amd_gpu_is_timed_and_its_kernels_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm's devices are CUDA's to torch, and its profiler shows their kernels."""
    name = "AMD Instinct MI300X"
    document = {**small_document(), "deviceProperties": [{"id": 0, "name": name, "warpSize": 64}]}
    predictor, _ = fitted(FakeDevice(document, name=name), tmp_path, monkeypatch)
    assert check_predictions(predictor).running_step_seconds == pytest.approx(0.03)
    assert predictor.predictions is not None
    text = " ".join(predictor.predictions.text(verbose=True).split())
    assert f"Recorded on {name}, which is not NVIDIA's. Its 40 measured kernels are ignored" in text
    assert "V100-SXM2-16GB" not in text  # no name of NVIDIA's is proposed for it
    assert f"this {name}" in text
    for prediction in predictor.predictions.values():
        assert "measured" not in prediction.coverage


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_a_device_without_a_profiler_is_timed_and_recorded_by_shapes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, model = fitted(FakeDevice({}, kind=kind), tmp_path, monkeypatch)
    trace = check_predictions(predictor)
    assert model.batches_trained == STEPS
    assert trace.recorder == "dispatch"
    assert not trace.kernels
    assert trace.step_seconds == pytest.approx([0.035] * len(trace.step_seconds))
    assert predictor.predictions is not None
    assert known(predictor.predictions.machine).name == "CPU"  # where its tensors are here; a real one says its own


RECORDED = {
    "kineto_resnet50_w0_b_step19": "Tesla V100-DGXS-32GB",
    "hta_nccl_a100_step5": "NVIDIA A100-SXM4-40GB",
    "tl_bertsmall_h100_step6": "NVIDIA H100 80GB HBM3",
}


@pytest.mark.recorded
@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_documents_of_real_gpus_go_through_a_whole_fit(
    name: str, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = read_trace_json(recording(f"{name}.json.gz"), strict=False)
    has_shapes = name != "hta_nccl_a100_step5"
    if fault in ("no CUPTI", "no permission") and not has_shapes:
        pytest.skip("neither shapes nor kernels: refused, as test_recorded_on says")
    damage, note = FAULTS[fault] if fault is not None else (lambda whole: whole, None)
    device = FakeDevice(damage(document), name=RECORDED[name], host_seconds=0.05, device_seconds=0.09)
    predictor, _ = fitted(device, tmp_path, monkeypatch)
    trace = check_predictions(predictor)
    if note is not None:
        assert any(words.startswith(note) for words in trace.notes), trace.notes


@pytest.mark.parametrize(("process_peak", "expected"), [(GIB, 2 * GIB), (20 * GIB, None)])
def test_memory_that_earlier_work_left_in_the_allocator_is_not_the_steps(
    process_peak: int, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The step's own allocations reach 1 GiB; a larger model before it in the process reached 20 GiB.
    document = small_document()
    document["traceEvents"].append(
        {"name": "[memory]", "ph": "i", "ts": 1000, "args": {"Device Type": 1, "Total Allocated": GIB, "Bytes": 512}}
    )
    device = FakeDevice(document)
    device.peak_bytes = process_peak
    predictor, _ = fitted(device, tmp_path, monkeypatch)
    assert predictor.trace is not None
    assert predictor.trace.memory.peak_bytes == GIB
    assert predictor.trace.memory.reserved_bytes == expected


def on_the_gpu(operation: Operation, *, keeps_kernels: bool) -> Operation:
    """The operation with tensors that name the GPU, as the recorder knows them."""
    inputs = tuple(replace(tensor, device="cuda") for tensor in operation.inputs)
    return replace(operation, inputs=inputs, kernels=operation.kernels if keeps_kernels else ())


def test_the_callback_takes_the_machines_own_rate_from_the_recorded_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 products of 64 x 64 take 8 ms on this machine, far longer than a V100 is predicted to take."""
    predictor, _ = fitted(FakeDevice(small_document()), tmp_path, monkeypatch)
    trace = check_predictions(predictor)
    gpu = "V100-SXM2-32GB"
    plain = lp.predict(trace, [gpu, f"2x{gpu}"], history=False)
    assert [prediction.device_seconds for prediction in plain.values()] == pytest.approx([0.008, 0.008])
    # A rate that the user measured does not change measured kernels again.
    own = lp.predict(trace, [gpu], history=False, measured={gpu: {"float32": 7e12}})
    assert own[gpu].device_seconds == pytest.approx(0.008)
    operations = (on_the_gpu(one, keeps_kernels=index % 2 == 0) for index, one in enumerate(trace.operations))
    lost = lp.predict(replace(trace, operations=tuple(operations)), [gpu], history=False)
    assert lost[gpu].device_seconds == pytest.approx(0.008)
    assert lost[gpu].coverage["measured"] == pytest.approx(0.5)
