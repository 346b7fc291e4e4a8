"""Tensor parallelism of transformer blocks: the trace's work as one of several GPUs that share every block does it.

As in Megatron (Shoeybi et al., 2019): the heads, and the inner width of the perceptron, are split; the residual stream
with its norms, dropouts and shortcuts is whole on every GPU; what leads back to it is added up by an all_reduce, two a
block in the forward and two in the backward pass. The vocabulary of the embedding and of the output layer is split,
too. The changed problems are timed by the same models, so that small products lose efficiency as they do. Example::

    model = split_model(trace)
    cut_work(trace, timed, model, gpus, models, Cut(tensor=8)).seconds.sum(axis=1)

What is decided by shapes: a linear layer is split along the side that is not the residual stream, and along its outputs
where both are; other work is whole where its largest tensor is as large as the residual stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.arrays import summed_by_owner
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.estimates import KernelModels, problem_times
from lightning_predict.kernels.operations import COMPUTE_BYTES, Array, Problem, operation_kind
from lightning_predict.kernels.translation import WorkItem, translate
from lightning_predict.scaling.blocks import ATTENTION, Block, Weight, block_of, find_blocks, positions_of
from lightning_predict.tracing.records import Operation, Phase, TensorInfo, Trace

LOSS_REDUCTIONS: Final = 3
"""Numbers a token that a loss over a split vocabulary adds up: the largest logit, the label's, and the sum."""


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """Into how many parts a batch's work goes.

    Attributes:
        tensor: GPUs that share every block.
        micro_batches: Parts of the batch.
        updated: Share of the parameters that one GPU updates.
    """

    tensor: int = 1
    micro_batches: int = 1
    updated: float = 1.0


