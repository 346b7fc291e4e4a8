from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lightning_predict as lp
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.fusion.kernels import fused
from lightning_predict.fusion.losses import with_eager_loss
from lightning_predict.kernels.memory_bound import COMPILED_CALL, is_free
from lightning_predict.kernels.translation import translate
from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.signatures import FUSED
from lightning_predict.record.trace import Flags, Operation, Phase, TensorInfo, Trace

SIZE = 1024


def data(number: int) -> TensorInfo:
    return TensorInfo((SIZE,), "float32", id=number)


def operation(name: str, read: tuple[int, ...], written: int, phase: Phase = "forward") -> Operation:
    return Operation(name=f"aten::{name}", phase=phase, inputs=tuple(map(data, read)), outputs=(data(written),))


def matrix(name: str, read: tuple[int, int], written: int) -> Operation:
    tensors = [TensorInfo((32, 32), "float32", id=number) for number in (*read, written)]
    return Operation(name=f"aten::{name}", phase="forward", inputs=tuple(tensors[:2]), outputs=(tensors[2],))


def trace(*operations: Operation) -> Trace:
    return Trace(operations=operations, device="meta", recorder="dispatch")


def numbers(tensors: tuple[TensorInfo, ...]) -> list[int | None]:
    return [tensor.id for tensor in tensors]


def compiled(step: Trace) -> tuple[Operation, ...]:
    """Operations of a step as compiled, without the host's calls of the compiled code."""
    return tuple(kernel for kernel in fused(step).operations if kernel.name != COMPILED_CALL)


CHAIN = (operation("mul", (0, 1), 2), operation("tanh", (2,), 3), operation("add", (3, 0), 4))


def test_chain_is_one_kernel_that_the_backward_pass_runs_again() -> None:
    (kernel,) = compiled(trace(*CHAIN))
    assert (kernel.name, kernel.phase) == (FUSED, "forward")
    assert numbers(kernel.inputs) == [0, 1]  # once each, though 0 is read twice
    assert numbers(kernel.outputs) == [4]
    assert kernel.arguments == {"operations": ["aten::mul", "aten::tanh", "aten::add"]}
    # Two tensors read and one written, of 4 kB each; apart they are five and three.
    (shape,) = translate(kernel, Flags())
    assert shape.dims[:2] == (2 * 4 * SIZE, 4 * SIZE)
    backward = operation("tanh_backward", (9, 3), 10, "backward")
    kernel, _, *rest = compiled(trace(*CHAIN, matrix("mm", (8, 7), 9), backward))
    assert numbers(kernel.outputs) == [4]
    (again,) = [candidate for candidate in rest if candidate.phase == "backward" and candidate.name == FUSED]
    assert again.arguments == {"operations": ["aten::mul", "aten::tanh", "aten::tanh_backward"]}


def test_products_end_kernels_and_views_and_strangers_do_not() -> None:
    operations = compiled(
        trace(*CHAIN, matrix("mm", (4, 5), 6), operation("relu", (6,), 7), operation("mul", (7, 0), 8))
    )
    assert [kernel.name for kernel in operations] == [FUSED, "aten::mm", FUSED]
    operations = compiled(trace(CHAIN[0], operation("view", (2,), 2), *CHAIN[1:]))
    assert sorted(kernel.name for kernel in operations) == ["aten::view", FUSED]
    alone = (operation("mul", (0,), 1), operation("tanh", (2,), 3))
    assert compiled(trace(*alone)) == alone
    operations = (operation("mul_", (0,), 0, "optimizer"), operation("add_", (0,), 0, "optimizer"))
    assert compiled(trace(*operations)) == operations
    note = "As torch.compile would run it: 3 point-wise operations in 1 fused kernels."
    assert fused(trace(*CHAIN)).notes == (note,)
    unseen = tuple(replace(link, inputs=tuple(replace(t, id=None) for t in link.inputs)) for link in CHAIN)
    assert compiled(trace(*unseen)) == unseen


@pytest.mark.parametrize("name", ["embedding", "index_select", "gather", "upsample_nearest2d", "_embedding_bag"])
def test_look_ups_are_left_to_their_kernels(name: str) -> None:
    operations = (operation(name, (0,), 1), operation("mul", (1,), 2))
    assert compiled(trace(*operations)) == operations


