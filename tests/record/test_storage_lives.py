"""When the recorder finds that a storage is freed, and the living storages at the end of a step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.memory.storages import written_storages
from lightning_predict.record.trace import Operation, Trace


def recorded(step: Callable[[], object]) -> Trace:
    return lp.capture(step, warmup_steps=0)


def freed_at(trace: Trace, number: int | None) -> list[int]:
    return [index for index, operation in enumerate(trace.operations) if number in operation.freed]


def written_by(trace: Trace, name: str) -> Operation:
    return next(operation for operation in trace.operations if operation.name == name)


def test_storages_are_freed_after_their_last_use_variable_or_loop() -> None:
    data = torch.zeros(4)

    def step() -> None:
        for _ in range(100):
            torch.relu(data + 1)

    trace = recorded(step)
    assert [operation.freed for operation in trace.operations] == [()] * 200
    assert trace.held == ()

    def step_with_a_variable() -> None:
        kept = torch.exp(data)
        for _ in range(40):
            torch.relu(data)
        del kept
        for _ in range(80):
            torch.relu(data)

    trace = recorded(step_with_a_variable)
    (number,) = (tensor.id for tensor in written_by(trace, "aten::exp").outputs)
    (index,) = freed_at(trace, number)
    assert index == 40  # operations 1 to 40 ran while it was held
    variables: dict[str, torch.Tensor] = {}

    def step_of_a_loop() -> None:
        variables["logits"] = torch.exp(data)
        torch.relu(data)

    trace = recorded(step_of_a_loop)
    assert trace.held == tuple(tensor.id for tensor in written_by(trace, "aten::exp").outputs)


def test_gradients_of_the_previous_step_may_live_through_the_forward_pass() -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    data = torch.zeros(4, 3)

    def dropped_first() -> None:
        optimizer.zero_grad()
        layer(data).sum().backward()
        optimizer.step()

    def dropped_last() -> None:
        loss = layer(data).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dropped_first()
    first, last = recorded(dropped_first), recorded(dropped_last)
    assert first.memory.forward_gradient_bytes == 0
    assert last.memory.forward_gradient_bytes == last.memory.gradient_bytes == (3 * 2 + 2) * 4
    updates = [operation.inputs[1].id for operation in first.operations if operation.phase == "optimizer"]
    assert len(updates) == 2
    assert set(updates) <= set(first.held or ())


def test_backward_pass_of_attention_writes_gradients_of_its_inputs() -> None:
    query, key, value = (torch.zeros(2, 4, 16, 8, requires_grad=True) for _ in range(3))

    def step() -> None:
        data = (query * 2, key * 2, value * 2)
        nn.functional.scaled_dot_product_attention(*data).sum().backward()

    trace = recorded(step)
    backward = written_by(trace, "aten::scaled_dot_product_attention_backward")
    assert [tensor.shape for tensor in backward.outputs] == [(2, 4, 16, 8)] * 3
    written = {tensor.id for tensor in backward.outputs}
    read = {operation.inputs[0].id for operation in trace.operations if operation.phase == "backward"}
    assert len(written) == 3
    assert written <= read


def test_locals_of_the_forward_pass_are_freed_before_the_backward_pass() -> None:
    data = torch.zeros(4, requires_grad=True)

    def loss(kept: torch.Tensor) -> torch.Tensor:
        total = (kept + 1).sum()
        for _ in range(3):
            total = total + 1
        return total

    def step() -> None:
        loss(data * 2).backward()

    trace = recorded(step)
    number = written_by(trace, "aten::mul").outputs[0].id
    backward = next(index for index, operation in enumerate(trace.operations) if operation.phase == "backward")
    assert all(index < backward for index in freed_at(trace, number))


class ComputedAgain(torch.autograd.Function):
    """A layer whose forward pass runs again for its backward pass, as reversible layers do: its graph is kept."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        """Compute without a graph; the view is a leaf there that wants a gradient."""
        ctx.save_for_backward(data)
        ctx.layer = layer
        result: torch.Tensor = layer(data.chunk(1, dim=-1)[0])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        """Compute again with a graph that the first backward pass does not release."""
        (data,) = ctx.saved_tensors
        with torch.enable_grad():
            data = data.detach().requires_grad_()
            ctx.layer(data).backward(gradient, retain_graph=True)
        return data.grad, None


@pytest.mark.parametrize("layers", [3, 6])
def test_recomputed_layer_is_freed_by_the_next_layer(layers: int) -> None:
    width, samples = 16, 4
    model = nn.ModuleList(
        nn.Sequential(nn.Linear(width, 4 * width), nn.Sigmoid(), nn.Linear(4 * width, width)) for _ in range(layers)
    )

    def step() -> None:
        result = torch.zeros(samples, width, requires_grad=True) + 1
        for layer in model:
            result = ComputedAgain.apply(result, layer)  # type: ignore[no-untyped-call]
        result.sum().backward()

    trace = recorded(step)
    wide = 4 * width * samples * 4  # what lies between the two linear layers, in bytes
    own = [storage for storage in written_storages(trace) if storage.cause == "backward" and storage.size_bytes == wide]
    # Of each layer: the result before and after the sigmoid, and the gradients of both.
    assert len(own) == 4 * layers
    assert all(storage.freed_at is not None for storage in own)
    # Storages that are freed long after their last use are found 64 operations later at most: in the layer after.
    levels = [
        sum(one.allocated_at <= index <= (one.freed_at or 0) for one in own) for index in range(len(trace.operations))
    ]
    assert max(levels) < 4 * 2


class ReadsLate(torch.autograd.Function):
    """Reads a tensor in the backward pass alone, from outside of the graph."""

    table = torch.ones(2**19)

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        """Double the data."""
        return data * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Scale the gradient by the sum of the table."""
        return gradient * ReadsLate.table.sum()


def test_bytes_that_no_operation_wrote_are_noted_and_live_while_used() -> None:
    data = torch.zeros(4, requires_grad=True)
    trace = recorded(lambda: ReadsLate.apply(data).sum().backward())  # type: ignore[no-untyped-call]
    assert any("reads 2 MiB that no recorded operation wrote" in note for note in trace.notes)  # 2**19 of 4 bytes
    (table,) = (storage for storage in written_storages(trace) if storage.size_bytes == 2**21)
    (read,) = (
        index for index, one in enumerate(trace.operations) if one.name == "aten::sum" and one.phase == "backward"
    )
    assert (table.cause, table.allocated_at, table.freed_at) == ("backward", read, read)
