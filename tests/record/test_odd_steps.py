"""Steps that use torch in unusual ways: the same result with and without a recorder, and nothing left behind.

Calls that the recorder cannot read run unchanged and is named in a note of the trace.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import lightning_predict as lp
from lightning_predict.base.errors import CaptureError
from lightning_predict.record import dispatch, recording
from lightning_predict.record.profiler import ProfilerRecorder
from lightning_predict.record.session import CaptureSession
from tests.processes import run
from tests.record.test_session import nothing_is_left

Result = tuple[Any, ...]
STEPS: dict[str, Callable[[], Result]] = {}


def step(function: Callable[[], Result]) -> Callable[[], Result]:
    """Add a step to the table, under its name."""
    STEPS[function.__name__] = function
    return function


def trained(output: Tensor, *leaves: Tensor) -> Result:
    """Run a backward pass, and return the output and the gradients of the leaves."""
    output.backward()
    return output.detach(), *(leaf.grad for leaf in leaves)


def ragged(layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(5, 4)], layout=layout)


@step
def jagged() -> Result:
    layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())
    loss = torch.nested.to_padded_tensor(layers(ragged(torch.jagged)), 0.0).square().mean()
    return trained(loss, layers[0].weight)  # type: ignore[arg-type]


@step
def jagged_attention() -> Result:
    data = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(5, 8)], layout=torch.jagged, requires_grad=True)
    heads = data.unflatten(-1, [2, 4]).transpose(1, 2)
    output = functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).values().sum()
    output.backward()
    return output.detach(), data.grad.values()  # type: ignore[union-attr]


@step
def jagged_inference() -> Result:
    with torch.inference_mode():
        return ((ragged(torch.jagged) * 2).values().clone(),)


@step
def conditional() -> Result:
    """Torch compiles `cond` in eager mode, too, with the recorder's hooks and modes in sight."""
    layer, data = nn.Linear(4, 4), torch.ones(2, 4)
    output = torch.cond(data.sum() > 0, lambda x: layer(x).sin(), lambda x: layer(x).cos(), (data,))
    return trained(output.square().mean(), layer.weight)


@step
def compiled_as_a_whole() -> Result:
    layer = nn.Linear(4, 4)
    return trained(torch.compile(lambda x: layer(x).sin(), backend="eager", fullgraph=True)(torch.ones(2, 4)).sum())


@step
def derivatives_by_other_formulas() -> Result:
    """Torch takes other formulas for these derivatives if a dispatch mode is active, with other rounding."""
    data = torch.randn(5, 6, requires_grad=True)
    products = (data.sigmoid().prod(1) * data.sum(1)).cumprod(0).sum()
    filled = data.masked_fill(data[:1] > 0, data.mean()).square().sum()
    loss = products + filled + torch.linalg.det(data @ data.T + torch.eye(5))
    (gradient,) = torch.autograd.grad(loss, data, create_graph=True)
    return *trained(gradient.square().sum(), data), gradient.detach()


@step
def singular_values_without_vectors() -> Result:
    data, factor = torch.randn(6, 4), torch.randn(3, 4, 4, dtype=torch.complex64)
    norms = [torch.linalg.norm(data, 2), data.norm("nuc"), torch.linalg.matrix_norm(data, ord=-2)]
    values = [torch.linalg.svdvals(data), torch.linalg.eigvalsh(factor), torch.linalg.cond(factor)]
    return *norms, *values, torch.linalg.pinv(factor)  # of which intermediate results have a conjugate bit


