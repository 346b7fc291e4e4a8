import json
from itertools import pairwise

import pytest

from lightning_predict.hardware import gpu
from lightning_predict.record.trace import Operation, TensorInfo, Trace
from lightning_predict.timeline.host import SERVER_HOST
from lightning_predict.timeline.viewer import DEVICE_PROCESS, HOST_PROCESS, chrome_trace
from tests.example_gpu import SMALL
from tests.kernels.example_models import half_speed

LARGE = TensorInfo((4096, 4096), "float32")
PRODUCT = Operation(name="aten::mm", phase="forward", inputs=(LARGE, LARGE), outputs=(LARGE,), module="layer")
VIEW = Operation(name="aten::view", phase="forward", inputs=(LARGE,))
TRACE = Trace(operations=(PRODUCT, VIEW, PRODUCT), device="cpu", recorder="dispatch")


def events(process: int) -> list[dict[str, object]]:
    content = json.loads(json.dumps(chrome_trace(TRACE, SMALL, origin=None, models=half_speed("linear/float32"))))
    return [event for event in content["traceEvents"] if event["ph"] == "X" and event["pid"] == process]


def test_kernels_run_in_sequence_in_named_processes() -> None:
    first, second = events(DEVICE_PROCESS)
    assert first["name"] == "aten::mm"
    # T1 + T2 + T4 = 11.9 us and 10 for the library until the first launch is made, 2 us until it starts; each product
    # takes 2 · 2 · 4096³ / 1 TFLOP/s.
    assert first["ts"] == pytest.approx(23.9)
    assert first["dur"] == pytest.approx(2 * 2 * 4096**3 / 1e12 * 1e6)
    assert second["ts"] == pytest.approx(23.9 + float(str(first["dur"])))
    content = chrome_trace(TRACE, SMALL, origin=None, models=None)
    names = [event["args"]["name"] for event in content["traceEvents"] if event["ph"] == "M"]
    assert names == ["host", "SMALL (predicted)"]


def test_host_operations_do_not_overlap_and_take_as_long_as_predicted() -> None:
    host = events(HOST_PROCESS)
    assert [event["name"] for event in host] == ["aten::mm", "aten::view", "aten::mm"]
    for earlier, later in pairwise(host):
        assert float(str(earlier["ts"])) + float(str(earlier["dur"])) <= float(str(later["ts"])) + 1e-6
    assert host[0]["args"] == {"phase": "forward", "module": "layer"}

    def host_seconds(name: str) -> list[float]:
        content = chrome_trace(TRACE, gpu(name), origin=None, models=None)
        return [event["dur"] for event in content["traceEvents"] if event["ph"] == "X" and event["pid"] == HOST_PROCESS]

    usual = [SERVER_HOST * seconds for seconds in host_seconds("L4")]
    assert host_seconds("H100-SXM-80GB") == pytest.approx(usual, abs=1e-3)  # an event has three decimals of a us
