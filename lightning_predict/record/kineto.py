"""Reads a profile (Kineto JSON file, exported by `torch.profiler`) as a Trace. Pure Python: torch is not needed.

The operations are the outermost calls that are not composites, as a `TorchDispatchMode` would see them. A recurrent
layer, an attention or an RMS normalisation is one operation, and its backward pass another. Kernels belong to the
operation that launched them. The trace's notes report content that predictions cannot use. Example::

    trace = import_trace("rank0.pt.trace.json.gz", step=5)  # detects the format
    trace.gpu_reported_name          # 'NVIDIA A100-SXM4-40GB'
    trace.operations[7].kernels      # (Kernel(name='ampere_sgemm_128x64_tn', seconds=1.2e-05, ...),)
"""

from __future__ import annotations

import math
import re
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lightning_predict.base.answers import NAMES_SHOWN
from lightning_predict.base.checked import MAX_INTEGER
from lightning_predict.base.errors import InvalidArgumentError, TraceFormatError, UnknownGpuError
from lightning_predict.base.note import Note
from lightning_predict.base.ties import NEGLIGIBLE
from lightning_predict.base.units import microseconds_to_seconds, seconds_to_milliseconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import MACHINE_GPUS
from lightning_predict.hardware.own_rates import ABOVE_PEAK
from lightning_predict.record.attribution import (
    CUDA_GRAPH,
    LOADER_MARK,
    UNATTRIBUTED,
    FoundOperation,
    is_backward_node,
    select_operations,
)
from lightning_predict.record.calls import arguments_of, outputs_of, tensors_of
from lightning_predict.record.collectives import left_out_collectives
from lightning_predict.record.events import Call, DeviceWork, Profile, read_profile
from lightning_predict.record.phases import PhaseRules
from lightning_predict.record.recorded_on import unknown_gpu_note, with_named_gpu
from lightning_predict.record.signatures import backward_inputs
from lightning_predict.record.trace import Flags, HostWait, Kernel, Operation, Phase, TensorInfo, Trace, WaitCause

_UPDATE: Final = "Optimizer.step#"
_COMPILED: Final = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")
_SYNCHRONIZE: Final = re.compile(r"cu(da)?(Device|Stream|Event|Ctx)Synchronize")
_SHORT_DTYPES: Final = frozenset({"float16", "bfloat16"})


def trace_of_kineto(document: object, source: str, *, step: int | None, gpu: str | None) -> Trace:
    """Read one step of a profile exported by `torch.profiler`.

    Values that the file lacks stay unknown: tensor ids, outputs, samples, and the TF32 and cuDNN flags (defaults, with
    a note). Time inside a DataLoader's `__next__` is loader time. Collectives are removed if the file does not state
    the number of GPUs. For a GPU outside the catalogue, a warning states that its measured kernels cannot be used.
    """
    profile = read_profile(document, source, step=step)
    _refuse_other_vendors(profile, source)
    trace = with_named_gpu(trace_of_profile(profile, recorder="kineto"), gpu)
    shapes = any(operation.inputs for operation in trace.operations)
    flags = _TF32_BY_KERNELS if trace.flags.matmul_tf32 else _UNKNOWN_FLAGS
    notes = [
        *_step_notes(profile, asked=step),
        *_named_without_kernels(profile, trace),
        *trace.notes,
        *([] if shapes else [_NO_SHAPES]),
        flags,
    ]
    trace = left_out_collectives(replace(trace, has_python_stacks=_has_python_stacks(document), notes=tuple(notes)))
    lost = unknown_gpu_note(trace)
    if lost is not None:
        warnings.warn(f"{source}: {lost}", stacklevel=3)
    return trace


def _named_without_kernels(profile: Profile, trace: Trace) -> Iterator[str]:
    """Yield a note on a file that names GPUs but has none of their kernels."""
    names = sorted({str(row["name"]) for row in _device_rows(profile) if row.get("name")})
    if names and not trace.kernels:
        yield (
            f"The file names {', '.join(names)}, but has no kernels: it was recorded without ProfilerActivity.CUDA, or "
            "by another tool of CUPTI."
        )


_UNKNOWN_FLAGS: Final = "The file does not contain the TF32 setting; the default is assumed."

