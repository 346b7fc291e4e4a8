"""Kernels that memory alone does not bound: too few blocks, too many instructions per element, rows that leave the L2.

Three limits apply besides the bandwidth. A multiprocessor issues so many instructions in a clock, so kernels that load
one element at a time or compute indices take a time by their elements, not by their bytes: half of the bandwidth in 16
bits where float32 reaches all of it, and the more so on GPUs with HBM, which have twice the bytes per clock and
multiprocessor. A block waits for what it loads, so a kernel with one block per row or channel leaves a GPU idle where
there are few. And a kernel that passes over its rows several times finds them in the L2 only where those that run at
once fit there. Example::

    >>> from lightning_predict.gpus import gpu
    >>> serial = limited_transfer(4, 4, 0, blocks=1, block_cycles=1.755e6)  # on one of 132 multiprocessors
    >>> round(float(latencies([serial], [gpu("H100-PCIe-80GB")])[0, 0]) * 1e3, 3)
    1.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import (
    Array,
    CountedProblem,
    Floor,
    Problem,
    ProblemBatch,
    batch_of,
    by_bytes,
    operation_kind,
    register,
)

LIMITED: Final = "limited_transfer"
"""A transfer that instructions or few blocks may bound: as `transfer`, with the cycles that all of it would take on one
multiprocessor, and the cycles of a block, one of so many."""

SINGLE_LOAD_CYCLES: Final = 1 / 1.3
"""Multiprocessor cycles per element of kernels that load one element at a time: operands that are broadcast, of
several dtypes or no whole tensors. 1.2 to 1.5 elements per cycle in Liger's rotary embeddings, RMS norms and gated
units, float32 and bfloat16, on the A100 and H100 (training data: those rows)."""

JOINED_LOAD_CYCLES: Final = 1.25
"""The same of a concatenation of tensors that do not lie in rows, which computes two places for each element: 1.20 and
1.29 in two recordings on the H100, of Qwen's rotary embeddings and of TimeSformer's class tokens (chosen on these)."""

SECTOR_BYTES: Final = 32
SECTOR_CYCLES: Final = 2.1
"""Bytes that memory moves at least, and cycles of a multiprocessor to get so many from the L2, where each serves one
element: a transposing copy. 2.1 in TimeSformer's keys on the H100 and 2.2 in its joined tokens (chosen on this
recording), three quarters of what its L2 delivers."""

CACHED_SHARE: Final = 0.35
"""Share of the L2 in which a row that comes again is found: the halves of an A100's or H100's L2 each keep their own
copy, and what is written takes room, too. In Liger's cross entropies on the A100, rows that take 35 % of the L2 are
found there and those of 70 % are not (training data: those rows)."""

FOUND_COST: Final = 0.56
"""Time of a softmax whose rows are found in the L2 again, over that of one whose rows are not: 0.56 in those rows, the
look-up of the targets taken off. Two of its four passes are left to the memory."""

LATENCY_SPREAD: Final = 1.3
"""Factor up and down around a time that one of these limits sets. An assumption: the constants above agree within 10 to
20 % where more than one GPU is known."""


HOST_COPY_BYTES_PER_SECOND: Final = 11e9
"""Bytes that a copy between host and GPU moves in a second however fast the link is: the host's memory is read first,
and links are shared. Copies of 19 to 56 MB in recordings on the V100, A100 (twice) and H100 came at 10.7, 9.9, 11.5 and
11.1 GB/s, pinned and not; one on a V100 at 5.9 (chosen on these, none left out)."""

LINK_SHARE: Final = 0.8
"""Share of a link's bandwidth that a copy reaches, where the host is no limit. An assumption."""


def host_copy_rate(gpu: Gpu) -> float:
    """Count bytes that a copy between host and GPU moves in a second."""
    return min(LINK_SHARE * gpu.pcie_bytes_per_second, HOST_COPY_BYTES_PER_SECOND)


def issue_rate(gpu: Gpu) -> float:
    """Count cycles of all multiprocessors in a second."""
    return gpu.streaming_multiprocessors * gpu.boost_clock_hz


def rounds(blocks: Array, gpu: Gpu, *, resident: int = 1) -> Array:
    """Count the rounds of blocks that one multiprocessor runs."""
    started: Array = np.ceil(blocks / (gpu.streaming_multiprocessors * resident))
    return started


def _latency(batch: ProblemBatch, gpu: Gpu) -> Array:
    c = batch.columns
    waiting = rounds(c["blocks"], gpu) * c["block_cycles"] / gpu.boost_clock_hz
    return np.maximum(c["cycles"] / issue_rate(gpu), waiting)


def _as_transfer(problem: Problem) -> tuple[CountedProblem, ...]:
    """Time it by memory traffic alone."""
    return (CountedProblem(1.0, Problem("transfer", "float32", problem.dims[:3])),)


register(
    replace(
        by_bytes(LIMITED),
        shape=("read_bytes", "write_bytes", "flops", "cycles", "blocks", "block_cycles"),
        defaults={"read_bytes": 0, "write_bytes": 0, "flops": 0, "cycles": 0, "blocks": 1, "block_cycles": 0},
        proxy=_as_transfer,
        floor=Floor(latency=_latency),
    )
)


def limited_transfer(
    read_bytes: float,
    written_bytes: float,
    flops: float,
    *,
    cycles: float = 0.0,
    blocks: float = 1.0,
    block_cycles: float = 0.0,
) -> Problem:
    """Return a transfer that instructions or few blocks may bound.

    Args:
        read_bytes: Bytes that it reads.
        written_bytes: Bytes that it writes.
        flops: Floating-point operations.
        cycles: Cycles that a GPU of one multiprocessor would need to issue it.
        blocks: Blocks that it has.
        block_cycles: Cycles of one of them.
    """
    return Problem(LIMITED, "float32", (read_bytes, written_bytes, flops, cycles, blocks, block_cycles))


def latencies(problems: Sequence[Problem], gpus: Sequence[Gpu]) -> Array:
    """Compute seconds that instructions and waiting take at least, shape (gpus, problems); 0 where none are known."""
    seconds = np.zeros((len(gpus), len(problems)))
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(problems):
        if operation_kind(item.operation).floor is not None:
            groups.setdefault((item.operation, item.dtype), []).append(index)
    for (operation, _), indices in groups.items():
        floor, batch = operation_kind(operation).floor, batch_of([problems[index] for index in indices])
        assert floor is not None  # by the loop above
        seconds[:, indices] = [floor.latency(batch, gpu) for gpu in gpus]
    return seconds


def reread_share(bytes_per_multiprocessor: float, gpu: Gpu) -> float:
    """Return the share of the time of a kernel that finds nothing in the L2, from `FOUND_COST` to 1."""
    at_once = bytes_per_multiprocessor * gpu.streaming_multiprocessors
    missed = min(max(at_once / (CACHED_SHARE * gpu.l2_bytes) - 1, 0.0), 1.0)
    return FOUND_COST + (1 - FOUND_COST) * missed
