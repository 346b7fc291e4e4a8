"""Experiments of the papers behind the methods, on currently published data, next to the papers' own figures.

    python -m benchmarks.accuracy FOLDER --of seeds

FOLDER holds `training_throughput.csv`, `timm.csv.gz`, `deep_learning_examples.csv`, `lin_2024.csv` with its steps, and
`gavel.csv` with `gavel_jobs`; each part is left out where its table is missing, and a folder without any of them is
refused. A folder `traces` next to it may hold recordings of GPUs. The papers' GPUs, frameworks and rows are others than
these, which is why the tables say what differs, and no figure is called better.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Final, final

import torch
from rich.console import Console
from rich.table import Table

import lightning_predict as lp
from benchmarks.accuracy import published_steps, recordings, regressions
from benchmarks.accuracy.many_gpus import EXAMPLES_TABLE
from benchmarks.accuracy.recommendation import LEAST_ERROR, dlrm_table, evaluate_dlrm
from benchmarks.accuracy.throughput import THROUGHPUT_TABLE, predicted_cases, ratios_of, read_throughput_cases
from benchmarks.accuracy.vision import TIMM_TABLE
from benchmarks.accuracy.workloads.dcgan import NOISE, discriminator, generator
from benchmarks.accuracy.workloads.inception import InceptionV3
from benchmarks.accuracy.workloads.recorded import without_pauses
from benchmarks.planning.pictures import comparison_table
from benchmarks.planning.prototype import played_prototype, slot_costs
from benchmarks.planning.streams import STREAMS, read_stream
from benchmarks.planning.streams import TABLE as STREAM_TABLE
from benchmarks.planning.study import Study, compare, run_study
from benchmarks.training.report import report_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import milliseconds_to_seconds, seconds_to_milliseconds
from lightning_predict.prediction import predict
from lightning_predict.record.trace import Trace

# --- Habitat (Yu et al., USENIX ATC 2021): measured on one GPU, predicted on others

HABITAT_ERROR: Final = "11.8"
"""Mean error in percent of an iteration of the five models over P4000, P100, V100, RTX 2070, RTX 2080 Ti and T4."""

HABITAT_MODELS: Final = {
    "ResNet-50": ("resnet50",),
    "GNMT": ("gnmt",),
    "Transformer": ("transformerxlbase", "transformerxllarge"),
}
"""Benchmarks of `training_throughput.csv` that stand for the paper's models; Transformer-XL for the Transformer."""

INCEPTION_GPUS: Final = ("RTX-3090", "RTX-4090")
INCEPTION_RELEASE: Final = "2.4"
"""Of torch, from which on both GPUs have a row of Inception v3: inference in float16 autocast, channels first."""

DCGAN_GPUS: Final = ("Quadro-P4000", "P100-PCIe-16GB", "V100-PCIe-16GB", "RTX-2070", "RTX-2080-Ti", "T4")
DCGAN_BATCH: Final = 64


@final
@dataclass(frozen=True, slots=True)
class PairScore:
    """A model of the paper.

    Attributes:
        model: Its name.
        what: Measured quantity.
        gpus: GPUs.
        errors: predicted / measured - 1 of each ordered pair, from one GPU's measured row to another's.
    """

    model: str
    what: str
    gpus: int
    errors: tuple[float, ...]


def habitat_scores(folder: Path) -> Iterator[PairScore]:
    """Predict from one GPU's measured row to another's, in float32 and one container, each model that has rows."""
    if (folder / THROUGHPUT_TABLE).is_file():
        cases = [case for case in read_throughput_cases(folder / THROUGHPUT_TABLE) if case.precision == "FP32"]
        for model, names in HABITAT_MODELS.items():
            own = [case for case in cases if case.model in names]
            pairs = list(ratios_of(predicted_cases(own)))
            what = f"training, {' and '.join(names)}, FP32 or TF32"
            yield PairScore(model, what, len({case.gpu for case in own}), tuple(pair.error for pair in pairs))
    if (folder / TIMM_TABLE).is_file():
        yield _inception(folder / TIMM_TABLE)


