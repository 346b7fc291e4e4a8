"""Send predictions to the loggers of a Trainer, each in the richest form that it supports.

Every logger receives a flat dict of floats, most of them through `log_metrics`; `SENDERS` lists the loggers whose rows
this would change. `DELIVERIES` lists the additional output of some loggers, and `TABLES` the loggers that take small
tables with text (a ranking, a budget event). Loggers are recognized by class name, so this module works with both
Lightning packages and imports neither package. Example::

    for warning in log_predictions(trainer.loggers, result, step=trainer.global_step):
        rank_zero_warn(warning)
    for warning in log_table(trainer.loggers, ranking_table(ranking), step=trainer.global_step):
        rank_zero_warn(warning)
    write_json(result, "predictions.json")
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from lightning_predict.base.fields import Field
from lightning_predict.base.files import write_atomically
from lightning_predict.base.guard import keeps_random_state, own_error
from lightning_predict.base.timeout import PATIENCE_SECONDS, run_unless_hanging
from lightning_predict.base.units import seconds_to_hours, seconds_to_milliseconds
from lightning_predict.cost.prediction import FIELDS
from lightning_predict.reports.format import FEW
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Ranking

Logger: TypeAlias = Any  # A logger of either Lightning package, or an object with the same interface

QUANTITIES: Final[Mapping[str, Field[Any]]] = {row.log: row for row in FIELDS if row.log is not None}
"""Fields that are logged, by logger key."""


BRIEF: Final = ("iteration_ms", "total_hours", "cost_usd")
"""Quantities logged by default. The list is short because every quantity adds a chart per GPU."""


GPU_IN_USE_QUANTITIES: Final = ("samples_per_second", "tokens_per_second", "mfu")
"""Additional quantities logged by default for the GPU in use."""


def selected_gpus(ranking: Ranking, predictions: Predictions) -> frozenset[str]:
    """Return the GPUs to log: the one in use, the cheapest, the fastest and the cheapest within the deadline."""
    if len(predictions) <= FEW:
        return frozenset(predictions)
    best = (ranking.cheapest, ranking.fastest, ranking.within_deadline)
    names = {ranked.gpu for ranked in best if ranked is not None} | ({predictions.used_gpu or ""} & predictions.keys())
    return frozenset(names or predictions)  # if the run fits nowhere, log all GPUs


def metrics(
    predictions: Predictions, *, separator: str = "/", in_full: bool = False, gpus: Collection[str] | None = None
) -> dict[str, float]:
    """Return the known quantities of GPUs, keyed for a logger.

    Args:
        predictions: The predictions to log.
        separator: Separator between the parts of a key: the logger's `group_separator`.
        in_full: Include all quantities, not only those in `BRIEF` and `GPU_IN_USE_QUANTITIES`.
        gpus: Names of the GPUs; None for all.

    Returns:
        Values by key `predict/<gpu>/<quantity>`; unknown quantities are omitted.
    """
    return {
        separator.join(("predict", prediction.gpu, name)): float(value)
        for prediction in predictions.values()
        if gpus is None or prediction.gpu in gpus
        for name, quantity in QUANTITIES.items()
        if (in_full or name in BRIEF or (name in GPU_IN_USE_QUANTITIES and prediction.gpu == predictions.used_gpu))
        and (value := quantity.logged(prediction)) is not None
    }


def remaining_on_this_machine(predictions: Predictions, *, separator: str = "/") -> dict[str, float]:
    """Return the remaining hours and dollars of a run in progress on its machine; unknown values are omitted."""
    here = predictions.get(predictions.used_gpu or "") or predictions.machine
    if here is None or not predictions.is_running:
        return {}
    hours = None if here.remaining_seconds is None else seconds_to_hours(here.remaining_seconds)
    named = {"hours_left_here": hours, "usd_left_here": here.price.cost_usd}
    return {separator.join(("predict", name)): value for name, value in named.items() if value is not None}


def _readable(value: float | None) -> float | None:
    """Round to four significant digits, which a page has room for."""
    return None if value is None else float(f"{value:.4g}")


TABLE_KEY: Final = "predict/table"
RANKING_KEY: Final = "predict/ranking"
ARTIFACT_FOLDER: Final = "lightning_predict"


TENSORBOARD_WIDTH: Final = 90  # Maximum row width of a table: in wider ones, TensorBoard breaks numbers at 1280 pixels


def _tensorboard_text(logger: Logger, predictions: Predictions, step: int) -> None:
    from lightning_predict.reports.table import markdown_table

    table = markdown_table(predictions, verbose=False, width=TENSORBOARD_WIDTH)
    logger.experiment.add_text(TABLE_KEY, table, global_step=step)


def _wandb_table(logger: Logger, predictions: Predictions, step: int) -> None:
    """Send the table with numeric cells, so that W&B can sort the rows."""
    import wandb

    columns: list[str | int] = [
        "gpu",
        "in_use",
        *QUANTITIES,
        "measured_ms",
        "fits",
        "memory_fit",
        "covered_by",
        "offer",
    ]
    rows: list[Any] = []
    for row in predictions.values():
        measured_ms = None if row.measured_seconds is None else seconds_to_milliseconds(row.measured_seconds)
        numbers = [_readable(quantity.logged(row)) for quantity in QUANTITIES.values()]
        coverage = ", ".join(f"{method} {part:.3f}" for method, part in row.coverage.items())
        facts = [_readable(measured_ms), row.fits, row.memory_fit, coverage, row.offer]
        rows.append([row.gpu, row.gpu == predictions.used_gpu, *numbers, *facts])
    _log_to_wandb(logger, {TABLE_KEY: wandb.Table(columns=[*columns], data=rows)}, step)


def _wandb_summary(logger: Logger, predictions: Predictions, _step: int) -> None:
    """Write the recommendation to the W&B run summary, which runs can be sorted and filtered by."""
    ranking = predictions.ranking()
    chosen = {"cheapest": ranking.cheapest, "fastest": ranking.fastest}
    summary: dict[str, object] = {
        f"predict/{word}_gpu": ranked.gpu for word, ranked in chosen.items() if ranked is not None
    }
    if ranking.cheapest is not None and not ranking.per_iteration:
        summary |= {"predict/cheapest_usd": ranking.cheapest.cost_usd}
        summary |= {"predict/cheapest_hours": seconds_to_hours(ranking.cheapest.seconds)}
    logger.experiment.summary.update(summary)


def _mlflow_artifacts(logger: Logger, predictions: Predictions, step: int) -> None:
    from lightning_predict.reports.table import markdown_table

    client, run_id = logger.experiment, logger.run_id
    client.log_dict(run_id, predictions.as_dict() | {"step": step}, f"{ARTIFACT_FOLDER}/predictions.json")
    client.log_text(run_id, markdown_table(predictions), f"{ARTIFACT_FOLDER}/predictions.md")


DELIVERIES: Final[tuple[tuple[str, str, Callable[[Logger, Predictions, int], None]], ...]] = (
    ("TensorBoardLogger", "table", _tensorboard_text),
    ("WandbLogger", "table", _wandb_table),
    ("WandbLogger", "summary", _wandb_summary),
    ("MLFlowLogger", "artifacts", _mlflow_artifacts),
)
"""Additional output of some loggers: name of the logger's class or of a base class, name of the output in a warning,
and the function that sends it."""


CSV_FILE: Final = "lightning_predict.csv"
"""File beside the `metrics.csv` of a CSVLogger, with a row per value: step, name, value. If a file of the user or of an
earlier run has this name, ours is `lightning_predict-2.csv`, and so on."""

_OWN_FILES: Final = WeakKeyDictionary[Logger, str]()  # Path of the file that each CSVLogger got in this process


def _log_to_csv(logger: Logger, values: Mapping[str, float], step: int) -> None:
    """Append to a file of our own: in `metrics.csv`, our rows would change the user's last row and types of columns."""
    from fsspec import url_to_fs  # as Lightning, which logs to remote folders through it

    files, first = url_to_fs(os.path.join(logger.experiment.log_dir, CSV_FILE))
    path = _OWN_FILES[logger] = _OWN_FILES.get(logger) or next(
        name
        for number in count(1)
        if not files.exists(name := first if number == 1 else f"{first.removesuffix('.csv')}-{number}.csv")
    )
    is_new = not files.exists(path)
    with files.open(path, "a", newline="") as file:
        rows = csv.writer(file)
        if is_new:
            rows.writerow(("step", "name", "value"))
        rows.writerows((step, name, value) for name, value in values.items())


