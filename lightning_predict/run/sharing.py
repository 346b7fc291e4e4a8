"""Share the rest of a run among replicas, the loaders' cores among the GPUs of a node, and memory among GPUs.

Every replica works through samples of its own, so that n replicas do the same samples in n times fewer steps, each of
which holds n times as many (the learning rate that suits them is the user's concern).

A worker makes a batch in so many seconds of processor time. As long as every worker has its cores, each GPU's loader
is as fast as on a node with one GPU; beyond that, all workers slow down alike, and however fast the GPUs are, the node
takes no more batches than its cores make. Example::

    >>> shared_workload(Workload(training_iterations=1000, validation_iterations=50), replicas=8).training_iterations
    125
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from lightning_predict.distributed.memory import HeldMemory, held_memory
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.layouts import Layout
from lightning_predict.run.workload import Batches, Loader, Workload
from lightning_predict.tracing.trace import DTYPE_BYTES, Trace


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InputPipeline:
    """The loaders of one node.

    The processes that launch the kernels take cores, too; leave them out of `cores` where they keep them busy.

    Attributes:
        worker_seconds_per_batch: Time in which one worker with cores of its own makes a batch of one GPU.
        workers_per_gpu: Workers of each GPU's loader; 0: the training process makes the batches, between the steps.
        gpus_per_node: GPUs of the node, each with a loader.
        cores: Processor cores of the node that loaders can use.
        cores_per_worker: Cores that one worker keeps busy; below 1 for one that waits for the disk.

    Raises:
        InvalidArgumentError: A value outside its range.
    """

    worker_seconds_per_batch: float
    workers_per_gpu: int
    gpus_per_node: int
    cores: int
    cores_per_worker: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.worker_seconds_per_batch) and self.worker_seconds_per_batch >= 0):
            raise InvalidArgumentError(
                f"worker_seconds_per_batch={self.worker_seconds_per_batch!r}; expected seconds of at least 0."
            )
        for name, least in (("workers_per_gpu", 0), ("gpus_per_node", 1), ("cores", 1)):
            if getattr(self, name) < least:
                raise InvalidArgumentError(f"{name}={getattr(self, name)!r}; expected at least {least}.")
        if not (math.isfinite(self.cores_per_worker) and self.cores_per_worker > 0):
            raise InvalidArgumentError(f"cores_per_worker={self.cores_per_worker!r}; expected cores above 0.")

    @property
    def slowdown(self) -> float:
        """Factor by which each worker is slower than with cores of its own: cores wanted over cores, at least 1."""
        wanted = self.gpus_per_node * max(1, self.workers_per_gpu) * self.cores_per_worker
        return max(1.0, wanted / self.cores)

    @property
    def seconds_per_batch(self) -> float:
        """Time in which the loader of each GPU makes one batch."""
        return self.worker_seconds_per_batch * self.slowdown / max(1, self.workers_per_gpu)

    @property
    def batches_per_second(self) -> float:
        """Batches that all loaders of the node make in a second; infinite where a batch takes no time."""
        return math.inf if self.seconds_per_batch == 0 else self.gpus_per_node / self.seconds_per_batch

    def samples_per_second(self, samples_per_batch: int) -> float:
        """Return the samples of the whole node in a second, which no GPU can exceed.

        Args:
            samples_per_batch: Samples of a batch of one GPU.
        """
        return self.batches_per_second * samples_per_batch

    def loader(self) -> Loader:
        """Return the loader that each GPU sees."""
        return Loader(seconds_per_batch=self.seconds_per_batch, overlaps=self.workers_per_gpu > 0)

    def step_seconds(self, seconds: float, *, batches: float = 1) -> float:
        """Return a step that computes for `seconds`, at the pace that the loaders allow.

        Args:
            seconds: Time of the step when batches are ready.
            batches: Batches of the step.
        """
        return self.loader().paced(seconds, batches=batches)


def node_loader_seconds(
    loader: Loader, *, gpus_per_node: int, cores: int, workers_per_gpu: int, cores_per_worker: float = 1.0
) -> Loader:
    """Slow the loader of each GPU on a node with several, from the loader on such a node with one GPU in use.

    On one GPU it is the loader itself, whether its workers had cores enough or not. A loader that never kept training
    waiting (0 seconds) stays so: how much faster than the step it was is unknown.

    Args:
        loader: As measured with one GPU in use and `workers_per_gpu` workers.
        gpus_per_node: GPUs that now share the cores.
        cores: Processor cores of the node that loaders can use.
        workers_per_gpu: Workers of each GPU's loader; 0: the training process makes the batches.
        cores_per_worker: Cores that one worker keeps busy.

    Raises:
        InvalidArgumentError: A value outside its range.
    """
    alone = InputPipeline(
        worker_seconds_per_batch=loader.seconds_per_batch * max(1, workers_per_gpu),
        workers_per_gpu=workers_per_gpu,
        gpus_per_node=1,
        cores=cores,
        cores_per_worker=cores_per_worker,
    )
    together = replace(alone, gpus_per_node=gpus_per_node)
    return replace(loader, seconds_per_batch=loader.seconds_per_batch * (together.slowdown / alone.slowdown))


GATHERED_UNITS = 2
"""Units of FSDP whose parameters are whole at once: the one that computes, and the next."""


def shared_workload(workload: Workload, *, replicas: int, recorded: int = 1) -> Workload:
    """Take one replica's part of what is still to come; the last step may be short, and counts."""
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


