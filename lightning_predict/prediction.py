"""The whole pipeline in one call: a Trace and GPU names give Predictions.

`trace -> timed work (kernels) -> Iteration (timeline) -> Run (scaling) -> Quote (cost) -> Prediction`. Example::

    import lightning_predict as lp

    trace = lp.capture(step)
    result = lp.predict(trace, gpus=["T4", "L4"], iterations=1000)
    print(result["T4"].total_seconds, result["T4"].cost_usd)
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lightning_predict.cost.memory import memory_notes, step_memory
from lightning_predict.cost.quotes import UserPrice, check_price, quote_of
from lightning_predict.cost.records import Offer, Prediction, Quote
from lightning_predict.errors import InvalidArgumentError, UnknownGpuError
from lightning_predict.gpus import DEFAULT_GPUS, Gpu
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.kernels.choice import check_method, timed_work
from lightning_predict.kernels.estimates import KernelModels, compute_dtype_on, problem_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import Problem, problem_batch
from lightning_predict.reports.predictions import Predictions
from lightning_predict.scaling.history import (
    HistoryRecord,
    correction_for,
    fingerprint_of,
    model_fingerprint_of,
    read_history,
)
from lightning_predict.scaling.records import Loader, Run, Workload
from lightning_predict.scaling.totals import run_of
from lightning_predict.timeline.records import Iteration
from lightning_predict.timeline.same_gpu import SameGpuCheck, corrected_iterations, same_gpu_check
from lightning_predict.tracing.records import Trace

_LAYOUT = re.compile(r"(?:(\d+)x)?(\d+)x(.+)")


def check_gpus(gpus: Sequence[str]) -> tuple[str, ...]:
    """Our names of the GPUs asked for, in order, each once.

    Raises:
        InvalidArgumentError: An empty list, a bare string, or a layout of several GPUs.
        UnknownGpuError: A name that the catalogue does not hold.
    """
    if isinstance(gpus, str):
        raise InvalidArgumentError(f"gpus={gpus!r} is one string; give a list of names, for example [{gpus!r}].")
    if not gpus:
        raise InvalidArgumentError("gpus is empty; name at least one GPU, for example ['T4'].")
    names = []
    for name in gpus:
        layout = _LAYOUT.fullmatch(name)
        if layout is not None and _is_unknown(name):
            nodes, per_node, base = int(layout[1] or 1), int(layout[2]), layout[3]
            if nodes * per_node != 1:
                raise InvalidArgumentError(
                    f"gpus has {name!r}, a layout of {nodes * per_node} GPUs; this version predicts one GPU at a time. "
                    f"Ask for {base!r}."
                )
            name = base
        names.append(find_gpu(name).name)
    return tuple(dict.fromkeys(names))


def _is_unknown(name: str) -> bool:
    try:
        find_gpu(name)
    except UnknownGpuError:
        return True
    return False


def predict(
    trace: Trace,
    gpus: Sequence[str] = DEFAULT_GPUS,
    *,
    iterations: int | None = None,
    num_nodes: int = 1,
    strategy: str = "ddp",
    method: str = "auto",
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
    weights: str | None = None,
    history: bool = True,
) -> Predictions:
    """Predict the recorded step on GPUs.

    Args:
        trace: What one step did, from `capture` or `Trace.load`.
        gpus: Names of GPUs; ours, torch's and clouds' spellings are understood.
        iterations: Steps still to come; None predicts the step alone.
        num_nodes: Machines; this version predicts one.
        strategy: How several GPUs would share the work; without effect on one.
        method: `auto`, `mlp` or `wave` (see `kernels/choice.py`).
        offers: Offers to take prices from; None takes those that ship with the package.
        usd_per_hour: Your own price, one for all GPUs or by GPU name; it comes first.
        weights: Folder or file of weights; None searches the cache and the bundled files.
        history: Learn from earlier runs of this very step (see `scaling/history.py`).

    Returns:
        One Prediction a GPU, in the order asked.

    Raises:
        UnknownGpuError: A name that the catalogue does not hold.
        InvalidArgumentError: An empty list, a bad price, method or number of iterations.
        WeightsError: Weights that cannot be found or trusted.
    """
    if iterations is not None and iterations < 0:
        raise InvalidArgumentError(f"iterations={iterations} is negative; give the number of steps still to come.")
    if num_nodes != 1:
        raise InvalidArgumentError(f"num_nodes={num_nodes}: this version predicts one node with one GPU.")
    if strategy not in ("ddp", "auto"):
        raise InvalidArgumentError(f"strategy={strategy!r} is not known; this version takes 'ddp' or 'auto'.")
    waits = trace.loader_seconds
    workload = Workload(
        training_iterations=iterations,
        samples_per_iteration=trace.samples,
        loader=Loader(seconds_per_batch=statistics.mean(waits) if waits else 0.0),
    )
    return predict_workload(
        trace,
        gpus,
        workload=workload,
        method=method,
        offers=offers,
        usd_per_hour=usd_per_hour,
        weights=weights,
        history=read_history() if history else (),
    )


def predict_workload(
    trace: Trace,
    gpus: Sequence[str],
    *,
    workload: Workload,
    validation: Trace | None = None,
    method: str = "auto",
    offers: Sequence[Offer] | None = None,
    usd_per_hour: UserPrice = None,
    weights: str | None = None,
    history: Sequence[HistoryRecord] = (),
) -> Predictions:
    """Predict a run that is still to come: `predict` with validation and everything else that a Trainer knows.

    Args:
        trace: One training step.
        gpus: Names of GPUs.
        workload: Steps and validation batches still to come.
        validation: One validation batch; None takes the forward share of the training step.
        method: See `predict`.
        offers: See `predict`.
        usd_per_hour: See `predict`.
        weights: See `predict`.
        history: Earlier runs; those of the same model on the same GPU correct its prediction.

    Raises:
        LightningPredictError: As `predict`.
    """
    names = check_gpus(gpus)
    check_method(method)
    check_price(usd_per_hour)
    targets = [find_gpu(name) for name in names]
    origin = gpu_in_use(trace)
    models = kernel_models(names if origin is None else (*names, origin.name), weights)
    same_gpu = same_gpu_check(trace, origin, models)
    steps = _steps(trace, targets, origin, models, method, same_gpu)
    validations: Sequence[Iteration | None] = [None] * len(targets)
    if validation is not None:
        validations = _steps(validation, targets, origin, models, method, same_gpu_check(validation, origin, models))
    memory = step_memory(trace)
    fingerprint, model = (fingerprint_of(trace), model_fingerprint_of(trace)) if history else ("", None)
    notes = (*trace.notes, *memory_notes(trace))
    predictions = []
    for target, step, check in zip(targets, steps, validations, strict=True):
        is_measured = target == origin and bool(trace.step_seconds)
        correction = correction_for(
            history, fingerprint, step, is_measured=is_measured, model=model, samples=trace.samples
        )
        if correction is not None:
            step = correction.step_of(step)
        run = run_of(step, workload, check, batches=trace.batches)
        run = run if correction is None else correction.run_of(run)
        quote = quote_of(
            run,
            target,
            memory_bytes=None if memory is None else memory.bytes_on(target),
            reported_bytes=trace.gpu_memory_bytes if target == origin else None,
            offers=offers,
            usd_per_hour=usd_per_hour,
        )
        in_use = same_gpu if target == origin else None
        measured = _measured_seconds(trace) if origin is not None and target == origin else None
        predictions.append(_flat(step, run, quote, workload, measured, in_use))
    return Predictions(tuple(predictions), used_gpu=None if origin is None else origin.name, notes=notes)


def gpu_in_use(trace: Trace) -> Gpu | None:
    """The catalogue's row of the GPU that the trace was recorded on; None off CUDA and for GPUs it does not hold."""
    if trace.gpu_reported_name is None:
        return None
    try:
        return find_gpu(trace.gpu_reported_name, memory_bytes=trace.gpu_memory_bytes)
    except UnknownGpuError:
        return None


