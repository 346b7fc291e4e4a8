import pytest

from lightning_predict.kernels.memory_bound import bytes_read, bytes_written, crosses_host_link, transfer_of
from lightning_predict.record.trace import Operation, TensorInfo

X = TensorInfo((100,), "float32", device="cuda")
HALF = TensorInfo((100,), "float16", device="cuda")


def traffic(name: str, *inputs: TensorInfo, outputs: tuple[TensorInfo, ...] = ()) -> tuple[int, int]:
    operation = Operation(name=name, phase="forward", inputs=inputs, outputs=outputs)
    return bytes_read(operation), bytes_written(operation)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("aten::sigmoid", (X,), (X,), (400, 400)),
        ("aten::sigmoid", (X,), (), (400, 400)),  # unseen output: as large as the input
        ("aten::_to_copy", (X,), (HALF,), (400, 200)),
        ("aten::zero_", (X,), (), (0, 400)),
        ("aten::sum", (X,), (), (400, 0)),
        ("aten::add_", (HALF, X), (), (600, 200)),  # changed in place: the first
        ("aten::copy_", (HALF, X), (HALF,), (400, 200)),
        ("aten::_foreach_add_", (X, X), (), (800, 400)),  # two lists of one tensor
        ("aten::_foreach_addcdiv_", (X, X, X), (), (1200, 400)),
        ("aten::_foreach_zero_", (X, X), (), (0, 800)),
        ("aten::_foreach_norm", (X, X), (), (800, 0)),
        ("aten::_fused_adamw_", (X, X, X, X), (), (1600, 1200)),
        ("aten::index_select", (TensorInfo((10_000,), "float32"), TensorInfo((100,), "int64")), (X,), (1200, 400)),
    ],
)
def test_bytes_by_hand(
    name: str, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...], expected: tuple[int, int]
) -> None:
    assert traffic(name, *inputs, outputs=outputs) == expected


def test_nothing_read_and_nothing_written_is_no_shape() -> None:
    assert transfer_of(Operation(name="my::marker", phase="forward")) == ()


def test_a_copy_from_the_host_goes_over_the_link() -> None:
    host = TensorInfo((100,), "float32", device="cpu")
    copy = Operation(name="aten::_to_copy", phase="other", inputs=(host,), outputs=(X,))
    assert crosses_host_link(copy)
    assert transfer_of(copy)[0].operation == "host_copy"
    assert transfer_of(copy)[0].dims == (400.0,)
    assert not crosses_host_link(Operation(name="aten::_to_copy", phase="other", inputs=(X,), outputs=(X,)))


def test_a_scalar_means_that_all_tensors_are_one_list() -> None:
    one = Operation(name="aten::_foreach_mul_", phase="optimizer", inputs=(X, X), arguments={"scalar": 0.9})
    two = Operation(name="aten::_foreach_mul_", phase="optimizer", inputs=(X, X))
    assert (bytes_written(one), bytes_written(two)) == (800, 400)
