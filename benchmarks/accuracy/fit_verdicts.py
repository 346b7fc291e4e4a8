"""Score the probability that a step fits on runs that did or did not fit: `python -m benchmarks.accuracy.fit_verdicts`.

The table of timm (`memory_timm.csv.gz`) has runs on an A100 with 40 GB. A run that filled the GPU did not fit if a line
through the model's two largest batches that fit exceeds the GPU; otherwise, trials of cuDNN may have filled the GPU. A
larger batch of that model did not fit either. Other runs that broke off, at a fraction of the GPU's memory, are left
out: the table does not say why they ended. Only models with a run that did not fit are scored, and only families on
which no constant was chosen. Example::

    python -m benchmarks.accuracy.fit_verdicts validation --cache STEPS --sample 30
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from rich.table import Table

from benchmarks.accuracy.memory import CHOSEN_ON, CONTEXT_BYTES, GPU, TIMM_TABLE, is_of_the_step, timm_step
from benchmarks.accuracy.workloads.vision import vision_trace
from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS
from benchmarks.scored_steps import WIDTH
from benchmarks.training.report import report_table
from lightning_predict.checked import read_csv
from lightning_predict.cost.memory import FITS_FROM, memory_need, step_memory, total_bytes
from lightning_predict.errors import LightningPredictError, MeasurementTableError
from lightning_predict.extensions import extension
from lightning_predict.gpus.layouts import Layout
from lightning_predict.interval import Interval
from lightning_predict.tracing.trace import Trace
from lightning_predict.units import MEBIBYTE

RECORDED_BATCH: Final = 24
"""Batch size of the recorded step. A size that few other dimensions have scales without doubt."""

NEAR: Final = 0.25
"""Verdicts count as near the limit within this share of the GPU's memory, by the line through the batches that fit."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of the table: a model with a batch size, and how the run ended."""

    model: str
    family: str
    image_size: int
    batch: int
    status: str
    measured_bytes: float
    tensors_bytes: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a run fitted, and the predicted probability.

    Attributes:
        run: The run.
        fitted: Whether the run fitted.
        need_share: Memory of the run as a share of the GPU, measured or by the line through the batches that fit.
        chance: Predicted probability that the run fits.
    """

    run: Run
    fitted: bool
    need_share: float
    chance: float

    @property
    def is_near(self) -> bool:
        """Whether the run needs about as much memory as the GPU has."""
        return abs(self.need_share - 1) <= NEAR


def runs_by_model(folder: Path) -> Mapping[str, list[Run]]:
    """Read the runs of families on which no constant was chosen, by model."""
    columns = ("model", "family", "batch", "status", "measured_mib", "fake_tensor_mib", "image", "channels")
    found: dict[str, list[Run]] = defaultdict(list)
    for row in read_csv(folder / TIMM_TABLE, MeasurementTableError, columns=columns):
        values = row.value
        if values["channels"] == "3" and values["family"] not in CHOSEN_ON:
            run = Run(
                model=values["model"],
                family=values["family"],
                image_size=int(values["image"]),
                batch=int(values["batch"]),
                status=values["status"],
                measured_bytes=float(values["measured_mib"]) * MEBIBYTE,
                tensors_bytes=float(values["fake_tensor_mib"] or 0) * MEBIBYTE,
            )
            found[run.model].append(run)
    return found


def outcomes(runs: Sequence[Run]) -> Iterator[tuple[Run, bool, float]]:
    """Yield the runs of a model with a known outcome: the run, whether it fitted, and its share of the GPU's memory."""
    total = total_bytes(GPU)
    fitting = sorted((one for one in runs if _has_figure(one)), key=lambda one: one.batch)
    if len(fitting) < 2:
        return
    first, last = fitting[-2:]
    per_sample = (last.measured_bytes - first.measured_bytes) / (last.batch - first.batch)
    is_full = False
    for one in sorted(runs, key=lambda one: one.batch):
        line = last.measured_bytes + per_sample * (one.batch - last.batch)
        is_full = is_full or (one.batch > last.batch and one.status == "wall" and line > total)
        if is_full:
            yield one, False, line / total
        elif _has_figure(one):
            yield one, True, one.measured_bytes / total


