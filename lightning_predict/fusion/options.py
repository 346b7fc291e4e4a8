"""Kernels that a job really runs, by a word each: `lp.predict(trace, kernels="compile")`.

A recorded step runs PyTorch's eager kernels. Each option rewrites it as another compiler or library would run it.
`docs/howto/kernels.md` says what each option replaces, and what a word does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.fusion.attention import has_unfused_attention, with_fused_attention
from lightning_predict.fusion.channels_last import image_layouts, in_channels_last
from lightning_predict.fusion.kernels import fused
from lightning_predict.record.data_flow import NO_DATA_FLOW, has_data_flow
from lightning_predict.record.trace import Trace


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOption:
    """Kernels of a compiler or a library.

    Attributes:
        apply: Rewrites an eager step.
        why_not: Returns why the option does not apply to a step; None if it does.
    """

    apply: Callable[[Trace], Trace]
    why_not: Callable[[Trace], str | None]


def why_not_fused(trace: Trace) -> str | None:
    """Return why the point-wise operations of a step cannot be fused; None if they can."""
    if trace.compiled:
        return "the step runs compiled already"
    return None if has_data_flow(trace) else NO_DATA_FLOW


def why_not_channels_last(trace: Trace) -> str | None:
    """Return why images cannot be converted to channels last; None if they can."""
    layouts = image_layouts(trace)
    if not layouts:
        shapes = any(operation.inputs for operation in trace.operations)
        return "the step convolves no images" if shapes else "the recording holds no shapes"
    return "images lie channels last already" if all(layouts) else None


def why_not_sdpa(trace: Trace) -> str | None:
    """Return why attention cannot become one call; None if it can."""
    if any("scaled_dot_product" in operation.name or "flash" in operation.name for operation in trace.operations):
        return "attention is one call already"
    has_softmax = any(operation.name == "aten::_softmax" for operation in trace.operations)
    if has_softmax and not has_data_flow(trace):
        return NO_DATA_FLOW
    has_attention = has_softmax and has_unfused_attention(trace)
    return None if has_attention else "the step holds no attention that is written out"


KERNELS: Final[Mapping[str, KernelOption]] = {
    "sdpa": KernelOption(apply=with_fused_attention, why_not=why_not_sdpa),
    "channels_last": KernelOption(apply=in_channels_last, why_not=why_not_channels_last),
    "compile": KernelOption(apply=fused, why_not=why_not_fused),
    "transformer_engine": KernelOption(apply=partial(fused, by_library=True), why_not=why_not_fused),
}
"""Options by name, in the order in which they are applied."""


def check_kernels(kernels: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of kernels in the order in which they are applied.

    Args:
        kernels: Names, or one text with names separated by commas. `eager` is the default and changes nothing.

    Raises:
        InvalidArgumentError: A name is unknown, or two options fuse the same operations.
    """
    if not isinstance(kernels, str | Sequence):
        raise InvalidArgumentError(
            f"kernels={shown(kernels)} is no list of names; expected some of {', '.join(KERNELS)}."
        )
    names = [name.strip() for name in kernels.split(",")] if isinstance(kernels, str) else list(kernels)
    unknown = [name for name in names if name not in KERNELS and name not in ("", "eager")]
    if unknown:
        raise InvalidArgumentError(
            f"kernels={shown(unknown[0])} is not known; expected eager or some of {', '.join(KERNELS)}."
        )
    if {"compile", "transformer_engine"} <= set(names):
        raise InvalidArgumentError("kernels: compile and transformer_engine fuse the same operations; give one.")
    return tuple(name for name in KERNELS if name in names)


def with_kernels(trace: Trace, kernels: Sequence[str]) -> Trace:
    """Return a step as it runs with other kernels.

    Raises:
        InvalidArgumentError: An option does not apply to the step.
    """
    for name in kernels:
        reason = KERNELS[name].why_not(trace)
        if reason is not None:
            raise InvalidArgumentError(f"kernels={name!r} does not apply: {reason}. Leave it out.")
        trace = KERNELS[name].apply(trace)
    return trace
