"""What several GPUs share beside the step: the rest of the run, and the memory that each of them needs.

Every replica works through samples of its own, so that n replicas do the same samples in n times fewer steps, each of
which holds n times as many (the learning rate that suits them is the user's concern). Example::

    >>> shared_workload(Workload(training_iterations=1000, validation_iterations=50), replicas=8).training_iterations
    125
"""

from __future__ import annotations

import math
from dataclasses import replace

from lightning_predict.gpus.layouts import Layout
from lightning_predict.scaling.input_pipeline import node_loader_seconds
from lightning_predict.scaling.model_memory import held_memory
from lightning_predict.scaling.records import Batches, Workload
from lightning_predict.scaling.strategy import Strategy, data_group
from lightning_predict.tracing.records import Trace

GATHERED_UNITS = 2
"""Units of FSDP whose parameters are whole at once: the one that computes, and the next."""


def shared_workload(workload: Workload, *, replicas: int, recorded: int = 1) -> Workload:
    """One replica's part of what is still to come; the last step may be short, and counts.

    Args:
        workload: What each of the recorded replicas has still to do.
        replicas: Replicas that shall do it.
        recorded: Replicas of the run that was recorded.
    """
    if replicas == recorded:
        return workload

    def part(count: int) -> int:
        return math.ceil(count * recorded / replicas)

    def parts(batches: Batches) -> Batches:
        return replace(
            batches, windows=part(batches.windows), batches=part(batches.batches), uneven=part(batches.uneven)
        )

    return replace(
        workload,
        training_iterations=None if workload.training_iterations is None else part(workload.training_iterations),
        validation_iterations=None if workload.validation_iterations is None else part(workload.validation_iterations),
        training=None if workload.training is None else parts(workload.training),
        epoch=None if workload.epoch is None else parts(workload.epoch),
    )


def crowded_workload(workload: Workload, *, gpus_per_node: int, recorded: int, cores_per_node: int | None) -> Workload:
    """The same work with the loaders of a machine's GPUs on one set of cores (`scaling/input_pipeline.py`).

    Args:
        workload: What each GPU has still to do.
        gpus_per_node: GPUs of a machine.
        recorded: GPUs of the machine that was recorded. Unless it is one, the loader is taken as it was seen.
        cores_per_node: Processor cores of a machine; None where not said: each loader then has cores enough.
    """
    if cores_per_node is None or workload.loader_workers is None or recorded != 1:
        return workload
    loader = node_loader_seconds(
        workload.loader, gpus_per_node=gpus_per_node, cores=cores_per_node, workers_per_gpu=workload.loader_workers
    )
    return replace(workload, loader=loader)


def shared_memory_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Peak memory of each GPU of a layout.

    DDP adds its buckets, as large as all gradients (torch's default, `gradient_as_bucket_view=False`). ZeRO 1 leaves
    each GPU its share of the optimizer's state, ZeRO 2 of the gradients, too, and FSDP of all three (Rajbhandari et
    al., SC 2020), while the parameters of two units at a time are whole; a pipeline keeps them all from the first
    micro-batch to the last one. A part of the model comes first, see `model_memory.py`.

    Args:
        single_bytes: Peak memory of the step on one GPU.
        trace: The step, for the sizes of what is shared.
        layout: The GPUs.
        strategy: How they share.

    Raises:
        InvalidArgumentError: The layout's GPUs cannot share the model so.
    """
    if layout.count == 1:
        return single_bytes
    held = held_memory(single_bytes, trace, strategy)
    own = data_group(layout, strategy).layout
    saved = 1 - 1 / (own.gpus_per_node if strategy.data == "hybrid" else own.count)
    lasting = held.parameter_bytes + held.gradient_bytes + held.optimizer_state_bytes
    whole = held.unit_bytes if strategy.pipeline > 1 else sorted(held.unit_bytes, reverse=True)[:GATHERED_UNITS]
    change = {
        "ddp": held.trainable_bytes if own.count > 1 else 0.0,
        "zero1": held.trainable_bytes - saved * held.optimizer_state_bytes,
        "zero2": -saved * (held.optimizer_state_bytes + held.gradient_bytes),
        "fsdp": sum(whole) - saved * lasting,
        "hybrid": sum(whole) - saved * lasting,
    }
    return max(held.peak_bytes + change[strategy.data], 0.0)
