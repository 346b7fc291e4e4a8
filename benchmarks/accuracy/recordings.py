"""Real recordings of GPUs predicted on their own GPU and, where one model was recorded on two, on the other.

No network was fitted to them. A step predicted on the GPU that it was recorded on says whether the pieces, the host's
launches and the device's kernels, add up to the whole; without its kernels, what shapes alone say. Some constants of
classes of kernels were read off some of them (`CHOSEN_ON`); the others are left out of every choice. Example::

    python -m benchmarks.accuracy FOLDER --of recordings    # Kineto files, execution traces and traces
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.table import Table

from benchmarks.training.report import report_table
from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.units import seconds_to_milliseconds
from lightning_predict.cost.prediction import Prediction
from lightning_predict.kernels.memory_bound import is_known
from lightning_predict.prediction import predict
from lightning_predict.record.imports import import_trace
from lightning_predict.record.older_releases import with_current_names
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import FORMAT, Kernel, Trace, read_trace_json

PAIRS: Final = (("married_resnet50_v100.json.gz", "married_resnet50_a100.json.gz"),)
"""Files that recorded one model on two GPUs."""


CHOSEN_ON: Final = frozenset(
    {
        "tl_timesformer_h100_step6.json.gz",  # transposing copies, joined tensors
        "tl_qwen05_h100.json.gz",  # joined tensors
        "tl_qwen05_h100_step6.json.gz",
        "tl_moe01_b300.json.gz",  # look-ups, top-k
        "tl_moe02_b300.json.gz",
        "married_resnet50_a100.json.gz",  # max pooling backward, with the RTX 2080 Ti's recording, which has no shapes
        "kineto_resnet50_w0_b_step19.json.gz",  # copies from the host
        "hta_diff_control_a100_step1012.json.gz",
        "hta_diff_test_v100_16_step1012.json.gz",
        "hta_negqueue_a100_80_graphs_step552.json.gz",
    }
)
"""Recordings off which a constant was read, with the classes of kernels that it is of."""

LEAST_SHARE: Final = 0.5
"""Least share of the device's time that the shapes of a recording tell, for it to count in the median."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShapesScore:
    """The device's time of one recording, from its shapes alone.

    Attributes:
        measured_seconds: Kernels of the operations whose tensors the file lists and whose work is known.
        predicted_seconds: The same, predicted from shapes.
        share: Share of these kernels in all of the recording's: what CUDA graphs, operators of other packages and calls
            without shapes ran is not told.
    """

    measured_seconds: float
    predicted_seconds: float
    share: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_seconds / self.measured_seconds - 1


def score_shapes(trace: Trace, gpu: str) -> ShapesScore | None:
    """Predict the step from the shapes of a recording; None without usable shapes."""
    told = [operation for operation in trace.operations if operation.inputs and is_known(operation)]
    measured = math.fsum(kernel.seconds for operation in told for kernel in operation.kernels)
    if not measured:
        return None
    predicted = _on(without_kernels(replace(trace, operations=tuple(told))), gpu).device_seconds
    whole = math.fsum(kernel.seconds for kernel in trace.kernels)
    return ShapesScore(measured_seconds=measured, predicted_seconds=predicted, share=measured / whole)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingScore:
    """One recording.

    Attributes:
        file: Name of the file.
        gpu: GPU that it was recorded on; None if it is not known.
        operations: Operations of the step.
        kernels: Kernels of the step, collectives of an unknown number of GPUs left out.
        step_seconds: The step as it ran, profiler included; None if it has no times.
        busy_seconds: Time in which the device worked on it; None without kernels.
        from_kernels: Predicted on its own GPU from its kernels.
        from_shapes: Predicted on its own GPU from shapes alone; None if it has none.
        shapes: Its device time from shapes alone, as far as shapes determine it; None in the same case.
        exchanges: It exchanged data with other GPUs, whose waits are part of `step_seconds`.
        refusal: Why it cannot be used; None if it can.
    """

    file: str
    gpu: str | None = None
    operations: int = 0
    kernels: int = 0
    step_seconds: float | None = None
    busy_seconds: float | None = None
    from_kernels: Prediction | None = None
    from_shapes: Prediction | None = None
    shapes: ShapesScore | None = None
    exchanges: bool = False
    refusal: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PairScore:
    """A recording of one GPU predicted on another, where the same model was recorded too.

    Attributes:
        origin: GPU of the recording.
        target: GPU that it is predicted on.
        predicted: The prediction.
        device_seconds: Device time recorded on the target.
        step_seconds: Step recorded on the target; its host was another one.
    """

    origin: str
    target: str
    predicted: Prediction
    device_seconds: float
    step_seconds: float


