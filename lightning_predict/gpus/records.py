"""`Gpu`: one catalogue row in SI units. `Generation`: what libraries support on GPUs of one generation.

Every figure of a row is a fact with a source and a date, never a guess. If a GPU does not support a dtype, it has no
peak for it. Emulated dtypes are listed in `emulated_dtypes`. Other code asks for properties of the generation, never
for a version number. A row of `GENERATIONS` applies from its compute capability up to the next row (for AMD, the
capability that torch reports). To add a vendor, add a table of such rows here, and its GPUs to the catalogue. Example::

    >>> from lightning_predict.gpus import gpu
    >>> t4 = gpu("T4")
    >>> t4.streaming_multiprocessors, t4.compute_capability
    (40, (7, 5))
    >>> t4.ridge_flops_per_byte("float32") > 20
    True
    >>> t4.generation.has_tensor_cores, generation_of("NVIDIA", (6, 1)).has_tensor_cores
    (True, False)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal, final

NVIDIA: Final = "NVIDIA"
AMD: Final = "AMD"

# --- A row of the catalogue


@final
@dataclass(frozen=True, slots=True)
class Source:
    """Source of a figure: a page and a date."""

    title: str
    url: str
    date: str
    """ISO date, month or year in which the figure was published or read."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as shipped. If CUDA shows the two dies of a card as two devices, a `Gpu` is one die.

    Attributes:
        name: Our name for the GPU, `[A-Za-z0-9.-]` only, as in the measurement tables.
        reported_names: Names that `torch.cuda.get_device_name` reports for this GPU.
        aliases: Names that users, clouds and SkyPilot use for this GPU.
        vendor: Vendor.
        architecture: `kepler`, `maxwell`, `pascal`, `volta`, `turing`, `ampere`, `ada`, `hopper`, `blackwell`; for AMD,
            `cdna2` to `cdna4` and `rdna` to `rdna3`.
        compute_capability: CUDA compute capability, (major, minor); for AMD, (9, 4) for `gfx942`.
        launch_year: Year of release.
        streaming_multiprocessors: Number of enabled SMs; for AMD, compute units.
        cores_per_multiprocessor: fp32 lanes per SM (one fused multiply-add per lane and clock).
        float64_lanes_per_multiprocessor: fp64 lanes per SM, without tensor cores.
        base_clock_hz: Guaranteed clock under load; the boost clock if none is published.
        boost_clock_hz: Clock at which the float32 peak is stated.
        highest_clock_hz: Highest clock that the driver allows. GeForce and workstation boards exceed their boost clock
            if power and temperature permit. For other boards, or if no log was found, it is the boost clock.
        peak_flops_per_second: Dense peak by dtype: `float64`, `float32`, `tf32`, `float16`, `bfloat16`, `float8`,
            `int8`. This is the highest matmul rate: of tensor cores with fp32 accumulation if the GPU has them for the
            dtype, otherwise of the ordinary lanes. So float64 on an A100 is 19.5 TFLOP/s, twice the rate of its lanes.
            `lanes_peak` is the peak of other operations. Unsupported dtypes have no entry.
        emulated_dtypes: dtypes of `peak_flops_per_second` that run on the hardware units of another dtype, at the rate
            that libraries reach. These are bfloat16 before Ampere, and float16 matmuls before Volta. The exception is
            the P100, whose lanes compute float16 at twice the float32 rate.
        measured_flops_per_second: Measured rates of large square matmuls by dtype, under power and clock limits. Empty
            without measurements.
        sustained_flops_per_second: Rates of large matmuls that ran back to back for seconds, by dtype. Power and heat
            lower the clock after a few milliseconds. Empty without measurements.
        dram_bytes_per_second: Bandwidth of the device memory.
        l2_bytes: Size of the last-level cache.
        l2_bytes_per_second: Bandwidth of the last-level cache.
        memory_bytes: Nominal size of the device memory, with 2**30 bytes per GB. If the vendor counts 10**9 bytes per
            GB, it is the size that the driver reports. Programs cannot use up to 8 % of it.
        memory_kind: `GDDR5`, `GDDR6X`, `HBM2e` and so on. `HBM` is stacked next to the die.
        has_inline_ecc: Whether the board ships with ECC codes stored in the memory itself, which cost bandwidth. This
            is so for data-centre boards with GDDR up to GDDR6. HBM and GDDR7 store the codes separately.
        max_threads_per_multiprocessor: Maximum resident threads per SM.
        max_blocks_per_multiprocessor: Maximum resident thread blocks per SM.
        registers_per_multiprocessor: 32-bit registers per SM.
        shared_memory_bytes_per_multiprocessor: Maximum shared memory per SM.
        nvlink_bytes_per_second: NVLink bandwidth per GPU in one direction; None without NVLink, or if NVLink is only an
            optional bridge between two cards.
        pcie_bytes_per_second: Bandwidth of the host link, one direction.
        has_peer_access: Whether two such cards in one machine can access each other's memory over NVLink or PCIe,
            without a copy through host memory. A virtual machine may disable it.
        power_watts: Power limit of the board or module as shipped.
        single_source: Whether the figures come from one data sheet, without a second source that agrees.
        sources: Sources by field (by dtype for peaks). `sources["*"]` applies to all fields without their own entry.
        ruled_by: Vendor whose generations determine what libraries support. This is the GPU's own vendor, unless a
            user's file declares the GPU to be like one of another vendor.
    """

    name: str
    reported_names: tuple[str, ...]
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    launch_year: int
    streaming_multiprocessors: int
    cores_per_multiprocessor: int
    float64_lanes_per_multiprocessor: int
    base_clock_hz: float
    boost_clock_hz: float
    highest_clock_hz: float
    peak_flops_per_second: Mapping[str, float]
    emulated_dtypes: frozenset[str]
    measured_flops_per_second: Mapping[str, float]
    dram_bytes_per_second: float
    l2_bytes: float
    l2_bytes_per_second: float
    memory_bytes: float
    memory_kind: str
    has_inline_ecc: bool
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_memory_bytes_per_multiprocessor: int
    nvlink_bytes_per_second: float | None
    pcie_bytes_per_second: float
    has_peer_access: bool
    power_watts: float
    single_source: bool
    sources: Mapping[str, tuple[Source, ...]]
    vendor: str = NVIDIA
    ruled_by: str = NVIDIA
    sustained_flops_per_second: Mapping[str, float] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash the name. It is unique, so a Gpu can be a dict key or an argument of a cached function."""
        return hash(self.name)

    @property
    def generation(self) -> Generation:
        """Properties of the GPU's generation: tensor cores, asynchronous copies and so on."""
        return generation_of(self.ruled_by, self.compute_capability)

    @property
    def network_capability(self) -> tuple[int, int]:
        """Compute capability as an input of the networks: the GPU's own, or an NVIDIA equivalent for other vendors."""
        return self.generation.taken_for or self.compute_capability

    @property
    def is_described_by_user(self) -> bool:
        """Whether a user's file describes the GPU, by its differences from another one."""
        return not any(source.url for source in self.sources.get("*", ()))

    @property
    def has_stacked_memory(self) -> bool:
        """Whether the memory is stacked next to the die (HBM), with a bus of thousands of wires."""
        return self.memory_kind.startswith("HBM")

    def peak(self, dtype: str) -> float | None:
        """Return the dense peak in FLOP/s for `dtype`, also if it is emulated; None if the GPU cannot compute in it.

        If a GPU has no tf32, it computes tf32 requests in float32, as cuBLAS does.
        """
        if dtype == "tf32" and "tf32" not in self.peak_flops_per_second:
            return self.peak_flops_per_second.get("float32")
        return self.peak_flops_per_second.get(dtype)

    @property
    def overclock(self) -> float:
        """Ratio of the highest clock to the boost clock. Peaks are stated at the boost clock."""
        return self.highest_clock_hz / self.boost_clock_hz

    def lanes_peak(self, dtype: str) -> float:
        """Return the peak in FLOP/s of the ordinary lanes, without tensor cores.

        Dtypes other than float64 use the float32 peak. For float64, the peak is lanes x 2 x boost clock, but at most
        the data sheet's peak, because export rules limit some GPUs below their lanes.
        """
        if dtype != "float64":
            return self.peak_flops_per_second["float32"]
        lanes = self.streaming_multiprocessors * self.float64_lanes_per_multiprocessor
        return min(2 * lanes * self.boost_clock_hz, self.peak_flops_per_second.get("float64", math.inf))

    def ridge_flops_per_byte(self, dtype: str) -> float | None:
        """Compute the arithmetic intensity above which `dtype` work is compute-bound; None if unsupported."""
        peak = self.peak(dtype)
        return None if peak is None else peak / self.dram_bytes_per_second


