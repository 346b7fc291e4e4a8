"""Measure training steps on the CPU by batch size, for the regressions: `python -m benchmarks.training.cpu_profiles`.

The command trains each network with one thread at each batch size, in turns, so that other programs disturb all sizes
alike. Times are CPU times of the thread, which other programs do not count into. It writes to `FOLDER`:

* `steps.json`: the least CPU time of a whole step;
* `NETWORK_BATCH.json.gz`: a recorded step with the least CPU time of each call.

Example::

    python -m benchmarks.training.cpu_profiles build/cpu --turns 2 --sizes 2,4
    lightning-predict regress build/cpu/alexnet_4.json.gz --layers build/cpu/googlenet_2.json.gz
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.accuracy.workloads.classifiers import alexnet, googlenet
from benchmarks.accuracy.workloads.resnet import ResNet50
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace

FOLDER: Final = Path(__file__).parents[1] / "measured" / "CPU-one-thread"

NETWORKS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "alexnet": alexnet,
    "googlenet": googlenet,
    "resnet50": ResNet50,
}

BATCH_SIZES: Final = (2, 4, 8, 12, 16, 24, 32, 48)
IMAGE_SIZE: Final = 128
TURNS: Final = 2

Batch = tuple[Tensor, Tensor]


def train(network: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Run one training step."""
    images, labels = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(images), labels).backward()
    optimizer.step()


class CallTimer(TorchDispatchMode):
    """Measures the CPU time of each call. Enter it before the recorder, which then runs outside the times."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, float]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operation, and keep its name and CPU time."""
        start = time.thread_time()
        result = func(*args, **(kwargs or {}))
        seconds = time.thread_time() - start
        if not func.name().startswith("profiler::"):  # marks of torch's optimizers
            self.calls.append((func.name().partition(".")[0], seconds))
        return result


def timed_step(network: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Trace:
    """Record a training step with the CPU time of each call.

    Raises:
        ValueError: The recorder and the timer saw different calls.
    """
    session = CaptureSession(device=torch.device("cpu"), model=network, optimizers=[optimizer])
    with CallTimer() as timer:
        session.start()
        train(network, optimizer, batch)
        session.stop()
    trace = session.trace(samples=len(batch[1]))
    if [operation.name for operation in trace.operations] != [name for name, _ in timer.calls]:
        raise ValueError("The recorder and the timer saw different calls.")
    times = (seconds for _, seconds in timer.calls)
    operations = tuple(replace(one, host_seconds=time) for one, time in zip(trace.operations, times, strict=True))
    return replace(trace, operations=operations)


def fastest(traces: Sequence[Trace]) -> Trace:
    """Return a step with the least time of each call.

    Raises:
        ValueError: The steps have other calls.
    """
    calls = list(zip(*(trace.operations for trace in traces), strict=True))
    if any(len({operation.name for operation in same}) > 1 for same in calls):
        raise ValueError("The recorded steps have different calls; expected repetitions of one step.")
    times = [min(operation.host_seconds or 0.0 for operation in same) for same in calls]
    operations = tuple(
        replace(operation, host_seconds=round(seconds, 7), module=None, python_seconds=0.0)
        for operation, seconds in zip(traces[0].operations, times, strict=True)
    )
    return replace(traces[0], operations=operations, notes=())


def measure(
    folder: Path,
    *,
    sizes: Sequence[int] = BATCH_SIZES,
    turns: int = TURNS,
    networks: Mapping[str, Callable[[], nn.Module]] = NETWORKS,
) -> None:
    """Measure all networks and write the files.

    Args:
        folder: Where to.
        sizes: Batch sizes.
        turns: Steps at each batch size, with and without a recorder, after one to warm up.
        networks: Networks by name.
    """
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, dict[str, float]] = {}
    for name, make in networks.items():
        torch.manual_seed(0)
        network = make()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        batches = {size: (torch.rand(size, 3, IMAGE_SIZE, IMAGE_SIZE), torch.randint(1000, (size,))) for size in sizes}
        times: dict[int, list[float]] = {size: [] for size in sizes}
        traces: dict[int, list[Trace]] = {size: [] for size in sizes}
        for turn in range(turns + 1):
            for size, batch in batches.items():
                start = time.thread_time()
                train(network, optimizer, batch)
                if turn:
                    times[size].append(time.thread_time() - start)
                    traces[size].append(timed_step(network, optimizer, batch))
        seconds[name] = {str(size): round(min(durations), 6) for size, durations in times.items()}
        for size, recordings in traces.items():
            fastest(recordings).save(str(folder / f"{name}_{size}.json.gz"))
    document = {"torch": torch.__version__, "image_size": IMAGE_SIZE, "turns": turns, "cpu_seconds": seconds}
    (folder / "steps.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="where to write (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=TURNS, help="steps at each batch size")
    parser.add_argument("--sizes", default=",".join(map(str, BATCH_SIZES)), help="batch sizes, separated by commas")
    options = parser.parse_args(arguments)
    measure(options.folder, sizes=[int(size) for size in options.sizes.split(",")], turns=options.turns)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
