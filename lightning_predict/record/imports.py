"""`import_trace`: reads a profile of `torch.profiler` (Kineto) as a Trace. Pure Python."""

from __future__ import annotations

import os
from dataclasses import replace

from lightning_predict.base.errors import TraceFormatError
from lightning_predict.record.kineto import trace_of_kineto
from lightning_predict.record.micro_batches import equal_batches
from lightning_predict.record.trace import FORMAT, Trace, is_profile, read_trace_json


def import_trace(path: str | os.PathLike[str], *, step: int | None = None, gpu: str | None = None) -> Trace:
    """Read one step of a file written by `torch.profiler`.

    Args:
        path: A JSON file, gzip or plain.
        step: Number of the `ProfilerStep#` to read. None reads the step of median length among the steps with work, or
            the whole file if no step is marked.
        gpu: GPU of the recording, if the file does not name the GPU, or if the catalogue lacks the name.

    Raises:
        TraceFormatError: The file has another format or no such step, or was not recorded on an NVIDIA GPU.
        UnknownGpuError: `gpu` is not in the catalogue.
        OSError: The file cannot be read.
    """
    source = os.fspath(path)
    return _imported(read_trace_json(source, strict=False), source, step=step, gpu=gpu)


def load_step(path: str | os.PathLike[str]) -> Trace:
    """Read a step from a trace of this package, or from a profile of `torch.profiler`."""
    try:
        return Trace.load(path)
    except TraceFormatError:
        source = os.fspath(path)
        try:
            document = read_trace_json(source, strict=False)
        except TraceFormatError:
            document = None
        if not is_profile(document):
            raise
    return _imported(document, source, step=None, gpu=None)


def _imported(document: object, source: str, *, step: int | None, gpu: str | None) -> Trace:
    if is_profile(document):
        trace = trace_of_kineto(document, source, step=step, gpu=gpu)
        return replace(trace, batches=equal_batches(trace.operations))
    if isinstance(document, dict) and document.get("format") == FORMAT:
        raise TraceFormatError(f"{source} is a trace of lightning-predict already; there is nothing to import.")
    raise TraceFormatError(
        f"{source} is not a Kineto JSON file (no 'traceEvents'). Export a profile with torch.profiler's "
        "export_chrome_trace."
    )