def score_recording(path: Path) -> RecordingScore:
    """Predict one recording on its own GPU, with and without its measured kernels."""
    try:
        trace = load_recording(path)
        gpu = gpu_in_use(trace)
        target = None if gpu is None else gpu.name
        found = _on(trace, target or _ANY_GPU)
    except LightningPredictError as error:
        return RecordingScore(file=path.name, refusal=str(error))
    has_shapes = any(operation.inputs for operation in trace.operations)
    return RecordingScore(
        file=path.name,
        gpu=target,
        operations=len(trace.operations),
        kernels=len(trace.kernels),
        step_seconds=recorded_step_seconds(trace),
        busy_seconds=busy_seconds(trace.kernels) if trace.kernels else None,
        from_kernels=found if target is not None and trace.kernels else None,
        from_shapes=_on(without_kernels(trace), target) if target is not None and has_shapes else None,
        shapes=score_shapes(trace, target) if target is not None and has_shapes else None,
        exchanges=any("exchanged data with other GPUs" in note for note in trace.notes),
    )


_ANY_GPU: Final = "T4"
"""Predicted where a recording names no GPU, only to see that it can be."""


def score_pair(one: Path, other: Path) -> tuple[PairScore, ...]:
    """Predict each of two recordings of one model on the other's GPU."""
    traces = [load_recording(path) for path in (one, other)]
    return tuple(_across(origin, target) for origin, target in (traces, traces[::-1]))


def _across(origin: Trace, target: Trace) -> PairScore:
    names = [None if gpu is None else gpu.name for gpu in (gpu_in_use(origin), gpu_in_use(target))]
    if names[0] is None or names[1] is None:
        raise LightningPredictError(f"A pair of recordings needs two known GPUs; these are {names}.")
    return PairScore(
        origin=names[0],
        target=names[1],
        predicted=_on(origin, names[1]),
        device_seconds=sum(kernel.seconds for kernel in target.kernels),
        step_seconds=recorded_step_seconds(target) or 0.0,
    )


def load_recording(path: Path) -> Trace:
    """Read a recording of any format; convolutions get the strides that older profiles leave out.

    Raises:
        LightningPredictError: A file that cannot be used, in words.
        OSError: The file cannot be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what they say stands in the report
        document = read_trace_json(str(path), strict=False)
        own = isinstance(document, dict) and document.get("format") == FORMAT
        trace = Trace.load(str(path)) if own else import_trace(path)
    return replace(trace, operations=with_current_names(trace.operations)) if own else trace


def without_kernels(trace: Trace) -> Trace:
    """The trace as if the device had not been profiled."""
    operations = (
        replace(operation, kernels=(), host_seconds=None, host_start_seconds=None) for operation in trace.operations
    )
    return replace(trace, operations=tuple(operations), step_seconds=(), profiled_seconds=None)


def recorded_step_seconds(trace: Trace) -> float | None:
    """Give the longer of a step's spans on the host and on the device; None without measured kernels.

    In a running loop both queues move on by one step a step. Waits of the host for the step before are left out, and so
    is the loader.
    """
    if not trace.kernels:
        return None
    began = min(kernel.start_seconds for kernel in trace.kernels)
    device = max(kernel.start_seconds + kernel.seconds for kernel in trace.kernels) - began
    host = [
        (operation.host_start_seconds, operation.host_start_seconds + operation.host_seconds)
        for operation in trace.operations
        if operation.host_start_seconds is not None and operation.host_seconds is not None
    ]
    if not host:
        return device
    first, end = min(start for start, _ in host), max(end for _, end in host)
    waits = [wait for wait in trace.waits if wait.start_seconds >= 0]
    before = sum(wait.seconds for wait in waits if wait.cause == "device" and wait.start_seconds < first)
    loading = sum(wait.seconds for wait in waits if wait.cause == "loader") - sum(trace.loader_seconds)
    window = end if trace.profiled_seconds is None else trace.profiled_seconds
    return max(window - before - loading, device)


def busy_seconds(kernels: Iterable[Kernel]) -> float:
    """Time in which at least one kernel ran."""
    busy, ended = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: kernel.start_seconds):
        end = kernel.start_seconds + kernel.seconds
        busy += max(end - max(kernel.start_seconds, ended), 0.0)
        ended = max(ended, end)
    return busy


def _on(trace: Trace, gpu: str) -> Prediction:
    return predict(trace, [gpu], history=False)[gpu]


def recordings_table(scores: Iterable[RecordingScore]) -> Table:
    """One row a recording."""
    table = report_table(
        "Recordings on their own GPU (ms; step: profiler included; *: with waits for other GPUs)",
        names=("file", "GPU"),
        numbers=(
            "operations",
            "kernels",
            "step",
            "device busy",
            "from kernels",
            "90 % interval",
            "error",
            "from shapes",
            "error",
        ),
    )
    for score in scores:
        if score.refusal is not None:
            continue
        table.add_row(
            score.file.removesuffix(".json.gz"),
            score.gpu or "",
            f"{score.operations:,}",
            f"{score.kernels:,}",
            _milliseconds(score.step_seconds) + ("*" if score.exchanges else ""),
            _milliseconds(score.busy_seconds),
            *_predicted(score.from_kernels, score.step_seconds, with_interval=True),
            *_predicted(score.from_shapes, score.step_seconds, with_interval=False),
        )
    return table


def shapes_table(scores: Iterable[RecordingScore]) -> Table:
    """One row a recording: the device's time from shapes alone."""
    table = report_table(
        "Device time from shapes alone (ms; told: share of the device's time that the shapes tell)",
        names=("file", "GPU", "constants"),
        numbers=("told", "measured", "predicted", "error"),
    )
    for score in scores:
        if score.shapes is None:
            continue
        table.add_row(
            score.file.removesuffix(".json.gz"),
            score.gpu or "",
            "chosen on it" if score.file in CHOSEN_ON else "left out",
            f"{score.shapes.share:.0%}",
            _milliseconds(score.shapes.measured_seconds),
            _milliseconds(score.shapes.predicted_seconds),
            f"{score.shapes.error:+.1%}",
        )
    return table


