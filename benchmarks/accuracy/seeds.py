"""The experiments of the papers that the methods are from, on what is published today, beside the papers' own figures.

    python -m benchmarks.accuracy FOLDER --of seeds

FOLDER holds `training_throughput.csv`, `timm.csv.gz` and `deep_learning_examples.csv`; each part is left out where its
table is missing. A folder `traces` beside it may hold the recordings of one step on two GPUs. The papers' GPUs,
frameworks and rows are others than these, which is why the tables say what differs, and no figure is called better.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Final, final

import torch
from rich.console import Console
from rich.table import Table

import lightning_predict as lp
from benchmarks.accuracy import recordings, regressions
from benchmarks.accuracy.many_gpus import EXAMPLES_TABLE
from benchmarks.accuracy.recommendation import dlrm_table, evaluate_dlrm
from benchmarks.accuracy.throughput import THROUGHPUT_TABLE, predicted_cases, ratios_of, read_throughput_cases
from benchmarks.accuracy.vision import TIMM_TABLE
from benchmarks.accuracy.workloads.dcgan import NOISE, discriminator, generator
from benchmarks.accuracy.workloads.inception import InceptionV3
from benchmarks.accuracy.workloads.recorded import without_pauses
from benchmarks.training.report import report_table
from lightning_predict.checked import read_csv
from lightning_predict.errors import MeasurementTableError
from lightning_predict.prediction import predict
from lightning_predict.tracing.trace import Trace
from lightning_predict.units import milliseconds_to_seconds, seconds_to_milliseconds

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
        what: What was measured.
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


def _wave_sentences(traces: Path) -> Iterator[str]:
    for one, other in recordings.PAIRS:
        if (traces / one).is_file() and (traces / other).is_file():
            for score in recordings.score_pair(traces / one, traces / other):
                share = score.predicted.step.coverage.get("wave", 0.0)
                error = score.predicted.step.device_seconds / score.device_seconds - 1
                yield (
                    f"One ResNet-50 step recorded on {score.origin}, predicted on {score.target}: device time "
                    f"{100 * error:+.1f} %; wave scaling times {100 * share:.0f} % of it in `auto`, ratios of two "
                    "predictions the rest."
                )


# --- The whole report


def print_report(folder: Path, console: Console, *, measures_cpu: bool = False) -> None:
    """Print every part that the folder has tables for.

    Args:
        folder: See the top of this file.
        console: Where to.
        measures_cpu: Measure a sweep over the batch size on this processor, too.
    """
    scores = list(habitat_scores(folder))
    if scores:
        console.print(habitat_table(scores))
        console.print(
            "The paper times each operation on the GPU in use and scales it by waves, or by networks for convolutions, "
            "products and recurrent layers. These rows are of whole steps: the measured step times the ratio of two "
            "predictions, on 17 GPUs of five generations, tensor cores included where the container used them. "
            "The Transformer is Transformer-XL; Inception v3 is inference."
        )
        console.print(_dcgan_sentence())
        for sentence in _wave_sentences(folder.parent / "traces"):
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
            "nobody publishes as sweeps, are simulated by --of regressions. Their regression of layers is not here: a "
            "straight line over the work of convolutions erred by 52 to 69 % (mean) on 22,690 held-out layers, which "
            "networks of `predict` time."
        )
    console.print(planning_table())
    if (folder / EXAMPLES_TABLE).is_file():
        console.print(dlrm_table(evaluate_dlrm(folder / EXAMPLES_TABLE)))
        console.print(
            "Lin et al., HiPC 2022: geometric mean error 5.2 % of the device's active time and 8.0 % of a batch, of "
            "DLRMs on one GPU, with kernel models fitted and overheads recorded on that GPU. Ours see neither GPU nor "
            "row; the eight-GPU rows keep the bottom perceptron on one GPU and replay CUDA graphs."
        )


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
"""Predicted and real dollars of the prototype's eleven slots on two Azure nodes (Ardagna et al.)."""


def planning_table() -> Table:
    """The prototype's costs as published; `lightning-predict simulate` replays the study, `docs/howto/plan-jobs.md`."""
    table = report_table(
        "Planning: the prototype's predicted and real cost, as published; ours: docs/howto/plan-jobs.md",
        ("slot",),
        ("predicted $", "real $", "error %"),
    )
    rows = [(str(number), *pair) for number, pair in enumerate(PUBLISHED_COSTS, start=1)]
    sums = [sum(column) for column in zip(*PUBLISHED_COSTS, strict=True)]
    for name, predicted, real in (*rows, ("sum", sums[0], sums[1])):
        table.add_row(name, f"{predicted:.2f}", f"{real:.2f}", f"{100 * (predicted / real - 1):+.1f}")
    return table
