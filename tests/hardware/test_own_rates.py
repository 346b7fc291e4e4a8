"""A machine's own rates in Python."""

import pytest

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.layouts import layouts_of
from lightning_predict.hardware.own_rates import with_own_rates


def test_all_layouts_of_the_gpu_get_its_rates() -> None:
    one, eight, other = with_own_rates(layouts_of(["B200", "8xB200", "L4"]), {"B200": {"bf16": 1103e12}})
    assert one.gpu == eight.gpu
    assert one.gpu.sustained_flops_per_second["bfloat16"] == one.gpu.measured_flops_per_second["bfloat16"] == 1103e12
    assert other == layouts_of(["L4"])[0]


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"bf16": 1103e12}, r"does not name its GPU, and there are 2: B200-SXM-180GB, L4"),
        ({"bf": 1103e12}, r"measured has 'bf', which is not a dtype of these GPUs; choose of bfloat16, float16"),
        ({"B200": {"bf16": 1103.0}}, r"1103\.0 is not a rate of the B200-SXM-180GB, whose peak is 2250 TFLOP/s"),
        ({"L4": {"int4": 1e12}}, r"'int4', which L4 does not compute"),
        ({"B200": {"bf16": 3e15}}, r"is not a rate"),
    ],
)
def test_impossible_rates_are_rejected(measured: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        with_own_rates(layouts_of(["B200", "L4"]), measured)  # type: ignore[arg-type]
