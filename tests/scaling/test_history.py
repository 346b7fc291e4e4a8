from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict as lp
from lightning_predict.scaling.history import (
    RUNS_THAT_COUNT,
    HistoryRecord,
    append_record,
    correction_for,
    fingerprint_of,
    history_path,
    read_history,
)
from lightning_predict.tracing.records import Memory, Operation, TensorInfo, Trace
from tests.scaling.test_totals import STEP

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
        samples=st.none() | st.integers(1),
        step_seconds=st.floats(1e-9, 1e9),
        predicted_seconds=st.floats(1e-9, 1e9),
        actual_seconds=st.floats(1e-9, 1e9),
        date=st.text(),
    )
)
def test_what_is_written_is_read(record: HistoryRecord) -> None:
    path = history_path()
    path.unlink(missing_ok=True)
    append_record(record, path)
    append_record(record, path)
    assert read_history(path) == (record, record)


def test_no_file_is_no_history(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none.jsonl") == ()


def test_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("{", "it is not JSON"),
        ("[]", "it is not a record with the fields fingerprint, gpu, samples"),
        (json.dumps(asdict(RECORD) | {"extra": 1}), "it is not a record with the fields"),
        (json.dumps(asdict(RECORD) | {"actual_seconds": 0}), "actual_seconds is 0; expected seconds above 0"),
        (json.dumps(asdict(RECORD) | {"step_seconds": "1"}), "step_seconds is '1'; expected seconds above 0"),
        ('{"fingerprint": "f", "gpu": "T4", \udcff', "it is not JSON"),
    ],
)
def test_a_broken_line_is_skipped_with_a_warning(tmp_path: Path, line: str, words: str) -> None:
    path = append_record(RECORD, tmp_path / "history.jsonl")
    with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(line)  # cut off: no end of the line
    append_record(RECORD, path)
    with pytest.warns(UserWarning, match=f"history.jsonl, line 2 is skipped: {words}"):
        assert read_history(path) == (RECORD, RECORD)


def _append_many(path: str) -> None:
    for _ in range(50):
        append_record(RECORD, path)


def test_processes_that_end_together_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = str(tmp_path / "history.jsonl")
    processes = [get_context("spawn").Process(target=_append_many, args=(path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert read_history(path) == (RECORD,) * 150


def test_the_fingerprint_knows_shapes_dtypes_samples_and_the_optimizer_and_not_the_numbers_of_tensors() -> None:
    changed = replace(PRODUCT, inputs=(TensorInfo((512, 256), "float32"), PRODUCT.inputs[1]))
    half = replace(PRODUCT, inputs=(TensorInfo((512, 512), "bfloat16"), PRODUCT.inputs[1]))
    renumbered = replace(PRODUCT, inputs=tuple(replace(one, id=9) for one in PRODUCT.inputs))
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


def test_a_predicted_step_is_corrected_to_what_was_measured() -> None:
    correction = correction_for([RECORD], "f", STEP, is_measured=False)
    assert correction is not None
    step = correction.step_of(STEP)
    # 0.6 s were measured where 0.5 s are predicted.
    assert (step.seconds, step.low_seconds, step.high_seconds) == pytest.approx((0.6, 0.4 * 1.2, 0.75 * 1.2))
    assert step.notes == ("The step is corrected by a factor of 1.20, learnt from 1 earlier run of this model on T4.",)
    assert correction.run == 1.0


def test_the_median_of_the_latest_runs_counts() -> None:
    records = [replace(RECORD, actual_seconds=1.0)] * 20 + [
        replace(RECORD, actual_seconds=100.0 + number) for number in range(RUNS_THAT_COUNT)
    ]
    correction = correction_for(records, "f", STEP, is_measured=True)
    assert correction is not None
    assert (correction.step, correction.runs) == (1.0, RUNS_THAT_COUNT)
    assert correction.run == pytest.approx(1.045)  # the median of 1.00, 1.01, ... 1.09


@pytest.mark.parametrize("other", [{"fingerprint": "g"}, {"gpu": "L4"}])
def test_other_models_and_gpus_say_nothing(other: dict[str, str]) -> None:
    assert correction_for([replace(RECORD, **other)], "f", STEP, is_measured=False) is None  # type: ignore[arg-type]


def test_predict_learns_unless_it_is_told_not_to() -> None:
    without = lp.predict(TRACE, ["T4", "L4"], iterations=10)
    record = replace(RECORD, fingerprint=fingerprint_of(TRACE), step_seconds=2 * without["T4"].iteration_seconds)
    append_record(record)
    learnt = lp.predict(TRACE, ["T4", "L4"], iterations=10)
    assert learnt["T4"].iteration_seconds == pytest.approx(2 * without["T4"].iteration_seconds)
    assert learnt["T4"].total_seconds == pytest.approx(2 * (without["T4"].total_seconds or 0.0))
    assert "corrected by a factor of 2.00" in str(learnt)
    assert learnt["L4"] == without["L4"]
    assert lp.predict(TRACE, ["T4", "L4"], iterations=10, history=False) == without


def test_predict_warns_of_a_broken_line() -> None:
    history_path().write_text("nonsense\n")
    with pytest.warns(UserWarning, match="line 1 is skipped"):
        lp.predict(TRACE, ["T4"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lp.predict(TRACE, ["T4"], history=False)
