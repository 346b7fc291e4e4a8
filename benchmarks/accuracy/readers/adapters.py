"""LoRA and QLoRA of named models, recorded by `lp.step_of`: a T4, an RTX 4080 under Windows, one and two A100.

The RTX 4080's runs call PEFT's `prepare_model_for_kbit_training`, as their authors' package does, so that all but the
layers in 4 bits is float32; its loop holds the model's output during the backward pass. Its times are means of two or
three steps with the first. The T4's script is not published. That its 4-bit runs do the same was read off the rows:
from the forward to the backward peak they need twice the bytes of the runs in float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step, machines
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
                recipe="float32-rest,no-autocast" if quantized else "no-autocast",  # `scripts/measure.py` at 02ebe015
                checkpointing=True,
                holds_output=True,
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
                recipe="float32-rest,no-autocast",  # `src/canifinetune/bench/runner.py` at 053ce9e1
                checkpointing=True,
                optimizer=row["optimizer"],
                holds_output=True,
            ),
            measured=float(row["avg_step_time_s"]),
            release="2.6",
            includes="first step",
        )


FMS_QUANTIZED: Final = {"none": None, "baseline-peft-bnb": "nf4-double", "accelerated-peft-bnb": "nf4-double"}
"""Configurations of fms-acceleration without kernels of their own, which have no word in `lp.predict`."""


def fms_cases(data: Path) -> Iterator[Case]:
    """Read fms-acceleration's LoRA of named models on A100: 100 steps of 4,096 tokens with the first.

    Mixtral in 4 bits is left out: it ran with experts that were linear layers, which bitsandbytes quantized.
    transformers 5 joins them in one parameter, which stays in 16 bits, and the recorded step with it.
    """
    for row in rows(data / "validation" / "fms_acceleration.csv"):
        if row["peft_method"] != "lora" or row["framework_config"] not in FMS_QUANTIZED or not row["train_runtime"]:
            continue
        count, batch = int(row["num_gpus"]), int(row["per_device_train_batch_size"])
        quantization = FMS_QUANTIZED[row["framework_config"]]
        if quantization and "Mixtral" in row["model_name_or_path"]:
            continue
        yield from with_memory(
            {"allocated": float(row["mem_peak_torch_mem_alloc_in_bytes"] or 0)},
            source=f"{'QLoRA' if quantization else 'LoRA'}, {count} GPU{'s' if count > 1 else ''}",
            model=f"{row['model_name_or_path'].partition('/')[2]}, {row['framework_config']}, batch {batch}",
            gpu=machines("A100-SXM-80GB", count),
            step=_step(
                model=f"hf:{row['model_name_or_path']}",
                batch_size=batch,
                length=4096,
                lora=int(float(row["r"])),
                lora_targets=TARGETS,
                quantization=quantization,
                checkpointing=True,
            ),
            measured=float(row["train_runtime"]) / FMS_STEPS,
            strategy="fsdp" if count > 1 else "ddp",
            includes="first step",
        )


FMS_STEPS: Final = 100
