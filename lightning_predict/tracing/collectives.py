"""A recorded step without what it exchanged with other processes, so that it is the step of a single GPU.

Example::

    >>> from lightning_predict.tracing.trace import Operation, Trace
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

from lightning_predict.tracing.trace import Operation, Trace

_OPERATIONS: Final = (
    "c10d::",
    "c10d_functional::",
    "_c10d_functional::",
    "_C_custom_ar::",
    "_dtensor::",
    "deep_ep::",
    "gloo:",
    "mscclpp::",
    "nccl:",
    "nvshmem",
    "record_param_comms",
    "sgl_kernel::all_reduce",
    "symm_mem::all_to_all",
    "symm_mem::multimem_",
    "symm_mem::one_shot_",
    "symm_mem::reduce_scatter",
    "symm_mem::two_shot_",
    "trtllm::allreduce",
    "trtllm::moe_allreduce",
    "vllm::all_gather",
    "vllm::all_reduce",
    "vllm::all_to_all",
    "vllm::reduce_scatter",
)

_LIBRARIES: Final = re.compile(
    r"nccl|rccl|msccl|nvshmem|deep_?ep::|\b(intranode|internode)(_ll)?::|userbuffers", re.IGNORECASE
)
"""Libraries by which GPUs exchange data, as the names of their kernels begin or their namespaces say: NCCL and AMD's
build of it, MSCCL and MSCCL++, NVSHMEM, DeepEP (its namespaces too, which it wrote alone at first), and Transformer
Engine's buffers."""

_EXCHANGES: Final = re.compile(
    r"all_?(reduce|gather|to_?all)|reduce_?scatter|cross_device_reduce|lamport"
    r"|moe_?a2a|^(cached_)?(notify_)?(dispatch|combine)(_kernel)?$",
    re.IGNORECASE,
)
"""What a kernel is called that exchanges data by itself: the all-reduces of vLLM, SGLang and AITER
(`cross_device_reduce_1stage`), of TensorRT-LLM (`oneShotAllReduceKernel`, `allreduce_fusion_kernel_oneshot_lamport`)
and of PyTorch's symmetric memory (`multimem_all_reduce_kernel`), and the steps of a mixture of experts."""


def without_collectives(trace: Trace) -> Trace:
    """Take collectives out, and the measured steps, which held them; a single process keeps its trace as it is."""
    return trace if trace.world_size == 1 else _alone(trace)


def left_out_collectives(trace: Trace) -> Trace:
    """Leave collectives out of a recording that does not say how many processes took part, and note it.

    Nothing can be scaled without that number: what they take depends on the other GPUs and the links between them.
    Collectives without kernels (a single process has nobody to exchange with) stay.
    """
    alone = _alone(trace)
    lost = len(trace.kernels) - len(alone.kernels)
    if trace.world_size > 1 or not lost:
        return trace
    total = math.fsum(kernel.seconds for kernel in trace.kernels)
    share = 1 - math.fsum(kernel.seconds for kernel in alone.kernels) / total if total > 0 else 0.0
    note = (
        f"The step exchanged data with other GPUs: {lost:,} kernels, {share:.1%} of the device time. The file does not "
        "say with how many, so that is left out, and the step's own time with it: predictions are for a single GPU."
    )
    return replace(alone, notes=(*trace.notes, note))


_COMPILED: Final = "triton_"


@cache
def exchanges(kernel: str) -> bool:
    """Return whether a kernel exchanges data with other GPUs, by its name."""
    qualified = _TAIL.sub("", kernel.removeprefix("void ").replace("(anonymous namespace)::", ""))
    if qualified.startswith(_COMPILED):  # its name lists what was fused, a wait for a collective among it
        return False
    if _LIBRARIES.search(qualified) is not None:
        return True
    return _EXCHANGES.search(qualified.rpartition("::")[2]) is not None


_TAIL: Final = re.compile(r"[<(].*", re.DOTALL)
"""Template arguments and parameters, in which the names of other functions may stand."""


def _alone(trace: Trace) -> Trace:
    operations = (_computing(operation) for operation in trace.operations if not operation.name.startswith(_OPERATIONS))
    return replace(trace.untimed(), operations=tuple(operations))


def _computing(operation: Operation) -> Operation:
    kernels = tuple(kernel for kernel in operation.kernels if not exchanges(kernel.name))
    return operation if len(kernels) == len(operation.kernels) else replace(operation, kernels=kernels)
