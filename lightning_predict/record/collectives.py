"""Removes collectives (NCCL and others) from a recorded step, which leaves the step of a single GPU.

Example::

    >>> from lightning_predict.record.trace import Operation, Trace
    >>> reduce = Operation(name="c10d::allreduce_", phase="backward")
    >>> two = Trace(operations=(reduce,), device="cpu", recorder="dispatch", world_size=2)
    >>> without_collectives(two).operations
    ()
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from typing import Final

from lightning_predict.record.trace import Operation, Trace

_OPERATIONS: Final = tuple(
    "c10d:: c10d_functional:: _c10d_functional:: _C_custom_ar:: _dtensor:: deep_ep:: gloo: mscclpp:: nccl: nvshmem "
    "record_param_comms sgl_kernel::all_reduce symm_mem::all_to_all symm_mem::multimem_ symm_mem::one_shot_ "
    "symm_mem::reduce_scatter symm_mem::two_shot_ trtllm::allreduce trtllm::moe_allreduce vllm::all_gather "
    "vllm::all_reduce vllm::all_to_all vllm::reduce_scatter".split()
)

_LIBRARIES: Final = re.compile(
    r"nccl|rccl|msccl|nvshmem|deep_?ep::|\b(intranode|internode)(_ll)?::|userbuffers", re.IGNORECASE
)
"""Communication libraries, as they occur in kernel names or namespaces.

NCCL and AMD's RCCL, MSCCL and MSCCL++, NVSHMEM, DeepEP (with its early top-level namespaces), and Transformer
Engine's userbuffers."""

_EXCHANGES: Final = re.compile(
    r"all_?(reduce|gather|to_?all)|reduce_?scatter|cross_device_reduce|lamport"
    r"|moe_?a2a|^(cached_)?(notify_)?(dispatch|combine)(_kernel)?$",
    re.IGNORECASE,
)
"""Names of communication kernels outside these libraries.

All-reduces of vLLM, SGLang and AITER (`cross_device_reduce_1stage`), of TensorRT-LLM (`oneShotAllReduceKernel`,
`allreduce_fusion_kernel_oneshot_lamport`) and of PyTorch's symmetric memory (`multimem_all_reduce_kernel`); dispatch
and combine of mixture-of-experts layers."""


def without_collectives(trace: Trace) -> Trace:
    """Remove collectives, and measured step times that include collectives. A single-process trace is unchanged."""
    return trace if trace.world_size == 1 else _alone(trace)


def left_out_collectives(trace: Trace) -> Trace:
    """Remove collectives from a recording that does not state the number of processes, and add a note.

    Without the number of processes, the time of a collective cannot be scaled, because it depends on the other GPUs and
    their links. A collective of a single process has no kernels, and is kept.
    """
    alone = _alone(trace)
    lost = len(trace.kernels) - len(alone.kernels)
    if trace.world_size > 1 or not lost:
        return trace
    total = math.fsum(kernel.seconds for kernel in trace.kernels)
    share = 1 - math.fsum(kernel.seconds for kernel in alone.kernels) / total if total > 0 else 0.0
    note = (
        f"The step exchanged data with other GPUs: {lost:,} kernels, {share:.1%} of the device time. The file does not "
        "contain their number, so communication and the measured step time are ignored. Predictions are for one GPU."
    )
    return replace(alone, notes=(*trace.notes, note))


_COMPILED: Final = "triton_"


@cache
def exchanges(kernel: str) -> bool:
    """Return whether a kernel communicates with other GPUs, by its name."""
    qualified = _TAIL.sub("", kernel.removeprefix("void ").replace("(anonymous namespace)::", ""))
    if qualified.startswith(_COMPILED):  # the name lists its fused operations; one may wait for a collective
        return False
    if _LIBRARIES.search(qualified) is not None:
        return True
    return _EXCHANGES.search(qualified.rpartition("::")[2]) is not None


_TAIL: Final = re.compile(r"[<(].*", re.DOTALL)  # Template arguments and parameters, which may name other functions


def _alone(trace: Trace) -> Trace:
    operations = (_computing(operation) for operation in trace.operations if not operation.name.startswith(_OPERATIONS))
    return replace(trace.untimed(), operations=tuple(operations))


def _computing(operation: Operation) -> Operation:
    kernels = tuple(kernel for kernel in operation.kernels if not exchanges(kernel.name))
    return operation if len(kernels) == len(operation.kernels) else replace(operation, kernels=kernels)
