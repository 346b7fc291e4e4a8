"""What commit 910625a wrote is still readable, with the same meaning; see `tests/earlier/README.md`."""

import json
from pathlib import Path

import pytest

import lightning_predict as lp
from lightning_predict.assumptions import Assumptions
from lightning_predict.hardware.layouts import layouts_of
from lightning_predict.prediction import predict_workload, remaining_steps
from lightning_predict.run.history import fingerprint_of, model_fingerprint_of, read_history

EARLIER = Path(__file__).parent / "earlier"


@pytest.fixture
def trace() -> lp.Trace:
    return lp.Trace.load(str(EARLIER / "trace.json.gz"))


def test_trace_of_an_earlier_release_is_read(trace: lp.Trace) -> None:
    assert (trace.device, trace.samples, trace.batches, trace.optimizer_steps) == ("cpu", 4, 1, 1)
    # Weights and biases of the convolution, the normalisation and the linear layer.
    shapes = [(8, 3, 3, 3), (8,), (8,), (8,), (10, 2048), (10,)]
    assert [parameter.shape for parameter in trace.parameters] == shapes
    phases = {operation.phase for operation in trace.operations}
    assert phases >= {"forward", "backward", "optimizer"}
    (convolution,) = [operation for operation in trace.operations if operation.name == "aten::convolution"]
    assert convolution.inputs[0].shape == (4, 3, 16, 16)


def test_history_of_an_earlier_release_corrects_the_same_step(trace: lp.Trace) -> None:
    history = read_history(EARLIER / "history.jsonl")
    (run,) = history
    assert (run.fingerprint, run.model) == (fingerprint_of(trace), model_fingerprint_of(trace))
    predictions = predict_workload(
        trace, layouts_of(["T4", "L4"]), remaining_steps(trace, 1000), Assumptions(history=history)
    )
    assert predictions["T4"].iteration_seconds == pytest.approx(0.012)  # the step of that run
    assert any("from 1 earlier run" in note for note in predictions["T4"].notes)
    assert not any("learnt" in note for note in predictions["L4"].notes)


def test_json_of_predictions_keeps_its_keys(trace: lp.Trace) -> None:
    before = json.loads((EARLIER / "predictions.json").read_text(encoding="utf-8"))
    now = json.loads(lp.predict(trace, ["T4", "8xA100-SXM-40GB"], iterations=1000, history=False).to_json())
    assert list(before) == [name for name in now if name in before]  # names may be added
    for old, new in zip(before["predictions"], now["predictions"], strict=True):
        assert set(old) <= set(new)  # names may be added
        kinds = {name: type(value) for name, value in old.items() if value is not None}
        assert kinds == {name: type(new[name]) for name in kinds}
        assert old["gpu"] == new["gpu"]
        # Predictions get better, but not by an order of magnitude.
        assert old["iteration_seconds"] / 10 < new["iteration_seconds"] < 10 * old["iteration_seconds"]
