"""`Gpu`: one row of the catalogue in SI units, and `Generation`: what libraries find on GPUs of its generation.

Every figure of a row is a fact with a source and a date, never a guess: a peak that a GPU does not have is absent, and
one that it only emulates is listed in `emulated_dtypes`. Properties of a generation are what rules ask for, so that no
rule knows a version number: a row of `GENERATIONS` holds from its compute capability (for AMD's parts, what torch
reports for them as such) up to the next row. A new vendor is a table of such rows there, and its GPUs are rows of the
catalogue. Example::

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
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, final

NVIDIA: Final = "NVIDIA"
AMD: Final = "AMD"

# --- A row of the catalogue


@final
@dataclass(frozen=True, slots=True)
class Source:
    """The page where a figure was read, and the date."""

    title: str
    url: str
    date: str
    """ISO date, month or year in which the figure was valid or read."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU (one die where a card carries two that CUDA shows apart) at its shipped configuration.

    Attributes:
        name: Our name, `[A-Za-z0-9.-]` only; the names of the measurement tables.
        reported_names: What `torch.cuda.get_device_name` reports for it.
        aliases: What people, clouds and SkyPilot call it.
        vendor: Who makes it.
        architecture: `kepler`, `maxwell`, `pascal`, `volta`, `turing`, `ampere`, `ada`, `hopper`, `blackwell`; AMD's
            `cdna2` to `cdna4` and `rdna` to `rdna3`.
        compute_capability: CUDA compute capability, (major, minor); of AMD's, as in `gfx942`: (9, 4).
        launch_year: Year of release.
        streaming_multiprocessors: Number of SMs that are enabled; of AMD's, compute units.
        cores_per_multiprocessor: fp32 lanes of one SM (one fused multiply-add each per clock).
        float64_lanes_per_multiprocessor: The same for fp64, tensor cores aside.
        base_clock_hz: Guaranteed clock under load; the boost clock where none is published.
        boost_clock_hz: Clock that the float32 peak is stated at.
        highest_clock_hz: Highest clock that the driver lets it run at. GeForce and workstation boards exceed their
            boost clock where power and heat allow; the boost clock for boards that do not, and where no log was found.
        peak_flops_per_second: Dense peak by dtype: `float64`, `float32`, `tf32`, `float16`, `bfloat16`, `float8`,
            `int8`, the highest that matrix work can reach: tensor cores with fp32 accumulation where the GPU has them
            for the dtype (so float64 of an A100 is the tensor cores' 19.5 TFLOP/s, twice its lanes'), else its lanes.
            `lanes_peak` is what work other than matrix products reaches.
            Absent: not supported.
        emulated_dtypes: Those of `peak_flops_per_second` that run through another dtype's units, at the rate that
            libraries were measured to reach: bfloat16 before Ampere, and float16 matrix work before Volta but for the
            P100, whose lanes do twice float32's work in it.
        measured_flops_per_second: Rates that large square products were measured to reach, by dtype: what remains of
            the peak under power and clock limits. Empty for GPUs without measurements.
        dram_bytes_per_second: Bandwidth of the device memory.
        l2_bytes: Size of the last-level cache.
        l2_bytes_per_second: Bandwidth of the last-level cache.
        memory_bytes: Size of the device memory as sold (2**30 bytes per GB on the box; what the driver reports where
            the box counts 10**9). What a program can use is up to 8 % less.
        memory_kind: `GDDR5`, `GDDR6X`, `HBM2e` and so on; `HBM` is stacked next to the die.
        has_inline_ecc: As shipped, codes that correct errors are kept in the memory itself and take some of its
            bandwidth: data-centre boards with GDDR up to GDDR6. HBM and GDDR7 have room of their own for them.
        max_threads_per_multiprocessor: Resident threads of one SM.
        max_blocks_per_multiprocessor: Resident thread blocks of one SM, however small they are.
        registers_per_multiprocessor: 32-bit registers of one SM.
        shared_memory_bytes_per_multiprocessor: Largest shared memory of one SM.
        nvlink_bytes_per_second: NVLink bandwidth of one GPU to its peers, one direction; None without it, and where
            it is only an optional bridge between two cards.
        pcie_bytes_per_second: Host link bandwidth, one direction.
        has_peer_access: Two such cards in one machine can access each other's memory without a copy through the host's,
            over NVLink or PCIe, unless a virtual machine takes it away.
        power_watts: Board (or module) power limit as shipped.
        single_source: True where the figures come from one data sheet and no second source agreed.
        sources: Where each figure was read, by field (by dtype for peaks); `sources["*"]` holds for all that have no
            entry of their own.
        ruled_by: Vendor whose generations say what libraries find on it: its own, but of a GPU that a user's file says
            to be like another vendor's, that one.
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

    def __hash__(self) -> int:
        """Hash the name, which no two rows share, so that a Gpu can be a key or an argument of a cached function."""
        return hash(self.name)

    @property
    def generation(self) -> Generation:
        """What libraries find on it: tensor cores, asynchronous copies and so on."""
        return generation_of(self.ruled_by, self.compute_capability)

    @property
    def network_capability(self) -> tuple[int, int]:
        """Compute capability as networks know it: that of NVIDIA's GPUs that its generation is taken for."""
        return self.generation.taken_for or self.compute_capability

    @property
    def is_described_by_user(self) -> bool:
        """Whether a file of the user's own describes it, by what differs from another GPU."""
        return not any(source.url for source in self.sources.get("*", ()))

    @property
    def has_stacked_memory(self) -> bool:
        """Whether the memory is stacked next to the die (HBM), with a bus of thousands of wires."""
        return self.memory_kind.startswith("HBM")

    def peak(self, dtype: str) -> float | None:
        """Return dense peak FLOP/s for `dtype`, emulated ones included; None if the GPU cannot compute it.

        A GPU without tf32 computes a tf32 request in float32, as cuBLAS does.
        """
        if dtype == "tf32" and "tf32" not in self.peak_flops_per_second:
            return self.peak_flops_per_second.get("float32")
        return self.peak_flops_per_second.get(dtype)

    @property
    def overclock(self) -> float:
        """Highest clock over boost clock, at which peaks are stated."""
        return self.highest_clock_hz / self.boost_clock_hz

    def lanes_peak(self, dtype: str) -> float:
        """Find the ordinary lanes' FLOP/s: of float64 without tensor cores; of all else, which computes in float32.

        Lanes x 2 x boost clock, and no more than the data sheet states (export rules cut some below their lanes).
        """
        if dtype != "float64":
            return self.peak_flops_per_second["float32"]
        lanes = self.streaming_multiprocessors * self.float64_lanes_per_multiprocessor
        return min(2 * lanes * self.boost_clock_hz, self.peak_flops_per_second.get("float64", math.inf))

    def ridge_flops_per_byte(self, dtype: str) -> float | None:
        """Compute the intensity above which `dtype` work is bound by compute; None without that dtype."""
        peak = self.peak(dtype)
        return None if peak is None else peak / self.dram_bytes_per_second


