"""Train under faults of the script's surroundings, with and without our callbacks, and compare bit by bit.

    python -m tests.soak.surroundings [--only WORD]

Each fault changes the clock, the interpreter, the process, torch, the data, the model, the optimizer, another callback
or the Trainer. Compared are weights, random states, the numbers of batches, and the error that leaves `fit`. The
command prints a line for each fault and the number that harmed.
"""

import argparse
import contextlib
import gc
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import BATCH_SIZE, FEATURES, Rows, Small

SMALL: Final = Small("lightning.pytorch")
LIGHTNING: Final = SMALL.lightning
Pair = namedtuple("Pair", ["rows", "extra"])


class Fault:
    """A fit under a fault: parts that a fault may replace, and contexts `around` the fit."""

    def __init__(self) -> None:
        self.model: Any = SMALL.model(validates=True)
        self.loader: Any = SMALL.loader(12)
        self.validation: Any = SMALL.loader(2)
        self.callbacks: list[Any] = []
        self.options: dict[str, Any] = {"max_epochs": 2}
        self.around: list[Any] = []
        self.fits = 1


Inject = Callable[[Fault], object]
FAULTS: Final[dict[str, Inject]] = {}


def around(name: str, make: Callable[..., Any], *arguments: Any) -> None:
    """Register a fault that is a context around the fit."""
    FAULTS[name] = lambda run: run.around.append(make(*arguments))


def fails(target: str, error: BaseException) -> None:
    """Register a fault: a function that raises."""
    around(f"{target} raises", mock.patch, target, mock.Mock(side_effect=error))


# Clocks, the interpreter and the process.

CLOCKS: Final[dict[str, Callable[[], Callable[[], float]]]] = {
    "stands still": lambda: lambda: 1e6,
    "runs backwards": lambda: partial(next, iter(range(10**9, 0, -1))),
    "jumps by years": lambda: partial(random.Random(7).uniform, 0, 1e9),
    "is not a number": lambda: lambda: float("nan"),
}
for clock in ("time.time", "time.monotonic", "time.perf_counter"):
    for how, readings in CLOCKS.items():
        around(f"{clock} {how}", lambda clock, readings: mock.patch(clock, readings()), clock, readings)


@contextlib.contextmanager
def zone(name: str) -> Iterator[None]:
    """Change the time zone of the process."""
    with mock.patch.dict(os.environ, {"TZ": name}):
        time.tzset()
        yield
    time.tzset()


