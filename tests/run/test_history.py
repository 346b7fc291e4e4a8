import json
import math
import warnings
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict as lp
from lightning_predict.base.files import history_path
from lightning_predict.base.interval import Interval
from lightning_predict.record.trace import Flags, Memory, Operation, Parameter, TensorInfo, Trace
from lightning_predict.run import history
from lightning_predict.run.history import (
    RUNS_THAT_COUNT,
    HistoryRecord,
    append_record,
    correction_for,
    fingerprint_of,
    model_fingerprint_of,
    read_history,
    run_correction,
)
from lightning_predict.run.workload import Run
from lightning_predict.uncertainty import MEASURED_SPREAD
from tests.known import known
from tests.run.test_totals import STEP

RECORD = HistoryRecord(
    fingerprint="f",
    gpu="T4",
    samples=8,
    step_seconds=0.6,
    predicted_seconds=100.0,
    actual_seconds=120.0,
    date="2026-11-21",
)

PRODUCT = Operation(
    name="aten::mm",
    phase="forward",
    inputs=(TensorInfo((512, 512), "float32", id=1), TensorInfo((512, 512), "float32", id=2)),
)
TRACE = Trace(operations=(PRODUCT,), device="cpu", recorder="dispatch")


@given(
    st.builds(
        HistoryRecord,
        fingerprint=st.text(),
        gpu=st.text(),
        samples=st.none() | st.integers(1, 2**53),
        step_seconds=st.floats(1e-6, 1e9),
        predicted_seconds=st.floats(1e-9, 1e9),
        actual_seconds=st.floats(1e-9, 1e9),
        date=st.text(),
        model=st.none() | st.text(),
        num_gpus=st.integers(1, 64),
    )
)
def test_written_records_are_read(record: HistoryRecord) -> None:
    path = history_path()
    path.unlink(missing_ok=True)
    append_record(record, path)
    append_record(record, path)
    assert read_history(path) == (record, record)


def test_path_of_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_history(tmp_path / "none.jsonl") == ()
    assert history_path(tmp_path) == tmp_path
    monkeypatch.setenv("LIGHTNING_PREDICT_HISTORY", str(tmp_path / "own.jsonl"))
    assert history_path() == tmp_path / "own.jsonl"
    monkeypatch.delenv("LIGHTNING_PREDICT_HISTORY")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert history_path().name == "history.jsonl"
    assert "lightning-predict" in history_path().parts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", r"the whole file is \[\]; expected an object"),
        (json.dumps(asdict(RECORD) | {"extra": 1}), "has the field 'extra'; expected only"),
        (json.dumps(asdict(RECORD) | {"actual_seconds": 0}), "actual_seconds is 0; expected a finite number above 0"),
        (json.dumps(asdict(RECORD) | {"step_seconds": "1"}), "step_seconds is '1'; expected a finite number"),
        (json.dumps(asdict(RECORD) | {"step_seconds": 1e-9}), "step_seconds is 1e-09; expected at least 1e-06"),
        ('{"fingerprint": "f", "gpu": "T4", \udcff', "is not valid JSON"),
    ],
)
def test_damaged_line_is_skipped_with_warning(tmp_path: Path, line: str, words: str) -> None:
    path = append_record(RECORD, tmp_path / "history.jsonl")
    with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(line)  # truncated: no end of the line
    append_record(RECORD, path)
    with pytest.warns(UserWarning, match=f"history.jsonl, line 2.*{words}.* The line is skipped"):
        assert read_history(path) == (RECORD, RECORD)


