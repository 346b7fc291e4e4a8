"""Every real recording next to the repository imports and predicts, or is rejected with a message."""

import math
import re
import warnings
from functools import cache
from typing import Final

import pytest

import lightning_predict as lp
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.record.imports import import_trace
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import FORMAT, Trace, read_trace_json
from tests.recordings import RECORDINGS, recording

pytestmark = pytest.mark.recorded

FILES: Final = sorted(path.name for path in RECORDINGS.glob("*.json.gz"))

REFUSED: Final = {
    "hta_cupti_a100.json.gz": "119 operations without shapes or measured kernels",
    "hta_minitoy_mi250.json.gz": "'AMD Radeon Graphics', with AMD's runtime. Recordings of NVIDIA GPUs only are read",
    "kineto_old_resnet50_w4_29db.json.gz": "does not name the GPU that it was recorded on. The trace has no shapes",
    "param_hf_GPT2_et.json.gz": "is not a Kineto JSON file (no 'traceEvents')",
    "param_linear_et.json.gz": "is not a Kineto JSON file (no 'traceEvents')",
}


@cache
def load(name: str, gpu: str | None = None) -> Trace:
    path = recording(name)
    document = read_trace_json(path, strict=False)
    if isinstance(document, dict) and document.get("format") == FORMAT:
        return Trace.load(path)
    return import_trace(path, gpu=gpu)


@pytest.mark.parametrize("name", FILES or ["(none)"])
def test_real_recording_is_predicted_or_rejected(name: str) -> None:
    recording(name)
    target = "H100-SXM-80GB"
    if name in REFUSED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            with pytest.raises(LightningPredictError, match=re.escape(REFUSED[name])):
                lp.predict(load(name), [target], history=False)
        return
    trace = load(name)  # a warning would be an error: the GPU of every file is known
    origin = gpu_in_use(trace)
    assert (origin is None) == (not trace.kernels)
    names = [target] if origin is None else list(dict.fromkeys([target, origin.name]))
    result = lp.predict(trace, names, iterations=10, history=False)
    for prediction in result.values():
        times = (prediction.iteration_seconds_low, prediction.iteration_seconds, prediction.iteration_seconds_high)
        assert all(math.isfinite(seconds) and seconds > 0 for seconds in times)
        assert times[0] <= times[1] <= times[2]
        assert times[0] < times[2], f"the interval on {prediction.gpu} has no width"
        assert prediction.total_seconds is not None
        assert math.isfinite(prediction.total_seconds)
        assert sum(prediction.coverage.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("hta_nccl_a100_step5.json.gz", "A100-SXM-40GB"),
        ("hta_gpu_annot_gp100.json.gz", "Quadro-GP100"),
        ("kineto_resnet50_w0_b_step19.json.gz", "V100-SXM2-32GB"),
        ("tl_moe01_b300.json.gz", "B300-SXM-288GB"),
    ],
)
def test_gpu_of_a_real_recording_is_known(name: str, gpu: str) -> None:
    row = gpu_in_use(load(name))
    assert row is not None
    assert row.name == gpu


def test_unnamed_gpu_can_be_given() -> None:
    trace = load("kineto_old_resnet50_w4_29db.json.gz", "V100-SXM2-16GB")
    # Its steps take 151.7, 118.1, 108.4, 124.1, 115.0 and 152.1 ms; the last was taken before.
    assert "Step 8 was taken" in trace.notes[0]
    assert trace.profiled_seconds == pytest.approx(124.1e-3, rel=0.02)
    prediction = lp.predict(trace, ["V100-SXM2-16GB"], history=False)["V100-SXM2-16GB"]
    assert prediction.coverage == {"measured": 1.0}
