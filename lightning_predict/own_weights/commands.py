"""Commands `measure`, `first-hour` and `train`: fit weights to the user's own GPU.

Example::

    lightning-predict measure measurements --operations linear,conv2d
    lightning-predict train measurements --output my-weights
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from lightning_predict.base.answers import CommandAnswer, aligned, json_value
from lightning_predict.base.units import minutes_to_seconds

if TYPE_CHECKING:
    from lightning_predict.own_weights.measuring.run import Measured

NO_SCORES: Final = (  # Text that replaces an empty table of scores
    "No score: no row was held out (15 % per operation, drawn by a hash of the shape). Measure more shapes of an "
    "operation (`measure --problems 200`)."
)

ANCHORS_FILE: Final = "anchors.toml"  # Name of the file that `measure --quick` writes

STEPS: Final = {"resnet50": "ResNet-50", "gpt2": "GPT-2"}

TRY_SECONDS: Final = 0.01  # Duration of each measurement on a CPU, which only tests the command


def measure(
    output: Path,
    /,
    *,
    operations: str | None = None,
    dtypes: str | None = None,
    problems: int | None = None,
    minutes: float | None = None,
    problem_seconds: float = 2.0,
    seed: int = 0,
    device: Literal["cuda", "cpu"] = "cuda",
    gpu: str | None = None,
    quick: bool = False,
) -> CommandAnswer:
    """Measure operations on this machine's GPU, into tables that `train` reads.

    It first prints the expected duration. Families of operations with a neural network come first, each until it has
    enough rows. Then each other operation is measured with a dozen shapes, for a correction factor. Before that, three
    training steps are recorded, by which `train` checks its weights. If the run is interrupted, the same command
    continues it.

    Args:
        output: Folder of the tables. Measurements that it contains already are not repeated.
        operations: Names of operations, separated by commas (default: all that have a benchmark).
        dtypes: Some of float32, tf32, float16, bfloat16 and float64, separated by commas (default: the first four; with
            --device cpu, the first).
        problems: Number of shapes per operation and dtype (default: as many as train needs, then 200; 1 with --device
            cpu).
        minutes: Minutes after which no further measurement starts (default: no limit).
        problem_seconds: Maximum seconds for the repetitions of one call. Shapes that take longer are skipped.
        seed: Seed of the shapes.
        device: Device to measure: cuda, or cpu to test the command.
        gpu: Catalogue name of the GPU (default: the name that torch reports).
        quick: Measure only the rates of large matmuls and of memory, in half a minute, into a file for --profile. Of
            the options above, only device and gpu are used.
    """
    if quick:
        return _measure_anchors(output, device, gpu)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from lightning_predict.own_weights.measuring.benchmarks import BENCHMARKS
    from lightning_predict.own_weights.measuring.run import measure as measure_operations
    from lightning_predict.own_weights.measuring.run import name_of

    is_try = device == "cpu"
    unrecorded: list[str] = []

    def begin(count: int, seconds: float | None) -> None:  # all arguments are checked by now
        console.print(_announced(count, seconds, minutes))
        if not is_try:
            unrecorded.extend(_record_steps(output))

    usual = "float32" if is_try else "float32,tf32,float16,bfloat16"
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("Measuring")
        measured = measure_operations(
            output,
            operations=tuple(BENCHMARKS) if operations is None else _names(operations),
            dtypes=_names(usual if dtypes is None else dtypes),
            shapes=1 if is_try and problems is None else problems,
            minutes=minutes,
            shape_seconds=problem_seconds,
            seed=seed,
            device=device,
            gpu=gpu,
            is_trial=is_try,
            announce=begin,
            progress=lambda name, done, total: shown.update(task, description=name, completed=done, total=total),
        )
    shares = _measured_shares(measured, name_of(device, gpu))
    lines = [*_measured_lines(measured, output, shares), *unrecorded]
    data = {"shares": shares, "unrecorded_steps": unrecorded}
    return CommandAnswer(data=lambda: {**json_value(measured), **data}, show=lambda: print("\n".join(lines)))


def _record_steps(output: Path) -> tuple[str, ...]:
    """Record the steps by which `train` checks its weights, and return a sentence for each that failed."""
    import torch

    from lightning_predict.own_weights.measuring.typical_steps import record_steps
    from lightning_predict.own_weights.training.tables import STEPS_FOLDER

    return record_steps(output / STEPS_FOLDER, torch.device("cuda"))


def _measured_lines(found: Measured, output: Path, shares: Mapping[str, float]) -> list[str]:
    from lightning_predict.reports.format import share

    lines = [f"{found.rows} rows in {len(found.files)} tables in {output}."]
    if found.known:
        lines.append(f"An earlier run measured {found.known} shapes.")
    if found.skipped:
        lines.append(f"{len(found.skipped)} shapes were skipped. First: {found.skipped[0]}")
    if found.eager:
        lines.append(
            f"train ignores {len(found.eager)} rows that were timed without a CUDA graph. First: {found.eager[0]}"
        )
    lines += [
        f"{one.family}: {one.rows} of {one.needed} rows" + ("" if one.is_enough else ", too few for its network")
        for one in found.families
    ]
    if found.families or found.factors:
        lines.append(
            f"train can correct {len(found.factors)} other operations by a factor, and ignores {found.dropped} rows."
        )
    for name, part in shares.items():
        lines.append(f"Measured operations take {share(part)} of the GPU time of a {STEPS[name]} step.")
    if found.left:
        lines.append(f"{found.left} shapes are left; the same command continues.")
    return lines


def _measured_shares(measured: Measured, gpu: str) -> dict[str, float]:
    from lightning_predict.hardware import gpu as find_gpu
    from lightning_predict.own_weights.measuring.typical_steps import measured_shares

    tuned = [family.family for family in measured.families if family.is_enough]
    return measured_shares(find_gpu(gpu), tuned, measured.factors) if measured.families or measured.factors else {}


def _measure_anchors(output: Path, device: str, gpu: str | None) -> CommandAnswer:
    """Measure the main rates of a GPU, and write the rates to a file in the folder `output`."""
    from rich.console import Console

    from lightning_predict.own_weights.measuring.main_rates import (
        SECONDS,
        comparison,
        gpus_file_text,
        measure_main_rates,
    )

    console = Console(stderr=True)
    is_try = device == "cpu"
    rates = measure_main_rates(
        device=device,
        gpu=gpu,
        seconds=TRY_SECONDS if is_try else SECONDS,
        is_trial=is_try,
        progress=lambda name: console.print(f"Measuring {name}."),
    )
    output.mkdir(parents=True, exist_ok=True)
    path = output / ANCHORS_FILE
    path.write_text(gpus_file_text(rates), encoding="utf-8")
    figures = comparison(rates)
    name = rates.gpu.name
    rows = [[figure.name, f"{figure.measured:.4g}", f"{figure.assumed:.4g}", figure.unit] for figure in figures]
    lines = [aligned(("", "measured", "assumed before", ""), rows, right={1, 2})]
    if rates.state.held_back_by:
        lines.append(f"Held back by {' and '.join(rates.state.held_back_by)}.")
    lines.append(f"Corrected by these figures: predict --gpus {name} --profile {path}")
    data = {"gpu": rates.gpu.name, "name": name, "file": str(path), "figures": figures}
    return CommandAnswer(data=lambda: json_value(data), show=lambda: print("\n".join(lines)))


def _announced(shapes: int, seconds: float | None, minutes: float | None) -> str:
    """Return a sentence with the expected duration, shown before the measurement starts."""
    from lightning_predict.reports.format import duration

    if seconds is None:
        return f"Measuring {shapes:,} shapes."
    if minutes is not None and minutes_to_seconds(minutes) < seconds:
        limit, whole = duration(minutes_to_seconds(minutes)), duration(seconds)
        return f"Measuring for {limit}; all {shapes:,} shapes would take about {whole}."
    return f"Measuring {shapes:,} shapes, in about {duration(seconds)}."


def first_hour(
    output: Path = Path("first-hour.json"),
    /,
    *,
    minutes: float = 8.0,
    preset: Literal["facts", "measurements", "all"] = "all",
) -> CommandAnswer:
    """Test recording and measure this machine's GPU, into one JSON file to attach to a report.

    It downloads nothing, and works without a clone of the repository. Without a CUDA device, it names every part that
    it skips.

    Args:
        output: JSON file. It is written after every part.
        minutes: Minutes after which no part starts.
        preset: Parts to run: facts tests recording and the launch queue; measurements times operations and whole steps.
    """
    from lightning_predict.own_weights.first_hour import report_on_gpu, words_on_own_rates

    report = report_on_gpu(output, minutes=minutes, preset=preset, progress=lambda name: print(name, file=sys.stderr))
    rows = [
        [name, str(part["state"]), str(part.get("reason", f"{part.get('seconds', 0.0):.1f} s"))]
        for name, part in report["parts"].items()
    ]
    lines = [aligned(["part", "state", ""], rows), words_on_own_rates(report), f"Attach {output} to a report."]
    text = "\n".join(line for line in lines if line)
    return CommandAnswer(data=lambda: report, show=lambda: print(text))


def train(tables: Path, /, *, output: Path = Path("weights"), seed: int = 0) -> CommandAnswer:
    """Tune the weights to your own GPU, from the tables of `measure`, and score them on held-out rows.

    A network or factor is kept only if held-out rows improve and no step that `measure` recorded gets worse.
    The training starts from the shipped weights and takes minutes. Progress is printed to standard error. Use the
    result with `predict --weights FOLDER`. Operations with too few measurements, and all other GPUs, keep the shipped
    weights.

    Args:
        tables: Folder that `measure` wrote.
        output: Folder for the weights and their manifest.
        seed: Seed of the training, and of the choice of held-out rows.
    """
    from lightning_predict.own_weights.training.tables import eager_rows
    from lightning_predict.own_weights.training.tuning import tune_weights

    scores = tune_weights(tables, output, seed=seed, done=lambda what: print(what, file=sys.stderr))
    eager = eager_rows(tables)
    rows = [
        [
            row.gpu,
            row.operation,
            row.dtype,
            str(row.rows),
            "" if row.before is None else f"{row.before:.1%}",
            f"{row.after:.1%}",
            f"{row.coverage:.0%}",
            row.refused or "",
        ]
        for row in scores
    ]
    headers = ["GPU", "operation", "dtype", "rows", "mean error before", "after", "in interval", "refused"]
    lines = [aligned(headers, rows, right=range(3, 7)) if rows else NO_SCORES]
    if eager:
        lines.append(f"{eager} rows are left out: no CUDA graph timed them, so they hold launches.")
    return CommandAnswer(
        data=lambda: {"weights": str(output), "scores": json_value(scores), "eager_rows": eager},
        show=lambda: print("\n".join(lines)),
    )


def _names(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(",") if word.strip())
