from __future__ import annotations

from dataclasses import replace

from lightning_predict.cost.memory import fits, saved_activation_bytes, step_memory_bytes
from lightning_predict.tracing.records import Memory, Operation, TensorInfo, Trace

WEIGHT = TensorInfo((100,), "float32", id=1)
HIDDEN = TensorInfo((200,), "float32", id=2)
VIEW = TensorInfo((10, 20), "float32", id=2)
DROPPED = TensorInfo((500,), "float32", id=3)
TRACE = Trace(
    operations=(
        Operation(name="aten::mul", phase="forward", inputs=(WEIGHT,), outputs=(HIDDEN,)),
        Operation(name="aten::exp", phase="forward", inputs=(VIEW,), outputs=(DROPPED,)),
        Operation(name="aten::mul", phase="backward", inputs=(VIEW, WEIGHT)),
    ),
    device="cpu",
    recorder="dispatch",
    memory=Memory(parameter_bytes=400, gradient_bytes=400, optimizer_state_bytes=800),
)


def test_saved_activations_are_what_forward_wrote_and_backward_reads_each_storage_once() -> None:
    assert saved_activation_bytes(TRACE) == 800  # HIDDEN; not WEIGHT, which forward did not write, not DROPPED


def test_the_parts_add_up() -> None:
    assert step_memory_bytes(TRACE) == 400 + 400 + 800 + 800


def test_gradients_not_yet_there_are_as_large_as_the_parameters_where_there_is_a_backward_pass() -> None:
    trace = replace(TRACE, memory=Memory(parameter_bytes=400))
    assert step_memory_bytes(trace) == 400 + 400 + 800
    forward = replace(trace, operations=TRACE.operations[:2])
    assert step_memory_bytes(forward) == 400


def test_a_measured_peak_comes_first_and_nothing_known_is_none() -> None:
    assert step_memory_bytes(replace(TRACE, memory=Memory(parameter_bytes=1, peak_bytes=9))) == 9
    assert step_memory_bytes(replace(TRACE, memory=Memory())) is None


def test_a_step_fits_with_room_for_driver_and_allocator() -> None:
    assert fits(90, 100) is True
    assert fits(99, 100) is False
    assert fits(None, 100) is None
