"""Which fits count as compiled: those whose own modules, or functions that these call, went through `torch.compile`."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_predict.callbacks import RuntimePredictor
from tests.callbacks.conftest import Call
from tests.callbacks.small import Small

pytestmark = [
    pytest.mark.usefixtures("readings"),
    # Of the compiler itself, as it inspects its inputs.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor"),
]


def doubled(values: Tensor) -> Tensor:
    return values * 2


compiled_doubled = torch.compile(doubled, backend="eager")


@pytest.fixture(autouse=True)
def _compiler_as_before() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.fixture
def _something_was_compiled() -> None:
    """As by another model in an earlier cell of a notebook."""
    from torch._dynamo.utils import counters

    compiled_doubled(torch.ones(3))
    assert counters["frames"]["total"] >= 1


def fit(small: Small, folder: Path, model: Any) -> RuntimePredictor:
    predictor = RuntimePredictor(["T4"], print_table=False)
    small.trainer(folder, max_epochs=1, callbacks=predictor).fit(model, small.loader(8))
    return predictor


@pytest.mark.usefixtures("_something_was_compiled")
def test_code_compiled_before_a_fit_does_not_mark_it_as_compiled(
    small: Small, tmp_path: Path, calls: list[Call]
) -> None:
    predictor = fit(small, tmp_path, small.model())
    (call,) = calls
    assert (call.trace.compiled, call.trace.compile_seconds, call.trace.recorder) == (False, None, "dispatch")
    assert predictor.predictions is not None
    assert predictor.predictions["T4"].memory_bytes is not None
    assert predictor.predictions["T4"].fits is True


def whole(model: Any) -> None:
    model.network = torch.compile(model.network, backend="eager")


def submodule(model: Any) -> None:
    model.network[3] = torch.compile(model.network[3], backend="eager")


def in_place(model: Any) -> None:
    model.network.compile(backend="eager")


def method(model: Any) -> None:
    model.network.forward = torch.compile(model.network.forward, backend="eager")


def called_by_name(model: Any) -> None:
    network = model.network
    model.training_step = lambda batch, batch_idx: compiled_doubled(network(batch)).square().mean()


def scaled(values: Tensor) -> Tensor:
    return compiled_doubled(values) / 2


def called_by_a_function(model: Any) -> None:
    network = model.network
    model.training_step = lambda batch, batch_idx: scaled(network(batch)).square().mean()


def closed_over(model: Any) -> None:
    network, function = model.network, torch.compile(doubled, backend="eager")
    model.training_step = lambda batch, batch_idx: function(network(batch)).square().mean()


def made_in_the_step(model: Any) -> None:
    network = model.network

    def training_step(batch: Tensor, batch_idx: int) -> Tensor:
        return torch.compile(doubled, backend="eager")(network(batch)).square().mean()

    model.training_step = training_step


WAYS = [whole, submodule, in_place, method, called_by_name, called_by_a_function, closed_over, made_in_the_step]


@pytest.mark.parametrize("compile_it", WAYS)
def test_a_compiled_fit_is_one(
    lightning: Small, tmp_path: Path, calls: list[Call], compile_it: Callable[[Any], None]
) -> None:
    model = lightning.model()
    compile_it(model)
    fit(lightning, tmp_path, model)
    assert calls[0].trace.compiled
    assert calls[0].trace.recorder == "profiler"
    # A first step that compiles makes more autograd nodes than the others, and delays nothing.
    assert calls[0].workload.training_iterations == 8 - 4
    assert len(calls) == 1


@pytest.mark.usefixtures("_something_was_compiled")
@pytest.mark.parametrize("compile_it", WAYS[:-1])
def test_a_second_fit_of_a_compiled_model_compiles_nothing_and_is_one(
    lightning: Small, tmp_path: Path, calls: list[Call], compile_it: Callable[[Any], None]
) -> None:
    model = lightning.model()
    compile_it(model)
    fit(lightning, tmp_path, model)
    fit(lightning, tmp_path, model)
    assert [call.trace.compiled for call in calls] == [True, True]


@pytest.mark.parametrize("accumulates", [1, 4, 32])
def test_long_window_of_compiled_code_is_recorded_as_compiled(
    lightning: Small, tmp_path: Path, calls: list[Call], accumulates: int
) -> None:
    model = lightning.model()
    model.network = torch.compile(model.network, backend="eager")
    predictor = RuntimePredictor(["T4"], print_table=False, warmup_steps=1)
    trainer = lightning.trainer(tmp_path, max_epochs=1, callbacks=predictor, accumulate_grad_batches=accumulates)
    trainer.fit(model, lightning.loader(4 * accumulates))
    trace = calls[0].trace
    assert (trace.recorder, trace.batches, trace.optimizer_steps) == ("profiler", accumulates, 1)
    names = Counter((operation.phase, operation.name) for operation in trace.operations)
    # Two layers in each batch, forward and backward; a weight's gradient is made in the first and added in the others.
    assert names["forward", "aten::addmm"] == 2 * accumulates
    assert names["backward", "aten::mm"] == 3 * accumulates
    assert names["backward", "aten::add_"] == 4 * (accumulates - 1)
    starts = [one.host_start_seconds for one in trace.operations if one.host_start_seconds is not None]
    assert starts == sorted(starts)
    assert trace.profiled_seconds is not None
    assert starts[-1] <= trace.profiled_seconds
