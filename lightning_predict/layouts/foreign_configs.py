"""Translates parallel configurations of other projects to strategy texts, for `parse_strategy`.

Supported are arguments of Megatron and NeMo (also in a shell script), torchtitan's TOML files, JSON files of DeepSpeed
and Hugging Face's Trainer, YAML files of accelerate, axolotl, LLaMA-Factory, Trainer and NeMo, and strategy objects of
Lightning.

Every key of a file is translated, refused because its effect on time or memory is not predicted, or listed in one
warning as without effect on the strategy. Example::

    >>> strategy_of_foreign("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel")
    'ddp,tensor=8,pipeline=4,sequence=true,gather_again=true,overlap_grad_reduce=false'

    parse_strategy("train_configs/llama3_70b.toml")  # the file for torchtitan's --job.config_file
    parse_strategy("ds_config.json")
    parse_strategy(ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=8))  # or Fabric's
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from lightning_predict.base.checked import read_json, read_text, read_toml, read_yaml, shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.records import DTYPE_WORDS

ForeignOptions = dict[str, object]  # Options of a strategy by name; the first, `data`, is the kind of data parallelism

Translation = Mapping[str, "str | Mapping[str, ForeignOptions]"]
"""Translation of keys: an option that gets the number of the key, or options by the value of the key."""

FILES: Final = (".toml", ".json", ".yaml", ".yml", ".sh")  # Suffixes of the files that are read


def strategy_of_foreign(words: str | object) -> str:
    """Translate another project's arguments, file or object to a strategy text; return other texts unchanged."""
    if not isinstance(words, str):
        return _text(_lightning(words))
    if not words.isalnum() and are_arguments(words):
        return _translated(_Keys(_arguments(words), "arguments"), _megatron)
    if "=" not in words and words.strip().endswith(FILES):  # an argument may contain a file name
        return strategy_of_file(words)
    return words


def strategy_of_file(path: str) -> str:
    """Translate a configuration file to the text of a strategy."""
    file = Path(path.strip())
    try:
        if file.suffix == ".sh":
            text = _arguments_of_script(read_text(file, InvalidArgumentError), path)
            return _translated(_Keys(_arguments(text), path), _megatron)
        read = {".toml": read_toml, ".json": read_json}.get(file.suffix, read_yaml)
        document = read(file, InvalidArgumentError).value
    except OSError as error:
        raise InvalidArgumentError(f"strategy={path!r} cannot be read: {error}.") from error
    if not isinstance(document, dict):
        raise InvalidArgumentError(f"strategy={path!r} holds no table of options; expected keys and values.")
    return _translated(_Keys(document, path), _torchtitan if file.suffix == ".toml" else _project)


def _translated(keys: _Keys, translate: Callable[[_Keys], ForeignOptions]) -> str:
    text = _text(translate(keys))
    listed = sorted(set(keys.unread()))
    if listed:
        warnings.warn(
            f"{keys.path}: these keys do not change how GPUs share the work, and are left to the recorded step and "
            "`gpus`: "
            f"{', '.join(listed)}.",
            stacklevel=2,
        )
    return text


def _text(options: ForeignOptions) -> str:
    data, *others = options.items()
    return ",".join([str(data[1]), *(f"{name}={str(value).lower()}" for name, value in others)])


# --- Keys: read, refused, or listed

_AUTO: Final = "auto"  # Value that another project fills in at run time. Here, the recorded step determines it.

_OFF: Final = (False, None, "", 0, -1, _AUTO, "none", "no", "NO", "null")

_SHARING: Final = ("parallel", "pipeline", "recompute", "overlap", "offload", "fp8", "expert", "distributed", "fsdp")
"""An unread key with one of these parts affects parallelism, communication or recomputation."""

_WITHOUT_EFFECT: Final = frozenset(
    "distributed_backend distributed_timeout_minutes no_check_for_nan_in_loss_and_grad ckpt_fully_parallel_save "
    "ckpt_fully_parallel_load dist_ckpt_format no_async_tensor_model_parallel_allreduce num_experts "
    "moe_shared_expert_intermediate_size moe_router_enable_expert_bias fsdp_version fsdp_transformer_layer_cls_to_wrap "
    "fsdp_min_num_params overlap_p2p_comm fp8_margin fp8_interval fp8_amax_history_len fp8_amax_compute_algo fp8_wgrad "
    "fp8_hybrid fp8_e4m3 fp8_enable_fsdp_float8_all_gather".split()
)
"""Keys with such a part that describe the recorded model or hardly affect predictions."""


