"""Score the probability that a step fits on runs that did or did not fit: `python -m benchmarks.accuracy.fit_verdicts`.

The table of timm (`memory_timm.csv.gz`) has runs on an A100 with 40 GB, without the exit status of a run. A run did not
fit if its tensors alone, as FakeTensor counted them, exceed the GPU; FakeTensor is below the process in all 1,444 runs
that fit. A larger batch of that model did not fit either. Another run that filled the GPU may have fit: torch releases
cached blocks, and cuDNN skips algorithms whose workspace does not fit. Its outcome is unknown. Other runs that broke
off, at a fraction of the GPU's memory, are left out: the table does not say why they ended. Only models that filled the
GPU are scored, and only families on which no constant was chosen.

Milabench measured the throughput of runs that filled an L40S or an H100, so these runs fit. Example::

    python -m benchmarks.accuracy.fit_verdicts validation --cache STEPS --sample 40
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

from benchmarks.accuracy.memory import (
    CHOSEN_ON,
    CONTEXT_BYTES,
    GPU,
    MILABENCH_CONTEXT_BYTES,
    MILABENCH_TRACES,
    OTHER_TABLE,
    TIMM_TABLE,
    is_of_the_step,
    timm_step,
    with_held_outputs,
)
from benchmarks.accuracy.workloads.vision import vision_trace
from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS
from benchmarks.scored_steps import WIDTH
from benchmarks.training.report import report_table
from lightning_predict.checked import read_csv
from lightning_predict.cost.memory import FITS_FROM, memory_need, step_memory, total_bytes
from lightning_predict.errors import LightningPredictError, MeasurementTableError
from lightning_predict.extensions import extension
from lightning_predict.gpus import gpu
from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.tracing.trace import Trace
from lightning_predict.units import MEBIBYTE

RECORDED_BATCH: Final = 24
"""Batch size of the recorded step. A size that few other dimensions have scales without doubt."""

FULL_BYTES: Final = 40_361 * MEBIBYTE
"""Largest process of the table of timm."""

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
        fitted: Whether the run fitted; None if unknown.
        need_share: Memory of the run as a share of the GPU, measured or by the line through the batches that fit.
        chance: Predicted probability that the run fits.
    """

    run: Run
    fitted: bool | None
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


def outcomes(runs: Sequence[Run]) -> Iterator[tuple[Run, bool | None, float]]:
    """Yield the runs of a model that fitted or filled the GPU.

    Each has whether the run fitted, None if unknown, and the run's share of the GPU's memory.
    """
    total = total_bytes(GPU)
    fitting = sorted((one for one in runs if _has_figure(one)), key=lambda one: one.batch)
    if len(fitting) < 2:
        return
    first, last = fitting[-2:]
    per_sample = (last.measured_bytes - first.measured_bytes) / (last.batch - first.batch)
    exceeds = False
    for one in sorted(runs, key=lambda one: one.batch):
        line = last.measured_bytes + per_sample * (one.batch - last.batch)
        is_full = one.batch > last.batch and one.status == "wall" and line > total
        exceeds = exceeds or (is_full and one.tensors_bytes + CONTEXT_BYTES > FULL_BYTES)
        if exceeds or is_full:
            yield one, False if exceeds else None, line / total
        elif _has_figure(one):
            yield one, True, one.measured_bytes / total


def _has_figure(run: Run) -> bool:
    return run.status == "ok" and is_of_the_step(run.tensors_bytes, run.measured_bytes - CONTEXT_BYTES)


def chance_of(trace: Trace, batch: int) -> float | None:
    """Return the predicted probability that a step fits with another batch size; None if it cannot be scaled."""
    scaled = _with_batch(trace, batch)
    if scaled is None:
        return None
    scaled = replace(scaled, flags=replace(scaled.flags, cudnn_benchmark=True))
    return _chance(scaled, GPU, CONTEXT_BYTES)


def _with_batch(trace: Trace, batch: int) -> Trace | None:
    try:
        return trace if batch == trace.samples else extension("with_samples")(trace, batch)
    except LightningPredictError:
        return None


def _chance(trace: Trace, on: Gpu, context_bytes: int) -> float | None:
    memory = step_memory(trace)
    if memory is None:
        return None
    need = memory_need(
        Layout(on),
        float(memory.bytes_on(on)),
        relative=memory.relative,
        releasable_bytes=lambda: memory.releasable_bytes,
        context=Interval(*[float(context_bytes)] * 3),
    )
    return need.fit_probability


def verdicts(folder: Path, cache: Path, sample: int) -> list[Verdict]:
    """Predict the runs of `sample` models that filled the GPU."""
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


