"""A step of two modules shared by several GPUs: times by hand, and relations that must hold for any layout.

The step: forward 1 + 1 s, backward 2 s of `1` and 2 s of `0`, update 0.5 s, all on the device. Each module has 100
MiB of parameters, so that each gradient fills a DDP bucket, ready at 4 s and at 6 s.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.layouts.data_parallel import _across
from lightning_predict.layouts.overlap import OVERLAP_COSTS, Links, slowest_of
from lightning_predict.layouts.strategy import DATA_STRATEGIES, Strategy
from lightning_predict.record.trace import Operation, Parameter, Phase, TensorInfo, Trace
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps
from tests.layouts.example_blocks import on_layouts

SIZE = 100 * 2**20
DATA = TensorInfo((4, 4), "float32")
PARTS: list[tuple[Phase, str | None, float]] = [
    ("forward", "0", 1.0),
    ("forward", "1", 1.0),
    ("backward", "1", 2.0),
    ("backward", "0", 2.0),
    ("optimizer", None, 0.5),
]
TRACE = Trace(
    operations=tuple(
        Operation(name="aten::mm", phase=phase, inputs=(DATA, DATA), outputs=(DATA,), module=module)
        for phase, module, _ in PARTS
    ),
    device="cuda",
    recorder="kineto",
    parameters=tuple(Parameter(name=f"{module}.weight", shape=(SIZE // 4,), dtype="float32") for module in range(2)),
)
A100 = gpu("A100-SXM-80GB")
T4 = gpu("T4")


def timed_as(seconds: list[float], rows: int = 1) -> WorkTimes:
    values = np.array([seconds] * rows)
    return WorkTimes(
        items=tuple(WorkItem((index,), (), 1) for index in range(len(seconds))),
        families=tuple("linear" for _ in seconds),
        phases=tuple(phase for phase, _, _ in PARTS[: len(seconds)]),
        interval=Interval(0.9 * values, values, 1.1 * values),
        shares={"mlp": np.ones_like(values)},
    )


TIMED = timed_as([seconds for _, _, seconds in PARTS])
(STEP,) = predict_steps(TRACE, TIMED, [A100])


def shared(count: int, strategy: Strategy, *, alone: float, nodes: int = 1) -> StepPrediction:
    """The step on A100s where an all_reduce of one gradient takes `alone` seconds on two of them by itself."""
    bus = Interconnect(intra_node_bytes_per_second=SIZE / alone)  # 2 (2 - 1) / 2 = 1 time the message
    (found,) = on_layouts(TRACE, TIMED, [A100], [STEP], [Layout(A100, count, nodes)], strategy, interconnect=bus)
    return found


def waiting(count: int) -> float:
    return float(OVERLAP_COSTS.speed_deviation(np.array(6.5))) * slowest_of(count) * 6.5


def test_the_step_by_itself() -> None:
    assert STEP.seconds == pytest.approx(6.5, abs=1e-3)


def test_ddp_hides_the_first_bucket_and_waits_for_the_last() -> None:
    # At the same time as the step, a collective takes 1.5 times as long: 1.5 s. On the link from 4 to 5.5 and from 6 to
    # 7.5 s; then the update. 1.5 s of the 3 are hidden and slow computing down by this time times the contention.
    found = shared(2, Strategy(), alone=1.0)
    assert found.communication_seconds == pytest.approx(3.0, rel=1e-3)
    assert found.seconds == pytest.approx(8.0 + OVERLAP_COSTS.contention * 1.5 + waiting(2), abs=5e-3)
    assert found.added_seconds == pytest.approx(found.seconds - STEP.seconds)
    assert found.gpu == "2xA100-SXM-80GB"


def test_a_slow_link_is_busy_until_long_after_the_backward_pass() -> None:
    # 10 s each: from 4 to 14 and on to 24 s; 2 s of it are hidden.
    found = shared(2, Strategy(), alone=10 / 1.5)
    assert found.seconds == pytest.approx(24.5 + OVERLAP_COSTS.contention * 2 + waiting(2), abs=2e-2)


def test_one_bucket_for_all_hides_nothing() -> None:
    # 200 MiB in one bucket, ready at 6 s: 3 s on the link.
    found = shared(2, Strategy(bucket_cap_mb=1000), alone=1.0)
    assert found.communication_seconds == pytest.approx(3.0, rel=1e-3)
    assert found.seconds > 6.0 + 1.5 + 0.5


def test_zero_shares_the_update_and_gathers_the_parameters_after_it() -> None:
    # Stage 2 scatters: half of an all_reduce, 0.75 s each, to 4.75 and 6.75 s. The update of 0.25 s ends at 7.0, then
    # 200 MiB are gathered in 1.5 s. Of 3 s, 0.75 are hidden.
    found = shared(2, Strategy(data="zero2"), alone=1.0)
    assert found.seconds == pytest.approx(8.5 + OVERLAP_COSTS.contention * 0.75 + waiting(2), abs=5e-2)
    # Stage 1 updates the same share, of whose gradients alone it needs the sums; it keeps the others in memory.
    assert shared(2, Strategy(data="zero1"), alone=1.0).seconds == pytest.approx(found.seconds)


def test_fsdp_gathers_each_unit_twice_and_scatters_it_once() -> None:
    # 2 units x (2 gathers + 1 scatter) of half an all_reduce, 0.75 s each; unit 1 is still there when its backward pass
    # begins in the next visit, but is gathered again, as FSDP frees used parameters.
    found = shared(2, Strategy(data="fsdp"), alone=1.0)
    assert found.communication_seconds == pytest.approx(6 * 0.75, rel=1e-3)
    # The first gather hides behind nothing, the update is halved, the last scatter is waited for.
    assert found.seconds > 0.75 + 6.0 + 0.75 + 0.25


def test_hybrid_adds_up_the_shares_of_the_machines() -> None:
    inside = shared(2, Strategy(data="hybrid"), alone=0.01)
    assert inside.seconds == shared(2, Strategy(data="fsdp"), alone=0.01).seconds
    across = shared(2, Strategy(data="hybrid"), alone=0.01, nodes=2)
    assert across.communication_seconds > inside.communication_seconds


def test_inference_exchanges_nothing() -> None:
    forward = replace(TRACE, operations=TRACE.operations[:2])
    timed = timed_as([1.0, 1.0])
    (step,) = predict_steps(forward, timed, [A100])
    (found,) = on_layouts(forward, timed, [A100], [step], [Layout(A100, 8)], Strategy())
    assert found.communication_seconds == 0
    assert found.seconds == pytest.approx(
        2.0 * (1 + float(OVERLAP_COSTS.speed_deviation(np.array(2.0))) * slowest_of(8)), rel=1e-3
    )


def test_a_trace_without_parameters_says_what_to_do() -> None:
    nameless = replace(TRACE, parameters=())
    with pytest.raises(InvalidArgumentError, match=r"has no parameters.*Record it with lightning_predict\.capture"):
        on_layouts(nameless, TIMED, [A100], [STEP], [Layout(A100, 2)], Strategy())


@pytest.mark.parametrize("data", DATA_STRATEGIES)
def test_one_gpu_is_the_single_step_exactly(data: str) -> None:
    both = predict_steps(TRACE, timed_as([part for _, _, part in PARTS], rows=2), [A100, T4])
    layouts = [Layout(T4), Layout(A100), Layout(A100, 4)]
    found = on_layouts(
        TRACE,
        timed_as([part for _, _, part in PARTS], rows=2),
        [A100, T4],
        both,
        layouts,
        Strategy(data=data),  # type: ignore[arg-type]
    )
    assert found[:2] == (both[1], both[0])


@given(
    st.sampled_from(DATA_STRATEGIES),
    st.sampled_from([A100, T4, gpu("RTX-3090")]),
    st.integers(1, 3),
    st.floats(1e8, 1e12),
    st.floats(1, 4),
)
def test_work_of_a_gpu_never_grows_and_slower_links_never_help(
    data: str, card: object, exponent: int, bus: float, factor: float
) -> None:
    def on(count: int, bandwidth: float) -> StepPrediction:
        (found,) = on_layouts(
            TRACE,
            TIMED,
            [card],  # type: ignore[list-item]
            [replace(STEP, gpu=card.name)],  # type: ignore[attr-defined]
            [Layout(card, count)],  # type: ignore[arg-type]
            Strategy(data=data),  # type: ignore[arg-type]
            interconnect=Interconnect(intra_node_bytes_per_second=bandwidth),
        )
        return found

    few, slower = on(2**exponent, bus), on(2**exponent, bus / factor)
    assert few.device_seconds == STEP.device_seconds
    assert few.seconds <= slower.seconds * (1 + 1e-9)
    assert few.communication_seconds <= slower.communication_seconds * (1 + 1e-9)
    assert few.low_seconds <= few.seconds <= few.high_seconds


def test_the_slowest_of_n() -> None:
    # Blom: the normal quantile of (n - 3/8) / (n + 1/4); of two draws the mean maximum is 1 / sqrt(pi) = 0.564.
    assert slowest_of(1) == 0
    assert slowest_of(2) == pytest.approx(0.564, abs=0.03)
    assert slowest_of(8) == pytest.approx(1.424, abs=0.02)


def test_copies_of_a_sharding_group_lie_in_the_same_machines_first() -> None:
    # Four machines of eight, in groups of four: eight hold the same share, two in each machine, where four such
    # groups send at once.
    h100 = gpu("H100-SXM-80GB")
    whole = Links(Layout(h100, 8, 4), CATALOGUE, 1.0)
    across = _across(whole, replace(whole, layout=Layout(h100, 4, 1)))
    assert across.layout == Layout(h100, 2, 4)
    assert across.groups_per_node == 4
    # Groups as large as a machine: one in each.
    across = _across(whole, replace(whole, layout=Layout(h100, 8, 1)))
    assert across.layout == Layout(h100, 1, 4)
    assert across.groups_per_node == 8
