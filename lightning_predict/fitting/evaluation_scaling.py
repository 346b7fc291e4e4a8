"""`training_throughput.csv`: how well training scales from one GPU to several of one machine.

Efficiency is the throughput of n GPUs over n times that of one. The step of one GPU is the measured one, as somebody
has it who has run on one; what the others add is predicted, from the links that the GPU's name promises. They may not
be there (a virtual machine without NVLink): `calibrated` takes the bus bandwidth that suits the machine's other
benchmarks best, as if it had been measured. Rows that no weak scaling explains are left out, each with its reason.
Example::

    report = evaluate_scaling(Path("validation/training_throughput.csv"))
    report.results[0].efficiency, report.results[0].case.efficiency, report.excluded
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final, final

import numpy as np

from lightning_predict.fitting.evaluation_groups import evaluate_in_groups
from lightning_predict.fitting.evaluation_scaling_cases import ScalingCase, read_scaling_cases
from lightning_predict.fitting.evaluation_scaling_uniform import UNIFORM_BENCHMARKS, uniform_step
from lightning_predict.fitting.workloads.benchmarks import benchmark_trace
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.choice import timed_work
from lightning_predict.kernels.fabric import Interconnect, bus_factor, collective
from lightning_predict.kernels.models import kernel_models
from lightning_predict.scaling.friction import Friction, slowest_of
from lightning_predict.scaling.parallel import SharedStep
from lightning_predict.scaling.strategy import Strategy
from lightning_predict.timeline.queues import iterations
from lightning_predict.timeline.records import Iteration
from lightning_predict.units import gigabytes_to_bytes, mebibytes_to_bytes

LEAST_LINK_SHARE: Final = 0.25
"""Below this share of the bandwidth that a GPU's name promises, a machine is shown apart."""

BUS_BANDWIDTHS: Final = tuple(gigabytes_to_bytes(0.5 * 2**step) for step in range(10))
"""Bus bandwidths that a machine may have: 0.5 to 256 GB/s."""

SLOWDOWNS: Final = (1.0, 1.5, 2.0, 2.5, 3.0)
CONTENTIONS: Final = (0.3, 0.5, 0.7, 0.9)
SPREADS: Final = (0.02, 0.03, 0.04)
"""The grid of friction."""


@final
@dataclass(frozen=True, slots=True)
class Study:
    """A case at each of `SLOWDOWNS`, and at each bus bandwidth, all over the step of one GPU.

    Attributes:
        walked: (step, hidden communication) at each slowdown.
        by_bandwidth: Efficiency at each of `BUS_BANDWIDTHS`.
    """

    walked: tuple[tuple[float, float], ...]
    by_bandwidth: tuple[float, ...]

    def efficiency(self, friction: Friction, count: int) -> float:
        """With other figures of friction; its slowdown is one of `SLOWDOWNS`."""
        step, hidden = self.walked[SLOWDOWNS.index(friction.slowdown)]
        return 1 / (step + friction.contention * hidden + friction.straggler_spread * slowest_of(count))


@final
@dataclass(frozen=True, slots=True)
class ScalingResult:
    """A case and its predictions.

    Attributes:
        case: The row.
        study: What it would be under other assumptions.
        efficiency: As predicted.
        low: Lower end of its 90 % interval.
        high: Upper end.
        left_out: As predicted with the friction that suits the other GPUs' rows.
        calibrated: As predicted at the bus bandwidth that suits the machine's other benchmarks; None where it has none.
        link_share: That bandwidth over the one that the GPU's name promises; None likewise.
    """

    case: ScalingCase
    study: Study
    efficiency: float
    low: float
    high: float
    left_out: float = float("nan")
    calibrated: float | None = None
    link_share: float | None = None

    @property
    def is_inside(self) -> bool:
        """True where the interval holds the measured efficiency."""
        return self.low <= self.case.efficiency <= self.high

    @property
    def has_its_links(self) -> bool:
        """The machine's links reach a quarter of what the GPU's name promises, or nobody can tell."""
        return self.link_share is None or self.link_share >= LEAST_LINK_SHARE


@final
@dataclass(frozen=True, slots=True)
class ScalingReport:
    """Results, the friction that suits each GPU's others, and the rows that were left out by reason."""

    results: tuple[ScalingResult, ...]
    friction_without: Mapping[str, Friction]
    excluded: Mapping[str, Sequence[str]]


def evaluate_scaling(path: Path, *, weights: Path | None = None, jobs: int = 2) -> ScalingReport:
    """Predict each case's efficiency; errors as for `read_scaling_cases` and `predict`."""
    cases, excluded = read_scaling_cases(path)
    results = evaluate_in_groups(
        cases,
        key=lambda case: (case.model, case.precision, case.batch),
        evaluate=partial(_predicted, weights=weights),
        jobs=jobs,
    )
    without = {gpu: best_friction(results, without=gpu) for gpu in dict.fromkeys(case.gpu for case in cases)}
    complete = (
        replace(result, left_out=result.study.efficiency(without[result.case.gpu], result.case.count))
        for result in _calibrated(results)
    )
    return ScalingReport(tuple(complete), without, excluded)