# --- Generations

Chip = Literal["volta", "ampere", "ampere_geforce", "ada", "hopper", "blackwell"]
"""Chips that represent the power draw of matrix units."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Properties of a GPU generation, in particular what libraries support.

    Attributes:
        chip: Chip that represents the power draw of its matrix units.
        has_winograd: Whether cuDNN has Winograd kernels for 3x3 filters; not on Kepler.
        has_tensor_cores: Whether tensor cores multiply 16-bit values and accumulate in float32. Such GPUs also support
            Triton, and so torch.compile. On earlier GPUs, cuBLAS computes PyTorch's 16-bit matmuls in float32, at the
            float32 rate. Large matmuls reach 8.4 TFLOP/s in float16 and 8.6 in float32 on the P100, although its lanes
            compute float16 at twice the rate. They reach 10.0 and 10.1 on the P40, and 4.8 and 5.0 on the P4 (source
            `matmul_survey` of the catalogue).
        has_fast_stacked_memory: Whether HBM delivers a larger fraction of its bandwidth than GDDR. The P100's HBM, the
            first, does not, according to the public training data.
        streams_norms: Whether layer norm is memory-bound (`kernels/families/norm.py`).
        streams_softmax: Whether softmax is memory-bound.
        has_asynchronous_copies: Whether asynchronous copies to shared memory bypass the registers.
        is_geforce_chip: Whether the chips are also sold as GeForce boards, where half of the lanes share their issue
            slots with integer operations.
        has_warp_group_matmul: Whether warp-group matmul instructions are available, for which attention and TF32
            matmuls have newer kernels.
        has_slow_reduced_products: Whether float8 and TF32 matmuls reach a smaller fraction of their peak than bfloat16
            matmuls.
        has_large_workspaces: Whether cuBLAS allocates larger workspaces.
        has_in_network_reduction: Whether NVSwitch reduces in the network, so that collectives use fewer SMs.
        context_mebibytes: Memory of the CUDA context and loaded code, as low, middle and high estimate.
        taken_for: Equivalent NVIDIA compute capability for the neural networks, which are trained only on NVIDIA GPUs;
            None for its own.
    """

    chip: Chip
    has_winograd: bool = True
    has_tensor_cores: bool = True
    has_fast_stacked_memory: bool = True
    streams_norms: bool = True
    streams_softmax: bool = True
    has_asynchronous_copies: bool = True
    is_geforce_chip: bool = False
    has_warp_group_matmul: bool = False
    has_slow_reduced_products: bool = False
    has_large_workspaces: bool = False
    has_in_network_reduction: bool = False
    context_mebibytes: tuple[int, int, int] = (500, 1500, 1800)
    taken_for: tuple[int, int] | None = None


