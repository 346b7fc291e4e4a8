"""Translates parallel configurations of other projects (Megatron, NeMo, torchtitan, DeepSpeed) to strategy texts.

The result is a text for `parse_strategy`. Supported are arguments of Megatron and NeMo (also in a shell script),
torchtitan's TOML files, DeepSpeed's JSON files, YAML files of accelerate, axolotl, Hugging Face's Trainer and gpt-neox,
and strategy objects of Lightning. An option that affects parallelism and has no equivalent raises an error. Other
options (model, logging, data, learning rates) are ignored. Example::

    >>> strategy_of_arguments("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel")
    'ddp,tensor=8,pipeline=4,sequence=true,gather_again=true,overlap_grad_reduce=false'

    parse_strategy("train_configs/llama3_70b.toml")  # the file for torchtitan's --job.config_file
    parse_strategy("ds_config.json")
    parse_strategy(ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=8))  # or Fabric's
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lightning_predict.base.checked import read_json, read_text, read_toml, read_yaml, shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.layouts.config_values import (
    batch_options,
    list_unused,
    options_table,
    refused,
    whole,
)
from lightning_predict.layouts.deepspeed_config import options_of_deepspeed, unused_keys
from lightning_predict.layouts.shell_arguments import arguments_of_script
from lightning_predict.layouts.yaml_configs import options_of_yaml

# --- Command-line arguments

_NUMBERS: Final[Mapping[str, str]] = {
    "tensor-model-parallel-size": "tensor",
    "pipeline-model-parallel-size": "pipeline",
    "context-parallel-size": "context",
    "expert-model-parallel-size": "expert",
    "expert-tensor-parallel-size": "expert_tensor",
    "moe-expert-capacity-factor": "capacity",
    "virtual-pipeline-model-parallel-size": "virtual",
    "decoder-first-pipeline-num-layers": "first_stage",
    "decoder-last-pipeline-num-layers": "last_stage",
    "accumulate": "accumulate",
    "accumulate-grad-batches": "accumulate",
}
"""Options with a number, by their name in Megatron or NeMo."""

_FLAGS: Final[Mapping[str, str]] = {
    "sequence-parallel": "sequence=true,gather_again=true",
    "overlap-param-gather": "overlap_param_gather=true",
    "tp-comm-overlap": "overlap_tensor=true",
    "optimizer-cpu-offload": "offload=optimizer",
}
"""Boolean options. `overlap-grad-reduce` is handled separately, because it is on by default here, but off in
Megatron."""

_SHARING: Final = ("parallel", "pipeline", "recompute", "overlap", "offload", "fp8", "expert", "distributed", "fsdp")
"""Arguments with one of these substrings affect parallelism, communication or recomputation."""

_BATCHES: Final = ("global-batch-size", "micro-batch-size")

_WITHOUT_EFFECT: Final = frozenset(
    "distributed-backend distributed-timeout-minutes no-check-for-nan-in-loss-and-grad ckpt-fully-parallel-save "
    "ckpt-fully-parallel-load dist-ckpt-format no-async-tensor-model-parallel-allreduce "
    "num-experts moe-shared-expert-intermediate-size moe-router-enable-expert-bias".split()
)
"""Arguments with a substring of `_SHARING` that describe the recorded model or hardly affect predictions."""

_NOTHING: Final = frozenset({"none", "null", "false"})

_CHOICES: Final[Mapping[str, Mapping[str, str]]] = {
    "recompute-granularity": {"full": "recompute=full", "selective": "recompute=selective"},
    "recompute-method": {"uniform": ""},
    "recompute-num-layers": {"1": ""},
    "fp8-recipe": {"tensorwise": "fp8=tensorwise", "delayed": "fp8=tensorwise", "blockwise": "fp8=blockwise"},
}


def strategy_of_arguments(text: str) -> str:
    """Translate command-line arguments to the text of a strategy.

    Args:
        text: Arguments, for example `--tensor-model-parallel-size 8 --sequence-parallel`, or in NeMo's notation
            `model.tensor_model_parallel_size=8`.

    Raises:
        InvalidArgumentError: An argument about parallelism has no equivalent, a batch size is given, or a value is
            missing or invalid.
    """
    words, options, data, overlaps = text.replace("=", " ").split(), list[str](), "ddp", False
    batches: dict[str, int] = {}
    while words:
        name = words.pop(0)
        known = _argument(name)
        if known in _NUMBERS:
            number = _value(name, words)
            if number.lower() in _NOTHING:
                continue
            is_degree_of_one = number in ("1", "1.0") and not known.startswith(("decoder-", "expert-tensor-"))
            options += [] if is_degree_of_one else [f"{_NUMBERS[known]}={number}"]
        elif known in _CHOICES:
            value = _value(name, words)
            if value not in _CHOICES[known]:
                raise InvalidArgumentError(
                    f"strategy: {name} {value}; expected {' or '.join(_CHOICES[known])}, which have a word here."
                )
            options += [_CHOICES[known][value]] if _CHOICES[known][value] else []
        elif known in _FLAGS:
            options += [_FLAGS[known]] * _is_set(words)
        elif known == "use-distributed-optimizer":
            data = "zero1" if _is_set(words) else data
        elif known == "overlap-grad-reduce":
            overlaps = _is_set(words)
        elif known in _BATCHES:
            number = _value(name, words)
            batches[known] = whole(int(number) if number.isdigit() else number, text[:40], name)
        elif known == "rampup-batch-size":
            raise InvalidArgumentError(f"strategy: {name} changes the batch during the run; leave it out.")
        elif known in _WITHOUT_EFFECT:
            continue
        elif (name.startswith("-") or f"{name}=" in text) and any(part in known for part in _SHARING):
            understood = ", ".join((*_NUMBERS, *_CHOICES, *_FLAGS, "use-distributed-optimizer", "overlap-grad-reduce"))
            raise InvalidArgumentError(
                f"strategy: the argument {name} has no word here, so that it would not be predicted; leave it out, or "
                f"say the sharing as 'fsdp,tensor=8'. Understood are {understood}."
            )
    if not any(option.startswith("tensor=") for option in options):  # Megatron ignores the flag then
        options = [option for option in options if option != _FLAGS["sequence-parallel"]]
    total, micro = (batches.get(name) for name in _BATCHES)
    options += batch_options(
        total=total, micro=micro, accumulated=None, path="arguments", names=(*_BATCHES, "accumulate")
    )
    if any(option.startswith("expert=") for option in options):  # one launch per expert, grouped or not
        options.append("expert_launches=true")
    options += [] if overlaps else ["overlap_grad_reduce=false"]
    return ",".join([data, *options])


def strategy_of_foreign(words: str | object) -> str:
    """Translate another project's arguments, file or object to a strategy text; return other texts unchanged.

    Raises:
        InvalidArgumentError: An error of `strategy_of_arguments`, `strategy_of_file` or `strategy_of_object`.
    """
    if not isinstance(words, str):
        return strategy_of_object(words)
    if not words.isalnum() and are_arguments(words):
        return strategy_of_arguments(words)
    if "=" not in words and words.strip().endswith(FILES):  # an argument may contain a file name
        return strategy_of_file(words)
    return words


def are_arguments(text: str) -> bool:
    """Return whether a text consists of command-line arguments, not of a strategy."""
    first = text.replace("=", " ").split()[:1]
    return text.lstrip().startswith("--") or any(_argument(one) in {*_NUMBERS, *_FLAGS, *_CHOICES} for one in first)


def _argument(name: str) -> str:
    """Return an argument's name in Megatron's spelling, without leading hyphens and NeMo's prefixes."""
    return name.lstrip("-+").rpartition(".")[2].replace("_", "-")


