"""The input pipeline of a node: the loaders of all its GPUs share one set of cores.

A worker makes a batch in so many seconds of processor time. As long as every worker has its cores, each GPU's loader
is as fast as on a node with one GPU; beyond that, all workers slow down alike, and however fast the GPUs are, the node
takes no more batches than its cores make. Example::

    >>> pipeline = InputPipeline(worker_seconds_per_batch=0.8, workers_per_gpu=8, gpus_per_node=8, cores=32)
    >>> pipeline.seconds_per_batch  # 32 of 64 workers run: 4 a GPU, each 0.8 s
    0.2
    >>> pipeline.step_seconds(0.05)
    0.2
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.scaling.records import Loader


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
        """Samples of the whole node in a second, which no GPU can exceed.

        Args:
            samples_per_batch: Samples of a batch of one GPU.
        """
        return self.batches_per_second * samples_per_batch

    def loader(self) -> Loader:
        """The loader that each GPU sees."""
        return Loader(seconds_per_batch=self.seconds_per_batch, overlaps=self.workers_per_gpu > 0)

    def step_seconds(self, seconds: float, *, batches: float = 1) -> float:
        """A step that computes for `seconds`, at the pace that the loaders allow.

        Args:
            seconds: Time of the step when batches are ready.
            batches: Batches of the step.
        """
        return self.loader().paced(seconds, batches=batches)


def node_loader_seconds(
    loader: Loader, *, gpus_per_node: int, cores: int, workers_per_gpu: int, cores_per_worker: float = 1.0
) -> Loader:
    """The loader of each GPU on a node with several, from the loader as it was on such a node with one GPU in use.

    On one GPU it is the loader itself, whether its workers had cores enough or not. A loader that never kept training
    waiting (0 seconds) stays so: how much faster than the step it was, nobody saw.

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
