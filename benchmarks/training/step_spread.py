"""Fit how wide intervals of whole steps are: `python -m benchmarks.training.step_spread whole_steps.json --data DATA`.

The cases are those of accuracy tables whose device decides, with their operations' own intervals. log(measured /
predicted) is the sum of the logarithms of factors by kind of work, each weighted by its share of the step, and of
effects of the GPU, of the source and of the model. All are normal with mean 0; the cases tell their deviations (EM of a
linear mixed model). The deviations of the GPU's and the source's effect are what all operations of a step share. The
factor on the operations' own half width is the least that holds nine in ten cases. The file ships as
`weights/files/whole_steps.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np

import lightning_predict as lp
from benchmarks.accuracy.case import Case
from benchmarks.accuracy.score import recorded
from benchmarks.accuracy.tables import READERS
from lightning_predict.base.interval import Interval
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.measured_scaling import WorkTimes, predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Array
from lightning_predict.own_weights.training.tuning import weighted_quantile
from lightning_predict.record.torch_releases import for_torch_release
from lightning_predict.timeline.step_prediction import predict_steps
from lightning_predict.uncertainty import UNCALIBRATED, StepSpread

TABLES: Final = ("transformers", "benchmarks", "timm", "torchvision", "milabench", "lin", "kernel-bench")
MODULES: Final = "kernel-bench"
"""Table of modules of a few operations, which err as these do."""

HOST_SHARE: Final = 0.6
"""A step counts as bound by the device if a median host needs less than this share of the device's time: then even a
host 1.7 times as slow, as slow as one host in ten, is not the bottleneck."""

KINDS: Final[Sequence[tuple[str, str]]] = (
    ("convolutions", r"conv"),
    ("attention", r"attention"),
    ("recurrent", r"lstm|gru|rnn"),
    ("products", r"linear|bmm|gemm"),
    ("norms", r"norm|softmax"),
)
"""Kinds of work by what an operation's name holds, the first that fits; all else moves memory."""

DTYPE_CLASSES: Final[Mapping[str, str]] = {"float16": "16-bit", "bfloat16": "16-bit"}

FACTOR_DEVIATION: Final = 0.15
"""Deviation of the logarithm of a factor before any case was seen: an assumption."""

LEAST_DEVIATION: Final = 0.02
"""Deviations are at least that of two runs of one program."""

TABLE_CASES: Final = 200
"""Cases above which a larger table counts no more."""

ROUNDS: Final = 40
"""Rounds of EM; deviations change by less than 1 % in the last ten."""

STANDARD_DEVIATIONS: Final = 1.645
"""Standard deviations of a normal distribution that hold nine in ten."""

LEAST_HELD: Final = 0.85
"""Share of every table's cases that the interval holds at least, where all tables together ask for less."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A published step that the device bounds.

    Attributes:
        table: Its accuracy table.
        source: Machine and software that timed it.
        gpu: Our name of the GPU.
        model: Model with its precision and mode.
        measured_seconds: Published time.
        predicted: Prediction with the operations' own interval, in seconds.
        shares: Share of the predicted device time by kind of work.
    """

    table: str
    source: str
    gpu: str
    model: str
    measured_seconds: float
    predicted: Interval[float]
    shares: Mapping[str, float]

    @property
    def log_ratio(self) -> float:
        """Logarithm of measured over predicted."""
        return math.log(self.measured_seconds / self.predicted.middle)


EFFECTS: Final[Mapping[str, Callable[[StepCase], Hashable]]] = {
    "gpu": lambda case: case.gpu,
    "source": lambda case: (case.table, case.source),
    "model": lambda case: (case.table, case.model),
}
"""Random effects, each with a value for a group of cases."""


def step_cases(data: Path, cache: Path | None) -> Iterator[StepCase]:
    """Predict the eager times of `TABLES` on single GPUs with the operations' own intervals."""
    for table in TABLES:
        groups: dict[tuple[object, str | None], list[Case]] = defaultdict(list)
        for case in READERS[table](data):
            if not case.kernels:
                groups[case.step, case.release].append(case)
        for (_, release), members in groups.items():
            try:
                trace = for_torch_release(recorded(members[0].step, cache), release)
                yield from _predicted(table, trace, members)
            except (lp.LightningPredictError, RuntimeError, ImportError):
                continue  # a model that the installed release no longer has


def _predicted(table: str, trace: lp.Trace, members: Sequence[Case]) -> Iterator[StepCase]:
    gpus = [case.card or find_gpu(case.gpu) for case in {case.gpu: case for case in members}.values()]
    names = [gpu.name for gpu in gpus]
    timed = predict_work_times(trace, gpus, origin=None, models=kernel_models(tuple(names)))
    steps = predict_steps(trace, timed, gpus, spread=UNCALIBRATED)
    for case in members:
        place = names.index(find_gpu(case.gpu).name)
        step = steps[place]
        if step.host_seconds < HOST_SHARE * step.device_seconds:
            yield StepCase(
                table=table,
                source=case.source,
                gpu=names[place],
                model=case.model,
                measured_seconds=case.measured,
                predicted=step.interval,
                shares=_shares(timed, place, "/HBM" if gpus[place].has_stacked_memory else ""),
            )


