"""Published pretraining on many GPUs, from tables: torchtitan, nanotron, NeMo, SimuMax, Automodel, Megatron Bridge.

Each row's micro-batch is recorded on the meta device as a plain PyTorch step (`workloads/llama.py`), and the layout is
given as a strategy. Frameworks with kernels of their own, such as Transformer Engine's, are predicted as plain PyTorch.
`pages.py` has the runs that pages state one by one.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.case import Case, Quantity, Step, machines, strategy_text
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.workloads.llama import LLAMA, LlamaConfig, Written, llama_trace

GIBIBYTE: Final = 2**30
MEBIBYTE: Final = 2**20
RDMA_GBPS: Final = 3200.0  # Network of a machine with an adapter of 400 Gbit/s for each of eight GPUs
POWER_LIMITED: Final = "H100-SXM-96GB"  # What torchtitan's rows ran on whose note says 500 W: Meta's H100.


def llama_step(
    model: str,
    length: int,
    batch: int,
    *,
    is_all_bfloat16: bool = False,
    written: Written | None = None,
) -> Step:
    """Return a micro-batch of a model of `LLAMA`, as one kernel for each norm or as a project wrote it."""
    config = replace(LLAMA[model], written=written)
    words = (model, str(length), str(batch), "bfloat16" if is_all_bfloat16 else "", written or "")
    return Step(
        name="-".join(word for word in words if word),
        record=partial(llama_trace, config, length=length, batch=batch, is_all_bfloat16=is_all_bfloat16),
    )


def with_memory(
    memory: Mapping[Quantity, float | None], said: Mapping[Quantity, Mapping[str, float]] | None = None, **fields: Any
) -> Iterator[Case]:
    """Yield the case of a measured time, and one for each measured memory.

    Args:
        memory: Measured bytes.
        said: What other tools said of each quantity.
        **fields: Fields of the case.
    """
    told = said or {}
    yield Case(**fields, said=told.get("time", {}))
    for quantity, size in memory.items():
        if size:
            yield Case(**(fields | {"measured": size, "quantity": quantity, "said": told.get(quantity, {})}))


# --- torchtitan

RECOMPUTED: Final = {"none": None, "full": "full", "selective_op": "operations", "selective_layer": "layers"}
"""torchtitan's words for activation checkpointing."""

SELECTIVE: Final = "selective_op"
"""What its configurations of Llama 3 and Qwen3 ask for (`SelectiveAC`), and a page that names none ran: without it, the
steps on four GB200 would take 217 and 350 GiB."""

TITAN_FLOAT8: Final = {
    "none": None,
    "tensorwise": "tensorwise",
    "rowwise": "rowwise",
    "mxfp8": "mx",
    "mxfp8_cublas": "mx",
    "mxfp8_cublas_rceil": "mx",
}

TITAN_RELEASES: Final = {
    "docs/performance.md": "2.4",
    "h100_202412": "2.6",
    "h100_2025-06": "2.8",
    "h200_202506": "2.8",
}
"""Releases of torch that were current when torchtitan's pages were written, by a part of their names."""

TITAN_WRITTEN: Final[Mapping[str, Written]] = {
    "h100_202412": "torchtitan",
    "h100_2025-06": "torchtitan-2025",
    "h200_202506": "torchtitan-2025",
    "mxfp8.md": "torchtitan-2025",
    "nvfp4.md": "torchtitan-2026",
}
"""How its Llama 3 was written when the pages were, by a part of their names (its history at b5bcd76c6)."""

TITAN_KERNELS: Final = ("compile-blocks",)  # What torchtitan compiles: each block, and the loss

TITAN_KERNELS_2024: Final = ("compile-blocks", "eager_loss")
"""What it compiled from December 2024 (e8977b007) to April 2025, because compiled losses ended in errors."""