@final
@dataclass(frozen=True)
class SplitModel:
    """A model of transformer blocks.

    Attributes:
        blocks: In the order of the forward pass.
        vocabulary: Rows of the embedding, or outputs of the last layer, whichever are more; None without either.
        weights: Outputs and inputs of the linear layers outside of blocks.
        parameters: Shapes of all parameters of two dimensions or more, and these transposed.
    """

    blocks: tuple[Block, ...]
    vocabulary: int | None
    weights: frozenset[Weight]
    parameters: frozenset[tuple[int, ...]]

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of each block by its name."""
        return positions_of(self.blocks)

    def block(self, module: str | None) -> Block | None:
        """The block that a module lies in; None outside of all."""
        position = block_of(module, self.positions)
        return None if position is None else self.blocks[position]

    def check(self, tensor: int) -> None:
        """See that so many GPUs can share every block.

        Raises:
            InvalidArgumentError: Their number does not divide the heads.
        """
        for block in self.blocks:
            shared = math.gcd(block.heads, block.kv_heads)
            if shared % tensor:
                heads = f"{block.heads} heads"
                if block.kv_heads != block.heads:
                    heads += f" with {block.kv_heads} of keys and values"
                fitting = ", ".join(str(degree) for degree in range(1, shared + 1) if shared % degree == 0)
                raise InvalidArgumentError(
                    f"strategy: tensor={tensor} does not divide the {heads} of the block {block.name!r}; choose one of "
                    f"{fitting}."
                )

    def is_split(self, shape: tuple[int, ...], block: Block | None) -> bool:
        """Each GPU holds its part of a tensor of this shape.

        Args:
            shape: Of the tensor.
            block: Where it occurs; None outside of all.
        """
        if block is None:
            is_table = shape in self.parameters and self.vocabulary in shape
            return self.vocabulary is not None and (is_table or shape[-1:] == (self.vocabulary,))
        if shape in block.parameters or shape[::-1] in block.parameters:
            return True
        elements = math.prod(shape)
        is_stream = shape[-1:] == (block.hidden,) and elements <= block.tokens * block.hidden
        return elements > block.tokens and not is_stream


def split_model(trace: Trace, *, needs_blocks: bool = True) -> SplitModel:
    """The model of a trace.

    Args:
        trace: The step of one GPU.
        needs_blocks: Blocks are to be shared; else the model is one piece.

    Raises:
        InvalidArgumentError: It has no transformer blocks.
    """
    blocks = find_blocks(trace) if needs_blocks else ()
    positions = positions_of(blocks)
    hidden = blocks[0].hidden if blocks else None
    outside = [parameter for parameter in trace.parameters if block_of(parameter.name, positions) is None]
    tables = (parameter.shape for parameter in outside if len(parameter.shape) == 2 and hidden in parameter.shape)
    shapes = {parameter.shape for parameter in trace.parameters if len(parameter.shape) > 1}
    linears = (
        problem
        for operation in trace.operations
        if operation.phase == "forward" and block_of(operation.module, positions) is None
        for problem in translate(operation, trace.flags)
        if problem.operation == "linear"
    )
    return SplitModel(
        blocks=blocks,
        vocabulary=max((max(shape) for shape in tables if hidden == min(shape) < max(shape)), default=None),
        weights=frozenset((int(problem.dims[2]), int(problem.dims[3])) for problem in linears),
        parameters=frozenset(shapes | {shape[::-1] for shape in shapes}),
    )


def cut_work(
    trace: Trace, timed: TimedWork, model: SplitModel, gpus: Sequence[Gpu], models: KernelModels | None, cut: Cut
) -> TimedWork:
    """The work of one GPU on one micro-batch, and its update.

    A part takes no longer than a larger one, whose kernel would do. What was measured, or corrected, is scaled by the
    ratio of the part to the whole.

    Args:
        trace: The step of one GPU.
        timed: Its work with device seconds, rows in the order of `gpus`.
        model: The model of the trace.
        gpus: The GPUs.
        models: Trained models; None uses rooflines instead.
        cut: The parts.

    Raises:
        InvalidArgumentError: `cut.tensor` does not divide the heads.
    """
    model.check(cut.tensor)
    whole = _seconds(timed.items, [item.problems for item in timed.items], gpus, models)
    least = whole
    for degree in _degrees(model, cut.tensor):
        smaller = replace(cut, tensor=degree)
        parts = [_part_of(trace, item, model, smaller) for item in timed.items]
        least = np.minimum(least, _seconds(timed.items, parts, gpus, models))
    share = np.divide(least, whole, out=np.ones_like(whole), where=whole > 0)
    return replace(
        timed,
        seconds=timed.seconds * share,
        low_seconds=timed.low_seconds * share,
        high_seconds=timed.high_seconds * share,
    )


def vocabulary_messages(trace: Trace, model: SplitModel) -> tuple[list[float], list[float]]:
    """Bytes of the all_reduces that a split vocabulary needs in a batch: of the embedding, and of the output layer.

    The embedding's rows are added up; so is the gradient of what the output layer reads, and the loss over its columns.
    """
    first, last = list[float](), list[float]()
    for operation in trace.operations:
        if operation.phase != "forward" or model.vocabulary is None or model.block(operation.module) is not None:
            continue
        for problem in translate(operation, trace.flags):
            size = COMPUTE_BYTES[problem.dtype]
            if problem.operation == "embedding" and operation.inputs[0].shape[0] == model.vocabulary:
                first.append(math.prod(problem.dims) * size)
            elif problem.operation == "linear" and problem.dims[2] == model.vocabulary:
                rows, inputs = problem.dims[0] * problem.dims[1], problem.dims[3]
                last += [rows * inputs * size, LOSS_REDUCTIONS * rows * COMPUTE_BYTES["float32"]]
    return first, last


def _degrees(model: SplitModel, tensor: int) -> Iterator[int]:
    """Degrees up to this one that are possible, too."""
    heads = math.gcd(*(size for block in model.blocks for size in (block.heads, block.kv_heads)))
    return (degree for degree in range(1, tensor + 1) if heads % degree == 0)


def _seconds(
    items: Sequence[WorkItem], parts: Sequence[tuple[Problem, ...]], gpus: Sequence[Gpu], models: KernelModels | None
) -> Array:
    """Predicted seconds of each item's problems, (gpus, items)."""
    problems = [problem for own in parts for problem in own]
    if not problems:
        return np.zeros((len(gpus), len(items)))
    owner = np.array([index for index, own in enumerate(parts) for _ in own], dtype=np.intp)
    return summed_by_owner(problem_times(problems, gpus, models).seconds, owner, len(items))


