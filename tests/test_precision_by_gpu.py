"""A step under autocast in bfloat16 is predicted in float16 on GPUs that emulate bfloat16."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.record.precision import emulates_bfloat16, in_float16, in_precision
from lightning_predict.testing import example_trace

TRACE = in_precision(example_trace(2048), "bfloat16")


@pytest.mark.parametrize(
    ("name", "emulates"),
    [("T4", True), ("V100-SXM2-16GB", True), ("L4", False), ("A100-SXM-80GB", False), ("RTX-3060", False)],
)
def test_gpus_before_ampere_emulate_bfloat16(name: str, emulates: bool) -> None:
    assert emulates_bfloat16(gpu(name)) == emulates


def test_row_on_old_gpu_equals_prediction_in_float16() -> None:
    predictions = lp.predict(TRACE, gpus=["T4", "L4"], iterations=1000, history=False)
    half = lp.predict(in_float16(TRACE), gpus=["T4"], iterations=1000, history=False)
    assert predictions["T4"].iteration_seconds == pytest.approx(half["T4"].iteration_seconds)
    assert (predictions["T4"].precision, predictions["L4"].precision) == ("16-mixed", None)
    assert predictions.as_dict()["predictions"][0]["precision"] == "16-mixed"
    text = " ".join(str(predictions).split())
    assert "T4 (16-mixed)" in text
    assert text.count("T4: predicted in 16-mixed, the precision to use there, because bfloat16 is emulated.") == 1
    assert "emulation is assumed" not in text
    assert ", in 16-mixed" in str(lp.predict(TRACE, gpus=["T4"], iterations=10**7, history=False).ranking()).replace(
        "(first: ", ""
    )


def test_gpt2_on_t4_and_v100_is_predicted_in_float16_whether_or_not_it_fits() -> None:
    trace = lp.Trace.load(str(Path(__file__).parent.parent / "examples" / "gpt2.json.gz"))
    predictions = lp.predict(trace, gpus=["T4", "V100-SXM2-32GB"], history=False)
    assert predictions["T4"].iteration_seconds < 1.5  # 6.6 s with emulated bfloat16
    assert predictions["V100-SXM2-32GB"].iteration_seconds < 0.6  # 2.0 s
    # The report and JSON have rows of GPUs on which the step does not fit.
    trace = lp.Trace.load(str(Path(__file__).parent.parent / "examples" / "gpt2.json.gz"))
    predictions = lp.predict(trace, history=False)
    assert predictions["T4"].fits is False
    emulating = [prediction for prediction in predictions.values() if emulates_bfloat16(prediction.layout.gpu)]
    assert {prediction.precision for prediction in emulating} == {"16-mixed"}


def test_gpu_of_the_recording_and_other_steps_keep_their_precision() -> None:
    measured = replace(TRACE, device="cuda:0", gpu_reported_name="Tesla T4", step_seconds=(0.1,))
    assert lp.predict(measured, gpus=["T4"], history=False)["T4"].precision is None
    assert lp.predict(example_trace(2048), gpus=["T4"], history=False)["T4"].precision is None


def test_advice_offers_float16_with_its_gain() -> None:
    trace = lp.Trace.load(str(Path(__file__).parent.parent / "examples" / "gpt2.json.gz"))
    on_t4 = lp.advise(trace, gpus=["T4"], iterations=1000)["16-mixed"]
    assert on_t4.verdict == "faster"
    assert on_t4.gain is not None
    assert on_t4.gain.middle > 3
    on_l4 = lp.advise(trace, gpus=["L4"], iterations=1000)["16-mixed"]
    assert on_l4.why_not is not None
    assert "autocast in bfloat16 already" in on_l4.why_not


def data(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, device="meta", dtype=dtype)


def recorded(layer: nn.Module, loss: Callable[[nn.Module], Tensor], precision: str) -> lp.Trace:
    optimizer = torch.optim.AdamW(layer.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss(layer).backward()
        optimizer.step()

    return lp.capture(step, precision=precision)


IMAGES = (4, 3, 32, 32)


def losses(m: nn.Module) -> Tensor:
    own = m(data(8, 64))
    entropy: Tensor = functional.cross_entropy(own, data(8, dtype=torch.long), label_smoothing=0.1)
    return (
        entropy + functional.mse_loss(own, data(8, 64)) + functional.binary_cross_entropy_with_logits(own, data(8, 64))
    )


def reductions(m: nn.Module) -> Tensor:
    own = m(data(8, 64))
    total: Tensor = own.softmax(-1).sum(0).mean() + own.cumsum(0).logsumexp(0).max() + own.norm()
    return total


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "attention": (lambda: nn.MultiheadAttention(64, 4), lambda m: m(*[data(32, 8, 64)] * 3)[0].sum()),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 8, 2), nn.Conv2d(8, 8, 3, groups=8)),
        lambda m: m(data(*IMAGES)).sum(),
    ),
    "copies": (
        lambda: nn.Linear(64, 64),
        lambda m: torch.cat([m(data(8, 64)), m(data(8, 64)).to(torch.get_autocast_dtype("cpu"))]).roll(1).sum(),
    ),
    "elementwise": (
        lambda: nn.Linear(64, 64),
        lambda m: functional.dropout(functional.gelu(m(data(8, 64))) + data(8, 64)).exp().sum(),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.EmbeddingBag(100, 64), nn.Linear(64, 64)),
        lambda m: m(data(8, 4, dtype=torch.long)).sum(),
    ),
    "fourier": (lambda: nn.Linear(64, 64), lambda m: torch.fft.rfft2(m(data(8, 64)).float()).abs().sum()),
    "linalg": (lambda: nn.Linear(64, 64), lambda m: torch.linalg.solve(m(data(64, 64)).float(), data(64, 64)).sum()),
    "loss": (lambda: nn.Linear(64, 64), losses),
    "matmul": (lambda: nn.Bilinear(64, 64, 64), lambda m: (m(data(8, 64), data(8, 64)) @ data(64, 64)).sum()),
    "norm": (
        lambda: nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.RMSNorm(64), nn.GroupNorm(4, 64)),
        lambda m: m(data(8, 64)).sum(),
    ),
    "pooling": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)),
        lambda m: m(data(*IMAGES)).sum(),
    ),
    "LSTM": (lambda: nn.LSTM(512, 1024, 2), lambda m: m(data(100, 64, 512))[0].sum()),
    "GRU": (lambda: nn.GRU(64, 64, bidirectional=True), lambda m: m(data(8, 4, 64))[0].sum()),
    "LSTM cell": (lambda: nn.LSTMCell(64, 64), lambda m: m(data(8, 64))[0].sum()),
    "reductions": (lambda: nn.Linear(64, 64), reductions),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_row_in_float16_equals_recording_in_float16(family: str) -> None:
    make, loss = FAMILIES[family]
    with torch.device("meta"):
        layer = make()
    rows = lp.predict(recorded(layer, loss, "bf16-mixed"), ["T4", "V100-SXM2-16GB", "RTX-2080-Ti"], history=False)
    half = lp.predict(recorded(layer, loss, "16-mixed"), list(rows), history=False)
    for name, row in rows.items():
        assert row.precision == "16-mixed"
        assert row.iteration_seconds == pytest.approx(half[name].iteration_seconds, rel=0.01)
