"""`import_trace`: reads a profiler trace (Kineto) or an execution trace as a Trace. Pure Python.

The format is detected from the content. An execution trace (written by `torch.profiler.ExecutionTraceObserver`)
contains every call with its tensors, but no times and no kernels. Nodes are numbered in the order in which calls begin,
so the numbers serve as times. `kineto.py` reads the nodes as events of a profile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from lightning_predict.base.checked import Checked, File
from lightning_predict.base.errors import TraceFormatError, TraceVersionError
from lightning_predict.record.calls import RECORDED_OUTPUTS, dtype_of
from lightning_predict.record.events import is_label, is_shape, read_profile
from lightning_predict.record.kineto import step_notes, trace_of_kineto, trace_of_profile
from lightning_predict.record.recorded_on import with_named_gpu
from lightning_predict.record.signatures import RECORDED_TENSORS
from lightning_predict.record.trace import FORMAT, Trace, is_profile, read_trace_json

_SCHEMA: Final = "1.1."
"""Prefix of `schema` in supported files, which torch 2.4 and later write."""

_ROOT: Final = "[pytorch|profiler|execution_trace|"
_NODE: Final = "autograd::engine::evaluate_function: "
_USER_SCOPE: Final = 7
_TENSOR: Final = re.compile(r"Tensor\(([^()]*)\)")


def trace_of_execution(parsed: object, source: str, *, step: int | None) -> Trace:
    """Read one step of an execution trace. Operations have input and output tensors, but no kernels or times.

    Raises:
        TraceVersionError: The file has another version of the format.
        TraceFormatError: The file is not an execution trace, or the step does not exist.
    """
    document = Checked(parsed, File(source, TraceFormatError))
    schema = document.mapping().get("schema")
    if not isinstance(schema, str):
        raise TraceFormatError(
            f"{source} is not an execution trace: its field 'schema' is {schema!r}. A file of torch.profiler's "
            "export_chrome_trace holds 'traceEvents'."
        )
    if not schema.startswith(_SCHEMA):
        raise TraceVersionError(
            f"{source} is an execution trace of schema {schema}; this release reads {_SCHEMA}x, which torch writes "
            "since 2.4. Record it again with a newer torch."
        )
    nodes = [node for node in document.member("nodes").items() if not _name(node).startswith(_ROOT)]
    profile = read_profile({"traceEvents": list(_events(nodes))}, source, step=step)
    trace = trace_of_profile(profile, recorder="execution_trace")
    operations = tuple(replace(operation, host_start_seconds=None, host_seconds=None) for operation in trace.operations)
    notes = (*step_notes(profile, asked=step), *trace.notes)
    return replace(trace, operations=operations, profiled_seconds=None, loader_seconds=(), notes=notes)


def _name(node: Checked) -> str:
    return node.member("name").text()


def _events(nodes: list[Checked]) -> Iterator[dict[str, Any]]:
    """Yield the nodes as events. A call, whose end is not recorded, ends just after the last call inside begins."""
    number = {id(node): node.member("id").integer() for node in nodes}
    parents = {number[id(node)]: node.member("ctrl_deps").integer() for node in nodes}
    last = {own: own for own in parents}
    for own in sorted(parents, reverse=True):
        parent = parents[own]
        if parent in last:
            last[parent] = max(last[parent], last[own])
    attributes = {number[id(node)]: _attributes(node) for node in nodes}
    # The engine's node has no sequence number, but the node inside the engine's node has a number.
    inner = {parents[own]: row for own, row in attributes.items() if row.get("seq_id", -1) >= 0}
    for node in nodes:
        own, name = number[id(node)], _name(node)
        row = inner.get(own, attributes[own]) if name.startswith(_NODE) else attributes[own]
        thread = attributes[own].get("tid")
        yield {
            "ph": "X",
            "cat": "user_annotation" if row.get("scope") == _USER_SCOPE else "cpu_op",
            "name": name,
            "pid": 0,
            "tid": thread,
            "ts": own,
            "dur": last[own] - own + 0.5,
            "args": _arguments(node, row),
        }
        if row.get("fw_tid"):
            link = {"cat": "fwdbwd", "name": "fwdbwd", "id": own, "pid": 0}
            yield {"ph": "s", "tid": row["fw_tid"], "ts": own, **link}
            yield {"ph": "f", "tid": thread, "ts": own, **link}


def _attributes(node: Checked) -> dict[str, Any]:
    rows: list[Checked] = node.optional("attrs", lambda value: value.items(), [])
    found = {row.member("name").text(): row for row in rows}
    for name in ("tid", "fw_tid"):
        if name in found and not is_label(found[name].mapping().get("value")):
            raise found[name].member("value").unexpected("a number or a string")
    if "seq_id" in found:
        found["seq_id"].member("value").any_number()
    return {name: row.mapping().get("value") for name, row in found.items()}


def _arguments(node: Checked, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors and values of a call in the format of profiler events."""
    inputs, outputs = node.member("inputs"), node.member("outputs")
    values = [None if item.value == "<None>" else item.value for item in inputs.member("values").items()]
    arguments: dict[str, Any] = {
        "Concrete Inputs": values,
        RECORDED_TENSORS: _tensor_rows(inputs),
        RECORDED_OUTPUTS: _tensor_rows(outputs),
    }
    if attributes.get("seq_id", -1) >= 0:
        arguments |= {"Sequence number": attributes["seq_id"], "Fwd thread id": attributes.get("fw_tid", 0)}
    return arguments