def _log_to_wandb(logger: Logger, values: Mapping[str, object], step: int) -> None:
    """Add values to the next row of a run: with a row of our own, W&B would drop the user's `step=` of this step."""
    prefix = getattr(logger, "_prefix", "") and f"{logger._prefix}{logger.LOGGER_JOIN_CHAR}"
    row = {f"{prefix}{name}": value for name, value in values.items()}
    logger.experiment.log(row | {"trainer/global_step": step}, commit=False)


SENDERS: Final[Mapping[str, Callable[[Logger, Mapping[str, float], int], None]]] = {
    "CSVLogger": _log_to_csv,
    "WandbLogger": _log_to_wandb,
}
"""Functions that log numbers where `log_metrics` would change the user's rows, by the name of the logger's class."""


def send_values(
    loggers: Iterable[Logger], values: Callable[[str], Mapping[str, float]], *, step: int, what: str
) -> Iterator[tuple[Logger, str | None]]:
    """Log numbers to every logger, in this thread: some APIs keep the active run per thread, and would open another.

    Args:
        loggers: Lightning loggers, or objects with the same interface.
        values: Returns the numbers by their keys, from a logger's separator of groups.
        step: Step that the Trainer would log now: a logger whose steps may not go back then drops no row of the user.
        what: Name of the numbers in a warning.

    Yields:
        Each logger, with a warning if it failed.
    """
    for logger in loggers:
        special = (SENDERS[name] for name in SENDERS.keys() & _classes(logger))
        send = next(special, lambda logger, values, step: logger.log_metrics(dict(values), step=step))
        refusals = _refused(logger, what, send, values(getattr(logger, "group_separator", "/")), step)
        yield logger, refusals[0] if refusals else None


