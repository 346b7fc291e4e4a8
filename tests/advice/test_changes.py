"""Each change of a step: its effect on the operations, and why it does not apply."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from lightning_predict.advice.batch_size import with_batch
from lightning_predict.advice.changes import CHANGES, change_named
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.fusion.channels_last import in_channels_last
from lightning_predict.hardware import gpu
from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.trace import Flags, Trace
from tests.advice.example_steps import WIDTH, profiled, trained


@pytest.fixture(scope="module")
def step() -> Trace:
    return trained()


def changed(name: str, trace: Trace) -> Trace:
    return CHANGES[name].apply(trace, Assumptions())[0]


def seconds(trace: Trace, name: str = "A100-SXM-40GB") -> float:
    return lp.predict(trace, [name], history=False)[name].iteration_seconds


def test_changed_steps_equal_captures_of_that_batch_or_layout(step: Trace) -> None:
    captured, grown = trained(1024), with_batch(step, 2)
    assert grown.samples == captured.samples
    assert [(operation.name, [tensor.shape for tensor in operation.inputs]) for operation in grown.operations] == [
        (operation.name, [tensor.shape for tensor in operation.inputs]) for operation in captured.operations
    ]
    turned, captured = in_channels_last(images()), images(torch.channels_last)
    assert layouts(turned) == layouts(captured)
    assert seconds(turned) == pytest.approx(seconds(captured), rel=0.05)


def images(memory_format: torch.memory_format = torch.contiguous_format) -> Trace:
    """Convolutions with a batch norm, a group norm and pooling."""
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.GroupNorm(8, 128),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        ).to(memory_format=memory_format)  # type: ignore[call-overload]
        data = torch.empty(16, 3, 64, 64).to(memory_format=memory_format)
    return lp.capture(lambda: model(data).sum().backward(), warmup_steps=0, precision="16-mixed")


def layouts(trace: Trace) -> list[tuple[str, bool]]:
    kinds = ("aten::convolution", "aten::native_batch_norm")
    return [
        (operation.name, CHANNELS_LAST in operation.arguments)
        for operation in trace.operations
        if operation.name in kinds
    ]


def test_fused_optimizer_updates_every_parameter_once(step: Trace) -> None:
    (update,) = [
        operation for operation in changed("fused_optimizer", step).operations if operation.phase == "optimizer"
    ]
    # Parameters, gradients and two moments of two blocks with two layers each, in four bytes.
    parameters = 4 * (WIDTH * WIDTH + WIDTH) * 4
    assert sum(tensor.size_bytes for tensor in update.inputs) == 4 * parameters


def test_checkpointing_repeats_only_the_forward_pass_of_blocks(step: Trace) -> None:
    """But for the end of each block: its backward pass reads the input of `second`, which torch does not run again."""
    again = changed("checkpointing", step)
    forward = [operation.name for operation in step.operations if operation.phase == "forward" and operation.module]
    skipped = len(forward) - (len(again.operations) - len(step.operations))
    assert 2 <= skipped < len(forward) / 2  # two blocks
    assert seconds(again) > seconds(step)


@pytest.mark.parametrize("ends", ["in a product", "in a norm"])
def test_checkpointed_step_takes_the_time_of_a_checkpointed_capture(ends: str) -> None:
    """A step of a 3 x 3 convolution at the end of a block was told 28 % too slow."""

    def block() -> nn.Module:
        parts = [nn.GroupNorm(8, 128), nn.SiLU(), nn.Conv2d(128, 128, 3, padding=1)]
        return nn.Sequential(*(parts if ends == "in a product" else parts[::-1]))

    def captured(*, again: bool) -> Trace:
        with torch.device("meta"):
            blocks, data = nn.ModuleList(block() for _ in range(3)), torch.empty(8, 128, 64, 64, requires_grad=True)

        def step() -> None:
            rows = data
            for each in blocks:
                rows = checkpoint(each, rows, use_reentrant=False) if again else each(rows)
            rows.square().mean().backward()

        return lp.capture(step, warmup_steps=0, resident=[blocks])

    turned, recorded = changed("checkpointing", captured(again=False)), captured(again=True)
    assert seconds(turned) == pytest.approx(seconds(recorded), rel=0.02)


def test_padding_rounds_a_vocabulary_up_to_cache_lines() -> None:
    with torch.device("meta"):
        model, tokens = nn.Linear(768, 50257), torch.empty(64, 768)
    trace = lp.capture(lambda: model(tokens).sum().backward(), warmup_steps=0)
    padded = changed("padding", trace)
    assert {side for operation in padded.operations for tensor in operation.inputs for side in tensor.shape} & {
        50257,
        50304,
    } == {50304}


def test_changes_of_host_and_loader_leave_operations_as_they_are() -> None:
    trace = replace(trained(64), loader_seconds=(0.5, 0.7))
    before, after = (lp.predict(one, ["L4"], history=False)["L4"] for one in (trace, changed("loader", trace)))
    assert before.cycle_seconds - after.cycle_seconds == pytest.approx(0.6)
    trace = trained(8)
    graphed, assumptions = CHANGES["cuda_graphs"].apply(trace, Assumptions())
    assert graphed.operations == trace.operations
    assert 0 < assumptions.host_assumed.share < 0.1


@pytest.mark.parametrize(
    ("name", "trace", "on", "words"),
    [
        (
            "16-mixed",
            replace(profiled(kernel_seconds=1e-3, every=1e-4), flags=Flags(autocast_dtype="float16")),
            "L4",
            "au",
        ),
        ("tf32", profiled(kernel_seconds=1e-3, every=1e-4), "T4", "T4 has no TF32"),
        ("tf32", profiled(kernel_seconds=1e-3, every=1e-4), "L4", None),
        ("channels_last", profiled(kernel_seconds=1e-3, every=1e-4), "L4", "convolves no images"),
        ("compile", profiled(kernel_seconds=1e-3, every=1e-4), "L4", "capture the same step on the meta device"),
        ("compile", trained(8), "P100-PCIe-16GB", "lacks it: it needs tensor cores"),
        ("batch_size", profiled(kernel_seconds=1e-3, every=1e-4), "L4", "how many samples a step holds is not known"),
        ("fused_optimizer", profiled(kernel_seconds=1e-3, every=1e-4), "L4", "holds no optimizer update"),
        ("checkpointing", profiled(kernel_seconds=1e-3, every=1e-4), "L4", "has no backward pass"),
        ("loader", trained(8), "L4", "no wait for the loader was recorded"),
        ("fewer_waits", trained(8), "L4", "the host reads no value"),
        ("padding", trained(8), "L4", "no parameter has a long side"),
    ],
)
def test_inapplicable_change_gives_the_reason(name: str, trace: Trace, on: str, words: str | None) -> None:
    why_not = CHANGES[name].why_not(trace, gpu(on))
    if words is None:
        assert why_not is None
    else:
        assert why_not is not None
        assert words in why_not


def test_unknown_changes_and_traces_without_shapes_are_refused() -> None:
    trace = profiled(kernel_seconds=1e-3, every=1e-4)
    blind = replace(trace, operations=tuple(replace(operation, inputs=()) for operation in trace.operations))
    assert "record it with record_shapes=True" in (CHANGES["16-mixed"].why_not(blind, None) or "")
    with pytest.raises(InvalidArgumentError, match="change='bf32' is not known; choose one of bf16-mixed, 16-mixed"):
        change_named("bf32")


class Block(nn.Module):
    """Two layers and a shortcut, behind activation checkpointing or not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(x)))
        return x + out


