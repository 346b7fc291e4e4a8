"""Combine what may harm a run, and see that it ends as without us: `python -m tests.soak.combined [--sample N]`.

{no profiler, the Trainer's, the user's own before, inside and across a step} × {eager code, compiled code, attention in
evaluation mode, eager code that is profiled as on a GPU, a GPU whose profiler gives documents that were written before}
× {one thread, two Trainers in two threads, two ranks} × {no error, one of ours of each kind, KeyboardInterrupt}: each
is a process of its own, or two, run with and without our callbacks. Of two ranks one has the error. Compared values:
exit codes (such as a segmentation fault), weights, and leftovers in the process. What ends by itself without us
(torch's profilers in two threads at once) is counted apart. A sample takes minutes, all of them hours.
"""

import argparse
import hashlib
import itertools
import json
import logging
import os
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
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
from tests.callbacks.ranks import launched
from tests.callbacks.small import FEATURES, Small, network
from tests.callbacks.test_on_a_device import small_document
from tests.processes import run
from tests.soak import faults

PROFILERS: Final = ("none", "Trainer's", "before", "inside", "across")
CODE: Final = ("eager", "compiled", "attention", "profiled", "cuda")
TRAINERS: Final = ("one", "two threads", "two ranks")
ERRORS: Final = ("none", "RuntimeError", "MemoryError", "StopIteration", "KeyboardInterrupt")
FUNCTIONS: Final = (  # Where errors are injected, at the first call; a case takes one of them
    "record/session.py CaptureSession.start",
    "record/session.py CaptureSession.trace",
    "record/hooks.py ModuleWatch._add_root",
    "record/profiler.py ProfilerRecorder.stop",
    "record/dispatch.py DispatchRecorder._record",
    "prediction.py predict_workload",
    "reports/table.py plain_table",
)


@dataclass(frozen=True)
class Case:
    """One combination: a profiler, the trained code, threads or ranks, and an error in a function of ours."""

    profiler: str
    code: str
    trainers: str
    error: str
    function: str


def fit(case: Case, folder: str, *, with_callbacks: bool) -> None:
    """Fit once in each thread, print the weights and the leftovers, and end as the first of them ended."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    Path(folder).mkdir(parents=True, exist_ok=True)
    before = faults.held()
    already = set(faults.left_behind(before))
    outcomes: dict[int, Any] = {}
    with ExitStack() as around:
        patches = around.enter_context(pytest.MonkeyPatch.context())
        if case.code == "profiled":
            _record_by_profiler(patches)
        device = None
        if case.code == "cuda":
            device = FakeDevice(small_document())
            around.enter_context(device.plugged_in(patches, _strategy(case)))
        if with_callbacks and case.error != "none" and _has_error(case):
            around.enter_context(faults.traced(_injecting(case.function, case.error)))
        threads = [
            threading.Thread(target=_fitted, args=(number, case, folder, with_callbacks, outcomes, device))
            for number in range(2)
        ]
        if case.trainers != "two threads":
            _fitted(0, case, folder, with_callbacks, outcomes, device)
            threads.clear()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    left = sorted(set(faults.left_behind(before)) - already)
    weights = [one if isinstance(one, float) else type(one).__name__ for _, one in sorted(outcomes.items())]
    print("outcome", weights, "left", ", ".join(left) or "nothing")
    errors = [one for one in outcomes.values() if isinstance(one, BaseException)]
    if errors:
        raise errors[0]


RANK: Final = int(os.environ.get("RANK", "0"))


def _strategy(case: Case) -> Any:
    """Give the class of the Trainer's strategy."""
    strategies = Small("lightning.pytorch").lightning.strategies
    return strategies.DDPStrategy if case.trainers == "two ranks" else strategies.SingleDeviceStrategy


def _has_error(case: Case) -> bool:
    """Return whether this rank has it: of two the second, but for what rank zero alone does."""
    rank = 0 if case.function.startswith(("prediction.py", "reports/")) else 1
    return case.trainers != "two ranks" or rank == RANK


