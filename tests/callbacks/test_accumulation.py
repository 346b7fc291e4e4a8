"""A window of many micro-batches costs a recording of two, with the same trace as a full recording."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_predict.callbacks import RuntimePredictor, prediction_fit
from lightning_predict.memory.simulation import blocks_of, simulated
from lightning_predict.memory.storages import written_storages
from lightning_predict.record.dispatch import DispatchRecorder
from lightning_predict.record.trace import Trace
from tests.callbacks.small import FEATURES, Small
from tests.known import known

pytestmark = pytest.mark.usefixtures("readings")


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Operations that recorders saw, by name."""
    seen: Counter[str] = Counter()
    plain = DispatchRecorder.record_operation

    def counting(self: Any, schema: Any, *values: Any) -> None:
        seen[schema.name] += 1
        plain(self, schema, *values)

    monkeypatch.setattr(DispatchRecorder, "record_operation", counting)
    return seen


def traced(small: Small, folder: Path, accumulates: int, model: Any, **options: Any) -> Trace:
    """Train two windows, and record the second."""
    predictor = RuntimePredictor(["T4"], warmup_steps=1, print_table=False)
    trainer = small.trainer(folder, max_epochs=1, accumulate_grad_batches=accumulates, callbacks=predictor, **options)
    trainer.fit(model, small.loader(2 * accumulates))
    return known(predictor.trace)


def named_in_order(trace: Trace) -> list[tuple[Any, ...]]:
    """The operations with their storages numbered as they come, and those that are left at the end."""
    numbers: dict[int | None, int] = {None: -1}

    def of(number: int | None) -> int:
        return numbers.setdefault(number, len(numbers))

    rows: list[tuple[Any, ...]] = [
        (
            operation.name,
            operation.phase,
            operation.module,
            operation.arguments,
            [(of(tensor.id), tensor.shape, tensor.dtype) for tensor in (*operation.inputs, *operation.outputs)],
        )
        for operation in trace.operations
    ]
    return [*rows, ("held", *sorted(map(of, trace.held or ())))]


def plain(small: Small) -> Any:
    return small.model()


def collecting(small: Small) -> Any:
    """Keeps what each batch gave, as for the end of an epoch."""
    model = small.model()
    model.given = []
    step = model.training_step

    def training_step(batch: Tensor, batch_idx: int) -> Tensor:
        output = model.network(batch)
        model.given.append(output.detach() * 2)
        return step(batch, batch_idx) + output.mean()  # type: ignore[no-any-return]

    model.training_step = training_step
    return model


def remembering(small: Small) -> Any:
    """Keeps the output of the last batch until the next one does."""
    model = small.model()
    step = model.training_step

    def training_step(batch: Tensor, batch_idx: int) -> Tensor:
        model.last = model.network(batch).detach() * 2
        return step(batch, batch_idx)  # type: ignore[no-any-return]

    model.training_step = training_step
    return model


def measuring(small: Small) -> Any:
    """Computes a metric behind each batch's backward pass."""
    model = small.model()
    model.seen = torch.zeros(FEATURES)

    def on_train_batch_end(outputs: Any, batch: Tensor, batch_idx: int) -> None:
        model.seen += batch.sum(0)

    model.on_train_batch_end = on_train_batch_end
    return model


def normalizing(small: Small) -> Any:
    """Holds buffers that each batch changes."""
    model = small.model()
    model.network.append(nn.BatchNorm1d(2))
    return model


MODELS: list[Callable[[Small], Any]] = [plain, collecting, remembering, measuring, normalizing]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.5}, {"precision": "bf16-mixed"}])
def test_two_recorded_batches_of_four_make_the_trace_of_four(
    small: Small,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dispatched: Counter[str],
    make: Callable[[Small], Any],
    options: dict[str, Any],
) -> None:
    trace = traced(small, tmp_path, 4, make(small), **options)
    seen = dispatched.total()
    monkeypatch.setattr(prediction_fit, "shapes_of", lambda _: None)  # all are recorded
    whole = traced(small, tmp_path, 4, make(small), **options)
    assert dispatched.total() - seen > 1.6 * seen  # the update comes once in both
    assert (trace.batches, trace.samples, trace.optimizer_steps) == (
        whole.batches,
        whole.samples,
        whole.optimizer_steps,
    )
    assert named_in_order(trace) == named_in_order(whole)
    assert trace.memory == whole.memory
    assert simulated(blocks_of(trace)).allocated_bytes == pytest.approx(
        simulated(blocks_of(whole)).allocated_bytes, rel=0.05
    )
    lives = [
        sorted(written_storages(each), key=lambda one: (one.allocated_at, one.size_bytes)) for each in (trace, whole)
    ]
    # A copied micro-batch frees at its end what a variable holds into the next micro-batch.
    longest = len(whole.operations) // 4
    for ours, its in zip(*lives, strict=True):
        assert (ours.size_bytes, ours.cause, ours.allocated_at) == (its.size_bytes, its.cause, its.allocated_at)
        assert (ours.freed_at is None) == (its.freed_at is None)
        assert ours.freed_at is None or its.freed_at is None or abs(ours.freed_at - its.freed_at) < longest


def test_a_window_of_64_is_recorded_at_twice_the_cost_of_one(
    small: Small, tmp_path: Path, dispatched: Counter[str]
) -> None:
    alone = traced(small, tmp_path, 1, small.model())
    single = dispatched.total()
    many = traced(small, tmp_path, 64, small.model())
    assert dispatched.total() - single <= 2 * single
    assert (many.batches, many.samples, many.optimizer_steps) == (64, 64 * (alone.samples or 0), 1)
    count = {
        phase: (sum(of.phase == phase for of in alone.operations), sum(of.phase == phase for of in many.operations))
        for phase in ("forward", "optimizer")
    }
    assert count["optimizer"][0] == count["optimizer"][1]
    assert count["forward"][1] == pytest.approx(64 * count["forward"][0], rel=0.2)  # a division by 64 comes with each


def test_batches_of_many_lengths_are_each_recorded(small: Small, tmp_path: Path) -> None:
    model = small.model()
    model.network = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    batches = [torch.ones(2, length, 1) for _ in range(2) for length in (3, 5, 3, 7, 5, 5, 7, 5)]
    predictor = RuntimePredictor(["T4"], warmup_steps=1, print_table=False)
    trainer = small.trainer(tmp_path, max_epochs=1, accumulate_grad_batches=8, callbacks=predictor)
    trainer.fit(model, torch.utils.data.DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    lengths = [
        operation.inputs[1].shape[0] // 2
        for operation in known(predictor.trace).operations
        if (operation.name, operation.phase) == ("aten::addmm", "forward") and operation.inputs[1].shape[-1] == 1
    ]
    assert lengths == [3, 5, 3, 7, 5, 5, 7, 5]