@pytest.mark.parametrize(
    "wrong",
    [
        replace(trace(*CHAIN), compiled=True),
        trace(*(replace(link, outputs=()) for link in CHAIN)),  # a profile does not see them
    ],
)
def test_a_step_that_cannot_be_followed_is_refused(wrong: Trace) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"Only an eager step whose tensors were followed can be fused; record"
    ):
        fused(wrong)


def test_a_perceptron_keeps_its_products_and_loses_traffic() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 4096), nn.Hardswish(), nn.Linear(4096, 1024))
        rows = torch.empty(8192, 1024, requires_grad=True)

    def step() -> None:
        hidden = model[0](rows)
        model[2](hidden * torch.sigmoid(hidden) + 1.0).sum().backward()

    eager = lp.capture(step, warmup_steps=0)
    whole = fused(eager)
    for name in ("aten::addmm", "aten::mm"):
        assert [kernel for kernel in whole.operations if kernel.name == name] == [
            kernel for kernel in eager.operations if kernel.name == name
        ]
    # Forward: sigmoid, mul and add read 1 + 2 + 1 and write 3 tensors of 8192 x 4096 x 4 bytes = 134 MB; fused, 1 is
    # read and 1 is written (the backward pass computes the sigmoid again). 4 x 134 MB take 0.27 ms at 2 TB/s.
    first = next(kernel for kernel in whole.operations if kernel.name == FUSED)
    assert first.arguments["operations"] == ["aten::sigmoid", "aten::mul", "aten::add"]
    assert (len(first.inputs), len(first.outputs)) == (1, 1)
    gpu = "A100-SXM-80GB"
    saved = lp.predict(eager, [gpu])[gpu].device_seconds - lp.predict(whole, [gpu])[gpu].device_seconds
    assert saved > 4 * 8192 * 4096 * 4 / 2.04e12


def names(step: Trace) -> list[str]:
    return [kernel.name for kernel in compiled(step) if kernel.name not in ("aten::detach", "aten::view")]


def meta_step(model: nn.Module, *shape: int) -> Trace:
    with torch.device("meta"):
        model = model.to("meta").train()
        data = torch.empty(*shape)
    return lp.capture(lambda: model(data), warmup_steps=0)


def test_a_norm_in_training_is_two_kernels_which_its_neighbours_join() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.BatchNorm2d(8), nn.ReLU())
    convolution, statistics, total, normalisation = (
        kernel for kernel in compiled(meta_step(model, 4, 3, 34, 34)) if kernel.name in (FUSED, "aten::convolution")
    )
    assert statistics.arguments["operations"] == ["aten::silu", "triton::statistics"]
    assert sum(tensor.elements for tensor in total.inputs) == 2 * 8  # what blocks added up
    assert normalisation.arguments["operations"] == ["aten::silu", "triton::normalisation", "aten::relu"]
    assert len(convolution.inputs) == 2  # the kernel that follows adds the bias
    size = 4 * 4 * 8 * 32 * 32
    (first,), (second,) = translate(statistics, Flags()), translate(normalisation, Flags())
    # Read; read again, activated, normalised and written: eager mode reads five times and writes four.
    assert first.dims[:2] == pytest.approx((size, 0), rel=0.01, abs=1000)
    assert second.dims[:2] == pytest.approx((size, size), rel=0.01)