def _inception(path: Path) -> PairScore:
    columns = ("mode", "precision", "layout", "torch", "gpu", "compiled", "model", "batch", "step_ms")
    wanted = ("infer", "amp", "nchw", INCEPTION_RELEASE, "0", "inception_v3")
    measured: dict[tuple[str, int], float] = {}
    for row in read_csv(path, MeasurementTableError, columns=columns):
        if tuple(row.value[name] for name in ("mode", "precision", "layout", "torch", "compiled", "model")) == wanted:
            batch = int(row.member("batch").parsed().positive())
            seconds = milliseconds_to_seconds(row.member("step_ms").parsed().positive())
            measured[row.member("gpu").text(), batch] = seconds
    errors = []
    for origin, target in permutations(INCEPTION_GPUS, 2):
        for batch in {size for name, size in measured if name == origin and (target, size) in measured}:
            found = predict(inception_trace(batch), INCEPTION_GPUS, history=False)
            ratio = found[target].iteration_seconds / found[origin].iteration_seconds
            errors.append(measured[origin, batch] * ratio / measured[target, batch] - 1)
    what = "inference, timm, float16 autocast"
    return PairScore("Inception v3", what, len({name for name, _ in measured}), tuple(errors))


def inception_trace(batch: int) -> Trace:
    """Record inference of Inception v3 in float16 autocast on the meta device."""
    with torch.device("meta"):
        model, images = InceptionV3().eval(), torch.empty(batch, 3, 299, 299)

    def step() -> None:
        with torch.no_grad():
            model(images)

    return without_pauses(lp.capture(step, samples_per_step=batch, precision="16-mixed"))


