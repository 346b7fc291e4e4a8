"""Whole fits of steps that are CUDA graphs, compiled code or extensions, and of recordings that lose kernels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_predict.observe.run_session import RunSession
from lightning_predict.record import environment, profiler
from lightning_predict.record.attribution import CUDA_GRAPH
from tests.callbacks.device_documents import Document, compiled_document, extension_document, graph_document
from tests.callbacks.fake_device import GIB, FakeDevice
from tests.callbacks.test_on_a_device import check_predictions, fitted, small_document
from tests.known import known

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "operations": small_document,
    "CUDA graph": graph_document,
    "compiled": compiled_document,
    "extensions": extension_document,
}
DEPTHS = [(0.010, 10.0), (0.010, 4.0), (0.010, 1.5), (0.002, 100.0), (0.001, 200.0)]
"""Seconds of the host and batches of the launch queue, at most 8,000 launches; the device takes 30 ms a batch."""

BATCHES = 400


@pytest.mark.parametrize(("host", "queue"), DEPTHS)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_forecast_is_right_while_the_host_runs_ahead(
    kind: str, host: float, queue: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first table, the table after 16 steps and every renewal."""
    monkeypatch.setattr(environment, "has_compiled_code", lambda *args, **options: kind == "compiled")
    device = FakeDevice(DOCUMENTS[kind](), host_seconds=host, device_seconds=0.03, queue_batches=queue)
    forecasts: list[tuple[int, Any]] = []
    predict = RunSession._predict

    def followed(self: RunSession, *args: Any, **options: Any) -> Any:
        predictions = predict(self, *args, **options)
        forecasts.append((BATCHES - self.observer.batches, known(self.rest).forecast))
        return predictions

    monkeypatch.setattr(RunSession, "_predict", followed)
    fitted(device, tmp_path, monkeypatch, batches=BATCHES)
    assert len(forecasts) >= 2
    for left, forecast in forecasts:
        truth = 0.03 * left
        assert forecast.middle == pytest.approx(truth, rel=0.05)
        assert forecast.low <= truth <= forecast.high


@pytest.mark.parametrize("kind", ["CUDA graph", "compiled", "extensions"])
def test_kernels_that_no_operation_of_torch_launched_are_predicted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "has_compiled_code", lambda *args, **options: kind == "compiled")
    document = DOCUMENTS[kind]()
    predictor, _ = fitted(FakeDevice(document), tmp_path, monkeypatch)
    trace = check_predictions(predictor)
    assert len(trace.kernels) == sum(event["cat"] in ("kernel", "gpu_memcpy") for event in document["traceEvents"])
    names = {operation.name for operation in trace.operations}
    expected = {"CUDA graph": CUDA_GRAPH, "compiled": "unattributed", "extensions": "flash_attn_3::fwd"}
    assert expected[kind] in names or kind == "compiled"
    assert trace.compiled is (kind == "compiled")


def test_memory_of_a_graph_ignores_a_larger_model_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay allocates nothing. The allocator holds 2 GiB; an earlier model of the process reached 20 GiB."""
    predictor, _ = fitted(FakeDevice(graph_document(), peak_bytes=20 * GIB), tmp_path, monkeypatch)
    assert known(predictor.trace).memory.peak_bytes == 2 * GIB


def _none(kernels: int) -> None:
    """Launch no kernels."""


@pytest.mark.parametrize(("warm_up", "lost"), [(None, 0), (_none, 1 + 2)])
def test_lost_first_kernels_are_taken_from_the_warm_up(
    warm_up: Callable[[int], None] | None, lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two recordings of a step of 16 batches; the k-th recording of the process loses its first k kernels."""
    device = FakeDevice(small_document(products=20), loses_kernels=True)
    if warm_up is not None:
        monkeypatch.setattr(device, "launch_warm_up_kernels", warm_up)
    predictor, _ = fitted(device, tmp_path, monkeypatch, batches=16 * 20, accumulate_grad_batches=16)
    trace = check_predictions(predictor)
    assert device.recorded == 2
    notes = [words for words in trace.notes if words.startswith("The profiler recorded no kernel for")]
    assert len(notes) == (2 if lost else 0)
    if lost == 0:
        assert len(trace.kernels) == 16 * 20
    assert profiler._launch_warm_up_kernels is not device.launch_warm_up_kernels  # put back
