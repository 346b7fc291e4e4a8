"""Split transformer blocks over GPUs (tensor parallelism): the work of one of several GPUs that share every block.

As in Megatron (Shoeybi et al., 2019): the heads, and the inner width of the perceptron, are split; the residual stream
with its norms, dropouts and shortcuts is whole on every GPU; what leads back to it is added up by an all_reduce, two
per block in the forward and two in the backward pass. The vocabulary of the embedding and of the output layer is split,
too. The changed problems are timed by the same models, so that small products lose efficiency as they do.

Blocks are the numbered modules that hold attention and linear layers; what a block is, its operations say: the width of
its residual stream is the size that its weights have in common, and the number of heads is that of its attention, or
the rows of its softmax over the tokens where attention is written out. Modules that hold blocks, or lie inside one, are
none.

What is decided by shapes: a linear layer is split along the side that is not the residual stream, and along its outputs
where both are; other work is whole where its largest tensor is as large as the residual stream. Example::

    model = split_model(trace)
    WorkCutter(trace, timed, model, ProblemClock(gpus, models)).cut(Cut(tensor=8)).seconds.sum(axis=1)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, final

import numpy as np

from lightning_predict.distributed.strategy import Float8
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.extensions.parallel.experts import experts_module
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.families.attention import FUSED_ATTENTION
from lightning_predict.kernels.operations import COMPUTE_BYTES, Array, Problem, operation_kind
from lightning_predict.kernels.timing import KernelModels, compute_dtype_on, problem_times
from lightning_predict.kernels.translation import WorkItem, translate
from lightning_predict.tracing.trace import DTYPE_BYTES, Operation, Phase, TensorInfo, Trace

Weight = tuple[int, int]
"""Outputs and inputs of a linear layer."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerBlock:
    """One transformer block.

    Attributes:
        name: Name of its module.
        hidden: Width of its residual stream.
        tokens: Rows of the residual stream.
        heads: Heads of its queries.
        kv_heads: Heads of its keys and values.
        weights: Outputs and inputs of its linear layers.
        parameters: Shapes of its parameters of two dimensions or more.
        reduced_bytes: Outputs of the linear layers that add up what several GPUs hold, one all_reduce each.
        reduced_behind: Which of its linear layers, in order, each of them is the output of.
        stream_bytes: Size of its residual stream.
        ring_bytes: Keys and values of its fused attention; 0 where attention is written out.
    """

    name: str
    hidden: int
    tokens: int
    heads: int
    kv_heads: int
    weights: frozenset[Weight]
    parameters: frozenset[tuple[int, ...]]
    reduced_bytes: tuple[float, ...]
    stream_bytes: float
    reduced_behind: tuple[int, ...] = ()
    ring_bytes: float = 0.0


@final
@dataclass(slots=True)
class _Unit:
    """A numbered module as its forward operations show it: operations with their problems."""

    operations: list[tuple[Operation, tuple[Problem, ...]]] = field(default_factory=list)

    @property
    def linears(self) -> list[Problem]:
        return [problem for problem in self.problems() if problem.operation == "linear"]

    def problems(self) -> Iterator[Problem]:
        for _, problems in self.operations:
            yield from problems

    def signature(self) -> tuple[object, ...]:
        """Describe what it does and its shapes: equal for modules that do the same on equal ones."""
        return tuple(
            (operation.name, tuple(tensor.shape for tensor in operation.inputs)) for operation, _ in self.operations
        )

    def is_block(self) -> bool:
        """Return whether it holds attention, and linear layers next to it."""
        return bool(self.linears) and any(_attentions(self.problems()))


