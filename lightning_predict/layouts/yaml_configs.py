"""Translates YAML of accelerate, axolotl, Hugging Face's Trainer and gpt-neox to options of a strategy.

Keys about parallelism, recomputation or offloading are translated, or raise an error. Other keys (model, data,
precision) describe the step, which is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lightning_predict.base.checked import read_json
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.records import DTYPE_WORDS
from lightning_predict.layouts.config_values import (
    batch_options,
    is_on,
    list_unused,
    options_table,
    refused,
    whole,
    whole_if_given,
)
from lightning_predict.layouts.deepspeed_config import options_of_deepspeed

FSDP_SHARDING: Final[Mapping[str, str]] = {
    "FULL_SHARD": "fsdp",
    "SHARD_GRAD_OP": "zero2",
    "NO_SHARD": "ddp",
    "HYBRID_SHARD": "hybrid",
    "1": "fsdp",
    "2": "zero2",
    "3": "ddp",
    "4": "hybrid",
}
"""Strategies by names and numbers of torch's `ShardingStrategy`."""

FSDP_WITHOUT_EFFECT: Final = frozenset(
    "version auto_wrap_policy transformer_layer_cls_to_wrap min_num_params backward_prefetch backward_prefetch_policy "
    "forward_prefetch state_dict_type final_state_dict_type cpu_ram_efficient_loading sync_module_states "
    "use_orig_params sharding_strategy reshard_after_forward limit_all_gathers ignored_modules xla".split()
)
"""Keys of `fsdp_config`, without the prefix `fsdp_`, that are read below or hardly affect predictions."""

MIXED: Final = ("bf16", "fp16")


MEGATRON_KEYS: Final = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "context_parallel_size", "sequence_parallel", "use_distributed_optimizer"),
    *("overlap_param_gather", "overlap_grad_reduce", "recompute_granularity", "recompute_method"),
    *("recompute_num_layers", "moe_expert_capacity_factor", "tp_comm_overlap", "optimizer_cpu_offload"),
)
"""Arguments of Megatron that LLaMA-Factory takes as keys; the first four tell its files from others."""

_USED: Final = frozenset(
    "distributed_type mixed_precision bf16 fp16 fsdp fsdp_config deepspeed deepspeed_config micro_batch_size "
    "per_device_train_batch_size partition_activations "
    "gradient_accumulation_steps tensor_parallel_size context_parallel_size sequence_parallel_degree dp_shard_size "
    "pipe_parallel_size model_parallel_size sequence_parallel checkpoint_activations checkpoint_num_layers "
    "zero_optimization train_batch_size train_micro_batch_size_per_gpu communication_data_type".split()
).union(MEGATRON_KEYS, ("expert_parallel_size", "dp_replicate_size"))
"""Keys that the functions below read."""


def options_of_yaml(found: Mapping[str, Any], path: str) -> list[str]:
    """Translate a YAML configuration to options of a strategy; its keys determine the project.

    Raises:
        InvalidArgumentError: No supported project uses these keys, or an option has no equivalent.
    """
    plain = {str(key).replace("-", "_"): value for key, value in found.items()}
    for keys, translate in _PROJECTS.items():
        if any(key in plain for key in keys):
            words = translate(plain, path)
            unused = {key: value for key, value in plain.items() if key not in _USED and is_on(value)}
            for key, value in unused.items():
                if key.endswith("parallel_size") or "offload" in key or value == "offload":
                    raise refused(path, key, value)
            list_unused(path, unused)
            return words
    raise InvalidArgumentError(
        f"strategy={path!r} is no YAML of accelerate, axolotl, Hugging Face's Trainer or gpt-neox: it has none of "
        f"{', '.join(key for keys in _PROJECTS for key in keys)}. Say the sharing as 'fsdp,tensor=8'."
    )


