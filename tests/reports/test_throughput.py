"""Throughput, model FLOP utilisation, and columns that multiply to the total."""

import re
from dataclasses import replace

import pytest

from lightning_predict import predict
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import layouts_of
from lightning_predict.prediction import predict_workload
from lightning_predict.record.trace import Operation, TensorInfo, Trace
from lightning_predict.reports.loggers import metrics
from lightning_predict.reports.predictions import Predictions
from lightning_predict.run.workload import Batches, Checkpoints, Loader, Workload
from lightning_predict.testing import SMALL_GPU, example_machine, example_prediction, example_trace, with_values
from tests.known import known

SIZE = 1024


def predicted(trace: Trace, gpu: object = "T4") -> Predictions:
    return predict(trace, gpus=[gpu], iterations=1000, history=False)  # type: ignore[list-item]


def test_mfu_is_flops_of_the_measured_step_over_the_dense_peak() -> None:
    # Three products of 2 x 1024^3 FLOPs a step, in float32: 1 TFLOP/s on the SMALL.
    prediction = predicted(example_trace(SIZE, samples=16), SMALL_GPU)["SMALL"]
    assert prediction.model_flops == 3 * 2 * SIZE**3
    assert prediction.mfu is not None
    assert 0 < prediction.mfu <= 1
    assert prediction.mfu == pytest.approx(3 * 2 * SIZE**3 / prediction.iteration_seconds / 1e12)
    assert prediction.samples_per_second == pytest.approx(16 / prediction.iteration_seconds)
    assert prediction.tokens_per_second is None
    trace = example_trace(SIZE, samples=16)
    measured = replace(trace, device="cuda:0", gpu_reported_name="Tesla T4", step_seconds=(0.1,))
    prediction = predicted(measured)["T4"]
    assert prediction.samples_per_second == pytest.approx(160)
    assert prediction.mfu == pytest.approx(6 * SIZE**3 / 0.1 / gpu("T4").peak_flops_per_second["float32"])
    assert metrics(predicted(measured))["predict/T4/mfu"] == pytest.approx(prediction.mfu)
    assert "predict/L4/mfu" not in metrics(predict(measured, gpus=["T4", "L4"], history=False))


def test_flops_count_each_gpu_but_not_recomputed_products_and_tokens_are_indices() -> None:
    trace = example_trace(SIZE)
    first = trace.operations[0]
    recomputed = replace(trace, operations=(*trace.operations, replace(first, phase="backward")))
    assert predicted(recomputed)["T4"].model_flops == predicted(trace)["T4"].model_flops == 3 * 2 * SIZE**3
    prediction = predicted(example_trace(SIZE, samples=4), "8xT4")["8xT4"]
    assert prediction.model_flops == 8 * 3 * 2 * SIZE**3
    assert prediction.mfu == pytest.approx(
        prediction.model_flops / prediction.iteration_seconds / (8 * gpu("T4").peak_flops_per_second["float32"])
    )
    table, indices = TensorInfo((100, SIZE), "float32"), TensorInfo((4, 128), "int64")
    looked_up = Operation(name="aten::embedding", phase="forward", inputs=(table, indices), outputs=())
    trace = example_trace(SIZE)
    prediction = predicted(replace(trace, operations=(looked_up, *trace.operations)))["T4"]
    assert prediction.tokens_per_second == pytest.approx(4 * 128 / prediction.iteration_seconds)


def test_columns_are_added_by_name_or_title_with_the_date_of_prices() -> None:
    predictions = predicted(example_trace(SIZE, samples=16))
    head = predictions.text(columns=["MFU", "samples_per_second"]).splitlines()[2].split()
    assert {"MFU", "samples/s"} <= set(head)
    assert "MFU" not in str(predictions)
    with pytest.raises(InvalidArgumentError, match="columns='speed' is no column; expected some of samples_per_second"):
        predictions.text(columns=["speed"])
    date = predictions["T4"].price.priced_on
    assert date is not None
    assert "price of" in predictions.text(columns=["priced_on"])
    assert date in predictions.text(columns=["priced_on"]).splitlines()[4]