def find_blocks(trace: Trace) -> tuple[TransformerBlock, ...]:
    """Return the blocks in the order in which the forward pass visits them.

    Raises:
        InvalidArgumentError: There are none.
    """
    units = {name: unit for name, unit in _units(trace).items() if unit.is_block()}
    chosen = _repeated(units)
    chosen |= _innermost(name for name in units if not _are_nested(name, chosen))
    if not chosen:
        modules = {operation.module for operation in trace.operations} - {None}
        raise InvalidArgumentError(
            "The strategy shares transformer blocks, and the trace holds none: no numbered module (such as 'layers.0') "
            f"of the {len(modules)} that it names has attention and linear layers. Record it with the model's modules, "
            "or leave out tensor and pipeline."
        )
    return tuple(_block(name, units[name], trace) for name in units if name in chosen)


def numbered_modules(module: str) -> Iterator[str]:
    """Return the numbered modules that a module is or lies in, outermost first."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            yield ".".join(parts[: position + 1])


def block_of(module: str | None, positions: Mapping[str, int]) -> int | None:
    """Find the block that a module is or lies in, by position; None outside of all."""
    found = (positions.get(name) for name in numbered_modules(module or ""))
    return next((position for position in found if position is not None), None)


def positions_of(blocks: Sequence[TransformerBlock]) -> dict[str, int]:
    """Number each block by its name."""
    return {block.name: position for position, block in enumerate(blocks)}


def _units(trace: Trace) -> dict[str, _Unit]:
    """List all numbered modules, by the forward operations inside them."""
    units: dict[str, _Unit] = {}
    for operation in trace.operations:
        if operation.phase == "forward" and operation.module is not None:
            problems = translate(operation, trace.flags)
            for name in numbered_modules(operation.module):
                units.setdefault(name, _Unit()).operations.append((operation, problems))
    return units


def _repeated(units: Mapping[str, _Unit]) -> set[str]:
    """Select modules next to equal ones, the outermost such."""
    counts = Counter((_container(name), unit.signature()) for name, unit in units.items())
    containers = {container for (container, _), count in counts.items() if count > 1}
    inside = {name for name in units if _container(name) in containers}
    return {name for name in inside if not any(outer in inside for outer in list(numbered_modules(name))[:-1])}


def _innermost(units: Iterable[str]) -> set[str]:
    """Select modules without another inside them: blocks that have no like."""
    names = set(units)
    return names - {outer for name in names for outer in list(numbered_modules(name))[:-1]}


def _are_nested(name: str, chosen: Collection[str]) -> bool:
    """Return whether a module is one of these, holds one or lies in one."""
    around = set(numbered_modules(name))
    return any(other in around or name in numbered_modules(other) for other in chosen)


def _container(name: str) -> str:
    return name.rpartition(".")[0]


def _attentions(problems: Iterator[Problem]) -> Iterator[tuple[Problem, bool]]:
    """Find attention that is fused (True), or the softmax between two batched products with no linear layer between."""
    multiplied = False
    softmax: Problem | None = None
    for problem in problems:
        if problem.operation in FUSED_ATTENTION:
            yield problem, True
        elif problem.operation == "linear":
            multiplied, softmax = False, None
        elif problem.operation == "softmax":
            softmax = problem if multiplied else None
        elif problem.operation == "bmm":
            if softmax is not None:
                yield softmax, False
            multiplied, softmax = True, None


def _block(name: str, unit: _Unit, trace: Trace) -> TransformerBlock:
    linears = unit.linears
    weights = [(int(problem.dims[2]), int(problem.dims[3])) for problem in linears]
    # The first layer reads the residual stream, which settles a draw.
    shared = Counter([weights[0][1], *(size for weight in weights for size in set(weight))])
    hidden = shared.most_common(1)[0][0]
    tokens = int(linears[0].dims[0] * linears[0].dims[1])
    heads, kv_heads = _heads(unit, tokens)
    reduced = list(_reduced(unit, hidden))
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
        stream_bytes=tokens * hidden * _stream_element_bytes(unit, hidden),
        ring_bytes=_ring_bytes(unit),
    )


def _heads(unit: _Unit, tokens: int) -> tuple[int, int]:
    """Count heads of the queries, and of the keys and values."""
    heads, kv_heads = [], []
    for problem, fused in _attentions(unit.problems()):
        if fused:
            heads.append(int(problem.dims[1]))
            kv_heads.append(int(problem.dims[2]))
        else:  # a row of scores for each token and head
            heads.append(max(int(problem.dims[0]) // tokens, 1))
            kv_heads.append(heads[-1])
    return max(heads), min(kv_heads)


def _ring_bytes(unit: _Unit) -> float:
    """Return the bytes of the keys and values of all fused attention."""
    total = 0.0
    for problem, fused in _attentions(unit.problems()):
        if fused:
            keys = math.prod(problem.shape[word] for word in ("batch", "kv_heads", "kv_seq", "head_dim"))
            total += 2 * keys * COMPUTE_BYTES[problem.dtype]
    return total


def _reduced(unit: _Unit, hidden: int) -> Iterator[tuple[int, float]]:
    """Find outputs that are sums over a block's GPUs, by position and bytes (Shoeybi et al., 2019).

    Layers that widen the stream give each GPU columns of its own; those that lead back to it, from the heads or from
    the inner width, add up. A square layer leads back where it is the first behind attention.
    """
    attends = multiplied = normalised = False
    position = -1
    for problem in unit.problems():
        if problem.operation == "linear":
            position += 1
            _, rows, outputs, inputs = problem.dims
            leads_back = outputs == hidden and (inputs != hidden or attends)
            if leads_back:
                attends = False
                yield position, problem.dims[0] * rows * outputs * COMPUTE_BYTES[problem.dtype]
            multiplied = normalised = False
        elif problem.operation in FUSED_ATTENTION:
            attends = True
        elif problem.operation == "bmm":
            attends = attends or normalised
            multiplied = True
        elif problem.operation == "softmax":
            normalised = multiplied


def _stream_element_bytes(unit: _Unit, hidden: int) -> float:
    """Read the element size of the first tensor that is as wide as the stream."""
    widths = (
        DTYPE_BYTES.get(tensor.dtype, 4)
        for operation, _ in unit.operations
        for tensor in operation.inputs
        if math.prod(tensor.shape) > hidden and tensor.shape[-1] == hidden
    )
    return next(widths, 4)


LOSS_REDUCTIONS: Final = 3
"""Numbers per token that a loss over a split vocabulary adds up: the largest logit, the label's, and the sum."""


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """The parts into which a batch's work is divided.

    Attributes:
        tensor: GPUs that share every block.
        micro_batches: Parts of the batch.
        updated: Share of the parameters that one GPU updates.
        context: GPUs that share every sequence.
        sequence: What tensor parallelism leaves whole inside blocks is shared, too.
        expert: Groups over which experts are dealt out; each of a group's GPUs takes the tokens of all for its own.
        capacity: Tokens of each expert over those of an even routing.
        fp8: Products of the blocks in float8, with one scale per tensor or per block of values.
        cast: Share of the weights' casts to float8 that falls on one micro-batch: an update needs each once.
        added: Share of the micro-batches whose gradients of weights are added to those before them.
        sum_bytes: Bytes of a value of these sums; None for those of a gradient.
    """

    tensor: int = 1
    micro_batches: int = 1
    updated: float = 1.0
    context: int = 1
    sequence: bool = False
    expert: int = 1
    capacity: float = 1.0
    fp8: Float8 | None = None
    cast: float = 1.0
    added: float = 0.0
    sum_bytes: int | None = None

    @property
    def rows(self) -> int:
        """Parts that the tokens of a batch are cut into."""
        return self.micro_batches * self.context


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

    blocks: tuple[TransformerBlock, ...]
    vocabulary: int | None
    weights: frozenset[Weight]
    parameters: frozenset[tuple[int, ...]]

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of each block by its name."""
        return positions_of(self.blocks)

    @cached_property
    def _block_of_module(self) -> dict[str | None, TransformerBlock | None]:
        """Blocks of modules found so far."""
        return {}

    def block(self, module: str | None) -> TransformerBlock | None:
        """Return the block that a module lies in; None outside of all."""
        known = self._block_of_module
        if module not in known:
            position = block_of(module, self.positions)
            known[module] = None if position is None else self.blocks[position]
        return known[module]

    def check(self, tensor: int) -> None:
        """Check that this many GPUs can share every block.

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

    def check_context(self, context: int) -> None:
        """Check that this many GPUs can share every sequence.

        Raises:
            InvalidArgumentError: Attention is written out, so that no ring can compute it in parts.
        """
        written_out = next((block.name for block in self.blocks if not block.ring_bytes), None)
        if written_out is not None:
            raise InvalidArgumentError(
                f"strategy: context={context} passes keys and values around in a ring, which needs fused attention, "
                f"and the block {written_out!r} writes it out; record it with torch's scaled_dot_product_attention."
            )

    def is_split(self, shape: tuple[int, ...], block: TransformerBlock | None) -> bool:
        """Return whether each GPU holds its part of a tensor of this shape."""
        if block is None:
            is_table = shape in self.parameters and self.vocabulary in shape
            return self.vocabulary is not None and (is_table or shape[-1:] == (self.vocabulary,))
        if shape in block.parameters or shape[::-1] in block.parameters:
            return True
        elements = math.prod(shape)
        is_stream = shape[-1:] == (block.hidden,) and elements <= block.tokens * block.hidden
        return elements > block.tokens and not is_stream


