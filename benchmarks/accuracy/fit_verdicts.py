"""Score the probability that a step fits on runs that did or did not fit: `python -m benchmarks.accuracy.fit_verdicts`.

The table of timm (`memory_timm.csv.gz`) has runs on an A100 with 40 GB, without the exit status of a run. A run did not
fit if its tensors alone, as FakeTensor counted them, exceed the GPU; FakeTensor is below the process in all 1,444 runs
that fit. A larger batch of that model did not fit either. Another run that filled the GPU may have fit: torch releases
cached blocks, and cuDNN skips algorithms whose workspace does not fit. Its outcome is unknown. Other runs that broke
off, at a fraction of the GPU's memory, are left out: the table does not say why they ended. Only models that filled the
GPU are scored, and only families on which no constant was chosen.

Milabench measured the throughput of runs that filled an L40S or an H100, so these runs fit.

Measured memory also tells about other cards: a run fits every card with at least its measured process, and no card with
less than its tensors. The cards have `CARDS` times the predicted process, so their choice does not depend on the
measurement. Between both amounts, the outcome is unknown, as torch may release cached blocks. Example::

    python -m benchmarks.accuracy.fit_verdicts validation --cache STEPS --sample 40
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from rich.table import Table

from benchmarks.accuracy.layout_memory import LayoutMemoryCase, layout_memory_cases
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
from lightning_predict.advice.batch_size import with_samples
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import LightningPredictError, MeasurementTableError
from lightning_predict.base.interval import Interval
from lightning_predict.base.units import MEBIBYTE
from lightning_predict.hardware import gpu
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.memory.step_memory import (
    FITS_FROM,
    MemoryNeed,
    StepMemory,
    memory_need,
    step_memory,
    total_bytes,
)
from lightning_predict.record.trace import Trace

RECORDED_BATCH: Final = 24
"""Batch size of the recorded step. A size that few other dimensions have scales without doubt."""

FULL_BYTES: Final = 40_361 * MEBIBYTE
"""Largest process of the table of timm."""

NEAR: Final = 0.25
"""Verdicts count as near the limit within this share of the GPU's memory, by the line through the batches that fit."""


CARDS: Final = tuple(percent / 100 for percent in range(80, 131, 5))
"""Sizes of hypothetical cards, relative to the predicted process."""


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
class Card:
    """A hypothetical card for a measured run.

    Attributes:
        source: Source of the measurement.
        fits: Whether the run fits; None if unknown.
        chance: Predicted probability that the run fits.
    """

    source: str
    fits: bool | None
    chance: float


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


def need_of(trace: Trace, batch: int) -> Callable[[float | None], MemoryNeed] | None:
    """Return the need of a step with another batch size, on a card of a size; None if it cannot be scaled."""
    scaled = _with_batch(trace, batch)
    if scaled is None:
        return None
    scaled = replace(scaled, flags=replace(scaled.flags, cudnn_benchmark=True))
    memory = step_memory(scaled)
    return None if memory is None else lambda size: _need(memory, GPU, CONTEXT_BYTES, size)


def _with_batch(trace: Trace, batch: int) -> Trace | None:
    try:
        return trace if batch == trace.samples else with_samples(trace, batch)
    except LightningPredictError:
        return None


def _need(memory: StepMemory, on: Gpu, context_bytes: int, card_bytes: float | None = None) -> MemoryNeed:
    return memory_need(
        Layout(on),
        float(memory.bytes_on(on)),
        relative=memory.relative,
        releasable_bytes=lambda: memory.releasable_bytes,
        context=Interval(*[float(context_bytes)] * 3),
        reported_bytes=card_bytes,
    )


def cards_of(
    source: str, need: Callable[[float | None], MemoryNeed], *, process_bytes: float, tensors_bytes: float
) -> Iterator[Card]:
    """Yield hypothetical cards for a measured run.

    Args:
        source: Source of the measurement.
        need: Predicted need on a card of a size.
        process_bytes: Measured memory of the process, with which the run fits.
        tensors_bytes: Measured memory that the run needs at least, with the context.
    """
    whole = need(math.inf)
    assert whole.process is not None
    for share in CARDS:
        size = share * whole.process.middle
        chance = need(size).fit_probability
        if chance is not None:
            fits = True if size >= process_bytes else False if size < tensors_bytes else None
            yield Card(source=source, fits=fits, chance=chance)


