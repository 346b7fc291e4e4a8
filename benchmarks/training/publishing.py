"""Write trained networks: one file per GPU and the base, the manifest and the model card.

The manifest keeps how the base does on GPUs that it never saw: for each GPU, a base that saw neither it nor a similar
GPU (`Recipe.folds`) predicted the held-out rows that are scored for own weights. It was trained like the base that
ships, or more briefly. Example::

    publish(results, groups, gpus, folder=Path("weights"), seed=0)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.table import Table

from benchmarks.training.families import FamilyResult
from benchmarks.training.recipes import RECIPE_NAME
from benchmarks.training.scores import BESIDE, FEWEST_SCORED, RawNetwork, Score, score_groups, score_markdown
from benchmarks.training.tables import SOURCES
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import UtilisationModels
from lightning_predict.kernels.operations import network_specs as families_of_networks
from lightning_predict.own_weights.training.networks import with_constants_in_bias
from lightning_predict.own_weights.training.tables import CALIBRATION_SHARE, HELD_OUT_SHARE, Group
from lightning_predict.weights.files import (
    MANIFEST_NAME,
    HeldOutError,
    Manifest,
    ManifestEntry,
    file_name,
    read_weights,
    sha256,
    write_weights,
)
from lightning_predict.weights.records import CROSS_GPU, GpuWeights, LoadedWeights

HEADINGS = ("operation", "dtype", "GPU", "rows", "median %", "mean %", "in interval %")


def unseen_cells(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return the rows of the table, in the order of `HEADINGS`; none if nothing could be left out."""
    entry = manifest.files.get(file_name(CROSS_GPU))
    errors = {} if entry is None else entry.held_out_error
    return [
        (
            *key.split("/"),
            str(error.rows),
            *(f"{100 * share:.1f}" for share in (error.median, error.mean, error.coverage)),
        )
        for key, error in sorted(errors.items())
    ]


def unseen_table(manifest: Manifest) -> Table:
    """Return the errors for the terminal."""
    table = Table(title="Errors of bases on GPUs that were left out of their training", box=box.SIMPLE)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:3] else "right", no_wrap=True)
    for cells in unseen_cells(manifest):
        table.add_row(*cells)
    return table


