"""Estimates the memory of CUDA libraries: CUDA context, NCCL buffers, and workspaces of cuBLAS and cuDNN.

Example::

    >>> from lightning_predict.hardware import gpu
    >>> round(context_bytes(gpu("L40S")).middle / 2**20)
    800
    >>> round(cublas_bytes(gpu("H100-SXM-80GB"), handles=2) / 2**20)
    64
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from lightning_predict.base.interval import Interval
from lightning_predict.base.units import KIBIBYTE, MEBIBYTE
from lightning_predict.hardware.records import Gpu
from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.trace import Operation, TensorInfo, Trace

CUBLAS_WORKSPACE_BYTES: Final = (2 * 4096 + 8 * 16) * KIBIBYTE
"""Default workspace per cuBLAS handle, in bytes: `CUBLAS_WORKSPACE_CONFIG` is `:4096:2:16:8` (PyTorch, "CUDA
environment variables"). 8,519,680 bytes were measured on an A10G (github.com/pytorch/pytorch/issues/95668)."""

LARGE_CUBLAS_WORKSPACE_BYTES: Final = 8 * 4096 * KIBIBYTE
"""Default workspace per cuBLAS handle on Hopper, in bytes, and on Blackwell with torch of 2026
(github.com/pytorch/pytorch/pull/175344)."""

_CONVOLUTIONS: Final = {"aten::convolution": 0, "aten::convolution_backward": 1}
"""Convolutions, with the index of the image tensor among their inputs. The weights are the next input."""


LAZY_SINCE: Final = (1, 13)  # First torch release that loads a kernel on its first call, instead of all at startup

LOADED_AT_ONCE: Final = Interval(363.0, 628.0, 893.0)
"""MiB of code that torch loaded at startup before `LAZY_SINCE`. Low end: 636 MiB before and 274 after this change
(github.com/pytorch/pytorch/pull/86509). High end: 1,343 MiB on a V100 with torch 1.10 and one small tensor
(huggingface/transformers, `performance.mdx` of January 2022). The middle is the mean of both ends."""


def context_bytes(gpu: Gpu, release: tuple[int, int] | None = None) -> Interval[float]:
    """Estimate the memory of a training process outside torch's allocator, which nvidia-smi includes.

    Args:
        gpu: The GPU.
        release: torch release; None for the current release.
    """
    mebibytes = Interval(*map(float, gpu.generation.context_mebibytes))
    if release is not None and release < LAZY_SINCE:
        mebibytes = mebibytes.added(LOADED_AT_ONCE)
    elif release is not None and release >= LIGHT_SINCE and gpu.generation.light_context_mebibytes is not None:
        mebibytes = Interval(*map(float, gpu.generation.light_context_mebibytes))
    elif release is not None and release >= LIGHT_SINCE:
        share = LIGHT_SHARE
        mebibytes = Interval(share.low * mebibytes.low, share.middle * mebibytes.middle, mebibytes.high)
    return mebibytes.scaled(MEBIBYTE)


LIGHT_SINCE: Final = (2, 11)  # First torch release whose standard wheels use CUDA 13

LIGHT_SHARE: Final = Interval(0.3, 0.55, 1.0)
"""Size of an unmeasured context with CUDA 13, relative to CUDA 12. Lower end: 141 instead of 450 MiB on a T4 with torch
2.14 (Anassbzdd/fitcheck). Other GPUs are unmeasured, so the upper end is 1 and the middle is the geometric mean."""

NCCL_BUFFER_BYTES: Final = 10 * MEBIBYTE
"""Buffer size per connection of an NCCL channel, in bytes, from NCCL's allocation log
(github.com/NVIDIA/nccl/issues/1685). The buffers belong to three protocols; the simple protocol has 4 MiB
(`NCCL_BUFFSIZE`)."""

NCCL_BUFFERS: Final = {True: (16 * 1, 24 * 2, 32 * 4), False: (2 * 1, 4 * 2, 8 * 4)}
"""Number of buffers per communicator, with NVLink (True) and without (False), as (low, middle, high): channels x
connections per channel. The low estimate assumes rings, the high estimate rings and trees. Memory grows with the
number of channels, but not beyond two machines (github.com/NVIDIA/nccl/issues/986)."""

ALL_TO_ALL_BYTES: Final = 468571428.571  # Memory per peer of an all-to-all inside a machine, in bytes


def nccl_bytes(gpu: Gpu, *, communicators: int, all_to_all_peers: int = 0) -> Interval[float]:
    """Estimate the memory that NCCL uses per GPU, outside torch's allocator.

    Args:
        gpu: The GPU.
        communicators: Number of communicators (process groups).
        all_to_all_peers: Number of GPUs in the same machine to which a GPU sends in an all-to-all.
    """
    low, middle, high = (communicators * count * NCCL_BUFFER_BYTES for count in NCCL_BUFFERS[_has_nvlink(gpu)])
    more = all_to_all_peers * ALL_TO_ALL_BYTES if _has_nvlink(gpu) else 0.0
    return Interval(low + more / 2, middle + more, high + 2 * more)


def _has_nvlink(gpu: Gpu) -> bool:
    return gpu.nvlink_bytes_per_second is not None


def cublas_bytes(gpu: Gpu, *, handles: int) -> int:
    """Return the workspaces of cuBLAS in bytes. torch allocates a workspace once per handle and never frees it."""
    is_large = gpu.generation.has_large_workspaces
    return handles * (LARGE_CUBLAS_WORKSPACE_BYTES if is_large else CUBLAS_WORKSPACE_BYTES)


def convolved_share(trace: Trace) -> float:
    """Return the share of the forward pass's output bytes that cuDNN convolutions write.

    The workspaces of these convolutions are unknown. The share is a few percent in a vision transformer, and about a
    quarter in a network of convolutions, norms and activations.
    """
    written, convolved, met = 0, 0, set[int | None]()
    if _CONVOLUTIONS.keys().isdisjoint([operation.name for operation in trace.operations]):
        return 0.0
    for operation in trace.operations:
        if operation.phase != "forward":
            continue
        sizes = sum(tensor.size_bytes for tensor in operation.outputs if tensor.id is None or tensor.id not in met)
        met.update(tensor.id for tensor in operation.outputs)
        written += sizes
        if operation.name in _CONVOLUTIONS and _is_cudnn(operation):
            convolved += sizes
    return convolved / written if written else 0.0


def workspace_bytes(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield cuDNN's temporary memory as (index of the operation, bytes).

    cuDNN computes weight gradients in channels-last format, so images and gradients in another format are copied first.
    Filters of one pixel are matmuls, which need no copy. This rule was selected from five candidates on ten timm
    families in float32 (byob, coat, convnext, cspnet, gcvit, hgnet, nasnet, regnet, vgg, vovnet).
    """
    for index, operation in enumerate(trace.operations):
        if operation.name != "aten::convolution_backward" or not _is_cudnn(operation):
            continue
        gradient, images, weights = operation.inputs[:3]
        if math.prod(weights.shape[2:]) > 1 and not operation.arguments.get(CHANNELS_LAST):
            yield index, images.size_bytes + gradient.size_bytes


def trial_bytes(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield workspaces of `torch.backends.cudnn.benchmark` in the first step, as (index of the operation, bytes).

    For each new convolution shape, torch times all candidate algorithms of cuDNN in the largest workspace that any of
    them needs, and then empties its cache. im2col needs the largest workspace: for each output pixel, the values under
    the filter. The backward pass runs trials twice, for the gradients of images and of weights.
    """
    met = set[object]()
    for index, operation in enumerate(trace.operations):
        if operation.name not in _CONVOLUTIONS or not _is_cudnn(operation):
            continue
        images, weights = operation.inputs[_CONVOLUTIONS[operation.name] :][:2]
        key = (operation.name, images.shape, weights.shape, str(operation.arguments.get("stride")))
        if key in met:
            continue
        met.add(key)
        size = _unfolded_bytes(operation, images, weights)
        yield index, size
        if operation.name == "aten::convolution_backward":
            yield index, size


def _is_cudnn(operation: Operation) -> bool:
    """Return whether cuDNN computes a convolution. torch has its own kernels for depthwise convolutions in float32."""
    at = _CONVOLUTIONS[operation.name]
    if len(operation.inputs) < at + 2 or len(operation.inputs[at].shape) < 3:
        return False
    groups = operation.arguments.get("groups", 1)
    return not (groups > 1 and groups == operation.inputs[at].shape[1])


def _unfolded_bytes(operation: Operation, images: TensorInfo, weights: TensorInfo) -> int:
    """Return the size of the im2col matrix in bytes; 0 for filters of one pixel."""
    taps = math.prod(weights.shape[2:])
    result = operation.inputs[0] if operation.name == "aten::convolution_backward" else operation.outputs[0]
    if taps == 1 or not images.elements or not result.shape[2:]:
        return 0
    pixels = math.prod(images.shape[2:])
    return images.size_bytes // pixels * math.prod(result.shape[2:]) * taps
