"""Hands predictions to whatever loggers a Trainer has, each in the richest form that it takes.

Every logger gets the metrics through `log_metrics`; what a logger takes beyond that is a row of `DELIVERIES`. Loggers
are known by their class names, so that Lightning is not imported here and its two packages both work. Example::

    for warning in log_predictions(trainer.loggers, result, step=trainer.global_step):
        rank_zero_warn(warning)
    if not trainer.loggers:
        write_json(result, trainer.default_root_dir)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from lightning_predict.errors import InvalidArgumentError
from lightning_predict.reports.metrics import QUANTITIES, metrics
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.table import markdown_table
from lightning_predict.units import seconds_to_milliseconds

TABLE_KEY: Final = "predict/table"
FIGURE_KEY: Final = "predict/iteration_time"
ARTIFACT_FOLDER: Final = "lightning_predict"
JSON_NAME: Final = "lightning_predict.json"


def _tensorboard_text(logger: Any, predictions: Predictions, step: int) -> None:
    logger.experiment.add_text(TABLE_KEY, markdown_table(predictions), global_step=step)


def _tensorboard_figure(logger: Any, predictions: Predictions, step: int) -> None:
    from lightning_predict.reports.figure import figure_pixels, iteration_figure

    # add_image and not add_figure, which imports pyplot and so touches the user's matplotlib.
    pixels = figure_pixels(iteration_figure(predictions))
    logger.experiment.add_image(FIGURE_KEY, pixels, global_step=step, dataformats="HWC")


def _wandb_table(logger: Any, predictions: Predictions, step: int) -> None:
    """Numbers as numbers, so that the table can be sorted."""
    columns = ["gpu", "in_use", *QUANTITIES, "measured_ms", "fits", "memory_fit", "covered_by", "offer"]
    logger.log_table(TABLE_KEY, columns=columns, data=list(_wandb_rows(predictions)), step=step)


def _wandb_rows(predictions: Predictions) -> Iterator[list[Any]]:
    for one in predictions.values():
        measured_ms = None if one.measured_seconds is None else seconds_to_milliseconds(one.measured_seconds)
        coverage = ", ".join(f"{method} {part:.3f}" for method, part in one.coverage.items())
        yield [
            one.gpu,
            one.gpu == predictions.used_gpu,
            *(quantity(one) for quantity in QUANTITIES.values()),
            measured_ms,
            one.fits,
            one.memory_fit,
            coverage,
            one.offer,
        ]


def _mlflow_artifacts(logger: Any, predictions: Predictions, step: int) -> None:
    client, run_id = logger.experiment, logger.run_id
    client.log_dict(run_id, predictions.as_dict() | {"step": step}, f"{ARTIFACT_FOLDER}/predictions.json")
    client.log_text(run_id, markdown_table(predictions), f"{ARTIFACT_FOLDER}/predictions.md")


@final
@dataclass(frozen=True, slots=True)
class Delivery:
    """Something that one kind of logger takes beyond metrics.

    Attributes:
        logger_class: Name of the logger's class or of one of its bases.
        what: Its name in a warning.
        send: Hands it over, given the logger, the predictions and the step.
    """

    logger_class: str
    what: str
    send: Callable[[Any, Predictions, int], None]


DELIVERIES: Final = (
    Delivery("TensorBoardLogger", "table", _tensorboard_text),
    Delivery("TensorBoardLogger", "bar figure", _tensorboard_figure),
    Delivery("WandbLogger", "table", _wandb_table),
    Delivery("MLFlowLogger", "artifacts", _mlflow_artifacts),
)


def log_predictions(loggers: Iterable[Any], predictions: Predictions, *, step: int) -> tuple[str, ...]:
    """Log to every logger; what one of them refuses does not keep the others from it.

    Args:
        loggers: Lightning loggers, or anything with their public interface.
        predictions: What to log.
        step: Step to log it at.

    Returns:
        One warning for everything that could not be logged, for the caller to show.
    """
    return tuple(warning for logger in loggers for warning in _log_to(logger, predictions, step))


def _log_to(logger: Any, predictions: Predictions, step: int) -> Iterator[str]:
    """Warnings of one logger."""
    # Exception, the broadest that is not an exit: a logger is code (and often a network) of other people, and whatever
    # it raises must not end a training run. The warning carries it on.
    try:
        logger.log_metrics(metrics(predictions, separator=getattr(logger, "group_separator", "/")), step=step)
    except Exception as error:
        # Nothing else is tried: a server that does not answer would cost its time-out once more for each.
        yield _refusal(logger, "metrics", error)
        return
    classes = {base.__name__ for base in type(logger).__mro__}
    for delivery in DELIVERIES:
        if delivery.logger_class in classes:
            try:
                delivery.send(logger, predictions, step)
            except Exception as error:
                yield _refusal(logger, delivery.what, error)


def _refusal(logger: Any, what: str, error: Exception) -> str:
    return f"{type(logger).__name__} did not take the {what} of the predictions: {type(error).__name__}: {error}"


def write_json(predictions: Predictions, folder: str | os.PathLike[str]) -> Path:
    """Write all predictions to `lightning_predict.json`, whole or not at all; an older file is replaced.

    Args:
        predictions: What to write.
        folder: A local folder; made where it is missing.

    Returns:
        Path of the file.

    Raises:
        InvalidArgumentError: `folder` is a remote address.
        OSError: The file cannot be written.
    """
    if "://" in os.fspath(folder):
        raise InvalidArgumentError(
            f"{JSON_NAME} is written to a local folder only, but was given {os.fspath(folder)!r}. "
            "Set Trainer(default_root_dir=...) to a local folder, or add a logger."
        )
    path = Path(folder) / JSON_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{JSON_NAME}.{os.getpid()}.part")
    try:
        part.write_text(predictions.to_json() + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
