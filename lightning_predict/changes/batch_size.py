"""Twice the batch: every tensor that holds samples grows, parameters and the host's work stay.

A recorded step does not say which dimension counts samples. A tensor that is new in the step and whose first dimension
is a multiple of the samples holds them there; its storage is followed, so that views that flatten or turn it grow with
it, in the dimension that holds the multiple. Parameters, their gradients and the optimizer stay. Example::

    doubled = with_batch(trace, 2)      # trace.samples twice as many
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from lightning_predict.changes.change import Change, of_steps
from lightning_predict.gpus.records import Gpu
from lightning_predict.tracing.trace import TensorInfo, Trace


def with_batch(trace: Trace, factor: int) -> Trace:
    """Return a step of `factor` times as many samples.

    Args:
        trace: A step whose samples are known and whose tensors were followed.
        factor: At least 2.
    """
    samples = trace.samples or 1
    fixed = {one.shape for one in trace.parameters}
    fixed |= {shape[::-1] for shape in fixed}
    grown: dict[int, int] = {}  # storage -> the length of its dimension of samples
    numbers: set[int | None] = set()  # storages of a single number
    operations = []

    def sized(tensor: TensorInfo) -> TensorInfo:
        length = None if tensor.id is None else grown.get(tensor.id)
        if tensor.id in numbers and tensor.shape and tensor.shape[0] % samples == 0:
            length = tensor.shape[0]  # one number, expanded to the gradient of a mean or a sum
        if length is None:
            return tensor
        place = _dimension(tensor.shape, length, samples)
        if place is None:
            return tensor
        shape = (*tensor.shape[:place], tensor.shape[place] * factor, *tensor.shape[place + 1 :])
        return replace(tensor, shape=shape)

    produced: set[int] = set()
    for operation in trace.operations:
        if operation.phase == "optimizer":
            operations.append(operation)
            continue
        for tensor in operation.inputs:
            is_data = tensor.id is not None and tensor.id not in produced and tensor.id not in grown
            if is_data and tensor.shape and tensor.shape[0] == samples and tensor.shape not in fixed:
                grown[tensor.id or 0] = samples
        grows = any(sized(tensor) != tensor for tensor in operation.inputs)
        for tensor in operation.outputs:
            if tensor.id is None or tensor.id in produced or tensor.id in grown:
                continue
            produced.add(tensor.id)
            if not tensor.shape:
                numbers.add(tensor.id)
            is_gradient = operation.phase == "backward" and tensor.shape in fixed
            holds = tensor.shape and tensor.shape[0] % samples == 0 and not is_gradient
            if grows and holds:
                grown[tensor.id] = tensor.shape[0]
        operations.append(
            replace(operation, inputs=tuple(map(sized, operation.inputs)), outputs=tuple(map(sized, operation.outputs)))
        )
    waits = tuple(factor * seconds for seconds in trace.loader_seconds)
    return replace(trace, operations=tuple(operations), samples=samples * factor, loader_seconds=waits)


def _dimension(shape: tuple[int, ...], length: int, samples: int) -> int | None:
    """Find the dimension that holds samples: as long as the storage's own, else a multiple of the samples."""
    if length in shape:
        return shape.index(length)
    return next((place for place, side in enumerate(shape) if side >= samples and side % samples == 0), None)


def _why_not(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    if trace.samples is None:
        return "how many samples a step holds is not known; give samples_per_step to capture()"
    if not any(one.outputs for one in trace.operations):
        return "the recording does not hold which tensor goes where; capture the step on the meta device as `followed`"
    if trace.compiled:
        return "the step was recorded compiled, which hides its operations"
    return None


def batch_change(factor: int) -> Change:
    """Make the change to so many times the batch."""
    return Change(
        name="batch_size" if factor == 2 else f"batch_size x {factor}",
        words="twice the batch size" if factor == 2 else f"{factor} times the batch size",
        note="memory; other optimisation: scale the learning rate",
        apply=of_steps(partial(with_batch, factor=factor)),
        why_not=_why_not,
        asks=frozenset({"memory", "samples"}),
        slot="batch",
        kind="batch",
    )


TWICE_THE_BATCH: Final = batch_change(2)
