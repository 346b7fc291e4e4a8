"""The allocator during training steps: by hand, and relations that must hold."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lightning_predict as lp
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.memory.libraries import convolved_share, trial_bytes, workspace_bytes
from lightning_predict.memory.simulation import (
    SimulatedStep,
    blocks_of,
    fullest_moments,
    gradient_bytes,
    least_reserved_bytes,
    simulated,
)
from lightning_predict.memory.storages import written_storages
from lightning_predict.record.trace import Memory, Operation, Parameter, TensorInfo, Trace

BATCH = TensorInfo((12, MEBIBYTE), "uint8", id=0)
WEIGHT = TensorInfo((16, MEBIBYTE), "uint8", id=1)
HIDDEN = TensorInfo((40, MEBIBYTE), "uint8", id=2)
LOGITS = TensorInfo((30, MEBIBYTE), "uint8", id=3)
GRADIENT = TensorInfo((16, MEBIBYTE), "uint8", id=4)
STEP = Trace(
    operations=(
        Operation(name="aten::mul", phase="forward", inputs=(BATCH, WEIGHT), outputs=(HIDDEN,), module="body"),
        Operation(name="aten::exp", phase="forward", inputs=(HIDDEN,), outputs=(LOGITS,), module="head"),
        Operation(name="aten::mul", phase="backward", inputs=(HIDDEN,), outputs=(GRADIENT,)),
        Operation(name="aten::add_", phase="optimizer", inputs=(WEIGHT, GRADIENT), outputs=(WEIGHT,)),
    ),
    device="meta",
    recorder="dispatch",
    parameters=(Parameter(name="weight", shape=(16, MEBIBYTE), dtype="uint8"),),
    memory=Memory(parameter_bytes=16 * MEBIBYTE, gradient_bytes=16 * MEBIBYTE, forward_gradient_bytes=0),
    held=(4,),
)


def mebibytes(trace: Trace) -> tuple[float, float]:
    """Return the peak of the tensors in the passes, and the reserved memory."""
    blocks = blocks_of(trace)
    return fullest_moments(blocks)[0].total_bytes / MEBIBYTE, simulated(blocks).reserved_bytes / MEBIBYTE


def with_memory(**values: int | None) -> Trace:
    return replace(STEP, memory=replace(STEP.memory, **values))


# Fullest: weight, batch, hidden and logits, 16 + 12 + 40 + 30. The gradient takes 16 of the 30 that the logits left,
# the second step's batch 12 of the other 14: the second step's logits need a segment of their own.
TENSORS, RESERVED = 98, 98 + 30


@pytest.mark.parametrize(
    ("trace", "added"),
    [
        (STEP, 0),
        (with_memory(forward_gradient_bytes=16 * MEBIBYTE), 16),  # gradients persist through the forward pass
        (replace(STEP, software={"torch": "1.13.1"}), 16),  # before torch 2.0, gradients persist, filled with zeros
        (replace(STEP, operations=STEP.operations[:3]), 0),  # a gradient that no recorded optimizer reads
        (replace(STEP, held=(3, 4)), 30),  # a variable holds the first step's logits until the second step has its own
        # The logits are freed late: the gradient is written while they are live.
        (
            replace(
                STEP, operations=(*STEP.operations[:2], replace(STEP.operations[2], freed=(3,)), STEP.operations[3])
            ),
            16,
        ),
        (with_memory(optimizer_state_bytes=32 * MEBIBYTE), 32),  # from the first update on
    ],
)
def test_peak_of_tensors_by_hand(trace: Trace, added: int) -> None:
    assert mebibytes(STEP) == (TENSORS, RESERVED)
    tensors, reserved = mebibytes(trace)
    assert tensors == TENSORS + added
    assert reserved >= tensors


@pytest.mark.parametrize(
    ("trace", "causes", "freed"),
    [
        (STEP, ["activation", "activation", "gradient"], [2, 1, None]),
        (replace(STEP, operations=STEP.operations[:3]), ["activation", "activation", "gradient"], [2, 1, None]),
        (replace(STEP, held=(3, 4)), ["activation", "activation", "gradient"], [2, None, None]),
    ],
)
def test_storages_have_causes_and_lifetimes(trace: Trace, causes: list[str], freed: list[int | None]) -> None:
    storages = written_storages(trace)
    assert [storage.cause for storage in storages] == causes
    assert [storage.freed_at for storage in storages] == freed
    assert [storage.module for storage in storages] == ["body", "head", None]


def test_gradients_of_previous_step_are_dropped_before_or_after_forward_pass() -> None:
    assert blocks_of(STEP).drops_gradients_at == -1  # before the step
    kept = with_memory(forward_gradient_bytes=16 * MEBIBYTE)
    assert blocks_of(kept).drops_gradients_at == 1  # the last operation before the backward pass, the third
    unknown = with_memory(gradient_bytes=None)
    assert gradient_bytes(unknown) == 16 * MEBIBYTE  # as large as the parameters
    assert gradient_bytes(replace(unknown, operations=STEP.operations[:2])) == 0  # no backward pass


def test_temporary_tensors_of_the_update_before_torch_2() -> None:
    roots = tuple(
        Operation(name="aten::sqrt", phase="optimizer", inputs=(GRADIENT,), outputs=(replace(GRADIENT, id=number),))
        for number in (5, 6)
    )
    more = tuple(Parameter(name=f"{number}", shape=(16, MEBIBYTE), dtype="uint8") for number in range(3))
    updated = replace(
        with_memory(parameter_bytes=48 * MEBIBYTE, gradient_bytes=48 * MEBIBYTE),
        operations=(*STEP.operations, *roots),
        parameters=more,
    )
    # The current update writes all roots at once, as many bytes as two calls wrote; the old update one root.
    assert sum(blocks_of(updated).update) == 32 * MEBIBYTE
    assert blocks_of(replace(updated, software={"torch": "1.13.1"})).update == (16 * MEBIBYTE,)


@pytest.mark.parametrize(("groups", "share"), [(1, 0.5), (3, 0.0)])
def test_only_convolutions_of_cudnn_count_as_convolved(groups: int, share: float) -> None:
    image, weight, bias = (
        TensorInfo(shape, "float32", number) for number, shape in enumerate([(2, 3, 8, 8), (4, 3, 3, 3), (4,)])
    )
    convolved, active = (TensorInfo((2, 4, 6, 6), "float32", number) for number in (3, 4))
    convolution = Operation(
        name="aten::convolution",
        phase="forward",
        inputs=(image, weight, bias),
        outputs=(convolved,),
        arguments={"groups": groups},
    )
    relu = Operation(name="aten::relu", phase="forward", inputs=(convolved,), outputs=(active,))
    assert convolved_share(replace(STEP, operations=(convolution, relu))) == share


def test_autocast_copy_lives_until_backward_pass_reads_it_under_another_id() -> None:
    # Below autograd the recorder casts anew in the backward pass: number 9 is the copy, number 5. A copy in the same
    # dtype is not autocast's.
    cast, other = (TensorInfo((40, MEBIBYTE), dtype, number) for dtype, number in (("bool", 5), ("uint8", 6)))
    read = replace(cast, id=9)
    forward = tuple(
        Operation(name="aten::_to_copy", phase="forward", inputs=(HIDDEN,), outputs=(copy,)) for copy in (cast, other)
    )
    backward = replace(STEP.operations[2], inputs=(read, replace(other, id=10)))
    trace = replace(STEP, operations=(*STEP.operations[:2], *forward, backward, STEP.operations[3]))
    freed = {storage.allocated_at: storage.freed_at for storage in written_storages(trace)}
    assert (freed[2], freed[3]) == (4, 3)


def test_required_memory_excludes_unused_segments_and_full_gpus_need_no_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # When the second step's logits ask for a segment of their own, the 12 of the first step's batch are free, as the
    # second batch is where the first logits were: they are given back.
    blocks = blocks_of(STEP)
    assert least_reserved_bytes(blocks) == (RESERVED - 12) * MEBIBYTE
    # A trial of 500 at the first operation is given back; without room for it cuDNN does not ask.
    tried = replace(blocks, trials=((0, 500 * MEBIBYTE),))
    assert simulated(tried).reserved_bytes > 500 * MEBIBYTE
    assert least_reserved_bytes(tried) == least_reserved_bytes(blocks)
    whole = simulated(blocks)
    assert whole.growth[-1] == (whole.reserved_bytes, 12 * MEBIBYTE)  # the batch's 12 MiB, as above
    assert whole.exceeds(whole.reserved_bytes - 13 * MEBIBYTE)
    assert not whole.exceeds(whole.reserved_bytes - 12 * MEBIBYTE)
    least = least_reserved_bytes(blocks)
    monkeypatch.setattr(SimulatedStep, "exceeds", lambda *_: False)  # simulates every capacity
    assert least_reserved_bytes(blocks) == least


# --- Recorded layers


def captured(step: Callable[[], None], **options: Any) -> Trace:
    return lp.capture(step, warmup_steps=0, **options)


def convolution(*, groups: int = 1, kernel: int = 3, benchmark: bool = False) -> Trace:
    """Record a convolution of 8 images of 32 x 32 pixels and 64 channels, forward and backward."""
    with torch.device("meta"):
        model = nn.Conv2d(64, 64, kernel, padding=kernel // 2, groups=groups)
        images = torch.empty(8, 64, 32, 32, requires_grad=True)
    trace = captured(lambda: model(images).sum().backward())
    return replace(trace, flags=replace(trace.flags, cudnn_benchmark=benchmark))


IMAGES_BYTES = 8 * 64 * 32 * 32 * 4


@pytest.mark.parametrize(
    ("trace", "sizes"),
    [
        (convolution(), [2 * IMAGES_BYTES]),  # copies of images and gradients
        (convolution(kernel=1), []),
        (convolution(groups=64), []),  # torch's own kernels
    ],
)
def test_workspaces_of_weight_gradients(trace: Trace, sizes: list[int]) -> None:
    assert [size for _, size in workspace_bytes(trace)] == sizes


def test_trials_of_cudnn_unfold_images_once_forward_and_twice_backward() -> None:
    plain, tried = convolution(), convolution(benchmark=True)
    assert [size for _, size in trial_bytes(plain)] == [9 * IMAGES_BYTES] * 3
    reserved = [simulated(blocks_of(trace)).reserved_bytes for trace in (plain, tried)]
    assert reserved[1] > reserved[0] + 6 * IMAGES_BYTES


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_tensors_are_at_most_allocated_and_allocated_at_most_reserved(expandable: bool, kept: bool) -> None:
    layers: list[nn.Module] = []
    with torch.device("meta"):
        for _ in range(6):
            layers += [nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024)]
        model = nn.Sequential(*layers)
        data = torch.empty(4096, 1024)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        if not kept:
            optimizer.zero_grad()
        loss = model(data).sum()
        if kept:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    blocks = blocks_of(lp.capture(step, warmup_steps=1))
    peaks = simulated(blocks, expandable_segments=expandable)
    tensors = max(moment.total_bytes for moment in fullest_moments(blocks))
    assert tensors <= peaks.allocated_bytes <= peaks.reserved_bytes
    assert peaks.reserved_bytes < 1.5 * tensors


class WithBuffer(nn.Module):
    """A matmul with a table that is stored in a buffer, as packed weights are."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(64, 64, device="meta"))
        self.weight = nn.Parameter(torch.empty(64, 64, device="meta"))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data @ self.table @ self.weight


