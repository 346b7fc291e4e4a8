"""`predict`: the whole pipeline in one call, from a Trace and GPU names to Predictions.

`trace -> timed work (kernels) -> StepPrediction (timeline, layouts) -> Run -> Price and memory (cost)`. Example::

    import lightning_predict as lp

    trace = lp.capture(step)
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000)
    print(result["T4"].total_seconds, result["T4"].cost_usd)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Final

from lightning_predict.assumptions import Assumptions, Skew, fill_in_assumptions
from lightning_predict.base.checked import plain_number, shown
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.files import history_path
from lightning_predict.base.interval import Interval
from lightning_predict.base.note import decisive
from lightning_predict.base.ties import ordered
from lightning_predict.cost.offers import Offer, today
from lightning_predict.cost.prediction import Charges, MachineInUse, Prediction, UserPrice, price_of
from lightning_predict.cost.priced_gpus import ALL, PricedGpus, layouts_to_predict
from lightning_predict.hardware import Gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.kernels.memory_bound import LOOK_UP_CALLS
from lightning_predict.layouts.strategy import LightningStrategy, Strategy, parse_strategy
from lightning_predict.record.precision import emulates_bfloat16, in_float16
from lightning_predict.record.recorded_on import gpu_in_use, has_measured_host
from lightning_predict.record.trace import Trace, measured_seconds
from lightning_predict.reports.format import gibibytes, listed, share
from lightning_predict.reports.predictions import Predictions
from lightning_predict.run.workload import STEPS_SHOWN, Loader, Workload, predict_run
from lightning_predict.step_predictor import StepPredictor, layout_in_use
from lightning_predict.timeline.step_prediction import StepPrediction
from lightning_predict.weights.source import AnyWeights

if TYPE_CHECKING:
    from lightning_predict.hardware.own_rates import OwnRates
    from lightning_predict.kernels.interconnect import Interconnect
    from lightning_predict.run.history import HistoryRecord


@fill_in_assumptions
def predict(  # noqa: D417
    trace: Trace,
    gpus: str | Sequence[str | Gpu | Layout] = ALL,
    *,
    iterations: int | None = None,
    loader_seconds: float | None = None,
    loader_samples_per_second: float | None = None,
    evaluation_seconds: float = 0.0,
    num_nodes: int = 1,
    strategy: str | Strategy | LightningStrategy = "ddp",
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
    weights: AnyWeights = None,
    history: bool = True,
    interconnect: Interconnect | None = None,
    release: str | None = None,
    kernels: str | Sequence[str] = (),
    host: str | float | None = None,
    zipf_alpha: Skew | None = None,
    gpus_file: str | PathLike[str] | None = None,
    charges: Charges | None = None,
    measured: OwnRates | None = None,
) -> Predictions:
    """Predict time, memory and cost of the recorded step on GPUs.

    Args:
        trace: A recorded step, from `capture` or `Trace.load`.
        gpus: A group (`all`, `datacenter` or `consumer`: its NVIDIA GPUs with a current price), or names of GPUs or
            layouts, as in torch or at cloud providers, or `Gpu` and `Layout` objects. `8xL4` is a machine with eight
            GPUs, `2x8xH100-SXM-80GB` two machines. Each replica processes the number of samples of the trace.
        iterations: Number of remaining steps on the recorded number of GPUs. A larger layout needs fewer steps for the
            same samples. None predicts only the step.
        loader_seconds: Seconds that the data loader of one process needs to load a batch while the GPU computes. A step
            takes at least this time. None uses the recorded waits for the loader.
        loader_samples_per_second: Speed of the data loader of one process, instead of `loader_seconds`.
        evaluation_seconds: Seconds of the run outside training steps (evaluation, checkpoints), equal on every GPU.
        num_nodes: Number of machines, for layouts whose name does not include it.
        history: Whether to correct predictions with earlier runs of the same step (see `run/history.py`).
        gpus_file: TOML file that adds your own GPUs to the catalogue of this process (see `hardware/user_gpus.py`).
        The other arguments are fields of `Assumptions`.

    Returns:
        One Prediction per GPU or layout: in the given order, or for a group, cheapest first.

    Raises:
        UnknownGpuError: The catalogue does not have a named GPU, or lacks the GPU that recorded a trace without shapes.
        InvalidArgumentError: `gpus` is empty, or a price, layout, strategy or number of iterations is invalid.
        TraceError: The trace has no operations, or has neither shapes nor kernels.
        WeightsError: Weights cannot be found or trusted. An unreachable address only adds a note.
    """
    if gpus_file is not None:
        from lightning_predict.hardware.user_gpus import add_gpus

        add_gpus(gpus_file)
    workload = remaining_steps(
        trace,
        iterations,
        loader_seconds=loader_seconds,
        loader_samples_per_second=loader_samples_per_second,
        evaluation_seconds=evaluation_seconds,
    )
    layouts = layouts_to_predict(gpus, num_nodes=num_nodes, offers=offers, usd_per_hour=usd_per_hour)
    assumptions = Assumptions(
        strategy=parse_strategy(strategy),
        offers=offers,
        usd_per_hour=usd_per_hour,
        weights=weights,
        history=_earlier_runs() if history else (),
        interconnect=interconnect,
        release=release,
        kernels=kernels,
        host=host,
        zipf_alpha=zipf_alpha,
        charges=charges,
        measured=measured,
    )
    check_host_class(trace, assumptions)
    return predict_workload(trace, layouts, workload, assumptions)


def check_host_class(trace: Trace, assumptions: Assumptions) -> None:
    """Refuse a CPU class for a step whose CPU time was measured."""
    if assumptions.host_assumed.spread is not None and has_measured_host(trace):
        raise InvalidArgumentError(
            f"host={shown(assumptions.host)} has no effect: the CPU time of this step was measured. Leave host out, or "
            "give a factor on the measured time, for example 0.5 for a CPU that is twice as fast."
        )


def _earlier_runs() -> tuple[HistoryRecord, ...]:
    if not history_path().exists():
        return ()
    from lightning_predict.run.history import read_history

    return read_history()


def remaining_steps(
    trace: Trace,
    iterations: int | None,
    *,
    loader_seconds: float | None = None,
    loader_samples_per_second: float | None = None,
    evaluation_seconds: float = 0.0,
) -> Workload:
    """Return a Workload with this number of recorded steps, and a loader and evaluation as given or recorded.

    Arguments as in `predict`.
    """
    steps = None if iterations is None else _number("iterations", iterations)
    if steps is not None and (steps < 0 or steps % 1):
        problem = "is negative" if steps < 0 else "is not a whole number"
        raise InvalidArgumentError(f"iterations={iterations} {problem}; give the number of remaining steps.")
    evaluation_seconds = _number("evaluation_seconds", evaluation_seconds)
    if not evaluation_seconds >= 0 or (evaluation_seconds and iterations is None):
        raise InvalidArgumentError(
            f"evaluation_seconds={evaluation_seconds} needs the number of steps (iterations), and cannot be negative."
        )
    return Workload(
        training_iterations=None if steps is None else int(steps),
        samples_per_iteration=trace.samples,
        loader=_loader(trace, loader_seconds, loader_samples_per_second),
        between=Interval(evaluation_seconds, evaluation_seconds, evaluation_seconds),
    )


def _number(name: str, value: object) -> float:
    """Convert an argument, for example a scalar of torch, to a number that JSON can hold."""
    number = plain_number(value)
    if number is None:
        raise InvalidArgumentError(f"{name}={shown(value)} is not a number; expected a finite number.")
    return number


def _loader(trace: Trace, seconds: float | None, rate: float | None) -> Loader:
    seconds = None if seconds is None else _number("loader_seconds", seconds)
    rate = None if rate is None else _number("loader_samples_per_second", rate)
    if seconds is None and rate is None:
        waits = trace.loader_seconds
        return Loader(seconds_per_batch=statistics.mean(waits) if waits else 0.0)
    if rate is not None and (seconds is not None or not rate > 0 or trace.samples is None):
        raise InvalidArgumentError(
            f"loader_samples_per_second={rate} cannot be used; give a rate above 0, no loader_seconds beside it, and a "
            "step recorded with its number of samples (samples_per_step)."
        )
    if rate is not None and trace.samples is not None:
        seconds = trace.samples / trace.batches / rate
    if seconds is None or not seconds >= 0:
        raise InvalidArgumentError(f"loader_seconds={seconds} is no time; give the seconds of one batch.")
    return Loader(seconds_per_batch=seconds, overlaps=True)


def predict_workload(
    trace: Trace,
    layouts: Sequence[Layout],
    workload: Workload,
    assumptions: Assumptions,
    *,
    validation: Trace | None = None,
    forecast: Interval[float] | None = None,
    adapts_precision: bool = True,
) -> Predictions:
    """Predict the rest of a run: `predict` with validation and other facts that a Trainer knows.

    Without `validation`, a validation batch takes the forward pass of the training step. Without `forecast`, the time
    on the machine in use follows from the trace. The GPU of the recording is added to a `PricedGpus`.
    """
    assumptions = assumptions.of_step(trace)
    group = layouts.group if isinstance(layouts, PricedGpus) else None
    origin = gpu_in_use(trace)
    if group is not None and origin is not None:
        layouts = tuple(dict.fromkeys((*layouts, layout_in_use(trace, origin))))
    layouts = assumptions.with_own_rates(layouts)
    gpus = [layout.gpu for layout in layouts]
    step = StepPredictor(trace, gpus, assumptions, workload, validation=validation, forecast=forecast)
    predictions = tuple(step.predict_layout(step.with_offered_network(layout)) for layout in layouts)
    compared = tuple(_beside_eager(trace, predictions, assumptions, step)) if assumptions.kernels_applied else ()
    if adapts_precision:
        emulating = [layout for layout in layouts if takes_float16(trace, layout)]
        instead = _in_float16(trace, emulating, workload, assumptions, validation, step)
        predictions = tuple(instead.get(prediction.gpu, prediction) for prediction in predictions)
    lacking: dict[tuple[str, ...], list[Layout]] = {}
    for layout in layouts:
        if missing := assumptions.kernels_missing_on(layout.gpu):
            lacking.setdefault(missing, []).append(layout)
    for missing, without in lacking.items():
        fewer = assumptions.without_kernels(missing)
        repeated = predict_workload(trace, without, workload, fewer, validation=validation, forecast=forecast)
        predictions = tuple(repeated.get(prediction.gpu, prediction) for prediction in predictions)
    if group is not None:
        predictions = tuple(ordered(predictions, _cost_of_steps))
    notes: list[str] = list(step.notes)
    notes += decisive(
        f"Predicted without {listed(missing)}: {', '.join(sorted({layout.gpu.name for layout in without}))}."
        for missing, without in lacking.items()
    )
    notes += decisive(compared)
    if workload.training_iterations is not None and assumptions.charges is not None:
        notes += filter(None, (assumptions.charges.sentence,))
    notes += decisive(filter(None, (_tables_too_large(trace, predictions),)))
    return Predictions(
        predictions,
        used_gpu=None if step.in_use is None else step.in_use.name,
        notes=tuple(notes),
        machine=None if step.in_use in layouts else _machine_in_use(step, workload, assumptions),
        heading=_heading(step.trace, workload, step.in_use, assumptions, predictions),
        made_on=today().isoformat(),
        group=group,
    )


def _in_float16(
    trace: Trace,
    layouts: Sequence[Layout],
    workload: Workload,
    assumptions: Assumptions,
    validation: Trace | None,
    in_bfloat16: StepPredictor,
) -> dict[str, Prediction]:
    """Predict a step under autocast in bfloat16 as under autocast in float16; empty without a layout."""
    if not layouts:
        return {}
    changed = step_in_float16(trace, assumptions)
    validating = None if validation is None else validation.changed(in_float16)
    gpus = [layout.gpu for layout in layouts]
    step = StepPredictor(changed, gpus, assumptions, workload, validation=validating, same_sizes=in_bfloat16)
    predictions = [step.predict_layout(step.with_offered_network(layout)) for layout in layouts]
    return {one.gpu: replace(one, step=replace(one.step, precision="16-mixed")) for one in predictions}


def takes_float16(trace: Trace, layout: Layout) -> bool:
    """Return whether a step under autocast in bfloat16 is predicted in float16 on a layout, unless it is in use."""
    if trace.flags.autocast_dtype != "bfloat16" or not emulates_bfloat16(layout.gpu):
        return False
    origin = gpu_in_use(trace)  # `layout` may have the user's own rates of this GPU
    return origin is None or origin.name != layout.gpu.name or layout != layout_in_use(trace, layout.gpu)


def step_in_float16(trace: Trace, assumptions: Assumptions) -> Trace:
    """Return a step under autocast in bfloat16 as under autocast in float16, with the measurements that still hold."""
    if gpu_in_use(trace) is None:
        return trace.changed(in_float16)
    from lightning_predict.run.carried_measurements import carry_measurements

    return trace.changed(lambda kind: carry_measurements(kind, in_float16, assumptions.weights))


def _beside_eager(
    trace: Trace, predictions: Sequence[Prediction], assumptions: Assumptions, step: StepPredictor
) -> Iterator[str]:
    """Yield on which GPUs a step with the kernels asked for is slower than PyTorch's eager step, or as fast."""
    names = assumptions.kernels_applied
    having = [one for one in predictions if not assumptions.kernels_missing_on(one.layout.gpu)]
    if not having:
        return
    gpus = [one.layout.gpu for one in having]
    eager = StepPredictor(trace, gpus, assumptions.without_kernels(names), same_sizes=step)
    rates = {}
    for one in having:
        seconds = eager.iteration(one.layout, eager.strategy_on(one.layout)).seconds
        rates[one.gpu] = one.step.seconds / seconds if seconds else 1.0
    slower = {gpu: rate for gpu, rate in rates.items() if rate >= SLOWER}
    if slower:
        told = (f"{share(slower[gpu] - 1)} on {gpu}" for gpu in sorted(slower, key=slower.__getitem__, reverse=True))
        yield f"Slower with {', '.join(names)} than with PyTorch's eager kernels: by {', '.join(told)}."
    if alike := [gpu for gpu, rate in rates.items() if math.isclose(rate, 1.0, rel_tol=1e-9)]:
        where = "all these GPUs" if len(alike) == len(rates) > 1 else ", ".join(sorted(alike))
        yield f"As fast with {', '.join(names)} as by default on {where}."