def test_predict_warns_of_damaged_line() -> None:
    history_path().write_text("nonsense\n")
    with pytest.warns(UserWarning, match="line 1.* The line is skipped"):
        lp.predict(TRACE, ["T4"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lp.predict(TRACE, ["T4"], history=False)


def _append_many(path: str) -> None:
    for _ in range(50):
        append_record(RECORD, path)


def test_processes_that_end_together_do_not_mix_lines(tmp_path: Path) -> None:
    path = str(tmp_path / "history.jsonl")
    processes = [get_context("spawn").Process(target=_append_many, args=(path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert read_history(path) == (RECORD,) * 150


LINE_BYTES = len(json.dumps(asdict(RECORD))) + 1


@pytest.mark.parametrize("limit", [5 * LINE_BYTES, 5 * LINE_BYTES + LINE_BYTES // 2])
def test_only_last_runs_of_a_large_history_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    # A file of 3 GB took 9.5 GB of memory and 71 s inside a hook.
    path = tmp_path / "history.jsonl"
    for day in range(10, 30):
        append_record(replace(RECORD, date=f"2026-11-{day}"), path)
    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", limit)
    assert [record.date for record in read_history(path)] == [f"2026-11-{day}" for day in range(25, 30)]
    path.write_bytes(b"x" * 100 * LINE_BYTES)
    with pytest.warns(UserWarning, match="of the last ones.* is not "):
        assert read_history(path) == ()


def test_files_of_a_shared_folder_are_read_in_equal_parts_and_old_ones_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        for _ in range(5):
            append_record(RECORD, tmp_path / f"{name}.jsonl")
    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", 4 * LINE_BYTES)
    assert len(read_history(tmp_path)) == 4
    line = {key: value for key, value in asdict(RECORD).items() if key not in ("model", "num_gpus")}
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert read_history(path) == (RECORD,)


# --- Fingerprints


def test_fingerprint_depends_on_shapes_dtypes_samples_and_optimizer() -> None:
    changed = replace(PRODUCT, inputs=(TensorInfo((512, 256), "float32"), PRODUCT.inputs[1]))
    half = replace(PRODUCT, inputs=(TensorInfo((512, 512), "bfloat16"), PRODUCT.inputs[1]))
    renumbered = replace(PRODUCT, inputs=tuple(replace(tensor, id=9) for tensor in PRODUCT.inputs))
    different = [
        TRACE,
        replace(TRACE, operations=(changed,)),
        replace(TRACE, operations=(half,)),
        replace(TRACE, operations=(PRODUCT, PRODUCT)),
        replace(TRACE, samples=8),
        replace(TRACE, memory=Memory(optimizer_state_bytes=8)),
    ]
    assert len({fingerprint_of(trace) for trace in different}) == len(different)
    same = replace(TRACE, operations=(renumbered,), step_seconds=(1.0,), device="cuda", recorder="profiler")
    assert fingerprint_of(same) == fingerprint_of(TRACE)


WEIGHT = Parameter(name="weight", shape=(8, 4), dtype="float32")


def test_fingerprint_of_model_depends_on_parameters_and_precision() -> None:
    trace = replace(TRACE, parameters=(WEIGHT,), samples=8)
    assert model_fingerprint_of(TRACE) is None
    assert model_fingerprint_of(replace(trace, samples=16, operations=())) == model_fingerprint_of(trace)
    others = [
        replace(trace, parameters=(WEIGHT, WEIGHT)),
        replace(trace, parameters=(replace(WEIGHT, requires_grad=False),)),
        replace(trace, batches=2),
        replace(trace, flags=Flags(autocast_dtype="float16")),
        replace(trace, flags=Flags(matmul_tf32=True)),
        replace(trace, compiled=True),
    ]
    assert len({model_fingerprint_of(each) for each in [trace, *others]}) == 7


# --- Corrections


def test_step_is_corrected_by_runs_on_as_many_gpus_with_an_interval() -> None:
    correction = known(correction_for([RECORD], "f", STEP))
    step = STEP.scaled(correction.step, note=correction.note(STEP.gpu))
    # 0.6 s were measured; 0.5 s are predicted.
    assert (step.seconds, step.low_seconds, step.high_seconds) == pytest.approx((0.6, 0.4 * 1.2, 0.75 * 1.2))
    assert step.notes == ("The step is corrected by a factor of 1.20, from 1 earlier run of this model on T4.",)
    assert correction.run == 1.0
    records = [RECORD, replace(RECORD, num_gpus=8, step_seconds=1.5)]
    correction = known(correction_for(records, "f", replace(STEP, gpu="8xT4")))
    assert (correction.step, correction.runs) == (1.5 / 0.5, 1)
    assert correction_for(records, "f", replace(STEP, gpu="4xT4")) is None
    # A repeated run differs by 5 % at the 90 % level, so the median of four equal steps by the root of that factor.
    step = STEP.with_measured_steps([0.5] * 4)
    assert step.seconds == 0.5
    assert step.high_seconds == pytest.approx(0.5 * MEASURED_SPREAD**0.5)
    assert STEP.with_measured_steps([0.4, 0.5, 0.6]).interval == Interval(0.4, 0.5, 0.6)


def test_only_the_latest_runs_count() -> None:
    records = [replace(RECORD, step_seconds=9.0, actual_seconds=1.0)] * 20 + [
        replace(RECORD, step_seconds=3.0, actual_seconds=100.0 + number) for number in range(RUNS_THAT_COUNT)
    ]
    step, run = correction_for(records, "f", STEP), run_correction(records, "f", STEP.gpu)
    assert step is not None
    assert run is not None
    assert (step.step, step.runs) == (3.0 / STEP.seconds, RUNS_THAT_COUNT)
    assert (run.step, run.runs) == (1.0, RUNS_THAT_COUNT)
    # Ten ratios of 1.00, 1.01, ... 1.09 and one of 1 without a difference: the sixth of eleven.
    assert run.run == pytest.approx(1.04)


def test_single_unusual_run_counts_half_and_widens_the_total() -> None:
    """A run that took 1.5 times as long: the factor is the root of 1.5, and both 1 and 1.5 lie in its interval."""
    slow = replace(RECORD, predicted_seconds=100.0, actual_seconds=150.0)
    once, often = (run_correction([slow] * count, "f", "T4") for count in (1, 9))
    assert once is not None
    assert often is not None
    assert once.run == pytest.approx(math.sqrt(1.5))
    assert once.run / once.run_spread < 1.0 < 1.5 < once.run * once.run_spread
    assert often.run == pytest.approx(1.5)
    assert 1.0 < often.run_spread < 1.1 < once.run_spread
    run = Run(
        gpu="T4", training_seconds=None, validation_seconds=None, total=Interval(9.0, 10.0, 11.0), cycle_seconds=1.0
    )
    assert run.scaled(1.0, 1.1).total == Interval(9.0 / 1.1, 10.0, 11.0 * 1.1)


@pytest.mark.parametrize("actual_seconds", [1e-9, 0.5, 90.0, 3e5])
def test_single_false_line_changes_a_total_by_no_more_than_its_neighbours_differ(actual_seconds: float) -> None:
    runs = [replace(RECORD, actual_seconds=seconds) for seconds in (110.0, 112.0, 114.0, 116.0, 118.0)]
    for number in range(len(runs) + 1):  # the last line, and others
        correction = run_correction(
            [*runs[:number], replace(RECORD, actual_seconds=actual_seconds), *runs[number:]], "f", "T4"
        )
        assert 1.10 <= known(correction).run <= 1.14


@pytest.mark.parametrize("other", [{"fingerprint": "g"}, {"gpu": "L4"}, {"num_gpus": 2}])
def test_other_steps_gpus_and_layouts_give_no_correction(other: dict[str, Any]) -> None:
    assert correction_for([replace(RECORD, **other)], "f", STEP) is None


def test_predict_uses_history_unless_disabled() -> None:
    without = lp.predict(TRACE, ["T4", "L4"], iterations=10)
    append_record(replace(RECORD, fingerprint=fingerprint_of(TRACE), step_seconds=2 * without["T4"].iteration_seconds))
    learnt = lp.predict(TRACE, ["T4", "L4"], iterations=10)
    assert learnt["T4"].iteration_seconds == pytest.approx(2 * without["T4"].iteration_seconds)
    assert learnt["T4"].total_seconds == pytest.approx(2 * (without["T4"].total_seconds or 0.0))
    assert "corrected by a factor of 2.00" in str(learnt)
    assert learnt["L4"] == without["L4"]
    assert lp.predict(TRACE, ["T4", "L4"], iterations=10, history=False) == without
