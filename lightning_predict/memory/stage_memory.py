"""Storages of a rank that holds part of a model, processes part of a batch, or recomputes activations.

The recorded storages become the storages of one rank of a pipeline stage:

- the rank runs its passes in the order of its schedule (`pipeline_parallel.passes_of`). A pass is one micro-batch
  through a part of the blocks, and allocates the storages of this part.
- micro-batches, tensor, context and expert parallelism divide the sizes. A storage inside a block is divided by its
  shape (`SplitModel.is_split`).
- recomputation frees storages after their last use in the forward pass. The repeated operations before the backward
  pass of a block allocate these storages again.
- a stage frees a storage that another stage reads after the pass, and the other stage holds its own copy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from lightning_predict.kernels.memory_bound import COMPILED_CALL
from lightning_predict.layouts.gradients import experts_module, is_of_expert, parameter_bytes
from lightning_predict.layouts.model_parallel import needs_blocks, stage_parameters
from lightning_predict.layouts.pipeline_parallel import (
    block_parts,
    micro_batches_of,
    passes_of,
    simulated_micro_batches,
    stages_of,
)
from lightning_predict.layouts.recomputation import MATMUL_NAMES, is_recomputed, recomputed_part
from lightning_predict.layouts.strategy import Recompute, Strategy
from lightning_predict.layouts.tensor_parallel import SplitModel, split_model
from lightning_predict.memory.simulation import Blocks, blocks_of, copies_of
from lightning_predict.memory.storages import Cause, Storage
from lightning_predict.record.trace import DTYPE_BYTES, Operation, Parameter, Trace

Pass = tuple[bool, int]  # Whether the pass is a backward pass, and the part of the blocks
Place = tuple[Pass | None, int]  # Position of an operation in a pass; the pass is None after the last backward pass


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Sizes of the parameters of a rank: all, trainable and of experts in bytes, and trainable elements."""

    parameters: tuple[Parameter, ...]
    held: float
    trained: float
    experts: float
    elements: float

    @staticmethod
    def of(parameters: Iterable[Parameter]) -> ModelPart:
        """Return the part of the model with these parameters."""
        parameters = tuple(parameters)
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        return ModelPart(
            parameters,
            held=sum(map(parameter_bytes, parameters)),
            trained=sum(map(parameter_bytes, trained)),
            experts=sum([parameter_bytes(parameter) for parameter in trained if is_of_expert(parameter)]),
            elements=sum([math.prod(parameter.shape) for parameter in trained]),
        )

    def trained_share(self, whole: ModelPart) -> float:
        """Return the share of the model's trainable parameters, and so of its gradients and optimizer state."""
        return self.trained / whole.trained if whole.trained else 1.0


def compiles_whole_passes(trace: Trace) -> bool:
    """Return whether the backward pass is one compiled call, which returns all gradients together at its end."""
    names = [operation.name for operation in trace.operations if operation.phase == "backward"]
    return names.count(COMPILED_CALL) == 1


@dataclass(frozen=True, slots=True)
class RankStep:
    """Step of a rank, before replicas shard its state."""

    part: ModelPart
    blocks: Blocks  # Memory blocks of the step, without `Blocks.lasting`
    operations: Sequence[tuple[str, str | None]]  # Phase and module of each operation; empty without sharded units
    is_added_up: bool = False  # Whether the gradients of several micro-batches or batches are added
    # Index of the operation at which a compiled backward pass returns all gradients; 0 if the pass is not compiled as
    # one, or if later micro-batches have the same peak
    returns_at: int = 0