def test_convolutions_keep_their_bias_and_lie_channels_last_without_groups() -> None:
    images, filters, convolution, back = compiled(meta_step(nn.Conv2d(3, 8, 3), 4, 3, 34, 34))
    assert len(convolution.inputs) == 3
    # Inductor reads and writes channels last: inputs from outside and outputs are copied.
    assert convolution.arguments[CHANNELS_LAST]
    assert {images.name, filters.name, back.name} == {"aten::clone"}
    assert (*images.outputs, *filters.outputs) == convolution.inputs[:2]
    assert back.inputs == convolution.outputs
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    kernels = [kernel for kernel in compiled(meta_step(plain, 4, 3, 34, 34)) if not is_free(kernel)]
    # The images are copied once, and the filters; each kernel writes the input of the next convolution.
    layer = ["aten::clone", "aten::convolution", "aten::relu"]
    assert [kernel.name for kernel in kernels] == ["aten::clone", *layer, *layer]
    assert all(kernel.arguments[CHANNELS_LAST] for kernel in kernels if kernel.name == "aten::convolution")
    grouped = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.ReLU())
    (convolution,) = (one for one in compiled(meta_step(grouped, 4, 4, 34, 34)) if one.name == "aten::convolution")
    assert CHANNELS_LAST not in convolution.arguments


def is_laid_channels_last(model: nn.Module, *shape: int, trained: bool = False) -> bool:
    step = meta_step(model, *shape)
    if trained:
        step = replace(step, operations=(*step.operations, operation("neg", (10**6,), 10**6 + 1, "backward")))
    (convolution, *_) = (kernel for kernel in compiled(step) if kernel.name == "aten::convolution")
    return CHANNELS_LAST in convolution.arguments


def test_the_layout_is_chosen_as_inductor_chooses_it() -> None:
    """By what `GraphLowering.decide_layout_opt` asks of FLOPs without gradients, and of any convolution with them."""
    few, many, shrinking = nn.Conv2d(8, 64, 3), nn.Conv2d(128, 128, 3), nn.Conv2d(128, 64, 3)
    assert is_laid_channels_last(few, 2, 8, 34, 34)
    assert not is_laid_channels_last(few, 2, 8, 34, 34, trained=True)  # all have 64 channels at most
    assert is_laid_channels_last(many, 2, 128, 34, 34, trained=True)
    assert is_laid_channels_last(shrinking, 2, 128, 34, 34)
    assert not is_laid_channels_last(nn.Sequential(shrinking, nn.Conv2d(64, 128, 3)), 2, 128, 34, 34, trained=True)
    # Groups take a tenth of the FLOPs: 0.1 x 1.358 + 0.9 x 0.823 < 1. In training any of several channels are enough.
    some = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.Conv2d(128, 128, 3, padding=1, groups=8))
    assert is_laid_channels_last(some, 2, 128, 32, 32)
    assert not is_laid_channels_last(some, 2, 128, 32, 32, trained=True)


def test_joined_tensors_rows_apart_and_channel_sums_are_read_again() -> None:
    # DenseNets take 0.5 to 0.65 times their speed compiled, on hosts that launch 1,900 copies for their joins.

    def joined(number: int) -> tuple[Operation, Operation]:
        whole = TensorInfo((number * SIZE,), "float32", id=20)
        pieces = tuple(map(data, range(number)))
        join = Operation(name="aten::cat", phase="forward", inputs=pieces, outputs=(whole,))
        return join, Operation(name="aten::relu", phase="forward", inputs=(whole,), outputs=(replace(whole, id=21),))

    assert names(trace(*joined(9))) == [*["aten::clone"] * 9, "aten::relu"]
    (kernel,) = compiled(trace(*joined(8)))
    assert kernel.arguments["operations"] == ["aten::cat", "aten::relu"]
    # A U-Net with softmax along its rows loses compiled (0.86 to 0.93 on an L4, T4 and L40S).
    images = meta_step(nn.Sequential(nn.Conv2d(8, 8, 3), nn.Softmax(dim=-1), nn.Conv2d(8, 8, 3)), 4, 8, 34, 34)
    assert names(images).count(FUSED) == 2  # since 2.7, the largest and the sum are found in one pass
    images = replace(images, software={"torch": "2.6"})
    largest, total, result = (kernel for kernel in compiled(images) if kernel.name == FUSED)
    size = 4 * 4 * 8 * 32 * 32
    read = [translate(kernel, Flags())[0].dims[0] for kernel in (largest, total, result)]
    assert read == pytest.approx([size] * 3, rel=0.05)  # and the sums of each row
    channels = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Softmax(dim=1), nn.Conv2d(8, 8, 3))
    assert names(meta_step(channels, 4, 8, 34, 34)).count(FUSED) == 1
    x, means = TensorInfo((4, 8, 64), "float32", id=0), TensorInfo((4, 1, 64), "float32", id=1)
    mean = Operation(name="aten::mean", phase="forward", inputs=(x,), outputs=(means,), arguments={"dim": [1]})
    scaled = Operation(name="aten::div", phase="forward", inputs=(x, means), outputs=(replace(x, id=2),))
    squared = Operation(name="aten::mul", phase="forward", inputs=(x, x), outputs=(replace(x, id=3),))
    of_squares = replace(mean, inputs=(replace(x, id=3),))
    first, _ = compiled(trace(squared, of_squares, scaled))
    assert first.arguments["operations"] == ["aten::mul", "aten::mean"]
    rows = replace(of_squares, arguments={"dim": [-1]}, outputs=(TensorInfo((4, 8, 1), "float32", id=1),))
    (kernel,) = compiled(trace(squared, rows, replace(scaled, inputs=(x, rows.outputs[0]))))
    assert len(kernel.arguments["operations"]) == 3


