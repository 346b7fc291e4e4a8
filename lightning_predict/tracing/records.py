"""`Trace`: what one training step did, as plain values that need no torch to read.

A Trace is an observation. It holds dispatcher-level operations (`aten::addmm`, `aten::convolution_backward`, and,
whole, `aten::lstm`, `aten::scaled_dot_product_attention`) under the same names whichever way it was recorded; what an
operation costs is for `kernels/` to say. Example::

    >>> weight = TensorInfo(shape=(4, 8), dtype="float32", id=1)
    >>> data = TensorInfo(shape=(2, 8), dtype="float32", id=0)
    >>> Operation(name="aten::mm", phase="forward", inputs=(data, weight)).inputs[1].size_bytes
    128
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, final

Phase = Literal["forward", "backward", "optimizer", "other"]
"""Part of the step: `other` is what belongs to none of the three (zero_grad, metrics, copies of the batch)."""

WaitCause = Literal["device", "loader"]
"""What the host waits for: the GPU, or the next batch."""

WAIT_CAUSES: Final[tuple[WaitCause, ...]] = ("device", "loader")

PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "optimizer", "other")

DTYPE_BYTES: Final[Mapping[str, int]] = {
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
"""Bytes of one element by dtype; names as torch prints them, without `torch.`."""


@final
@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and identity of one tensor that an operation read or wrote.

    Attributes:
        shape: Its sizes.
        dtype: As torch prints it, without `torch.`; a key of `DTYPE_BYTES`.
        id: Number of its storage within the Trace (views share it); None where the recorder could not see it.
        device: Kind of device that it lives on: `cpu`, `cuda` or `meta`; None where not seen.
        stored_elements: Elements that a sparse tensor stores; None for a dense one, and where not seen.
        stored_bytes: Bytes of these and of their indices; None likewise.
    """

    shape: tuple[int, ...]
    dtype: str
    id: int | None = None
    device: str | None = None
    stored_elements: int | None = None
    stored_bytes: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar tensor. Of a sparse tensor, those that it stores."""
        return math.prod(self.shape) if self.stored_elements is None else self.stored_elements

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements (4 an element for a dtype that `DTYPE_BYTES` does not list), and of sparse indices."""
        if self.stored_bytes is not None:
            return self.stored_bytes
        return self.elements * DTYPE_BYTES.get(self.dtype, 4)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, copy or fill that ran on the device.

    Attributes:
        name: Name that the driver reports.
        seconds: Time that it ran.
        grid: Thread blocks in x, y, z; (0, 0, 0) for copies and fills.
        block: Threads of a block in x, y, z; (0, 0, 0) for copies and fills.
        registers_per_thread: Registers; 0 where not reported.
        shared_memory_bytes: Static and dynamic shared memory of a block.
        stream: CUDA stream number.
        start_seconds: Start, from the beginning of the profiled step.
        launch_start_seconds: Start of the runtime call that launched it; None where not recorded.
        launch_seconds: Length of that call; None where not recorded.
    """

    name: str
    seconds: float
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    shared_memory_bytes: int
    stream: int
    start_seconds: float
    launch_start_seconds: float | None = None
    launch_seconds: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One dispatcher-level call.

    Attributes:
        name: `aten::...` without the overload, or another operator's qualified name.
        phase: Part of the step that it belongs to.
        inputs: Tensors read, in the schema's order, lists of tensors flattened.
        outputs: Tensors written; empty where the recorder cannot see them (the profiler does not).
        arguments: Non-tensor arguments by their schema name (JSON values).
        module: Qualified name of the module that called it, where known.
        kernels: What it ran on the device; empty without a CUDA profile.
        host_start_seconds: Start on the host from the beginning of the profiled step; None without a profile.
        host_seconds: Time on the host, its children included; None without a profile.
        python_seconds: Time before it in which the host ran no operation (Python code of the step), as far as the
            recorder timed it and there is no profile; 0 for less than 5 ms.
    """

    name: str
    phase: Phase
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    module: str | None = None
    kernels: tuple[Kernel, ...] = ()
    host_start_seconds: float | None = None
    host_seconds: float | None = None
    python_seconds: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class HostWait:
    """A time in which the host did nothing but wait.

    Attributes:
        start_seconds: Start, from the beginning of the profiled step.
        seconds: Its length.
        cause: `device`: a call that synchronizes with the GPU; `loader`: the next batch was not there yet.
    """

    start_seconds: float
    seconds: float
    cause: WaitCause


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of the model, in the order of `Module.named_parameters()`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool = True


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that live through the whole step, and the measured peak.

    Attributes:
        parameter_bytes: Parameters and buffers; None where no module was known.
        gradient_bytes: Gradients after the backward pass; None where not known.
        optimizer_state_bytes: State that the optimizers keep between steps; None where not known.
        peak_bytes: `torch.cuda.max_memory_allocated` over the step; None off CUDA.
    """

    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_state_bytes: int | None = None
    peak_bytes: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Global switches that decide which kernels run.

    Attributes:
        matmul_tf32: float32 matmuls may use TF32.
        cudnn_tf32: float32 convolutions and recurrent layers may use TF32.
        autocast_dtype: dtype of an enclosing autocast; None without.
        cudnn_benchmark: cuDNN tries algorithms and keeps the fastest.
        cudnn_deterministic: cuDNN uses deterministic algorithms only.
    """

    matmul_tf32: bool = False
    cudnn_tf32: bool = True
    autocast_dtype: str | None = None
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One step (all batches up to an optimizer update) as it ran.

    Attributes:
        operations: In the order of the host.
        device: Kind of device it ran on: `cuda`, `cpu` or `meta`.
        recorder: `profiler`, `dispatch`, `kineto` (an imported file) or `execution_trace`.
        gpu_reported_name: What torch calls the GPU; None off CUDA.
        gpu_memory_bytes: Memory of that GPU; None off CUDA.
        step_seconds: Times of whole steps without any recorder, loader waits excluded; the anchor of predictions on
            the same GPU.
        profiled_seconds: Time of the recorded step, recorder included; None where not timed.
        loader_seconds: Waits for the loader, one value a batch.
        waits: Times of the profiled step in which the host waited; empty without a profile.
        has_python_stacks: The profiler kept Python's call stacks, which slows the host several times.
        batches: Batches of the step (more than 1 under gradient accumulation).
        samples: Samples of the step on this rank; None where nobody said.
        optimizer_steps: Optimizer updates inside the step (2 for a GAN with two optimizers).
        parameters: The model's parameters in their order; empty where no module was known.
        memory: What lives through the step.
        flags: Global switches.
        compiled: Any part ran through `torch.compile`.
        compile_seconds: What compiling has taken until the step was recorded, in this fit (without a Trainer, in this
            process); None where unknown.
        world_size: Processes that trained together, each with a GPU and samples of its own; this one was recorded.
        num_nodes: Machines that they ran on.
        software: Versions, for example `{"torch": "2.13.0"}`.
        notes: What the recorder could not see, in words for the user.
        other_steps: Steps of other kinds that take turns with this one (a GAN whose generator steps every fifth batch);
            this one is the commonest. Predictions are the mean of all kinds.
    """

    operations: tuple[Operation, ...]
    device: str
    recorder: str
    gpu_reported_name: str | None = None
    gpu_memory_bytes: int | None = None
    step_seconds: tuple[float, ...] = ()
    profiled_seconds: float | None = None
    loader_seconds: tuple[float, ...] = ()
    waits: tuple[HostWait, ...] = ()
    has_python_stacks: bool = False
    batches: int = 1
    samples: int | None = None
    optimizer_steps: int = 1
    parameters: tuple[Parameter, ...] = ()
    memory: Memory = Memory()
    flags: Flags = Flags()
    compiled: bool = False
    compile_seconds: float | None = None
    world_size: int = 1
    num_nodes: int = 1
    software: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    other_steps: tuple[OtherStep, ...] = ()

    @property
    def kinds(self) -> tuple[OtherStep, ...]:
        """Every kind of step with its share of all steps, this one first."""
        own = 1.0 - sum(other.share for other in self.other_steps)
        return (OtherStep(share=own, trace=replace(self, other_steps=())), *self.other_steps)

    def changed(self, change: Callable[[Trace], Trace]) -> Trace:
        """The Trace with a change made to every kind of step."""
        (_, *others), first = self.kinds, change(replace(self, other_steps=()))
        return replace(first, other_steps=tuple(replace(other, trace=change(other.trace)) for other in others))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels in the order of the operations that launched them."""
        return tuple(kernel for operation in self.operations for kernel in operation.kernels)

    @property
    def has_measured_kernels(self) -> bool:
        """True where the device's own times are in the Trace."""
        return any(operation.kernels for operation in self.operations)

    def save(self, path: str) -> None:
        """Write the Trace as JSON (gzip where the name ends in `.gz`).

        Raises:
            TraceFormatError: A value that JSON cannot hold.
            OSError: The file cannot be written.
        """
        from lightning_predict.tracing.files import save_trace

        save_trace(self, path)

    @staticmethod
    def load(path: str) -> Trace:
        """Read a Trace that `save` wrote.

        Raises:
            TraceVersionError: Written by a version that this release does not read.
            TraceFormatError: Not a valid trace file; the message names the field.
            OSError: The file cannot be read.
        """
        from lightning_predict.tracing.files import load_trace

        return load_trace(path)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OtherStep:
    """A step of one kind where a training takes steps of several kinds in turns.

    Attributes:
        share: Of all steps, above 0 and below 1.
        trace: The step; it has no other steps of its own.
    """

    share: float
    trace: Trace
