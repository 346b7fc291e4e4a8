"""Train under 100 faults of the script's surroundings, with and without our callbacks, and compare bit by bit.

    python -m tests.soak.surroundings [--only WORD]

Each fault changes the clock, the interpreter, the process, the data, the model, the optimizer or another callback. Two
fits run under it: a plain one, and one with both callbacks. Compared are weights, random states, the numbers of
batches, and the error that leaves `fit`. The command prints a line for each fault and the number that harmed.
"""

from __future__ import annotations

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
from torch.utils.data import DataLoader

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import BATCH_SIZE, FEATURES, Rows, Small

SMALL: Final = Small("lightning.pytorch")
LIGHTNING: Final = SMALL.lightning
Pair = namedtuple("Pair", ["rows", "extra"])


class Fault:
    """A fit under a fault: parts that a fault may replace.

    Attributes:
        model: The module.
        loader: The training loader.
        validation: The validation loader; None without.
        callbacks: Callbacks of the script.
        options: Options of the Trainer.
        around: Contexts that the fit runs in.
        fits: Number of fits of the same module.
    """

    def __init__(self) -> None:
        self.model: Any = SMALL.model(validates=True)
        self.loader: Any = SMALL.loader(12)
        self.validation: Any = SMALL.loader(2)
        self.callbacks: list[Any] = []
        self.options: dict[str, Any] = {"max_epochs": 2}
        self.around: list[Any] = []
        self.fits = 1


Inject = Callable[[Fault], None]
FAULTS: Final[dict[str, Inject]] = {}


def fault(name: str) -> Callable[[Inject], Inject]:
    """Register a fault under a name."""

    def register(inject: Inject) -> Inject:
        FAULTS[name] = inject
        return inject

    return register


def around(name: str, make: Callable[[], Any]) -> None:
    """Register a fault that is a context around the fit."""
    FAULTS[name] = lambda run: run.around.append(make())


# Clocks.


def running_backwards(clock: str) -> Any:
    """Replace a clock by one whose readings fall."""
    return mock.patch(clock, partial(next, iter(range(10**9, 0, -1))))


def jumping(clock: str) -> Any:
    """Replace a clock by one that reads anything within 30 years."""
    return mock.patch(clock, partial(random.Random(7).uniform, 0, 1e9))


CLOCKS: Final = ("time.time", "time.monotonic", "time.perf_counter")
for clock in CLOCKS:
    around(f"{clock} stands still", partial(mock.patch, clock, lambda: 1e6))
    around(f"{clock} runs backwards", partial(running_backwards, clock))
    around(f"{clock} jumps by years", partial(jumping, clock))
    around(f"{clock} is not a number", partial(mock.patch, clock, lambda: float("nan")))


@contextlib.contextmanager
def zone(name: str) -> Iterator[None]:
    """Change the time zone of the process."""
    with mock.patch.dict(os.environ, {"TZ": name}):
        time.tzset()
        yield
    time.tzset()


for name in ("Pacific/Apia", "Asia/Kathmandu", "nonsense", ":"):
    around(f"time zone {name}", partial(zone, name))


# The interpreter.