_TF32_BY_KERNELS: Final = "The file does not contain the TF32 setting; its matmul kernels show that it was on."

_MATMULS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})

_TF32_KERNEL: Final = re.compile(r"tf32|tensorop_s1688gemm_\d")  # Kernels that round float32 to TF32 for tensor cores


_UNCERTAIN_TF32: Final = re.compile(r"nvjet_(sm\d+_)?sss_")
"""Names of kernels with float32 operands that do not distinguish TF32 from float32, as in Blackwell's cuBLAS."""


def _ran_tf32(operations: Sequence[Operation], peak: float | None) -> bool:
    """Return whether float32 matmuls used TF32, by their kernels and the float32 peak of the GPU (None if unknown)."""
    products = [
        operation
        for operation in operations
        if operation.name in _MATMULS and {tensor.dtype for tensor in operation.inputs} == {"float32"}
    ]
    if any(_TF32_KERNEL.search(kernel.name) for operation in products for kernel in operation.kernels):
        return True
    return peak is not None and any(_rate_of(operation) > ABOVE_PEAK * peak for operation in products)


def _rate_of(product: Operation) -> float:
    """Return the FLOP/s of a matmul whose kernel name does not show TF32; 0 for other operations."""
    seconds = math.fsum(kernel.seconds for kernel in product.kernels)
    left, right = product.inputs[-2:] if len(product.inputs) > 1 else (None, None)
    if left is None or right is None or not right.shape or seconds <= 0:
        return 0.0
    if not any(_UNCERTAIN_TF32.search(kernel.name) for kernel in product.kernels):
        return 0.0
    return 2.0 * left.elements * right.shape[-1] / seconds


_NO_SHAPES: Final = (
    "The file has no shapes (it was recorded without record_shapes=True): operations are known by their kernels only."
)

_AMD: Final = ("amd ", "radeon", "instinct")
_AMD_WAVEFRONT: Final = 64


def _refuse_other_vendors(profile: Profile, source: str) -> None:
    """Raise an error for a recording on an AMD GPU, whose kernels follow other rules."""
    rows = _device_rows(profile)
    names = [str(row.get("name", "")) for row in rows]
    is_amd = any(name.lower().startswith(_AMD) for name in names)
    is_amd = is_amd or any(row.get("warpSize") == _AMD_WAVEFRONT for row in rows)
    if is_amd or any(call.is_launch and call.name.startswith("hip") for call in profile.calls()):
        named = f"on {names[0]!r}" if names and names[0] else "on a GPU"
        raise TraceFormatError(
            f"{source} was recorded {named}, with AMD's runtime. Recordings of NVIDIA GPUs only are read, so far: "
            "record the step on one, or without a GPU on the meta device."
        )


def _step_notes(profile: Profile, *, asked: int | None) -> Iterator[str]:
    """Yield notes that state which part of a file was read."""
    marked = profile.marked_steps
    if profile.step is None:
        updates = len(_updates(profile))
        if updates != 1:
            known = f"{updates} updates of an optimizer" if updates else "no update of an optimizer"
            yield Note(
                f"The file marks no steps (ProfilerStep#): all of it counts as one step, with {known}.",
                is_decisive=True,
            )
    elif asked is None and len(marked) > 1:
        yield (
            f"Step {profile.step} was taken, the median one by length of the {len(marked)} that the file marks "
            f"({marked[0]} to {marked[-1]}); step= chooses another."
        )


def trace_of_profile(profile: Profile, *, recorder: str) -> Trace:
    """Return the Trace of one profiled step."""
    selected = select_operations(profile)
    updates = _updates(profile)
    phases = _phases(selected, updates)
    operations = tuple(_operation(item, phase, profile) for item, phase in zip(selected, phases, strict=True))
    loading = microseconds_to_seconds(_loader_microseconds(profile))
    world_size, num_nodes = _processes(profile)
    devices = Counter(work.details.get("device", 0) for item in selected for work, _ in item.work)
    gpu = _gpu_properties(profile, devices)
    return Trace(
        operations=operations,
        device=_device(operations, devices),
        recorder=recorder,
        gpu_reported_name=gpu.get("name"),
        gpu_memory_bytes=gpu.get("totalGlobalMem"),
        profiled_seconds=microseconds_to_seconds(profile.end - profile.start) - loading,
        loader_seconds=(loading,) if loading else (),
        waits=tuple(_waits(profile)),
        optimizer_steps=len(updates),
        flags=Flags(
            matmul_tf32=_ran_tf32(operations, _float32_peak(gpu)), autocast_dtype=_autocast_dtype(operations, profile)
        ),
        compiled=any(call.name.startswith(_COMPILED) for call in profile.calls()),
        world_size=world_size,
        num_nodes=num_nodes,
        software={
            key: str(profile.header[key])
            for key in ("cuda_runtime_version", "cuda_driver_version", "cupti_version")
            if key in profile.header
        },
        notes=(*_notes(operations), *_lost_kernels(profile), *_profile_notes(profile, loading)),
    )


