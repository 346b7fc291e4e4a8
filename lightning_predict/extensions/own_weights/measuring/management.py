"""Reads the state of a GPU during measurements from NVML (NVIDIA's management library): clock, power, throttling.

In hours of training, but not in a short burst, the power limit or the temperature lowers the clock. Therefore each row
records the state. Example::

    state = read_state(torch.device("cuda"))
    state.clock_hz, state.power_limit_watts, state.held_back_by    # 1.41e9, 400.0, ("power",)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, final

import torch

from lightning_predict.units import megahertz_to_hertz

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

MILLIWATTS_OF_A_WATT: Final = 1000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """State of a GPU at one moment. Unknown values are None.

    Attributes:
        clock_hz: SM clock.
        highest_clock_hz: Maximum clock that the driver allows.
        power_watts: Power draw in watts, averaged by the driver over a fraction of a second.
        power_limit_watts: Power limit in watts.
        held_back_by: Throttling reasons; empty without throttling, or if unknown.
    """

    clock_hz: float | None = None
    highest_clock_hz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    held_back_by: tuple[str, ...] = ()


UNKNOWN_STATE: Final = GpuState()
"""State without any information."""


def read_state(device: torch.device) -> GpuState:
    """Return the state of a CUDA device; unknown if NVML's Python module is missing (`pip install nvidia-ml-py`)."""
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return UNKNOWN_STATE
    try:
        nvml.nvmlInit()
        handle = _handle(nvml, device)
    except nvml.NVMLError:
        return UNKNOWN_STATE

    def read(ask: Callable[[], Any]) -> Any:
        with suppress(nvml.NVMLError, AttributeError):
            return ask()
        return None

    clock = read(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    highest = read(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
    power = read(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = read(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    reasons = read(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if reasons is None:  # older releases use another name
        reasons = read(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return GpuState(
        clock_hz=None if clock is None else megahertz_to_hertz(clock),
        highest_clock_hz=None if highest is None else megahertz_to_hertz(highest),
        power_watts=None if power is None else power / MILLIWATTS_OF_A_WATT,
        power_limit_watts=None if limit is None else limit / MILLIWATTS_OF_A_WATT,
        held_back_by=tuple(dict.fromkeys(word for bit, word in REASONS.items() if (reasons or 0) & bit)),
    )


def _handle(nvml: Any, device: torch.device) -> Any:
    """Return NVML's handle of the GPU, found by UUID because CUDA_VISIBLE_DEVICES changes the numbering."""
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
