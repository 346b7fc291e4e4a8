"""Train under 100 more faults, of kinds that `tests.soak.surroundings` lacks, and compare bit by bit.

    python -m tests.soak.more_surroundings [--only WORD]

These are limits of the process, system calls that fail, settings of torch and numpy, attributes of the Trainer that
raise, loggers, progress bars, loaders whose length changes or is wrong, steps that skip, odd exceptions, and callbacks
of others that change the run within hooks.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import copy
import gc
import itertools
import locale
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from tests.callbacks.small import BATCH_SIZE, FEATURES, Rows, network
from tests.soak import surroundings
from tests.soak.surroundings import LIGHTNING, Fault, Inject, swapped

FAULTS: Final[dict[str, Inject]] = {}


def after(action: Callable[[], object]) -> contextlib.ExitStack:
    """Do something that stays for the rest of the process, and return an empty context."""
    action()
    return contextlib.ExitStack()


def around(name: str, make: Callable[[], Any]) -> None:
    """Register a fault that is a context around the fit."""
    FAULTS[name] = lambda run: run.around.append(make())


def fails(target: str, error: BaseException) -> Callable[[], Any]:
    """Return a patch that makes a function raise."""
    return partial(mock.patch, target, mock.Mock(side_effect=error))


# Limits of the process, and system calls that fail.


@contextlib.contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    """Lower a limit of the process."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