_VOLTA: Final = Generation(
    chip="volta",
    streams_norms=False,
    streams_softmax=False,
    has_asynchronous_copies=False,
    context_mebibytes=(300, 450, 900),
)
_PASCAL: Final = replace(_VOLTA, has_tensor_cores=False, has_fast_stacked_memory=False)
_AMPERE: Final = Generation(chip="ampere")
_GEFORCE_AMPERE: Final = replace(
    _AMPERE, chip="ampere_geforce", is_geforce_chip=True, context_mebibytes=(400, 800, 1000)
)
_HOPPER: Final = replace(
    _AMPERE,
    chip="hopper",
    has_warp_group_matmul=True,
    has_slow_reduced_products=True,
    has_large_workspaces=True,
    has_in_network_reduction=True,
    context_mebibytes=(500, 1200, 1400),
)
_BLACKWELL: Final = replace(
    _HOPPER, chip="blackwell", has_slow_reduced_products=False, context_mebibytes=(500, 1200, 1600)
)

_WIDE_CONTEXT: Final = (200, 800, 2000)
"""Range of the context memory for ROCm, which has not been measured. It covers all CUDA generations."""

_CDNA: Final = replace(_AMPERE, context_mebibytes=_WIDE_CONTEXT, taken_for=(8, 0))
_RDNA: Final = replace(
    _PASCAL, chip="ampere_geforce", has_winograd=True, context_mebibytes=_WIDE_CONTEXT, taken_for=(6, 1)
)
_RDNA3: Final = replace(_GEFORCE_AMPERE, chip="ada", context_mebibytes=_WIDE_CONTEXT, taken_for=(8, 6))

