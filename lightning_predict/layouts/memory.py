"""Estimates the memory of each GPU of a layout for recordings without tensors, by dividing all memory evenly.

`memory/rank_memory.py` simulates recordings with tensors. Example::

    even_bytes(40e9, trace, layout_of("8xH100-SXM-80GB"), Strategy(data="fsdp"))
"""

from __future__ import annotations

import math
from typing import Final

from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.gradients import is_of_expert, parameter_bytes, unit_bytes, unit_elements
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.trace import DTYPE_BYTES, Trace

GATHERED_UNITS: Final = 3
"""Number of FSDP units whose parameters are gathered at the same time."""


def even_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Estimate the peak memory of each GPU of a layout.

    - DDP adds buckets of the size of all gradients. If gradients are reduced in another dtype, a buffer of that dtype
      replaces them.
    - ZeRO 1 shards the optimizer state, ZeRO 2 also the gradients, and FSDP also the parameters (Rajbhandari et al., SC
      2020). FSDP gathers three units at a time, in `param_dtype`.
    - Model parallelism, context parallelism and micro-batches divide the remaining memory evenly.

    Args:
        single_bytes: Memory of the step on a single GPU.
        trace: The recorded step.
        layout: The GPUs.
        strategy: Parallel strategy.
    """
    if layout.count == 1:
        return single_bytes
    strategy.replicas(layout)
    memory, split, count = trace.memory, strategy.split, strategy.sharded_count(layout)
    parts, trained = strategy.model_parallel, [one for one in trace.parameters if one.requires_grad]
    trainable = sum(map(parameter_bytes, trained)) / parts
    experts = sum(map(parameter_bytes, filter(is_of_expert, trained))) / parts / trainable if trainable else 0.0
    known = (memory.parameter_bytes or 0, memory.gradient_bytes, memory.optimizer_state_bytes or 0)
    sizes = [(known[0] if size is None else size) / parts for size in known]
    passing = max(single_bytes / parts - sum(sizes), 0.0)
    own = 1 - experts + experts / strategy.expert  # with expert parallelism, a GPU holds a part of the experts
    parameters, gradients, state = (own * size for size in sizes)
    trainable, experts = own * trainable, experts / strategy.expert / own
    micro_batches = strategy.micro_batches or 1
    passing *= min(strategy.pipeline, micro_batches) / micro_batches / strategy.context
    fewer = strategy.expert * strategy.experts_tensor / strategy.tensor
    share = (1 - experts + experts * min(fewer, count)) / count
    buckets = 0.0
    if not split.gradients and strategy.reduce_dtype is not None:
        gradients = 0.0
        buckets = sum(math.prod(one.shape) for one in trained) * float(DTYPE_BYTES[strategy.reduce_dtype]) / parts * own
    elif not split.gradients and (split.state or count > 1):
        buckets = trainable
    if split.state:
        state *= share if strategy.offload == "none" else 0.0
    if split.gradients:
        gradients *= share
    if split.parameters:
        whole = sorted(_gathered_bytes(trace, strategy), reverse=True)
        gathered = whole if strategy.pipeline > 1 else whole[:GATHERED_UNITS]
        parameters = parameters * share + sum(gathered) / parts
    return parameters + gradients + buckets + state + passing


def _gathered_bytes(trace: Trace, strategy: Strategy) -> list[float]:
    """Return the size of each gathered FSDP unit."""
    if strategy.param_dtype is None:
        return list(unit_bytes(trace.parameters).values())
    return [count * float(DTYPE_BYTES[strategy.param_dtype]) for count in unit_elements(trace.parameters).values()]