def _cost_of_steps(prediction: Prediction) -> float:
    """Return the cost per recorded step as a sort key; GPUs without a price or enough memory come last."""
    if prediction.usd_per_hour is None or prediction.fits is False:
        return math.inf
    return prediction.usd_per_hour * prediction.cycle_seconds / prediction.layout.count


def shown_layouts(
    trace: Trace, layouts: Sequence[Layout], iterations: int | None, assumptions: Assumptions
) -> tuple[Layout, ...]:
    """Return the layouts of a group that a table would show, cheapest first. Named layouts are returned unchanged."""
    if not isinstance(layouts, PricedGpus):
        return tuple(layouts)
    predictions = predict_workload(trace, layouts, remaining_steps(trace, iterations), assumptions)
    return tuple(prediction.layout for prediction in predictions.shown().values())


SLOWER: Final = 1.01  # Ratio of times, with kernels and eager, from which a note says that they make a step slower

TABLES_DECIDE: Final = 0.5  # Share of a GPU's memory above which a note suggests sharding embedding tables


def _tables_too_large(trace: Trace, predictions: Sequence[Prediction]) -> str | None:
    """Return a note about sharding if a step does not fit because of its embedding tables; otherwise None."""
    looked_up = {
        position if operation.inputs[0].id is None else operation.inputs[0].id: operation.inputs[0].size_bytes
        for position, operation in enumerate(trace.operations)
        if operation.name in LOOK_UP_CALLS and operation.phase == "forward" and operation.inputs
    }
    tables = sum(looked_up.values())
    if any(one.fits is False and tables > TABLES_DECIDE * (one.memory.usable_bytes or 0.0) for one in predictions):
        size = f"{gibibytes(tables)} GiB"
        return f"Embedding tables take {size}. Use `lightning-predict shard` to divide them among GPUs."
    return None