def _of_accelerate(found: Mapping[str, Any], path: str) -> list[str]:
    kind = str(found.get("distributed_type", "NO")).upper()
    if str(found.get("mixed_precision")) == "fp8":
        raise refused(path, "mixed_precision", "fp8")
    if is_on(options_table(found, "dynamo_config", path).get("dynamo_backend")):
        raise refused(path, "dynamo_config.dynamo_backend", found["dynamo_config"]["dynamo_backend"])
    for key in ("megatron_lm_config", "parallelism_config", "fp8_config", "tp_config"):
        if is_on(found.get(key)):
            raise refused(path, key, found[key])
    if kind == "FSDP":
        precision = found.get("mixed_precision")
        mixed = DTYPE_WORDS[precision] if precision in MIXED else None
        return _of_fsdp(options_table(found, "fsdp_config", path), path, mixed=mixed)
    if kind == "DEEPSPEED":
        return _of_accelerates_deepspeed(options_table(found, "deepspeed_config", path), path)
    if kind not in ("NO", "MULTI_GPU"):
        raise refused(path, "distributed_type", kind)
    return ["ddp"]


def _of_fsdp(options: Mapping[str, Any], path: str, *, mixed: str | None) -> list[str]:
    """Translate `fsdp_config`, whose keys may have the prefix `fsdp_`.

    Args:
        options: The table `fsdp_config`.
        path: The file, for error messages.
        mixed: dtype in which parameters are gathered and gradients are reduced; None for the recorded dtypes.
    """
    own = {str(key).removeprefix("fsdp_"): value for key, value in options.items()}
    words = [_fsdp_kind(own, path)]
    for key, value in own.items():
        if key == "activation_checkpointing":
            words += ["recompute=full"] * bool(value)
        elif key not in FSDP_WITHOUT_EFFECT and is_on(value):
            raise refused(path, f"fsdp_config.{key}", value)
    if mixed is not None and words[0] != "ddp":
        words += [f"param_dtype={mixed}"] * (words[0] != "zero2") + [f"reduce_dtype={mixed}"]
    return words


def _fsdp_kind(own: Mapping[str, Any], path: str) -> str:
    """Return the sharding strategy, from `reshard_after_forward` of FSDP 2 or `sharding_strategy` of FSDP 1."""
    reshard = own.get("reshard_after_forward")
    if isinstance(reshard, bool):
        return "fsdp" if reshard else "zero2"
    named = str(own.get("sharding_strategy", reshard or "FULL_SHARD")).upper()
    if named not in FSDP_SHARDING:
        raise refused(path, "fsdp_config.sharding_strategy", named)
    return FSDP_SHARDING[named]


def _of_accelerates_deepspeed(own: Mapping[str, Any], path: str) -> list[str]:
    """Translate accelerate's `deepspeed_config`: the name of a DeepSpeed file, or DeepSpeed options."""
    if "deepspeed_config_file" in own:
        return _of_deepspeed_file(str(own["deepspeed_config_file"]), path)
    zero: dict[str, Any] = {"stage": own.get("zero_stage", 2)}
    for name in ("offload_optimizer", "offload_param"):
        zero[name] = {"device": own.get(f"{name}_device", "none")}
    return options_of_deepspeed(
        {"zero_optimization": zero, "gradient_accumulation_steps": own.get("gradient_accumulation_steps", "auto")}, path
    )


def _of_deepspeed_file(name: str, path: str) -> list[str]:
    """Translate the DeepSpeed file that a YAML file names, from the file's folder, the current folder or a parent."""
    folder = Path(path).resolve().parent
    places = [one / name for one in (folder, Path.cwd(), *folder.parents)]
    file = next((one for one in places if one.is_file()), None)
    if file is None:
        raise InvalidArgumentError(f"strategy={path!r} names {name}, which is neither beside it nor in a folder above.")
    found = read_json(file, InvalidArgumentError).mapping()
    return options_of_deepspeed(found, str(file))


