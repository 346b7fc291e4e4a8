"""Published step times with the errors of their predictions, and the cases most similar to a recorded step.

`make docs` collects the cases from the benchmark results into `published_cases.json`, which ships with the package. A
case is one model on one GPU in one precision, measured by one source.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.operations import batch_shapes, operation_spec
from lightning_predict.kernels.translation import work_items
from lightning_predict.memory.step_memory import has_packed_weights

if TYPE_CHECKING:
    from lightning_predict.hardware.records import Gpu
    from lightning_predict.record.trace import Trace

FILE: Final = Path(__file__).parent / "published_cases.json"

ModelKind = Literal[
    "language model",
    "vision transformer",
    "convolutional network",
    "diffusion",
    "recurrent network",
    "recommender",
    "other",
]
PrecisionClass = Literal["16 bits", "TF32", "float32", "float8", "other"]
SourceSplit = Literal["held out", "fitted"]
TrainedPart = Literal["all", "adapters", "adapters over 4 bits"]

SPLITS: Final[Mapping[SourceSplit, str]] = {  # Meaning of each split
    "held out": "no constant was chosen on this source",
    "fitted": "some constants were chosen on this source, so expect larger errors on others",
}

PRECISIONS: Final[Mapping[str, PrecisionClass]] = {
    "float16": "16 bits",
    "bfloat16": "16 bits",
    "tf32": "TF32",
    "float32": "float32",
}

RECURRENT: Final = ("lstm", "gru", "rnn")
EMBEDDING: Final = ("embedding", "embedding_bag")

FEW_CONVOLUTIONS: Final = 8
"""Minimum number of convolutions of a convolutional network. Transformers of images or audio have up to seven, which
embed the input (wav2vec 2.0)."""

FEW_NORMS: Final = 4  # A language model has at least so many layer norms (two a block). Recommenders have none.


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCase:
    """A published step time and the error of its prediction."""

    model: str
    kind: ModelKind
    gpu: str
    precision: PrecisionClass  # Precision of most of the floating-point operations
    source: str
    split: SourceSplit  # Whether constants of the package were chosen on this source
    steps: int  # Number of measured steps (batch sizes, torch versions) that the errors summarize
    error: float | None  # Median of predicted over measured time, minus 1; None if only the absolute error is known
    absolute_error: float  # Median of the absolute relative errors
    inside: int  # Number of steps whose measured time lies in the 90 % interval
    measured_ms: float | None = None  # Measured milliseconds of the median step; None if its licence forbids copies
    predicted_ms: float | None = None  # Predicted milliseconds of the median step
    is_training: bool = True  # Whether the step has a backward pass
    trains: TrainedPart = "all"

    @property
    def generation(self) -> str:
        """Architecture of the GPU, for example `ada`."""
        return gpu_of(self.gpu).architecture


@dataclass(frozen=True, slots=True)
class StepDescription:
    """Properties by which a recorded step is compared with published cases."""

    kind: ModelKind
    precision: PrecisionClass
    is_training: bool = True
    trains: TrainedPart = "all"


def describe(trace: Trace) -> StepDescription:
    """Return kind of model and precision of a recorded step, whether the step trains, and which part."""
    counts: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    for shape in (shape for item in work_items(trace) for shape in item.shapes):
        counts[shape.operation] += 1
        if operation_spec(shape.operation).units == "tensor":
            flops[shape.dtype] += int(batch_shapes([shape]).flops[0])
    dtype = flops.most_common(1)[0][0] if flops else "float32"
    is_training = any(operation.phase == "backward" for operation in trace.operations)
    return StepDescription(
        kind=_kind(counts), precision=_precision(dtype), is_training=is_training, trains=trained_part(trace)
    )


def trained_part(trace: Trace) -> TrainedPart:
    """Return the part of the parameters that a step trains."""
    if has_packed_weights(trace):
        return "adapters over 4 bits"
    sizes = [(math.prod(parameter.shape), parameter.requires_grad) for parameter in trace.parameters]
    trained, every = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
    return "adapters" if 0 < 2 * trained < every else "all"  # most adapters are 0.1 to 10 %


def _kind(counts: Counter[str]) -> ModelKind:
    """Guess the kind of a model from the number of calls of each operation."""

    def number(*words: str) -> int:
        return sum(count for name, count in counts.items() if any(word in name for word in words))

    convolutions = number("conv")
    attention = number("attention") or min(counts["softmax"], counts["bmm"])
    if number(*RECURRENT):
        return "recurrent network"
    if convolutions >= FEW_CONVOLUTIONS:
        return "diffusion" if attention > 1 and counts["group_norm"] else "convolutional network"
    if attention > 1:
        if number(*EMBEDDING):
            return "language model"
        return "vision transformer" if convolutions else "other"
    if number(*EMBEDDING):
        return "language model" if counts["layer_norm"] >= FEW_NORMS else "recommender"
    return "convolutional network" if convolutions else "other"


def _precision(dtype: str) -> PrecisionClass:
    if dtype.startswith("float8"):
        return "float8"
    return PRECISIONS.get(dtype, "other")


def precision_on(precision: PrecisionClass, gpu: str) -> PrecisionClass:
    """Return the precision that a GPU runs: float32 instead of TF32 on a GPU without TF32."""
    return "float32" if precision == "TF32" and "tf32" not in gpu_of(gpu).peak_flops_per_second else precision


def gpu_of(layout: str) -> Gpu:
    """Return the GPU of a layout name: L4 for `2x8xL4`."""
    return find_gpu(re.sub(r"^(\d+x)+", "", layout))


@lru_cache(maxsize=1)
def read_published_cases() -> tuple[PublishedCase, ...]:
    """Return the cases that ship with the package."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(PublishedCase(**dict(zip(content["fields"], row, strict=True))) for row in content["cases"])


def cases_text(cases: Iterable[PublishedCase]) -> str:
    """Return the content of `published_cases.json` for these cases, with one case per line."""
    names = [field.name for field in fields(PublishedCase)]
    rows = (json.dumps([getattr(case, name) for name in names], ensure_ascii=False) for case in cases)
    return f'{{"fields": {json.dumps(names)},\n"cases": [\n' + ",\n".join(rows) + "\n]}\n"


def nearest_cases(
    step: StepDescription, gpu: str, cases: Sequence[PublishedCase], *, number: int
) -> tuple[PublishedCase, ...]:
    """Return the cases most similar to a step on a GPU, most similar first.

    If the same kind of model has cases, only these are returned, and of these only cases with the same mode (training
    or inference), the same trained part, and one GPU or several as asked, if any. Cases on the same GPU come first,
    then cases on a GPU of the same generation or in the same precision. Ties go to sources on which no constant was
    chosen.
    """
    asked = gpu_of(gpu)
    precision = precision_on(step.precision, gpu)

    def distance(case: PublishedCase) -> tuple[int, bool, int]:
        from_gpu = 0 if gpu_of(case.gpu).name == asked.name else 1 if case.generation == asked.architecture else 2
        return from_gpu + (case.precision != precision), case.split != "held out", -case.steps

    alike = [case for case in cases if case.kind == step.kind] or list(cases)
    alike = [case for case in alike if case.is_training == step.is_training] or alike
    alike = [case for case in alike if case.trains == step.trains] or alike
    alike = [case for case in alike if (gpu_of(case.gpu).name == case.gpu) == (asked.name == gpu)] or alike
    return tuple(sorted(alike, key=distance)[:number])
