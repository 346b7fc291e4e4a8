"""Steps of timm's and torchvision's models: `timm.csv.gz` and `torchvision_step*.csv`.

Of timm, each GPU, model, mode and layout counts with the newest software; `MODELS` of them, evenly spread, are recorded
from the package. torchvision's training steps hold the copy of the images to the GPU, which the recorded step has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import lightning_predict as lp
from benchmarks.accuracy.case import Case, Step
from benchmarks.accuracy.readers.files import rows
from benchmarks.accuracy.workloads.vision import VisionStep, vision_trace

MODELS: Final = 40  # Models of timm that are recorded

PRECISIONS: Final[dict[str, Any]] = {"half": "half", "single": "single", "float": "single"}
"""Precisions of torchvision's tables that people train in."""


def vision_step(**fields: Any) -> Step:
    """Return the step of a model of timm or torchvision; fields as of `VisionStep`."""
    step = VisionStep(**fields)
    return Step(name=step.name, record=partial(vision_trace, step))


def timm_cases(data: Path) -> Iterator[Case]:
    """Read the eager steps of `MODELS` models."""
    newest: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {}
    for row in rows(data / "validation" / "timm.csv.gz"):
        # The file's name tells 1.12 from 1.10, which are one number in the column: `...-pt112-cu113-...`.
        digits = next(word[2:] for word in row["file"].split("-") if word.startswith("pt"))
        release = f"{digits[:1]}.{int(digits[1:]) // (10 if digits[0] == '2' else 1):02d}"
        key = (row["gpu"], row["model"], row["mode"], row["layout"])
        if row["compiled"] == "0" and (key not in newest or newest[key][0] < release):
            newest[key] = release, row
    models = sorted({key[1] for key in newest})
    chosen = set(models[:: max(len(models) // MODELS, 1)])
    for (gpu, model, mode, layout), (release, row) in newest.items():
        if model in chosen:
            yield Case(
                source=f"{gpu}, {mode}, {layout}",
                model=f"{model} {mode} amp {layout}",
                gpu=gpu,
                step=vision_step(
                    source="timm",
                    model=model,
                    mode=mode,
                    precision="amp",
                    layout=layout,
                    batch=int(row["batch"]),
                    image_size=int(row["img_size"]),
                    fuses_attention=release >= "2.0",
                ),
                measured=float(row["step_ms"]) / 1e3,
                release=f"{release[0]}.{int(release[2:])}",
            )


def torchvision_cases(data: Path) -> Iterator[Case]:
    """Read the steps on one GPU of the catalogue."""
    known = set(lp.gpu_names())
    for table in ("torchvision_step.csv", "torchvision_step_2.csv"):
        for row in rows(data / "validation" / table):
            gpu = _known_gpu(row, known)
            if row["n_gpus"] != "1" or row["precision"] not in PRECISIONS or gpu is None:
                continue
            said = re.match(r"\d+\.\d+", row.get("software") or "")
            release = said[0] if said is not None else "2.3" if row.get("vendor") == "AMD" else "1.4"
            yield Case(
                source=f"{row.get('vendor') or 'NVIDIA'}, {row['precision']}, {row['mode']}",
                model=f"{row['model']} {row['mode']} {row['precision']}",
                gpu=gpu,
                step=vision_step(
                    source="torchvision",
                    model=row["model"],
                    mode=row["mode"],
                    precision=PRECISIONS[row["precision"]],
                    layout="nchw",
                    batch=int(row["batch_per_gpu"]),
                    image_size=224,
                ),
                measured=float(row["median_ms"]) / 1e3,
                release=release,
                includes="copy of the images" if row["mode"] == "train" else "",
            )


def _known_gpu(row: dict[str, str], known: set[str]) -> str | None:
    try:
        name = lp.gpu(row["gpu"] or row["gpu_as_named"]).name
    except lp.LightningPredictError:
        return None
    return name if name in known else None
