"""Real recordings on their own GPU: the simulated step takes about as long as the recorded step."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

import lightning_predict as lp
from lightning_predict.cost.prediction import Prediction
from lightning_predict.hardware import gpu
from lightning_predict.kernels.measured_scaling import WorkTimes, predict_work_times
from lightning_predict.record.imports import import_trace
from lightning_predict.record.trace import Trace
from lightning_predict.timeline.calibration import RecordedSimulation, recorded_gap
from lightning_predict.timeline.host import PROFILER_SLOWDOWN, Host, HostModel, recorded_host
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from lightning_predict.uncertainty import ASSUMED_SPREAD
from tests.recordings import recording

pytestmark = pytest.mark.recorded

A100, V100, H100 = "A100-SXM-40GB", "V100-SXM2-32GB", "H100-SXM-80GB"

RECORDINGS = {
    "hta_dfindex_v100_32_step4": V100,
    "hta_diff_control_a100_step1012": A100,
    "hta_diff_test_v100_16_step1012": "V100-SXM2-16GB",
    "hta_event_sync_ms_a100": A100,
    "hta_gpu_annot_gp100": "P100-PCIe-16GB",
    "hta_nccl_a100_step5": A100,
    "hta_ns_v100_32_step104": V100,
    "kineto_old_resnet50_w4_29db": V100,
    "kineto_resnet50_w0_b_step19": V100,
    "kineto_resnet50_w4_b_step19": V100,
    "married_resnet50_a100": A100,
    "married_resnet50_v100": V100,
    "tl_bertsmall_h100_step6": H100,
    "tl_eager_b200": "B200-SXM-180GB",
    "tl_moe01_b300": "B300-SXM-288GB",
    "tl_moe02_b300": "B300-SXM-288GB",
    "tl_qwen05_h100_step6": H100,
    "tl_timesformer_h100_step6": H100,
    "tl_vit_nsfw_h100_step6": H100,
}
"""Each with the GPU that it is from, or the nearest of the catalogue.

