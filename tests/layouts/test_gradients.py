"""When gradients become ready, on hand-made steps; torch's own rule for the buckets; FSDP's units."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.units import MEBIBYTE
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


def done(phase: Phase, module: str | None) -> HostOperation:
    return HostOperation(name="op", phase=phase, seconds=np.zeros((1, 0)), module=module)


def trace_with(shapes: Mapping[str, tuple[int, ...]], *, requires_grad: bool = True) -> Trace:
    parameters = tuple(
        Parameter(name=name, shape=shape, dtype="float32", requires_grad=requires_grad)
        for name, shape in shapes.items()
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


@pytest.mark.parametrize(
    ("shapes", "step", "ready"),
    [
        ({"first.weight": (2, 2), "second.inner.weight": (4,)}, STEP, [Bucket(16, 3), Bucket(16, 4)]),
        ({"second.scale": (1,)}, STEP, [Bucket(4, 3)]),  # with the modules inside
        # Without a backward operation: with the enclosing module, or at the end.
        ({"second.inner.deep.weight": (1,)}, STEP, [Bucket(4, 3)]),
        ({"elsewhere.weight": (1,)}, STEP, [Bucket(4, 5)]),
        ({"first.weight": (1,)}, [*STEP[:5], *STEP[:5], STEP[5]], [Bucket(4, 9)]),  # after the last batch
        ({"first.weight": (2,)}, STEP[:2], []),
    ],
)
def test_gradient_is_ready_after_last_backward_operation_of_its_module(
    shapes: dict[str, tuple[int, ...]], step: list[HostOperation], ready: list[Bucket]
) -> None:
    assert ready_gradients(trace_with(shapes), step) == ready
    assert ready_gradients(trace_with(shapes, requires_grad=False), step) == []
    assert has_backward(step) == bool(ready)


def test_first_bucket_is_small_and_units_hold_their_parameters() -> None:
    # 0.5 + 0.5 MiB fill the first (1 MiB); 20 + 10 reach 25; 3 are left.
    sizes = [0.5, 0.5, 20, 10, 3]
    gradients = [Bucket(size * MEBIBYTE, position) for position, size in enumerate(sizes)]
    filled = list(buckets(gradients, cap_bytes=25 * MEBIBYTE))
    assert [(bucket.size_bytes / MEBIBYTE, bucket.ready_after) for bucket in filled] == [(1, 1), (30, 3), (3, 4)]
    shapes = {"layers.0.weight": (8,), "layers.0.bias": (2,), "layers.1.weight": (4,), "head.weight": (1,)}
    parameters = trace_with(shapes).parameters
    assert unit_bytes(parameters) == {"layers.0": 40, "layers.1": 16, "": 4}
    assert unit_bytes(parameters, "bfloat16") == {"layers.0": 20, "layers.1": 8, "": 2}


@given(st.lists(st.floats(1, 1e9), max_size=30), st.floats(1, 1e9))
def test_buckets_hold_all_gradients_in_order(sizes: list[float], cap: float) -> None:
    filled = list(buckets([Bucket(size, number) for number, size in enumerate(sizes)], cap_bytes=cap))
    assert sum(bucket.size_bytes for bucket in filled) == pytest.approx(sum(sizes))
    assert [bucket.ready_after for bucket in filled] == sorted(bucket.ready_after for bucket in filled)
    assert all(bucket.size_bytes >= min(cap, FIRST_BUCKET_BYTES) for bucket in filled[:-1])


@pytest.mark.parametrize(
    ("module", "unit"),
    [("0", "0"), ("layers.3.mlp.0", "layers.3"), ("layer1.0.conv1", "layer1.0"), ("head", ""), ("", "")],
)
def test_unit_ends_at_first_number(module: str, unit: str) -> None:
    assert unit_of(module) == unit


def test_units_follow_each_other_as_in_the_step() -> None:
    modules: list[tuple[Phase, str | None]] = [
        ("forward", "embed"),
        ("forward", "layers.0.up"),
        ("forward", None),
        ("forward", "layers.0.down"),
        ("backward", "layers.0.down"),
        ("backward", "embed"),
        ("optimizer", None),
    ]
    assert list(unit_segments([done(*each) for each in modules], {"layers.0": 1, "": 1})) == [
        UnitSegment("", False, 0),
        UnitSegment("layers.0", False, 1),
        UnitSegment("layers.0", True, 4),
        UnitSegment("", True, 5),
    ]
