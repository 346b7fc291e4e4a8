"""Command `accuracy`: published steps similar to a recorded step, with the errors of their predictions.

Example::

    lightning-predict accuracy --like step.json.gz --gpu L40S
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lightning_predict.base.answers import CommandAnswer, aligned, json_value, sentences
from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.base.model_options import NO_OPTIONS, ModelOptions
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.record.sources import step_of_source
from lightning_predict.reports.published_cases import (
    SPLITS,
    PublishedCase,
    StepDescription,
    describe,
    nearest_cases,
    read_published_cases,
)

HEADERS = ("model", "GPU", "precision", "steps", "measured", "predicted", "error", "in 90 %", "source")


def accuracy(
    *, like: str | None = None, gpu: str | None = None, cases: int = 8, model: ModelOptions = NO_OPTIONS
) -> CommandAnswer:
    """Show published steps like yours, with the errors of their predictions.

    The kind of model counts most, then what the step trains, then the GPU and the precision.

    Args:
        like: A recorded step, or a model by name as for `predict`; its kind, GPU and precision select published steps.
        gpu: GPU to show published steps for (default: any GPU).
        cases: Number of published models to show.
        model: Options of a model by name.
    """
    if like is None or gpu is None:
        raise InvalidArgumentError("Give a recorded step and a GPU: accuracy --like step.json.gz --gpu L40S.")
    if cases < 1:
        raise InvalidArgumentError(f"cases={cases}, but expected at least 1.")
    name = find_gpu(gpu).name
    step = describe(step_of_source(like, model).trace)
    nearest = nearest_cases(step, name, read_published_cases(), number=cases)
    return CommandAnswer(
        data=lambda: {"gpu": name, "kind": step.kind, "precision": step.precision, "cases": json_value(nearest)},
        show=lambda: print(_text(step, name, nearest)),
    )


def _text(step: StepDescription, gpu: str, cases: Sequence[PublishedCase]) -> str:
    error = statistics.median(case.absolute_error for case in cases)
    heading = f"Your step: {step.kind}, {step.precision}, on {gpu}. The nearest published steps:"
    rows = [
        [
            case.model,
            case.gpu,
            case.precision,
            str(case.steps),
            _duration(case.measured_ms),
            _duration(case.predicted_ms),
            f"±{case.absolute_error:.0%}" if case.error is None else f"{case.error:+.0%}",
            f"{case.inside} of {case.steps}",
            case.source + ("" if case.split == "held out" else " *"),
        ]
        for case in cases
    ]
    table = aligned(HEADERS, rows, right={3, 4, 5, 6, 7})
    return "\n".join(
        [heading, "", table, "", *sentences([f"Median error of these: {error:.0%}.", *_notes(step, gpu, cases)])]
    )


def _duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds / 1e3:.3g} s" if milliseconds >= 1e3 else f"{milliseconds:.3g} ms"


def _notes(step: StepDescription, gpu: str, cases: Sequence[PublishedCase]) -> list[str]:
    notes = []
    if all(case.kind != step.kind for case in cases):
        notes.append("No published step is of this kind of model: these are of other kinds.")
    elif all(case.gpu != gpu for case in cases):
        notes.append(f"No such step was published for the {gpu} itself.")
    if any(case.split == "fitted" for case in cases):
        notes.append(f"*: {SPLITS['fitted']}.")
    if any(case.measured_ms is None for case in cases):
        notes.append("-: the licence of the source does not allow copies of its times.")
    return notes
