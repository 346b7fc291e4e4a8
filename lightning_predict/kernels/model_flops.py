"""FLOPs and tokens of a step, for its model FLOP utilisation (MFU) and its throughput.

The count includes matrix products, convolutions, attention and recurrent layers, by their textbook algorithms; a
multiply-add counts as two FLOPs. Activations that the backward pass recomputes do not count: a training step has at
most three times the FLOPs of its forward pass (Chowdhery et al., "PaLM", JMLR 2023, appendix B).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_predict.kernels.measured_scaling import WorkTimes
from lightning_predict.kernels.memory_bound import LOOK_UP_CALLS
from lightning_predict.kernels.operations import BACKWARD_MATMULS, OperationShape, operation_spec
from lightning_predict.record.trace import Trace

MATMULS: Final = ("linear", "bmm", "attention", "conv", "lstm", "gru", "rnn")  # Parts of names whose FLOPs count


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Work of a recorded step on one process; None for unknown values."""

    flops: float | None = None
    dtype: str | None = None
    tokens: int | None = None


def step_work(kinds: Sequence[WorkTimes], shares: Sequence[float], trace: Trace) -> StepWork:
    """Count the FLOPs and tokens of a step."""
    by_dtype: defaultdict[str, float] = defaultdict(float)
    flops = 0.0
    for work, part in zip(kinds, shares, strict=True):
        forward, total = 0.0, 0.0
        for (shape, phase), count in _counted(work).items():
            own = count * _flops(shape)
            total += own
            forward += own if phase == "forward" else 0.0
            by_dtype[shape.dtype] += part * own
        flops += part * (min(total, (1 + BACKWARD_MATMULS) * forward) if forward else total)
    tokens = _tokens(trace)
    if not flops:
        return StepWork(tokens=tokens)
    return StepWork(flops=flops, dtype=max(by_dtype, key=by_dtype.__getitem__), tokens=tokens)


def _counted(work: WorkTimes) -> Counter[tuple[OperationShape, str]]:
    """Count the operations in `MATMULS` by shape and phase, so that each distinct shape is computed once."""
    counts = Counter(
        [(shape, phase) for item, phase in zip(work.items, work.phases, strict=True) for shape in item.shapes]
    )
    products = {name for name in {shape.operation for shape, _ in counts} if any(part in name for part in MATMULS)}
    return Counter({key: count for key, count in counts.items() if key[0].operation in products})


def _flops(shape: OperationShape) -> float:
    columns = {name: np.array([value], dtype=np.float64) for name, value in shape.parameters.items()}
    return float(np.asarray(operation_spec(shape.operation).flops(columns)).ravel()[0])


def _tokens(trace: Trace) -> int | None:
    """Return the tokens of a step: the largest number of indices that an embedding looks up; None without embedding."""
    counts = [
        operation.inputs[1].elements
        for operation in trace.operations
        if operation.name in LOOK_UP_CALLS and operation.phase == "forward" and len(operation.inputs) > 1
        if len(operation.inputs[1].shape) == 2 and operation.inputs[1].dtype == "int64"
    ]
    return trace.batches * max(counts) if counts else None
