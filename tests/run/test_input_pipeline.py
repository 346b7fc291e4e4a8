"""Loaders that share the cores of a machine: by hand, and relations that must hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.run.workload import Loader, Workload, workload_with_shared_cores

counts = st.integers(1, 64)


def shared(loader: Loader, *, gpus: int, workers: int, cores: int | None, recorded: int = 1) -> Loader:
    alone = Workload(loader=loader, loader_workers=workers)
    return workload_with_shared_cores(alone, gpus_per_node=gpus, recorded=recorded, cores_per_node=cores).loader


@pytest.mark.parametrize(
    ("gpus", "workers", "cores", "recorded", "slowdown"),
    [
        (4, 8, 32, 1, 1),  # 32 workers on as many cores
        (8, 8, 32, 1, 2),  # 64 workers share 32 cores
        (2, 8, 4, 1, 2),  # 8 workers on 4 cores were twice too many, as measured; 16 are four times too many
        (8, 0, 32, 1, 1),  # the training processes load
        (8, 0, 4, 1, 2),
        (8, 4, None, 1, 1),
        (8, 4, 16, 2, 1),
    ],
)
def test_more_workers_than_cores_slow_each_loader(
    gpus: int, workers: int, cores: int | None, recorded: int, slowdown: float
) -> None:
    found = shared(Loader(seconds_per_batch=0.1), gpus=gpus, workers=workers, cores=cores, recorded=recorded)
    assert found.seconds_per_batch == pytest.approx(0.1 * slowdown)


@pytest.mark.parametrize(("overlaps", "step", "total"), [(True, 0.05, 0.2), (True, 0.5, 0.5), (False, 0.5, 0.7)])
def test_loading_overlaps_or_adds_to_the_step(overlaps: bool, step: float, total: float) -> None:
    assert Loader(seconds_per_batch=0.2, overlaps=overlaps).with_loading(step, batches=1) == pytest.approx(total)


@given(seconds=st.floats(0, 100), workers=st.integers(0, 64), cores=counts, fewer=counts, more=counts)
def test_loader_of_one_gpu_is_as_measured_and_never_faster_with_more_gpus(
    seconds: float, workers: int, cores: int, fewer: int, more: int
) -> None:
    measured = Loader(seconds_per_batch=seconds, overlaps=workers > 0)
    alone, few, many = (
        shared(measured, gpus=gpus, workers=workers, cores=cores) for gpus in (1, *sorted((fewer, more)))
    )
    assert alone == measured
    assert few.seconds_per_batch <= many.seconds_per_batch


@given(seconds=st.floats(0.001, 100), workers=counts, cores=counts, gpus=counts)
def test_machine_loads_at_most_as_many_batches_as_its_cores(
    seconds: float, workers: int, cores: int, gpus: int
) -> None:
    # A worker with its own core loads a batch in `seconds`. On one GPU, as many workers as cores load at once.
    alone = Loader(seconds_per_batch=seconds / min(workers, cores), overlaps=True)
    crowded = shared(alone, gpus=gpus, workers=workers, cores=cores)
    assert gpus / crowded.seconds_per_batch <= cores / seconds * (1 + 1e-9)
