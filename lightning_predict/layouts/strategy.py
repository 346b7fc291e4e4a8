"""`Strategy`: parallel strategy of several GPUs (DDP, FSDP, ZeRO, tensor parallelism ...), parsed from a text.

`"ddp"` replicates the model. `"zero1"` shards the optimizer state over the GPUs, `"zero2"` also the gradients, and
`"fsdp"` (`"zero3"`) also the parameters. `"hybrid"` shards inside each machine and replicates over machines. Options
follow after a comma: `tensor=8` splits every transformer block over 8 GPUs, `pipeline=4` gives each of 4 GPUs a quarter
of the blocks, and `micro_batches=16` splits a batch. All options are fields of `Strategy`. If the text contains only
options, the strategy is `ddp`. Example::

    >>> parse_strategy("fsdp").name
    'fsdp'
    >>> parse_strategy("deepspeed_stage_2,tensor=8").data
    'zero2'
    >>> parse_strategy("ddp,tensor=8,pipeline=4,virtual=2,sequence=true").name
    'ddp,tensor=8,pipeline=4,virtual=2,sequence=true'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Protocol, get_args, get_type_hints

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.layouts import Layout

DataStrategy = Literal["ddp", "zero1", "zero2", "fsdp", "hybrid"]
DATA_STRATEGIES: Final[tuple[DataStrategy, ...]] = get_args(DataStrategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSplit:
    """Which state data-parallel replicas shard."""

    state: bool = False  # Whether the optimizer state is sharded: each GPU updates its shard, then all gather
    gradients: bool = False  # Whether gradients are sharded. A reduce-scatter follows when gradients become ready.
    parameters: bool = False  # Whether parameters are sharded. The parameters of each unit are gathered before use.
    inside_machines: bool = False  # Whether state is sharded only inside (groups of) machines, and replicated across
    is_searched: bool = True  # Whether the strategy search considers this split


DATA_SPLITS: Final[Mapping[DataStrategy, DataSplit]] = {
    "ddp": DataSplit(),
    "zero1": DataSplit(state=True),
    # The search skips ZeRO 2: it communicates as long as ZeRO 1, and FSDP saves more memory.
    "zero2": DataSplit(state=True, gradients=True, is_searched=False),
    "fsdp": DataSplit(state=True, gradients=True, parameters=True),
    "hybrid": DataSplit(state=True, gradients=True, parameters=True, inside_machines=True),
}

ALIASES: Final[Mapping[str, DataStrategy]] = {
    "auto": "ddp",
    "ddp_find_unused_parameters_false": "ddp",
    "ddp_find_unused_parameters_true": "ddp",
    "ddp_fork": "ddp",
    "ddp_notebook": "ddp",
    "ddp_spawn": "ddp",
    "deepspeed": "zero2",
    "deepspeed_stage_1": "zero1",
    "deepspeed_stage_2": "zero2",
    "deepspeed_stage_3": "fsdp",
    "fsdp2": "fsdp",
    "hsdp": "hybrid",
    "single_device": "ddp",
    "zero3": "fsdp",
}
"""Equivalent names from Lightning and other projects. As in Lightning, DeepSpeed without a stage means stage 2."""

PipelineSchedule = Literal["1f1b", "gpipe", "zero_bubble"]
Recompute = Literal["none", "selective", "operations", "layers", "full"]
Float8 = Literal["tensorwise", "rowwise", "blockwise", "mx"]
Offload = Literal["none", "optimizer"]
LossMemory = Literal["split", "gathered", "fused"]
GatheredDtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A parallel strategy. Each data-parallel group of `tensor x pipeline x context` GPUs processes one batch."""

    data: DataStrategy = "ddp"  # Which state data-parallel groups shard (`DATA_SPLITS`)
    tensor: int = 1  # Number of GPUs that share every transformer block (Megatron's tensor parallelism)
    pipeline: int = 1  # Number of pipeline stages that share the blocks
    # Number of micro-batches per batch; their gradients are accumulated. None means four times `pipeline`, or 1 without
    # a pipeline.
    micro_batches: int | None = None
    bucket_cap_mb: float = 25.0  # Size of DDP's gradient buckets in MiB, as torch counts them
    virtual: int = 1  # Number of pipeline stages per GPU (Megatron's interleaved schedule)
    # Number of blocks in the first stage, which also has the embedding; None for the same number as in other stages
    first_stage: int | None = None
    # Number of blocks in the last stage, which also has the output layer and the loss; None for the same number as in
    # other stages
    last_stage: int | None = None
    # Pipeline schedule: `1f1b`, `gpipe` (all forward, then all backward), or `zero_bubble` (weight gradients fill the
    # bubbles: ZB-H1 of Qi et al., 2024).
    schedule: PipelineSchedule = "1f1b"
    # Whether tensor-parallel GPUs also split norms, dropouts and residual connections (Megatron's sequence parallelism)
    sequence: bool = False
    # With sequence parallelism, whether matmul inputs are gathered again in the backward pass, as in Megatron.
    # Otherwise, gathered inputs are kept, as in torch's DTensor.
    gather_again: bool = False
    context: int = 1  # Number of GPUs that share each sequence (context parallelism): keys and values circulate
    expert: int = 1  # Number of data-parallel groups that share the experts (expert parallelism)
    # Number of GPUs that share each expert; None for `tensor`. With 1, as many GPUs as `expert` hold whole experts, and
    # tensor- and context-parallel GPUs count among them (Megatron).
    expert_tensor: int | None = None
    # Tokens per expert relative to balanced routing, including padding. Without padding: load of the busiest GPU, which
    # the other GPUs wait for.
    capacity: float = 1.0
    # Whether the matmuls of each expert are separate kernel launches, although the recording has one launch per layer.
    # In float8, casts of the operands precede each launch (Transformer Engine's `GroupedLinear`).
    expert_launches: bool = False
    shard: int | None = None  # Number of GPUs in a sharding group of `hybrid`; None for all GPUs of a machine
    # Number of data-parallel groups that a configuration file or Lightning object assumes. Layouts with another number
    # raise an error. None allows any number.
    groups: int | None = None
    # Gradient checkpointing: which activations the backward pass recomputes. The step must be recorded without gradient
    # checkpointing. `selective` recomputes the attention between its projections, as in Megatron. `operations`
    # recomputes everything except attention and every second matmul (torchtitan's default), `layers` every second
    # block, and `full` every block.
    recompute: Recompute = "none"
    offload: Offload = "none"  # State in host memory: `none`, or `optimizer`, whose state the CPU then updates
    # Memory of the loss under tensor parallelism. `split`: each GPU has a part of the vocabulary (torch's
    # `loss_parallel`). `gathered`: each GPU has all logits. `fused`: Megatron's fused cross entropy, whose float32
    # probabilities become the gradient in place; each GPU has a part of the vocabulary.
    loss: LossMemory = "split"
    # Under FSDP, whether gradients are scattered only after the last accumulated batch (`no_sync`,
    # `set_requires_gradient_sync(False)`), not after every batch
    no_sync: bool = False
    kernels: str | None = None  # Kernels that a configuration file asks for, joined by `+` (see `kernels` of `predict`)
    # Scaling of float8 matmuls in transformer blocks: one scale per tensor, row, block, or 32 values (`mx`); None for
    # no float8
    fp8: Float8 | None = None
    # Whether gradient communication overlaps with the backward pass. Otherwise, communication follows the backward
    # pass.
    overlap_grad_reduce: bool = True
    # dtype in which FSDP gathers parameters (torch's `MixedPrecision`); None for the dtype of the parameters
    param_dtype: GatheredDtype | None = None
    # dtype of gradient communication; None for the dtype of the gradients, or `param_dtype` under FSDP. If each replica
    # holds all gradients, a separate buffer also accumulates gradients in this dtype, as in Megatron and nanotron.
    reduce_dtype: GatheredDtype | None = None
    # How embedding tables are sharded: `auto` (the fastest way that fits), `table_wise`, `row_wise`, `column_wise` or
    # `data_parallel` for all tables, or a plan of `lightning-predict shard`. None replicates tables like other layers.
    embedding: str | None = None
    accumulate: int = 1  # Number of batches of the recorded size per optimizer step (gradient accumulation)
    # Whether the all-gather of updated parameters (ZeRO 1 and 2) overlaps with the next forward pass. Otherwise, the
    # all-gather precedes the forward pass.
    overlap_param_gather: bool = False
    # Whether parts of tensor-parallel collectives overlap with adjacent matmuls (torch's async tensor parallelism,
    # Megatron's tp-comm-overlap). The first part never overlaps.
    overlap_tensor: bool = False
    # Number of batches per optimizer step in all data-parallel groups together. The method `on` derives `accumulate`
    # from this number for each layout.
    global_batches: int | None = None
    batch_samples: int | None = None  # Batch size of the configuration file; a step with another is an error

    def __post_init__(self) -> None:
        if self.data not in DATA_STRATEGIES:
            raise InvalidArgumentError(_unknown(self.data))
        for name, kind in _KINDS.items():
            value, choices = getattr(self, name), _CHOICES[name]
            if value is None and _DEFAULTS[name] is None:
                continue
            if kind is int and value < 1:
                raise InvalidArgumentError(f"strategy: {name}={value!r}; expected a whole number of at least 1.")
            if choices and value not in choices:
                raise InvalidArgumentError(f"strategy: {name}={value!r}; expected {', '.join(choices)}.")
        if not (math.isfinite(self.bucket_cap_mb) and self.bucket_cap_mb > 0):
            raise InvalidArgumentError(f"strategy: bucket_cap_mb={self.bucket_cap_mb!r}; expected MiB above 0.")
        if not (math.isfinite(self.capacity) and self.capacity >= 1):
            raise InvalidArgumentError(f"strategy: capacity={self.capacity!r}; expected a factor of at least 1.")
        for needed, options in _NEEDED.items():
            given = [option for option in options if getattr(self, option) != _DEFAULTS[option]]
            if given and getattr(self, needed) == 1:
                raise InvalidArgumentError(
                    f"strategy: {_text(given[0], self)} needs {needed} parallelism; ask for {needed}=2 or more, too."
                )
        for contradicts, words in (*self._pipeline_contradictions(), *self._sharding_contradictions()):
            if contradicts:
                raise InvalidArgumentError(f"strategy: {words}")

    def _pipeline_contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield (whether the options contradict each other, error message) for options of pipelines and experts."""
        split = self.split
        for name, count in (("first_stage", self.first_stage), ("last_stage", self.last_stage)):
            yield (
                count is not None and (self.pipeline == 1 or self.virtual > 1),
                f"{name}={count} is of a pipeline of one stage a GPU; ask for pipeline=2 or more, and leave out "
                "virtual.",
            )
        yield (
            self.schedule == "gpipe" and self.virtual > 1,
            "schedule=gpipe has one stage a GPU; leave out virtual, or choose 1f1b or zero_bubble.",
        )
        yield (
            self.virtual > 1
            and self.micro_batches is not None
            and self.global_batches is None
            and self.micro_batches * self.accumulate % self.pipeline > 0,
            f"an interleaved schedule deals micro-batches out in rounds of pipeline={self.pipeline}, which "
            f"micro_batches={self.micro_batches} is not a multiple of.",
        )
        yield (
            split.gradients and self.schedule == "zero_bubble",
            f"schedule=zero_bubble puts off the gradients that {self.data} would scatter; choose ddp or zero1.",
        )
        yield (
            self.expert > 1 and split.inside_machines,
            f"expert={self.expert} with {self.data}: experts in groups are not predicted; choose fsdp or zero1.",
        )
        yield (
            self.tensor % self.experts_tensor > 0,
            f"expert_tensor={self.expert_tensor} does not divide tensor={self.tensor}.",
        )

    def _sharding_contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield (whether the options contradict each other, error message) for options of data parallelism."""
        split = self.split
        yield (
            self.shard is not None and not split.inside_machines,
            f"shard={self.shard} is the size of hybrid's groups, and {self.data} has none; choose 'hybrid,shard=...'.",
        )
        yield (
            self.offload != "none" and not split.state,
            "offload=optimizer moves a share of the optimizer's state, and ddp does not split it; choose zero1, zero2, "
            "fsdp or hybrid.",
        )
        yield (
            self.param_dtype is not None and not split.parameters,
            f"param_dtype={self.param_dtype} is what FSDP gathers in, and {self.data} gathers nothing; record the step "
            "in that precision instead.",
        )
        yield (
            split.gradients and not self.overlap_grad_reduce,
            f"{self.data} scatters gradients as they come; overlap_grad_reduce=false is of ddp and zero1.",
        )
        yield (
            self.no_sync and not split.gradients,
            f"no_sync=true keeps whole the gradients that FSDP scatters, and {self.data} scatters none; leave it out.",
        )
        yield (
            self.overlap_param_gather and (split.parameters or not split.state),
            f"overlap_param_gather=true is of zero1 and zero2, which gather what they updated; {self.data} does not.",
        )
        yield (
            self.global_batches is not None and self.accumulate > 1,
            f"global_batches={self.global_batches} sets accumulate for each number of GPUs; leave accumulate out.",
        )
        yield (self.embedding == "", "embedding= says nothing; expected auto, a way to share tables, or a plan file.")
        yield (
            self.embedding is not None and (self.data != "ddp" or not self.runs_whole_model),
            f"embedding={self.embedding} shares tables while each GPU holds all other layers; choose ddp, without "
            "other parallelism.",
        )

    @property
    def name(self) -> str:
        """Text that `parse_strategy` can parse: `data`, and the options that differ from their defaults."""
        changed = [name for name, default in _DEFAULTS.items() if getattr(self, name) != default]
        return ",".join([self.data, *(_text(name, self) for name in changed)])

    @property
    def split(self) -> DataSplit:
        """Which state data-parallel groups shard."""
        return DATA_SPLITS[self.data]

    @property
    def model_parallel(self) -> int:
        """Number of GPUs that share one copy of the model."""
        return self.tensor * self.pipeline

    @property
    def experts_tensor(self) -> int:
        """Number of GPUs that share each expert."""
        return self.expert_tensor or self.tensor

    @property
    def batch_parallel(self) -> int:
        """Number of GPUs that share one batch."""
        return self.tensor * self.pipeline * self.context

    @property
    def runs_whole_model(self) -> bool:
        """Whether each GPU runs the whole recorded model on a whole batch at once."""
        is_as_recorded = (
            self.expert == 1 and not self.expert_launches and not self.changes_operations and self.offload == "none"
        )
        return self.batch_parallel == 1 and self.micro_batches in (None, 1) and self.accumulate == 1 and is_as_recorded

    @property
    def changes_operations(self) -> bool:
        """Whether a GPU runs other operations than recorded, even alone: recomputation or float8."""
        return self.recompute != "none" or self.fp8 is not None

    @property
    def on_one_gpu(self) -> Strategy:
        """The part of the strategy that a single GPU can run: recomputation, float8 and accumulation."""
        return Strategy(recompute=self.recompute, fp8=self.fp8, accumulate=self.accumulate)

    def on(self, layout: Layout, *, batches: int = 1, samples: int | None = None) -> Strategy:
        """Return the strategy for a layout, with `accumulate` derived from `global_batches`.

        Args:
            layout: The GPUs.
            batches: Number of batches whose gradients the recorded step already accumulates.
            samples: Number of samples in one batch; None if unknown.
        """
        if None not in (samples, self.batch_samples) and samples != self.batch_samples:
            raise InvalidArgumentError(
                f"The strategy is for batches of {self.batch_samples} samples, but the recorded step has {samples}. "
                "Record it with that batch size, or change the micro-batch size in the file."
            )
        if self.global_batches is None:
            return self
        together = self.replicas(layout) * batches
        if self.global_batches % together:
            raise InvalidArgumentError(
                f"{self.global_batches} batches per update cannot be shared by {layout.name}, which processes "
                f"{together} at a time. Choose a number of GPUs that divides them."
            )
        return replace(self, accumulate=self.global_batches // together, global_batches=None)

    @property
    def is_accumulating(self) -> bool:
        """Whether the gradients of several batches or micro-batches are added before an optimizer step."""
        return self.accumulate * (self.micro_batches or 1) > 1

    def replicas(self, layout: Layout) -> int:
        """Return the number of data-parallel groups of a layout; 1 for a single GPU."""
        if layout.count == 1:
            return 1
        if layout.count % self.batch_parallel:
            context = f" x context={self.context}" if self.context > 1 else ""
            raise InvalidArgumentError(
                f"{layout.name} has {layout.count} GPUs, which tensor={self.tensor} x pipeline={self.pipeline}{context}"
                f" do not divide; choose degrees whose product divides {layout.count}."
            )
        if layout.gpus_per_node % self.tensor and self.tensor % layout.gpus_per_node:
            raise InvalidArgumentError(
                f"tensor={self.tensor} does not divide the {layout.gpus_per_node} GPUs of a machine of "
                f"{layout.name}, and is no multiple of them. GPUs that share a block must be part of one machine, or "
                "whole machines."
            )
        replicas = layout.count // self.batch_parallel
        if self.groups not in (None, replicas):
            raise InvalidArgumentError(
                f"{layout.name} has {layout.count} GPUs, {replicas} data-parallel group(s) of {self.batch_parallel}, "
                f"but the strategy has {self.groups} (groups={self.groups}). Ask for "
                f"{self.groups * self.batch_parallel} GPUs, or leave the number open (data_parallel_size='auto', "
                "data_parallel_shard_degree=-1)."
            )
        holders = replicas if self.expert_tensor is None else layout.count // self.pipeline // self.experts_tensor
        if holders % self.expert:
            raise InvalidArgumentError(
                f"expert={self.expert} does not divide the {holders} data-parallel group(s) of {layout.name}, over "
                "which the experts are dealt out (expert_tensor=1 counts each GPU)."
            )
        self.sharded_count(layout)
        return replicas

    def sharded_share(self, count: int, experts: float) -> float:
        """Return the share of sharded state that a GPU holds. Fewer GPUs hold the same experts.

        Args:
            count: Number of GPUs that share one copy of the state without experts.
            experts: Share of the state that belongs to experts.
        """
        fewer = self.expert * self.experts_tensor / self.tensor
        return (1 - experts + experts * min(fewer, count)) / count

    def communicators(self, layout: Layout) -> int:
        """Return the number of communicators (process groups) that each GPU of a layout belongs to."""
        if layout.count == 1:
            return 0
        degrees = (self.tensor, self.pipeline, self.context, self.expert)
        among_replicas = 0 if self.replicas(layout) == 1 else 2 if self.split.inside_machines else 1
        return among_replicas + sum(degree > 1 for degree in degrees)

    def sharded_count(self, layout: Layout) -> int:
        """Return the number of GPUs that share one copy of the sharded state; under `ddp`, the number of replicas."""
        group = layout.count // self.model_parallel
        if not self.split.inside_machines:
            return group
        inside = math.gcd(group, max(layout.gpus_per_node // self.tensor, 1))
        wanted = inside if self.shard is None else self.shard
        if group % wanted or (wanted % inside and inside % wanted):
            raise InvalidArgumentError(
                f"shard={wanted} does not fit the {group} GPUs of {layout.name} that hold the same part of the "
                f"model, {inside} of them in a machine. Choose a divisor of {inside}, or whole machines of them."
            )
        return wanted


def _kind(hint: object) -> object:
    """Return the type of an option without None: a class, or a Literal of its choices."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if type(None) in get_args(hint) else [hint]
    return kinds[0]


_KINDS: Final = {name: _kind(hint) for name, hint in get_type_hints(Strategy).items() if name != "data"}
"""Type of each option."""

_CHOICES: Final = {name: get_args(kind) for name, kind in _KINDS.items()}

_DEFAULTS: Final = {option.name: option.default for option in fields(Strategy)[1:]}

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {  # Options that need a kind of parallelism, by its degree
    "pipeline": ("virtual", "schedule"),
    "tensor": ("sequence", "overlap_tensor"),
    "expert": ("capacity",),
}


def _text(name: str, strategy: Strategy) -> str:
    """Return an option as a text that `parse_strategy` can parse."""
    value = getattr(strategy, name)
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


class LightningStrategy(Protocol):
    """A strategy of Lightning or Fabric, such as `ModelParallelStrategy(...)`.

    See `layouts/foreign_configs.py`.
    """

    @property
    def root_device(self) -> object:
        """Device of the strategy."""


def parse_strategy(words: str | Strategy | LightningStrategy) -> Strategy:
    """Parse a strategy from its text, a configuration of another project, or a strategy object of Lightning.

    Accepted configurations are Megatron's arguments (`--tensor-model-parallel-size 8 ...`) or a shell script with these
    arguments, torchtitan's TOML, DeepSpeed's JSON, and YAML of other projects.
    """
    if isinstance(words, Strategy):
        return words
    if not isinstance(words, str) or _is_foreign(words):
        from lightning_predict.layouts.foreign_configs import strategy_of_foreign

        words = strategy_of_foreign(words)
    name, *options = (word.strip() for word in words.split(","))
    if name.partition("=")[0].strip() in _KINDS:
        name, options = "ddp", [name, *options]
    data = ALIASES.get(name, name)
    if data not in DATA_STRATEGIES:
        raise InvalidArgumentError(_unknown(name))
    values: dict[str, Any] = {}
    for option in options:
        key, separator, value = (part.strip() for part in option.partition("="))
        if key not in _KINDS:
            raise InvalidArgumentError(
                f"strategy={words!r}: {option!r} is not an option; expected one of {', '.join(_KINDS)} with its value, "
                "for example 'ddp,tensor=8'."
            )
        if not separator and _KINDS[key] is not bool:
            example = (*_CHOICES[key], 2)[0]
            raise InvalidArgumentError(f"strategy={words!r}: {key} needs a value, for example '{key}={example}'.")
        values[key] = _value(words, key, value if separator else "true")
    return Strategy(data=data, **values)


def _is_foreign(words: str) -> bool:
    """Return whether a text is a configuration of another project: arguments of a script, or a file name."""
    first = words.partition(",")[0].replace("=", " = ").split()
    name, value = " ".join(first[:1]), first[1:]
    return len(value) > 2 or not (name in _KINDS if value else name in ALIASES or name in DATA_STRATEGIES)


def _value(words: str, key: str, value: str) -> float | str | bool:
    """Parse the value of an option."""
    kind = _KINDS[key]
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"strategy={words!r}: {key}={value!r}; expected true or false.")
        return value.lower() == "true"
    try:
        return float(value) if kind is float else int(value) if kind is int else value
    except ValueError:
        raise InvalidArgumentError(f"strategy={words!r}: {key}={value!r} is not a number.") from None


def _unknown(name: str) -> str:
    known = ", ".join((*DATA_STRATEGIES, *ALIASES))
    offload = " Of offloading, offload=optimizer is predicted, behind a comma." if "offload" in name else ""
    return f"strategy={name!r} is not known; choose one of {known}.{offload}"
