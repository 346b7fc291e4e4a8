"""`FollowUp`: what comes after the capture: the first prediction, better ones once more is known, and the look back.

A prediction is made again, once each, when validation that had to be estimated was recorded, and when a checkpoint was
timed that takes so much longer or shorter than was estimated that it is noticed in the total. Example::

    follow_up = FollowUp(question)
    predictions = follow_up.predict(trainer, trace=trace, validation=None, pace=Pace(), moment="batch end")
    # ... training goes on ...
    outcome = follow_up.look_back(trainer)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, final

from lightning_predict.callbacks.aftermath import Aftermath, Outcome
from lightning_predict.callbacks.bases import rank_zero_info, warn
from lightning_predict.callbacks.checkpoints import CheckpointClock
from lightning_predict.callbacks.predicting import Answer, Question, predict_rest
from lightning_predict.callbacks.recorders import Pace
from lightning_predict.callbacks.remaining import Moment
from lightning_predict.callbacks.showing import log_values
from lightning_predict.reports.predictions import Predictions
from lightning_predict.scaling.history import append_record
from lightning_predict.tracing.records import Trace

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

NOTICEABLE_SECONDS, NOTICEABLE_SHARE = 60.0, 0.05
"""Change of a total, in itself and over the total, that is worth another table."""


@final
class FollowUp:
    """Keeps what a later prediction needs, and for as long as one may come.

    Args:
        question: What the user wants to know.
        clock: Seconds that only grow.
    """

    def __init__(self, question: Question, *, clock: Callable[[], float] = monotonic) -> None:
        self._question = question
        self._clock = clock
        self._checkpoints: CheckpointClock | None = CheckpointClock()
        self._aftermath: Aftermath | None = None
        self._answer: Answer | None = None
        self._trace: Trace | None = None
        self._validation: Trace | None = None
        self._pace = Pace()

    @property
    def has_predicted(self) -> bool:
        """The first prediction was made."""
        return self._trace is not None

    def predict(
        self,
        trainer: Trainer,
        *,
        trace: Trace | None = None,
        validation: Trace | None = None,
        pace: Pace | None = None,
        moment: Moment,
    ) -> Predictions:
        """Predict what is left; what is not given is as it was the last time.

        Args:
            trainer: The Trainer that is fitting.
            trace: The recorded step; needed the first time.
            validation: The recorded validation batch; None where there is none yet.
            pace: How windows go by.
            moment: The hook that asks.

        Raises:
            LightningPredictError: As `predict`.
        """
        self._trace, self._validation = trace or self._trace, validation or self._validation
        self._pace = pace or self._pace
        if self._trace is None:
            raise ValueError("Nothing was recorded yet.")
        answer = predict_rest(
            trainer,
            self._question,
            self._trace,
            validation=self._validation,
            pace=self._pace,
            checkpoint_seconds=None if self._checkpoints is None else self._checkpoints.seconds,
            moment=moment,
        )
        if answer.checkpoints.is_estimated and answer.checkpoints.count:
            self._answer = answer
        else:
            self._checkpoints = None  # There is nothing more to learn.
        if self._aftermath is None and answer.expected is not None:
            batches = trainer.fit_loop.total_batch_idx + 1
            self._aftermath = Aftermath(answer.expected, clock=self._clock, batches_seen=batches)
        return answer.predictions

    def checkpoint_is_collected(self) -> None:
        """A checkpoint is about to be written."""
        if self._checkpoints is not None:
            self._checkpoints.is_collected(self._clock())

    def hook_begins(self, *, batch_was_fetched: bool = False) -> bool:
        """Some hook is called after a checkpoint may have been written.

        Args:
            batch_was_fetched: The loader was waited for, too.

        Returns:
            The prediction is to be made again, with a checkpoint that was timed.
        """
        if self._checkpoints is None:
            return False
        if self._checkpoints.is_pending:
            waits = self._trace.loader_seconds if batch_was_fetched and self._trace is not None else ()
            self._checkpoints.hook_begins(self._clock(), waited_seconds=statistics.mean(waits) if waits else 0.0)
        timed = self._checkpoints.seconds
        if timed is None or self._answer is None:
            return False
        if is_noticed(timed, self._answer):
            return True
        self._checkpoints = None
        return False

    def look_back(self, trainer: Trainer) -> Outcome | None:
        """Say what the run took beside what was first predicted, and remember it; None where nothing was trained."""
        if self._aftermath is None:
            return None
        outcome = self._aftermath.ends(batches_seen=trainer.fit_loop.total_batch_idx + 1)
        if outcome is None:
            return None
        rank_zero_info(f"RuntimePredictor: {outcome.sentence}.")
        for refusal in log_values(trainer, "predict", outcome.metrics()):
            warn(refusal)
        record = outcome.record() if self._question.learns else None
        if record is not None:
            try:
                append_record(record)
            except OSError as error:
                warn(f"RuntimePredictor could not remember this run: {type(error).__name__}: {error}")
        return outcome


def is_noticed(seconds: float, answer: Answer) -> bool:
    """Whether a checkpoint that was timed changes a total so much that it is worth saying.

    Args:
        seconds: Of one file as timed.
        answer: What was predicted with an estimate.
    """
    totals = [one.total_seconds for one in answer.predictions.values() if one.total_seconds is not None]
    if not totals or answer.checkpoints.count is None:
        return False
    change = abs(seconds - (answer.checkpoints.seconds or 0.0)) * answer.checkpoints.count
    return change >= max(NOTICEABLE_SECONDS, NOTICEABLE_SHARE * min(totals))
