"""Where gradients become ready, on hand-made steps; torch's own rule for the buckets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.layouts.gradients import (
    FIRST_BUCKET_BYTES,
    Bucket,
    UnitSegment,
    buckets,
    has_backward,
    ready_gradients,
    unit_bytes,
    unit_of,
    unit_segments,
)
from lightning_predict.record.trace import Parameter, Phase, Trace
from lightning_predict.timeline.simulation import HostOperation

MEBIBYTE = 2**20


def done(phase: Phase, module: str | None) -> HostOperation:
    return HostOperation(name="op", phase=phase, seconds=np.zeros((1, 0)), module=module)


def trace_with(**shapes: tuple[int, ...]) -> Trace:
    """Parameters by name, with `_` for `.`."""
    parameters = tuple(
        Parameter(name=name.replace("_", "."), shape=shape, dtype="float32") for name, shape in shapes.items()
    )
    return Trace(operations=(), device="cpu", recorder="dispatch", parameters=parameters)


STEP = [
    done("forward", "first"),
    done("forward", "second.inner"),
    done("backward", "second.inner"),
    done("backward", "first"),
    done("backward", None),
    done("optimizer", None),
]


def test_a_gradient_is_ready_after_the_last_backward_operation_of_its_module() -> None:
    trace = trace_with(first_weight=(2, 2), second_inner_weight=(4,))
    assert ready_gradients(trace, STEP) == [Bucket(16, 3), Bucket(16, 4)]


def test_a_parents_own_parameter_is_ready_with_the_modules_inside_it() -> None:
    assert ready_gradients(trace_with(second_scale=(1,)), STEP) == [Bucket(4, 3)]


def test_a_module_without_backward_operations_is_ready_with_the_one_around_it_or_at_the_end() -> None:
    assert ready_gradients(trace_with(second_inner_deep_weight=(1,)), STEP) == [Bucket(4, 3)]
    assert ready_gradients(trace_with(elsewhere_weight=(1,)), STEP) == [Bucket(4, 5)]


def test_frozen_parameters_and_steps_without_backward_exchange_nothing() -> None:
    weight = Parameter(name="first.weight", shape=(2,), dtype="float32", requires_grad=False)
    frozen = Trace(operations=(), device="cpu", recorder="dispatch", parameters=(weight,))
    assert ready_gradients(frozen, STEP) == []
    assert ready_gradients(trace_with(first_weight=(2,)), STEP[:2]) == []
    assert has_backward(STEP)
    assert not has_backward(STEP[:2])


def test_under_accumulation_the_last_batch_counts() -> None:
    twice = [*STEP[:5], *STEP[:5], STEP[5]]
    assert ready_gradients(trace_with(first_weight=(1,)), twice) == [Bucket(4, 9)]


def test_the_first_bucket_is_small_and_a_bucket_is_full_at_its_cap() -> None:
    # 0.5 + 0.5 MiB fill the first (1 MiB); 20 + 10 reach 25; 3 are left.
    sizes = [0.5, 0.5, 20, 10, 3]
    gradients = [Bucket(size * MEBIBYTE, position) for position, size in enumerate(sizes)]
    found = list(buckets(gradients, cap_bytes=25 * MEBIBYTE))
    assert [(bucket.size_bytes / MEBIBYTE, bucket.ready_after) for bucket in found] == [(1, 1), (30, 3), (3, 4)]


@given(st.lists(st.floats(1, 1e9), max_size=30), st.floats(1, 1e9))
def test_buckets_hold_all_gradients_in_order(sizes: list[float], cap: float) -> None:
    found = list(buckets([Bucket(size, number) for number, size in enumerate(sizes)], cap_bytes=cap))
    assert sum(bucket.size_bytes for bucket in found) == pytest.approx(sum(sizes))
    assert [bucket.ready_after for bucket in found] == sorted(bucket.ready_after for bucket in found)
    assert all(bucket.size_bytes >= min(cap, FIRST_BUCKET_BYTES) for bucket in found[:-1])


@pytest.mark.parametrize(
    ("module", "unit"),
    [("0", "0"), ("layers.3.mlp.0", "layers.3"), ("layer1.0.conv1", "layer1.0"), ("head", ""), ("", "")],
)
def test_units_end_at_the_first_number(module: str, unit: str) -> None:
    assert unit_of(module) == unit


def test_units_hold_their_parameters_and_the_root_the_rest() -> None:
    trace = trace_with(layers_0_weight=(8,), layers_0_bias=(2,), layers_1_weight=(4,), head_weight=(1,))
    assert unit_bytes(trace.parameters) == {"layers.0": 40, "layers.1": 16, "": 4}


def test_visits_follow_the_step() -> None:
    step = [
        done("forward", "embed"),
        done("forward", "layers.0.up"),
        done("forward", None),
        done("forward", "layers.0.down"),
        done("backward", "layers.0.down"),
        done("backward", "embed"),
        done("optimizer", None),
    ]
    found = list(unit_segments(step, {"layers.0": 1, "": 1}))
    assert found == [
        UnitSegment("", False, 0),
        UnitSegment("layers.0", False, 1),
        UnitSegment("layers.0", True, 4),
        UnitSegment("", True, 5),
    ]
