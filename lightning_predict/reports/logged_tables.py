"""Small tables with words in them (a ranking, a budget's event) for the loggers that take more than numbers.

TensorBoard gets Markdown, W&B a Table, MLflow an artifact; other loggers take numbers alone. Example::

    for warning in log_table(trainer.loggers, ranking_table(ranking), step=trainer.global_step):
        rank_zero_warn(warning)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from lightning_predict.reports.loggers import ARTIFACT_FOLDER
from lightning_predict.reports.ranking import Candidate, Ranking, ranking_markdown
from lightning_predict.units import seconds_to_hours

RANKING_KEY: Final = "predict/ranking"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTable:
    """A table for loggers.

    Attributes:
        key: Its name there.
        columns: Names of the columns.
        rows: Texts and numbers.
        markdown: The same for people.
    """

    key: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    markdown: str


def ranking_table(ranking: Ranking) -> LoggedTable:
    """Cheapest, fastest, the best within the deadline, and those that none beats in both time and cost."""
    chosen = [
        ("cheapest", ranking.cheapest),
        ("fastest", ranking.fastest),
        ("within deadline", ranking.within_deadline),
        *(("trade-off", one) for one in ranking.frontier),
    ]
    return LoggedTable(
        key=RANKING_KEY,
        columns=("choice", "gpu", "hours", "cost_usd", "offer"),
        rows=tuple(_row(choice, one) for choice, one in chosen if one is not None),
        markdown=ranking_markdown(ranking),
    )


def log_table(loggers: Iterable[Any], table: LoggedTable, *, step: int) -> tuple[str, ...]:
    """Log to every logger that takes tables; what one of them refuses does not keep the others from it.

    Args:
        loggers: Lightning loggers, of either of its packages.
        table: What to log.
        step: Step to log it at.

    Returns:
        One warning for everything that could not be logged, for the caller to show.
    """
    return tuple(warning for logger in loggers for warning in _log_to(logger, table, step))


def _row(choice: str, candidate: Candidate) -> tuple[str | float | None, ...]:
    hours = seconds_to_hours(candidate.seconds)
    return choice, candidate.gpu, hours, candidate.cost_usd, candidate.prediction.offer


def _tensorboard(logger: Any, table: LoggedTable, step: int) -> None:
    logger.experiment.add_text(table.key, table.markdown, global_step=step)


def _wandb(logger: Any, table: LoggedTable, step: int) -> None:
    logger.log_table(table.key, columns=list(table.columns), data=[list(row) for row in table.rows], step=step)


def _mlflow(logger: Any, table: LoggedTable, step: int) -> None:
    name = f"{table.key.replace('/', '_')}_step_{step}.md"
    logger.experiment.log_text(logger.run_id, table.markdown, f"{ARTIFACT_FOLDER}/{name}")


SENDERS: Final[Mapping[str, Callable[[Any, LoggedTable, int], None]]] = {
    "TensorBoardLogger": _tensorboard,
    "WandbLogger": _wandb,
    "MLFlowLogger": _mlflow,
}
"""What sends a table, by the name of the logger's class or of one of its bases."""


def _log_to(logger: Any, table: LoggedTable, step: int) -> Iterator[str]:
    for name in (base.__name__ for base in type(logger).__mro__):
        if name in SENDERS:
            try:
                SENDERS[name](logger, table, step)
            except Exception as error:  # A logger is code (and often a network) of other people.
                yield f"{type(logger).__name__} did not take {table.key}: {type(error).__name__}: {error}"
            return
