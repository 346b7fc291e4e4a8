"""Fail in every function of ours that a fit reaches, and see that the fit does not notice.

    python -m tests.soak.faults [--every N] [--errors RuntimeError,...] [--calls 0,1]

A fit with both callbacks is traced once, to learn which functions it calls. Then it is run again and again, and each
time one of them fails at its first or second call. What is watched: weights, number of batches, an error that reaches
`fit` (KeyboardInterrupt and SystemExit do, as they end any fit), and what is left behind: modes, hooks, profilers,
files, threads.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch
import torch.nn.functional as functional
from torch.optim import Optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import lightning_predict
from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import Small

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
    "guard.py never_raises.<locals>.guarded",
    "guard.py gives_instead.<locals>.decorate.<locals>.guarded",
    "tracing/hooks.py _unseen_by_the_step.<locals>.guarded",
    "tracing/hooks.py OptimizerWatch._outside.<locals>.watched",
    "tracing/modes.py OperationMode.__torch_dispatch__",
    "tracing/modes.py OperationMode.ignore_compile_internals",
    "tracing/modes.py WholeCallMode.__torch_function__",
    "tracing/modes.py _Dispatcher.__call__",
    "registration.py callbacks_from_environment",
)
"""Functions that torch or Lightning calls and that guard all others: nothing is around them that could catch what fails
before their first line, so they are left out."""


@dataclass(frozen=True)
class Result:
    """What a fit came to.

    Attributes:
        weights: All of them, in one row.
        batches: That were trained.
        error: Reached `fit`; None without.
        left: Left behind, in words.
    """

    weights: torch.Tensor
    batches: int
    error: BaseException | None
    left: tuple[str, ...]


def fit(folder: Path, *, with_callbacks: bool, on_call: Callable[[CodeType], None] | None = None) -> Result:
    """Fit a small model with validation and a checkpoint; tell of the calls of our functions meanwhile."""
    small = Small("lightning.pytorch")
    torch.manual_seed(3)
    model = small.model(validates=True)
    callbacks: list[Any] = []
    if with_callbacks:
        callbacks = [
            RuntimePredictor(["T4", "8xL4"], print_table=False, warmup_steps=1, progress_file=folder / "progress.json"),
            CostBudget(usd=1e6, usd_per_hour=1.0, warmup_steps=2),
        ]
    trainer = small.trainer(
        folder,
        max_epochs=2,
        callbacks=[*callbacks, small.lightning.callbacks.ModelCheckpoint(folder, every_n_train_steps=5)],
        enable_checkpointing=True,
        logger=small.lightning.loggers.CSVLogger(folder),
    )
    before, error = held(), None
    already = left_behind(before)
    try:
        with traced(on_call) if on_call is not None else contextlib.nullcontext():
            trainer.fit(model, small.loader(6), small.loader(2))
    except BaseException as caught:
        error = caught
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    left = tuple(one for one in left_behind(before) if one not in already)
    return Result(weights, model.batches_trained, error, left)


def _engine() -> object:
    return vars(torch.autograd)["_engine_run_backward"]


PATCHED: Final = (functional.scaled_dot_product_attention, _engine())
"""Functions that stand for others while autograd or attention runs in a recording, as they are outside of one."""


def held() -> tuple[int, int]:
    """Files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def left_behind(before: tuple[int, int]) -> tuple[str, ...]:
    """What a fit left in the process."""
    end = time.monotonic() + 5
    while held()[1] > before[1] and time.monotonic() < end:
        time.sleep(0.01)  # a thread that is about to end
    optimizer = sys.modules[Optimizer.__module__]
    module = torch.nn.modules.module
    found = {
        "a profiler": torch._C._autograd._profiler_enabled(),
        "a dispatch mode": bool(_get_current_dispatch_mode_stack()),
        "a function mode": bool(_get_current_function_mode_stack()),
        "a patched function": not (PATCHED[0] is functional.scaled_dot_product_attention and PATCHED[1] is _engine()),
        "module hooks": bool(module._global_forward_hooks or module._global_forward_pre_hooks),
        "optimizer hooks": bool(optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks),
        "files": held()[0] > before[0],
        "threads": held()[1] > before[1],
    }
    return tuple(name for name, is_left in found.items() if is_left)


