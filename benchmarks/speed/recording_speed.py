"""How long it takes to record a step on the CPU, next to the step itself and two other dispatch modes.

    python -m benchmarks.speed.recording_speed [--large]

Two steps of small operations, forward, backward and update: their difference is what recording adds to an operation,
what is left is what it adds to a step (most of it the search for a profiler of the user's). Its baselines are torch's
own FlopCounterMode, and a mode that does nothing. With `--large`, a step of 100,000 operations is recorded once: the
seconds, and the memory that the recording takes. All in processor time of this thread.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import lightning_predict as lp

LAYERS: Final = (20, 80)
"""Of two steps, whose difference is that of their operations."""

WIDTH, REPEATS = 16, 15
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


def training_step(layers: int) -> Callable[[], None]:
    """Return a training step of so many layers."""
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(layers))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.zeros(4, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    step()
    return step


def small() -> None:
    """Print what each mode adds to an operation, and what it adds to a step besides: a line through two steps."""
    steps = [training_step(layers) for layers in LAYERS]
    counts = [len(lp.capture(step, warmup_steps=0).operations) for step in steps]

    def within(mode: Callable[[], Any], step: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with mode():
                step()

        return run

    modes: dict[str, Callable[[Callable[[], None]], Callable[[], object]]] = {
        "recorded": lambda step: partial(lp.capture, step, warmup_steps=0),
        "FlopCounterMode": lambda step: within(partial(FlopCounterMode, display=False), step),
        "a mode that does nothing": lambda step: within(Bare, step),
    }
    runs = [run for step in steps for run in (step, *(mode(step) for mode in modes.values()))]
    taken = seconds(runs)
    each = len(modes) + 1
    for count, plain in zip(counts, taken[::each], strict=True):
        print(f"A step of {count:,} operations: {1e3 * plain:.1f} ms")
    for number, name in enumerate(modes, start=1):
        first, last = (taken[number + at] - taken[at] for at in (0, each))
        more = (last - first) / (counts[1] - counts[0])
        besides = first - more * counts[0]
        print(f"{name}: {1e6 * more:.0f} microseconds more for each operation, {1e3 * besides:.0f} ms more for a step")


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
