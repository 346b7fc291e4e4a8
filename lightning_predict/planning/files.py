"""Reads planning problems from YAML files of machines, limits and jobs.

`docs/howto/plan-jobs.md` explains the keys, with examples. Times in the file are in hours and are converted to seconds.

For a job with a trace or past runs, times are predicted with intervals, on 1, 2, 4, ... GPUs of a machine. A run has
the same number of samples on every configuration: on several GPUs, each processes as many samples per step as a single
GPU would, in fewer steps. With `keep_batch`, the GPUs share the samples of a step instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lightning_predict.advice.batch_size import why_no_other_batch, with_samples
from lightning_predict.assumptions import Assumptions
from lightning_predict.base.checked import Checked, read_yaml, shown
from lightning_predict.base.errors import InvalidArgumentError, PlanningFormatError
from lightning_predict.base.files import history_path
from lightning_predict.base.interval import CONFIDENCE, Interval
from lightning_predict.base.units import hours_to_seconds
from lightning_predict.cost.offers import load_offers
from lightning_predict.cost.price_files import at_spot_prices
from lightning_predict.hardware.layouts import Layout, find_machine, layout_of
from lightning_predict.hardware.user_gpus import add_gpus
from lightning_predict.layouts.strategy import Strategy, parse_strategy
from lightning_predict.planning.problem import (
    RESTART_SECONDS,
    Configuration,
    Formulation,
    Job,
    Limits,
    MachineType,
    Placement,
    PlanningProblem,
    PlanState,
)
from lightning_predict.planning.validation import check_problem, check_situation
from lightning_predict.prediction import predict_workload, remaining_steps
from lightning_predict.record.trace import Trace
from lightning_predict.run.history import read_history

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


_TOP_KEYS: Final = frozenset({"nodes", "machines", "jobs"})
_TOP_OPTIONAL: Final = frozenset(
    "budget_usd quotas formulation restart_seconds checkpoint_seconds probability weights gpus_file strategy release "
    "host history".split()
)
_PREDICTION_KEYS: Final = frozenset({"iterations", "keep_batch"})
_TRACE_KEYS: Final = _PREDICTION_KEYS | {"strategy"}
_RUN_KEYS: Final = _PREDICTION_KEYS | {"model", "batch_size"}
_EXPORT_KEYS: Final = ("command", "checkpoint")
_JOB_OPTIONAL: Final = _TRACE_KEYS.union(
    _RUN_KEYS, "hours trace runs release_hours tardiness_usd_per_hour".split(), _EXPORT_KEYS
)


def read_problem(path: Path) -> PlanningProblem:
    """Read and check a problem.

    Raises:
        PlanningFormatError: A file is missing or malformed.
        InvalidArgumentError: A number is out of its range.
        TraceError: The trace of a job is missing or is not a trace.
        InfeasiblePlanError: No plan can satisfy a job or a limit.
    """
    document = read_yaml(path, PlanningFormatError)
    document.check_keys(_TOP_KEYS, _TOP_OPTIONAL)
    if document.has("gpus_file"):
        add_gpus(path.parent / document.member("gpus_file").words())
    machines: tuple[MachineType, ...] = ()
    for item in document.member("machines").items(named=["name"]):
        machines = (*machines, _machine(item, machines))
    assumptions = _assumptions(document, path.parent)
    problem = PlanningProblem(
        jobs=tuple(
            _job(row, machines, path.parent, assumptions) for row in document.member("jobs").items(named=["name"])
        ),
        machines=machines,
        limits=Limits(
            nodes=document.member("nodes").integer(minimum=1),
            quotas={name: quota.integer() for name, quota in document.optional("quotas", _members, {}).items()},
            budget_usd=document.optional("budget_usd", _float, None),
        ),
        formulation=document.optional("formulation", _formulation, Formulation()),
        restart_seconds=_number(document, "restart_seconds", RESTART_SECONDS),
        checkpoint_seconds=document.optional("checkpoint_seconds", _float, None),
        probability=_number(document, "probability", CONFIDENCE),
    )
    check_problem(problem)
    return problem


def read_situation(path: Path, problem: PlanningProblem) -> PlanState:
    """Read the progress of a running plan's jobs from a state file.

    Jobs that are not listed have not started. `docs/howto/plan-jobs.md` has an example of such a file.

    `measured_hours` is the total time of the job on the machine where it ran last, estimated from its progress. The
    job's times on other machines are then corrected with `measured_hours`.

    Raises:
        PlanningFormatError: The file is missing or malformed.
        InvalidArgumentError: The state contradicts the problem, for example by a job that the problem does not have.
    """
    document = read_yaml(path, PlanningFormatError)
    document.check_keys({"now_hours", "jobs"}, {"spent_usd"})
    now_seconds = hours_to_seconds(document.member("now_hours").any_number())
    remaining = {job.name: 1.0 for job in problem.jobs if job.release_seconds <= now_seconds}
    running: dict[str, Placement] = {}
    started: dict[str, Configuration] = {}
    measured: dict[str, dict[Configuration, float]] = {}
    for key, row in document.member("jobs").members().items():
        name = str(key)
        row.check_keys({"done"}, {"node", "machine", "num_gpus", "measured_hours"})
        remaining[name] = 1.0 - float(row.member("done").any_number())
        if remaining[name] == 0.0:
            del remaining[name]
            continue
        if any(row.has(key) for key in ("machine", "num_gpus", "node", "measured_hours")):
            started[name] = Configuration(
                machine=row.member("machine").words(), num_gpus=row.member("num_gpus").integer(minimum=1)
            )
        if row.has("node"):
            running[name] = Placement(node=row.member("node").integer(), configuration=started[name])
        if row.has("measured_hours"):
            measured[name] = {started[name]: hours_to_seconds(row.member("measured_hours").any_number())}
    situation = PlanState(
        now_seconds=now_seconds,
        remaining=dict(sorted(remaining.items())),
        running=running,
        started=started,
        measured=measured,
        spent_usd=_number(document, "spent_usd", 0.0),
    )
    check_situation(situation, problem)
    return situation


def _members(value: Checked) -> dict[str, Checked]:
    return {str(name): member for name, member in value.members().items()}


def _float(value: Checked) -> float:
    return float(value.any_number())


def _number(row: Checked, key: str, default: float) -> float:
    return row.optional(key, _float, default)


def _assumptions(document: Checked, folder: Path) -> Assumptions:
    """Return the assumptions for predicted times. Paths are relative to the file of the problem."""
    known = document.value.get("history", True)
    if not isinstance(known, bool):
        known = folder / document.member("history").words()
    weights = document.optional("weights", Checked.words, None)
    if weights is not None and (folder / weights).exists():
        weights = str(folder / weights)
    return Assumptions(
        strategy=parse_strategy(document.optional("strategy", Checked.words, "ddp")),
        weights=weights,
        history=() if known is False else read_history(None if known is True else known),
        release=None if not document.has("release") else str(document.member("release").value),
        host=document.optional("host", _word_or_number, None),
    )


def _word_or_number(value: Checked) -> str | float:
    return value.words() if isinstance(value.value, str) else _float(value)


def _machine(row: Checked, known: tuple[MachineType, ...]) -> MachineType:
    if isinstance(row.value, str):
        return _newest_offer(row, row.value)
    if not isinstance(row.value, dict):
        raise row.unexpected("the name of an offer, or keys and values")
    if row.has("machine"):
        row.check_keys({"machine", "together"})
        return _multi_machine_type(row, known)
    if row.has("spot"):
        row.check_keys({"spot", "interruptions_per_hour"})
        machine = _newest_offer(row.member("spot"), row.member("spot").words(), spot=True)
        rate = _float(row.member("interruptions_per_hour"))
        return replace(machine, name=f"{machine.name} spot", instance=machine.name, interruptions_per_hour=rate)
    row.check_keys(
        {"name", "gpu", "num_gpus", "usd_per_hour"}, {"provider", "instance", "interruptions_per_hour", "hosts"}
    )
    return MachineType(
        name=row.member("name").words(),
        gpu=row.member("gpu").words(),
        num_gpus=row.member("num_gpus").integer(minimum=1),
        usd_per_hour=_float(row.member("usd_per_hour")),
        provider=row.optional("provider", Checked.words, None),
        instance=row.optional("instance", Checked.words, None),
        interruptions_per_hour=row.optional("interruptions_per_hour", _float, None),
        hosts=row.optional("hosts", Checked.texts, ()),
    )


def _newest_offer(row: Checked, instance: str, *, spot: bool = False) -> MachineType:
    """Return an instance type at the newest price in the package's price list."""
    offers = [
        offer for offer in (at_spot_prices(load_offers()) if spot else load_offers()) if offer.instance == instance
    ]
    if not offers:
        raise row.unexpected(
            f"one of the offers that ship with the package{' and have a spot price' if spot else ''}, or a machine in "
            "full, as {name: ..., gpu: ..., num_gpus: ..., usd_per_hour: ...}"
        )
    newest = max(offers, key=lambda offer: (offer.date, -offer.usd_per_hour))
    return MachineType(
        name=instance,
        gpu=newest.gpu,
        num_gpus=newest.num_gpus,
        usd_per_hour=newest.usd_per_hour,
        provider=newest.provider,
    )


