"""From what a fit has shown so far to the predictions of its rest, and what is expected of the machine in use.

Example::

    question = Question(gpus=("T4", "L4"))
    answer = predict_rest(trainer, question, trace, validation=None, pace=Pace(), checkpoint_seconds=None)
    answer.predictions["T4"].total_seconds, answer.expected.total_seconds
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from lightning_predict.callbacks.aftermath import Expected
from lightning_predict.callbacks.budget import FORWARD_SHARE
from lightning_predict.callbacks.checkpoints import checkpoints_left
from lightning_predict.callbacks.recorders import Pace
from lightning_predict.callbacks.remaining import Moment, Position, Remaining, remaining, workload
from lightning_predict.callbacks.strategies import strategy_of_trainer
from lightning_predict.callbacks.trainer_state import loader_of, position_of, savings_of, seconds_left, workers_of
from lightning_predict.kernels.fabric import Interconnect
from lightning_predict.prediction import predict_workload
from lightning_predict.reports.predictions import Predictions
from lightning_predict.scaling.history import fingerprint_of, model_fingerprint_of, read_history
from lightning_predict.scaling.records import Checkpoints, Workload
from lightning_predict.scaling.strategy import Strategy
from lightning_predict.scaling.totals import run_of
from lightning_predict.timeline.mean_step import measured_seconds
from lightning_predict.timeline.records import Iteration
from lightning_predict.tracing.records import Trace

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user wants to know.

    Attributes:
        gpus: Our names of the GPUs.
        method: How kernels are predicted.
        weights: File or folder of weights; None for those that come with the package.
        usd_per_hour: The user's own price of one GPU.
        batches_per_epoch: Length of an epoch of a loader that has none; None where not said.
        samples_per_epoch: The same in samples, over all processes.
        learns: Earlier runs of the same model count.
        strategy: How several GPUs share the work; None for the Trainer's own way.
        interconnect: What is known of the links between GPUs; None takes the catalogue's.
        cores_per_node: Processor cores of the machines that are predicted; None where not said.
    """

    gpus: tuple[str, ...]
    method: str = "auto"
    weights: str | None = None
    usd_per_hour: float | Mapping[str, float] | None = None
    batches_per_epoch: int | None = None
    samples_per_epoch: int | None = None
    learns: bool = True
    strategy: Strategy | None = None
    interconnect: Interconnect | None = None
    cores_per_node: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is predicted.

    Attributes:
        predictions: For the GPUs.
        expected: For the machine in use; None where no step was timed.
        checkpoints: What was assumed of the checkpoints.
    """

    predictions: Predictions
    expected: Expected | None
    checkpoints: Checkpoints


def predict_rest(
    trainer: Trainer,
    question: Question,
    trace: Trace,
    *,
    validation: Trace | None,
    pace: Pace,
    checkpoint_seconds: float | None,
    moment: Moment = "batch end",
) -> Answer:
    """Predict what is left of a fit.

    Args:
        trainer: The Trainer that is fitting.
        question: What the user wants to know.
        trace: The recorded step.
        validation: The recorded validation batch; None where there is none yet.
        pace: How windows go by.
        checkpoint_seconds: Of a checkpoint file as timed; None where none was.
        moment: The hook that asks.

    Raises:
        LightningPredictError: As `predict`.
    """
    given = _batches_per_epoch(trainer, question, trace)
    position = position_of(
        trainer,
        batches_done=trainer.fit_loop.batch_idx + (moment != "batch start"),
        pace=pace,
        moment=moment,
        batches_per_epoch=given,
    )
    left = remaining(position)
    work = _workload(trainer, trace, position, left, checkpoint_seconds)
    trace = trace.changed(lambda step: of_processes(step, trainer))
    predictions = predict_workload(
        trace,
        question.gpus,
        workload=work,
        validation=validation,
        strategy=strategy_of_trainer(trainer) if question.strategy is None else question.strategy,
        interconnect=question.interconnect,
        cores_per_node=question.cores_per_node,
        method=question.method,
        usd_per_hour=question.usd_per_hour,
        weights=question.weights,
        history=read_history() if question.learns else (),
    )
    predictions = replace(predictions, notes=(*predictions.notes, *_notes(trainer, given, work)))
    return Answer(
        predictions=predictions,
        expected=_expected(trace, validation, work, left, predictions, num_gpus=trainer.world_size),
        checkpoints=work.checkpoints,
    )


def of_processes(step: Trace, trainer: Trainer) -> Trace:
    """The step as that of one process among those of the Trainer.

    Args:
        step: As this process recorded it.
        trainer: The Trainer that is fitting.
    """
    return replace(step, world_size=trainer.world_size, num_nodes=trainer.num_nodes)


def _workload(
    trainer: Trainer, trace: Trace, position: Position, left: Remaining, checkpoint_seconds: float | None
) -> Workload:
    step = measured_seconds(trace)
    # What a checkpoint holds is there in full once every optimizer has stepped.
    memory = max((kind.trace.memory for kind in trace.kinds), key=lambda one: one.optimizer_state_bytes or 0)
    return replace(
        workload(left, position, batches_per_window=trace.batches, samples=trace.samples),
        loader=loader_of(trainer, trace.loader_seconds, step_seconds=step or 0.0, batches_per_step=trace.batches),
        loader_workers=workers_of(trainer),
        checkpoints=checkpoints_left(savings_of(trainer), position, seconds=checkpoint_seconds, memory=memory),
        time_limit_seconds=seconds_left(trainer),
    )


def _batches_per_epoch(trainer: Trainer, question: Question, trace: Trace) -> int | None:
    """The epoch's length as the user gave it, where the loader has none."""
    if not math.isinf(trainer.num_training_batches):
        return None
    if question.batches_per_epoch is not None or question.samples_per_epoch is None or trace.samples is None:
        return question.batches_per_epoch
    return math.ceil(question.samples_per_epoch * trace.batches / (trace.samples * trainer.world_size))


