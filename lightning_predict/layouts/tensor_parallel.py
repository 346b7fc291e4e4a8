"""Tensor parallelism: the work of one GPU if several GPUs share every transformer block (Megatron's scheme).

As in Megatron (Shoeybi et al., 2019), attention heads and the inner width of the MLP are split. The residual stream is
replicated, with its norms, dropouts and additions. A layer whose output is added to the residual stream needs an
all-reduce: two per block in forward, and two in backward. The vocabulary of the embedding and of the output layer is
also split. The kernel models time the resulting smaller operations, including their lower efficiency.

A block is a numbered module that contains attention and linear layers; a module that contains or is inside a block is
not itself a block. Properties of a block follow from its operations. The width of the residual stream is the most
common size of weights. The number of heads is a dimension of fused attention, or follows from the rows of an unfused
softmax.

Shapes determine the split. A linear layer is split along the dimension that differs from the width of the residual
stream, or along its outputs if both dimensions have this width. Other work is replicated if its largest tensor has the
size of the residual stream.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.attention import ATTENTION_DROPOUT, FUSED_ATTENTION
from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.operations import COMPUTE_BYTES, Array, OperationShape, operation_spec
from lightning_predict.kernels.timing import KernelModels, compute_dtype_on, predict_operation_times
from lightning_predict.kernels.translation import WorkItem, translate
from lightning_predict.layouts.gradients import experts_module
from lightning_predict.layouts.strategy import Float8
from lightning_predict.record.trace import DTYPE_BYTES, Operation, Phase, Trace

Weight = tuple[int, int]  # Shape of a linear layer's weight: (outputs, inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerBlock:
    """A transformer block of the recorded model."""

    name: str  # Name of the block's module
    hidden: int  # Width of the residual stream
    tokens: int  # Number of tokens: rows of the residual stream
    heads: int
    kv_heads: int
    weights: frozenset[Weight]  # Shapes of the linear layers' weights
    parameters: frozenset[tuple[int, ...]]  # Shapes of parameters with at least two dimensions
    reduced_bytes: tuple[float, ...]  # Message sizes of the forward all-reduces, which sum outputs of linear layers
    stream_bytes: float
    reduced_behind: tuple[int, ...] = ()  # Index of the linear layer before each all-reduce
    ring_bytes: float = 0.0  # Size of the keys and values of fused attention; 0 for unfused attention


@dataclass(slots=True)
class _Unit:
    """Forward operations inside a numbered module, each with its shapes."""

    operations: list[tuple[Operation, tuple[OperationShape, ...]]] = field(default_factory=list)

    @property
    def linears(self) -> list[OperationShape]:
        return [shape for shape in self.shapes() if shape.operation == "linear"]

    def shapes(self) -> Iterator[OperationShape]:
        for _, shapes in self.operations:
            yield from shapes

    def signature(self) -> tuple[object, ...]:
        """Operations and shapes of the module; equal for identical modules."""
        return tuple(
            (operation.name, tuple(tensor.shape for tensor in operation.inputs)) for operation, _ in self.operations
        )

    def is_block(self) -> bool:
        """Whether the module contains attention and linear layers."""
        return bool(self.linears) and any(_attentions(self.shapes()))


def find_blocks(trace: Trace) -> tuple[TransformerBlock, ...]:
    """Return the transformer blocks in forward order."""
    units = {name: unit for name, unit in _units(trace).items() if unit.is_block()}
    chosen = _repeated(units)
    chosen |= _innermost(name for name in units if not _are_nested(name, chosen))
    if not chosen:
        modules = {operation.module for operation in trace.operations} - {None}
        raise InvalidArgumentError(
            "The strategy recomputes or shares transformer blocks, and the trace holds none: no numbered module (such "
            f"as 'layers.0') of the {len(modules)} that it names has attention and linear layers. Record it with the "
            "model's modules, or leave out tensor and pipeline, as well as context, recompute and fp8."
        )
    return tuple(_block(name, units[name], trace) for name in units if name in chosen)


def numbered_modules(module: str) -> Iterator[str]:
    """Yield the numbered modules in a module's path (`a.0`, `a.0.b.1`), outermost first."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            yield ".".join(parts[: position + 1])


