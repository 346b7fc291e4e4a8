"""Small Kineto files made by functions, for what real recordings showed. No GPU ran them; times can be added by hand.

Taken from real ones (medians on a V100, an A100 and an H100): about 1 us between two queued kernels, 8 us from a launch
on an idle stream to its start, 6 us for a launch. Times in a file are microseconds.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.record.test_events import event

ENGINE_THREAD, STREAM = 2, 7
LAUNCH, IDLE_START, KERNEL_GAP = 6.0, 8.0, 1.0
V100 = "Tesla V100-SXM2-16GB"


class Device:
    """A stream that runs kernels in order, each after its launch; it writes the events of both."""

    def __init__(self, *, shapes: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self.ends = 0.0
        self._shapes = shapes
        self._numbers = count(100)

    def product(
        self, start: float, seconds: float, *, name: str = "aten::mm", kernel: str = "sgemm", **args: Any
    ) -> float:
        """Add an operation of 20 us on the host that launches one kernel; returns the operation's end."""
        if self._shapes:
            args |= {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
        self.events.append(event(name, start, 20, **args))
        self.launch(start + 5, seconds, kernel=kernel)
        return start + 20

    def launch(self, start: float, microseconds: float, *, kernel: str = "sgemm", known: bool = True) -> None:
        """Add a launch and its kernel; a launch that is not known lies before the recording."""
        number = next(self._numbers)
        if known:
            self.events.append(event("cudaLaunchKernel", start, LAUNCH, "cuda_runtime", correlation=number))
        begin = max(start + IDLE_START, self.ends + KERNEL_GAP)
        self.ends = begin + microseconds
        shape: dict[str, Any] = {
            "grid": [80, 1, 1],
            "block": [256, 1, 1],
            "registers per thread": 32,
            "shared memory": 0,
        }
        where: dict[str, Any] = {"device": 0, "stream": STREAM, "correlation": number}
        self.events.append(event(kernel, begin, microseconds, "kernel", tid=STREAM, **where, **shape))


def mark(number: int, start: float, end: float) -> dict[str, Any]:
    """The profiler's mark of one step."""
    return event(f"ProfilerStep#{number}", start, end - start, "user_annotation")


def steps(lengths: Sequence[int], *, kernel_microseconds: float = 50.0) -> Iterator[dict[str, Any]]:
    """Steps 0, 1, ... with the given number of matmuls each, one every 60 us, the device idle between them."""
    device, start = Device(), 0.0
    for number, products in enumerate(lengths):
        for index in range(products):
            device.product(start + 10 + 60 * index, kernel_microseconds)
        end = start + 20 + 60 * products
        yield mark(number, start, end)
        start = end
    yield from device.events


def write(path: Path, events: Sequence[dict[str, Any]], *, gpu: dict[str, Any] | None = None, **header: Any) -> Path:
    """Write events as a file of one GPU; `gpu` is its row, by default a V100's, empty for none."""
    rows = [{"id": 0, "name": V100, "totalGlobalMem": 16_945_512_448, "warpSize": 32}] if gpu is None else [gpu]
    document = {"deviceProperties": rows if gpu != {} else [], **header, "traceEvents": list(events)}
    path.write_text(json.dumps(document))
    return path