def counted(scores: Iterable[RecordingScore]) -> tuple[RecordingScore, ...]:
    """Return the recordings whose shapes tell most of the device's time, each step once."""
    found: dict[tuple[str | None, float], RecordingScore] = {}
    for score in scores:
        if score.shapes is not None and score.shapes.share >= LEAST_SHARE:
            found.setdefault((score.gpu, score.shapes.measured_seconds), score)
    return tuple(found.values())


def shapes_summary(scores: Iterable[RecordingScore]) -> Iterator[str]:
    """Say the median and the largest error of those that count, all and left out of every choice."""
    every = counted(scores)
    for words, some in (
        ("all", every),
        ("left out of every choice", tuple(score for score in every if score.file not in CHOSEN_ON)),
    ):
        errors = [score.shapes.error for score in some if score.shapes is not None]
        if errors:
            median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
            yield f"{len(errors)} recordings ({words}): median error {median:.1%}, largest {worst:+.1%}"


def _predicted(found: Prediction | None, step: float | None, *, with_interval: bool) -> Iterator[str]:
    yield _milliseconds(None if found is None else found.iteration_seconds)
    if with_interval:
        ends = None if found is None else (found.iteration_seconds_low, found.iteration_seconds_high)
        yield "" if ends is None else f"{_milliseconds(ends[0])}-{_milliseconds(ends[1])}"
    yield "" if found is None or not step else _error(found.iteration_seconds, step)


def pairs_table(scores: Iterable[PairScore]) -> Table:
    """One row a direction."""
    table = report_table(
        "One model on two GPUs (ms)",
        names=("from", "to"),
        numbers=("device measured", "predicted", "error", "step measured", "predicted", "90 % interval", "error"),
    )
    for score in scores:
        found = score.predicted
        table.add_row(
            score.origin,
            score.target,
            _milliseconds(score.device_seconds),
            _milliseconds(found.device_seconds),
            _error(found.device_seconds, score.device_seconds),
            _milliseconds(score.step_seconds),
            _milliseconds(found.iteration_seconds),
            f"{_milliseconds(found.iteration_seconds_low)}-{_milliseconds(found.iteration_seconds_high)}",
            _error(found.iteration_seconds, score.step_seconds),
        )
    return table


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds_to_milliseconds(seconds):,.2f}"


def _error(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+.1%}"


def print_report(folder: Path, console: Console) -> None:
    """Print both tables and, in words, the refused recordings.

    Raises:
        LightningPredictError: The folder holds no recording.
    """
    files = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    if not files:
        raise LightningPredictError(f"{folder} holds no recording; give a folder of .json or .json.gz files.")
    scores = [score_recording(path) for path in files]
    console.print(recordings_table(scores))
    console.print(shapes_table(scores))
    for line in shapes_summary(scores):
        console.print(line, highlight=False)
    pairs = [(folder / one, folder / other) for one, other in PAIRS]
    found = [score for one, other in pairs if one.exists() and other.exists() for score in score_pair(one, other)]
    if found:
        console.print(pairs_table(found))
    for score in scores:
        if score.refusal is not None:
            console.print(f"{score.file} is refused: {score.refusal}", markup=False, highlight=False, soft_wrap=True)