def block_of(module: str | None, positions: Mapping[str, int]) -> int | None:
    """Return the index of the block that contains a module; None outside blocks."""
    candidates = (positions.get(name) for name in numbered_modules(module or ""))
    return next((position for position in candidates if position is not None), None)


def positions_of(blocks: Sequence[TransformerBlock]) -> dict[str, int]:
    """Return the index of each block by name."""
    return {block.name: position for position, block in enumerate(blocks)}


def _units(trace: Trace) -> dict[str, _Unit]:
    units: dict[str, _Unit] = {}
    for operation in trace.operations:
        if operation.phase == "forward" and operation.module is not None:
            shapes = translate(operation, trace.flags)
            for name in numbered_modules(operation.module):
                units.setdefault(name, _Unit()).operations.append((operation, shapes))
    return units


def _repeated(units: Mapping[str, _Unit]) -> set[str]:
    """Return the outermost modules that have identical siblings."""
    counts = Counter((_container(name), unit.signature()) for name, unit in units.items())
    containers = {container for (container, _), count in counts.items() if count > 1}
    inside = {name for name in units if _container(name) in containers}
    return {name for name in inside if not any(outer in inside for outer in list(numbered_modules(name))[:-1])}


def _innermost(units: Iterable[str]) -> set[str]:
    """Return the modules that contain no numbered modules: the blocks, if no module has identical siblings."""
    names = set(units)
    return names - {outer for name in names for outer in list(numbered_modules(name))[:-1]}


def _are_nested(name: str, chosen: Collection[str]) -> bool:
    """Return whether a module is, contains or is inside one of the chosen modules."""
    around = set(numbered_modules(name))
    return any(other in around or name in numbered_modules(other) for other in chosen)


def _container(name: str) -> str:
    return name.rpartition(".")[0]


def _attentions(shapes: Iterator[OperationShape]) -> Iterator[tuple[OperationShape, bool]]:
    """Yield each attention: fused with True; with False, a softmax between two batched matmuls."""
    multiplied = False
    softmax: OperationShape | None = None
    for shape in shapes:
        if shape.operation in FUSED_ATTENTION:
            yield shape, True
        elif shape.operation == "linear":
            multiplied, softmax = False, None
        elif shape.operation == "softmax":
            softmax = shape if multiplied else None
        elif shape.operation == "bmm":
            if softmax is not None:
                yield softmax, False
            multiplied, softmax = True, None


def _block(name: str, unit: _Unit, trace: Trace) -> TransformerBlock:
    linears = unit.linears
    weights = [(int(shape.dims[2]), int(shape.dims[3])) for shape in linears]
    # The first layer reads the residual stream, so its input width wins ties.
    shared = Counter([weights[0][1], *(size for weight in weights for size in set(weight))])
    hidden = shared.most_common(1)[0][0]
    tokens = int(linears[0].dims[0] * linears[0].dims[1])
    heads, kv_heads = _heads(unit, tokens)
    reduced = list(_reduced(unit, hidden))
    widths = (
        DTYPE_BYTES.get(tensor.dtype, 4)
        for operation, _ in unit.operations
        for tensor in operation.inputs
        if math.prod(tensor.shape) > hidden and tensor.shape[-1] == hidden
    )
    return TransformerBlock(
        name=name,
        hidden=hidden,
        tokens=tokens,
        heads=heads,
        kv_heads=kv_heads,
        weights=frozenset(weights),
        parameters=frozenset(
            parameter.shape
            for parameter in trace.parameters
            if len(parameter.shape) > 1 and parameter.name.startswith(f"{name}.")
        ),
        reduced_bytes=tuple(size for _, size in reduced),
        reduced_behind=tuple(position for position, _ in reduced),
        stream_bytes=tokens * hidden * next(widths, 4),
        ring_bytes=_ring_bytes(unit),
    )


