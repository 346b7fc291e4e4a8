"""Two recorders: the training step and the validation batch, each told of its batches by a callback's hooks.

They time with the clock and record with the sessions that they are given; they know no Trainer. Example::

    recorder = StepRecorder(warmup_steps=3, capture_steps=1, clock=perf_counter, new_session=session)
    recorder.batch_starts(full_windows_after=96, next_is_short=False)
    # ... the batch is trained ...
    trace = recorder.batch_ends(optimizer_steps_done=1, samples=32)   # None until the last window was recorded
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from lightning_predict.callbacks.windows import EXTRA_WARMUP_WINDOWS, Window, WindowWatch, next_action, steady_seconds
from lightning_predict.tracing.records import Trace

TIMED_VALIDATION_BATCHES: Final = 5
"""Validation batches that are timed at most; timing waits for the device."""


class Session(Protocol):
    """The part of `tracing.session.CaptureSession` that the recorders use."""

    def start(self) -> None:
        """Begin to record, or go on after a stop.

        Raises:
            CaptureError: Another profiler is running.
        """

    def stop(self) -> None:
        """End the recording; without effect where there is none."""

    def trace(
        self,
        *,
        step_seconds: Sequence[float] = (),
        loader_seconds: Sequence[float] = (),
        samples: int | None = None,
        batches: int = 1,
        optimizer_steps: int | None = None,
    ) -> Trace:
        """What was recorded."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How windows go by, where the Trainer does not say.

    Attributes:
        batches_per_window: Seen under manual optimization; None: as the Trainer accumulates.
        steps_per_window: Optimizer steps of a window, as `trainer.global_step` counts them.
    """

    batches_per_window: int | None = None
    steps_per_window: float = 1.0


@final
class StepRecorder:
    """Times windows without a recorder until they are steady, then records some.

    Args:
        warmup_steps: Windows to time before the first is recorded.
        extra_warmup_steps: Windows by which the warm-up is prolonged at most where steps have not settled.
        capture_steps: Windows to record, one after the other.
        clock: Seconds, once the device has done its work.
        new_session: Makes the session that records one window.
        optimizer_steps_done: `trainer.global_step` before the first batch.
        is_manual: The module optimizes by itself.
    """

    def __init__(
        self,
        *,
        warmup_steps: int,
        extra_warmup_steps: int = EXTRA_WARMUP_WINDOWS,
        capture_steps: int,
        clock: Callable[[], float],
        new_session: Callable[[], Session],
        optimizer_steps_done: int = 0,
        is_manual: bool = False,
    ) -> None:
        self.watch = WindowWatch(optimizer_steps_done=optimizer_steps_done)
        self._warmup_steps = warmup_steps
        self._extra_warmup_steps = extra_warmup_steps
        self._capture_steps = capture_steps
        self._clock = clock
        self._new_session = new_session
        self._is_manual = is_manual
        self._session: Session | None = None
        self._is_in_batch = False
        self._is_timed = False
        self._timed: list[Window] = []
        self._recorded: list[tuple[Session, Window]] = []

    @property
    def pace(self) -> Pace:
        """How windows went by so far."""
        if not self._is_manual:
            return Pace()
        batches = self._timed[-1].batches if self._timed else 1
        return Pace(batches_per_window=batches, steps_per_window=self.watch.steps_per_window)

    def batch_starts(self, *, full_windows_after: int | None, next_is_short: bool) -> None:
        """A batch is about to be trained.

        Args:
            full_windows_after: Windows of full length that follow the one that begins; None where unknown.
            next_is_short: The window that begins is the shorter rest of an epoch.

        Raises:
            CaptureError: The recording cannot start.
        """
        self._drop_unended_batch()
        self._is_in_batch = True
        now = self._clock()
        if self.watch.between_windows:
            action = next_action(
                [window.seconds for window in self._timed],
                warmup_steps=self._warmup_steps,
                extra_warmup_steps=self._extra_warmup_steps,
                records_wanted=self._capture_steps - len(self._recorded),
                full_windows_after=full_windows_after,
                is_short=next_is_short,
            )
            self._is_timed = action == "time"
            if action == "record":
                self._session = self._new_session()
        if self._session is not None:  # It stands still between the batches, so that the loader is not recorded.
            self._session.start()
            now = self._clock()  # Starting a profiler takes longer than many a step.
        self.watch.batch_starts(now)

    def batch_ends(self, *, optimizer_steps_done: int, samples: int | None) -> Trace | None:
        """A batch was trained.

        Args:
            optimizer_steps_done: `trainer.global_step`.
            samples: Samples of the batch; None where unknown.

        Returns:
            The trace, once the last window that was wanted is recorded.
        """
        self._is_in_batch = False
        window = self.watch.batch_ends(self._clock(), optimizer_steps_done=optimizer_steps_done, samples=samples)
        if self._session is not None:
            self._session.stop()
        if window is None:
            return None
        if self._session is not None:
            session, self._session = self._session, None
            self._recorded.append((session, window))
            return self._trace() if len(self._recorded) == self._capture_steps else None
        if self._is_timed:
            self._timed.append(window)
        return None

    def pause(self) -> None:
        """Something else than a wait for the loader happens before the next batch."""
        self._drop_unended_batch()
        self.watch.pause()

    def stop(self) -> None:
        """End a recording that is under way and forget it."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()

    def _drop_unended_batch(self) -> None:
        """Forget the recording of a batch that began and was skipped with the rest of its epoch."""
        if self._is_in_batch:
            self._is_in_batch = False
            self.stop()

    def _trace(self) -> Trace:
        """The recorded window of middle length (the shorter of two), with the times of those that were not recorded."""
        lengths = [window.seconds for _, window in self._recorded]
        session, window = self._recorded[lengths.index(statistics.median_low(lengths))]
        steady = steady_seconds([timed.seconds for timed in self._timed if timed.batches == window.batches])
        waits = [seconds for timed in self._timed for seconds in timed.loader_seconds]
        return session.trace(
            step_seconds=steady,
            loader_seconds=waits,
            samples=window.samples,
            batches=window.batches,
            # Where Lightning does not see the optimizers, the session does.
            optimizer_steps=window.optimizer_steps or None,
        )


