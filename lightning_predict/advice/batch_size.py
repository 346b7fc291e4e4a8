"""Changes the batch size of a recorded step. Tensors with samples are scaled, but not parameters and host work.

A recording does not state which dimension counts the samples. The first dimension of the input data counts samples, and
is followed through the operations. The dimension keeps its position in results of equal shape, moves in transposes, is
kept by views, and disappears in matmuls or sums over it. Otherwise, the first dimension of equal length, or of a
multiple, is assumed. Parameters, their gradients and the optimizer stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lightning_predict.record.data_flow import NO_DATA_FLOW, has_data_flow
from lightning_predict.record.trace import Operation, TensorInfo, Trace


def with_batch(trace: Trace, factor: int) -> Trace:
    """Return the step with `factor` times the samples.

    Args:
        trace: A step with a known number of samples, recorded with data flow.
        factor: Factor on the number of samples, at least 2.
    """
    return with_samples(trace, trace.samples_per_batch * factor)


def with_samples(trace: Trace, count: int) -> Trace:
    """Return the step with another batch size.

    Args:
        trace: A step as for `with_batch`.
        count: Number of samples of a batch, at least 1.
    """
    return BatchSizes(trace).of(count)


class BatchSizes:
    """A step that can be scaled to any batch size."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._samples = trace, trace.samples_per_batch
        places = _Places(trace, self._samples)
        numbers: dict[tuple[TensorInfo, SampleDimension], int] = {}

        def numbered(tensors: Sequence[TensorInfo], dimensions: Sequence[SampleDimension]) -> tuple[int, ...]:
            return tuple([numbers.setdefault(key, len(numbers)) for key in zip(tensors, dimensions, strict=True)])

        self._operations: list[tuple[Operation, tuple[int, ...], tuple[int, ...]] | Operation] = []
        for operation in trace.operations:
            inputs, outputs = ((), ()) if operation.phase == "optimizer" else places.of(operation)
            if all(place is None for place in (*inputs, *outputs)):
                self._operations.append(operation)
            else:
                own = numbered(operation.inputs, inputs), numbered(operation.outputs, outputs)
                self._operations.append((operation, *own))
        self._tensors = tuple(numbers)

    def of(self, count: int) -> Trace:
        """Return the step with `count` samples per batch."""
        trace, samples = self._trace, self._samples
        sized = [tensor if place is None else _sized(tensor, place, samples, count) for tensor, place in self._tensors]
        operations = [
            operation
            if isinstance(operation, Operation)
            else replace(
                operation[0],
                inputs=tuple([sized[number] for number in operation[1]]),
                outputs=tuple([sized[number] for number in operation[2]]),
            )
            for operation in self._operations
        ]
        return replace(
            trace,
            operations=tuple(operations),
            samples=count * trace.batches,
            loader_seconds=tuple(count / samples * seconds for seconds in trace.loader_seconds),
            memory=replace(trace.memory, peak_bytes=None, reserved_bytes=None),
        )