MAX_SHARED: Final = 2  # Maximum number of layouts whose number of steps is in the heading

_MIXED: Final = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}


def _heading(
    trace: Trace, workload: Workload, in_use: Layout | None, assumptions: Assumptions, predictions: Sequence[Prediction]
) -> str:
    """Describe the predicted run and its assumptions: `58,430 steps × batch 64, bf16-mixed, recorded on L4`.

    Several GPUs share the samples, in fewer steps: `5,000 steps × batch 1 = 2,500 × batch 2 (2xL4)`.
    """
    steps = workload.training_iterations
    is_training = any(operation.phase in ("backward", "optimizer") for operation in trace.operations)
    alone = "A training step" if is_training else "A forward pass (no backward pass was recorded)"
    one, several = ("step", "steps") if is_training else ("forward pass", "forward passes")
    own = {one.gpu: one.run.shown_iterations if steps is None else one.iterations for one in predictions}
    is_unknown = all(prediction.total_seconds is None for prediction in predictions)
    if is_unknown and any(number != STEPS_SHOWN for number in own.values()):
        steps = STEPS_SHOWN
    count = alone if steps is None else f"{steps:,} {one if steps == 1 else several}"
    shared = [
        f" = {own[one.gpu]:,} × batch {one.run.samples_per_iteration:,} ({one.gpu})"  # noqa: RUF001
        for one in sorted(predictions, key=lambda prediction: prediction.num_gpus)
        if steps is not None and own[one.gpu] not in (None, steps) and one.run.samples_per_iteration is not None
    ]
    parts = [count if trace.samples is None else f"{count} × batch {trace.samples:,}{''.join(shared[:MAX_SHARED])}"]  # noqa: RUF001
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
    if assumptions.kernels_applied:
        parts.append(f"with kernels of {', '.join(_kernels_told(assumptions, predictions))}")
    if assumptions.host_assumed.words is not None and (
        assumptions.host_assumed.spread is None or not has_measured_host(trace)
    ):
        parts.append(f"with {assumptions.host_assumed.words}")
    if any(prediction.num_gpus > 1 for prediction in predictions):
        parts.append(f"several GPUs by {assumptions.strategy.name}")
    return ", ".join(parts)


