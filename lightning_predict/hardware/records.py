"""`Gpu`: one catalogue row in SI units. `Generation`: what libraries support on GPUs of one generation.

Every figure of a row is a fact with a source and a date. A GPU has no peak for a dtype that it does not support.
Emulated dtypes are listed in `emulated_dtypes`. Other code uses properties of the generation, never version numbers. A
row of `GENERATIONS` applies from its compute capability up to the next row (for AMD, the capability that torch
reports). To add a vendor, add a table of such rows here, and its GPUs to the catalogue. Example::

    >>> from lightning_predict.hardware import gpu
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
from typing import Final, Literal

NVIDIA: Final = "NVIDIA"
AMD: Final = "AMD"

# --- A row of the catalogue

DTYPE_WORDS: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "fp8": "float8",
    "fp64": "float64",
}
"""dtypes by short name, of the command line and of other frameworks' configurations."""


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a figure: a page and a date."""

    title: str
    url: str
    date: str
    """ISO date, month or year in which the figure was published or read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as shipped: one CUDA device, so a card with two dies may be two `Gpu`s.

    Attributes:
        name: Catalogue name, with the characters `[A-Za-z0-9.-]`, as in the measurement tables.
        reported_names: Names that `torch.cuda.get_device_name` reports for this GPU.
        aliases: Names that users, clouds and SkyPilot use for this GPU.
        vendor: Name of the vendor.
        architecture: `kepler`, `maxwell`, `pascal`, `volta`, `turing`, `ampere`, `ada`, `hopper`, `blackwell`; for AMD,
            `cdna2` to `cdna4` and `rdna` to `rdna3`.
        compute_capability: CUDA compute capability, (major, minor); for AMD, (9, 4) for `gfx942`.
        launch_year: Year of release.
        streaming_multiprocessors: Number of enabled SMs; for AMD, compute units.
        cores_per_multiprocessor: fp32 lanes per SM (one fused multiply-add per lane and clock).
        float64_lanes_per_multiprocessor: fp64 lanes per SM, without tensor cores.
        base_clock_hz: Guaranteed clock under load; the boost clock if no base clock is published.
        boost_clock_hz: Clock at which the float32 peak is stated.
        highest_clock_hz: Maximum clock that the driver allows. GeForce and workstation boards exceed their boost clock
            if power and temperature allow. For other boards, or if unknown, the boost clock.
        peak_flops_per_second: Dense matmul peak by dtype: `float64`, `float32`, `tf32`, `float16`, `bfloat16`,
            `float8`, `int8`. This is the rate of tensor cores with fp32 accumulation if the GPU has tensor cores for
            the dtype, otherwise of the ordinary lanes. `lanes_peak` is the peak of other operations. Unsupported dtypes
            have no entry.
        emulated_dtypes: dtypes of `peak_flops_per_second` that run on the hardware units of another dtype: bfloat16
            before Ampere, and float16 matmuls before Volta except on the P100.
        measured_flops_per_second: Measured rates of large square matmuls by dtype; empty without measurements.
        sustained_flops_per_second: Rates of large matmuls that ran back to back for seconds, by dtype; lower than
            `measured_flops_per_second`, because power and heat reduce the clock. Empty without measurements.
            Except `own_rates`, these are the rates of one machine, and others differ.
        sustained_attention_share: The same for fused attention, over its rate in a burst; 1 without measurements.
        own_rates: Work whose sustained rate the user measured: dtypes of matmuls, and `attention`.
        dram_bytes_per_second: Bandwidth of the device memory.
        l2_bytes: Size of the last-level cache.
        l2_bytes_per_second: Bandwidth of the last-level cache.
        memory_bytes: Nominal size of the device memory, with 2**30 bytes per GB. If the vendor counts 10**9 bytes per
            GB, the size that the driver reports. Programs can use at least 92 % of this size.
        memory_kind: Kind of device memory: `GDDR5`, `GDDR6X`, `HBM2e` and so on.
        has_inline_ecc: Whether ECC codes are stored in the memory itself, which costs bandwidth: data-centre boards
            with GDDR up to GDDR6. HBM and GDDR7 store the codes separately.
        max_threads_per_multiprocessor: Maximum resident threads per SM.
        max_blocks_per_multiprocessor: Maximum resident thread blocks per SM.
        registers_per_multiprocessor: 32-bit registers per SM.
        shared_memory_bytes_per_multiprocessor: Maximum shared memory per SM.
        nvlink_bytes_per_second: NVLink bandwidth per GPU in one direction; None without NVLink, or with only an
            optional bridge between two cards.
        pcie_bytes_per_second: Bandwidth of the host link in one direction.
        has_peer_access: Whether two such cards in one machine can access each other's memory over NVLink or PCIe,
            without a copy through host memory. A virtual machine may disable peer access.
        power_watts: Power limit of the board or module as shipped.
        single_source: Whether the figures come from one data sheet, without a second source that agrees.
        sources: Sources by field (by dtype for peaks). `sources["*"]` applies to all fields without their own sources.
        library_vendor: Vendor whose generations determine what libraries support: `vendor`, unless a user's file
            declares the GPU to be like a GPU of another vendor.
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
    library_vendor: str = NVIDIA
    sustained_flops_per_second: Mapping[str, float] = field(default_factory=dict)
    sustained_attention_share: float = 1.0
    own_rates: frozenset[str] = frozenset()

    def __hash__(self) -> int:
        """Hash the unique name, so that a Gpu can be a dict key or an argument of a cached function."""
        return hash(self.name)

    @property
    def generation(self) -> Generation:
        """Properties of the GPU's generation, such as tensor cores."""
        return generation_of(self.library_vendor, self.compute_capability)

    @property
    def network_capability(self) -> tuple[int, int]:
        """Compute capability as an input of the networks; for other vendors, an NVIDIA equivalent."""
        return self.generation.nvidia_equivalent or self.compute_capability

    @property
    def is_described_by_user(self) -> bool:
        """Whether a user's file describes the GPU."""
        return not any(source.url for source in self.sources.get("*", ()))

    @property
    def has_stacked_memory(self) -> bool:
        """Whether the memory is HBM, stacked next to the die."""
        return self.memory_kind.startswith("HBM")

    def peak(self, dtype: str) -> float | None:
        """Return the dense matmul peak in FLOP/s; None if unsupported. Without TF32, float32 computes, as in cuBLAS."""
        if dtype == "tf32" and "tf32" not in self.peak_flops_per_second:
            return self.peak_flops_per_second.get("float32")
        return self.peak_flops_per_second.get(dtype)

    @property
    def overclock(self) -> float:
        """Ratio of the maximum clock to the boost clock, at which peaks are stated."""
        return self.highest_clock_hz / self.boost_clock_hz

    def lanes_peak(self, dtype: str) -> float:
        """Return the peak of the ordinary lanes in FLOP/s, without tensor cores.

        dtypes other than float64 use the float32 peak. For float64, the peak is lanes x 2 x boost clock, at most the
        data sheet's peak, because export rules limit some GPUs.
        """
        if dtype != "float64":
            return self.peak_flops_per_second["float32"]
        lanes = self.streaming_multiprocessors * self.float64_lanes_per_multiprocessor
        return min(2 * lanes * self.boost_clock_hz, self.peak_flops_per_second.get("float64", math.inf))

    def ridge_flops_per_byte(self, dtype: str) -> float | None:
        """Return the arithmetic intensity above which `dtype` work is compute-bound; None for an unsupported dtype."""
        peak = self.peak(dtype)
        return None if peak is None else peak / self.dram_bytes_per_second


