"""Command `trace`: check, anonymise, import and inspect recorded steps.

Example::

    lightning-predict trace check run.json.gz
    lightning-predict trace anonymise run.json.gz --output shareable.json.gz
    lightning-predict trace import rank0.pt.trace.json.gz --output run.json.gz
    lightning-predict trace import old.pt.trace.json --gpu V100-SXM2-32GB       # if the file names no GPU
    lightning-predict trace view run.json.gz --gpu L4 --output timeline.json    # open it in ui.perfetto.dev
    lightning-predict trace explain run.json.gz --gpu L4                        # sources of each operation's time
    lightning-predict trace memory run.json.gz --gpu L4                         # memory by use, and ways to reduce it
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from lightning_predict.base.answers import CommandAnswer, aligned
from lightning_predict.base.errors import InvalidArgumentError, LightningPredictError
from lightning_predict.base.model_options import NO_OPTIONS, ModelOptions
from lightning_predict.fusion.options import step_on
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.timing import Explanation, explain
from lightning_predict.kernels.translation import work_items
from lightning_predict.record.imports import import_trace
from lightning_predict.record.recorded_on import check_predictable, gpu_in_use, unknown_gpu_note
from lightning_predict.record.sources import RECORDED_SUFFIXES, SourceStep, step_of_source
from lightning_predict.record.trace import Trace, anonymised


def trace(
    action: Literal["check", "anonymise", "import", "view", "explain", "memory"],
    source: str,
    /,
    *,
    output: Path | None = None,
    gpu: str | None = None,
    keep_modules: bool = False,
    step: int | None = None,
    weights: str | None = None,
    model: ModelOptions = NO_OPTIONS,
) -> CommandAnswer:
    """Check, anonymise or import a recorded step, or inspect its prediction on a GPU.

    `check` validates a trace and summarizes it. `anonymise` removes the names of modules and parameters, and the notes.
    `import` converts a Kineto JSON file of torch.profiler. `view` writes the predicted timeline for a GPU as a Chrome
    trace, which ui.perfetto.dev opens. `explain` lists the slowest operations on a GPU, timed by their shapes alone,
    with the source and the limits of each time. `memory` shows the memory of a GPU at the step's peak, and ways to
    reduce it.

    Args:
        action: What to do: check, anonymise, import, view, explain or memory.
        source: The trace, a model by name as for `predict`, or for import the file of the other tool; gzip or plain.
        output: File to write (default: next to the input).
        gpu: With view, explain and memory: GPU to predict for (default: the GPU that the trace was recorded on). With
            import: GPU that the file was recorded on, if the file does not name it or the catalogue lacks the name.
        keep_modules: With anonymise: keep the names of modules.
        step: With import: number of the ProfilerStep to use (default: the median step with operations).
        weights: With view and explain: weights of the models: a folder, a file or an address (default: the cache, then
            the weights that ship).
        model: Options of a model by name.
    """
    given = {"output": output, "gpu": gpu, "keep_modules": keep_modules, "step": step, "weights": weights}
    for name, value in given.items():
        if value not in (None, False) and name not in _OPTIONS[action]:
            of = ", ".join(other for other, names in _OPTIONS.items() if name in names)
            raise InvalidArgumentError(f"--{name.replace('_', '-')} has no effect on trace {action}; it is for {of}.")
    file = Path(source if action == "import" or Path(source).is_file() else re.sub("[:/]", "-", source))
    of_source = SourceStep(trace=_imported(file, step, gpu)) if action == "import" else step_of_source(source, model)
    read = of_source.trace
    if action == "view":
        return _view(read, output or _beside(file, "timeline.json"), gpu, weights)
    if action == "explain":
        return _explain(read, gpu, weights)
    if action == "memory":
        return _memory(of_source, gpu)
    if action == "check":
        return CommandAnswer(data=lambda: _summary(read), show=lambda: print("\n".join(_lines(read))))
    if action == "anonymise":
        read = anonymised(read, keep_modules=keep_modules)
    written = output or _beside(file, "anonymous.json.gz" if action == "anonymise" else "imported.json.gz")
    read.save(written)
    return CommandAnswer(
        data=lambda: {"written": str(written), **_summary(read)},
        show=lambda: print("\n".join([*_lines(read), f"Written: {written}"])),
    )


_OPTIONS: Final[Mapping[str, frozenset[str]]] = {  # Options that each action accepts
    "check": frozenset(),
    "anonymise": frozenset({"output", "keep_modules"}),
    "import": frozenset({"output", "step", "gpu"}),
    "view": frozenset({"output", "gpu", "weights"}),
    "explain": frozenset({"gpu", "weights"}),
    "memory": frozenset({"gpu"}),
}


def _imported(file: Path, step: int | None, gpu: str | None) -> Trace:
    """Import a file of another tool, without Python warnings; the trace's notes contain the same information."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_trace(file, step=step, gpu=gpu)


