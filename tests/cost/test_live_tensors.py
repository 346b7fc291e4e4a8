from __future__ import annotations

from lightning_predict.cost.live_tensors import input_tensors, live_tensors
from lightning_predict.tracing.records import Operation, Parameter, Phase, TensorInfo


def tensor(number: int, elements: int, dtype: str = "uint8") -> TensorInfo:
    return TensorInfo((elements,), dtype, id=number)


def operation(phase: Phase, reads: tuple[TensorInfo, ...], writes: tuple[TensorInfo, ...], name: str = "") -> Operation:
    return Operation(name=name or "aten::mul", phase=phase, inputs=reads, outputs=writes)


DATA, WEIGHT = tensor(0, 7), tensor(1, 5)
KEPT, PASSING, LOSS, GRADIENT = tensor(2, 100), tensor(3, 30), tensor(4, 1), tensor(5, 5)
STEP = (
    operation("forward", (DATA, WEIGHT), (KEPT,)),
    operation("forward", (KEPT,), (PASSING,)),
    operation("forward", (PASSING,), (LOSS,)),
    operation("backward", (KEPT, LOSS), (GRADIENT,)),
    operation("optimizer", (WEIGHT, GRADIENT), (WEIGHT,)),
)


def test_what_is_read_again_is_alive_until_then() -> None:
    # After each operation: 100; 130; 131, of which PASSING dies; 101 and the gradient, which is counted elsewhere.
    assert live_tensors(STEP) == (100, 30, 1)


def test_what_backward_writes_in_passing_counts() -> None:
    passing = tensor(6, 40)
    backward = (operation("backward", (KEPT, LOSS), (passing,)), operation("backward", (passing,), (GRADIENT,)))
    assert live_tensors((*STEP[:3], *backward, *STEP[4:])) == (100, 1, 40)


def test_a_view_that_repeats_elements_is_no_larger_than_its_storage() -> None:
    expanded = operation("forward", (KEPT,), (TensorInfo((9, 100), "uint8", id=KEPT.id),))
    assert live_tensors((STEP[0], expanded, *STEP[1:])) == (100, 30, 1)


def test_a_mask_of_dropout_has_a_byte_an_element_as_on_cuda() -> None:
    mask = tensor(2, 100, "float32")
    drawn = (operation("forward", (), (mask,)), operation("forward", (mask,), (mask,), "aten::bernoulli_"))
    assert live_tensors(drawn) == (100,)


def test_the_batch_is_what_forward_reads_and_nobody_wrote() -> None:
    parameters = [Parameter(name="weight", shape=(5,), dtype="uint8")]
    assert input_tensors(STEP, parameters) == (7,)
    assert input_tensors(STEP[:1], parameters) == (7,)  # a frozen weight is none, by its shape
    assert input_tensors(STEP, []) == (7,)  # nor is one that the optimizer updates, listed or not
    # Of two that look like the one parameter there is, the one that is updated is the parameter.
    alike = operation("forward", (tensor(8, 5),), (tensor(9, 1),))
    assert input_tensors((*STEP, alike), parameters) == (7, 5)


def test_storages_that_were_not_seen_count_for_nothing() -> None:
    unseen = TensorInfo((100,), "float32")
    assert live_tensors([operation("forward", (unseen,), (unseen,))]) == ()