def _heads(unit: _Unit, tokens: int) -> tuple[int, int]:
    """Return the number of query heads, and the number of key and value heads."""
    heads, kv_heads = [], []
    for shape, fused in _attentions(unit.shapes()):
        if fused:
            heads.append(int(shape.dims[1]))
            kv_heads.append(int(shape.dims[2]))
        else:  # the softmax has one row of scores per token and head
            heads.append(max(int(shape.dims[0]) // tokens, 1))
            kv_heads.append(heads[-1])
    return max(heads), min(kv_heads)


def _ring_bytes(unit: _Unit) -> float:
    """Return the total size of the keys and values of fused attention."""
    total = 0.0
    for shape, fused in _attentions(unit.shapes()):
        if fused:
            keys = math.prod(shape.parameters[word] for word in ("batch", "kv_heads", "kv_seq", "head_dim"))
            total += 2 * keys * COMPUTE_BYTES[shape.dtype]
    return total


def _reduced(unit: _Unit, hidden: int) -> Iterator[tuple[int, float]]:
    """Yield the linear layers whose outputs are summed over GPUs, as (index, bytes) (Shoeybi et al., 2019).

    A layer from the residual stream to the heads or the inner width is split by columns. A layer back to the residual
    stream is split by rows, so its output is summed. A square layer is split by rows if it is the first layer after
    attention. An adapter (LoRA) adds to the output of its base layer before the sum.
    """
    attends = multiplied = normalised = False
    position = -1
    base = low = (0.0, 0.0)
    for shape in unit.shapes():
        if shape.operation == "linear":
            position += 1
            _, rows, outputs, inputs = shape.dims
            leads_back = outputs == hidden and (inputs != hidden or attends)
            is_adapter = base == (outputs, low[1]) and low[0] == inputs < min(base)
            base, low = low, (outputs, inputs)
            if leads_back and not is_adapter:
                attends = False
                yield position, shape.dims[0] * rows * outputs * COMPUTE_BYTES[shape.dtype]
            multiplied = normalised = False
        elif shape.operation in FUSED_ATTENTION:
            attends = True
        elif shape.operation == "bmm":
            attends = attends or normalised
            multiplied = True
        elif shape.operation == "softmax":
            normalised = multiplied


LOSS_REDUCTIONS: Final = 3  # Number of values per token that a loss over a split vocabulary all-reduces


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """How the work of a batch is split over GPUs."""

    tensor: int = 1
    micro_batches: int = 1
    updated: float = 1.0
    context: int = 1
    sequence: bool = False  # Whether sequence parallelism also splits norms, dropouts and additions inside blocks
    expert: int = 1  # Expert-parallel degree. Each GPU processes the tokens of all groups for its experts.
    expert_tensor: int | None = None  # Number of GPUs that share each expert; None for `tensor`
    capacity: float = 1.0  # Tokens per expert relative to balanced routing
    fp8: Float8 | None = None  # Float8 scaling of the blocks' matmuls; None for no float8
    cast: float = 1.0  # Share of the weights' float8 casts per micro-batch. A weight is cast once per optimizer step.
    added: float = 0.0  # Share of the micro-batches whose weight gradients are added to existing gradients
    sum_bytes: int | None = None  # Bytes per element of accumulated gradients; None for the dtype of the gradients

    @property
    def rows(self) -> int:
        """Number of parts that the tokens of a batch are divided into."""
        return self.micro_batches * self.context


@dataclass(frozen=True)
class SplitModel:
    """A neural network as transformer blocks and layers outside blocks."""

    blocks: tuple[TransformerBlock, ...]  # Blocks in forward order
    # Size of the vocabulary: rows of the embedding or outputs of the last layer, whichever is larger; None if the model
    # has neither
    vocabulary: int | None
    weights: frozenset[Weight]  # Shapes of the weights of linear layers outside blocks
    parameters: frozenset[tuple[int, ...]]  # Shapes of all parameters with two dimensions or more, and transposes

    @cached_property
    def positions(self) -> dict[str, int]:
        """Index of each block by name."""
        return positions_of(self.blocks)

    @cached_property
    def recomputed(self) -> dict[int, dict[str, int]]:
        """Cache of `recomputation.recomputed_matmuls`, by the id of the trace."""
        return {}

    @cached_property
    def _block_of_module(self) -> dict[str | None, TransformerBlock | None]:
        """Cache for `block`, by module name."""
        return {}

    def block(self, module: str | None) -> TransformerBlock | None:
        """Return the block that contains a module; None outside blocks."""
        known = self._block_of_module
        if module not in known:
            position = block_of(module, self.positions)
            known[module] = None if position is None else self.blocks[position]
        return known[module]

    def check(self, tensor: int) -> None:
        """Raise an error if a tensor-parallel degree is impossible."""
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

    def check_context(self, context: int) -> None:
        """Raise an error if context parallelism is impossible."""
        written_out = next((block.name for block in self.blocks if not block.ring_bytes), None)
        if written_out is not None:
            raise InvalidArgumentError(
                f"strategy: context={context} passes keys and values around in a ring, which needs fused attention, "
                f"and the block {written_out!r} writes it out; record it with torch's scaled_dot_product_attention."
            )

    def is_split(self, shape: tuple[int, ...], block: TransformerBlock | None) -> bool:
        """Return whether tensor parallelism splits a tensor of this shape."""
        if block is None:
            is_table = shape in self.parameters and self.vocabulary in shape
            return self.vocabulary is not None and (is_table or shape[-1:] == (self.vocabulary,))
        if shape in block.parameters or shape[::-1] in block.parameters:
            return True
        elements = math.prod(shape)
        is_stream = shape[-1:] == (block.hidden,) and elements <= block.tokens * block.hidden
        return elements > block.tokens and not is_stream


def split_model(trace: Trace, *, needs_blocks: bool = True) -> SplitModel:
    """Return the model of a trace, with its transformer blocks if `needs_blocks`."""
    blocks = find_blocks(trace) if needs_blocks else ()
    positions = positions_of(blocks)
    hidden = blocks[0].hidden if blocks else None
    outside = [parameter for parameter in trace.parameters if block_of(parameter.name, positions) is None]
    tables = (parameter.shape for parameter in outside if len(parameter.shape) == 2 and hidden in parameter.shape)
    shapes = {parameter.shape for parameter in trace.parameters if len(parameter.shape) > 1}
    linears = (
        shape
        for operation in trace.operations
        if operation.phase == "forward" and block_of(operation.module, positions) is None
        for shape in translate(operation, trace.flags)
        if shape.operation == "linear"
    )
    return SplitModel(
        blocks=blocks,
        vocabulary=max((max(shape) for shape in tables if hidden == min(shape) < max(shape)), default=None),
        weights=frozenset((int(shape.dims[2]), int(shape.dims[3])) for shape in linears),
        parameters=frozenset(shapes | {shape[::-1] for shape in shapes}),
    )


class ShapeTimer:
    """Times operation shapes on GPUs, and caches the times.

    Args:
        gpus: The GPUs.
        models: Trained kernel models; None uses rooflines.
    """

    def __init__(self, gpus: Sequence[Gpu], models: KernelModels | None) -> None:
        self.gpus, self.models = gpus, models
        self._known: dict[OperationShape, Array] = {}

    @property
    def timed(self) -> int:
        """Number of distinct operation shapes that were timed so far."""
        return len(self._known)

    def shape_seconds(self, parts: Sequence[Sequence[OperationShape]]) -> Array:
        """Return the total time of each part's operations, shape (gpus, parts)."""
        unknown = list(dict.fromkeys(shape for own in parts for shape in own if shape not in self._known))
        if unknown:
            seconds = predict_operation_times(unknown, self.gpus, self.models).seconds
            self._known.update(zip(unknown, seconds.T, strict=True))
        zeros = np.zeros(len(self.gpus))
        columns = [sum((self._known[shape] for shape in own), zeros) for own in parts]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.gpus), 0))  # (gpus, parts)