Left out: hta_negqueue and param_dlrm wait for other processes, two thirds and a quarter of their time; hta_alexnet and
hta_cupti are no steps."""

DEVICE_BOUND = {  # Those whose device hardly waits for late launches under the profiler
    "hta_diff_test_v100_16_step1012",
    "hta_ns_v100_32_step104",
    "married_resnet50_v100",
    "tl_qwen05_h100_step6",
    "tl_timesformer_h100_step6",
}


def recorded_step_seconds(trace: Trace) -> float | None:
    """Give the longer of a step's spans on the host and on the device; None without measured kernels.

    In a running loop both queues move on by one step a step. Waits of the host for the step before are left out, and so
    is the loader.
    """
    if not trace.kernels:
        return None
    began = min(kernel.start_seconds for kernel in trace.kernels)
    device = max(kernel.start_seconds + kernel.seconds for kernel in trace.kernels) - began
    host = [
        (operation.host_start_seconds, operation.host_start_seconds + operation.host_seconds)
        for operation in trace.operations
        if operation.host_start_seconds is not None and operation.host_seconds is not None
    ]
    if not host:
        return device
    first, end = min(start for start, _ in host), max(end for _, end in host)
    waits = [wait for wait in trace.waits if wait.start_seconds >= 0]
    before = sum(wait.seconds for wait in waits if wait.cause == "device" and wait.start_seconds < first)
    loading = sum(wait.seconds for wait in waits if wait.cause == "loader") - sum(trace.loader_seconds)
    window = end if trace.profiled_seconds is None else trace.profiled_seconds
    return max(window - before - loading, device)


@cache
def trace_of(name: str) -> Trace:
    path = recording(f"{name}.json.gz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of names that the catalogue lacks
        trace = Trace.load(path) if name.startswith("married") else import_trace(path)
    return replace(trace, gpu_reported_name=RECORDINGS[name], gpu_memory_bytes=None)


def predicted(trace: Trace, *gpus: str, host: float | None = None) -> list[Prediction]:
    return list(lp.predict(trace, gpus, history=False, host=host).values())


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_step_is_predicted_on_its_gpu(name: str) -> None:
    trace = trace_of(name)
    is_device_bound = name in DEVICE_BOUND
    # As recorded: 18.7 ms of this step lie between two products, outside operations, where nothing is divided.
    as_recorded = 1.0 if name == "hta_event_sync_ms_a100" else PROFILER_SLOWDOWN
    (own,) = predicted(trace, RECORDINGS[name], host=None if is_device_bound else as_recorded)
    tolerance = 0.1 if is_device_bound else 0.3
    assert own.iteration_seconds == pytest.approx(recorded_step_seconds(trace), rel=tolerance)
    assert own.iteration_seconds_low < own.iteration_seconds < own.iteration_seconds_high


def test_device_bound_resnet_is_faster_on_faster_gpu() -> None:
    # Kernels of 94.3 ms, 95.7 with the gaps between them; the same model's kernels take 39.6 ms on an A100.
    trace = trace_of("married_resnet50_v100")
    trace = replace(trace, step_seconds=(0.0957,))
    own, other = predicted(trace, V100, A100)
    assert own.iteration_seconds == 0.0957
    assert other.verdict is not None
    assert other.verdict.bound_by == "device"
    assert other.iteration_seconds == pytest.approx(other.device_seconds + 0.0957 - 0.0943, rel=0.03)
    assert other.iteration_seconds < 0.7 * 0.0957


def test_unexplained_time_is_added_once() -> None:
    trace = trace_of("married_resnet50_v100")
    gaps = [0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    steps = [predicted(replace(trace, running_step_seconds=0.0953 * (1 + gap)), A100)[0] for gap in gaps]
    seconds = [step.iteration_seconds for step in steps]
    assert seconds == sorted(seconds)
    for gap, own in zip(gaps, seconds, strict=True):
        assert own - seconds[0] <= 0.0953 * gap + 1e-9
    assert seconds[-1] - seconds[0] == pytest.approx(0.0953 * 0.2, rel=0.05)


def test_blocking_copy_is_a_wait_and_python_stacks_widen_the_interval() -> None:
    # TimeSformer reads its logits behind 126 ms of kernels. 215 ms before its first operation are its image processor.
    trace = trace_of("tl_timesformer_h100_step6")
    (own,) = predicted(trace, H100)
    python = sum(recorded_host(trace).python_seconds)
    assert python == pytest.approx(0.2154, rel=0.01)
    assert own.host_seconds - python < 0.035
    assert sum("outside operations" in note for note in own.notes) == 1
    (own,) = predicted(trace_of("tl_vit_nsfw_h100_step6"), H100)
    assert any("a profiler with Python stacks" in note for note in own.notes)
    assert own.iteration_seconds_low == pytest.approx(own.iteration_seconds / ASSUMED_SPREAD, rel=0.01)


HOSTS = (1.0, PROFILER_SLOWDOWN / 2.9)
"""Host factors. 1 is the recording's host without the profiler, which is taken to slow it `PROFILER_SLOWDOWN` times; a
step of 894 operations that was timed both ways was slowed 2.9 times."""

OTHERS = [gpu(name) for name in ("T4", "L4", A100, H100, "B200-SXM-180GB")]


@cache
def own_work(name: str) -> WorkTimes:
    origin = gpu(RECORDINGS[name])
    return predict_work_times(trace_of(name), [origin], origin=origin, models=None)


@cache
def others_work(name: str) -> WorkTimes:
    return predict_work_times(trace_of(name), OTHERS, origin=gpu(RECORDINGS[name]), models=None)


@pytest.mark.parametrize("factor", HOSTS)
@pytest.mark.parametrize("name", RECORDINGS)
def test_times_of_a_loop_predict_like_its_simulation(name: str, factor: float) -> None:
    # On the recording's own GPU the clock reads the replay's time there; nothing else changes on the other GPUs.
    trace = trace_of(name)
    replay = RecordedSimulation(trace, own_work(name), HostModel(), recorded_gap(trace))
    read = replace(
        trace,
        step_seconds=(replay.seconds(host_factor=factor, steps=1),),
        host_seconds_unprofiled=(replay.host_seconds(factor),),
    )
    running = replace(read, running_step_seconds=replay.seconds(host_factor=factor), running_steps=8)
    truth = predict_steps(trace, others_work(name), OTHERS, origin=gpu(RECORDINGS[name]), host=Host(factor))
    for live in (read, running):
        for found, expected in zip(from_times(name, live), truth, strict=True):
            assert found.seconds == pytest.approx(expected.seconds, rel=0.02)
            assert found.host_seconds == pytest.approx(expected.host_seconds, rel=0.15)
    if factor == 1:
        standing, loop = read.step_seconds[0], running.running_step_seconds
        for step in (standing, loop):
            live = replace(trace, step_seconds=(step,)) if step is not None else trace
            for found, expected in zip(from_times(name, live), truth, strict=True):
                assert found.seconds == pytest.approx(expected.seconds, rel=0.02)


def from_times(name: str, live: Trace) -> Sequence[StepPrediction]:
    return predict_steps(live, others_work(name), OTHERS, origin=gpu(RECORDINGS[name]), host=Host(1.0))
