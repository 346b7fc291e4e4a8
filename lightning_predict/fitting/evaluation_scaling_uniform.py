"""Benchmarks of which only the size is known: a step whose gradients become ready evenly.

What several GPUs add to a measured step depends on how many bytes of gradients there are and when they are ready. Where
no model of a benchmark is written, its published number of parameters is spread evenly over a backward pass of two
thirds of the step. Example::

    step = uniform_step("waveglow", precision="FP32", gpus=[gpu("T4")])
    step.shared.on(layout_of("4xT4"), replace(step.single, seconds=1.2), 0, Strategy())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import TimedWork
from lightning_predict.kernels.translation import WorkItem
from lightning_predict.scaling.parallel import SharedStep
from lightning_predict.timeline.queues import iterations
from lightning_predict.timeline.records import Iteration
from lightning_predict.tracing.records import Operation, Parameter, Phase, TensorInfo, Trace

PARTS: Final = 20
"""Modules that the step is cut into, alike in time and in parameters."""

FORWARD_SHARE: Final = 1 / 3
"""Of the step: the backward pass of a layer takes two products where the forward pass takes one."""


@final
@dataclass(frozen=True, slots=True)
class UniformBenchmark:
    """What is published of a benchmark.

    Attributes:
        parameters: Its trainable parameters.
        units_per_sample: What the table counts in one sample.
    """

    parameters: int
    units_per_sample: float = 1.0


UNIFORM_BENCHMARKS: Final[Mapping[str, UniformBenchmark]] = {
    # SSD300 with a ResNet-50 and Mask R-CNN with a ResNet-50 and a feature pyramid; an image is a unit.
    "SSD": UniformBenchmark(23_000_000),
    "maskrcnn": UniformBenchmark(44_400_000),
    # An utterance of LJSpeech lasts 6.6 s on average: 566 mel frames of 256 samples at 22.05 kHz.
    "tacotron2": UniformBenchmark(28_200_000, 566),
    # Trained on segments of 8,000 audio samples.
    "waveglow": UniformBenchmark(87_900_000, 8_000),
}
"""Benchmarks by the table's name; parameters as their authors and torchvision state them."""


@final
@dataclass(frozen=True, slots=True)
class UniformStep:
    """A step of one second, ready to be shared, and itself on each GPU."""

    shared: SharedStep
    singles: tuple[Iteration, ...]


def uniform_step(name: str, *, precision: str, gpus: Sequence[Gpu]) -> UniformStep:
    """The step of a benchmark.

    Args:
        name: A key of `UNIFORM_BENCHMARKS`.
        precision: `FP32`, or a precision that keeps its gradients in 16 bits.
        gpus: GPUs to run it on; on each it takes a second.
    """
    dtype = "float32" if precision == "FP32" else "float16"
    data = TensorInfo((1,), dtype)
    order: list[tuple[Phase, int]] = [("forward", part) for part in range(PARTS)]
    order += [("backward", part) for part in reversed(range(PARTS))]
    operations = [
        Operation(name="aten::mm", phase=phase, inputs=(data, data), outputs=(data,), module=str(part))
        for phase, part in order
    ]
    trace = Trace(
        operations=(*operations, Operation(name="aten::add", phase="optimizer", inputs=(data,), outputs=(data,))),
        device="cuda",
        recorder="kineto",
        parameters=tuple(
            Parameter(name=f"{part}.weight", shape=(UNIFORM_BENCHMARKS[name].parameters // PARTS,), dtype=dtype)
            for part in range(PARTS)
        ),
    )
    shares = {"forward": FORWARD_SHARE / PARTS, "backward": (1 - FORWARD_SHARE) / PARTS}
    seconds = np.array([[*(shares[phase] for phase, _ in order), 0.0]] * len(gpus))
    timed = TimedWork(
        items=tuple(WorkItem((index,), (), 1) for index in range(len(trace.operations))),
        families=("linear",) * len(trace.operations),
        phases=tuple(operation.phase for operation in trace.operations),
        seconds=seconds,
        low_seconds=seconds,
        high_seconds=seconds,
        shares={"measured": np.ones_like(seconds)},
    )
    return UniformStep(SharedStep(trace, timed, gpus), iterations(trace, timed, gpus))
