"""The allocator run through training steps: by hand, and what must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
    """The most that lives in the passes, in tensors, and reserved memory."""
    return (
        fullest_moments(blocks_of(trace))[0].total_bytes / MEBIBYTE,
        simulated(blocks_of(trace)).reserved_bytes / MEBIBYTE,
    )


def test_the_blocks_of_a_step_that_drops_its_gradients_first() -> None:
    # Fullest: weight, batch, hidden and logits, 16 + 12 + 40 + 30. The gradient takes 16 of the 30 that the logits
    # left, the second step's batch 12 of the other 14: the second step's logits need a segment of their own.
    assert mebibytes(STEP) == (98, 98 + 30)


def test_gradients_of_the_last_step_live_until_the_first_backward_pass_and_are_as_large_as_what_they_are_for() -> None:
    assert blocks_of(STEP).drops_gradients_at == -1  # before the step: none live through its forward pass
    kept = replace(STEP, memory=replace(STEP.memory, forward_gradient_bytes=16 * MEBIBYTE))
    assert blocks_of(kept).drops_gradients_at == 1  # the last operation before the backward pass, the third
    unknown = replace(STEP, memory=replace(STEP.memory, gradient_bytes=None))
    assert gradient_bytes(unknown) == 16 * MEBIBYTE
    assert gradient_bytes(replace(unknown, operations=STEP.operations[:2])) == 0  # none was made


def test_before_torch_2_gradients_stay_filled_with_zeros_and_parameters_are_updated_one_by_one() -> None:
    old = replace(STEP, software={"torch": "1.13.1"})
    # 16 more than today live through the passes: the gradient, to which the new one is added.
    assert mebibytes(old)[0] == mebibytes(STEP)[0] + 16
    roots = tuple(
        Operation(name="aten::sqrt", phase="optimizer", inputs=(GRADIENT,), outputs=(replace(GRADIENT, id=number),))
        for number in (5, 6)
    )
    more = tuple(Parameter(name=f"{number}", shape=(16, MEBIBYTE), dtype="uint8") for number in range(3))
    updated = replace(
        STEP,
        operations=(*STEP.operations, *roots),
        parameters=more,
        memory=replace(STEP.memory, parameter_bytes=48 * MEBIBYTE, gradient_bytes=48 * MEBIBYTE),
    )
    # Today's update writes all roots at once, as many bytes as two calls were seen to write; the old update one root.
    assert sum(blocks_of(updated).update) == 32 * MEBIBYTE
    assert blocks_of(replace(updated, software=old.software)).update == (16 * MEBIBYTE,)


def test_only_convolutions_that_cudnn_runs_count_as_convolved() -> None:
    image, weight, bias = (
        TensorInfo(shape, "float32", number) for number, shape in enumerate([(2, 3, 8, 8), (4, 3, 3, 3), (4,)])
    )
    convolved, active = (TensorInfo((2, 4, 6, 6), "float32", number) for number in (3, 4))
    operations = (
        Operation(name="aten::convolution", phase="forward", inputs=(image, weight, bias), outputs=(convolved,)),
        Operation(name="aten::relu", phase="forward", inputs=(convolved,), outputs=(active,)),
    )
    assert convolved_share(replace(STEP, operations=operations)) == 0.5
    depthwise = replace(operations[0], arguments={"groups": 3})
    assert convolved_share(replace(STEP, operations=(depthwise, operations[1]))) == 0


def test_a_copy_that_the_backward_pass_reads_under_another_number_lives_until_then() -> None:
    # Below autograd the recorder casts anew in the backward pass: number 9 is the copy, number 5. A copy in the same
    # dtype is not autocast's.
    cast, other = (TensorInfo((40, MEBIBYTE), dtype, number) for dtype, number in (("bool", 5), ("uint8", 6)))
    read = replace(cast, id=9)
    forward = tuple(
        Operation(name="aten::_to_copy", phase="forward", inputs=(HIDDEN,), outputs=(copy,)) for copy in (cast, other)
    )
    backward = replace(STEP.operations[2], inputs=(read, replace(other, id=10)))
    trace = replace(STEP, operations=(*STEP.operations[:2], *forward, backward, STEP.operations[3]))
    deaths = {one.allocated_at: one.freed_at for one in written_storages(trace)}
    assert (deaths[2], deaths[3]) == (4, 3)


def test_what_must_fit_is_without_the_segments_that_are_given_back_and_without_trials() -> None:
    # As above 98 and 30 more are reserved. When the second step's logits ask for a segment of their own, the 12 of the
    # first step's batch are free, as the second batch lies where the first logits were: they are given back.
    blocks = blocks_of(STEP)
    assert least_reserved_bytes(blocks) == (98 + 30 - 12) * MEBIBYTE
    # A trial of 500 at the first product is given back; without room for it cuDNN does not ask.
    tried = replace(blocks, trials=((0, 500 * MEBIBYTE),))
    assert simulated(tried).reserved_bytes > 500 * MEBIBYTE
    assert least_reserved_bytes(tried) == least_reserved_bytes(blocks)


def test_a_gpu_that_is_too_small_when_it_is_first_full_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of(STEP)
    whole = simulated(blocks)
    assert whole.growth[-1] == (whole.reserved_bytes, 12 * MEBIBYTE)  # the batch's 12 MiB, as above
    assert whole.exceeds(whole.reserved_bytes - 13 * MEBIBYTE)
    assert not whole.exceeds(whole.reserved_bytes - 12 * MEBIBYTE)
    least = least_reserved_bytes(blocks)
    monkeypatch.setattr(SimulatedStep, "exceeds", lambda *_: False)  # simulates every capacity
    assert least_reserved_bytes(blocks) == least


def test_gradients_that_live_through_the_forward_pass_are_part_of_its_fullest_moment() -> None:
    kept = replace(STEP, memory=replace(STEP.memory, forward_gradient_bytes=16 * MEBIBYTE))
    assert mebibytes(kept)[0] == 98 + 16
    assert mebibytes(kept)[1] >= 98 + 16


def test_a_gradient_that_no_optimizer_was_seen_to_read_is_one_all_the_same() -> None:
    # It stays behind with as many values as a parameter: nothing that a variable of the loop would hold.
    unread = replace(STEP, operations=STEP.operations[:3])
    assert [one.cause for one in written_storages(unread)] == ["activation", "activation", "gradient"]
    assert mebibytes(unread)[0] == mebibytes(STEP)[0]


def test_what_a_variable_of_the_loop_holds_lives_until_the_next_step_has_its_own() -> None:
    held = replace(STEP, held=(3, 4))
    # While the second step writes its logits, the first one's are still there.
    assert mebibytes(held)[0] == 98 + 30
    assert mebibytes(held)[1] >= 98 + 30
    assert [one.freed_at for one in written_storages(held)] == [2, None, None]


def test_what_is_freed_late_lives_until_then() -> None:
    first, second, third, *rest = STEP.operations
    late = replace(STEP, operations=(first, second, replace(third, freed=(3,)), *rest))
    assert [one.freed_at for one in written_storages(late)] == [2, 2, None]
    assert mebibytes(late)[0] == 98 + 16  # the gradient is written while the logits live


def test_the_optimizers_state_is_made_by_the_first_update_and_counts_from_then_on() -> None:
    with_state = replace(STEP, memory=replace(STEP.memory, optimizer_state_bytes=32 * MEBIBYTE))
    assert mebibytes(with_state)[0] == 98 + 32
    assert mebibytes(with_state)[1] >= 98 + 32


def test_a_module_is_known_of_what_it_wrote() -> None:
    passes, _ = fullest_moments(blocks_of(STEP))
    assert {one.module: one.size_bytes // MEBIBYTE for one in passes.storages} == {"body": 40, "head": 30}


def step_of(channels: int, *, benchmark: bool = False, groups: int = 1, kernel: int = 3) -> Trace:
    """A convolution of 8 images of 32 x 32 pixels, forward and backward."""
    with torch.device("meta"):
        model = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups)
        images = torch.empty(8, channels, 32, 32, requires_grad=True)

    def step() -> None:
        model(images).sum().backward()

    trace = lp.capture(step, warmup_steps=0)
    return replace(trace, flags=replace(trace.flags, cudnn_benchmark=benchmark))


IMAGES_BYTES = 8 * 64 * 32 * 32 * 4


def test_gradients_of_weights_take_copies_of_images_and_gradients() -> None:
    assert [size for _, size in workspace_bytes(step_of(64))] == [2 * IMAGES_BYTES]
    assert list(workspace_bytes(step_of(64, kernel=1))) == []
    assert list(workspace_bytes(step_of(64, groups=64))) == []  # torch's own kernels


def test_trials_unfold_the_images_once_forward_and_twice_backward() -> None:
    assert [size for _, size in trial_bytes(step_of(64))] == [9 * IMAGES_BYTES] * 3
    plain, tried = step_of(64), step_of(64, benchmark=True)
    assert simulated(blocks_of(tried)).reserved_bytes > simulated(blocks_of(plain)).reserved_bytes + 6 * IMAGES_BYTES


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_more_is_reserved_than_allocated_and_more_allocated_than_lives(expandable: bool, kept: bool) -> None:
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

    trace = capture_of(step)
    found = simulated(blocks_of(trace), expandable_segments=expandable)
    tensors = max(moment.total_bytes for moment in fullest_moments(blocks_of(trace)))
    assert tensors <= found.allocated_bytes <= found.reserved_bytes
    assert found.reserved_bytes < 1.5 * tensors


class WithBuffer(nn.Module):
    """A product with a table that is stored in a buffer, as packed weights are."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(64, 64, device="meta"))
        self.weight = nn.Parameter(torch.empty(64, 64, device="meta"))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data @ self.table @ self.weight


