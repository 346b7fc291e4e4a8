"""Runs of GPTs on up to 3,072 GPUs, as their papers publish them: how they were shared, and how fast they were.

Narayanan et al. (2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", table 1)
state floating-point operations per second and GPU over a whole step, with every activation computed again; the sizes of
micro-batches and of interleaved stages come from Megatron-LM's `examples/sc21`. Korthikanti et al. (2022, "Reducing
Activation Recomputation in Large Transformer Models", tables 3 and 5) state the time of a step with all activations
computed again, and with sequence parallelism and selective recomputation. All ran on DGX A100 80GB with eight adapters
of 200 Gbit/s, at 2,048 tokens a sample and a vocabulary of 51,200. Nothing is fitted to them. Example::

    cases = published_cases()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from lightning_predict.base.units import teraflops_to_flops
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.layouts.strategy import Strategy

LENGTH: Final = 2048
VOCABULARY: Final = 51200
GPUS_PER_NODE: Final = 8
GPU: Final = "A100-SXM-80GB"
TENSOR: Final = 8
"""GPUs that share a block, where nothing else is said."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One row of a paper.

    Attributes:
        source: `narayanan` or `korthikanti`.
        name: Parameters, as the paper rounds them.
        layers: Blocks.
        hidden: Width.
        heads: Heads of attention.
        gpus: All GPUs.
        batch: Samples of a step on all GPUs.
        micro_batch: Samples of a micro-batch.
        pipeline: Stages.
        tensor: GPUs that share a block.
        virtual: Stages of each GPU.
        is_selective: Sequence parallelism, and attention alone is computed again; else everything is.
        measured_seconds: A step.
    """

    source: str
    name: str
    layers: int
    hidden: int
    heads: int
    gpus: int
    batch: int
    micro_batch: int
    pipeline: int
    tensor: int = TENSOR
    virtual: int = 1
    is_selective: bool = False
    measured_seconds: float

    @property
    def replicas(self) -> int:
        """Data-parallel groups."""
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def layout(self) -> Layout:
        """The GPUs."""
        return Layout(find_gpu(GPU), GPUS_PER_NODE, self.gpus // GPUS_PER_NODE)

    @property
    def strategy(self) -> Strategy:
        """How they share."""
        return Strategy(
            tensor=self.tensor,
            pipeline=self.pipeline,
            virtual=self.virtual,
            micro_batches=self.batch // self.replicas // self.micro_batch,
            sequence=self.is_selective,
            recompute="selective" if self.is_selective else "none",
            overlap_grad_reduce=False,
        )


def step_flops(*, batch: int, layers: int, hidden: int) -> float:
    """Count a step's operations with every activation computed again (Narayanan et al., 2021, equation 3).

    Args:
        batch: Samples of a step on all GPUs.
        layers: Blocks.
        hidden: Width.
    """
    attention, vocabulary = LENGTH / (6 * hidden), VOCABULARY / (16 * layers * hidden)
    return 96.0 * batch * LENGTH * layers * hidden**2 * (1 + attention + vocabulary)


_NARAYANAN: Final = (
    # name, layers, hidden, heads, GPUs, batch, micro-batch, tensor, pipeline, virtual, TFLOP/s and GPU
    ("1.7B", 24, 2304, 24, 32, 512, 16, 1, 1, 1, 137),
    ("3.6B", 30, 3072, 32, 64, 512, 16, 2, 1, 1, 138),
    ("7.5B", 36, 4096, 32, 128, 512, 16, 4, 1, 1, 142),
    ("18.4B", 40, 6144, 48, 256, 1024, 8, 8, 1, 1, 135),
    ("39.1B", 48, 8192, 64, 512, 1536, 4, 8, 2, 1, 138),
    ("76.1B", 60, 10240, 80, 1024, 1792, 2, 8, 4, 3, 140),
    ("145.6B", 80, 12288, 96, 1536, 2304, 2, 8, 8, 2, 148),
    ("310.1B", 96, 16384, 128, 1920, 2160, 1, 8, 16, 2, 155),
    ("529.6B", 105, 20480, 128, 2520, 2520, 1, 8, 35, 3, 163),
    ("1008B", 128, 25600, 160, 3072, 3072, 1, 8, 64, 1, 163),
)

_KORTHIKANTI: Final = (
    # name, layers, hidden, heads, GPUs, batch, micro-batch, pipeline, virtual, seconds: everything again, selective
    ("22B", 48, 6144, 64, 8, 4, 4, 1, 1, 1.42, 1.10),
    ("175B", 96, 12288, 96, 64, 64, 1, 8, 3, 18.13, 13.75),
    ("530B", 105, 20480, 128, 280, 280, 1, 35, 3, 49.05, 37.83),
    ("1T", 128, 25600, 160, 512, 512, 1, 64, 1, 94.42, 71.49),
)


def published_runs() -> tuple[PublishedRun, ...]:
    """Return the rows of both papers."""
    found = []
    for name, layers, hidden, heads, gpus, batch, micro, tensor, pipeline, virtual, rate in _NARAYANAN:
        flops = step_flops(batch=batch, layers=layers, hidden=hidden)
        found.append(
            PublishedRun(
                source="narayanan",
                name=name,
                layers=layers,
                hidden=hidden,
                heads=heads,
                gpus=gpus,
                batch=batch,
                micro_batch=micro,
                tensor=tensor,
                pipeline=pipeline,
                virtual=virtual,
                measured_seconds=flops / (gpus * teraflops_to_flops(rate)),
            )
        )
    for name, layers, hidden, heads, gpus, batch, micro, pipeline, virtual, *times in _KORTHIKANTI:
        for is_selective, seconds in zip((False, True), times, strict=True):
            found.append(
                PublishedRun(
                    source="korthikanti",
                    name=name,
                    layers=layers,
                    hidden=hidden,
                    heads=heads,
                    gpus=gpus,
                    batch=batch,
                    micro_batch=micro,
                    pipeline=pipeline,
                    virtual=virtual,
                    is_selective=is_selective,
                    measured_seconds=seconds,
                )
            )
    return tuple(found)