class WorkSharder:
    """Splits the work of a step over GPUs, for several `ShardSpec`s. Identical work is split and timed only once.

    A part never takes longer than a larger part. Measured and corrected times are scaled by the ratio of the predicted
    times of the part and the whole. `timed` has one row per GPU of `clock`, which times the parts.
    """

    def __init__(self, trace: Trace, timed: WorkTimes, model: SplitModel, timer: ShapeTimer) -> None:
        self._trace, self._timed, self._model, self._timer = trace, timed, model, timer
        kinds: dict[TransformerBlock | None, int] = {None: 0}
        first: dict[tuple[object, ...], int] = {}
        self._first: list[WorkItem] = []
        self._uses: list[tuple[int, ...]] = []  # number of matmuls that use each factor of a distinct item
        self._alike = np.zeros(len(timed.items), dtype=np.intp)
        operations = [trace.operations[item.operations[0]] for item in timed.items]
        factors = [_factors(item, operation) for item, operation in zip(timed.items, operations, strict=True)]
        uses = Counter(factor for own in factors for factor in own)
        uses[None] = FACTOR_OF
        for index, (item, operation) in enumerate(zip(timed.items, operations, strict=True)):
            block = model.block(operation.module)
            kind = kinds.setdefault(None if block is None else replace(block, name=""), len(kinds))
            tensors = tuple((tensor.shape, tensor.dtype) for tensor in (*operation.inputs, *operation.outputs))
            is_expert = experts_module(operation.module) is not None
            own_uses = tuple(uses[factor] for factor in factors[index])
            key = (item.shapes, operation.phase, kind, is_expert, tensors, own_uses)
            if key not in first:
                first[key] = len(first)
                self._first.append(item)
                self._uses.append(own_uses)
            self._alike[index] = first[key]

    def shard(self, spec: ShardSpec) -> WorkTimes:
        """Return the work of one GPU for one micro-batch and the optimizer step."""
        model, operations = self._model, self._trace.operations
        model.check(spec.tensor)
        if spec.context > 1:
            model.check_context(spec.context)
        if spec.fp8 is not None:
            for gpu in self._timer.gpus:
                compute_dtype_on("float8", gpu)
        whole = self._timer.shape_seconds([item.shapes for item in self._first])
        least = whole
        heads = math.gcd(*(size for block in model.blocks for size in (block.heads, block.kv_heads)))
        for degree in (degree for degree in range(1, spec.tensor + 1) if heads % degree == 0):
            smaller = replace(spec, tensor=degree)
            seconds = self._timer.shape_seconds(
                [
                    _part_of(self._trace, item, model, smaller, uses)
                    for item, uses in zip(self._first, self._uses, strict=True)
                ]
            )
            least = seconds if spec.fp8 is not None else np.minimum(least, seconds)
        first = [(operations[item.operations[0]], item) for item in self._first]
        least = least * np.array([_factor(each, item, model.block(each.module), spec) for each, item in first])
        each = np.divide(least, whole, out=np.ones_like(whole), where=whole > 0)  # (gpus, distinct items)
        share = each[:, self._alike]  # (gpus, items)
        return replace(self._timed, interval=self._timed.interval.scaled(share))


