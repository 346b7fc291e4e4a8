"""How long it takes to record a step on the CPU, next to the step itself and two other dispatch modes.

    python -m benchmarks.speed.recording_speed [--deep | --large | --accumulation]

Two steps of small operations, forward, backward and update: their difference is the cost of recording per operation,
the remainder is the cost per step (most of it the search for a profiler of the user's). Its baselines are torch's own
FlopCounterMode, and a mode that does nothing. With `--deep`, 1,500 layers and an LSTM of 4 layers over 64 time steps,
each with Adam, are recorded on the meta device and on the CPU, beside FlopCounterMode. With `--large`, a step of
300,000 operations is recorded once, until it is cut: the seconds, and the memory that the recording takes. With
`--accumulation`, a Trainer records a window of 1 and of 64 batches. All in processor time of this thread.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

import lightning_predict as lp
from benchmarks.result_files import Figure, ResultConsole, write_run
from lightning_predict.base.errors import CaptureError
from lightning_predict.callbacks import RuntimePredictor

LAYERS: Final = (20, 80)  # Of two steps, whose difference comes from their operations

WIDTH, REPEATS = 16, 15
LARGE_OPERATIONS = 300_000
DEEP_LAYERS, DEEP_REPEATS = 1_500, 1
ACCUMULATED: Final = (1, 64)  # Batches of a window


class Bare(TorchDispatchMode):
    """Runs every operation and does nothing else."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        return func(*args, **(kwargs or {}))


def seconds(runs: list[Callable[[], object]], repeats: int = REPEATS) -> list[float]:
    """Median processor time of this thread for each, run in turns, so that other work on the machine disturbs all."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, taken in zip(runs, times, strict=True):
            begin = time.thread_time()
            run()
            taken.append(time.thread_time() - begin)
    return [median(taken) for taken in times]


def training_step(layers: int) -> Callable[[], None]:
    """Return a training step with the given number of layers."""
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


def small() -> list[Figure]:
    """Print the cost of each mode per operation, and its additional cost per step: a line through two steps."""
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
    figures = [
        Figure(name=f"a step of {count:,} operations", value=f"{1e3 * plain:.1f}", unit="ms")
        for count, plain in zip(counts, taken[::each], strict=True)
    ]
    for number, name in enumerate(modes, start=1):
        first, last = (taken[number + at] - taken[at] for at in (0, each))
        more = (last - first) / (counts[1] - counts[0])
        besides = first - more * counts[0]
        figures.append(Figure(name=f"{name}: more for an operation", value=f"{1e6 * more:.0f}", unit="microseconds"))
        figures.append(Figure(name=f"{name}: more for a step", value=f"{1e3 * besides:.0f}", unit="ms"))
    return figures


def deep() -> list[Figure]:
    """Print the time to record deep and recurrent networks, warm-up left out, and its ratio to FlopCounterMode's."""

    def step_on(device: str, network: Callable[[], nn.Module]) -> Callable[[], None]:
        with torch.device(device):
            model = network()
            data = torch.zeros(64, 8, WIDTH)
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            output = model(data)
            (output[0] if isinstance(output, tuple) else output).sum().backward()
            optimizer.step()

        step()
        return step

    def counted(step: Callable[[], None]) -> None:
        with FlopCounterMode(display=False):
            step()

    networks: dict[str, Callable[[], nn.Module]] = {
        f"{DEEP_LAYERS:,} layers": lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEEP_LAYERS))),
        "LSTM": lambda: nn.LSTM(WIDTH, WIDTH, 4),
    }
    figures = []
    for name, network in networks.items():
        for device in ("meta", "cpu"):
            step = step_on(device, network)
            count, ours = seconds(
                [partial(counted, step), partial(lp.capture, step, warmup_steps=0)], repeats=DEEP_REPEATS
            )
            on = f"{name}, {device}"
            figures.append(Figure(name=f"{on}: FlopCounterMode", value=f"{count:.2f}", unit="s"))
            figures.append(Figure(name=f"{on}: recorded", value=f"{ours:.2f}", unit="s"))
            figures.append(Figure(name=f"{on}: ratio", value=f"{ours / count:.2f}"))
    return figures


def large() -> list[Figure]:
    """Record a step of very many operations once, which is cut."""
    value = torch.zeros(8)

    def step() -> None:
        total = value
        for _ in range(LARGE_OPERATIONS):
            total = total + 1.0

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, end = time.thread_time(), "whole"
    try:
        lp.capture(step, warmup_steps=0)
    except CaptureError as error:
        end = str(error)
    taken = time.thread_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    name = f"a step of {LARGE_OPERATIONS:,} operations"
    return [
        Figure(name=f"{name}: recorded in", value=f"{taken:.1f}", unit="s"),
        Figure(name=f"{name}: more memory", value=f"{grown:.0f}", unit="MiB"),
        Figure(name=f"{name}: message", value=end),
    ]


class Windows(Callback):
    """Takes the processor time of each batch, and of what all callbacks do around it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin one."""
        self.seconds.append(time.process_time())


class Deep(LightningModule):
    """Many layers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS[1])))

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        """Run them."""
        return self.network(batch).mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Update them."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def accumulation() -> list[Figure]:
    """Print the additional time of the recorded window over the windows before and after it."""
    figures: list[Figure] = []
    for batches in ACCUMULATED:
        for folder in [tempfile.mkdtemp()] * 3:
            windows, predictor = Windows(), RuntimePredictor(["T4"], warmup_steps=2, print_table=False)
            trainer = Trainer(
                max_steps=6,
                accumulate_grad_batches=batches,
                accelerator="cpu",
                callbacks=[windows, predictor],
                default_root_dir=folder,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(Deep(), DataLoader(torch.zeros(4 * 6 * batches, WIDTH), batch_size=4))  # type: ignore[arg-type]
            begins = windows.seconds[::batches]
            taken = [later - earlier for earlier, later in pairwise(begins)]
            others = median([taken[1], *taken[3:]])
            assert predictor.trace is not None
            name = f"{batches} batches, {len(predictor.trace.operations):,} operations"
            figures.append(Figure(name=f"{name}: a step", value=f"{others:.2f}", unit="s"))
            more = f"{taken[2] - others:.2f}"
            figures.append(Figure(name=f"{name}: more to record and predict it", value=more, unit="s"))
    return figures


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--accumulation", action="store_true")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args()
    if options.result is not None and (options.deep or options.large or options.accumulation):
        parser.error("a result is of the plain command: leave out --deep, --large and --accumulation, or --result")
    console = ResultConsole(width=120)
    chosen = next((part for part in ("accumulation", "large", "deep") if getattr(options, part)), "small")
    figures = {"accumulation": accumulation, "large": large, "deep": deep, "small": small}[chosen]()
    console.print_figures("Time of recording", figures)
    write_run(console, "speed-recording", options.result)


if __name__ == "__main__":
    main()
