"""Argument names of operations, compared with torch's schemas, and arguments of whole calls."""

from collections import defaultdict
from typing import Any

import pytest
import torch

from lightning_predict.record.attribution import COMPOSITE_OPERATIONS, PARTLY_COMPOSITE, is_composite
from lightning_predict.record.signatures import (
    ATTENTION,
    SIGNATURES,
    WHOLE_OPERATIONS,
    backward_name,
    computes,
    name_values,
    signature,
    whole_arguments,
)


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_every_signature_is_one_of_torchs(name: str) -> None:
    schemas = torch._C._jit_get_schemas_for_operator(name)
    known = {
        tuple(("@" if "Tensor" in str(argument.type) else "") + argument.name for argument in schema.arguments)
        for schema in schemas
    }
    assert set(SIGNATURES[name]) <= known


def test_tensors_select_the_overload_and_backward_passes_have_own_names() -> None:
    assert signature("aten::where", [True, True]) is None
    packed = signature("aten::lstm", [True, True, True, True] + [False] * 5)
    padded = signature("aten::lstm", [True, True, True] + [False] * 6)
    assert (packed or ())[:2] == ("@data", "@batch_sizes")
    assert (padded or ())[-1] == "batch_first"
    names = {backward_name(name) for name in WHOLE_OPERATIONS}
    assert len(names) == len(WHOLE_OPERATIONS)
    assert names.isdisjoint(WHOLE_OPERATIONS)


def test_values_without_tensors_are_named() -> None:
    # convolution: three tensors (the bias is missing), then stride, padding, dilation, ...
    values = ["input", "weight", None, [2, 2], [1, 1], [1, 1], False, [0, 0], 4]
    kinds = [True, True, None, False, False, False, False, False, False]
    assert name_values("aten::convolution", values, is_tensor=kinds) == {
        "stride": [2, 2],
        "padding": [1, 1],
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": 4,
    }
    assert name_values("my_library::op", [1], is_tensor=[False]) == {}


RECURRENT = {"has_biases": True, "num_layers": 2, "dropout": 0.0, "train": True, "bidirectional": False}
PLAIN = {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False, "attn_mask": False}


@pytest.mark.parametrize(
    ("name", "tensors", "values", "expected"),
    [
        (ATTENTION, 3, [], PLAIN),
        (
            ATTENTION,
            4,
            [0.1, False, 0.5, True],
            PLAIN | {"dropout_p": 0.1, "scale": 0.5, "enable_gqa": True, "attn_mask": True},
        ),
        ("aten::gru", 3, [True, 2, 0.0, True, False, True], RECURRENT | {"batch_first": True}),
        ("aten::gru", 4, [True, 2, 0.0, True, False], RECURRENT | {"packed": True}),
    ],
)
def test_whole_call_has_named_arguments(name: str, tensors: int, values: list[Any], expected: dict[str, Any]) -> None:
    kinds = [True] * tensors + [False] * len(values)
    assert whole_arguments(name, [*["tensor"] * tensors, *values], is_tensor=kinds) == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("aten::_scaled_dot_product_flash_attention_for_cpu", True),
        ("aten::_cudnn_rnn", True),
        ("aten::transpose", False),
    ],
)
def test_computing_parts_are_known(part: str, expected: bool) -> None:
    assert computes(part) is expected


def registry() -> dict[str, set[bool]]:
    """Name of each aten operation -> whether its overloads are composite; variants that write into `out` left out."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    overloads: dict[str, set[bool]] = defaultdict(set)
    for full_name in torch._C._dispatch_get_all_op_names():
        name, _, overload = full_name.partition(".")
        try:
            schema = torch._C._get_schema(name, overload)
        except RuntimeError:  # registered without a schema
            continue
        if name.startswith("aten::") and not any(argument.is_out for argument in schema.arguments):
            is_one = has_kernel(full_name, "CompositeImplicitAutograd") and not has_kernel(full_name, "CPU")
            overloads[name].add(is_one)
    return overloads


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the list is written from one release of torch")
def test_composite_list_equals_the_registry_of_torch() -> None:
    overloads = registry()
    whole = {name for name, kinds in overloads.items() if kinds == {True}}
    partly = {name for name, kinds in overloads.items() if kinds == {True, False}}
    own_tests = {name for name in whole | partly if name.startswith("aten::_test_")}
    assert whole - own_tests == COMPOSITE_OPERATIONS
    assert partly - own_tests == set(PARTLY_COMPOSITE)


def test_composites_have_no_kernels_in_any_release() -> None:
    overloads = registry()
    assert {name for name in COMPOSITE_OPERATIONS if overloads.get(name, {True}) == {False}} == set()


@pytest.mark.parametrize(
    ("name", "children", "expected"),
    [
        ("aten::linear", ["aten::t", "aten::addmm"], True),
        ("aten::linear", [], True),
        ("aten::addmm", ["aten::copy_"], False),
        ("aten::max", ["aten::maximum"], True),  # max of two tensors
        ("aten::max", ["aten::empty"], False),  # max along a dimension
        ("aten::std", ["aten::std"], True),
        ("aten::std", [], False),
        ("my_library::fused", ["aten::mm"], False),
    ],
)
def test_composites_are_known_by_name_or_inner_calls(name: str, children: list[str], expected: bool) -> None:
    assert is_composite(name, children) is expected
