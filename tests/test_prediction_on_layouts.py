"""Layouts of several GPUs through the public call: time, samples, memory and price, and rejected inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightning_predict as lp
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.cost.offers import Offer
from lightning_predict.hardware.layouts import layouts_of
from lightning_predict.kernels.interconnect import Interconnect
from lightning_predict.layouts.overlap import OVERLAP_COSTS, slowest_of
from lightning_predict.prediction import predict_workload
from lightning_predict.record.trace import Flags, Memory, Operation, Parameter, TensorInfo, Trace
from lightning_predict.reports.format import gibibytes
from lightning_predict.reports.ranking import rank
from lightning_predict.reports.table_rows import shown_period
from lightning_predict.run.workload import Workload

DATA = TensorInfo((4096, 4096), "float32")
PRODUCT = Operation(name="aten::mm", phase="forward", inputs=(DATA, DATA), outputs=(DATA,), module="0")
TRACE = Trace(  # A product and its backward pass with 64 MiB of parameters, all in one bucket
    operations=(PRODUCT, replace(PRODUCT, phase="backward"), replace(PRODUCT, phase="backward")),
    device="cpu",
    recorder="dispatch",
    samples=8,
    flags=Flags(matmul_tf32=False),
    parameters=(Parameter(name="0.weight", shape=(4096, 4096), dtype="float32"),),
    memory=Memory(parameter_bytes=2**26, gradient_bytes=2**26, optimizer_state_bytes=2**27),
)

EIGHT_L4 = Offer(
    provider="P",
    instance="eight",
    gpu="L4",
    num_gpus=8,
    usd_per_hour=8.0,
    date="2026-01-01",
    source="https://p.example",
)


def test_layout_and_its_gpu_have_separate_rows() -> None:
    predictions = lp.predict(TRACE, gpus=["L4", "8xL4", "2x8xL4"])
    assert list(predictions) == ["L4", "8xL4", "2x8xL4"]
    assert [prediction.num_gpus for prediction in predictions.values()] == [1, 8, 16]
    single, eight, sixteen = predictions.values()
    assert single.communication_seconds == single.added_seconds == 0
    assert eight.iteration_seconds == pytest.approx(single.iteration_seconds + eight.added_seconds)
    assert single.iteration_seconds < eight.iteration_seconds < sixteen.iteration_seconds
    assert eight.device_seconds == single.device_seconds


def test_run_of_unknown_length_compares_as_many_samples_as_1000_steps() -> None:
    layouts = ["L4", "2xL4", "3xL4"]
    unknown, known = (lp.predict(TRACE, layouts, iterations=count, usd_per_hour=1.0) for count in (None, 1000))
    # 1,000 steps of 8 samples are 500 of 16, and 333.3 of 24: the last is a whole step, too.
    assert unknown.heading == known.heading
    assert (unknown.heading or "").startswith("1,000 steps × batch 8 = 500 × batch 16 (2xL4) = 334 × batch 24 (3xL4)")  # noqa: RUF001
    period = shown_period(unknown)
    assert period.title == "1,000 steps"
    for name in layouts:
        shown = period.seconds(unknown[name])
        assert shown is not None
        assert shown.middle == pytest.approx(known[name].total_seconds)
        assert period.cost_usd(unknown[name]) == pytest.approx(known[name].cost_usd)
    ranked = (rank(unknown).fastest, rank(known).fastest)
    assert ranked[0] is not None
    assert ranked[1] is not None
    assert ranked[0].gpu == ranked[1].gpu
    assert 1000 * ranked[0].seconds == pytest.approx(ranked[1].seconds)
    # One layout of the recorded size needs no equation.
    assert (lp.predict(TRACE, ["L4"]).heading or "").startswith("A training step × batch 8, ")  # noqa: RUF001


def test_layout_is_found_by_each_of_its_names() -> None:
    predictions = lp.predict(TRACE, gpus=["8xB200", "g5.48xlarge"])
    assert list(predictions) == ["8xB200-SXM-180GB", "8xA10G"]
    for name in ("8xB200", "B200:8", "1x8xB200", "8xb200-sxm-180gb"):
        assert predictions[name] is predictions["8xB200-SXM-180GB"]
        assert name in predictions
        assert predictions.get(name) is predictions["8xB200-SXM-180GB"]
    assert predictions["g5.48xlarge"] is predictions["8xA10G"]
    for name in ("B200", "4xB200", "8xL4", "no such thing"):
        assert name not in predictions
        assert predictions.get(name) is None
    with pytest.raises(UnknownGpuError, match=r"No prediction for '4xB200' here\. Predicted: 8xB200-SXM-180GB, 8xA10G"):
        predictions["4xB200"]


def test_whole_machines_are_paid_and_share_the_samples() -> None:
    predictions = lp.predict(TRACE, gpus=["L4", "8xL4"], iterations=1000)
    assert (predictions["L4"].iterations, predictions["8xL4"].iterations) == (1000, 125)
    assert predictions["8xL4"].samples_per_second == pytest.approx(8 * 8 / predictions["8xL4"].iteration_seconds)
    assert predictions["8xL4"].total_seconds == pytest.approx(125 * predictions["8xL4"].iteration_seconds)
    predictions = lp.predict(TRACE, gpus=["L4", "8xL4", "2x8xL4", "2x4xL4"], iterations=8000, offers=[EIGHT_L4])
    assert [row.usd_per_hour for row in predictions.values()] == [8.0, 8.0, 16.0, 16.0]
    total = predictions["2x8xL4"].total_seconds
    assert total is not None
    assert predictions["2x8xL4"].cost_usd == pytest.approx(total / 3600 * 16)
    four = replace(EIGHT_L4, num_gpus=4, instance="four")
    assert lp.predict(TRACE, gpus=["8xL4"], iterations=10, offers=[four])["8xL4"].cost_usd is None


def test_own_prices_apply_to_a_gpu_or_a_layout_and_racks_cost_as_their_trays() -> None:
    rack, trays = (lp.predict(TRACE, gpus=[name], iterations=10**6) for name in ("64xGB200", "16x4xGB200"))
    assert rack["64xGB200"].usd_per_hour == trays["16x4xGB200"].usd_per_hour
    assert rack["64xGB200"].cost_usd == trays["16x4xGB200"].cost_usd
    own = lp.predict(TRACE, gpus=["64xGB200"], usd_per_hour=2.0)["64xGB200"]
    assert own.usd_per_hour == pytest.approx(2.0 * 64)
    predictions = lp.predict(TRACE, gpus=["L4", "2x4xL4"], usd_per_hour=0.5)
    assert [row.usd_per_hour for row in predictions.values()] == [0.5, 4.0]
    named = lp.predict(TRACE, gpus=["L4", "4xL4", "2x4xL4"], usd_per_hour={"L4": 0.5, "2x4xL4": 3.0})
    assert [row.usd_per_hour for row in named.values()] == [0.5, 2.0, 3.0]


def test_memory_follows_the_strategy() -> None:
    def memory(gpus: str, strategy: str = "ddp") -> float:
        needed = lp.predict(TRACE, gpus=[gpus], strategy=strategy)[gpus].memory_bytes
        assert needed is not None
        return needed

    single = memory("L4")
    assert memory("8xL4") == single + 2**26  # buckets
    assert memory("8xL4", "zero2") == single - 7 / 8 * (2**27 + 2**26)
    assert memory("8xL4", "fsdp") == single - 7 / 8 * (2**27 + 2**26 + 2**26) + 2**26  # the only unit is whole


def test_number_of_nodes_may_be_given_and_an_unknown_gpu_names_its_layout() -> None:
    assert list(lp.predict(TRACE, gpus=["8xL4", "2x4xL4"], num_nodes=2)) == ["2x8xL4", "2x4xL4"]
    with pytest.raises(UnknownGpuError, match="In the layout '3xNOPE'"):
        lp.predict(TRACE, gpus=["3xNOPE"])


def test_network_of_the_priced_machine_is_used() -> None:
    """AWS alone rents eight V100 of 32 GB: the recommended machines are joined by 100 Gbit/s, not by 400."""
    named, plain = (
        lp.predict(TRACE, gpus=[name]).items_in_order[0] for name in ("2xp3dn.24xlarge", "2x8xV100-SXM2-32GB")
    )
    assert plain.offer == named.offer
    assert plain.offer is not None
    assert plain.offer.startswith("AWS p3dn.24xlarge")
    assert plain.iteration_seconds == named.iteration_seconds
    words = "Network: 100 Gbit/s between machines, as in p3dn.24xlarge, whose price is used, (EFA; "
    assert any(note.startswith(words) for note in plain.notes)
    # An own price has no network, and an own bandwidth replaces it.
    own = lp.predict(TRACE, gpus=["2x8xV100-SXM2-32GB"], usd_per_hour=1.0).items_in_order[0]
    assert own.iteration_seconds < plain.iteration_seconds
    assert any(note.startswith("Assumed: 400 Gbit/s between machines") for note in own.notes)
    said = lp.predict(
        TRACE, gpus=["2x8xV100-SXM2-32GB"], interconnect=Interconnect(inter_node_bytes_per_second=0.9 * 50e9)
    )
    assert said.items_in_order[0].iteration_seconds == pytest.approx(own.iteration_seconds, rel=0.01)
    # One machine has no network, and the machine of an offer that no page describes has an assumed one.
    for name in ("8xV100-SXM2-32GB", "2x8xA100-SXM-80GB"):
        assert not any("whose price is used" in note for note in lp.predict(TRACE, gpus=[name]).items_in_order[0].notes)


def test_the_search_takes_the_same_network_as_the_prediction() -> None:
    (best,) = lp.best_layouts(TRACE, ["2x8xV100-SXM2-32GB"], count=1)
    prediction = lp.predict(TRACE, gpus=["2x8xV100-SXM2-32GB"], strategy=best.strategy).items_in_order[0]
    assert best.prediction.layout == prediction.layout
    assert best.prediction.iteration_seconds == pytest.approx(prediction.iteration_seconds)


def test_measured_links_count() -> None:
    def seconds(bandwidth: float) -> float:
        links = Interconnect(intra_node_bytes_per_second=bandwidth)
        return lp.predict(TRACE, gpus=["8xL4"], interconnect=links)["8xL4"].iteration_seconds

    # One bucket of 64 MiB, ready at the end: 2 x 7/8 of it over 1 GB/s, copied in and out at 0.9 of 300 GB/s.
    single = lp.predict(TRACE, gpus=["L4"])["L4"].iteration_seconds
    waiting = float(OVERLAP_COSTS.speed_deviation(np.array(single))) * slowest_of(8) * single
    sent, copied = OVERLAP_COSTS.pcie_slowdown * 1.75 * 2**26 / 1e9, 4 * 2**26 / (0.9 * 300e9)
    assert seconds(1e9) == pytest.approx(single + sent + copied + waiting, rel=1e-3)
    assert seconds(100e9) < seconds(1e9)


def test_a_run_of_several_processes_is_measured_under_its_layout() -> None:
    used = replace(
        TRACE, device="cuda", gpu_reported_name="NVIDIA L4", step_seconds=(0.5, 0.6, 0.7), world_size=4, num_nodes=2
    )
    predictions = predict_workload(
        used, layouts_of(["L4", "2x2xL4", "8xL4"]), Workload(training_iterations=100), Assumptions()
    )
    assert predictions.used_gpu == "2x2xL4"
    assert predictions["2x2xL4"].measured_seconds == predictions["2x2xL4"].iteration_seconds == 0.6
    assert predictions["L4"].measured_seconds is None
    assert [row.iterations for row in predictions.values()] == [400, 100, 50]


@pytest.mark.parametrize(
    ("gpus", "strategy", "message"),
    [
        ("0xT4", "ddp", "between 1 and 65,536 GPUs"),
        ("8xT4", "gossip", "strategy='gossip' is not known; choose one of ddp"),
        ("8xT4", "ddp,tensor=3", "8xT4 has 8 GPUs, which tensor=3 x pipeline=1 do not divide"),
    ],
)
def test_impossible_layouts_are_rejected(gpus: str, strategy: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        lp.predict(TRACE, gpus=[gpus], strategy=strategy)


def test_pipeline_shows_least_and_most_filled_gpu() -> None:
    trace = lp.Trace.load("examples/gpt2.json.gz")
    shown = {}
    for strategy in ("ddp", "ddp,pipeline=4"):
        predictions = lp.predict(trace, ["4xA100-SXM-80GB"], strategy=strategy, iterations=100, history=False)
        prediction = predictions["4xA100-SXM-80GB"]
        shown[strategy] = (prediction.memory, str(predictions), prediction.as_dict())
    need, table, values = shown["ddp,pipeline=4"]
    assert need.least_filled_bytes is not None
    assert need.memory_bytes is not None
    assert need.least_filled_bytes < 0.9 * need.memory_bytes  # the last stage has the logits
    assert values["memory_least_filled_bytes"] == need.least_filled_bytes
    assert shown["ddp"][2]["memory_least_filled_bytes"] is None
    assert f"{gibibytes(need.least_filled_bytes)} to {gibibytes(need.memory_bytes)} of" in table
    assert shown["ddp"][0].least_filled_bytes is None


def test_sharded_tables_fill_gpus_unequally() -> None:
    trace = lp.Trace.load("examples/dlrm.json.gz")
    name = "3xH200-SXM-141GB"
    predictions = lp.predict(trace, [name], strategy="ddp,embedding=table_wise", iterations=100, history=False)
    need = predictions[name].memory
    assert need.least_filled_bytes is not None
    assert need.memory_bytes is not None
    assert 0 < need.least_filled_bytes < need.memory_bytes
    assert f"{gibibytes(need.least_filled_bytes)} to {gibibytes(need.memory_bytes)} of" in str(predictions)


@given(
    st.sampled_from(["T4", "L4", "RTX-3090", "V100-SXM2-16GB", "H100-SXM-80GB"]), st.integers(1, 6), st.integers(1, 3)
)
def test_more_gpus_never_increase_the_work_per_gpu(name: str, exponent: int, nodes: int) -> None:
    layout = f"{nodes}x{2**exponent}x{name}"
    predictions = lp.predict(TRACE, gpus=[name, f"1x1x{name}", layout, f"1x{2 ** (exponent + 1)}x{name}"])
    assert predictions[name] == lp.predict(TRACE, gpus=[name], strategy="fsdp")[name]
    assert {row.device_seconds for row in predictions.values()} == {predictions[name].device_seconds}