@dataclass(frozen=True, slots=True)
class _Kind:
    """Properties of a storage that decide which share of it a rank holds."""

    # How tensor parallelism divides the storage: not (`whole`), always (`split`), with sequence parallelism
    # (`sequence`), with sequence parallelism if matmul inputs are gathered again (`gathered`), or by words of the
    # vocabulary
    split: Literal["whole", "split", "sequence", "gathered", "vocabulary"]
    is_weight: bool  # Whether the storage has the shape of a parameter, which micro-batches do not divide
    is_expert: bool
    fused_bytes: int | None = None  # Size with a fused loss; None if a fused loss does not change the size

    def held(self, size_bytes: int, strategy: Strategy, rows: int, load: float) -> int:
        """Return the bytes on a rank.

        Args:
            size_bytes: Recorded size.
            strategy: Parallel strategy.
            rows: Number of parts of a batch.
            load: Tokens of the rank's experts, relative to balanced routing.
        """
        if strategy.loss == "fused" and self.fused_bytes is not None:
            size_bytes = self.fused_bytes
        is_split = self.split == "split" or (self.split == "vocabulary" and strategy.loss != "gathered")
        is_split |= strategy.sequence and (
            self.split == "sequence" or (self.split == "gathered" and strategy.gather_again)
        )
        if self.is_weight:
            parts = (strategy.experts_tensor if self.is_expert else strategy.tensor) if is_split else 1
            return math.ceil(size_bytes / parts / (strategy.expert if self.is_expert else 1))
        # Tensor-parallel GPUs that hold whole experts divide their tokens.
        is_split |= self.is_expert and strategy.experts_tensor < strategy.tensor
        parts = strategy.tensor if is_split else 1
        return math.ceil(size_bytes / parts / rows * (load if self.is_expert else 1.0))


@dataclass(frozen=True, slots=True)
class _Life:
    """A storage of one pass: places of allocation and free. `until` is None if the storage survives the step."""

    size_bytes: int
    cause: Cause
    module: str | None
    kind: _Kind
    since: Place
    until: Place | None


@dataclass(frozen=True, slots=True)
class _Order:
    """Recorded operations by pass, and the storages of each part of the blocks."""

    passes: dict[Pass, list[int]]  # Indices of the recorded operations of each pass; a repeated operation as -1 - index
    after: list[int]  # Indices of the operations after the last backward pass
    places: list[Place | None]  # Place of each recorded operation; None for operations of later recorded batches
    lives: dict[int | None, list[_Life]]  # Storages by part; None for storages that the operations `after` allocate


