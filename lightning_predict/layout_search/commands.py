"""Commands `parallel` and `curve`: the best parallel strategies for many GPUs, and time and cost by number of GPUs.

Example::

    lightning-predict parallel step.json.gz --gpus 8x8xH100-SXM-80GB --iterations 10000 --budget 5000
    lightning-predict curve step.json.gz --gpus 8x8xH100-SXM-80GB --strategy fsdp --output report.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning_predict.base.answers import CommandAnswer, aligned, json_value, sentences
from lightning_predict.base.model_options import NO_OPTIONS, ModelOptions

if TYPE_CHECKING:
    from lightning_predict.layout_search.goodput import Reliability
    from lightning_predict.layout_search.ranking import RankedLayout
    from lightning_predict.record.trace import Trace


def parallel(
    source: str,
    /,
    *,
    gpus: str = "8x8xH100-SXM-80GB",
    global_batch: int | None = None,
    max_micro_batch: int | None = None,
    fp8: Literal["tensorwise", "rowwise", "blockwise", "mx"] | None = None,
    kernels: str | None = None,
    iterations: int | None = None,
    budget: float | None = None,
    mtbf_hours: float | None = None,
    checkpoint_gbps: float | None = None,
    restart_minutes: float | None = None,
    count: int = 10,
    usd_per_hour: str | None = None,
    spot: bool = False,
    profile: Path | None = None,
    model: ModelOptions = NO_OPTIONS,
) -> CommandAnswer:
    """Find the fastest parallel strategies for many GPUs: sharding, micro-batches and recomputation that fit in memory.

    Every data-parallel group processes a batch of the recorded size, or several such batches to reach the global batch.
    Results are ranked by samples per second.

    Args:
        source: The step, recorded on one GPU or on the meta device, or a model by name, as for `predict`.
        gpus: Layouts, separated by commas: 8x8xH100-SXM-80GB, or 8xp5.48xlarge with a cloud's network and price.
        global_batch: Samples of all GPUs between two optimizer updates, a multiple of the recorded batch.
        max_micro_batch: Maximum number of samples that a data-parallel group processes at once.
        fp8: Also consider float8 matmuls in the blocks, with this scaling. Float8 changes the computed results.
        kernels: What the job runs instead of PyTorch's eager kernels, as for predict.
        iterations: Remaining steps, for time and cost of the run: of the global batch if it is given, else as recorded.
        budget: Maximum dollars of the run; needs --iterations.
        mtbf_hours: Mean hours between two failures of one GPU (published for H100s: 50,700), or with --spot between
            interruptions. Shows the share of time left after failures and checkpoints, and adds their cost.
        checkpoint_gbps: Storage bandwidth for checkpoints of all GPUs together, in GB/s (with --mtbf-hours: 10).
        restart_minutes: Minutes from a failure until training continues (default with --mtbf-hours: 10).
        count: Number of results to print.
        usd_per_hour: Your own price of one GPU per hour, for all GPUs or by name (L4=0.5,H100=2).
        spot: Use spot prices if they are below the on-demand prices.
        profile: TOML file with the machines, links, prices and other assumptions.
        model: Options of a model by name.
    """
    from lightning_predict.layout_search.ranking import best_layouts, tokens_per_sample
    from lightning_predict.machine_profile import parse_prices, read_machine_profile
    from lightning_predict.record.sources import step_of_source

    told = read_machine_profile(profile)
    step = step_of_source(source, model, **told.model).trace
    prices = told.prices(parse_prices(usd_per_hour), spot=spot)
    with _progress("strategies that fit") as on_progress:
        choices = best_layouts(
            step,
            _words(gpus),
            iterations=iterations,
            budget_usd=budget,
            global_batch=global_batch,
            max_micro_batch=max_micro_batch,
            fp8=fp8,
            reliability=_reliability(
                mtbf_hours=mtbf_hours, checkpoint_gbps=checkpoint_gbps, restart_minutes=restart_minutes
            ),
            count=count,
            offers=prices.offers,
            usd_per_hour=prices.usd_per_hour,
            weights=told.weights,
            interconnect=told.interconnect,
            release=told.release,
            kernels=kernels or (),
            host=told.host,
            on_progress=on_progress,
        )
    tokens = tokens_per_sample(step)
    heading = _heading(step, tokens, global_batch=global_batch, max_micro_batch=max_micro_batch, iterations=iterations)
    return CommandAnswer(
        data=lambda: [_values(choice, tokens) for choice in choices],
        show=lambda: print("\n".join(_lines(choices, tokens, heading))),
    )


def curve(
    source: str,
    /,
    *,
    gpus: str = "8x8xH100-SXM-80GB",
    strategy: str = "ddp",
    iterations: int | None = None,
    usd_per_hour: str | None = None,
    profile: Path | None = None,
    model: ModelOptions = NO_OPTIONS,
    output: Path | None = None,
) -> CommandAnswer:
    """Show time, cost and efficiency for 1, 2, 4, ... GPUs, and the number above which more machines do not pay off.

    Args:
        source: The step, recorded on one GPU or on the meta device, or a model by name, as for `predict`.
        gpus: The largest layouts, separated by commas.
        strategy: How several GPUs share the work: ddp, zero1, zero2, fsdp, hybrid, with options (fsdp,tensor=8).
        iterations: Remaining recorded steps, for the time and the cost of the run.
        usd_per_hour: Your own price of one GPU per hour, for all GPUs or by name (L4=0.5,H100=2).
        profile: TOML file with the machines, links, prices and other assumptions.
        model: Options of a model by name.
        output: Also write an HTML report to this file.
    """
    from lightning_predict.base.errors import InvalidArgumentError
    from lightning_predict.hardware.layouts import layouts_of
    from lightning_predict.layouts.strategy import parse_strategy
    from lightning_predict.machine_profile import parse_prices, read_machine_profile
    from lightning_predict.prediction import predict_workload, remaining_steps
    from lightning_predict.record.sources import step_of_source
    from lightning_predict.reports.cost_curve import cost_curves, layouts_up_to, table_of
    from lightning_predict.reports.html import html_report
    from lightning_predict.run.history import read_history

    told = read_machine_profile(profile)
    step = step_of_source(source, model, **told.model).trace
    layouts = list(dict.fromkeys(candidate for layout in _words(gpus) for candidate in layouts_up_to(layout)))
    predictions = predict_workload(
        step,
        layouts_of(layouts),
        remaining_steps(step, iterations),
        told.assumptions(
            told.prices(parse_prices(usd_per_hour)), strategy=parse_strategy(strategy), history=read_history()
        ),
    )
    curves = cost_curves(predictions)
    if not curves:
        raise InvalidArgumentError(
            f"gpus={gpus!r} makes no curve of {len(layouts)} layout(s); name a layout of four GPUs or more, and record "
            "the step with samples_per_step."
        )
    if output is not None:
        output.write_text(html_report(predictions, predictions.ranking()), encoding="utf-8")
    lines: list[str] = []
    for scaling in curves:
        headers, rows = table_of(scaling)
        lines += [aligned(headers, rows, right=range(1, len(headers))), "", *sentences(scaling.sentences)]
    written = [] if output is None else [str(output)]
    return CommandAnswer(
        data=lambda: {
            "curves": json_value(curves),
            "sentences": [line for scaling in curves for line in scaling.sentences],
            "written": written,
        },
        show=lambda: print("\n".join([*lines, *written])),
    )


@contextmanager
def _progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar in a terminal, and yield the function that updates it: (finished, all)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def _reliability(**rates: float | None) -> Reliability | None:
    from lightning_predict.layout_search.goodput import Reliability

    known = {name: value for name, value in rates.items() if value is not None}
    return Reliability(**known) if known else None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _rates(row: RankedLayout, tokens: int | None) -> tuple[float | None, float | None]:
    """Return tokens per second and per dollar; samples per second and per dollar if `tokens` is None."""
    each = 1 if tokens is None else tokens
    rates = (row.samples_per_second, row.samples_per_usd)
    second, dollar = (None if rate is None else rate * each for rate in rates)
    return second, dollar


def _values(row: RankedLayout, tokens: int | None) -> dict[str, object]:
    prediction = row.prediction
    second, dollar = _rates(row, tokens)
    return {
        "layout": prediction.gpu,
        "strategy": row.strategy.name,
        "kernels": list(row.kernels),
        "lacked_kernels": list(row.lacked_kernels),
        "precision": prediction.precision,
        "iteration_seconds": prediction.iteration_seconds,
        "iteration_seconds_low": prediction.iteration_seconds_low,
        "iteration_seconds_high": prediction.iteration_seconds_high,
        "samples_per_second": row.samples_per_second,
        "samples_per_usd": row.samples_per_usd,
        "tokens_per_second": None if tokens is None else second,
        "tokens_per_usd": None if tokens is None else dollar,
        "total_seconds": row.total_seconds,
        "cost_usd": row.cost_usd,
        "goodput": None if row.goodput is None else row.goodput.share,
        "checkpoint_interval_seconds": None if row.goodput is None else row.goodput.interval_seconds,
        "usd_per_hour": prediction.usd_per_hour,
        "offer": prediction.offer,
        "memory_bytes": prediction.memory_bytes,
        "bound_by": row.bound_by,
        "notes": list(prediction.step.notes),
    }


def _lines(ranked: Sequence[RankedLayout], tokens: int | None, heading: str) -> list[str]:
    from lightning_predict.reports.format import (
        duration,
        gibibytes,
        known_columns,
        relative_interval,
        share,
        significant,
        usd,
    )

    rows = []
    layouts = list(dict.fromkeys(choice.prediction.gpu for choice in ranked))
    for choice in ranked:
        own, time = choice.prediction, choice.prediction.iteration
        second, dollar = _rates(choice, tokens)
        rows.append(
            [
                own.gpu if len(layouts) > 1 else "",
                duration(time.middle),
                relative_interval(time.low, time.middle, time.high),
                "" if second is None else significant(second),
                "" if dollar is None else significant(dollar),
                "" if choice.goodput is None else share(choice.goodput.share),
                "" if choice.total_seconds is None else duration(choice.total_seconds),
                "" if choice.cost_usd is None else usd(choice.cost_usd),
                "" if own.memory_bytes is None else gibibytes(own.memory_bytes),
                "" if own.fit_probability is None else share(own.fit_probability),
                choice.bound_by or "",
                choice.strategy.name,
            ]
        )
    texts = {"layout", "(90 %)", "bound by", "strategy"}
    counted = "samples" if tokens is None else "tokens"
    headers, rows = known_columns(
        [
            "layout",
            "step",
            "(90 %)",
            f"{counted}/s",
            f"{counted}/$",
            "goodput",
            "total",
            "cost",
            "GiB",
            "fits",
            "bound by",
            "strategy",
        ],
        rows,
    )
    right = {number for number, header in enumerate(headers) if header not in texts}
    notes = dict.fromkeys(note for note in ranked[0].prediction.step.notes)
    first = () if len(ranked) == 1 else ("Of the first:",)
    return [
        *sentences([heading, _priced(ranked)]),
        "",
        aligned(headers, rows, right=right),
        "",
        *sentences((*_failures(ranked), *((*first, *notes) if notes else ()))),
    ]


def _heading(
    step: Trace, tokens: int | None, *, global_batch: int | None, max_micro_batch: int | None, iterations: int | None
) -> str:
    """Describe the step and the number of steps that the printed time and cost refer to."""
    recorded = "what was recorded" if step.samples is None else f"{step.samples:,} sample{'s'[: step.samples - 1]}"
    words = "" if tokens is None or step.samples is None else f" of {tokens:,} tokens"
    if global_batch is None:
        size = f"{recorded}{words} on each data-parallel group"
        length = "" if iterations is None else f"; in all, the samples of {iterations:,} steps as recorded"
    else:
        size = f"the global batch, {global_batch:,} samples{words}"
        length = "" if iterations is None else f"; {iterations:,} of them in all"
    larger = ""
    if max_micro_batch is not None and step.samples is not None and max_micro_batch > step.samples // step.batches:
        larger = f". Micro-batches are of {recorded} at most, as recorded"
    return f"A step is {size}{length}{larger}."


def _priced(ranked: Sequence[RankedLayout]) -> str:
    """Return each layout's name with its price, the source of the price, its kernels and a changed precision."""
    from lightning_predict.reports.format import usd_per_hour

    prices = []
    for name, choice in {choice.prediction.gpu: choice for choice in ranked}.items():
        own = choice.prediction
        price = "no price known" if own.usd_per_hour is None else usd_per_hour(own.usd_per_hour)
        words = [*choice.kernels, *(f"{word} (not on {own.layout.gpu.name})" for word in choice.lacked_kernels)]
        kernels = f", with kernels of {', '.join(words)}" if words else ""
        precision = "" if own.precision is None else f", in {own.precision} because bfloat16 is emulated there"
        prices.append(f"{name} ({price}{'' if own.offer is None else f', {own.offer}'}){kernels}{precision}")
    return f"On {'; '.join(prices)}:"


def _failures(ranked: Sequence[RankedLayout]) -> Iterator[str]:
    """Yield a sentence per layout on the cost of failures and checkpoints."""
    from lightning_predict.reports.format import duration, significant

    for name, goodput in {choice.prediction.gpu: choice.goodput for choice in ranked}.items():
        if goodput is not None:
            yield (
                f"{name}: a failure every {duration(goodput.failure_seconds)}; a checkpoint of "
                f"{significant(goodput.checkpoint_bytes / 1e9)} GB takes {duration(goodput.checkpoint_seconds)}, best "
                f"every {duration(goodput.interval_seconds)}."
            )
    if any(choice.goodput is not None for choice in ranked):
        yield (
            "Goodput: share of the time left after failures, checkpoints and repeated work. Totals and costs include "
            "it."
        )
