"""Makes torch decide for the meta device as it does for CUDA, on machines without CUDA.

Without CUDA, torch turns `torch.autocast("cuda")` and `GradScaler` off. For meta tensors, torch refuses fused and
capturable optimizers. Optimizers and clipping process meta tensors separately, but CUDA tensors together (foreach; see
`torch_releases.py`). `as_on_absent_cuda` makes torch treat meta tensors like CUDA tensors while a step is recorded.
Example::

    with as_on_absent_cuda() as found:
        step()
    trace = found.added_to(trace)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib import import_module
from typing import Any, Final
from weakref import WeakSet

import torch
from torch.utils import checkpoint

from lightning_predict.base.units import bytes_to_gibibytes
from lightning_predict.record.meta_device import autocast_dtype
from lightning_predict.record.patches import Patch, patched_attribute
from lightning_predict.record.tensors import TorchFunction, tensors_in
from lightning_predict.record.trace import Trace


@dataclass
class StepSettings:
    """Settings of a step that its operations do not show, or that are off on a machine without CUDA."""

    has_enabled: bool = False  # Whether the step entered an enabled autocast for CUDA
    # Whether the step entered a disabled autocast that was created before the step. Torch may have disabled this
    # autocast.
    has_disabled_by_torch: bool = False
    has_autocast: bool = False  # Whether the step entered an enabled autocast for any device
    is_float16: bool = False
    scalers: list[Any] = field(default_factory=list)  # GradScalers that torch disabled, enabled while recording
    lost_scaler: bool = False  # Whether a GradScaler stayed disabled on the CPU
    set_to_none: bool | None = None  # Value of `set_to_none` that the step passed to `zero_grad`; None if not passed
    paged: dict[int, int] = field(default_factory=dict)  # Bytes of an optimizer's states in paged memory, by parameter
    has_float32_groups: bool = False  # Whether the step multiplied groups of float32 matrices, such as experts

    def added_to(self, trace: Trace) -> Trace:
        """Return the trace with these settings, and with notes for the user about them."""
        notes = list(trace.notes)
        flags = replace(trace.flags, set_to_none=self.set_to_none)
        if self.has_enabled and trace.device == "cpu":
            flags = replace(flags, autocast_dtype=None)
            notes.append(
                "The step entered an autocast for CUDA, which casts nothing on the CPU: predicted as it ran. Record it "
                "on the meta device for its casts to be counted."
            )
        if self.has_disabled_by_torch:
            notes.append(
                "An autocast for CUDA that the step entered is off: without CUDA, torch turns it off as it is made. "
                "Make it within the step, or say capture(precision=...), for its casts to be counted."
            )
        if self.scalers:
            notes.append("torch turns a GradScaler off without CUDA; it is counted as on, since the step uses float16.")
        if self.lost_scaler:
            notes.append(
                "The step's GradScaler is off without CUDA, so its passes and its wait are missing. Record the step on "
                "the meta device for them to be counted."
            )
        if self.has_float32_groups:
            notes.append(
                "Grouped matmuls (experts) run in float32, one after the other: autocast casts none of them. In models "
                "of 16 bits (bf16-true) they are faster."
            )
        if size := sum(self.paged.values()):
            notes.append(
                f"{bytes_to_gibibytes(size):.2f} GiB of the optimizer's states are paged: CUDA moves them to the host "
                "if memory is short. They are not counted in memory."
            )
        return replace(trace, flags=flags, notes=tuple(notes))


_SETTINGS: Final[ContextVar[StepSettings | None]] = ContextVar("_SETTINGS", default=None)
"""Settings of the step being recorded in this thread."""

_MADE: Final[WeakSet[torch.autocast]] = WeakSet()  # CUDA autocasts created by recorded steps


@contextmanager
def as_on_absent_cuda(more_patches: Iterable[Patch] = ()) -> Iterator[StepSettings]:
    """Let torch treat meta tensors like CUDA tensors, in steps of this thread.

    For meta tensors, optimizers and gradient clipping use CUDA's defaults, and fused and capturable optimizers work.
    Without CUDA, an autocast for CUDA that the step creates stays on. A GradScaler stays on under float16. An autocast
    that was created before the step stays off, because the user may have disabled it; a note says so.

    Yields:
        The settings found so far.
    """
    settings = StepSettings()
    token = _SETTINGS.set(settings)
    try:
        with ExitStack() as patches:
            for owner, name, replacement_of in (*_patches(), *more_patches):
                if hasattr(owner, name):
                    patches.enter_context(patched_attribute(owner, name, replacement_of))
            yield settings
    finally:
        _SETTINGS.reset(token)
        for scaler in settings.scalers:
            scaler._enabled = False


def note_paged_states(parameter: torch.Tensor, size_bytes: int) -> None:
    """Note the bytes of a parameter's states in paged memory, if a step is being recorded."""
    settings = _SETTINGS.get()
    if settings is not None and size_bytes:
        settings.paged[id(parameter)] = size_bytes


def may_lack_casts() -> bool:
    """Return whether a step may have failed because autocast casts no meta tensors.

    With CUDA, where autocasts are not noted, every step that has not used the GPU may have.
    """
    if torch.cuda.is_available():
        return not torch.cuda.is_initialized()
    settings = _SETTINGS.get()
    return settings is not None and settings.has_autocast