@final
class ValidationRecorder:
    """Records one validation batch: the second, as the first bears one-off costs, or the only one.

    Args:
        clock: Seconds, once the device has done its work.
        new_session: Makes the session that records the batch.
        records_first: Whether the only batch of a run may be recorded: not where it would record a compilation.
    """

    def __init__(
        self, *, clock: Callable[[], float], new_session: Callable[[], Session], records_first: bool = True
    ) -> None:
        self._clock = clock
        self._new_session = new_session
        self._records_first = records_first
        self._session: Session | None = None
        self._recorded: Session | None = None
        self._samples: int | None = None
        self._seconds: list[float] = []
        self._batch_start: float | None = None
        self._batches_seen = 0

    @property
    def is_done(self) -> bool:
        """A batch was recorded."""
        return self._recorded is not None

    def trace(self) -> Trace | None:
        """The recorded batch; None before."""
        if self._recorded is None:
            return None
        return self._recorded.trace(step_seconds=self._seconds, samples=self._samples, optimizer_steps=0)

    def run_starts(self) -> None:
        """A validation run, or the sanity check, begins."""
        self._batches_seen = 0

    def batch_starts(self, *, batches_in_run: float) -> None:
        """A batch is about to be validated.

        Args:
            batches_in_run: Batches of this run; `math.inf` where unknown.

        Raises:
            CaptureError: The recording cannot start.
        """
        number = self._batches_seen
        self._batches_seen += 1
        is_wanted = number == 1 or (number == 0 and batches_in_run == 1 and self._records_first)
        if self._recorded is None and is_wanted:
            self._session = self._new_session()
            self._session.start()
        elif number > 0 and len(self._seconds) < TIMED_VALIDATION_BATCHES:
            self._batch_start = self._clock()

    def batch_ends(self, *, samples: int | None) -> None:
        """A batch was validated.

        Args:
            samples: Samples of the batch; None where unknown.
        """
        if self._session is not None:
            session, self._session = self._session, None
            session.stop()
            self._recorded, self._samples = session, samples
        elif self._batch_start is not None:
            start, self._batch_start = self._batch_start, None
            self._seconds.append(self._clock() - start)

    def stop(self) -> None:
        """End a recording that is under way and forget it."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()
