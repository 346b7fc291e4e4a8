"""What replicas share: the samples of a run, and what lives in the memory of each GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.strategy import DATA_STRATEGIES, Strategy
from lightning_predict.memory.rank_memory import even_bytes
from lightning_predict.record.trace import Memory, Parameter, Trace
from lightning_predict.run.workload import Batches, Loader, Workload, workload_per_replica, workload_with_shared_cores

L4 = gpu("L4")
TRACE = Trace(
    operations=(),
    device="cpu",
    recorder="dispatch",
    parameters=(
        Parameter(name="layers.0.weight", shape=(100,), dtype="float32"),
        Parameter(name="layers.1.weight", shape=(50,), dtype="float32"),
        Parameter(name="head.weight", shape=(50,), dtype="float32", requires_grad=False),
    ),
    memory=Memory(parameter_bytes=800, gradient_bytes=600, optimizer_state_bytes=1200),
)
"""Units of 400, 200 and (the root) 200 bytes; 600 bytes can be trained; 1,000 bytes of activations make 3,600."""


def memory(data: str, count: int, nodes: int = 1) -> float:
    return even_bytes(3600, TRACE, Layout(L4, count, nodes), Strategy(data=data))  # type: ignore[arg-type]


def test_eight_replicas_do_the_samples_of_one_in_an_eighth_of_the_steps() -> None:
    alone = Workload(
        training_iterations=1000,
        validation_iterations=50,
        training=Batches(optimizer_steps=1000, batches=2000, partial_batches=2, partial_share=0.5),
        epoch=Batches(optimizer_steps=100, batches=200, partial_batches=1, partial_share=0.5),
        samples_per_iteration=32,
    )
    shared = workload_per_replica(alone, replicas=8)
    assert (shared.training_iterations, shared.validation_iterations) == (125, 7)
    assert shared.training == Batches(optimizer_steps=125, batches=250, partial_batches=1, partial_share=0.5)
    assert shared.epoch == Batches(optimizer_steps=13, batches=25, partial_batches=1, partial_share=0.5)
    assert shared.samples_per_iteration == 32


def test_from_a_run_of_two_processes_one_gpu_has_twice_the_steps() -> None:
    assert workload_per_replica(Workload(training_iterations=10), replicas=1, recorded=2).training_iterations == 20


def test_what_is_not_known_stays_unknown_and_the_recorded_run_is_itself() -> None:
    unknown = Workload()
    assert workload_per_replica(unknown, replicas=4) == unknown
    alone = Workload(training_iterations=7)
    assert workload_per_replica(alone, replicas=4, recorded=4) is alone


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_no_sample_is_lost_and_at_most_one_short_step_is_added(steps: int, replicas: int) -> None:
    shared = workload_per_replica(Workload(training_iterations=steps), replicas=replicas).training_iterations
    assert shared is not None
    assert steps <= shared * replicas < steps + replicas


@pytest.mark.parametrize("data", DATA_STRATEGIES)
def test_one_gpu_holds_everything(data: str) -> None:
    assert memory(data, 1) == 3600


def test_each_strategy_by_hand() -> None:
    assert memory("ddp", 4) == 3600 + 600  # buckets as large as the gradients
    assert memory("zero1", 4) == 3600 + 600 - 900  # a quarter of the optimizer's state
    assert memory("zero2", 4) == 3600 - 900 - 450  # and of the gradients
    # A quarter of all three, and the three largest units whole: 400 + 200 + 200.
    assert memory("fsdp", 4) == 3600 - 0.75 * (1200 + 600 + 800) + 800
    # Inside machines of two only, however many machines there are.
    assert memory("hybrid", 2, 8) == 3600 - 0.5 * (1200 + 600 + 800) + 800


def test_experts_are_shared_by_fewer_and_a_pipeline_holds_its_units_at_once() -> None:
    experts = Parameter(name="layers.0.experts.weight", shape=(75,), dtype="float32")
    trace = replace(TRACE, parameters=(experts, *TRACE.parameters[:2]), memory=TRACE.memory)
    trained = 4 * (75 + 100 + 50)

    def each(count: int, strategy: Strategy) -> float:
        return even_bytes(3600, trace, Layout(L4, count, 1), strategy)

    # A quarter of the experts, a third of the parameters, is on each GPU. Two GPUs share it; eight share the others.
    dense, own = 2 / 3, 1 / 3 / 4
    lasting = 800 * (dense + own) + (1200 + 600) * (dense / 8 + own / 2)
    assert each(8, Strategy(data="zero2", expert=4)) == pytest.approx(lasting + 1000)
    # Two stages of a pipeline leave four GPUs to share; all units of a stage are whole.
    assert each(8, Strategy(data="fsdp", pipeline=2)) == pytest.approx((1200 + 600 + 800) / 2 / 4 + trained / 2 + 500)
    # Two replicas keep buckets as large as the trained parameters.
    assert each(2, Strategy()) == 1200 + 800 + 600 + 1000 + trained


@given(st.sampled_from(["zero1", "zero2", "fsdp"]), st.integers(2, 64))
def test_more_gpus_never_need_more_memory_each(data: str, count: int) -> None:
    assert memory(data, count + 1) <= memory(data, count)


def test_loaders_of_one_machine_share_its_cores() -> None:
    # Four workers a GPU on 16 cores: alone they have cores enough; workers of eight GPUs get half a core each.
    alone = Workload(loader=Loader(seconds_per_batch=0.1, overlaps=True), loader_workers=4)

    def crowded(gpus: int, recorded: int = 1, cores: int | None = 16) -> float:
        found = workload_with_shared_cores(alone, gpus_per_node=gpus, recorded=recorded, cores_per_node=cores)
        return found.loader.seconds_per_batch

    assert crowded(4) == pytest.approx(0.1)
    assert crowded(8) == pytest.approx(0.2)
    assert crowded(8, cores=None) == 0.1
    assert crowded(8, recorded=2) == 0.1
