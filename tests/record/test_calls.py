"""A profiled call's tensors and arguments."""

from typing import Any

import pytest

from lightning_predict.record.calls import arguments_of, operator_name, tensors_of
from lightning_predict.record.events import Call
from lightning_predict.record.signatures import RECORDED_TENSORS
from lightning_predict.record.trace import TensorInfo


def call(
    name: str, sizes: list[Any], types: list[str], values: list[str] | None = None, children: tuple[Call, ...] = ()
) -> Call:
    details = {"input dims": sizes, "input type": types, "concrete inputs": values or [""] * len(sizes)}
    return Call(name, False, False, (1, 1), 0.0, 1.0, details, list(children))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", "aten::addmm"),
        ("aten::add.Tensor", "aten::add"),
        ("c10d::allreduce_", "c10d::allreduce_"),
        ("autograd::engine::evaluate_function: AddmmBackward0", None),
        ("torch::autograd::AccumulateGrad", None),
        ("AddmmBackward0", None),
        ("Optimizer.step#AdamW.step", None),
    ],
)
def test_only_dispatcher_operators_have_a_name(name: str, expected: str | None) -> None:
    assert operator_name(call(name, [], [])) == expected


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("float", "float32"),
        ("double", "float64"),
        ("c10::Half", "float16"),
        ("c10::BFloat16", "bfloat16"),
        ("long int", "int64"),
        ("int", "int32"),
        ("bool", "bool"),
        ("unsigned char", "uint8"),
        ("c10::Float8_e4m3fn", "float8_e4m3fn"),
        ("something new", "something new"),
    ],
)
def test_dtypes_have_torchs_names(kind: str, dtype: str) -> None:
    assert tensors_of(call("aten::relu", [[2]], [kind])) == (TensorInfo((2,), dtype),)


def test_tensors_of_lists_take_the_dtype_of_the_call_or_of_the_recorder() -> None:
    lstm = call("aten::lstm", [[3, 2, 4], [[1, 2, 5], [1, 2, 5]]], ["c10::Half", "TensorList"])
    expected = [((3, 2, 4), "float16"), ((1, 2, 5), "float16"), ((1, 2, 5), "float16")]
    assert [(tensor.shape, tensor.dtype) for tensor in tensors_of(lstm)] == expected
    inner = call("aten::mul_", [[4]], ["c10::BFloat16"])
    listed = call("aten::_foreach_mul_", [[[4], [5]], []], ["TensorList", "Scalar"], children=(inner,))
    assert {tensor.dtype for tensor in tensors_of(listed)} == {"bfloat16"}
    assert {tensor.dtype for tensor in tensors_of(call("aten::cat", [[[4], [5]]], ["TensorList"]))} == {"float32"}
    listed = call("aten::cat", [[[4], [5]], []], ["TensorList", "Scalar"], ["", "0"])
    rows = [[[[4], "bfloat16", 3, "cuda"], [[5], "bfloat16", 4, "cuda"]], []]
    listed.details = {**listed.details, RECORDED_TENSORS: rows}
    assert tensors_of(listed) == (TensorInfo((4,), "bfloat16", 3, "cuda"), TensorInfo((5,), "bfloat16", 4, "cuda"))
    assert arguments_of(listed) == {"dim": 0}


@pytest.mark.parametrize(
    ("name", "sizes", "types", "count"),
    [
        ("aten::mul", [[2, 3], []], ["float", "double"], 1),
        ("aten::add_", [[], []], ["float", "long int"], 1),
        ("aten::mul", [[], []], ["float", "float"], 2),
        ("aten::add", [[], []], ["long int", "long int"], 2),
        ("aten::lerp_", [[2], [], []], ["float", "double", "double"], 3),
    ],
)
def test_python_numbers_do_not_count_as_tensors(name: str, sizes: list[Any], types: list[str], count: int) -> None:
    assert len(tensors_of(call(name, sizes, types))) == count


def test_output_argument_of_compiled_code_is_not_an_input() -> None:
    sizes = [[8], [4, 8], [8, 8], [], [], [4, 8]]
    types = ["float", "float", "float", "Scalar", "Scalar", "float"]
    product = call("aten::addmm", sizes, types, ["", "", "", "1", "0.5", ""])
    assert [tensor.shape for tensor in tensors_of(product)] == [(8,), (4, 8), (8, 8)]
    assert arguments_of(product) == {"beta": 1, "alpha": 0.5}
    assert len(tensors_of(call("aten::mm", [[4, 8], [8, 8], [4, 8]], ["float"] * 3))) == 2


def test_arguments_have_names_values_and_enumerations() -> None:
    values = ["", "", "", "[2, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "4"]
    types = ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    sizes: list[Any] = [[1, 4, 8, 8], [4, 1, 3, 3], [], [], [], [], [], [], []]
    assert arguments_of(call("aten::convolution", sizes, types, values)) == {
        "stride": [2, 1],
        "padding": [1, 1],
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": 4,
    }
    values = ["", "15", "0", "", "", "False", "2"]
    types = ["float", "Scalar", "Scalar", "", "", "Scalar", "Scalar"]
    cast = call("aten::_to_copy", [[4], *[[]] * 6], types, values)
    assert arguments_of(cast) == {"dtype": "bfloat16", "non_blocking": False, "memory_format": "channels_last"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-05", 1e-05), ("0.", 0.0), ("-3", -3), ("-inf", "-inf"), ("[True, False]", [True, False]), ("[]", [])],
)
def test_printed_values_are_parsed(text: str, value: Any) -> None:
    filled = call("aten::masked_fill", [[2], [2], []], ["float", "bool", "Scalar"], ["", "", text])
    assert arguments_of(filled) == {"value": value}


def test_attention_has_the_dtype_in_which_it_computes() -> None:
    flash = call("aten::_scaled_dot_product_flash_attention", [[1, 2, 3, 4]] * 3, ["c10::Half"] * 3)
    sizes: list[Any] = [[1, 2, 3, 4]] * 3 + [[]] * 5
    types = ["float"] * 3 + ["", "Scalar", "Scalar", "", "Scalar"]
    values = ["", "", "", "", "0.", "True", "", "False"]
    attention = call("aten::scaled_dot_product_attention", sizes, types, values, children=(flash,))
    assert arguments_of(attention) == {
        "dropout_p": 0.0,
        "is_causal": True,
        "enable_gqa": False,
        "attn_mask": False,
        "compute_dtype": "float16",
    }