def forget_step() -> None:
    """Reset the GradScalers of a step that failed halfway, so that it can run again."""
    settings = _SETTINGS.get()
    for scaler in () if settings is None else settings.scalers:
        scaler._per_optimizer_states.clear()


def _patches() -> Iterator[Patch]:
    """Yield the attributes of torch to replace. Some torch releases lack some attributes."""
    foreach = "_get_foreach_kernels_supported_devices"
    yield import_module("torch.utils._foreach_utils"), foreach, _with_meta
    optimizer = import_module("torch.optim.optimizer")
    yield optimizer, foreach, _with_meta
    yield optimizer, "_get_fused_kernels_supported_devices", _with_meta
    for module in {import_module(kind.__module__) for kind in vars(torch.optim).values() if isinstance(kind, type)}:
        yield module, "_get_capturable_supported_devices", _with_meta
    yield torch.optim.Optimizer, "zero_grad", _noting_zero_grad
    yield torch.nn.Module, "zero_grad", _noting_zero_grad
    yield import_module("torch._meta_registrations"), "_meta_grouped_mm_common", _grouped_in_float32
    if torch.cuda.is_available():
        return
    yield torch.autocast, "__init__", _made_for_cuda
    yield torch.autocast, "__enter__", _entered_for_cuda
    yield checkpoint, "_infer_device_type", _checkpointed_for_cuda
    yield getattr(torch.amp, "GradScaler", None), "scale", _scaled_for_cuda


def _with_meta(devices: Callable[..., list[str]]) -> Callable[..., list[str]]:
    return lambda *args, **kwargs: [*devices(*args, **kwargs), "meta"]


def _grouped_in_float32(plain: TorchFunction) -> TorchFunction:
    """Accept groups of float32 matrices, as CUDA does, which torch's function for meta tensors rejects."""

    @wraps(plain)
    def grouped(left: torch.Tensor, right: torch.Tensor, *args: object, **kwargs: object) -> object:
        if left.dtype is not torch.float32 or right.dtype is not torch.float32:
            return plain(left, right, *args, **kwargs)
        if (settings := _SETTINGS.get()) is not None:
            settings.has_float32_groups = True
        product: torch.Tensor = plain(left.bfloat16(), right.bfloat16(), *args, **kwargs)
        return product.float()

    return grouped


def _noting_zero_grad(plain: Callable[..., None]) -> Callable[..., None]:
    """Store an explicit `set_to_none`, whose default depends on the torch release."""

    @wraps(plain)
    def zero_grad(self: torch.optim.Optimizer, *args: object, **kwargs: object) -> None:
        settings = _SETTINGS.get()
        if settings is not None and (args or "set_to_none" in kwargs):
            settings.set_to_none = bool(args[0] if args else kwargs["set_to_none"])
        plain(self, *args, **kwargs)

    return zero_grad


def _scaled_for_cuda(plain: TorchFunction) -> TorchFunction:
    """Turn on a CUDA GradScaler that torch turned off, for meta tensors under float16."""

    @wraps(plain)
    def scale(self: Any, outputs: object) -> object:
        settings = _SETTINGS.get()
        if settings is not None and settings.is_float16 and not self._enabled and self._device == "cuda":
            first = next(tensors_in(outputs), None)
            if first is not None and first.device.type == "meta":
                if not hasattr(self, "_growth_factor"):  # a scaler that is off has no state
                    self.__dict__.update({**vars(torch.amp.GradScaler("cpu")), "_device": "cuda"})
                self._enabled = True
                settings.scalers.append(self)
            else:
                settings.lost_scaler = True
        return plain(self, outputs)

    return scale


def _made_for_cuda(plain: Callable[..., None]) -> Callable[..., None]:
    @wraps(plain)
    def init(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        is_cuda = device_type in ("cuda", "meta") and _SETTINGS.get() is not None  # a tensor's device may be given
        plain(self, "cuda" if is_cuda else device_type, dtype, enabled and not is_cuda, cache_enabled)
        if is_cuda:
            self._enabled = enabled
            _MADE.add(self)

    return init


def _entered_for_cuda(plain: TorchFunction) -> TorchFunction:
    @wraps(plain)
    def enter(self: torch.autocast) -> object:
        settings = _SETTINGS.get()
        if settings is not None:
            settings.has_autocast |= self._enabled
            settings.is_float16 |= self._enabled and self.fast_dtype is torch.float16
        if settings is not None and self.device == "cuda":
            if self._enabled:
                settings.has_enabled = True
            elif self not in _MADE and autocast_dtype() is None:
                settings.has_disabled_by_torch = True
        return plain(self)

    return enter


def _checkpointed_for_cuda(plain: Callable[..., str]) -> Callable[..., str]:
    """Treat the meta device as CUDA, so that checkpointing re-enters CUDA autocast for a recomputation."""

    @wraps(plain)
    def infer(*args: object) -> str:
        device = plain(*args)
        return "cuda" if device == "meta" and _SETTINGS.get() is not None else device

    return infer
