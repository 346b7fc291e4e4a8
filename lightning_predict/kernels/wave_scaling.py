"""Wave scaling: converts the measured time of a kernel on one GPU to another GPU that runs the same code.

A kernel runs in waves of thread blocks. A GPU holds W = SMs x (blocks per SM) blocks at once, so B blocks need ceil(B /
W) waves. In a compute-bound kernel, the time of a wave is inversely proportional to the clock. In a memory-bound
kernel, all blocks share the bandwidth. With the memory boundedness gamma in [0, 1], the origin o, the destination d and
the clock C,

    T_d / T_o = (R_o(B) / R_d(B))^gamma · (ceil(B / W_d) / ceil(B / W_o) · C_o / C_d)^(1 - gamma)

where R(B) is the bandwidth that B blocks sustain. If B is much larger than W, R(B) is the full bandwidth D, and the
equation becomes Habitat's (Yu et al., USENIX ATC 2021, section 3.3, equation 2):

    T_d / T_o = (D_o / D_d)^gamma · (W_o / W_d · C_o / C_d)^(1 - gamma)

Below one wave, Habitat's equation 1 gives each block the bandwidth D / W, so blocks get more bandwidth on a GPU that
holds fewer of them. But a few blocks are bound by latency, which is counted in clock cycles, and not by bandwidth.
Therefore R(B) = min(D, B · r · C) here, where r is the same for the code on both GPUs (`FULL_TRAFFIC_SHARE`).

gamma is computed from the roofline of the destination, the intensity I of the kernel (FLOPs per byte), and the ridge R
= peak / bandwidth. gamma is 1 - I / 2R up to the ridge and R / 2I beyond, so gamma is 1/2 at I = R. Example::

    >>> memory_boundedness(intensity=0.0, ridge=10.0), memory_boundedness(intensity=10.0, ridge=10.0)
    (1.0, 0.5)
"""

from __future__ import annotations

import math
from typing import Final

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.roofline import SHORTEST_KERNEL_SECONDS, WARP_THREADS, host_copy_rate
from lightning_predict.record.trace import Kernel

ALLOCATION_UNIT: Final = 256  # Unit in which registers are allocated to warps, and bytes of shared memory to blocks
FULL_TRAFFIC_SHARE: Final = 0.25  # Share of the blocks of a full wave that saturates the bandwidth
HOST_COPIES: Final = ("Memcpy HtoD", "Memcpy DtoH")  # Prefixes of the CUDA driver's names of copies over the host link


def blocks_per_multiprocessor(kernel: Kernel, gpu: Gpu) -> int:
    """Return how many thread blocks of the kernel one SM holds at once; at least 1.

    The result is the minimum over four limits: blocks, threads, registers (whole warps, in units of 256), and shared
    memory (in units of 256 bytes).
    """
    threads = max(math.prod(kernel.block), 1)
    warps = math.ceil(threads / WARP_THREADS)
    limits = [gpu.max_blocks_per_multiprocessor, gpu.max_threads_per_multiprocessor // (warps * WARP_THREADS)]
    if kernel.registers_per_thread > 0:
        per_warp = _round_up(kernel.registers_per_thread * WARP_THREADS, ALLOCATION_UNIT)
        limits.append(gpu.registers_per_multiprocessor // (per_warp * warps))
    if kernel.shared_memory_bytes > 0:
        per_block = _round_up(kernel.shared_memory_bytes, ALLOCATION_UNIT)
        limits.append(gpu.shared_memory_bytes_per_multiprocessor // per_block)
    return max(min(limits), 1)


def wave_blocks(kernel: Kernel, gpu: Gpu) -> int:
    """Return the number of thread blocks of one full wave: SMs x blocks per SM."""
    return gpu.streaming_multiprocessors * blocks_per_multiprocessor(kernel, gpu)


def memory_boundedness(*, intensity: float, ridge: float) -> float:
    """Compute gamma, the memory boundedness of a kernel, from 1 (no arithmetic) down to 0 (no traffic).

    Args:
        intensity: FLOPs per byte of DRAM traffic; `math.inf` for no traffic.
        ridge: Intensity at which the destination's compute and memory times are equal.
    """
    if intensity < 0 or not ridge > 0:
        raise InvalidArgumentError(
            f"Got intensity={intensity:g} and ridge={ridge:g}; expected an intensity of at least 0 and a ridge above 0."
        )
    if intensity <= ridge:
        return 1 - 0.5 * intensity / ridge
    return 0.5 * ridge / intensity


def scaled_seconds(kernel: Kernel, *, origin: Gpu, destination: Gpu, gamma: float) -> float:
    """Convert the seconds of a kernel on the origin to seconds on the destination.

    Copies over the host link scale with the bandwidth of the link and of the host's memory. Other copies and fills,
    which have no grid, scale with the DRAM bandwidth.
    """
    if kernel.name.startswith(HOST_COPIES):
        factor = host_copy_rate(origin) / host_copy_rate(destination)
    elif math.prod(kernel.grid) == 0:
        factor = origin.dram_bytes_per_second / destination.dram_bytes_per_second
    else:
        factor = _block_factor(kernel, origin, destination, gamma)
    start = min(kernel.seconds, SHORTEST_KERNEL_SECONDS)
    return start + (kernel.seconds - start) * factor


def _block_factor(kernel: Kernel, origin: Gpu, destination: Gpu, gamma: float) -> float:
    """Return the time of the thread blocks on the destination, divided by their time on the origin."""
    blocks = math.prod(kernel.grid)
    waves = {gpu.name: wave_blocks(kernel, gpu) for gpu in (origin, destination)}
    clock = _clocks(origin, destination)
    # Minimum traffic per block and cycle, if `FULL_TRAFFIC_SHARE` of a wave is to saturate the bandwidth of either GPU.
    block_bytes = max(
        gpu.dram_bytes_per_second / (FULL_TRAFFIC_SHARE * waves[gpu.name] * clock[gpu.name])
        for gpu in (origin, destination)
    )

    def traffic(gpu: Gpu) -> float:
        return min(gpu.dram_bytes_per_second, blocks * block_bytes * clock[gpu.name])

    memory = traffic(origin) / traffic(destination)
    rounds = math.ceil(blocks / waves[destination.name]) / math.ceil(blocks / waves[origin.name])
    compute = rounds * clock[origin.name] / clock[destination.name]
    return float(memory**gamma * compute ** (1 - gamma))


def _clocks(one: Gpu, other: Gpu) -> dict[str, float]:
    """Return boost clocks by name. A GPU with less bandwidth and no more SMs gets at most the clock of the other GPU.

    Small cards reach their high boost clocks only under light load. A T4 boosts to 1.59 GHz, above a V100's 1.53 GHz.
    With 70 W and a base clock of 0.585 GHz, the T4 does not sustain this clock in training.
    """
    small, large = sorted((one, other), key=lambda gpu: gpu.dram_bytes_per_second)
    clocks = {gpu.name: gpu.boost_clock_hz for gpu in (one, other)}
    if small.streaming_multiprocessors <= large.streaming_multiprocessors:
        clocks[small.name] = min(clocks.values())
    return clocks


def ridge_of(gpu: Gpu, dtype: str) -> float:
    """Return the ridge for the dtype, or for float32 if the GPU does not support the dtype; infinite without either."""
    return gpu.ridge_flops_per_byte(dtype) or gpu.ridge_flops_per_byte("float32") or math.inf


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