def test_buffer_is_not_part_of_the_batch(tmp_path: Path) -> None:
    module, data = WithBuffer(), torch.empty(8, 64, device="meta")
    trace = lp.capture(lambda: module(data).sum().backward(), warmup_steps=1)
    blocks = blocks_of(trace)
    assert blocks.batch == (8 * 64 * 4,)
    assert blocks.lasting == (64 * 64 * 4,) * 3  # the weight, the buffer and the gradient, each once
    trace.save(str(tmp_path / "step.json"))
    assert lp.Trace.load(str(tmp_path / "step.json")).buffers == trace.buffers != ()


def test_source_of_autocast_copy_is_freed_on_meta_device() -> None:
    with torch.device("meta"):
        norm, layer = nn.LayerNorm(64), nn.Linear(64, 64)
        data = torch.empty(1024, 64)
    trace = captured(lambda: torch.square(layer(norm(data))).sum().backward(), precision="16-mixed")
    copies = {
        operation.inputs[0].shape: (index, operation)
        for index, operation in enumerate(trace.operations)
        if operation.name == "aten::_to_copy" and operation.outputs[0].dtype == "float16"
    }
    at, cast = copies[1024, 64]  # of the norm's output; the other is the weight's
    lives = {(storage.allocated_at, storage.size_bytes): storage.freed_at for storage in written_storages(trace)}
    freed = lives[at, 1024 * 64 * 2]
    assert freed is not None
    assert trace.operations[freed].phase == "backward"
    norm_at = next(
        index for index, one in enumerate(trace.operations) if cast.inputs[0].id in {out.id for out in one.outputs}
    )
    assert lives[norm_at, 1024 * 64 * 4] == at  # the float32 source is not kept