def _factor(operation: Operation, item: WorkItem, block: TransformerBlock | None, spec: ShardSpec) -> float:
    """Return a factor on the predicted time of a GPU's part of an operation.

    The factor covers ring attention, which is split evenly, experts with more tokens than in balanced routing, and
    slower matmuls with row-wise float8 scales.
    """
    factor = 1.0
    if any(shape.operation in FUSED_ATTENTION for shape in item.shapes):
        factor /= spec.context
    if spec.capacity > 1 and experts_module(operation.module) is not None:
        factor *= spec.capacity
    if spec.fp8 == "rowwise" and block is not None and any(_is_matmul(shape, operation) for shape in item.shapes):
        factor *= ROWWISE_TIME
    return factor


def vocabulary_messages(trace: Trace, model: SplitModel) -> tuple[list[float], list[float]]:
    """Return the message sizes of the all-reduces for a split vocabulary: of the embedding, and of the output layer.

    All-reduces sum the rows of the embedding, the gradient of the output layer's input, and the loss over the
    vocabulary.
    """
    first, last = list[float](), list[float]()
    for operation in trace.operations:
        if operation.phase != "forward" or model.vocabulary is None or model.block(operation.module) is not None:
            continue
        for shape in translate(operation, trace.flags):
            size = COMPUTE_BYTES[shape.dtype]
            if shape.operation == "embedding" and operation.inputs[0].shape[0] == model.vocabulary:
                first.append(math.prod(shape.dims) * size)
            elif shape.operation == "linear" and shape.dims[2] == model.vocabulary:
                rows, inputs = shape.dims[0] * shape.dims[1], shape.dims[3]
                last += [rows * inputs * size, LOSS_REDUCTIONS * rows * COMPUTE_BYTES["float32"]]
    return first, last


def _part_of(
    trace: Trace, item: WorkItem, model: SplitModel, spec: ShardSpec, uses: Sequence[int]
) -> tuple[OperationShape, ...]:
    operation = trace.operations[item.operations[0]]
    if operation.phase == "optimizer":
        return tuple(scaled(shape, spec.updated) for shape in item.shapes)
    if operation.phase == "other":
        return item.shapes
    block = model.block(operation.module)
    shapes, shares = list[OperationShape](), iter(1 / count for count in uses)
    for shape in item.shapes:
        part = part_of(shape, operation, model, block, spec)
        is_matmul = _is_matmul(shape, operation)
        is_gradient = is_matmul and _is_gradient(shape, operation, model, block)
        if spec.fp8 is not None and block is not None and is_matmul:
            left, right = next(shares), next(shares)
            shapes += _in_float8(part, spec.fp8, left, right if is_gradient else right * spec.cast)
        else:
            shapes.append(part)
        if is_gradient and spec.added:
            shapes.append(_added(part, spec))
    return tuple(shapes)