def operator_seconds(
    operation: str,
    gpu: str,
    *,
    dtype: str = "float32",
    weights: str | None = None,
    **shape: float | Sequence[float] | npt.NDArray[np.generic],
) -> float | npt.NDArray[np.float64]:
    """Device seconds of one forward call of an operation.

    Args:
        operation: For example `linear`, `bmm`, `conv2d`, `attention`, `layer_norm`, `add`.
        gpu: Name of a GPU.
        dtype: `float64`, `float32`, `tf32`, `float16`, `bfloat16`, `float8`.
        weights: See `predict`.
        **shape: The operation's shape words, scalars or arrays that broadcast: `b`, `m`, `n`, `k` for products;
            `batch`, `in_channels`, `out_channels`, `kernel_size`, `image_size`, `stride`, `padding` for convolutions;
            `batch`, `heads`, `kv_heads`, `seq`, `head_dim`, `causal` for attention; `rows`, `cols` for the rest.

    Returns:
        A float for scalars, an array of the broadcast shape otherwise.

    Raises:
        UnknownOperationError: The operation or one of its words is not known; the message lists those there are.
        InvalidArgumentError: A dtype or a value out of range.
        UnknownGpuError: The GPU is not in the catalogue.
    """
    target = find_gpu(gpu)
    shape.pop("implementation", None)  # Fused kernels of one class are timed alike.
    batch = problem_batch(operation, compute_dtype_on(dtype, target), **shape)
    columns = np.stack(list(batch.columns.values()), axis=1)
    problems = [Problem(operation, batch.dtype, tuple(row)) for row in columns.tolist()]
    seconds = problem_times(problems, [target], kernel_models((target.name,), weights)).seconds[0]
    if all(np.ndim(value) == 0 for value in shape.values()):
        return float(seconds[0])
    broadcast: npt.NDArray[np.float64] = seconds.reshape(np.broadcast_shapes(*map(np.shape, shape.values())))
    return broadcast