def _float32_peak(row: dict[str, Any]) -> float | None:
    """Return the float32 FLOP/s of the GPU that a file names; None if the catalogue does not contain it."""
    try:
        return find_gpu(str(row["name"]), memory_bytes=row.get("totalGlobalMem")).peak_flops_per_second["float32"]
    except (KeyError, UnknownGpuError, InvalidArgumentError):
        return None


_KERNEL_LAUNCH: Final = re.compile(r"_*(cuda|cu)(LaunchKernel\w*|GraphLaunch)")


def _lost_kernels(profile: Profile) -> Iterator[str]:
    """Yield a note on launches whose kernels the profiler lost, as may happen at the start of a session."""
    launches = [call for call in profile.calls() if call.is_launch and _KERNEL_LAUNCH.fullmatch(call.name)]
    lost = sum(not call.device_work for call in launches)
    if NEGLIGIBLE * len(launches) < lost < len(launches):
        yield (
            f"The profiler recorded no kernel for {lost:,} of {len(launches):,} kernel launches. Operations without "
            "kernels are predicted from their shapes."
        )


@dataclass(frozen=True, slots=True)
class _Update:
    """An optimizer step, from the end of the last backward pass in its closure to the end of the optimizer step."""

    start: float
    end: float


def _updates(profile: Profile) -> list[_Update]:
    backward_ends: list[tuple[float, float]] = sorted(
        (call.start, call.end) for call in profile.calls() if is_backward_node(call)
    )
    updates = []
    for call in profile.calls():
        if not call.name.startswith(_UPDATE):
            continue
        inside = [end for start, end in backward_ends if call.start <= start < call.end]
        updates.append(_Update(max(inside, default=call.start), call.end))
    return sorted(updates, key=lambda update: update.start)


def _phases(operations: Sequence[FoundOperation], updates: Sequence[_Update]) -> list[Phase]:
    rules = PhaseRules()
    starts = [update.start for update in updates]
    phases: list[Phase] = []
    ended = 0
    for item in operations:
        if item.call is None:  # no host call is known
            phases.append("other")
            continue
        while ended < len(updates) and updates[ended].end <= item.start:
            rules.step_ended()
            ended += 1
        index = bisect_right(starts, item.start) - 1
        phase = rules.phase_of(
            item.name,
            in_optimizer=index >= 0 and item.start < updates[index].end,
            in_backward=item.in_backward,
            builds_graph=item.builds_graph,
            # In files, a sequence number means that gradients are enabled. Calls without tensors never have one.
            grad_enabled=item.grad_enabled or not tensors_of(item.call),
            in_module=item.module is not None and not item.in_backward,
            between_devices=_is_between_devices(item),
        )
        phases.append("other" if item.zeroes else phase)
    return phases


def _is_between_devices(item: FoundOperation) -> bool:
    return any("HtoD" in work.name or "DtoH" in work.name for work, _ in item.work)


