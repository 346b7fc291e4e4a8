"""The scores of predicted memory, on runs made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import lightning_predict as lp
from benchmarks.accuracy.memory import MemoryCase, largest_batches, slope, summary_table, with_held_outputs
from benchmarks.result_files import table_of
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import GIBIBYTE
from lightning_predict.record.trace import Operation, TensorInfo, Trace


def run(batch: int, measured_gibibytes: float, predicted_gibibytes: float) -> MemoryCase:
    return MemoryCase(
        model="net",
        family="nets",
        kind="cnn",
        batch=batch,
        status="ok",
        measured_bytes=measured_gibibytes * GIBIBYTE,
        peer_bytes=None,
        tensors_bytes=0.0,
        reserved=Interval.from_factor(predicted_gibibytes * GIBIBYTE, 1.1),
    )


RUNS = [run(8, 2.0, 2.2), run(32, 8.0, 7.0), run(128, 32.0, 26.2)]


def test_the_error_and_the_slope_of_runs() -> None:
    assert [one.error for one in RUNS] == pytest.approx([0.1, -0.125, -0.18125])
    assert slope(RUNS) == pytest.approx((26.2 - 2.2) / (32 - 2))
    assert slope(RUNS[:1]) is None


def test_the_summary_has_the_errors_of_each_source() -> None:
    rows = table_of(summary_table({"nets": [run(8, 2.0, 2.1), *RUNS[1:]], "none": []})).rows
    # Errors of 5, 12.5 and 18.1 %. Only the first is within 10 %, and inside its interval of 1.9 to 2.3 GiB.
    assert rows == (("nets", "3", "12.5", "33", "33"),)


def test_the_largest_batch_lies_on_the_line_between_two_runs() -> None:
    # Of 16 GiB: 32 + 96 x (16 - 8) / (32 - 8) = 64 as measured, 32 + 96 x (16 - 7) / (26.2 - 7) = 77 as predicted.
    assert largest_batches(RUNS, 16 * GIBIBYTE) == pytest.approx((64, 77))
    assert largest_batches(RUNS, 40 * GIBIBYTE) is None  # none of the runs was larger
    assert largest_batches(RUNS, 1 * GIBIBYTE) is None


def test_a_small_run_is_all_context_and_not_scored() -> None:
    assert [run(8, size, size).is_scored for size in (1.6, 1.8)] == [False, True]


def test_the_loss_input_is_held_until_the_next_step(tmp_path: Path) -> None:
    weight, data, logits, loss, gradient = (TensorInfo((4, 4), "float32", id=number) for number in range(5))
    trace = Trace(
        operations=(
            Operation(name="aten::mm", phase="forward", inputs=(data, weight), outputs=(logits,)),
            Operation(name="aten::_log_softmax", phase="forward", inputs=(logits,), outputs=(loss,)),
            Operation(name="aten::mm", phase="backward", inputs=(loss,), outputs=(gradient,)),
            Operation(name="aten::add_", phase="optimizer", inputs=(weight, gradient), outputs=(weight,)),
        ),
        device="meta",
        recorder="dispatch",
    )
    held = with_held_outputs(trace)
    assert held.held == (gradient.id, logits.id)
    held.save(str(tmp_path / "held.json"))
    assert lp.Trace.load(str(tmp_path / "held.json")).held == held.held