GENERATIONS: Final[Mapping[str, Mapping[tuple[int, int], Generation]]] = {
    NVIDIA: {
        (0, 0): replace(_PASCAL, has_winograd=False),
        (5, 0): _PASCAL,
        (7, 0): _VOLTA,
        (7, 5): replace(_VOLTA, streams_norms=True),
        (8, 0): _AMPERE,
        (8, 1): _GEFORCE_AMPERE,
        (8, 9): replace(_GEFORCE_AMPERE, chip="ada"),
        (9, 0): _HOPPER,
        (10, 0): _BLACKWELL,
        (11, 0): replace(_BLACKWELL, has_warp_group_matmul=False),
        (12, 0): replace(_BLACKWELL, chip="ada", has_warp_group_matmul=False, is_geforce_chip=True),
    },
    AMD: {
        (0, 0): _CDNA,
        (9, 4): replace(_CDNA, chip="ada", taken_for=(9, 0)),
        (10, 0): _RDNA,
        (11, 0): _RDNA3,
    },
}
"""Generations by vendor, and by the compute capability from which they apply, in ascending order.

Context memory was measured with little code loaded: 426 MiB (RTX 6000 Ada, torch 2.10:
github.com/unslothai/unsloth-zoo/pull/1053), and "around 400MB" since CUDA 11.7
(github.com/pytorch/pytorch/issues/109888). It was also derived from whole trainings, as the intercept of linear fits
over the batch size: 920 MiB on an L40S and 1,275 on an H100 (milabench, torch 2.6), 1,700 on an A100 (GPUMemNet).
Generations without a measurement use the middle estimate of the previous generation, or the value with little code
loaded.

Each AMD generation is mapped to the NVIDIA generation with the most similar units and process node. The mapping was
chosen before any step time was seen. CDNA 2 maps to Ampere, and CDNA 3 and 4 to Hopper without Hopper-specific kernels.
RDNA and RDNA 2 map to Pascal, and RDNA 3 to GeForce Ampere. This mapping is an assumption, not a measurement.
"""


@lru_cache(maxsize=256)
def generation_of(vendor: str, capability: tuple[int, int]) -> Generation:
    """Return the properties of a GPU's generation. A vendor without rows uses NVIDIA's.

    Args:
        vendor: Vendor.
        capability: Compute capability.
    """
    rows = GENERATIONS.get(vendor, GENERATIONS[NVIDIA])
    return rows[max(since for since in rows if since <= capability)]
