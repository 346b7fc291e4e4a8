"""Fused kernels against those that Inductor schedules for the same models on the CPU: their number and bytes."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import lightning_predict as lp
from lightning_predict.fusion.kernels import fused
from lightning_predict.kernels.memory_bound import is_free
from lightning_predict.kernels.operations import operation_spec
from lightning_predict.kernels.translation import is_complex, translate
from lightning_predict.record.trace import TensorInfo
from tests.fusion.test_joint_graph import MODELS, ROWS, WIDTH, Perceptron, in_bfloat16

LEFT_OUT = {"batch norms", "group norms", "words", "words with a soft cap"}
LEFT_OUT |= {"pooling", "pooling of overlapping windows"}
"""On the CPU, Inductor copies images and filters to other layouts, counts each row of which one word is read, and
scatters the gradient of pooling in three kernels."""


OTHER_COUNTS = {
    "written attention": -4,  # of 15: on the CPU, Inductor copies the parts of a concatenation one by one
    "RMS norms": -8,  # of 39: on the CPU, it keeps sums of residuals and of columns out of the kernels of norms
    "layer norms": -6,  # of 37, as above
    "ReLU in bfloat16": 2,  # of 15: ours cast the gradients of two biases in kernels of their own, not where summed
    "GEGLU in bfloat16": 2,  # of 15, as above
    "rotary positions in bfloat16": 2,  # of 17, as above
}
"""Models whose number of kernels is more than 10 % off Inductor's, with the difference."""


def of_inductor(model: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> tuple[int, int]:
    """Return number and bytes of the kernels that Inductor generates, without libraries' calls."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor import scheduler
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    sizes: list[int] = []

    def scheduled(graph: fx.GraphModule, inputs: Any, *, is_backward: bool) -> Any:
        plain = graph.forward
        mode = torch._guards.detect_fake_mode(inputs)
        assert mode is not None
        view_to_reshape(graph)
        with V.set_fake_mode(mode):
            post_grad_passes(graph, False)
            lowered = GraphLowering(graph, inputs, mode.shape_env, is_inference=False, is_backward=is_backward)
            with V.set_graph_handler(lowered), V.set_debug_handler(DebugContext()):
                lowered.run(*inputs)
                lowered.init_wrapper_code()
                lowered._update_scheduler()
                kinds = (scheduler.NopKernelSchedulerNode, scheduler.ExternKernelSchedulerNode)
                kernels = [node for node in lowered.scheduler.nodes if not isinstance(node, kinds)]
                sizes.extend(kernel.get_read_write_buffers_sizes() for kernel in kernels)
        return make_boxed_func(plain)

    def partitioned(graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        joint_graph_passes(graph)
        return min_cut_rematerialization_partition(graph, inputs, compiler="inductor", **options)

    backend = aot_autograd(
        fw_compiler=partial(scheduled, is_backward=False),
        bw_compiler=partial(scheduled, is_backward=True),
        partition_fn=partitioned,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=False)(*arguments).backward()
    return len(sizes), sum(sizes)


def of_ours(model: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> tuple[int, int]:
    """Return number and bytes of the kernels that are no library's calls."""
    held = (cell.cell_contents for cell in getattr(model, "__closure__", None) or ())
    for module in (model, *held):
        if isinstance(module, nn.Module):
            module.zero_grad()
    for data in arguments:
        data.grad = None
    step = lp.capture(lambda: model(*arguments).backward(), warmup_steps=0)
    sizes = []
    for operation in fused(step).operations:
        shapes = translate(operation, step.flags)
        is_vector = all(operation_spec(each.operation).units == "vector" for each in shapes)
        is_called = any(map(is_complex, operation.inputs))  # PyTorch's kernels run
        if operation.inputs and shapes and is_vector and not is_free(operation) and not is_called:
            sizes.append(bytes_of(operation.inputs) + bytes_of(operation.outputs))
    return len(sizes), sum(sizes)


def bytes_of(tensors: tuple[TensorInfo, ...]) -> int:
    largest: dict[int | None, int] = {}
    for tensor in tensors:
        largest[tensor.id] = max(largest.get(tensor.id, 0), tensor.size_bytes)
    return sum(largest.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_fused_kernels_move_the_bytes_of_inductors_kernels() -> None:
    errors, turns = {}, torch.polar(torch.ones(64, 2 * WIDTH), torch.randn(64, 2 * WIDTH))

    def rotated(data: Tensor) -> Tensor:  # by products of complex numbers, for which Inductor writes no kernels
        pairs = torch.view_as_complex(data.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2).type_as(data)

    for name, row in {**MODELS, "rotary positions in bfloat16": (in_bfloat16(Perceptron(rotated)), (ROWS,))}.items():
        if name not in LEFT_OUT:
            (count, moved), (ours, own) = of_inductor(*row), of_ours(*row)
            errors[name] = own / moved - 1
            assert abs(ours - count - OTHER_COUNTS.get(name, 0)) <= (0 if name in OTHER_COUNTS else 0.1 * count), name
    assert max(map(abs, errors.values())) < 0.08, errors  # four blocks, whose norms read these sums again on the CPU
    assert statistics.median(map(abs, errors.values())) < 0.001, errors
