"""Other tools' files as Traces, told apart by what they hold. Pure Python.

Example::

    trace = import_trace("rank0.pt.trace.json.gz")     # Kineto JSON: `export_chrome_trace` of torch.profiler
    trace = import_trace("execution_trace.json")       # `ExecutionTraceObserver`
"""

from __future__ import annotations

import os

from lightning_predict.errors import TraceFormatError
from lightning_predict.tracing.execution_trace import trace_of_execution
from lightning_predict.tracing.files import FORMAT, read_json
from lightning_predict.tracing.kineto import trace_of_kineto
from lightning_predict.tracing.records import Trace
from lightning_predict.tracing.reported_gpu import with_named_gpu


def import_trace(path: str | os.PathLike[str], *, step: int | None = None, gpu: str | None = None) -> Trace:
    """Read one step of a file that `torch.profiler` or `ExecutionTraceObserver` wrote.

    Args:
        path: A JSON file, gzip or plain.
        step: Number of the `ProfilerStep#` to take; None takes the median one of those that did something, or the
            whole file where none is marked.
        gpu: The GPU that it was recorded on, where the file does not name it or the catalogue does not know the name.

    Raises:
        TraceFormatError: Neither of the two, it has no such step, or it was not recorded on an NVIDIA GPU.
        UnknownGpuError: `gpu` is not in the catalogue.
        TraceVersionError: An execution trace of another version of the format.
        OSError: The file cannot be read.
    """
    source = os.fspath(path)
    document = read_json(source, strict=False)
    if isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document):
        return trace_of_kineto(document, source, step=step, gpu=gpu)
    if isinstance(document, dict) and "nodes" in document:
        return with_named_gpu(trace_of_execution(document, source, step=step), gpu)
    if isinstance(document, dict) and document.get("format") == FORMAT:
        raise TraceFormatError(f"{source} is a trace of lightning-predict already; there is nothing to import.")
    raise TraceFormatError(
        f"{source} is neither a Kineto JSON file (it has no 'traceEvents') nor an execution trace (it has no 'nodes'). "
        "Export a profile with torch.profiler's export_chrome_trace."
    )
