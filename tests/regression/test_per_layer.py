"""Lines through layers with known coefficients, their sum over a network, and what it leaves out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.regression.per_layer import Layer, LayerKind, LayerTime, fit_layers, fit_line
from lightning_predict.tracing.trace import Kernel

COEFFICIENTS: dict[LayerKind, tuple[float, float]] = {
    "convolution": (20e-6, 1e-13),
    "fully connected": (10e-6, 3e-13),
    "activation": (5e-6, 2e-11),
}
SIZES = (1e6, 1e7, 1e8, 1e9)


def times(gpu: str = "T4", factor: float = 1.0) -> list[LayerTime]:
    return [
        LayerTime(layer=Layer(kind, "forward", size), gpu=gpu, seconds=factor * (constant + slope * size))
        for kind, (constant, slope) in COEFFICIENTS.items()
        for size in SIZES
    ]


def test_known_coefficients_are_found_by_kind_and_gpu() -> None:
    found = fit_layers([*times(), *times("V100", factor=0.5)])
    assert found.gpus == ("T4", "V100")
    for kind, (constant, slope) in COEFFICIENTS.items():
        for gpu, factor in (("T4", 1.0), ("V100", 0.5)):
            line = found.lines[gpu, kind, "forward"]
            assert (line.constant, line.slope) == pytest.approx((factor * constant, factor * slope))
            assert (line.count, line.lowest, line.highest) == (4, 1e6, 1e9)


def test_a_network_is_the_sum_of_its_layers() -> None:
    network = [
        Layer("convolution", "forward", 5e8),
        Layer("convolution", "forward", 1e8),
        Layer("activation", "forward", 2e6),
    ]
    estimate = fit_layers(times()).predict(network, "T4")
    # 20 µs + 50 µs, 20 µs + 10 µs, 5 µs + 40 µs.
    assert estimate.seconds == pytest.approx(145e-6)
    assert (estimate.time.low, estimate.time.high) == pytest.approx((145e-6, 145e-6))
    assert (estimate.uncovered, estimate.note, estimate.extrapolated_share) == ({}, None, 0.0)


def test_layers_that_were_never_measured_are_said() -> None:
    network = [Layer("convolution", "forward", 1e8), *[Layer("pooling", "backward", 1.0)] * 2]
    estimate = fit_layers(times()).predict(network, "T4")
    assert estimate.seconds == pytest.approx(30e-6)
    assert estimate.uncovered == {("pooling", "backward"): 2}
    assert estimate.note == "Layers without a regression, which are left out: 2 pooling (backward)."


def test_the_share_beyond_the_measured_layers_is_said() -> None:
    network = [Layer("convolution", "forward", 1e9), Layer("convolution", "forward", 4e9)]
    estimate = fit_layers(times()).predict(network, "T4")
    assert estimate.extrapolated_share == pytest.approx(420 / (420 + 120))  # of 120 µs and 420 µs


def test_errors_of_one_kind_add_up_and_those_of_others_do_not() -> None:
    # Half of the layers take 10 % more than the line, half 10 % less: a spread of 10 %.
    uneven = [
        LayerTime(layer=Layer(kind, "forward", 1.0), gpu="T4", seconds=seconds)
        for kind in ("convolution", "activation")
        for seconds in (0.9, 1.1)
    ]
    found = fit_layers(uneven)
    same = found.predict([Layer("convolution", "forward", 1.0)] * 2, "T4")
    mixed = found.predict([Layer("convolution", "forward", 1.0), Layer("activation", "forward", 1.0)], "T4")
    assert same.seconds == mixed.seconds == pytest.approx(2.0)
    assert same.time.high - same.time.middle == pytest.approx(1.645 * 0.2)
    assert mixed.time.high - mixed.time.middle == pytest.approx(1.645 * 0.1 * math.sqrt(2))


def test_a_network_of_other_depth_is_predicted() -> None:
    """Inner modules: fitted on networks of up to four, predicted for 16."""
    module = [Layer("convolution", "forward", 2e8), Layer("activation", "forward", 1e6)]
    found = fit_layers(times())
    shallow, deep = (found.predict(module * depth, "T4").seconds for depth in (4, 16))
    assert deep == pytest.approx(4 * shallow)


@given(
    constant=st.floats(0, 1e-3),
    slope=st.floats(1e-15, 1e-9),
    sizes=st.lists(st.floats(1, 1e12), min_size=2, max_size=8, unique=True),
    relative=st.booleans(),
)
def test_lines_are_found_and_never_negative(constant: float, slope: float, sizes: list[float], relative: bool) -> None:
    complexity = np.array(sizes)
    seconds = constant + slope * complexity
    line = fit_line(complexity, seconds, relative=relative)
    assert line.constant >= 0
    assert line.slope >= 0
    largest = float(complexity.max())
    assert line.at(largest) == pytest.approx(constant + slope * largest, rel=1e-3)


def test_relative_errors_make_short_layers_count() -> None:
    # 1 and 2 are on the line t = c, 100 takes half as much again: the relative fit gives way by less.
    complexity, seconds = np.array([1.0, 2.0, 100.0]), np.array([1.0, 2.0, 150.0])
    absolute, relative = (fit_line(complexity, seconds, relative=one) for one in (False, True))
    assert abs(absolute.at(100) - 150) < abs(relative.at(100) - 150)
    assert abs(relative.at(1) - 1) < abs(absolute.at(1) - 1)


def test_a_line_that_would_start_below_0_goes_through_it() -> None:
    # t = c² at 1, 2 and 3: the least-squares line is -10/3 + 4c; through 0 it has slope (1 + 8 + 27) / 14.
    line = fit_line(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    assert (line.constant, line.slope) == pytest.approx((0.0, 36 / 14))


def test_a_line_that_would_fall_is_flat() -> None:
    line = fit_line(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0]))
    assert (line.constant, line.slope) == pytest.approx((2.0, 0.0))


def test_layers_of_one_size_are_a_line_all_the_same() -> None:
    line = fit_line(np.array([4.0, 4.0]), np.array([1.0, 3.0]))
    assert line.at(4.0) == pytest.approx(2.0)


def kernel(seconds: float) -> Kernel:
    return Kernel(
        name="k", seconds=seconds, grid=(1, 1, 1), block=(1, 1, 1), registers_per_thread=0, shared_memory_bytes=0,
        stream=7, start_seconds=0.0,
    )  # fmt: skip


def test_what_cannot_be_fitted_or_predicted() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"^There are no layer times to fit; record a step with measured ker"
    ):
        fit_layers([])
    wrong = replace(times()[0], seconds=0.0)
    with pytest.raises(InvalidArgumentError, match=r"^A convolution layer took 0\.0 seconds; expected above 0\.$"):
        fit_layers([wrong])
    with pytest.raises(InvalidArgumentError, match=r"^No layer was measured on 'L4'; there are T4\.$"):
        fit_layers(times()).predict([], "L4")