# --- Generations

Chip = Literal["volta", "ampere", "ampere_geforce", "ada", "hopper", "blackwell"]
"""Chips that represent the power draw of matrix units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Properties of a GPU generation: what hardware and libraries support."""

    chip: Chip  # Chip that represents the power draw of the generation's matrix units
    has_winograd: bool = True  # Whether cuDNN has Winograd kernels for 3x3 filters; false on Kepler
    # Whether tensor cores multiply 16-bit values and accumulate in float32. These GPUs also support Triton, and thus
    # torch.compile. On earlier GPUs, cuBLAS computes 16-bit matmuls in float32: large matmuls in float16 and float32
    # reach 8.4 and 8.6 TFLOP/s on the P100, 10.0 and 10.1 on the P40, 4.8 and 5.0 on the P4 (source `matmul_survey` of
    # the catalogue).
    has_tensor_cores: bool = True
    # Whether HBM delivers a larger fraction of its bandwidth than GDDR; false for the P100's HBM (public training data)
    has_fast_stacked_memory: bool = True
    streams_norms: bool = True  # Whether layer norm is memory-bound (`kernels/families/norm.py`)
    streams_softmax: bool = True
    # Whether warp-group matmul instructions are available, which newer kernels for attention and TF32 matmuls use
    has_warp_group_matmul: bool = False
    has_large_workspaces: bool = False
    exponentials_per_clock: float = 16.0  # Exponential functions that a multiprocessor starts in a clock cycle
    context_mebibytes: tuple[int, int, int] = (500, 1500, 1800)  # Memory of CUDA context and code, (low, middle, high)
    light_context_mebibytes: tuple[int, int, int] | None = None  # The same with CUDA 13 or later; None: unmeasured
    # Equivalent NVIDIA compute capability, for the networks, which are trained only on NVIDIA GPUs; None for NVIDIA
    # GPUs
    nvidia_equivalent: tuple[int, int] | None = None