# --- Generations

Chip = Literal["volta", "ampere", "ampere_geforce", "ada", "hopper", "blackwell"]
"""Chips whose matrix units draw alike."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Properties of a generation.

    Attributes:
        chip: Whose watts its matrix units draw.
        has_winograd: cuDNN has kernels that compute 3x3 filters with fewer products; Kepler has none.
        has_tensor_cores: Matrix units add 16-bit products in float32, and Triton, which Inductor writes its kernels in,
            runs. Before, PyTorch has cuBLAS compute 16-bit products in float32, at its rate: large float16 products
            reach 8.4 TFLOP/s on the P100, float32 ones 8.6, though its lanes do twice as many in float16 (10.0 and 10.1
            on the P40, 4.8 and 5.0 on the P4; source `matmul_survey` of the catalogue).
        has_fast_stacked_memory: Stacked memory delivers more of its bandwidth than GDDR does. The P100's, the first,
            delivers as little as GDDR in the public tables (training data).
        streams_norms: Layer norm takes a transfer of its bytes (`kernels/families/norm.py`).
        streams_softmax: Softmax does.
        has_asynchronous_copies: Memory is copied into shared memory past the registers.
        is_made_for_games: Its chips serve GeForce boards, too: half of the lanes share their issue with integers.
        has_group_products: Groups of warps multiply together, for which attention and TF32 products have newer kernels.
        has_slow_reduced_products: Its float8 and TF32 products reach less of the peak than bfloat16's do.
        has_large_workspaces: cuBLAS takes larger workspaces.
        has_adding_switches: Switches between GPUs add up, and a collective takes fewer multiprocessors.
        context_mebibytes: What a process takes before its first tensor, and for code: least, middle, most.
        taken_for: Compute capability of NVIDIA's that networks take it for, which know no others; None: its own.
    """

    chip: Chip
    has_winograd: bool = True
    has_tensor_cores: bool = True
    has_fast_stacked_memory: bool = True
    streams_norms: bool = True
    streams_softmax: bool = True
    has_asynchronous_copies: bool = True
    is_made_for_games: bool = False
    has_group_products: bool = False
    has_slow_reduced_products: bool = False
    has_large_workspaces: bool = False
    has_adding_switches: bool = False
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
    _AMPERE, chip="ampere_geforce", is_made_for_games=True, context_mebibytes=(400, 800, 1000)
)
_HOPPER: Final = replace(
    _AMPERE,
    chip="hopper",
    has_group_products=True,
    has_slow_reduced_products=True,
    has_large_workspaces=True,
    has_adding_switches=True,
    context_mebibytes=(500, 1200, 1400),
)
_BLACKWELL: Final = replace(
    _HOPPER, chip="blackwell", has_slow_reduced_products=False, context_mebibytes=(500, 1200, 1600)
)

