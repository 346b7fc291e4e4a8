"""Kernels that a job really runs, by a word each: `lp.predict(trace, kernels="compile")`.

A recorded step runs PyTorch's eager kernels. Each option rewrites it as another compiler or library would run it.
`docs/howto/kernels.md` says what each option replaces, and what a word does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from lightning_predict.base.checked import shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.fusion.attention import has_unfused_attention, with_attention_kernel, with_fused_attention
from lightning_predict.fusion.channels_last import image_layouts, in_channels_last
from lightning_predict.fusion.kernels import fused
from lightning_predict.fusion.liger import has_row_norms, places_of_liger, with_liger
from lightning_predict.fusion.losses import has_chunkable_loss, has_loss_over_words, with_chunked_loss, with_eager_loss
from lightning_predict.hardware.records import AMD, Gpu
from lightning_predict.kernels.memory_bound import COMPILED_CALL
from lightning_predict.record.data_flow import NO_DATA_FLOW, has_data_flow
from lightning_predict.record.torch_releases import release_of
from lightning_predict.record.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOption:
    """Kernels of a compiler or a library."""

    apply: Callable[[Trace], Trace]  # Rewrites an eager step
    why_not: Callable[[Trace], str | None]  # Returns why the option does not apply to a step; None if it does
    slot: str  # Options of one slot replace the same operations, so only one of them can run
    since: tuple[int, int] = (0, 0)  # First release of torch in which it runs
    needs: str = "every GPU"
    runs_on: Callable[[Gpu], bool] = lambda _: True

    def too_old(self, trace: Trace) -> str | None:
        """Return why a step's release of torch is too old; None if it is new enough or unknown."""
        if (release_of(trace.software) or self.since) >= self.since:
            return None
        return f"needs torch {'.'.join(map(str, self.since))}; the step runs under torch {trace.software['torch']}"


def why_not_fused(trace: Trace) -> str | None:
    """Return why the point-wise operations of a step cannot be fused; None if they can."""
    if trace.compiled or COMPILED_CALL in {operation.name for operation in trace.operations}:
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


def _why_no_loss(trace: Trace, *, has_loss: Callable[[Trace], bool]) -> str | None:
    if not has_data_flow(trace):
        return NO_DATA_FLOW
    return None if has_loss(trace) else "the step has no output layer whose logits only a cross-entropy reads"


def _why_no_library(trace: Trace, *, replaced: Callable[[Trace], object], words: str) -> str | None:
    return why_not_fused(trace) or (None if replaced(trace) else f"the step has no {words}")


def _why_not_attention(trace: Trace) -> str | None:
    if trace.has_measured_kernels:
        return "the step's own kernels were measured"
    is_named = with_attention_kernel(trace, "any").operations != trace.operations
    return None if is_named else "the step holds no attention in 16 bits without a bias"


def why_not_graphs(trace: Trace) -> str | None:
    """Return why the launches of a step cannot be replayed as a CUDA graph; None if they can."""
    calls = [kernel.launch_start_seconds for kernel in trace.kernels if kernel.launch_start_seconds is not None]
    is_graphed = len(calls) > 1 and len(set(calls)) * 2 < len(calls)
    return "the step runs as CUDA graphs already" if is_graphed else None


def without_launches(trace: Trace) -> Trace:
    """Return the step without measured times, which include the launches that CUDA graphs eliminate."""
    return replace(trace, step_seconds=(), host_seconds_unprofiled=(), running_step_seconds=None)


def _has_triton(gpu: Gpu) -> bool:
    return gpu.generation.has_tensor_cores


def _since_ampere(gpu: Gpu) -> bool:
    return gpu.vendor == AMD or gpu.compute_capability >= (8, 0)


_TRITON: Final = "tensor cores (Volta and later)"
_AMPERE: Final = "Ampere and later"

GRAPHS: Final = "cuda_graphs"
EAGER_LOSS: Final = "eager_loss"
FUSING: Final = "point-wise"  # Slot of options that fuse point-wise operations