class _Keys:
    """Keys of a table of another project's configuration, with `_` for `-`.

    Args:
        table: Keys and values.
        path: Name of the file in error messages.
        place: Name of the table in error messages, with a dot at the end; empty for the whole file.
        refused: Parts of the names of keys that are refused if they are set but not read.
    """

    def __init__(
        self, table: Mapping[str, object], path: str, place: str = "", refused: tuple[str, ...] = _SHARING
    ) -> None:
        self.path, self._place, self._refused = path, place, refused
        self._names = {str(key).replace("-", "_"): str(key) for key in table}
        self._left = dict(zip(self._names, table.values(), strict=True))
        self._parts: list[_Keys] = []

    def has(self, *keys: str) -> bool:
        """Return whether the file has one of the keys."""
        return not self._names.keys().isdisjoint(keys)

    def read(self, key: str, default: object = None) -> object:
        """Return the value of a key, which then counts as read."""
        return self._left.pop(key, default)

    def text(self, key: str, default: str = "none") -> str:
        """Return the value of a key as a text."""
        value = self.read(key)
        return default if value is None else str(value)

    def number(self, key: str) -> int | None:
        """Return a whole number of at least 1; None if the value is missing or left open."""
        value = self.read(key)
        if isinstance(value, str) and value.isdigit():  # an argument
            value = int(value)
        if value is None or value in (_AUTO, -1):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidArgumentError(
                f"strategy={self.path!r}: {self._name(key)}={value!r}; expected a whole number of at least 1."
            )
        return value

    def options(self, translation: Translation) -> ForeignOptions:
        """Translate keys to options of a strategy. Values that switch a key off give no option."""
        chosen: ForeignOptions = {}
        for key, option in translation.items():
            if isinstance(option, str):
                number = self.number(key)
                chosen |= {} if number is None else {option: number}
            elif self.is_on(key):
                value = self.text(key)
                if value.lower() not in option:
                    raise InvalidArgumentError(
                        f"strategy={self.path!r}: {self._name(key)}={value}; expected {' or '.join(option)}, which "
                        "have a word here."
                    )
                chosen |= option[value.lower()]
            self.read(key)
        return chosen

    def rename(self, names: Mapping[str, str]) -> _Keys:
        """Read keys under the names of another project; error messages keep the names of the file."""
        for old in [old for old, new in names.items() if old in self._left and new not in self._left]:
            self._left[names[old]], self._names[names[old]] = self._left.pop(old), self._names.pop(old)
        return self

    def is_on(self, key: str) -> bool:
        """Return whether a key is set. A table counts as set unless it is empty or has `enabled: false`."""
        value = self._left.get(key)
        if isinstance(value, Mapping):
            return bool(value) and value.get("enabled", True) not in _OFF
        return value not in _OFF

    def table(self, key: str, *refused: str) -> _Keys:
        """Return the keys of a table; empty if the table is missing."""
        value = self.read(key) or {}
        if not isinstance(value, Mapping):
            raise self.refusal(key, value)
        return self.part(value, self.path, f"{self._name(key)}.", refused)

    def part(
        self, table: Mapping[str, object], path: str, place: str = "", refused: tuple[str, ...] = _SHARING
    ) -> _Keys:
        """Return the keys of a part of the configuration, whose unread keys are listed with the others."""
        self._parts.append(_Keys(table, path, place, refused))
        return self._parts[-1]

    def refuse(self, *keys: str) -> None:
        """Raise an error for the first key that is set. A degree of 1 is not set."""
        for key in keys:
            value = self._left.get(key)
            if self.is_on(key) and (isinstance(value, bool) or value not in (1, "1")):
                raise self.refusal(key, value)

    def refusal(self, key: str, value: object) -> InvalidArgumentError:
        """Return the error for a key that changes time or memory but cannot be predicted."""
        return InvalidArgumentError(
            f"strategy={self.path!r}: {self._name(key)} = {value!r} has no word here, so that it would not be "
            "predicted; leave it out, or say the sharing as 'fsdp,tensor=8'."
        )

    def unread(self) -> Iterator[str]:
        """Yield the keys without effect, except comments, which start with `_`; raise an error for others."""
        off = tuple(f"{key}_" for key, value in self._left.items() if value is False)
        for key, value in self._left.items():
            if key.startswith(off):  # an option of what is off
                self._left[key] = None
            if key not in _WITHOUT_EFFECT and (any(part in key for part in self._refused) or value == "offload"):
                self.refuse(key)
            if not key.startswith("_"):
                yield self._name(key)
        for part in self._parts:
            yield from part.unread()

    def _name(self, key: str) -> str:
        return f"{self._place}{self._names.get(key, key)}"


