"""Predict LoRA and QLoRA steps on a T4: `python -m benchmarks.accuracy.qlora VALIDATION`.

`fitcheck_t4.csv` (Anassbzdd/fitcheck, MIT) has torch's allocated and reserved memory, the memory of the process and
the seconds of a step: float16 models with checkpointing, adapters of q, k, v and o in float32. Their script is not
known. Three of its settings follow from the peaks of these rows, by hand: no autocast, no double quantization
(transformers' default), and a loop that holds the model's output, with the logits, in the backward pass. Needs
transformers and peft.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

import lightning_predict as lp
from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS
from benchmarks.scored_steps import WIDTH
from benchmarks.training.report import report_table
from lightning_predict.base.units import bytes_to_mebibytes, mebibytes_to_bytes
from lightning_predict.record.named_models.configurations import shipped
from lightning_predict.record.quantization import as_4bit, others_in_float32

TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


def step_of(row: dict[str, str]) -> Callable[[], None]:
    """Build the step of a row on the meta device."""
    peft: Any = import_module("peft")
    transformers: Any = import_module("transformers")

    content = dict(shipped("hf", row["model"]).config)
    config: Any = transformers.AutoConfig.for_model(content.pop("model_type"), **content)
    config._attn_implementation, config.use_cache = row["attention"], False
    batch, length = int(row["batch"]), int(row["seq"])
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16)
        tokens = torch.zeros((batch, length), dtype=torch.long)
        mask = torch.ones_like(tokens)
    model = model.to(device="meta", dtype=torch.float16)
    if row["quantization"] == "nf4":
        as_4bit(model, compute_dtype=torch.float16, clones=True)
        others_in_float32(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with torch.device("meta"):
        adapters = peft.LoraConfig(r=int(row["lora_r"]), target_modules=list(TARGETS), task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, adapters).train()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])

    def step() -> None:
        output = model(input_ids=tokens, attention_mask=mask, labels=tokens)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main(arguments: Sequence[str] | None = None) -> int:
    """Print errors of each row and their medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("validation", type=Path, help="folder with fitcheck_t4.csv")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    rows = list(csv.DictReader((options.validation / "fitcheck_t4.csv").open(encoding="utf-8")))
    console = ResultConsole(width=WIDTH)
    headings = ("allocated error %", "reserved error %", "process error %", "inside", "time error %")
    table = report_table("LoRA and QLoRA on a T4", ("model", "weights", "attention"), headings)
    errors: list[tuple[float, ...]] = []
    inside = 0
    for row in rows:
        (prediction,) = lp.predict(lp.capture(step_of(row)), ["T4"], history=False).values()
        memory = prediction.memory
        sizes = [memory.allocated, memory.reserved, memory.process]
        measured = [float(row[name]) for name in ("allocated_mib", "reserved_mib", "process_mib")]
        predicted = [0.0 if one is None else bytes_to_mebibytes(one.middle) for one in sizes]
        mine, real = [*predicted, prediction.iteration_seconds], [*measured, float(row["step_seconds"])]
        errors.append(tuple(one / other - 1 for one, other in zip(mine, real, strict=True)))
        process = memory.process
        holds = process is not None and process.low <= mebibytes_to_bytes(measured[2]) <= process.high
        inside += holds
        cells = [f"{100 * error:+.1f}" for error in errors[-1]]
        weights = "float16" if row["quantization"] == "none" else row["quantization"]
        table.add_row(row["model"], weights, row["attention"], *cells[:3], "yes" if holds else "no", cells[3])
    console.print(table)
    summary = report_table("LoRA and QLoRA on a T4, medians", ("figure",), ("n", *headings))
    medians = [f"{100 * statistics.median(abs(one[index]) for one in errors):.1f}" for index in range(4)]
    summary.add_row("median |error|", str(len(rows)), *medians[:3], str(inside), medians[3])
    console.print(summary)
    if options.result is not None:
        write_result(console.result(RUNS["qlora"]), options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
