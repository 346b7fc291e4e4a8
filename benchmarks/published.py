"""Scored steps as the cases that ship with the package, for `lightning-predict accuracy`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from benchmarks.accuracy.score import Scored
from benchmarks.runs import SOURCES, Run
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import NVIDIA
from lightning_predict.reports.published_cases import PublishedCase, StepDescription, describe, gpu_of, precision_on

__all__ = ["describe", "published_cases"]


def published_cases(scored: Iterable[Scored], run: Run) -> tuple[PublishedCase, ...]:
    """Summarise the scored times on NVIDIA's GPUs by model, GPU and precision.

    Args:
        scored: Scored cases, whose description is a `StepDescription`.
        run: The table.
    """
    groups: dict[tuple[str, str, StepDescription], list[Scored]] = defaultdict(list)
    for score in scored:
        step: StepDescription = score.description
        gpu = gpu_of(score.case.gpu)
        if score.case.quantity == "time" and gpu.vendor == NVIDIA and run.name in SOURCES:
            layout = score.case.gpu.replace(_gpu_words(score.case.gpu), gpu.name)
            precision = "float8" if "fp8=" in score.case.strategy else precision_on(step.precision, gpu.name)
            groups[score.case.model, layout, replace(step, precision=precision)].append(score)
    return tuple(_summary(*key, members, run) for key, members in groups.items())


def _gpu_words(layout: str) -> str:
    return next(part for part in [layout.split("x", layout.count("x"))[-1], layout] if _is_gpu(part))


def _is_gpu(name: str) -> bool:
    try:
        find_gpu(name)
    except LookupError:
        return False
    return True


def _summary(model: str, gpu: str, step: StepDescription, rows: list[Scored], run: Run) -> PublishedCase:
    middle = sorted(rows, key=lambda one: one.error)[len(rows) // 2]
    kept = run.copies_allowed
    return PublishedCase(
        model=model,
        kind=step.kind,
        gpu=gpu,
        precision=step.precision,
        source=SOURCES[run.name],
        split=run.split,
        steps=len(rows),
        error=round(statistics.median(row.error for row in rows), 3),
        absolute_error=round(statistics.median(abs(row.error) for row in rows), 3),
        inside=sum(row.is_inside for row in rows),
        measured_ms=float(f"{1e3 * middle.case.measured:.4g}") if kept else None,
        predicted_ms=float(f"{1e3 * middle.predicted[1]:.4g}") if kept else None,
        is_training=step.is_training,
        trains=step.trains,
    )
