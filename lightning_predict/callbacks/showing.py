"""Shows predictions in a running fit: beside the progress bar, in the loggers, or in a file where there are none.

Example::

    show(predictions, trainer, pl_module, with_table=True)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning_predict.callbacks.bases import rank_zero_info, warn
from lightning_predict.reports.format import PLAIN_WIDTH, markdown_text
from lightning_predict.reports.loggers import LoggedTable, log_predictions, log_table, ranking_table, write_json
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import rank, ranking_lines
from lightning_predict.reports.table import print_table

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


def show(
    predictions: Predictions,
    trainer: Trainer,
    pl_module: LightningModule,
    *,
    with_table: bool,
    deadline_hours: float | None = None,
) -> None:
    """Print the table and the ranking, and log both at the current step, or write a file where there is no logger.

    Args:
        predictions: What to show.
        trainer: The Trainer that is fitting; its `default_root_dir` takes the file.
        pl_module: The module that it fits, whose `print` keeps the progress bar whole.
        with_table: Whether to print.
        deadline_hours: Time that the run may take, for the ranking.

    Raises:
        InvalidArgumentError: There is no logger, and `default_root_dir` is remote.
        OSError: The file cannot be written.
    """
    ranking, step = rank(predictions, deadline_hours=deadline_hours), trainer.global_step
    if with_table:
        pl_module.print(table_text(predictions))
        pl_module.print("\n".join(ranking_lines(ranking)) + "\n")
    refusals = log_predictions(trainer.loggers, predictions, step=step)
    for warning in (*refusals, *log_table(trainer.loggers, ranking_table(ranking), step=step)):
        warn(warning)
    if not trainer.loggers:
        path = write_json(predictions, trainer.default_root_dir)
        sentence = f"RuntimePredictor wrote its predictions to {path}, as the Trainer has no logger."
        if with_table:
            pl_module.print(sentence)
        else:
            rank_zero_info(sentence)


def log_values(trainer: Trainer, group: str, values: Mapping[str, float]) -> list[str]:
    """Log values at the current step to every logger, on rank zero.

    Args:
        trainer: The Trainer that is fitting.
        group: Put before each name.
        values: By name.

    Returns:
        A sentence for every logger that did not take them.
    """
    refusals = []
    for logger in trainer.loggers if trainer.is_global_zero else ():
        named = {f"{group}{logger.group_separator}{name}": value for name, value in values.items()}
        try:
            logger.log_metrics(named, step=trainer.global_step)
        except Exception as error:  # A logger is code (and often a network) of other people.
            refusals.append(f"{type(logger).__name__} did not take {group}: {type(error).__name__}: {error}")
    return refusals


def log_event(trainer: Trainer, group: str, event: str, reason: str) -> list[str]:
    """Log an event with its reason in words to the loggers that take words, on rank zero.

    Args:
        trainer: The Trainer that is fitting.
        group: Put before the event's name.
        event: One word.
        reason: A sentence.

    Returns:
        A sentence for every logger that did not take it.
    """
    table = LoggedTable(
        key=f"{group}/{event}",
        columns=("event", "step", "reason"),
        rows=((event, trainer.global_step, reason),),
        markdown=f"**{event}** at step {trainer.global_step}: {markdown_text(reason)}",
    )
    return list(log_table(trainer.loggers, table, step=trainer.global_step)) if trainer.is_global_zero else []


def table_text(predictions: Predictions) -> str:
    """Say what `print_table` prints on this standard output, colours included, as one text.

    A progress bar redraws its line; only the bar itself can print above it without breaking it, and it takes text.
    """
    from rich.console import Console

    console = Console()
    if not (console.is_terminal or console.is_jupyter):
        console.width = PLAIN_WIDTH
    with console.capture() as capture:
        print_table(predictions, console)
    return f"\n{capture.get().rstrip()}\n"
