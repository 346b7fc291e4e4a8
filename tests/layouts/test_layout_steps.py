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
from lightning_predict.hardware import Gpu, gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.layouts.data_parallel import _across
from lightning_predict.layouts.layout_steps import MultiGpuStep
from lightning_predict.layouts.overlap import COLLECTIVE_BLOCKS, OVERLAP_COSTS, Links, slowest_of
from lightning_predict.layouts.strategy import DATA_STRATEGIES, parse_strategy
from lightning_predict.record.trace import Operation, Parameter, Phase, TensorInfo, Trace
from lightning_predict.timeline.step_prediction import StepPrediction, predict_steps

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
T4, H100 = gpu("T4"), gpu("H100-SXM-80GB")


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


def on(
    layout: int | Layout, words: str, *, bus: float = 1e15, trace: Trace = TRACE, timed: WorkTimes = TIMED
) -> StepPrediction:
    """Predict the step on a number of A100s or a layout, over links with this bandwidth in bytes per second."""
    layout = Layout(A100, layout) if isinstance(layout, int) else layout
    (step,) = predict_steps(trace, timed, [layout.gpu])
    links = Interconnect(intra_node_bytes_per_second=bus)
    return MultiGpuStep(trace, timed, [layout.gpu]).on_layout(layout, step, 0, parse_strategy(words), links)


def with_wait(seconds: float, count: int = 2, step: float = 6.5) -> float:
    return seconds + float(OVERLAP_COSTS.speed_deviation(np.array(step))) * slowest_of(count) * step


@pytest.mark.parametrize(
    ("words", "alone", "communication", "seconds", "hidden", "tolerance"),
    [
        # An all_reduce of one gradient takes `alone` seconds on two GPUs, and 1.5 times as long during the step: 1.5 s.
        # On the link from 4 to 5.5 and from 6 to 7.5 s; then the update. 1.5 s of the 3 are hidden.
        ("ddp", 1.0, 3.0, 8.0, 1.5, 5e-3),
        # 10 s each: from 4 to 14 and on to 24 s; 2 s of it are hidden.
        ("ddp", 10 / 1.5, 20.0, 24.5, 2, 2e-2),
        # The first bucket is full with the first gradient, for any size of the others.
        ("ddp,bucket_cap_mb=1000", 1.0, 3.0, 8.0, 1.5, 5e-3),
        # Stage 2 scatters: half of an all_reduce, 0.75 s each, to 4.75 and 6.75 s. The update of 0.25 s ends at 7.0,
        # then 200 MiB are gathered in 1.5 s. Of 3 s, 0.75 are hidden. Stage 1 updates the same share.
        ("zero2", 1.0, 3.0, 8.5, 0.75, 5e-2),
        ("zero1", 1.0, 3.0, 8.5, 0.75, 5e-2),
    ],
)
def test_step_of_two_replicas_by_hand(
    words: str, alone: float, communication: float, seconds: float, hidden: float, tolerance: float
) -> None:
    prediction = on(2, words, bus=SIZE / alone)  # 2 (2 - 1) / 2 = 1 time the message
    assert prediction.communication_seconds == pytest.approx(communication, rel=1e-3)
    # Hidden communication takes its blocks' multiprocessors, of 108, from computation.
    contention = COLLECTIVE_BLOCKS / 108 * hidden
    assert prediction.seconds == pytest.approx(with_wait(seconds + contention), abs=tolerance)
    assert prediction.added_seconds == pytest.approx(prediction.seconds - STEP.seconds)
    assert prediction.gpu == "2xA100-SXM-80GB"


def test_fsdp_gathers_each_unit_twice_and_scatters_it_once() -> None:
    # 2 units x (2 gathers + 1 scatter) of half an all_reduce, 0.75 s each; unit 1 is still there when its backward pass
    # begins in the next visit, but is gathered again, as FSDP frees used parameters.
    prediction = on(2, "fsdp", bus=SIZE)
    assert prediction.communication_seconds == pytest.approx(6 * 0.75, rel=1e-3)
    # The first gather does not overlap, the update is halved, the last scatter is waited for.
    assert prediction.seconds > 0.75 + 6.0 + 0.75 + 0.25
    inside, across = (on(Layout(A100, 2, nodes), "hybrid", bus=100 * SIZE) for nodes in (1, 2))
    assert inside.seconds == on(2, "fsdp", bus=100 * SIZE).seconds
    assert across.communication_seconds > inside.communication_seconds  # all_reduces over machines


def test_inference_has_no_communication_and_parameters_are_needed() -> None:
    forward = replace(TRACE, operations=TRACE.operations[:2])
    prediction = on(8, "ddp", trace=forward, timed=timed_as([1.0, 1.0]))
    assert prediction.communication_seconds == 0
    assert prediction.seconds == pytest.approx(with_wait(2.0, 8, step=2.0), rel=1e-3)
    with pytest.raises(InvalidArgumentError, match=r"has no parameters.*Record it with lightning_predict\.capture"):
        on(2, "ddp", trace=replace(TRACE, parameters=()))


@pytest.mark.parametrize("data", DATA_STRATEGIES)
def test_layout_of_one_gpu_is_the_single_step(data: str) -> None:
    gpus, timed = [A100, T4], timed_as([part for _, _, part in PARTS], rows=2)
    steps, shared = predict_steps(TRACE, timed, gpus), MultiGpuStep(TRACE, timed, gpus)
    for row, own in enumerate(gpus):
        assert shared.on_layout(Layout(own), steps[row], row, parse_strategy(data)) == steps[row]


@given(
    st.sampled_from(DATA_STRATEGIES),
    st.sampled_from([A100, T4, gpu("RTX-3090")]),
    st.integers(1, 3),
    st.floats(1e8, 1e12),
    st.floats(1, 4),
)
def test_work_of_a_gpu_is_constant_and_slower_links_never_help(
    data: str, card: Gpu, exponent: int, bus: float, factor: float
) -> None:
    fast, slow = (on(Layout(card, 2**exponent), data, bus=rate) for rate in (bus, bus / factor))
    assert fast.device_seconds == STEP.device_seconds
    assert fast.seconds <= slow.seconds * (1 + 1e-9)
    assert fast.communication_seconds <= slow.communication_seconds * (1 + 1e-9)
    assert fast.low_seconds <= fast.seconds <= fast.high_seconds


@pytest.mark.parametrize(("count", "expected", "tolerance"), [(1, 0, 0), (2, 0.564, 0.03), (8, 1.424, 0.02)])
def test_expected_maximum_of_normal_draws(count: int, expected: float, tolerance: float) -> None:
    # Blom: the normal quantile of (n - 3/8) / (n + 1/4); of two draws the mean maximum is 1 / sqrt(pi) = 0.564.
    assert slowest_of(count) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("group", "across", "groups_per_node"),
    [
        # Groups of four: eight GPUs hold the same share, two in each machine, and four such groups send at once.
        (4, Layout(H100, 2, 4), 4),
        (8, Layout(H100, 1, 4), 8),  # groups as large as a machine: one in each
    ],
)
def test_gpus_with_same_shard_are_in_as_few_machines_as_possible(
    group: int, across: Layout, groups_per_node: int
) -> None:
    whole = Links(Layout(H100, 8, 4), CATALOGUE, 1.0)
    links = _across(whole, replace(whole, layout=Layout(H100, group, 1)))
    assert (links.layout, links.groups_per_node) == (across, groups_per_node)