def _added(gradient: OperationShape, spec: ShardSpec) -> OperationShape:
    """Return the additional work of accumulating a weight gradient instead of writing it.

    The accumulated gradient is read and written in its own dtype. In torch, a separate kernel also reads the new
    gradient. In Megatron, the matmul accumulates directly.
    """
    batches, m, n, _ = gradient.dims
    written = COMPUTE_BYTES[gradient.dtype]
    own = written if spec.sum_bytes is None else spec.sum_bytes
    elements = spec.added * batches * m * n
    return OperationShape("transfer", "float32", (elements * own, elements * (own - written), elements))


CAST_READS: Final[Mapping[Float8, int]] = {"tensorwise": 2, "rowwise": 4, "blockwise": 1, "mx": 1}
"""Number of times that scaling and casting to float8 (by rows and by columns) reads a tensor."""

ROWWISE_TIME: Final = 1.15  # Time of float8 matmuls and casts with row-wise scales, relative to other scales
FACTOR_OF: Final = 2  # Number of matmuls that use the same input, weight or gradient, if the recording does not show it


def _factors(item: WorkItem, operation: Operation) -> tuple[int | None, ...]:
    """Return the storage ids of both operands of each matmul of an item that can run in float8."""
    factors = list[int | None]()
    for shape in item.shapes:
        if _is_matmul(shape, operation):
            batches, m, n, k = shape.dims
            sizes = batches * m * k, batches * n * k
            orders = operation.inputs, operation.inputs[::-1]
            factors += (
                next((tensor.id for tensor in order if tensor.elements == size), None)
                for order, size in zip(orders, sizes, strict=True)
            )
    return tuple(factors)


def _is_matmul(shape: OperationShape, operation: Operation) -> bool:
    """Return whether an operation of a block can run in float8: a linear layer, or a batched matmul of experts."""
    return shape.operation == "linear" or (shape.operation == "bmm" and experts_module(operation.module) is not None)


def _in_float8(shape: OperationShape, scales: Float8, left: float, right: float) -> Iterator[OperationShape]:
    """Yield a matmul in float8, and the work to scale and cast its two operands.

    A tensor is cast once for all matmuls that use it. The cast reads the tensor in its own dtype, and writes one byte
    per element, by rows and by columns. One scale per tensor needs an additional read for the maximum. Scales per row
    and per column differ, so each cast is separate. A scale per block is computed during the cast.
    """
    batches, m, n, k = shape.dims
    elements = FACTOR_OF * batches * (m * k * left + n * k * right)
    reads = CAST_READS[scales] * COMPUTE_BYTES[shape.dtype] / FACTOR_OF
    yield replace(shape, dtype="float8")
    yield OperationShape("transfer", "float32", (elements * reads, elements, elements))


def part_of(
    shape: OperationShape, operation: Operation, model: SplitModel, block: TransformerBlock | None, spec: ShardSpec
) -> OperationShape:
    """Return one GPU's part of an operation."""
    if shape.operation == "linear":
        return _linear(shape, operation.phase, model, block, spec)
    if shape.operation == "bmm" and experts_module(operation.module) is not None:
        return _of_experts(shape, _is_gradient(shape, operation, model, block), block, spec)
    if shape.operation == "bmm":
        return _divide(shape, {"b": spec.micro_batches * (1 if block is None else spec.tensor)})
    if shape.operation in (*FUSED_ATTENTION, ATTENTION_DROPOUT):
        return _divide(shape, {"batch": spec.micro_batches, "heads": spec.tensor, "kv_heads": spec.tensor})
    if shape.operation == "embedding":
        return _divide(shape, {"rows": spec.rows})
    if "batch" in operation_spec(shape.operation).shape:
        return _divide(shape, {"batch": spec.micro_batches})
    tensors = [tensor for tensor in (*operation.inputs, *operation.outputs) if tensor.shape]
    if not tensors:
        return shape
    largest = max(tensors, key=lambda tensor: tensor.elements)
    is_shared = model.is_split(largest.shape, block) or (spec.sequence and block is not None)
    share = 1 / spec.tensor if is_shared else 1.0
    own = sum(tensor.size_bytes for tensor in tensors if tensor.shape not in model.parameters)
    of_batch = own / max(sum(tensor.size_bytes for tensor in tensors), 1)
    return scaled(shape, share * (1 - of_batch + of_batch / spec.rows))