def clear() -> None:
    """Take away what a fit has left, so that the next one begins as the first did."""
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
    found: dict[str, set[str]] = {}

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
                found.setdefault(name_of(code), set()).add(f"{Path(path).name} {caller.f_code.co_qualname}")
                return
            caller = caller.f_back

    with watched(note):
        run()
    return found


def reached(folder: Path) -> list[str]:
    """Functions that a fit calls from its hooks."""
    found: dict[str, None] = {}
    fit(folder, with_callbacks=True)  # imports happen before

    def note(code: CodeType) -> None:
        found[name_of(code)] = None

    fit(folder, with_callbacks=True, on_call=note)
    return [name for name in found if "<module>" not in name and name not in ENTRANCES]


def sampled(names: Iterable[str], every: int) -> list[str]:
    """Take about one function in so many, the same ones in every process: a hash of the name decides, not its place."""
    return sorted(name for name in names if zlib.crc32(name.encode()) % every == 0)


def injected(folder: Path, name: str, call: int, error: Callable[[], BaseException]) -> tuple[Result, bool]:
    """Fit with a fault; whether it was reached."""
    seen = [0]

    def fail(code: CodeType) -> None:
        if name_of(code) != name or seen[0] > call:
            return
        seen[0] += 1
        if seen[0] > call:
            raise error()

    result = fit(folder, with_callbacks=True, on_call=fail)
    return result, seen[0] > call


def study(
    names: list[str], errors: list[str], calls: list[int], folder: Path
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Inject each fault; counts by error, and what went wrong in words."""
    plain = fit(folder, with_callbacks=False)
    counts = {error: dict.fromkeys(("faults", "harmed", "left behind"), 0) for error in errors}
    words = []
    for name in names:
        for error in errors:
            for call in calls:
                result, was_reached = injected(folder, name, call, ERRORS[error])
                if not was_reached:
                    continue
                counts[error]["faults"] += 1
                ends = error in ENDS
                is_whole = result.batches == plain.batches and torch.equal(result.weights, plain.weights)
                if not ends and (result.error is not None or not is_whole):
                    counts[error]["harmed"] += 1
                    words.append(f"{error} in call {call} of {name}: {result.error!r}, {result.batches} batches")
                if result.left:
                    counts[error]["left behind"] += 1
                    words.append(f"{error} in call {call} of {name} leaves {', '.join(result.left)}")
                    clear()
    return counts, words


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="take one function in so many only")
    parser.add_argument("--only", default="", help="take functions whose name holds this only")
    parser.add_argument("--errors", default=",".join(ERRORS))
    parser.add_argument("--calls", default="0,1")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for package in ("lightning.pytorch", "lightning_predict", "lightning"):
        logging.getLogger(package).setLevel(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None
    with tempfile.TemporaryDirectory() as place:
        os.environ["LIGHTNING_PREDICT_HISTORY"] = f"{place}/history.jsonl"
        folder = Path(place)
        names = sampled((name for name in reached(folder) if options.only in name), options.every)
        start = time.monotonic()
        calls = [int(call) for call in options.calls.split(",")]
        counts, words = study(names, options.errors.split(","), calls, folder)
    print(f"{len(names)} functions, {time.monotonic() - start:.0f} s\n")
    print("| error | faults | runs harmed | runs that leave something behind |\n|---|---:|---:|---:|")
    for error, count in counts.items():
        print(f"| {error} | {count['faults']:,} | {count['harmed']} | {count['left behind']} |")
    print("", *words, sep="\n")
    if words:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