def _notes(recorded: Trace) -> list[str]:
    """Return the trace's notes, preceded by a note if the catalogue lacks the trace's GPU."""
    unknown = unknown_gpu_note(recorded)
    return [*([] if unknown is None else [unknown]), *recorded.notes]


def _beside(file: Path, ending: str) -> Path:
    """Return a path next to `file`, with its suffixes replaced by `ending`."""
    name = file.name
    while (stem := Path(name)).suffix in RECORDED_SUFFIXES:
        name = stem.stem
    return file.with_name(f"{name}.{ending}")


def _gpus_of(recorded: Trace, name: str | None) -> tuple[Gpu, Gpu | None]:
    """Return the GPU to predict for and the GPU that the trace was recorded on."""
    origin = gpu_in_use(recorded)
    gpu = origin if name is None else find_gpu(name)
    if gpu is None:
        raise InvalidArgumentError("The trace was not recorded on a GPU of the catalogue; say which to view: --gpu T4.")
    return gpu, origin


EXPLAINED: Final = 30  # Number of rows that `explain` prints. JSON output contains all rows.


def _explain(recorded: Trace, name: str | None, weights: str | None) -> CommandAnswer:
    gpu, _ = _gpus_of(recorded, name)
    recorded = step_on(gpu, recorded, recorded.assumed_kernels)
    models = kernel_models((gpu.name,), weights)
    counts = Counter(shape for item in work_items(recorded) for shape in item.shapes)
    explanations = [(explain(shape, gpu, models), times) for shape, times in counts.items()]
    explanations.sort(key=lambda pair: -pair[0].interval.middle * pair[1])
    rows = [
        {
            "operation": explanation.shape.operation,
            "dtype": explanation.computed.dtype,
            "shape": explanation.shape.parameters,
            "times": times,
            "seconds": explanation.interval.middle,
            "seconds_low": explanation.interval.low,
            "seconds_high": explanation.interval.high,
            "source": explanation.source,
            "source_seconds": explanation.sourced_seconds,
            "parts": [{"times": part.times, "operation": part.shape.operation} for part in explanation.parts],
            "network_held_to": list(explanation.network_limits),
            "held_to": [{"limit": limit, "seconds": seconds} for limit, seconds in explanation.limits],
        }
        for explanation, times in explanations
    ]
    return CommandAnswer(
        data=lambda: {"gpu": gpu.name, "shapes": rows}, show=lambda: print(_explained(gpu.name, explanations))
    )


def _explained(gpu: str, explained: Sequence[tuple[Explanation, int]]) -> str:
    """Format the source and the limits of each operation's time, longest first."""
    total = math.fsum(explanation.interval.middle * times for explanation, times in explained)
    rows = []
    for one, times in explained[:EXPLAINED]:
        shape = " ".join(f"{word}={value:g}" for word, value in one.shape.parameters.items())
        source = ", ".join(dict.fromkeys(part.shape.operation for part in one.parts))
        held = [f"{limit} ({1e6 * seconds:.1f})" for limit, seconds in one.limits]
        cells = f"{times}", f"{one.shape.operation} {one.computed.dtype}", f"{1e6 * one.interval.middle:.1f}"
        share = f"{100 * times * one.interval.middle / total:.1f}"
        named = f"{one.source}: {source}" if source else one.source
        limits = ", ".join([*one.network_limits, *held])
        rows.append([*cells, share, named, f"{1e6 * one.sourced_seconds:.1f}", limits, shape])
    headers = ["times", "operation", "µs", "% of all", "source", "its µs", "then held to (µs)", "shape"]
    last = "" if len(explained) <= EXPLAINED else f"\n{len(explained) - EXPLAINED} more; --json lists all."
    return (
        f"{len(explained)} shapes on the {gpu}, {1e3 * total:.3f} ms by their shapes:\n"
        + aligned(headers, rows, right={0, 2, 3, 5})
        + last
    )


