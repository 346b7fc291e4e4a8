"""Score predictions on published times: `python -m benchmarks.accuracy FOLDER`.

Example::

    python -m benchmarks.accuracy validation --figure predicted-against-measured.png
    python -m benchmarks.accuracy validation --of correlations
    python -m benchmarks.accuracy validation --of regressions
    python -m benchmarks.accuracy measurements --of pairs
    python -m benchmarks.accuracy traces --of recordings
    python -m benchmarks.accuracy validation --of many-gpus
    python -m benchmarks.accuracy validation --of torchtitan --cache recorded-steps
    python -m benchmarks.accuracy validation --of nanotron --cache recorded-steps
    python -m benchmarks.accuracy validation --of nemo --cache recorded-steps
    python -m benchmarks.accuracy validation --of dgxc --cache recorded-steps
    python -m benchmarks.accuracy validation --of collectives
    python -m benchmarks.accuracy validation --of operators
    python -m benchmarks.accuracy validation --of timm --sample 40 --cache traces-of-timm
    python -m benchmarks.accuracy validation --of torchvision --cache traces-of-torchvision
    python -m benchmarks.accuracy validation --of steps --cache recorded-steps
    python -m benchmarks.accuracy validation --of choices
    python -m benchmarks.accuracy validation --of unseen --tables measurements --cache recorded-steps
    python -m benchmarks.accuracy validation --of dlrm
    python -m benchmarks.accuracy validation --of seeds
    python -m benchmarks.accuracy validation --of plans --cache recorded-steps
    python -m benchmarks.accuracy validation --of memory --cache traces-of-timm
    python -m benchmarks.accuracy validation --of memory-peers --sample 12
    python -m benchmarks.accuracy validation --of hosts --cache recorded-steps
    python -m benchmarks.accuracy validation --of milabench
    python -m benchmarks.accuracy validation --of lin
    python -m benchmarks.accuracy validation --of gavel --cache recorded-steps
    python -m benchmarks.accuracy validation --of sia --cache recorded-steps
    python -m benchmarks.accuracy measurements --of products
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy import (
    choices,
    collectives,
    gains,
    gpu_pairs,
    hosts,
    large_runs,
    layout_memory,
    many_gpus,
    memory,
    memory_peers,
    operator_tables,
    plan_replays,
    pretraining_report,
    product_tables,
    published_steps,
    recommendation,
    recordings,
    regressions,
    report,
    seeds,
    source_scores,
    studies,
    unseen_gpus,
    vision,
    whole_steps,
)
from benchmarks.accuracy.throughput import THROUGHPUT_TABLE
from benchmarks.result_files import ResultConsole, write_result
from benchmarks.runs import RUNS
from lightning_predict.base.errors import LightningPredictError, MeasurementTableError
from lightning_predict.hardware.records import AMD
from lightning_predict.kernels.models import kernel_models
from lightning_predict.reports.published_cases import PublishedCase

SOURCES: Final = {
    "milabench": published_steps.MILABENCH_TABLE,
    "lin": published_steps.LIN_TABLE,
    "gavel": published_steps.GAVEL_TABLE,
    "sia": published_steps.SIA_TABLE,
}
"""Tables of whole steps that are scored alone, by the name of the part."""

RECORDED_STEPS: Final = Path("recorded-steps")
"""Folder that keeps recorded steps, where none was named."""

WIDTH: Final = 180
"""Columns of the printed tables."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 where it worked, 1 after an error in words."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the tables")
    parser.add_argument(
        "--of",
        choices=(
            "iterations",
            "correlations",
            "regressions",
            "pairs",
            "recordings",
            "operators",
            "compiled",
            "timm",
            "torchvision",
            "many-gpus",
            *pretraining_report.READERS,
            "collectives",
            "steps",
            "hosts",
            "gains",
            "choices",
            "unseen",
            "dlrm",
            "seeds",
            "plans",
            *SOURCES,
            "products",
            "memory",
            "layout-memory",
            "memory-peers",
        ),
        default="iterations",
        help="whole iterations that others timed; the study behind the correlation of families' errors; regressions on "
        "past runs; what a measurement on one GPU says about another; recordings of real GPUs; single operators and "
        "small modules, eager and compiled; whole steps of either package's vision models; steps of large language "
        "models on many GPUs; published pretraining of torchtitan, nanotron, NeMo, DGX Cloud, IBM and KempnerForge; "
        "collectives, and steps of several cards over that of one; "
        "whole steps of all tables with GPUs and sources left out, behind shipped intervals; "
        "hosts of steps that launches dominate; gains of changes beside measured pairs; "
        "constants chosen on training benchmarks, left out; whole steps on GPUs "
        "whose measurements no network was trained on; DLRM on one and eight GPUs, and plans of its tables beside "
        "TorchRec's; "
        "the experiments of the papers that the methods are from, beside their figures; plans carried out with the "
        "times that published steps took; memory of "
        "training runs, and what other tools say of it; whole steps of milabench, "
        "Lin et al., Gavel and Sia: absolute, by one more sample, and as ratios of GPUs; single products in TF32 and "
        "float8 (default: %(default)s)",
    )
    parser.add_argument("--weights", type=Path, default=None, help="weights to use (default: cache, then bundled)")
    parser.add_argument("--figure", type=Path, default=None, help="PNG of predicted against measured times to write")
    parser.add_argument("--measure-cpu", action="store_true", help="with regressions: measure a sweep here, too")
    parser.add_argument(
        "--cache",
        type=Path,
        default=None,
        help="folder of recorded steps, of the parts that record",
    )
    parser.add_argument("--result", type=Path, default=None, help="folder to write the result to, as NAME.json")
    parser.add_argument("--output", type=Path, default=None, help="with steps: file to write their spread to")
    parser.add_argument("--tables", type=Path, default=None, help="with unseen: folder of the measurement tables")
    parser.add_argument(
        "--chips", nargs="+", choices=unseen_gpus.CHIPS, default=unseen_gpus.CHIPS, help="with unseen: these alone"
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=None,
        help="with timm: so many models, not all; with plans: so many teams; with memory-peers: so many families",
    )
    options = parser.parse_args(arguments)
    run = RUNS[options.of]
    console = ResultConsole(width=WIDTH, keeps_measurements=run.copies_allowed)
    try:
        published = _run(options, console)
        if options.result is not None:
            write_result(console.result(run, published=published), options.result)
    except (LightningPredictError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace, console: ResultConsole) -> Sequence[PublishedCase]:
    """Print a part; return the scored steps of whole models on GPUs."""
    folder: Path = options.folder
    if options.of == "regressions":
        throughputs = folder / THROUGHPUT_TABLE
        regressed = regressions.evaluate_regressions(
            throughputs=throughputs if throughputs.is_file() else None,
            measures_cpu=options.measure_cpu,
        )
        regressions.print_report(regressed, console)
        console.print_figures(
            "Published training benchmarks, beyond the fitted runs", regressions.published_figures(regressed)
        )
    elif options.of == "recordings":
        recordings.print_report(folder, console)
    elif options.of == "correlations":
        cases = studies.held_cases(folder, weights=options.weights)
        console.print(studies.study_table(studies.interval_study(cases)))
    elif options.of in ("operators", "compiled"):
        operator_tables.print_report(folder, console, compiled=options.of == "compiled", weights=options.weights)
    elif options.of == "pairs":
        models = kernel_models((), None if options.weights is None else str(options.weights))
        pairs = gpu_pairs.measured_pairs(folder, models)
        console.print(gpu_pairs.studies_table(gpu_pairs.exponent_studies(pairs)))
        console.print(gpu_pairs.shrinkage_table(gpu_pairs.shrinkage_studies(pairs)))
    elif options.of == "timm":
        steps = vision.read_timm_cases(folder / vision.TIMM_TABLE, sample=options.sample)
        scored_models = vision.evaluate_vision(steps, cache=options.cache, weights=options.weights)
        vision.print_report(scored_models, console)
        return vision.published(scored_models, RUNS["timm"])
    elif options.of == "torchvision":
        of_torchvision: list[PublishedCase] = []
        for name in (vision.TORCHVISION_TABLE, vision.TORCHVISION_TABLE_2):
            if (folder / name).is_file():
                steps = vision.read_torchvision_cases(folder / name)
                console.print(f"{name}:")
                found = vision.evaluate_vision(steps, cache=options.cache, weights=options.weights)
                for vendor in sorted({one.case.vendor for one in found}, reverse=True):
                    console.print(f"{vendor}:")
                    vision.print_report([one for one in found if one.case.vendor == vendor], console)
                of_torchvision += vision.published(found, RUNS["torchvision"])
        return of_torchvision
    elif options.of in SOURCES:
        rows = tuple(published_steps.READERS[SOURCES[options.of]](folder))
        scored = source_scores.scored_steps(rows, cache=options.cache or RECORDED_STEPS, weights=options.weights)
        source_scores.print_scores(scored, console, title=SOURCES[options.of])
        scored_cases = source_scores.published(scored, RUNS[options.of])
        if options.of == "milabench":
            others = tuple(published_steps.milabench_steps(folder, vendor=AMD))
            scored = source_scores.scored_steps(others, cache=options.cache or RECORDED_STEPS, weights=options.weights)
            source_scores.print_scores(scored, console, title=f"{SOURCES[options.of]}, {AMD}")
            scored_cases += source_scores.published(scored, RUNS[options.of])
        if options.of == "lin":
            source_scores.print_peers(published_steps.lin_errors(folder / published_steps.LIN_TABLE), console)
        return scored_cases
    elif options.of == "products":
        product_tables.print_report(folder, console)
    elif options.of == "many-gpus":
        for table in large_runs.large_run_tables(
            large_runs.evaluate_large_runs(folder, weights=options.weights, cache=options.cache)
        ):
            console.print(table)
        for name in (THROUGHPUT_TABLE, many_gpus.EXAMPLES_TABLE):
            if (folder / name).is_file():
                console.print(f"{name}:")
                for table in many_gpus.scaling_tables(
                    many_gpus.evaluate_scaling(folder / name, weights=options.weights)
                ):
                    console.print(table)
    elif options.of in pretraining_report.READERS:
        return pretraining_report.print_report(
            folder, options.of, console, weights=options.weights, cache=options.cache
        )
    elif options.of == "collectives":
        for table in collectives.collective_tables(folder):
            console.print(table)
    elif options.of == "hosts":
        hosts.print_report(hosts.host_bound_rows(folder, options.cache or RECORDED_STEPS), console)
    elif options.of == "gains":
        gains.print_report(gains.pairs_of(folder, options.cache), console)
    elif options.of == "choices":
        console.print(
            choices.choices_table(choices.evaluate_choices(folder / THROUGHPUT_TABLE, weights=options.weights))
        )
    elif options.of == "unseen":
        if options.tables is None:
            raise MeasurementTableError("--of unseen trains networks: name the measurement tables with --tables.")
        cache = options.cache or RECORDED_STEPS
        unseen_gpus.print_report(folder, options.tables, console, cache=cache, chips=options.chips)
    elif options.of == "layout-memory":
        layout_memory.print_report(folder, console, cache=options.cache)
    elif options.of == "memory":
        memory.print_report(folder, console, cache=options.cache)
    elif options.of == "memory-peers":
        memory_peers.print_report(folder, console, sample=options.sample)
    elif options.of == "dlrm":
        return recommendation.print_report(folder, console)
    elif options.of == "seeds":
        seeds.print_report(folder, console, measures_cpu=options.measure_cpu)
    elif options.of == "plans":
        steps_done = whole_steps.whole_steps(folder, cache=options.cache or RECORDED_STEPS, weights=options.weights)
        plan_replays.print_report(steps_done, console, number=options.sample or plan_replays.TEAMS)
    elif options.of == "steps":
        cache = options.cache or RECORDED_STEPS
        found_steps = whole_steps.whole_steps(folder, cache=cache, weights=options.weights)
        whole_steps.print_report(found_steps, console)
        if options.output is not None:
            whole_steps.write_spread(found_steps, options.output)
        return whole_steps.published(found_steps)
    else:
        found_iterations = report.evaluate_published(folder, weights=options.weights)
        report.print_report(found_iterations, console)
        if options.figure is not None:
            report.save_figure(found_iterations.transformers, found_iterations.throughput, options.figure)
        return report.published(found_iterations)
    return ()


if __name__ == "__main__":
    sys.exit(main())