def log_predictions(
    loggers: Iterable[Logger],
    predictions: Predictions,
    *,
    step: int,
    in_full: bool = False,
    gpus: Collection[str] | None = None,
    seconds: float = PATIENCE_SECONDS,
) -> tuple[str, ...]:
    """Log predictions to every logger; a logger that fails does not affect the other loggers.

    Args:
        loggers: Lightning loggers, or objects with the same interface.
        predictions: The predictions to log.
        step: Step of the logged values; see `send_values`.
        in_full: Log every quantity, not only those in `BRIEF` and `GPU_IN_USE_QUANTITIES`.
        gpus: Names of the GPUs whose quantities are logged; None for all. Tables and figures always show all GPUs.
        seconds: Timeout of each table and figure.

    Returns:
        Warnings, one for each output that could not be logged. The caller should show the warnings.
    """

    def numbers(separator: str) -> dict[str, float]:
        named = metrics(predictions, separator=separator, in_full=in_full, gpus=gpus)
        return named | remaining_on_this_machine(predictions, separator=separator)

    warnings = []
    for logger, refusal in send_values(loggers, numbers, step=step, what="the metrics of the predictions"):
        if refusal is not None:
            warnings.append(refusal)
            continue  # an unresponsive server would time out again
        richer = [
            (f"the {what} of the predictions", send) for name, what, send in DELIVERIES if name in _classes(logger)
        ]
        warnings += _refused_in_time(logger, richer, (predictions, step), seconds)
    return tuple(warnings)


@keeps_random_state
def _refused_in_time(
    logger: Logger, parts: Sequence[tuple[str, Callable[..., None]]], arguments: tuple[object, ...], seconds: float
) -> list[str]:
    """Send parts to a logger in another thread, with a timeout, because a server may not answer; return warnings."""

    def send() -> list[str]:
        return [words for part, part_sender in parts for words in _refused(logger, part, part_sender, *arguments)]

    try:
        return run_unless_hanging(seconds, type(logger).__name__, send) if parts else []
    except OSError as error:  # no answer, or no thread left
        own_error(error)
        return [f"{type(logger).__name__} may lack {' and '.join(part for part, _ in parts)}: {error}"]


def _classes(logger: Logger) -> set[str]:
    return {base.__name__ for base in type(logger).__mro__}


@keeps_random_state
def _refused(logger: Logger, what: str, send: Callable[..., None], *arguments: object) -> list[str]:
    """Send one output to a logger; return a warning if the logger fails.

    We catch Exception because a logger is third-party code, often with network access, and its errors must not end a
    training run.
    """
    try:
        send(logger, *arguments)
    except Exception as error:
        own_error(error)
        return [f"{type(logger).__name__} could not log {what}: {type(error).__name__}: {error}"]
    return []


def write_json(predictions: Predictions, path: str | os.PathLike[str]) -> Path:
    """Write all predictions to a JSON file atomically, replacing an existing file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{predictions.to_json()}\n".encode())
    return Path(path)


def _mlflow_text(logger: Logger, key: str, markdown: str, step: int) -> None:
    logger.experiment.log_text(logger.run_id, markdown, f"{ARTIFACT_FOLDER}/{key.replace('/', '_')}_step_{step}.md")


TEXTS: Final[Mapping[str, Callable[[Logger, str, str, int], None]]] = {
    "TensorBoardLogger": lambda logger, key, markdown, step: logger.experiment.add_text(
        key, markdown, global_step=step
    ),
    "WandbLogger": lambda logger, key, markdown, _: logger.experiment.summary.update({f"{key}_text": markdown}),
    "MLFlowLogger": _mlflow_text,
}
"""Functions that send a text in Markdown to a logger, by the name of the logger's class or of a base class."""


def log_text(
    loggers: Iterable[Logger], key: str, markdown: str, *, step: int, seconds: float = PATIENCE_SECONDS
) -> tuple[str, ...]:
    """Log a text to every logger that supports text; a logger that fails does not affect the other loggers.

    Returns:
        Warnings, one for each logger that failed. The caller should show the warnings.
    """
    return tuple(
        warning
        for logger in loggers
        for name in TEXTS.keys() & _classes(logger)
        for warning in _refused_in_time(logger, [(key, TEXTS[name])], (key, markdown, step), seconds)
    )
