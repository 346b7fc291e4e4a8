"""`Trace`: the operations of one recorded training step as plain values, readable without torch, and its file format.

A Trace contains only observations; costs are computed in `kernels/`. The operations are dispatcher-level calls
(`aten::addmm`, `aten::convolution_backward`), and composite calls that are recorded as one operation, such as
`aten::lstm` and `aten::scaled_dot_product_attention`. All recorders use the same names.

The file is versioned JSON, compressed with gzip if its name ends in `.gz`. The file lists each distinct tensor once,
and operations refer to the list by index. Fields with default values are omitted. Every field is checked on reading.
Errors name the field and the expected value. Example::

    >>> weight = TensorInfo(shape=(4, 8), dtype="float32", id=1)
    >>> data = TensorInfo(shape=(2, 8), dtype="float32", id=0)
    >>> Operation(name="aten::mm", phase="forward", inputs=(data, weight)).inputs[1].size_bytes
    128
"""

from __future__ import annotations

import gzip
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, Final, Literal

from lightning_predict.base import checked
from lightning_predict.base.checked import Checked
from lightning_predict.base.errors import TraceFormatError, TraceVersionError
from lightning_predict.base.files import write_atomically

Phase = Literal["forward", "backward", "optimizer", "other"]
"""Phase of the step. `other` contains operations outside the three phases (zero_grad, metrics, copies of the batch)."""

WaitCause = Literal["device", "loader"]  # Cause of a host wait: the GPU, or the next batch

WAIT_CAUSES: Final[tuple[WaitCause, ...]] = ("device", "loader")

PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "optimizer", "other")

WAITED_SHARE: Final = 0.1  # Minimum share of waits: of a profiled step to count, of a predicted one to be shown first