_WIDE_CONTEXT: Final = (200, 800, 2000)
"""Nobody measured what ROCm takes: a guess, as wide as all of CUDA's generations."""

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
        (11, 0): replace(_BLACKWELL, has_group_products=False),
        (12, 0): replace(_BLACKWELL, chip="ada", has_group_products=False, is_made_for_games=True),
    },
    AMD: {
        (0, 0): _CDNA,
        (9, 4): replace(_CDNA, chip="ada", taken_for=(9, 0)),
        (10, 0): _RDNA,
        (11, 0): _RDNA3,
    },
}
"""By vendor and the compute capability from which it holds, in ascending order. What a process takes of the GPU: with
what little is loaded at first, 426 MiB (RTX 6000 Ada, torch 2.10: github.com/unslothai/unsloth-zoo/pull/1053) and
"around 400MB" since CUDA 11.7 (github.com/pytorch/pytorch/issues/109888); in whole trainings, read off as the constant
of lines over batch sizes, 920 MiB on an L40S and 1,275 on an H100 (milabench, torch 2.6), 1,700 on an A100 (GPUMemNet).
The middle of generations without a measurement is that of the one before, or of the little that is loaded at first.
AMD's are NVIDIA's that come nearest, by the units they have and by the process of their chips, chosen before any step
was looked at: CDNA 2 as Ampere, CDNA 3 and 4 as Hopper without what its own kernels bring, RDNA and RDNA 2 as Pascal,
RDNA 3 as Ampere's GeForce boards. That is a frame to put a data sheet in, not a finding."""


@lru_cache(maxsize=256)
def generation_of(vendor: str, capability: tuple[int, int]) -> Generation:
    """Find the properties of a GPU; of a vendor without rows, those of the GPU of ours that it was said to be like.

    Args:
        vendor: Who makes it.
        capability: Its compute capability.
    """
    rows = GENERATIONS.get(vendor, GENERATIONS[NVIDIA])
    return rows[max(since for since in rows if since <= capability)]
