"""AMD's rows: figures by hand, names that people type, and NVIDIA's rules that must not reach them."""

from dataclasses import replace
from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.cost.priced_gpus import layouts_to_predict
from lightning_predict.hardware import Gpu, gpu, gpu_names
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.hardware.records import AMD, GENERATIONS, NVIDIA
from lightning_predict.kernels.interconnect import collective_seconds
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.testing import example_offer, example_trace
from lightning_predict.timeline.host import host_of
from lightning_predict.timeline.step_prediction import predict_steps
from lightning_predict.uncertainty import ASSUMED_SPREAD

GPT2 = Path(__file__).parents[2] / "examples" / "gpt2.json.gz"
ROWS = [row for row in map(gpu, gpu_names()) if row.vendor == AMD]

each = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)

MATRIX_RATE = {(9, 0): 1024, (9, 4): 2048, (9, 5): 4096, (11, 0): 512, (10, 1): 256, (10, 3): 256}
"""FLOP in 16 bits of a compute unit and clock: matrix cores of CDNA 2, 3 and 4 (AMD's white papers), RDNA 3's matrix
instructions (2 x 128 lanes x 2), packed instructions of RDNA and RDNA 2 (64 lanes x 2 x 2)."""

HALF_AS_FAST = {(9, 0): 2, (9, 4): 2, (9, 5): 1}
"""float64 of CDNA's matrix cores over the rate of its lanes; CDNA 4 halved it."""


@each
def test_peaks_of_units_and_clock_bound_measured_rates_and_tf32_is_float32(row: Gpu) -> None:
    per_second = row.streaming_multiprocessors * row.boost_clock_hz
    peak = row.peak_flops_per_second
    assert peak["float32"] == pytest.approx(2 * row.cores_per_multiprocessor * per_second, rel=0.01)
    assert peak["float16"] == pytest.approx(MATRIX_RATE[row.compute_capability] * per_second, rel=0.01)
    factor = HALF_AS_FAST.get(row.compute_capability, 1)
    assert peak["float64"] == pytest.approx(factor * row.lanes_peak("float64"), rel=0.03)
    is_cdna = row.compute_capability < (10, 0)
    stated = row.peak_flops_per_second
    assert "tf32" not in stated  # torch runs such products in float32, on CDNA 3, too
    assert ("bfloat16" in stated) == (is_cdna or row.compute_capability >= (11, 0))
    assert ("float8" in stated) == (is_cdna and row.compute_capability >= (9, 4))
    for dtype, rate in row.measured_flops_per_second.items():
        assert 0.25 <= rate / row.peak_flops_per_second[dtype] <= 1.0
    (cache,) = row.sources["l2_bytes_per_second"]
    assert "not measured" in cache.title  # makers' peaks: no measurements were used
    assert row.peak("tf32") == row.peak("float32")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("7900 xtx", "RX-7900-XTX"),
        ("rx 6800 xt", "RX-6800-XT"),
        ("mi300x", "MI300X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Radeon RX 7900 XTX", "RX-7900-XTX"),
        ("AMD Radeon 780M Graphics", "Radeon-780M"),
        ("680m", "Radeon-680M"),
    ],
)
def test_names_that_people_and_torch_give(typed: str, name: str) -> None:
    assert gpu(typed).name == name


def test_one_die_of_the_mi250x_is_a_gpu_and_a_misspelt_name_suggests_others() -> None:
    row = gpu("MI250X")  # the module: 220 compute units, 128 GiB, 383 TFLOP/s
    assert (row.streaming_multiprocessors, row.memory_bytes / 2**30) == (220 / 2, 128 / 2)
    assert row.peak("float16") == 383e12 / 2
    with pytest.raises(UnknownGpuError, match=r"'MI300' is not made by NVIDIA; .* The nearest names are MI300X, .*\.$"):
        gpu("MI300")


@each
def test_networks_take_each_for_a_generation_that_they_know(row: Gpu) -> None:
    assert row.generation in GENERATIONS[AMD].values()
    assert row.network_capability == row.generation.nvidia_equivalent
    assert (row.network_capability >= (7, 0)) == row.generation.has_tensor_cores
    assert not row.generation.has_warp_group_matmul  # Hopper's kernels


def test_no_group_has_them_without_a_price_and_several_are_refused() -> None:
    offers = [example_offer(row.name, 0.1) for row in ROWS] + [example_offer("T4")]
    assert [layout.name for layout in layouts_to_predict("all", offers=offers)] == ["T4"]
    own = layouts_to_predict("all", offers=offers, usd_per_hour={"MI300X": 2.0})
    assert [layout.name for layout in own] == ["T4", "MI300X"]
    expected = r"8xMI300X has 8 GPUs of AMD's; collectives are known of NVIDIA's alone .* Ask for one: 'MI300X'\."
    with pytest.raises(InvalidArgumentError, match=expected):
        collective_seconds("all_reduce", 1e6, layout_of("8xMI300X"))
    with pytest.raises(InvalidArgumentError, match=expected):
        lp.predict(example_trace(), ["8xMI300X"], history=False)


def test_predictions_are_not_validated_and_a_recording_corrects_nothing() -> None:
    text = str(lp.predict(example_trace(), ["MI300X", "T4"], history=False))
    assert "MI300X †" in text
    words = " ".join(text.split())
    assert "MI300X: not validated, may be several times too fast." in words
    assert "extrapolated from NVIDIA GPUs by data sheet, without measurements on GPUs by AMD" in words
    trace = Trace(operations=(), device="cuda", recorder="kineto", gpu_reported_name="AMD Instinct MI300X")
    assert gpu_in_use(trace) is None


def test_intervals_are_twice_as_wide_each_way() -> None:
    # The bound on kernels with vectorized loads was measured on NVIDIA's HBM, and holds for no other vendor. Without
    # stacked memory it holds for neither, so that the middles of the two agree.
    trace, ours = lp.Trace.load(str(GPT2)), replace(gpu("MI300X"), memory_kind="GDDR6")
    gpus = [ours, replace(ours, name="twin", vendor=NVIDIA)]
    timed = predict_work_times(trace, gpus, origin=None, models=kernel_models(()))
    prediction, twin = predict_steps(trace, timed, gpus, host=host_of(0.01))  # bound by the device, at its low end, too
    assert prediction.seconds == pytest.approx(twin.seconds)
    assert prediction.low_seconds == pytest.approx(twin.low_seconds / ASSUMED_SPREAD)
    assert prediction.high_seconds == pytest.approx(twin.high_seconds * ASSUMED_SPREAD)
