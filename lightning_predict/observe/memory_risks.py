"""Warnings about later parts of a run that may need more GPU memory than the recorded step (out-of-memory risks).

Three parts may need more memory: the first update of an optimizer, which creates its state; a larger validation batch;
and the longest sequence. If the recorder tracked tensor lifetimes, the step is scaled to the new size and its memory is
simulated again. Otherwise only the measured peak is known. All memory except parameters, gradients and optimizer state
is then scaled in proportion. Example::

    for risk in memory_risks(trace, MemoryFacts(state_bytes=3 << 30)):
        print(risk.sentence)  # "The first update of another optimizer ..."
    missing_state_bytes(optimizer)     # of an Adam before its first update: 8 bytes a parameter
    longest_sequence(loader)  # None, unless the dataset or the sampler has `lengths`, or the dataset a column `length`
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal

from lightning_predict.base.guard import own_error
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.memory.simulation import waiting_gradient_bytes
from lightning_predict.memory.step_memory import MemoryNeed, memory_need, step_memory
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.reports.format import gibibytes, share

if TYPE_CHECKING:
    import torch

MAX_LENGTHS: Final = 10_000_000  # Maximum number of sequence lengths to read. More would delay the training by seconds.


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Facts about the rest of a run that determine its memory need."""

    state_bytes: int = 0  # Size of the state that optimizers will create in their first update
    validation: Trace | None = None  # Recorded validation batch; None if no validation batch was recorded
    validation_samples: int | None = None  # Samples of the largest validation batch; None if unknown or without one
    length: int | None = None  # Length of the recorded sequences; None if unknown or without sequences
    longest: int | None = None  # Length of the loader's longest sequence; None if unknown or without sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRisk:
    """Later part of the run that may not fit in the GPU's memory."""

    # Part of the run: first optimizer update, validation batch or longest sequence
    kind: Literal["optimizer", "validation", "sequence"]
    gpu: str
    subject: str  # Description of the part, as the subject of the message
    need: MemoryNeed
    is_bound: bool  # Whether `need` is an upper bound, not an expected value
    remedy: str

    @property
    def sentence(self) -> str:
        """Message that names the part, its memory need, the probability that it fits, and a remedy."""
        need = self.need
        assert need.process is not None
        assert need.capacity_bytes is not None
        assert need.fit_probability is not None
        need_of_all = f"{gibibytes(need.process.middle)} of {gibibytes(need.capacity_bytes)} GiB"
        amount = f"{'at most' if self.is_bound else 'about'} {need_of_all}"
        chance = "it may not fit" if self.is_bound else f"it fits with a chance of {share(need.fit_probability)}"
        return f"{self.subject} needs {amount} on this {self.gpu}: {chance}. {self.remedy}"


def memory_risks(trace: Trace, rest_of_run: MemoryFacts) -> Iterator[MemoryRisk]:
    """Yield the later parts of the run that may not fit on the GPU in use; none if the GPU or its memory is unknown."""
    for risk in _candidate_risks(trace, rest_of_run):
        if risk.need.memory_fit not in (None, "fits"):
            yield risk


def _candidate_risks(trace: Trace, rest_of_run: MemoryFacts) -> Iterator[MemoryRisk]:
    gpu = gpu_in_use(trace)
    steps = (
        []
        if gpu is None
        else [_StepMemory(kind.trace, gpu) for kind in trace.kinds if step_memory(_without_cached_segments(kind.trace))]
    )
    if gpu is None or not steps:
        return
    step = max(steps, key=lambda kind: kind.bytes)
    risk = partial(MemoryRisk, gpu=gpu.name, is_bound=False)
    if rest_of_run.state_bytes:
        yield risk(
            kind="optimizer",
            subject=f"The first optimizer update ({gibibytes(rest_of_run.state_bytes)} GiB of new state)",
            need=step.need(step.bytes + waiting_gradient_bytes(step.trace) + rest_of_run.state_bytes),
            remedy="Use a smaller batch or an optimizer with less state.",
        )
    samples, training = rest_of_run.validation_samples, step.trace.samples_per_batch
    if samples is not None and samples > training:
        passing, is_bound = step.validation_bytes(rest_of_run.validation, samples)
        yield risk(
            kind="validation",
            subject=f"A validation batch of {samples:,} samples ({training:,} in training)",
            need=step.need(step.persistent_bytes + rest_of_run.state_bytes + passing),
            is_bound=is_bound,
            remedy="Give the validation loader a smaller batch_size.",
        )
    if rest_of_run.length and rest_of_run.longest and rest_of_run.longest > rest_of_run.length:
        yield risk(
            kind="sequence",
            subject=f"A batch with the longest sequence ({rest_of_run.longest:,}, recorded: {rest_of_run.length:,})",
            need=step.need(step.at(rest_of_run.longest / rest_of_run.length) + rest_of_run.state_bytes),
            remedy="Use shorter sequences, or smaller batches of long ones.",
        )


def _without_cached_segments(trace: Trace) -> Trace:
    """Return the step without reserved but unused memory, because torch frees cached segments before it fails."""
    if trace.memory.peak_bytes is None:
        return trace
    return replace(trace, memory=replace(trace.memory, reserved_bytes=None))