def _linear(
    shape: OperationShape, phase: Phase, model: SplitModel, block: TransformerBlock | None, spec: ShardSpec
) -> OperationShape:
    """Return one GPU's part of a linear layer's matmul, including the weight gradient."""
    _, m, n, k = shape.dims
    is_gradient = is_weight_gradient(shape, phase, model, block)
    rows, sides = ("k", {"n": n, "m": m}) if is_gradient else ("m", {"n": n, "k": k})
    divisors = {rows: spec.rows}
    if block is None:
        split = next((word for word, size in sides.items() if size == model.vocabulary), None)
    else:
        split = max(sides, key=lambda word: sides[word] * (sides[word] != block.hidden))
    return _divide(shape, divisors if split is None else divisors | {split: spec.tensor})


def _of_experts(
    shape: OperationShape, is_gradient: bool, block: TransformerBlock | None, spec: ShardSpec
) -> OperationShape:
    """Return one GPU's part of a grouped matmul: its experts, the tokens of their group, part of the inner width."""
    sizes = shape.parameters
    rows, sides = ("k", ("m", "n")) if is_gradient else ("m", ("n", "k"))
    inner = max(sides, key=lambda word: sizes[word] * (block is None or sizes[word] != block.hidden))
    split = spec.expert_tensor or spec.tensor
    shared = _divide(shape, {"b": spec.expert, rows: spec.rows * spec.tensor // split, inner: split})
    return replace(shared, dims=tuple((shared.parameters | {rows: shared.parameters[rows] * spec.expert}).values()))


def _is_gradient(
    shape: OperationShape, operation: Operation, model: SplitModel, block: TransformerBlock | None
) -> bool:
    """Return whether a linear or grouped matmul computes a weight gradient, which has the shape of the weight."""
    if shape.operation == "linear":
        return is_weight_gradient(shape, operation.phase, model, block)
    return operation.phase == "backward" and any(output.shape in model.parameters for output in operation.outputs)


def is_weight_gradient(shape: OperationShape, phase: Phase, model: SplitModel, block: TransformerBlock | None) -> bool:
    """Return whether an operation is the matmul that computes a linear layer's weight gradient."""
    if phase != "backward" or shape.operation != "linear":
        return False
    _, m, n, k = shape.dims
    weights = model.weights if block is None else block.weights
    return (k, n) not in weights and bool({(m, n), (n, m)} & weights)


def _divide(shape: OperationShape, divisors: dict[str, int]) -> OperationShape:
    words = operation_spec(shape.operation).shape
    dims = (math.ceil(size / divisors.get(word, 1)) for word, size in zip(words, shape.dims, strict=True))
    return replace(shape, dims=tuple(float(size) for size in dims))


COUNTED: Final = frozenset({"rows", "parameters", "bags", "blocks"})
MEASURED: Final = frozenset({"read_bytes", "write_bytes", "size_bytes", "flops", "cycles"})
"""Shape parameters that scale with the amount of work, together with `COUNTED`. In lookups of bags, the number of
bags scales, but the number of table rows does not."""


def scaled(shape: OperationShape, share: float) -> OperationShape:
    """Return an operation with its rows, elements or bytes scaled by `share`."""
    words = operation_spec(shape.operation).shape
    dims = dict(zip(words, shape.dims, strict=True))
    for word in words:
        if word in MEASURED:
            dims[word] *= share
        elif word in COUNTED and not (word == "rows" and "bags" in words):
            dims[word] = float(max(math.ceil(dims[word] * share), 1))
    if "block_cycles" in dims:  # fewer blocks need fewer cycles in total
        blocks = shape.dims[words.index("blocks")]
        dims["block_cycles"] *= min(share * blocks / dims["blocks"], 1.0)
    return replace(shape, dims=tuple(dims.values()))
