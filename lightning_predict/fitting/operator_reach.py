"""What the predictions of single operations should reach on problems that no fit saw, and whether they do.

Every line is of the worst GPU that it is over. Example::

    print(reach_table(operator_goals(scores, read_manifest(BUNDLED))))
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.fitting.evaluation_reach import Goal
from lightning_predict.fitting.scores import Score
from lightning_predict.weights.manifest import HeldOutError, Manifest, file_name
from lightning_predict.weights.records import BASE

LEAST_COVERAGE, MOST_COVERAGE = 0.88, 0.93
"""Share of the measurements that 90 % intervals should hold: fewer is too bold, more says too little."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A mean error that operations should not exceed on any of some GPUs with weights of their own.

    Attributes:
        operations: Operations.
        dtype: dtype.
        limit: The error.
        gpus: GPUs that it is for; None is for all that no other line names.
        called: Of whole calls, the launch with them (`launches.py`), instead of the device's time.
    """

    operations: tuple[str, ...]
    dtype: str
    limit: float
    gpus: tuple[str, ...] | None = None
    called: bool = False


_PRODUCTS: Final = ("linear", "bmm")
_DATA_CENTRE_BLACKWELL: Final = ("B200-SXM-180GB", "B300-SXM-288GB", "GB200", "GB300")
_VECTORS: Final = tuple(
    "add add_scalar mul mul_scalar div div_scalar pow pow_scalar relu gelu tanh softmax layer_norm".split()
)

REACHES: Final = (
    Reach(operations=("linear",), dtype="bfloat16", limit=0.05),
    Reach(operations=("linear",), dtype="bfloat16", limit=0.06, gpus=("B200-SXM-180GB", "GB200")),
    Reach(operations=("linear",), dtype="bfloat16", limit=0.07, gpus=("L40S",)),
    Reach(operations=_PRODUCTS, dtype="float32", limit=0.08),
    Reach(operations=_PRODUCTS, dtype="float32", limit=0.12, gpus=("P4", "T4", "L4")),
    Reach(operations=("attention",), dtype="bfloat16", limit=0.05),
    Reach(operations=("attention",), dtype="bfloat16", limit=0.10, gpus=_DATA_CENTRE_BLACKWELL),
    Reach(operations=("conv2d",), dtype="float32", limit=0.11),
    Reach(operations=("conv2d",), dtype="float32", limit=0.15, gpus=("P100-PCIe-16GB",)),
    Reach(operations=("conv2d",), dtype="float32", limit=0.11, called=True),
    Reach(operations=("conv2d",), dtype="float32", limit=0.15, gpus=("P100-PCIe-16GB",), called=True),
    Reach(operations=_VECTORS, dtype="float32", limit=0.08),
)
"""Add a line by adding a row. Cards that throttle, and whose bandwidth or algorithms scatter, are granted more."""

LEFT_OUT: Final[Mapping[tuple[str, ...], tuple[str, tuple[str, ...]]]] = {
    ("linear",): ("bfloat16", ("A100-SXM-80GB", "B200-SXM-180GB", "H200-SXM-141GB", "L40S", "RTX-PRO-6000-Server")),
    _PRODUCTS: ("float32", ("H100-SXM-80GB", "L4", "V100-PCIe-32GB")),
}
"""GPUs that are looked at when they are left out, by operations."""


def operator_goals(scores: Sequence[Score], manifest: Manifest | None) -> tuple[Goal, ...]:
    """The goals that there are scores for.

    Args:
        scores: Of the weights, with own weights where the GPU has some.
        manifest: What was found in training on GPUs that were left out; None leaves that out.
    """
    own = [score for score in scores if score.own_weights]
    goals = [goal for reach in REACHES for goal in _reached(reach, own)]
    entry = None if manifest is None else manifest.files.get(file_name(BASE))
    return (*goals, *_unseen({} if entry is None else entry.held_out_error), *_intervals(own))


def _reached(reach: Reach, scores: Sequence[Score]) -> Iterator[Goal]:
    """The worst GPU of a line."""
    elsewhere = {
        gpu
        for other in REACHES
        if (other.operations, other.dtype, other.called) == (reach.operations, reach.dtype, reach.called)
        for gpu in other.gpus or ()
    }
    known = [
        (error, score)
        for score in scores
        if score.operation in reach.operations
        and score.dtype == reach.dtype
        and (score.gpu in reach.gpus if reach.gpus is not None else score.gpu not in elsewhere)
        and (error := score.called if reach.called else score.mean) is not None
    ]
    if known:
        error, worst = max(known, key=lambda pair: pair[0])
        what = f"{worst.operation} {worst.dtype}, mean error{' of whole calls' if reach.called else ''}, {worst.gpu}"
        others = f", the worst of {len(known)}" if len(known) > 1 else ""
        yield Goal(what=what + others, cases=sum(score.rows for _, score in known), reached=error, reach=reach.limit)


def _unseen(errors: Mapping[str, HeldOutError]) -> Iterator[Goal]:
    """Medians of GPUs that were left out: on average for 16-bit products, the worst for all."""
    for operations, (dtype, gpus) in LEFT_OUT.items():
        found = {
            f"{operation} {dtype}, {gpu}": errors[f"{operation}/{dtype}/{gpu}"]
            for operation in operations
            for gpu in gpus
            if f"{operation}/{dtype}/{gpu}" in errors
        }
        if not found:
            continue
        cases = sum(error.rows for error in found.values())
        medians = {name: error.median for name, error in found.items()}
        if dtype == "bfloat16":
            mean = statistics.fmean(medians.values())
            what = f"{' and '.join(operations)} {dtype}, mean of {len(found)} left-out GPUs' medians"
            yield Goal(what=what, cases=cases, reached=mean, reach=0.12)
        worst = max(medians, key=lambda name: medians[name])
        yield Goal(what=f"{worst}, left out, median error", cases=cases, reached=medians[worst], reach=0.20)


def _intervals(scores: Sequence[Score]) -> Iterator[Goal]:
    rows = sum(score.rows for score in scores)
    if rows:
        held = sum(score.coverage * score.rows for score in scores) / rows
        what = "measurements in the 90 % interval, own weights"
        yield Goal(what=what, cases=rows, reached=held, reach=LEAST_COVERAGE, is_error=False)
        yield Goal(what=what, cases=rows, reached=held, reach=MOST_COVERAGE)
