"""Fail in every function of ours that a fit reaches, and see that the fit does not notice.

    python -m tests.soak.faults [--loops trainer,...] [--every N] [--errors RuntimeError,...] [--calls 0,1]
    python -m tests.soak.faults --sample 200 --seed 1

Five loops are watched: a Trainer with both callbacks; one as on a GPU, with advice, a progress bar and files that are
written each minute; Fabric; a loop in plain torch; the Trainer of transformers. Each is traced once, to learn which
functions of ours it calls, and how often. Then it is run again and again, and each time one of them fails at its first
or second call, or, of a sample, at any. Checked: weights, number of batches, an error that reaches the loop
(KeyboardInterrupt and SystemExit do, as they end any), leftovers: modes, hooks, profilers, files, threads.
"""

import argparse
import contextlib
import errno
import io
import itertools
import logging
import os
import random
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import lightning_predict
from lightning_predict.callbacks import CostBudget, RuntimePredictor
from lightning_predict.integrations.fabric import FabricPredictor
from lightning_predict.observe.clock import clock_of_fits
from tests.callbacks.fake_device import FakeDevice
from tests.callbacks.small import FEATURES, Small, network
from tests.callbacks.test_on_a_device import small_document

OURS: Final = str(Path(lightning_predict.__file__).parent)
ERRORS: Final[dict[str, Callable[[], BaseException]]] = {
    "RuntimeError": lambda: RuntimeError("injected"),
    "MemoryError": lambda: MemoryError("injected"),
    "ENOSPC": lambda: OSError(errno.ENOSPC, "No space left on device (injected)"),
    "StopIteration": lambda: StopIteration("injected"),
    "GeneratorExit": lambda: GeneratorExit("injected"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("injected"),
    "SystemExit": lambda: SystemExit("injected"),
}
ENDS: Final = ("KeyboardInterrupt", "SystemExit")
"""Errors with which a program is asked to end: they end the fit, and must leave nothing behind."""


ENTRANCES: Final = (
    "base/guard.py log_exceptions.<locals>.guarded",
    "base/guard.py log_exceptions_unless.<locals>.decorate.<locals>.guarded",
    "base/guard.py fallback_on_error.<locals>.decorate.<locals>.guarded",
    "record/hooks.py _unseen_by_the_step.<locals>.guarded",
    "record/hooks.py OptimizerWatch._outside.<locals>.watched",
    "record/modes.py OperationMode.__torch_dispatch__",
    "record/modes.py OperationMode.ignore_compile_internals",
    "record/modes.py WholeCallMode.__torch_function__",
    "record/modes.py _Dispatcher.__call__",
    "record/modes.py _Suspension.__call__",
    "registration.py callbacks_from_environment",
    "observe/watched_loop.py WatchedRun.__enter__",
    "observe/watched_loop.py WatchedRun.batches",
    "integrations/fabric.py FabricPredictor.__enter__",
    "integrations/fabric.py FabricPredictor.__exit__",
    "integrations/fabric.py FabricPredictor.batches",
    "integrations/fabric.py FabricPredictor.on_after_setup",
)
"""Functions that torch, Lightning or a loop calls and that guard all others: nothing is around them that could catch
what fails before their first line, so they are left out."""


@dataclass(frozen=True)
class Result:
    """Result of a fit: all weights in one row, trained batches, the error that reached `fit`, and leftovers."""

    weights: torch.Tensor
    batches: int
    error: BaseException | None
    left: tuple[str, ...]


Loop = Callable[[Path, bool], tuple[Any, Callable[[], object]]]
"""Makes a model that counts its `batches_trained`, and what trains it in a folder: with our part, or without."""


def in_trainer(folder: Path, is_watched: bool) -> tuple[Any, Callable[[], object]]:
    """Train with Lightning's Trainer, validation and a checkpoint."""
    small = Small("lightning.pytorch")
    model = small.model(validates=True)
    callbacks: list[Any] = []
    if is_watched:
        callbacks = [
            RuntimePredictor(["T4", "8xL4"], print_table=False, warmup_steps=1),
            CostBudget(usd=1e6, usd_per_hour=1.0, warmup_steps=2),
        ]
    trainer = small.trainer(
        folder,
        max_epochs=2,
        callbacks=[*callbacks, small.lightning.callbacks.ModelCheckpoint(folder, every_n_train_steps=5)],
        enable_checkpointing=True,
        logger=small.lightning.loggers.CSVLogger(folder),
    )
    return model, lambda: trainer.fit(model, small.loader(6), small.loader(2))


def on_device(folder: Path, is_watched: bool) -> tuple[Any, Callable[[], object]]:
    """Train as on a GPU whose batches take 20 s, so that minutely updates happen, with advice and a bar."""
    small = Small("lightning.pytorch")
    fake = FakeDevice(small_document(), host_seconds=10.0, device_seconds=20.0)
    model = fake.drives(small.model(validates=True))

    class Quiet(small.lightning.callbacks.ProgressBar):  # type: ignore[misc,name-defined]
        is_enabled = False  # printed output bypasses it

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            self.get_metrics(trainer, pl_module)

    callbacks: list[Any] = [Quiet()]
    if is_watched:
        with clock_of_fits(fake.host_clock, device=fake.device_clock):
            callbacks += [
                RuntimePredictor(["T4"], warmup_steps=1, advice=True),
                CostBudget(usd=1e6, usd_per_hour=1.0, warmup_steps=2),
            ]

    def train() -> None:
        strategy = small.lightning.strategies.SingleDeviceStrategy
        with pytest.MonkeyPatch.context() as patches, fake.plugged_in(patches, strategy):
            trainer = small.trainer(folder, max_epochs=2, callbacks=callbacks, enable_progress_bar=True)
            trainer.fit(model, small.loader(10), small.loader(2))

    return model, train


class Counted(nn.Module):
    """The small network, with its loss and a count of its batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = network()
        self.batches_trained = 0

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        self.batches_trained += 1
        return {"loss": self.network(rows).square().mean()}


STEPS: Final = 30
ASKED: Final[dict[str, Any]] = {"gpus": ["T4"], "usd": 1e6, "usd_per_hour": 1.0, "print_table": False}


def in_fabric(folder: Path, is_watched: bool) -> tuple[Any, Callable[[], object]]:
    """Train in a loop of Fabric, in two epochs."""
    from lightning.fabric import Fabric

    model, rows = Counted(), list(torch.ones(STEPS // 2, 4, FEATURES))
    predictor = FabricPredictor(total_steps=STEPS, warmup_steps=1, **ASKED) if is_watched else None

    def train() -> None:
        loop = Fabric(accelerator="cpu", callbacks=[] if predictor is None else [predictor])
        ready, optimizer = loop.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
        with contextlib.nullcontext() if predictor is None else predictor:
            for _ in range(2):
                for batch in rows if predictor is None else predictor.batches(rows):
                    loop.backward(ready(batch)["loss"])
                    optimizer.step()
                    optimizer.zero_grad()

    return model, train


def in_torch(folder: Path, is_watched: bool) -> tuple[Any, Callable[[], object]]:
    """Train in a loop of plain torch."""
    model, rows = Counted(), list(torch.ones(STEPS, 4, FEATURES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(batch: Tensor) -> None:
        model(batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    def train_alone() -> None:
        for batch in rows:
            step(batch)

    if not is_watched:
        return model, train_alone
    run = lightning_predict.watch(total_steps=STEPS, warmup_steps=1, model=model, optimizers=[optimizer], **ASKED)

    def train() -> None:
        with run:
            for batch in run.batches(rows):
                step(batch)
                run.step()
                assert run.remaining is None or run.remaining.low >= 0
                if run.should_stop:
                    break

    return model, train


def in_transformers(folder: Path, is_watched: bool) -> tuple[Any, Callable[[], object]]:
    """Train with the Trainer of transformers, with an evaluation."""
    from transformers import Trainer, TrainingArguments

    from lightning_predict.integrations.transformers import RuntimePredictorCallback

    model, rows = Counted(), [{"rows": row} for row in torch.ones(STEPS * 4, FEATURES)]
    asked: dict[str, Any] = {"usd": 1e6, "run_usd_per_hour": 1.0, "print_table": False}
    callbacks: list[Any] = [RuntimePredictorCallback(["T4"], warmup_steps=1, **asked)] if is_watched else []

    def train() -> None:
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=STEPS,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            eval_strategy="steps",
            eval_steps=10,
        )
        Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=callbacks).train()

    return model, train


LOOPS: Final[dict[str, Loop]] = {
    "trainer": in_trainer,
    "device": on_device,
    "fabric": in_fabric,
    "torch": in_torch,
    "transformers": in_transformers,
}


def fit(
    folder: Path, *, with_callbacks: bool, on_call: Callable[[CodeType], None] | None = None, loop: str = "trainer"
) -> Result:
    """Train a small model in one of the loops; tell of the calls of our functions meanwhile."""
    torch.manual_seed(3)
    model, train = LOOPS[loop](folder, with_callbacks)
    before, error = held(), None
    already = left_behind(before)
    try:
        with traced(on_call) if on_call is not None else contextlib.nullcontext():
            train()
    except BaseException as caught:
        error = caught
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    left = tuple(name for name in left_behind(before) if name not in already)
    return Result(weights, model.batches_trained, error, left)


def _engine() -> object:
    return vars(torch.autograd)["_engine_run_backward"]


PATCHED: Final = (functional.scaled_dot_product_attention, _engine())
"""Functions that stand for others while autograd or attention runs in a recording, as they are outside of one."""


def held() -> tuple[int, int]:
    """Files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def left_behind(before: tuple[int, int]) -> tuple[str, ...]:
    """Leftovers of a fit in the process."""
    end = time.monotonic() + 5
    while held()[1] > before[1] and time.monotonic() < end:
        time.sleep(0.01)  # a thread that is about to end
    optimizer = sys.modules[Optimizer.__module__]
    module = torch.nn.modules.module
    leftovers = {
        "a profiler": torch._C._autograd._profiler_enabled(),
        "a dispatch mode": bool(_get_current_dispatch_mode_stack()),
        "a function mode": bool(_get_current_function_mode_stack()),
        "a patched function": not (PATCHED[0] is functional.scaled_dot_product_attention and PATCHED[1] is _engine()),
        "module hooks": bool(module._global_forward_hooks or module._global_forward_pre_hooks),
        "optimizer hooks": bool(optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks),
        "files": held()[0] > before[0],
        "threads": held()[1] > before[1],
    }
    return tuple(name for name, is_left in leftovers.items() if is_left)


def clear() -> None:
    """Remove the leftovers of a fit, so that the next one begins as the first did."""
    from torch import overrides
    from torch.utils import _python_dispatch

    while _get_current_dispatch_mode_stack():
        _python_dispatch._pop_mode()
    while _get_current_function_mode_stack():
        overrides._pop_mode()
    module, optimizer = torch.nn.modules.module, sys.modules[Optimizer.__module__]
    for hooks in (
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        optimizer._global_optimizer_pre_hooks,
        optimizer._global_optimizer_post_hooks,
    ):
        hooks.clear()


@contextlib.contextmanager
def traced(on_call: Callable[[CodeType], None]) -> Iterator[None]:
    """Tell of every call of a function of ours, on all threads; what `on_call` raises is raised in that function."""

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            on_call(frame.f_code)

    with watched(trace):
        yield


@contextlib.contextmanager
def watched(trace: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Trace calls on all threads."""
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)


def name_of(code: CodeType) -> str:
    """File and name of a function; two of one name in a file (a property's two sides) count as one."""
    return f"{code.co_filename.removeprefix(OURS)[1:]} {code.co_qualname}"


def entrances(run: Callable[[], object]) -> dict[str, set[str]]:
    """Functions of ours that others call while something runs, each with who calls it: torch, Lightning, a model.

    Python's own library passes calls on (`contextlib`, `functools`), so that who called it counts.
    """
    passes_on = (sysconfig.get_paths()["stdlib"], "<")
    site = sysconfig.get_paths()["purelib"]
    callers: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OURS) or code.co_name == "<module>":
            return
        caller = frame.f_back
        while caller is not None:
            path = caller.f_code.co_filename
            if path.startswith(OURS):
                return
            if path.startswith(site) or not path.startswith(passes_on):
                callers.setdefault(name_of(code), set()).add(f"{Path(path).name} {caller.f_code.co_qualname}")
                return
            caller = caller.f_back

    with watched(note):
        run()
    return callers


def reached(folder: Path, loop: str = "trainer") -> dict[str, int]:
    """Functions that a loop calls of ours, each with the number of its calls."""
    counts: Counter[str] = Counter()
    fit(folder, with_callbacks=True, loop=loop)  # imports happen before
    fit(folder, with_callbacks=True, on_call=lambda code: counts.update((name_of(code),)), loop=loop)
    return {name: calls for name, calls in counts.items() if "<module>" not in name and name not in ENTRANCES}


def sampled(names: Iterable[str], every: int) -> list[str]:
    """Take about one function in n, the same ones in every process: a hash of the name decides, not its place."""
    return sorted(name for name in names if zlib.crc32(name.encode()) % every == 0)


@dataclass(frozen=True)
class Fault:
    """An error in one call, counted from 0, of one function in a loop."""

    loop: str
    name: str
    error: str
    call: int

    def __str__(self) -> str:
        return f"{self.loop}: {self.error} in call {self.call} of {self.name}"


def drawn(calls: Mapping[str, Mapping[str, int]], errors: Sequence[str], sample: int, seed: int) -> list[Fault]:
    """Draw faults: a loop, a function that it reaches, one of its calls, and an error."""
    draw = random.Random(seed)
    loops = sorted(loop for loop in calls if calls[loop])
    faults = []
    for _ in range(sample):
        loop = draw.choice(loops)
        name = draw.choice(sorted(calls[loop]))
        faults.append(Fault(loop, name, draw.choice(errors), draw.randrange(calls[loop][name])))
    return faults


def injected(folder: Path, fault: Fault) -> tuple[Result, bool]:
    """Train with a fault; whether it was reached."""
    seen = 0

    def fail(code: CodeType) -> None:
        nonlocal seen
        if seen > fault.call or name_of(code) != fault.name:
            return
        seen += 1
        if seen > fault.call:
            raise ERRORS[fault.error]()

    result = fit(folder, with_callbacks=True, on_call=fail, loop=fault.loop)
    return result, seen > fault.call


def study(faults: Sequence[Fault], folder: Path) -> tuple[dict[tuple[str, str], dict[str, int]], list[str]]:
    """Inject each fault; counts by loop and error, and what went wrong in words."""
    alone = {loop: fit(folder, with_callbacks=False, loop=loop) for loop in {fault.loop for fault in faults}}
    counts: dict[tuple[str, str], dict[str, int]] = {}
    words = []
    for fault in faults:
        result, was_reached = injected(folder, fault)
        count = counts.setdefault((fault.loop, fault.error), dict.fromkeys(("faults", "harmed", "left behind"), 0))
        if not was_reached:
            continue
        count["faults"] += 1
        unharmed = alone[fault.loop]
        is_whole = result.batches == unharmed.batches and torch.equal(result.weights, unharmed.weights)
        if fault.error not in ENDS and (result.error is not None or not is_whole):
            count["harmed"] += 1
            words.append(f"{fault}: {result.error!r}, {result.batches} batches")
        if result.left:
            count["left behind"] += 1
            words.append(f"{fault} leaves {', '.join(result.left)}")
            clear()
    return counts, words


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loops", default=",".join(LOOPS))
    parser.add_argument("--every", type=int, default=1, help="take one function in so many only")
    parser.add_argument("--only", default="", help="take functions whose name holds this only")
    parser.add_argument("--errors", default=",".join(ERRORS))
    parser.add_argument("--calls", default="0,1")
    parser.add_argument("--sample", type=int, help="draw so many faults, at any call, in place of --calls")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for package in ("lightning.pytorch", "lightning_predict", "lightning"):
        logging.getLogger(package).setLevel(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None
    errors = options.errors.split(",")
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        os.environ["LIGHTNING_PREDICT_HISTORY"] = f"{place}/history.jsonl"
        folder = Path(place)
        calls: dict[str, dict[str, int]] = {}
        for loop in options.loops.split(","):
            totals = reached(folder, loop)
            calls[loop] = {
                name: totals[name] for name in sampled((one for one in totals if options.only in one), options.every)
            }
        start = time.monotonic()
        if options.sample is None:
            numbers = [int(call) for call in options.calls.split(",")]
            every = itertools.product(errors, numbers)
            faults = [
                Fault(loop, name, error, call)
                for (error, call), loop in itertools.product(every, calls)
                for name in calls[loop]
            ]
        else:
            faults = drawn(calls, errors, options.sample, options.seed)
        counts, words = study(faults, folder)
    by_loop = ", ".join(f"{len(names)} of {loop}" for loop, names in calls.items())
    print(f"functions: {by_loop}; {time.monotonic() - start:.0f} s\n")
    print("| loop | error | faults | runs harmed | runs that leave something behind |\n|---|---|---:|---:|---:|")
    for (loop, error), count in sorted(counts.items()):
        print(f"| {loop} | {error} | {count['faults']:,} | {count['harmed']} | {count['left behind']} |")
    print("", *words, sep="\n")
    if words:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
