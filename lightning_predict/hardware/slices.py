"""MIG slices (Multi-Instance GPU), derived from the whole GPU: fewer SMs, less memory and less cache.

`catalogue/mig.toml` has a line for each profile. A slice can be named as CUDA reports it, `NVIDIA A100-SXM4-40GB MIG
3g.20gb`. The part before ` MIG ` can also be the catalogue name of the GPU. Example::

    >>> from lightning_predict.hardware import gpu
    >>> half = gpu("A100-SXM-40GB MIG 3g.20gb")
    >>> half.name, half.streaming_multiprocessors, half.memory_bytes / 2**30
    ('A100-SXM-40GB-MIG-3g.20gb', 42, 20.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from lightning_predict.base.checked import read_toml
from lightning_predict.base.errors import CatalogueError, UnknownGpuError
from lightning_predict.hardware.catalogue import CATALOGUE_FOLDER
from lightning_predict.hardware.records import Gpu

SLICES_FILE: Final = "mig.toml"

MEMORY_SLICES: Final = 8  # Equal parts into which MIG divides memory, bandwidth and L2 cache (NVIDIA, MIG User Guide)


@dataclass(frozen=True, slots=True)
class SliceProfile:
    """A MIG profile."""

    name: str
    multiprocessors: int
    memory_share: float


BETWEEN: Final = "-MIG-"  # Separator between GPU name and profile in the name of a slice


def is_slice(gpu: Gpu) -> bool:
    """Return whether a GPU is a MIG slice."""
    return BETWEEN in gpu.name


def slice_of(whole: Gpu, profile_name: str) -> Gpu:
    """Return the GPU that a program in a MIG slice sees.

    Peaks scale with the number of SMs, at the same clock. Slices have no NVLink. The full bandwidth of the host link is
    assumed, although slices share the link.

    Args:
        whole: The whole GPU.
        profile_name: Name of the profile, for example `3g.20gb`. `1c.3g.20gb` is a compute instance inside `3g.20gb`,
            with one of the three compute slices, and the whole memory.
    """
    profiles = _profiles().get(whole.name, {})
    compute_slices, _, instance = profile_name.casefold().rpartition("c.")
    profile = profiles.get(instance)
    if profile is not None and compute_slices:
        share = int(compute_slices) / int(instance.partition("g.")[0])
        profile = None if not 0 < share < 1 else _compute_instance(profile, profile_name.casefold(), share)
    if profile is None:
        known = f"it has {', '.join(profiles)}" if profiles else f"slices are known of {', '.join(_profiles())}"
        raise UnknownGpuError(f"{whole.name} has no slice {profile_name!r} in the catalogue; {known}.")
    compute = profile.multiprocessors / whole.streaming_multiprocessors
    return replace(
        whole,
        name=f"{whole.name}{BETWEEN}{profile.name}",
        reported_names=tuple(f"{name} MIG {profile.name}" for name in whole.reported_names),
        aliases=(),
        streaming_multiprocessors=profile.multiprocessors,
        peak_flops_per_second={dtype: peak * compute for dtype, peak in whole.peak_flops_per_second.items()},
        measured_flops_per_second={dtype: rate * compute for dtype, rate in whole.measured_flops_per_second.items()},
        sustained_flops_per_second={},  # a slice alone leaves power to spare
        sustained_attention_share=1.0,
        dram_bytes_per_second=whole.dram_bytes_per_second * profile.memory_share,
        l2_bytes=whole.l2_bytes * profile.memory_share,
        l2_bytes_per_second=whole.l2_bytes_per_second * profile.memory_share,
        memory_bytes=whole.memory_bytes * profile.memory_share,
        nvlink_bytes_per_second=None,
        power_watts=whole.power_watts * compute,
    )


def _compute_instance(profile: SliceProfile, name: str, share: float) -> SliceProfile:
    return replace(profile, name=name, multiprocessors=max(round(share * profile.multiprocessors), 1))


@cache
def _profiles() -> Mapping[str, Mapping[str, SliceProfile]]:
    document = read_toml(CATALOGUE_FOLDER / SLICES_FILE, CatalogueError)
    document.check_keys({"mig"})
    by_gpu: dict[str, dict[str, SliceProfile]] = {}
    for family in document.member("mig").members().values():
        family.check_keys({"gpus", "sources", "profiles"})
        profiles = {}
        for row in family.member("profiles").items(named=("name",)):
            row.check_keys({"name", "multiprocessors", "memory_eighths"})
            eighths = row.member("memory_eighths").integer(minimum=1, maximum=MEMORY_SLICES)
            name = row.member("name").words()
            profiles[name] = SliceProfile(
                name, row.member("multiprocessors").integer(minimum=1), eighths / MEMORY_SLICES
            )
        by_gpu |= dict.fromkeys(family.member("gpus").texts(), profiles)
    return by_gpu