def split_model(trace: Trace, *, needs_blocks: bool = True) -> SplitModel:
    """Return the model of a trace."""
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


@final
class ProblemClock:
    """Times problems on GPUs, each once.

    Args:
        gpus: The GPUs.
        models: Trained models; None uses rooflines instead.
    """

    def __init__(self, gpus: Sequence[Gpu], models: KernelModels | None) -> None:
        self.gpus, self.models = gpus, models
        self._known: dict[Problem, Array] = {}

    @property
    def timed(self) -> int:
        """Count the problems that were timed."""
        return len(self._known)

    def seconds(self, parts: Sequence[Sequence[Problem]]) -> Array:
        """Return the seconds of each part's problems together, (gpus, parts)."""
        unknown = list(dict.fromkeys(problem for own in parts for problem in own if problem not in self._known))
        if unknown:
            found = problem_times(unknown, self.gpus, self.models).seconds
            self._known.update(zip(unknown, found.T, strict=True))
        zeros = np.zeros(len(self.gpus))
        columns = [sum((self._known[problem] for problem in own), zeros) for own in parts]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.gpus), 0))  # (gpus, parts)


@final
class WorkCutter:
    """Cuts a step's work in many ways; what is alike, as blocks are, is cut and timed once.

    A part takes no longer than a larger one, whose kernel would do. What was measured, or corrected, is scaled by the
    ratio of the part to the whole.

    Args:
        trace: The step of one GPU.
        timed: Its work with device seconds, rows in the order of the clock's GPUs.
        model: The model of the trace.
        clock: Times the parts.
    """

    def __init__(self, trace: Trace, timed: TimedWork, model: SplitModel, clock: ProblemClock) -> None:
        self._trace, self._timed, self._model, self._clock = trace, timed, model, clock
        kinds: dict[TransformerBlock | None, int] = {None: 0}
        first: dict[tuple[object, ...], int] = {}
        self._first: list[WorkItem] = []
        self._uses: list[tuple[int, ...]] = []  # of the factors of each distinct item
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
            key = (item.problems, operation.phase, kind, is_expert, tensors, own_uses)
            if key not in first:
                first[key] = len(first)
                self._first.append(item)
                self._uses.append(own_uses)
            self._alike[index] = first[key]

    def cut(self, cut: Cut) -> TimedWork:
        """Return the work of one GPU on one micro-batch, and its update."""
        model, operations = self._model, self._trace.operations
        model.check(cut.tensor)
        if cut.context > 1:
            model.check_context(cut.context)
        if cut.fp8 is not None:
            for gpu in self._clock.gpus:
                compute_dtype_on("float8", gpu)
        whole = self._clock.seconds([item.problems for item in self._first])
        least = whole
        for degree in _degrees(model, cut.tensor):
            smaller = replace(cut, tensor=degree)
            found = self._clock.seconds(
                [
                    _part_of(self._trace, item, model, smaller, uses)
                    for item, uses in zip(self._first, self._uses, strict=True)
                ]
            )
            least = found if cut.fp8 is not None else np.minimum(least, found)
        first = [(operations[item.operations[0]], item) for item in self._first]
        least = least * np.array([_factor(each, item, model.block(each.module), cut) for each, item in first])
        each = np.divide(least, whole, out=np.ones_like(whole), where=whole > 0)  # (gpus, distinct items)
        share = each[:, self._alike]  # (gpus, items)
        return replace(self._timed, interval=self._timed.interval.scaled(share))