def _is_set(words: list[str]) -> bool:
    """Return whether a flag is on: `false` after the flag switches it off."""
    if words and words[0].lower() in ("true", "false"):
        return words.pop(0).lower() == "true"
    return True


def _value(name: str, words: list[str]) -> str:
    """Remove the value of an argument from the list, and return the value."""
    if not words or words[0].startswith("--"):
        raise InvalidArgumentError(f"strategy: {name} has no value; expected one behind it.")
    return words.pop(0)


# --- Files

TORCHTITAN_NUMBERS: Final[Mapping[str, str]] = {
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
    "context_parallel_degree": "context",
    "expert_parallel_degree": "expert",
}

TORCHTITAN_SCHEDULES: Final[Mapping[str, str]] = {
    "1f1b": "1f1b",
    "interleaved1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleavedzerobubble": "zero_bubble",
    "zbvzerobubble": "zero_bubble",
}

TORCHTITAN_PASSED_OVER: Final = frozenset(
    "disable_loss_parallel enable_async_tensor_parallel enable_compiled_autograd fsdp_reshard_after_forward "
    "pipeline_parallel_microbatch_size pipeline_parallel_layers_per_stage pipeline_parallel_schedule "
    "data_parallel_shard_degree data_parallel_replicate_degree context_parallel_rotate_method".split()
)
"""Keys of `[parallelism]` that `_of_torchtitan` reads, or that do not affect predictions."""


FILES: Final = (".toml", ".json", ".yaml", ".yml", ".sh")
"""Suffixes of the files that are read."""


