"""Command `first-hour`: tests recording and measures an unmeasured GPU, and writes all results to one JSON file.

The parts run one after another, each with a time limit. If a part fails, or needs CUDA on a machine without CUDA, the
file contains the reason, and the other parts run. The file is written after every part, so an interrupted run keeps its
results. Nothing is downloaded. The recording of each whole step is part of the file, so that later predictions can be
compared with it.
"""

from __future__ import annotations

import base64
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, TypedDict, get_args

import numpy as np
import torch
from torch import nn

from lightning_predict.base import __version__
from lightning_predict.base.answers import json_value
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import InvalidArgumentError, MeasurementTableError
from lightning_predict.base.files import write_atomically
from lightning_predict.base.ties import clearly_less
from lightning_predict.base.units import minutes_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.observe.device_pace import LAUNCH_QUEUE
from lightning_predict.observe.watched_loop import watch
from lightning_predict.own_weights.measuring.clock import SHAPE_SECONDS, own_stream, time_call
from lightning_predict.own_weights.measuring.main_rates import MainRates, comparison, measure_main_rates
from lightning_predict.own_weights.measuring.run import measure, name_of
from lightning_predict.own_weights.measuring.typical_steps import TYPICAL_STEPS, library_steps, measured_shares
from lightning_predict.own_weights.training.factors import log_residuals
from lightning_predict.own_weights.training.tables import read_own_tables
from lightning_predict.prediction import predict
from lightning_predict.record.attribution import CUDA_GRAPH, UNATTRIBUTED
from lightning_predict.record.recording import capture
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace, anonymised

Preset = Literal["facts", "measurements", "all"]
PRESETS: Final[tuple[Preset, ...]] = get_args(Preset)
"""Groups of parts: `facts` tests whether recording works, `measurements` collects data for fitting weights."""

NO_CUDA: Final = "no CUDA device"

SESSIONS: Final = 4
STEPS: Final = 100  # Recordings of the same step, as later ones may lose kernels, and steps of a timed loop
QUEUED_SECONDS: Final = 1.5  # Seconds of queued GPU work during which the depth of the launch queue is measured
LONG_MATMUL_SECONDS: Final = 0.008  # Minimum time of a matmul in the queue, whose launch takes as long in a full queue

FIRST_SIDE: Final = 4096
LARGEST_SIDE: Final = 16384

STEP_SECONDS: Final = 150.0
SECONDS_OF_A_STEP: Final = 8.0
"""Seconds reserved at the end for our own whole steps, most of them for compilation, and for each of a library."""


Facts = Mapping[str, object]  # Results of a part, as JSON values


