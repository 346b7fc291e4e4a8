"""Tensors and arguments as plain values."""

import gc
import json

import pytest
import torch

from lightning_predict.record.tensors import StorageIds, json_argument, tensors_in
from lightning_predict.record.trace import TensorInfo


def described(numbers: StorageIds, tensor: torch.Tensor) -> TensorInfo:
    info = numbers.describe(tensor)
    assert info is not None
    return info


def test_tensors_without_plain_sizes_have_no_description_and_lists_are_flattened() -> None:
    nested = [torch.ones(2, 4), torch.ones(5, 4)]
    for tensor in (
        torch.nested.nested_tensor(nested, layout=torch.jagged),
        torch.nn.parameter.UninitializedParameter(),
    ):
        assert StorageIds().describe(tensor) is None
    first, second, third = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert [t.shape[0] for t in tensors_in([first, None, (second, [third]), 5])] == [1, 2, 3]


def test_views_share_an_id_but_copies_and_sparse_tensors_do_not() -> None:
    numbers = StorageIds()
    base = torch.zeros(2, 3)
    assert described(numbers, base) == TensorInfo((2, 3), "float32", 0, "cpu")
    assert described(numbers, base.t()[1:]) == TensorInfo((2, 2), "float32", 0, "cpu")
    assert described(numbers, base.clone()).id == 1
    assert described(numbers, base.view(torch.int32)).id == 0
    numbers = StorageIds()
    assert described(numbers, torch.zeros(2, device="meta", dtype=torch.bfloat16)) == TensorInfo(
        (2,), "bfloat16", 0, "meta"
    )
    assert described(numbers, torch.eye(2).to_sparse()).id is None


def test_id_of_a_freed_storage_is_not_reused() -> None:
    numbers = StorageIds()
    met = set()
    for _ in range(20):  # the allocator gives the same place again and again
        tensor = torch.zeros(1000)
        reference = tensor.untyped_storage()._weak_ref()
        met.add(described(numbers, tensor).id)
        del tensor
        assert torch.UntypedStorage._expired(reference)
        torch.UntypedStorage._free_weak_ref(reference)
    assert met == set(range(20))


def test_storage_that_a_garbage_collection_frees_at_any_moment_is_forgotten() -> None:
    numbers, met, freed = StorageIds(), list[int | None](), list[int]()
    before = gc.get_threshold()
    gc.set_threshold(3, 2, 2)  # a collection may run at each allocation, also inside `take_freed`
    try:
        for _ in range(20_000):
            tensor = torch.empty(4)
            cycle = [tensor]
            cycle.append(cycle)  # type: ignore[arg-type]
            met.append(numbers.number(tensor))
            del tensor, cycle
            freed += numbers.take_freed()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    freed += numbers.take_freed()
    assert met == list(range(20_000))
    assert sorted(freed) == met
    assert not numbers.alive


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        ("mean", "mean"),
        ((1, [2.0, None]), [1, [2.0, None]]),
        (torch.bfloat16, "bfloat16"),
        (torch.device("cpu"), "cpu"),
        (torch.strided, "strided"),
        (torch.channels_last, "channels_last"),
        (slice(1), "slice"),
    ],
)
def test_arguments_are_converted_to_json(value: object, expected: object) -> None:
    assert json_argument(value) == expected
    json.dumps(json_argument(value), allow_nan=False)


def test_sparse_gradient_on_meta_has_the_requested_rows() -> None:
    table = torch.nn.EmbeddingBag(1000, 8, mode="sum", sparse=True, device="meta")
    table(torch.zeros(16, 3, dtype=torch.int64, device="meta")).sum().backward()
    assert table.weight.grad is not None
    tensor = described(StorageIds(), table.weight.grad)
    # 48 rows of 8 numbers of 4 bytes, and 48 indices of 8: not the 32,000 bytes of the table.
    assert tensor.shape == (1000, 8)
    assert (tensor.elements, tensor.size_bytes) == (48 * 8, 48 * (8 * 4 + 8))
