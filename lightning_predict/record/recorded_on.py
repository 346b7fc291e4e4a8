"""Where a trace was recorded (GPU, code path), and what follows from this for predictions.

**GPU.** Measured kernels are scaled from one GPU to another. If the recording GPU is unknown, measured kernels cannot
be used, and operations are predicted from their shapes, with a note. A trace without a known GPU and without shapes
cannot be predicted.

**Code path.** A step may be compiled or eager, and use different memory formats and algorithms. Predictions assume the
code path of the trace. `code_path_notes` reports differences. Example::

    >>> from lightning_predict.record.trace import Operation, TensorInfo, Trace
    >>> trace = Trace(operations=(), device="cuda", recorder="kineto", gpu_reported_name="Tesla V100-SXM2-16GB")
    >>> gpu_in_use(trace).name
    'V100-SXM2-16GB'
    >>> images = TensorInfo((8, 64, 56, 56), "float16")
    >>> trace = Trace(operations=(Operation(name="aten::convolution", phase="forward", inputs=(images, images)),),
    ...               device="meta", recorder="dispatch")
    >>> code_path_notes(trace)[0][:52]
    'Convolutions in 16 bits read images channels first: '
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from lightning_predict.base.errors import TraceError, UnknownGpuError
from lightning_predict.base.note import Note
from lightning_predict.hardware import Gpu
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.lookup import other_vendor
from lightning_predict.hardware.records import NVIDIA
from lightning_predict.record.operand_strides import CHANNELS_LAST, IMAGES_AT
from lightning_predict.record.torch_releases import release_of
from lightning_predict.record.trace import Operation, Trace

# --- The GPU


def gpu_in_use(trace: Trace) -> Gpu | None:
    """Return the catalogue row of the recording GPU; None without CUDA, or if the catalogue lacks the GPU.

    None for GPUs of other vendors, too: their kernels and times cannot correct predictions for NVIDIA GPUs.
    """
    if trace.gpu_reported_name is None:
        return None
    try:
        gpu = find_gpu(trace.gpu_reported_name, memory_bytes=trace.gpu_memory_bytes)
    except UnknownGpuError:
        return None
    return gpu if gpu.vendor == NVIDIA else None


def with_named_gpu(trace: Trace, name: str | None) -> Trace:
    """Set the recording GPU of a trace whose file does not name the GPU, or uses a name outside the catalogue."""
    if name is None:
        return trace
    named, reported = find_gpu(name, memory_bytes=trace.gpu_memory_bytes), gpu_in_use(trace)
    if reported == named:
        return trace
    notes = trace.notes
    if trace.gpu_reported_name is not None:
        notes = (*notes, f"The file says {trace.gpu_reported_name!r}; {named.name} was given and counts.")
    return replace(trace, gpu_reported_name=named.name, gpu_memory_bytes=None, notes=notes)


def has_measured_host(trace: Trace) -> bool:
    """Return whether the CPU time of the step was measured without a profiler, on a known GPU."""
    return trace.device == "cuda" and bool(trace.host_seconds_unprofiled) and gpu_in_use(trace) is not None


def unknown_gpu_note(trace: Trace) -> str | None:
    """Describe what cannot be used because the recording GPU is unknown, and the remedy; None if nothing is lost."""
    if trace.device != "cuda" or not (trace.kernels or trace.measured_steps) or gpu_in_use(trace) is not None:
        return None
    what = _named(trace)
    if trace.gpu_reported_name is not None and other_vendor(trace.gpu_reported_name) is not None:
        return (
            f"Recorded on {trace.gpu_reported_name}, which is not NVIDIA's. Its {len(trace.kernels):,} measured "
            "kernels are ignored: all times are predicted from shapes. Only its measured step is known of this GPU."
        )
    if not trace.kernels:
        return f"{what} Its measured step cannot be compared with a prediction."
    return (
        f"{what} Its {len(trace.kernels):,} measured kernels are left out and every time is predicted from shapes. "
        f"{_remedy(trace)}"
    )


def check_predictable(trace: Trace) -> None:
    """Check that a trace can be predicted."""
    if not trace.operations:
        raise TraceError(
            "The trace holds no operations, so that nothing can be predicted. Record a step that runs the model; of a "
            "profile with several steps, choose one that did: `trace import --step`."
        )
    if any(operation.inputs for operation in trace.operations):
        return
    if not trace.has_measured_kernels:
        raise TraceError(
            f"The trace holds {len(trace.operations):,} operations without shapes or measured kernels, so nothing "
            "can be predicted. Record it with record_shapes=True, or with ProfilerActivity.CUDA on a GPU."
        )
    if gpu_in_use(trace) is None:
        raise UnknownGpuError(
            f"{_named(trace)} The trace has no shapes either, so that its {len(trace.kernels):,} measured kernels are "
            f"all there is, and they can only be scaled from a known GPU. {_remedy(trace)} Or record it again with "
            "record_shapes=True."
        )


def _remedy(trace: Trace) -> str:
    """Describe how to name the GPU."""
    if trace.recorder == "kineto":
        how = "`trace import --gpu V100-SXM2-16GB`, or gpu= of import_trace"
    else:
        how = "`dataclasses.replace(trace, gpu_reported_name='V100-SXM2-16GB')`"
    return f"Say which GPU of the catalogue it is: {how}."


def _named(trace: Trace) -> str:
    if trace.gpu_reported_name is None:
        return "The trace does not name the GPU that it was recorded on."
    try:
        find_gpu(trace.gpu_reported_name, memory_bytes=trace.gpu_memory_bytes)
    except UnknownGpuError as error:
        return f"Recorded on an unknown GPU: {error}"
    return f"Recorded on {trace.gpu_reported_name}."


# --- The code path

OLDEST_TORCH: Final = (2, 1)  # Oldest torch release in the training data for matmuls and layers; the newest is 2.9


def code_path_notes(trace: Trace) -> tuple[str, ...]:
    """Return notes on the code path; none for an eager step without convolutions on a current torch."""
    return (*_of_software(trace), *_of_convolutions(trace), *_of_batch_norms(trace), *_of_compilation(trace))


def _of_software(trace: Trace) -> Iterator[str]:
    release = release_of(trace.software)
    if release is not None and release < OLDEST_TORCH:
        yield (
            f"Predicted for torch {trace.software['torch']}: measurements are of torch 2.1 to 2.9, and for each year "
            "before, 5 % are added to products and norms. A current release would be as much faster."
        )


def _of_convolutions(trace: Trace) -> Iterator[str]:
    convolutions = [operation for operation in trace.operations if operation.name in IMAGES_AT]
    if trace.has_measured_kernels or not convolutions:
        return  # measured kernels include conversions and the choice of algorithms
    if any(_converts(operation) for operation in convolutions):
        yield (
            "Convolutions in 16 bits read images channels first: cuDNN converts most of them for the tensor cores, "
            "which is predicted. memory_format=torch.channels_last avoids it."
        )
    if trace.recorder == "dispatch":
        setting = "on" if trace.flags.cudnn_benchmark else "off"
        yield Note(
            f"cudnn.benchmark is {setting}; predictions of convolutions do not tell on from off.", is_detail=True
        )


def _of_batch_norms(trace: Trace) -> Iterator[str]:
    # aten/src/ATen/native/Normalization.cpp, _select_batch_norm_backend: cuDNN takes float16 only with float32 weights.
    norms = [operation for operation in trace.operations if "batch_norm" in operation.name]
    if not trace.has_measured_kernels and any(
        len(it.shape) == 1 and it.dtype == "float16" for norm in norms for it in norm.inputs
    ):
        yield (
            "Batch norms with float16 weights run in torch's own kernels. With float32 weights (16-mixed), cuDNN runs: "
            "up to 1.5 times as fast on GPUs with GDDR memory."
        )


def _converts(operation: Operation) -> bool:
    images = operation.inputs[IMAGES_AT[operation.name]]
    is_last = bool(operation.arguments.get(CHANNELS_LAST))
    is_image = len(images.shape) >= 4 and images.shape[1] > 1 and math.prod(images.shape[2:]) > 1
    return images.dtype in ("float16", "bfloat16") and not is_last and is_image


def _of_compilation(trace: Trace) -> Iterator[str]:
    if not trace.compiled:
        return
    if trace.compile_seconds:
        yield f"torch.compile took {trace.compile_seconds:.0f} s, once; predicted times leave it out."
    if not trace.has_measured_kernels:
        yield (
            "The compiled step was recorded without its kernels: matmuls and convolutions are predicted by shape, "
            "fused kernels are missing and count as zero. Record on CUDA, or without torch.compile."
        )