def megatron_cards(folder: Path, cache: Path) -> Iterator[Card]:
    """Yield hypothetical cards for SimuMax's runs on eight B200, whose allocated and reserved memory is known."""
    for case in layout_memory_cases(folder, cache):
        if not case.name.endswith(", 4"):  # figures of more micro-batches repeat these
            continue
        allocated, reserved = case.measured

        def need(size: float | None, case: LayoutMemoryCase = case) -> MemoryNeed:
            return case.need_on(size)

        whole = need(math.inf)
        assert whole.process is not None
        assert whole.reserved is not None
        context = whole.process.middle - whole.reserved.middle
        yield from cards_of("Megatron-LM", need, process_bytes=reserved + context, tensors_bytes=allocated + context)


def verdicts(folder: Path, cache: Path, sample: int) -> tuple[list[Verdict], list[Card]]:
    """Predict the runs of `sample` models that filled the GPU, and hypothetical cards for those that fitted."""
    known = {model: list(outcomes(runs)) for model, runs in sorted(runs_by_model(folder).items())}
    models = {model: found for model, found in known.items() if not all(fitted for _, fitted, _ in found)}
    names = list(models)
    chosen = names[:: max(len(names) // sample, 1)][:sample]
    scored, cards = list[Verdict](), list[Card]()
    for model in chosen:
        trace = vision_trace(timm_step(model, RECORDED_BATCH, models[model][0][0].image_size), cache)
        if trace is None:
            continue
        largest = max((run for run, fitted, _ in models[model] if fitted), key=lambda run: run.batch)
        for run, fitted, share in models[model]:
            need = need_of(trace, run.batch)
            chance = None if need is None else need(None).fit_probability
            if need is None or chance is None:
                continue
            scored.append(Verdict(run=run, fitted=fitted, need_share=share, chance=chance))
            if run is largest:
                least = run.tensors_bytes + CONTEXT_BYTES
                cards += cards_of("timm", need, process_bytes=run.measured_bytes, tensors_bytes=least)
    return scored, cards


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
        memory = None if scaled is None else step_memory(with_held_outputs(scaled))
        chance = None
        if memory is not None:
            chance = _need(memory, gpu(on), MILABENCH_CONTEXT_BYTES[on]).fit_probability
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


def cards_table(cards: Sequence[Card]) -> Table:
    """The share of hypothetical cards on which a run fits, by ten bins; unknown outcomes bound this share."""
    headings = ("cards", "predicted %", "fit at least %", "fit at most %", "known", "fit of known %")
    table = report_table("Measured runs on hypothetical cards", ("source", "probability"), headings)
    for source in dict.fromkeys(one.source for one in cards):
        for tenth in range(10):
            own = [one for one in cards if one.source == source and min(int(10 * one.chance), 9) == tenth]
            known = [bool(one.fits) for one in own if one.fits is not None]
            if own:
                least, most = (
                    _percent([one.fits is True or (unknown and one.fits is None) for one in own])
                    for unknown in (False, True)
                )
                chance = _percent([one.chance for one in own])
                name = f"{10 * tenth}-{10 * tenth + 10} %"
                table.add_row(source, name, str(len(own)), chance, least, most, str(len(known)), _percent(known))
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
    scored, cards = verdicts(options.validation, options.cache, options.sample)
    cards += megatron_cards(options.validation, options.cache)
    console = ResultConsole(width=WIDTH)
    models = len({one.run.model for one in scored})
    console.print(f"{len(scored)} runs of {models} models on an {GPU.name}; families on which no constant was chosen.")
    console.print(verdict_table(scored))
    console.print(bins_table(scored))
    console.print(cards_table(cards))
    console.print(full_table(full_runs(options.validation)))
    if options.result is not None:
        write_result(console.result(RUNS["fit-verdicts"]), options.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
