"""`Strategy`: how several GPUs share a model, in one word of Lightning's or of the papers, and options behind it.

`"ddp"` replicates the model; `"zero1"`, `"zero2"` and `"fsdp"` (`"zero3"`) split the optimizer's state, the gradients
and the parameters over the GPUs; `"hybrid"` splits them inside a machine and replicates over machines. Behind a comma:
`tensor=8` splits every transformer block over 8 GPUs, `pipeline=4` gives each of 4 a quarter of the blocks,
`micro_batches=16` cuts a batch, `bucket_cap_mb=25` is of DDP. Example::

    >>> strategy_of("fsdp")
    Strategy(data='fsdp', tensor=1, pipeline=1, micro_batches=None, bucket_cap_mb=25.0)
    >>> strategy_of("deepspeed_stage_2,tensor=8").data
    'zero2'
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

from lightning_predict.checked import shown
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import Layout

DataStrategy = Literal["ddp", "zero1", "zero2", "fsdp", "hybrid"]
DATA_STRATEGIES: Final[tuple[DataStrategy, ...]] = get_args(DataStrategy)

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

_NUMBERS: Final = ("tensor", "pipeline", "micro_batches")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How GPUs share the work. Each data-parallel group of `tensor x pipeline` GPUs holds the model once.

    Attributes:
        data: What the data-parallel groups split.
        tensor: GPUs that share every transformer block.
        pipeline: GPUs in a row that share the blocks.
        micro_batches: Parts that a batch is cut into, whose gradients add up; None takes four times the length of a
            pipeline, and the whole batch without one.
        bucket_cap_mb: Size of DDP's buckets of gradients, in MiB as torch counts them.

    Raises:
        InvalidArgumentError: A value outside its range.
    """

    data: DataStrategy = "ddp"
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int | None = None
    bucket_cap_mb: float = 25.0

    def __post_init__(self) -> None:
        if self.data not in DATA_STRATEGIES:
            raise InvalidArgumentError(_unknown(self.data))
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"strategy: {name}={value!r}; expected a whole number of at least 1.")
        if not (math.isfinite(self.bucket_cap_mb) and self.bucket_cap_mb > 0):
            raise InvalidArgumentError(f"strategy: bucket_cap_mb={self.bucket_cap_mb!r}; expected MiB above 0.")

    @property
    def model_parallel(self) -> int:
        """GPUs that hold the model once."""
        return self.tensor * self.pipeline

    @property
    def is_whole(self) -> bool:
        """Each GPU runs the whole model on a whole batch at once."""
        return self.model_parallel == 1 and self.micro_batches in (None, 1)

    def replicas(self, layout: Layout) -> int:
        """Data-parallel groups of a layout, each with its own samples; a single GPU is one, whatever the degrees.

        Raises:
            InvalidArgumentError: The GPUs cannot be divided so.
        """
        if layout.count == 1:
            return 1
        if layout.count % self.model_parallel:
            raise InvalidArgumentError(
                f"{layout.name} has {layout.count} GPUs, which tensor={self.tensor} x pipeline={self.pipeline} do not "
                f"divide; choose degrees whose product divides {layout.count}."
            )
        if layout.gpus_per_node % self.tensor:
            raise InvalidArgumentError(
                f"tensor={self.tensor} does not divide the {layout.gpus_per_node} GPUs of a machine of {layout.name}; "
                "the GPUs that share a block sit in one machine."
            )
        return layout.count // self.model_parallel


def strategy_of(words: str | Strategy) -> Strategy:
    """The strategy of these words.

    Raises:
        InvalidArgumentError: A name or an option that is not known.
    """
    if isinstance(words, Strategy):
        return words
    if not isinstance(words, str):
        raise InvalidArgumentError(
            f"strategy={shown(words)} is neither a text nor a Strategy; expected for example 'ddp'."
        )
    name, *options = (word.strip() for word in words.split(","))
    data = ALIASES.get(name, name)
    if data not in DATA_STRATEGIES:
        raise InvalidArgumentError(_unknown(name))
    values: dict[str, float] = {}
    for option in options:
        key, separator, value = (part.strip() for part in option.partition("="))
        if not separator or key not in (*_NUMBERS, "bucket_cap_mb"):
            raise InvalidArgumentError(
                f"strategy={words!r}: {option!r} is not an option; expected {', '.join(_NUMBERS)} or bucket_cap_mb "
                "with a number, for example 'ddp,tensor=8'."
            )
        try:
            values[key] = float(value) if key == "bucket_cap_mb" else int(value)
        except ValueError:
            raise InvalidArgumentError(f"strategy={words!r}: {key}={value!r} is not a number.") from None
    return Strategy(data=data, **values)  # type: ignore[arg-type]


@final
@dataclass(frozen=True, slots=True)
class DataGroup:
    """GPUs that hold the same part of the model and exchange its gradients.

    GPUs that share a block come first in the layout, then the replicas, then the stages (Narayanan et al., 2021).

    Attributes:
        layout: One of its GPUs a replica.
        groups_per_node: Such groups in each machine, which share its network.
    """

    layout: Layout
    groups_per_node: int


def data_group(layout: Layout, strategy: Strategy) -> DataGroup:
    """The data-parallel group of each GPU of a layout.

    Raises:
        InvalidArgumentError: The GPUs cannot be divided so.
    """
    replicas = strategy.replicas(layout)
    if strategy.model_parallel == 1:
        return DataGroup(layout, 1)
    inside = math.gcd(replicas, layout.gpus_per_node // strategy.tensor)
    return DataGroup(Layout(layout.gpu, inside, replicas // inside), layout.gpus_per_node // inside)


def _unknown(name: str) -> str:
    known = ", ".join((*DATA_STRATEGIES, *ALIASES))
    offload = " Offloading to the host is not predicted." if "offload" in name else ""
    return f"strategy={name!r} is not known; choose one of {known}.{offload}"
