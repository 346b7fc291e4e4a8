from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import lightning_predict as lp
from lightning_predict.kernels.software import software_factor


@pytest.mark.parametrize(
    ("version", "years"),
    [
        ("2.9.1", 0.0),
        ("2.1.0", 0.0),
        ("1.13.0a0+d0d6b1f", 1.0),  # October 2022, a year before 2.1
        ("1.7.0a0+7036e91", 3.0),  # October 2020
        ("1.4.0", 3.8),  # January 2020
        ("1.0.1", 3.8),  # counts as 1.4
        ("", 0.0),
    ],
)
def test_five_percent_are_added_for_each_year_before_torch_2_1(version: str, years: float) -> None:
    assert software_factor({"torch": version} if version else {}) == pytest.approx(math.exp(0.05 * years), rel=1e-3)


@pytest.mark.parametrize(("dtype", "years"), [(torch.float16, 3.0), (torch.float32, 0.0)])
def test_a_step_is_predicted_for_the_release_that_it_was_recorded_with(dtype: torch.dtype, years: float) -> None:
    # Products in float32 on lanes took no longer; all but a thousandth of the step is products.
    with torch.device("meta"):
        layer, data = torch.nn.Linear(4096, 4096, bias=False, dtype=dtype), torch.empty(8192, 4096, dtype=dtype)
    trace = lp.capture(lambda: layer(data).backward(torch.empty(8192, 4096, dtype=dtype, device="meta")))
    of_2020, of_today = (
        lp.predict(replace(trace, software={"torch": version}), ["L4"])["L4"].device_seconds
        for version in ("1.7.1", "2.4.0")
    )
    assert of_2020 / of_today == pytest.approx(math.exp(0.05 * years), rel=1e-2)