def test_the_host_calls_compiled_code_once_a_pass() -> None:
    """KernelBench's small shapes take 0.12 ms and more compiled, however few kernels are left (T4, L40S)."""
    step = trace(*CHAIN, operation("tanh_backward", (9, 3), 10, "backward"), operation("neg", (10,), 11, "backward"))
    calls = [(call.name, call.phase) for call in fused(step).operations if call.name == COMPILED_CALL]
    assert calls == [(COMPILED_CALL, "forward"), (COMPILED_CALL, "backward")]
    before, after = (lp.predict(each, ["T4"])["T4"].iteration_seconds for each in (trace(*CHAIN), fused(trace(*CHAIN))))
    assert after > before > 3 * 10e-6
    assert 90e-6 < after < 150e-6


def test_short_rows_losses_and_windows_are_read_once_and_longer_ones_again() -> None:
    short = nn.Sequential(nn.LayerNorm(1024), nn.ReLU())
    (kernel,) = (each for each in compiled(meta_step(short, 64, 1024)) if each.name == FUSED)
    assert kernel.arguments["operations"] == ["aten::native_layer_norm", "aten::relu"]
    assert names(meta_step(nn.Sequential(nn.LayerNorm(8192), nn.ReLU()), 64, 8192)) == [FUSED, FUSED]
    x, y = TensorInfo((SIZE,), "float32", id=0), TensorInfo((SIZE,), "float32", id=1)
    mean = TensorInfo((), "float32", id=2)
    loss = Operation(name="aten::smooth_l1_loss", phase="forward", inputs=(x, y), outputs=(mean,))
    (kernel,) = compiled(trace(loss))
    (shape,) = translate(kernel, Flags())
    assert shape.dims[:2] == (2 * 4 * SIZE, 4)  # eager mode writes 4 kB between and reads them again
    small, large, dilated = nn.AvgPool2d(5), nn.AvgPool2d(6), nn.MaxPool2d(2, dilation=2)
    assert names(meta_step(small, 1, 1, 60, 60)) == [FUSED]
    assert names(meta_step(large, 1, 1, 60, 60)) == ["aten::avg_pool2d"]
    assert names(meta_step(dilated, 1, 1, 60, 60)) == ["aten::max_pool2d_with_indices"]
    assert names(meta_step(nn.MaxPool3d(2), 1, 1, 8, 8, 8)) == ["aten::max_pool3d_with_indices"]
    # As in GPT's GELU: 0.5 x, and 1 + tanh(x), multiplied.
    step = (operation("mul", (0,), 1), operation("tanh", (0,), 2), operation("mul", (1, 2), 3))
    (kernel,) = compiled(trace(*step))
    assert (numbers(kernel.inputs), numbers(kernel.outputs)) == ([0], [3])
    # 197 tokens and heads of 64: 197 x 197 x 64 / (2 x 197 x 64 + 197 x 197) = 39 multiplications an element.
    left, right = TensorInfo((3, 197, 64), "float16", id=0), TensorInfo((3, 64, 197), "float16", id=1)
    product = replace(operation("bmm", (0, 1), 2), inputs=(left, right))
    assert compiled(trace(product)) == (product,)