def full_runs(folder: Path) -> list[tuple[str, str, int, float]]:
    """Predict milabench's runs that filled a GPU and fitted: model, GPU, batch size and probability."""
    found: dict[tuple[str, str, int], float] = {}
    for row in read_csv(
        folder / OTHER_TABLE, MeasurementTableError, columns=("source", "case", "batch", "gpu", "status")
    ):
        values = row.value
        on, batch = values["gpu"], int(values["batch"])
        paths = {int(path.name.split("-")[-1].split(".")[0]): path for path in _recordings(folder, values["case"])}
        sizes = [size for size in paths if size > 1]
        if (
            values["source"] != "milabench"
            or values["status"] != "wall"
            or on not in MILABENCH_CONTEXT_BYTES
            or not sizes
        ):
            continue
        nearest = min(sizes, key=lambda size: abs(size - batch))
        scaled = _with_batch(Trace.load(str(paths[nearest])), batch)
        chance = None if scaled is None else _chance(with_held_outputs(scaled), gpu(on), MILABENCH_CONTEXT_BYTES[on])
        if chance is not None:
            found[values["case"], on, batch] = chance
    return [(*key, chance) for key, chance in sorted(found.items())]


def _recordings(folder: Path, case: str) -> Iterator[Path]:
    return (folder / MILABENCH_TRACES).glob(f"{case}-[0-9]*.json.gz")


def full_table(runs: Sequence[tuple[str, str, int, float]]) -> Table:
    """The predicted probability of runs that filled a GPU and fitted."""
    table = report_table("Runs that filled the GPU and fitted", ("model", "GPU", "samples"), ("predicted %", "right"))
    for model, on, batch, chance in runs:
        table.add_row(model, on, str(batch), f"{100 * chance:.0f}", "yes" if chance >= 0.5 else "no")
    right = sum(chance >= 0.5 for *_, chance in runs)
    mean = statistics.fmean(chance for *_, chance in runs) if runs else 0.0
    table.add_row("all", "", "", f"{100 * mean:.0f}", f"{right} of {len(runs)}")
    return table


def bins_table(scored: Sequence[Verdict]) -> Table:
    """The share of runs that fitted, by ten bins of the predicted probability."""
    headings = ("runs", "predicted %", "fitted %", "outcome unknown")
    table = report_table("Runs that fitted, by predicted probability", ("probability",), headings)
    for tenth in range(10):
        own = [one for one in scored if min(int(10 * one.chance), 9) == tenth]
        known = [one for one in own if one.fitted is not None]
        chance, fitted = (_percent([one.chance for one in known]), _percent([bool(one.fitted) for one in known]))
        if own:
            name = f"{10 * tenth}-{10 * tenth + 10} %"
            table.add_row(name, str(len(known)), chance, fitted, str(len(own) - len(known)))
    return table


def _percent(values: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values):.0f}" if values else ""


def verdict_table(scored: Sequence[Verdict]) -> Table:
    """Verdicts by outcome: a run is said to fit from a probability of one half, and `fits` from `FITS_FROM`."""
    table = report_table("Does it fit?", ("runs",), ("n", "right", f"said to fit with {FITS_FROM:.0%}"))
    known = [one for one in scored if one.fitted is not None]
    groups = {
        "fitted": [one for one in known if one.fitted],
        "did not fit": [one for one in known if not one.fitted],
        "fitted, within 25 % of the GPU": [one for one in known if one.fitted and one.is_near],
        "did not fit, within 25 % of the GPU": [one for one in known if not one.fitted and one.is_near],
        "all known": known,
        "filled the GPU, outcome unknown": [one for one in scored if one.fitted is None],
    }
    for name, own in groups.items():
        right = sum((one.chance >= 0.5) == one.fitted for one in own)
        cell = "" if any(one.fitted is None for one in own) else str(right)
        table.add_row(name, str(len(own)), cell, str(sum(one.chance >= FITS_FROM for one in own)))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print verdicts by outcome and by probability, and milabench's full runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("validation", type=Path, help=f"folder with {TIMM_TABLE}")
    parser.add_argument("--cache", type=Path, required=True, help="folder of recorded steps of timm")
    parser.add_argument("--sample", type=int, default=40, help="number of models")
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to")
    options = parser.parse_args(arguments)
    scored = verdicts(options.validation, options.cache, options.sample)
    console = ResultConsole(width=WIDTH)
    models = len({one.run.model for one in scored})
    console.print(f"{len(scored)} runs of {models} models on an {GPU.name}; families on which no constant was chosen.")
    console.print(verdict_table(scored))
    console.print(bins_table(scored))
    console.print(full_table(full_runs(options.validation)))
    if options.result is not None:
        write_result(console.result(RUNS["fit-verdicts"]), options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