def _multi_machine_type(row: Checked, known: tuple[MachineType, ...]) -> MachineType:
    """Combine several machines of one type, from the file or the price list, into a new type for a single job."""
    name, count = row.member("machine").words(), row.member("together").integer(minimum=2)
    base = next((machine for machine in known if machine.name == name and machine.base_type is None), None)
    base = base or _newest_offer(row.member("machine"), name)
    rate = base.interruptions_per_hour
    return replace(
        base,
        name=f"{count} of {name}",
        num_gpus=count * base.num_gpus,
        usd_per_hour=count * base.usd_per_hour,
        interruptions_per_hour=None if rate is None else count * rate,
        hosts=(),
        nodes=count,
        base_type=name,
    )


def _formulation(value: Checked) -> Formulation:
    value.check_keys(optional={"shares_gpus", "preempts", "migrates"})
    return Formulation(**{name: item.flag() for name, item in value.members().items()})


def _job(row: Checked, machines: tuple[MachineType, ...], folder: Path, assumptions: Assumptions) -> Job:
    row.check_keys({"name", "deadline_hours"}, _JOB_OPTIONAL)
    times = _times(row, machines, folder, assumptions)
    name = row.member("name").words()
    return Job(
        name=name,
        seconds={configuration: time.middle for configuration, time in times.seconds.items()},
        deadline_seconds=hours_to_seconds(row.member("deadline_hours").any_number()),
        release_seconds=hours_to_seconds(_number(row, "release_hours", 0.0)),
        tardiness_usd_per_hour=_number(row, "tardiness_usd_per_hour", 1.0),
        # Division gives exactly 1 for equal numbers; multiplication by 1 / middle may not.
        spreads={
            place: time.map(lambda end, middle=time.middle: end / middle) for place, time in times.seconds.items()
        },
        command=row.optional("command", Checked.words, None),
        checkpoint=row.optional("checkpoint", Checked.words, None),
        notes=tuple(f"{name}: {note}" for note in times.notes),
    )


