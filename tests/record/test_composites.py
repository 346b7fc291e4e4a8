"""The list of composites against the registry of the torch that is installed."""

from collections import defaultdict

import pytest
import torch

from lightning_predict.record.attribution import (
    COMPOSITE_OPERATIONS,
    PARTLY_COMPOSITE,
    is_composite,
)


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
