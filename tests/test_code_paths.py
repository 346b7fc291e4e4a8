"""From the way that a step runs to its prediction: checkpointing, accumulation, two optimizers, 16 bits, layouts."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from lightning_predict.record.recorded_on import code_path_notes
from lightning_predict.record.trace import Trace
from tests.known import known
from tests.workloads.gpt import Gpt, GptConfig

WIDTH, ROWS, LAYERS = 2048, 4096, 4
GPU = "A100-SXM-80GB"


class Stack(nn.Module):
    """Linear layers with GELU, each pair recomputed in the backward pass where asked for."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))
        self.checkpointed = checkpointed

    def forward(self, data: Tensor) -> Tensor:
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.checkpointed else block(data)
        return data


def recorded(*, checkpointed: bool = False, batches: int = 1, updates: int = 1) -> Trace:
    """A step on the meta device: the given number of batches and updates by optimizers of their own."""
    with torch.device("meta"):
        model = Stack(checkpointed=checkpointed)
        data = torch.empty(ROWS, WIDTH)
    parameters = list(model.parameters())
    share = len(parameters) // updates
    optimizers = [torch.optim.SGD(parameters[n * share : (n + 1) * share], lr=0.1) for n in range(updates)]

    def step() -> None:
        for _ in range(batches):
            model(data).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    return lp.capture(step, warmup_steps=0)


def device_seconds(trace: Trace) -> float:
    return lp.predict(trace, [GPU])[GPU].device_seconds


def count(trace: Trace, name: str, phase: str) -> int:
    return sum(operation.name == name and operation.phase == phase for operation in trace.operations)


def test_checkpointed_forward_pass_is_predicted_twice_and_saves_memory() -> None:
    plain, saving = recorded(), recorded(checkpointed=True)
    assert [count(plain, "aten::addmm", phase) for phase in ("forward", "backward")] == [LAYERS, 0]
    assert [count(saving, "aten::addmm", phase) for phase in ("forward", "backward")] == [LAYERS, LAYERS]
    # The GELU's own output is saved for nothing, so the recomputation stops before it: 4 products more.
    assert count(saving, "aten::gelu", "forward") == LAYERS
    assert count(saving, "aten::gelu", "backward") == 0
    seconds = float(lp.operator_seconds("linear", GPU, b=1, m=ROWS, n=WIDTH, k=WIDTH))
    longer = device_seconds(saving) - device_seconds(plain)
    assert longer == pytest.approx(LAYERS * seconds, rel=0.1)  # and their biases
    # Each layer saves its input and its product of 4096 x 2048 x 4 bytes; checkpointed, its input alone, and one layer
    # at a time has its product again.
    saved = (LAYERS - 1) * ROWS * WIDTH * 4
    with_all, with_inputs = (lp.predict(trace, [GPU])[GPU].memory_bytes for trace in (plain, saving))
    assert with_all is not None
    assert with_inputs is not None
    assert with_all - with_inputs == pytest.approx(saved, rel=0.4)


def test_accumulated_batches_and_two_optimizers_are_one_step() -> None:
    single, double = recorded(), recorded(batches=2)
    assert count(double, "aten::addmm", "forward") == 2 * LAYERS
    updates = [[one for one in trace.operations if one.phase == "optimizer"] for trace in (single, double)]
    assert len(updates[0]) == len(updates[1]) > 0
    assert double.optimizer_steps == 1
    assert (single.batches, double.batches) == (1, 2)
    assert 1.8 * device_seconds(single) < device_seconds(double) < 2.1 * device_seconds(single)
    trace = recorded(updates=2)
    assert (trace.optimizer_steps, trace.batches) == (2, 1)
    assert device_seconds(trace) == pytest.approx(device_seconds(recorded()), rel=0.01)