def of_blocks(*, is_checkpointed: bool) -> Trace:
    with torch.device("meta"):
        blocks = nn.ModuleList([Block(), Block(), Block()])
        rows = torch.randn(4096, 512, requires_grad=True)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = blocks

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if is_checkpointed else block(x)
            return x

    model = Model()
    return lp.capture(lambda: model(rows).sum().backward(), samples_per_step=4096)


def test_step_without_checkpointing_equals_a_plain_capture() -> None:
    again, plain = of_blocks(is_checkpointed=True), of_blocks(is_checkpointed=False)
    changed_back = changed("no_checkpointing", again)
    products = [
        operation.name for operation in plain.operations if operation.name in ("aten::addmm", "aten::mm", "aten::relu")
    ]
    assert [
        operation.name
        for operation in changed_back.operations
        if operation.name in ("aten::addmm", "aten::mm", "aten::relu")
    ] == (products)
    assert seconds(changed_back) == pytest.approx(seconds(plain), rel=0.01)
    memory = [lp.predict(one, ["L4"], history=False)["L4"].memory_bytes for one in (again, changed_back, plain)]
    assert memory[0] is not None
    assert memory[1] is not None
    assert memory[0] < memory[1]
    assert memory[1] == pytest.approx(memory[2], rel=0.02)
    assert CHANGES["checkpointing"].why_not(again, None) == "blocks compute their activations again already"
    assert CHANGES["no_checkpointing"].why_not(plain, None) == "the backward pass computes nothing again"
