"""`Strategy`: how several GPUs share a model, in one word of Lightning's or of the papers, and options behind it.

`"ddp"` replicates the model; `"zero1"`, `"zero2"` and `"fsdp"` (`"zero3"`) split the optimizer's state, the gradients
and the parameters over the GPUs; `"hybrid"` splits them inside a machine and replicates over machines. Behind a comma:
`tensor=8` splits every transformer block over 8 GPUs, `pipeline=4` gives each of 4 a quarter of the blocks,
`micro_batches=16` cuts a batch; the others are the fields of `Strategy`. Options alone are of `ddp`. Example::

    >>> strategy_of("fsdp").name
    'fsdp'
    >>> strategy_of("deepspeed_stage_2,tensor=8").data
    'zero2'
    >>> strategy_of("ddp,tensor=8,pipeline=4,virtual=2,sequence=true").name
    'ddp,tensor=8,pipeline=4,virtual=2,sequence=true'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Protocol, final, get_args

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.extensions.parallel.foreign import (
    are_arguments,
    strategy_of_arguments,
    strategy_of_file,
    strategy_of_object,
)
from lightning_predict.gpus.layouts import Layout

DataStrategy = Literal["ddp", "zero1", "zero2", "fsdp", "hybrid"]
DATA_STRATEGIES: Final[tuple[DataStrategy, ...]] = get_args(DataStrategy)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DataSplit:
    """What replicas split of the model, so that each GPU holds its share; memory, exchanges and the search follow.

    Attributes:
        state: The optimizer's state: each GPU updates its share, and all gather what was updated.
        gradients: Gradients, which are scattered as they come.
        parameters: Parameters, which are gathered for each unit as it computes.
        inside_machines: Only inside a machine, or a group of them; these groups are replicas.
        is_searched: The search for the fastest strategy looks at it.
    """

    state: bool = False
    gradients: bool = False
    parameters: bool = False
    inside_machines: bool = False
    is_searched: bool = True


DATA_SPLITS: Final[Mapping[DataStrategy, DataSplit]] = {
    "ddp": DataSplit(),
    "zero1": DataSplit(state=True),
    # It exchanges what ZeRO 1 does, in the same time; where that does not fit, the search goes on to FSDP.
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
"""Lightning's names and others' for the same thing; DeepSpeed without a stage is Lightning's stage 2."""

PipelineSchedule = Literal["1f1b", "gpipe", "zero_bubble"]
Recompute = Literal["none", "selective", "operations", "layers", "full"]
Float8 = Literal["tensorwise", "rowwise", "blockwise", "mx"]
Offload = Literal["none", "optimizer"]
GatheredDtype = Literal["float32", "bfloat16", "float16"]

