"""Predicts the times of a job: one `Interval` per configuration, from a recorded step or from past runs.

A run has the same number of samples on every configuration. On several GPUs, each GPU processes as many samples per
step as a single GPU would, so the run has fewer steps. With `keep_batch`, the GPUs share the samples of a step instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lightning_predict.advice.batch_size import why_no_other_batch, with_samples
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.errors import InvalidArgumentError, PlanningFormatError
from lightning_predict.base.files import history_path
from lightning_predict.base.interval import Interval
from lightning_predict.hardware.layouts import Layout, find_machine, layout_of
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.planning.problem import Configuration, MachineType
from lightning_predict.prediction import predict_workload, remaining_steps
from lightning_predict.record.trace import Trace

HISTORY: Final = "history"  # Keyword for the runs that `RuntimePredictor` stored


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a whole run."""

    # Time by configuration, with its 90 % interval. The job cannot run on other configurations.
    seconds: Mapping[Configuration, Interval[float]]
    notes: tuple[str, ...] = ()  # Notes about these times, for readers of the plan


def times_of_trace(
    path: Path,
    iterations: int,
    machines: Sequence[MachineType],
    *,
    assumptions: Assumptions | None = None,
    keep_batch: bool = False,
) -> Times:
    """Predict the rest of a run from a recorded step.

    A configuration is omitted if the step does not fit in its GPUs' memory, or if the strategy cannot use this number
    of GPUs. If the trace has no parameters, only configurations of one GPU are returned, because the communication
    between several GPUs is unknown. With `keep_batch`, replicas share the samples of a step, and configurations whose
    number of replicas does not divide the samples are omitted.
    """
    trace, assumptions = Trace.load(str(path)), assumptions or Assumptions()
    layouts = {one: layout for one, layout in _layouts(machines) if trace.parameters or layout.count == 1}
    replicas = {
        configuration: groups / trace.world_size
        for configuration, layout in layouts.items()
        if (groups := _replicas(assumptions.strategy, layout)) is not None
    }
    samples, reason = trace.samples_per_batch, why_no_other_batch(trace)
    if keep_batch and reason is not None and any(number != 1 for number in replicas.values()):
        raise PlanningFormatError(f"{path} cannot keep its batch on other numbers of GPUs: {reason}.")
    times: dict[Configuration, Interval[float]] = {}
    for number in sorted(set(replicas.values())):
        own = {configuration: layouts[configuration] for configuration, count in replicas.items() if count == number}
        share = samples / number if keep_batch else samples
        if share < 1 or share != int(share):
            continue
        step = trace if share == samples else with_samples(trace, int(share))
        steps = remaining_steps(step, math.ceil(iterations * number) if keep_batch else iterations)
        predictions = predict_workload(step, tuple(own.values()), steps, assumptions)
        for choice, prediction in zip(own, predictions.items_in_order, strict=True):
            if prediction.fits is not False and prediction.total is not None:
                times[choice] = prediction.total
    return Times(times, _batch_notes(trace.samples, iterations, replicas, times, keep_batch=keep_batch))