def test_total_multiplies_steps_and_the_share_of_the_loader() -> None:
    # 50,000 steps of 15.0 ms, each after a wait of 10.4 ms: 25.4 ms, 41 % of them for the loader.
    trace = example_trace(SIZE, samples=16, loader_seconds=(0.0104,))
    predictions = predict(trace, gpus=["T4"], iterations=50_000, history=False)
    own = predictions["T4"]
    assert own.total_seconds == pytest.approx(50_000 * own.cycle_seconds)
    assert own.loader_share == pytest.approx(0.0104 / own.cycle_seconds)
    printed = str(predictions)
    assert "with loader" in printed
    assert f"loader {own.loader_share:.0%}".replace("%", " %") in printed
    assert "with loader" not in str(predicted(example_trace(SIZE)))
    step = Interval(0.0150, 0.0150, 0.0150)
    waiting = with_values(example_prediction("T4", iteration=step, device_seconds=0.0150), cycle_seconds=0.0254)
    assert "loader 41 %" in str(Predictions((waiting,)))
    assert "device, loader 17 %" in str(Predictions((with_values(waiting, cycle_seconds=0.0180),)))
    machine = example_machine("CPU", 0.015, cycle_seconds=0.0254)
    assert "25.4 ms" in str(Predictions((with_values(waiting, cycle_seconds=0.015),), machine=machine))


def test_large_parts_of_total_are_listed() -> None:
    total = Interval(200.0, 200.0, 200.0)
    run = with_values(
        example_prediction("T4"),
        total=total,
        iterations=5000,
        training_seconds=100.0,
        validation_seconds=60.0,
        checkpoint_seconds=10.0,
    )
    words = (
        "T4: the total has 1 min 40 s of steps, 1 min of validation, 10.0 s of checkpoints, 30.0 s of pauses between "
        "epochs and around validation."
    )
    assert words in " ".join(str(Predictions((run,))).split())
    # 9,250 steps of 20 ms are 185 s of the 200 s.
    assert "the total has" not in str(
        Predictions((with_values(run, iterations=9250, training_seconds=185.0, validation_seconds=15.0),))
    )


def _seconds(text: str) -> float:
    units = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (µs|ms|s|min|h)\b", text))


@pytest.mark.parametrize("loader", [0.0, 0.001, 1.0])
@pytest.mark.parametrize("pause", [0.0, 0.05, 10.0])
@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize("accumulated", [1, 4])
@pytest.mark.parametrize("validation", [0, 200])
def test_a_total_that_differs_from_its_steps_is_explained(
    loader: float, pause: float, share: float, accumulated: int, validation: int
) -> None:
    trace = example_trace(SIZE, samples=16)
    batches = Batches(
        optimizer_steps=50, batches=50 * accumulated, partial_batches=25 * accumulated, partial_share=share
    )
    work = Workload(
        training_iterations=50,
        training=batches,
        loader=Loader(seconds_per_batch=loader),
        between=Interval(0.0, pause, 2 * pause),
        validation_iterations=validation,
        checkpoints=Checkpoints(count=2 if validation else 0, seconds=0.05, is_estimated=False),
    )
    trace = replace(trace, batches=accumulated)
    predictions = predict_workload(trace, layouts_of(["T4", "H100-SXM-80GB"]), work, Assumptions(history=()))
    text = " ".join(str(predictions).split())
    for name, parts, less in re.findall(
        r"(\S+): the total has (.*?)(?:, less ([^,]*) for shorter steps)?\.(?= |$)", text
    ):
        amounts = [_seconds(part.split(" of ")[0]) for part in parts.split(", ")]
        total = known(predictions[name].total_seconds)
        assert sum(amounts) - (_seconds(less) if less else 0) == pytest.approx(total, rel=0.02)
    totals = [(prediction.total_seconds or 0.0, 50 * prediction.step_seconds) for prediction in predictions.values()]
    is_wide = any(2 * pause > 0.1 * total for total, _ in totals)
    assert ("the total has" in str(predictions)) is (
        is_wide or any(abs(total - own) > 0.1 * total for total, own in totals)
    )
    is_told = "On every GPU, pauses, checkpoints and waits in validation take" in text
    assert is_told is is_wide


def test_layout_says_its_steps() -> None:
    # Two replicas take a batch each: half as many steps of twice as many samples.
    trace = example_trace(SIZE, samples=1)
    assert "5,000 steps × batch 1 = 2,500 × batch 2 (2xL4), " in str(  # noqa: RUF001
        predict(trace, gpus=["L4", "2xL4"], iterations=5000, history=False)
    )
