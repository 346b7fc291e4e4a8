"""Kineto JSON files (what `torch.profiler` exports) as Traces. Pure Python: no torch is needed to read one.

The operations are those that a recorder below autograd would see: the outermost call that is no composite, and, whole,
recurrent layers, attention and RMS normalisation with their backward passes (found by autograd's sequence numbers).
What a call launched, directly or through the calls inside it, are its kernels. Example::

    trace = import_kineto("rank0.pt.trace.json.gz", step=5)
    trace.gpu_reported_name          # 'NVIDIA A100-SXM4-40GB'
    trace.operations[7].kernels      # (Kernel(name='ampere_sgemm_128x64_tn', seconds=1.2e-05, ...),)
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from lightning_predict.tracing.calls import arguments_of, outputs_of, tensors_of
from lightning_predict.tracing.events import Call, DeviceWork, Profile, read_profile
from lightning_predict.tracing.files import read_json
from lightning_predict.tracing.levels import CUDA_GRAPH, UNATTRIBUTED, Found, is_backward_node, select_operations
from lightning_predict.tracing.phases import PhaseRules
from lightning_predict.tracing.records import Flags, HostWait, Kernel, Operation, Phase, Trace, WaitCause
from lightning_predict.tracing.whole import backward_inputs
from lightning_predict.units import microseconds_to_seconds

_UPDATE: Final = "Optimizer.step#"
_COMPILED: Final = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")
_SYNCHRONIZE: Final = re.compile(r"cu(da)?(Device|Stream|Event|Ctx)Synchronize")
_LOADER: Final = "enumerate(DataLoader)#"
_SHORT_DTYPES: Final = frozenset({"float16", "bfloat16"})


def import_kineto(path: str | os.PathLike[str], *, step: int | None = None) -> Trace:
    """Read one step of a profile that `torch.profiler` exported.

    What the file does not say stays unknown: tensor ids, outputs, samples, and the TF32 and cuDNN switches (left at
    their defaults, with a note).

    Args:
        path: A JSON file, gzip or plain.
        step: Number of the `ProfilerStep#` to take; None takes the last, or the whole file where none is marked.

    Raises:
        TraceFormatError: Not such a file, or it has no such step.
        OSError: The file cannot be read.
    """
    source = os.fspath(path)
    document = read_json(source, strict=False)
    trace = trace_of_profile(read_profile(document, source, step=step), recorder="kineto")
    return replace(trace, has_python_stacks=_has_python_stacks(document), notes=(*trace.notes, _UNKNOWN_FLAGS))


_UNKNOWN_FLAGS: Final = "The file does not say whether TF32 was on; defaults are assumed."


def trace_of_profile(profile: Profile, *, recorder: str) -> Trace:
    """The Trace of one profiled step."""
    found = select_operations(profile)
    updates = _updates(profile)
    operations = tuple(
        _operation(item, phase, profile) for item, phase in zip(found, _phases(found, updates), strict=True)
    )
    devices = Counter(work.details.get("device", 0) for item in found for work, _ in item.work)
    gpu = _gpu_properties(profile, devices)
    return Trace(
        operations=operations,
        device=_device(operations, devices),
        recorder=recorder,
        gpu_reported_name=gpu.get("name"),
        gpu_memory_bytes=gpu.get("totalGlobalMem"),
        profiled_seconds=microseconds_to_seconds(profile.end - profile.start),
        waits=tuple(_waits(profile)),
        optimizer_steps=len(updates),
        flags=Flags(autocast_dtype=_autocast_dtype(operations, profile)),
        compiled=any(call.name.startswith(_COMPILED) for call in profile.calls()),
        software=_software(profile),
        notes=tuple(_notes(operations)),
    )


@final
@dataclass(frozen=True, slots=True)
class _Update:
    """An optimizer's step: from the end of the last backward pass inside it (the closure's) to its own end."""

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


def _phases(found: Sequence[Found], updates: Sequence[_Update]) -> list[Phase]:
    rules = PhaseRules()
    starts = [update.start for update in updates]
    phases: list[Phase] = []
    ended = 0
    for item in found:
        if item.call is None:  # nothing is known of the host
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
            # Files tell gradients on by the sequence number, which calls without a tensor never have.
            grad_enabled=item.grad_enabled or not tensors_of(item.call),
            in_module=item.module is not None and not item.in_backward,
            between_devices=_is_between_devices(item),
        )
        phases.append("other" if item.zeroes else phase)
    return phases


def _is_between_devices(item: Found) -> bool:
    return any("HtoD" in work.name or "DtoH" in work.name for work, _ in item.work)


def _operation(item: Found, phase: Phase, profile: Profile) -> Operation:
    inputs = () if item.call is None else tensors_of(item.call)
    return Operation(
        name=item.name,
        phase=phase,
        inputs=inputs if item.whole_forward is None else backward_inputs(item.whole_forward.name, inputs),
        outputs=() if item.call is None or item.whole_forward is not None else outputs_of(item.call),
        arguments={} if item.call is None else arguments_of(item.call),
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
    )


def _three(value: Any) -> tuple[int, int, int]:
    """Sizes in x, y, z; zeros for copies and fills, which have none."""
    if not isinstance(value, list) or len(value) != 3:
        return 0, 0, 0
    x, y, z = map(_whole, value)
    return x, y, z


def _whole(value: Any) -> int:
    """A whole number; 0 where the file has none."""
    return int(value) if isinstance(value, int | float) else 0


def _device(operations: Sequence[Operation], devices: Counter[Any]) -> str:
    """Kind of device that most of the step ran on."""
    if devices:
        return "cuda"
    kinds = Counter(tensor.device for operation in operations for tensor in operation.inputs if tensor.device)
    return kinds.most_common(1)[0][0] if kinds else "cpu"


def _gpu_properties(profile: Profile, devices: Counter[Any]) -> dict[str, Any]:
    """The file's row for the GPU that ran most; empty off CUDA."""
    if not devices:
        return {}
    number = devices.most_common(1)[0][0]
    rows = profile.header.get("deviceProperties", profile.header.get("computeProperties"))
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("id") == number:
            return row
    return {}