@pytest.mark.parametrize(
    ("shape", "dtype", "has_mask", "dropout", "kept_mebibytes"),
    [
        # Of 16 heads, 256 x 256 probabilities of 4 bytes are 4 MiB; scaled queries and keys of 64 values 1 MiB each.
        ((2, 8, 256, 64), torch.float32, False, 0.0, 0),  # a fused kernel
        ((2, 4, 2, 256, 64), torch.float32, False, 0.0, 4 + 2),
        # T5 under autocast on an H200 allocated 12,294 MiB; as fused attention, 9,319 MiB were predicted. Dropout keeps
        # its mask of one byte and its output.
        ((2, 8, 256, 64), torch.bfloat16, True, 0.0, 4 + 2),
        ((2, 8, 256, 64), torch.bfloat16, True, 0.5, 4 + 2 + 1 + 4),
    ],
)
def test_unfused_attention_keeps_its_probabilities(
    shape: tuple[int, ...], dtype: torch.dtype, has_mask: bool, dropout: float, kept_mebibytes: int
) -> None:
    with torch.device("meta"):
        query, key, value = (torch.empty(shape, dtype=dtype, requires_grad=True) for _ in range(3))
        mask = torch.empty(1, 256, 256, 8).permute(0, 3, 1, 2) if has_mask else None  # as T5's position bias

    def step() -> None:
        attend = nn.functional.scaled_dot_product_attention
        attend(query, key, value, attn_mask=mask, dropout_p=dropout).sum().backward()

    trace = captured(step)
    attention = next(index for index, operation in enumerate(trace.operations) if "attention" in operation.name)
    kept = sum(storage.size_bytes for storage in written_storages(trace) if storage.allocated_at == attention)
    result = query.numel() * query.element_size()
    assert kept - result == kept_mebibytes * MEBIBYTE