def strategy_of_file(path: str) -> str:
    """Translate a configuration file to the text of a strategy.

    Raises:
        InvalidArgumentError: The file does not exist, or an option has no equivalent.
    """
    file = Path(path.strip())
    try:
        if file.suffix == ".sh":
            return strategy_of_arguments(arguments_of_script(read_text(file, InvalidArgumentError), path))
        read = {".toml": read_toml, ".json": read_json}.get(file.suffix, read_yaml)
        found = read(file, InvalidArgumentError).value
    except OSError as error:
        raise InvalidArgumentError(f"strategy={path!r} cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"strategy={path!r} holds no table of options; expected keys and values.")
    if file.suffix == ".toml":
        return ",".join(_of_torchtitan(found, path))
    if file.suffix != ".json":
        return ",".join(options_of_yaml(found, path))
    words = options_of_deepspeed(found, path)
    list_unused(path, unused_keys(found))
    return ",".join(words)


def _of_torchtitan(found: Mapping[str, Any], path: str) -> list[str]:
    sharing = options_table(found, "parallelism", path)
    unknown = set(sharing) - set(TORCHTITAN_NUMBERS) - TORCHTITAN_PASSED_OVER
    if unknown:
        raise refused(path, f"parallelism.{min(unknown)}", sharing[min(unknown)])
    numbers = {key: whole(sharing.get(key, 1), path, f"parallelism.{key}") for key in TORCHTITAN_NUMBERS}
    replicas = whole(
        sharing.get("data_parallel_replicate_degree", 1), path, "parallelism.data_parallel_replicate_degree"
    )
    shard = sharing.get("data_parallel_shard_degree", -1)
    data = ["ddp"] if shard == 1 else ["fsdp"]
    if replicas > 1 and shard != 1:
        data = ["hybrid"] if shard == -1 else ["hybrid", f"shard={whole(shard, path, 'data_parallel_shard_degree')}"]
    if shard != -1:  # -1 means all remaining GPUs
        data.append(f"groups={replicas * whole(shard, path, 'parallelism.data_parallel_shard_degree')}")
    words = [*data, *(f"{TORCHTITAN_NUMBERS[key]}={number}" for key, number in numbers.items() if number > 1)]
    if numbers["tensor_parallel_degree"] > 1:
        words.append("sequence=true")
        words += ["overlap_tensor=true"] * bool(sharing.get("enable_async_tensor_parallel", False))
    if numbers["pipeline_parallel_degree"] > 1:
        schedule = str(sharing.get("pipeline_parallel_schedule", "1F1B"))
        if schedule.lower() not in TORCHTITAN_SCHEDULES:
            raise refused(path, "parallelism.pipeline_parallel_schedule", schedule)
        word = TORCHTITAN_SCHEDULES[schedule.lower()]
        is_interleaved = schedule.lower() not in ("1f1b", "gpipe")
        layers = sharing.get("pipeline_parallel_layers_per_stage")
        if is_interleaved and layers is not None:
            raise InvalidArgumentError(
                f"strategy={path!r}: parallelism.pipeline_parallel_layers_per_stage = {layers!r}: how many stages that "
                "makes of each GPU depends on the model. Leave it out for two, or say the sharing in words, with "
                "virtual= layers of the model / (pipeline x layers of a stage)."
            )
        words += ["virtual=2"] * is_interleaved
        words += [f"schedule={word}"] * (word != "1f1b")
        words += _micro_batches(sharing, options_table(found, "training", path).get("local_batch_size"), path)
    checkpointing = options_table(found, "activation_checkpoint", path)
    words += _recomputed(
        str(checkpointing.get("mode", "selective")), str(checkpointing.get("selective_ac_option", "2")), path
    )
    quantized = {
        **options_table(found, "float8", path),
        **options_table(found.get("quantize", {}).get("linear", {}), "float8", path),
    }
    converters = options_table(found, "model", path).get("converters", [])
    if "float8" in converters or "quantize.linear.float8" in converters:
        recipe = quantized.get("recipe_name", "tensorwise")
        words.append("fp8=tensorwise" if recipe == "tensorwise" else "fp8=rowwise")
    if any("mx" in str(one) for one in converters):
        words.append("fp8=mx")
    reduced = options_table(found, "training", path).get("mixed_precision_reduce", "float32")
    return [*words, *([f"reduce_dtype={reduced}"] if words[0] != "ddp" else [])]


def _micro_batches(sharing: Mapping[str, Any], batch: Any, path: str) -> list[str]:
    """Return a pipeline's number of micro-batches (default: one sample each); empty without a batch size."""
    if batch is None:
        return []
    own = whole(
        sharing.get("pipeline_parallel_microbatch_size", 1), path, "parallelism.pipeline_parallel_microbatch_size"
    )
    samples = whole(batch, path, "training.local_batch_size")
    if samples % own:
        raise InvalidArgumentError(
            f"strategy={path!r}: parallelism.pipeline_parallel_microbatch_size={own} does not divide "
            f"training.local_batch_size={samples}, as torchtitan asks."
        )
    return [f"micro_batches={samples // own}"]


def _recomputed(mode: str, option: str, path: str) -> list[str]:
    """Translate torchtitan's `[activation_checkpoint]`, which selects operations or every n-th layer."""
    if mode in ("none", "full"):
        return [] if mode == "none" else ["recompute=full"]
    known = {"op": ["recompute=operations"], "2": ["recompute=layers"], "1": ["recompute=full"]}
    if mode != "selective" or option not in known:
        raise refused(path, "activation_checkpoint", f"{mode} {option}")
    return known[option]


# --- Lightning's objects

_SHARDED: Final[Mapping[str, str]] = {
    "FULL_SHARD": "fsdp",
    "SHARD_GRAD_OP": "zero2",
    "HYBRID_SHARD": "hybrid",
    "NO_SHARD": "ddp",
}
"""Strategies by torch's `ShardingStrategy`."""


def strategy_of_object(found: object) -> str:
    """Translate a strategy object of Lightning or Fabric to text.

    DDP, FSDP, model parallelism and DeepSpeed are supported, including subclasses. Classes are recognized by name,
    because two packages define them and some need an extra to import.

    Raises:
        InvalidArgumentError: The object has another type, or an option has no equivalent.
    """
    names = [parent.__name__ for parent in type(found).__mro__]
    name = names[0]
    if "DeepSpeedStrategy" in names:
        return ",".join(options_of_deepspeed(getattr(found, "config", None) or {}, name))
    if "FSDPStrategy" in names:
        return ",".join(_of_fsdp(found, name))
    if "ModelParallelStrategy" in names:
        return ",".join(_of_model_parallel(found, name))
    if "DDPStrategy" in names:
        bucket = getattr(found, "_ddp_kwargs", {}).get("bucket_cap_mb")
        return "ddp" if bucket is None else f"ddp,bucket_cap_mb={bucket}"
    raise InvalidArgumentError(
        f"strategy={shown(found)} is not a string such as 'ddp', a Strategy, or a Lightning strategy for several "
        "GPUs (DDP, FSDP, ModelParallel, DeepSpeed)."
    )


def _of_fsdp(found: Any, name: str) -> list[str]:
    sharding = getattr(found, "sharding_strategy", None)
    sharded = str(getattr(sharding, "name", sharding or "FULL_SHARD")).upper()
    if sharded not in _SHARDED:
        raise refused(name, "sharding_strategy", sharded)
    if getattr(getattr(found, "cpu_offload", None), "offload_params", False):
        raise refused(name, "cpu_offload", True)
    if getattr(found, "_activation_checkpointing_kwargs", None):
        raise InvalidArgumentError(
            f"strategy={name!r}: which modules activation_checkpointing_policy computes again is known when they are "
            "wrapped; leave it out, and say 'fsdp,recompute=full' or record the step with it."
        )
    options = getattr(found, "kwargs", None) or getattr(found, "_fsdp_kwargs", None) or {}  # in Lightning, in Fabric
    words, mesh = [_SHARDED[sharded]], options.get("device_mesh")
    if words == ["hybrid"] and isinstance(mesh, tuple):  # (number of replicas, GPUs that share one copy)
        words += [f"shard={mesh[1]}", f"groups={mesh[0] * mesh[1]}"]
    mixed = getattr(found, "mixed_precision", None)
    for option in ("param_dtype", "reduce_dtype"):
        dtype = getattr(mixed, option, None)
        words += [] if dtype is None or words[0] == "ddp" else [f"{option}={str(dtype).removeprefix('torch.')}"]
    return words


def _of_model_parallel(found: Any, name: str) -> list[str]:
    """Translate FSDP 2 with tensor parallelism; sizes must not be `auto`, which is resolved only at run time."""
    sizes = {part: getattr(found, f"_{part}_parallel_size", None) for part in ("data", "tensor")}
    tensor = sizes["tensor"]
    if tensor == "auto":
        raise InvalidArgumentError(
            f"strategy={name!r}: tensor_parallel_size is 'auto', the GPUs of the machine that it runs in; write the "
            "number, as other machines may have more."
        )
    for part, size in sizes.items():
        if size != "auto":
            whole(size, name, f"{part}_parallel_size")
    words = ["fsdp"] if tensor == 1 else ["fsdp", f"tensor={tensor}"]
    return words if sizes["data"] == "auto" else [*words, f"groups={sizes['data']}"]
