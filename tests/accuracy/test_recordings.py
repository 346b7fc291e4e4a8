"""The report on real recordings: on files made by hand, and on two real ones."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import lightning_predict as lp
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.recordings import (
    LEAST_SHARE,
    RecordingScore,
    ShapesScore,
    busy_seconds,
    counted,
    load_recording,
    print_report,
    recorded_step_seconds,
    score_pair,
    score_recording,
    score_shapes,
    shapes_summary,
)
from lightning_predict.record.imports import import_trace
from tests.record.kineto_files import Device, mark, steps, write
from tests.recordings import recording


def test_a_recording_is_predicted_on_its_own_gpu_with_and_without_its_kernels(tmp_path: Path) -> None:
    score = score_recording(write(tmp_path / "p.json", list(steps([4, 4, 4], kernel_microseconds=500))))
    assert (score.gpu, score.operations, score.kernels) == ("V100-SXM2-16GB", 4, 4)
    assert score.busy_seconds == pytest.approx(2000e-6)  # 4 kernels of 500 us
    assert score.from_kernels is not None
    assert score.from_shapes is not None
    assert score.from_kernels.device_seconds == pytest.approx(2000e-6)
    # A product of 64 x 64 takes microseconds; the 500 are only in the recording.
    assert score.from_shapes.device_seconds < 200e-6


def test_a_step_is_as_long_as_its_host_or_its_device_whichever_is_longer(tmp_path: Path) -> None:
    idle = import_trace(write(tmp_path / "idle.json", list(steps([2]))))
    # 20 us and 60 for each of two products: the profiler's mark is 140 us long, more than the device's work.
    assert recorded_step_seconds(idle) == pytest.approx(140e-6)
    device = Device()
    device.ends = 1000.0
    device.product(10, 50)
    device.product(40, 50)
    behind = import_trace(write(tmp_path / "behind.json", [mark(1, 0, 80), *device.events]))
    assert recorded_step_seconds(behind) == pytest.approx(101e-6)  # 50 + 1 + 50, long after the host


def test_kernels_that_overlap_are_busy_once(tmp_path: Path) -> None:
    trace = import_trace(write(tmp_path / "p.json", list(steps([2]))))
    assert busy_seconds([*trace.kernels, *trace.kernels]) == pytest.approx(100e-6)
    assert busy_seconds([]) == 0


def test_two_recordings_of_one_model_are_predicted_across(tmp_path: Path) -> None:
    events = list(steps([3], kernel_microseconds=300))
    v100 = write(tmp_path / "v100.json", events)
    a100 = write(tmp_path / "a100.json", events, gpu={"id": 0, "name": "NVIDIA A100-SXM4-40GB"})
    there, back = score_pair(v100, a100)
    assert (there.origin, there.target) == ("V100-SXM2-16GB", "A100-SXM-40GB")
    assert (back.origin, back.target) == ("A100-SXM-40GB", "V100-SXM2-16GB")
    assert there.device_seconds == back.device_seconds == pytest.approx(900e-6)


def test_the_report_prints_what_it_scored_and_what_it_refused(tmp_path: Path) -> None:
    write(tmp_path / "mine.json", list(steps([3])))
    write(tmp_path / "amd.json", list(steps([3])), gpu={"id": 0, "name": "AMD Instinct MI300X", "warpSize": 64})
    console = Console(width=190, record=True, file=StringIO())
    print_report(tmp_path, console)
    text = console.export_text()
    row = next(line for line in text.splitlines() if "mine" in line)
    assert "V100-SXM2-16GB" in row
    assert "0.15" in row  # 3 kernels of 50 us: the device was busy for 0.15 ms
    assert "amd.json is refused:" in text
    assert "NVIDIA GPUs only" in text


def test_a_folder_without_recordings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--of", "recordings"]) == 1
    assert "holds no recording; give a folder of .json or .json.gz files" in capsys.readouterr().err


@pytest.mark.recorded
def test_a_real_recording_has_the_step_that_was_measured() -> None:
    trace = load_recording(Path(recording("hta_ns_v100_32_step104.json.gz")))
    # ResNet-50 on a V100: the profiler's mark is 95.55 ms long, and the device is never idle.
    assert recorded_step_seconds(trace) == pytest.approx(95.55e-3, rel=0.005)
    assert busy_seconds(trace.kernels) == pytest.approx(94.56e-3, rel=0.001)


@pytest.mark.recorded
def test_the_real_pair_holds_what_both_gpus_measured() -> None:
    files = (recording("married_resnet50_v100.json.gz"), recording("married_resnet50_a100.json.gz"))
    there, back = score_pair(*map(Path, files))
    assert there.device_seconds == pytest.approx(39.62e-3, rel=0.001)
    assert back.device_seconds == pytest.approx(94.27e-3, rel=0.001)
    assert there.step_seconds == pytest.approx(222e-3, rel=0.02)  # by the mark of the step
    trace = load_recording(Path(files[0]))
    assert all("stride" in o.arguments for o in trace.operations if o.name == "aten::convolution")


def test_what_shapes_do_not_tell_is_no_part_of_their_score(tmp_path: Path) -> None:
    device = Device()
    device.product(10, 50)
    device.product(40, 150, name="mine::scan")
    score = score_shapes(import_trace(write(tmp_path / "p.json", [mark(1, 0, 300), *device.events])), "V100-SXM2-16GB")
    assert score is not None
    assert score.measured_seconds == pytest.approx(50e-6)
    assert score.share == pytest.approx(50 / 200)
    assert score.error == pytest.approx(score.predicted_seconds / 50e-6 - 1)


def test_recordings_count_once_and_where_shapes_tell_most() -> None:
    def score(file: str, predicted: float, share: float = 1.0, measured: float = 1.0) -> RecordingScore:
        shapes = ShapesScore(measured_seconds=measured, predicted_seconds=predicted, share=share)
        return RecordingScore(file=file, gpu="T4", shapes=shapes)

    one, again, graphs = score("one", 1.1), score("again", 1.1), score("graphs", 9.0, share=LEAST_SHARE - 0.01)
    chosen, without = score("tl_moe01_b300.json.gz", 1.5, measured=2.0), RecordingScore(file="none")
    assert counted([one, again, graphs, chosen, without]) == (one, chosen)
    assert list(shapes_summary([one, again, graphs, chosen, without])) == [
        "2 recordings (all): median error 17.5%, largest -25.0%",  # 0.10 and 0.25
        "1 recordings (left out of every choice): median error 10.0%, largest +10.0%",
    ]


@pytest.mark.recorded
@pytest.mark.parametrize(
    ("file", "gpu", "limit"),
    [
        ("tl_timesformer_h100_step6.json.gz", "H100-SXM-80GB", 0.12),  # uneven softmax, transposing copies
        ("tl_moe02_b300.json.gz", "B300-SXM-288GB", 0.3),  # look-ups
        ("married_resnet50_v100.json.gz", "V100-SXM2-32GB", 0.05),  # left out of every choice
    ],
)
def test_shapes_alone_tell_the_device_time_of_a_recording(file: str, gpu: str, limit: float) -> None:
    score = score_shapes(load_recording(Path(recording(file))), gpu)
    assert score is not None
    assert score.share > 0.99
    assert abs(score.error) < limit


@pytest.mark.recorded
def test_a_step_of_a_profiled_host_lies_in_its_interval_on_another_gpu() -> None:
    """The step takes 95.7 ms on the V100, whose device is the bound. The A100's host ran under a profiler."""
    step = load_recording(Path(recording("married_resnet50_a100.json.gz")))
    predictions = lp.predict(step, ["V100-SXM2-32GB"], history=False)
    found = predictions["V100-SXM2-32GB"]
    assert found.iteration_seconds_low <= 0.0957 <= found.iteration_seconds_high
    assert "The host was timed under a profiler" in str(predictions)