class Report(TypedDict):
    """Content of the file, without the version."""

    minutes: float
    preset: str
    parts: dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the report; `find` takes the available seconds, and returns the results."""

    name: str
    preset: Preset
    needs_cuda: bool
    find: Callable[[float], Facts]


def report_on_gpu(
    output: Path,
    *,
    minutes: float = 8.0,
    preset: Preset = "all",
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    parts: Sequence[_Part] | None = None,
) -> Report:
    """Run all parts, or the given ones, and write the report. Measurements use the time that other parts leave.

    Returns:
        The content of the file, without the version.
    """
    if preset not in PRESETS or not minutes > 0:
        raise InvalidArgumentError(
            f"Got preset={preset!r} and minutes={minutes}; expected one of {', '.join(PRESETS)} and a time above 0."
        )
    began = clock()
    report: Report = {"minutes": minutes, "preset": preset, "parts": {}}
    has_cuda = torch.cuda.is_available()
    output.parent.mkdir(parents=True, exist_ok=True)
    for part in PARTS if parts is None else parts:
        if preset not in ("all", part.preset) and part.name != MACHINE:
            continue
        left = minutes_to_seconds(minutes) - (clock() - began)
        progress(part.name)
        report["parts"][part.name] = _run(part, left, has_cuda=has_cuda, clock=clock)
        content = json_value({"lightning_predict": __version__, **report})
        write_atomically(output, json.dumps(content, indent=1, default=str).encode() + b"\n")
    return report


def _run(part: _Part, left: float, *, has_cuda: bool, clock: Callable[[], float]) -> dict[str, object]:
    if part.needs_cuda and not has_cuda:
        return {"state": "skipped", "reason": NO_CUDA}
    if left <= 0:
        return {"state": "skipped", "reason": "no time left"}
    began = clock()
    outcome: dict[str, object]
    try:
        facts = part.find(left)
    except Exception as error:  # a report about failures must not fail
        outcome = {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    else:
        outcome = {"state": "done", "facts": dict(facts)}
    return {**outcome, "seconds": round(clock() - began, 3)}


# --- Facts: does recording work?

MACHINE: Final = "machine"  # Name of the part that every preset includes


def _machine(_left: float) -> Facts:
    facts: dict[str, object] = {
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
        facts["catalogue"] = name_of("cuda", None)
    return facts


def _cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


CALLS: Final = 10_000  # Number of calls whose mean is the host's time of a call


def _host(_left: float) -> Facts:
    """Time calls of torch that need no GPU: an allocation, an addition, a node of autograd and a small layer."""
    scalar, rows, layer = torch.ones(1), torch.ones(1, 8), nn.Linear(8, 8)
    node = torch.ones(1, requires_grad=True)
    calls: dict[str, Callable[[], object]] = {
        "empty": lambda: torch.empty(1),
        "add": lambda: scalar.add_(1),
        "autograd": lambda: (node + 1).backward(),
        "linear": lambda: layer(rows),
    }
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "call_seconds": {name: _loop_seconds(call, CALLS) for name, call in calls.items()},
    }


WATCHED_STEPS: Final = 10  # Steps before the comparison: `watch` times, records and predicts during the first of them.
WATCHED_SECONDS: Final = 10.0  # Duration of the comparison, half of it with `watch`


def _watching(left: float) -> Facts:
    """Time a host-bound loop with and without `watch`, in turn, after the recording."""
    device = _cuda() if torch.cuda.is_available() else torch.device("cpu")
    _, step = _small_step(device)
    seconds: dict[str, list[float]] = {"watched": [], "plain": []}
    with watch(device=device, gpus=["T4"], print_table=False) as run:

        def watched() -> None:
            step()
            run.step()

        for _ in range(WATCHED_STEPS):
            watched()
        count = max(min(int(min(WATCHED_SECONDS, left) / 18 / _loop_seconds(step, 1)), STEPS), 1)
        for _ in range(3):
            seconds["watched"].append(_loop_seconds(watched, count))
            seconds["plain"].append(_loop_seconds(step, count))
    ratio = statistics.median(seconds["watched"]) / statistics.median(seconds["plain"])
    return {f"{name}_seconds": each for name, each in seconds.items()} | {"watched_over_plain": ratio}


def _small_step(device: torch.device, *, seed: int = 0) -> tuple[nn.Module, Callable[[], None]]:
    """Return a network of small layers and its training step, which the host limits."""
    torch.manual_seed(seed)
    layers = [part for _ in range(24) for part in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Dropout(0.1)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3, foreach=True)
    data = torch.randn(8, 64, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(device.type, torch.bfloat16):
            loss = network(data).sum()
        loss.backward()
        optimizer.step()

    return network, step


def _recordings(_left: float) -> Facts:
    """Record a host-bound step several times, and time the step before and after the recordings."""
    device = _cuda()
    network, step = _small_step(device)
    for _ in range(5):
        step()
    before = _loop_seconds(step, STEPS)
    sessions = []
    for _ in range(SESSIONS):
        session = CaptureSession(device=device, model=network)
        session.start()
        step()
        session.stop()
        trace = session.trace()
        products = [operation for operation in trace.operations if operation.name in ("aten::addmm", "aten::mm")]
        lost = sum(not product.kernels for product in products)
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
        "checks": _checks(trace, device),
    }


def _checks(trace: Trace, device: torch.device) -> dict[str, bool | str]:
    """Return whether each claim about recordings holds, or the error of its check."""
    kernels = trace.kernels
    outside = [one for operation in trace.operations if operation.name == UNATTRIBUTED for one in operation.kernels]
    seconds = [math.fsum(kernel.seconds for kernel in some) for some in (outside, kernels)]
    phases = [operation.phase for operation in trace.operations]
    checks: dict[str, Callable[[], bool]] = {
        "kernels follow their launches": lambda: all(
            one.launch_start_seconds is not None and one.launch_start_seconds <= one.start_seconds for one in kernels
        ),
        "kernel time belongs to operations": lambda: bool(kernels) and seconds[0] <= 0.05 * seconds[1],
        "phases follow each other": lambda: (
            phases.index("forward") < phases.index("backward") < phases.index("optimizer")
        ),
        "each phase has kernels": lambda: len({one.phase for one in trace.operations if one.kernels}) >= 3,
        "autocast is seen": lambda: trace.flags.autocast_dtype == "bfloat16",
        "weights and random numbers stay": lambda: _same_after_recording(device),
        "CUDA graphs have kernels": lambda: any(
            one.kernels for one in capture(in_cuda_graph(_small_step(device)[1])).operations if one.name == CUDA_GRAPH
        ),
        "compiled code has kernels": lambda: capture(torch.compile(_small_step(device)[1])).has_measured_kernels,
    }
    results: dict[str, bool | str] = {}
    for name, holds in checks.items():
        try:
            results[name] = holds()
        except Exception as error:  # other checks may still work
            results[name] = f"{type(error).__name__}: {error}"
    return results


def _same_after_recording(device: torch.device) -> bool:
    """Return whether a step has the same weights and random numbers with and without a recording."""
    results = []
    for is_recorded in (False, True):
        network, step = _small_step(device, seed=1)
        session = CaptureSession(device=device, model=network)
        if is_recorded:
            session.start()
        step()
        session.stop()
        results.append([*(parameter.detach() for parameter in network.parameters()), torch.rand(4, device=device)])
    return all(map(torch.equal, *results))


def _loop_seconds(step: Callable[[], object], count: int) -> float:
    """Return the seconds per step in a loop: the median of three loops."""
    wait: Callable[[], object] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    each = []
    for _ in range(3):
        wait()
        began = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        each.append((time.perf_counter() - began) / count)
    return statistics.median(each)


def _launch_queue(_left: float) -> Facts:
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
    """Return the number of launches before the first launch of more than `longest` seconds; None without one.

    `ticks` are the times before the first launch and after each launch.
    """
    pairs = enumerate(pairwise(ticks))
    return next((index for index, (start, end) in pairs if end - start > longest), None)


# --- Measurements for fitting weights


@cache
def _main_rates() -> MainRates:
    return measure_main_rates(seconds=SHAPE_SECONDS)


def _rates(_left: float) -> Facts:
    rates = _main_rates()
    return {"figures": [asdict(figure) for figure in comparison(rates)], "state": asdict(rates.state)}


def _operators(left: float) -> Facts:
    """Measure operations, most useful operations first, in the time that whole steps leave."""
    reserved = STEP_SECONDS + SECONDS_OF_A_STEP * len(library_steps())
    minutes = max(left - reserved, 0.25 * left) / minutes_to_seconds(1.0)
    with tempfile.TemporaryDirectory() as folder:
        done = measure(folder, minutes=minutes)
        gpu = find_gpu(name_of("cuda", None))
        tuned = [family.family for family in done.families if family.is_enough]
        return {
            "rows": done.rows,
            "families": [{**asdict(family), "is_enough": family.is_enough} for family in done.families],
            "factors": done.factors,
            "shares": measured_shares(gpu, tuned, done.factors),
            "residuals": residuals(Path(folder), gpu),
            "skipped": list(done.skipped),
            "eager": list(done.eager),
            "tables": {path.name.split(".")[0]: _table(path) for path in done.files},
        }


def residuals(folder: Path, gpu: Gpu) -> dict[str, dict[str, float]]:
    """Return the number of rows and the median and spread of log(measured / predicted), by "operation/dtype"."""
    models, summaries = kernel_models((gpu.name,)), {}
    for group in read_own_tables(folder):
        each = log_residuals(group, gpu, models)
        name = f"{group.batch.operation}/{group.batch.dtype}"
        summaries[name] = {"rows": len(each), "median": float(np.median(each)), "spread": float(np.std(each))}
    return summaries


def _table(path: Path) -> dict[str, list[object]]:
    """Return a table as columns and rows, which is shorter in JSON than a mapping per row."""
    rows = [row.value for row in read_csv(path, MeasurementTableError)]
    return {"columns": [*rows[0]] if rows else [], "rows": [[*row.values()] for row in rows]}


STEPS_TO_TIME: Final = (  # Whole steps, by model and kind of execution, the most useful first
    ("resnet50", "eager"),
    ("gpt2", "eager"),
    ("gpt2", "CUDA graph"),
    ("resnet50", "compiled"),
    ("bert_large", "eager"),
)


def _steps(left: float) -> Facts:
    """Compare the predicted and measured time of whole steps. A step that fails has the reason."""
    name = name_of("cuda", None)
    until = time.monotonic() + left
    others = library_steps()
    facts: dict[str, object] = {}
    apart = frozenset([*others][1::2])  # from which nothing is to be learned, so that they can score what was
    for model, kind in (*STEPS_TO_TIME, *((model, "eager") for model in others)):
        words = f"{model} {kind}"
        if time.monotonic() >= until:
            facts[words] = "no time left"
            continue
        try:
            step = _step({**TYPICAL_STEPS, **others}[model], kind, name)
            facts[words] = {**step, "kept_apart": model in apart} if model in others else step
        except Exception as error:  # other steps may still work
            facts[words] = f"{type(error).__name__}: {error}"
        torch.cuda.empty_cache()
    return facts


def _step(make: Callable[..., Callable[[], None]], kind: str, name: str) -> Facts:
    step = make(_cuda(), capturable=kind == "CUDA graph")
    if kind == "compiled":
        step = torch.compile(step)
    elif kind == "CUDA graph":
        step = in_cuda_graph(step)
    trace = capture(step, warmup_steps=12)
    measured = _loop_seconds(step, 20)
    predicted = predict(trace.untimed(), [name], history=False)[name]
    rates = _main_rates().flops_per_second
    own = predict(trace.untimed(), [name], history=False, measured=rates)[name].iteration_seconds
    return {
        "loop_seconds": measured,
        "running_step_seconds": trace.running_step_seconds,
        "device_seconds": math.fsum(kernel.seconds for kernel in trace.kernels),
        "predicted_seconds": predicted.iteration_seconds,
        "error": predicted.iteration_seconds / measured - 1,
        "is_inside": predicted.iteration_seconds_low <= measured <= predicted.iteration_seconds_high,
        "own_rates_seconds": own,
        "own_rates_help": clearly_less(abs(own - measured), abs(predicted.iteration_seconds - measured)),
        "kernels": len(trace.kernels),
        "notes": list(trace.notes),
        "recording": recording_text(trace),
    }


def recording_text(trace: Trace) -> str:
    """Return a recording without the user's names as text: the bytes of its `.json.gz` file in base 64."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json.gz"
        anonymised(trace, keep_modules=True).save(path)
        return base64.b64encode(path.read_bytes()).decode()