def torchtitan_cases(data: Path) -> Iterator[Case]:
    """Read the runs of models that are written here."""
    for row in rows(data / "validation" / "torchtitan.csv"):
        model = row["model"].replace("llama3.1", "llama3")
        if model not in LLAMA or row["float8"] not in TITAN_FLOAT8:
            continue
        tensor, pipeline, context = (int(row[degree]) for degree in ("tp", "pp", "cp"))
        count, micro = int(row["gpus"]), 1 if pipeline > 1 else int(row["local_batch"])
        groups = count // (tensor * pipeline * context)
        gpu = POWER_LIMITED if "500 W" in row["gpu_note"] else row["gpu"]
        memory = float(row["memory_gib"] or 0)
        recipe = "bfloat16" if row["float8"] == "none" else row["float8"]
        compiled = row["compile"] == "1"
        is_of_2024 = "202412" in row["source"]
        written = next((own for part, own in TITAN_WRITTEN.items() if part in row["source"]), None)
        titan_kernels = TITAN_KERNELS_2024 if is_of_2024 else TITAN_KERNELS
        yield from with_memory(
            {"reserved": memory * GIBIBYTE},
            source=f"{gpu}, {recipe}, {'compiled' if compiled else 'eager'}",
            model=model,
            gpu=machines(gpu, count),
            step=llama_step(model, int(row["sequence"]), micro, written=written if "llama3" in model else None),
            measured=float(row["step_seconds"]),
            release=next((own for part, own in TITAN_RELEASES.items() if part in row["source"]), None),
            network_gbps=RDMA_GBPS if "400 Gb/s" in row["gpu_note"] else None,
            kernels=titan_kernels if compiled else (),
            strategy=strategy_text(
                "fsdp",
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                micro_batches=1,
                accumulate=max(int(row["global_batch"]) // (groups * micro), 1),
                sequence=tensor > 1,
                recompute=RECOMPUTED[row["activation_checkpointing"] or SELECTIVE],
                fp8=TITAN_FLOAT8[row["float8"]],
                overlap_tensor=row["async_tp"] == "1",
                reduce_dtype="float32",
            ),
        )


# --- nanotron


def nanotron_cases(data: Path) -> Iterator[Case]:
    """Read the runs of a Llama with a billion parameters."""
    for row in rows(data / "validation" / "nanotron.csv"):
        model = row["model"].split()[0]
        if model not in LLAMA:
            continue
        tensor, pipeline, micro = (int(row[name]) for name in ("tp", "pp", "micro_batch"))
        yield from with_memory(
            # Fractions of a MiB, where the allocator reserves 2 MiB at a time.
            {"allocated": float(row["memory_mib"] or 0) * MEBIBYTE},
            source=row["source"],
            model=model,
            gpu=machines(row["gpu"], int(row["gpus"])),
            step=llama_step(model, int(row["sequence"]), micro),
            measured=float(row["step_seconds"]),
            release="2.4",
            strategy=strategy_text(
                "zero1" if row["zero_stage"] == "1" else "ddp",
                tensor=tensor,
                pipeline=pipeline,
                last_stage=blocks_of_last_stage(LLAMA[model], pipeline) if pipeline > 1 else None,
                micro_batches=1,
                accumulate=int(row["accumulation"]),
                sequence=tensor > 1,
                reduce_dtype="float32",
            ),
        )


def blocks_of_last_stage(config: LlamaConfig, pipeline: int) -> int:
    """Count the blocks, at least one, that nanotron leaves to the last pipeline stage with the output layer.

    It deals out modules in order by their multiplications for a token; a stage is full with the module that takes the
    sum beyond the stage's share of all.
    """
    block = 4 * config.hidden**2 + 3 * config.inner * config.hidden
    before_last = (block * config.layers + config.vocabulary * config.hidden) * (pipeline - 1) / pipeline
    return max(config.layers - math.floor(before_last / block) - 1, 1)


# --- NeMo

NEMO_RELEASE: Final = "2.5"
"""Release of torch in NeMo's containers 24.09 to 24.12. Rows without a container are of these or older; those with one
ran in 2025 and 2026, when attention had today's kernels."""

NEMO_FLOAT8: Final = {"BF16": None, "FP8": "tensorwise", "FP8-CS": "tensorwise", "FP8-MX": "mx", "MXFP8": "mx"}


def nemo_cases(data: Path) -> Iterator[Case]:
    """Read the runs of models that are written here; one configuration in several containers becomes its median."""
    columns = ("model", "gpu", "gpus", "precision", "gbs", "mbs", "sequence", "tp", "pp", "cp", "fsdp", "vp", "ep")
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    kept: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows(data / "validation" / "nemo.csv"):
        row["model"] = row["model"].lower().replace("_", "-").replace(" ", "-")
        row["precision"] = row["precision"].upper().replace("_", "-")
        row |= {"fsdp": row["fsdp"] or "0", "vp": row["vp"] or "1", "ep": row["ep"] or "1"}
        is_known = row["model"] in LLAMA and row["precision"] in NEMO_FLOAT8 and "tokendrop" not in row["note"]
        if row["task"] in ("pretrain", "long sequence") and row["sequence"] and row["step_seconds"] and is_known:
            key = tuple(row[column] for column in columns)
            times[key].append(float(row["step_seconds"]))
            kept.setdefault(key, row)
    for key, row in kept.items():
        yield _nemo_case(row, statistics.median(times[key]))


def _nemo_case(row: Mapping[str, str], seconds: float) -> Case:
    tensor, pipeline, context, expert, micro = (int(row[name]) for name in ("tp", "pp", "cp", "ep", "mbs"))
    count, is_fsdp, fp8 = int(row["gpus"]), row["fsdp"] != "0", NEMO_FLOAT8[row["precision"]]
    groups = count // (tensor * pipeline * context)
    return Case(
        source=f"{row['gpu']}, {fp8 or 'bfloat16'}{', FSDP' if is_fsdp else ''}",
        model=row["model"],
        gpu=machines(row["gpu"], count),
        step=llama_step(row["model"], int(row["sequence"]), micro),
        measured=seconds,
        release=None if row["container"] else NEMO_RELEASE,
        kernels=("transformer_engine",),
        strategy=strategy_text(
            "fsdp" if is_fsdp else "zero1",
            tensor=tensor,
            pipeline=pipeline,
            virtual=int(row["vp"]) if pipeline > 1 else 1,
            context=context,
            expert=expert,
            # Experts beyond the data-parallel groups are dealt out among tensor- and context-parallel GPUs, too.
            expert_tensor=1 if expert > groups else None,
            expert_launches=expert > 1,
            micro_batches=1,
            accumulate=max(int(row["gbs"]) // (groups * micro), 1),
            sequence=tensor > 1,
            overlap_tensor=tensor > 1,
            overlap_param_gather=not is_fsdp,
            fp8=fp8,
        ),
    )


# --- Megatron-LM on eight B200, by SimuMax


SIMUMAX_RATES: Final = (("bfloat16", 1103e12),)
"""FLOP/s that SimuMax measured on the machine of its steps: the median of products of 3 ms and more in long loops
(`measurements/simumax_operators.csv`)."""


def simumax_cases(data: Path) -> Iterator[Case]:
    """Read Megatron-LM's steps on one machine of eight B200, with the memory of the fullest GPU."""
    for row in rows(data / "validation" / "simumax_steps.csv"):
        model = f"{row['model']}-{row['layers']}"
        degrees = {name: int(count) for name, count in re.findall(r"(tp|cp|pp)(\d+)", row["parallel"])}
        length = re.search(r"seq(\d+)", row["case"])
        tokens, tensor = 4096 if length is None else int(length[1]), degrees.get("tp", 1)
        yield from with_memory(
            {
                "allocated": float(row["allocated_gib"] or 0) * GIBIBYTE,
                "reserved": float(row["reserved_gib"] or 0) * GIBIBYTE,
            },
            said={
                "time": {"SimuMax": float(row["simumax_ms"]) / 1e3},
                "allocated": {"SimuMax": float(row["simumax_allocated_gib"]) * GIBIBYTE},
                "reserved": {"SimuMax": float(row["simumax_reserved_gib"]) * GIBIBYTE},
            },
            source=f"{tokens:,} tokens",
            model=f"{model}, {tokens:,} tokens",
            gpu="8xB200-SXM-180GB",
            step=llama_step(model, tokens, 1),
            measured=float(row["step_ms"]) / 1e3,
            kernels=("transformer_engine",),
            rates=SIMUMAX_RATES,
            strategy=strategy_text(
                "zero1",
                tensor=tensor,
                pipeline=degrees.get("pp", 1),
                context=degrees.get("cp", 1),
                micro_batches=1,
                accumulate=int(row["micro_batches"]),
                sequence=tensor > 1,
                gather_again=True,
                reduce_dtype="float32",
                overlap_grad_reduce="false",
                loss="fused",
            ),
        )


# --- NeMo Automodel, and Megatron Bridge's model cards

AUTOMODEL: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "Qwen3 MoE 30B": ("qwen3-30b-a3b", {"recompute": "full", "expert": 8}),
    "GPT-OSS 20B": ("gpt-oss-20b", {"expert": 8}),
    "Llama3 8B": ("llama3-8b-lora", {}),
    "Qwen2.5 7B": ("qwen2.5-7b-lora", {}),
    "Llama3 70B": ("llama3-70b-lora", {"recompute": "full", "overlap_tensor": True, "sequence": True}),
    "Qwen2.5 32B": ("qwen2.5-32b-lora", {"recompute": "full"}),
}
"""Recipes by the table's model (NVIDIA-NeMo/Automodel at 36044ad, `examples/llm_benchmark`). Adapters have rank 16."""


def automodel_cases(data: Path) -> Iterator[Case]:
    """Read the steps on H100 whose recipe is known."""
    for row in rows(data / "validation" / "automodel_h100.csv"):
        recipe = AUTOMODEL.get(row["Model"].removesuffix(" 2-node"))
        if recipe is None:
            continue
        model, options = recipe
        count, tensor, micro = int(row["#GPUs"]), int(row["TP"]), int(row["LBS"])
        yield Case(
            source="adapters" if model.endswith("lora") else "all parameters",
            model=model,
            gpu=machines("H100-SXM-80GB", count),
            step=llama_step(model, int(row["Seq Length"]), micro),
            measured=float(row["Time per Global Step (s)"]),
            kernels=() if tensor == 1 and model.endswith("lora") else ("transformer_engine",),
            strategy=strategy_text(
                "fsdp" if count > tensor else "ddp",
                tensor=tensor,
                micro_batches=1,
                accumulate=int(row["GBS"]) * tensor // (count * micro),
                reduce_dtype="float32" if count > tensor else None,
                **options,
            ),
        )


_PRETRAIN: Final[Mapping[str, Any]] = {
    "data": "zero1",
    "tensor": 2,
    "pipeline": 4,
    "sequence": True,
    "expert_tensor": 1,
    "expert_launches": True,
    "reduce_dtype": "float32",
    "overlap_param_gather": True,
}
_TUNE: Final[Mapping[str, Any]] = {
    "data": "ddp",
    "expert": 8,
    "expert_launches": True,
    "overlap_grad_reduce": "false",
    "expert_tensor": 1,
}
_WIDE: Final[Mapping[str, Any]] = {**_PRETRAIN, "tensor": 1, "pipeline": 1, "sequence": False}

CARDS: Final[Mapping[str, tuple[str, int, int, int, Mapping[str, Any]]]] = {
    "gpt_oss_20b_pretrain_16gpu_h100_bf16_config": ("gpt-oss-20b", 4096, 512, 1, {**_PRETRAIN, "expert": 4}),
    "gpt_oss_120b_pretrain_config": ("gpt-oss-120b", 4096, 512, 1, {**_PRETRAIN, "expert": 16}),
    "gpt_oss_20b_sft_8gpu_h100_bf16_config": ("gpt-oss-20b", 2048, 128, 1, _TUNE),
    "gpt_oss_120b_sft_32gpu_h100_bf16_config": (
        *("gpt-oss-120b", 2048, 128, 1),
        {**_TUNE, "tensor": 2, "pipeline": 4, "sequence": True},
    ),
    "gpt_oss_20b_sft_8gpu_h100_bf16_32k_config": (
        *("gpt-oss-20b", 32768, 32, 1),
        {**_TUNE, "tensor": 4, "context": 2, "sequence": True, "recompute": "full"},
    ),
    "gpt_oss_120b_sft_48gpu_h100_bf16_32k_config": (
        *("gpt-oss-120b", 32768, 4, 1),
        {**_TUNE, "tensor": 2, "context": 4, "pipeline": 6, "expert": 4, "sequence": True},
    ),
    "gpt_oss_120b_pretrain_64gpu_gb200_bf16_config": ("gpt-oss-120b", 4096, 1280, 4, {**_WIDE, "expert": 64}),
    "gpt_oss_120b_pretrain_64gpu_gb300_fp8mx_config": (
        *("gpt-oss-120b", 4096, 1280, 4),
        {**_WIDE, "expert": 16, "expert_launches": False},
    ),
}
"""Model, tokens, samples of a step and of a micro-batch, and strategy of the recipes (NVIDIA-NeMo/Megatron-Bridge at
067f987, with the changes that a card's command makes). Steps of fine-tuning are padded to the stated length."""

CARD_GPUS: Final = {"H100": "H100-SXM-80GB", "GB200": "GB200", "GB300": "GB300"}


def card_cases(data: Path) -> Iterator[Case]:
    """Read the runs whose recipe is known. Most are sanity checks that nobody tuned."""
    for row in rows(data / "validation" / "megatron_bridge_cards.csv"):
        recipe = CARDS.get(row["recipe"])
        if recipe is None:
            continue
        model, length, batch, micro, options = recipe
        item, gpu, _ = row["item"].split("/", 2)
        count = int(row["nodes"]) * int(row["gpus_per_node"])
        groups = count // math.prod(options.get(name, 1) for name in ("tensor", "pipeline", "context"))
        yield Case(
            source="tuned" if "performance" in item else f"not tuned, {item}",
            model=model,
            gpu=machines(CARD_GPUS[gpu], count),
            step=llama_step(model, length, micro),
            measured=float(row["step_ms"]) / 1e3,
            kernels=("transformer_engine",),
            strategy=strategy_text(
                **options,
                fp8=NEMO_FLOAT8[row["precision"].replace("_", "-").upper()],
                micro_batches=1,
                accumulate=batch // (micro * groups),
            ),
        )
