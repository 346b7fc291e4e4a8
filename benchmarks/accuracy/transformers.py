"""Predict the cases of `transformers_fp32.csv`, recorded on the meta device, next to the predictions of the peers.

Columns read: gpu, model, mode, seq, batch, variant, iteration_ms, and `<peer>_predicted_ms` for each peer. Example::

    results = evaluate_transformers(Path("validation/transformers_fp32.csv"))
    mean_error(result for result in results if result.case.is_scored)
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, final, get_args

from joblib import Parallel, delayed

from benchmarks.accuracy.workloads.published import PUBLISHED_MODELS, Mode, published_trace
from lightning_predict.base.checked import Checked, read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.fusion import fused
from lightning_predict.prediction import predict

TRANSFORMERS_TABLE: Final = "transformers_fp32.csv"

Case = TypeVar("Case")
Result = TypeVar("Result")


def evaluate_in_groups(
    cases: Sequence[Case],
    *,
    key: Callable[[Case], Hashable],
    evaluate: Callable[[Sequence[Case]], Sequence[Result]],
    jobs: int,
) -> tuple[Result, ...]:
    """Results in the order of the cases.

    Args:
        cases: What to evaluate.
        key: Cases with equal keys are evaluated by one call.
        evaluate: One result for each of its cases, in their order.
        jobs: Calls at a time, each in a process of its own where there is more than one.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[key(case)].append(index)
    calls = (delayed(evaluate)([cases[index] for index in indices]) for indices in groups.values())
    parts = Parallel(n_jobs=jobs)(calls)
    results = {
        index: result
        for indices, part in zip(groups.values(), parts, strict=True)
        for index, result in zip(indices, part, strict=True)
    }
    return tuple(results[index] for index in range(len(cases)))


PEERS: Final[Mapping[str, str]] = {
    "NeuSight": "neusight_predicted_ms",
    "Habitat-style": "habitat_predicted_ms",
    "roofline": "roofline_predicted_ms",
}
"""Columns of the predictions of other tools, by name."""

THROTTLED_GPUS: Final = frozenset({"P4"})
"""Cards that could not hold their clocks when they were timed: shown apart."""

SPARSE_MODELS: Final = frozenset({"SwitchTransformer-XL-4"})
"""Models whose work depends on how tokens are routed, and whose sizes are not published: shown apart."""

_COLUMNS: Final = ("gpu", "model", "mode", "seq", "batch", "variant", "iteration_ms", *PEERS.values())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerCase:
    """One row of the table.

    Attributes:
        gpu: Our name of the GPU.
        model: A key of `PUBLISHED_MODELS`.
        mode: `inference` or `training`.
        length: Tokens of a sequence.
        batch: Sequences.
        variant: Empty for eager execution, `fusion` for compiled.
        measured_seconds: One iteration.
        peers: Seconds that each peer predicted; without those that said nothing.
    """

    gpu: str
    model: str
    mode: Mode
    length: int
    batch: int
    variant: str
    measured_seconds: float
    peers: Mapping[str, float]

    @property
    def is_scored(self) -> bool:
        """True for a dense model, eager, on a card that held its clocks."""
        return not self.variant and self.gpu not in THROTTLED_GPUS and self.model not in SPARSE_MODELS


@final
@dataclass(frozen=True, slots=True)
class TransformerResult:
    """A case and its prediction, with the 90 % interval."""

    case: TransformerCase
    predicted_seconds: float
    low_seconds: float
    high_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_seconds / self.case.measured_seconds - 1

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured time."""
        return self.low_seconds <= self.case.measured_seconds <= self.high_seconds

    @property
    def width(self) -> float:
        """High end of the interval over its low end."""
        return self.high_seconds / self.low_seconds

    def peer_error(self, peer: str) -> float | None:
        """Error of a peer on this case; None if it said nothing."""
        seconds = self.case.peers.get(peer)
        return None if seconds is None else seconds / self.case.measured_seconds - 1


def read_transformer_cases(path: Path) -> tuple[TransformerCase, ...]:
    """Read the rows of the table, in its order.

    Raises:
        MeasurementTableError: A missing column, an unknown model or mode, or a value that is not a positive number.
        UnknownGpuError: A GPU that the catalogue does not hold.
    """
    return tuple(map(_case, read_csv(path, MeasurementTableError, columns=_COLUMNS)))


def evaluate_transformers(path: Path, *, weights: Path | None = None, jobs: int = 2) -> tuple[TransformerResult, ...]:
    """Predict each row, `jobs` iterations at a time; errors as for `read_transformer_cases` and `predict`."""
    return evaluate_in_groups(
        read_transformer_cases(path),
        key=lambda case: (case.model, case.mode, case.length, case.batch, case.variant),
        evaluate=partial(_predicted, weights=weights),
        jobs=jobs,
    )


def _predicted(cases: Sequence[TransformerCase], weights: Path | None) -> list[TransformerResult]:
    """Results of rows that ran the same iteration, which is recorded once."""
    first = cases[0]
    trace = published_trace(first.model, mode=first.mode, length=first.length, batch=first.batch)
    if first.variant:
        trace = fused(trace)
    names = list(dict.fromkeys(case.gpu for case in cases))
    predictions = predict(trace, names, weights=None if weights is None else str(weights))
    results = []
    for case in cases:
        got = predictions[case.gpu]
        seconds = (got.iteration_seconds, got.iteration_seconds_low, got.iteration_seconds_high)
        results.append(TransformerResult(case, *seconds))
    return results


def mean_error(results: Iterable[TransformerResult]) -> float:
    """Mean absolute error; nan for no results."""
    errors = [abs(result.error) for result in results]
    return statistics.fmean(errors) if errors else float("nan")


def _case(row: Checked) -> TransformerCase:
    def number(column: str) -> float:
        return row.member(column).parsed().positive()

    peers = {
        peer: milliseconds_to_seconds(number(column)) for peer, column in PEERS.items() if row.member(column).value
    }
    return TransformerCase(
        gpu=find_gpu(row.member("gpu").text()).name,
        model=row.member("model").choice(tuple(PUBLISHED_MODELS)),
        mode=row.member("mode").choice(get_args(Mode)),
        length=int(number("seq")),
        batch=int(number("batch")),
        variant=row.member("variant").text(),
        measured_seconds=milliseconds_to_seconds(number("iteration_ms")),
        peers=peers,
    )
