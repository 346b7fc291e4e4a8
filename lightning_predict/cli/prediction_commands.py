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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lightning_predict.base.answers import CommandAnswer
from lightning_predict.base.model_options import NO_OPTIONS, ModelOptions


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
    model: ModelOptions = NO_OPTIONS,
    verbose: bool = False,
    save_trace: Path | None = None,
    output: str | None = None,
) -> CommandAnswer:
    """Predict a training step on GPUs: time, cost, memory, and which GPU to rent.

    Record the step with `lightning_predict.capture(step).save("run.json")`, or name a model.

    Args:
        source: A recorded step, a profile of torch.profiler, example:gpt2, or a model: hf:Qwen/Qwen2.5-7B,
            timm:vit_base_patch16_224, torchvision:resnet50, diffusers:facebook/DiT-XL-2-256, a name alone (gpt2), or
            the path of a config.json or its folder.
        gpus: all, datacenter or consumer (GPUs with a current price; the best are shown), or names of GPUs or
            layouts (8xL4, 2x8xH100), separated by commas.
        iterations: Remaining training steps; without it, times and costs are for 1,000 steps as recorded.
        profile: TOML file with the machines, links, prices and other assumptions.
        strategy: How several GPUs share the work: ddp, zero1, zero2, fsdp, hybrid, with options (fsdp,tensor=8), or
            sharded embedding tables (embedding=auto, embedding=plan.json).
        kernels: What the job runs instead of PyTorch's eager kernels, separated by commas: compile, compile-blocks,
            transformer_engine, liger, chunked_loss, eager_loss (with compile: the loss is not compiled),
            flash_attention_2, flash_attention_3, cudnn_attention, sdpa, channels_last, cuda_graphs.
        deadline_hours: Also recommend the cheapest GPU that finishes within this many hours.
        max_usd: Exit with 1 if the run costs more than this on the cheapest GPU, or its cost is unknown; for CI.
        usd_per_hour: Your own price of one GPU per hour, for all GPUs or by name (L4=0.5,H100=2); spot for spot prices
            where they are below the on-demand prices.
        model: Options of a model by name.
        verbose: Also print the methods, the sources of prices and every note.
        save_trace: Write the step to this file, for example step.json.gz.
        output: Write files instead of printing, separated by commas, by suffix: .html (needs no network), .md, .json,
            or .yaml, a SkyPilot task that rents the recommended GPU.
    """
    given = dict(locals())
    from lightning_predict.cli.findings import answer, findings_of, output_paths, separated, with_files
    from lightning_predict.fusion.options import check_kernels
    from lightning_predict.machine_profile import parse_prices, read_machine_profile
    from lightning_predict.record.sources import step_of_source

    outputs, told = output_paths(output), read_machine_profile(profile)
    is_spot = usd_per_hour == "spot"
    step, findings = findings_of(
        lambda: step_of_source(source, model, save_to=save_trace, **told.model),
        told,
        gpus=separated(gpus),
        iterations=iterations,
        strategy=strategy,
        kernels=check_kernels(kernels or ()),
        deadline_hours=deadline_hours,
        prices=told.prices(None if is_spot else parse_prices(usd_per_hour), spot=is_spot),
    )
    findings = replace(findings, command=_as_typed(given), columns=told.columns)
    if outputs or told.grid is not None:
        findings = findings.with_energy(told.grid, told.pue)
    return answer(with_files(findings, step, outputs), outputs, max_usd=max_usd, verbose=verbose)


def _as_typed(given: Mapping[str, Any]) -> str:
    """Reconstruct the command line of `predict`, without `--output` and `--verbose`."""
    words = ["lightning-predict", "predict", str(given["source"])]
    defaults = {name: one.default for name, one in inspect.signature(predict).parameters.items()} | asdict(NO_OPTIONS)
    for name, value in {**given, **asdict(given["model"])}.items():
        option = f"--{name.replace('_', '-')}"
        if name in ("source", "output", "verbose", "save_trace", "model") or value == defaults[name]:
            continue
        words += [option] if value is True else [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)