def words_on_own_rates(report: Report) -> str | None:
    """Return a sentence that says for how many whole steps the machine's own rates help; None without steps."""
    facts = report["parts"].get("steps", {}).get("facts", {})
    steps = [step for step in facts.values() if isinstance(step, dict)] if isinstance(facts, dict) else []
    if not steps:
        return None
    helped = sum(bool(step["own_rates_help"]) for step in steps)
    advice = "use `measured=`" if 2 * helped > len(steps) else "leave `measured=` out"
    return f"The rates of this machine bring {helped} of {len(steps)} whole steps nearer to their time: {advice}."


def in_cuda_graph(step: Callable[[], None]) -> Callable[[], None]:
    """Return a function that replays a training step as one CUDA graph."""
    with own_stream(_cuda()):
        for _ in range(3):
            step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


PARTS: Final = (  # All parts, in order
    _Part(MACHINE, "facts", needs_cuda=False, find=_machine),
    _Part("host", "facts", needs_cuda=False, find=_host),
    _Part("watching", "facts", needs_cuda=False, find=_watching),
    _Part("recordings", "facts", needs_cuda=True, find=_recordings),
    _Part("launch queue", "facts", needs_cuda=True, find=_launch_queue),
    _Part("rates", "measurements", needs_cuda=True, find=_rates),
    _Part("operators", "measurements", needs_cuda=True, find=_operators),
    _Part("steps", "measurements", needs_cuda=True, find=_steps),
)
