"""Change: fused optimizer, which reads and writes parameters, gradients and state only once per step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from lightning_predict.advice.change import Change, of_steps
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.memory_bound import FUSED_OPTIMIZERS
from lightning_predict.record.trace import Operation, TensorInfo, Trace


def with_fused_optimizer(trace: Trace) -> Trace:
    """Return the step with a single optimizer call over all tensors that the optimizer uses."""
    updates = [one for one in trace.operations if one.phase == "optimizer"]
    large: dict[int, TensorInfo] = {}  # tensors that existed before the optimizer step, by storage id
    made: set[int | None] = set()
    for update in updates:
        for tensor in update.inputs:
            if tensor.id is not None and tensor.shape and tensor.id not in made:
                large[tensor.id] = tensor
        made |= {tensor.id for tensor in update.outputs if tensor.id not in large}
    by_shape: dict[tuple[int, ...], list[TensorInfo]] = {}
    for tensor in large.values():
        by_shape.setdefault(tensor.shape, []).append(tensor)
    shapes = {one.shape for one in trace.parameters}
    per_parameter = 4 if _has_moments(trace) else 3
    lists: list[list[TensorInfo]] = [[] for _ in range(per_parameter)]
    for shape in shapes or by_shape:
        for place, tensor in enumerate(by_shape.get(shape, [])):
            lists[place % per_parameter].append(tensor)
    name = "aten::_fused_adamw_" if per_parameter == 4 else "aten::_fused_sgd_"

    def changed() -> Iterator[Operation]:
        is_done = False
        for operation in trace.operations:
            if operation.phase != "optimizer":
                yield operation
            elif not is_done:
                is_done = True
                tensors = tuple(tensor for each in lists for tensor in each)
                yield Operation(name=name, phase="optimizer", inputs=tensors, outputs=())

    return replace(trace, operations=tuple(changed()))


def _has_moments(trace: Trace) -> bool:
    """Return whether the optimizer divides by the root of a second moment, as Adam does."""
    return any(one.phase == "optimizer" and ("sqrt" in one.name or "adam" in one.name) for one in trace.operations)


def _why_not(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    updates = [one for one in trace.operations if one.phase == "optimizer"]
    if not updates:
        return "the step holds no optimizer update"
    if any(one.name in FUSED_OPTIMIZERS for one in updates):
        return "the optimizer is fused already"
    if not any(tensor.id is not None for one in updates for tensor in one.inputs):
        return "the recording does not hold which tensors the optimizer updates; capture the step on the meta device"
    return None


FUSED_OPTIMIZER: Final = Change(
    name="fused_optimizer",
    words="AdamW(..., fused=True)",
    note="not every optimizer has it",
    apply=of_steps(with_fused_optimizer),
    why_not=_why_not,
    slot="optimizer",
    kind="fused_optimizer",
)