def _batches(keys: _Keys, total_key: str, micro_key: str, accumulated_key: str) -> ForeignOptions:
    """Read samples per step on all GPUs, samples per batch, and batches per step, and check that they agree."""
    total, micro, accumulated = (keys.number(key) for key in (total_key, micro_key, accumulated_key))
    options: ForeignOptions = {"batch_samples": micro, "accumulate": accumulated}
    options = {name: value for name, value in options.items() if value is not None}
    if total is None:
        return options
    if micro is None:
        raise InvalidArgumentError(
            f"strategy={keys.path!r}: {total_key}={total} needs {micro_key}, to tell how many batches are accumulated; "
            "write it, or leave both to the trainer ('auto')."
        )
    together = micro * (accumulated or 1)
    if total % together:
        product = micro_key if accumulated is None else f"{micro_key} x {accumulated_key}"
        raise InvalidArgumentError(
            f"strategy={keys.path!r}: {total_key}={total} is no multiple of {product} = {together}; correct one of "
            "them."
        )
    return options | {"global_batches" if accumulated is None else "groups": total // together}


# --- Megatron and NeMo

_SEQUENCE: Final[ForeignOptions] = {"sequence": True, "gather_again": True}

_MEGATRON_DEGREES: Final[Translation] = {  # These keys tell LLaMA-Factory's files with Megatron's arguments from others
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "virtual_pipeline_model_parallel_size": "virtual",
    "expert_model_parallel_size": "expert",
}

_MEGATRON: Final[Translation] = {
    "use_distributed_optimizer": {"true": {"data": "zero1"}},
    **_MEGATRON_DEGREES,
    "context_parallel_size": "context",
    "expert_tensor_parallel_size": "expert_tensor",
    "decoder_first_pipeline_num_layers": "first_stage",
    "decoder_last_pipeline_num_layers": "last_stage",
    "accumulate": "accumulate",
    "accumulate_grad_batches": "accumulate",
    "sequence_parallel": {"true": _SEQUENCE},
    "overlap_param_gather": {"true": {"overlap_param_gather": True}},
    "tp_comm_overlap": {"true": {"overlap_tensor": True}},
    "optimizer_cpu_offload": {"true": {"offload": "optimizer"}},
    "recompute_granularity": {"full": {"recompute": "full"}, "selective": {"recompute": "selective"}},
    "recompute_method": {"uniform": {}},
    "recompute_num_layers": {"1": {}},
    "fp8": {"true": {"fp8": "tensorwise"}},
    "fp8_format": {"hybrid": {"fp8": "tensorwise"}, "e4m3": {"fp8": "tensorwise"}},
    "fp8_recipe": {
        "tensorwise": {"fp8": "tensorwise"},
        "delayed": {"fp8": "tensorwise"},
        "blockwise": {"fp8": "blockwise"},
    },
}


_NEMO: Final = {  # NeMo's names of Megatron's arguments
    "ub_tp_comm_overlap": "tp_comm_overlap",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
}


def are_arguments(text: str) -> bool:
    """Return whether a text consists of command-line arguments, not of a strategy."""
    first = text.replace("=", " ").split()[:1]
    return text.lstrip().startswith("--") or any(_argument(name) in _MEGATRON for name in first)


def _argument(name: str) -> str:
    """Return an argument's name with underscores, without leading hyphens and NeMo's prefixes."""
    return name.lstrip("-+").rpartition(".")[2].replace("-", "_")


def _arguments(text: str) -> dict[str, object]:
    """Return the values of arguments by name. An argument without a value is true."""
    plain = {"true": True, "false": False, "null": None, "none": None}
    arguments, name = dict[str, object](), ""
    for word in text.split():
        key, is_pair, value = word.partition("=")
        if word.startswith("--") or is_pair:
            name = _argument(key)
            arguments[name] = plain.get(value.lower(), value) if is_pair else True
        elif arguments.get(name) is True:
            arguments[name] = plain.get(word.lower(), word)
    return arguments


def _megatron(keys: _Keys) -> ForeignOptions:
    found = {"data": "ddp"} | keys.rename(_NEMO).options(_MEGATRON)
    if found.get("tensor", 1) == 1:  # Megatron ignores the flag then
        found = {name: value for name, value in found.items() if name not in _SEQUENCE}
    capacity = keys.read("moe_expert_capacity_factor")
    found |= {"capacity": capacity} if capacity else {}
    batches = _batches(keys, "global_batch_size", "micro_batch_size", "accumulated")
    found |= batches | (_accumulated_in_pipeline(found) if batches else {})
    found |= {"expert_launches": True} if found.get("expert", 1) != 1 else {}  # one launch per expert, grouped or not
    return found | ({} if keys.read("overlap_grad_reduce") else {"overlap_grad_reduce": False})


def _nemo(keys: _Keys) -> ForeignOptions:
    """Translate NeMo's YAML, which has Megatron's arguments in `model`."""
    own, trainer = keys.table("model", *_SHARING), keys.table("trainer")
    optimizer = own.table("optim")
    name, reduced = optimizer.text("name"), optimizer.options({"grad_sync_dtype": _REDUCED})
    options = _on_gpus(_megatron(own), trainer.number("devices"), trainer.number("num_nodes"))
    if name in ("distributed_fused_adam", "mcore_distributed_optim"):
        options["data"] = "zero1"
        options |= {"overlap_param_gather": True} if optimizer.read("overlap_param_sync") else {}
    return options | reduced | {"overlap_grad_reduce": bool(optimizer.read("overlap_grad_sync"))}


def _on_gpus(options: ForeignOptions, *counts: int | None) -> ForeignOptions:
    """Add the number of data-parallel groups, if a file has all counts whose product is its number of GPUs."""
    degrees = [options.get(name, 1) for name in ("tensor", "pipeline", "context")]
    shared = math.prod(degree for degree in degrees if isinstance(degree, int))
    return options if None in counts else options | {"groups": math.prod(count or 1 for count in counts) // shared}


# `TP=8`, `export NAME="a b"  # comment`
_ASSIGNED: Final = re.compile(r"^\s*(?:export\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s;()]*)\s*(?:#.*)?;?\s*$", re.MULTILINE)
# `$TP`, `${TP}`, `${TP:-8}`
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")


def _arguments_of_script(text: str, path: str) -> str:
    """Return Megatron's arguments in a shell script: in arrays, over several lines, and with simple variables."""
    plain = re.sub(r"(^|\s)#.*", r"\1", text.replace("\\\n", " "), flags=re.MULTILINE)
    variables = {name: value.strip("\"'") for name, value in _ASSIGNED.findall(text)}

    def value(match: re.Match[str]) -> str:
        return str(variables.get(match[1] or match[3], match[0] if match[2] is None else match[2]))

    arguments: list[str] = []
    may_be_value = False
    for word in re.sub(r"[()]", " ; ", plain).split():
        word = word.strip("\"';")
        is_argument = word.startswith("--")
        if is_argument or (may_be_value and word and not word.startswith("-")):
            for _ in range(len(variables) + 1):  # a value can contain variables
                word = _VARIABLE.sub(value, word)
            arguments.append(word or "''")
        may_be_value = is_argument and "=" not in word
    if not arguments:
        raise InvalidArgumentError(f"strategy={path!r} holds no arguments like --tensor-model-parallel-size 8.")
    return " ".join(arguments)


# --- torchtitan

_TORCHTITAN_DEGREES: Final[Translation] = {
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
    "context_parallel_degree": "context",
    "expert_parallel_degree": "expert",
}

_TORCHTITAN_SCHEDULES: Final[Mapping[str, ForeignOptions]] = {
    "1f1b": {},
    "interleaved1f1b": {"virtual": 2},
    "gpipe": {"schedule": "gpipe"},
    "interleavedzerobubble": {"virtual": 2, "schedule": "zero_bubble"},
    "zbvzerobubble": {"virtual": 2, "schedule": "zero_bubble"},
}

_TORCHTITAN_RECOMPUTED: Final[Mapping[str, ForeignOptions]] = {
    "none": {},
    "full": {"recompute": "full"},
    "selective op": {"recompute": "operations"},
    "selective 2": {"recompute": "layers"},
    "selective 1": {"recompute": "full"},
}
"""Options by the mode of `[activation_checkpoint]`, and the selected operations or every n-th layer."""


_TORCHTITAN_DTYPES: Final[Mapping[str, str]] = {"param": "bfloat16", "reduce": "float32"}


def _torchtitan(keys: _Keys) -> ForeignOptions:
    sharing, training = keys.table("parallelism", "degree", "fqns"), keys.table("training", "parallel")
    training.refuse("enable_cpu_offload", "batch_size", "compile")  # the last two: until 2025
    keys.table("optimizer").refuse("early_step_in_backward")
    replicas = sharing.number("data_parallel_replicate_degree") or 1
    shard = sharing.number("data_parallel_shard_degree")  # None means all remaining GPUs
    options: ForeignOptions = {"data": "ddp" if shard == 1 else "fsdp" if replicas == 1 else "hybrid"}
    if shard is not None:
        options |= {"shard": shard} if options["data"] == "hybrid" else {}
        options["groups"] = replicas * shard
    options |= sharing.options(_TORCHTITAN_DEGREES)
    reshard = sharing.text("fsdp_reshard_after_forward", "default").lower()
    if reshard == "never" or (reshard == "default" and options.get("pipeline", 1) != 1):
        options["data"] = "zero2" if options["data"] == "fsdp" else options["data"]
    if options.get("expert", 1) == 1:
        sharing.read("expert_tensor_parallel_degree")  # torchtitan then splits the experts like other layers
    else:
        options |= sharing.options({"expert_tensor_parallel_degree": "expert_tensor"})
    if options.get("tensor", 1) != 1:
        options |= {"sequence": True}
        options |= sharing.options({"enable_async_tensor_parallel": {"true": {"overlap_tensor": True}}})
    options |= _batches(training, "global_batch_size", "local_batch_size", "accumulated")
    if options.get("pipeline", 1) != 1:
        options |= _torchtitan_pipeline(sharing, options.get("batch_samples"))
    checkpointing = keys.table("activation_checkpoint")
    mode, option = checkpointing.text("mode", "selective"), checkpointing.text("selective_ac_option", "2")
    recomputed = f"{mode} {option}" if mode == "selective" else mode
    if recomputed not in _TORCHTITAN_RECOMPUTED:
        raise keys.refusal("activation_checkpoint", f"{mode} {option}")
    options |= _TORCHTITAN_RECOMPUTED[recomputed] | _torchtitan_float8(keys)
    compiled = keys.table("compile")
    components = compiled.read("components", ["model", "loss"])
    if compiled.read("enable") and isinstance(components, list) and "model" in components:
        # torchtitan compiles each transformer block
        options["kernels"] = "compile-blocks" if "loss" in components else "compile-blocks+eager_loss"
    gathered, reduced = (training.text(f"mixed_precision_{part}", of) for part, of in _TORCHTITAN_DTYPES.items())
    options |= {"param_dtype": gathered} if options["data"] in ("fsdp", "hybrid") else {}
    return options | ({} if options["data"] == "ddp" else {"reduce_dtype": reduced})


def _torchtitan_pipeline(sharing: _Keys, samples: object) -> ForeignOptions:
    options = {"virtual": 1} | sharing.options({"pipeline_parallel_schedule": _TORCHTITAN_SCHEDULES})
    layers = sharing.read("pipeline_parallel_layers_per_stage")
    if options["virtual"] != 1 and layers is not None:
        raise InvalidArgumentError(
            f"strategy={sharing.path!r}: parallelism.pipeline_parallel_layers_per_stage = {layers!r}: how many stages "
            "that makes of each GPU depends on the model. Leave it out for two, or say the sharing in words, with "
            "virtual= layers of the model / (pipeline x layers of a stage)."
        )
    own = sharing.number("pipeline_parallel_microbatch_size") or 1
    if not isinstance(samples, int):
        return options
    if samples % own:
        raise InvalidArgumentError(
            f"strategy={sharing.path!r}: parallelism.pipeline_parallel_microbatch_size={own} does not divide "
            f"training.local_batch_size={samples}, as torchtitan asks."
        )
    return options | {"micro_batches": samples // own}


def _torchtitan_float8(keys: _Keys) -> ForeignOptions:
    converters = keys.table("model").read("converters")
    names = [str(name) for name in converters] if isinstance(converters, list) else str(converters).split(",")
    own = keys.table("float8")
    own.refuse("enable_float8_linear")  # until 2025
    recipe = own.text("recipe_name", "tensorwise")
    recipe = keys.table("quantize").table("linear").table("float8").text("recipe_name", recipe)
    if any("mx" in name for name in names):
        return {"fp8": "mx"}
    if {"float8", "quantize.linear.float8"}.isdisjoint(names):
        return {}
    return {"fp8": "tensorwise" if recipe == "tensorwise" else "rowwise"}


# --- DeepSpeed

_NOT_PREDICTED: Final = (  # Keys that change time or memory, but are not predicted
    *("pipeline", "sparse_attention", "sparse_gradients", "compression_training", "quantize_training"),
    *("data_efficiency", "curriculum_learning", "progressive_layer_drop", "hybrid_engine", "sequence_parallel_size"),
)

_COMPRESSING: Final = ("onebitadam", "zerooneadam", "onebitlamb")
"""Optimizers that communicate compressed gradients, which is not predicted."""

_REDUCED: Final[Mapping[str, ForeignOptions]] = {
    name: {"reduce_dtype": DTYPE_WORDS[name]} for name in ("fp16", "bf16", "fp32")
}


def _deepspeed(keys: _Keys) -> ForeignOptions:
    zero = keys.table("zero_optimization", "offload", "mics", "hpz", "quantize", "loco")
    stage = zero.read("stage", 0)
    if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage <= 3:
        raise zero.refusal("stage", stage)
    options: ForeignOptions = {"data": ("ddp", "zero1", "zero2", "fsdp")[stage]}
    for name in ("offload_optimizer", "offload_param"):
        own = zero.table(name)
        device, ratio = own.text("device"), own.read("ratio", 1)
        if device != "none" and (name, device) != ("offload_optimizer", "cpu"):
            raise zero.refusal(f"{name}.device", device)
        if device != "none" and ratio != 1:
            raise zero.refusal(f"{name}.ratio", ratio)
        options |= {} if device == "none" else {"offload": "optimizer"}
    keys.refuse(*_NOT_PREDICTED)
    keys.table("tensor_parallel").refuse("autotp_size")
    compiled = keys.table("compile")
    if compiled.has("disable", "backend") and not compiled.read("disable"):
        options["kernels"] = "compile"
    keys.table("activation_checkpointing").refuse("partition_activations", "cpu_checkpointing")
    keys.table("data_types").refuse("grad_accum_dtype")
    optimizer = keys.table("optimizer").text("type")
    if optimizer.lower() in _COMPRESSING:
        raise InvalidArgumentError(
            f"strategy={keys.path!r}: optimizer.type = {optimizer!r} compresses the gradients that GPUs exchange, "
            "which is not predicted. Name another optimizer, such as AdamW, for an upper bound."
        )
    options |= _batches(keys, "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    if stage < 2 and zero.read("overlap_comm") is False:
        options["overlap_grad_reduce"] = False
    return options | keys.options({"communication_data_type": _REDUCED})


def _deepspeed_file(keys: _Keys, name: str) -> ForeignOptions:
    """Translate the DeepSpeed file that a YAML file names, from the file's folder, the current folder or a parent."""
    folder = Path(keys.path).resolve().parent
    places = [place / name for place in (folder, Path.cwd(), *folder.parents)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise InvalidArgumentError(
            f"strategy={keys.path!r} names {name}, which is neither beside it nor in a folder above."
        )
    return _deepspeed(keys.part(read_json(file, InvalidArgumentError).mapping(), str(file)))


# --- YAML: accelerate, axolotl, Hugging Face's Trainer and LLaMA-Factory

_SHARDING: Final[Mapping[str, str]] = {  # Strategies by names and numbers of torch's `ShardingStrategy`
    **dict.fromkeys(("FULL_SHARD", "1"), "fsdp"),
    **dict.fromkeys(("SHARD_GRAD_OP", "2"), "zero2"),
    **dict.fromkeys(("NO_SHARD", "3"), "ddp"),
    **dict.fromkeys(("HYBRID_SHARD", "4"), "hybrid"),
}

_MIXED: Final = ("bf16", "fp16")

_DEGREES: Final[Translation] = {
    "tensor_parallel_size": "tensor",
    "context_parallel_size": "context",
    "sequence_parallel_degree": "context",
}

_ACCELERATE: Final = {  # Keys of accelerate's `parallelism_config` by axolotl's names
    "parallelism_config_tp_size": "tensor_parallel_size",
    "parallelism_config_cp_size": "context_parallel_size",
    "parallelism_config_dp_replicate_size": "dp_replicate_size",
    "parallelism_config_dp_shard_size": "dp_shard_size",
}


_KERNELS: Final[Mapping[str, Mapping[str, ForeignOptions]]] = {  # Kernels that a trainer's keys ask for
    "torch_compile": {"true": {"kernels": "compile"}},
    "use_liger_kernel": {"true": {"kernels": "liger"}},
    "enable_liger_kernel": {"true": {"kernels": "liger"}},
    "liger_fused_linear_cross_entropy": {"true": {"kernels": "liger"}},
}


def _replicated(keys: _Keys) -> ForeignOptions:
    """Return `hybrid` for several replicas of a sharded model, and the numbers of groups and of GPUs that shard."""
    replicas, shard = keys.number("dp_replicate_size") or 1, keys.number("dp_shard_size")
    options: ForeignOptions = {} if replicas == 1 else {"data": "hybrid"}
    if shard is not None:
        options |= {"groups": replicas * shard} | ({} if replicas == 1 else {"shard": shard})
    return options


def _project(keys: _Keys) -> ForeignOptions:
    """Translate a YAML or JSON file, whose keys determine the project. Other JSON files are DeepSpeed's."""
    for names, translate in _PROJECTS.items():
        if keys.has(*names):
            return translate(keys)
    if keys.path.endswith(".json"):
        return _deepspeed(keys)
    raise InvalidArgumentError(
        f"strategy={keys.path!r} is no YAML of accelerate, axolotl, LLaMA-Factory, Hugging Face's Trainer or NeMo: it "
        f"has none of {', '.join(name for names in _PROJECTS for name in names)}. Say the sharing as 'fsdp,tensor=8'."
    )


def _accelerate(keys: _Keys) -> ForeignOptions:
    kind, precision = keys.text("distributed_type", "NO").upper(), keys.text("mixed_precision")
    if precision == "fp8":
        raise keys.refusal("mixed_precision", precision)
    keys.refuse("megatron_lm_config", "tp_config")
    processes = keys.number("num_processes")
    degrees = keys.table("parallelism_config", "size").rename(_ACCELERATE).options(_DEGREES)
    options = _on_gpus(degrees, None if kind == "NO" else processes)
    options |= _compiled_by_accelerate(keys.table("dynamo_config"))
    accumulated = keys.options({"gradient_accumulation_steps": "accumulate"})
    if kind == "FSDP":
        return _fsdp(keys, mixed=DTYPE_WORDS[precision] if precision in _MIXED else None) | accumulated | options
    if kind == "DEEPSPEED":
        own = _accelerates_deepspeed(keys.table("deepspeed_config"))
        return own | ({} if "accumulate" in own else accumulated) | options
    if kind not in ("NO", "MULTI_GPU"):
        raise keys.refusal("distributed_type", kind)
    return {"data": "ddp"} | accumulated | options


def _compiled_by_accelerate(own: _Keys) -> ForeignOptions:
    backend = own.text("dynamo_backend", "NO")
    if backend.upper() == "NO":
        return {}
    if backend.upper() != "INDUCTOR":
        raise own.refusal("dynamo_backend", backend)
    return {"kernels": "compile-blocks" if own.read("dynamo_use_regional_compilation") else "compile"}


def _accelerates_deepspeed(own: _Keys) -> ForeignOptions:
    """Translate accelerate's `deepspeed_config`: the name of a DeepSpeed file, or DeepSpeed options."""
    file = own.text("deepspeed_config_file", "")
    if file:
        return _deepspeed_file(own, file)
    zero = {"stage": own.read("zero_stage", 2)}
    zero |= {name: {"device": own.text(f"{name}_device")} for name in ("offload_optimizer", "offload_param")}
    batches = {"gradient_accumulation_steps": own.read("gradient_accumulation_steps")}
    return _deepspeed(own.part({"zero_optimization": zero, **batches}, own.path, "deepspeed_config."))


def _fsdp(keys: _Keys, *, mixed: str | None, sharding: str = "FULL_SHARD") -> ForeignOptions:
    """Translate `fsdp_config`, whose keys may have the prefix `fsdp_`.

    Args:
        keys: Keys of the file.
        mixed: dtype in which parameters are gathered and gradients are reduced; None for the recorded dtypes.
        sharding: Sharding strategy, if `fsdp_config` has none.
    """
    own = keys.table("fsdp_config", "offload")

    def read(key: str) -> object:
        return own.read(f"fsdp_{key}", own.read(key))

    reshard = read("reshard_after_forward")
    named = str(read("sharding_strategy") or (reshard if isinstance(reshard, str) else sharding)).upper()
    if named not in _SHARDING:
        raise own.refusal("sharding_strategy", named)
    data = _SHARDING[named]
    if isinstance(reshard, bool):  # FSDP 2
        data = "fsdp" if reshard else "zero2"
    options: ForeignOptions = {"data": data}
    options |= {"recompute": "full"} if read("activation_checkpointing") else {}
    if mixed is None or data == "ddp":
        return options
    options |= {} if data == "zero2" else {"param_dtype": mixed}
    return options | {"reduce_dtype": mixed}


def _trainer(keys: _Keys) -> ForeignOptions:
    """Translate axolotl's YAML or arguments of Hugging Face's Trainer, which share most keys."""
    micro_key = "micro_batch_size" if keys.has("micro_batch_size") else "per_device_train_batch_size"
    batches = _batches(keys, "train_batch_size", micro_key, "gradient_accumulation_steps")
    words = [str(kernels["kernels"]) for key in _KERNELS if (kernels := keys.options({key: _KERNELS[key]}))]
    batches |= {"kernels": "+".join(words)} if words else {}
    if keys.has(*_MEGATRON_DEGREES):
        options = _megatron(keys)
        return options | _accumulated_in_pipeline(options) | batches
    degrees = keys.options(_DEGREES)
    keys.refuse("expert_parallel_size", "cp_size", "dist_config")
    batches |= keys.options({"fp8": {"true": {"fp8": "tensorwise"}}})
    keys.read("fp8_backend")
    degrees |= _replicated(keys)
    if keys.is_on("deepspeed"):
        for key in degrees:
            raise keys.refusal(next(name for name, option in _DEGREES.items() if option == key), degrees[key])
        options = _deepspeed_file(keys, keys.text("deepspeed"))
        return options | {name: value for name, value in batches.items() if name not in options}
    mixed = next((DTYPE_WORDS[key] for key in _MIXED if keys.read(key) in (True, "auto", "full")), None)
    fsdp = keys.read("fsdp")
    words = [str(word) for word in fsdp] if isinstance(fsdp, list) else str(fsdp or "").split()
    if "offload" in words:
        raise keys.refusal("fsdp", fsdp)
    if not words and not keys.is_on("fsdp_config"):
        return {"data": "fsdp" if "groups" in degrees else "ddp"} | degrees | batches
    sharding = next((word for word in words if word.upper() in _SHARDING), "FULL_SHARD")
    return _fsdp(keys, mixed=mixed, sharding=sharding) | degrees | batches


def _accumulated_in_pipeline(options: ForeignOptions) -> ForeignOptions:
    """Return the micro-batches of a pipeline whose micro-batches are accumulated batches of the recorded size."""
    return {"micro_batches": 1} if options.get("pipeline", 1) != 1 else {}


_PROJECTS: Final[Mapping[tuple[str, ...], Callable[[_Keys], ForeignOptions]]] = {
    ("distributed_type",): _accelerate,
    ("micro_batch_size", "per_device_train_batch_size", "deepspeed", "fsdp"): _trainer,
    ("trainer",): _nemo,
}
"""Functions that translate a file, by keys that identify the project; the first match counts."""


# --- Lightning's objects


def _lightning(strategy: object) -> ForeignOptions:
    """Translate a strategy object of Lightning or Fabric, also of a subclass.

    Classes are recognized by name, because two packages define them and some need an extra to import.
    """
    names = [parent.__name__ for parent in type(strategy).__mro__]
    own = _Keys(vars(strategy) if hasattr(strategy, "__dict__") else {}, names[0])
    if "DeepSpeedStrategy" in names:
        return _deepspeed(_Keys(getattr(strategy, "config", None) or {}, names[0]))
    if "FSDPStrategy" in names:
        return _lightnings_fsdp(strategy, own)
    if "ModelParallelStrategy" in names:
        return _lightnings_model_parallel(own)
    if "DDPStrategy" in names:
        bucket = getattr(strategy, "_ddp_kwargs", {}).get("bucket_cap_mb")
        return {"data": "ddp"} | ({} if bucket is None else {"bucket_cap_mb": bucket})
    raise InvalidArgumentError(
        f"strategy={shown(strategy)} is not a string such as 'ddp', a Strategy, or a Lightning strategy for several "
        "GPUs (DDP, FSDP, ModelParallel, DeepSpeed)."
    )


def _lightnings_fsdp(found: object, own: _Keys) -> ForeignOptions:
    sharding = getattr(found, "sharding_strategy", None)
    sharded = str(getattr(sharding, "name", sharding or "FULL_SHARD")).upper()
    if sharded not in _SHARDING:
        raise own.refusal("sharding_strategy", sharded)
    if getattr(getattr(found, "cpu_offload", None), "offload_params", False):
        raise own.refusal("cpu_offload", True)
    if getattr(found, "_activation_checkpointing_kwargs", None):
        raise InvalidArgumentError(
            f"strategy={own.path!r}: which modules activation_checkpointing_policy computes again is known when they "
            "are wrapped; leave it out, and say 'fsdp,recompute=full' or record the step with it."
        )
    options: ForeignOptions = {"data": _SHARDING[sharded]}
    kwargs = getattr(found, "kwargs", None) or getattr(found, "_fsdp_kwargs", None) or {}  # in Lightning, in Fabric
    mesh = kwargs.get("device_mesh")
    if options["data"] == "hybrid" and isinstance(mesh, tuple):  # (number of replicas, GPUs that share one copy)
        options |= {"shard": mesh[1], "groups": mesh[0] * mesh[1]}
    mixed = getattr(found, "mixed_precision", None)
    dtypes = {name: getattr(mixed, name, None) for name in ("param_dtype", "reduce_dtype")}
    known = {name: str(dtype).removeprefix("torch.") for name, dtype in dtypes.items() if dtype is not None}
    return options | (known if options["data"] != "ddp" else {})


def _lightnings_model_parallel(own: _Keys) -> ForeignOptions:
    """Translate FSDP 2 with tensor parallelism; the size must not be `auto`, which is resolved only at run time."""
    sizes = [own.number(f"_{part}_parallel_size") for part in ("data", "tensor")]
    if sizes[1] is None:
        raise InvalidArgumentError(
            f"strategy={own.path!r}: tensor_parallel_size is 'auto', the GPUs of the machine that it runs in; write "
            "the number, as other machines may have more."
        )
    return {"data": "fsdp", "tensor": sizes[1]} | ({} if sizes[0] is None else {"groups": sizes[0]})