def _kernels_told(assumptions: Assumptions, predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield the names of the kernels, each with the GPUs that lack them."""
    gpus = dict.fromkeys(prediction.layout.gpu for prediction in predictions)
    for name in assumptions.kernels_applied:
        lacking = [gpu.name for gpu in gpus if name in assumptions.kernels_missing_on(gpu)]
        without, only = ", ".join(lacking), ", ".join(gpu.name for gpu in gpus if gpu.name not in lacking)
        where = f"only on {only}" if only and len(only) < len(without) else f"not on {without}"
        yield f"{name} ({where})" if lacking else name


def _machine_name(trace: Trace, in_use: Layout | None) -> str:
    if in_use is not None:
        return in_use.name
    return trace.gpu_reported_name or trace.device.upper()


def _machine_in_use(step: StepPredictor, workload: Workload, assumptions: Assumptions) -> MachineInUse | None:
    """Return the run on the recording machine, from its measured steps; None if no step was timed."""
    trace, in_use = step.trace, step.in_use
    seconds = measured_seconds(trace)
    if seconds is None or seconds <= 0 or trace.device == "meta":
        return None
    name = _machine_name(trace, in_use)
    fastest, slowest = min(trace.measured_steps, default=seconds), max(trace.measured_steps, default=seconds)
    measured = StepPrediction(
        gpu=name,
        interval=Interval(min(fastest, seconds), seconds, max(slowest, seconds)),
        device_seconds=seconds,
        host_seconds=0.0,
        coverage={},
        forward_seconds=seconds / 3,  # the backward pass takes twice as long as the forward pass
    )
    run = predict_run(measured, workload, None, batches=trace.batches, replicas=trace.world_size)
    run = step.corrected(step.with_work(run, trace.world_size), in_use)
    machine = MachineInUse(name=name, step=measured, run=run, layout=in_use)
    if in_use is None:
        return machine
    return replace(
        machine,
        price=price_of(run, in_use, offers=assumptions.offers, usd_per_hour=assumptions.usd_per_hour),
        memory=step.memory_need(in_use, assumptions.strategy, reported_bytes=trace.gpu_memory_bytes),
    )
