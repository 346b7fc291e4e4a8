import numpy as np
import pytest
import torch

import lightning_predict as lp
from lightning_predict.hardware import gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.memory_bound import is_known
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.translation import unknown_operation_notes, work_items
from lightning_predict.record.operand_strides import POINTWISE
from lightning_predict.record.trace import Operation, TensorInfo, Trace
from lightning_predict.uncertainty import UNKNOWN_SPREAD

MATRIX = TensorInfo((4096, 4096), "float32")


def trace_of(*names: str) -> Trace:
    operations = tuple(Operation(name=name, phase="forward", inputs=(MATRIX,), outputs=(MATRIX,)) for name in names)
    return Trace(operations=operations, device="meta", recorder="dispatch")


@pytest.mark.parametrize(
    "name",
    "aten::mm aten::sigmoid aten::mul_ aten::_foreach_addcdiv_ aten::cat aten::sum aten::_fused_adamw_ aten::view "
    "aten::index_put_ aten::max_pool2d_with_indices triton::fused aten::_foreach_norm".split(),
)
def test_memory_bound_calls_are_known(name: str) -> None:
    assert is_known(Operation(name=name, phase="forward"))


@pytest.mark.parametrize("name", ["mine::scan", "aten::histc", "aten::_ctc_loss", "vllm::moe_forward"])
def test_what_computes_we_do_not_know_what_is_unknown(name: str) -> None:
    assert not is_known(Operation(name=name, phase="forward"))


def test_pointwise_operations_are_those_that_torch_tags_and_no_other_is_special() -> None:
    tagged = set()
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::") and hasattr(torch.ops.aten, base):
            packet = getattr(torch.ops.aten, base)
            if torch.Tag.pointwise in getattr(packet, overload or "default").tags:
                tagged.add(base)
    assert len(tagged) > 150
    costly = ("special_", "digamma", "lgamma", "mvlgamma", "polygamma", "i0", "igamma", "gcd", "lcm", "nextafter")
    missing = {name for name in tagged if name not in POINTWISE and name.removesuffix("_") not in POINTWISE}
    assert {name for name in missing if not name.startswith(costly)} == set()


def test_unknown_operations_may_take_longer_and_are_named_with_their_share() -> None:
    trace = trace_of("aten::sigmoid", "mine::scan")
    timed = predict_work_times(trace, [gpu("T4"), gpu("L4")], origin=None, models=kernel_models(("T4", "L4")))
    np.testing.assert_allclose(timed.seconds[:, 1], timed.seconds[:, 0])
    np.testing.assert_allclose(timed.interval.low[:, 1], timed.interval.low[:, 0])
    np.testing.assert_allclose(timed.interval.high[:, 1], UNKNOWN_SPREAD * timed.interval.high[:, 0])
    assert [item.unknown for item in work_items(trace)] == [(), ("mine::scan",)]
    trace = trace_of("aten::sigmoid", "mine::scan", "mine::scan", "mine::rest", "mine::little")
    items = work_items(trace)
    seconds = np.array([[5.0, 1.0, 2.0, 1.95, 0.05], [5.0, 2.0, 2.0, 0.95, 0.05]])
    (note,) = unknown_operation_notes(items, seconds, np.ones_like(seconds))
    # scan: 3 of 10 and 4 of 10; rest: 19.5 and 9.5 %; little: 0.5 %, which is not worth a line.
    assert note == (
        "mine::scan (30–40 % of the time), mine::rest (10–20 % of the time) are unknown. They are timed as copies of "  # noqa: RUF001
        "their tensors and may take far longer."
    )
    # Where kernels were measured, nothing had to be guessed.
    assert unknown_operation_notes(items, seconds, np.zeros_like(seconds)) == ()
    predictions = lp.predict(trace_of("mine::scan"), ["T4", "L4"], history=False)
    expected = (
        "mine::scan (100 % of the time) is unknown. It is timed as a copy of its tensors and may take far longer."
    )
    for prediction in predictions.values():
        assert expected in prediction.notes
        assert prediction.coverage == {"bytes": 1.0}
    assert str(predictions).replace("\n  ", " ").count(expected) == 1