class Drawing(Tensor):
    """A tensor that draws a number in each call of its `__torch_function__`."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch.rand(1)
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]


@step
def drawing_data() -> Result:
    layers, data = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4).as_subclass(Drawing)
    return *trained(torch.cat([layers(data), data]).mean(), layers[0].weight), torch.rand(1)  # type: ignore[arg-type]


@step
def drawing_parameter() -> Result:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(layer.weight.data.as_subclass(Drawing))
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(2, 4)).as_subclass(Tensor).square().mean().backward()
    optimizer.step()
    return layer.weight.as_subclass(Tensor).detach(), torch.rand(1)


@step
def strided_nested() -> Result:
    layer = nn.Linear(4, 3)
    output = layer(ragged(torch.strided)).relu().to_padded_tensor(0.0).sum()
    return trained(output, layer.weight)


@step
def fake_tensors() -> Result:
    with FakeTensorMode():
        layer, convolution = nn.Linear(4, 3), nn.Conv2d(3, 4, 3)
        layer(torch.randn(2, 4)).relu().sum().backward()
        convolution(torch.randn(2, 3, 8, 8)).sum().backward()
        query = torch.randn(2, 2, 4, 8, requires_grad=True)
        functional.scaled_dot_product_attention(query, query, query).sum().backward()
        return tuple(layer.weight.grad.shape), tuple(query.grad.shape)  # type: ignore[union-attr]


@step
def masked() -> Result:
    from torch.masked import masked_tensor

    data = torch.arange(6.0).reshape(2, 3)
    tensor: Any = masked_tensor(data, data > 2, requires_grad=True)
    total = (tensor * 2).sum()
    total.backward()
    return total.get_data(), tensor.grad.get_data()


class Wrapped(torch.Tensor):
    """A subclass that holds another tensor and runs each operation on it."""

    held: Tensor
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        opened = tree_map(lambda one: one.held if isinstance(one, Wrapped) else one, (args, kwargs or {}))
        return tree_map(lambda one: Wrapped(one) if isinstance(one, Tensor) else one, func(*opened[0], **opened[1]))


@step
def wrapper_subclass() -> Result:
    weight = Wrapped(torch.randn(3, 4)).requires_grad_()
    output = functional.linear(torch.ones(2, 4), weight).relu().sum()
    output.backward()
    return output.detach().held, weight.grad.held  # type: ignore[attr-defined, union-attr]


@step
def plain_subclass() -> Result:
    class Image(torch.Tensor):
        @staticmethod
        def __new__(cls, data: Tensor) -> Image:
            return data.as_subclass(cls)

    return ((Image(torch.ones(2, 3)) * 2).sum().as_subclass(torch.Tensor),)


@step
def distributed_tensor() -> Result:
    import torch.distributed as distributed
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = DeviceMesh("cpu", [0, 1])
        weight = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]).requires_grad_()
        data = distribute_tensor(torch.ones(2, 4), mesh, [Replicate()])
        functional.linear(data, weight).relu().sum().backward()
        return (weight.grad.to_local(),)  # type: ignore[union-attr]
    finally:
        distributed.destroy_process_group()


@step
def per_sample_gradients() -> Result:
    layer = nn.Linear(4, 3)
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], data: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, parameters, (data,))
        return output.sum()

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, torch.ones(5, 4))
    return tuple(gradients.values())


@step
def transforms() -> Result:
    data = torch.arange(6.0).reshape(2, 3)

    def energy(row: Tensor) -> Tensor:
        return row.sin() @ torch.ones(3)

    return (
        torch.func.vmap(torch.func.grad(energy))(data),
        torch.func.hessian(energy)(data[0]),
        torch.func.jvp(energy, (data[0],), (data[1],))[1],
        torch.func.functionalize(lambda one: one.clone().add_(1))(data),
    )


@step
def attention_in_vmap() -> Result:
    query = torch.randn(3, 2, 4, 8)
    attend = functional.scaled_dot_product_attention
    return (torch.func.vmap(lambda one: attend(one[None], one[None], one[None]))(query),)


@step
def flexible_attention() -> Result:
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # it is slow unless it is compiled
        query = torch.randn(1, 2, 16, 16)
        return (flex_attention(query, query, query, score_mod=lambda score, b, h, i, j: score + (i - j)),)


@step
def control_flow() -> Result:
    data = torch.ones(3)
    return (torch.cond(data.sum() > 2, torch.sin, torch.cos, (data,)),)


@step
def checkpointed() -> Result:
    layers, data = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU()), torch.ones(2, 4, requires_grad=True)
    return trained(checkpoint(layers, data, use_reentrant=False).sum(), data)


@step
def selectively_checkpointed() -> Result:
    def policy(_context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        keep = operator == torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    layers, data = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4, requires_grad=True)
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return trained(checkpoint(layers, data, use_reentrant=False, context_fn=contexts).sum(), data)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Tensor) -> Tensor:
        ctx.save_for_backward(data)
        return data**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        result: Tensor = 3 * ctx.saved_tensors[0] ** 2 * gradient
        return result


@step
def function_of_ones_own() -> Result:
    data = torch.ones(3, requires_grad=True)
    output = Cube.apply(data).sum()  # type: ignore[no-untyped-call]
    return trained(output, data)


@step
def complex_numbers() -> Result:
    data = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)
    output = (torch.fft.fft(data) @ data.conj().T).abs().sum()
    output.backward()
    return output.detach(), torch.view_as_real(data.grad.resolve_conj())  # type: ignore[union-attr]


@step
def sparse_tensors() -> Result:
    weight, table = torch.randn(4, 3, requires_grad=True), nn.Embedding(5, 3, sparse=True)
    output = torch.sparse.mm(torch.eye(4).to_sparse(), weight).sum()
    output.backward()
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    return output.detach(), weight.grad, table.weight.detach().clone()


@step
def quantized_tensors() -> Result:
    data = torch.randn(2, 4, requires_grad=True)
    torch.fake_quantize_per_tensor_affine(data, 0.1, 0, -128, 127).sum().backward()
    return torch.quantize_per_tensor(data.detach(), 0.1, 0, torch.qint8).dequantize(), data.grad


@step
def lazy_parameters() -> Result:
    output = nn.LazyLinear(3)(torch.ones(2, 4)).sum()
    return trained(output)


@step
def inference_mode() -> Result:
    with torch.inference_mode():
        query = torch.randn(1, 2, 4, 8)
        layers = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
        attended = functional.scaled_dot_product_attention(query, query, query)
        return layers(torch.ones(2, 4)).clone(), nn.LSTM(4, 3)(torch.ones(5, 2, 4))[0].clone(), attended.clone()


@step
def hooks_on_saved_tensors() -> Result:
    data = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
        output = data.sin().exp().sum()
    output.backward()
    with torch.autograd.graph.save_on_cpu():
        data.sin().exp().sum().backward()
    return output.detach(), data.grad


@step
def double_backward() -> Result:
    query = torch.randn(1, 1, 4, 8, requires_grad=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        output = functional.scaled_dot_product_attention(query, query, query).sum()
    (gradient,) = torch.autograd.grad(output, query, create_graph=True)
    gradient.square().sum().backward()
    return gradient.detach(), query.grad


@step
def hooks_that_raise() -> Result:
    def fail(*_: Any) -> None:
        raise ValueError("mine")

    layer, data = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    layer.register_forward_hook(fail)
    with pytest.raises(ValueError, match="mine"):
        layer(torch.ones(1, 2))
    middle = data * 2
    middle.register_hook(fail)
    with pytest.raises(ValueError, match="mine"):
        middle.sum().backward()
    (data * 3).sum().backward()
    return (data.grad,)


@step
def modes_of_somebody_else() -> Result:
    layer = nn.Linear(4, 3)
    with FlopCounterMode(display=False) as counter:
        layer(torch.ones(2, 4)).sum().backward()
    return (counter.get_total_flops(),)


@step
def forward_differentiation() -> Result:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.full((3,), 2.0))
        return tuple(torch.autograd.forward_ad.unpack_dual(dual.sin()))


@step
def normalised_weights() -> Result:
    output = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))(torch.ones(2, 4)).sum()
    output.backward()
    return output.detach(), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))(torch.ones(2, 4)).detach()


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, data: Tensor) -> Tensor:
        data = self.layer(data)
        if bool(data.sum() > 0):
            data = data * 2
        return data.relu()


@step
def scripted_module() -> Result:
    module = torch.jit.script(Scripted())
    for _ in range(3):  # profiled first, then optimized
        output = module(torch.ones(2, 4)).sum()
        output.backward()
    return output.detach(), module.layer.weight.grad


@step
def packed_sequence() -> Result:
    layer = nn.LSTM(4, 3, num_layers=2, dropout=0.5)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 4), torch.tensor([5, 3]))
    return trained(layer(packed)[0].data.sum())


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Torch warns of prototypes; the step's own warnings are its own business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def recorded(name: str, recorder: CaptureSession | ProfilerRecorder) -> tuple[Result, lp.Trace]:
    """Run a step under a recorder, and return its result and trace."""
    torch.manual_seed(0)
    recorder.start()
    try:
        result = STEPS[name]()
    finally:
        recorder.stop()
    assert nothing_is_left()
    return result, recorder.trace()


def session() -> CaptureSession:
    return CaptureSession(device=torch.device("cpu"), compiled=False)


@pytest.mark.parametrize("make", [session, partial(ProfilerRecorder, cuda=False)], ids=["dispatch", "profiler"])
@pytest.mark.parametrize("name", sorted(STEPS))
def test_recorder_does_not_change_the_result(name: str, make: Callable[[], CaptureSession | ProfilerRecorder]) -> None:
    if name == "fake_tensors" and make is not session:
        pytest.skip("torch's profiler does not read fake tensors")
    torch.manual_seed(0)
    expected = STEPS[name]()
    result, trace = recorded(name, make())
    assert len(result) == len(expected)
    assert all(map(same, result, expected))
    assert trace.operations


def test_operations_inside_subclasses_are_recorded() -> None:
    _, jagged_trace = recorded("jagged", session())
    # The linear layer of 2 + 5 rows of 4 runs on the values that the jagged tensor holds.
    shapes = [[tensor.shape for tensor in o.inputs] for o in jagged_trace.operations if o.name == "aten::addmm"]
    assert [(4,), (7, 4), (4, 4)] in shapes
    assert jagged_trace.notes == ()
    (note,) = recorded("strided_nested", session())[1].notes
    assert "operations that the recorder cannot observe (nested" in note
    assert "aten::linear" in note


@pytest.mark.parametrize(("device", "precision"), [("cpu", None), ("meta", None), ("meta", "bf16-mixed")])
def test_step_with_too_many_operations_ends_at_once_without_values(
    device: str, precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 150,000 tiny operations took 166 MiB.
    monkeypatch.setattr(dispatch, "MAX_OPERATIONS", 400)
    monkeypatch.setattr(recording, "MAX_NODES", 100)
    layer = nn.Linear(2, 2, device=device)
    optimizer = torch.optim.AdamW(layer.parameters())
    ran = []

    def step() -> None:
        for number in range(100):
            layer(torch.zeros(2, 2, device=device)).sum().backward()
            ran.append(number)
        optimizer.step()

    with pytest.raises(CaptureError, match=r"The step was cut after 400 operations.*accumulate=8"):
        lp.capture(step, precision=precision)
    # A micro-batch makes 3 autograd nodes and 14 operations: the plain run ends after 34, the recorded one after 29.
    assert len(ran) == 200 if device == "cpu" else len(ran) <= 34 + 29


def test_recording_300_000_operations_needs_at_most_100_mib() -> None:
    ran = run("from benchmarks.speed.recording_speed import large\nfor figure in large():\n    print(figure.value)\n")
    _, mebibytes, message = ran.stdout.splitlines()
    assert "The step was cut after 75,000 operations" in message
    assert 5 < float(mebibytes) < 100