around("files of at most a byte", partial(limited, resource.RLIMIT_FSIZE, 1))
around("no core files", partial(limited, resource.RLIMIT_CORE, 0))
around("no more descriptors", lambda: limited(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd"))))
around("no locked memory", partial(limited, resource.RLIMIT_MEMLOCK, 0))
for name in (
    "stat",
    "listdir",
    "makedirs",
    "unlink",
    "kill",
    "urandom",
    "fsync",
    "getppid",
    "cpu_count",
    "sched_yield",
):
    around(f"os.{name} raises", fails(f"os.{name}", PermissionError(1, "patched")))
around("Path.mkdir raises", fails("pathlib.Path.mkdir", OSError(30, "Read-only file system")))
around("Path.exists raises", fails("pathlib.Path.exists", PermissionError(13, "patched")))
around("mkstemp raises", fails("tempfile.mkstemp", OSError(28, "No space left on device")))
around("secrets raises", fails("secrets.token_hex", OSError("no entropy")))
around("getuser raises", fails("getpass.getuser", KeyError("no such user")))
around("fork is refused", fails("os.fork", BlockingIOError(11, "Resource temporarily unavailable")))
around("sockets are refused", fails("socket.socket", PermissionError(1, "patched")))
around("subprocesses are refused", fails("subprocess.Popen", PermissionError(1, "patched")))


@contextlib.contextmanager
def slow_disk() -> Iterator[None]:
    """Let every `open` of a file take 20 ms."""
    plain = builtins.open

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.02)
        return plain(*args, **options)

    with mock.patch("builtins.open", slow):
        yield


around("each open takes 20 ms", slow_disk)
around("open of text is refused", fails("pathlib.Path.read_text", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")))


@contextlib.contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    """Install a signal handler."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
    around(f"{number.name} is ignored", partial(handled, number, signal.SIG_IGN))


# Settings of torch, numpy and Python.

around("numpy raises on every error", lambda: np.errstate(all="raise"))
around("gc is disabled", partial(after, gc.disable))
around("everything is frozen in gc", partial(after, gc.freeze))
around("a legacy numpy seed", lambda: contextlib.ExitStack() if np.random.seed(3) is None else None)
around("decimal commas", partial(swapped, cast("Any", locale.setlocale), lambda _: None, locale.LC_ALL))
around(
    "lower matmul precision",
    partial(swapped, torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
)
around("three threads", partial(swapped, torch.get_num_threads, torch.set_num_threads, 3))
around("a default device", lambda: torch.device("cpu"))
around("an autocast of the script", lambda: torch.autocast("cpu", torch.bfloat16))
around("a user's no_grad and enable_grad", lambda: torch.set_grad_enabled(True))
around("a profiler range of the script", lambda: torch.profiler.record_function("mine"))
around("warn always", partial(swapped, torch.is_warn_always_enabled, torch.set_warn_always, True))
around("mkldnn off", lambda: torch.backends.mkldnn.flags(enabled=False))
around("forward hooks of all modules", lambda: GlobalHook(torch.nn.modules.module.register_module_forward_hook))
around("pre-hooks of all modules", lambda: GlobalHook(torch.nn.modules.module.register_module_forward_pre_hook))
around("a hook that draws numbers", lambda: GlobalHook(nn.modules.module.register_module_forward_hook, draws=True))
around(
    "sys.modules has None",
    partial(mock.patch.dict, sys.modules, {"polars": None, "pandas": None, "jsonargparse": None}),
)
around("a module without a file", partial(mock.patch.dict, sys.modules, {"__main__": type(sys)("__main__")}))
around("sys.stdout without a file number", partial(mock.patch, "sys.stdout", mock.Mock(spec=["write", "flush"])))
around("sys.stdout of ASCII", lambda: mock.patch("sys.stdout", open(os.devnull, "w", encoding="ascii")))  # noqa: SIM115
around("int has a large limit", partial(swapped, sys.get_int_max_str_digits, sys.set_int_max_str_digits, 0))
around("an audit hook", partial(after, partial(sys.addaudithook, lambda *_: None)))
around("a small stack of threads", partial(swapped, threading.stack_size, threading.stack_size, 2**18))
for function in ("log", "exp", "ceil", "hypot", "fsum", "inf"):
    around(f"math.{function} is broken", partial(mock.patch, f"math.{function}", mock.Mock(side_effect=OverflowError)))


class GlobalHook:
    """A hook of every module."""

    def __init__(self, register: Callable[..., Any], *, draws: bool = False) -> None:
        self.register, self.draws = register, draws

    def __enter__(self) -> None:
        self.handle = self.register(lambda *_: (torch.rand(1), None)[1] if self.draws else None)

    def __exit__(self, *_: object) -> None:
        self.handle.remove()


# The Trainer's parts.


def logger(method: str) -> Inject:
    """Return a fault: a logger with a method that raises."""

    def inject(run: Fault) -> None:
        class Raises(LIGHTNING.loggers.logger.DummyLogger):  # type: ignore[misc]
            pass

        def broken(*_: Any, **__: Any) -> None:
            raise ConnectionError("the server is gone")

        setattr(Raises, method, property(broken) if method in ("save_dir", "name", "version") else broken)
        run.options["logger"] = Raises()

    return inject


for method in (
    "log_hyperparams",
    "save_dir",
    "name",
    "version",
    "experiment",
    "finalize",
    "log_graph",
    "after_save_checkpoint",
):
    FAULTS[f"a logger raises in {method}"] = logger(method)


def acts(hook: str, act: Callable[[Any, Any, list[int]], object]) -> Inject:
    """Return a fault: another callback that does something to the Trainer or the module in a hook."""

    def inject(run: Fault) -> None:
        calls = [0]

        def method(_: Any, trainer: Any, module: Any, *__: Any, **___: Any) -> object:
            calls[0] += 1
            return act(trainer, module, calls)

        run.callbacks.append(type("Acts", (LIGHTNING.Callback,), {hook: method})())

    return inject


def raising(error: BaseException, at: int = 6) -> Callable[[Any, Any, list[int]], None]:
    """Return an act that raises at a call."""

    def act(_: Any, __: Any, calls: list[int]) -> None:
        if calls[0] == at:
            raise error

    return act


class UnprintableError(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Foreign(BaseException):
    """An error that is no Exception."""


for error in (
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    StopIteration(4),
    MemoryError(),
    RecursionError(),
    asyncio.CancelledError(),
    UnprintableError(),
    Foreign("x"),
    AssertionError(),
    torch.cuda.OutOfMemoryError("CUDA out of memory"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
):
    FAULTS[f"{type(error).__name__} leaves another callback"] = acts("on_train_batch_end", raising(error))
    FAULTS[f"{type(error).__name__} leaves the backward pass"] = acts("on_after_backward", raising(error))


def _set(name: str, value: Any) -> Callable[[Any, Any, list[int]], object]:
    return lambda trainer, _, calls: setattr(trainer, name, value) if calls[0] == 5 else None


FAULTS["the script stops the fit"] = acts("on_train_batch_end", _set("should_stop", True))
FAULTS["an epoch is skipped"] = acts("on_train_batch_start", lambda _, __, calls: -1 if calls[0] == 5 else None)
FAULTS["accumulation changes"] = acts("on_train_batch_end", _set("accumulate_grad_batches", 3))
FAULTS["weights are changed"] = acts(
    "on_train_batch_end", lambda _, module, __: module.network[0].weight.data.mul_(0.9)
)
FAULTS["the optimizer is replaced"] = acts(
    "on_train_epoch_start",
    lambda trainer, module, _: trainer.strategy.__setattr__("optimizers", [torch.optim.SGD(module.parameters(), 0.1)]),
)
FAULTS["a layer is added"] = acts(
    "on_train_epoch_start", lambda _, module, calls: module.add_module(f"late{calls[0]}", nn.Linear(2, 2))
)
FAULTS["a layer is replaced"] = acts(
    "on_train_epoch_start", lambda _, module, calls: setattr(module, "network", network()) if calls[0] == 2 else None
)
FAULTS["a layer is frozen"] = acts(
    "on_train_batch_end", lambda _, module, calls: module.network[0].requires_grad_(calls[0] % 2 == 0)
)
FAULTS["gradients are cleared"] = acts("on_after_backward", lambda _, module, __: module.zero_grad(set_to_none=True))
FAULTS["the module is in evaluation"] = acts("on_train_batch_start", lambda _, module, __: module.eval() and None)
FAULTS["callbacks are shuffled"] = acts("on_train_epoch_start", lambda trainer, _, __: trainer.callbacks.reverse())
FAULTS["callbacks are copied"] = acts(
    "on_train_batch_end", lambda trainer, _, __: copy.deepcopy(ours_of(trainer)) and None
)
FAULTS["callbacks are pickled"] = acts(
    "on_train_batch_end", lambda trainer, _, __: pickle.dumps(ours_of(trainer)) and None
)
FAULTS["our state is loaded within a batch"] = acts(
    "on_train_batch_end",
    lambda trainer, _, __: [one.load_state_dict(one.state_dict()) for one in ours_of(trainer)] and None,
)
FAULTS["our callbacks are removed"] = acts(
    "on_train_epoch_end",
    lambda trainer, _, __: [trainer.callbacks.remove(one) for one in ours_of(trainer)] and None,
)
FAULTS["a checkpoint in each batch"] = acts(
    "on_train_batch_end", lambda trainer, _, __: trainer.save_checkpoint(Path(trainer.default_root_dir) / "a.ckpt")
)
FAULTS["the folder disappears"] = acts(
    "on_train_batch_end",
    lambda trainer, _, __: __import__("shutil").rmtree(trainer.default_root_dir, ignore_errors=True),
)
FAULTS["a thread draws numbers"] = acts(
    "on_train_epoch_start",
    lambda _, __, ___: threading.Thread(target=lambda: np.random.default_rng().random(9)).start(),
)
FAULTS["objects are collected in each batch"] = acts("on_train_batch_start", lambda _, __, ___: gc.collect() and None)


def ours_of(trainer: Any) -> list[Any]:
    """Return our callbacks of a Trainer."""
    return [one for one in trainer.callbacks if type(one).__module__.startswith("lightning_predict")]


# Loaders and steps.


def loads(make: Callable[[], Any]) -> Inject:
    """Return a fault of the training loader."""
    return lambda run: setattr(run, "loader", make())


LENGTHS: Final = itertools.cycle((40, 60))


class WrongLength(IterableDataset[torch.Tensor]):
    """Rows with a wrong length."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __iter__(self) -> Any:
        return iter(Rows(12).data)

    def __len__(self) -> int:
        return self.length() if callable(self.length) else self.length  # type: ignore[no-any-return]


def broken_length() -> int:
    """Raise, as the length of some data sets does."""
    raise TypeError("no length")


FAULTS["a data set that is longer than it says"] = loads(lambda: DataLoader(WrongLength(20), batch_size=BATCH_SIZE))
FAULTS["a data set that is shorter than it says"] = loads(lambda: DataLoader(WrongLength(999), batch_size=BATCH_SIZE))
FAULTS["a length that changes"] = loads(lambda: DataLoader(WrongLength(lambda: next(LENGTHS)), batch_size=BATCH_SIZE))
FAULTS["a length that raises"] = loads(lambda: DataLoader(WrongLength(broken_length), batch_size=BATCH_SIZE))
FAULTS["a last batch of one row"] = loads(lambda: DataLoader(cast("Any", Rows(12).data[:45]), batch_size=BATCH_SIZE))
FAULTS["no automatic batches"] = loads(lambda: DataLoader(Rows(12), batch_size=None))
FAULTS["a sampler with weights"] = loads(
    lambda: DataLoader(Rows(12), batch_size=BATCH_SIZE, sampler=WeightedRandomSampler([1.0] * 48, 48))
)
FAULTS["two worker processes"] = loads(lambda: DataLoader(Rows(12), batch_size=BATCH_SIZE, num_workers=2))
FAULTS["persistent workers"] = loads(
    lambda: DataLoader(Rows(12), batch_size=BATCH_SIZE, num_workers=1, persistent_workers=True)
)
FAULTS["batches of growing size"] = loads(lambda: [torch.ones(size, FEATURES) for size in range(1, 13)])
FAULTS["a loader that is a tuple"] = loads(lambda: tuple(torch.ones(BATCH_SIZE, FEATURES) for _ in range(12)))


def steps(make: Callable[[Any, Callable[..., Any]], Any]) -> Inject:
    """Return a fault of the training step, made from the module and its step."""

    def inject(run: Fault) -> None:
        run.model.training_step = make(run.model, run.model.training_step)

    return inject


FAULTS["each third step returns None"] = steps(
    lambda model, plain: lambda batch, batch_idx: None if batch_idx % 3 == 2 else plain(batch, batch_idx)
)
FAULTS["a step returns a dictionary"] = steps(
    lambda model, plain: lambda batch, batch_idx: {"loss": plain(batch, batch_idx), "extra": object()}
)
FAULTS["a loss that is not a number"] = steps(lambda model, plain: lambda *batch: plain(*batch) * float("nan"))
FAULTS["a step that is recursive"] = steps(lambda model, plain: lambda *batch: nested(60, lambda: plain(*batch)))
FAULTS["a step in inference mode first"] = steps(
    lambda model, plain: lambda *batch: (peeked(model, batch[0]), plain(*batch))[1]
)
FAULTS["a step in another thread"] = steps(lambda model, plain: lambda *batch: in_thread(lambda: plain(*batch)))
FAULTS["a step with its own gradient"] = steps(
    lambda model, plain: lambda *batch: (torch.autograd.grad(plain(*batch), model.network[0].weight), plain(*batch))[1]
)
FAULTS["a step with vmap"] = steps(
    lambda model, plain: lambda *batch: plain(*batch) + torch.func.vmap(torch.sum)(batch[0]).mean()
)
FAULTS["a step that clears the caches"] = steps(lambda model, plain: lambda *batch: (gc.collect(), plain(*batch))[1])
FAULTS["a step that forks"] = steps(lambda model, plain: lambda *batch: (forked(), plain(*batch))[1])


def nested(depth: int, last: Callable[[], Any]) -> Any:
    """Call a function within many frames."""
    return last() if depth == 0 else nested(depth - 1, last)


def peeked(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """Run the network in inference mode."""
    with torch.inference_mode():
        return model.network(rows)  # type: ignore[no-any-return]


def in_thread(work: Callable[[], Any]) -> Any:
    """Run a function in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def forked() -> int:
    """Fork a process that ends at once; return the process number."""
    number = os.fork()
    if number == 0:
        os._exit(0)
    os.waitpid(number, 0)
    return number


for option in (
    {"max_time": "00:00:00:30"},
    {"min_epochs": 2},
    {"num_sanity_val_steps": 2},
    {"check_val_every_n_epoch": 2},
    {"reload_dataloaders_every_n_epochs": 1},
    {"enable_progress_bar": True},
    {"enable_model_summary": True},
    {"inference_mode": False},
    {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
    {"limit_val_batches": 0},
    {"log_every_n_steps": 10**9},
):
    FAULTS[f"Trainer({', '.join(option)})"] = partial(lambda option, run: run.options.update(option), option)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as history:
        os.environ["LIGHTNING_PREDICT_HISTORY"] = str(Path(history, "history.jsonl"))
        surroundings.main(FAULTS)