def _copied(
    item: FoundOperation, inputs: tuple[TensorInfo, ...]
) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Return the inputs and outputs of a copy between host and device, with their devices, which files omit."""
    to_gpu = any("HtoD" in work.name for work, _ in item.work)
    if not inputs or any(tensor.device for tensor in inputs) or not (to_gpu or _is_between_devices(item)):
        return inputs, ()
    source, target = ("cpu", "cuda") if to_gpu else ("cuda", "cpu")
    if item.name == "aten::copy_" and len(inputs) > 1:
        return (replace(inputs[0], device=target), replace(inputs[1], device=source), *inputs[2:]), ()
    if item.name == "aten::_to_copy":
        return (replace(inputs[0], device=source), *inputs[1:]), (replace(inputs[0], device=target),)
    return inputs, ()


def _operation(item: FoundOperation, phase: Phase, profile: Profile) -> Operation:
    inputs = () if item.call is None else tensors_of(item.call)
    outputs = () if item.call is None or item.whole_forward is not None else outputs_of(item.call)
    if item.whole_forward is not None:
        inputs = backward_inputs(item.whole_forward.name, inputs)
    elif not outputs:
        inputs, outputs = _copied(item, inputs)
    arguments = {} if item.call is None else arguments_of(item.call)
    return Operation(
        name=item.name,
        phase=phase,
        inputs=inputs,
        outputs=outputs,
        arguments=arguments,
        module=item.module,
        kernels=tuple(_kernel(work, launch, profile) for work, launch in item.work),
        host_start_seconds=None if item.duration is None else microseconds_to_seconds(item.start - profile.start),
        host_seconds=None if item.duration is None else microseconds_to_seconds(item.duration),
    )


def _kernel(work: DeviceWork, launch: Call | None, profile: Profile) -> Kernel:
    return Kernel(
        name=work.name,
        seconds=microseconds_to_seconds(work.duration),
        grid=_three(work.details.get("grid")),
        block=_three(work.details.get("block")),
        registers_per_thread=_whole(work.details.get("registers per thread")),
        shared_memory_bytes=_whole(work.details.get("shared memory")),
        stream=_whole(work.details.get("stream")),
        start_seconds=microseconds_to_seconds(work.start - profile.start),
        launch_start_seconds=None if launch is None else microseconds_to_seconds(launch.start - profile.start),
        launch_seconds=None if launch is None else microseconds_to_seconds(launch.end - launch.start),
        device=_whole(work.details.get("device")),
    )


def _three(value: object) -> tuple[int, int, int]:
    """Parse sizes in x, y, z. Copies and fills have no sizes, so the result is 0 for them."""
    if not isinstance(value, list) or len(value) != 3:
        return 0, 0, 0
    x, y, z = map(_whole, value)
    return x, y, z


def _whole(value: object) -> int:
    """Parse an integer; 0 if missing."""
    return int(value) if isinstance(value, int | float) and 0 <= value <= MAX_INTEGER else 0


def _device(operations: Sequence[Operation], devices: Counter[object]) -> str:
    """Return the device type on which most of the step ran."""
    if devices:
        return "cuda"
    kinds = Counter(tensor.device for operation in operations for tensor in operation.inputs if tensor.device)
    return kinds.most_common(1)[0][0] if kinds else "cpu"


def _gpu_properties(profile: Profile, devices: Counter[object]) -> dict[str, Any]:
    """Return the file's row for the GPU with the most work; empty without CUDA."""
    if not devices:
        return {}
    number = devices.most_common(1)[0][0]
    rows = _device_rows(profile)
    for row in rows:
        if row.get("id") == number:
            return row
    # Some files number only the visible GPUs in one place, and all GPUs in the other.
    return rows[0] if len({row.get("name") for row in rows}) == 1 else {}


def _device_rows(profile: Profile) -> list[dict[str, Any]]:
    rows = profile.header.get("deviceProperties", profile.header.get("computeProperties"))
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _processes(profile: Profile) -> tuple[int, int]:
    """Return the numbers of processes and machines in the training; 1 and 1 if the file does not state them."""
    distributed = profile.header.get("distributedInfo")
    size = distributed.get("world_size") if isinstance(distributed, dict) else None
    if not isinstance(size, int) or size < 2:
        return 1, 1
    per_node = max(len(_device_rows(profile)), 1)
    if per_node == 1:  # each process may see its own GPU alone
        per_node = min(size, MACHINE_GPUS)
    return size, size // per_node if size % per_node == 0 else 1


def _loader_microseconds(profile: Profile) -> float:
    """Return the time inside `__next__` calls of a DataLoader. Nested loaders are counted once."""
    total, ended = 0.0, profile.start
    for call in sorted(profile.calls(), key=lambda call: call.start):
        if call.name.startswith(LOADER_MARK) and call.start >= ended:
            total, ended = total + call.end - call.start, call.end
    return total