def _notes(trainer: Trainer, given: int | None, work: Workload) -> tuple[str, ...]:
    """What a total rests on, or leaves out."""
    notes = []
    if given is not None:
        notes.append(f"The loader has no length; an epoch is taken to have {given:,} batches, as you say.")
    if work.training_iterations is not None and work.checkpoints.total_seconds is None:
        notes.append("Total: checkpoints are left out, as their number or size is not known beforehand.")
    if trainer.world_size > 1:
        notes.append(f"Of {trainer.world_size} processes, this one was recorded.")
    return tuple(notes)


def _expected(
    trace: Trace,
    validation: Trace | None,
    work: Workload,
    left: Remaining,
    predictions: Predictions,
    *,
    num_gpus: int,
) -> Expected | None:
    """The rest of the run on this machine, from its measured steps."""
    seconds = measured_seconds(trace)
    if seconds is None or seconds <= 0:
        return None
    step = _measured(seconds, forward_seconds=FORWARD_SHARE * seconds)
    check = None if validation is None else measured_seconds(validation)
    run = run_of(step, work, None if check is None else _measured(check), batches=trace.batches)
    shown = predictions.get(predictions.used_gpu or "")
    return Expected(
        gpu=predictions.used_gpu,
        fingerprint=fingerprint_of(trace),
        model=model_fingerprint_of(trace),
        num_gpus=num_gpus,
        samples=trace.samples,
        step_seconds=seconds,
        batch_seconds=run.cycle_seconds / trace.batches,
        batches=left.batches,
        total_seconds=run.total_seconds,
        shown_seconds=None if shown is None or shown.is_cut_off else shown.total_seconds,
        usd_per_hour=None if shown is None else shown.usd_per_hour,
        offer=None if shown is None else shown.offer,
    )


def _measured(seconds: float, *, forward_seconds: float = 0.0) -> Iteration:
    return Iteration(
        gpu="this machine",
        seconds=seconds,
        low_seconds=seconds,
        high_seconds=seconds,
        device_seconds=seconds,
        host_seconds=0.0,
        coverage={},
        forward_seconds=forward_seconds,
    )