def test_a_buffer_is_no_part_of_the_batch(tmp_path: Path) -> None:
    module, data = WithBuffer(), torch.empty(8, 64, device="meta")
    trace = capture_of(lambda: module(data).sum().backward())
    blocks = blocks_of(trace)
    assert blocks.batch == (8 * 64 * 4,)
    assert blocks.lasting == (64 * 64 * 4,) * 3  # the weight, the buffer and the gradient, each once
    trace.save(str(tmp_path / "step.json"))
    assert lp.Trace.load(str(tmp_path / "step.json")).buffers == trace.buffers != ()


def capture_of(step: Callable[[], None]) -> Trace:
    return lp.capture(step, warmup_steps=1)


def test_on_the_meta_device_autocasts_copies_live_until_the_backward_pass_reads_them_and_their_sources_do_not() -> None:
    with torch.device("meta"):
        norm, layer = nn.LayerNorm(64), nn.Linear(64, 64)
        data = torch.empty(1024, 64)

    def step() -> None:
        torch.square(layer(norm(data))).sum().backward()

    trace = lp.capture(step, warmup_steps=0, precision="16-mixed")
    copies = {
        operation.inputs[0].shape: (index, operation)
        for index, operation in enumerate(trace.operations)
        if operation.name == "aten::_to_copy" and operation.outputs[0].dtype == "float16"
    }
    at, cast = copies[1024, 64]  # of the norm's output; the other is the weight's
    lives = {(one.allocated_at, one.size_bytes): one.freed_at for one in written_storages(trace)}
    death = lives[at, 1024 * 64 * 2]
    assert death is not None
    assert trace.operations[death].phase == "backward"
    norm_at = next(
        index for index, one in enumerate(trace.operations) if cast.inputs[0].id in {out.id for out in one.outputs}
    )
    assert lives[norm_at, 1024 * 64 * 4] == at  # the float32 source is not kept


