"""`try_change`: runs a step with and without a change on this machine, and measures the gain.

The user passes a function that creates a step from a batch size. The function creates its own model and data, so a
training run is not affected. The original and the changed step alternate every few steps, so a slowdown of the machine
affects both. Example::

    def make_step(batch_size):
        model, rows = Model(), torch.randn(batch_size, 512)
        return lambda: model(rows).sum().backward()


    print(try_change("bf16-mixed", make_step, batch_size=64))   # bf16-mixed: 1.43x as fast (1.38-1.47) ...

A function with a parameter `change` gets the name of the change (None for the original step), and applies the change
itself. Any change can be tested in this way, such as a loader with more workers.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lightning_predict.advice.changes import change_named
from lightning_predict.base.errors import CaptureError, InvalidArgumentError
from lightning_predict.base.interval import Interval
from lightning_predict.reports.format import duration

if TYPE_CHECKING:
    import torch
    from torch import nn

MakeStep = Callable[..., Callable[[], object]]  # Creates a step from a batch size, and perhaps a `change`'s name

ALTERNATIONS: Final = 4
"""Number of times that each version of the step runs in alternation. The gain's interval is the range over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMeasurement:
    """Measured gain of a change."""

    name: str
    gain: Interval[float]
    before_seconds: float
    after_seconds: float
    steps: int
    device: str

    def __str__(self) -> str:
        ends = f"{self.gain.low:.2f}–{self.gain.high:.2f}"  # noqa: RUF001
        return (
            f"{self.name}: {self.gain.middle:.2f}× as fast ({ends}) on this {self.device.upper()}: "  # noqa: RUF001
            f"{duration(self.before_seconds)} a step before, {duration(self.after_seconds)} after, {self.steps} steps "
            "of each."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all values as JSON values."""
        return {
            "name": self.name,
            "gain": {"low": self.gain.low, "middle": self.gain.middle, "high": self.gain.high},
            "step_seconds_before": self.before_seconds,
            "step_seconds_after": self.after_seconds,
            "steps": self.steps,
            "device": self.device,
        }


def try_change(
    name: str,
    make_step: MakeStep,
    *,
    batch_size: int,
    steps: int = 20,
    warmup_steps: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> ChangeMeasurement:
    """Measure the gain of a change on this machine.

    Args:
        name: Name of the change, as in `lp.advise`.
        make_step: Function that creates a step from a batch size, on this machine's device.
        batch_size: Number of samples of the original step.
        steps: Number of timed steps of each version.
        warmup_steps: Number of untimed steps of each version at the start, in which torch.compile compiles.
        clock: Monotonic clock, in seconds.

    Raises:
        InvalidArgumentError: The change is unknown or cannot be applied from outside the step, or there are fewer than
            4 steps.
        CaptureError: The step calls no module, or runs on the meta device.
    """
    import torch

    if steps < ALTERNATIONS:
        raise InvalidArgumentError(f"steps={steps} is too few to take turns; expected {ALTERNATIONS} or more.")
    change_named(name)
    makes_it = "change" in inspect.signature(make_step).parameters
    if not makes_it and name not in _APPLIERS:
        raise InvalidArgumentError(
            f"change={name!r} cannot be made to a step from outside; give the function a parameter `change`, and make "
            f"it there. Without one can be tried: {', '.join(_APPLIERS)}."
        )
    factor = 2 if name == "batch_size" else 1
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        if makes_it:
            before, after = (_RunnableStep(make_step(batch_size, change=change)) for change in (None, name))
        else:
            before, after = _RunnableStep(make_step(batch_size)), _RunnableStep(make_step(factor * batch_size))
            after.step = _APPLIERS[name](after)
        for side in (before, after):
            for _ in range(warmup_steps):
                side.step()
        turns = [
            tuple(_timed(side, count, clock) for side in (before, after))
            for count in (steps // ALTERNATIONS + (turn < steps % ALTERNATIONS) for turn in range(ALTERNATIONS))
        ]
    gains = sorted(factor * one / other for one, other in turns)
    return ChangeMeasurement(
        name=name,
        gain=Interval(gains[0], statistics.median(gains), gains[-1]),
        before_seconds=statistics.median(seconds for seconds, _ in turns),
        after_seconds=statistics.median(other for _, other in turns),
        steps=steps,
        device=before.device.type,
    )


def _timed(side: _RunnableStep, steps: int, clock: Callable[[], float]) -> float:
    """Return the seconds per step, including the time until the device has finished."""
    side.wait()
    begin = clock()
    for _ in range(steps):
        side.step()
    side.wait()
    return (clock() - begin) / steps


class _RunnableStep:
    """A step with its modules and optimizers, on a real device."""

    def __init__(self, step: Callable[[], object]) -> None:
        import torch

        from lightning_predict.record.hooks import ModuleWatch, OptimizerWatch
        from lightning_predict.record.waiting import wait_for

        self.step: Callable[[], object] = step
        modules, updates = ModuleWatch(), OptimizerWatch()
        modules.open()
        updates.open()
        try:
            step()
        finally:
            updates.close()
            modules.close()
        self.modules: Sequence[nn.Module] = modules.roots
        self.optimizers: Sequence[torch.optim.Optimizer] = updates.optimizers
        if not self.modules:
            raise CaptureError("the step calls no module, so that there is nothing to make a change to")
        here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.device = next((parameter.device for module in self.modules for parameter in module.parameters()), here)
        if self.device.type == "meta":
            raise CaptureError(
                "the step runs on the meta device, which takes no time; make its tensors on this machine"
            )
        self.wait: Callable[[], object] = wait_for(self.device) or (lambda: None)


# --- Functions that apply changes


def _autocast(dtype: str, side: _RunnableStep) -> Callable[[], object]:
    import torch

    step = side.step

    def run() -> object:
        with torch.autocast(side.device.type, dtype=getattr(torch, dtype)):
            return step()

    return run


def _in_dtype(dtype: str, side: _RunnableStep) -> Callable[[], object]:
    """Convert the model and its floating-point inputs to a dtype."""
    import torch

    to = getattr(torch, dtype)

    def cast(value: Any) -> Any:
        return value.to(to) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def entering(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return tuple(map(cast, args)), {name: cast(argument) for name, argument in kwargs.items()}

    for module in side.modules:
        module.to(to)
        module.register_forward_pre_hook(entering, with_kwargs=True)
    _forget_state(side)
    return side.step


def _tf32(side: _RunnableStep) -> Callable[[], object]:
    import torch

    step = side.step

    def run() -> object:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return step()
        finally:
            torch.set_float32_matmul_precision(before)

    return run


def _channels_last(side: _RunnableStep) -> Callable[[], object]:
    """Convert the filters to channels last. The first convolution of a step then converts the images."""
    import torch

    for module in side.modules:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return side.step


def _compiled(mode: str | None, side: _RunnableStep) -> Callable[[], object]:
    for module in side.modules:
        module.compile(mode=mode)
    return side.step


def _fused(side: _RunnableStep) -> Callable[[], object]:
    for optimizer in side.optimizers:
        if any("fused" not in group for group in optimizer.param_groups):
            raise CaptureError(f"{type(optimizer).__name__} has no fused update")
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
    if not side.optimizers:
        raise CaptureError("the step calls no optimizer")
    _forget_state(side)
    return side.step


def _forget_state(side: _RunnableStep) -> None:
    for optimizer in side.optimizers:
        optimizer.state.clear()


_APPLIERS: Final[Mapping[str, Callable[[_RunnableStep], Callable[[], object]]]] = {
    "bf16-mixed": partial(_autocast, "bfloat16"),
    "16-mixed": partial(_autocast, "float16"),
    "bf16-true": partial(_in_dtype, "bfloat16"),
    "half": partial(_in_dtype, "float16"),
    "tf32": _tf32,
    "channels_last": _channels_last,
    "compile": partial(_compiled, None),
    "cuda_graphs": partial(_compiled, "reduce-overhead"),
    "fused_optimizer": _fused,
    "batch_size": lambda side: side.step,
}
"""Functions that apply a change to a step from outside, by change name."""