def unseen_markdown(manifest: Manifest) -> str:
    """Return the errors as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells) + " |" for cells in unseen_cells(manifest)]
    return "\n".join(lines)


CARD_NAME: Final = "MODEL_CARD.md"


def publish(
    results: Mapping[str, FamilyResult],
    groups: Sequence[Group],
    gpus: Mapping[str, Gpu],
    *,
    folder: Path,
    seed: int,
    raw_networks: Mapping[tuple[str, str], RawNetwork] | None = None,
) -> tuple[Score, ...]:
    """Write all files into the folder, score the written files and describe it; old weights files there are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    names = [CROSS_GPU, *sorted({gpu for result in results.values() for gpu in result.own})]
    for name in names:
        write_weights(_weights_of(name, results, groups, seed), folder / file_name(name))
    stored = {name: read_weights(folder / file_name(name)) for name in names}
    own = {name: weights for name, weights in stored.items() if name != CROSS_GPU}
    models = UtilisationModels(LoadedWeights(stored[CROSS_GPU], own))
    scores = score_groups(models, groups, gpus, seed=seed, raw_networks=raw_networks)
    manifest = Manifest(
        recipe=RECIPE_NAME,
        seed=seed,
        files={file_name(name): _entry(name, folder, stored[name], results, scores) for name in names},
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    (folder / CARD_NAME).write_text(model_card(manifest, scores, results), encoding="utf-8")
    return scores


def _weights_of(name: str, results: Mapping[str, FamilyResult], groups: Sequence[Group], seed: int) -> GpuWeights:
    families = {
        family: with_constants_in_bias(result.base if name == CROSS_GPU else result.own[name])
        for family, result in results.items()
        if name == CROSS_GPU or name in result.own
    }
    pairs = {pair for network in families.values() for pair in network.trained}
    used = {
        group.source
        for group in groups
        if (group.batch.operation, group.batch.dtype) in pairs and name in (CROSS_GPU, group.gpu)
    }
    return GpuWeights(name, families, RECIPE_NAME, seed, tuple(_title(source) for source in sorted(used)))


def _title(source: str) -> str:
    known = SOURCES.get(source)
    return source if known is None else f"{known.title} ({known.licence})"


def _entry(
    name: str, folder: Path, weights: GpuWeights, results: Mapping[str, FamilyResult], scores: Sequence[Score]
) -> ManifestEntry:
    content = (folder / file_name(name)).read_bytes()
    pairs = {pair for network in weights.families.values() for pair in network.trained}
    held_out = (
        {
            f"{error.operation}/{error.dtype}/{error.gpu}": HeldOutError(
                rows=error.rows,
                mean=round(error.mean, 4),
                median=round(error.median, 4),
                coverage=round(error.coverage, 3),
            )
            for result in results.values()
            for error in result.unseen
            if error.rows >= FEWEST_SCORED
        }
        if name == CROSS_GPU
        else {
            f"{score.operation}/{score.dtype}": HeldOutError(
                rows=score.rows,
                mean=round(score.mean, 4),
                median=round(score.median, 4),
                coverage=round(score.coverage, 3),
            )
            for score in scores
            if score.gpu == name and score.own_weights
        }
    )
    return ManifestEntry(
        sha256=sha256(content),
        bytes=len(content),
        gpu=name,
        operations=tuple(sorted({operation for operation, _ in pairs})),
        dtypes=tuple(sorted({dtype for _, dtype in pairs})),
        trained_on=weights.sources,
        rows=sum(results[family].rows[name] for family in weights.families),
        held_out_error=held_out,
    )


def model_card(manifest: Manifest, scores: Sequence[Score], families: Iterable[str]) -> str:
    """Describe the weights, their training data and their reliability, as Markdown."""
    sources = sorted({title for entry in manifest.files.values() for title in entry.trained_on})
    known = families_of_networks()
    described = "\n".join(
        f"- `{name}`: {', '.join(known[name].operations)}; {', '.join(known[name].dtypes)}" for name in families
    )
    return f"""# Weights of the utilisation models

Recipe `{manifest.recipe}`, seed {manifest.seed}. Written by `python -m benchmarks.training`; do not edit.

Small networks (an ensemble of multilayer perceptrons for each family of operations) predict how much of a GPU's
roofline a kernel reaches. `base.safetensors` was trained on all GPUs, but briefly and with little or no sight of what
tells them apart, and serves those without measurements; each other file was trained for longer, with full sight, and
then fine-tuned on the measurements of its GPU.

## Families

{described}

## Trained on

{chr(10).join(f"- {title}" for title in sources)}

Several software builds of one GPU and shape count once, by their mean. Times of Python calls are taken as the root of
the sum of squares of device time and launch. NeuSight's convolutions were timed while the launch of every call grew,
row by row, from about 0.07 ms to 0.3 ms (V100) or 0.8 ms (P100, P4); it is taken off, calls that are mostly launch are
left out, and the errors below are of what remains.

Problems are split by a hash of their shape: {100 * HELD_OUT_SHARE:.0f} % are held out for the table below and
{100 * CALIBRATION_SHARE:.0f} % stop the training and set the intervals.

## Software

Float32 products were timed with torch 2.1 (CUDA 12.1, cuDNN 8.9), 16-bit ones mostly with what vLLM 0.14 to 0.24 and
SGLang 0.5 ship (CUDA 12 and 13). Two builds of the same GPU and shape, whose mean is fitted, lie 2 % off it in the
median and 9 % in one of ten; on the L40S 4 and 16 %.

## GPUs without measurements

For products and convolutions the base does not see peaks, but rates that large products sustain: what owners of 50 GPUs
measured, else an estimate from the clock, the lanes and the board's watts (`kernels/roofline.py`). In training, each
source's own large products give the rate of its products, so that a card that one of them let throttle says nothing of
others.

## Limits

- Convolutions were measured as 3 x 3, stride 1, square, forward, float32; others from a few hundred rows of old cuDNN.
- bfloat16 products were measured with widths and depths that are multiples of 8, and without batches.
- Vector operations were measured in float32; other dtypes are served by the bytes that they move.
- No network saw TF32 or float8: products in them are those in bfloat16, scaled by the ratio of the rooflines, with a
  wider interval.
- A GPU whose clock falls under load (L4, L40S, T4: a base clock far below the boost clock) is predicted too fast by a
  base that never saw it; the table of GPUs that were left out says by how much.
- A problem far outside the measured range gets the utilisation of the range's edge.

## Errors on a GPU that was left out

The rows of the next table, predicted by a base that never saw the GPU nor its like (trained like the base, or more
briefly): what to expect of the base on a GPU without measurements.

{unseen_markdown(manifest)}

## Errors on held-out problems

Of rows long enough to show the device: 4 us (16-bit products), and for timed calls 0.2 ms
(0.1 ms for vector operations).

{BESIDE}

{score_markdown(scores)}

## Files

| file | size | dtypes | rows fitted | SHA-256 |
|---|---|---|---|---|
{_table_of_files(manifest)}
"""


def _table_of_files(manifest: Manifest) -> str:
    return "\n".join(
        f"| `{name}` | {entry.bytes / 1000:.0f} kB | {', '.join(entry.dtypes)} | {entry.rows} | `{entry.sha256[:16]}` |"
        for name, entry in sorted(manifest.files.items())
    )
