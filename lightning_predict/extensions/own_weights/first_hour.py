"""Command `first-hour`: tests recording and measures an unmeasured GPU, and writes all results to one JSON file.

The parts run one after another, each with a time limit. If a part fails, or needs CUDA on a machine without CUDA, the
file contains the reason, and the other parts run. The file is written after every part, so an interrupted run keeps its
results. Nothing is downloaded. Example::

    report = report_on_gpu(Path("first-hour.json"), minutes=8)
    report["parts"]["recordings"]["state"]   # "done", "skipped" or "failed"
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, final, get_args

import torch
from torch import Tensor, nn

from lightning_predict import __version__
from lightning_predict.checked import read_csv
from lightning_predict.errors import InvalidArgumentError, MeasurementTableError
from lightning_predict.extensions.own_weights.measuring.clock import own_stream, time_call
from lightning_predict.extensions.own_weights.measuring.main_rates import comparison, measure_main_rates
from lightning_predict.extensions.own_weights.measuring.run import measure
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.observe.device_pace import LAUNCH_QUEUE
from lightning_predict.prediction import predict
from lightning_predict.tracing.recording import capture
from lightning_predict.tracing.session import CaptureSession
from lightning_predict.units import minutes_to_seconds

Preset = Literal["facts", "measurements", "all"]
PRESETS: Final[tuple[Preset, ...]] = get_args(Preset)
"""Groups of parts: `facts` tests whether recording works, `measurements` collects data for fitting weights."""

NO_CUDA: Final = "no CUDA device"

SESSIONS: Final = 4
"""Number of recordings of the same step. Some profilers lose kernels at the start of later recordings."""

STEPS: Final = 100
"""Number of steps of a timed loop."""

QUEUED_SECONDS: Final = 1.5
"""Seconds of queued GPU work during which the depth of the launch queue is measured."""

LONG_MATMUL_SECONDS: Final = 0.008
"""Minimum duration of a matmul in the queue. When the queue is full, a launch takes as long as one kernel.
Only a long kernel makes the wait visible."""

FIRST_SIDE: Final = 4096
LARGEST_SIDE: Final = 16384
"""Maximum side of the square matmuls."""

STEP_SECONDS: Final = 60.0
"""Seconds that are reserved for whole steps at the end."""

RATE_SECONDS: Final = 2.0
"""Duration of the repetitions of a call when measuring its sustained rate, in seconds."""


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the report.

    Attributes:
        find: Function that returns the results of the part; its argument is the available time in seconds.
    """

    name: str
    preset: Preset
    needs_cuda: bool
    find: Callable[[float], Mapping[str, Any]]


def report_on_gpu(
    output: Path,
    *,
    minutes: float = 8.0,
    preset: Preset = "all",
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    parts: Sequence[_Part] | None = None,
) -> dict[str, Any]:
    """Run all parts and write the report.

    Args:
        output: JSON file to write.
        minutes: Minutes after which no part starts. Measurements use the time that other parts leave.
        preset: `facts`, `measurements` or `all`.
        progress: Called with the name of each part before the part starts.
        clock: Function that returns seconds on a monotonic clock.
        parts: Parts to run; None for all parts.

    Returns:
        The content of the file.

    Raises:
        InvalidArgumentError: The preset is unknown, or the time is not above 0.
        OSError: The file cannot be written.
    """
    if preset not in PRESETS or not minutes > 0:
        raise InvalidArgumentError(
            f"Got preset={preset!r} and minutes={minutes}; expected one of {', '.join(PRESETS)} and a time above 0."
        )
    began = clock()
    report: dict[str, Any] = {"lightning_predict": __version__, "minutes": minutes, "preset": preset, "parts": {}}
    has_cuda = torch.cuda.is_available()
    output.parent.mkdir(parents=True, exist_ok=True)
    for part in PARTS if parts is None else parts:
        if preset not in ("all", part.preset) and part.name != MACHINE:
            continue
        left = minutes_to_seconds(minutes) - (clock() - began)
        progress(part.name)
        report["parts"][part.name] = _run(part, left, has_cuda=has_cuda, clock=clock)
        output.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    return report


