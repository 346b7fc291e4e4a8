"""Find the GPU that a trace was recorded on, and say what is lost where the catalogue does not know it.

Measured kernels are scaled from one GPU to another, so without the first they are of no use: then operations are
predicted from their shapes, and the user is told; a trace without shapes cannot be predicted at all. Example::

    >>> from lightning_predict.tracing.trace import Trace
    >>> trace = Trace(operations=(), device="cuda", recorder="kineto", gpu_reported_name="Tesla V100-SXM2-16GB")
    >>> gpu_in_use(trace).name
    'V100-SXM2-16GB'
"""

from __future__ import annotations

from dataclasses import replace

from lightning_predict.errors import TraceError, UnknownGpuError
from lightning_predict.gpus import Gpu
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.lookup import is_of_another_maker
from lightning_predict.tracing.trace import Trace


def gpu_in_use(trace: Trace) -> Gpu | None:
    """Find the catalogue's row of the GPU that was recorded on; None off CUDA and for GPUs that it does not hold."""
    if trace.gpu_reported_name is None:
        return None
    try:
        return find_gpu(trace.gpu_reported_name, memory_bytes=trace.gpu_memory_bytes)
    except UnknownGpuError:
        return None


def with_named_gpu(trace: Trace, name: str | None) -> Trace:
    """Say which GPU a recording is from, where its file does not, or in a way that the catalogue does not know.

    Raises:
        UnknownGpuError: A name that the catalogue does not hold.
    """
    if name is None:
        return trace
    named, reported = find_gpu(name, memory_bytes=trace.gpu_memory_bytes), gpu_in_use(trace)
    if reported == named:
        return trace
    notes = trace.notes
    if trace.gpu_reported_name is not None:
        notes = (
            *notes,
            f"The file says {trace.gpu_reported_name!r}; {named.name} was given and counts.",
        )
    return replace(trace, gpu_reported_name=named.name, gpu_memory_bytes=None, notes=notes)


def unknown_gpu_note(trace: Trace) -> str | None:
    """Describe what is lost because the GPU of a recording is unknown, and the remedy; None if nothing is lost."""
    if trace.device != "cuda" or not (trace.kernels or trace.measured_steps) or gpu_in_use(trace) is not None:
        return None
    what = _named(trace)
    if trace.gpu_reported_name is not None and is_of_another_maker(trace.gpu_reported_name):
        return (
            f"Recorded on {trace.gpu_reported_name}, which is not NVIDIA's. Its {len(trace.kernels):,} measured "
            "kernels follow other rules and are left out: every time is predicted from shapes, and of how fast this "
            "GPU is beside the others nothing is known but its measured step."
        )
    if not trace.kernels:
        return f"{what} Its measured step cannot be compared with a prediction."
    return (
        f"{what} Its {len(trace.kernels):,} measured kernels are left out and every time is predicted from shapes. "
        f"{_remedy(trace)}"
    )


def check_predictable(trace: Trace) -> None:
    """Refuse a trace that nothing can be predicted from.

    Raises:
        UnknownGpuError: Measured kernels of an unknown GPU, and no shapes.
        TraceError: No operations, or neither shapes nor kernels.
    """
    if not trace.operations:
        raise TraceError(
            "The trace holds no operations, so that nothing can be predicted. Record a step that runs the model; of a "
            "profile with several steps, choose one that did: `trace import --step`."
        )
    if any(operation.inputs for operation in trace.operations):
        return
    if not trace.has_measured_kernels:
        raise TraceError(
            f"The trace holds {len(trace.operations):,} operations with neither shapes nor measured kernels, so that "
            "nothing can be predicted. Record it with record_shapes=True, or with ProfilerActivity.CUDA on a GPU."
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
