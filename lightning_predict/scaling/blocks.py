"""The transformer blocks of a trace: the numbered modules that hold attention and linear layers.

What a block is, its operations say: the width of its residual stream is the size that its weights have in common, and
the number of heads is that of its attention, or the rows of its softmax over the tokens where attention is written
out. Modules that hold blocks, or lie inside one, are none. Example::

    blocks = find_blocks(trace)
    len(blocks), blocks[0].hidden, blocks[0].heads  # 32, 4096, 32
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.kernels.operations import COMPUTE_BYTES, Problem
from lightning_predict.kernels.translation import translate
from lightning_predict.tracing.records import DTYPE_BYTES, Operation, Trace

ATTENTION: Final = ("attention", "attention_backward")

Weight = tuple[int, int]
"""Outputs and inputs of a linear layer."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
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
        stream_bytes: Size of its residual stream.
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
        """Equal for modules that do the same on equal shapes."""
        return tuple(
            (operation.name, tuple(tensor.shape for tensor in operation.inputs)) for operation, _ in self.operations
        )

    def is_block(self) -> bool:
        """Attention, and linear layers beside it."""
        return bool(self.linears) and any(_attentions(self.problems()))


def find_blocks(trace: Trace) -> tuple[Block, ...]:
    """The blocks in the order in which the forward pass visits them.

    Args:
        trace: Recorded with the names of modules.

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
    """The numbered modules that a module is or lies in, outermost first."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            yield ".".join(parts[: position + 1])


def block_of(module: str | None, positions: Mapping[str, int]) -> int | None:
    """Position of the block that a module is or lies in; None outside of all.

    Args:
        module: Name of the module.
        positions: Position of each block by its name.
    """
    found = (positions.get(name) for name in numbered_modules(module or ""))
    return next((position for position in found if position is not None), None)


def positions_of(blocks: Sequence[Block]) -> dict[str, int]:
    """Position of each block by its name."""
    return {block.name: position for position, block in enumerate(blocks)}


def _units(trace: Trace) -> dict[str, _Unit]:
    """All numbered modules, by the forward operations inside them."""
    units: dict[str, _Unit] = {}
    for operation in trace.operations:
        if operation.phase == "forward" and operation.module is not None:
            problems = translate(operation, trace.flags)
            for name in numbered_modules(operation.module):
                units.setdefault(name, _Unit()).operations.append((operation, problems))
    return units


def _repeated(units: Mapping[str, _Unit]) -> set[str]:
    """Modules beside equal ones, the outermost such."""
    counts = Counter((_container(name), unit.signature()) for name, unit in units.items())
    containers = {container for (container, _), count in counts.items() if count > 1}
    inside = {name for name in units if _container(name) in containers}
    return {name for name in inside if not any(outer in inside for outer in list(numbered_modules(name))[:-1])}


def _innermost(units: Iterable[str]) -> set[str]:
    """Modules without another inside them: blocks that have no like."""
    names = set(units)
    return names - {outer for name in names for outer in list(numbered_modules(name))[:-1]}


def _are_nested(name: str, chosen: Collection[str]) -> bool:
    """A module is one of these, holds one or lies in one."""
    around = set(numbered_modules(name))
    return any(other in around or name in numbered_modules(other) for other in chosen)


def _container(name: str) -> str:
    return name.rpartition(".")[0]


def _attentions(problems: Iterator[Problem]) -> Iterator[tuple[Problem, bool]]:
    """Attention that is fused (True), or the softmax between two batched products, without a linear layer between."""
    multiplied = False
    softmax: Problem | None = None
    for problem in problems:
        if problem.operation in ATTENTION:
            yield problem, True
        elif problem.operation == "linear":
            multiplied, softmax = False, None
        elif problem.operation == "softmax":
            softmax = problem if multiplied else None
        elif problem.operation == "bmm":
            if softmax is not None:
                yield softmax, False
            multiplied, softmax = True, None


def _block(name: str, unit: _Unit, trace: Trace) -> Block:
    linears = unit.linears
    weights = [(int(problem.dims[2]), int(problem.dims[3])) for problem in linears]
    # The first layer reads the residual stream, which settles a draw.
    shared = Counter([weights[0][1], *(size for weight in weights for size in set(weight))])
    hidden = shared.most_common(1)[0][0]
    tokens = int(linears[0].dims[0] * linears[0].dims[1])
    heads, kv_heads = _heads(unit, tokens)
    return Block(
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
        reduced_bytes=tuple(_reduced(unit, hidden)),
        stream_bytes=tokens * hidden * _stream_element_bytes(unit, hidden),
    )


def _heads(unit: _Unit, tokens: int) -> tuple[int, int]:
    """Heads of the queries, and of the keys and values."""
    heads, kv_heads = [], []
    for problem, fused in _attentions(unit.problems()):
        if fused:
            heads.append(int(problem.dims[1]))
            kv_heads.append(int(problem.dims[2]))
        else:  # a row of scores for each token and head
            heads.append(max(int(problem.dims[0]) // tokens, 1))
            kv_heads.append(heads[-1])
    return max(heads), min(kv_heads)


def _reduced(unit: _Unit, hidden: int) -> Iterator[float]:
    """Bytes of the outputs that are sums over the GPUs of a block (Shoeybi et al., 2019).

    Layers that widen the stream give each GPU columns of its own; those that lead back to it, from the heads or from
    the inner width, add up. A square layer leads back where it is the first behind attention.
    """
    attends = multiplied = normalised = False
    for problem in unit.problems():
        if problem.operation == "linear":
            _, rows, outputs, inputs = problem.dims
            leads_back = outputs == hidden and (inputs != hidden or attends)
            if leads_back:
                attends = False
                yield problem.dims[0] * rows * outputs * COMPUTE_BYTES[problem.dtype]
            multiplied = normalised = False
        elif problem.operation in ATTENTION:
            attends = True
        elif problem.operation == "bmm":
            attends = attends or normalised
            multiplied = True
        elif problem.operation == "softmax":
            normalised = multiplied


def _stream_element_bytes(unit: _Unit, hidden: int) -> float:
    """Of the first tensor that is as wide as the stream."""
    widths = (
        DTYPE_BYTES.get(tensor.dtype, 4)
        for operation, _ in unit.operations
        for tensor in operation.inputs
        if math.prod(tensor.shape) > hidden and tensor.shape[-1] == hidden
    )
    return next(widths, 4)