def _profile_notes(profile: Profile, loading: float) -> Iterator[str]:
    """Yield notes on content within the step's time that does not belong to the step."""
    if profile.earlier_work:
        seconds = microseconds_to_seconds(math.fsum(work.duration for work in profile.earlier_work))
        yield (
            f"Left out: {len(profile.earlier_work):,} kernels ({seconds_to_milliseconds(seconds):.2f} ms) that ran "
            "before the step's own and belong to the step before."
        )
    waited = microseconds_to_seconds(profile.waited)
    if profile.waited > NEGLIGIBLE * (profile.end - profile.start):
        yield (
            f"The host first waited {seconds_to_milliseconds(waited):.2f} ms for the step before: the step begins "
            "there and ends with its last kernel."
        )
    if loading:
        milliseconds = seconds_to_milliseconds(loading)
        yield f"The DataLoader took {milliseconds:.2f} ms of the step: it counts as the loader's time, not the host's."


def _waits(profile: Profile) -> Iterator[HostWait]:
    """Yield waits of the host in order, for the device and the data loader, on threads that launch work."""
    working = {call.thread for call in profile.calls() if call.device_work}
    for call in sorted(profile.calls(), key=lambda call: call.start):
        is_loader = call.name.startswith(LOADER_MARK)
        synchronizes = call.is_launch and _SYNCHRONIZE.match(call.name) is not None
        if is_loader or (synchronizes and (call.thread in working or not working)):
            start, seconds = call.start - profile.start, call.end - call.start
            cause: WaitCause = "loader" if is_loader else "device"
            yield HostWait(microseconds_to_seconds(start), microseconds_to_seconds(seconds), cause)


def _has_python_stacks(document: Any) -> bool:
    """Return whether the profiler recorded Python stacks. Newer files have a field; older files contain such events."""
    if isinstance(document, dict) and document.get("with_stack"):
        return True
    rows = document if isinstance(document, list) else document["traceEvents"]
    return any(isinstance(row, dict) and row.get("cat") in ("python_function", "Python") for row in rows)


def _autocast_dtype(operations: Sequence[Operation], profile: Profile) -> str | None:
    """Return the 16-bit dtype to which tensors with gradients were cast; None if no tensor was cast."""
    if not any(call.name == "ToCopyBackward0" for call in profile.calls()):
        return None
    casts = Counter(
        operation.arguments.get("dtype")
        for operation in operations
        if operation.name == "aten::_to_copy" and operation.phase == "forward"
    )
    return next((dtype for dtype, _ in casts.most_common() if dtype in _SHORT_DTYPES), None)


def _notes(operations: Sequence[Operation]) -> Iterator[str]:
    total = sum(kernel.seconds for operation in operations for kernel in operation.kernels)
    if total <= 0:
        return
    stray = [kernel for operation in operations if operation.name == UNATTRIBUTED for kernel in operation.kernels]
    if stray:
        share = sum(kernel.seconds for kernel in stray) / total
        yield (
            f"Kernels launched outside every known operation: {len(stray)}, {share:.1%} of the device time "
            f"({_most_time(stray)})."
        )
    graphs = [operation for operation in operations if operation.name == CUDA_GRAPH]
    if graphs:
        inside = [kernel for graph in graphs for kernel in graph.kernels]
        share = sum(kernel.seconds for kernel in inside) / total
        yield (
            f"CUDA graphs: {len(graphs)} with {len(inside)} kernels, {share:.1%} of the device time. Each costs the "
            "host one launch. The trace has no shapes of their kernels. By name, products are scaled by the rates of "
            "both GPUs, all others by bandwidth."
        )


def _most_time(kernels: Sequence[Kernel]) -> str:
    """Return short names of the kernels with the most time."""
    seconds: dict[str, float] = {}
    for kernel in kernels:
        name = _TAIL.sub("", kernel.name.removeprefix("void ")).rpartition("::")[2]
        seconds[name] = seconds.get(name, 0.0) + kernel.seconds
    names = sorted(seconds, key=lambda name: -seconds[name])
    return ", ".join(names[:NAMES_SHOWN]) + (
        f" and {len(names) - NAMES_SHOWN} others" if len(names) > NAMES_SHOWN else ""
    )


_TAIL: Final = re.compile(r"[<(].*", re.DOTALL)  # Template arguments and parameters of a kernel's name
