"""Command `predict`: time, memory and cost of a recorded step on other GPUs, on the terminal and in files.

Example::

    lightning-predict predict run.json --iterations 10000 --deadline-hours 8 --output report.html,task.yaml
    lightning-predict predict run.json --iterations 10000 --profile machine.toml
    lightning-predict predict timm:vit_base_patch16_224 --batch-size 64 --precision bf16-mixed
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from lightning_predict.base.answers import CommandAnswer


def predict(
    source: str,
    /,
    *,
    gpus: str = "all",
    iterations: int | None = None,
    profile: Path | None = None,
    strategy: str = "ddp",
    kernels: str | None = None,
    deadline_hours: float | None = None,
    max_usd: float | None = None,
    usd_per_hour: str | None = None,
    spot: bool = False,
    batch_size: int | None = None,
    length: int | None = None,
    precision: str | None = None,
    lora: int | None = None,
    quantization: Literal["nf4", "nf4-double", "fp4", "fp4-double"] | None = None,
    checkpointing: bool = False,
    optimizer: str | None = None,
    columns: str | None = None,
    verbose: bool = False,
    output: str | None = None,
) -> CommandAnswer:
    """Predict a training step on GPUs: time, cost, memory, and which GPU to rent.

    Record the step with `lightning_predict.capture(step).save("run.json")`, or name a model.

    Args:
        source: A recorded step, a profile of torch.profiler, or a model: hf:Qwen/Qwen2.5-7B,
            timm:vit_base_patch16_224, torchvision:resnet50, diffusers:facebook/DiT-XL-2-256, or the path of a
            config.json or its folder.
        gpus: all, datacenter or consumer (GPUs with a current price; the best are shown), or names of GPUs or
            layouts (8xL4, 2x8xH100), separated by commas.
        iterations: Remaining training steps; without it, times and costs are for 1,000 steps.
        profile: TOML file with the machines, links, prices and other assumptions.
        strategy: How several GPUs share the work: ddp, zero1, zero2, fsdp, hybrid, with options (fsdp,tensor=8), or
            sharded embedding tables (embedding=auto, embedding=plan.json).
        kernels: What the job runs instead of PyTorch's eager kernels, separated by commas: compile, compile-blocks,
            transformer_engine, liger, chunked_loss, flash_attention_2, flash_attention_3, cudnn_attention, sdpa,
            channels_last, cuda_graphs.
        deadline_hours: Also recommend the cheapest GPU that finishes within this many hours.
        max_usd: Exit with 1 if the run costs more than this on the cheapest GPU, or its cost is unknown; for CI.
        usd_per_hour: Your own price of one GPU per hour, for all GPUs or by name (L4=0.5,H100=2).
        spot: Use spot prices if they are below the on-demand prices.
        batch_size: Of a model, samples of a step (default: 1).
        length: Of a model, tokens of a sequence.
        precision: Of a model, Lightning's name of a precision (default: bf16-mixed; with --lora bf16-true).
        lora: Of a model, rank of LoRA's adapters (default: train all parameters). Needs PEFT.
        quantization: With --lora, linear layers in 4 bits as in QLoRA, by bitsandbytes and PEFT.
        checkpointing: Of a model, recompute activations in the backward pass.
        optimizer: Of a model: adamw (default), adam, sgd, muon, or bitsandbytes' adamw_8bit, paged_adamw_8bit,
            paged_adamw_32bit.
        columns: Add columns, separated by commas: samples_per_second, tokens_per_second, mfu (model FLOP utilisation).
        verbose: Also print the methods, the sources of prices and every note.
        output: Write files instead of printing, separated by commas, by suffix: .html (needs no network), .md, .json,
            or .yaml, a SkyPilot task that rents the recommended GPU.
    """
    given = dict(locals())
    from lightning_predict.cli.findings import answer, findings_of, output_paths, separated, with_files
    from lightning_predict.fusion.options import check_kernels
    from lightning_predict.machine_profile import parse_prices, read_machine_profile
    from lightning_predict.reports.table_columns import column_names

    outputs, asked = output_paths(output), column_names(separated(columns))
    told = read_machine_profile(profile)
    step, findings = findings_of(
        source,
        {name: given[name] for name in MODEL_OPTIONS},
        told,
        gpus=separated(gpus),
        iterations=iterations,
        strategy=strategy,
        kernels=check_kernels(kernels or ()),
        deadline_hours=deadline_hours,
        prices=told.prices(parse_prices(usd_per_hour), spot=spot),
    )
    findings = replace(findings, command=_as_typed(given), columns=asked)
    if outputs or told.grid is not None:
        findings = findings.with_energy(told.grid, told.pue)
    return answer(with_files(findings, step, outputs), outputs, max_usd=max_usd, verbose=verbose)


MODEL_OPTIONS: Final = ("batch_size", "length", "precision", "lora", "quantization", "checkpointing", "optimizer")
"""Parameters of `predict` that describe the step of a model by name. The profile has others."""


def _as_typed(given: Mapping[str, object]) -> str:
    """Reconstruct the command line of `predict`, without `--output` and `--verbose`."""
    words = ["lightning-predict", "predict", str(given["source"])]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name in ("source", "output", "verbose") or value == inspect.signature(predict).parameters[name].default:
            continue
        words += [option] if value is True else [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)
