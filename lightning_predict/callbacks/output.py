"""Prints, logs and stores predictions during a fit: next to the progress bar, in loggers, and in a JSON file."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_predict.base.answers import TEXT_WIDTH
from lightning_predict.base.errors import TraceFormatError
from lightning_predict.base.escaping import markdown_text
from lightning_predict.base.files import in_hook
from lightning_predict.base.guard import own_error
from lightning_predict.base.timeout import PATIENCE_SECONDS
from lightning_predict.callbacks.lightning_packages import rank_zero_info, warn
from lightning_predict.callbacks.trainer_state import logger_step
from lightning_predict.observe.rank_agreement import wait_seconds
from lightning_predict.reports.format import encoding_at_hand, is_terminal, print_text
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.ranking import Ranking

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ProgressBar


BUDGET_GROUP: Final = "run_budget"
"""Group of a budget's values in loggers. TensorBoard sorts groups by name, so the predictions appear first."""


def log_and_save(
    predictions: Predictions, ranking: Ranking, trainer: Trainer, *, verbose: bool, json_file: str | None
) -> None:
    """Log predictions and their ranking at the current step, and write the JSON file if requested."""
    if loggers := trainer.loggers:
        from lightning_predict.reports.loggers import RANKING_KEY, log_predictions, log_text, selected_gpus
        from lightning_predict.reports.ranking import ranking_markdown

        step, seconds = logger_step(trainer), wait_seconds(trainer, PATIENCE_SECONDS)
        gpus = None if verbose else selected_gpus(ranking, predictions)
        refusals = log_predictions(loggers, predictions, step=step, in_full=verbose, gpus=gpus, seconds=seconds)
        text = ranking_markdown(ranking)
        for warning in (*refusals, *log_text(loggers, RANKING_KEY, text, step=step, seconds=seconds)):
            warn(warning)
    if json_file is not None:
        from lightning_predict.reports.loggers import write_json

        write_file(trainer, json_file, lambda: write_json(predictions, json_file), what=f"{json_file=}")


def write_file(trainer: Trainer, path: str | Path, write: Callable[[], object], *, what: str) -> bool:
    """Write a file. Return whether this succeeds; otherwise, warn."""
    try:
        in_hook(path, write, seconds=wait_seconds(trainer, PATIENCE_SECONDS))
    except (OSError, TraceFormatError) as error:
        own_error(error)
        warn(f"RuntimePredictor could not write {what}: {type(error).__name__}: {error}")
        return False
    return True


def print_sentence(trainer: Trainer, sentence: str) -> None:
    """Print a sentence with the progress bar's own print method, which keeps the bar intact; without a bar, log it."""
    if shown_bar(trainer) is None:
        rank_zero_info(sentence)
    else:
        print_on_rank_zero(trainer, lambda: sentence)


def _is_closed(bar: ProgressBar) -> bool:
    """Return whether a tqdm bar is not on the screen. Such a bar prints nothing."""
    names = ("_train_progress_bar", "_val_progress_bar")
    return hasattr(bar, names[0]) and all(getattr(bar, name, None) is None for name in names)


def print_on_rank_zero(trainer: Trainer, text: Callable[[], str]) -> None:
    """Print on rank zero next to the progress bar. If printing fails, warn once; predictions are also logged.

    `LightningModule.print` is not used, because it fails with a bar without `is_enabled`.
    """
    if not trainer.is_global_zero:
        return
    bar = shown_bar(trainer)
    failure = print_text(text, print if bar is None or _is_closed(bar) else bar.print)
    if failure is not None:
        warn(f"RuntimePredictor could not print its predictions: {failure}")


def shown_bar(trainer: Trainer) -> ProgressBar | None:
    """Return the visible progress bar. A user's own bar may lack `is_enabled`."""
    bar = trainer.progress_bar_callback
    return bar if bar is not None and getattr(bar, "is_enabled", True) else None


def log_values(trainer: Trainer, group: str, values: Mapping[str, float]) -> list[str]:
    """Log values at the current step to every logger, on rank zero.

    Returns:
        A sentence for every logger that failed.
    """
    if not (values and trainer.is_global_zero and trainer.loggers):
        return []
    from lightning_predict.reports import loggers

    def named(separator: str) -> dict[str, float]:
        return {f"{group}{separator}{name}": value for name, value in values.items()}

    sent = loggers.send_values(trainer.loggers, named, step=logger_step(trainer), what=group)
    return [refusal for _, refusal in sent if refusal is not None]


def log_event(trainer: Trainer, group: str, event: str, reason: str) -> tuple[str, ...]:
    """Log an event with its reason to the loggers that accept text, on rank zero.

    Returns:
        A sentence for every logger that failed.
    """
    if not (trainer.is_global_zero and trainer.loggers):
        return ()
    from lightning_predict.reports.loggers import log_text

    step = logger_step(trainer)
    text, seconds = f"**{event}** at step {step}: {markdown_text(reason)}", wait_seconds(trainer, PATIENCE_SECONDS)
    return log_text(trainer.loggers, f"{group}/{event}", text, step=step, seconds=seconds)


def table_text(predictions: Predictions, *, verbose: bool = False, reason: str | None = None) -> str:
    """Return the output of `print_table` for this standard output, including colours, as one text.

    A progress bar redraws its line. Only the bar can print above this line without breaking it, and the bar's print
    method takes texts.
    """
    from rich.console import Console

    from lightning_predict.reports.table import print_table

    console = Console(file=_LikeStandardOutput())
    if not (console.is_terminal or console.is_jupyter):
        console.width = TEXT_WIDTH
    with console.capture() as capture:
        print_table(predictions, console, verbose=verbose)
    first = "" if reason is None else f"{reason}\n"
    return f"\n{first}{capture.get().rstrip()}\n"


class _LikeStandardOutput(io.StringIO):
    """Substitute for standard output. With the real standard output, rich ends the program if the reader is gone."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return encoding_at_hand()

    def isatty(self) -> bool:
        return is_terminal()
