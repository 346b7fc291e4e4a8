import re

import numpy as np
import pytest

import lightning_predict.kernels  # noqa: F401  (registers the operations)
from lightning_predict.base.errors import InvalidArgumentError, UnknownOperationError
from lightning_predict.kernels.operations import (
    OperationSpec,
    batch_shapes,
    operation_names,
    operation_shape,
    operation_spec,
    register,
    shape_batch,
)
from tests.processes import run


def test_shapes_broadcast_default_and_restore_their_columns() -> None:
    batch = shape_batch("linear", "float16", m=[1, 2, 4], n=8, k=16)
    assert len(batch) == 3
    np.testing.assert_allclose(batch.flops, [2 * 1 * 8 * 16, 2 * 2 * 8 * 16, 2 * 4 * 8 * 16])
    assert (
        operation_shape("conv2d", "float32", batch=1, in_channels=1, out_channels=1, height=7, kernel_height=3).dims[4]
        == 7
    )
    item = operation_shape(
        "conv2d", "float32", batch=1, in_channels=1, out_channels=1, image_size=8, width=4, kernel_size=3, padding=1
    )
    assert item.dims[3:7] == (8.0, 4.0, 3.0, 3.0)
    items = [
        operation_shape("bmm", "float32", b=2, m=3, n=5, k=7),
        operation_shape("bmm", "float32", b=1, m=1, n=1, k=1),
    ]
    np.testing.assert_array_equal(batch_shapes(items).columns["n"], [5, 1])
    assert operation_shape("transfer", "float32", read_bytes=8).dims == (8.0, 0.0, 0.0)


def test_unknown_operations_words_dtypes_and_lengths_are_named() -> None:
    message = r"'matmul' is not known. Known operations: adagrad, adam, adamw, add, .*linear"
    with pytest.raises(UnknownOperationError, match=message):
        operation_spec("matmul")
    message = r"'linear' does not take \['x'\] and needs \['k'\]. Its shape parameters: b=1, m, n, k\."
    with pytest.raises(UnknownOperationError, match=message):
        shape_batch("linear", "float32", m=1, n=1, x=1)
    with pytest.raises(UnknownOperationError, match=r"image_size \(sets height, width\)"):
        shape_batch("conv2d", "float32", batch=1)
    with pytest.raises(InvalidArgumentError, match=r"lengths that do not broadcast: .*'m': \(2,\).*'n': \(3,\)"):
        shape_batch("linear", "float32", m=[1, 2], n=[1, 2, 3], k=1)
    with pytest.raises(InvalidArgumentError, match=r"dtype 'half' is not known. Known dtypes: float64, float32"):
        shape_batch("linear", "half", m=1, n=1, k=1)
    with pytest.raises(InvalidArgumentError, match="'linear' is registered twice"):
        register(operation_spec("linear"))


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_size_must_be_positive_and_finite(value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"got m=.*; expected a finite number of at least 1"):
        shape_batch("linear", "float32", m=value, n=1, k=1)


def test_unknown_defaults_are_refused_and_late_families_found_by_name() -> None:
    kind = OperationSpec(
        name="strange",
        shape=("rows",),
        defaults={"cols": 1},
        units="vector",
        flops=lambda c: c["rows"],
        reads=lambda c: c["rows"],
    )
    with pytest.raises(InvalidArgumentError, match=r"'strange' has defaults for \['cols'\]"):
        register(kind)
    assert "strange" not in operation_names()
    ran = run("""
from lightning_predict.kernels import families, operations

for pattern, load in operations._NOT_LOADED:
    before = {*operations._SPECS, *operations._TRANSLATORS}
    load()
    names = {*operations._SPECS, *operations._TRANSLATORS} - before
    print(len(names), sorted(name for name in names if not pattern.search(name)))
""")
    assert len(ran.stdout.splitlines()) == 10
    for line in ran.stdout.splitlines():
        assert re.fullmatch(r"[1-9]\d* \[\]", line)


@pytest.mark.parametrize(
    ("operation", "shape", "read", "written"),
    [
        ("adamw", {"parameters": 10, "fused": 1}, 4 * 10, 3 * 10),  # parameter, gradient, moments; less the gradient
        ("adamw", {"parameters": 10}, 13 * 10, 8 * 10),
        ("lu", {"n": 3, "m": 5}, 15, 15),
        ("triangular_solve", {"n": 4, "columns": 3}, 4 * 4 / 2 + 4 * 3, 4 * 3),
        ("svd", {"n": 3, "m": 5}, 15, 2 * 15),  # U and V
        ("fft", {"length": 8}, 16, 16),  # two numbers each
        ("lstm", {"batch": 1, "steps": 2, "input_size": 2, "hidden": 3}, 4 * 3 * (2 + 3) + 2 * 2, 2 * 3),
        ("embedding_bag", {"bags": 2, "rows": 1, "dim": 4}, 4, 2 * 4),  # one row for both bags
        ("embedding_bag_backward", {"bags": 2, "rows": 1, "dim": 4}, 2 * 4, 4),
        ("sparse_product", {"read_bytes": 8, "write_bytes": 4, "flops": 2}, 2, 1),
    ],
)
def test_traffic_is_split_in_what_is_read_and_what_is_written(
    operation: str, shape: dict[str, float], read: float, written: float
) -> None:
    batch = shape_batch(operation, "float32", **shape)
    assert batch.bytes_read == pytest.approx(4 * read)  # numbers of 4 bytes
    assert batch.bytes_written == pytest.approx(4 * written)
