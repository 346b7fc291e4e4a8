"""Traces as files: versioned JSON, gzip where the name ends in `.gz`.

A file lists each distinct tensor once; operations point into that table, and fields at their default are left out.
Reading checks every field by hand, so that a wrong file is refused with the place and the expectation. Example::

    >>> save_trace(Trace(operations=(), device="cpu", recorder="dispatch"), "empty.json")
    >>> load_trace("empty.json").device
    'cpu'
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, Final

from lightning_predict import checked
from lightning_predict.checked import Checked
from lightning_predict.errors import TraceFormatError, TraceVersionError
from lightning_predict.tracing.records import (
    PHASES,
    WAIT_CAUSES,
    Flags,
    HostWait,
    Kernel,
    Memory,
    Operation,
    OtherStep,
    Parameter,
    TensorInfo,
    Trace,
)

FORMAT: Final = "lightning-predict trace"
VERSION: Final = 1


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a Trace; the file appears whole or not at all.

    Args:
        trace: What to write.
        path: Where; gzip where it ends in `.gz`.

    Raises:
        TraceFormatError: A value that JSON cannot hold.
        OSError: The file cannot be written.
    """
    target = os.fspath(path)
    try:
        text = json.dumps(_trace_to_json(trace), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise TraceFormatError(
            f"The trace cannot be written to {target!r}: {error}. Arguments of operations must be JSON values: text, "
            "finite numbers, booleans, None, lists and mappings of them."
        ) from error
    content = text.encode()
    if target.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    target = os.path.realpath(target)  # a link stays a link
    if os.path.exists(target) and not os.path.isfile(target):  # a pipe or a device cannot be replaced
        with open(target, "wb") as stream:
            stream.write(content)
        return
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, target)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a Trace that `save_trace` wrote.

    Args:
        path: A JSON file, gzip or plain (told apart by its first bytes).

    Raises:
        TraceVersionError: Written by a version that this release does not read.
        TraceFormatError: Not a valid trace file; the message names the field.
        OSError: The file cannot be read.
    """
    source = os.fspath(path)
    document = checked.read_json(source, TraceFormatError)
    top = document.mapping()
    if top.get("format") != FORMAT:
        raise TraceFormatError(
            f"{source} is not a trace of lightning-predict: its field 'format' is {top.get('format')!r}, expected "
            f"{FORMAT!r}. A Kineto JSON file is read by `import_kineto`."
        )
    version = document.member("version").integer(minimum=1)
    if version != VERSION:
        raise TraceVersionError(
            f"{source} is a trace of version {version}; this release reads version {VERSION}. Record it again, or use "
            "the release that wrote it."
        )
    return _trace_from_json(document)


def read_json(path: str, *, strict: bool = True) -> Any:
    """Parse a JSON file, gzip or plain, within the limits of `checked.read_json`."""
    return checked.read_json(path, TraceFormatError, strict=strict).value


# Writing.


class _TensorTable:
    """Each distinct tensor once, in the order of first use."""

    def __init__(self) -> None:
        self._rows: dict[TensorInfo, int] = {}

    def index(self, tensor: TensorInfo) -> int:
        return self._rows.setdefault(tensor, len(self._rows))

    def to_json(self) -> list[list[Any]]:
        return [_tensor_row(tensor) for tensor in self._rows]


def _tensor_row(tensor: TensorInfo) -> list[Any]:
    """A row of four; of six for a sparse tensor."""
    stored = [] if tensor.stored_bytes is None else [tensor.stored_elements, tensor.stored_bytes]
    return [list(tensor.shape), tensor.dtype, tensor.id, tensor.device, *stored]


def _trace_to_json(trace: Trace) -> dict[str, Any]:
    table = _TensorTable()
    operations = [_operation_to_json(operation, table) for operation in trace.operations]
    rest = _changed_fields(trace, leave_out=("operations",))
    for name in ("memory", "flags"):
        if name in rest:
            rest[name] = _changed_fields(rest[name])
    if "waits" in rest:
        rest["waits"] = [[wait.start_seconds, wait.seconds, wait.cause] for wait in trace.waits]
    if "parameters" in rest:
        rest["parameters"] = [_changed_fields(parameter) for parameter in trace.parameters]
    if "other_steps" in rest:
        rest["other_steps"] = [{"share": one.share, "trace": _trace_to_json(one.trace)} for one in trace.other_steps]
    return {"format": FORMAT, "version": VERSION, **rest, "tensors": table.to_json(), "operations": operations}


def _operation_to_json(operation: Operation, table: _TensorTable) -> dict[str, Any]:
    row = _changed_fields(operation, leave_out=("inputs", "outputs", "kernels"))
    for name, tensors in (("inputs", operation.inputs), ("outputs", operation.outputs)):
        if tensors:
            row[name] = [table.index(tensor) for tensor in tensors]
    if operation.kernels:
        row["kernels"] = [_changed_fields(kernel) for kernel in operation.kernels]
    return row


def _changed_fields(record: Any, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fields of a record whose value is not the default; mappings as plain dictionaries."""
    row: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name not in leave_out and value != _default(field):
            row[field.name] = dict(value) if isinstance(value, Mapping) else value
    return row


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


# Reading.


@cache
def _names(record: type[Any]) -> frozenset[str]:
    return frozenset(field.name for field in fields(record))


_TRACE_FIELDS: Final = _names(Trace) | {"format", "version", "tensors"}