@pytest.mark.parametrize(("shape", "kept_mebibytes"), [((2, 8, 256, 64), 0), ((2, 4, 2, 256, 64), 4 + 2)])
def test_attention_of_other_than_four_dimensions_keeps_its_probabilities(
    shape: tuple[int, ...], kept_mebibytes: int
) -> None:
    """Of 16 heads, 256 x 256 probabilities of 4 bytes are 4 MiB, queries and keys, scaled, of 64 values 1 MiB each."""
    with torch.device("meta"):
        query, key, value = (torch.empty(shape, requires_grad=True) for _ in range(3))

    def step() -> None:
        nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()

    trace = lp.capture(step, warmup_steps=0)
    attention = next(index for index, one in enumerate(trace.operations) if "attention" in one.name)
    kept = [one for one in written_storages(trace) if one.allocated_at == attention]
    result = 2 * 8 * 256 * 64 * 4
    assert sum(one.size_bytes for one in kept) - result == kept_mebibytes * MEBIBYTE


@pytest.mark.parametrize(("kind", "gates", "published"), [(nn.LSTM, 5, 736_000_000), (nn.GRU, 6, 864_000_000)])
def test_recurrent_layers_keep_their_gates_until_their_backward_pass(
    kind: type[nn.LSTM | nn.GRU], gates: int, published: int
) -> None:
    # cuDNN's workspace for 25,000 vectors of unknown layout, taken as 50 sequences of 500.
    with torch.device("meta"):
        model, data = kind(123, 320, num_layers=4), torch.empty(500, 50, 123)
    trace = lp.capture(lambda: model(data)[0].sum().backward())
    names = [operation.name for operation in trace.operations]
    name = f"aten::{kind.__name__.lower()}"
    assert (4 * gates + 3) * 4 * 320 * 25_000 == published
    assert (published, "activation", names.index(name), names.index(f"{name}_backward")) in [
        (one.size_bytes, one.cause, one.allocated_at, one.freed_at) for one in written_storages(trace)
    ]


