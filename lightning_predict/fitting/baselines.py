"""What simpler predictors say of the same held-out rows, so that an error can be judged.

* `roofline`: the GPU's bound at full utilisation.
* `peak ratio`: the time of the very same problem on another GPU, times the ratio of their peak FLOP/s for the work.
* `bandwidth ratio`: the same with the bandwidths of the two memories.
* `raw network`: a network on raw shapes and raw latency (`raw_network.py`).

Both ratios know a measurement of the problem that the models do not have. Each other GPU that measured the problem
counts, so their errors are over pairs; where no other GPU did, there is none. Example::

    errors = ratio_errors(held_out["T4"], others, gpus, memory_bandwidth_of)
    np.abs(errors).mean()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.fitting.raw_network import RawNetwork
from lightning_predict.fitting.splits import problem_shares
from lightning_predict.fitting.tables import Group
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, ProblemBatch
from lightning_predict.kernels.roofline import compute_peak, roofline_seconds

Figure = Callable[[ProblemBatch, Gpu], float]
"""A speed of a GPU that counts for a batch."""

BASELINES: Final = ("roofline", "peak ratio", "bandwidth ratio", "raw network")
"""Names, in the order of the report."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineError:
    """|predicted / measured - 1| of one baseline on held-out rows.

    Attributes:
        predictions: Rows, or pairs of a row and a GPU that it was scaled from.
        median: Median error.
        mean: Mean error.
    """

    predictions: int
    median: float
    mean: float


def peak_of(batch: ProblemBatch, gpu: Gpu) -> float:
    """FLOP/s of the units that do the work, in its dtype."""
    return float(compute_peak(batch, [gpu])[0, 0])


def memory_bandwidth_of(_batch: ProblemBatch, gpu: Gpu) -> float:
    """Bytes per second of the device memory."""
    return gpu.dram_bytes_per_second


def baseline_errors(
    held_out: Iterable[Group], others: Iterable[Group], gpus: Mapping[str, Gpu], network: RawNetwork | None
) -> Mapping[str, BaselineError]:
    """Errors of each baseline on the rows of one (operation, dtype, GPU), by name; absent where it says nothing.

    Args:
        held_out: The rows.
        others: Rows of the same operation and dtype on all GPUs, that are long enough to show the device.
        gpus: GPUs by name.
        network: The network on raw latency, where one was trained.
    """
    mine, others = list(held_out), list(others)
    found = {
        "roofline": [roofline_seconds(group.batch, [gpus[group.gpu]])[0] / group.seconds - 1 for group in mine],
        "peak ratio": [ratio_errors(group, others, gpus, peak_of) for group in mine],
        "bandwidth ratio": [ratio_errors(group, others, gpus, memory_bandwidth_of) for group in mine],
    }
    if network is not None:
        found["raw network"] = [network.seconds(group.batch, gpus[group.gpu]) / group.seconds - 1 for group in mine]
    joined = {name: np.abs(np.concatenate(parts)) for name, parts in found.items()}
    return {
        name: BaselineError(predictions=len(error), median=float(np.median(error)), mean=float(error.mean()))
        for name, error in joined.items()
        if len(error)
    }


def ratio_errors(group: Group, others: Iterable[Group], gpus: Mapping[str, Gpu], figure: Figure) -> Array:
    """Errors, predicted / measured - 1, for each row of the group and each other GPU that measured the same problem.

    predicted = seconds on the other GPU x figure of the other / figure of this GPU.
    """
    shares = problem_shares(group.batch.columns, seed=0)  # equal for equal problems
    own = figure(group.batch, gpus[group.gpu])
    errors = [np.empty(0)]
    for other in others:
        if other.gpu == group.gpu:
            continue
        _, here, there = np.intersect1d(
            shares, problem_shares(other.batch.columns, seed=0), assume_unique=True, return_indices=True
        )
        scaled = other.seconds[there] * figure(other.batch, gpus[other.gpu]) / own
        errors.append(scaled / group.seconds[here] - 1)
    return np.concatenate(errors)