def _has_figure(run: Run) -> bool:
    return run.status == "ok" and is_of_the_step(run.tensors_bytes, run.measured_bytes - CONTEXT_BYTES)


def chance_of(trace: Trace, batch: int) -> float | None:
    """Return the predicted probability that a step fits with another batch size; None if it cannot be scaled."""
    try:
        scaled = trace if batch == trace.samples else extension("with_samples")(trace, batch)
    except LightningPredictError:
        return None
    memory = step_memory(replace(scaled, flags=replace(scaled.flags, cudnn_benchmark=True)))
    if memory is None:
        return None
    context = Interval(*[float(CONTEXT_BYTES)] * 3)
    size = float(memory.bytes_on(GPU))
    layout = Layout(GPU)
    need = memory_need(
        layout, size, relative=memory.relative, releasable_bytes=lambda: memory.releasable_bytes, context=context
    )
    return need.fit_probability


def verdicts(folder: Path, cache: Path, sample: int) -> list[Verdict]:
    """Predict the runs of `sample` models of which a run did not fit."""
    known = {model: list(outcomes(runs)) for model, runs in sorted(runs_by_model(folder).items())}
    models = {model: found for model, found in known.items() if not all(fitted for _, fitted, _ in found)}
    names = list(models)
    chosen = names[:: max(len(names) // sample, 1)][:sample]
    scored = []
    for model in chosen:
        trace = vision_trace(timm_step(model, RECORDED_BATCH, models[model][0][0].image_size), cache)
        if trace is None:
            continue
        for run, fitted, share in models[model]:
            chance = chance_of(trace, run.batch)
            if chance is not None:
                scored.append(Verdict(run=run, fitted=fitted, need_share=share, chance=chance))
    return scored


def bins_table(scored: Sequence[Verdict]) -> Table:
    """The share of runs that fitted, by ten bins of the predicted probability."""
    headings = ("runs", "predicted %", "fitted %")
    table = report_table("Runs that fitted, by predicted probability", ("probability",), headings)
    for tenth in range(10):
        own = [one for one in scored if min(int(10 * one.chance), 9) == tenth]
        if own:
            chance, fitted = (statistics.fmean(one.chance for one in own), statistics.fmean(one.fitted for one in own))
            table.add_row(
                f"{10 * tenth}-{10 * tenth + 10} %", str(len(own)), f"{100 * chance:.0f}", f"{100 * fitted:.0f}"
            )
    return table


def verdict_table(scored: Sequence[Verdict]) -> Table:
    """Verdicts by outcome: a run is said to fit from a probability of one half, and `fits` from `FITS_FROM`."""
    table = report_table("Does it fit?", ("runs",), ("n", "right", f"said to fit with {FITS_FROM:.0%}"))
    groups = {
        "fitted": [one for one in scored if one.fitted],
        "did not fit": [one for one in scored if not one.fitted],
        "fitted, within 25 % of the GPU": [one for one in scored if one.fitted and one.is_near],
        "did not fit, within 25 % of the GPU": [one for one in scored if not one.fitted and one.is_near],
        "all": list(scored),
    }
    for name, own in groups.items():
        right = sum((one.chance >= 0.5) == one.fitted for one in own)
        table.add_row(name, str(len(own)), str(right), str(sum(one.chance >= FITS_FROM for one in own)))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print verdicts by outcome and by probability."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("validation", type=Path, help=f"folder with {TIMM_TABLE}")
    parser.add_argument("--cache", type=Path, required=True, help="folder of recorded steps of timm")
    parser.add_argument("--sample", type=int, default=30, help="number of models")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    scored = verdicts(options.validation, options.cache, options.sample)
    console = ResultConsole(width=WIDTH)
    models = len({one.run.model for one in scored})
    console.print(f"{len(scored)} runs of {models} models on an {GPU.name}; families on which no constant was chosen.")
    console.print(verdict_table(scored))
    console.print(bins_table(scored))
    if options.result is not None:
        write_result(console.result(RUNS["fit-verdicts"]), options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