def _of_trainer(found: Mapping[str, Any], path: str) -> list[str]:
    """Translate axolotl's YAML or arguments of Hugging Face's Trainer, which share most keys."""
    micro_key = "micro_batch_size" if "micro_batch_size" in found else "per_device_train_batch_size"
    micro = whole_if_given(found.get(micro_key), path, micro_key)
    accumulated = whole_if_given(found.get("gradient_accumulation_steps"), path, "gradient_accumulation_steps")
    names = ("train_batch_size", micro_key, "gradient_accumulation_steps")
    batches = batch_options(total=None, micro=micro, accumulated=accumulated, path=path, names=names)
    if any(key in found for key in MEGATRON_KEYS[:4]):
        return [*_of_megatron(found), *batches]
    degrees = _degrees(found, path)
    if is_on(found.get("fp8")):
        raise refused(path, "fp8", found["fp8"])
    if is_on(found.get("deepspeed")):
        if degrees:
            key = next(one for one in _DEGREES if is_on(found.get(one)))
            raise refused(path, key, found[key])
        return _merged(_of_deepspeed_file(str(found["deepspeed"]), path), batches)
    mixed = next((DTYPE_WORDS[key] for key in MIXED if found.get(key) in (True, "auto", "full")), None)
    fsdp = found.get("fsdp")
    asked = " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp or "")
    if not asked and not found.get("fsdp_config"):
        return [("fsdp" if "dp_shard_size" in found else "ddp"), *degrees, *batches]
    options = dict(options_table(found, "fsdp_config", path))
    first = next((one for one in asked.split() if one.upper() in FSDP_SHARDING), None)
    if first is not None and "fsdp_sharding_strategy" not in options:
        options.setdefault("sharding_strategy", first)
    if "offload" in asked.split():
        raise refused(path, "fsdp", fsdp)
    return [*_of_fsdp(options, path, mixed=mixed), *degrees, *batches]


def _of_megatron(found: Mapping[str, Any]) -> list[str]:
    """Translate Megatron's arguments among a trainer's keys; a pipeline's micro-batches are accumulated batches."""
    from lightning_predict.layouts.external_configs import strategy_of_arguments

    given = [
        f"--{key.replace('_', '-')} {str(found[key]).lower()}" for key in MEGATRON_KEYS if found.get(key) is not None
    ]
    words = strategy_of_arguments(" ".join(given)).split(",")
    return [*words, *(["micro_batches=1"] if any(word.startswith("pipeline=") for word in words) else [])]


_DEGREES: Final = {
    "tensor_parallel_size": "tensor",
    "context_parallel_size": "context",
    "sequence_parallel_degree": "context",
}


def _degrees(found: Mapping[str, Any], path: str) -> list[str]:
    """Translate the degrees of tensor and context parallelism."""
    words = []
    for key, word in _DEGREES.items():
        number = whole_if_given(found.get(key), path, key) or 1
        words += [f"{word}={number}"] * (number > 1)
    for key in ("expert_parallel_size", "dp_replicate_size"):
        if is_on(found.get(key)) and found[key] != 1:
            raise refused(path, key, found[key])
    return words


def _merged(words: list[str], batches: list[str]) -> list[str]:
    """Return the options of a DeepSpeed file, with the batch sizes that the trainer fills in for `auto`."""
    given = {word.partition("=")[0] for word in words}
    return [*words, *(word for word in batches if word.partition("=")[0] not in given)]


def _of_neox(found: Mapping[str, Any], path: str) -> list[str]:
    """Translate gpt-neox's YAML: DeepSpeed's keys and Megatron's degrees."""
    own = {key: value for key, value in found.items() if key not in ("pipeline", "activation_checkpointing")}
    words = options_of_deepspeed(own, path)
    tensor = whole(found.get("model_parallel_size", 1), path, "model-parallel-size")
    pipeline = whole(found.get("pipe_parallel_size") or 1, path, "pipe-parallel-size")
    words += [f"tensor={tensor}"] * (tensor > 1)
    words += [f"pipeline={pipeline}", "micro_batches=1"] if pipeline > 1 else []
    if found.get("sequence_parallel") and tensor > 1:
        words += ["sequence=true", "gather_again=true"]
    if found.get("checkpoint_activations"):
        if found.get("checkpoint_num_layers", 1) != 1:
            raise refused(path, "checkpoint-num-layers", found["checkpoint_num_layers"])
        if found.get("partition_activations") and tensor > 1:
            raise refused(path, "partition-activations", True)
        words.append("recompute=full")
    for key in ("moe_num_experts", "context_parallel_size"):
        if is_on(found.get(key)) and found[key] != 1:
            raise refused(path, key.replace("_", "-"), found[key])
    return words


_PROJECTS: Final[Mapping[tuple[str, ...], Callable[[Mapping[str, Any], str], list[str]]]] = {
    ("pipe_parallel_size", "model_parallel_size"): _of_neox,
    ("distributed_type",): _of_accelerate,
    ("micro_batch_size", "per_device_train_batch_size", "deepspeed", "fsdp", "fsdp_config"): _of_trainer,
}
"""Functions that translate a file, by keys that identify the project; the first match counts."""
