"""One case of `tests.soak.combined`, in a process of its own: `-m tests.soak.combined_fit CASE FOLDER True`."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.record.profiler import ProfilerRecorder
from lightning_predict.record.session import CaptureSession
from tests.callbacks.fake_device import FakeDevice
from tests.callbacks.small import FEATURES, Small, network
from tests.callbacks.test_on_a_device import small_document
from tests.soak.faults import ERRORS, held, left_behind, name_of, traced


def fit(case: dict[str, Any], folder: str, *, with_callbacks: bool) -> None:
    """Fit once in each thread, print the weights and the leftovers, and end as the first of them ended."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    Path(folder).mkdir(parents=True, exist_ok=True)
    before = held()
    already = set(left_behind(before))
    found: dict[int, Any] = {}
    with ExitStack() as around:
        if case["code"] == "profiled":
            around.enter_context(_as_on_gpu())
        device = None
        if case["code"] == "cuda":
            device = FakeDevice(small_document())
            patches = around.enter_context(pytest.MonkeyPatch.context())
            around.enter_context(device.plugged_in(patches, _strategy(case)))
        if with_callbacks and case["error"] != "none" and _has_error(case):
            around.enter_context(traced(_injecting(case["function"], case["error"])))
        if case["trainers"] != "two threads":
            _fitted(0, case, folder, with_callbacks, found, device)
        else:
            threads = [
                threading.Thread(target=_fitted, args=(number, case, folder, with_callbacks, found, device))
                for number in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    left = sorted(set(left_behind(before)) - already)
    weights = [one if isinstance(one, float) else type(one).__name__ for _, one in sorted(found.items())]
    print("outcome", weights, "left", ", ".join(left) or "nothing")
    errors = [one for one in found.values() if isinstance(one, BaseException)]
    if errors:
        raise errors[0]


RANK: Final = int(os.environ.get("RANK", "0"))


def _strategy(case: dict[str, Any]) -> Any:
    """Give the class of the Trainer's strategy."""
    strategies = Small("lightning.pytorch").lightning.strategies
    return strategies.DDPStrategy if case["trainers"] == "two ranks" else strategies.SingleDeviceStrategy


def _has_error(case: dict[str, Any]) -> bool:
    """Return whether this rank has it: of two the second, but for what rank zero alone does."""
    rank = 0 if case["function"].startswith(("prediction.py", "reports/")) else 1
    return case["trainers"] != "two ranks" or rank == RANK


def _fitted(
    number: int,
    case: dict[str, Any],
    folder: str,
    with_callbacks: bool,
    found: dict[int, Any],
    device: FakeDevice | None,
) -> None:
    small = Small("lightning.pytorch")
    model = _model(small, case, number)
    if device is not None:
        device.drives(model)
    callbacks: list[Any] = []
    if with_callbacks:
        callbacks = [
            RuntimePredictor(["T4"], print_table=False, warmup_steps=1, learn_from_history=False),
            CostBudget(usd=1e6, usd_per_hour=1.0, warmup_steps=2),
        ]
    place = Path(folder, f"{number}.{RANK}")
    kind = small.lightning.profilers.PyTorchProfiler
    profiler = kind(place, "theirs") if _profiles(case, number, "Trainer's") else None
    ranks: dict[str, Any] = {}
    if case["trainers"] == "two ranks":
        strategy = _strategy(case)(process_group_backend="gloo", timeout=timedelta(seconds=180))
        ranks = {"devices": 2, "strategy": strategy}
    trainer = small.trainer(place, max_epochs=2, callbacks=callbacks, profiler=profiler, **ranks)
    each = ranks.get("devices", 1)  # a rank trains as many batches as one alone
    try:
        trainer.fit(model, small.loader(6 * each), small.loader(2 * each))
    except BaseException as error:
        found[number] = error
        return
    found[number] = float(torch.nn.utils.parameters_to_vector(model.parameters()).double().sum())


def _profiles(case: dict[str, Any], number: int, *kinds: str) -> bool:
    """Return whether this Trainer profiles so: the first alone, as torch cannot profile in two threads at once."""
    return number == 0 and case["profiler"] in kinds


def _model(small: Small, case: dict[str, Any], number: int) -> Any:
    base = type(small.model(validates=True))

    class Model(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.network: Any = network() if case["code"] != "attention" else _Attention()
            for parameter in self.network.parameters():  # not drawn: two threads share their random numbers
                nn.init.constant_(parameter, 0.1 + 0.01 * number)
            for module in self.network.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            if case["code"] == "compiled":
                self.network.compile(backend="eager")

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            kind, profiler = case["profiler"], None
            if batch_idx == 2 and _profiles(case, number, "inside", "across"):
                profiler = profile(activities=[ProfilerActivity.CPU])
                profiler.start()
            loss: Tensor = super().training_step(batch, batch_idx)
            if profiler is not None and kind == "inside":
                profiler.stop()
                profiler.export_chrome_trace(f"{self.trainer.default_root_dir}.{batch_idx}.json")
            elif profiler is not None:
                self.theirs = profiler
            return loss

        def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
            if _profiles(case, number, "before") and batch_idx == 1:
                self.theirs = profile(activities=[ProfilerActivity.CPU])
                self.theirs.start()
            elif batch_idx == 4 and getattr(self, "theirs", None) is not None:
                theirs = self.__dict__.pop("theirs")
                theirs.stop()
                theirs.export_chrome_trace(f"{self.trainer.default_root_dir}.{batch_idx}.json")

    return Model()


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(FEATURES, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.layer(batch.unsqueeze(1))
        return output


@contextmanager
def _as_on_gpu() -> Any:
    """Record by the profiler, as on a GPU."""
    prepare = CaptureSession._prepare

    def prepare_profiler(self: CaptureSession) -> None:
        prepare(self)
        self._recorder = ProfilerRecorder(cuda=False)

    CaptureSession._prepare = prepare_profiler  # type: ignore[method-assign]
    try:
        yield
    finally:
        CaptureSession._prepare = prepare  # type: ignore[method-assign]


def _injecting(function: str, error: str) -> Any:
    seen: list[str] = []

    def fail(code: CodeType) -> None:
        if name_of(code) == function and not seen:
            seen.append(function)
            raise ERRORS[error]()

    return fail


if __name__ == "__main__":
    fit(json.loads(sys.argv[1]), sys.argv[2], with_callbacks=sys.argv[3] == "True")