def test_what_both_directions_of_a_layer_keep_is_in_the_precision_that_it_computes_in() -> None:
    with torch.device("meta"):
        model, data = nn.LSTM(16, 8, bidirectional=True), torch.empty(10, 4, 16)
    trace = lp.capture(lambda: model(data)[0].sum().backward(), precision="bf16-mixed")
    sizes = [one.size_bytes for one in written_storages(trace)]
    assert 5 * (10 * 4 * 2 * 8) * 2 in sizes


@pytest.mark.parametrize(("dropout", "kept_mebibytes"), [(0.0, 4 + 2), (0.5, 4 + 2 + 1 + 4)])
def test_attention_with_a_wider_mask_keeps_float32_probabilities(dropout: float, kept_mebibytes: int) -> None:
    """T5 under autocast on an H200 allocated 12,294 MiB; as fused attention, 9,319 MiB were predicted.

    Of 16 heads, 256 x 256 float32 probabilities are 4 MiB, scaled queries and keys 1 MiB each; dropout keeps its mask
    of one byte and its output.
    """
    with torch.device("meta"):
        query, key, value = (torch.empty(2, 8, 256, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        mask = torch.empty(1, 8, 256, 256)

    def step() -> None:
        attend = nn.functional.scaled_dot_product_attention
        attend(query, key, value, attn_mask=mask, dropout_p=dropout).sum().backward()

    trace = lp.capture(step, warmup_steps=0)
    attention = next(index for index, one in enumerate(trace.operations) if "attention" in one.name)
    kept = [one for one in written_storages(trace) if one.allocated_at == attention]
    result = 2 * 8 * 256 * 64 * 2
    assert sum(one.size_bytes for one in kept) - result == kept_mebibytes * MEBIBYTE