def _waits(profile: Profile) -> Iterator[HostWait]:
    """Calls that synchronize with the device, and the loader's for the next batch, in their order."""
    for call in sorted(profile.calls(), key=lambda call: call.start):
        is_loader = call.name.startswith(_LOADER)
        if is_loader or (call.is_launch and _SYNCHRONIZE.match(call.name) is not None):
            start, seconds = call.start - profile.start, call.end - call.start
            cause: WaitCause = "loader" if is_loader else "device"
            yield HostWait(microseconds_to_seconds(start), microseconds_to_seconds(seconds), cause)


def _has_python_stacks(document: Any) -> bool:
    """True where the profiler followed every call of Python, which it says in newer files and shows in older ones."""
    if isinstance(document, dict) and document.get("with_stack"):
        return True
    rows = document if isinstance(document, list) else document["traceEvents"]
    return any(isinstance(row, dict) and row.get("cat") in ("python_function", "Python") for row in rows)


def _autocast_dtype(operations: Sequence[Operation], profile: Profile) -> str | None:
    """The 16-bit type that tensors with a history were cast to; None where none was."""
    if not any(call.name == "ToCopyBackward0" for call in profile.calls()):
        return None
    casts = Counter(
        operation.arguments.get("dtype")
        for operation in operations
        if operation.name == "aten::_to_copy" and operation.phase == "forward"
    )
    return next((dtype for dtype, _ in casts.most_common() if dtype in _SHORT_DTYPES), None)


def _software(profile: Profile) -> dict[str, str]:
    keys = ("cuda_runtime_version", "cuda_driver_version", "cupti_version")
    return {key: str(profile.header[key]) for key in keys if key in profile.header}


def _notes(operations: Sequence[Operation]) -> Iterator[str]:
    total = sum(kernel.seconds for operation in operations for kernel in operation.kernels)
    if total <= 0:
        return
    stray = [kernel for operation in operations if operation.name == UNATTRIBUTED for kernel in operation.kernels]
    if stray:
        share = sum(kernel.seconds for kernel in stray) / total
        yield f"Kernels launched outside every known operation: {len(stray)}, {share:.1%} of the device time."
    graphs = [operation for operation in operations if operation.name == CUDA_GRAPH]
    if graphs:
        inside = [kernel for graph in graphs for kernel in graph.kernels]
        share = sum(kernel.seconds for kernel in inside) / total
        yield (
            f"CUDA graphs: {len(graphs)} with {len(inside)} kernels, {share:.1%} of the device time. Each costs the "
            "host one launch; what the kernels compute is not in the trace, so they are scaled as bound by memory."
        )
