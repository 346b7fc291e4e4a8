"""Operators of torch's own table of samples: equal bits with and without a recorder, derivatives included."""

import sys
import unittest
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map

from lightning_predict.record.dispatch import DispatchRecorder

GROUPS: Final = 8
SAMPLES: Final = 4  # Samples of an operator; most have fewer than ten

NOT_REPEATABLE: Final = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
    "new_empty_strided", "linalg.lstsq"})  # fmt: skip
"""Operators that return uninitialized memory, or whose bits depend on the alignment of memory."""


def operators() -> list[Any]:
    """Return torch's table of operators with samples, which imports `expecttest` only for its own tests."""
    if "expecttest" not in sys.modules:
        stub = ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def bits(value: Any) -> Any:
    """Return the bytes of a tensor, and other values as they are."""
    if not isinstance(value, Tensor):
        return value
    dense = value.detach() if value.layout is torch.strided else value.detach().to_dense()
    whole = dense.resolve_conj().resolve_neg().contiguous()
    return whole.dtype, whole.shape, whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""


def result(operator: Any, sample: Any, order: int, recorder: DispatchRecorder | None) -> Any:
    """Run an operator with its derivatives up to this order, and return the bits of everything that it computes."""

    def fresh(value: Any) -> Any:
        tensor = isinstance(value, Tensor)
        return value.detach().clone().requires_grad_(value.requires_grad and order > 0) if tensor else value

    torch.manual_seed(3)
    if recorder is not None:
        recorder.start()
    try:
        args = tree_map(fresh, (sample.input, *sample.args))
        kwargs = tree_map(fresh, sample.kwargs)
        leaves = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        computed = list(tree_iter(operator.op(*args, **kwargs)))
        shown = [output for output in tree_iter(sample.output_process_fn_grad(computed)) if isinstance(output, Tensor)]
        for factor in (0.37, 1.3)[:order]:
            shown = [output for output in shown if output.requires_grad]
            if shown and leaves:
                given = [torch.full_like(output, factor) for output in shown]
                gradients = torch.autograd.grad(shown, leaves, given, allow_unused=True, create_graph=order > 1)
                shown = [gradient for gradient in gradients if gradient is not None]
                computed += shown
        return [bits(entry) for entry in computed]
    except Exception:  # torch refuses some ill-defined derivatives, and does not check them under a mode
        return None
    finally:
        if recorder is not None:
            recorder.stop()


def different(operator: Any) -> Iterator[str]:
    """Yield the samples whose bits differ."""
    for dtype in {torch.float32, torch.complex64} & set(operator.dtypes):
        has_gradient = dtype in operator.backward_dtypes
        samples = list(operator.sample_inputs("cpu", dtype, requires_grad=has_gradient))[:SAMPLES]
        for number, sample in enumerate(samples):
            for order in range(1 + has_gradient + (has_gradient and operator.supports_gradgrad)):
                plain = result(operator, sample, order, None)
                if plain is not None and result(operator, sample, order, DispatchRecorder()) != plain:
                    yield f"{operator.name} {operator.variant_test_name} {dtype}, sample {number}, derivative {order}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", range(GROUPS))
def test_bits_of_operators_are_equal_with_and_without_a_recorder(group: int) -> None:
    chosen = [operator for operator in operators()[group::GROUPS] if operator.name not in NOT_REPEATABLE]
    assert len(chosen) > 60
    assert [words for operator in chosen for words in different(operator)] == []
