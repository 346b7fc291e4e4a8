"""Change: pad odd sizes. Tensor cores need rows aligned to 16 bytes, which a vocabulary of 50,257 is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_predict.advice.change import Change, of_steps
from lightning_predict.hardware.records import Gpu
from lightning_predict.record.trace import TensorInfo, Trace

MULTIPLE: Final = 64
"""Sizes of parameters are padded to a multiple of this number: 128 bytes in 16 bits, a cache line."""

MIN_SIDE: Final = 256
"""Minimum size to pad. Smaller odd sizes are usually classes or channels of data."""

ALIGNED: Final = 8
"""Required alignment, as a number of 16-bit elements."""


def _odd_sides(trace: Trace) -> dict[int, int]:
    sides = {side for one in trace.parameters for side in one.shape if side >= MIN_SIDE and side % ALIGNED}
    return {side: -(-side // MULTIPLE) * MULTIPLE for side in sides}


def padded(trace: Trace) -> Trace:
    """Return the step with padded sizes of parameters, in every tensor that has such a size."""
    sides = _odd_sides(trace)

    def grown(tensor: TensorInfo) -> TensorInfo:
        shape = tuple(sides.get(side, side) for side in tensor.shape)
        return tensor if shape == tensor.shape else replace(tensor, shape=shape)

    return replace(
        trace,
        operations=tuple(
            replace(one, inputs=tuple(map(grown, one.inputs)), outputs=tuple(map(grown, one.outputs)))
            for one in trace.operations
        ),
        parameters=tuple(
            replace(one, shape=tuple(sides.get(each, each) for each in one.shape)) for one in trace.parameters
        ),
    )


def _why_not(trace: Trace, gpu: Gpu | None) -> str | None:
    del gpu
    if not trace.parameters:
        return "the recording does not hold the model's parameters"
    return None if _odd_sides(trace) else f"no parameter has a long side that is no multiple of {ALIGNED}"


PADDING: Final = Change(
    name="padding",
    words=f"pad odd sizes (vocabulary, classes) to a multiple of {MULTIPLE}",
    note="a few unused rows",
    apply=of_steps(padded),
    why_not=_why_not,
    slot="padding",
    kind="padding",
)