def _memory(step: SourceStep, name: str | None) -> CommandAnswer:
    from lightning_predict.advice.memory_savings import memory_report

    gpu, origin = _gpus_of(step.trace, name)
    reported = step.trace.gpu_memory_bytes if gpu == origin else None
    runs = step_on(gpu, step.trace, step.trace.assumed_kernels)
    report = memory_report(runs, gpu, reported_bytes=reported, variants=step.variants)
    if report is None:
        raise InvalidArgumentError(
            "The trace does not hold what its operations write, or no model: where the memory goes is not known. "
            "Record the step with lightning_predict.capture on the CPU or the meta device."
        )
    return CommandAnswer(data=report.as_dict, show=lambda: print(*report.lines(), sep="\n"))


def _view(recorded: Trace, target: Path, name: str | None, weights: str | None) -> CommandAnswer:
    import json

    from lightning_predict.timeline.viewer import chrome_trace

    gpu, origin = _gpus_of(recorded, name)
    recorded = step_on(gpu, recorded, recorded.assumed_kernels)
    names = (gpu.name,) if origin is None else (gpu.name, origin.name)
    models = kernel_models(names, weights)
    timeline = chrome_trace(recorded, gpu, origin=origin, models=models)
    target.write_text(json.dumps(timeline), encoding="utf-8")
    count = len(timeline["traceEvents"])
    data = {"written": str(target), "gpu": gpu.name, "events": count}
    return CommandAnswer(
        data=lambda: data,
        show=lambda: print(f"{count} events on {gpu.name}. Open it at https://ui.perfetto.dev.\nWritten: {target}"),
    )


def _summary(recorded: Trace) -> dict[str, Any]:
    """Return the number of operations, kernels and modules of a trace, and similar facts, as JSON values."""
    operations = recorded.operations
    return {
        "operations": len(operations),
        "operations_by_phase": dict(Counter(operation.phase for operation in operations)),
        "kernels": len(recorded.kernels),
        "modules": len({operation.module for operation in operations} - {None}),
        "device": recorded.device,
        "recorder": recorded.recorder,
        "gpu": recorded.gpu_reported_name,
        "compiled": recorded.compiled,
        "has_host_times": any(operation.host_start_seconds is not None for operation in operations),
        "steps_timed": len(recorded.step_seconds),
        "batches": recorded.batches,
        "samples": recorded.samples,
        "parameters": len(recorded.parameters),
        "not_predictable_because": _why_not_predictable(recorded),
        "notes": _notes(recorded),
    }


def _why_not_predictable(recorded: Trace) -> str | None:
    """Return why a trace cannot be predicted; None if it can."""
    try:
        check_predictable(recorded)
    except LightningPredictError as error:
        return str(error)
    return None


def _lines(recorded: Trace) -> Iterable[str]:
    found = _summary(recorded)
    phases = ", ".join(f"{count} {phase}" for phase, count in found["operations_by_phase"].items())
    compiled = ", compiled" if recorded.compiled else ""
    where = recorded.gpu_reported_name or recorded.device
    why = found["not_predictable_because"]
    kind = "A valid trace" if why is None else "A trace that cannot be predicted,"
    yield f"{kind} of {found['operations']} operations ({phases}), recorded on {where}{compiled}."
    if why is not None:
        yield why
    kernels = f"{found['kernels']} kernels with their times" if found["kernels"] else "no kernels: times are predicted"
    host = "with" if found["has_host_times"] else "without"
    yield f"It has {kernels}; {host} the host's times; {found['steps_timed']} whole steps timed."
    samples = "samples not known" if recorded.samples is None else f"{recorded.samples} samples"
    batches = "1 batch" if recorded.batches == 1 else f"{recorded.batches} batches"
    yield f"A step has {batches}, {samples}, {found['parameters']} parameters in {found['modules']} modules."
    yield from _notes(recorded)