def _trace_from_json(document: Checked) -> Trace:
    document.check_keys(optional=_TRACE_FIELDS)
    tensors = [_tensor(row) for row in document.member("tensors").items()]
    get = document.optional
    return Trace(
        operations=tuple(_operation(row, tensors) for row in document.member("operations").items()),
        device=document.member("device").text(),
        recorder=document.member("recorder").text(),
        gpu_reported_name=get("gpu_reported_name", Checked.text, None),
        gpu_memory_bytes=get("gpu_memory_bytes", Checked.integer, None),
        step_seconds=get("step_seconds", _seconds_list, ()),
        profiled_seconds=get("profiled_seconds", Checked.number, None),
        loader_seconds=get("loader_seconds", _seconds_list, ()),
        waits=get("waits", lambda value: tuple(_wait(row) for row in value.items()), ()),
        has_python_stacks=get("has_python_stacks", Checked.flag, False),
        batches=get("batches", lambda value: value.integer(minimum=1), 1),
        samples=get("samples", lambda value: value.integer(minimum=1), None),
        optimizer_steps=get("optimizer_steps", Checked.integer, 1),
        parameters=get("parameters", lambda value: tuple(_parameter(row) for row in value.items()), ()),
        memory=get("memory", _memory, Memory()),
        flags=get("flags", _flags, Flags()),
        compiled=get("compiled", Checked.flag, False),
        compile_seconds=get("compile_seconds", Checked.number, None),
        world_size=get("world_size", lambda value: value.integer(minimum=1), 1),
        num_nodes=get("num_nodes", lambda value: value.integer(minimum=1), 1),
        software=get("software", _texts_by_name, {}),
        notes=get("notes", lambda value: tuple(note.text() for note in value.items()), ()),
        other_steps=get("other_steps", _other_steps, ()),
    )


def _other_steps(value: Checked) -> tuple[OtherStep, ...]:
    for row in value.items():
        row.check_keys(optional=_names(OtherStep))
    others = tuple(
        OtherStep(share=row.member("share").number(), trace=_trace_from_json(row.member("trace")))
        for row in value.items()
    )
    if not (all(other.share > 0 for other in others) and sum(other.share for other in others) < 1):
        raise value.wrong("shares above 0 that leave a part of 1 to the commonest step")
    return others


def _seconds_list(value: Checked) -> tuple[float, ...]:
    return tuple(item.number() for item in value.items())


def _texts_by_name(value: Checked) -> dict[str, str]:
    return {name: item.text() for name, item in value.members().items()}


def _tensor(row: Checked) -> TensorInfo:
    shape, dtype, number, device, *stored = row.items() if len(row.items()) == 6 else row.items(length=4)
    elements, stored_bytes = (value.integer() for value in stored) if stored else (None, None)
    return TensorInfo(
        shape=tuple(size.integer() for size in shape.items()),
        dtype=dtype.text(),
        id=None if number.value is None else number.integer(),
        device=None if device.value is None else device.text(),
        stored_elements=elements,
        stored_bytes=stored_bytes,
    )


def _operation(row: Checked, tensors: list[TensorInfo]) -> Operation:
    row.check_keys(optional=_names(Operation))

    def pick(value: Checked) -> tuple[TensorInfo, ...]:
        return tuple(tensors[item.integer(maximum=len(tensors) - 1)] for item in value.items())

    return Operation(
        name=row.member("name").text(),
        phase=row.member("phase").choice(PHASES),
        inputs=row.optional("inputs", pick, ()),
        outputs=row.optional("outputs", pick, ()),
        arguments=row.optional("arguments", Checked.mapping, {}),
        module=row.optional("module", Checked.text, None),
        kernels=row.optional("kernels", lambda value: tuple(_kernel(item) for item in value.items()), ()),
        host_start_seconds=row.optional("host_start_seconds", Checked.any_number, None),
        host_seconds=row.optional("host_seconds", Checked.number, None),
        python_seconds=row.optional("python_seconds", Checked.number, 0.0),
    )


def _wait(row: Checked) -> HostWait:
    start, seconds, cause = row.items(length=3)
    return HostWait(start.any_number(), seconds.number(), cause.choice(WAIT_CAUSES))


def _kernel(row: Checked) -> Kernel:
    row.check_keys(optional=_names(Kernel))

    def three(value: Checked) -> tuple[int, int, int]:
        x, y, z = (size.integer() for size in value.items(length=3))
        return x, y, z

    return Kernel(
        name=row.member("name").text(),
        seconds=row.member("seconds").number(),
        grid=three(row.member("grid")),
        block=three(row.member("block")),
        registers_per_thread=row.member("registers_per_thread").integer(),
        shared_memory_bytes=row.member("shared_memory_bytes").integer(),
        stream=row.member("stream").integer(),
        start_seconds=row.member("start_seconds").any_number(),
        launch_start_seconds=row.optional("launch_start_seconds", Checked.any_number, None),
        launch_seconds=row.optional("launch_seconds", Checked.number, None),
    )


def _parameter(row: Checked) -> Parameter:
    row.check_keys(optional=_names(Parameter))
    return Parameter(
        name=row.member("name").text(),
        shape=tuple(size.integer() for size in row.member("shape").items()),
        dtype=row.member("dtype").text(),
        requires_grad=row.optional("requires_grad", Checked.flag, True),
    )


def _memory(value: Checked) -> Memory:
    value.check_keys(optional=_names(Memory))
    return Memory(**{name: item.integer() for name, item in value.members().items()})


def _flags(value: Checked) -> Flags:
    value.check_keys(optional=_names(Flags))
    given = value.members()
    dtype = given.pop("autocast_dtype", None)
    switches = {name: item.flag() for name, item in given.items()}
    return Flags(**switches, autocast_dtype=None if dtype is None else dtype.text())
