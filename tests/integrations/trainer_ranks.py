"""Hugging Face's Trainer on two ranks with gloo, whose callback fails on one of them.

torchrun --nproc-per-node 2 -m tests.integrations.trainer_ranks FOLDER CASE ...
"""

import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

from lightning_predict.integrations.transformers import RuntimePredictorCallback

STEPS: Final = 40
OBSERVE: Final = "lightning_predict.observe."

CASES: Final[dict[str, tuple[dict[str, Any] | None, str]]] = {
    "plain": (None, ""),
    "watched": ({"hours": 1000}, ""),
    "without a budget": ({}, ""),
    "over budget": ({"hours": 1e-9}, ""),
    "over budget in dollars": ({"usd": 1e-9, "run_usd_per_hour": 1.0}, ""),
    "rank 0 cannot count": ({"hours": 1e-9}, OBSERVE + "watched_loop.WatchedRun._check_budget"),
    "rank 0 cannot predict": ({"hours": 1000}, OBSERVE + "run_session.RunSession._predict"),
    "rank 0 cannot begin": (
        {"hours": 1e-9},
        OBSERVE + "watched_loop.WatchedRun._opens",
    ),  # last: its ranks count their agreements differently from then on
}
"""By name: arguments of the callback, None without it; the function that fails on rank zero."""


def train(name: str, folder: Path, rank: int) -> dict[str, Any]:
    """Train, and return what this rank has seen."""
    options, fault = CASES[name]
    ours: list[Any] = [] if options is None else [RuntimePredictorCallback(["T4"], print_table=False, **options)]
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
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows, callbacks=ours)
    trainer.remove_callback(PrinterCallback)  # its output is a file here
    faulty: Any = contextlib.nullcontext()
    if fault and rank == 0:
        faulty = mock.patch(fault, side_effect=ZeroDivisionError("by zero"))
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
        "said": [str(warning.message) for warning in caught if "RuntimePredictorCallback" in str(warning.message)],
    }


def main(folder: Path, names: list[str]) -> None:
    """Run the cases on this rank."""
    rank = int(os.environ["RANK"])
    for name in names:
        (folder / f"{name}.{rank}.json").write_text(json.dumps(train(name, folder, rank)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