@contextlib.contextmanager
def swapped(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Set a global and restore it."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextlib.contextmanager
def in_lost_folder() -> Iterator[None]:
    """Work in a folder that is removed."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """Interrupt system calls by a signal each millisecond."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def busy_threads() -> Iterator[None]:
    """Compete with two threads that compute."""
    ends = threading.Event()
    threads = [threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(ends.is_set, True)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


for name in ("Pacific/Apia", "Asia/Kathmandu", "nonsense", ":"):
    around(f"time zone {name}", zone, name)
around("recursion limit 180", swapped, sys.getrecursionlimit, sys.setrecursionlimit, 180)
around("switch interval 1 µs", swapped, sys.getswitchinterval, sys.setswitchinterval, 1e-6)
around("collector threshold 1", swapped, gc.get_threshold, lambda value: gc.set_threshold(*value), (1, 1, 1))
around("int digits limit 640", swapped, sys.get_int_max_str_digits, sys.set_int_max_str_digits, 640)
around("audit by sys.setprofile", swapped, sys.getprofile, sys.setprofile, lambda *_: None)
around("sys.settrace that returns None", swapped, sys.gettrace, sys.settrace, lambda *_: None)
around("umask 777", swapped, lambda: 0o022, os.umask, 0o777)
around("logging is disabled", swapped, lambda: logging.root.manager.disable, logging.disable, logging.CRITICAL)
around("every warning is an error", lambda: warnings.catch_warnings(action="error"))
around("the working folder is gone", in_lost_folder)
around("a signal each millisecond", alarms)
around("two busy threads", busy_threads)
around("no environment", lambda: mock.patch.dict(os.environ, {}, clear=True))
around("the history is a folder without rights", mock.patch.dict, os.environ, {"LIGHTNING_PREDICT_HISTORY": "/proc"})
for name in ("TMPDIR", "HOME", "XDG_DATA_HOME", "COLUMNS", "LANG", "TERM", "LIGHTNING_PREDICT_PRICES"):
    around(f"{name} is nonsense", mock.patch.dict, os.environ, {name: "/dev/null/\udcff"})
REPLACED: Final[dict[str, Any]] = {
    "sys.stdout": None,
    "sys.stderr": None,
    "sys.argv": ["\udcff", "\0"],
    "sys.path": [],
    "sys.excepthook": lambda *_: 1 / 0,
    "warnings.showwarning": lambda *_, **__: 1 / 0,
    "builtins.print": lambda *_, **__: 1 / 0,
    "os.getpid": lambda: 1,
    "threading.Thread.join": lambda *_: None,
    "math.isfinite": lambda _: False,
}
for name, value in REPLACED.items():
    around(f"{name} is replaced", mock.patch, name, value)
for name, error in {
    "json.dumps": TypeError("patched"),
    "json.loads": ValueError("patched"),
    "uuid.uuid4": OSError("no entropy"),
    "socket.gethostname": OSError("patched"),
    "platform.node": OSError("patched"),
    "statistics.fmean": ValueError("patched"),
    "math.log": OverflowError("patched"),
    "logging.Logger.handle": ZeroDivisionError(),
    "os.replace": OSError("patched"),
    "os.fsync": PermissionError(1, "patched"),
    "os.fork": BlockingIOError(11, "Resource temporarily unavailable"),
    "pathlib.Path.mkdir": OSError(30, "Read-only file system"),
    "pathlib.Path.exists": PermissionError(13, "patched"),
    "pathlib.Path.read_text": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "tempfile.mkstemp": OSError(28, "No space left on device"),
    "socket.socket": PermissionError(1, "patched"),
    "subprocess.Popen": PermissionError(1, "patched"),
}.items():
    fails(name, error)

# Settings of torch.

around("default dtype float64", swapped, torch.get_default_dtype, torch.set_default_dtype, torch.float64)
around("anomaly detection", lambda: torch.autograd.detect_anomaly(check_nan=True))
deterministic = (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms)
around("deterministic algorithms", swapped, *deterministic, True)
around("saved tensors on the CPU", lambda: torch.autograd.graph.save_on_cpu())
around("mutation of saved tensors", lambda: torch.autograd.graph.allow_mutation_on_saved_tensors())
around("multithreaded backward off", lambda: torch.autograd.set_multithreading_enabled(False))
around("three threads", swapped, torch.get_num_threads, torch.set_num_threads, 3)
around("a default device", lambda: torch.device("cpu"))
around("an autocast of the script", lambda: torch.autocast("cpu", torch.bfloat16))
around("a profiler range of the script", lambda: torch.profiler.record_function("mine"))

# Data.


class Broken:
    """A part of a batch whose special methods fail."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def rows_of(batch: Any) -> Any:
    """Find the rows in a batch of any form."""
    if isinstance(batch, torch.Tensor):
        return batch.as_subclass(torch.Tensor) if type(batch) is not torch.Tensor else batch
    return rows_of(next(iter(batch.values()))) if isinstance(batch, dict) else rows_of(batch[0])


def add_batches(name: str, make: Callable[[torch.Tensor], Any]) -> None:
    """Register a fault whose batches are made by a function, and whose model takes their rows."""

    def inject(run: Fault) -> None:
        run.loader = DataLoader(Rows(12), batch_size=BATCH_SIZE, collate_fn=lambda rows: make(torch.stack(rows)))
        run.validation = None
        plain = run.model.training_step
        run.model.training_step = lambda batch, batch_idx: plain(rows_of(batch), batch_idx)

    FAULTS[f"a batch {name}"] = inject


def nested(rows: torch.Tensor, depth: int = 30) -> Any:
    """Put rows into lists in lists."""
    return rows if depth == 0 else [nested(rows, depth - 1)]


class WrongLength(IterableDataset[torch.Tensor]):
    """Rows with a wrong length."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def __iter__(self) -> Any:
        return iter(Rows(12).data)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("no length")
        return self.length


def damaged_file(rows: list[torch.Tensor], counted: list[int] = [0]) -> torch.Tensor:  # noqa: B006
    """Raise in each tenth batch."""
    counted[0] += 1
    if counted[0] % 10 == 0:
        raise OSError("a damaged file")
    return torch.stack(rows)


add_batches("is a named tuple", lambda rows: Pair(rows, None))
add_batches("holds a broken object", lambda rows: (rows, Broken()))
add_batches("has keys of every type", lambda rows: {1: rows, None: "x", (2, 3): b"y", 1.5: {4}})
add_batches("holds a module", lambda rows: (rows, nn.Linear(2, 2)))
add_batches("holds a lock", lambda rows: (rows, threading.Lock()))
add_batches("holds a sparse tensor", lambda rows: (rows, torch.eye(3).to_sparse()))
add_batches("holds a huge integer", lambda rows: (rows, 10**5000))
add_batches("holds NaN and infinity", lambda rows: (rows, float("nan"), float("inf")))
add_batches("is nested 30 deep", nested)
add_batches("is expanded", lambda rows: rows[:1].expand(BATCH_SIZE, FEATURES))
add_batches("is an array", lambda rows: (rows, np.zeros((2, 0), dtype=object)))
LOADERS: Final[dict[str, Callable[[], Any]]] = {
    "is a list": lambda: [torch.ones(BATCH_SIZE, FEATURES)] * 12,
    "has one batch": lambda: SMALL.loader(1),
    "has batches of growing size": lambda: [torch.ones(size, FEATURES) for size in range(1, 13)],
    "raises in its tenth batch": lambda: DataLoader(Rows(12), batch_size=BATCH_SIZE, collate_fn=damaged_file),
    "is longer than it says": lambda: DataLoader(WrongLength(20), batch_size=BATCH_SIZE),
    "is shorter than it says": lambda: DataLoader(WrongLength(999), batch_size=BATCH_SIZE),
    "has a length that raises": lambda: DataLoader(WrongLength(None), batch_size=BATCH_SIZE),
    "has two worker processes": lambda: DataLoader(Rows(12), batch_size=BATCH_SIZE, num_workers=2),
}
for name, make_loader in LOADERS.items():
    FAULTS[f"a loader {name}"] = lambda run, make=make_loader: setattr(run, "loader", make())  # type: ignore[misc]

# Models, optimizers and training steps.

CHANGES: Final[dict[str, Callable[[Any], object]]] = {
    "a parameter has no gradient": lambda model: model.register_parameter("unused", nn.Parameter(torch.ones(3))),
    "a parameter is frozen": lambda model: model.network[0].weight.requires_grad_(False),
    "weights are tied": lambda model: setattr(model, "again", model.network),
    "a name has control characters": lambda model: model.add_module("\x1b[2J\n", nn.Identity()),
    "a hook changes gradients": lambda model: model.network[0].weight.register_hook(lambda grad: grad * 1.5),
    "a hook replaces the output": lambda model: model.network[0].register_forward_hook(lambda *args: args[2] * 0.5),
    "a hook draws numbers": lambda model: model.network[0].register_full_backward_hook(
        lambda *_: (torch.rand(1), None)[1]
    ),
    "a spectral norm": lambda model: nn.utils.parametrizations.spectral_norm(model.network[0]),
    "listing modules fails": lambda model: setattr(model, "named_modules", lambda *_, **__: 1 / 0),
    "the module's repr raises": lambda model: setattr(type(model), "__repr__", lambda _: str(1 / 0)),
    "modules are doubles": lambda model: model.double(),
    "the module is traced in part": lambda model: setattr(
        model, "network", torch.jit.trace(model.network.eval(), torch.ones(2, FEATURES)).train()
    ),
}
for name, change in CHANGES.items():
    FAULTS[name] = lambda run, change=change: change(run.model)  # type: ignore[misc]


def step_schedule(model: Any) -> Any:
    """Return an optimizer with a schedule of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]


OPTIMIZERS: Final[dict[str, Callable[[Any], Any]]] = {
    "LBFGS": lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3),
    "an optimizer of two groups": lambda model: torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1),
    "a schedule of each step": step_schedule,
    "an optimizer without state": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "no optimizer": lambda model: None,
}
for name, make in OPTIMIZERS.items():
    FAULTS[name] = lambda run, make=make: setattr(  # type: ignore[misc]
        run.model, "configure_optimizers", lambda: make(run.model)
    )


def in_thread(work: Callable[[], Any]) -> Any:
    """Run a function in a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


STEPS: Final[dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "returns None each third time": lambda plain: lambda batch, index: None if index % 3 == 2 else plain(batch, index),
    "returns a dictionary": lambda plain: lambda *batch: {"loss": plain(*batch), "extra": object()},
    "has a loss that is not a number": lambda plain: lambda *batch: plain(*batch) * float("nan"),
    "runs in another thread": lambda plain: lambda *batch: in_thread(lambda: plain(*batch)),
    "uses vmap": lambda plain: lambda *batch: plain(*batch) + torch.func.vmap(torch.sum)(batch[0]).mean(),
}
for name, change_step in STEPS.items():
    FAULTS[f"a step {name}"] = lambda run, change=change_step: setattr(  # type: ignore[misc]
        run.model, "training_step", change(run.model.training_step)
    )

# Other callbacks, loggers and the Trainer.


def acts(hook: str, act: Callable[[Any, Any, int], object]) -> Inject:
    """Return a fault: another callback that does something to the Trainer or the module in a hook."""

    def inject(run: Fault) -> None:
        calls = [0]

        def method(_: Any, trainer: Any, module: Any, *__: Any, **___: Any) -> object:
            calls[0] += 1
            return act(trainer, module, calls[0])

        run.callbacks.append(type("Acts", (LIGHTNING.Callback,), {hook: method})())

    return inject


def raising(error: BaseException, at: int = 6) -> Callable[[Any, Any, int], None]:
    """Return an act that raises at a call."""

    def act(_: Any, __: Any, call: int) -> None:
        if call == at:
            raise error

    return act


HOOKS: Final = (
    "setup on_fit_start on_train_start on_train_batch_start on_before_backward on_after_backward "
    "on_before_optimizer_step on_train_batch_end on_validation_start on_validation_batch_end on_validation_end "
    "on_train_epoch_end on_train_end teardown"
).split()
for hook in HOOKS:
    FAULTS[f"another callback raises in {hook}"] = acts(hook, raising(KeyError("another's"), at=1))
for raised_error in (KeyboardInterrupt(), SystemExit(3), GeneratorExit(), StopIteration(4), MemoryError()):
    FAULTS[f"{type(raised_error).__name__} leaves the backward pass"] = acts("on_after_backward", raising(raised_error))


def fits_another(*_: Any) -> None:
    """Fit another module."""
    with tempfile.TemporaryDirectory() as folder:
        SMALL.trainer(Path(folder), max_steps=2).fit(SMALL.model(), SMALL.loader(2))


def freeze_alternately(_: Any, module: Any, call: int) -> None:
    """Freeze a layer in each second batch."""
    module.network[0].requires_grad_(call % 2 == 0)


FAULTS["another callback fits another module"] = acts("on_train_epoch_start", fits_another)
FAULTS["the script stops the fit"] = acts("on_train_batch_end", lambda run, _, __: setattr(run, "should_stop", True))
FAULTS["an epoch is skipped"] = acts("on_train_batch_start", lambda _, __, call: -1 if call == 5 else None)
FAULTS["a layer is frozen"] = acts("on_train_batch_end", freeze_alternately)
FAULTS["gradients are cleared"] = acts("on_after_backward", lambda _, module, __: module.zero_grad(set_to_none=True))
FAULTS["callbacks are shuffled"] = acts("on_train_epoch_start", lambda trainer, _, __: trainer.callbacks.reverse())


def add_raising_logger(method: str, run: Fault) -> None:
    """Add a logger with a method that raises."""

    def broken(*_: Any, **__: Any) -> None:
        raise ConnectionError("the server is gone")

    attribute: Any = property(broken) if method in ("save_dir", "name", "version") else broken
    run.options["logger"] = type("Raises", (LIGHTNING.loggers.logger.DummyLogger,), {method: attribute})()


for method in ("log_hyperparams", "save_dir", "name", "version", "finalize"):
    FAULTS[f"a logger raises in {method}"] = partial(add_raising_logger, method)
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "no batch at all": {"limit_train_batches": 0},
    "a tenth of the batches": {"limit_train_batches": 0.1},
    "one step": {"max_steps": 1},
    "validation within the epoch": {"val_check_interval": 3},
    "a large accumulation": {"accumulate_grad_batches": 64},
    "gradients clipped to nothing": {"gradient_clip_val": 1e-12},
    "overfit one batch": {"overfit_batches": 1},
    "a profiler of Lightning": {"profiler": "simple"},
    "bfloat16": {"precision": "bf16-mixed"},
    "double precision": {"precision": "64-true"},
    "a maximum time": {"max_time": "00:00:00:30"},
}
for name, options in OPTIONS.items():
    FAULTS[name] = lambda run, options=options: run.options.update(options)  # type: ignore[misc]
FAULTS["three fits of one module"] = lambda run: setattr(run, "fits", 3)

Outcome = dict[str, Any]


def outcome(inject: Inject, ours: Callable[[], list[Any]]) -> Outcome:
    """Train under a fault and return the values to compare."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    run, error = Fault(), None
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as contexts, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inject(run)
        trainers = [
            SMALL.trainer(Path(folder), **run.options, callbacks=[*run.callbacks, *ours()]) for _ in range(run.fits)
        ]
        kept = sys.stdout, sys.stderr
        try:
            for context in run.around:
                contexts.enter_context(context)
            for trainer in trainers:
                trainer.fit(run.model, run.loader, run.validation)
        except BaseException as raised:
            error = type(raised).__name__
        finally:
            contexts.close()
            sys.stdout, sys.stderr = kept
    weights = {name: value.clone() for name, value in run.model.state_dict().items()}
    return {
        "error": error,
        "batches": run.model.batches_trained,
        "python": random.random(),
        "random": {"torch": torch.get_rng_state()},
        "weights": weights,
    }


def differences(one: Outcome, other: Outcome) -> list[str]:
    """Return what differs between two outcomes."""

    def is_equal(name: str) -> bool:
        first, second = one[name], other[name]
        if not isinstance(first, dict):
            return bool(first == second)
        return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)

    return [name for name in one if not is_equal(name)]


def main() -> None:
    """Try every fault and print those that harm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    only = parser.parse_args().only
    chosen = [name for name in FAULTS if only in name]
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)

    def callbacks() -> list[Any]:
        return [RuntimePredictor(["T4", "8xL4"], print_table=False), CostBudget(usd=1e6, usd_per_hour=1)]

    outcome(lambda _: None, callbacks)  # imports
    harmed = 0
    for name in chosen:
        plain, again = outcome(FAULTS[name], list), outcome(FAULTS[name], list)
        uncertain = set(differences(plain, again))  # of the fault itself
        differs = set(differences(plain, outcome(FAULTS[name], callbacks))) - uncertain
        harmed += bool(differs)
        ending = ", ".join(sorted(differs)) or plain["error"] or "trained"
        print(f"{'HARM' if differs else 'ok':4} {name}: {ending}", flush=True)
    print(f"{harmed} of {len(chosen)} faults harmed")


if __name__ == "__main__":
    main()
