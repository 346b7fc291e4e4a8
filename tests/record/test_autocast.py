"""Autocast on the meta device: the same operations as under torch's own autocast, and words for precision.

Two references run torch's own autocast here: a recording on the CPU, for the operations on which the CPU's lists and
CUDA's agree (with the backward pass), and fake CUDA tensors, whose forward pass goes through CUDA's lists without a
GPU.
"""

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from lightning_predict.base.errors import CaptureError, InvalidArgumentError
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.recording import capture
from lightning_predict.record.trace import Operation

LAYOUT_ONLY = frozenset(  # Operations that differ by device and compute nothing
    f"aten::{name}"
    for name in "t transpose view expand detach _unsafe_view unsqueeze squeeze permute alias clone empty_like "
    "ones_like zeros_like as_strided select slice empty_strided reshape empty".split()
)


class Agreed(nn.Module):
    """Operations that autocast on the CPU and on CUDA runs in the same dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.pointwise = nn.Conv2d(8, 8, 1)  # reads 16 bits, with a bias in float32
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 10)
        self.free = nn.Parameter(torch.ones(16, 16))

    def forward(self, images: Tensor) -> Tensor:
        data = functional.relu(self.pointwise(self.convolution(images)))
        data = data.flatten(2).transpose(1, 2).contiguous()
        data = functional.gelu(self.first(data))
        heads = data.unflatten(-1, (2, 8)).transpose(1, 2)
        data = data + functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        data = (data @ self.free) @ self.free  # cast once, and its gradients add up in 16 bits
        result: Tensor = self.last(data * 0.5)
        return result


class Mixed(Agreed):
    """The same, with operations that are float32 on CUDA only."""

    def __init__(self) -> None:
        super().__init__()
        self.group, self.norm = nn.GroupNorm(2, 8), nn.LayerNorm(16)

    def forward(self, images: Tensor) -> Tensor:
        data = functional.relu(self.group(self.convolution(images))).flatten(2).transpose(1, 2)
        data = self.norm(functional.gelu(self.first(data)))
        heads = data.unflatten(-1, (2, 8)).transpose(1, 2)
        data = data + functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        scores = (data @ data.transpose(1, 2)).softmax(-1)
        rates = torch.einsum("bld,bkd->blk", scores @ data, data).exp().log1p().pow(2.0).sum(-1).rsqrt()
        result: Tensor = self.last(scores @ data).mean(1) + rates.cumsum(-1).mean()
        labels = torch.zeros(len(result), dtype=torch.long, device=result.device)
        loss = functional.cross_entropy(result, labels) + functional.l1_loss(result, result.relu())
        return (
            loss
            + functional.mse_loss(result, result.relu())
            + functional.kl_div(result, result.relu(), reduction="sum")
        )


def run(model: nn.Module, images: Tensor, kind: str, dtype: torch.dtype, *, backward: bool) -> None:
    """One pass under autocast, which is left before the backward pass; switched by hand, as no GPU is here."""
    torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_enabled(kind, True)
    try:
        loss = model(images)
    finally:
        torch.set_autocast_enabled(kind, False)
        torch.clear_autocast_cache()
    if backward:
        loss.float().sum().backward()


def recorded(model: nn.Module, images: Tensor, kind: str, dtype: torch.dtype, *, backward: bool) -> Counter[Any]:
    recorder = DispatchRecorder(model)
    recorder.start()
    try:
        run(model, images, kind, dtype, backward=backward)
    finally:
        recorder.stop()
    assert recorder.failure is None, recorder.failure
    return Counter(map(key, (o for o in recorder.operations if o.name not in LAYOUT_ONLY)))


def key(operation: Operation) -> tuple[Any, ...]:
    """Name, phase and tensors of an operation; a product's are sorted, as a transpose may come before the cast."""
    return (
        operation.name,
        operation.phase,
        tuple(sorted((sorted(t.shape), t.dtype) for t in operation.inputs)).__repr__(),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_on_meta_equals_the_cpu_if_the_lists_agree(dtype: torch.dtype) -> None:
    counts = {}
    for device, kind in (("cpu", "cpu"), ("meta", "cuda")):
        with torch.device(device):
            model, images = Agreed(), torch.zeros(2, 3, 8, 8)
        counts[device] = recorded(model, images, kind, dtype, backward=True)
    assert counts["meta"] - counts["cpu"] == Counter()
    assert counts["cpu"] - counts["meta"] == Counter()
    assert sum(counts["meta"].values()) > 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_on_meta_equals_cuda_lists(dtype: torch.dtype) -> None:
    with torch.device("meta"):
        model, images = Mixed().requires_grad_(False), torch.zeros(2, 3, 8, 8)
    on_meta = recorded(model, images, "cuda", dtype, backward=False)
    with FakeTensorMode():
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                fake = nn.Parameter(torch.empty(parameter.shape, device="cuda"), requires_grad=False)
                setattr(module, name, fake)
        images = torch.empty(2, 3, 8, 8, device="cuda")
        on_cuda = recorded(model, images, "cuda", dtype, backward=False)
    assert on_meta - on_cuda == Counter()
    assert on_cuda - on_meta == Counter()


def products(step: Callable[[], object], **options: Any) -> list[tuple[str, str]]:
    trace = capture(step, **options)
    return [(o.phase, o.inputs[-1].dtype) for o in trace.operations if o.name in ("aten::mm", "aten::addmm")]


def linear_step(dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    layer = nn.Linear(8, 4, device="meta", dtype=dtype)
    data = torch.zeros(2, 8, device="meta", dtype=dtype)
    return lambda: layer(data).sum().backward()


def test_autocast_of_lightning_and_inside_the_step_applies_on_meta() -> None:
    assert products(linear_step()) == [("forward", "float32"), ("backward", "float32")]
    assert products(linear_step(), precision="bf16-mixed") == [("forward", "bfloat16"), ("backward", "bfloat16")]
    assert products(linear_step(), precision="16-mixed") == [("forward", "float16"), ("backward", "float16")]
    assert products(linear_step(), precision="32-true") == [("forward", "float32"), ("backward", "float32")]
    assert products(linear_step(torch.bfloat16), precision="bf16-true") == [
        ("forward", "bfloat16"),
        ("backward", "bfloat16"),
    ]
    layer, data = nn.Linear(8, 4, device="meta"), torch.zeros(2, 8, device="meta")

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(data).sum()
        loss.backward()

    assert products(step) == [("forward", "bfloat16"), ("backward", "bfloat16")]


def test_autocast_is_stored_restored_and_torchs_own_on_the_cpu() -> None:
    assert capture(linear_step(), precision="bf16-mixed").flags.autocast_dtype == "bfloat16"
    assert not torch.is_autocast_enabled("cpu")
    layer, data = nn.Linear(8, 4), torch.zeros(2, 8)
    assert products(lambda: layer(data).sum().backward(), precision="bf16-mixed")[0] == ("forward", "bfloat16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch turns it off where there is no CUDA")
def test_cuda_autocast_applies_on_meta_without_cuda() -> None:
    layer, data = nn.Linear(8, 4, device="meta"), torch.zeros(2, 8, device="meta")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = layer(data).sum()
            with torch.autocast("cuda", enabled=False):
                layer(data)
        with torch.amp.autocast_mode.autocast("cuda", enabled=False):
            layer(data)
        loss.backward()

    assert products(step) == [("forward", "bfloat16"), *[("forward", "float32")] * 2, ("backward", "bfloat16")]
    assert capture(step).notes == ()
    with pytest.warns(UserWarning, match="Disabling autocast"):  # torch's own, as before
        assert not torch.autocast("cuda", dtype=torch.bfloat16)._enabled


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch turns it off where there is no CUDA")
def test_cuda_autocast_created_before_the_step_is_off_with_a_note() -> None:
    layer, data = nn.Linear(8, 4, device="meta"), torch.zeros(2, 8, device="meta")
    with pytest.warns(UserWarning, match="Disabling autocast"):
        context = torch.autocast("cuda", dtype=torch.bfloat16)

    def step() -> None:
        with context:
            layer(data).sum().backward()

    (note,) = capture(step).notes
    assert note == (
        "An autocast for CUDA that the step entered is off: without CUDA, torch turns it off as it is made. Make it "
        "within the step, or say capture(precision=...), for its casts to be counted."
    )
    assert capture(step, precision="bf16-mixed").notes == ()


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch turns it off where there is no CUDA")
def test_cuda_autocast_on_the_cpu_casts_nothing_with_a_note() -> None:
    layer, data = nn.Linear(8, 4), torch.zeros(2, 8)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            layer(data).sum().backward()

    trace = capture(step)
    assert trace.flags.autocast_dtype is None
    assert {o.inputs[-1].dtype for o in trace.operations if o.name in ("aten::mm", "aten::addmm")} == {"float32"}
    assert (
        "The step entered an autocast for CUDA, which casts nothing on the CPU: predicted as it ran. Record it on the "
        "meta device for its casts to be counted."
    ) in trace.notes


def test_parameter_is_cast_once_per_forward_pass() -> None:
    layer, data = nn.Linear(8, 8, device="meta", bias=False), torch.zeros(2, 8, device="meta")

    def step() -> None:
        for _ in range(2):  # two batches, two forward passes
            layer(layer(data)).sum().backward()

    trace = capture(step, precision="bf16-mixed")
    casts = [o for o in trace.operations if o.name == "aten::_to_copy" and o.inputs[0].shape == (8, 8)]
    assert [o.phase for o in casts] == ["forward", "backward"] * 2


class Reversible(torch.autograd.Function):
    """A layer that keeps its input alone, and computes itself again for its gradient."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(data, weight)
        return functional.linear(data, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        data, weight = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            again = functional.linear(data, weight)
        torch.autograd.backward(again, gradients[0].to(again.dtype))
        assert data.grad is not None
        assert weight.grad is not None
        return data.grad, weight.grad


def reversible(data: Tensor, weight: Tensor) -> Tensor:
    result: Tensor = Reversible.apply(data, weight)  # type: ignore[no-untyped-call]
    return result


def test_recomputation_by_a_custom_function_has_no_autocast() -> None:
    weight = torch.zeros(8, 8, device="meta", requires_grad=True)
    data = torch.zeros(2, 8, device="meta", requires_grad=True)

    def whole() -> None:
        reversible(data, weight).float().sum().backward()

    def forward_alone() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = reversible(data, weight).float().sum()
        loss.backward()

    # The forward product in 16 bits; again, and for both gradients, in float32, as where a Trainer calls `backward`.
    expected = [("forward", "bfloat16"), *[("backward", "float32")] * 3]
    assert products(whole, precision="bf16-mixed") == products(forward_alone) == expected


def test_checkpointing_recomputes_under_autocast() -> None:
    layer, data = nn.Linear(8, 8, device="meta", bias=False), torch.zeros(2, 8, device="meta", requires_grad=True)

    def step() -> None:
        checkpoint(layer, data, use_reentrant=False).sum().backward()

    matmuls = products(step, precision="bf16-mixed")
    assert matmuls == [("forward", "bfloat16"), *[("backward", "bfloat16")] * (len(matmuls) - 1)]


def test_float32_attention_states_its_compute_dtype() -> None:
    query = torch.zeros(1, 2, 4, 8, device="meta", requires_grad=True)
    trace = capture(lambda: functional.scaled_dot_product_attention(query, query, query).sum(), precision="bf16-mixed")
    attention = next(o for o in trace.operations if "attention" in o.name)
    assert (attention.inputs[0].dtype, attention.arguments["compute_dtype"]) == ("float32", "bfloat16")
    assert attention.outputs[0].dtype == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_16_bit_attention_is_recorded_alike_on_every_device(dtype: torch.dtype, masked: bool) -> None:
    name = str(dtype).removeprefix("torch.")
    attentions = {}
    for device in ("cpu", "meta"):
        query = torch.zeros(1, 2, 16, 8, device=device, dtype=dtype, requires_grad=True)
        mask = torch.ones(16, 16, device=device, dtype=torch.bool) if masked else None

        def step(query: Tensor = query, mask: Tensor | None = mask) -> None:
            functional.scaled_dot_product_attention(query, query, query, mask).sum().backward()

        operations = [o for o in capture(step).operations if "attention" in o.name]
        attentions[device] = [
            (o.name, o.phase, [(t.shape, t.dtype) for t in (*o.inputs, *o.outputs)], o.arguments) for o in operations
        ]
        assert {tensor.dtype for o in operations for tensor in o.inputs} <= {name, "bool"}
        assert all("compute_dtype" not in o.arguments for o in operations)
    assert attentions["cpu"] == attentions["meta"]
    assert [phase for _, phase, _, _ in attentions["meta"]] == ["forward", "backward"]


def test_unknown_precisions_and_banned_operations_are_rejected() -> None:
    rates = torch.full((4,), 0.5, device="meta")
    with pytest.raises(CaptureError, match="binary_cross_entropy cannot run under autocast on CUDA; use"):
        capture(lambda: functional.binary_cross_entropy(rates, rates), precision="16-mixed")
    with pytest.raises(CaptureError, match=r"'bf16-true' means parameters in bfloat16, .* some in float32; make the"):
        capture(linear_step(), precision="bf16-true")
    with pytest.raises(InvalidArgumentError, match="precision='fp4' is not known; expected one of bf16-mixed"):
        capture(linear_step(), precision="fp4")


@pytest.mark.parametrize(("reentrant", "again"), [(True, 2), (False, 1)])
def test_checkpointing_recomputes_under_the_autocast_of_the_step(reentrant: bool, again: int) -> None:
    with torch.device("meta"):
        block = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        data = torch.zeros(4, 8, requires_grad=True)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            result = checkpoint(block, data, use_reentrant=reentrant)
        result.sum().backward()

    products = [one for one in capture(step).operations if "addmm" in one.name or "linear" in one.name]
    # Without the old kind's second graph, torch stops as soon as the last layer's input is there.
    assert [product.outputs[0].dtype for product in products] == ["float16"] * (2 + again)


def test_concurrent_recordings_restore_torch() -> None:
    owners: dict[str, Any] = {
        "__init__": torch.autocast,
        "__enter__": torch.autocast,
        "_infer_device_type": torch.utils.checkpoint,
    }
    owners |= {
        "_get_fused_kernels_supported_devices": import_module("torch.optim.optimizer"),
        "backward": torch.autograd,
    }
    before = {name: getattr(owner, name) for name, owner in owners.items()}
    meet, seen = Barrier(3), list[str]()

    def record(word: str) -> None:
        with torch.device("meta"):
            layer, data = nn.Linear(8, 8), torch.zeros(4, 8)

        def step() -> None:
            meet.wait(30)  # all have replaced what they need
            with torch.autocast("cuda", dtype=torch.float16):
                result = layer(data)
            result.sum().backward()

        seen.append(next(one for one in capture(step, precision=word).operations if one.phase == "forward").name)

    threads = [Thread(target=record, args=(word,)) for word in ("16-mixed", "16-mixed", "bf16-mixed")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == 3
    assert {name: getattr(owner, name) for name, owner in owners.items()} == before


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_autocast_for_the_meta_device_counts_as_cuda(dtype: torch.dtype | None) -> None:
    """PEFT's experts enter `autocast(device_type=weight.device.type)`, which torch refuses for "meta"."""
    with torch.device("meta"):
        layer, data = nn.Linear(8, 8), torch.empty(4, 8)

    def step() -> None:
        with torch.autocast(device_type=layer.weight.device.type, dtype=dtype, enabled=dtype is not None):
            layer(data).sum().backward()

    (product,) = (operation for operation in capture(step).operations if operation.name == "aten::addmm")
    assert product.inputs[1].dtype == ("float32" if dtype is None else "bfloat16")
    with pytest.raises(RuntimeError, match="unsupported scalarType"):  # torch's own answer, outside a recording
        torch.autocast(device_type="meta", enabled=False)


@pytest.mark.parametrize("bias", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_layers_with_inputs_and_weights_in_different_dtypes_are_recorded(
    dtypes: tuple[torch.dtype, torch.dtype], bias: torch.dtype | None
) -> None:
    def made(*shape: int, dtype: torch.dtype | None) -> Tensor | None:
        return None if dtype is None else torch.empty(*shape, device="meta", dtype=dtype, requires_grad=True)

    def layers() -> Tensor:
        total = functional.linear(made(4, 8, dtype=dtypes[0]), made(6, 8, dtype=dtypes[1]), made(6, dtype=bias)).sum()  # type: ignore[arg-type]
        for number in (1, 2, 3):
            images, filters = made(2, 4, *[5] * number, dtype=dtypes[0]), made(6, 4, *[3] * number, dtype=dtypes[1])
            convolve = getattr(functional, f"conv{number}d")
            total = total + convolve(images, filters, made(6, dtype=bias)).sum()
            back = getattr(functional, f"conv_transpose{number}d")
            total = total + back(images, made(4, 6, *[3] * number, dtype=dtypes[1]), made(6, dtype=bias)).sum()
        rows = made(4, 8, dtype=dtypes[0])
        return total + functional.layer_norm(rows, (8,), made(8, dtype=dtypes[1]), made(8, dtype=bias)).sum()  # type: ignore[arg-type]

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = layers()
        loss.backward()

    trace = capture(step)  # its warm-up step fails without a recorder, whose casts it needs
    convolved = [operation for operation in trace.operations if operation.name == "aten::convolution"]
    assert len(convolved) == 6
    assert {tensor.dtype for operation in convolved for tensor in operation.inputs} == {"bfloat16"}