def _factor(operation: Operation, item: WorkItem, block: TransformerBlock | None, cut: Cut) -> float:
    """Time of a part over that of its problems.

    A ring cuts attention evenly, experts make room for more tokens, and products with a scale for each row are slower.
    """
    factor = 1.0
    if any(problem.operation in FUSED_ATTENTION for problem in item.problems):
        factor /= cut.context
    if cut.capacity > 1 and experts_module(operation.module) is not None:
        factor *= cut.capacity
    if cut.fp8 == "rowwise" and block is not None and any(_is_product(one, operation) for one in item.problems):
        factor *= ROWWISE_TIME
    return factor


def vocabulary_messages(trace: Trace, model: SplitModel) -> tuple[list[float], list[float]]:
    """Size the all_reduces that a split vocabulary needs in a batch: of the embedding, and of the output layer.

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
    """List degrees up to this one that are possible, too."""
    heads = math.gcd(*(size for block in model.blocks for size in (block.heads, block.kv_heads)))
    return (degree for degree in range(1, tensor + 1) if heads % degree == 0)


def _part_of(trace: Trace, item: WorkItem, model: SplitModel, cut: Cut, uses: Sequence[int]) -> tuple[Problem, ...]:
    operation = trace.operations[item.operations[0]]
    if operation.phase == "optimizer":
        return tuple(thinned(problem, cut.updated) for problem in item.problems)
    if operation.phase == "other":
        return item.problems
    block = model.block(operation.module)
    found, shares = list[Problem](), iter(1 / count for count in uses)
    for problem in item.problems:
        part = part_of(problem, operation, model, block, cut)
        is_product = _is_product(problem, operation)
        is_gradient = is_product and _is_gradient(problem, operation, model, block)
        if cut.fp8 is not None and block is not None and is_product:
            left, right = next(shares), next(shares)
            found += _in_float8(part, cut.fp8, left, right if is_gradient else right * cut.cast)
        else:
            found.append(part)
        if is_gradient and cut.added:
            found.append(_added(part, cut))
    return tuple(found)


def _added(gradient: Problem, cut: Cut) -> Problem:
    """Return what adding a weight's gradient to those of the micro-batches before takes, beyond writing it.

    The sum is read, and written in its own dtype. Megatron's product adds to it; torch does in a pass of its own, which
    reads the gradient again.
    """
    batches, m, n, _ = gradient.dims
    written = COMPUTE_BYTES[gradient.dtype]
    own = written if cut.sum_bytes is None else cut.sum_bytes
    elements = cut.added * batches * m * n
    return Problem("transfer", "float32", (elements * own, elements * (own - written), elements))


CAST_READS: Final[Mapping[Float8, int]] = {"tensorwise": 2, "rowwise": 4, "blockwise": 1, "mx": 1}
"""Times that a tensor is read to be scaled and cast to float8, by rows and by columns."""

ROWWISE_TIME: Final = 1.15
"""Time of products in float8 with a scale for each row, and of their casts, over that of others: these are kernels of
CUTLASS, not of cuBLAS. Read off two runs of torchao on eight H100 (Llama 3 8B; the README of `torchao.float8`, and
torchtitan's commit 7a04053), which gain 10 and 11 % over bfloat16 where one scale for a tensor gains 25."""

FACTOR_OF: Final = 2
"""Products that each input, weight and gradient is a factor of, where a recording does not tell."""


def _factors(item: WorkItem, operation: Operation) -> tuple[int | None, ...]:
    """Return the tensors that each product of an item that may run in float8 multiplies, two a product."""
    found = list[int | None]()
    for problem in item.problems:
        if _is_product(problem, operation):
            batches, m, n, k = problem.dims
            sizes = batches * m * k, batches * n * k
            orders = operation.inputs, operation.inputs[::-1]
            found += (
                next((tensor.id for tensor in order if tensor.elements == size), None)
                for order, size in zip(orders, sizes, strict=True)
            )
    return tuple(found)


def _is_product(problem: Problem, operation: Operation) -> bool:
    """Return whether a product of a block runs in float8 where asked: linear layers, and batched ones of experts."""
    return problem.operation == "linear" or (
        problem.operation == "bmm" and experts_module(operation.module) is not None
    )


def _in_float8(problem: Problem, scales: Float8, left: float, right: float) -> Iterator[Problem]:
    """Return a product in float8, and what scaling its factors for it takes.

    A tensor is cast once for all products that it is a factor of: read and written in its own dtype, and in one byte,
    by rows and by columns. One scale for a tensor needs its largest value first, so that it is read once more; scales
    of rows are none of columns, so that both are found and cast apart; one for a block is found on the way.

    Args:
        problem: The product.
        scales: What has a scale of its own.
        left: Share of the first factor's cast that falls on this product.
        right: Share of the second factor's.
    """
    batches, m, n, k = problem.dims
    elements = FACTOR_OF * batches * (m * k * left + n * k * right)
    reads = CAST_READS[scales] * COMPUTE_BYTES[problem.dtype] / FACTOR_OF
    yield replace(problem, dtype="float8")
    yield Problem("transfer", "float32", (elements * reads, elements, elements))


def part_of(
    problem: Problem, operation: Operation, model: SplitModel, block: TransformerBlock | None, cut: Cut
) -> Problem:
    """Take one GPU's part of a problem."""
    if problem.operation == "linear":
        return _linear(problem, operation.phase, model, block, cut)
    if problem.operation == "bmm" and experts_module(operation.module) is not None:
        return _of_experts(problem, _is_gradient(problem, operation, model, block), block, cut)
    if problem.operation == "bmm":
        return _divided(problem, {"b": cut.micro_batches * (1 if block is None else cut.tensor)})
    if problem.operation in FUSED_ATTENTION:
        return _divided(problem, {"batch": cut.micro_batches, "heads": cut.tensor, "kv_heads": cut.tensor})
    if problem.operation == "embedding":
        return _divided(problem, {"rows": cut.rows})
    if "batch" in operation_kind(problem.operation).shape:
        return _divided(problem, {"batch": cut.micro_batches})
    tensors = [tensor for tensor in (*operation.inputs, *operation.outputs) if tensor.shape]
    if not tensors:
        return problem
    largest = max(tensors, key=lambda tensor: tensor.elements)
    is_shared = model.is_split(largest.shape, block) or (cut.sequence and block is not None)
    share = 1 / cut.tensor if is_shared else 1.0
    of_batch = _batch_share(tensors, model)
    return thinned(problem, share * (1 - of_batch + of_batch / cut.rows))


def _linear(problem: Problem, phase: Phase, model: SplitModel, block: TransformerBlock | None, cut: Cut) -> Problem:
    """Return a product of rows and a weight, or of rows and rows, which gives the weight's gradient."""
    _, m, n, k = problem.dims
    is_gradient = is_weight_gradient(problem, phase, model, block)
    rows, sides = ("k", {"n": n, "m": m}) if is_gradient else ("m", {"n": n, "k": k})
    divisors = {rows: cut.rows}
    if block is None:
        split = next((word for word, size in sides.items() if size == model.vocabulary), None)
    else:
        split = max(sides, key=lambda word: sides[word] * (sides[word] != block.hidden))
    return _divided(problem, divisors if split is None else divisors | {split: cut.tensor})


def _of_experts(problem: Problem, is_gradient: bool, block: TransformerBlock | None, cut: Cut) -> Problem:
    """Return a grouped product: a GPU's own experts, of the tokens of all groups, each split by its inner width."""
    sizes = problem.shape
    rows, sides = ("k", ("m", "n")) if is_gradient else ("m", ("n", "k"))
    inner = max(sides, key=lambda word: sizes[word] * (block is None or sizes[word] != block.hidden))
    shared = _divided(problem, {"b": cut.expert, rows: cut.rows, inner: cut.tensor})
    return replace(shared, dims=tuple((shared.shape | {rows: shared.shape[rows] * cut.expert}).values()))


def _is_gradient(problem: Problem, operation: Operation, model: SplitModel, block: TransformerBlock | None) -> bool:
    """Return whether a product gives a weight's gradient; a grouped one's result is as large as the weight."""
    if problem.operation == "linear":
        return is_weight_gradient(problem, operation.phase, model, block)
    return operation.phase == "backward" and any(one.shape in model.parameters for one in operation.outputs)


def is_weight_gradient(problem: Problem, phase: Phase, model: SplitModel, block: TransformerBlock | None) -> bool:
    """Return whether a problem is the product of rows and rows that gives a weight's gradient."""
    if phase != "backward" or problem.operation != "linear":
        return False
    _, m, n, k = problem.dims
    weights = model.weights if block is None else block.weights
    return (k, n) not in weights and bool({(m, n), (n, m)} & weights)


def _batch_share(tensors: Sequence[TensorInfo], model: SplitModel) -> float:
    """Return the share of the bytes that grow with the batch; parameters and their gradients do not."""
    own = sum(tensor.size_bytes for tensor in tensors if tensor.shape not in model.parameters)
    return own / max(sum(tensor.size_bytes for tensor in tensors), 1)


def _divided(problem: Problem, divisors: dict[str, int]) -> Problem:
    words = operation_kind(problem.operation).shape
    dims = (math.ceil(size / divisors.get(word, 1)) for word, size in zip(words, problem.dims, strict=True))
    return replace(problem, dims=tuple(float(size) for size in dims))


COUNTED: Final = frozenset({"rows", "parameters", "bags", "blocks"})
MEASURED: Final = frozenset({"read_bytes", "write_bytes", "size_bytes", "flops", "cycles"})
"""Shape parameters that go by the work: whole numbers of what there is, and sizes. Where rows are looked up for bags,
the bags go by it, and the rows of the table do not."""


def thinned(problem: Problem, share: float) -> Problem:
    """Return a share of the rows, of the parameters or of the bytes."""
    words = operation_kind(problem.operation).shape
    dims = dict(zip(words, problem.dims, strict=True))
    for word in words:
        if word in MEASURED:
            dims[word] *= share
        elif word in COUNTED and not (word == "rows" and "bags" in words):
            dims[word] = float(max(math.ceil(dims[word] * share), 1))
    if "block_cycles" in dims:  # the work of the blocks that are no longer there is no longer done
        blocks = problem.dims[words.index("blocks")]
        dims["block_cycles"] *= min(share * blocks / dims["blocks"], 1.0)
    return replace(problem, dims=tuple(dims.values()))
