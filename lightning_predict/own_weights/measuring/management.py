"""Reads the state of a GPU during measurements from the driver's NVML (NVIDIA's management library): clock, power.

In hours of training, but not in a short burst, the power limit or the temperature lowers the clock. Therefore each row
records the state. Example::

    state = read_state(torch.device("cuda"))
    state.clock_hz, state.power_limit_watts, state.held_back_by    # 1.41e9, 400.0, ("power",)
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import torch

from lightning_predict.base.units import KILO, megahertz_to_hertz

REASONS: Final = {
    0x04: "power",
    0x08: "hardware",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "power brake",
    0x02: "clock setting",
    0x100: "clock setting",
}
"""Bits of `nvmlDeviceGetCurrentClocksEventReasons` that mean a reduced clock under load (NVML documentation)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """State of a GPU at one moment. Unknown values are None.

    The highest clock is the maximum that the driver allows. The driver averages the power over a fraction of a second.
    `held_back_by` has the throttling reasons; it is empty without throttling, or if unknown.
    """

    clock_hz: float | None = None
    highest_clock_hz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    held_back_by: tuple[str, ...] = ()


UNKNOWN_STATE: Final = GpuState()
"""State without any information."""

_SM_CLOCK: Final = ctypes.c_int(1)


@cache
def _library() -> Any:
    """Return the driver's NVML; None without an NVIDIA driver."""
    for name in ("libnvidia-ml.so.1", "nvml.dll"):
        with suppress(OSError):
            library = ctypes.CDLL(name)
            return library if library.nvmlInit_v2() == 0 else None
    return None


def read_state(device: torch.device) -> GpuState:
    """Return the state of a CUDA device; unknown if NVML is missing or the container hides it."""
    library = _library()
    handle = None if library is None else _handle(library, device)
    if handle is None:
        return UNKNOWN_STATE

    def read(function: str, *kind: ctypes.c_int) -> int | None:
        value = ctypes.c_ulonglong()
        call = getattr(library, function, None)
        return value.value if call is not None and call(handle, *kind, ctypes.byref(value)) == 0 else None

    clock, highest = read("nvmlDeviceGetClockInfo", _SM_CLOCK), read("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)
    power, limit = read("nvmlDeviceGetPowerUsage"), read("nvmlDeviceGetEnforcedPowerLimit")
    reasons = read("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # older drivers use another name
        reasons = read("nvmlDeviceGetCurrentClocksThrottleReasons")
    return GpuState(
        clock_hz=None if clock is None else megahertz_to_hertz(clock),
        highest_clock_hz=None if highest is None else megahertz_to_hertz(highest),
        power_watts=None if power is None else power / KILO,
        power_limit_watts=None if limit is None else limit / KILO,
        held_back_by=tuple(dict.fromkeys(word for bit, word in REASONS.items() if (reasons or 0) & bit)),
    )


def _handle(library: Any, device: torch.device) -> ctypes.c_void_p | None:
    """Return NVML's handle of the GPU, found by UUID because CUDA_VISIBLE_DEVICES changes the numbering."""
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    handle = ctypes.c_void_p()
    if uuid is None:
        status = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    else:
        status = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle))
    return handle if status == 0 else None