def _part_of(trace: Trace, item: WorkItem, model: SplitModel, cut: Cut) -> tuple[Problem, ...]:
    operation = trace.operations[item.operations[0]]
    if operation.phase == "optimizer":
        return tuple(_thinned(problem, cut.updated) for problem in item.problems)
    if operation.phase == "other":
        return item.problems
    block = model.block(operation.module)
    return tuple(part_of(problem, operation, model, block, cut) for problem in item.problems)


def part_of(problem: Problem, operation: Operation, model: SplitModel, block: Block | None, cut: Cut) -> Problem:
    """One GPU's part of a problem.

    Args:
        problem: Of the whole batch on one GPU.
        operation: Where it comes from.
        model: The model.
        block: Where the operation lies; None outside of all.
        cut: The parts.
    """
    if problem.operation == "linear":
        return _linear(problem, operation.phase, model, block, cut)
    if problem.operation == "bmm":
        return _divided(problem, {"b": cut.micro_batches * (1 if block is None else cut.tensor)})
    if problem.operation in ATTENTION:
        return _divided(problem, {"batch": cut.micro_batches, "heads": cut.tensor, "kv_heads": cut.tensor})
    if problem.operation == "embedding":
        return _divided(problem, {"rows": cut.micro_batches})
    if "batch" in operation_kind(problem.operation).words:
        return _divided(problem, {"batch": cut.micro_batches})
    tensors = [tensor for tensor in (*operation.inputs, *operation.outputs) if tensor.shape]
    if not tensors:
        return problem
    largest = max(tensors, key=lambda tensor: tensor.elements)
    share = 1 / cut.tensor if model.is_split(largest.shape, block) else 1.0
    of_batch = _batch_share(tensors, model)
    return _thinned(problem, share * (1 - of_batch + of_batch / cut.micro_batches))


def _linear(problem: Problem, phase: Phase, model: SplitModel, block: Block | None, cut: Cut) -> Problem:
    """A product of rows and a weight, or of rows and rows, which gives the weight's gradient."""
    _, m, n, k = problem.dims
    weights = model.weights if block is None else block.weights
    is_gradient = phase == "backward" and (k, n) not in weights and bool({(m, n), (n, m)} & weights)
    rows, sides = ("k", {"n": n, "m": m}) if is_gradient else ("m", {"n": n, "k": k})
    divisors = {rows: cut.micro_batches}
    if block is None:
        split = next((word for word, size in sides.items() if size == model.vocabulary), None)
    else:
        split = max(sides, key=lambda word: sides[word] * (sides[word] != block.hidden))
    return _divided(problem, divisors if split is None else divisors | {split: cut.tensor})


def _batch_share(tensors: Sequence[TensorInfo], model: SplitModel) -> float:
    """Share of the bytes that grow with the batch; parameters and their gradients do not."""
    own = sum(tensor.size_bytes for tensor in tensors if tensor.shape not in model.parameters)
    return own / max(sum(tensor.size_bytes for tensor in tensors), 1)


def _divided(problem: Problem, divisors: dict[str, int]) -> Problem:
    words = operation_kind(problem.operation).words
    dims = (math.ceil(size / divisors.get(word, 1)) for word, size in zip(words, problem.dims, strict=True))
    return replace(problem, dims=tuple(float(size) for size in dims))


def _thinned(problem: Problem, share: float) -> Problem:
    """A share of the rows, of the parameters or of the bytes."""
    words = operation_kind(problem.operation).words
    if words[0] in ("rows", "parameters"):
        return replace(problem, dims=(float(max(math.ceil(problem.dims[0] * share), 1)), *problem.dims[1:]))
    if problem.operation in ("transfer", "host_copy"):
        return replace(problem, dims=tuple(size * share for size in problem.dims))
    return problem
