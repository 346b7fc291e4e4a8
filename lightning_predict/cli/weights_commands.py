"""`train`, `evaluate` and `cache`: the weights of the models.

Example::

    lightning-predict train measurements --output my-weights
    lightning-predict evaluate measurements --weights my-weights
    lightning-predict cache clear
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from lightning_predict.cli.answers import Answer, aligned, json_value
from lightning_predict.units import bytes_to_mebibytes

WIDTH: Final = 160
"""Columns of the tables of scores."""

_OURS: Final = ("*.safetensors*", "manifest.json*")
"""Names that downloads of weights give to files, finished or not."""


def train(tables: Path, *, output: Path = Path("weights"), seed: int = 0) -> Answer:
    """Train the weights of all models from tables of measurements, and score them on rows that no fit saw.

    It takes from minutes to hours; progress is on standard error. Use the weights with `predict --weights FOLDER`.

    Args:
        tables: Folder of the measurement tables.
        output: Folder to write the weights, their manifest and the model card to.
        seed: Seed of the networks and of the choice of held-out rows.
    """
    from rich.console import Console

    from lightning_predict.fitting.__main__ import train as train_weights
    from lightning_predict.fitting.scores import score_table

    scores = train_weights(tables, output, seed=seed, console=Console(stderr=True, width=WIDTH))
    return Answer(
        data=lambda: {"weights": str(output), "scores": json_value(scores)},
        show=lambda: Console(width=WIDTH).print(score_table(scores)),
    )


def evaluate(
    tables: Path,
    *,
    of: Literal["operators", "iterations"] = "operators",
    weights: Path | None = None,
    seed: int = 0,
) -> Answer:
    """Score the models on measurements that no fit saw: single operators, or whole iterations that others timed.

    Args:
        tables: Folder of the measurement tables, or of the tables of published iteration times.
        of: What the folder holds measurements of.
        weights: Weights to score, a folder or a file (default: the cache, then those that ship with the package).
        seed: Seed of the choice of held-out rows, as given to `train`.
    """
    from rich.console import Console

    waiting = Console(stderr=True).status(f"Scoring {of} of {tables} ...")
    if of == "iterations":
        from lightning_predict.fitting.evaluation import evaluate_published, print_report

        with waiting:
            published = evaluate_published(tables, weights=weights)
        return Answer(data=lambda: json_value(published), show=lambda: print_report(published, Console(width=WIDTH)))
    from lightning_predict.fitting.__main__ import evaluate as evaluate_weights
    from lightning_predict.fitting.scores import score_table

    with waiting:
        scores = evaluate_weights(tables, weights=weights, seed=seed)
    return Answer(
        data=lambda: {"scores": json_value(scores)},
        show=lambda: Console(width=WIDTH).print(score_table(scores)),
    )


def cache(*, action: Literal["show", "clear"] = "show", folder: Path | None = None) -> Answer:
    """Show the weights that were downloaded, or remove them; those that ship with the package stay.

    A word directly after the command is the action: `cache clear`.

    Args:
        action: What to do.
        folder: Where downloads are kept (default: LIGHTNING_PREDICT_CACHE, else the system's cache folder).
    """
    from lightning_predict.weights.store import cache_folder

    place = cache_folder(folder)
    files = sorted({path for pattern in _OURS for path in place.glob(pattern) if path.is_file()})
    sizes = {path.name: path.stat().st_size for path in files}
    if action == "clear":
        for path in files:
            path.unlink()
    data = {"folder": str(place), "action": action, "bytes": sum(sizes.values()), "files": sizes}
    return Answer(data=lambda: data, show=lambda: print(_cache_text(place, action, sizes)))


def _cache_text(place: Path, action: str, sizes: dict[str, int]) -> str:
    total = f"{bytes_to_mebibytes(sum(sizes.values())):.1f} MiB"
    if not sizes:
        return f"{place} holds no downloaded weights."
    if action == "clear":
        return f"Removed {len(sizes)} files ({total}) from {place}."
    rows = [[name, f"{bytes_to_mebibytes(size):.2f}"] for name, size in sizes.items()]
    return "\n".join([aligned(["file", "MiB"], rows, right={1}), "", f"{len(sizes)} files ({total}) in {place}."])
