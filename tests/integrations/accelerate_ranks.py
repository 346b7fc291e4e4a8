"""Loops of accelerate on two processes that accelerate starts: `python -m tests.integrations.accelerate_ranks`.

    python -m tests.integrations.accelerate_ranks FOLDER CASE ...

Each loop is watched by `lp.watch` on both ranks, or on one. A rank stalls, is killed, starts late, fails or has a full
disk.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from accelerate import Accelerator, debug_launcher

import lightning_predict as lp
from lightning_predict.base.guard import log_exceptions
from lightning_predict.observe import budget, rank_agreement, watched_loop
from tests.callbacks.rank_surroundings import full_disk

STEPS: Final = 40
AT_STEP: Final = 6  # Number of steps before the fault
WAIT_SECONDS: Final = 3.0  # Timeout of joint decisions in these loops, so that a missing rank costs seconds


@dataclass(frozen=True)
class Case:
    """A loop on two ranks."""

    hours: float | None = 1000.0  # Budget; None without a watch
    # `sleep`, `kill`, `disk`, `late`, or the name of a method of `WatchedRun` that fails; empty without
    fault: str = ""
    rank: int = 0  # The rank of the fault
    watches: tuple[int, ...] = (0, 1)  # Ranks that watch their loop
    step_seconds: float = 0.0  # Seconds that a step waits


LATE: Final = {"hours": 2.5 / 3600, "fault": "late", "step_seconds": 0.05}
"""A budget of 2.5 s, which the clock of one rank reaches a second before the other's."""

CASES: Final = {  # Loops that end, one after another in the same two processes
    "plain": Case(hours=None),
    "watched": Case(),
    "rank 0 stalls": Case(fault="sleep", rank=0, hours=0.05),
    "rank 1 stalls": Case(fault="sleep", rank=1, hours=0.05),
    "the disk of rank 0 is full": Case(fault="disk", rank=0),
    "the disk of rank 1 is full": Case(fault="disk", rank=1),
    "rank 0 cannot count": Case(fault="_count_step", rank=0),
    "rank 1 cannot count": Case(fault="_count_step", rank=1),
    "rank 0 cannot decide": Case(fault="_ask_budget", rank=0),
    "over budget": Case(hours=1e-9),
    "over budget, rank 0 starts late": Case(rank=0, **LATE),  # type: ignore[arg-type]
    "over budget, rank 1 starts late": Case(rank=1, **LATE),  # type: ignore[arg-type]
}

ALONE: Final = {"rank 0 watches alone": Case(watches=(0,))}
"""A loop that one rank watches, in processes of its own, because the ranks number their watches."""

KILLED: Final = {  # Loops that a rank does not survive
    f"rank {rank} is killed, {how}": Case(hours=None if how == "plain" else 1000, fault="kill", rank=rank)
    for rank in (0, 1)
    for how in ("plain", "watched")
}


def loop(case: Case) -> dict[str, Any]:
    """Train, and return what this rank has seen."""
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    fault = case.fault if rank == case.rank else ""
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    rows: Any = torch.randn(STEPS * 8, 8)
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    is_watched = case.hours is not None and rank in case.watches
    run = lp.watch(total_steps=STEPS, hours=case.hours, gpus=["T4"], print_table=False) if is_watched else None
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lightning_predict").addHandler(handler)
    time.sleep(1.0 if fault == "late" else 0.0)
    faulty: Any = full_disk() if fault == "disk" else contextlib.nullcontext()
    if fault.startswith("_"):
        faulty = mock.patch.object(watched_loop.WatchedRun, fault, broken)
    steps, ended = 0, ""
    try:
        with run or contextlib.nullcontext(), faulty:
            for batch in loader if run is None else run.batches(loader):
                if steps == AT_STEP and fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(2.0 if steps == AT_STEP and fault == "sleep" else case.step_seconds)
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                if run is not None:
                    run.step()
                    if run.should_stop:
                        break
    except Exception as error:
        ended = type(error).__name__
    logging.getLogger("lightning_predict").removeHandler(handler)
    return {
        "steps": steps,
        "weights": float(torch.nn.utils.parameters_to_vector(model.parameters()).detach().double().sum()),
        "random": torch.get_rng_state().tolist()[:64],
        "ended": ended,
        "reason": None if run is None else run.stopping_reason,
        "predicted": run is not None and run.predictions is not None,
        "ranks": None if run is None else run.session.loop.world_size,
        "said": said,
    }


@log_exceptions
def broken(self: Any) -> None:
    """Fail, as a method of `WatchedRun`."""
    raise ZeroDivisionError("by zero")


def main_of_rank(folder: str, names: list[str]) -> None:
    """Run the cases on this rank."""
    budget.__dict__["CHECK_SECONDS"] = 0.0  # the ranks meet after every step
    for module in (rank_agreement, watched_loop):
        module.__dict__["PATIENCE_SECONDS"] = WAIT_SECONDS
    for name in names:
        seen = loop((CASES | ALONE | KILLED)[name])
        rank = torch.distributed.get_rank()
        Path(folder, f"{name}.{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    debug_launcher(main_of_rank, (sys.argv[1], sys.argv[2:]), num_processes=2)