def _run(part: _Part, left: float, *, has_cuda: bool, clock: Callable[[], float]) -> dict[str, Any]:
    if part.needs_cuda and not has_cuda:
        return {"state": "skipped", "reason": NO_CUDA}
    if left <= 0:
        return {"state": "skipped", "reason": "no time left"}
    began = clock()
    found: dict[str, Any]
    try:
        facts = part.find(left)
    except Exception as error:  # a report about failures must not fail
        found = {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    else:
        found = {"state": "done", "facts": dict(facts)}
    return {**found, "seconds": round(clock() - began, 3)}


# --- Facts: does recording work?

MACHINE: Final = "machine"
"""Name of the part that every preset includes."""


def _machine(_left: float) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        row = torch.cuda.get_device_properties(0)
        facts |= {"cudnn": torch.backends.cudnn.version(), "gpu": row.name, "memory_bytes": row.total_memory}
        facts |= {"multiprocessors": row.multi_processor_count, "l2_bytes": row.L2_cache_size}
        facts["catalogue"] = find_gpu(row.name, memory_bytes=row.total_memory).name
    return facts


def _cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _recordings(_left: float) -> dict[str, Any]:
    """Record a host-bound step several times, and time the step before and after the recordings."""
    device = _cuda()
    layers = [part for _ in range(24) for part in (nn.Linear(64, 64), nn.ReLU())]
    network = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3, foreach=True)
    data = torch.randn(8, 64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        network(data).sum().backward()
        optimizer.step()

    for _ in range(5):
        step()
    before = _loop_seconds(step, STEPS)
    sessions = []
    for _ in range(SESSIONS):
        session = CaptureSession(device=device, model=network, optimizers=[optimizer])
        session.start()
        step()
        session.stop()
        trace = session.trace()
        products = [one for one in trace.operations if one.name in ("aten::addmm", "aten::mm")]
        lost = sum(not one.kernels for one in products)
        sessions.append({"kernels": len(trace.kernels), "products": len(products), "without_kernels": lost})
    names = Counter(kernel.name for kernel in trace.kernels)
    return {
        "sessions": sessions,
        "step_seconds_before": before,
        "step_seconds_after": _loop_seconds(step, STEPS),
        "kernel_names": [name for name, _ in names.most_common(12)],
        "peak_bytes": None if trace.memory is None else trace.memory.peak_bytes,
        "reserved_bytes": None if trace.memory is None else trace.memory.reserved_bytes,
        "notes": list(trace.notes),
    }


def _loop_seconds(step: Callable[[], object], count: int) -> float:
    """Return the seconds per step in a loop: the median of three loops."""
    each = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        each.append((time.perf_counter() - began) / count)
    return statistics.median(each)


def _launch_queue(_left: float) -> dict[str, Any]:
    """Launch small kernels while large matmuls run, up to the queue depth that forecasts assume."""
    device = _cuda()
    side, seconds = FIRST_SIDE, 0.0
    while True:
        matrix = torch.randn(side, side, device=device).to(torch.float16)
        into = torch.empty_like(matrix)
        with own_stream(device):
            seconds = time_call(lambda: torch.mm(matrix, matrix, out=into), device, replays=3).eager_seconds  # noqa: B023
        if seconds >= LONG_MATMUL_SECONDS or side >= LARGEST_SIDE:
            break
        side *= 2
    small = torch.zeros(8, device=device)
    torch.cuda.synchronize()
    for _ in range(max(round(QUEUED_SECONDS / seconds), 8)):
        torch.mm(matrix, matrix, out=into)
    ticks = [time.perf_counter()]
    for _ in range(LAUNCH_QUEUE):
        small.add_(1)
        ticks.append(time.perf_counter())
    torch.cuda.synchronize()
    return {"product_seconds": seconds, "launches_before_a_wait": first_wait(ticks, seconds / 2)}


def first_wait(ticks: Sequence[float], longest: float) -> int | None:
    """Return the number of launches before the first long launch; None if no launch took longer than `longest`.

    Args:
        ticks: Times before the first launch and after each launch.
        longest: Maximum seconds of a launch that does not wait.
    """
    pairs = enumerate(pairwise(ticks))
    return next((index for index, (start, end) in pairs if end - start > longest), None)


# --- Measurements for fitting weights


def _rates(_left: float) -> dict[str, Any]:
    found = measure_main_rates(seconds=RATE_SECONDS)
    return {"figures": [asdict(one) for one in comparison(found)], "state": asdict(found.state)}


def _operators(left: float) -> dict[str, Any]:
    """Measure operations, most useful operations first, in the time that whole steps leave."""
    minutes = max(left - STEP_SECONDS, 0.25 * left) / minutes_to_seconds(1.0)
    with tempfile.TemporaryDirectory() as folder:
        done = measure(folder, minutes=minutes)
        tables = {path.name.split(".")[0]: _table(path) for path in done.files}
    return {
        "rows": done.rows,
        "families": [{**asdict(one), "is_enough": one.is_enough} for one in done.families],
        "factors": done.factors,
        "skipped": list(done.skipped),
        "eager": list(done.eager),
        "tables": tables,
    }


def _table(path: Path) -> dict[str, list[Any]]:
    """Return a table as columns and rows, which is shorter in JSON than a mapping per row."""
    rows = [row.value for row in read_csv(path, MeasurementTableError)]
    return {"columns": [*rows[0]] if rows else [], "rows": [[*row.values()] for row in rows]}


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        parts = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        self.parts = nn.Sequential(*parts, nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = torch.relu(images + self.parts(images))
        return result


def _convolutional() -> tuple[nn.Module, Tensor]:
    network = nn.Sequential(nn.Conv2d(3, 128, 7, 4, 3), *(_Block(128) for _ in range(8)))
    return network.to(memory_format=torch.channels_last), torch.randn(64, 3, 224, 224)  # type: ignore[call-overload]


def _transformer() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(16, 512, 1024)


NETWORKS: Final[Mapping[str, Callable[[], tuple[nn.Module, Tensor]]]] = {
    "convolutional": _convolutional,
    "transformer": _transformer,
}
"""Neural networks for whole steps, with their input data."""


def _steps(_left: float) -> dict[str, Any]:
    """Compare the predicted and measured time of whole steps."""
    row = torch.cuda.get_device_properties(0)
    name = find_gpu(row.name, memory_bytes=row.total_memory).name
    facts = {}
    for network, build in NETWORKS.items():
        step = training_step(*build(), device=_cuda())
        trace = capture(step, warmup_steps=12, precision="bf16-mixed")
        measured = _loop_seconds(step, 20)
        predicted = predict(trace.untimed(), [name], history=False)[name]
        facts[network] = {
            "loop_seconds": measured,
            "predicted_seconds": predicted.iteration_seconds,
            "error": predicted.iteration_seconds / measured - 1,
            "is_inside": predicted.iteration_seconds_low <= measured <= predicted.iteration_seconds_high,
            "kernels": len(trace.kernels),
            "notes": list(trace.notes),
        }
        del step
        torch.cuda.empty_cache()
    return facts


def training_step(network: nn.Module, data: Tensor, *, device: torch.device) -> Callable[[], None]:
    """Return a training step in mixed precision."""
    network, data = network.to(device), data.to(device)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = network(data).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


PARTS: Final = (
    _Part(MACHINE, "facts", needs_cuda=False, find=_machine),
    _Part("recordings", "facts", needs_cuda=True, find=_recordings),
    _Part("launch queue", "facts", needs_cuda=True, find=_launch_queue),
    _Part("rates", "measurements", needs_cuda=True, find=_rates),
    _Part("operators", "measurements", needs_cuda=True, find=_operators),
    _Part("steps", "measurements", needs_cuda=True, find=_steps),
)
"""All parts, in order."""
