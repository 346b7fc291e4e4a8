"""A baseline: a network that maps raw shapes and four figures of a GPU to raw milliseconds.

This is the recipe of Habitat's networks (Yu et al., USENIX ATC 2021): one network an operation, joint over all GPUs;
inputs are the shape words as they are, memory, bandwidth, SMs and peak FLOP/s, each less its mean and over its standard
deviation; the loss is the mean absolute percentage error; Adam at 5e-4. Theirs are 8 layers of 1024 wide; ours are 4 of
256, so that all of them train in minutes. It sees the rows that our models are fitted to, of those long enough to be
scored. Example::

    network = train_raw_network(fitted_groups, gpus, seed=0)
    network.seconds(batch, gpu("T4"))
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch

from lightning_predict.fitting.tables import Group
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, ProblemBatch
from lightning_predict.kernels.roofline import compute_peak
from lightning_predict.units import milliseconds_to_seconds, seconds_to_milliseconds

WIDTHS: Final = (256, 256, 256, 256)
BATCH_ROWS: Final = 512
MOST_STEPS: Final = 3000
EPOCHS: Final = 80
"""Passes over the rows, where they end before `MOST_STEPS`; Habitat's number."""

LEARNING_RATE: Final = 5e-4
WEIGHT_DECAY: Final = 1e-4


@final
@dataclass(frozen=True)
class RawNetwork:
    """A trained network of one operation and dtype.

    Attributes:
        layers: Weights.
        mean: Means of the inputs, shape (inputs,).
        scale: Their standard deviations.
    """

    layers: torch.nn.Sequential
    mean: Array
    scale: Array

    def seconds(self, batch: ProblemBatch, gpu: Gpu) -> Array:
        """Predicted seconds of each problem, shape (problems,); nothing keeps them above 0."""
        inputs = torch.tensor((raw_inputs(batch, gpu) - self.mean) / self.scale, dtype=torch.float32)
        with torch.no_grad():
            return np.asarray(milliseconds_to_seconds(1.0) * self.layers(inputs)[:, 0].double().numpy())


def raw_inputs(batch: ProblemBatch, gpu: Gpu) -> Array:
    """Shape words in their order, then memory, bandwidth, SMs and peak, shape (problems, inputs)."""
    figures = (
        gpu.memory_bytes,
        gpu.dram_bytes_per_second,
        gpu.streaming_multiprocessors,
        float(compute_peak(batch, [gpu])[0, 0]),
    )
    columns = [batch.columns[word] for word in batch.kind.words]
    return np.stack([*columns, *(np.full(len(batch), figure) for figure in figures)], axis=1)


def train_raw_network(groups: Sequence[Group], gpus: Mapping[str, Gpu], *, seed: int) -> RawNetwork:
    """Train on the rows of groups of one operation and dtype."""
    inputs = np.concatenate([raw_inputs(group.batch, gpus[group.gpu]) for group in groups])
    milliseconds = np.concatenate([seconds_to_milliseconds(1.0) * group.seconds for group in groups])
    mean, deviation = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(deviation > 1e-9 * np.abs(mean), deviation, 1.0)  # a word that never varies
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads sum in another order: the same seed must give the same network
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = _layers(inputs.shape[1])
            _fit(layers, (inputs - mean) / scale, milliseconds)
    finally:
        torch.set_num_threads(threads)
    return RawNetwork(layers, mean, scale)


def _layers(inputs: int) -> torch.nn.Sequential:
    pairs = itertools.pairwise((inputs, *WIDTHS))
    hidden = [part for pair in pairs for part in (torch.nn.Linear(*pair), torch.nn.ReLU())]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(WIDTHS[-1], 1))


def _fit(layers: torch.nn.Sequential, inputs: Array, milliseconds: Array) -> None:
    x, y = torch.tensor(inputs, dtype=torch.float32), torch.tensor(milliseconds, dtype=torch.float32)
    optimizer = torch.optim.Adam(layers.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(min(MOST_STEPS, max(EPOCHS * len(y) // BATCH_ROWS, 1))):
        while len(order) < min(BATCH_ROWS, len(y)):
            order = torch.cat([order, torch.randperm(len(y))])
        chosen, order = order[:BATCH_ROWS], order[BATCH_ROWS:]
        error = (layers(x[chosen])[:, 0] / y[chosen] - 1).abs().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
