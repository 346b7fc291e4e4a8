"""Recordings as others make them: several steps, kernels of other steps, loaders, other GPUs."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import lightning_predict as lp
from lightning_predict.base.errors import TraceError, TraceFormatError, UnknownGpuError
from lightning_predict.record.imports import import_trace
from lightning_predict.record.trace import Trace
from tests.record.kineto_files import Device, mark, steps, write
from tests.record.test_events import event
from tests.record.workloads import names


def notes_of(trace: Trace) -> str:
    return "\n".join(trace.notes)


def test_median_step_with_work_is_selected(tmp_path: Path) -> None:
    # 5 products (warm-up, 320 us), 3 (200), 4 (260), 3 (200), and a stub that ends the recording.
    path = write(tmp_path / "p.json", list(steps([5, 3, 4, 3, 0])))
    trace = import_trace(path)
    # By length 200, 200, 260, 320: of the two in the middle (steps 3 and 2) the later one.
    assert len(trace.operations) == 3
    assert trace.profiled_seconds == pytest.approx(200e-6)
    assert trace.notes[0] == (
        "Step 3 was taken, the median one by length of the 5 that the file marks (0 to 4); step= chooses another."
    )
    chosen = import_trace(path, step=2)
    assert len(chosen.operations) == 4
    assert "was taken" not in notes_of(chosen)


def queued_step(*, wait: bool) -> list[dict[str, Any]]:
    """Three kernels of 100 us of the step before are queued when the recording starts; then two products of 50 us."""
    device = Device()
    for _ in range(3):
        device.launch(0, 100, known=False)  # they run from 8 to 310 us: 3 x 100, twice 1 us between
    first = 20.0
    if wait:
        device.events.append(event("cudaDeviceSynchronize", 10, 302, "cuda_runtime"))
        first = 320.0
    device.product(first, 50)
    device.product(first + 30, 50)
    return [mark(6, 0, 380), *device.events]


def test_work_of_the_previous_step_and_waits_for_it_are_excluded(tmp_path: Path) -> None:
    trace = import_trace(write(tmp_path / "p.json", queued_step(wait=False)))
    assert sum(kernel.seconds for kernel in trace.kernels) == pytest.approx(100e-6)
    assert names(trace.operations) == ["aten::mm", "aten::mm"]
    assert "Left out: 3 kernels (0.30 ms) that ran before the step's own and belong to the step before." in trace.notes
    assert trace.profiled_seconds == pytest.approx(380e-6)  # no wait: the mark's own length
    trace = import_trace(write(tmp_path / "p.json", queued_step(wait=True)))
    assert len(trace.kernels) == 2
    # The wait ends at 312 us. Products at 320 and 350; launches 5 us later, kernels 8 us after those: the first runs
    # from 333 to 383, the second 1 us later until 434, which ends the step though its mark ends at 380.
    assert trace.profiled_seconds == pytest.approx((434 - 312) * 1e-6)
    assert trace.operations[0].host_start_seconds == pytest.approx((320 - 312) * 1e-6)
    assert "The host first waited 0.31 ms for the step before" in notes_of(trace)


def test_kernels_without_a_launch_and_missing_shapes_are_noted(tmp_path: Path) -> None:
    device = Device()
    device.product(10, 50)
    device.launch(100, 20, known=False)
    trace = import_trace(write(tmp_path / "p.json", [mark(1, 0, 200), *device.events]))
    assert names(trace.operations) == ["aten::mm", "unattributed"]
    assert "Kernels launched outside every known operation: 1, 28.6% of the device time (sgemm)." in trace.notes
    trace = import_trace(write(tmp_path / "p.json", one_product(shapes=False)))
    assert "recorded without record_shapes=True" in notes_of(trace)
    assert "record_shapes" not in notes_of(import_trace(write(tmp_path / "s.json", one_product())))


def test_loader_time_is_separate_from_the_step(tmp_path: Path) -> None:
    device = Device()
    device.product(1010, 50)
    sizes: dict[str, Any] = {"Input Dims": [[3, 8, 8]], "Input type": ["float"]}
    loading = [
        event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 1000, "user_annotation"),
        event("aten::stack", 100, 50, **sizes),
    ]
    trace = import_trace(write(tmp_path / "p.json", [mark(1, 0, 1080), *loading, *device.events]))
    assert names(trace.operations) == ["aten::mm"]
    assert list(trace.loader_seconds) == pytest.approx([1000e-6])
    assert trace.profiled_seconds == pytest.approx(80e-6)  # 1080 - 1000
    assert "The DataLoader took 1.00 ms of the step: it counts as the loader's time, not the host's." in trace.notes
    alone = import_trace(write(tmp_path / "alone.json", [mark(1, 1000, 1080), *device.events]))
    with_loader, without = (lp.predict(one, ["T4"], iterations=1, history=False)["T4"] for one in (trace, alone))
    assert with_loader.iteration_seconds == pytest.approx(without.iteration_seconds)
    assert with_loader.total_seconds is not None
    assert without.total_seconds is not None
    assert with_loader.total_seconds - without.total_seconds == pytest.approx(1000e-6)


def one_product(*, shapes: bool = True) -> list[dict[str, Any]]:
    device = Device(shapes=shapes)
    device.product(10, 50)
    return [mark(1, 0, 100), *device.events]


UNKNOWN: dict[str, Any] = {"id": 0, "name": "NVIDIA PG777-123", "totalGlobalMem": 50_000_000_000}


def test_unknown_gpu_gives_a_warning_and_a_note(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", one_product(), gpu=UNKNOWN)
    with pytest.warns(
        UserWarning, match=r"'NVIDIA PG777-123' is not a GPU of the catalogue.* 1 measured kernels are left"
    ):
        trace = import_trace(path)
    result = lp.predict(trace, ["T4"], history=False)
    assert "Recorded on an unknown GPU: 'NVIDIA PG777-123' is not a GPU" in " ".join(str(result).split())
    assert result.notes[0].endswith("or gpu= of import_trace.")
    assert result["T4"].coverage.get("measured", 0.0) == 0.0


def test_unknown_gpus_are_warned_of_and_rejected_without_shapes(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"does not name the GPU.* --gpu V100-SXM2-16GB"):
        trace = import_trace(write(tmp_path / "p.json", one_product(), gpu={}))
    assert trace.gpu_reported_name is None
    assert "does not name the GPU" in lp.predict(trace, ["T4"], history=False).notes[0]
    with pytest.warns(UserWarning, match="not a GPU of the catalogue"):
        trace = import_trace(write(tmp_path / "p.json", one_product(shapes=False), gpu=UNKNOWN))
    with pytest.raises(
        UnknownGpuError, match=r"no shapes either.*1 measured kernels.*known GPU\. Say which GPU.*--gpu"
    ):
        lp.predict(trace, ["T4"])


def test_gpu_argument_overrides_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", one_product(shapes=False), gpu=UNKNOWN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = import_trace(path, gpu="Tesla V100-SXM2-32GB")
    assert trace.gpu_reported_name == "V100-SXM2-32GB"
    assert "The file says 'NVIDIA PG777-123'; V100-SXM2-32GB was given and counts." in trace.notes
    prediction = lp.predict(trace, ["V100-SXM2-32GB"], history=False)["V100-SXM2-32GB"]
    assert prediction.coverage == {"measured": 1.0}
    with pytest.raises(UnknownGpuError, match="'V1000' is not a GPU of the catalogue"):
        import_trace(path, gpu="V1000")


def test_amd_recordings_and_empty_traces_are_rejected(tmp_path: Path) -> None:
    for row in ({"id": 0, "name": "AMD Instinct MI300X", "warpSize": 64}, {"id": 0, "name": "", "warpSize": 64}):
        path = write(tmp_path / "amd.json", one_product(), gpu=row)
        with pytest.raises(
            TraceFormatError, match=r"amd\.json was recorded on .*AMD.*NVIDIA GPUs only are read, so far"
        ):
            import_trace(path)
    launched = [event("aten::mm", 0, 20), event("hipLaunchKernel", 5, 6, "cuda_runtime", correlation=1)]
    with pytest.raises(TraceFormatError, match="NVIDIA GPUs only"):
        import_trace(write(tmp_path / "hip.json", launched, gpu={}))
    with pytest.raises(TraceError, match=r"holds no operations.*Record a step that runs the model"):
        lp.predict(Trace(operations=(), device="cuda", recorder="kineto"), ["T4"])
    neither = import_trace(write(tmp_path / "p.json", [event("aten::convolution", 0, 20)]))
    with pytest.raises(TraceError, match=r"1 operations without shapes or measured kernels.*record_shapes=True"):
        lp.predict(neither, ["T4"])


def exchanging_step() -> list[dict[str, Any]]:
    device = Device()
    device.product(10, 60)
    device.events.append(event("record_param_comms", 40, 30))
    device.launch(45, 30, kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)")
    device.events.append(event("Optimizer.step#FusedAdam.step", 80, 40, "user_annotation"))
    device.launch(90, 10, kernel="void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >(int)")
    device.product(130, 20, name="fbgemm::split_embedding_codegen_lookup_function", kernel="split_embedding")
    return [mark(1, 0, 200), *device.events]


def test_collectives_are_kept_only_with_a_world_size(tmp_path: Path) -> None:
    trace = import_trace(write(tmp_path / "p.json", exchanging_step()))
    # 60 + 10 + 20 us of 60 + 30 + 10 + 20 = 120 are its own: 25 % are NCCL's.
    assert sum(kernel.seconds for kernel in trace.kernels) == pytest.approx(90e-6)
    assert "The step exchanged data with other GPUs: 1 kernels, 25.0% of the device time." in notes_of(trace)
    assert trace.profiled_seconds is None
    assert names(trace.operations) == ["aten::mm", "unattributed", "fbgemm::split_embedding_codegen_lookup_function"]
    # Apex's optimizer launches outside every operation: named, and in the optimizer's phase.
    assert "1, 8.3% of the device time (multi_tensor_apply_kernel)." in notes_of(trace)  # of 120
    assert trace.operations[1].phase == "optimizer"
    info = {"backend": "nccl", "rank": 0, "world_size": 2}
    trace = import_trace(write(tmp_path / "p.json", exchanging_step(), distributedInfo=info))
    assert (trace.world_size, trace.num_nodes, len(trace.kernels)) == (2, 1, 4)  # each sees its own GPU
    assert trace.profiled_seconds == pytest.approx(200e-6)
