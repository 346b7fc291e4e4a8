"""How long it takes to record a step on the CPU, next to the step itself and two other dispatch modes.

    python -m benchmarks.speed.recording_speed [--large]

About five hundred small operations, forward, backward and update, so that what recording adds to each of them shows.
Its baselines are torch's own FlopCounterMode, and a mode that does nothing. With `--large`, a step of 100,000
operations is recorded once: the seconds, and the memory that the recording takes. All in processor time of this
thread.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import lightning_predict as lp

LAYERS, WIDTH, REPEATS = 20, 16, 15
LARGE_OPERATIONS = 100_000


class Bare(TorchDispatchMode):
    """Runs every operation and does nothing else."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        return func(*args, **(kwargs or {}))


def seconds(runs: list[Callable[[], object]]) -> list[float]:
    """Median processor time of this thread for each, run in turns, so that other work on the machine disturbs all."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS):
        for run, taken in zip(runs, times, strict=True):
            begin = time.thread_time()
            run()
            taken.append(time.thread_time() - begin)
    return [median(taken) for taken in times]


def small() -> None:
    """Print what each mode adds to an operation."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.zeros(4, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    def within(mode: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            with mode():
                step()

        return run

    step()
    count = len(lp.capture(step, warmup_steps=0).operations)
    modes = {
        "recorded": lambda: lp.capture(step, warmup_steps=0),
        "FlopCounterMode": within(lambda: FlopCounterMode(display=False)),
        "a mode that does nothing": within(Bare),
    }
    plain, *others = seconds([step, *modes.values()])
    print(f"A step of {count:,} operations: {1e3 * plain:.1f} ms")
    for name, taken in zip(modes, others, strict=True):
        print(f"{name}: {1e6 * (taken - plain) / count:.0f} microseconds more for each operation")


def large() -> None:
    """Record a step of many operations once."""
    value = torch.zeros(8, requires_grad=True)

    def step() -> None:
        total = value
        for _ in range(LARGE_OPERATIONS // 10):
            with torch.no_grad():
                for _ in range(10):
                    total = total + 1.0

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.thread_time()
    trace = lp.capture(step, warmup_steps=0)
    taken = time.thread_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{len(trace.operations):,} operations: {taken:.1f} s, {grown:.0f} MiB more")


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--large", action="store_true")
    large() if parser.parse_args().large else small()


if __name__ == "__main__":
    main()
