"""Loaders that share the cores of a node: by hand, and relations that must hold."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.run.workload import InputPipeline, Loader, node_loader_seconds

NODE = InputPipeline(worker_seconds_per_batch=0.8, workers_per_gpu=8, gpus_per_node=8, cores=32)
"""64 workers want 64 cores and share 32: each is half as fast, so a GPU's eight make a batch in 0.8 x 2 / 8 = 0.2 s."""

counts = st.integers(1, 64)


def test_eight_fast_gpus_on_32_cores_wait_for_their_loaders() -> None:
    assert NODE.slowdown == 2.0
    assert NODE.seconds_per_batch == 0.2
    assert NODE.batches_per_second == 8 / 0.2
    assert NODE.samples_per_second(256) == 40 * 256
    assert NODE.step_seconds(0.05) == 0.2  # a fast GPU: four times as long as it computes
    assert NODE.step_seconds(0.5) == 0.5  # a slow one: hidden


def test_four_gpus_have_cores_enough() -> None:
    node = replace(NODE, gpus_per_node=4)
    assert (node.slowdown, node.seconds_per_batch) == (1.0, 0.1)
    assert node.step_seconds(0.15) == 0.15
    assert node.batches_per_second == NODE.batches_per_second  # the cores, not the GPUs, decide


def test_a_step_of_several_batches_waits_for_all_of_them() -> None:
    assert NODE.step_seconds(0.5, batches=4) == 0.8


def test_workers_that_wait_for_the_disk_share_a_core() -> None:
    assert replace(NODE, cores_per_worker=0.5).slowdown == 1.0
    assert replace(NODE, cores_per_worker=2.0).slowdown == 4.0


def test_without_workers_loading_adds_to_the_step() -> None:
    node = replace(NODE, workers_per_gpu=0)  # eight training processes on 32 cores
    assert node.slowdown == 1.0
    assert node.loader() == Loader(seconds_per_batch=0.8, overlaps=False)
    assert node.step_seconds(0.2) == 1.0


def test_a_loader_that_takes_no_time_sets_no_limit() -> None:
    assert replace(NODE, worker_seconds_per_batch=0.0).samples_per_second(1) == math.inf


def test_a_measured_loader_on_a_node_with_more_gpus() -> None:
    measured = Loader(seconds_per_batch=0.1, overlaps=True)  # 8 workers on 32 cores had cores enough
    assert node_loader_seconds(measured, gpus_per_node=4, cores=32, workers_per_gpu=8) == measured
    eight = node_loader_seconds(measured, gpus_per_node=8, cores=32, workers_per_gpu=8)
    assert eight == Loader(seconds_per_batch=0.2, overlaps=True)


def test_a_measured_loader_that_had_too_few_cores_already() -> None:
    measured = Loader(seconds_per_batch=0.1, overlaps=True)  # 8 workers on 4 cores: twice too many, as measured
    assert node_loader_seconds(measured, gpus_per_node=2, cores=4, workers_per_gpu=8).seconds_per_batch == 0.2


@given(
    seconds=st.floats(0, 100),
    workers=st.integers(0, 64),
    cores=counts,
    share=st.floats(0.1, 4),
    fewer=counts,
    more=counts,
)
def test_one_gpu_is_as_measured_and_more_gpus_are_never_faster(
    seconds: float, workers: int, cores: int, share: float, fewer: int, more: int
) -> None:
    measured = Loader(seconds_per_batch=seconds, overlaps=workers > 0)

    def on(gpus: int) -> Loader:
        return node_loader_seconds(
            measured, gpus_per_node=gpus, cores=cores, workers_per_gpu=workers, cores_per_worker=share
        )

    assert on(1) == measured
    few, many = sorted((fewer, more))
    assert on(few).seconds_per_batch <= on(many).seconds_per_batch


@given(seconds=st.floats(0.001, 100), workers=counts, cores=counts, gpus=counts)
def test_no_node_makes_more_batches_than_its_cores(seconds: float, workers: int, cores: int, gpus: int) -> None:
    node = InputPipeline(worker_seconds_per_batch=seconds, workers_per_gpu=workers, gpus_per_node=gpus, cores=cores)
    assert node.batches_per_second <= cores / seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"worker_seconds_per_batch": -1.0}, "worker_seconds_per_batch=-1.0; expected seconds of at least 0."),
        ({"worker_seconds_per_batch": math.nan}, "worker_seconds_per_batch=nan; expected seconds of at least 0."),
        ({"workers_per_gpu": -1}, "workers_per_gpu=-1; expected at least 0."),
        ({"gpus_per_node": 0}, "gpus_per_node=0; expected at least 1."),
        ({"cores": 0}, "cores=0; expected at least 1."),
        ({"cores_per_worker": 0.0}, "cores_per_worker=0.0; expected cores above 0."),
    ],
)
def test_values_out_of_range(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(words)}$"):
        replace(NODE, **wrong)
