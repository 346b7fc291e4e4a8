"""How long it takes to record a step on the CPU, beside the step itself.

    python -m benchmarks.speed.recording_speed

About a thousand small operations, forward, backward and update, so that what recording adds to each of them shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

import lightning_predict as lp

LAYERS, WIDTH, REPEATS = 20, 16, 7


def seconds(run: Callable[[], object]) -> float:
    """Median processor time of this thread, which other work on the machine changes little."""
    times = []
    for _ in range(REPEATS):
        begin = time.thread_time()
        run()
        times.append(time.thread_time() - begin)
    return median(times)


def main() -> None:
    """Print the comparison."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.zeros(4, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    step()
    count = len(lp.capture(step, warmup_steps=0).operations)
    plain, recorded = seconds(step), seconds(lambda: lp.capture(step, warmup_steps=0))
    print(
        f"A step of {count:,} operations: {1e3 * plain:.1f} ms; recorded: {1e3 * recorded:.1f} ms, "
        f"{1e6 * (recorded - plain) / count:.0f} microseconds more for each operation"
    )


if __name__ == "__main__":
    main()
