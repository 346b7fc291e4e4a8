"""Which operations and parameters of a recorded step belong to embedding tables.

A table is a parameter with the shape of a table that is looked up. Its operations are the lookups, and all operations
that only create, sum or apply its gradients. The other operations are dense layers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.embeddings.tables import BACKWARDS, TracedTables, is_look_up, tables_of_trace
from lightning_predict.layouts.gradients import parameter_bytes
from lightning_predict.record.trace import Operation, TensorInfo, Trace

TABLE_BACKWARDS: Final = frozenset({*BACKWARDS, "aten::embedding_dense_backward", "aten::embedding_sparse_backward"})


class StepTables:
    """Embedding tables of a recorded step, and the operations that belong to them."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.traced: TracedTables = tables_of_trace(trace)
        if trace.batches > 1:
            raise InvalidArgumentError(
                f"strategy: embedding shares the tables of one batch, and this step has {trace.batches}; record a step "
                "without gradient accumulation."
            )
        self.shapes = frozenset((table.rows, table.dim) for table in self.traced.tables)
        names = {f"{table.name}.weight": table for table in self.traced.tables}
        own = [
            parameter
            for parameter in trace.parameters
            if parameter.shape in self.shapes and (parameter.name in names or not self._is_named(parameter.name))
        ]
        self.parameters = tuple(own)
        self.dense_parameters = tuple(parameter for parameter in trace.parameters if parameter not in own)
        self._modules = {parameter.name.rpartition(".")[0] for parameter in own}

    def _is_named(self, name: str) -> bool:
        """Return whether the module of a parameter computes more than lookups."""
        module = name.rpartition(".")[0]
        return any(operation.module == module and not is_look_up(operation) for operation in self._trace.operations)

    @property
    def parameter_bytes(self) -> float:
        """Bytes of the tables."""
        return float(sum(map(parameter_bytes, self.parameters)))

    @cached_property
    def operations(self) -> frozenset[int]:
        """Positions of lookups, and of operations that only create, sum or apply gradients of tables."""
        return frozenset(i for i, operation in enumerate(self._trace.operations) if self._is_own(operation))

    def _is_own(self, operation: Operation) -> bool:
        if is_look_up(operation) or operation.name in TABLE_BACKWARDS:
            return True
        if operation.module in self._modules and operation.phase in ("forward", "backward"):
            return True
        if operation.phase == "backward" and operation.module is None:
            return any(self._is_gradient(tensor) for tensor in operation.inputs)
        return operation.phase == "optimizer" and self.dense_share(operation) == 0.0

    def _is_gradient(self, tensor: TensorInfo) -> bool:
        """Return whether a tensor is the gradient of a table; a sparse gradient has its shape, but no storage id."""
        return tensor.shape in self.shapes if tensor.id is None else tensor.id in self._gradients

    @cached_property
    def _gradients(self) -> frozenset[int]:
        made = (operation for operation in self._trace.operations if operation.name in TABLE_BACKWARDS)
        return frozenset(tensor.id for operation in made for tensor in operation.outputs if tensor.id is not None)

    def dense_share(self, operation: Operation) -> float:
        """Return the share of an operation's values in tensors that do not have the shape of a table."""
        tensors = [tensor for tensor in (*operation.inputs, *operation.outputs) if len(tensor.shape) > 0]
        every = sum(tensor.elements for tensor in tensors)
        dense = sum(tensor.elements for tensor in tensors if tensor.shape not in self.shapes)
        return dense / every if every else 1.0

    def reads_vectors(self) -> frozenset[int]:
        """Return the positions of forward operations that need a looked-up vector; without ids, all after the first."""
        forward = [(i, operation) for i, operation in enumerate(self._trace.operations) if operation.phase == "forward"]
        looked_up = {tensor.id for _, operation in forward if is_look_up(operation) for tensor in operation.outputs}
        if not looked_up or None in looked_up:
            first = next(i for i, operation in forward if is_look_up(operation))
            return frozenset(i for i, _ in forward if i > first)
        indices = set[int]()
        for index, operation in forward:
            if index not in self.operations and any(tensor.id in looked_up for tensor in operation.inputs):
                indices.add(index)
                looked_up |= {tensor.id for tensor in operation.outputs} - {None}
        return frozenset(indices)

    def gradients_ready(self) -> int:
        """Return the position of the operation after which the gradients of all vectors are ready.

        Without storage ids, this is the operation before the backward pass of the tables.
        """
        backward = [(i, one) for i, one in enumerate(self._trace.operations) if one.phase == "backward"]
        own = [(i, operation) for i, operation in backward if operation.name in TABLE_BACKWARDS]
        if not own:
            return max(i for i, _ in backward)
        wanted = {operation.inputs[0].id for _, operation in own if operation.inputs}
        if None in wanted:
            return own[0][0] - 1
        writers = [i for i, one in backward if any(t.id in wanted for t in one.outputs) and not _only_views(one)]
        return max((i for i in writers if i < own[-1][0]), default=own[0][0] - 1)


def without_tables(trace: Trace) -> Trace:
    """Return a step without the lookups and the parameters of embedding tables."""
    tables = StepTables(trace)
    memory, gone = trace.memory, tables.parameter_bytes
    share = 1 - gone / memory.parameter_bytes if memory.parameter_bytes else 1.0
    state = None if memory.optimizer_state_bytes is None else round(memory.optimizer_state_bytes * share)
    has_gradients = memory.gradient_bytes is not None and memory.gradient_bytes >= gone
    gradients = None if memory.gradient_bytes is None else round(memory.gradient_bytes - gone * has_gradients)
    lasting = gone * (1 + has_gradients) + (memory.optimizer_state_bytes or 0) * (1 - share)
    return replace(
        trace,
        operations=tuple(one for index, one in enumerate(trace.operations) if index not in tables.operations),
        parameters=tables.dense_parameters,
        memory=replace(
            memory,
            parameter_bytes=None if memory.parameter_bytes is None else round(memory.parameter_bytes - gone),
            gradient_bytes=gradients,
            optimizer_state_bytes=state,
            peak_bytes=None if memory.peak_bytes is None else max(round(memory.peak_bytes - lasting), 0),
            reserved_bytes=None if memory.reserved_bytes is None else max(round(memory.reserved_bytes - lasting), 0),
        ),
    )


def _only_views(operation: Operation) -> bool:
    """Return whether an operation only creates views, which share the storages of its inputs."""
    given = {tensor.id for tensor in operation.inputs}
    return bool(operation.outputs) and all(tensor.id in given for tensor in operation.outputs)