class StageStorages:
    """Storages of the ranks that share a recorded step."""

    def __init__(self, trace: Trace, model: ModelPart) -> None:
        self._trace, self._whole, self._all = trace, blocks_of(trace), model
        self._models: dict[bool, SplitModel] = {}
        self._orders: dict[tuple[tuple[int, ...], Recompute], _Order] = {}
        self._parts: dict[tuple[int | None, ...], list[ModelPart]] = {}
        self._kept: dict[tuple[int, Recompute], list[Counter[_Kind]]] = {}

    def rank(self, strategy: Strategy, stage: int, load: float) -> RankStep:
        """Return the step of a rank, before replicas shard its state.

        Args:
            strategy: Parallel strategy.
            stage: Pipeline stage of the rank.
            load: Tokens of the rank's experts, relative to balanced routing.
        """
        order = self._order(block_parts(strategy, len(self._model(strategy).blocks)), strategy)
        timeline = _Timeline(self._trace, order, strategy, stage, self._micro_batches(strategy), load)
        return timeline.step(self._whole, self.parts(strategy)[stage], self._all)

    def parts(self, strategy: Strategy) -> list[ModelPart]:
        """Return the part of each stage, with the shapes of a rank's parameters."""
        degrees = (strategy.tensor, strategy.pipeline, strategy.virtual, strategy.expert, strategy.experts_tensor)
        key = (*degrees, strategy.first_stage, strategy.last_stage)
        if key not in self._parts:
            stages = stage_parameters(self._trace, self._model(strategy), strategy)
            self._parts[key] = [ModelPart.of(parameters) for parameters in stages]
        return self._parts[key]

    def kept_bytes(self, strategy: Strategy) -> list[float]:
        """Return the bytes that each stage keeps for backward passes, of all micro-batches in flight at a time."""
        blocks = len(self._model(strategy).blocks)
        key = blocks, strategy.recompute
        if key not in self._kept:
            order = self._order(tuple(range(blocks)), strategy)
            self._kept[key] = [_kept_by_kind(order, part) for part in range(max(blocks, 1))]
        rows = self._micro_batches(strategy)[0] * strategy.context
        each = [
            sum(kind.held(size, strategy, rows, strategy.capacity) for kind, size in kinds.items())
            for kinds in self._kept[key]
        ]
        part_of = block_parts(strategy, len(self._model(strategy).blocks)) or (0,)
        kept = []
        for stage in range(strategy.pipeline):
            held = _in_flight(strategy, stage, math.prod(self._micro_batches(strategy)))
            kept.append(
                float(
                    sum(
                        size * held[part // strategy.pipeline]
                        for size, part in zip(each, part_of, strict=True)
                        if part % strategy.pipeline == stage
                    )
                )
            )
        return kept

    def _micro_batches(self, strategy: Strategy) -> tuple[int, int]:
        """Return the number of micro-batches per batch, and of batches per step."""
        trace = self._trace
        samples = None if trace.samples is None else max(trace.samples // trace.batches, 1)
        return micro_batches_of(strategy, samples), strategy.accumulate * trace.batches

    def _model(self, strategy: Strategy) -> SplitModel:
        needed = needs_blocks(strategy)
        if needed not in self._models:
            self._models[needed] = split_model(self._trace, needs_blocks=needed)
        return self._models[needed]

    def _order(self, parts: tuple[int, ...], strategy: Strategy) -> _Order:
        key = parts, strategy.recompute
        if key not in self._orders:
            recorded = _Recorded(self._trace, self._model(strategy), self._whole.storages)
            self._orders[key] = recorded.order(parts, strategy.recompute)
        return self._orders[key]


def _kept_by_kind(order: _Order, part: int) -> Counter[_Kind]:
    """Return the bytes that a part keeps from the forward pass to the backward pass, by kind of storage."""
    sizes = Counter[_Kind]()
    for life in order.lives.get(part, ()):
        if life.since[0] == (False, part) and life.until is not None and life.until[0] == (True, part):
            sizes[life.kind] += life.size_bytes
    return sizes


def _in_flight(strategy: Strategy, stage: int, micro_batches: int) -> list[int]:
    """Return the most micro-batches whose activations a stage holds, by part of the stage."""
    counts, most = [0] * strategy.virtual, [0] * strategy.virtual
    for is_backward, part, _ in passes_of(strategy, stage, simulated_micro_batches(strategy, stage, micro_batches)):
        counts[part] += -1 if is_backward else 1
        if sum(counts) >= sum(most):
            most = list(counts)
    return most


class _Recorded:
    """Assigns the storages of a recorded step to passes."""

    def __init__(self, trace: Trace, model: SplitModel, storages: Sequence[Storage]) -> None:
        self._trace, self._model, self._storages = trace, model, storages
        self._operations = trace.operations
        phases = [operation.phase for operation in trace.operations]
        self._ends = max((at for at, phase in enumerate(phases) if phase in ("forward", "backward")), default=-1)
        backward = phases.index("backward") if "backward" in phases else len(phases)
        is_first = trace.batches == 1 or "forward" not in phases[backward:]
        # Only the first of several recorded batches counts; the schedule repeats it.
        self._first = len(phases) if is_first else phases.index("forward", backward)

    def order(self, parts: tuple[int, ...], recompute: Recompute) -> _Order:
        """Return the operations and storages of each pass."""
        chosen, passes, after = self._chosen(recompute), dict[Pass, list[int]](), list[int]()
        places: list[Place | None] = [None] * len(self._operations)
        again: dict[int, Place] = {}
        current: Pass = (False, 0)
        met = set[int]()
        owners = stages_of(self._operations, self._model.positions, parts)
        for index, (operation, part) in enumerate(zip(self._operations, owners, strict=True)):
            if index > self._ends:
                places[index] = None, len(after)
                after.append(index)
                continue
            if index >= self._first:
                continue
            if part is not None:
                current = operation.phase == "backward", part
            own = passes.setdefault(current, [])
            block = self._position(operation)
            if current[0] and block is not None and block not in met and block in chosen:
                met.add(block)
                for repeated in chosen[block]:
                    again[repeated] = current, len(own)
                    own.append(-1 - repeated)
            places[index] = current, len(own)
            own.append(index)
        lives: dict[int | None, list[_Life]] = {}
        for life in self._lives(places, again, recompute):
            part_of = life.since[0]
            lives.setdefault(None if part_of is None else part_of[1], []).append(life)
        return _Order(passes, after, places, lives)

    def _position(self, operation: Operation) -> int | None:
        block = self._model.block(operation.module)
        return None if block is None else self._model.positions[block.name]

    def _chosen(self, recompute: Recompute) -> dict[int, list[int]]:
        """Return the indices of the repeated forward operations of each block."""
        by_block: dict[int, list[int]] = {}
        for index, operation in enumerate(self._operations[: self._first] if recompute != "none" else ()):
            position = self._position(operation) if operation.phase == "forward" else None
            if position is not None and is_recomputed(position, recompute):
                by_block.setdefault(position, []).append(index)
        return {
            block: [own[at] for at in recomputed_part([self._operations[index] for index in own], recompute)]
            for block, own in by_block.items()
        }

    @cached_property
    def _last_reads(self) -> dict[int, int]:
        """Index of the last forward operation that uses each storage."""
        return {
            tensor.id: index
            for index, operation in enumerate(self._operations[: self._first])
            if operation.phase == "forward"
            for tensor in (*operation.inputs, *operation.outputs)
            if tensor.id is not None
        }

    def _lives(self, places: Sequence[Place | None], again: dict[int, Place], recompute: Recompute) -> Iterator[_Life]:
        keeps_others = recompute == "operations"
        leaving = self._leaving_blocks() if keeps_others else frozenset()
        kinds = _KindFinder(self._trace, self._model, self._storages)
        starts = {self._position(self._operations[index]): place for index, place in reversed(again.items())}
        for storage in self._storages:
            since = places[storage.allocated_at]
            if since is None:
                continue
            until = None if storage.freed_at is None else places[storage.freed_at] or (since[0], -1)
            number = None if storage.tensor is None else storage.tensor.id
            read = storage.allocated_at if number is None else self._last_reads.get(number, storage.allocated_at)
            life = _Life(storage.size_bytes, storage.cause, storage.module, kinds(storage), since, until)
            wrote = self._operations[storage.allocated_at]
            block, reader = self._position(wrote), self._position(self._operations[read])
            if until is not None and since[0] is not None and not since[0][0] and again:
                is_again = storage.allocated_at in again
                if is_again and reader == block and not _is_read_before(again[storage.allocated_at], until):
                    yield from _dropped(
                        life, read=places[read], again=again, at=storage.allocated_at, freed=storage.freed_at
                    )
                    continue
                if is_again and reader in starts and number not in [tensor.id for tensor in wrote.outputs[:1]]:
                    # A fused operation that crosses the end of a block, whose output is the first: the next block
                    # writes this output again.
                    yield replace(life, until=places[read] or until)
                    yield replace(life, since=starts[reader], until=_later(until, starts[reader]))
                    continue
                if read in again and number not in leaving:
                    life = replace(life, until=_later(until, again[read]))
                elif keeps_others and number not in leaving and block is not None and is_recomputed(block, recompute):
                    life = replace(life, until=_later(until, ((True, since[0][1]), 0)))
            yield life
            yield from _received(life)

    def _leaving_blocks(self) -> frozenset[int | None]:
        """Return the ids of the storages that the last operation of each block reads; compiled code drops these."""
        operations = self._operations
        if not self._trace.compiled and not any(operation.name == COMPILED_CALL for operation in operations):
            return frozenset()
        last = {
            position: operation
            for operation in operations
            if operation.phase == "forward" and (position := self._position(operation)) is not None
        }
        return frozenset(tensor.id for operation in last.values() for tensor in (*operation.inputs, *operation.outputs))


def _later(*places: Place) -> Place:
    """Return the later of two places of the forward and backward passes; None as a pass is the latest."""

    def moment(place: Place) -> tuple[int, int, int]:
        if place[0] is None:
            return 2, 0, 0
        is_backward, part = place[0]
        return int(is_backward), -part if is_backward else part, place[1]

    return max(places, key=moment)


def _is_read_before(again: Place, until: Place) -> bool:
    """Return whether the backward pass uses a storage before the operation that would write the storage again."""
    return until[0] is not None and until[0][0] and _later(again, until) == again


def _dropped(
    life: _Life, *, read: Place | None, again: dict[int, Place], at: int, freed: int | None
) -> Iterator[_Life]:
    """Yield the storage of the forward pass, and the storage that the repeated operation writes."""
    yield replace(life, until=read if read is not None and read[0] == life.since[0] else (life.since[0], life.since[1]))
    since, until = again[at], life.until
    if until is not None and until[0] is not None and until[0][0]:
        yield replace(life, since=since, until=until)
    elif freed in again:
        yield replace(life, since=since, until=_later(since, again[freed]))


def _received(life: _Life) -> Iterator[_Life]:
    """Yield the copy of a storage on the stage that uses the storage last."""
    since, until = life.since[0], None if life.until is None else life.until[0]
    if since is None or until is None or since[1] == until[1] or life.until is None:
        return
    start = (since[0], until[1])
    if until[0] or not since[0]:
        yield replace(life, since=(start, 0), until=life.until)


class _KindFinder:
    """Finds the kind of each storage of a recorded step."""

    def __init__(self, trace: Trace, model: SplitModel, storages: Sequence[Storage]) -> None:
        self._trace, self._model = trace, model
        self._multiplied = {
            tensor.id
            for operation in trace.operations
            if operation.phase == "forward" and operation.name in MATMUL_NAMES
            for tensor in operation.inputs
        }
        words = [storage for storage in storages if self._is_of_vocabulary(storage)]
        self._logits = max((word.tensor.elements for word in words if word.tensor is not None), default=0)
        # A fused loss keeps probabilities, and turns these into the gradient in place.
        self._loss = {
            cause: max((word for word in words if word.cause == cause), key=_freed, default=None)
            for cause in ("activation", "backward")
        }

    def _is_of_vocabulary(self, storage: Storage) -> bool:
        """Whether the storage has one value per word of the vocabulary."""
        words, tensor = self._model.vocabulary, storage.tensor
        if tensor is None or words is None or storage.cause not in ("activation", "backward"):
            return False
        return tensor.shape[-1:] == (words,) and self._block(storage) is None and not self._is_weight(storage)

    def _block(self, storage: Storage) -> object:
        return self._model.block(self._trace.operations[storage.allocated_at].module)

    def _is_weight(self, storage: Storage) -> bool:
        return storage.cause in ("gradient", "update") or (
            storage.tensor is not None and storage.tensor.shape in self._model.parameters
        )

    def __call__(self, storage: Storage) -> _Kind:
        module = self._trace.operations[storage.allocated_at].module
        block, tensor = self._model.block(module), storage.tensor
        is_expert, is_weight = experts_module(module) is not None, self._is_weight(storage)
        fused = None
        if self._is_of_vocabulary(storage):
            item_bytes = DTYPE_BYTES["float32"] if storage.cause == "activation" else DTYPE_BYTES["bfloat16"]
            fused = self._logits * item_bytes if storage is self._loss[storage.cause] else 0
            return _Kind("vocabulary", is_weight=False, is_expert=False, fused_bytes=fused)
        if tensor is None:
            return _Kind("whole" if block is None else "split", is_weight=False, is_expert=is_expert)
        if self._model.is_split(tensor.shape, block):
            return _Kind("split", is_weight, is_expert)
        if is_weight or block is None:
            return _Kind("whole", is_weight, is_expert)
        return _Kind("gathered" if tensor.id in self._multiplied else "sequence", is_weight=False, is_expert=is_expert)


def _freed(storage: Storage) -> float:
    return math.inf if storage.freed_at is None else storage.freed_at


class _Timeline:
    """The passes of a rank in the order of the schedule, as one sequence of operations."""

    def __init__(
        self, trace: Trace, order: _Order, strategy: Strategy, stage: int, micro_batches: tuple[int, int], load: float
    ) -> None:
        self._trace, self._order, self._strategy, self._load = trace, order, strategy, load
        self._rows = micro_batches[0] * strategy.context
        self._count = simulated_micro_batches(strategy, stage, math.prod(micro_batches))
        self._is_added_up = math.prod(micro_batches) > 1
        self._returns_together = not strategy.split.gradients and compiles_whole_passes(trace)
        self._parts = [stage + part * strategy.pipeline for part in range(strategy.virtual)]
        self._starts: dict[tuple[Pass, int], int] = {}
        self._end = 0
        for is_backward, part, number in passes_of(strategy, stage, self._count):
            own = is_backward, self._parts[part]
            self._starts[own, number] = self._end
            self._end += len(order.passes.get(own, ()))

    def step(self, whole: Blocks, part: ModelPart, model: ModelPart) -> RankStep:
        """Return the rank's step; arguments as recorded blocks, the rank's part and the whole model."""
        trained = part.trained_share(model)
        sizes = [parameter_bytes(parameter) for parameter in part.parameters if parameter.requires_grad]
        first = min((at for (own, _), at in self._starts.items() if own[0]), default=self._end)
        blocks = replace(
            whole,
            lasting=(),
            kept=tuple(math.ceil(size * trained) for size in whole.kept),
            state=copies_of(math.ceil((self._trace.memory.optimizer_state_bytes or 0) * trained), sizes),
            batch=tuple(math.ceil(size / self._rows) for size in whole.batch),
            storages=tuple(sorted(self._storages(trained), key=lambda storage: storage.allocated_at)),
            update=tuple(math.ceil(size * trained) for size in whole.update),
            count=self._end + len(self._order.after),
            update_at=self._end + max(whole.update_at - whole.count + len(self._order.after), 0),
            drops_gradients_at=-1 if whole.drops_gradients_at < 0 else first - 1,
            workspaces=tuple(self._workspaces(whole.workspaces)),
            trials=tuple(self._workspaces(whole.trials)),
        )
        operations = self._operations() if self._strategy.split.gradients else ()
        return RankStep(part, blocks, operations, self._is_added_up)

    def _operations(self) -> list[tuple[str, str | None]]:
        """Return the phase and the module of each operation."""
        phases = list[tuple[str, str | None]]()
        operations = self._trace.operations
        for (own, _), _start in sorted(self._starts.items(), key=lambda item: item[1]):
            for index in self._order.passes.get(own, ()):
                operation = operations[index if index >= 0 else -1 - index]
                phases.append((operation.phase if index >= 0 else "backward", operation.module))
        return [*phases, *((operations[index].phase, operations[index].module) for index in self._order.after)]

    def _workspaces(self, recorded: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for index, size in recorded:
            place = self._order.places[index]
            for number in range(self._count if place is not None and place[0] is not None else 0):
                start = None if place is None or place[0] is None else self._starts.get((place[0], number))
                if start is not None and place is not None:
                    yield start + place[1], math.ceil(size / self._rows / self._strategy.tensor)

    def _storages(self, trained: float) -> Iterator[Storage]:
        for life in self._order.lives.get(None, ()):
            until = None if life.until is None else self._end + life.until[1]
            yield Storage(
                math.ceil(life.size_bytes * trained), life.cause, self._end + life.since[1], until, life.module
            )
        sizes: dict[tuple[_Kind, int], int] = {}
        for part in self._parts:
            for life in self._order.lives.get(part, ()):
                key = life.kind, life.size_bytes
                if key not in sizes:
                    sizes[key] = life.kind.held(life.size_bytes, self._strategy, self._rows, self._load)
                if sizes[key]:
                    yield from self._copies(life, sizes[key])

    def _copies(self, life: _Life, size: int) -> Iterator[Storage]:
        """Yield the storage of each micro-batch."""
        own, at = life.since
        assert own is not None
        length = len(self._order.passes[own])
        for number in range(self._count):
            start = self._starts.get((own, number))
            if start is None:
                continue
            cause = life.cause
            freed: int | None = start + length - 1
            until = life.until
            if until is None or until[0] is None:
                # Later micro-batches add to the first gradient, and assign to the variable that holds the first tensor.
                # A pipeline keeps the tensors of micro-batches up to their backward passes.
                is_pipeline = self._strategy.pipeline > 1
                if number > 0 and cause == "gradient":
                    cause, freed = "backward", freed if self._returns_together else start + at
                elif cause == "gradient" or number == (self._count - 1 if is_pipeline else 0):
                    freed = None if until is None else self._end + until[1]
                elif not is_pipeline:
                    freed = start + at
                elif ((True, own[1]), number) in self._starts:
                    freed = self._starts[(True, own[1]), number] + len(self._order.passes[True, own[1]]) - 1
            elif until[0][1] == own[1] and (until[0], number) in self._starts:
                last = until[1] if until[1] >= 0 else len(self._order.passes[until[0]]) - 1
                freed = self._starts[until[0], number] + last
            yield Storage(size, cause, start + at, freed, life.module)