MIXED_DTYPES: Final[tuple[GatheredDtype, ...]] = get_args(GatheredDtype)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way in which GPUs share the work: each data-parallel group of `tensor x pipeline x context` holds one batch.

    Attributes:
        data: What the data-parallel groups split.
        tensor: GPUs that share every transformer block (Megatron's tensor parallelism).
        pipeline: GPUs in a row that share the blocks.
        micro_batches: Parts that a batch is cut into, whose gradients add up; None takes four times the length of a
            pipeline, and the whole batch without one.
        accumulate: Batches as large as the recorded one whose gradients add up before an update.
        bucket_cap_mb: Size of DDP's buckets of gradients, in MiB as torch counts them.
        virtual: Stages of each GPU of a pipeline (Megatron's interleaved schedule).
        first_stage: Blocks of a pipeline's first stage, which has the embedding besides; None for as many as the
            others have.
        last_stage: Blocks of a pipeline's last stage, which has the output layer and the loss besides; None for as many
            as the others have.
        schedule: In which order a pipeline's stages work: `1f1b`, `gpipe` (all forward, then all backward), or
            `zero_bubble` (gradients of weights fill the gaps: ZB-H1 of Qi et al., 2024).
        sequence: Norms, dropouts and shortcuts between the blocks' shared layers are shared, too (Megatron's sequence
            parallelism).
        gather_again: Where each GPU has its part of the sequence, what products of the blocks read whole is gathered
            once more for their gradients, as Megatron does, rather than kept, as torch's DTensor keeps it.
        context: GPUs that share each sequence; keys and values go around in a ring.
        expert: Data-parallel groups over which the experts of a mixture are dealt out.
        capacity: Tokens that each expert takes over those of an even routing, padding included; without padding, those
            of the GPU whose experts take most, for which the others wait.
        expert_launches: Products of a layer's experts that were recorded as one are launched for each expert, in
            float8 behind a cast of each operand (Transformer Engine's `GroupedLinear`, and so Megatron and NeMo).
        shard: GPUs that split what `hybrid` splits; None takes those of a machine.
        groups: Data-parallel groups that it was written for, as a file or an object of Lightning's says them; layouts
            that make others are refused. None for as many as the GPUs make.
        recompute: What a backward pass computes again, of a step that was recorded without: nothing, the attention
            between its projections (`selective`, as Megatron calls it), all but attention and every second product
            (`operations`, torchtitan's default), every second block (`layers`), or every block (`full`).
        offload: What lives in the memory of the host: nothing, or the optimizer's state, which the processor updates.
        fp8: Products of the blocks in float8, with one scale per tensor, row, block of values, or 32 values (`mx`);
            None for none.
        overlap_grad_reduce: Gradients are exchanged behind the backward pass; otherwise after it.
        overlap_param_gather: Parameters that ZeRO 1 and 2 updated are gathered behind the next forward pass; otherwise
            before it.
        overlap_tensor: Collectives of tensor parallelism run in parts behind the products beside them (torch's async
            tensor parallelism, Megatron's tp-comm-overlap); the first part stays exposed.
        param_dtype: What FSDP gathers parameters in (torch's `MixedPrecision`); None for their own.
        reduce_dtype: What gradients are exchanged in, and, where each replica holds all of them, added up in (a buffer
            of that dtype, as Megatron and nanotron have it); None for their own, under FSDP for `param_dtype`.
        embedding: How embedding tables are shared: `auto` for the fastest way that fits, `table_wise`, `row_wise`,
            `column_wise` or `data_parallel` for all of them, or the plan that `lightning-predict shard` wrote; None
            for a copy on each GPU, like any other layer.

    Raises:
        InvalidArgumentError: A value outside its range, or values that exclude each other.
    """

    data: DataStrategy = "ddp"
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int | None = None
    bucket_cap_mb: float = 25.0
    virtual: int = 1
    first_stage: int | None = None
    last_stage: int | None = None
    schedule: PipelineSchedule = "1f1b"
    sequence: bool = False
    gather_again: bool = False
    context: int = 1
    expert: int = 1
    capacity: float = 1.0
    expert_launches: bool = False
    shard: int | None = None
    groups: int | None = None
    recompute: Recompute = "none"
    offload: Offload = "none"
    fp8: Float8 | None = None
    overlap_grad_reduce: bool = True
    param_dtype: GatheredDtype | None = None
    reduce_dtype: GatheredDtype | None = None
    embedding: str | None = None
    accumulate: int = 1
    overlap_param_gather: bool = False
    overlap_tensor: bool = False

    def __post_init__(self) -> None:
        if self.data not in DATA_STRATEGIES:
            raise InvalidArgumentError(_unknown(self.data))
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"strategy: {name}={value!r}; expected a whole number of at least 1.")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (value is None and name in _MAY_BE_NONE):
                raise InvalidArgumentError(f"strategy: {name}={value!r}; expected {', '.join(choices)}.")
        if not (math.isfinite(self.bucket_cap_mb) and self.bucket_cap_mb > 0):
            raise InvalidArgumentError(f"strategy: bucket_cap_mb={self.bucket_cap_mb!r}; expected MiB above 0.")
        if not (math.isfinite(self.capacity) and self.capacity >= 1):
            raise InvalidArgumentError(f"strategy: capacity={self.capacity!r}; expected a factor of at least 1.")
        for refused, words in self._contradictions():
            if refused:
                raise InvalidArgumentError(f"strategy: {words}")

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Describe which options exclude each other."""
        split = self.split
        yield (
            self.virtual > 1 and self.pipeline == 1,
            f"virtual={self.virtual} interleaves the stages of a pipeline; ask for pipeline=2 or more, too.",
        )
        for name, count in (("first_stage", self.first_stage), ("last_stage", self.last_stage)):
            yield (
                count is not None and (self.pipeline == 1 or self.virtual > 1),
                f"{name}={count} is of a pipeline of one stage a GPU; ask for pipeline=2 or more, and leave out "
                "virtual.",
            )
        yield (
            self.schedule != "1f1b" and self.pipeline == 1,
            f"schedule={self.schedule} is of a pipeline; ask for pipeline=2 or more, too.",
        )
        yield (
            self.schedule == "gpipe" and self.virtual > 1,
            "schedule=gpipe has one stage a GPU; leave out virtual, or choose 1f1b or zero_bubble.",
        )
        yield (
            self.virtual > 1
            and self.micro_batches is not None
            and self.micro_batches * self.accumulate % self.pipeline > 0,
            f"an interleaved schedule deals micro-batches out in rounds of pipeline={self.pipeline}, which "
            f"micro_batches={self.micro_batches} is not a multiple of.",
        )
        yield (
            self.sequence and self.tensor == 1,
            "sequence=true shares what tensor parallelism leaves whole; ask for tensor=2 or more, too.",
        )
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
            self.overlap_param_gather and (split.parameters or not split.state),
            f"overlap_param_gather=true is of zero1 and zero2, which gather what they updated; {self.data} does not.",
        )
        yield (
            self.overlap_tensor and self.tensor == 1,
            "overlap_tensor=true hides what tensor parallelism exchanges; ask for tensor=2 or more, too.",
        )
        yield (
            self.expert > 1 and split.parameters,
            f"expert={self.expert} with {self.data}: sharding experts twice is not predicted; choose ddp, zero1 or "
            "zero2.",
        )
        yield (
            split.gradients and self.schedule == "zero_bubble",
            f"schedule=zero_bubble puts off the gradients that {self.data} would scatter; choose ddp or zero1.",
        )
        yield (
            self.embedding == "",
            "embedding= says nothing; expected auto, a way to share tables, or a plan file.",
        )
        yield (
            self.embedding is not None and (self.data != "ddp" or not self.is_whole),
            f"embedding={self.embedding} shares tables beside layers that each GPU holds whole; choose ddp, without "
            "other parallelism.",
        )
        yield (
            self.capacity > 1 and self.expert == 1,
            "capacity is of experts that are dealt out; ask for expert=2 or more, too.",
        )

    @property
    def name(self) -> str:
        """The words that `strategy_of` reads back: what splits the data, and the options that are not the default."""
        words: list[str] = [self.data]
        for own in fields(self)[1:]:
            value = getattr(self, own.name)
            if value != own.default:
                words.append(f"{own.name}={str(value).lower() if isinstance(value, bool) else value}")
        return ",".join(words)

    @property
    def split(self) -> DataSplit:
        """What the data-parallel groups split."""
        return DATA_SPLITS[self.data]

    @property
    def model_parallel(self) -> int:
        """GPUs that hold the model once."""
        return self.tensor * self.pipeline

    @property
    def batch_parallel(self) -> int:
        """GPUs that work on one batch."""
        return self.tensor * self.pipeline * self.context

    @property
    def is_whole(self) -> bool:
        """Each GPU runs the whole model, as it was recorded, on a whole batch at once."""
        is_as_recorded = (
            self.expert == 1
            and not self.expert_launches
            and self.recompute == "none"
            and self.fp8 is None
            and self.offload == "none"
        )
        return self.batch_parallel == 1 and self.micro_batches in (None, 1) and self.accumulate == 1 and is_as_recorded

    def replicas(self, layout: Layout) -> int:
        """Count a layout's data-parallel groups, each with its own samples; a single GPU is one, whatever the degrees.

        Raises:
            InvalidArgumentError: The GPUs cannot be divided so.
        """
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
                f"tensor={self.tensor} does not divide the {layout.gpus_per_node} GPUs of a machine of {layout.name}, "
                "nor do they divide it; the GPUs that share a block are part of a machine, or whole machines."
            )
        replicas = layout.count // self.batch_parallel
        if self.groups not in (None, replicas):
            raise InvalidArgumentError(
                f"{layout.name} has {layout.count} GPUs, {replicas} data-parallel group(s) of {self.batch_parallel}, "
                f"and the strategy is written for {self.groups} (groups={self.groups}); ask for "
                f"{self.groups * self.batch_parallel} GPUs, or leave the number open (data_parallel_size='auto', "
                "data_parallel_shard_degree=-1)."
            )
        if replicas % self.expert:
            raise InvalidArgumentError(
                f"expert={self.expert} does not divide the {replicas} data-parallel group(s) of {layout.name}, over "
                "which the experts are dealt out."
            )
        self.sharded_count(layout)
        return replicas

    def sharded_count(self, layout: Layout) -> int:
        """Count the GPUs that share what a single GPU holds under `ddp`.

        Raises:
            InvalidArgumentError: Hybrid's groups cannot be made of these GPUs.
        """
        group = layout.count // self.model_parallel
        if not self.split.inside_machines:
            return group
        inside = math.gcd(group, max(layout.gpus_per_node // self.tensor, 1))
        wanted = inside if self.shard is None else self.shard
        if group % wanted or (wanted % inside and inside % wanted):
            raise InvalidArgumentError(
                f"shard={wanted} does not fit the {group} GPUs of {layout.name} that hold the same part of the model, "
                f"{inside} of them in a machine; choose a divisor of {inside}, or whole machines of them."
            )
        return wanted


_NUMBERS: Final = (
    *("tensor", "pipeline", "micro_batches", "virtual", "first_stage", "last_stage"),
    *("context", "expert", "shard", "groups", "accumulate"),
)
_DECIMALS: Final = ("bucket_cap_mb", "capacity")
_FLAGS: Final = (
    *("sequence", "gather_again", "expert_launches"),
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_tensor"),
)
_TEXTS: Final = ("embedding",)
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "schedule": get_args(PipelineSchedule),
    "recompute": get_args(Recompute),
    "offload": get_args(Offload),
    "fp8": get_args(Float8),
    "param_dtype": MIXED_DTYPES,
    "reduce_dtype": MIXED_DTYPES,
}
_MAY_BE_NONE: Final = frozenset({"fp8", "param_dtype", "reduce_dtype"})
_OPTIONS: Final = (*_NUMBERS, *_DECIMALS, *_FLAGS, *_TEXTS, *_CHOICES)


class LightningStrategy(Protocol):
    """A strategy of Lightning's or Fabric's, as `ModelParallelStrategy(...)`; see `foreign.strategy_of_object`."""

    @property
    def root_device(self) -> Any:
        """Its device."""


def strategy_of(words: str | Strategy | LightningStrategy) -> Strategy:
    """Return the strategy of these words, of Megatron's arguments (`--tensor-model-parallel-size 8 ...`), or of a file.

    Files are torchtitan's TOML and DeepSpeed's JSON; a strategy of Lightning's may stand for its words.

    Raises:
        InvalidArgumentError: A name or an option that is not known.
    """
    if isinstance(words, Strategy):
        return words
    if not isinstance(words, str):
        words = strategy_of_object(words)
    elif not words.isalnum() and are_arguments(words):
        words = strategy_of_arguments(words)
    elif "=" not in words and words.strip().endswith((".toml", ".json")):  # an option may name a file, too
        words = strategy_of_file(words)
    name, *options = (word.strip() for word in words.split(","))
    if name.partition("=")[0].strip() in _OPTIONS:
        name, options = "ddp", [name, *options]
    data = ALIASES.get(name, name)
    if data not in DATA_STRATEGIES:
        raise InvalidArgumentError(_unknown(name))
    values: dict[str, Any] = {}
    for option in options:
        key, separator, value = (part.strip() for part in option.partition("="))
        if not separator or key not in _OPTIONS:
            raise InvalidArgumentError(
                f"strategy={words!r}: {option!r} is not an option; expected one of {', '.join(_OPTIONS)} with its "
                "value, for example 'ddp,tensor=8'."
            )
        values[key] = _value(words, key, value)
    return Strategy(data=data, **values)


def _value(words: str, key: str, value: str) -> float | str | bool:
    """Read an option's value.

    Raises:
        InvalidArgumentError: Not a number, or not true or false.
    """
    if key in _FLAGS:
        if value.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"strategy={words!r}: {key}={value!r}; expected true or false.")
        return value.lower() == "true"
    if key in _CHOICES or key in _TEXTS:
        return value
    try:
        return float(value) if key in _DECIMALS else int(value)
    except ValueError:
        raise InvalidArgumentError(f"strategy={words!r}: {key}={value!r} is not a number.") from None


@final
@dataclass(frozen=True, slots=True)
class DataGroup:
    """GPUs that hold the same part of the model and exchange its gradients.

    GPUs that share a block come first in the layout, then the replicas, then the stages (Narayanan et al., 2021).

    Attributes:
        layout: One GPU of each replica.
        groups_per_node: Such groups in each machine, which share its network.
    """

    layout: Layout
    groups_per_node: int


def data_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the data-parallel group of each GPU of a layout."""
    strategy.replicas(layout)
    if strategy.model_parallel == 1:
        return DataGroup(layout, 1)
    return _group(layout, layout.count // strategy.model_parallel, strategy.tensor)


def _group(layout: Layout, count: int, stride: int) -> DataGroup:
    """Group `count` GPUs at distance `stride`, as closely together as possible, as many in each machine.

    Where a group does not end with a machine, one of them lies across two.
    """
    if stride > layout.gpus_per_node:  # whole machines share a block: one GPU of each group in a machine
        return DataGroup(replace(layout, gpus_per_node=1, nodes=count), layout.gpus_per_node)
    places = layout.gpus_per_node // stride
    fewest = 1 if places % count == 0 else 2
    nodes = next(each for each in range(fewest, count + 1) if count % each == 0 and count // each <= places)
    inside = count // nodes
    own = replace(layout, gpus_per_node=inside, nodes=nodes)
    return DataGroup(own, math.ceil(layout.gpus_per_node / inside))


def tensor_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the GPUs that share a block: of one machine, or of whole machines."""
    inside = min(strategy.tensor, layout.gpus_per_node)
    own = replace(layout, gpus_per_node=inside, nodes=strategy.tensor // inside)
    return DataGroup(own, layout.gpus_per_node // inside)


def context_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the GPUs that share a sequence: neighbours beyond those that share a block."""
    return _group(layout, strategy.context, strategy.tensor)


def expert_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the GPUs over which experts are dealt out: neighbours beyond those that share a block or a sequence."""
    return _group(layout, strategy.expert, strategy.tensor * strategy.context)


def expert_data_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """Return the GPUs that hold the same experts and exchange their gradients."""
    count = layout.count // strategy.model_parallel // strategy.expert
    return _group(layout, count, strategy.tensor * strategy.expert)


def _unknown(name: str) -> str:
    known = ", ".join((*DATA_STRATEGIES, *ALIASES))
    offload = " Of offloading, offload=optimizer is predicted, behind a comma." if "offload" in name else ""
    return f"strategy={name!r} is not known; choose one of {known}.{offload}"