def _steps(
    trace: Trace,
    targets: Sequence[Gpu],
    origin: Gpu | None,
    models: KernelModels | None,
    method: str,
    same_gpu: SameGpuCheck | None,
) -> tuple[Iteration, ...]:
    timed = timed_work(trace, targets, origin=origin, models=models, method=method)
    return corrected_iterations(trace, timed, targets, origin=origin, check=same_gpu)


def _measured_seconds(trace: Trace) -> float | None:
    return statistics.median(trace.step_seconds) if trace.step_seconds else None


def _flat(
    step: Iteration,
    run: Run,
    quote: Quote,
    workload: Workload,
    measured: float | None,
    same_gpu: SameGpuCheck | None,
) -> Prediction:
    samples = workload.samples_per_iteration
    coverage: Mapping[str, float] = dict(step.coverage)
    return Prediction(
        gpu=step.gpu,
        iteration_seconds=step.seconds,
        iteration_seconds_low=step.low_seconds,
        iteration_seconds_high=step.high_seconds,
        device_seconds=step.device_seconds,
        host_seconds=step.host_seconds,
        measured_seconds=measured,
        unmeasured_seconds=None if same_gpu is None else same_gpu.predicted_seconds,
        iterations=workload.training_iterations,
        total_seconds=run.total_seconds,
        total_seconds_low=run.total_low_seconds,
        total_seconds_high=run.total_high_seconds,
        validation_seconds=run.validation_seconds,
        validation_is_estimated=run.validation_is_estimated,
        cycle_seconds=run.cycle_seconds,
        epoch_seconds=run.epoch_seconds,
        loader_seconds=run.loader_seconds,
        checkpoint_seconds=run.checkpoint_seconds,
        checkpoint_is_estimated=run.checkpoint_is_estimated,
        at_most=run.at_most,
        samples_per_second=None if samples is None else samples / step.seconds,
        usd_per_hour=quote.usd_per_hour,
        cost_usd=quote.cost_usd,
        offer=None if quote.offer is None else quote.offer.label,
        memory_bytes=quote.memory_bytes,
        fits=quote.fits,
        memory_fit=quote.memory_fit,
        memory_free_bytes=quote.memory_free_bytes,
        coverage=coverage,
        verdict=step.verdict,
        notes=step.notes,
    )
