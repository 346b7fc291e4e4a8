"""Measurements are kept on both sides of a change."""

import math

import pytest

import lightning_predict as lp
from lightning_predict.advice.changes import CHANGES
from lightning_predict.advice.what_if import gain
from lightning_predict.assumptions import Assumptions
from lightning_predict.record.trace import Trace
from tests.advice.example_steps import GPU, profiled
from tests.recordings import recording


def gain_of(name: str, trace: Trace, gpu: str = GPU) -> float:
    changed, _ = CHANGES[name].apply(trace, Assumptions())
    before, after = (lp.predict(each, [gpu], history=False)[gpu] for each in (trace, changed))
    return gain(before, after)


def test_host_bound_profile_gains_nothing_from_half_precision() -> None:
    """Forty launches, one in 100 us, of kernels of 4 and 32 us: the device could be infinitely fast."""
    trace = profiled(kernel_seconds=4e-6, every=100e-6, rows=64)
    assert gain_of("half", trace) == pytest.approx(1.0, abs=0.02)
    assert 0.9 < gain_of("16-mixed", trace) <= 1.0  # the casts are launched, too


def test_device_bound_profile_gains_as_much_as_its_kernels() -> None:
    """Products of 8 ms on ordinary lanes go to tensor cores, additions of 1 ms move half of the bytes."""
    changed, _ = CHANGES["half"].apply(profiled(kernel_seconds=1e-3, every=20e-6), Assumptions())
    products, additions = (
        math.fsum(k.seconds for operation in changed.operations if operation.name == name for k in operation.kernels)
        for name in ("aten::mm", "aten::add")
    )
    assert additions == pytest.approx(20 * 1e-3 / 2, rel=0.1)
    assert products < 20 * 8e-3 / 3  # 312 TFLOP/s in place of 19.5
    assert changed.measured_steps[0] == pytest.approx(products + additions, rel=0.05)


def test_time_outside_operations_is_kept() -> None:
    """A step that takes 30 ms longer than its kernels and launches say does so with the change, too."""
    short, long = (
        profiled(kernel_seconds=1e-3, every=20e-6),
        profiled(kernel_seconds=1e-3, every=20e-6, step_seconds=0.21),
    )
    saved = [
        one.measured_steps[0] - CHANGES["half"].apply(one, Assumptions())[0].measured_steps[0] for one in (short, long)
    ]
    assert saved[1] == pytest.approx(saved[0], rel=0.05)
    assert gain_of("half", long) < gain_of("half", short)


def test_unchanged_operations_keep_their_kernels() -> None:
    trace = profiled(kernel_seconds=1e-3, every=20e-6)
    changed, _ = CHANGES["tf32"].apply(trace, Assumptions())
    for before, after in zip(trace.operations, changed.operations, strict=True):
        assert after.arguments == before.arguments
        if before.name == "aten::add":
            assert after.kernels == before.kernels
        else:
            assert after.kernels[0].seconds < before.kernels[0].seconds


def test_step_time_without_kernels_is_scaled() -> None:
    """Measured at twice the time by shapes, it is predicted at twice the time of the changed shapes."""
    trace = profiled(kernel_seconds=1e-3, every=20e-6)
    from dataclasses import replace

    plain = replace(trace, operations=tuple(replace(operation, kernels=()) for operation in trace.operations))
    paces = [
        CHANGES["half"].apply(replace(plain, step_seconds=(seconds,)), Assumptions())[0].measured_steps[0]
        for seconds in (0.1, 0.2)
    ]
    assert paces[1] == pytest.approx(2 * paces[0])


@pytest.mark.recorded
def test_half_precision_does_not_help_a_host_bound_resnet() -> None:
    """213 ms of launches and 40 ms of kernels on an A100."""
    trace = lp.Trace.load(recording("married_resnet50_a100.json.gz"))
    for name in ("16-mixed", "bf16-mixed", "half"):
        assert 0.9 <= gain_of(name, trace) <= 1.3


@pytest.mark.recorded
def test_half_precision_helps_a_device_bound_resnet() -> None:
    """ResNet-50 trains about twice as fast in mixed precision on a V100 in NVIDIA's own tables (2.0 to 2.4 times)."""
    trace = lp.Trace.load(recording("married_resnet50_v100.json.gz"))
    assert 1.6 <= gain_of("16-mixed", trace, "V100-SXM2-32GB") <= 2.6


@pytest.mark.recorded
def test_compile_gain_of_a_profile_with_data_flow_is_plausible() -> None:
    trace = lp.Trace.load(recording("married_resnet50_v100.json.gz"))
    assert 1.0 <= gain_of("compile", trace, "V100-SXM2-32GB") <= 1.6