def test_compiling_saves_the_measured_share() -> None:
    """Hinge loss, cross entropy, Huber loss and cumulative product of KernelBench, eager over compiled, H100-PCIe."""
    functional = torch.nn.functional

    def speed_up(step: Callable[[Tensor], Tensor], *shape: int) -> float:
        eager = lp.capture(lambda: step(torch.empty(*shape, device="meta")), warmup_steps=0)
        before, after = (lp.predict(one, ["H100-PCIe-80GB"]).items_in_order[0] for one in (eager, fused(eager)))
        return before.device_seconds / after.device_seconds

    targets = torch.empty(32768, dtype=torch.int64, device="meta")
    assert speed_up(lambda x: functional.cross_entropy(x, targets), 32768, 4096) == pytest.approx(5.1, rel=0.1)
    assert speed_up(lambda x: functional.smooth_l1_loss(x, x.new_empty(x.shape)), 32768, 32768) == pytest.approx(
        2.07, rel=0.1
    )
    assert speed_up(lambda x: torch.cumprod(x, dim=1), 32768, 32768) == pytest.approx(1.45, rel=0.1)


@pytest.mark.parametrize(("dtype", "columns", "copies"), [("bfloat16", 50264, 1), ("float32", 50257, 0)])
def test_odd_sides_of_a_large_16_bit_product_are_padded_by_a_copy(dtype: str, columns: int, copies: int) -> None:
    factors = TensorInfo((512, 768), dtype, id=0), TensorInfo((768, 50257), dtype, id=1)
    product = replace(operation("mm", (0, 1), 2), inputs=factors, outputs=(TensorInfo((512, 50257), dtype, id=2),))
    *copied, padded = compiled(trace(product))
    # 50,257 = 8 x 6,282 + 1; all other sides are even. No kernel of the step makes the second factor.
    assert [(kernel.name, kernel.inputs) for kernel in copied] == [("aten::constant_pad_nd", factors[1:])] * copies
    assert [tensor.shape for tensor in padded.inputs] == [(512, 768), (768, columns)]
    (shape,) = translate(padded, Flags())
    assert shape.parameters == {"b": 1, "m": 512, "n": columns, "k": 768}


def test_kernel_that_makes_a_factor_writes_its_padding() -> None:
    data, weight = TensorInfo((4096, 1023), "bfloat16", id=0), TensorInfo((1023, 2048), "bfloat16", id=2)
    scaled, bias = replace(data, id=1), TensorInfo((2048,), "bfloat16", id=4)
    relu = replace(operation("relu", (0,), 1), inputs=(data,), outputs=(scaled,))
    product = replace(operation("addmm", (4, 1, 2), 3), inputs=(bias, scaled, weight))
    kernel, copy, padded = compiled(trace(relu, product))
    assert (kernel.name, [tensor.shape for tensor in kernel.outputs]) == (FUSED, [(4096, 1024)])
    assert (copy.inputs, copy.outputs[0].shape) == ((weight,), (1024, 2048))
    assert [tensor.shape for tensor in padded.inputs] == [(2048,), (4096, 1024), (1024, 2048)]
    turned = replace(product, name="aten::mm", inputs=(scaled, weight), arguments={"first_transposed": True})
    assert [padding.name for padding in compiled(trace(relu, turned))[1:-1]] == ["aten::constant_pad_nd"] * 2


def test_losses_outside_and_earlier_gradients_stay_outside_of_kernels() -> None:
    forward = operation("relu", (0,), 1)
    cast, added = (replace(one, phase="backward") for one in (operation("relu", (1,), 2), operation("add_", (3, 2), 3)))
    *_, last = compiled(trace(forward, cast, added))
    assert last.name == "aten::add_"
    inside = replace(operation("mul", (1,), 3), phase="backward")
    *_, last = compiled(trace(forward, cast, inside, added))
    assert last.name == FUSED
    names = [one.name for one in fused(with_eager_loss(step_with_loss())).operations]
    assert {"aten::_log_softmax", "aten::_log_softmax_backward_data"} <= set(names)
    # Without a backward pass, the logarithms are the result.
    with torch.device("meta"):
        rows = torch.empty(TOKENS, CLASSES)
    alone = lp.capture(lambda: torch.log_softmax(rows * 2, -1), warmup_steps=0)
    assert [one.name for one in compiled(alone)] == [FUSED, FUSED]  # the sums of the rows, the logarithms


