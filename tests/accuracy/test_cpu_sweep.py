from __future__ import annotations

import itertools

import pytest
import torch

from benchmarks.accuracy.regressions import measured_sweep
from lightning_predict.base.errors import InvalidArgumentError


def test_each_batch_size_is_timed_in_turn_and_its_fastest_step_counts() -> None:
    # The clock is read at the start and end of each timed step, and at the start of a step that warms up. Between its
    # n-th read and the one before pass 1000 - (2n - 1) seconds.
    reads: list[float] = []

    def clock() -> float:
        reads.append(0.0)
        return -float(len(reads) ** 2) + 1000.0 * len(reads)

    state = torch.get_rng_state()
    runs = measured_sweep(batch_sizes=(2, 3), steps=3, clock=clock)
    assert torch.equal(torch.get_rng_state(), state)
    # Reads 1, 2 start the warm-ups; then (3, 4), (7, 8), (11, 12) time 2 samples and (5, 6), (9, 10), (13, 14) time 3:
    # the shortest are those that end with reads 12 and 14.
    assert [run.setting.batch_size for run in runs] == [2, 3]
    assert [run.seconds_per_iteration for run in runs] == [1000 - 23, 1000 - 27]
    assert [run.setting.iterations for run in runs] == [3, 3]


def test_a_real_clock_measures_something() -> None:
    runs = measured_sweep(batch_sizes=(1, 2), steps=1)
    assert all(run.seconds > 0 for run in runs)


def test_no_step_is_no_measurement() -> None:
    clock = itertools.count().__next__
    with pytest.raises(InvalidArgumentError, match=r"^steps=0; expected at least 1\.$"):
        measured_sweep(batch_sizes=(1,), steps=0, clock=clock)