def _shares(timed: WorkTimes, row: int, memory: str) -> Mapping[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for column, (operation, item) in enumerate(zip(timed.families, timed.items, strict=True)):
        kind = next((name for name, pattern in KINDS if re.search(pattern, operation)), "memory")
        dtype = item.shapes[0].dtype if item.shapes else ""
        seconds[f"{kind}/{DTYPE_CLASSES.get(dtype, dtype)}{memory}"] += float(timed.seconds[row, column])
    total = math.fsum(seconds.values())
    return {kind: own / total for kind, own in seconds.items()} if total > 0 else {}


def effect_deviations(cases: Sequence[StepCase]) -> dict[str, float]:
    """Fit factors and effects; return the deviations of the logarithms of effects, and of the remainder, `rest`."""
    named = sorted({kind for case in cases for kind in case.shares})
    blocks = [np.array([[case.shares.get(kind, 0.0) for kind in named] for case in cases]).reshape(len(cases), -1)]
    blocks += [_indicators([key(case) for case in cases]) for key in EFFECTS.values()]
    design = np.hstack(blocks)
    owner = np.repeat(np.arange(len(blocks)), [block.shape[1] for block in blocks])
    ratios = np.array([case.log_ratio for case in cases])
    sizes = Counter(case.table for case in cases)
    weights = np.array([min(1.0, TABLE_CASES / sizes[case.table]) for case in cases])
    variances, rest = np.array([FACTOR_DEVIATION**2, 0.01, 0.01, 0.01]), 0.01
    gram, right = design.T @ (weights[:, None] * design), design.T @ (weights * ratios)
    for _ in range(ROUNDS):
        covariance = np.linalg.inv(gram / rest + np.diag(1 / variances[owner]))
        mean = covariance @ right / rest
        second = mean**2 + np.diag(covariance)
        for block in range(1, len(blocks)):
            variances[block] = max(float(second[owner == block].mean()), LEAST_DEVIATION**2)
        spread = float((weights * (ratios - design @ mean) ** 2).sum() + np.trace(covariance @ gram))
        rest = max(spread / float(weights.sum()), LEAST_DEVIATION**2)
    return dict(zip((*EFFECTS, "rest"), (*np.sqrt(variances[1:]).tolist(), math.sqrt(rest)), strict=True))


def _indicators(keys: Sequence[Hashable]) -> Array:
    """Make one column for each distinct key, 1 where a case has it."""
    columns = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    table = np.zeros((len(keys), len(columns)))
    table[np.arange(len(keys)), [columns[key] for key in keys]] = 1.0
    return table


def fit_spread(cases: Sequence[StepCase]) -> StepSpread:
    """Choose the spread that holds nine in ten cases, each table weighing as much as another.

    The deviation that all operations of a step share is the largest with each table left out once, since tables that
    constants were chosen on deviate less than others will.
    """
    models = [case for case in cases if case.table != MODULES]
    tables = dict.fromkeys(case.table for case in models)
    rest = [[case for case in models if case.table != table] for table in tables] if len(tables) > 1 else [models]
    shared = STANDARD_DEVIATIONS * max(
        math.hypot(found["gpu"], found["source"]) for found in map(effect_deviations, rest)
    )
    needed = defaultdict[str, list[float]](list)
    for case in cases:
        end = case.predicted.high if case.log_ratio > 0 else case.predicted.low
        beyond = math.sqrt(max(case.log_ratio**2 - shared**2, 0.0))
        needed[case.table].append(beyond / abs(math.log(end / case.predicted.middle)))
    weights = np.array([1 / len(needed) / len(own) for own in needed.values() for _ in own])
    together = weighted_quantile(np.array([one for own in needed.values() for one in own]), weights)
    least = max(float(np.quantile(own, LEAST_HELD, method="higher")) for own in needed.values())
    return StepSpread(
        operations_factor=max(together, least),
        new_source=shared,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the spread and write it with its provenance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("output", type=Path, help="file to write")
    parser.add_argument("--data", type=Path, required=True, help="folder of data")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps recorded steps (default: none)")
    options = parser.parse_args(arguments)
    cases = tuple(step_cases(options.data, options.cache))
    spread = fit_spread(cases)
    content = {
        "spread": {
            "kept": round(spread.operations_factor, 3),
            "new_source": round(spread.new_source, 3),
        },
        "provenance": {
            "cases": dict(Counter(case.table for case in cases)),
            "gpus": sorted({case.gpu for case in cases}),
            "deviations": {name: round(value, 3) for name, value in effect_deviations(cases).items()},
            "command": "python -m benchmarks.training.step_spread whole_steps.json --data DATA",
        },
    }
    options.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
