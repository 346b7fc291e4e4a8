"""Estimate what CUDA's libraries take beside the tensors: the context, and the workspaces of cuBLAS and cuDNN.

Example::

    >>> from lightning_predict.gpus import gpu
    >>> round(context_bytes(gpu("L40S")).middle / 2**20)
    800
    >>> round(cublas_bytes(gpu("H100-SXM-80GB"), handles=2) / 2**20)
    64
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.tracing.operand_strides import CHANNELS_LAST
from lightning_predict.tracing.trace import Operation, TensorInfo, Trace
from lightning_predict.units import KIBIBYTE, MEBIBYTE

CUBLAS_WORKSPACE_BYTES: Final = (2 * 4096 + 8 * 16) * KIBIBYTE
"""Of a cuBLAS handle: `CUBLAS_WORKSPACE_CONFIG` is `:4096:2:16:8` by default (PyTorch, "CUDA environment variables").
Measured as 8,519,680 bytes on an A10G (github.com/pytorch/pytorch/issues/95668)."""

LARGE_CUBLAS_WORKSPACE_BYTES: Final = 8 * 4096 * KIBIBYTE
"""The same on Hopper, and with torch of 2026 on Blackwell (github.com/pytorch/pytorch/pull/175344)."""

_CONVOLUTIONS: Final = {"aten::convolution": 0, "aten::convolution_backward": 1}
"""Where each has its images; the weights follow."""


LAZY_SINCE: Final = (1, 13)
"""First release of torch that loads a kernel when it is first called."""

LOADED_AT_ONCE: Final = Interval(363.0, 628.0, 893.0)
"""MiB that releases before that load at the start and today's do not: what the change itself measured
(github.com/pytorch/pytorch/pull/86509: 636 MiB in place of 274), what a V100 showed under torch 1.10 with one small
tensor (1,343 MiB: huggingface/transformers, `performance.mdx` of January 2022), and the middle between them."""


def context_bytes(gpu: Gpu, release: tuple[int, int] | None = None) -> Interval[float]:
    """Estimate what nvidia-smi shows of a training process beside what torch's allocator reserved.

    Args:
        gpu: The GPU.
        release: Of torch; None for today's.
    """
    mebibytes = Interval(*map(float, gpu.generation.context_mebibytes))
    if release is not None and release < LAZY_SINCE:
        mebibytes = mebibytes.added(LOADED_AT_ONCE)
    return mebibytes.scaled(MEBIBYTE)


NCCL_BUFFER_BYTES: Final = 10 * MEBIBYTE
"""Of a channel's connection: the first in, first out of each of three protocols, 4 MiB of them of the simple one
(`NCCL_BUFFSIZE`), as NCCL's own log of allocations has it (github.com/NVIDIA/nccl/issues/1685)."""

NCCL_BUFFERS: Final = {True: (16 * 1, 24 * 2, 32 * 4), False: (2 * 1, 4 * 2, 8 * 4)}
"""Buffers of a communicator with NVLink and without: channels times connections of each, of a ring at least, of ring
and trees at most. Memory goes with the channels, and stops growing at two machines
(github.com/NVIDIA/nccl/issues/986)."""

ALL_TO_ALL_BYTES: Final = 3_280_000_000 / 7
"""For each peer in the machine that all-to-all sends to: on eight H100 a process grew from 1.06 to 4.34 GB with its
first (github.com/NVIDIA/nccl/issues/1685)."""


def nccl_bytes(gpu: Gpu, *, communicators: int, all_to_all_peers: int = 0) -> Interval[float]:
    """Estimate what NCCL takes of each GPU, outside of torch's allocator.

    Args:
        gpu: The GPU.
        communicators: Groups of GPUs that it exchanges with.
        all_to_all_peers: GPUs in the machine that it sends each a part of its own.
    """
    low, middle, high = (communicators * count * NCCL_BUFFER_BYTES for count in NCCL_BUFFERS[_has_nvlink(gpu)])
    more = all_to_all_peers * ALL_TO_ALL_BYTES if _has_nvlink(gpu) else 0.0
    return Interval(low + more / 2, middle + more, high + 2 * more)


def _has_nvlink(gpu: Gpu) -> bool:
    return gpu.nvlink_bytes_per_second is not None


def cublas_bytes(gpu: Gpu, *, handles: int) -> int:
    """Sum the workspaces of cuBLAS; the allocator hands them out once, for good."""
    is_large = gpu.generation.has_large_workspaces
    return handles * (LARGE_CUBLAS_WORKSPACE_BYTES if is_large else CUBLAS_WORKSPACE_BYTES)


def convolved_share(trace: Trace) -> float:
    """Return the share of the forward pass's bytes that convolutions of cuDNN write; their workspaces only it knows.

    A few percent in a vision transformer, about a quarter in a network of convolutions, norms and activations.
    """
    written, convolved, met = 0, 0, set[int | None]()
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
    """Find what cuDNN takes while it runs, by the index of the operation.

    The gradients of weights are computed with channels last: images and gradients that lie otherwise are first copied.
    Filters of one pixel are products of matrices as they lie. That it is these alone was chosen on ten families of timm
    in float32 (byob, coat, convnext, cspnet, gcvit, hgnet, nasnet, regnet, vgg, vovnet), from five such rules.
    """
    for index, operation in enumerate(trace.operations):
        if operation.name != "aten::convolution_backward" or not _is_cudnn(operation):
            continue
        gradient, images, weights = operation.inputs[:3]
        if math.prod(weights.shape[2:]) > 1 and not operation.arguments.get(CHANNELS_LAST):
            yield index, images.size_bytes + gradient.size_bytes


def trial_bytes(trace: Trace) -> Iterator[tuple[int, int]]:
    """Find what `torch.backends.cudnn.benchmark` takes in the first step, by the index of the operation.

    Before a convolution of a new shape runs, torch asks cuDNN for every algorithm that might compute it, takes the
    largest workspace that any of them wants, times them all, and empties its cache. The largest is that of the
    algorithm that unfolds the images into a matrix: as many values for each pixel of the output as a filter has weights
    for one of its outputs. The backward pass tries twice: for the images' gradients and for the weights'.
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
    """Return whether cuDNN computes a convolution: of float32, torch computes depthwise ones itself."""
    at = _CONVOLUTIONS[operation.name]
    if len(operation.inputs) < at + 2 or len(operation.inputs[at].shape) < 3:
        return False
    groups = operation.arguments.get("groups", 1)
    return not (groups > 1 and groups == operation.inputs[at].shape[1])


def _unfolded_bytes(operation: Operation, images: TensorInfo, weights: TensorInfo) -> int:
    """Return the bytes of the images unfolded for a product of matrices; filters of one pixel need none."""
    taps = math.prod(weights.shape[2:])
    result = operation.inputs[0] if operation.name == "aten::convolution_backward" else operation.outputs[0]
    if taps == 1 or not images.elements or not result.shape[2:]:
        return 0
    pixels = math.prod(images.shape[2:])
    return images.size_bytes // pixels * math.prod(result.shape[2:]) * taps
