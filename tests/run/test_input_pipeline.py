"""Loaders that share the cores of a node: by hand, and relations that must hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.run.workload import Loader, loader_with_shared_cores

counts = st.integers(1, 64)


def test_a_measured_loader_on_a_node_with_more_gpus() -> None:
    measured = Loader(seconds_per_batch=0.1, overlaps=True)  # 8 workers on 32 cores had cores enough
    assert loader_with_shared_cores(measured, gpus_per_node=4, cores=32, workers_per_gpu=8) == measured
    # 64 workers want 64 cores and share 32: each is half as fast.
    eight = loader_with_shared_cores(measured, gpus_per_node=8, cores=32, workers_per_gpu=8)
    assert eight == Loader(seconds_per_batch=0.2, overlaps=True)
    assert eight.with_loading(0.05, batches=1) == 0.2  # a fast GPU: four times as long as it computes
    assert eight.with_loading(0.5, batches=1) == 0.5  # a slow one: hidden
    assert eight.with_loading(0.5, batches=4) == 0.8


def test_a_measured_loader_that_had_too_few_cores_already() -> None:
    measured = Loader(seconds_per_batch=0.1, overlaps=True)  # 8 workers on 4 cores: twice too many, as measured
    assert loader_with_shared_cores(measured, gpus_per_node=2, cores=4, workers_per_gpu=8).seconds_per_batch == 0.2


def test_without_workers_the_training_processes_share_the_cores() -> None:
    measured = Loader(seconds_per_batch=0.8)
    assert loader_with_shared_cores(measured, gpus_per_node=8, cores=32, workers_per_gpu=0) == measured
    crowded = loader_with_shared_cores(measured, gpus_per_node=8, cores=4, workers_per_gpu=0)
    assert crowded.with_loading(0.2, batches=1) == pytest.approx(0.2 + 1.6)  # loading adds to the step


@given(seconds=st.floats(0, 100), workers=st.integers(0, 64), cores=counts, fewer=counts, more=counts)
def test_one_gpu_is_as_measured_and_more_gpus_are_never_faster(
    seconds: float, workers: int, cores: int, fewer: int, more: int
) -> None:
    measured = Loader(seconds_per_batch=seconds, overlaps=workers > 0)

    def on(gpus: int) -> Loader:
        return loader_with_shared_cores(measured, gpus_per_node=gpus, cores=cores, workers_per_gpu=workers)

    assert on(1) == measured
    few, many = sorted((fewer, more))
    assert on(few).seconds_per_batch <= on(many).seconds_per_batch


@given(seconds=st.floats(0.001, 100), workers=counts, cores=counts, gpus=counts)
def test_no_node_makes_more_batches_than_its_cores(seconds: float, workers: int, cores: int, gpus: int) -> None:
    # One worker with a core of its own makes a batch in `seconds`; on one GPU as many as have cores do so at once.
    alone = Loader(seconds_per_batch=seconds / min(workers, cores), overlaps=True)
    crowded = loader_with_shared_cores(alone, gpus_per_node=gpus, cores=cores, workers_per_gpu=workers)
    assert gpus / crowded.seconds_per_batch <= cores / seconds * (1 + 1e-9)