def _fitted(
    number: int, case: Case, folder: str, with_callbacks: bool, found: dict[int, Any], device: FakeDevice | None
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
    if case.trainers == "two ranks":
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


def _profiles(case: Case, number: int, *kinds: str) -> bool:
    """Return whether this Trainer profiles so: the first alone, as torch cannot profile in two threads at once."""
    return number == 0 and case.profiler in kinds


def _model(small: Small, case: Case, number: int) -> Any:
    base = type(small.model(validates=True))

    class Model(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.network: Any = network() if case.code != "attention" else _Attention()
            for parameter in self.network.parameters():  # not drawn: two threads share their random numbers
                nn.init.constant_(parameter, 0.1 + 0.01 * number)
            for module in self.network.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            if case.code == "compiled":
                self.network.compile(backend="eager")

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            kind, profiler = case.profiler, None
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


def _record_by_profiler(patches: pytest.MonkeyPatch) -> None:
    """Record by the profiler, as on a GPU."""
    prepare = CaptureSession._prepare

    def prepare_profiler(self: CaptureSession) -> None:
        prepare(self)
        self._recorder = ProfilerRecorder(cuda=False)

    patches.setattr(CaptureSession, "_prepare", prepare_profiler)


def _injecting(function: str, error: str) -> Callable[[CodeType], None]:
    seen: list[str] = []

    def fail(code: CodeType) -> None:
        if faults.name_of(code) == function and not seen:
            seen.append(function)
            raise faults.ERRORS[error]()

    return fail


def cases(sample: int | None, seed: str) -> list[Case]:
    """List the combinations, or as many of them as are asked for, drawn by a hash of their names."""
    every = []
    for profiler, code, trainers, error in itertools.product(PROFILERS, CODE, TRAINERS, ERRORS):
        if error == "KeyboardInterrupt" and trainers != "one":
            continue  # Python raises it in the main thread alone, and a rank that ends ends the others
        if profiler != "none" and trainers == "two threads" and code != "eager":
            continue  # torch has one profiler in a process, and may end it where ours and theirs run in two threads
        functions = FUNCTIONS if error != "none" else FUNCTIONS[:1]
        every += [Case(profiler, code, trainers, error, function) for function in functions]
    every.sort(key=lambda case: hashlib.sha256(f"{seed} {case}".encode()).digest())
    return every[:sample]


def outcome(case: Case, folder: Path, *, with_callbacks: bool) -> tuple[tuple[int | None, ...], str]:
    """Run a case; its exit codes, and its printed weights and leftovers, with other failures."""
    words = ("tests.soak.combined", "--case", json.dumps(asdict(case)), folder, str(with_callbacks))
    if case.trainers == "two ranks":
        ended = launched(*words, world_size=2, folder=folder.parent)
    else:
        ended = [run("-m", *words)]
    lines = [line for process in ended for line in process.stdout.splitlines() if line.startswith("outcome ")]
    return tuple(process.returncode for process in ended), "; ".join(lines)


def harm(case: Case, plain: tuple[tuple[int | None, ...], str], folder: Path) -> str | None:
    """Run a case with our callbacks; return the differences from a run without them; None without differences."""
    watched = outcome(case, folder, with_callbacks=True)
    if case.error == "KeyboardInterrupt":  # it ends the run where it comes, and with it the user's own profiler
        theirs = case.profiler != "none" and watched[1].endswith("left a profiler")
        is_alike = watched[0] in ((0,), (1,)) and (watched[1].endswith("left nothing") or theirs)
    else:
        is_alike = watched == plain
    return None if is_alike else f"{case}: {watched} and not {plain}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=None, help="cases to draw; all where left out")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--case", nargs=3, help="run one case: the case, a folder, and whether with callbacks")
    options = parser.parse_args()
    if options.case:
        case, folder, with_callbacks = options.case
        fit(Case(**json.loads(case)), folder, with_callbacks=with_callbacks == "True")
        return
    start, counts, harmed = time.monotonic(), Counter[str](), []
    plain: dict[tuple[str, str, str], tuple[tuple[int | None, ...], str]] = {}
    with tempfile.TemporaryDirectory() as place:
        for number, case in enumerate(cases(options.sample, options.seed)):
            key = (case.profiler, case.code, case.trainers)
            if key not in plain:
                plain[key] = outcome(case, Path(place, f"plain{number}"), with_callbacks=False)
            if any(plain[key][0]):
                counts["impossible"] += 1
                continue
            counts[case.error] += 1
            words = harm(case, plain[key], Path(place, f"ours{number}"))
            if words is not None:
                harmed.append(case)
                print(words, file=sys.stderr, flush=True)
    print(f"{counts.pop('impossible', 0)} cases end without us as well")
    print(f"{sum(counts.values())} cases, seed {options.seed}, {time.monotonic() - start:.0f} s\n")
    print("| error | cases | other exit code, weights or remains than without us |\n|---|---:|---:|")
    for error in ERRORS:
        print(f"| {error} | {counts[error]} | {sum(case.error == error for case in harmed)} |")
    if harmed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
