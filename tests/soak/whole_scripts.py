"""Run short scripts with and without our callbacks, each in a process of its own, and compare end and weights.

    python -m tests.soak.whole_scripts [--only WORD]

The scripts resume, nest, interleave, copy and interrupt Trainers, and their surroundings are odd: folders that are
files, links in circles, damaged ledgers and histories, clocks that step, signals within hooks. Compared are the exit
code, weights, random numbers and the number of batches.
"""

import argparse
import copy
import hashlib
import json
import logging
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_predict.callbacks import CostBudget, RuntimePredictor
from tests.callbacks.small import BATCH_SIZE, Rows, Small
from tests.processes import Ran, run

SMALL: Final = Small("lightning.pytorch")
Ours = Callable[[], list[Any]]
Script = Callable[[Path, Ours], list[Any]]
SCRIPTS: Final[dict[str, Script]] = {}

BATCHES: Final = 12


def script(name: str) -> Callable[[Script], Script]:
    """Register a script, which returns its modules."""

    def register(made: Script) -> Script:
        SCRIPTS[name] = made
        return made

    return register


def fit(folder: Path, callbacks: list[Any], *, model: Any = None, loader: Any = None, **options: Any) -> Any:
    """Fit two epochs, and return the Trainer."""
    path = options.pop("ckpt_path", None)
    trainer = SMALL.trainer(folder, **({"max_epochs": 2, "callbacks": callbacks} | options))
    trainer.fit(model or SMALL.model(), loader or SMALL.loader(BATCHES), ckpt_path=path)
    return trainer


