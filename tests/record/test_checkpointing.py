"""Activation checkpointing: names and shares equal the model without it, on every recorder."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lightning_predict as lp
from lightning_predict.hardware.layouts import layout_of
from lightning_predict.layouts.gradients import unit_bytes
from lightning_predict.layouts.model_parallel import stage_parameters
from lightning_predict.layouts.strategy import parse_strategy
from lightning_predict.layouts.tensor_parallel import split_model
from lightning_predict.memory.rank_memory import RankMemory
from lightning_predict.record.hooks import ModuleWatch
from lightning_predict.record.profiler import ProfilerRecorder
from lightning_predict.record.session import CaptureSession
from lightning_predict.record.trace import Trace


class Net(nn.Module):
    """Four layers of two products each, computed again in the backward pass if `reentrant` is not None."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, data: Tensor) -> Tensor:
        for layer in self.layers:
            data = layer(data) if self.reentrant is None else checkpoint(layer, data, use_reentrant=self.reentrant)
        result: Tensor = self.head(data)
        return result


def training(reentrant: bool | None, device: str) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    with torch.device(device):
        model, data = Net(reentrant), torch.ones(8, 64, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return model, optimizer, step


def captured(reentrant: bool | None, recorder: str) -> Trace:
    """One step, recorded as `lp.capture` does, or as the callback does with a model that is known."""
    device = "meta" if recorder == "meta" else "cpu"
    model, optimizer, step = training(reentrant, device)
    if recorder in ("cpu", "meta"):
        return lp.capture(step)
    step()
    knows_model = recorder == "callback"
    session = CaptureSession(
        device=torch.device(device),
        model=model if knows_model else None,
        optimizers=[optimizer] if knows_model else (),
        compiled=False,
    )
    if recorder == "profiler":
        session._recorder = ProfilerRecorder(cuda=False, has_hooks=True)
    session.start()
    step()
    session.stop()
    return session.trace(samples=8)


@pytest.mark.parametrize("recorder", ["cpu", "meta", "profiler", "callback"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_names_and_memory(recorder: str, reentrant: bool) -> None:
    plain, checked = captured(None, recorder), captured(reentrant, recorder)
    assert checked.parameters == plain.parameters
    assert [parameter.name for parameter in plain.parameters][:2] == ["layers.0.0.weight", "layers.0.0.bias"]
    assert checked.memory == plain.memory
    products = ("aten::mm", "aten::addmm")
    for trace in (plain, checked):
        modules = {o.module for o in trace.operations if o.name in products and o.phase == "backward"}
        # Four layers with two products each, and the head.
        assert modules == {*(f"layers.{layer}.{part}" for layer in range(4) for part in (0, 2)), "head"}
    forward = [[(o.name, o.module) for o in t.operations if o.phase == "forward"] for t in (plain, checked)]
    assert [pair for pair in forward[1] if pair[0] in products] == [pair for pair in forward[0] if pair[0] in products]


def test_added_recomputation_needs_the_memory_of_a_checkpointed_capture() -> None:
    layout = layout_of("2xA100-SXM-80GB")
    plain, again = (RankMemory(decoder_trace(again=again)) for again in (False, True))
    needed = plain.tensor_bytes(layout, parse_strategy("ddp,recompute=full"))
    assert needed == pytest.approx(again.tensor_bytes(layout, parse_strategy("ddp")), rel=0.03)
    assert needed < 0.95 * plain.tensor_bytes(layout, parse_strategy("ddp"))


def test_part_called_before_its_model_is_no_second_root() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    watch = ModuleWatch()
    watch.open()
    model[0](torch.zeros(1, 4))
    model(torch.zeros(1, 4))
    model[0](torch.zeros(1, 4))
    watch.close()
    assert watch.roots == [model]


class Decoder(nn.Module):
    """Two blocks of attention and a perceptron, each computed again in the backward pass if `again`."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.blocks = nn.ModuleList(DecoderBlock() for _ in range(2))

    def forward(self, data: Tensor) -> Tensor:
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.again else block(data)
        return data


class DecoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.output = nn.Linear(256, 768), nn.Linear(256, 256)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, data: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (4, 64)).transpose(1, 2) for part in self.project(data).chunk(3, dim=-1)
        )
        joined = nn.functional.scaled_dot_product_attention(query, key, value)
        data = data + self.output(joined.transpose(1, 2).flatten(2))
        result: Tensor = data + self.down(nn.functional.gelu(self.up(data)))
        return result


def decoder_trace(*, again: bool) -> Trace:
    with torch.device("meta"):
        model, data = Decoder(again=again), torch.empty(8, 128, 256, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return lp.capture(step, samples_per_step=8)


def test_backward_pass_of_attention_reads_recomputed_tensors() -> None:
    # The projection to queries, keys and values of the first forward pass is not kept: 8 x 128 rows of 768.
    trace = decoder_trace(again=True)
    written = {
        tensor.id
        for operation in trace.operations
        if operation.phase == "forward"
        for tensor in operation.outputs
        if tensor.shape == (1024, 768)
    }
    assert len(written) == 2
    read = {tensor.id for operation in trace.operations if operation.phase == "backward" for tensor in operation.inputs}
    assert not written & read


@pytest.mark.parametrize("words", ["ddp,tensor=2", "ddp,pipeline=2,micro_batches=4", "fsdp", "zero2,tensor=2"])
def test_checkpointing_changes_no_sharding_or_traffic(words: str) -> None:
    plain, again = decoder_trace(again=False), decoder_trace(again=True)
    strategy, layout = parse_strategy(words), layout_of("2xA100-SXM-80GB")
    models = [split_model(trace) for trace in (plain, again)]
    assert models[0].blocks == models[1].blocks
    parts = [stage_parameters(trace, model, strategy) for trace, model in zip((plain, again), models, strict=True)]
    assert parts[0] == parts[1]
    # What replicas exchange: each unit's parameters and gradients, and where they are ready.
    assert unit_bytes(plain.parameters) == unit_bytes(again.parameters)
    predictions = [
        lp.predict(trace, [layout.name], strategy=strategy, history=False)[layout.name] for trace in (plain, again)
    ]
    if strategy.tensor == 1:  # tensor parallelism repeats the all_reduces that are computed again
        assert predictions[1].communication_seconds == pytest.approx(predictions[0].communication_seconds, rel=1e-6)
    else:
        assert predictions[1].communication_seconds > predictions[0].communication_seconds
    # Recomputed activations save memory, and nothing else is there.
    needed = [0.0 if one.memory.allocated is None else one.memory.allocated.middle for one in predictions]
    assert 0 < needed[1] < needed[0]
