"""`capture`: recording a user's own step."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from lightning_predict.base.errors import CaptureError, InvalidArgumentError
from lightning_predict.prediction import predict
from lightning_predict.record.recording import capture
from tests.known import known
from tests.record.test_session import nothing_is_left
from tests.record.workloads import counted, mixed_step, names, perceptron_step


def test_warm_up_steps_are_timed_and_the_last_one_recorded() -> None:
    runs: list[int] = []

    def step() -> None:
        torch.zeros(len(runs) + 1).exp()
        runs.append(1)

    trace = capture(step, warmup_steps=3, samples_per_step=8)
    assert len(runs) == 4
    assert [o.inputs[0].shape for o in trace.operations if o.name == "aten::exp"] == [(4,)]
    assert trace.samples == 8
    assert len(trace.step_seconds) == 2  # the first is cold
    assert nothing_is_left()

    def slow() -> None:
        time.sleep(0.01)
        torch.zeros(2).exp()

    trace = capture(slow, warmup_steps=3)
    assert all(seconds >= 0.01 for seconds in trace.step_seconds)
    assert trace.profiled_seconds is not None
    assert trace.profiled_seconds >= 0.01


def test_capture_finds_model_optimizer_memory_and_parts_called_before_it() -> None:
    trace = capture(perceptron_step())
    assert trace.optimizer_steps == 1
    assert [parameter.shape for parameter in trace.parameters] == [(16, 8), (16,), (4, 16), (4,)]
    assert trace.memory.parameter_bytes == 212 * 4
    assert trace.memory.optimizer_state_bytes == 2 * 212 * 4 + 4 * 4
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def step() -> None:
        model(model[0](torch.ones(2, 4))).sum().backward()

    modules = {operation.module for operation in capture(step).operations if operation.name == "aten::addmm"}
    assert modules == {"0", "1"}
    with pytest.raises(CaptureError, match="Nothing was recorded"):
        capture(lambda: 1 + 1)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, data: Tensor) -> Tensor:
        return data.add(self.down(self.up(data).relu()))


def blocks_step(*, in_a_model: bool) -> Callable[[], None]:
    """Three blocks and a head, called one after another, in one module or by the step itself."""
    blocks, head = [FeedForward(), FeedForward(), FeedForward()], nn.Linear(8, 2)
    model = nn.Sequential(nn.Sequential(*blocks), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        output = torch.ones(4, 8)
        for module in [model] if in_a_model else [*blocks, head]:
            output = module(output)
        output.sum().backward()
        optimizer.step()

    return step


def test_several_models_have_consistent_names_and_inference_no_backward_pass() -> None:
    apart, together = (capture(blocks_step(in_a_model=inside)) for inside in (False, True))
    assert {parameter.name.rpartition(".")[0] for parameter in apart.parameters} == {
        *(f"FeedForward.{index}.{part}" for index in range(3) for part in ("up", "down")),
        "Linear",
    }
    # As in a model, where blocks are `0.0`, `0.1` and `0.2` and the head `1`; the loss is of no module.
    renamed = [
        (one.name, one.phase, one.module and one.module.replace("FeedForward.", "0.").replace("Linear", "1"))
        for one in apart.operations
    ]
    assert renamed == [(operation.name, operation.phase, operation.module) for operation in together.operations]
    model, data = nn.Linear(8, 4), torch.zeros(2, 8)
    for guard in (torch.no_grad, torch.inference_mode):

        def step(guard: Any = guard) -> None:
            with guard():
                model(data)

        trace = capture(step)
        assert {operation.phase for operation in trace.operations} == {"forward"}
        assert (trace.optimizer_steps, trace.memory.gradient_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 3}, r"step is 3; expected a function without arguments.*capture\(lambda: training_step\(batch\)\)"),
        ({"step": print, "warmup_steps": -1}, "warmup_steps is -1; expected 0 or more"),
        ({"step": print, "samples_per_step": 0}, "samples_per_step is 0; expected 1 or more, or None"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        capture(**arguments)


@pytest.mark.parametrize("method", ["named_modules", "named_parameters", "named_buffers"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_module_that_cannot_list_its_parameters_is_named(method: str, device: str) -> None:
    def fails(self: nn.Module, *args: object, **kwargs: object) -> None:
        raise RuntimeError("made at the first call")

    lazy = type("Lazy", (nn.Linear,), {method: fails})(4, 4, device=device)
    words = (
        r"The step ran, but Lazy does not list its parameters: its named_modules, .* raised RuntimeError: made at the "
        r"first call\. They are called after the step: .* the modules inside Lazy\."
    )
    with pytest.raises(CaptureError, match=words):
        capture(lambda: lazy(torch.ones(2, 4, device=device)).sum().backward(), warmup_steps=0)
    assert nothing_is_left()


def test_error_of_the_step_is_raised() -> None:
    runs: list[int] = []

    def step() -> None:
        runs.append(1)
        torch.zeros(1).exp()
        if len(runs) == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(step)
    assert nothing_is_left()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_step_that_fails_in_its_warm_up_is_not_run_again(device: str) -> None:
    batches = iter([torch.ones(2, 3, device=device), torch.ones(2, 4, device=device)])
    layer = nn.Linear(4, 4, device=device)
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|must have same reduction dim"):
        capture(lambda: layer(next(batches)).sum().backward())
    assert next(batches).shape == (2, 4)
    assert nothing_is_left()


def test_cpu_and_meta_give_the_same_operations() -> None:
    traces = {device: capture(mixed_step(device, clip=False, foreach=False)) for device in ("cpu", "meta")}
    assert {device: trace.device for device, trace in traces.items()} == {"cpu": "cpu", "meta": "meta"}
    assert counted(traces["cpu"].operations) == counted(traces["meta"].operations)
    assert traces["cpu"].memory == traces["meta"].memory
    assert traces["cpu"].parameters == traces["meta"].parameters


def test_gpt2_large_is_captured_on_meta() -> None:
    width, length, words = 1280, 1024, 50257
    with torch.device("meta"):
        embedding, positions = nn.Embedding(words, width), nn.Embedding(length, width)
        blocks = [nn.TransformerEncoderLayer(width, 20, 4 * width, batch_first=True) for _ in range(36)]
        rest = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, words, bias=False))
        tokens, places = torch.zeros(1, length, dtype=torch.long), torch.arange(length)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *positions.parameters(), *rest.parameters()])

    def step() -> None:
        optimizer.zero_grad()
        logits = rest(embedding(tokens) + positions(places))
        functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    trace = capture(step)
    # 774,030,080 shared, and the untied head's 50257 x 1280 once more: 838,359,040 parameters.
    assert sum(math.prod(parameter.shape) for parameter in trace.parameters) == 838_359_040
    assert trace.memory.parameter_bytes == 4 * 838_359_040
    flops = sum(
        2 * operation.inputs[-2].elements * operation.inputs[-1].shape[-1]
        for operation in trace.operations
        if operation.name in ("aten::mm", "aten::addmm") and operation.phase == "forward"
    )
    # By hand, without attention: 24 x width^2 a token and layer, and the head 2 x width x words.
    assert flops == length * (36 * 24 * width**2 + 2 * width * words)
    assert names(trace.operations).count("aten::scaled_dot_product_attention") == 36


def test_compiled_code_counts_only_if_the_step_may_call_it() -> None:
    compiled, plain, data = torch.compile(nn.Linear(4, 4), backend="eager"), nn.Linear(4, 4), torch.rand(2, 4)
    compiled(data).sum().backward()  # compiled before any capture

    class Loop:
        def __init__(self, network: Callable[[Tensor], Tensor]) -> None:
            self.network = network

        def step(self) -> None:
            self.network(data).sum().backward()

    held, owner = [compiled], Loop(compiled)
    steps: list[Callable[[], object]] = [
        owner.step,
        lambda: owner.network(data).sum().backward(),
        lambda: held[0](data).sum().backward(),
        partial(Loop.step, owner),
    ]
    assert [capture(step).compiled for step in steps] == [True] * 4
    trace = capture(Loop(plain).step)
    assert not trace.compiled
    assert (trace.recorder, trace.memory.parameter_bytes) == ("dispatch", (4 * 4 + 4) * 4)


def _busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.parametrize(("waits", "kept"), [(time.sleep, 0.1), (_busy, 0.0)])
def test_a_wait_inside_a_step_is_kept_on_every_gpu(waits: Callable[[float], object], kept: float) -> None:
    layer, rows = nn.Linear(8, 8), torch.randn(4, 8)

    def step() -> None:
        waits(0.1)  # an environment in another process; computing in Python is no wait
        layer(rows).sum().backward()

    trace = capture(step, warmup_steps=2)
    assert kept <= trace.waited_seconds <= 1.3 * kept
    found = predict(trace, ["T4"], history=False)["T4"]
    assert found.iteration_seconds >= max(found.host_seconds, found.device_seconds) + 0.99 * trace.waited_seconds
    if kept:
        assert found.iteration_seconds_low < 0.05  # elsewhere, the step may not wait; its Python takes as long there
        assert found.iteration_seconds_high >= 1.05 * trace.waited_seconds
        assert known(found.verdict).bound_by == "wait"
    assert any("outside torch" in note for note in found.notes) is (kept > 0)


@pytest.mark.parametrize("seconds", [0.01, 0.0])
def test_short_wait_in_a_long_step_is_kept_beside_busy_programs(seconds: float) -> None:
    model, rows = nn.Linear(512, 512), torch.randn(256, 512)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]

    def step() -> None:
        time.sleep(seconds) if seconds else None
        for _ in range(20):  # torch waits for its other threads, which have no processor
            model(rows).sum().backward()

    try:
        trace = capture(step)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert 0.5 * seconds <= trace.waited_seconds <= 2 * seconds