class _StepMemory:
    """Memory of a recorded step, and of a step with other sizes."""

    def __init__(self, trace: Trace, gpu: Gpu) -> None:
        memory_of_step = step_memory(_without_cached_segments(trace))
        assert memory_of_step is not None  # checked by the caller
        memory = trace.memory
        self.trace, self._gpu, self._relative = trace, gpu, memory_of_step.relative
        self.bytes = memory_of_step.bytes_on(gpu) - memory_of_step.releasable_bytes
        known = (memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_state_bytes)
        # Memory of parameters, gradients and optimizer state, which stays between steps
        self.persistent_bytes = min(sum(size or 0 for size in known), self.bytes)

    @cached_property
    def _is_scalable(self) -> bool:
        """Whether the recorder tracked tensor lifetimes, so that the step can be scaled to other sizes."""
        from lightning_predict.advice.batch_size import why_no_other_batch

        return self.trace.memory.peak_bytes is None and why_no_other_batch(self.trace) is None

    def need(self, size: float) -> MemoryNeed:
        """Compare a memory size with the GPU's memory."""
        reported = self.trace.gpu_memory_bytes
        return memory_need(Layout(self._gpu, 1, 1), size, relative=self._relative, reported_bytes=reported)

    def at(self, factor: float) -> float:
        """Return the memory of a step with `factor` times the samples, or `factor` times the sequence length."""
        if self._is_scalable:
            from lightning_predict.advice.batch_size import with_samples

            samples = math.ceil(factor * self.trace.samples_per_batch)
            scaled = step_memory(with_samples(self.trace, samples))
            assert scaled is not None
            return scaled.bytes_on(self._gpu) - scaled.releasable_bytes
        return self.persistent_bytes + factor * (self.bytes - self.persistent_bytes)

    def validation_bytes(self, validation: Trace | None, samples: int) -> tuple[float, bool]:
        """Return the temporary memory of a validation batch, and whether the memory is an upper bound.

        Args:
            validation: Recorded validation batch; None if no validation batch was recorded.
            samples: Number of samples of the batch.
        """
        if validation is None and self._is_scalable:  # the forward pass, without tensors saved for backward
            forward = tuple(operation for operation in self.trace.operations if operation.phase == "forward")
            memory = replace(self.trace.memory, gradient_bytes=0, optimizer_state_bytes=0)
            validation = replace(self.trace, operations=forward, held=(), memory=memory)
        if (
            validation is None
            or validation.samples is None
            or step_memory(_without_cached_segments(validation)) is None
        ):
            return self.at(samples / self.trace.samples_per_batch) - self.persistent_bytes, True
        own = _StepMemory(validation, self._gpu)
        return own.at(samples / validation.samples_per_batch) - own.persistent_bytes, False


def missing_state_bytes(optimizer: Any) -> int | None:
    """Return the size of the state that an optimizer will create in its first update; None if unknown.

    A copy of the optimizer updates copies of the parameters on the meta device. The size is 0 if the optimizer already
    has state.
    """
    import torch

    if not type(optimizer).__module__.startswith("torch.optim."):
        return None  # other people's code, which may count its steps or need real values
    try:
        if optimizer.state:
            return 0
        twin = copy.copy(optimizer)
        twin.state, twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks = defaultdict(dict), {}, {}
        twin.param_groups = [
            {**group, "params": _copies_on_meta(group["params"]), "fused": None, "foreach": None, "capturable": False}
            for group in optimizer.param_groups
        ]
        type(optimizer).step(twin)
        values = [value for state in twin.state.values() for value in state.values()]
    except Exception as error:
        own_error(error)
        return None
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))


def _copies_on_meta(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Copy the trainable parameters to the meta device, with gradients."""
    import torch

    twins: list[torch.Tensor] = []
    for parameter in parameters:
        if parameter.requires_grad:
            twin = torch.empty_like(parameter, device="meta", requires_grad=True)
            twin.grad = torch.empty_like(twin, requires_grad=False)
            twins.append(twin)
    return twins


def longest_sequence(loaders: object) -> int | None:
    """Return the length of the longest sequence in the loaders' datasets or samplers; None if unknown."""
    longest = []
    for loader in leaves_of(loaders):
        for part in (getattr(loader, name, None) for name in ("dataset", "sampler", "batch_sampler")):
            lengths = getattr(part, "lengths", None)
            if part is not None and "length" in (getattr(part, "column_names", None) or ()):
                lengths = part["length"]
            if isinstance(lengths, Collection) and 0 < len(lengths) <= MAX_LENGTHS:
                longest.append(max(int(length) for length in lengths))
    return max(longest, default=None)


def recorded_length(trace: Trace) -> int | None:
    """Return the sequence length of a recorded step, from its embedding indices; None if there are none."""
    looked_up = (
        tensor
        for operation in trace.operations
        if operation.name == "aten::embedding"
        for tensor in operation.inputs[1:2]
    )
    return max((tensor.shape[1] for tensor in looked_up if len(tensor.shape) == 2), default=None)


def leaves_of(loaders: object) -> list[Any]:
    """Flatten a collection of loaders to a list."""
    import torch

    return [loader for loader in torch.utils._pytree.tree_leaves(loaders) if loader is not None]
