"""What a compiled step keeps for its backward pass: the minimum cut that AOTAutograd makes between the two passes.

`torch.compile` traces both passes as one graph. A value of the forward pass that the backward pass reads is either
kept, or computed again from kept values. The partitioner (`torch/_functorch/partitioners.py`) keeps the values of a
minimum cut, where the capacity of a value is its size:

- Matmuls, convolutions, attention, random numbers and reductions are never computed again.
- Neither is a value that the backward pass reads outside fused kernels, nor one that is used far apart, such as the
  residual stream.
- A value that no kernel has to write to memory counts twice, as keeping it costs a write and a read. Values far from
  the backward pass count more, by 10 % for each step.

Values are storages, so views count as the tensor that they show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from lightning_predict.record.signatures import DRAWS_MASKS
from lightning_predict.record.trace import Operation, TensorInfo

DISTANCE_FACTOR: Final = 1.1  # Factor on the capacity of a value for each step between it and the backward pass

MOST_DISTANCE: Final = 100

UNWRITTEN_FACTOR: Final = 2  # Factor on the capacity of a value that no kernel of the forward pass has to write
REDUCTION: Final = 4  # An operation whose inputs are more than this many times as large as its outputs is a reduction

MOST_READS: Final = 4
MOST_READS_OF_ONE: Final = 8
MOST_OPERATIONS: Final = 30
MOST_OPERATIONS_OF_ONE: Final = 100
"""Largest computation that each of several readers runs again: tensors that it reads, and operations. A single reader
accepts more of both (`realize_reads_threshold`, `realize_acc_reads_threshold`, `realize_opcount_threshold`, and the
threshold of `GraphLowering.run_node`)."""

_RANDOM: Final = frozenset({DRAWS_MASKS, "aten::native_dropout", "aten::rand_like", "aten::randn_like"})

COMPARISON: Final = "triton::comparison"
"""Name of the comparison of a value of the forward pass that only the backward pass reads."""

POOL_GRADIENT: Final = "triton::pool_gradient"
"""Name of the backward pass of max pooling, which reads where each maximum was found instead of the image."""

RUN_AGAIN: Final = "run_again"  # Argument of an operation that the kernel of the next operation without it runs again

Test = Callable[[Operation], bool]
Region = Callable[[Operation], str | None]


def rematerialised(
    operations: Sequence[Operation],
    *,
    is_fusible: Test,
    is_free: Test,
    ends_kernel: Test,
    may_run_again: Test,
    region_of: Region = lambda _: None,
) -> tuple[Operation, ...]:
    """Return the operations with the backward pass reading what the partitioner keeps, or computing it again.

    Args:
        operations: Operations of an eager step with storage ids; norms and softmaxes are split into statistics and
            normalisation.
        is_fusible: Whether an operation is part of fused kernels.
        is_free: Whether an operation runs no kernel, such as a view.
        ends_kernel: Whether later operations must wait for the result of an operation that is fused.
        may_run_again: Whether an operation that is fused may run again in a kernel that reads its result.
        region_of: Part of the model that is compiled by itself, for each operation.
    """
    functional = _without_changes_in_place(operations, is_free)
    operations = tuple(_without_repeats(functional, is_fusible, is_free, region_of))
    graph = _Graph(operations, is_fusible, is_free, may_run_again, region_of)
    return tuple(_computed_again(operations, graph, graph.written(ends_kernel), ends_kernel))


def _without_changes_in_place(operations: Sequence[Operation], is_free: Test) -> Iterator[Operation]:
    """Give each value that the forward pass overwrites an id of its own, as functionalisation does."""
    unused = unused_ids(operations)
    made: set[int] = set()
    current: dict[int, int] = {}
    for operation in operations:
        inputs = _renamed(operation.inputs, current)
        if operation.phase == "forward" and not is_free(operation):
            for tensor in operation.outputs:
                if tensor.id in made and tensor.id is not None:
                    current[tensor.id] = next(unused)
            made |= {tensor.id for tensor in operation.outputs if tensor.id is not None}
        outputs = _renamed(operation.outputs, current)
        is_changed = inputs != operation.inputs or outputs != operation.outputs
        yield replace(operation, inputs=inputs, outputs=outputs) if is_changed else operation


def _without_repeats(
    operations: Iterable[Operation], is_fusible: Test, is_free: Test, region_of: Region
) -> Iterator[Operation]:
    """Drop fusible operations of the forward pass that compute what an earlier one did, such as casts of one input.

    An operation that reads part of a storage is kept, because two parts of one size cannot be told apart.
    """
    operations = tuple(operations)
    whole: defaultdict[int | None, int] = defaultdict(int)
    for value in (tensor for operation in operations for tensor in (*operation.inputs, *operation.outputs)):
        whole[value.id] = max(whole[value.id], value.elements)
    first: dict[object, list[int]] = {}
    same: dict[int, int] = {}
    for operation in operations:
        inputs = _renamed(operation.inputs, same)
        if inputs != operation.inputs:
            outputs = _renamed(operation.outputs, same) if is_free(operation) else operation.outputs
            operation = replace(operation, inputs=inputs, outputs=outputs)
        if operation.phase == "forward" and operation.inputs and not is_free(operation) and is_fusible(operation):
            written, read = _ids(operation.outputs), _ids(operation.inputs)
            shapes = tuple((output.shape, output.dtype) for output in operation.outputs)
            arguments = repr(sorted(operation.arguments.items()))
            key = (operation.name, operation.inputs, shapes, arguments, region_of(operation))
            reads_part = any(tensor.elements < whole[tensor.id] for tensor in operation.inputs if tensor.id is not None)
            if operation.name not in _RANDOM and not reads_part and not set(written) & set(read):
                if key in first:
                    same |= dict(zip(written, first[key], strict=True))
                    continue
                first[key] = written
        yield operation


def unused_ids(operations: Sequence[Operation]) -> Iterator[int]:
    """Yield storage ids that no operation uses."""
    numbers = (tensor.id for one in operations for tensor in (*one.inputs, *one.outputs) if tensor.id is not None)
    return count(max(numbers, default=0) + 1)


class _Graph:
    """The forward pass as values and their users, with the backward pass as the place where values are needed.

    Args:
        operations: Operations of the step.
        is_fusible: Whether an operation is part of fused kernels.
        is_free: Whether an operation runs no kernel.
        may_run_again: Whether an operation that is fused may run again.
        region_of: Part of the model that is compiled by itself.
    """

    def __init__(
        self, operations: Sequence[Operation], is_fusible: Test, is_free: Test, may_run_again: Test, region_of: Region
    ) -> None:
        self._runs_again = may_run_again
        self._crossing: set[int] = set()  # results that another region reads, or a later operation changes
        self.region_of = region_of
        self.maker: dict[int, int] = {}
        self._operations = operations
        self._users: defaultdict[int, list[int]] = defaultdict(list)
        self._read_backward: defaultdict[int, list[int]] = defaultdict(list)
        self._bytes: dict[int, int] = {}
        self._forward: set[int] = set()
        given: set[int] = set()  # parameters, buffers and the batch, which may also be changed in place
        self.fusible: dict[int, bool] = {}
        for index, operation in enumerate(operations):
            if operation.phase not in ("forward", "backward") or is_free(operation):
                continue
            self.fusible[index] = is_fusible(operation)
            for number in _ids(operation.inputs):
                if number not in self.maker:
                    given.add(number)
                elif region_of(operations[self.maker[number]]) != region_of(operation):
                    self._crossing.add(number)
                is_saved = operation.phase == "backward" and number in self._forward
                (self._read_backward if is_saved else self._users)[number].append(index)
            for tensor in operation.outputs:
                if tensor.id is not None and tensor.id not in given:
                    if self.maker.setdefault(tensor.id, index) != index:
                        self._crossing.add(tensor.id)
                    size = tensor.elements if operation.name == DRAWS_MASKS else tensor.size_bytes  # masks are bytes
                    self._bytes[tensor.id] = max(self._bytes.get(tensor.id, 0), size)
                    if operation.phase == "forward":
                        self._forward.add(tensor.id)

    def written(self, ends_kernel: Test) -> set[int]:
        """Return the values that some kernel writes to memory: all others are computed by each kernel that reads them.

        Inductor writes a result that an operation outside fused kernels reads, that the backward pass keeps, or whose
        computation reads more than a few tensors or has many operations.
        """
        values = self.kept() | self._crossing
        leaves: dict[int, frozenset[int]] = {}
        lengths: dict[int, int] = {}
        for value, maker in sorted(self.maker.items(), key=lambda item: item[1]):
            operation = self._operations[maker]
            users = self._users[value]
            sources = [source for source in _ids(operation.inputs) if source in leaves]
            whole = (source for source in _ids(operation.inputs) if source not in leaves)
            read = frozenset(whole).union(*(leaves[source] for source in sources))
            if operation.name.endswith("norm_backward"):
                read |= {-2 * maker - 1, -2 * maker - 2}  # sums of rows, and of an RMS norm the root, both not recorded
            length = 1 + sum(lengths[source] for source in sources)
            is_long = len(users) > 1 and (len(read) > MOST_READS or length > MOST_OPERATIONS)
            if (
                value in values
                or not self.fusible[maker]
                or ends_kernel(operation)
                or any(self._operations[user].name == POOL_GRADIENT for user in users)
                or operation.name in _RANDOM
                or not self._runs_again(operation)
                or not (users or self._read_backward[value])
                or not all(self.fusible[user] for user in (*users, *self._read_backward[value]))
                or is_long
                or len(read) > MOST_READS_OF_ONE
                or length > MOST_OPERATIONS_OF_ONE
            ):
                values.add(value)
            else:
                leaves[value], lengths[value] = read, length
        return values

    def kept(self) -> set[int]:
        """Return the values of the minimum cut, which the forward pass keeps for the backward pass."""
        distance = self._distances()
        needed = set(self._read_backward)
        banned = {value for value in self._forward if not self._may_run_again(value)}
        banned |= self._used_far_apart() | self._compared_apart() | (self._crossing & self._forward)
        edges: dict[str, dict[str, float]] = defaultdict(dict)
        above = self._ancestors(needed, banned)
        for value in above:
            start, end = f"{value} in", f"{value} out"
            edges[start][end] = self._capacity(value, distance[value])
            if value in banned:
                edges["source"][start] = float("inf")
            if value in needed:
                edges[end]["sink"] = float("inf")
            if value not in banned:
                for source in _ids(self._operations[self.maker[value]].inputs):
                    if source in above:
                        edges[f"{source} out"][start] = float("inf")
        if "source" not in edges or not needed:
            return set()
        before = _before_the_cut(edges)
        return {value for value in above if f"{value} in" in before and f"{value} out" not in before}

    def _ancestors(self, needed: set[int], banned: set[int]) -> set[int]:
        """Return the values from which needed ones could be computed, up to values that are kept in any case."""
        ancestors: set[int] = set()
        waiting = list(needed)
        while waiting:
            value = waiting.pop()
            if value in ancestors or value not in self._forward:
                continue
            ancestors.add(value)
            if value not in banned:
                waiting += _ids(self._operations[self.maker[value]].inputs)
        return ancestors

    def _capacity(self, value: int, distance: int) -> float:
        size = self._bytes[value] * DISTANCE_FACTOR ** max(min(distance, MOST_DISTANCE), 1)
        is_fusible = self.fusible[self.maker[value]]
        is_written = not is_fusible or value in self._crossing
        is_written = is_written or not all(self.fusible[user] for user in self._users[value])
        return size if is_written else UNWRITTEN_FACTOR * size

    def _distances(self) -> dict[int, int]:
        """Return the number of operations between each value and the backward pass."""
        distances: dict[int, int] = {}
        for value in sorted(self._forward, key=self.maker.__getitem__, reverse=True):
            if value in self._read_backward:
                distances[value] = 1
            else:
                after = [output for user in self._users[value] for output in _ids(self._operations[user].outputs)]
                distances[value] = (
                    min((distances[output] for output in after if output in distances), default=10**9) + 1
                )
        return distances

    def _may_run_again(self, value: int) -> bool:
        index = self.maker[value]
        operation = self._operations[index]
        if not self.fusible[index] or operation.name in _RANDOM or "pool" in operation.name:
            return False
        if not self._runs_again(operation):
            return False
        read, written = (sum(tensor.size_bytes for tensor in part) for part in (operation.inputs, operation.outputs))
        if written * REDUCTION < read:
            return False
        return all(self.fusible[user] for user in self._read_backward[value])

    def _used_far_apart(self) -> set[int]:
        """Return results of operations that read a value after what follows from it has left the fused kernels."""
        ids: set[int] = set()
        for value, users in list(self._users.items()):
            if not users or value not in self._forward or not self.fusible[self.maker[value]]:
                continue
            first = self._first_unfused(users)
            for user in users:
                if user > first and self.fusible[user]:
                    ids |= {output for output in _ids(self._operations[user].outputs) if self.maker.get(output) == user}
        return ids

    def _compared_apart(self) -> set[int]:
        """Return comparisons of values of which the backward pass reads only views.

        The partitioner keeps such a view, as of the rows that a linear layer reads, and computes nothing else from it.
        """
        ids: set[int] = set()
        for operation in self._operations:
            if operation.name != COMPARISON:
                continue
            value = operation.inputs[0]
            readers = [] if value.id is None else self._read_backward[value.id]
            if readers and not any(self.fusible[one] or value in self._operations[one].inputs for one in readers):
                ids |= set(_ids(operation.outputs))
        return ids

    def _first_unfused(self, users: Sequence[int]) -> int:
        """Return the first operation that follows from the users but cannot be fused with the one before it."""
        last = max(users)
        waiting = [(user, True) for user in users]
        heapify(waiting)
        seen: set[tuple[int, bool]] = set()
        while waiting:
            index, is_fused = heappop(waiting)
            if not is_fused:
                return index
            for value in _ids(self._operations[index].outputs):
                for user in self._users[value]:
                    step = (user, self.fusible[index] and self.fusible[user])
                    if user <= last and step not in seen:
                        seen.add(step)
                        heappush(waiting, step)
        return last


def _before_the_cut(edges: Mapping[str, Mapping[str, float]]) -> set[str]:
    """Return the nodes on the side of the source of a minimum cut."""
    import networkx as nx

    graph = nx.DiGraph()
    for start, ends in edges.items():
        for end, capacity in ends.items():
            graph.add_edge(start, end, **({} if capacity == float("inf") else {"capacity": capacity}))
    _, (before, _) = nx.minimum_cut(graph, "source", "sink", flow_func=nx.algorithms.flow.boykov_kolmogorov)
    return set(before)


def _renamed(tensors: Sequence[TensorInfo], ids: Mapping[int, int]) -> tuple[TensorInfo, ...]:
    """Return the tensors with other storage ids."""
    return tuple(one if one.id is None or one.id not in ids else replace(one, id=ids[one.id]) for one in tensors)


def _ids(tensors: Sequence[TensorInfo]) -> list[int]:
    return list(dict.fromkeys(tensor.id for tensor in tensors if tensor.id is not None))


def _computed_again(
    operations: Sequence[Operation], graph: _Graph, written: set[int], ends_kernel: Test
) -> Iterator[Operation]:
    """Insert the operations that a kernel runs again, as their results were never written to memory.

    A kernel ends at an operation that is not fused, and at a reduction whose result it has to wait for.
    """
    unused = unused_ids(operations)
    place: tuple[str, str | None] | None = None
    made_here: set[int] = set()
    copies: dict[int, int] = {}

    def add_makers(value: int, chain: dict[int, None]) -> None:
        """Collect the operations that compute a value again, in order."""
        index = graph.maker.get(value)
        if index is None or index in chain or value in written or value in made_here or value in copies:
            return
        for source in _ids(operations[index].inputs):
            add_makers(source, chain)
        chain[index] = None

    for index, operation in enumerate(operations):
        if operation.name == COMPARISON and not written.intersection(_ids(operation.outputs)):
            continue
        inputs = _renamed(operation.inputs, copies)
        if index not in graph.fusible:
            yield replace(operation, inputs=inputs, outputs=_renamed(operation.outputs, copies))
            continue
        if not graph.fusible[index] or (operation.phase, graph.region_of(operation)) != place:
            made_here.clear()
            copies.clear()
        place = operation.phase, graph.region_of(operation)
        results = _ids(operation.outputs)
        is_own = bool(results) and all(graph.maker.get(output) == index for output in results)
        if graph.fusible[index] and is_own and written.isdisjoint(results):
            continue  # each kernel that reads the results computes them
        chain: dict[int, None] = {}
        for value in _ids(operation.inputs):
            add_makers(value, chain)
        for maker in chain:
            again = operations[maker]
            inputs = _renamed(again.inputs, copies)
            copies |= {value: next(unused) for value in _ids(again.outputs)}
            arguments = {**again.arguments, RUN_AGAIN: True}
            outputs = _renamed(again.outputs, copies)
            yield replace(again, phase=operation.phase, inputs=inputs, outputs=outputs, arguments=arguments)
        yield replace(operation, inputs=_renamed(operation.inputs, copies))
        made_here |= {value for value in _ids(operation.outputs) if graph.maker.get(value) == index}
        if ends_kernel(operation):
            made_here.clear()
            copies.clear()