KERNELS: Final[Mapping[str, KernelOption]] = {  # Options by name, in the order in which they are applied
    "sdpa": KernelOption(apply=with_fused_attention, why_not=why_not_sdpa, slot="sdpa", since=(2, 0)),
    **{
        name: KernelOption(
            apply=partial(with_attention_kernel, kernel=name),
            why_not=_why_not_attention,
            slot="attention",
            since=since,
            needs=needs,
            runs_on=runs_on,
        )
        for name, since, needs, runs_on in (
            ("flash_attention_2", (1, 12), _AMPERE, _since_ampere),  # as the package's pages ask
            ("flash_attention_3", (2, 1), "Hopper", lambda gpu: gpu.generation.chip == "hopper"),  # CUDA 12
            ("cudnn_attention", (2, 5), _AMPERE, lambda gpu: gpu.vendor != AMD and _since_ampere(gpu)),
        )
    },
    "channels_last": KernelOption(apply=in_channels_last, why_not=why_not_channels_last, slot="layout"),
    "chunked_loss": KernelOption(
        apply=with_chunked_loss, why_not=partial(_why_no_loss, has_loss=has_chunkable_loss), slot="loss"
    ),
    EAGER_LOSS: KernelOption(
        apply=with_eager_loss, why_not=partial(_why_no_loss, has_loss=has_loss_over_words), slot="loss"
    ),
    "liger": KernelOption(
        apply=with_liger,
        why_not=partial(
            _why_no_library,
            replaced=places_of_liger,
            words="layer or RMS norm, rotary positions, gated activation or loss over words, which Liger replaces",
        ),
        slot=FUSING,
        since=(2, 1),
        needs=_TRITON,
        runs_on=_has_triton,
    ),
    **{
        name: KernelOption(
            apply=partial(fused, by_blocks=by_blocks),
            why_not=why_not_fused,
            slot=FUSING,
            since=(2, 0),
            needs=_TRITON,
            runs_on=_has_triton,
        )
        for name, by_blocks in (("compile", False), ("compile-blocks", True))
    },
    "transformer_engine": KernelOption(
        apply=partial(fused, by_library=True),
        why_not=partial(_why_no_library, replaced=has_row_norms, words="layer or RMS norm, as transformers have"),
        slot=FUSING,
        since=(2, 0),
        needs=_AMPERE,
        runs_on=_since_ampere,
    ),
    GRAPHS: KernelOption(apply=without_launches, why_not=why_not_graphs, slot="launches", since=(1, 10)),
}


def check_kernels(kernels: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of kernels in the order in which they are applied.

    Args:
        kernels: Names, or one text with names separated by commas. `eager` is the default and changes nothing.
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
    ordered = tuple(name for name in KERNELS if name in names)
    for name in ordered:
        same = [other for other in ordered if KERNELS[other].slot == KERNELS[name].slot]
        if len(same) > 1:
            raise InvalidArgumentError(f"kernels: {' and '.join(same)} replace the same operations; give one.")
    fusing = [name for name, option in KERNELS.items() if option.slot == FUSING]
    if EAGER_LOSS in ordered and not set(ordered).intersection(fusing):
        raise InvalidArgumentError(
            f"kernels={EAGER_LOSS!r} keeps the loss out of fused kernels, and there are none; add one of "
            f"{', '.join(fusing)}, or leave it out."
        )
    return ordered


def missing_on(gpu: Gpu, kernels: Sequence[str]) -> tuple[str, ...]:
    """Return the kernels that a GPU does not have."""
    return tuple(name for name in kernels if not KERNELS[name].runs_on(gpu))


def step_on(gpu: Gpu, trace: Trace, kernels: Sequence[str]) -> Trace:
    """Return a step as it runs with those of the kernels that a GPU has."""
    missing = missing_on(gpu, kernels)
    return with_kernels(trace, [name for name in kernels if name not in missing])


def with_kernels(trace: Trace, kernels: Sequence[str], *, where_they_apply: bool = False) -> Trace:
    """Return a step as it runs with other kernels; kinds of step to which an option does not apply are unchanged.

    Args:
        trace: Eager step.
        kernels: Names of options in their order.
        where_they_apply: Leave out options that apply to no kind of step, instead of an error.
    """
    for name in kernels:
        option = KERNELS[name]
        if old := option.too_old(trace):
            raise InvalidArgumentError(f"kernels={name!r} {old}. Leave it out, or give release= a later one.")
        reasons = [option.why_not(kind.trace) for kind in trace.kinds]
        if all(reasons) and not where_they_apply:
            raise InvalidArgumentError(f"kernels={name!r} does not apply: {reasons[0]}. Leave it out.")
        trace = trace.changed(partial(_applied, option))
    return trace


def _applied(option: KernelOption, trace: Trace) -> Trace:
    return trace if option.why_not(trace) else option.apply(trace)