_VOLTA: Final = Generation(chip="volta", streams_norms=False, streams_softmax=False, context_mebibytes=(300, 450, 900))
_PASCAL: Final = replace(_VOLTA, has_tensor_cores=False, has_fast_stacked_memory=False)
_AMPERE: Final = Generation(chip="ampere")
_GEFORCE_AMPERE: Final = replace(_AMPERE, chip="ampere_geforce", context_mebibytes=(400, 800, 1000))
_HOPPER: Final = replace(
    _AMPERE, chip="hopper", has_warp_group_matmul=True, has_large_workspaces=True, context_mebibytes=(500, 1200, 1400)
)
_BLACKWELL: Final = replace(_HOPPER, chip="blackwell", context_mebibytes=(500, 1200, 1600))

_WIDE_CONTEXT: Final = (200, 800, 2000)  # Range of the context memory for ROCm (unmeasured), which covers all of CUDA

_CDNA: Final = replace(_AMPERE, context_mebibytes=_WIDE_CONTEXT, nvidia_equivalent=(8, 0))
_RDNA: Final = replace(
    _PASCAL, chip="ampere_geforce", has_winograd=True, context_mebibytes=_WIDE_CONTEXT, nvidia_equivalent=(6, 1)
)
_RDNA3: Final = replace(_GEFORCE_AMPERE, chip="ada", context_mebibytes=_WIDE_CONTEXT, nvidia_equivalent=(8, 6))

GENERATIONS: Final[Mapping[str, Mapping[tuple[int, int], Generation]]] = {
    NVIDIA: {
        (0, 0): replace(_PASCAL, has_winograd=False),
        (5, 0): _PASCAL,
        (7, 0): _VOLTA,
        (7, 5): replace(_VOLTA, streams_norms=True, light_context_mebibytes=(120, 141, 300)),
        (8, 0): _AMPERE,
        (8, 1): _GEFORCE_AMPERE,
        (8, 9): replace(_GEFORCE_AMPERE, chip="ada"),
        (9, 0): _HOPPER,
        (10, 0): _BLACKWELL,
        (10, 3): replace(_BLACKWELL, exponentials_per_clock=32.0),
        (11, 0): replace(_BLACKWELL, has_warp_group_matmul=False),
        (12, 0): replace(_BLACKWELL, chip="ada", has_warp_group_matmul=False),
    },
    AMD: {(0, 0): _CDNA, (9, 4): replace(_CDNA, chip="ada", nvidia_equivalent=(9, 0)), (10, 0): _RDNA, (11, 0): _RDNA3},
}
"""Generations by vendor and by the compute capability from which they apply, in ascending order.

Context memory with little code loaded: 426 MiB (RTX 6000 Ada, torch 2.10:
github.com/unslothai/unsloth-zoo/pull/1053), and "around 400MB" since CUDA 11.7
(github.com/pytorch/pytorch/issues/109888). In whole trainings, from linear fits over the batch size: 920 MiB on an
L40S and 1,275 on an H100 (milabench, torch 2.6), 1,700 on an A100 (GPUMemNet). Generations without a measurement use
the middle estimate of the previous generation, or the value with little code loaded. With CUDA 13 and torch 2.14: 141
MiB on a T4 in five trainings (Anassbzdd/fitcheck).

Each AMD generation uses the NVIDIA generation with the most similar units and process node. This mapping is an
assumption, chosen before any step time was seen: CDNA 2 uses Ampere, CDNA 3 and 4 use Hopper without Hopper-specific
kernels, RDNA and RDNA 2 use Pascal, and RDNA 3 uses GeForce Ampere."""


@lru_cache(maxsize=256)
def generation_of(vendor: str, capability: tuple[int, int]) -> Generation:
    """Return the generation of a GPU. NVIDIA's generations apply to a vendor without rows."""
    rows = GENERATIONS.get(vendor, GENERATIONS[NVIDIA])
    return rows[max(since for since in rows if since <= capability)]