def best_friction(results: Iterable[ScalingResult], *, without: str | None = None) -> Friction:
    """The figures of the grid with the least mean error, over rows that exchange gradients.

    Args:
        results: Cases of all GPUs.
        without: A GPU whose rows do not count.
    """
    rows = [one for one in results if one.case.gpu != without and one.case.exchanges]
    grid = [
        Friction(slowdown=slowdown, contention=contention, straggler_spread=spread)
        for slowdown, contention, spread in product(SLOWDOWNS, CONTENTIONS, SPREADS)
    ]
    return min(grid, key=lambda friction: _mean_error(rows, friction))


def _mean_error(rows: Sequence[ScalingResult], friction: Friction) -> float:
    errors = [abs(one.study.efficiency(friction, one.case.count) - one.case.efficiency) for one in rows]
    return sum(errors) / max(len(errors), 1)


def _predicted(cases: Sequence[ScalingCase], weights: Path | None) -> list[ScalingResult]:
    """Results of cases that ran the same step, which is recorded once."""
    names = tuple(dict.fromkeys(case.gpu for case in cases))
    gpus = [find_gpu(name) for name in names]
    steps, shared, units = _prepared(cases[0], gpus, weights)
    results = []
    for case in cases:
        row = names.index(case.gpu)
        seconds = units / case.single_per_second
        measured = replace(steps[row], seconds=seconds, low_seconds=seconds, high_seconds=seconds)
        found = shared.on(Layout(gpus[row], case.count), measured, row, Strategy())
        ends = (seconds / found.seconds, seconds / found.high_seconds, seconds / found.low_seconds)
        results.append(ScalingResult(case, _study(shared, measured, row, Layout(gpus[row], case.count)), *ends))
    return results


def _prepared(
    case: ScalingCase, gpus: Sequence[Gpu], weights: Path | None
) -> tuple[Sequence[Iteration], SharedStep, float]:
    """The step of a case on one of each GPU, ready to be shared, and what it processes."""
    if case.model in UNIFORM_BENCHMARKS:
        uniform = uniform_step(case.model, precision=case.precision, gpus=gpus)
        return uniform.singles, uniform.shared, case.batch * UNIFORM_BENCHMARKS[case.model].units_per_sample
    recorded = benchmark_trace(case.model, precision=case.precision, batch=case.batch)
    models = kernel_models(tuple(gpu.name for gpu in gpus), None if weights is None else str(weights))
    timed = timed_work(recorded.trace, gpus, origin=None, models=models, method="auto")
    return iterations(recorded.trace, timed, gpus), SharedStep(recorded.trace, timed, gpus), recorded.units


def _study(shared: SharedStep, step: Iteration, row: int, layout: Layout) -> Study:
    walked = []
    for slowdown in SLOWDOWNS:
        found = shared.walked(layout, step, row, Strategy(), friction=Friction(slowdown=slowdown))
        hidden = max(float((found.communication_seconds - found.exposed_seconds)[1]), 0.0)
        walked.append((float(found.seconds[1]) / step.seconds, hidden / step.seconds))
    at_each = (
        shared.on(layout, step, row, Strategy(), Interconnect(intra_node_bytes_per_second=bus)).seconds
        for bus in BUS_BANDWIDTHS
    )
    return Study(tuple(walked), tuple(step.seconds / seconds for seconds in at_each))


def _calibrated(results: Sequence[ScalingResult]) -> Iterator[ScalingResult]:
    """Each with the bus that suits the machine's other benchmarks at the same number of GPUs."""
    groups: dict[tuple[str, int], list[ScalingResult]] = defaultdict(list)
    for result in results:
        if result.case.exchanges:
            groups[result.case.system, result.case.count].append(result)
    for result in results:
        others = [one for one in groups[result.case.system, result.case.count] if one.case.model != result.case.model]
        if not others:
            yield result
            continue
        at_each = np.array([one.study.by_bandwidth for one in others])
        measured = np.array([one.case.efficiency for one in others])[:, None]
        best = int(np.abs(at_each - measured).mean(axis=0).argmin())
        yield replace(
            result,
            calibrated=result.study.by_bandwidth[best],
            link_share=BUS_BANDWIDTHS[best] / _promised(result.case),
        )


def _promised(case: ScalingCase) -> float:
    """Bus bandwidth of a large bucket of gradients, from the GPU's name."""
    size = mebibytes_to_bytes(25)
    alone = float(collective("all_reduce", size, Layout(find_gpu(case.gpu), case.count)).seconds[0])
    return bus_factor("all_reduce", case.count) * size / alone
