"""Expert parallelism (MoE): distributes the experts over GPUs, with the all-to-alls of routed tokens.

Each of `expert` data-parallel groups holds a part of the experts. Tokens are sent to their experts and back, in forward
and in backward: four all-to-alls per layer (Lepikhin et al., 2021). Routing is assumed to be balanced, so every GPU
processes the same number of tokens as without routing. `capacity` is the load of the busiest GPU relative to balanced
routing. `gradients.experts_module` finds experts by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.kernels.operations import COMPUTE_BYTES
from lightning_predict.kernels.translation import translate
from lightning_predict.layouts.gradients import experts_module
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.trace import Operation, Trace
from lightning_predict.timeline.simulation import HostOperation


def routed_bytes(trace: Trace) -> dict[str, float]:
    """Return the bytes of the tokens that a batch sends to experts, by the module that holds the experts.

    The size is the total input of the experts' first matmuls, or the input of a grouped matmul.
    """
    first: dict[str, tuple[str, float]] = {}
    for operation in trace.operations:
        holder = experts_module(operation.module)
        if operation.phase != "forward" or holder is None:
            continue
        below = (operation.module or "")[len(holder) + 1 :].split(".")[0]
        expert = f"{holder}.{below}" if below.isdigit() else holder
        if expert in first:
            continue
        for shape in translate(operation, trace.flags):
            if shape.operation in ("linear", "bmm"):
                batches, rows, _, inputs = shape.dims
                first[expert] = (holder, batches * rows * inputs * COMPUTE_BYTES[shape.dtype])
                break
    sizes: dict[str, float] = {}
    for holder, size in first.values():
        sizes[holder] = sizes.get(holder, 0.0) + size
    return sizes


def count_experts(trace: Trace) -> int:
    """Return the number of experts in the largest layer: numbered modules, or the first dimension of 3-D parameters."""
    numbered: dict[str, set[str]] = {}
    most = 0
    for parameter in trace.parameters:
        holder = experts_module(parameter.name)
        if holder is None:
            continue
        part = parameter.name[len(holder) + 1 :].split(".")[0]
        if part.isdigit():
            numbered.setdefault(holder, set()).add(part)
        elif len(parameter.shape) == 3:
            most = max(most, parameter.shape[0])
    return max([most, *map(len, numbered.values())])


def check_experts(trace: Trace, strategy: Strategy) -> None:
    """Check that the experts can be distributed over GPUs."""
    if strategy.expert == 1 and not strategy.expert_launches:
        return
    count = count_experts(trace)
    if not count:
        raise InvalidArgumentError(
            f"strategy: {_words(strategy)}, and the trace names none: no parameter has "
            "'expert' in its name. Leave it out, or name the module that holds them so."
        )
    if count % strategy.expert:
        fitting = ", ".join(str(degree) for degree in range(1, count + 1) if count % degree == 0)
        raise InvalidArgumentError(
            f"strategy: expert={strategy.expert} does not divide the {count} experts; choose one of {fitting}."
        )


def _words(strategy: Strategy) -> str:
    """Return the requested expert options as the start of an error message."""
    if strategy.expert > 1:
        return f"expert={strategy.expert} deals out experts"
    return "expert_launches=true launches what each expert multiplies"


def launched_by_expert(trace: Trace, work: Sequence[HostOperation], strategy: Strategy) -> Iterator[HostOperation]:
    """Yield the work with a kernel launch per local expert instead of a grouped matmul.

    In float8, casts of the operands precede each launch. The device time is unchanged. In the forward pass, the host
    waits before the experts of each layer, because it needs the number of tokens per expert to size messages and
    matmuls (Megatron-LM, `cuda_sync_point` in `token_dispatcher.py`).
    """
    casts = 0 if strategy.fp8 is None else 2
    holders = [experts_module(each.module) for each in work]
    for position, each in enumerate(work):
        following = work[position + 1 : position + 2]
        if any(one.phase == "forward" for one in following) and holders[position + 1] not in (None, holders[position]):
            each = replace(each, waits=True)
        experts = 0 if each.operation is None else _grouped_experts(trace, trace.operations[each.operation])
        launches = max(experts // strategy.expert, 1) * (1 + casts)
        if not experts or not each.launches:
            yield each
            continue
        seconds = np.repeat(each.seconds.sum(axis=1, keepdims=True) / launches, launches, axis=1)
        yield replace(each, seconds=seconds, streams=each.streams[:1] * launches, calls=None)


def _grouped_experts(trace: Trace, operation: Operation) -> int:
    """Return the number of experts in a grouped matmul; 0 for other operations."""
    if experts_module(operation.module) is None:
        return 0
    grouped = (shape for shape in translate(operation, trace.flags) if shape.operation == "bmm")
    return max((round(shape.parameters["b"]) for shape in grouped), default=0)


def messages(sizes: Sequence[float], strategy: Strategy, *, trains: bool) -> list[float]:
    """Return the message sizes of a batch's all-to-alls: to the experts and back, in forward and backward."""
    ways = 4 if trains else 2
    return [size * strategy.capacity for size in sizes for _ in range(ways)]