def acting(hook: str, act: Callable[..., object], *, at: int = 5) -> Any:
    """Return a callback that acts once, at a call of a hook."""
    calls = [0]

    def method(_: Any, trainer: Any, *__: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            act(trainer)

    return type("Acting", (SMALL.lightning.Callback,), {hook: method})()


def modules_of(*trainers: Any) -> list[Any]:
    """Return the modules of Trainers."""
    return [trainer.lightning_module for trainer in trainers]


# Trainers within, beside and after one another.


@script("a Trainer within a hook of another")
def _(folder: Path, ours: Ours) -> list[Any]:
    inner: list[Any] = []
    nests = acting("on_train_epoch_start", lambda _: inner.append(fit(folder / "inner", ours())), at=2)
    return modules_of(fit(folder, [*ours(), nests]), *inner)


@script("the same callbacks in a Trainer within a hook of another")
def _(folder: Path, ours: Ours) -> list[Any]:
    shared, inner = ours(), list[Any]()
    nests = acting("on_train_batch_end", lambda _: inner.append(fit(folder / "inner", shared)))
    return modules_of(fit(folder, [*shared, nests]), *inner)


@script("two Trainers in two threads")
def _(folder: Path, ours: Ours) -> list[Any]:
    fitted: dict[int, Any] = {}
    models = [SMALL.model(seed=seed) for seed in (0, 1)]
    for model in models:  # without draws, the order of the threads does not matter
        model.network[1] = nn.Identity()

    def train(number: int) -> None:
        fitted[number] = fit(folder / str(number), ours(), model=models[number])

    threads = [threading.Thread(target=train, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.manual_seed(11)  # Lightning restores the random state after each sanity check, so draws of the other are lost
    return modules_of(*(fitted[number] for number in sorted(fitted)))


@script("two Trainers that share their callbacks, one after the other")
def _(folder: Path, ours: Ours) -> list[Any]:
    shared = ours()
    return modules_of(fit(folder / "a", shared), fit(folder / "b", shared))


@script("fit, validate, test, predict and fit again")
def _(folder: Path, ours: Ours) -> list[Any]:
    model = SMALL.model(validates=True)
    model.test_step, model.predict_step = model.validation_step, lambda batch, _: model.network(batch)
    trainer = SMALL.trainer(folder, max_epochs=1, callbacks=ours())
    trainer.fit(model, SMALL.loader(BATCHES), SMALL.loader(2))
    for again in (trainer.validate, trainer.predict):
        again(model, SMALL.loader(2))
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, SMALL.loader(BATCHES), SMALL.loader(2))
    return [model]


@script("copies and pickles of callbacks that have run")
def _(folder: Path, ours: Ours) -> list[Any]:
    first = ours()
    trainers = [fit(folder / "a", first)]
    for number, made in enumerate((copy.deepcopy(first), pickle.loads(pickle.dumps(first)))):
        trainers.append(fit(folder / str(number), made))
    return modules_of(*trainers)


@script("a run that continues in a Trainer with other callbacks")
def _(folder: Path, ours: Ours) -> list[Any]:
    fit(folder, ours(), max_epochs=1).save_checkpoint(folder / "a.ckpt")
    fit(folder, [], max_epochs=2, ckpt_path=folder / "a.ckpt").save_checkpoint(folder / "b.ckpt")
    return modules_of(fit(folder, ours()[:1], max_epochs=4, ckpt_path=folder / "b.ckpt"))


@script("a module that is compiled, saved and resumed")
def _(folder: Path, ours: Ours) -> list[Any]:
    def compiled() -> Any:
        model = SMALL.model()
        model.network = torch.compile(model.network, backend="eager")
        return model

    fit(folder, ours(), model=compiled()).save_checkpoint(folder / "a.ckpt")
    return modules_of(fit(folder, ours(), model=compiled(), max_epochs=3, ckpt_path=folder / "a.ckpt"))


# Ends of a process.


@script("SIGTERM within a hook")
def _(folder: Path, ours: Ours) -> list[Any]:
    kills = acting("on_train_batch_end", lambda _: os.kill(os.getpid(), signal.SIGTERM), at=8)
    return modules_of(fit(folder, [*ours(), kills]))


@script("sys.exit(3) within a hook")
def _(folder: Path, ours: Ours) -> list[Any]:
    return modules_of(fit(folder, [*ours(), acting("on_validation_end", lambda _: sys.exit(3), at=1)], max_epochs=1))


@script("the process ends within a step")
def _(folder: Path, ours: Ours) -> list[Any]:
    return modules_of(fit(folder, [*ours(), acting("on_before_backward", lambda _: os._exit(7), at=6)]))


# Files and folders.


@script("HOME is a file")
def _(folder: Path, ours: Ours) -> list[Any]:
    file = folder / "home"
    file.write_text("")
    os.environ |= {"HOME": str(file), "XDG_DATA_HOME": str(file), "XDG_CACHE_HOME": str(file)}
    os.environ.pop("LIGHTNING_PREDICT_HISTORY", None)
    return modules_of(fit(folder, ours()))


@script("the folder of the run is a link in a circle")
def _(folder: Path, ours: Ours) -> list[Any]:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    return modules_of(fit(folder / "a" / "run", ours()))


@script("the folder of the run has a path of 4,000 characters")
def _(folder: Path, ours: Ours) -> list[Any]:
    return modules_of(fit(Path(folder, *["x" * 200] * 20), ours()))


@script("a ledger of a later version, and one that is a folder")
def _(folder: Path, ours: Ours) -> list[Any]:
    (folder / "lightning_predict_budget-0123.json").mkdir()
    text = '{"version": 99, "run": {"name": "a"}, "seconds": "many"}'
    (folder / "lightning_predict_budget.json").write_text(text)
    return modules_of(fit(folder, ours()))


@script("a history with lines that are double, cut, of NaN, and of 10 MB")
def _(folder: Path, ours: Ours) -> list[Any]:
    line = {
        "fingerprint": "a", "gpu": "T4", "samples": 1, "step_seconds": 1.0, "predicted_seconds": 1.0,
        "actual_seconds": 1.0, "date": "2026-01-01",
    }  # fmt: skip
    whole, history = json.dumps(line), folder / "history.jsonl"
    nan = json.dumps(line | {"actual_seconds": float("nan")})
    long = json.dumps(line | {"fingerprint": "b" * 10_000_000})
    history.write_text("\n".join([whole, whole, whole[:40], nan, "", "null", "[]", "\x00\x00", long, whole[:60]]))
    os.environ["LIGHTNING_PREDICT_HISTORY"] = str(history)
    return modules_of(fit(folder, ours()))


@script("files of the run that are read-only, and a folder that is")
def _(folder: Path, ours: Ours) -> list[Any]:
    (folder / "lightning_predict_budget.json").write_text("{}")
    (folder / "lightning_predict_budget.json").chmod(0o400)
    folder.chmod(0o500)
    try:
        return modules_of(fit(folder, ours()))
    finally:
        folder.chmod(0o700)


# Clocks and the interpreter.


@script("the clock of the system steps back by a year and forth by two")
def _(folder: Path, ours: Ours) -> list[Any]:
    real, offset = time.time, [0.0]
    steps = [
        acting("on_train_batch_end", lambda _, by=by: offset.__setitem__(0, by), at=at)
        for at, by in ((4, -3.2e7), (9, 6.4e7), (14, -1.0))
    ]
    with mock.patch("time.time", side_effect=lambda: real() + offset[0]):
        return modules_of(fit(folder, [*ours(), *steps]))


@script("loader workers that are spawned, with a seed")
def _(folder: Path, ours: Ours) -> list[Any]:
    SMALL.lightning.seed_everything(3, workers=True, verbose=False)
    loader = DataLoader(
        Rows(BATCHES), batch_size=BATCH_SIZE, shuffle=True, num_workers=1, multiprocessing_context="forkserver"
    )
    return modules_of(fit(folder, ours(), loader=loader))


@script("a strategy that spawns its process")
def _(folder: Path, ours: Ours) -> list[Any]:
    model = SMALL.model()
    trainer = SMALL.trainer(folder, max_epochs=2, callbacks=ours(), strategy="ddp_spawn")
    trainer.fit(model, SMALL.loader(BATCHES))
    return [model]


class Drawing(dict[str, torch.Tensor]):
    """A batch that draws a random number whenever its attributes are read."""

    def __getattribute__(self, name: str) -> Any:
        torch.rand(1)
        return super().__getattribute__(name)


@script("batches that draw a random number when they are read")
def _(folder: Path, ours: Ours) -> list[Any]:
    model = SMALL.model()
    step = model.training_step
    model.transfer_batch_to_device = lambda batch, device, number: batch
    model.training_step = lambda batch, batch_idx: step(dict.__getitem__(batch, "rows"), batch_idx)
    loader = DataLoader(Rows(BATCHES), batch_size=BATCH_SIZE, collate_fn=lambda rows: Drawing(rows=torch.stack(rows)))
    return modules_of(fit(folder, ours(), model=model, loader=loader))


@script("another error, and an interrupt, while an error is handled")
def _(folder: Path, ours: Ours) -> list[Any]:
    def fail(_: Any) -> None:
        raise ValueError("the first")

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    return modules_of(
        fit(folder, [acting("on_train_batch_end", fail), *ours(), acting("on_exception", interrupt, at=1)])
    )


@script("a clock that stands still")
def _(folder: Path, ours: Ours) -> list[Any]:
    with mock.patch("time.perf_counter", return_value=5.0), mock.patch("time.monotonic", return_value=5.0):
        return modules_of(fit(folder, ours()))


def draw(*_: Any, **__: Any) -> Any:
    """Draw from both generators."""
    random.random()
    torch.rand(1)


def drawing(kind: type[Any], *names: str) -> type[Any]:
    """Return a subclass whose methods of these names draw random numbers."""
    plain = {name: getattr(kind, name) for name in names}
    methods = {name: lambda *args, _own=own, **options: draw() or _own(*args, **options) for name, own in plain.items()}
    return type(kind.__name__, (kind,), methods)


@script("a module, a dataset, a loader and a logger that draw when they are asked")
def _(folder: Path, ours: Ours) -> list[Any]:
    rows = drawing(Rows, "__len__")(BATCHES + 1)
    loader = drawing(DataLoader, "__len__")(rows, batch_size=3, shuffle=True)
    model = SMALL.model()
    model.__class__ = drawing(type(model), "parameters", "named_modules", "buffers")
    logger = SMALL.lightning.loggers.logger.DummyLogger()
    logger.log_metrics = draw
    return modules_of(fit(folder, ours(), model=model, loader=loader, logger=logger, max_epochs=4))


@script("a profiler inside each step, whose events are compared")
def _(folder: Path, ours: Ours) -> list[Any]:
    model, events = SMALL.model(), torch.zeros(2 * BATCHES)
    model.register_buffer("events", events)
    step = model.training_step

    def training_step(batch: torch.Tensor, batch_idx: int) -> Any:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            loss = step(batch, batch_idx) + torch.nn.functional.gelu(batch).prod(1).mean()
        events[model.batches_trained - 1] = len(profiler.events() or ())
        return loss

    model.training_step = training_step
    return modules_of(fit(folder, ours(), model=model))


def main_of_process(folder: Path, name: str, how: str) -> None:
    """Run a script in this process, and print a hash of its modules and random states."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for seed in (torch.manual_seed, random.seed):
        seed(11)

    def ours() -> list[Any]:
        return [RuntimePredictor(["T4"], print_table=False), CostBudget(hours=1000)] if how == "ours" else []

    digest = hashlib.sha256()
    for module in SCRIPTS[name](folder, ours):
        for key, value in module.state_dict().items():
            digest.update(key.encode(errors="surrogatepass") + value.detach().double().numpy().tobytes())
        digest.update(str(getattr(module, "batches_trained", 0)).encode())
    digest.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
    print("end", digest.hexdigest())


def ran(name: str, how: str) -> tuple[int | None, str, Ran]:
    """Run a script in a process of its own; its exit code, its last words, and all of it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "run")
        place.mkdir()
        variables = {"LIGHTNING_PREDICT_HISTORY": str(Path(folder, "history.jsonl")), "OMP_NUM_THREADS": "1"}
        done = run("-m", "tests.soak.whole_scripts", place, name, how, variables=variables, seconds=300)
    words = [line for line in done.stdout.splitlines() if line.startswith("end ")]
    raised = done.stderr.strip().splitlines()[-1:] if "Traceback" in done.stderr and done.returncode else []
    return done.returncode, "".join(words or raised), done


def compared(name: str) -> tuple[str, str]:
    """Run a script in both ways; how the plain script ends, and what differs, which is empty without a difference."""
    (plain, its, _), (code, our, watched) = ran(name, "plain"), ran(name, "ours")
    end = f"exit code {plain}" + ("" if its.startswith("end ") else f", {its[:80]}")
    if (plain, its) == (code, our) or (plain, its) != ran(name, "plain")[:2]:  # the script itself may be uncertain
        return end, ""
    return end, f"exit code {code}, {our!r}: {watched.stderr[-2000:]}"


def main() -> None:
    """Run all scripts and print those that harm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="scripts whose name contains this")
    only = parser.parse_args().only
    chosen, harmed = [name for name in SCRIPTS if only in name], 0
    for name in chosen:
        end, problem = compared(name)
        harmed += bool(problem)
        print(f"{'HARM' if problem else 'ok':4} {name} ({end}) {problem}", flush=True)
    print(f"{harmed} of {len(chosen)} scripts harmed")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3] in ("plain", "ours"):
        main_of_process(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    else:
        main()