@pytest.mark.parametrize(("kind", "gates", "published"), [(nn.LSTM, 5, 736_000_000), (nn.GRU, 6, 864_000_000)])
def test_recurrent_layers_keep_their_gates(kind: type[nn.LSTM | nn.GRU], gates: int, published: int) -> None:
    # cuDNN's workspace for 25,000 vectors of unknown layout, taken as 50 sequences of 500.
    with torch.device("meta"):
        model, data = kind(123, 320, num_layers=4), torch.empty(500, 50, 123)
    trace = captured(lambda: model(data)[0].sum().backward())
    names = [operation.name for operation in trace.operations]
    name = f"aten::{kind.__name__.lower()}"
    assert (4 * gates + 3) * 4 * 320 * 25_000 == published
    assert (published, "activation", names.index(name), names.index(f"{name}_backward")) in [
        (storage.size_bytes, storage.cause, storage.allocated_at, storage.freed_at)
        for storage in written_storages(trace)
    ]


def test_bidirectional_layer_keeps_gates_in_its_precision() -> None:
    with torch.device("meta"):
        model, data = nn.LSTM(16, 8, bidirectional=True), torch.empty(10, 4, 16)
    trace = captured(lambda: model(data)[0].sum().backward(), precision="bf16-mixed")
    assert 5 * (10 * 4 * 2 * 8) * 2 in [storage.size_bytes for storage in written_storages(trace)]
