"""Steps of several kinds that take turns, in real fits: each is recorded, and weighted by how often it occurs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_predict as lp
from lightning_predict.callbacks import RuntimePredictor
from lightning_predict.observe.recorder import WATCHED_BATCHES
from lightning_predict.record.trace import Trace
from tests.callbacks.conftest import Call
from tests.callbacks.small import FEATURES, Small
from tests.callbacks.test_promises import assert_nothing_is_open
from tests.known import known

GPUS = ["T4", "L4"]

WIDE = 512  # Width of the generator, next to which the critic is nothing

pytestmark = pytest.mark.usefixtures("readings")


def turns(
    small: Small,
    is_generators_turn: Callable[[int], bool],
    *,
    is_regularised: Callable[[int], bool] = lambda batch: False,
    critic_waits: bool = False,
) -> Any:
    """A GAN whose critic steps every batch (or only in those of its own), and its generator in its turns."""

    class Gan(small.lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = False
            self.critic = nn.Sequential(nn.Linear(FEATURES, 4), nn.SiLU(), nn.Linear(4, 1))
            self.generator = nn.Sequential(nn.Linear(FEATURES, WIDE), nn.ReLU(), nn.Linear(WIDE, FEATURES))
            self.batches_trained = 0

        def training_step(self, batch: Tensor, batch_idx: int) -> None:
            critics, generators = self.optimizers()
            number, self.batches_trained = self.batches_trained, self.batches_trained + 1
            is_generators = is_generators_turn(number)
            if not (is_generators and critic_waits):
                batch.requires_grad_()
                score = self.critic(batch)
                loss = score.mean()
                if is_regularised(number):
                    (gradient,) = torch.autograd.grad(score.sum(), batch, create_graph=True)
                    loss = loss + gradient.square().sum()
                self.manual_backward(loss)
                critics.step()
                critics.zero_grad()
            if is_generators:
                self.manual_backward(self.critic(self.generator(batch.detach())).mean())
                generators.step()
                generators.zero_grad()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.Adam(part.parameters()) for part in (self.critic, self.generator)]

    return Gan()


def fit(small: Small, folder: Path, model: Any, *, batches: int = 100, **options: Any) -> RuntimePredictor:
    predictor = RuntimePredictor(GPUS, print_table=False, **options)
    small.trainer(folder, max_epochs=1, callbacks=predictor).fit(model, small.loader(batches))
    return predictor


def updates(trace: Trace) -> dict[int, float]:
    """Shares of the steps by how many optimizers update in them."""
    return {kind.trace.optimizer_steps: round(kind.share, 9) for kind in trace.kinds}


def products(trace: Trace) -> int:
    """Matrix products; a forward and backward pass of the critic has few, passes of both networks have more."""
    return sum(operation.name in ("aten::addmm", "aten::mm") for operation in trace.operations)


@pytest.mark.parametrize("first", range(5))
def test_a_generator_that_steps_every_fifth_batch_has_a_fifth_of_the_steps(
    lightning: Small, tmp_path: Path, calls: list[Call], first: int
) -> None:
    model = turns(lightning, lambda batch: batch % 5 == first)
    predictor = fit(lightning, tmp_path, model)
    (call,) = calls
    assert updates(call.trace) == {1: 0.8, 2: 0.2}
    (other,) = call.trace.other_steps
    assert products(other.trace) > products(call.trace)
    # Both kinds were timed without a recorder, by a clock that shows a second more each time.
    assert call.trace.step_seconds[0] == other.trace.step_seconds[0] == 1.0
    assert predictor.predictions is not None


def test_the_mean_step_is_predicted_from_the_run_and_from_the_file(
    small: Small, tmp_path: Path, calls: list[Call]
) -> None:
    path = tmp_path / "traces" / "step.json.gz"
    predictor = fit(small, tmp_path, turns(small, lambda batch: batch % 5 == 4), save_trace=path)
    (call,) = calls
    loaded = lp.Trace.load(str(path))
    assert loaded == predictor.trace == call.trace
    alone, both = (lp.predict(kind.trace, GPUS, history=False) for kind in loaded.kinds)
    result = lp.predict(replace(loaded, loader_seconds=()), GPUS, iterations=1000, history=False)
    for gpu in GPUS:
        mean = 0.8 * alone[gpu].iteration_seconds + 0.2 * both[gpu].iteration_seconds
        assert known(predictor.predictions)[gpu].iteration_seconds == pytest.approx(mean, rel=1e-9)
        assert result[gpu].iteration_seconds == pytest.approx(mean, rel=1e-9)
        assert result[gpu].total_seconds == pytest.approx(1000 * mean, rel=1e-9)
        assert both[gpu].iteration_seconds > 2 * alone[gpu].iteration_seconds
        # Memory is the maximum over the steps, and that has the state of both optimizers.
        assert result[gpu].memory_bytes == both[gpu].memory_bytes
    state = [kind.trace.memory.optimizer_state_bytes for kind in loaded.kinds]
    assert state[1] is not None
    # Adam keeps two values a parameter, and a counter of 4 bytes for each of the 4 tensors of the generator.
    assert state[1] >= 2 * 4 * (FEATURES * WIDE + WIDE + WIDE * FEATURES + FEATURES)
    assert "Iteration: the mean of 2 kinds of step that take turns, 80 % and 20 % of all steps." in result.notes


@pytest.mark.parametrize("first", [0, 1, 2, 7, 15])
def test_lazy_regularisation_of_the_same_optimizer_has_a_sixteenth(
    lightning: Small, tmp_path: Path, calls: list[Call], first: int
) -> None:
    # R1 every 16th batch (Karras et al., 2020): an update as in the others, but a gradient of a gradient before it.
    model = turns(lightning, lambda batch: True, is_regularised=lambda batch: batch % 16 == first)
    predictor = fit(lightning, tmp_path, model)
    last = calls[-1]
    assert [kind.share for kind in last.trace.kinds] == [pytest.approx(15 / 16), pytest.approx(1 / 16)]
    regularised = last.trace.other_steps[0].trace
    # The critic's two layers go backward twice.
    assert products(regularised) > products(last.trace)
    assert predictor.trace == last.trace
    # Where it shows after the capture, there was a first prediction without it.
    assert len(calls) == (1 if first in (1, 2) else 2)
    assert len(calls[0].trace.kinds) == (2 if first in (1, 2) else 1)


def test_three_kinds_as_in_stylegan(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    model = turns(lightning, lambda batch: batch % 4 == 0, is_regularised=lambda batch: batch % 16 == 0)
    fit(lightning, tmp_path, model)
    # Of 16 batches: 12 plain, 3 with the generator, 1 with the generator and the penalty.
    shares = [kind.share for kind in calls[-1].trace.kinds]
    assert shares == [pytest.approx(12 / 16), pytest.approx(3 / 16), pytest.approx(1 / 16)]


def test_an_optimizer_that_never_steps_is_named(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    predictor = fit(lightning, tmp_path, turns(lightning, lambda batch: batch > 90))
    (call,) = calls
    assert updates(call.trace) == {1: 1.0}
    # The fourth batch is recorded, and 64 are waited for from there.
    words = (
        f"Optimizer 1 (Adam) made no update in the first {3 + WATCHED_BATCHES} batches. "
        "Its time and memory are not included."
    )
    assert words in known(predictor.predictions).notes


def test_optimizers_without_anything_to_train_are_not_waited_for(
    lightning: Small, tmp_path: Path, calls: list[Call]
) -> None:
    model = turns(lightning, lambda batch: False)
    model.generator.requires_grad_(False)
    fit(lightning, tmp_path, model, batches=10)
    (call,) = calls
    assert call.workload.training_iterations == 10 - 4
    assert call.trace.notes == ()


def test_updates_that_a_module_leaves_out_itself(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    model = lightning.model()

    def optimizer_step(epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if batch_idx % 3 == 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()

    model.optimizer_step = optimizer_step
    fit(lightning, tmp_path, model)
    (call,) = calls
    # Lightning counts a step a batch all the same; in two of three no optimizer runs.
    assert [kind.share for kind in call.trace.kinds] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    phases = [{operation.phase for operation in kind.trace.operations} for kind in call.trace.kinds]
    assert "optimizer" not in phases[0]
    assert "optimizer" in phases[1]


def accumulating(small: Small, every: tuple[int, int]) -> Any:
    """Two networks, each with an optimizer that steps after a number of batches of its own."""
    model = small.gan()

    def training_step(batch: Tensor, batch_idx: int) -> None:
        model.batches_trained += 1
        parts = (model.generator, model.discriminator)
        for part, optimizer, count in zip(parts, model.optimizers(), every, strict=True):
            model.manual_backward(part(batch).square().mean())
            if model.batches_trained % count == 0:
                optimizer.step()
                optimizer.zero_grad()

    model.training_step = training_step
    return model


def test_accumulation_that_differs_by_optimizer(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    predictor = fit(lightning, tmp_path, accumulating(lightning, (2, 3)))
    (call,) = calls
    # Updates after batches 2, 3, 4 and 6 of every six: windows of 2, 1, 1 and 2 batches.
    kinds = call.trace.kinds
    assert [kind.share for kind in kinds] == [0.25] * 4
    assert sorted((kind.trace.batches, kind.trace.optimizer_steps) for kind in kinds) == [
        (1, 1),
        (1, 1),
        (2, 1),
        (2, 2),
    ]
    # Six batches take the four windows, so that the mean of the 1.5 batches of a window is right for each batch.
    seconds = [lp.predict(kind.trace, ["T4"], history=False)["T4"].iteration_seconds for kind in kinds]
    predicted = known(predictor.predictions)["T4"].iteration_seconds
    assert predicted / call.trace.batches == pytest.approx(sum(seconds) / 6, rel=1e-9)


def test_optimizers_unseen_by_lightning_are_distinguished_by_graph(
    lightning: Small, tmp_path: Path, calls: list[Call]
) -> None:
    model = turns(lightning, lambda batch: batch % 5 == 4)
    see_all = model.optimizers
    model.optimizers = lambda: see_all(use_pl_optimizer=False)
    fit(lightning, tmp_path, model)
    assert [kind.share for kind in calls[-1].trace.kinds] == [pytest.approx(0.8), pytest.approx(0.2)]


def test_limit_in_optimizer_steps_counts_steps_of_the_mean_step(
    lightning: Small, tmp_path: Path, calls: list[Call]
) -> None:
    predictor = RuntimePredictor(GPUS, print_table=False)
    trainer = lightning.trainer(tmp_path, max_epochs=-1, max_steps=120, callbacks=predictor)
    trainer.fit(turns(lightning, lambda batch: batch % 5 == 4), lightning.loader(50))
    (call,) = calls
    # 6 updates in 5 batches: 120 are 100 batches. Batch 3 is recorded, the generator's turns come at 4, when it makes
    # its state, at 9, which is recorded, and at 14, which is timed; then 15 batches are done.
    assert call.workload.training_iterations == 100 - 15
    assert trainer.fit_loop.total_batch_idx + 1 == 100


def test_training_is_bit_identical_and_nothing_is_timed_once_all_is_known(
    lightning: Small, tmp_path: Path, readings: list[float]
) -> None:
    def trained(callbacks: list[Any]) -> dict[str, Tensor]:
        model = turns(lightning, lambda batch: batch % 5 == 4, is_regularised=lambda batch: batch % 16 == 0)
        lightning.trainer(tmp_path, max_epochs=1, callbacks=callbacks).fit(model, lightning.loader(100))
        return dict(model.state_dict())

    predictor = RuntimePredictor(GPUS, print_table=False)
    with_it, without = trained([predictor]), trained([])
    assert_nothing_is_open()
    assert all(torch.equal(with_it[name], without[name]) for name in without)
    assert predictor.trace is not None
    # Two readings a batch of those that are watched, and one more where a recorder starts.
    assert len(readings) <= 3 * (3 + WATCHED_BATCHES)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor")
def test_windows_of_the_profiler_take_turns_as_well(lightning: Small, tmp_path: Path, calls: list[Call]) -> None:
    model = turns(lightning, lambda batch: batch % 5 == 2)
    model.generator = torch.compile(model.generator, backend="eager")
    fit(lightning, tmp_path, model)
    torch._dynamo.reset()
    (call,) = calls
    assert [kind.trace.recorder for kind in call.trace.kinds] == ["profiler", "profiler"]
    assert updates(call.trace) == {1: 0.8, 2: 0.2}


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("remainder", [0, 1])
def test_empty_steps_are_noted_and_not_timed(small: Small, tmp_path: Path, remainder: int) -> None:
    model = small.model()
    step = model.training_step
    model.training_step = lambda batch, batch_idx: step(batch, batch_idx) if batch_idx % 2 == remainder else None
    predictor = fit(small, tmp_path, model)
    assert predictor.trace is not None
    assert predictor.trace.other_steps == ()
    assert {operation.phase for operation in predictor.trace.operations} >= {"forward", "backward"}
    (told,) = (note for note in predictor.trace.notes if "computed nothing" in note)
    # Every second of them, up to the one with which the recording was complete.
    empty, seen = (int(word) for word in told.split() if word.isdigit())
    assert abs(2 * empty - seen) <= 1