def _sized(tensor: TensorInfo, place: int, samples: int, count: int) -> TensorInfo:
    shape = (*tensor.shape[:place], tensor.shape[place] // samples * count, *tensor.shape[place + 1 :])
    # `replace` would take most of the time of a scaled step.
    return TensorInfo(shape, tensor.dtype, tensor.id, tensor.device, tensor.stored_elements, tensor.stored_bytes)


SampleDimension = int | None  # Index of a tensor's dimension that counts samples; None if no dimension counts samples


class _Places:
    """Follows the sample dimension from operation to operation."""

    def __init__(self, trace: Trace, samples: int) -> None:
        self._samples = samples
        shapes = {parameter.shape for parameter in trace.parameters}
        self._fixed = shapes | {shape[::-1] for shape in shapes}
        self._updated = {
            tensor.id
            for operation in trace.operations
            if operation.phase == "optimizer"
            for tensor in (*operation.inputs, *operation.outputs)
        }
        # If all parameters are updated, a tensor that is not updated is not a parameter, even with the shape of a
        # parameter
        # (except statistics).
        self._knows_parameters = bool(self._updated) and all(parameter.requires_grad for parameter in trace.parameters)
        self._of: dict[tuple[int | None, tuple[int, ...]], SampleDimension] = {}
        self._lengths: dict[int | None, int] = {}  # length of the sample dimension, by storage
        self._by_shape: dict[tuple[int, ...], int] = {}
        self._met: set[int | None] = set()

    def of(self, operation: Operation) -> tuple[list[SampleDimension], list[SampleDimension]]:
        """Return the sample dimensions of an operation's inputs and outputs."""
        inputs = [self._given(tensor) for tensor in operation.inputs]
        outputs = []
        for number, tensor in enumerate(operation.outputs):
            place = self._written(operation, inputs, number, tensor)
            outputs.append(place)
            if tensor.id is None:
                continue
            self._met.add(tensor.id)
            self._of[tensor.id, tensor.shape] = place
            if place is not None:
                self._lengths.setdefault(tensor.id, tensor.shape[place])
                if tensor.shape not in self._fixed:
                    self._by_shape.setdefault(tensor.shape, place)
        return inputs, outputs

    def _given(self, tensor: TensorInfo) -> SampleDimension:
        key = (tensor.id, tensor.shape)
        if tensor.id is None or key in self._of:
            return self._of.get(key)
        place: SampleDimension = None
        if tensor.id in self._lengths:  # a view, created by an operation that was not recorded
            place = self._like(tensor.shape, (self._lengths[tensor.id],))
        elif tensor.id not in self._met and self._is_data(tensor):
            place = 0
            self._lengths[tensor.id] = tensor.shape[0]
        elif tensor.id not in self._met and tensor.id not in self._updated:
            place = self._by_shape.get(tensor.shape)  # a copy by autocast, which was not recorded
        self._met.add(tensor.id)
        self._of[key] = place
        return place

    def _is_data(self, tensor: TensorInfo) -> bool:
        if not tensor.shape or tensor.shape[0] != self._samples or tensor.id in self._updated:
            return False
        if tensor.shape not in self._fixed or tensor.dtype.startswith(("int", "uint", "bool")):
            return True
        return self._knows_parameters and len(tensor.shape) > 1

    def _written(
        self, operation: Operation, inputs: Sequence[SampleDimension], number: int, tensor: TensorInfo
    ) -> SampleDimension:
        if not tensor.shape or (tensor.id in self._updated and operation.name not in _REPEATS):
            return None
        known = [(one.shape, place) for one, place in zip(operation.inputs, inputs, strict=True) if place is not None]
        if not operation.inputs:  # for example, random noise
            return 0 if self._is_data(tensor) else None
        rule = _RULES.get(operation.name)
        if operation.name in _REPEATS:
            place = self._expanded(operation, inputs[0], tensor.shape)
        elif rule is not None:
            place = rule(operation, inputs, tensor.shape)
        elif operation.name in _VIEWS:
            place = self._viewed(operation.inputs[0].shape, inputs[0], tensor.shape)
        elif number and tensor.shape in self._fixed:
            return None  # gradients of parameters, and statistics, have no samples
        else:
            place = self._alike(known, tensor.shape)
        return place if place is None or tensor.shape[place] % self._samples == 0 else None

    def _expanded(self, operation: Operation, place: SampleDimension, shape: tuple[int, ...]) -> SampleDimension:
        """Return the sample dimension after an expand."""
        before = operation.inputs[0].shape
        more = len(shape) - len(before)
        if place is not None:
            return place + more
        if not before:  # a scalar, expanded to the gradient of a mean or a sum
            is_gradient = operation.phase == "backward" and shape[0] % self._samples == 0
            return 0 if is_gradient or shape[0] == self._samples else None
        repeated = (at for at, side in enumerate(shape) if at < more or before[at - more] != side)
        return next((at for at in repeated if shape[at] == self._samples), None)

    def _alike(self, known: Sequence[tuple[tuple[int, ...], int]], shape: tuple[int, ...]) -> SampleDimension:
        """Return the result's sample dimension, counted from the last, from inputs with the same size there."""
        for own, place in known:
            if own == shape:
                return place
        for own, place in known:
            if len(own) == len(shape) and shape[place] == own[place] and own[place] % self._samples == 0:
                return place
        return self._like(shape, [own[place] for own, place in known]) if known else None

    def _viewed(self, before: tuple[int, ...], place: SampleDimension, shape: tuple[int, ...]) -> SampleDimension:
        """Return the sample dimension of a view: the dimension with the same number of values before it."""
        if place is None:
            return None
        outer, seen = math.prod(before[:place]), 1
        for at, side in enumerate(shape):
            if seen <= outer < seen * side or (seen == outer and side == before[place]):
                return self._within_split(shape, at, before[place])
            seen *= side
        return self._like(shape, (before[place],))

    def _within_split(self, shape: tuple[int, ...], at: int, length: int) -> int:
        """Return the sample dimension if a view splits it into several dimensions, from `at` on."""
        parts, whole = [at], shape[at]
        while whole < length and parts[-1] + 1 < len(shape):
            parts.append(parts[-1] + 1)
            whole *= shape[parts[-1]]
        exact = (part for part in parts if shape[part] == self._samples)
        multiple = (part for part in parts if shape[part] % self._samples == 0)
        return next(exact, next(multiple, at))

    def _like(self, shape: tuple[int, ...], lengths: Sequence[int]) -> SampleDimension:
        """Return the first dimension as long as a known sample dimension, otherwise a multiple of the samples."""
        same = next((place for place, side in enumerate(shape) if side in lengths), None)
        if same is not None:
            return same
        return next((at for at, side in enumerate(shape) if side >= self._samples and side % self._samples == 0), None)


_REPEATS: Final = frozenset({"aten::expand", "aten::repeat"})
_VIEWS: Final = frozenset({"aten::view", "aten::_unsafe_view", "aten::reshape"})


def _transposed(operation: Operation, inputs: Sequence[SampleDimension], shape: tuple[int, ...]) -> SampleDimension:
    place, count = inputs[0], len(shape)
    if place is None:
        return None
    order = list(range(count))
    if operation.name == "aten::permute":
        order = [axis % count for axis in operation.arguments.get("dims", order)]
    else:
        first, second = operation.arguments.get("dim0", 0), operation.arguments.get("dim1", 1)
        if count > 1:
            order[first % count], order[second % count] = order[second % count], order[first % count]
    return order.index(place)


def _reduced(operation: Operation, inputs: Sequence[SampleDimension], shape: tuple[int, ...]) -> SampleDimension:
    place, count = inputs[0], len(operation.inputs[0].shape)
    dims = operation.arguments.get("dim")
    if place is None or dims is None:
        return None
    gone = {axis % max(count, 1) for axis in (dims if isinstance(dims, list | tuple) else [dims])}
    if not gone:
        gone = set(range(count))
    if place in gone:
        return None
    return place if len(shape) == count else place - sum(axis < place for axis in gone)


def _stacked(operation: Operation, inputs: Sequence[SampleDimension], shape: tuple[int, ...]) -> SampleDimension:
    place = next((tensor for tensor in inputs if tensor is not None), None)
    if place is None:
        return None
    at = int(operation.arguments.get("dim", 0)) % len(shape)
    return place + (at <= place)


def _unbound(operation: Operation, inputs: Sequence[SampleDimension], shape: tuple[int, ...]) -> SampleDimension:
    place = inputs[0]
    at = int(operation.arguments.get("dim", 0)) % (len(shape) + 1)
    if place is None or at == place:
        return None
    return place - (at < place)


def _multiplied(_operation: Operation, inputs: Sequence[SampleDimension], shape: tuple[int, ...]) -> SampleDimension:
    """Return the sample dimension of a matmul: rows of the first operand, columns of the second, or the batch."""
    first, second = inputs[-2:]
    rows, columns = len(shape) - 2, len(shape) - 1
    if first is not None and first <= rows:
        return first
    if second is not None and (second == columns or second < rows):
        return second
    return None


def _convolved_back(operation: Operation, inputs: Sequence[SampleDimension], shape: tuple[int, ...]) -> SampleDimension:
    """Return the sample dimension of the images' gradient. Other outputs are gradients of parameters."""
    return inputs[1] if len(inputs) > 1 and shape == operation.inputs[1].shape else None


Rule = Callable[[Operation, Sequence[SampleDimension], tuple[int, ...]], SampleDimension]
"""Function that returns a result's sample dimension, from the operation, the sample dimensions of its inputs and the
result's shape."""

_RULES: Final[Mapping[str, Rule]] = {  # Rules for operations whose result and inputs differ in shape
    **dict.fromkeys(("aten::t", "aten::transpose", "aten::permute"), _transposed),
    **dict.fromkeys(("aten::sum", "aten::mean", "aten::amax", "aten::amin", "aten::var_mean"), _reduced),
    **dict.fromkeys(("aten::unbind", "aten::select"), _unbound),
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"), _multiplied),
    "aten::stack": _stacked,
    "aten::convolution_backward": _convolved_back,
    "aten::embedding": lambda _operation, inputs, _shape: inputs[1],
    "aten::embedding_dense_backward": lambda *_: None,  # the gradient of a parameter
}


def why_no_other_batch(trace: Trace) -> str | None:
    """Return why a step cannot be scaled to another batch size; None if it can."""
    if trace.samples is None:
        return "how many samples a step holds is not known; give samples_per_step to capture()"
    if not has_data_flow(trace):
        return NO_DATA_FLOW
    if trace.compiled:
        return "the step was recorded compiled, which hides its operations"
    return None
