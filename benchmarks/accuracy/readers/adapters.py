"""LoRA and QLoRA of named models, recorded by `lp.step_of`: a T4 (`fitcheck_t4.csv`) and an RTX 4080 under Windows.

Neither script is published. The RTX 4080's loop holds the model's output during the backward pass (`holds_output`), as
its authors say. Times of the RTX 4080 are means of two or three steps with the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.readers.pretraining import GIBIBYTE, MEBIBYTE, with_memory
from benchmarks.accuracy.workloads.vision import import_torchvision

TARGETS: Final = "q_proj,k_proj,v_proj,o_proj"


def _recorded(**options: Any) -> lp.Trace:
    import_torchvision()
    return lp.step_of(**options)


def _step(**options: Any) -> Step:
    return Step(
        name="-".join(str(value).replace("/", "-") for value in options.values()), record=partial(_recorded, **options)
    )


def t4_cases(data: Path) -> Iterator[Case]:
    """Read the steps on a T4, in float16."""
    for row in rows(data / "validation" / "fitcheck_t4.csv"):
        quantized = row["quantization"] != "none"
        sizes = {name: float(row[f"{name}_mib"]) * MEBIBYTE for name in ("allocated", "reserved", "process")}
        yield from with_memory(
            sizes,  # type: ignore[arg-type]
            source="QLoRA" if quantized else "LoRA",
            model=f"{row['model'].partition('/')[2]}, {row['quantization']}, {row['attention']}",
            gpu="T4",
            step=_step(
                model=f"hf:{row['model']}",
                batch_size=int(row["batch"]),
                length=int(row["seq"]),
                precision="16-true",
                lora=int(row["lora_r"]),
                lora_targets=TARGETS,
                quantization=row["quantization"] if quantized else None,
                checkpointing=True,
            ),
            measured=float(row["step_seconds"]),
        )


def rtx_4080_cases(data: Path) -> Iterator[Case]:
    """Read the steps on an RTX 4080, in bfloat16."""
    for row in rows(data / "validation" / "canifinetune_rtx4080.csv"):
        if not row["model_id"].startswith("Qwen/"):
            continue  # a model of a few parameters, for tests
        sizes = {name: float(row[f"max_{name}_gib"]) * GIBIBYTE for name in ("allocated", "reserved")}
        yield from with_memory(
            sizes,  # type: ignore[arg-type]
            source="QLoRA",
            model=f"{row['model_id'].partition('/')[2]}, {row['seq_len']} tokens, batch {row['micro_batch_size']}",
            gpu="RTX-4080",
            step=_step(
                model=f"hf:{row['model_id']}",
                batch_size=int(row["micro_batch_size"]),
                length=int(row["seq_len"]),
                precision="bf16-true",
                lora=int(row["lora_rank"]),
                lora_targets=TARGETS,
                quantization="nf4-double",
                checkpointing=True,
                optimizer=row["optimizer"],
                holds_output=True,
            ),
            measured=float(row["avg_step_time_s"]),
            release="2.6",
            includes="first step",
        )