def _times(row: Checked, machines: tuple[MachineType, ...], folder: Path, assumptions: Assumptions) -> Times:
    """Return the time of the whole run by configuration: stated (an interval without width), or predicted."""
    sources = [name for name in ("hours", "trace", "runs") if row.has(name)]
    if len(sources) != 1:
        raise row.error(
            "must state either hours (by machine and number of GPUs), or a trace with iterations, or past runs with "
            "iterations and batch_size."
        )
    (source,) = sources
    allowed = {"hours": frozenset(), "trace": _TRACE_KEYS, "runs": _RUN_KEYS}[source]
    if strangers := sorted(key for key in (_TRACE_KEYS | _RUN_KEYS) - allowed if row.has(key)):
        raise row.error(f"has {strangers[0]}, which says nothing of times from {source}; leave it out.")
    keep_batch = row.optional("keep_batch", Checked.flag, False)
    if source == "trace":
        own = parse_strategy(row.member("strategy").words()) if row.has("strategy") else assumptions.strategy
        return times_of_trace(
            folder / row.member("trace").words(),
            row.member("iterations").integer(minimum=1),
            machines,
            assumptions=replace(assumptions, strategy=own),
            keep_batch=keep_batch,
        )
    if source == "runs":
        return times_of_runs(
            folder / row.member("runs").words(),
            row.member("iterations").integer(minimum=1),
            machines,
            batch_size=row.member("batch_size").integer(minimum=1),
            model=row.optional("model", Checked.words, None),
            keep_batch=keep_batch,
        )
    seconds = {}
    for machine, by_gpus in row.member("hours").members().items():
        for num_gpus, hours in by_gpus.members().items():
            if isinstance(num_gpus, bool) or not isinstance(num_gpus, int):
                raise by_gpus.error(
                    f"has the key {shown(num_gpus)}; expected a number of GPUs, for example {{1: 5.2, 2: 2.8}}."
                )
            configuration = Configuration(machine=str(machine), num_gpus=num_gpus)
            stated = hours_to_seconds(hours.any_number())
            seconds[configuration] = Interval(stated, stated, stated)
    return Times(seconds)
