from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.regression.end_to_end import Term, terms_of
from lightning_predict.regression.runs import VARIABLES


def test_terms_of_two_variables() -> None:
    assert [term.name for term in terms_of(["batch_size", "num_gpus"])] == [
        "batch_size",
        "1 / batch_size",
        "num_gpus",
        "1 / num_gpus",
        "batch_size * num_gpus",
        "batch_size / num_gpus",
        "num_gpus / batch_size",
        "1 / batch_size / num_gpus",
    ]


def test_a_degree_of_1_makes_no_products_and_0_is_not_inverted() -> None:
    assert [term.name for term in terms_of(["num_gpus", "disk_seconds"], degree=1, not_inverted=["disk_seconds"])] == [
        "num_gpus",
        "1 / num_gpus",
        "disk_seconds",
    ]
    assert [term.name for term in terms_of(["num_gpus"], inverses=False)] == ["num_gpus"]


def test_what_is_only_inverted_is_so_in_every_product() -> None:
    terms = terms_of(["batch_size", "flops_per_second"], only_inverted=["flops_per_second"])
    assert [term.name for term in terms] == [
        "batch_size",
        "1 / batch_size",
        "1 / flops_per_second",
        "batch_size / flops_per_second",
        "1 / batch_size / flops_per_second",
    ]


@given(count=st.integers(0, len(VARIABLES) - 1), degree=st.integers(1, 3))
def test_the_number_of_terms(count: int, degree: int) -> None:
    # Each of C(n, k) choices of k variables has 2^k ways to invert some of them.
    terms = terms_of([name for name in VARIABLES if name != "bytes_per_second"][:count], degree=degree)
    assert len(terms) == len(set(terms)) == sum(math.comb(count, k) * 2**k for k in range(1, degree + 1))


def test_values_are_products() -> None:
    columns = {"batch_size": np.array([6.0, 8.0]), "num_gpus": np.array([2.0, 4.0])}
    term = Term(("batch_size", "num_gpus"), (1, -1))
    assert term.values(columns).tolist() == [3.0, 2.0]  # type: ignore[arg-type]


def test_what_computes_and_what_moves_data_is_not_multiplied() -> None:
    names = {term.variables for term in terms_of(("batch_size", "flops_per_second", "bytes_per_second"), degree=3)}
    assert ("batch_size", "flops_per_second") in names
    assert ("batch_size", "bytes_per_second") in names
    assert not any({"flops_per_second", "bytes_per_second"} <= set(one) for one in names)