DTYPE_BYTES: Final[Mapping[str, int]] = {  # Bytes per element, by dtype in torch's spelling without `torch.`
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and identity of a tensor that an operation read or wrote."""

    shape: tuple[int, ...]  # Sizes of the tensor
    dtype: str  # dtype in torch's spelling without `torch.`; a key of `DTYPE_BYTES`
    id: int | None = None  # Id of the tensor's storage within the Trace, which views share; None if not recorded
    device: str | None = None  # Device type: `cpu`, `cuda` or `meta`; None if not recorded.
    stored_elements: int | None = None  # Number of elements that a sparse tensor stores; None if dense or not recorded
    stored_bytes: int | None = None  # Size of the stored elements and their indices; None if dense or not recorded

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar tensor. For a sparse tensor, the number of stored elements."""
        return math.prod(self.shape) if self.stored_elements is None else self.stored_elements

    @property
    def size_bytes(self) -> int:
        """Size in bytes, with sparse indices. Unknown dtypes count 4 bytes per element."""
        if self.stored_bytes is not None:
            return self.stored_bytes
        return self.elements * DTYPE_BYTES.get(self.dtype, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel, copy or fill that ran on the device."""

    name: str  # Name that the driver reports
    seconds: float  # Duration in seconds
    grid: tuple[int, int, int]  # Thread blocks in x, y, z; (0, 0, 0) for copies and fills
    block: tuple[int, int, int]  # Threads per block in x, y, z; (0, 0, 0) for copies and fills
    registers_per_thread: int  # Registers per thread; 0 if not reported
    shared_memory_bytes: int  # Static and dynamic shared memory per block
    stream: int  # CUDA stream number
    start_seconds: float  # Start, relative to the start of the profiled step
    launch_start_seconds: float | None = None  # Start of the runtime call that launched the kernel; None: not recorded
    launch_seconds: float | None = None  # Duration of the launching runtime call; None if not recorded
    device: int = 0  # Index of the GPU in the driver. Stream numbers are unique only within a GPU.


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A dispatcher-level call."""

    name: str  # Name, `aten::...` without the overload, or the qualified name of another operator
    phase: Phase  # Phase of the step
    inputs: tuple[TensorInfo, ...] = ()  # Tensors that the operation reads, in schema order, with lists flattened
    outputs: tuple[TensorInfo, ...] = ()  # Tensors that the operation writes; empty if the recorder cannot see them
    arguments: Mapping[str, Any] = field(default_factory=dict)  # Non-tensor arguments by schema names, as JSON values
    module: str | None = None  # Qualified name of the module that called the operation; None if unknown
    kernels: tuple[Kernel, ...] = ()  # Device work; empty without a CUDA profile
    host_start_seconds: float | None = None  # Start on the host, from the step's start; None without a profile
    host_seconds: float | None = None  # Time on the host, including inner calls; None without a profile
    # Storages that are freed after this operation although an earlier operation used them last, because a variable of
    # the step held them. All other storages are freed after their last use, or are in the Trace's `held`.
    freed: tuple[int, ...] = ()
    # Time before the operation in which no operation ran, if timed without a profile: Python code of the step, outside
    # backward passes and optimizers. Times below 5 ms count as 0.
    python_seconds: float = 0.0


def backward_ends(operations: Sequence[Operation]) -> int:
    """Return the index after the last operation of a backward pass; without one, the number of operations."""
    places = range(len(operations), 0, -1)
    return next((place for place in places if operations[place - 1].phase == "backward"), len(operations))


@dataclass(frozen=True, slots=True)
class HostWait:
    """Time span in which the host waited."""

    start_seconds: float  # Start, relative to the start of the profiled step
    seconds: float  # Duration in seconds
    cause: WaitCause  # `device` for a call that synchronises with the GPU; `loader` if the next batch was not ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of the model, in the order of `Module.named_parameters()`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory that persists through the step, and the measured peak."""

    parameter_bytes: int | None = None  # Size of parameters and buffers; None if no module was known
    gradient_bytes: int | None = None  # Size of gradients after the backward pass; None if unknown
    optimizer_state_bytes: int | None = None  # Size of the optimizer state kept between steps; None if unknown
    # Size of the previous step's gradients that exist during the forward pass; None if not recorded. Lightning frees
    # these gradients after the forward pass, and most other loops before the forward pass.
    forward_gradient_bytes: int | None = None
    peak_bytes: int | None = None  # `torch.cuda.max_memory_allocated` over the step; None without CUDA
    # `torch.cuda.memory_reserved` after the step; None without CUDA, or if earlier work of the process needed more than
    # the step
    reserved_bytes: int | None = None
    resident_bytes: int | None = None  # Size of other models on the GPU, which the step does not use; None without any


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Global flags that affect which kernels run."""

    matmul_tf32: bool = False  # Whether float32 matmuls may use TF32
    cudnn_tf32: bool = True  # Whether float32 convolutions and recurrent layers may use TF32
    autocast_dtype: str | None = None  # dtype of the active autocast; None if autocast is off
    cudnn_benchmark: bool = False  # Whether cuDNN benchmarks algorithms and keeps the fastest
    cudnn_deterministic: bool = False  # Whether cuDNN uses only deterministic algorithms
    foreach: bool | None = None  # Whether the step chose that optimizers update all tensors together; None: default
    set_to_none: bool | None = None  # Whether `zero_grad` frees gradients by the step's choice; None: torch's default


_RECORD_ONE: Final = (
    "Record a trace by `lightning_predict.capture(step).save(...)`, or convert a profile of torch.profiler by "
    "`lightning-predict trace import`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One recorded step: all batches up to an optimizer update (several with gradient accumulation).

    Attributes:
        operations: Operations in host order.
        device: Device type: `cuda`, `cpu` or `meta`.
        recorder: `profiler`, `dispatch`, or `kineto` (an imported file).
        gpu_reported_name: torch's name of the GPU; None without CUDA.
        gpu_memory_bytes: Memory of the GPU; None without CUDA.
        step_seconds: Times of isolated steps without a recorder, each until the device was done, without loader waits.
            These times calibrate predictions on the same GPU.
        host_seconds_unprofiled: Time of each isolated step until the host was done, before the wait for the device:
            host work without a profiler, and waits inside the step. Empty if not measured.
        running_step_seconds: Mean step time in a running loop, which does not wait for the device between steps, over a
            block of steps; None if no block was timed.
        running_steps: Number of steps in the block of `running_step_seconds`.
        profiled_seconds: Time of the recorded step, with the recorder; None if not timed.
        loader_seconds: Waits for the data loader, one value per batch.
        waited_seconds: Time of a step on the CPU in which the process waited (an environment, a server); 0 if short.
        waits: Host waits in the profiled step; empty without a profile.
        has_python_stacks: Whether the profiler recorded Python stacks, which makes the host several times slower.
        batches: Number of batches of the step (more than 1 with gradient accumulation).
        samples: Number of samples of the step on this rank; None if unknown.
        optimizer_steps: Number of optimizer updates inside the step (2 for a GAN with two optimizers).
        parameters: Parameters of the model in order; empty if no module was known.
        memory: Memory that persists through the step.
        held: Storages that the step wrote and that existed at the step's end; None if not recorded.
        buffers: Storages of the model's buffers, which are not part of the batch; None if unknown.
        flags: Global flags.
        assumed_kernels: Kernels that predictions assume unless other ones are asked for (`kernels` of `lp.predict`).
        compiled: Whether any part ran through `torch.compile`.
        compile_seconds: Compilation time of this fit (without a Trainer: process) until the step; None if unknown.
        world_size: Number of processes in the training, each with its own GPU and samples. One process is recorded.
        num_nodes: Number of machines.
        software: Versions of software, for example `{"torch": "2.13.0"}`.
        notes: Notes for the user about missing information.
        other_steps: Less frequent kinds of steps that alternate with this kind. Predictions are the mean of all kinds.
    """

    operations: tuple[Operation, ...]
    device: str
    recorder: str
    gpu_reported_name: str | None = None
    gpu_memory_bytes: int | None = None
    step_seconds: tuple[float, ...] = ()
    host_seconds_unprofiled: tuple[float, ...] = ()
    running_step_seconds: float | None = None
    running_steps: int = 0
    profiled_seconds: float | None = None
    loader_seconds: tuple[float, ...] = ()
    waited_seconds: float = 0.0
    waits: tuple[HostWait, ...] = ()
    has_python_stacks: bool = False
    batches: int = 1
    samples: int | None = None
    optimizer_steps: int = 1
    parameters: tuple[Parameter, ...] = ()
    memory: Memory = Memory()
    held: tuple[int, ...] | None = None
    buffers: tuple[int, ...] | None = None
    flags: Flags = Flags()
    assumed_kernels: tuple[str, ...] = ()
    compiled: bool = False
    compile_seconds: float | None = None
    world_size: int = 1
    num_nodes: int = 1
    software: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    other_steps: tuple[OtherStep, ...] = ()

    @property
    def kinds(self) -> tuple[OtherStep, ...]:
        """All kinds of steps with their shares. This kind comes first."""
        own = 1.0 - sum(other.share for other in self.other_steps)
        return (OtherStep(share=own, trace=replace(self, other_steps=())), *self.other_steps)

    def __repr__(self) -> str:
        """Summarise the step in one line; its fields would fill pages."""
        parts = [
            f"{len(self.operations):,} operations",
            *([] if self.samples is None else [f"{self.samples:,} samples"]),
            *([] if not self.parameters else [f"{sum(math.prod(one.shape) for one in self.parameters):,} parameters"]),
            f"recorded on {self.gpu_reported_name or self.device}",
            *([] if self.other_steps == () else [f"{len(self.other_steps) + 1} kinds of step"]),
        ]
        return f"Trace({', '.join(parts)})"

    def changed(self, change: Callable[[Trace], Trace]) -> Trace:
        """Return the Trace with a change applied to every kind of step."""
        (_, *others), first = self.kinds, change(replace(self, other_steps=()))
        return replace(first, other_steps=tuple(replace(other, trace=change(other.trace)) for other in others))

    @property
    def measured_steps(self) -> tuple[float, ...]:
        """Step times as in training, whose median is the typical time; empty if no step was measured.

        With a timed block, the times are those of a running loop, with the scatter of the isolated steps. Without a
        block, the times are those of isolated steps, which wait for the device.
        """
        running = self.running_step_seconds
        if running is None:
            return self.step_seconds
        if not self.step_seconds:
            return (running,)
        middle = statistics.median(self.step_seconds)
        return tuple(running * seconds / middle for seconds in self.step_seconds) if middle > 0 else (running,)

    @property
    def samples_per_batch(self) -> int:
        """Number of samples in one batch on this rank; 1 if unknown."""
        return max((self.samples or 1) // self.batches, 1)

    def untimed(self) -> Trace:
        """Return the Trace without measured times of whole steps."""
        return replace(
            self,
            step_seconds=(),
            host_seconds_unprofiled=(),
            running_step_seconds=None,
            running_steps=0,
            profiled_seconds=None,
        )

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, in the order of the operations that launched them."""
        return tuple(kernel for operation in self.operations for kernel in operation.kernels)

    @property
    def has_measured_kernels(self) -> bool:
        """Whether the Trace has measured kernel times."""
        for operation in self.operations:  # noqa: SIM110 -- asked often, of thousands of operations
            if operation.kernels:
                return True
        return False

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Trace as JSON, atomically (with gzip if the name ends in `.gz`).

        Raises:
            TraceFormatError: A value is not a JSON value.
            OSError: The file cannot be written.
        """
        target = os.fspath(path)
        try:
            text = json.dumps(_trace_to_json(self), allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise TraceFormatError(
                f"The trace cannot be written to {target!r}: {error}. Arguments of operations must be JSON values: "
                "text, finite numbers, booleans, None, lists and mappings of them."
            ) from error
        content = text.encode()
        if target.endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        if os.path.exists(target) and not os.path.isfile(target):  # a pipe or a device cannot be replaced
            with open(target, "wb") as stream:
                stream.write(content)
            return
        write_atomically(target, content)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Trace:
        """Read a Trace written by `save`.

        Args:
            path: A JSON file, gzip or plain (detected by its first bytes).

        Raises:
            TraceVersionError: The file has a version that this release cannot read.
            TraceFormatError: The file is not a valid trace. The message names the field.
            OSError: The file cannot be read.
        """
        source = os.fspath(path)
        try:
            document = checked.read_json(source, TraceFormatError)
        except TraceFormatError as error:
            raise TraceFormatError(f"{error} {_RECORD_ONE}") from error
        top = document.mapping()
        if is_profile(top):
            raise TraceFormatError(
                f"{source} is a profile of torch.profiler. Convert it with `lightning-predict "
                f"trace import {source}`, or in Python with import_trace({source!r})."
            )
        if top.get("format") != FORMAT:
            raise TraceFormatError(
                f"{source} is not a trace of lightning-predict: its field 'format' is {top.get('format')!r}, expected "
                f"{FORMAT!r}. {_RECORD_ONE}"
            )
        version = document.member("version").integer(minimum=1)
        if version != VERSION:
            raise TraceVersionError(
                f"{source} is a trace of version {version}; this release reads version {VERSION}. Record it again, or "
                "use the release that wrote it."
            )
        return _trace_from_json(document)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherStep:
    """Another kind of step, in a training that alternates between several kinds."""

    share: float  # Share of all steps, above 0 and below 1
    trace: Trace  # Trace of this kind of step, without other steps


FORMAT: Final = "lightning-predict trace"
VERSION: Final = 1


def weighted_kinds(trace: Trace) -> tuple[tuple[Trace, ...], tuple[float, ...]]:
    """Return the kinds of steps of a trace, and their weights in the mean step.

    The weights are the shares, unless kinds have different numbers of batches (if gradient accumulation differs between
    optimizers). In this case, the weights preserve the time per batch, with `batches = trace.batches`:

        weight = share * batches / sum(share * batches of the kind, over all kinds)
    """
    traces = tuple(kind.trace for kind in trace.kinds)
    batches = sum(kind.share * kind.trace.batches for kind in trace.kinds)
    return traces, tuple(kind.share * trace.batches / batches for kind in trace.kinds)


def measured_seconds(trace: Trace) -> float | None:
    """Return the measured time of the mean step, without a recorder; None if a kind of step was not timed."""
    kinds, weights = weighted_kinds(trace)
    if not all(kind.measured_steps for kind in kinds):
        return None
    return sum(weight * statistics.median(kind.measured_steps) for kind, weight in zip(kinds, weights, strict=True))


def is_profile(document: object) -> bool:
    """Return whether a JSON document is a profile of torch.profiler."""
    return isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document)


def read_trace_json(path: str, *, strict: bool = True) -> Any:
    """Parse a JSON file, with or without gzip, within the limits of `checked.read_json`."""
    return checked.read_json(path, TraceFormatError, strict=strict).value


# --- Writing


def _trace_to_json(trace: Trace) -> dict[str, Any]:
    tensors: dict[TensorInfo, int] = {}  # distinct tensors, in the order of their first use, with their index
    operations = [_changed_fields(operation, tensors) for operation in trace.operations]
    rest = _changed_fields(replace(trace, operations=()), tensors)
    del rest["operations"]
    rows = [
        [list(tensor.shape), tensor.dtype, tensor.id, tensor.device]
        + ([] if tensor.stored_bytes is None else [tensor.stored_elements, tensor.stored_bytes])  # a sparse tensor
        for tensor in tensors
    ]
    return {"format": FORMAT, "version": VERSION, **rest, "tensors": rows, "operations": operations}


def _changed_fields(record: Any, tensors: dict[TensorInfo, int]) -> dict[str, Any]:
    """Return the fields of a record that differ from their defaults, as JSON values."""
    row: dict[str, Any] = {}
    for own in fields(record):
        value = getattr(record, own.name)
        if value != (own.default if own.default_factory is MISSING else own.default_factory()):
            row[own.name] = _to_json(value, tensors)
    return row


def _to_json(value: Any, tensors: dict[TensorInfo, int]) -> Any:
    """Return a field as a JSON value: a tensor as its index in the table, a wait as a list, a record as an object."""
    match value:
        case tuple() if value and is_dataclass(value[0]):
            return [_to_json(item, tensors) for item in value]
        case TensorInfo():
            return tensors.setdefault(value, len(tensors))
        case HostWait():
            return [value.start_seconds, value.seconds, value.cause]
        case Trace():
            return _trace_to_json(value)
        case Mapping():
            return dict(value)
    return _changed_fields(value, tensors) if is_dataclass(value) else value


# --- Reading

Read = Callable[[Checked], object]  # Function that returns a checked value as its field has it


def _trace_from_json(document: Checked) -> Trace:
    tensors = [_tensor(row) for row in document.member("tensors").items()]

    def pick(value: Checked) -> tuple[TensorInfo, ...]:
        return tuple([tensors[number] for number in value.integers(maximum=len(tensors) - 1)])

    lists: dict[str, Read] = {"inputs": pick, "outputs": pick}
    special: dict[str, Read] = {"operations": _list_of(lambda row: Operation(**_fields_of(row, Operation, lists)))}
    return Trace(**_fields_of(document, Trace, special, more=("format", "version", "tensors")))


def _fields_of(
    row: Checked, record: type, special: Mapping[str, Read] | None = None, *, more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the values of the fields that an object has. A field without a default must exist.

    Args:
        row: The object.
        record: Class of the record.
        special: Readers of fields that need more than the field's value.
        more: Names of other keys that the object may have.
    """
    readers = _READERS.get(record) or _READERS.setdefault(record, _readers_of(record))
    row.check_keys(optional=(*readers, *more) if more else readers)
    given = row.mapping()
    return {
        name: (read if special is None else special.get(name, read))(row.member(name))
        for name, (read, is_required) in readers.items()
        if is_required or name in given
    }


_READERS: Final[dict[type, dict[str, tuple[Read, bool]]]] = {}  # Reader and necessity of each field, by class


def _readers_of(record: type) -> dict[str, tuple[Read, bool]]:
    """Return reader and necessity of each field. A reader is chosen by the field's name or type."""
    return {
        own.name: (
            _BY_NAME.get(own.name) or _BY_TYPE[str(own.type).removesuffix(" | None")],
            own.default is MISSING and own.default_factory is MISSING,
        )
        for own in fields(record)
    }


def _other_steps(value: Checked) -> tuple[OtherStep, ...]:
    others = tuple(OtherStep(**_fields_of(row, OtherStep)) for row in value.items())
    if not (all(other.share > 0 for other in others) and sum(other.share for other in others) < 1):
        raise value.unexpected("shares above 0 that leave a part of 1 to the commonest step")
    return others


def _tensor(row: Checked) -> TensorInfo:
    has_storage = isinstance(row.value, list) and len(row.value) == 6
    shape, dtype, number, device, *stored = row.items(length=6 if has_storage else 4)
    elements, stored_bytes = (value.integer() for value in stored) if stored else (None, None)
    return TensorInfo(
        shape=shape.integers(),
        dtype=dtype.text(),
        id=None if number.value is None else number.integer(),
        device=None if device.value is None else device.text(),
        stored_elements=elements,
        stored_bytes=stored_bytes,
    )


def _wait(row: Checked) -> HostWait:
    start, seconds, cause = row.items(length=3)
    return HostWait(start.any_number(), seconds.number(), cause.choice(WAIT_CAUSES))


def _list_of(read: Read) -> Read:
    return lambda value: tuple([read(item) for item in value.items()])


_BY_NAME: Final[Mapping[str, Read]] = {  # Readers of fields whose bounds do not follow from their type
    **dict.fromkeys(("batches", "samples", "world_size", "num_nodes"), lambda value: value.integer(minimum=1)),
    **dict.fromkeys(("start_seconds", "launch_start_seconds", "host_start_seconds"), Checked.any_number),
}

_BY_TYPE: Final[Mapping[str, Read]] = {  # Readers of fields by their type
    "str": Checked.text,
    "int": Checked.integer,
    "float": Checked.number,
    "bool": Checked.flag,
    "Phase": lambda value: value.choice(PHASES),
    "Mapping[str, Any]": Checked.mapping,
    "Mapping[str, str]": lambda value: {name: item.text() for name, item in value.members().items()},
    "tuple[int, ...]": Checked.integers,
    "tuple[float, ...]": _list_of(Checked.number),
    "tuple[str, ...]": _list_of(Checked.text),
    "tuple[int, int, int]": lambda value: tuple(size.integer() for size in value.items(length=3)),
    "tuple[TensorInfo, ...]": lambda value: value,  # read by `_trace_from_json`, which knows the table of tensors
    "tuple[Operation, ...]": lambda value: value,
    "tuple[Kernel, ...]": _list_of(lambda row: Kernel(**_fields_of(row, Kernel))),
    "tuple[Parameter, ...]": _list_of(lambda row: Parameter(**_fields_of(row, Parameter))),
    "tuple[HostWait, ...]": _list_of(_wait),
    "tuple[OtherStep, ...]": _other_steps,
    "Memory": lambda row: Memory(**_fields_of(row, Memory)),
    "Flags": lambda row: Flags(**_fields_of(row, Flags)),
    "Trace": _trace_from_json,
}


def anonymised(trace: Trace, *, keep_modules: bool = False) -> Trace:
    """Return the trace without notes and parameter names, and without module names unless kept.

    Modules are numbered in the order of their first call, so equal modules stay equal. Custom operators keep their
    qualified names, because these names identify their kernels.
    """
    numbers: dict[str, str] = {}

    def hidden(module: str | None) -> str | None:
        if module is None or keep_modules:
            return module
        return numbers.setdefault(module, f"module_{len(numbers)}")

    def without_names(step: Trace) -> Trace:
        return replace(
            step,
            operations=tuple(replace(operation, module=hidden(operation.module)) for operation in step.operations),
            parameters=tuple(
                replace(parameter, name=f"parameter_{index}") for index, parameter in enumerate(step.parameters)
            ),
            notes=(),
        )

    return trace.changed(without_names)