def dcgan_trace(batch: int = DCGAN_BATCH, *, width: int = 64) -> Trace:
    """Record both updates of DCGAN's training step in float32 on the meta device."""
    with torch.device("meta"):
        makes, judges = generator(width), discriminator(width)
        real, noise = torch.empty(batch, 3, 64, 64), torch.empty(batch, NOISE, 1, 1)
    optimizers = [torch.optim.Adam(network.parameters(), lr=2e-4) for network in (makes, judges)]

    def step() -> None:
        fake = makes(noise)
        optimizers[1].zero_grad()
        (judges(real).sum() + judges(fake.detach()).sum()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judges(fake).sum().backward()
        optimizers[0].step()

    return without_pauses(lp.capture(step, samples_per_step=batch))


def habitat_table(scores: Iterable[PairScore]) -> Table:
    """The paper's experiment by model."""
    table = report_table(
        "Habitat: measured on one GPU, predicted on another",
        ("model", "rows here"),
        ("GPUs", "pairs", "mean error %", "median %"),
    )
    every = list[float]()
    for one in scores:
        table.add_row(one.model, one.what, str(one.gpus), *_errors(one.errors))
        every += one.errors
    table.add_row("DCGAN", "no published pair", "-", "-", "-", "-")
    table.add_section()
    table.add_row("all", f"the paper: mean {HABITAT_ERROR} over five models and six GPUs", "", *_errors(every))
    return table


def _errors(errors: Sequence[float]) -> Iterator[str]:
    sizes = [abs(error) for error in errors]
    yield str(len(sizes))
    yield f"{100 * statistics.fmean(sizes):.1f}" if sizes else "-"
    yield f"{100 * statistics.median(sizes):.1f}" if sizes else "-"


def _dcgan_sentence() -> str:
    found = predict(dcgan_trace(), DCGAN_GPUS, history=False)
    times = ", ".join(f"{name} {seconds_to_milliseconds(found[name].iteration_seconds):.1f} ms" for name in DCGAN_GPUS)
    return f"DCGAN, a step of {DCGAN_BATCH} images on the paper's GPUs, predicted from shapes alone: {times}."


def wave_sentences(traces: Path) -> Iterator[str]:
    """Say how far the pair of recordings is predicted, by wave scaling alone and as this package does."""
    for one, other in recordings.PAIRS:
        if (traces / one).is_file() and (traces / other).is_file():
            loaded = [recordings.load_recording(traces / name) for name in (one, other)]
            for score, origin in zip(recordings.score_pair(traces / one, traces / other), loaded, strict=True):
                error = score.predicted.step.device_seconds / score.device_seconds - 1
                alone = predict(origin, [score.target], method="wave", history=False)[score.target].device_seconds
                yield (
                    f"One ResNet-50 step recorded on {score.origin}, predicted on {score.target}: device time "
                    f"{100 * error:+.1f} %; by wave scaling alone, as in the paper's equation, "
                    f"{100 * (alone / score.device_seconds - 1):+.1f} %."
                )


# --- Lin et al. (HiPC 2022): kernels and idle time, on one GPU


@final
@dataclass(frozen=True, slots=True)
class LinScore:
    """A published step.

    Attributes:
        gpu: Its GPU.
        samples: Samples of it.
        measured_seconds: As measured.
        seconds: As predicted.
        active_seconds: The part of it in which the device computes, as predicted.
        published: Errors without sign, as shares, of the paper and those that it measured itself against, by name.
    """

    gpu: str
    samples: int
    measured_seconds: float
    seconds: float
    active_seconds: float
    published: Mapping[str, float]


def lin_scores(folder: Path) -> tuple[LinScore, ...]:
    """Predict the paper's own steps; errors as for `published_steps.lin_steps`."""
    peers = published_steps.lin_errors(folder / published_steps.LIN_TABLE)
    scores = []
    for number, row in enumerate(published_steps.READERS[published_steps.LIN_TABLE](folder)):
        trace = row.recorded(folder / published_steps.RECORDED)
        if trace is not None:
            (found,) = predict(trace, [row.on], history=False).items_in_order
            published = {name: errors[number] for name, errors in peers.items()}
            times = (row.measured_seconds, found.iteration_seconds, found.device_seconds)
            scores.append(LinScore(row.gpu, row.samples or 0, *times, published))
    return tuple(scores)


def lin_table(scores: Sequence[LinScore]) -> Table:
    """Tabulate steps and the device's active time, next to the errors that the paper states."""
    peers = tuple(scores[0].published)
    table = report_table(
        "Lin et al.: ResNet-50, a step and the device's active time in it",
        ("GPU",),
        ("samples", "measured ms", "predicted ms", "of it active", "error %", *(f"{name} %" for name in peers)),
    )
    for one in scores:
        times = (one.measured_seconds, one.seconds, one.active_seconds)
        table.add_row(
            one.gpu,
            str(one.samples),
            *(f"{seconds_to_milliseconds(time):.1f}" for time in times),
            f"{100 * (one.seconds / one.measured_seconds - 1):+.1f}",
            *(f"{100 * one.published[name]:.1f}" for name in peers),
        )
    table.add_section()
    errors = [abs(one.seconds / one.measured_seconds - 1) for one in scores]
    means = [errors, *([one.published[name] for one in scores] for name in peers)]
    table.add_row("mean", "", "", "", "", *(f"{100 * statistics.fmean(own):.1f}" for own in means))
    return table


def active_sentence(traces: Path) -> str | None:
    """Say how far the device's active time is predicted where it was recorded; None without recordings."""
    files = sorted(path for path in traces.glob("*.json*") if path.name not in recordings.CHOSEN_ON)
    scores = recordings.counted(recordings.score_recording(path) for path in files)
    errors = [max(abs(score.shapes.error), LEAST_ERROR) for score in scores if score.shapes is not None]
    if not errors:
        return None
    return (
        f"Active time as it was recorded (the sum of kernels that shapes tell): {len(errors)} recordings that no "
        f"choice saw, geometric mean error {100 * statistics.geometric_mean(errors):.1f} %, median "
        f"{100 * statistics.median(errors):.1f} %. Lin et al.: 5.2 %."
    )


# --- Ardagna et al.: the prototype, and a published stream of jobs


PUBLISHED_COSTS: Final = (
    (0.09, 0.09),
    (0.39, 0.39),
    (0.32, 0.32),
    (0.53, 0.53),
    (0.53, 0.53),
    (1.54, 1.88),
    (2.25, 2.47),
    (2.83, 2.39),
    (3.33, 3.68),
    (1.28, 1.37),
    (2.93, 3.06),
)
"""Predicted and real dollars of the prototype's eleven slots on two Azure nodes (Ardagna et al.), as published."""

PROTOTYPE_SEEDS: Final = (2, 3, 4, 5, 6)

STREAM: Final = "max_min_fairness"
"""The published stream whose jobs arrive one after another; in the others all come at once."""

STREAM_NODES: Final = (3, 4, 6)


def prototype_table(seeds: Sequence[int] = PROTOTYPE_SEEDS) -> Table:
    """Play the prototype with drawn deadlines and real times, next to the paper's figures."""
    table = report_table(
        "The prototype: two nodes, four types of machines, JJ1 to JJ6, one every 300 s",
        ("what",),
        ("slots", "planned $", "real $", "planned over real %", "rule EDF, real $"),
    )
    for seed in seeds:
        played = played_prototype(seed)
        rule = played_prototype(seed, "edf").real.machine_usd
        predicted, real = slot_costs(played.predicted), slot_costs(played.real)
        costs = (f"{sum(predicted):.2f}", f"{sum(real):.2f}", f"{100 * played.deviation:+.1f}", f"{rule:.2f}")
        table.add_row(f"played, seed {seed}", str(len(real)), *costs)
    table.add_section()
    sums = [sum(column) for column in zip(*PUBLISHED_COSTS, strict=True)]
    off = f"{100 * (sums[0] / sums[1] - 1):+.1f}"
    table.add_row("as published", str(len(PUBLISHED_COSTS)), *(f"{one:.2f}" for one in sums), off, "-")
    return table


def stream_study(folder: Path, *, nodes: Sequence[int] = STREAM_NODES, seeds: Sequence[int] = (2, 3)) -> Study:
    """Return the study of the published stream; errors as for `read_stream`."""
    stream = read_stream(folder, STREAM)
    return Study(
        setting="stream",
        stream=stream,
        mean_gap_seconds=(stream.mean_gap_seconds,),
        nodes=tuple(nodes),
        seeds=tuple(seeds),
    )


# --- The whole report


def print_report(folder: Path, console: Console, *, measures_cpu: bool = False) -> None:
    """Print every part that the folder has tables for.

    Args:
        folder: See the top of this file.
        console: Where to.
        measures_cpu: Measure a sweep over the batch size on this processor, too.
    """
    tables = (THROUGHPUT_TABLE, TIMM_TABLE, EXAMPLES_TABLE, published_steps.LIN_TABLE, STREAM_TABLE)
    if not any((folder / name).is_file() for name in tables):
        raise MeasurementTableError(f"{folder} holds none of {', '.join(tables)}; give the folder of these tables.")
    scores = list(habitat_scores(folder))
    if any(score.errors for score in scores):
        console.print(habitat_table(scores))
        console.print(
            "The paper times each operation on the GPU in use and scales it by waves, or by networks for convolutions, "
            "products and recurrent layers. These rows are of whole steps: the measured step times the ratio of two "
            "predictions, on 17 GPUs of five generations, tensor cores included where the container used them. "
            "The Transformer is Transformer-XL; Inception v3 is inference."
        )
        console.print(_dcgan_sentence())
        for sentence in wave_sentences(folder.parent / "traces"):
            console.print(sentence)
    if (folder / THROUGHPUT_TABLE).is_file():
        path = folder / THROUGHPUT_TABLE
        axes = [*regressions.published_number_scores(path), *regressions.published_power_scores(path)]
        axes += regressions.cpu_scores() if measures_cpu else []
        for table in regressions.summary_tables(axes):
            console.print(table)
        console.print(
            f"{regressions.PUBLISHED_SOURCE}: 5 to 25 % from fewer GPUs to more, 5 to 18 % from slower GPUs to faster "
            "ones, DeepSpeech 11.7 with all features and 10.1 with five. Theirs are a dozen settings of one server; "
            "here a regression has three to a dozen runs, of GPUs of five generations. Batch size and depth, which "
            "nobody publishes as sweeps, are simulated by --of regressions."
        )
        console.print(regressions.layers_table(regressions.layer_scores()))
        console.print(
            "Lines over layers see no waves, caches or algorithms of convolutions; of one layer they err by 52 to 69 % "
            "(22,690 measured convolutions left out). Errors cancel within the network that was fitted, not in "
            "another. "
            "`lightning-predict regress STEP --layers RECORDINGS` fits them to kernels of your own GPU."
        )
    console.print(prototype_table())
    console.print(
        "The jobs' lengths in the prototype are not published, so the dollars are of other jobs; what compares is how "
        "far predicted and real cost are apart. Theirs erred by their models' errors, these by up to 10 % each."
    )
    if (folder / STREAM_TABLE).is_file() and (folder / STREAMS / f"{STREAM}.trace").is_file():
        study = stream_study(folder)
        console.print(comparison_table(compare(run_study(study))))
        left_out = 0 if study.stream is None else study.stream.left_out
        console.print(
            f"The stream {STREAM} of Gavel (OSDI 2020), {left_out} jobs of models without a throughput left out, on "
            "machines of clouds; predicted by one of its tables of throughputs, carried out by the other."
        )
    if (folder / published_steps.LIN_TABLE).is_file():
        console.print(lin_table(lin_scores(folder)))
        active = active_sentence(folder.parent / "traces")
        if active is not None:
            console.print(active)
    if (folder / EXAMPLES_TABLE).is_file():
        console.print(dlrm_table(evaluate_dlrm(folder / EXAMPLES_TABLE)))
        console.print(
            "Lin et al., HiPC 2022: geometric mean error 5.2 % of the device's active time and 8.0 % of a batch, of "
            "DLRMs on one GPU, with kernel models fitted and overheads recorded on that GPU. Ours see neither GPU nor "
            "row; the eight-GPU rows keep the bottom perceptron on one GPU and replay CUDA graphs."
        )