def times_of_runs(
    path: Path,
    iterations: int,
    machines: Sequence[MachineType],
    *,
    batch_size: int,
    model: str | None = None,
    keep_batch: bool = False,
) -> Times:
    """Predict a run from past runs of the same model, by a regression (`regression/end_to_end.py`).

    If all past runs used one GPU model, or one number of GPUs, other configurations are omitted, because the runs
    contain no information about them. With `keep_batch`, GPUs share the `batch_size` samples of a step, and
    configurations whose number of GPUs does not divide the samples are omitted.
    """
    from lightning_predict.regression.end_to_end import fit_regression, of_one_model
    from lightning_predict.regression.runs import RunSetting, read_runs

    table = read_runs(history_path() if path.name == HISTORY and not path.exists() else path)
    chosen = of_one_model(table.runs, model)
    regression = fit_regression(chosen)
    alike = {
        name: values.pop()
        for name in ("threads", "disk_seconds", "inner_modules", "sequence_length")
        if len(values := {getattr(run.setting, name) for run in chosen}) == 1
    }
    layouts = dict(_layouts(machines))
    times: dict[Configuration, Interval[float]] = {}
    beyond: dict[str, None] = {}
    for configuration, layout in layouts.items():
        count = layout.count
        if keep_batch and batch_size % count:
            continue
        forecast = regression.predict(
            RunSetting(
                iterations=iterations if keep_batch else math.ceil(iterations / count),
                batch_size=batch_size // count if keep_batch else batch_size,
                gpu=layout.gpu.name,
                num_gpus=count,
                **alike,
            )
        )
        untold = {
            extrapolation.variable
            for extrapolation in forecast.extrapolations
            if extrapolation.lowest == extrapolation.highest
        }
        if forecast.time is None or untold & {"flops_per_second", "bytes_per_second", "num_gpus"}:
            continue
        times[configuration] = forecast.time
        beyond |= dict.fromkeys(f"{layout.name}: {extrapolation.note}" for extrapolation in forecast.extrapolations)
    notes = [f"Outside its past runs, where the regression may be wrong: {'; '.join(beyond)}."] if beyond else []
    if any(layouts[time].nodes > 1 for time in times):
        notes.append("Past runs do not say how many machines they were on: several are taken as one.")
    replicas = {configuration: float(layout.count) for configuration, layout in layouts.items()}
    said = _batch_notes(batch_size, iterations, replicas, times, keep_batch=keep_batch)
    return Times(times, (*table.notes, *notes, *said))


def _layouts(machines: Sequence[MachineType]) -> Iterator[tuple[Configuration, Layout]]:
    """Yield the configurations of the machines, each with its layout for predictions."""
    for machine in machines:
        per_machine = machine.num_gpus // machine.nodes
        # A single machine uses no network. Without a network, its layout equals the one on which the step may have been
        # measured.
        instance = find_machine(machine.instance or machine.kind) if machine.nodes > 1 else None
        network = None if instance is None else instance.network
        gpu = layout_of(machine.gpu).gpu
        for count in [machine.num_gpus] if machine.nodes > 1 else _counts(machine.num_gpus):
            layout = Layout(gpu, min(count, per_machine), machine.nodes, network=network)
            yield Configuration(machine=machine.name, num_gpus=count), layout


def _replicas(strategy: Strategy, layout: Layout) -> int | None:
    """Return the number of data-parallel replicas; None if the strategy cannot use this number of GPUs."""
    try:
        return strategy.replicas(layout)
    except InvalidArgumentError:
        return None


def _counts(most: int) -> list[int]:
    """List the powers of two up to a machine's number of GPUs, and the machine's number of GPUs."""
    return sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most})


def _batch_notes(
    samples: int | None,
    iterations: int,
    replicas: Mapping[Configuration, float],
    times: Mapping[Configuration, Interval[float]],
    *,
    keep_batch: bool,
) -> tuple[str, ...]:
    """Return notes about the samples per step on several GPUs."""
    most = max((replicas[time] for time in times), default=1.0)
    if keep_batch:
        gone = [f"{one.num_gpus} GPUs of {one.machine}" for one in sorted(replicas) if one not in times]
        why = f"their number does not divide {samples} samples, or the step does not fit"
        return (f"Left out: {', '.join(gone)}; {why}.",) if gone else ()
    if most <= 1:
        return ()
    whole = f"steps of {samples} samples" if samples else "steps"
    many = f"{most:g} x {samples} = {most * samples:g} samples" if samples else f"{most:g} times the samples"
    return (
        f"{iterations:,} {whole} on one GPU are {math.ceil(iterations / most):,} of {many} on {most:g} GPUs; the "
        "learning rate is yours to mind, or say keep_batch: true, and GPUs share the samples.",
    )
