"""Run the whole pipeline in one call: a Trace and GPU names give Predictions.

`trace -> timed work (kernels) -> Iteration (timeline, distributed) -> Run -> Price and memory (cost)`. Example::

    import lightning_predict as lp

    trace = lp.capture(step)
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000)
    print(result["T4"].total_seconds, result["T4"].cost_usd)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from os import PathLike
from typing import Final

from lightning_predict.assumptions import Assumptions, documents_assumptions
from lightning_predict.cost.memory import MemoryNeed, StepMemory, memory_need, memory_notes, step_memory
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import MachineInUse, Prediction, UserPrice, price_of
from lightning_predict.distributed.layout_steps import Setting, SingleSteps, shared_steps, single_steps
from lightning_predict.distributed.strategy import Strategy, strategy_of
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.gpus import DEFAULT_GPUS, Gpu
from lightning_predict.gpus.layouts import Layout, layouts_of
from lightning_predict.gpus.own import add_gpus
from lightning_predict.interval import Interval
from lightning_predict.kernels.fabric import Interconnect
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.translation import translation_notes
from lightning_predict.reports.predictions import Predictions
from lightning_predict.run.history import (
    Correction,
    HistoryRecord,
    correction_for,
    fingerprint_of,
    model_fingerprint_of,
    read_history,
    run_correction,
)
from lightning_predict.run.sharing import crowded_workload, shared_memory_bytes, shared_workload
from lightning_predict.run.workload import Loader, Run, Workload, run_of
from lightning_predict.sharding.tables import Skew, with_skew
from lightning_predict.sharding.whole_step import ShardedEmbeddings, without_tables
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.timeline.mean_step import kinds_note, mean_check, mean_step, measured_seconds, weighted_kinds
from lightning_predict.tracing.code_paths import code_path_notes
from lightning_predict.tracing.collectives import without_collectives
from lightning_predict.tracing.older_releases import under_release
from lightning_predict.tracing.reported_gpu import check_predictable, gpu_in_use, unknown_gpu_note
from lightning_predict.tracing.trace import Trace
from lightning_predict.weights.source import AnyWeights


@documents_assumptions
def predict(
    trace: Trace,
    gpus: Sequence[str | Gpu | Layout] = DEFAULT_GPUS,
    *,
    iterations: int | None = None,
    num_nodes: int = 1,
    strategy: str | Strategy = "ddp",
    method: str = "auto",
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
    history: bool = True,
    interconnect: Interconnect | None = None,
    release: str | None = None,
    host: str | float | None = None,
    zipf_alpha: Skew | None = None,
    gpus_file: str | PathLike[str] | None = None,
) -> Predictions:
    """Predict the recorded step on GPUs.

    Args:
        trace: What one step did, from `capture` or `Trace.load`.
        gpus: Names of GPUs (ours, torch's and clouds' spellings are understood) or of layouts: `8xL4` is a machine of
            eight, `2x8xH100-SXM-80GB` two of them; or a `Gpu` or `Layout`. Each replica takes as many samples as the
            trace.
        iterations: Steps still to come on as many GPUs as were recorded; a layout of more does the same samples in
            fewer. None predicts the step alone.
        num_nodes: Machines of the layouts that do not say.
        strategy: See `Assumptions`.
        method: See `Assumptions`.
        offers: See `Assumptions`.
        usd_per_hour: See `Assumptions`.
        weights: See `Assumptions`.
        history: Learn from earlier runs of this very step (see `run/history.py`).
        interconnect: See `Assumptions`.
        release: See `Assumptions`.
        host: See `Assumptions`.
        zipf_alpha: See `Assumptions`.
        gpus_file: TOML file of GPUs of your own, known from here on in this process (see `gpus/own.py`).

    Returns:
        One Prediction per GPU or layout, in the order asked.

    Raises:
        UnknownGpuError: A name that the catalogue does not hold.
        InvalidArgumentError: An empty list, a bad price, layout, strategy, method or number of iterations.
        TraceError: A trace without operations, or with neither shapes nor kernels. One with kernels of an unknown GPU
            and without shapes is an UnknownGpuError.
        WeightsError: Weights that cannot be found or trusted; an address that cannot serve is a note.
    """
    if gpus_file is not None:
        add_gpus(gpus_file)
    workload = steps_to_come(trace, iterations)
    layouts = layouts_of(gpus, num_nodes=num_nodes)
    assumptions = Assumptions(
        strategy=strategy_of(strategy),
        method=method,
        offers=offers,
        usd_per_hour=usd_per_hour,
        weights=weights,
        history=read_history() if history else (),
        interconnect=interconnect,
        release=release,
        host=host,
        zipf_alpha=zipf_alpha,
    )
    return predict_workload(trace, layouts, workload, assumptions)


def steps_to_come(trace: Trace, iterations: int | None) -> Workload:
    """Describe a run of so many of the recorded steps, with the waits for the loader that were recorded.

    Raises:
        InvalidArgumentError: A negative number.
    """
    if iterations is not None and iterations < 0:
        raise InvalidArgumentError(f"iterations={iterations} is negative; give the number of steps still to come.")
    waits = trace.loader_seconds
    return Workload(
        training_iterations=iterations,
        samples_per_iteration=trace.samples,
        loader=Loader(seconds_per_batch=statistics.mean(waits) if waits else 0.0),
    )


def predict_workload(
    trace: Trace,
    layouts: Sequence[Layout],
    workload: Workload,
    assumptions: Assumptions,
    *,
    validation: Trace | None = None,
    forecast: Interval[float] | None = None,
) -> Predictions:
    """Predict a run that is still to come: `predict` with validation and everything else that a Trainer knows.

    Args:
        trace: One training step.
        layouts: Where to run it.
        workload: Steps and validation batches still to come on each GPU of the recorded run.
        assumptions: What is assumed.
        validation: One validation batch; None takes the forward share of the training step.
        forecast: Seconds of the run on the machine in use, as it went so far; None: from the steps of the trace.
    """
    check_predictable(trace)
    if assumptions.release is not None:
        of_release = partial(under_release, release=assumptions.release)
        trace = trace.changed(of_release)
        validation = None if validation is None else validation.changed(of_release)
    if assumptions.zipf_alpha is not None:
        skew = assumptions.zipf_alpha
        trace = trace.changed(lambda step: with_skew(step, skew))
    sharing = assumptions.strategy
    targets = list(dict.fromkeys(layout.gpu for layout in layouts))
    origin = gpu_in_use(trace)
    in_use = None if origin is None else layout_in_use(trace, origin)
    needed = targets if origin is None else (*targets, origin)
    models = kernel_models(tuple(dict.fromkeys(target.name for target in needed)), assumptions.weights)
    setting = Setting(tuple(targets), origin, models, assumptions.method, assumptions.host_assumed, assumptions.links)
    kinds, shares = weighted_kinds(trace)
    singles = [single_steps(kind, setting) for kind in kinds]
    tables = None if sharing.embedding is None else ShardedEmbeddings(sharing, setting)
    alone = [mean_step(steps, shares) for steps in zip(*(single.steps for single in singles), strict=True)]
    plain = trace.changed(without_collectives)
    learnt = _learnt(plain, alone, assumptions.history, origin)
    run_factor = None
    if in_use is not None and trace.measured_steps and assumptions.history:
        run_factor = run_correction(assumptions.history, fingerprint_of(plain), in_use.name)
    by_kind = [_on_layouts(single, learnt, layouts, in_use, sharing, setting, tables) for single in singles]
    checks = _validation_steps(validation, layouts, sharing, setting, tables)
    shared = [mean_step(steps, shares) for steps in zip(*by_kind, strict=True)]
    same_gpu = mean_check([single.check for single in singles], shares)
    memory = [(kind, one) for kind in kinds if (one := step_memory(kind)) is not None]
    predictions = []
    for layout, step, check in zip(layouts, shared, checks, strict=True):
        if layout == in_use:
            unmeasured = None if same_gpu is None else same_gpu.predicted_seconds
            step = replace(step, measured_seconds=measured_seconds(trace), unmeasured_seconds=unmeasured)
        run = _run_on(layout, step, check, workload, trace, assumptions)
        if layout == in_use and forecast is not None:
            run = replace(run, total=forecast)
        run = (run if run_factor is None else run.scaled(run_factor.run)).cut_off(workload.time_limit_seconds)
        price = price_of(run, layout, offers=assumptions.offers, usd_per_hour=assumptions.usd_per_hour)
        reported = trace.gpu_memory_bytes if layout.gpu == origin else None
        need = _memory_need(memory, layout, sharing, tables, reported_bytes=reported)
        predictions.append(Prediction(layout, step, run, price, need))
    unknown_gpu = unknown_gpu_note(trace)
    notes = (*([] if unknown_gpu is None else [unknown_gpu]), *_notes(singles), *kinds_note(trace))
    notes += () if models is None else models.notes
    notes += () if run_factor is None or in_use is None else (run_factor.note(in_use.name),)
    machine = None
    if in_use is None or in_use not in layouts:
        need = MemoryNeed()
        if in_use is not None:
            need = _memory_need(memory, in_use, sharing, tables, reported_bytes=trace.gpu_memory_bytes)
        factor = 1.0 if run_factor is None else run_factor.run
        machine = _machine_in_use(trace, in_use, workload, assumptions, need, forecast=forecast, factor=factor)
    return Predictions(
        tuple(predictions),
        used_gpu=None if in_use is None else in_use.name,
        notes=notes,
        machine=machine,
        heading=_heading(trace, workload, in_use),
        made_on=date.today().isoformat(),
    )


_MIXED: Final = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}


def _heading(trace: Trace, workload: Workload, in_use: Layout | None) -> str:
    """Say what is predicted, as `58,430 steps × batch 64, bf16-mixed, recorded on L4`."""
    steps = workload.training_iterations
    count = "A training step" if steps is None else f"{steps:,} step{'' if steps == 1 else 's'}"
    parts = [count if trace.samples is None else f"{count} × batch {trace.samples:,}"]  # noqa: RUF001
    autocast = trace.flags.autocast_dtype
    dtypes = [parameter.dtype for parameter in trace.parameters]
    if autocast is not None:
        parts.append(_MIXED.get(autocast, f"{autocast}-mixed"))
    elif dtypes:
        parts.append(statistics.mode(dtypes))
    place = _machine_name(trace, in_use)
    return f"{', '.join(parts)}, recorded on {'the meta device' if trace.device == 'meta' else place}"


def _machine_name(trace: Trace, in_use: Layout | None) -> str:
    if in_use is not None:
        return in_use.name
    return trace.gpu_reported_name or trace.device.upper()


def _machine_in_use(
    trace: Trace,
    in_use: Layout | None,
    workload: Workload,
    assumptions: Assumptions,
    memory: MemoryNeed,
    *,
    forecast: Interval[float] | None,
    factor: float,
) -> MachineInUse | None:
    """Time the run on the machine that the step was recorded on, by its own steps; None if none was timed."""
    seconds = measured_seconds(trace)
    if seconds is None or seconds <= 0 or trace.device == "meta":
        return None
    name = _machine_name(trace, in_use)
    fastest, slowest = min(trace.measured_steps, default=seconds), max(trace.measured_steps, default=seconds)
    step = Iteration(
        gpu=name,
        interval=Interval(min(fastest, seconds), seconds, max(slowest, seconds)),
        device_seconds=seconds,
        host_seconds=0.0,
        coverage={},
        forward_seconds=seconds / 3,  # the backward pass computes twice as much
    )
    run = run_of(step, workload, None, batches=trace.batches)
    run = run if forecast is None else replace(run, total=forecast)
    run = run.scaled(factor).cut_off(workload.time_limit_seconds)
    if in_use is None:
        return MachineInUse(name=name, step_seconds=seconds, cycle_seconds=run.cycle_seconds, total=run.total)
    return MachineInUse(
        name=name,
        step_seconds=seconds,
        cycle_seconds=run.cycle_seconds,
        total=run.total,
        price=price_of(run, in_use, offers=assumptions.offers, usd_per_hour=assumptions.usd_per_hour),
        memory=memory,
    )


def _run_on(
    layout: Layout,
    step: Iteration,
    validation: Iteration | None,
    workload: Workload,
    trace: Trace,
    assumptions: Assumptions,
) -> Run:
    """Predict the rest of the run on a layout, whose replicas share it and whose loaders share the cores."""
    replicas = assumptions.strategy.replicas(layout)
    own = crowded_workload(
        shared_workload(workload, replicas=replicas, recorded=trace.world_size),
        gpus_per_node=layout.gpus_per_node,
        recorded=trace.world_size // trace.num_nodes,
        cores_per_node=assumptions.cores_per_node,
    )
    return run_of(step, own, validation, batches=trace.batches, replicas=replicas)


def layout_in_use(trace: Trace, origin: Gpu) -> Layout:
    """Find the GPUs that the recorded processes trained on."""
    return Layout(origin, max(trace.world_size // trace.num_nodes, 1), trace.num_nodes)


def _validation_steps(
    validation: Trace | None,
    layouts: Sequence[Layout],
    sharing: Strategy,
    setting: Setting,
    tables: ShardedEmbeddings | None,
) -> Sequence[Iteration | None]:
    """Predict one validation batch on each layout; replicas work by themselves, the GPUs of one together."""
    if validation is None:
        return [None] * len(layouts)
    single = single_steps(validation, setting)
    if tables is not None:
        return tables.steps(single, single.steps, layouts)
    if sharing.model_parallel == 1:
        return [single.steps[setting.gpus.index(layout.gpu)] for layout in layouts]
    own = replace(sharing, micro_batches=None)  # its batch has a size of its own
    return shared_steps(single, single.steps, layouts, own, setting)


def _learnt(
    trace: Trace, steps: Sequence[Iteration], history: Sequence[HistoryRecord], origin: Gpu | None
) -> list[Correction | None]:
    """Find what earlier runs say of the step on each GPU."""
    if not history:
        return [None] * len(steps)
    fingerprint, model = fingerprint_of(trace), model_fingerprint_of(trace)
    return [
        correction_for(
            history,
            fingerprint,
            step,
            is_measured=False,
            model=model,
            samples=trace.samples,
        )
        if origin is None or step.gpu != origin.name or not trace.measured_steps
        else None
        for step in steps
    ]


def _on_layouts(
    single: SingleSteps,
    learnt: Sequence[Correction | None],
    layouts: Sequence[Layout],
    in_use: Layout | None,
    sharing: Strategy,
    setting: Setting,
    tables: ShardedEmbeddings | None,
) -> list[Iteration]:
    """Predict one kind of step on each layout, corrected by earlier runs, and as measured on the layout in use."""
    steps = [
        step if correction is None else step.scaled(correction.step, note=correction.note(step.gpu))
        for step, correction in zip(single.steps, learnt, strict=True)
    ]
    if tables is None:
        shared = shared_steps(single, steps, layouts, sharing, setting)
    else:
        shared = tables.steps(single, steps, layouts)
    return [
        step.as_measured(single.recorded.measured_steps) if layout == in_use and layout.count > 1 else step
        for step, layout in zip(shared, layouts, strict=True)
    ]


def _memory_need(
    memory: Iterable[tuple[Trace, StepMemory]],
    layout: Layout,
    sharing: Strategy,
    tables: ShardedEmbeddings | None,
    *,
    reported_bytes: float | None,
) -> MemoryNeed:
    """Judge whether the kind of step that needs most fits on each GPU of a layout; nothing if no kind's is known."""
    found = []
    for kind, one in memory:
        if tables is not None and layout.count > 1:
            needed = sharded_memory_bytes(kind, layout, tables)
        else:
            needed = shared_memory_bytes(one.bytes_on(layout.gpu), kind, layout, sharing)
        if needed is not None:
            found.append((needed, one))
    if not found:
        return MemoryNeed()
    needed, one = max(found, key=lambda each: each[0])
    part = one.allocated_on(layout.gpu) / max(one.bytes_on(layout.gpu), 1)
    return memory_need(
        layout, needed, relative=one.relative, allocated_bytes=needed * part, reported_bytes=reported_bytes
    )


def sharded_memory_bytes(kind: Trace, layout: Layout, tables: ShardedEmbeddings) -> float | None:
    """Find the peak memory of the fullest GPU of a layout that shares a step's embedding tables; None if not known.

    Args:
        kind: The step.
        layout: Two GPUs or more.
        tables: How they are shared.
    """
    dense = without_tables(kind)
    alone = step_memory(dense)
    if alone is None:
        return None
    shared = shared_memory_bytes(alone.bytes_on(layout.gpu), dense, layout, Strategy())
    return tables.memory_bytes(shared, kind, layout)


def _notes(singles: Iterable[SingleSteps]) -> tuple[str, ...]:
    """Collect what is to be said of the kinds of step, each sentence once."""
    notes: dict[str, None] = {}
    for single in singles:
        kind, untranslated = single.recorded, translation_notes(single.trace, single.timed.items)
        notes |= dict.fromkeys((*kind.notes, *code_path_notes(kind), *untranslated, *memory_notes(kind)))
    return tuple(notes)
