"""Run the whole pipeline in one call: a Trace and GPU names give Predictions.

`trace -> timed work (kernels) -> Iteration (timeline, distributed) -> Run -> Price and memory (cost)`. Example::

    import lightning_predict as lp

    trace = lp.capture(step)
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000)
    print(result["T4"].total_seconds, result["T4"].cost_usd)
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from os import PathLike
from typing import Final

from lightning_predict.assumptions import Assumptions, documents_assumptions
from lightning_predict.cost.offers import Offer
from lightning_predict.cost.prediction import Charges, MachineInUse, Prediction, UserPrice, price_of
from lightning_predict.distributed.strategy import LightningStrategy, Strategy, strategy_of
from lightning_predict.errors import InvalidArgumentError
from lightning_predict.extensions.embeddings.tables import LOOK_UPS, Skew
from lightning_predict.gpus import DEFAULT_GPUS, Gpu
from lightning_predict.gpus.layouts import Layout, layouts_of
from lightning_predict.gpus.own import add_gpus
from lightning_predict.interval import Interval
from lightning_predict.kernels.fabric import Interconnect
from lightning_predict.reports.format import gibibytes
from lightning_predict.reports.predictions import Predictions
from lightning_predict.run.history import read_history
from lightning_predict.run.workload import Loader, Workload, run_of
from lightning_predict.step import Step
from lightning_predict.timeline.iteration import Iteration
from lightning_predict.timeline.whole_steps import measured_seconds
from lightning_predict.tracing.trace import Trace
from lightning_predict.weights.source import AnyWeights


@documents_assumptions
def predict(
    trace: Trace,
    gpus: Sequence[str | Gpu | Layout] = DEFAULT_GPUS,
    *,
    iterations: int | None = None,
    num_nodes: int = 1,
    strategy: str | Strategy | LightningStrategy = "ddp",
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
    charges: Charges | None = None,
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
        charges: See `Assumptions`.

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
        charges=charges,
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
    gpus = [layout.gpu for layout in layouts]
    step = Step(trace, gpus, assumptions, workload, validation=validation, forecast=forecast)
    predictions = tuple(step.on(step.as_offered(layout)) for layout in layouts)
    beside = (
        None if workload.training_iterations is None or assumptions.charges is None else assumptions.charges.sentence
    )
    return Predictions(
        predictions,
        used_gpu=None if step.in_use is None else step.in_use.name,
        notes=(*step.notes, *filter(None, (beside, _tables_too_large(trace, predictions)))),
        machine=None if step.in_use in layouts else _machine_in_use(step, workload, assumptions),
        heading=_heading(step.trace, workload, step.in_use, assumptions, layouts),
        made_on=date.today().isoformat(),
    )


TABLES_DECIDE: Final = 0.5
"""Share of a GPU's memory from which embedding tables are what to divide."""


def _tables_too_large(trace: Trace, predictions: Sequence[Prediction]) -> str | None:
    """Say what divides embedding tables where a step does not fit, for their sake before all; None elsewhere."""
    looked_up = {
        position if operation.inputs[0].id is None else operation.inputs[0].id: operation.inputs[0].size_bytes
        for position, operation in enumerate(trace.operations)
        if operation.name in LOOK_UPS and operation.phase == "forward" and operation.inputs
    }
    tables = sum(looked_up.values())
    if any(one.fits is False and tables > TABLES_DECIDE * (one.memory.usable_bytes or 0.0) for one in predictions):
        size = f"{gibibytes(tables)} GiB"
        return f"Embedding tables take {size} as they are: `lightning-predict shard` divides them among several GPUs."
    return None


_MIXED: Final = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}


def _heading(
    trace: Trace,
    workload: Workload,
    in_use: Layout | None,
    assumptions: Assumptions,
    layouts: Sequence[Layout],
) -> str:
    """Say what is predicted, as `58,430 steps × batch 64, bf16-mixed, recorded on L4`, and what was asked of it."""
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
    parts.append(f"recorded on {'the meta device' if trace.device == 'meta' else place}")
    if assumptions.release is not None and not trace.has_measured_kernels:
        parts.append(f"under torch {assumptions.release}")
    if assumptions.host_assumed.words is not None:
        parts.append(f"with {assumptions.host_assumed.words}")
    if any(layout.count > 1 for layout in layouts):
        parts.append(f"several GPUs by {assumptions.strategy.name}")
    return ", ".join(parts)


def _machine_name(trace: Trace, in_use: Layout | None) -> str:
    if in_use is not None:
        return in_use.name
    return trace.gpu_reported_name or trace.device.upper()


def _machine_in_use(step: Step, workload: Workload, assumptions: Assumptions) -> MachineInUse | None:
    """Time the run on the machine that the step was recorded on, by its own steps; None if none was timed."""
    trace, in_use = step.trace, step.in_use
    seconds = measured_seconds(trace)
    if seconds is None or seconds <= 0 or trace.device == "meta":
        return None
    name = _machine_name(trace, in_use)
    fastest, slowest = min(trace.measured_steps, default=seconds), max(trace.measured_steps, default=seconds)
    measured = Iteration(
        gpu=name,
        interval=Interval(min(fastest, seconds), seconds, max(slowest, seconds)),
        device_seconds=seconds,
        host_seconds=0.0,
        coverage={},
        forward_seconds=seconds / 3,  # the backward pass computes twice as much
    )
    run = step.as_it_went(run_of(measured, workload, None, batches=trace.batches), in_use)
    machine = MachineInUse(
        name=name,
        step_seconds=seconds,
        cycle_seconds=run.cycle_seconds,
        total=run.total,
        at_most=run.at_most,
        is_cut_off=run.is_cut_off,
    )
    if in_use is None:
        return machine
    return replace(
        machine,
        price=price_of(run, in_use, offers=assumptions.offers, usd_per_hour=assumptions.usd_per_hour),
        memory=step.memory_need(in_use, assumptions.strategy, reported_bytes=trace.gpu_memory_bytes),
    )