def _tensor_rows(group: Checked) -> list[list[list[Any]]]:
    """Return the tensors at each position as rows of shape, dtype, storage id and device type."""
    values = group.member("values").items()
    shapes, kinds = (group.member(key).items(length=len(values)) for key in ("shapes", "types"))
    return [list(_rows(*row)) for row in zip(values, shapes, kinds, strict=True)]


def _rows(value: Checked, shape: Checked, kind: Checked) -> Iterator[list[Any]]:
    kinds = _TENSOR.findall(kind.text())
    if not kinds:
        return
    is_single = kind.text().startswith("Tensor(")
    values, shapes = ([value], [shape]) if is_single else (value.items(), shape.items())
    tensors = (pair for pair in zip(values, shapes, strict=False) if _is_tensor(pair[0].value))
    for (tensor, sizes), dtype in zip(tensors, kinds, strict=False):
        _, storage, _, _, _, device = tensor.value
        if not is_shape(sizes.value):
            raise sizes.unexpected("an array of integers of at least 0")
        if not is_label(storage):
            raise tensor.unexpected("a tensor whose storage is a number")
        yield [sizes.value, dtype_of(dtype), storage, str(device).partition(":")[0]]


def _is_tensor(value: object) -> bool:
    return isinstance(value, list) and len(value) == 6


def import_trace(path: str | os.PathLike[str], *, step: int | None = None, gpu: str | None = None) -> Trace:
    """Read one step of a file written by `torch.profiler` or `ExecutionTraceObserver`.

    Args:
        path: A JSON file, gzip or plain.
        step: Number of the `ProfilerStep#` to read. None reads the step of median length among the steps with work, or
            the whole file if no step is marked.
        gpu: GPU of the recording, if the file does not name the GPU, or if the catalogue lacks the name.

    Raises:
        TraceFormatError: The file has another format or no such step, or was not recorded on an NVIDIA GPU.
        UnknownGpuError: `gpu` is not in the catalogue.
        TraceVersionError: The file is an execution trace of another format version.
        OSError: The file cannot be read.
    """
    source = os.fspath(path)
    return _imported(read_trace_json(source, strict=False), source, step=step, gpu=gpu)


def load_step(path: str | os.PathLike[str]) -> Trace:
    """Read a step from a trace of this package, a profile of `torch.profiler`, or an execution trace.

    Raises:
        TraceError: The file has another format, or its content is invalid.
        OSError: The file cannot be read.
    """
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
    if isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document):
        return trace_of_kineto(document, source, step=step, gpu=gpu)
    if isinstance(document, dict) and "nodes" in document:
        return with_named_gpu(trace_of_execution(document, source, step=step), gpu)
    if isinstance(document, dict) and document.get("format") == FORMAT:
        raise TraceFormatError(f"{source} is a trace of lightning-predict already; there is nothing to import.")
    raise TraceFormatError(
        f"{source} is not a Kineto JSON file (no 'traceEvents') or an execution trace (no 'nodes'). "
        "Export a profile with torch.profiler's export_chrome_trace."
    )