def accumulated_workload(workload: Workload, times: int) -> Workload:
    """Let so many times as many batches share an update: fewer steps, and as many batches and validations as before."""
    if times == 1:
        return workload

    def fewer(batches: Batches | None) -> Batches | None:
        return None if batches is None else replace(batches, windows=math.ceil(batches.windows / times))

    steps = workload.training_iterations
    return replace(
        workload,
        training_iterations=None if steps is None else math.ceil(steps / times),
        training=fewer(workload.training),
        epoch=fewer(workload.epoch),
    )


def crowded_workload(workload: Workload, *, gpus_per_node: int, recorded: int, cores_per_node: int | None) -> Workload:
    """Put the loaders of a machine's GPUs on one set of cores, which they share.

    Args:
        workload: What each GPU has still to do.
        gpus_per_node: GPUs of a machine.
        recorded: GPUs of the machine that was recorded. Unless it is one, the loader is taken as it was seen.
        cores_per_node: Processor cores of a machine; None if not said: each loader then has cores enough.
    """
    if cores_per_node is None or workload.loader_workers is None or recorded != 1:
        return workload
    loader = node_loader_seconds(
        workload.loader, gpus_per_node=gpus_per_node, cores=cores_per_node, workers_per_gpu=workload.loader_workers
    )
    return replace(workload, loader=loader)


def shared_memory_bytes(single_bytes: float, trace: Trace, layout: Layout, strategy: Strategy) -> float:
    """Derive the peak memory of each GPU of a layout.

    DDP adds its buckets, as large as all gradients (torch's default, `gradient_as_bucket_view=False`). ZeRO 1 leaves
    each GPU its share of the optimizer's state, ZeRO 2 of the gradients, too, and FSDP of all three (Rajbhandari et
    al., SC 2020), while the parameters of two units at a time are whole, in `param_dtype`; a pipeline keeps them all
    from the first micro-batch to the last one. Copies of the parameters that the optimizer updates are part of its
    state; what is offloaded is not there. A part of the model comes first, see `distributed/memory.py`.
    """
    if layout.count == 1:
        return single_bytes
    return memory_on(held_memory(single_bytes, trace, strategy), layout, strategy)


def memory_on(held: HeldMemory, layout: Layout, strategy: Strategy) -> float:
    """Compute each GPU's peak memory on a layout, from what the fullest holds before replicas share anything."""
    strategy.replicas(layout)
    count = strategy.sharded_count(layout)
    # Replicas that hold the same experts are as many times fewer as the experts are dealt out.
    share = (1 - held.expert_share + held.expert_share * min(strategy.expert, count)) / count
    gradients, parameters = held.gradient_bytes, held.parameter_bytes
    state = (held.optimizer_state_bytes + held.copy_bytes) * (0.0 if strategy.offload == "optimizer" else 1.0)
    updated = held.update_bytes
    if strategy.data == "ddp":
        gradients += held.trainable_bytes if count > 1 else 0.0
    else:
        state, updated = state * share, updated * share
    if strategy.data == "zero1":
        gradients += held.trainable_bytes
    elif strategy.data != "ddp":
        gradients *= share
    if strategy.data in ("fsdp", "hybrid"):
        whole = _gathered_bytes(held, strategy)
        together = whole if strategy.pipeline > 1 else sorted(whole, reverse=True)[:GATHERED_UNITS]
        parameters = parameters * share + sum(together)
    return parameters + gradients + state + max(held.activation_bytes, updated)


def _gathered_bytes(held: HeldMemory, strategy: Strategy) -> list[float]:
    """Return the bytes of each unit as FSDP gathers it."""
    if strategy.param_dtype is None:
        return list(held.unit_bytes)
    return [elements * float(DTYPE_BYTES[strategy.param_dtype]) for elements in held.unit_elements]
