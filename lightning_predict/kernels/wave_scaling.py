"""Habitat's wave scaling: a kernel's measured time on one GPU, turned into its time on another.

A kernel runs in waves: a GPU holds W = SMs x (blocks that one SM holds) thread blocks at once, and B blocks need
ceil(B / W) waves. Bound by memory, a wave takes (blocks of the wave) / bandwidth; bound by compute, 1 / clock. With
gamma in [0, 1] for how far memory binds, origin o and destination d, bandwidth D and clock C (Yu et al., USENIX ATC
2021, section 3.3):

    (1)  T_d = ceil(B/W_d) (D_o/D_d · W_d/W_o)^gamma (C_o/C_d)^(1-gamma) T_o / ceil(B/W_o)
    (2)  T_d = (D_o/D_d)^gamma (W_o/W_d · C_o/C_d)^(1-gamma) T_o

Equation (2) is (1) for B much larger than W, where ceil(B/W) is B/W: the W's of the bandwidth term cancel. It holds
for the same code on both GPUs, so for element-wise operations, reductions, normalisations and optimizers.

gamma comes from the roofline of the destination, from the kernel's intensity I (FLOPs per byte) and the ridge R = peak
/ bandwidth: 1 - I / 2R up to the ridge and R / 2I beyond; 1/2 on both sides of I = R. Example::

    >>> memory_boundedness(intensity=0.0, ridge=10.0), memory_boundedness(intensity=10.0, ridge=10.0)
    (1.0, 0.5)
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.operations import Array, ProblemBatch
from lightning_predict.tracing.records import Kernel

WARP_THREADS: Final = 32
REGISTER_UNIT_PER_WARP: Final = 256
"""Registers are handed out to warps in units of 256 (all architectures from Kepler on)."""
SHARED_MEMORY_UNIT_BYTES: Final = 256
MANY_WAVES: Final = 8
"""From so many waves on both GPUs the remainder of the last one is below 1/8 and equation (2) is used."""

Equation = Literal["exact", "large"]


def blocks_per_multiprocessor(kernel: Kernel, gpu: Gpu) -> int:
    """Thread blocks of the kernel that one SM holds at once; at least 1.

    The least of three limits: threads, registers (whole warps, in units of 256), shared memory (units of 256 bytes).
    """
    threads = max(math.prod(kernel.block), 1)
    warps = math.ceil(threads / WARP_THREADS)
    limits = [gpu.max_threads_per_multiprocessor // (warps * WARP_THREADS)]
    if kernel.registers_per_thread > 0:
        per_warp = _round_up(kernel.registers_per_thread * WARP_THREADS, REGISTER_UNIT_PER_WARP)
        limits.append(gpu.registers_per_multiprocessor // (per_warp * warps))
    if kernel.shared_memory_bytes > 0:
        per_block = _round_up(kernel.shared_memory_bytes, SHARED_MEMORY_UNIT_BYTES)
        limits.append(gpu.shared_memory_bytes_per_multiprocessor // per_block)
    return max(min(limits), 1)


def wave_blocks(kernel: Kernel, gpu: Gpu) -> int:
    """Thread blocks of one full wave: SMs x blocks that an SM holds."""
    return gpu.streaming_multiprocessors * blocks_per_multiprocessor(kernel, gpu)


def memory_boundedness(*, intensity: float, ridge: float) -> float:
    """gamma: how far memory binds a kernel, from 1 (no arithmetic) down to 0 (no traffic).

    Args:
        intensity: FLOPs per byte of DRAM traffic; `math.inf` for no traffic.
        ridge: Intensity at which the destination's compute and memory times are equal.

    Raises:
        InvalidArgumentError: A negative intensity or a ridge that is not positive.
    """
    if intensity < 0 or not ridge > 0:
        raise InvalidArgumentError(
            f"Got intensity={intensity:g} and ridge={ridge:g}; expected an intensity of at least 0 and a ridge above 0."
        )
    if intensity <= ridge:
        return 1 - 0.5 * intensity / ridge
    return 0.5 * ridge / intensity


def scaled_seconds(
    kernel: Kernel,
    *,
    origin: Gpu,
    destination: Gpu,
    gamma: float,
    equation: Equation | None = None,
) -> float:
    """Seconds of the kernel on the destination.

    Args:
        kernel: As measured on the origin.
        origin: GPU that it was measured on.
        destination: GPU to predict.
        gamma: How far memory binds it, from `memory_boundedness`.
        equation: `exact` is equation (1), `large` is (2); None takes (2) from `MANY_WAVES` waves on both GPUs.

    A copy or fill (no grid) has no waves and scales with bandwidth.
    """
    bandwidth = origin.dram_bytes_per_second / destination.dram_bytes_per_second
    blocks = math.prod(kernel.grid)
    if blocks == 0:
        return kernel.seconds * bandwidth
    clock = origin.boost_clock_hz / destination.boost_clock_hz
    wave_origin, wave_destination = wave_blocks(kernel, origin), wave_blocks(kernel, destination)
    if equation is None:
        equation = "large" if blocks >= MANY_WAVES * max(wave_origin, wave_destination) else "exact"
    if equation == "large":
        compute = wave_origin / wave_destination * clock
        return float(kernel.seconds * bandwidth**gamma * compute ** (1 - gamma))
    waves = math.ceil(blocks / wave_destination) / math.ceil(blocks / wave_origin)
    wave_bytes = wave_destination / wave_origin
    return float(kernel.seconds * waves * (bandwidth * wave_bytes) ** gamma * clock ** (1 - gamma))


def many_wave_factors(batch: ProblemBatch, *, origin: Gpu, destination: Gpu) -> Array:
    """Equation (2) for problems whose launches are not known: destination over origin seconds, shape (problems,).

    An SM of either GPU is taken to hold as many blocks, so W is in the ratio of the SMs.
    """
    dtype = batch.dtype if batch.kind.units == "tensor" else "float32"
    ridge = ridge_of(destination, dtype)
    intensity = batch.flops / np.maximum(batch.bytes_moved, 1.0)
    below = np.minimum(intensity / ridge, 1.0)
    gamma = np.where(intensity <= ridge, 1 - 0.5 * below, 0.5 * ridge / np.maximum(intensity, ridge))
    bandwidth = origin.dram_bytes_per_second / destination.dram_bytes_per_second
    waves = origin.streaming_multiprocessors / destination.streaming_multiprocessors
    factors: Array = bandwidth**gamma * (waves * origin.boost_clock_hz / destination.boost_clock_hz) ** (1 - gamma)
    return factors


def ridge_of(gpu: Gpu, dtype: str) -> float:
    """Ridge of the dtype, of float32 where the GPU does not compute it; infinite where it has neither."""
    return gpu.ridge_flops_per_byte(dtype) or gpu.ridge_flops_per_byte("float32") or math.inf


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
