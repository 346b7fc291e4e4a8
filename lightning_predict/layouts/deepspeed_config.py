"""Translates DeepSpeed's JSON to options of a strategy.

`auto` means that the trainer fills a value in from its own arguments; the recorded step has this value already. A key
that changes time or memory and has no equivalent raises an error. One warning lists all other unused keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.records import DTYPE_WORDS
from lightning_predict.layouts.config_values import (
    AUTO,
    batch_options,
    is_on,
    options_table,
    refused,
    whole_if_given,
)

ZERO_WITHOUT_EFFECT: Final = frozenset(
    "stage overlap_comm offload_optimizer offload_param contiguous_gradients reduce_scatter reduce_bucket_size "
    "use_multi_rank_bucket_allreduce allgather_partitions allgather_bucket_size load_from_fp32_weights "
    "elastic_checkpoint sub_group_size prefetch_bucket_size param_persistence_threshold model_persistence_threshold "
    "max_live_parameters max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold "
    "ignore_unused_parameters legacy_stage1 round_robin_gradients memory_efficient_linear override_module_apply "
    "pipeline_loading_checkpoint log_trace_cache_warnings enable_sanity_checks leaf_module".split()
)
"""Keys of `zero_optimization` that are read below or hardly affect predictions, possibly with the prefix `stage3_`.
DeepSpeed itself rejects unknown keys in this table."""

NOT_PREDICTED: Final = (
    *("pipeline", "sparse_attention", "sparse_gradients", "compression_training", "quantize_training"),
    *("data_efficiency", "curriculum_learning", "progressive_layer_drop", "hybrid_engine", "sequence_parallel_size"),
)
"""Top-level keys that change time or memory, but are not predicted."""

COMPRESSING: Final = ("onebitadam", "zerooneadam", "onebitlamb")
"""Optimizers that communicate compressed gradients, which is not predicted."""

DTYPES: Final = ("fp16", "bf16", "fp32")

BATCH_KEYS: Final = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

_USED: Final = frozenset({"zero_optimization", "communication_data_type", *BATCH_KEYS})


def options_of_deepspeed(found: Mapping[str, Any], path: str) -> list[str]:
    """Translate DeepSpeed's JSON to options of a strategy.

    Raises:
        InvalidArgumentError: An option that changes time or memory has no equivalent, or batch sizes disagree.
    """
    zero = options_table(found, "zero_optimization", path)
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage <= 3:
        raise refused(path, "zero_optimization.stage", stage)
    words = [("ddp", "zero1", "zero2", "fsdp")[stage], *_offload(zero, path)]
    for key, value in zero.items():
        is_default = value in (False, None, -1, AUTO) or (key, value) == ("zero_hpz_partition_size", 1)
        if key not in ZERO_WITHOUT_EFFECT and not key.startswith("stage3_") and not is_default:
            raise refused(path, f"zero_optimization.{key}", value)
    _refuse_unpredicted(found, path)
    total, micro, accumulated = (whole_if_given(found.get(key), path, key) for key in BATCH_KEYS)
    words += batch_options(total=total, micro=micro, accumulated=accumulated, path=path, names=BATCH_KEYS)
    if stage < 2 and zero.get("overlap_comm") is False:
        words.append("overlap_grad_reduce=false")
    exchanged = found.get("communication_data_type")
    if exchanged not in (None, AUTO):
        if not isinstance(exchanged, str) or exchanged not in DTYPES:
            raise refused(path, "communication_data_type", exchanged)
        words.append(f"reduce_dtype={DTYPE_WORDS[exchanged]}")
    return words


def unused_keys(found: Mapping[str, Any]) -> list[str]:
    """Return the keys that do not affect the strategy. Keys that start with `_` are comments."""
    return [key for key in found if key not in _USED and not key.startswith("_")]


def _offload(zero: Mapping[str, Any], path: str) -> list[str]:
    """Translate offloading. Optimizer state in CPU memory can be predicted; offloaded parameters and disks cannot."""
    words = []
    for name in ("offload_optimizer", "offload_param"):
        device = options_table(zero, name, path).get("device", "none")
        if device == "none":
            continue
        if name == "offload_param" or device != "cpu":
            raise refused(path, f"zero_optimization.{name}.device", device)
        words.append("offload=optimizer")
    return words


def _refuse_unpredicted(found: Mapping[str, Any], path: str) -> None:
    """Raise an error for the first option whose effect on time or memory is not predicted."""
    for name in NOT_PREDICTED:
        if is_on(found.get(name)) and found[name] != 1:
            raise refused(path, name, found[name])
    shared = options_table(found, "tensor_parallel", path).get("autotp_size", 1)
    if shared not in (0, 1):
        raise refused(path, "tensor_parallel.autotp_size", shared)
    compiled = options_table(found, "compile", path)
    if compiled and not compiled.get("disable", False):
        raise refused(path, "compile.disable", compiled.get("disable", False))
    for key in ("partition_activations", "cpu_checkpointing"):
        value = options_table(found, "activation_checkpointing", path).get(key)
        if is_on(value):
            raise refused(path, f"activation_checkpointing.{key}", value)
    kept = options_table(found, "data_types", path).get("grad_accum_dtype")
    if kept not in (None, AUTO):
        raise refused(path, "data_types.grad_accum_dtype", kept)
    kind = options_table(found, "optimizer", path).get("type")
    if str(kind).lower() in COMPRESSING:
        raise InvalidArgumentError(
            f"strategy={path!r}: optimizer.type = {kind!r} compresses the gradients that GPUs exchange, which is not "
            "predicted. Name another optimizer, such as AdamW, for an upper bound."
        )
