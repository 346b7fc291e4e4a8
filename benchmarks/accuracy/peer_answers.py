"""What estimators of other projects answer for runs on standard input; `peers` runs it in their Python."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]  # Bytes of memory and seconds of a step, as far as the tool says them; or why it refuses


def fitcheck(run: dict[str, Any]) -> Answer:
    """Ask fitcheck-llm for the memory of the process."""
    from fitcheck import config_parser, estimator, gpu_db

    raw = run["config"]
    fields = config_parser._parse_fields(raw)
    shape = {name: getattr(fields, name) for name in type(fields).__dataclass_fields__}
    config = config_parser.ModelConfig(name=run["model"], num_params=config_parser._count_params(fields), **shape)
    training = estimator.TrainingConfig(
        precision="fp16" if run["gpu"] == "T4" else "bf16",
        quantization="nf4" if run["quantization"] else "none",
        double_quant=run["quantization"] == "nf4-double",
        optimizer="adam8bit" if "8bit" in run["optimizer"] else "adamw",
        batch_size=run["batch"],
        seq_len=run["length"],
        lora_rank=run["rank"],
        lora_targets=list(run["targets"]),
        grad_checkpoint=True,
        flash_attn=True,
    )
    card = {"T4": "t4", "A100-SXM-80GB": "a100-80"}.get(run["gpu"])
    gpu = gpu_db.get_gpu(card) if card else gpu_db.get_gpu(None, 16384)
    return {"memory": estimator.estimate(config, training, gpu).total_mib * 2**20}


def ftuneai(run: dict[str, Any]) -> Answer:
    """Ask ftuneai for memory and time."""
    import ftuneai.estimator as module
    from ftuneai.core.models import ModelSpec

    raw = run["config"]
    heads, width = raw["num_attention_heads"], raw["hidden_size"]
    keys = raw.get("num_key_value_heads", heads)
    head = raw.get("head_dim") or width // heads
    attention = width * head * (2 * heads + 2 * keys)
    blocks = raw["num_hidden_layers"] * (attention + 3 * width * raw["intermediate_size"])
    embeddings = raw["vocab_size"] * width * (1 if raw.get("tie_word_embeddings") else 2)
    spec = ModelSpec(
        name=run["model"],
        parameters=blocks + embeddings,
        hidden_size=width,
        num_layers=raw["num_hidden_layers"],
        num_attention_heads=heads,
        num_kv_heads=keys,
        intermediate_size=raw["intermediate_size"],
        vocab_size=raw["vocab_size"],
        max_seq_length=32768,
    )
    module.get_model = lambda _: spec  # the run's dimensions instead of its own list's
    estimate = module.Estimator(
        model=run["model"],
        method="qlora" if run["quantization"] else "lora",
        quantization="4bit" if run["quantization"] else "none",
        batch_size=run["batch"],
        seq_length=run["length"],
        lora_rank=run["rank"],
        lora_target="all_linear" if len(run["targets"]) > 4 else "attention_all",
        optimizer="adam_8bit" if "8bit" in run["optimizer"] else "adamw",
        flash_attention=True,
    )
    card = {"T4": "T4-16GB", "A100-SXM-80GB": "A100-80GB", "RTX-4080": "RTX-4080-16GB"}[run["gpu"]]
    steps = 1_000_000  # its hours are rounded
    took = estimate.estimate_time(gpu=card, dataset_size=steps * run["batch"], epochs=1)
    return {"memory": estimate.estimate_memory().total_gb * 2**30, "seconds": took.total_hours * 3600 / steps}


def canifinetune(run: dict[str, Any]) -> Answer:
    """Ask canifinetune for the reserved memory."""
    from canifinetune.estimator.memory import EstimateRequest, estimate

    total = {"T4": 16, "A100-SXM-80GB": 80, "RTX-4080": 16}[run["gpu"]]
    request = EstimateRequest(
        model_id=run["model"],
        method="qlora" if run["quantization"] else "lora",
        gpu_vram_gb=total,
        seq_len=run["length"],
        micro_batch_size=run["batch"],
        lora_rank=run["rank"],
        lora_target_scope="all_linear" if len(run["targets"]) > 4 else "attention",
        quantization="nf4_double_quant" if run["quantization"] else "none",
        base_dtype="fp16" if run["gpu"] == "T4" else "bf16",
        optimizer=run["optimizer"] if "8bit" in run["optimizer"] else "adamw_torch",
        override=dict(run["config"]),
        use_network=False,
    )
    return {"memory": estimate(request).memory.total_estimated_gb * 2**30}


def soup(run: dict[str, Any]) -> Answer:
    """Ask soup-cli's profile for memory and time; its rate is that of one kind of GPU, whichever runs."""
    from soup_cli.utils.gpu import model_size_from_name
    from soup_cli.utils.profiler import estimate_speed, estimate_total

    billions = model_size_from_name(run["model"])
    quantization = "4bit" if run["quantization"] else "none"
    told = estimate_total(
        model_name=run["model"],
        model_params_b=billions,
        quantization=quantization,
        lora_r=run["rank"],
        lora_alpha=2 * run["rank"],
        batch_size=run["batch"],
        seq_len=run["length"],
        optimizer=run["optimizer"],
        gradient_checkpointing=True,
    )
    tokens = run["batch"] * run["length"]
    seconds = tokens / estimate_speed(billions, quantization, run["batch"])
    return {"memory": told["total_memory_gb"] * 2**30, "seconds": seconds}


def answers(runs: list[dict[str, Any]]) -> list[dict[str, Answer]]:
    """Ask each tool about each run."""
    tools: tuple[Callable[[dict[str, Any]], Answer], ...] = (fitcheck, ftuneai, canifinetune, soup)
    replies = []
    for run in runs:
        told: dict[str, Answer] = {}
        for ask in tools:
            began = time.perf_counter()
            try:
                with contextlib.redirect_stderr(None), contextlib.redirect_stdout(None):
                    answer = ask(run)
            except Exception as error:  # a tool may refuse a model, a GPU or a method in words of its own
                answer = {"refused": f"{type(error).__name__}: {error}"}
            told[ask.__name__] = {**answer, "took": time.perf_counter() - began}
        replies.append(told)
    return replies


if __name__ == "__main__":
    json.dump(answers(json.load(sys.stdin)), sys.stdout)
