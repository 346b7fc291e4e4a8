"""Hugging Face's Trainer on two ranks with gloo, whose surroundings or whose callback fail on one of them.

torchrun --nproc-per-node 2 -m tests.integrations.trainer_ranks FOLDER CASE ...
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from lightning_predict.integrations.transformers import RuntimePredictorCallback
from tests.callbacks.rank_surroundings import full_disk

STEPS: Final = 40
AT_STEP: Final = 6
"""Number of steps before the fault."""

OURS: Final = "lightning_predict.integrations.transformers.RuntimePredictorCallback."
WATCHED: Final = "lightning_predict.observe.watched_loop.WatchedRun."

CASES: Final[dict[str, tuple[dict[str, Any] | None, str, int]]] = {
    "plain": (None, "", 0),
    "watched": ({"hours": 1000}, "", 0),
    "without a budget": ({}, "", 0),
    "over budget": ({"hours": 1e-9}, "", 0),
    "over budget in dollars": ({"usd": 1e-9, "run_usd_per_hour": 1.0}, "", 0),
    "rank 0 stalls": ({"hours": 0.05}, "sleep", 0),
    "rank 1 stalls": ({"hours": 0.05}, "sleep", 1),
    "the disk of rank 0 is full": ({"hours": 1000}, "disk", 0),
    "the disk of rank 1 is full": ({"hours": 1000}, "disk", 1),
    "rank 0 cannot begin": ({"hours": 1e-9}, WATCHED + "_opens", 0),
    "rank 0 cannot count": ({"hours": 1e-9}, WATCHED + "_check_budget", 0),
    "rank 0 cannot decide": ({"hours": 1e-9}, OURS + "_decide", 0),
    "rank 0 cannot predict": ({"hours": 1000}, WATCHED + "_predict", 0),
}
"""By name: arguments of the callback, None without it; the fault; its rank."""

KILLED: Final = {
    f"rank {rank} is killed, {how}": ({"hours": 1000} if how == "watched" else None, "kill", rank)
    for rank in (0, 1)
    for how in ("plain", "watched")
}
"""The same for fits that a rank does not survive."""


class Fault(TrainerCallback):
    """Stalls or kills this process at a step."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Act at the step."""
        if state.global_step == AT_STEP and self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if state.global_step == AT_STEP and self.kind == "sleep":
            time.sleep(2)


def train(name: str, folder: Path, rank: int) -> dict[str, Any]:
    """Train, and return what this rank has seen."""
    options, fault, fails_on = (CASES | KILLED)[name]
    kind = fault if rank == fails_on else ""
    ours = [] if options is None else [RuntimePredictorCallback(["T4"], print_table=False, **options)]
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
    tokens = torch.randint(0, 50, (STEPS * 8, 8))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        save_strategy="no",
        ddp_backend="gloo",
        ddp_timeout=30,
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows, callbacks=[Fault(kind), *ours])
    trainer.remove_callback(PrinterCallback)  # its output is a file here
    faulty: Any = full_disk() if kind == "disk" else contextlib.nullcontext()
    if "." in kind:
        faulty = mock.patch(kind, side_effect=ZeroDivisionError("by zero"))
    ended = ""
    with warnings.catch_warnings(record=True) as caught, faulty:
        warnings.simplefilter("always")
        try:
            trainer.train()
        except Exception as error:
            ended = type(error).__name__
    model: Any = trainer.model
    parameters = torch.nn.utils.parameters_to_vector(model.parameters())
    return {
        "steps": trainer.state.global_step,
        "weights": float(parameters.double().sum()),
        "random": torch.get_rng_state().tolist()[:64],
        "ended": ended,
        "reason": ours[0].stopping_reason if ours else None,
        "predicted": bool(ours) and ours[0].predictions is not None,
        "said": [str(one.message) for one in caught if "RuntimePredictorCallback" in str(one.message)],
    }


def main(folder: Path, names: list[str]) -> None:
    """Run the cases on this rank."""
    rank = int(os.environ["RANK"])
    for name in names:
        seen = train(name, folder, rank)
        (folder / f"{name}.{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
