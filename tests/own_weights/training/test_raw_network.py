from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.training.scores import raw_inputs, train_raw_network
from lightning_predict.kernels.operations import shape_batch
from lightning_predict.own_weights.training.tables import Group
from tests.example_gpu import BIG, SMALL
from tests.own_weights.training.example import GPUS


def sums(gpu: str, seconds: float, *, rows: int = 600) -> Group:
    batch = shape_batch("add", "float32", rows=np.arange(1, rows + 1), cols=64)
    return Group(gpu, "synthetic", batch, np.full(rows, seconds), 0.0)


def test_the_inputs_are_raw_shapes_and_four_figures() -> None:
    batch = shape_batch("add", "float32", rows=[2, 3], cols=5)
    figures = [8e9, 100e9, 10, 1e12]  # memory, bandwidth, multiprocessors, float32 peak
    np.testing.assert_array_equal(raw_inputs(batch, SMALL), [[2, 5, *figures], [3, 5, *figures]])


def test_gpus_are_told_apart_by_their_figures() -> None:
    network = train_raw_network([sums("SMALL", 3e-3), sums("BIG", 1e-3)], GPUS, seed=0)
    batch = shape_batch("add", "float32", rows=300, cols=64)
    assert float(network.seconds(batch, SMALL)[0]) == pytest.approx(3e-3, rel=0.1)
    assert float(network.seconds(batch, BIG)[0]) == pytest.approx(1e-3, rel=0.1)


def test_the_percentage_loss_prefers_the_shorter_of_two_times() -> None:
    # The same problem takes t or 2 t. From p to p + dp, the loss grows by dp / t of the one half and falls by dp / 2t
    # of the other: p = t is best.
    network = train_raw_network([sums("SMALL", 1e-3), sums("SMALL", 2e-3)], GPUS, seed=0)
    batch = shape_batch("add", "float32", rows=300, cols=64)
    assert float(network.seconds(batch, SMALL)[0]) == pytest.approx(1e-3, rel=0.1)


def test_the_seed_alone_decides_and_the_callers_state_is_left_alone() -> None:
    batch = shape_batch("add", "float32", rows=[7, 300], cols=64)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, again, other = (train_raw_network([sums("SMALL", 1e-3, rows=50)], GPUS, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    np.testing.assert_array_equal(first.seconds(batch, SMALL), again.seconds(batch, SMALL))
    assert not np.array_equal(first.seconds(batch, SMALL), other.seconds(batch, SMALL))
