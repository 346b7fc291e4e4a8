"""What libraries find on a generation of GPUs: properties that rules ask for, so that no rule knows a version number.

A row holds from its compute capability (for AMD's parts, what torch reports for them as such) up to the next row. A new
vendor is a table of such rows here, and its GPUs are rows of the catalogue. Example::

    >>> generation_of("NVIDIA", (8, 6)).has_tensor_cores, generation_of("NVIDIA", (6, 1)).has_tensor_cores
    (True, False)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, final

NVIDIA: Final = "NVIDIA"

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
}
"""By vendor and the compute capability from which it holds, in ascending order. What a process takes of the GPU: with
what little is loaded at first, 426 MiB (RTX 6000 Ada, torch 2.10: github.com/unslothai/unsloth-zoo/pull/1053) and
"around 400MB" since CUDA 11.7 (github.com/pytorch/pytorch/issues/109888); in whole trainings, read off as the constant
of lines over batch sizes, 920 MiB on an L40S and 1,275 on an H100 (milabench, torch 2.6), 1,700 on an A100 (GPUMemNet).
The middle of generations without a measurement is that of the one before, or of the little that is loaded at first."""


@lru_cache(maxsize=256)
def generation_of(vendor: str, capability: tuple[int, int]) -> Generation:
    """Find the properties of a GPU; of a vendor without rows, those of the GPU of ours that it was said to be like.

    Args:
        vendor: Who makes it.
        capability: Its compute capability.
    """
    rows = GENERATIONS.get(vendor, GENERATIONS[NVIDIA])
    return rows[max(since for since in rows if since <= capability)]
