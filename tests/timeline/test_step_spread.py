import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import WeightsFormatError
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.testing import example_trace
from lightning_predict.timeline.step_prediction import predict_steps
from lightning_predict.uncertainty import (
    UNCALIBRATED,
    StepSpread,
    bundled_spread,
    device_ends,
    on_several_gpus,
    read_spread,
)

MODELS = kernel_models(gpu_names())


def test_squares_of_both_parts_of_fused_steps_and_of_several_gpus_add() -> None:
    # ln 0.8 = -0.2231, half of it and 0.3: sqrt(0.1116² + 0.3²) = 0.3201; ln 2 = 0.6931: sqrt(0.3466² + 0.3²) = 0.4584
    low, high = StepSpread(operations_factor=0.5, new_source=0.3).widened(0.8, 2.0)
    assert (low, high) == pytest.approx((math.exp(-0.3201), math.exp(0.4584)), rel=1e-4)
    assert UNCALIBRATED.widened(0.8, 2.0) == pytest.approx((0.8, 2.0))
    # sqrt(0.3² + 0.4²) = 0.5, and the operations' own ends are not kept.
    spread = StepSpread(operations_factor=0.0, new_source=0.3, fused=0.4)
    assert spread.widened(0.8, 2.0, is_fused=True) == pytest.approx((math.exp(-0.5), math.exp(0.5)))
    assert spread.widened(0.8, 2.0) == pytest.approx((math.exp(-0.3), math.exp(0.3)))
    # sqrt(0.12² + 0.16²) = 0.2 on a log scale
    ends = on_several_gpus(2 * np.exp([-0.12, 0.0, 0.12]))
    assert ends == pytest.approx(2 * np.exp([-0.2, 0.0, 0.2]))
    assert on_several_gpus(np.zeros(3)).tolist() == [0.0, 0.0, 0.0]


@given(low=st.floats(0.1, 1.0), high=st.floats(1.0, 10.0), wider=st.floats(1.01, 3.0))
def test_wider_interval_stays_wider(low: float, high: float, wider: float) -> None:
    below, above = bundled_spread().widened(np.array([low, low / wider]), np.array([high, high]))
    assert below[1] < below[0] <= 1 <= above[0] == above[1]


def test_spread_is_read_from_its_file_and_covers_the_sources(tmp_path: Path) -> None:
    spread = bundled_spread()
    assert 0.25 <= spread.operations_factor < 3
    assert 0.02 <= spread.new_source < 0.5
    file = tmp_path / "whole_steps.json"
    file.write_text(json.dumps({"spread": {"kept": "much"}}))
    with pytest.raises(WeightsFormatError, match=r"spread\.kept"):
        read_spread(file)
    # Sources deviate by 0.111 as a whole, each time here by 5 %: exp(2 x sqrt(0.111² + (0.954 x 0.049)²)) = 1.27.
    times = Interval.from_factor(np.ones((1, 3)), 1.0)
    low, high = device_ends(times, ["linear"] * 3, [1, 2, 3], bundled_spread(), is_validated=np.ones(1, dtype=np.bool_))
    assert 1.25 < float(high[0] / low[0]) < 1.3


def end_above(own: Gpu) -> float:
    """High end of a step over its middle; the low end may be cut by a roofline."""
    trace = example_trace(4096)
    (step,) = predict_steps(trace, predict_work_times(trace, [own], origin=None, models=MODELS), [own])
    return step.high_seconds / step.seconds


@pytest.mark.parametrize("name", [name for name in gpu_names() if MODELS.has_own_weights(name, "linear", "float32")])
def test_interval_is_wider_for_gpu_with_fewer_measurements(name: str) -> None:
    own = gpu(name)
    unseen = replace(own, name="UNMEASURED", measured_flops_per_second={})
    anchored = replace(unseen, measured_flops_per_second={"float32": 0.8 * own.peak_flops_per_second["float32"]})
    assert end_above(unseen) > end_above(anchored) > end_above(own)
