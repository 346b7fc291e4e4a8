"""Derive the peak memory of a step, and judge whether it fits in a GPU's memory.

The peak is measured where the trace holds it, else derived from what lives at the same time, each storage once:
parameters and buffers, gradients, optimizer state, the batch, and the tensors that are alive at the fullest moment. A
storage lives from the first operation that writes it to the last one that uses it: just as long as autograd keeps what
the backward pass reads. The workspaces of cuBLAS and the remainders of the allocator come on top. Example::

    >>> from lightning_predict.tracing.trace import Memory, Operation, TensorInfo, Trace
    >>> hidden = TensorInfo((256,), "float32", id=7)
    >>> trace = Trace(device="cpu", recorder="dispatch", memory=Memory(parameter_bytes=1000, gradient_bytes=1000),
    ...               operations=(Operation(name="aten::relu", phase="forward", outputs=(hidden,)),
    ...                           Operation(name="aten::threshold_backward", phase="backward", inputs=(hidden,))))
    >>> need = step_memory(trace)
    >>> need.lasting_bytes, need.passing_bytes  # 1000 + 1000, and 256 x 4
    (2000, 1024)
    >>> from lightning_predict.gpus import gpu
    >>> usable = usable_bytes(gpu("T4"))  # 16 GiB, less ECC, the driver and the CUDA context
    >>> round(usable / 2**30, 2)
    14.13
    >>> memory_fit(13.5 * 2**30, usable), memory_fit(15 * 2**30, usable)
    ('tight', 'exceeds')

Gradients count throughout: under Lightning, those of the last step live until the forward pass is done. Left out, as
nobody can know it beforehand, is what cuDNN asks for: the workspaces of convolutions, and what recurrent layers keep
for their backward pass (`memory_notes` says so).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.tracing.live_tensors import input_tensors, live_tensors, update_tensors
from lightning_predict.tracing.trace import TensorInfo, Trace
from lightning_predict.units import KIBIBYTE, MEBIBYTE

MemoryFit = Literal["fits", "tight", "exceeds"]
"""`fits`: with a margin. `tight`: as predicted, but not with the margin. `exceeds`: not even as predicted."""

MARGIN: Final = 0.1
"""Of what is needed, for what no prediction knows: the error of a derived peak, batches that are larger than the
recorded one, and memory that the allocator holds in pieces."""

ECC_SHARE: Final = 1 / 16
"""What ECC takes where its bits are stored in the memory itself: a T4 of 16,384 MiB shows 15,360 in nvidia-smi
(github.com/robbyant-research/MagicQuill/issues/57)."""

STORES_ECC_IN_MEMORY: Final = frozenset("K80 M40 M40-24GB M60 P4 P40 T4 A2 A10 A10G A16 A40 L4 L20 L40 L40S".split())
"""GPUs for servers with GDDR5 or GDDR6, whose ECC is on as shipped."""

DRIVER_SHARE: Final = 0.03
"""What the driver keeps of the rest; torch reports 14.56 of 15 GiB on a T4 (2.9 %), 44.53 of 45 on an L40S (1.0 %),
23.68 of 24 on an RTX 4090 (1.3 %) and 79.1 of 80 on an H100 (1.1 %); the most counts."""

CONTEXT_BYTES: Final = 430 * MEBIBYTE
"""Of the CUDA context of a process, which torch's allocator does not see: 426 MiB on an RTX 6000 Ada with torch 2.10
(github.com/unslothai/unsloth-zoo/pull/1053); "around 400MB" since CUDA 11.7 (github.com/pytorch/pytorch/issues/109888).
"""


def usable_bytes(gpu: Gpu, reported_bytes: float | None = None) -> float:
    """Estimate what the tensors of a process can take on a GPU.

    Args:
        gpu: The GPU.
        reported_bytes: What torch reports as its `total_memory`; None derives it from the size as sold.
    """
    if reported_bytes is None:
        ecc = ECC_SHARE if gpu.name in STORES_ECC_IN_MEMORY else 0.0
        reported_bytes = gpu.memory_bytes * (1 - ecc) * (1 - DRIVER_SHARE)
    return max(0.0, reported_bytes - CONTEXT_BYTES)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """State how much memory a step needs on each GPU.

    Attributes:
        memory_bytes: Peak of a step; None if unknown.
        memory_fit: `fits` with a margin, `tight` without, or `exceeds`; None if the need is unknown.
        memory_free_bytes: What a step leaves free of what a process can use, below 0 if it does not fit.
    """

    memory_bytes: float | None = None
    memory_fit: MemoryFit | None = None
    memory_free_bytes: float | None = None

    @property
    def fits(self) -> bool | None:
        """Whether it fits, perhaps narrowly; None if the need is unknown."""
        return None if self.memory_fit is None else self.memory_fit != "exceeds"


def memory_need(layout: Layout, needed_bytes: float | None, *, reported_bytes: float | None = None) -> MemoryNeed:
    """Judge whether a step fits on each GPU of a layout.

    Args:
        layout: The GPUs.
        needed_bytes: Peak memory of a step on each; None if unknown.
        reported_bytes: Memory that the GPU itself reports; None if it is not at hand.
    """
    if needed_bytes is None:
        return MemoryNeed()
    usable = usable_bytes(layout.gpu, reported_bytes)
    return MemoryNeed(
        memory_bytes=needed_bytes,
        memory_fit=memory_fit(needed_bytes, usable),
        memory_free_bytes=usable - needed_bytes,
    )


def memory_fit(needed_bytes: float, usable: float) -> MemoryFit:
    """Judge whether a step fits."""
    if needed_bytes * (1 + MARGIN) <= usable:
        return "fits"
    return "tight" if needed_bytes <= usable else "exceeds"


CUBLAS_WORKSPACE_BYTES: Final = (2 * 4096 + 8 * 16) * KIBIBYTE
"""Of a cuBLAS handle: `CUBLAS_WORKSPACE_CONFIG` is `:4096:2:16:8` by default (PyTorch, "CUDA environment variables").
Measured as 8,519,680 bytes on an A10G (github.com/pytorch/pytorch/issues/95668)."""

LARGE_CUBLAS_WORKSPACE_BYTES: Final = 8 * 4096 * KIBIBYTE
"""The same on Hopper, and with torch of 2026 on Blackwell (github.com/pytorch/pytorch/pull/175344)."""

BLOCK_BYTES: Final = 512
SMALL_BYTES, SMALL_SEGMENT_BYTES = MEBIBYTE, 2 * MEBIBYTE
MEDIUM_BYTES, MEDIUM_SEGMENT_BYTES = 10 * MEBIBYTE, 20 * MEBIBYTE
LARGE_STEP_BYTES: Final = 2 * MEBIBYTE
"""How torch's CUDA allocator rounds: blocks of up to 1 MiB share segments of 2 MiB, those below 10 MiB segments of 20
MiB, and larger ones get one of their own, a multiple of 2 MiB (constants of PyTorch's `c10/core/AllocatorConfig.h`)."""

_RECURRENT: Final = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The memory that a step needs.

    Attributes:
        lasting_bytes: What lives all the time; where measured, the allocator's peak with its workspaces.
        passing_bytes: What else lives at the fullest moment of the forward and the backward pass.
        update_bytes: What else lives at the fullest moment of the optimizer's update.
        slack_bytes: Remainders of the allocator's segments, as far as they follow from the sizes; 0 where measured.
        cublas_handles: Handles whose workspaces are not counted yet: 0 where measured.
    """

    lasting_bytes: int
    passing_bytes: int = 0
    update_bytes: int = 0
    slack_bytes: int = 0
    cublas_handles: int = 0

    def bytes_on(self, gpu: Gpu) -> int:
        """Sum all of it on one GPU."""
        return max(self.moments_on(gpu))

    def moments_on(self, gpu: Gpu) -> tuple[int, int]:
        """Sum all of it in the passes, which grows with the batch, and in the update, which hardly does."""
        is_large = gpu.compute_capability >= (9, 0)
        workspace = LARGE_CUBLAS_WORKSPACE_BYTES if is_large else CUBLAS_WORKSPACE_BYTES
        always = self.lasting_bytes + self.slack_bytes + self.cublas_handles * workspace
        return always + self.passing_bytes, always + self.update_bytes


def step_memory(trace: Trace) -> StepMemory | None:
    """Derive what the step of a trace needs; None if neither a peak nor what could tell it was recorded.

    Args:
        trace: Without a measured peak, recorded where the tensors that operations write are seen.
    """
    memory = trace.memory
    if memory.peak_bytes is not None:
        return StepMemory(lasting_bytes=memory.peak_bytes)
    if memory.parameter_bytes is None or not any(operation.outputs for operation in trace.operations):
        return None
    passing = live_tensors(trace.operations)
    batch = input_tensors(trace.operations, trace.parameters)
    lasting = memory.parameter_bytes + _gradient_bytes(trace) + (memory.optimizer_state_bytes or 0)
    return StepMemory(
        lasting_bytes=lasting + sum(batch),
        passing_bytes=sum(passing),
        update_bytes=_update_bytes(trace),
        slack_bytes=slack_bytes((*_lasting_blocks(trace, lasting), *batch, *passing)),
        cublas_handles=2 if _has_phase(trace, "backward") else 1,  # autograd's thread has one of its own
    )


def slack_bytes(blocks: Sequence[int]) -> int:
    """Sum what torch's CUDA allocator takes beyond these blocks where it places them as closely as it can."""
    rounded = [_up(block, BLOCK_BYTES) for block in blocks]
    small = sum(block for block in rounded if block <= SMALL_BYTES)
    medium = sum(block for block in rounded if SMALL_BYTES < block < MEDIUM_BYTES)
    large = sum(_up(block, LARGE_STEP_BYTES) for block in rounded if block >= MEDIUM_BYTES)
    return _up(small, SMALL_SEGMENT_BYTES) + _up(medium, MEDIUM_SEGMENT_BYTES) + large - sum(blocks)


def memory_notes(trace: Trace) -> tuple[str, ...]:
    """Say in words what a derived peak leaves out."""
    if trace.memory.peak_bytes is None and any(operation.name in _RECURRENT for operation in trace.operations):
        return ("Memory: what recurrent layers keep for their backward pass is left out.",)
    return ()


def _gradient_bytes(trace: Trace) -> int:
    """Sum all gradients; those that are not there yet will be as large as what they are for."""
    memory = trace.memory
    if memory.gradient_bytes is None and _has_phase(trace, "backward"):
        return memory.parameter_bytes or 0
    return memory.gradient_bytes or 0


def _update_bytes(trace: Trace) -> int:
    """Estimate what torch's optimizers take in passing on CUDA, where they update all parameters at once.

    With `foreach`, that is as much as the parameters (documentation of `torch.optim`: "uses ~ sizeof(params) more peak
    memory"), where they take anything. Off CUDA they go one by one, so that little lives at a time. By then the
    backward pass has left nothing but gradients.
    """
    if any(operation.name.startswith(("aten::_foreach_", "aten::_fused_")) for operation in trace.operations):
        return 0
    return min(_gradient_bytes(trace), sum(update_tensors(trace.operations)))


def _lasting_blocks(trace: Trace, lasting_bytes: int) -> tuple[int, ...]:
    """List blocks of what outlives the step: each parameter, and as often again its gradient and its state."""
    sizes = tuple(TensorInfo(parameter.shape, parameter.dtype).size_bytes for parameter in trace.parameters)
    if not sum(sizes):
        return (lasting_bytes,)
    return sizes * round(lasting_bytes / sum(sizes))


def _has_phase(trace: Trace, phase: str) -> bool:
    return any(operation.phase == phase for operation in trace.operations)


def _up(size: int, step: int) -> int:
    """Round up to the next multiple of `step`."""
    return -(-size // step) * step
