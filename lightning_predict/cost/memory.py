"""Peak memory of a step: measured where the trace holds it, else derived from what lives at the same time.

Derived are, each storage once: parameters and buffers, gradients, optimizer state, the batch, and the tensors that are
alive at the fullest moment. The workspaces of cuBLAS and the remainders of the allocator come on top. Example::

    >>> from lightning_predict.tracing.records import Memory, Operation, TensorInfo, Trace
    >>> hidden = TensorInfo((256,), "float32", id=7)
    >>> trace = Trace(device="cpu", recorder="dispatch", memory=Memory(parameter_bytes=1000, gradient_bytes=1000),
    ...               operations=(Operation(name="aten::relu", phase="forward", outputs=(hidden,)),
    ...                           Operation(name="aten::threshold_backward", phase="backward", inputs=(hidden,))))
    >>> step_memory(trace).tensor_bytes  # 1000 + 1000 + 256 x 4
    3024

Gradients count throughout: under Lightning, those of the last step live until the forward pass is done. Left out, as
nobody can know it beforehand, is what cuDNN asks for: the workspaces of convolutions, and what recurrent layers keep
for their backward pass (`memory_notes` says so).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.cost.live_tensors import input_tensors, live_tensors, update_tensors
from lightning_predict.gpus.records import Gpu
from lightning_predict.tracing.records import TensorInfo, Trace
from lightning_predict.units import KIBIBYTE, MEBIBYTE

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
    """What a step needs.

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

    @property
    def tensor_bytes(self) -> int:
        """All tensors at the fullest moment."""
        return self.lasting_bytes + max(self.passing_bytes, self.update_bytes)

    def bytes_on(self, gpu: Gpu) -> int:
        """All of it on one GPU.

        Args:
            gpu: Decides how large a workspace is.
        """
        return max(self.moments_on(gpu))

    def moments_on(self, gpu: Gpu) -> tuple[int, int]:
        """All of it in the passes, which grows with the batch, and in the update, which hardly does.

        Args:
            gpu: Decides how large a workspace is.
        """
        is_large = gpu.compute_capability >= (9, 0)
        workspace = LARGE_CUBLAS_WORKSPACE_BYTES if is_large else CUBLAS_WORKSPACE_BYTES
        always = self.lasting_bytes + self.slack_bytes + self.cublas_handles * workspace
        return always + self.passing_bytes, always + self.update_bytes


def step_memory(trace: Trace) -> StepMemory | None:
    """What the step of a trace needs; None where neither a peak nor what could tell it was recorded.

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
    """What torch's CUDA allocator takes from the device beyond these blocks where it places them as closely as it can.

    Args:
        blocks: Bytes of each.
    """
    rounded = [_up(block, BLOCK_BYTES) for block in blocks]
    small = sum(block for block in rounded if block <= SMALL_BYTES)
    medium = sum(block for block in rounded if SMALL_BYTES < block < MEDIUM_BYTES)
    large = sum(_up(block, LARGE_STEP_BYTES) for block in rounded if block >= MEDIUM_BYTES)
    return _up(small, SMALL_SEGMENT_BYTES) + _up(medium, MEDIUM_SEGMENT_BYTES) + large - sum(blocks)


def memory_notes(trace: Trace) -> tuple[str, ...]:
    """What a derived peak leaves out, in words."""
    if trace.memory.peak_bytes is None and any(operation.name in _RECURRENT for operation in trace.operations):
        return ("Memory: what recurrent layers keep for their backward pass is left out.",)
    return ()


def _gradient_bytes(trace: Trace) -> int:
    """Of all gradients; those that are not there yet will be as large as what they are for."""
    memory = trace.memory
    if memory.gradient_bytes is None and _has_phase(trace, "backward"):
        return memory.parameter_bytes or 0
    return memory.gradient_bytes or 0


def _update_bytes(trace: Trace) -> int:
    """What torch's optimizers take in passing on CUDA, where they update all parameters at once (`foreach`).

    As much as the parameters (documentation of `torch.optim`: "uses ~ sizeof(params) more peak memory"), where they
    take anything. Off CUDA they go one by one, so that little lives at a time. By then the backward pass has left
    nothing but gradients.
    """
    if any(operation.name.startswith(("aten::_foreach_", "aten::_fused_")) for operation in trace.operations):
        return 0
    return min(_gradient_bytes(trace), sum(update_tensors(trace.operations)))


def _lasting_blocks(trace: Trace, lasting_bytes: int) -> tuple[int, ...]:
    """Blocks of what outlives the step: each parameter, and as often again its gradient and its state."""
    sizes = tuple(TensorInfo(parameter.shape, parameter.dtype).size_bytes for parameter in trace.parameters)
    if not sum(sizes):
        return (lasting_bytes,)
    return sizes * round(lasting_bytes / sum(sizes))


def _has_phase(trace: Trace, phase: str) -> bool:
    return any(operation.phase == phase for operation in trace.operations)


def _up(size: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-size // step) * step