CLASSES, TOKENS = 8000, 64


def step_with_loss(*, classes: int = CLASSES) -> Trace:
    with torch.device("meta"):
        head = nn.Linear(32, classes, dtype=torch.bfloat16)
        inputs = torch.empty(TOKENS, 32, dtype=torch.bfloat16)
        targets = torch.zeros(TOKENS, dtype=torch.int64)
    loss = nn.functional.cross_entropy
    return lp.capture(lambda: loss(head(inputs).float(), targets).backward(), warmup_steps=0)


def test_compiled_loss_of_long_rows_keeps_only_16_bit_logits() -> None:
    step = step_with_loss()
    wide = {tensor.dtype for call in step.operations for tensor in call.outputs if tensor.elements == TOKENS * CLASSES}
    assert wide == {"bfloat16", "float32"}
    kernels = [one for one in compiled(step) if one.name == FUSED]
    # The sum of each row, the loss, the gradient of the logits, and its sum over rows, the gradient of the bias, which
    # Inductor schedules as one kernel of its own, too.
    sums, loss, gradient, bias = kernels
    assert bias.arguments["operations"] == ["aten::sum"]
    assert [tensor.elements for tensor in bias.outputs] == [CLASSES]
    assert not any("softmax" in one.name for one in compiled(step))
    for kernel in kernels:
        read = [tensor for tensor in kernel.inputs if tensor.elements == TOKENS * CLASSES]
        assert {tensor.dtype for tensor in read} == ({"bfloat16"} if kernel is not loss else set())  # one value a row
    assert [tensor.elements for tensor in sums.outputs] == [TOKENS]
    assert max(tensor.elements for tensor in loss.outputs) < TOKENS
    written = [tensor for tensor in gradient.outputs if tensor.elements == TOKENS * CLASSES]
    assert [tensor.dtype for tensor in written] == ["bfloat16"]
    # Before 2.7, the maximum of each row was found in a pass of its own.
    earlier = [one for one in compiled(replace(step, software={"torch": "2.6"})) if one.name == FUSED]
    assert [one.inputs[0] for one in earlier[:3]] == [sums.inputs[0], sums.inputs[0], loss.inputs[0]]


def test_gradients_of_the_weights_of_a_norm_are_sums_of_their_own_kernel() -> None:
    with torch.device("meta"):
        weight, layer = nn.Parameter(torch.ones(1024)), nn.Linear(1024, 1024)
        data = torch.empty(4096, 1024)

    def step() -> None:
        rows = layer(data)
        layer(nn.functional.rms_norm(rows, (1024,), weight=weight).relu()).square().mean().backward()

    kernels = [
        one.arguments["operations"] for one in fused(lp.capture(step, warmup_steps=0)).operations if one.name == FUSED
    ]
    gradient, sums, bias = kernels[-3:]
    assert bias == ["aten::sum"]  # of the first call of the layer; Inductor's kernel sums its columns, not PyTorch's
    assert gradient[-1] == "aten::_fused_rms_norm_backward"  # in one kernel with the gradient of the activation
    assert len(gradient) > 1
    assert sums == ["triton::column_sums"]


def test_mask_of_dropout_is_drawn_once_and_kept() -> None:
    with torch.device("meta"):
        layer, data = nn.Linear(512, 512), torch.empty(1024, 512)
    step = fused(lp.capture(lambda: nn.functional.dropout(layer(data)).sum().backward(), warmup_steps=0))
    drawn = [one for one in step.operations if "aten::bernoulli_" in one.arguments.get("operations", ())]
    assert [one.phase for one in drawn] == ["forward"]
    (mask,) = (tensor for tensor in drawn[0].outputs if tensor.dtype == "uint8")
    assert {one.phase for one in step.operations if mask in one.inputs} >= {"backward"}
