"""A measured sweep: training steps of a small convolutional network on the processor at hand, over batch sizes.

Nothing is stored; each call measures anew. Example::

    runs = measured_sweep(batch_sizes=(8, 16, 32), steps=5)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import nn

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.regression.runs import PastRun, RunSetting

NOMINAL_FLOPS_PER_SECOND: Final = 1e11
"""Stands for the processor's power, which is the same in all runs and so says nothing."""

IMAGE_SIZE: Final = 32
CLASSES: Final = 10


def small_network() -> nn.Module:
    """Three convolutions and a classifier, for images of 32 x 32."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, CLASSES))


def measured_sweep(
    *, batch_sizes: Iterable[int], steps: int, clock: Callable[[], float] = time.perf_counter
) -> list[PastRun]:
    """The fastest training step at each batch size, as a run of `steps` iterations.

    Batch sizes take turns, so that whatever else the machine does strikes all of them alike; it only adds time, so the
    fastest step is the one that was disturbed least.

    Args:
        batch_sizes: Samples of a step.
        steps: Steps of each size, after one to warm up.
        clock: Seconds that only grow.

    Raises:
        InvalidArgumentError: No step.
    """
    if steps < 1:
        raise InvalidArgumentError(f"steps={steps}; expected at least 1.")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = small_network()
        batches = {
            size: (torch.rand(size, 3, IMAGE_SIZE, IMAGE_SIZE), torch.randint(CLASSES, (size,))) for size in batch_sizes
        }
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    times: dict[int, list[float]] = {size: [] for size in batches}
    for turn in range(steps + 1):
        for size, (images, labels) in batches.items():
            start = clock()
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
            if turn:
                times[size].append(clock() - start)
    return [
        PastRun(
            model="small network on this processor",
            setting=RunSetting(iterations=steps, batch_size=size, flops_per_second=NOMINAL_FLOPS_PER_SECOND),
            seconds=min(found) * steps,
        )
        for size, found in times.items()
    ]
