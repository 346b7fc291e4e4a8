"""A GPU that is not there: its clock, its memory and its profiler, so that a whole fit runs as on CUDA, or on Metal.

Batches stay on the processor; only this package sees a device. The host of a batch takes `host_seconds`, the
device, which works behind it, `device_seconds`, on a virtual clock; the profiler gives back a document
that a real GPU recorded, or one that was written here. Example::

    device = FakeDevice(document, name="Tesla V100-SXM2-32GB")
    with device.plugged_in(monkeypatch):
        trainer = small.trainer(tmp_path, callbacks=[predictor], max_steps=40)
        device.drives(model)
        trainer.fit(model, small.loader(40))
"""

import copy
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lightning_predict.observe.clock import clock_of_fits
from lightning_predict.record import profiler

GIB = 2**30


def _without_cuda(*, activities: object, **options: Any) -> profile:
    """Make torch's profiler for the processor alone, for all requested activities."""
    return profile(activities=[ProfilerActivity.CPU], **options)


@dataclass
class FakeDevice:
    """One GPU."""

    document: dict[str, Any]  # Document that the profiler exports after each recorded part of a step
    name: str = "Tesla V100-SXM2-32GB"  # Name of the GPU by the driver
    kind: str = "cuda"  # torch's name for such devices
    memory_bytes: int = 32 * GIB  # Its memory
    host_seconds: float = 0.01  # Host time of a batch
    device_seconds: float = 0.03  # Device time of a batch; it begins when the host has launched half of it
    queue_batches: float = math.inf  # Batches that the launch queue holds; a host further ahead waits
    loses_kernels: bool = False  # Whether the k-th recording of the process loses its first k kernels
    peak_bytes: int = GIB  # Most memory that the process ever allocated
    now: float = 0.0  # The host's clock
    free: float = 0.0  # When the device is done
    recorded: int = 0  # Parts of steps that were recorded
    waits: int = 0  # How often something waited for the device
    warm_up_kernels: int = 0  # Small kernels before the recording in progress
    readings: list[float] = field(default_factory=list)

    def host_clock(self) -> float:
        """Read the clock."""
        return self.now

    def device_clock(self) -> float:
        """Read the clock once the device is done."""
        self.synchronize()
        return self.now

    def synchronize(self, device: object = None) -> None:
        """Wait for the device."""
        self.waits += 1
        self.now = max(self.now, self.free)

    def batch(self) -> None:
        """Launch the work of one batch."""
        launched = self.now + self.host_seconds / 2
        self.now += self.host_seconds
        self.free = max(self.free, launched) + self.device_seconds
        if self.queue_batches < math.inf:
            self.now = max(self.now, self.free - self.queue_batches * self.device_seconds)

    def drives(self, model: Any) -> Any:
        """Let each training step of a model take the time of a batch on this device."""
        step = model.training_step

        def driven(*args: Any, **options: Any) -> Any:
            self.batch()
            return step(*args, **options)

        model.training_step = driven
        return model

    def export(self, stopped: object) -> dict[str, Any]:
        """Give the profiler's document."""
        self.recorded += 1
        if not self.loses_kernels:
            return copy.copy(self.document)
        events = [*self._warm_up_events(), *self.document["traceEvents"]]
        kernels = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda one: float(one["ts"]))
        lost = set(map(id, kernels[: self.recorded]))
        return {**self.document, "traceEvents": [event for event in events if id(event) not in lost]}

    def launch_warm_up_kernels(self, kernels: int) -> None:
        """Remember the small kernels that this package launches before a recorded step."""
        self.warm_up_kernels = kernels

    def _warm_up_events(self) -> Iterator[dict[str, Any]]:
        """Give launches and kernels of the warm-up, which end before the mark of the step."""
        mark = next(event for event in self.document["traceEvents"] if event["name"].startswith("ProfilerStep#"))
        for number in range(self.warm_up_kernels):
            start = float(mark["ts"]) - 10.0 * (self.warm_up_kernels - number)
            shape = {"grid": [1, 1, 1], "block": [128, 1, 1], "device": 0, "stream": 7, "correlation": 10**6 + number}
            row = {"ph": "X", "pid": mark["pid"], "tid": mark["tid"], "dur": 2.0, "args": shape}
            yield {**row, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start}
            yield {**row, "cat": "kernel", "name": "vectorized_elementwise_kernel", "tid": 7, "ts": start + 5.0}

    @contextmanager
    def plugged_in(self, monkeypatch: pytest.MonkeyPatch, strategy: Any) -> Iterator[None]:
        """Let this package see the device, and nothing else.

        Args:
            monkeypatch: Puts everything back.
            strategy: Class of the Trainer's strategy.
        """
        real = strategy.root_device

        def root_device(own: Any) -> torch.device:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            return torch.device(self.kind, 0) if caller.startswith("lightning_predict") else real.fget(own)

        properties = SimpleNamespace(total_memory=self.memory_bytes, L2_cache_size=6 * 2**20, name=self.name)
        with monkeypatch.context() as patches:
            patches.setattr(strategy, "root_device", property(root_device))
            patches.setattr(torch.cuda, "synchronize", self.synchronize)
            patches.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: None)
            patches.setattr(torch.cuda, "max_memory_allocated", lambda device=None: self.peak_bytes)
            patches.setattr(torch.cuda, "memory_reserved", lambda device=None: 2 * GIB)
            patches.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
            patches.setattr(torch.cuda, "get_device_name", lambda device=None: self.name)
            patches.setattr(profiler, "profile", _without_cuda)
            patches.setattr(profiler, "_export", self.export)
            patches.setattr(profiler, "_launch_warm_up_kernels", self.launch_warm_up_kernels)
            with clock_of_fits(self.host_clock, device=self.device_clock):
                yield