@pytest.mark.parametrize(
    ("strategy", "most"),
    [
        # The gradients of a later batch, 1.7 million x 4 bytes, are beside the sums; activations have 300 MiB.
        ("tensor=2", 1.1),
        ("pipeline=2", 1.1),
    ],
)
def test_own_loop_over_batches_is_predicted_as_accumulation(strategy: str, most: float) -> None:
    with torch.device("meta"):
        model, tokens = Gpt(GptConfig(layers=2, hidden=256, heads=4, vocabulary=64, context=256)), torch.zeros(32, 256)

    def predicted(batches: int, words: str) -> lp.Prediction:
        def step() -> None:
            for _ in range(batches):
                model(tokens.long()).sum().backward()

        trace = lp.capture(step, warmup_steps=0, samples_per_step=32 * batches)
        assert trace.batches == batches
        return lp.predict(trace, ["2x" + GPU], strategy=words).items_in_order[0]

    single, looped = predicted(1, strategy), predicted(4, strategy)
    assert known(looped.memory.allocated).middle < most * known(single.memory.allocated).middle
    accumulated = predicted(1, f"{strategy},accumulate=4")
    assert looped.iteration_seconds == pytest.approx(accumulated.iteration_seconds, rel=0.02)


def test_batches_of_different_lengths_are_accumulated_and_passes_of_a_gan_are_not() -> None:
    with torch.device("meta"):
        generator, critic = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        lengths = [torch.empty(length, 8) for length in (4, 2)]

    def accumulates() -> None:
        for data in lengths:
            critic(data).sum().backward()

    def real_first() -> None:
        critic(lengths[0]).sum().backward()
        critic(generator(lengths[0])).sum().backward()

    def real_last() -> None:
        critic(generator(lengths[0])).sum().backward()
        critic(lengths[0]).sum().backward()

    steps = (accumulates, real_first, real_last)
    assert [lp.capture(step, warmup_steps=0).batches for step in steps] == [2, 1, 1]


def test_recomputation_and_accumulation_leave_host_as_recorded() -> None:
    with torch.device("meta"):
        model, tokens = Gpt(GptConfig(layers=2, hidden=256, heads=4, vocabulary=64, context=256)), torch.zeros(4, 256)
    trace = lp.capture(lambda: model(tokens.long()).sum().backward(), warmup_steps=0)
    for words, times in (("recompute=full", 1), ("accumulate=2", 2)):
        alone = lp.predict(trace, [GPU], strategy=words.partition("accumulate")[0] or "ddp").items_in_order[0]
        ranks = lp.predict(trace, ["8x" + GPU], strategy=words).items_in_order[0]
        assert ranks.host_seconds == pytest.approx(times * alone.host_seconds, rel=0.02)


def test_bfloat16_on_a_gpu_without_it_is_predicted_as_emulated_with_a_note() -> None:
    with torch.device("meta"):
        model, data = nn.Linear(WIDTH, WIDTH).bfloat16(), torch.empty(ROWS, WIDTH, dtype=torch.bfloat16)
    trace = lp.capture(lambda: model(data).sum().backward(), warmup_steps=0)
    result = lp.predict(trace, ["T4", GPU])
    assert "No bfloat16 hardware: emulation is assumed." in result["T4"].notes
    assert not any("bfloat16" in note for note in result[GPU].notes)
    # Not at the 65 TFLOP/s of its float16, but at no more than float32's 8.1: a product forward and one for the weight.
    assert result["T4"].device_seconds > 2 * 2 * ROWS * WIDTH**2 / 8.1e12


@pytest.mark.parametrize(("layout", "is_said"), [(torch.contiguous_format, True), (torch.channels_last, False)])
def test_channels_first_16_bit_convolutions_get_a_note(layout: torch.memory_format, is_said: bool) -> None:
    with torch.device("meta"):
        model = nn.Conv2d(64, 64, 3, padding=1).half()
        images = torch.empty(8, 64, 56, 56, dtype=torch.float16).to(memory_format=layout)
    trace = lp.capture(lambda: model(images).sum().backward(), warmup_steps=0)
    notes = lp.predict(trace, [GPU]).notes
    assert any("channels_last avoids it" in note for note in notes) == is_said
    assert any(note.startswith("cudnn.benchmark is off") for note in notes)


@pytest.mark.parametrize(
    ("version", "is_said"), [("1.13.1+cu117", True), ("2.0.1", True), ("2.1.0", False), ("", False)]
)
def test_old_torch_release_gets_a_note(version: str, is_said: bool) -> None:
    trace = Trace(operations=(), device="meta", recorder="dispatch", software={"torch": version} if version else {})
    notes = code_path_notes(trace)
    assert [
        note.startswith(f"Predicted for torch {version}: measurements are of torch 2.1 to 2.9") for note in notes
    ] == [True] * is_said
