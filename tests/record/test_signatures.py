"""Names of arguments against the schemas of the torch that is installed."""

from __future__ import annotations

import pytest
import torch

from lightning_predict.record.signatures import SIGNATURES, name_values, signature


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_every_signature_is_one_of_torchs(name: str) -> None:
    schemas = torch._C._jit_get_schemas_for_operator(name)
    known = {
        tuple(("@" if "Tensor" in str(argument.type) else "") + argument.name for argument in schema.arguments)
        for schema in schemas
    }
    assert set(SIGNATURES[name]) <= known


def test_the_overload_is_told_by_where_the_tensors_are() -> None:
    assert signature("aten::where", [True, True]) is None
    packed = signature("aten::lstm", [True, True, True, True] + [False] * 5)
    padded = signature("aten::lstm", [True, True, True] + [False] * 6)
    assert packed is not None
    assert packed[:2] == ("@data", "@batch_sizes")
    assert padded is not None
    assert padded[-1] == "batch_first"


def test_values_are_named_and_tensors_and_nothing_left_out() -> None:
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


def test_what_the_table_does_not_list_has_no_names() -> None:
    assert name_values("my_library::op", [1], is_tensor=[False]) == {}