@contextlib.contextmanager
def swapped(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Set a global and restore it."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


around("recursion limit 180", partial(swapped, sys.getrecursionlimit, sys.setrecursionlimit, 180))
around("switch interval 1 µs", partial(swapped, sys.getswitchinterval, sys.setswitchinterval, 1e-6))
around("collector threshold 1", partial(swapped, gc.get_threshold, lambda value: gc.set_threshold(*value), (1, 1, 1)))
around("int digits limit 640", partial(swapped, sys.get_int_max_str_digits, sys.set_int_max_str_digits, 640))
around("audit by sys.setprofile", partial(swapped, sys.getprofile, sys.setprofile, lambda *_: None))
around("sys.settrace that returns None", partial(swapped, sys.gettrace, sys.settrace, lambda *_: None))
around("excepthook raises", partial(mock.patch, "sys.excepthook", lambda *_: 1 / 0))
around("unraisablehook raises", partial(mock.patch, "sys.unraisablehook", lambda *_: None))
around("threading.excepthook is silent", partial(mock.patch, "threading.excepthook", lambda _: None))
around("sys.stdout is None", partial(mock.patch, "sys.stdout", None))
around("sys.stderr is None", partial(mock.patch, "sys.stderr", None))
around("sys.argv is empty", partial(mock.patch, "sys.argv", []))
around("sys.argv holds bytes of no encoding", partial(mock.patch, "sys.argv", ["\udcff", "\0"]))
around("sys.path is empty", partial(mock.patch, "sys.path", []))
around("every warning is an error", lambda: warnings.catch_warnings(action="error"))
around("warnings.warn raises", partial(mock.patch, "warnings.showwarning", lambda *_, **__: 1 / 0))
around("repr of floats is broken", partial(mock.patch, "builtins.print", lambda *_, **__: 1 / 0))
around("json.dumps raises", partial(mock.patch, "json.dumps", mock.Mock(side_effect=TypeError("patched"))))
around("json.loads raises", partial(mock.patch, "json.loads", mock.Mock(side_effect=ValueError("patched"))))
around("uuid4 raises", partial(mock.patch, "uuid.uuid4", mock.Mock(side_effect=OSError("no entropy"))))
around("os.replace raises", partial(mock.patch, "os.replace", mock.Mock(side_effect=OSError("patched"))))
around("os.getpid is constant", partial(mock.patch, "os.getpid", lambda: 1))
around("gethostname raises", partial(mock.patch, "socket.gethostname", mock.Mock(side_effect=OSError("patched"))))
around("platform.node raises", partial(mock.patch, "platform.node", mock.Mock(side_effect=OSError("patched"))))
around("threads cannot join", partial(mock.patch, "threading.Thread.join", lambda *_: None))
around("statistics.fmean raises", partial(mock.patch, "statistics.fmean", mock.Mock(side_effect=ValueError("patched"))))
around("math.isfinite lies", partial(mock.patch, "math.isfinite", lambda _: False))


# The process.


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


around("the working folder is gone", in_lost_folder)
around("a signal each millisecond", alarms)
around("two busy threads", busy_threads)
around("umask 777", partial(swapped, lambda: 0o022, os.umask, 0o777))
around("no environment", lambda: mock.patch.dict(os.environ, {}, clear=True))
for variable in ("TMPDIR", "HOME", "XDG_DATA_HOME", "COLUMNS", "LANG", "TERM", "LIGHTNING_PREDICT_PRICES"):
    around(f"{variable} is nonsense", partial(mock.patch.dict, os.environ, {variable: "/dev/null/\udcff"}))
around(
    "the history is a folder without rights",
    lambda: mock.patch.dict(os.environ, {"LIGHTNING_PREDICT_HISTORY": "/proc"}),
)
around("the root logger raises", partial(mock.patch, "logging.Logger.handle", mock.Mock(side_effect=ZeroDivisionError)))
around("logging is disabled", partial(swapped, lambda: logging.root.manager.disable, logging.disable, logging.CRITICAL))


# torch's own state.

around("default dtype float64", partial(swapped, torch.get_default_dtype, torch.set_default_dtype, torch.float64))
around("anomaly detection", lambda: torch.autograd.detect_anomaly(check_nan=True))
around(
    "deterministic algorithms",
    partial(swapped, torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
)
around("flush of denormals", partial(swapped, lambda: False, torch.set_flush_denormal, True))
around(
    "saved tensors are moved by hooks",
    lambda: torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one),
)
around("saved tensors on the CPU", lambda: torch.autograd.graph.save_on_cpu())
around("version counters are allowed to differ", lambda: torch.autograd.graph.allow_mutation_on_saved_tensors())
around(
    "sharing by file system",
    partial(
        swapped, torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy, "file_system"
    ),
)
around("print options of a user", lambda: contextlib.nullcontext(torch.set_printoptions(precision=1)))
around("multithreaded backward off", lambda: torch.autograd.set_multithreading_enabled(False))


# Data.


class Broken:
    """A part of a batch whose special methods fail."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def collated(make: Callable[[torch.Tensor], Any]) -> Inject:
    """Return a fault whose batches are made by a function, and whose model takes their rows."""

    def inject(run: Fault) -> None:
        run.loader = DataLoader(Rows(12), batch_size=BATCH_SIZE, collate_fn=lambda rows: make(torch.stack(rows)))
        run.validation = None
        plain = run.model.training_step

        def training_step(batch: Any, batch_idx: int) -> Any:
            return plain(ROWS_OF(batch), batch_idx)

        run.model.training_step = training_step

    return inject


def ROWS_OF(batch: Any) -> Any:  # noqa: N802
    """Find the rows in a batch of any form."""
    if isinstance(batch, torch.Tensor):
        return batch.as_subclass(torch.Tensor) if type(batch) is not torch.Tensor else batch
    return ROWS_OF(next(iter(batch.values()))) if isinstance(batch, dict) else ROWS_OF(batch[0])


FAULTS["a batch is a named tuple"] = collated(lambda rows: Pair(rows, None))
FAULTS["a batch holds a broken object"] = collated(lambda rows: (rows, Broken()))
FAULTS["a batch holds itself twice"] = collated(lambda rows: [rows, rows])
FAULTS["a batch has keys of every type"] = collated(lambda rows: {1: rows, None: "x", (2, 3): b"y", 1.5: {4}})
FAULTS["a batch holds a module"] = collated(lambda rows: (rows, nn.Linear(2, 2)))
FAULTS["a batch holds a lock"] = collated(lambda rows: (rows, threading.Lock()))
FAULTS["a batch holds a sparse tensor"] = collated(lambda rows: (rows, torch.eye(3).to_sparse()))
FAULTS["a batch holds a huge integer"] = collated(lambda rows: (rows, 10**5000))
FAULTS["a batch holds NaN and infinity"] = collated(lambda rows: (rows, float("nan"), float("inf")))
FAULTS["a batch is nested 50 deep"] = collated(
    lambda rows: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[rows]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]
)
FAULTS["a batch is a view of a larger tensor"] = collated(lambda rows: torch.cat([rows, rows])[:BATCH_SIZE])
FAULTS["a batch is expanded"] = collated(lambda rows: rows[:1].expand(BATCH_SIZE, FEATURES))
FAULTS["a batch is an array"] = collated(lambda rows: (rows, np.zeros((2, 0), dtype=object)))


@fault("a loader is a generator")
def _(run: Fault) -> None:
    run.loader = [torch.ones(BATCH_SIZE, FEATURES)] * 12


@fault("a loader with one batch")
def _(run: Fault) -> None:
    run.loader = SMALL.loader(1)


@fault("a loader raises in its tenth batch")
def _(run: Fault) -> None:
    def fail(rows: list[torch.Tensor], counted: list[int] = [0]) -> torch.Tensor:  # noqa: B006
        counted[0] += 1
        if counted[0] % 10 == 0:
            raise OSError("a damaged file")
        return torch.stack(rows)

    run.loader = DataLoader(Rows(12), batch_size=BATCH_SIZE, collate_fn=fail)


# Models and optimizers.


def changed(name: str, change: Callable[[Any], object]) -> None:
    """Register a fault that changes the module."""

    def fault_of(run: Fault) -> None:
        change(run.model)

    FAULTS[name] = fault_of


changed("a parameter has no gradient", lambda model: model.register_parameter("unused", nn.Parameter(torch.ones(3))))
changed("a parameter is frozen", lambda model: model.network[0].weight.requires_grad_(False))
changed("weights are tied", lambda model: setattr(model, "again", model.network))
changed("a name has control characters", lambda model: model.add_module("\x1b[2J\n", nn.Identity()))
changed("a buffer is complex", lambda model: model.register_buffer("waves", torch.zeros(3, dtype=torch.complex64)))
changed(
    "a hook of the script reads gradients", lambda model: model.network[0].weight.register_hook(lambda grad: grad * 1.5)
)
changed(
    "a forward hook replaces the output",
    lambda model: model.network[0].register_forward_hook(lambda *args: args[2] * 0.5),
)
changed(
    "a backward hook draws numbers",
    lambda model: model.network[0].register_full_backward_hook(lambda *_: (torch.rand(1), None)[1]),
)
changed("a parametrization", lambda model: nn.utils.parametrizations.weight_norm(model.network[0]))
changed("a spectral norm", lambda model: nn.utils.parametrizations.spectral_norm(model.network[0]))
changed(
    "modules listed by an iterator that fails", lambda model: setattr(model, "named_modules", lambda *_, **__: 1 / 0)
)
changed("the module's repr raises", lambda model: setattr(type(model), "__repr__", lambda _: str(1 / 0)))
changed("modules are doubles", lambda model: model.double() and None)
changed(
    "the module is scripted in part",
    lambda model: setattr(model, "network", torch.jit.trace(model.network.eval(), torch.ones(2, FEATURES)).train()),
)


def with_optimizer(name: str, make: Callable[[Any], Any]) -> None:
    """Register a fault of the optimizer."""
    FAULTS[name] = lambda run: setattr(run.model, "configure_optimizers", lambda: make(run.model))


with_optimizer("LBFGS", lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3))
with_optimizer(
    "an optimizer of two groups", lambda model: torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
)
with_optimizer(
    "a schedule of each step",
    lambda model: (
        [o := torch.optim.SGD(model.parameters(), lr=0.1)],
        [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(o, 0.9), "interval": "step"}],
    ),
)
with_optimizer(
    "a learning rate that is a tensor",
    lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False, capturable=False),
)
with_optimizer("an optimizer without state", lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
with_optimizer("no optimizer", lambda model: None)


# Other callbacks and the Trainer.

HOOKS: Final = (
    "setup",
    "on_fit_start",
    "on_train_start",
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_end",
    "teardown",
)


def add_raising_callback(hook: str, run: Fault) -> None:
    """Add a callback that raises in one hook."""

    def fails(*_: Any, **__: Any) -> None:
        raise KeyError("another's")

    run.callbacks.append(type("Raises", (LIGHTNING.Callback,), {hook: fails})())


for hook in HOOKS:
    FAULTS[f"another callback raises in {hook}"] = partial(add_raising_callback, hook)


@fault("another callback fits another module")
def _(run: Fault) -> None:
    class Fits(LIGHTNING.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_start(self, *_: Any) -> None:
            with tempfile.TemporaryDirectory() as folder:
                SMALL.trainer(Path(folder), max_steps=2).fit(SMALL.model(), SMALL.loader(2))

    run.callbacks.append(Fits())


def with_options(name: str, **options: Any) -> None:
    """Register a fault of the Trainer's options."""
    FAULTS[name] = lambda run: run.options.update(options)


with_options("no batch at all", limit_train_batches=0)
with_options("a tenth of the batches", limit_train_batches=0.1)
with_options("one step", max_steps=1)
with_options("validation within the epoch", val_check_interval=3)
with_options("a large accumulation", accumulate_grad_batches=64)
with_options("gradients clipped to nothing", gradient_clip_val=1e-12)
with_options("overfit one batch", overfit_batches=1)
with_options("weights averaged", callbacks_of="StochasticWeightAveraging")
with_options("a profiler of Lightning", profiler="simple")
with_options("bfloat16", precision="bf16-mixed")
with_options("double precision", precision="64-true")
with_options("anomalies detected", detect_anomaly=True)
FAULTS["three fits of one module"] = lambda run: setattr(run, "fits", 3)


Outcome = dict[str, Any]


def outcome(inject: Inject, ours: Callable[[], list[Any]]) -> Outcome:
    """Train under a fault and return the values to compare."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    run, error, batches = Fault(), None, 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as contexts, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inject(run)
        if run.options.pop("callbacks_of", None):
            run.callbacks.append(LIGHTNING.callbacks.StochasticWeightAveraging(1e-2, swa_epoch_start=1))
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
        batches = run.model.batches_trained
        weights = {name: value.clone() for name, value in run.model.state_dict().items()}
    return {
        "error": error,
        "batches": batches,
        "weights": weights,
        "random": torch.get_rng_state(),
        "python": random.random(),
    }


def differences(one: Outcome, other: Outcome) -> list[str]:
    """Return what differs between two outcomes."""
    found = [name for name in ("error", "batches", "python") if one[name] != other[name]]
    if not torch.equal(one["random"], other["random"]):
        found.append("random")
    names = one["weights"].keys() | other["weights"].keys()
    same = all(
        name in one["weights"]
        and name in other["weights"]
        and torch.equal(one["weights"][name], other["weights"][name])
        for name in names
    )
    return found if same else [*found, "weights"]


def callbacks() -> list[Any]:
    """Return both callbacks."""
    return [RuntimePredictor(["T4", "8xL4"], print_table=False), CostBudget(usd=1e6, usd_per_hour=1)]


def main(faults: dict[str, Inject] = FAULTS) -> None:
    """Try every fault and print those that harm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    chosen = [name for name in faults if parser.parse_args().only in name]
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    outcome(lambda _: None, callbacks)  # imports
    harmed = []
    for name in chosen:
        plain, again = outcome(faults[name], list), outcome(faults[name], list)
        uncertain = set(differences(plain, again))  # of the fault itself
        found = outcome(faults[name], callbacks)
        differs = [one for one in differences(plain, found) if one not in uncertain]
        harmed += [name] if differs else []
        print(
            f"{'HARM' if differs else 'ok':4} {name}: {', '.join(differs) or plain['error'] or 'trained'}", flush=True
        )
    print(f"{len(harmed)} of {len(chosen)} faults harmed")


if __name__ == "__main__":
    main()
