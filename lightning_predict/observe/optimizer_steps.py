"""Counts and times optimizer steps under gradient accumulation ("windows": the batches up to an optimizer update).

`StepCounter` counts the windows of a fit; the run's clock updates the counter. `StepTimer` adds up the times of the
batches of a window. Neither class depends on a Trainer or reads a clock. Example::

    >>> count, timer = StepCounter(), StepTimer()
    >>> timer.on_batch_start(10.0)
    >>> count.on_batch_end(0)     # accumulated
    >>> timer.on_batch_end(10.5, count)
    >>> timer.on_batch_start(10.75)
    >>> count.on_batch_end(1)
    >>> timer.on_batch_end(11.25, count)
    TimedStep(seconds=1.0, loader_seconds=(0.25,), batches=2, optimizer_steps=1, samples=None, host_seconds=None)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

UNSEEN_STEPS_PATIENCE: Final = 16  # Number of batches without a counted optimizer step after which each counts as one
MAX_NODE_COUNTS: Final = 4  # Maximum number of different autograd graph sizes for one set of updates


MAX_LOADER_SECONDS: Final = 1024  # Maximum number of stored waits for one window, which may last until training ends


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSize:
    """Observed size of the accumulation windows, if the Trainer's settings do not state it."""

    # Batches per window, observed under manual optimization. If None, the Trainer's `accumulate_grad_batches` applies.
    batches_per_window: int | None = None
    steps_per_window: float = 1.0  # Optimizer steps per window, as counted by `trainer.global_step`


class StepCounter:
    """Counter of batches, and of the accumulation windows that the batches form."""

    def __init__(self) -> None:
        self.batches = self.windows = self.batches_in_window = 0
        # Whether windows are counted. Counting is necessary if a recorder needs the windows, or if only counting shows
        # their size.
        self.is_followed = False
        # Number of batches and optimizer steps of the window that ended with the last batch; None if no window ended
        self.closed: tuple[int, int] | None = None
        self._is_manual = False
        self._steps_at_start = self._steps_before_window = 0
        self._last_batches = 1

    def start_training(self, *, optimizer_steps_done: int, is_manual: bool) -> None:
        """Start counting, when training begins.

        Args:
            optimizer_steps_done: `trainer.global_step` before the first batch.
            is_manual: Whether the module steps its optimizers itself. `trainer.global_step` may not count these steps.
        """
        self._steps_at_start = self._steps_before_window = optimizer_steps_done
        self._is_manual = is_manual
        self.is_followed = self.is_followed or is_manual

    def stop_following(self) -> None:
        """Stop counting windows, unless only counting shows their size."""
        self.is_followed = self._is_manual

    @property
    def between_windows(self) -> bool:
        """Whether the next batch begins a window."""
        return self.batches_in_window == 0

    @property
    def window_size(self) -> WindowSize:
        """Observed size of the accumulation windows, if the trainer's settings do not state it."""
        if not self._is_manual:
            return WindowSize()
        steps = self._steps_before_window - self._steps_at_start
        per_window = steps / self.windows if steps and self.windows else 1.0
        return WindowSize(batches_per_window=self._last_batches, steps_per_window=per_window)

    def on_batch_end(self, optimizer_steps_done: int) -> None:
        """Count a finished batch. `trainer.global_step` already includes its updates."""
        self.batches += 1
        self.batches_in_window += 1
        self.closed = None
        steps = optimizer_steps_done - self._steps_before_window
        if steps <= 0 and not self._steps_are_unseen(optimizer_steps_done):
            return
        batches, self.batches_in_window = self.batches_in_window, 0
        if steps <= 0 and batches > 1:  # the limit was reached here, so these batches are several windows
            return
        self.closed, self._last_batches = (batches, steps), batches
        self.windows += 1
        self._steps_before_window = optimizer_steps_done

    def _steps_are_unseen(self, optimizer_steps_done: int) -> bool:
        is_patient = self.batches < UNSEEN_STEPS_PATIENCE or not self._is_manual
        return optimizer_steps_done == self._steps_at_start and not is_patient


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """Measured accumulation window: an optimizer step with its batches."""

    seconds: float  # Sum of the batch times from start to end, without waits for the loader
    loader_seconds: tuple[float, ...]  # Observed waits for the loader before the batches
    batches: int
    optimizer_steps: int  # Number of optimizer updates, as counted by `trainer.global_step`
    samples: int | None = None  # Number of samples; None if the batch size could not be read
    host_seconds: float | None = None  # Sum of the batches' CPU times, without waits for the device; None: not measured


class StepTimer:
    """Timer that adds up the batches of each accumulation window."""

    def __init__(self) -> None:
        self._batch_start: float | None = None
        self._last_end: float | None = None
        self._seconds = 0.0
        self._host_seconds: float | None = 0.0
        self._loader_seconds: list[float] = []
        self._samples: int | None = 0

    def on_batch_start(self, now: float) -> None:
        """Start timing a batch, which was just fetched."""
        if self._last_end is not None and len(self._loader_seconds) < MAX_LOADER_SECONDS:
            self._loader_seconds.append(now - self._last_end)
        self._batch_start = now

    def on_batch_end(
        self, now: float, count: StepCounter, *, samples: int | None = None, host_done: float | None = None
    ) -> TimedStep | None:
        """Stop timing a batch.

        Args:
            now: Seconds of the same clock.
            count: Counter that already includes this batch.
            samples: Number of samples of the batch; None if unknown.
            host_done: Time at which the CPU had finished the batch, before it waited for the device; None if not read.

        Returns:
            The window that this batch ended; None if the window continues.
        """
        if self._batch_start is None:
            return None
        self._seconds += now - self._batch_start
        if self._host_seconds is not None:
            self._host_seconds = None if host_done is None else self._host_seconds + host_done - self._batch_start
        self._samples = None if self._samples is None or samples is None else self._samples + samples
        self._batch_start, self._last_end = None, now
        window = None
        if count.closed is not None:
            window = TimedStep(
                seconds=self._seconds,
                loader_seconds=tuple(self._loader_seconds),
                batches=count.closed[0],
                optimizer_steps=count.closed[1],
                samples=self._samples,
                host_seconds=self._host_seconds,
            )
        if count.between_windows:
            self._forget()
        return window

    def pause(self) -> None:
        """Exclude the time until the next batch (validation, checkpoint, epoch): this time is no loader wait."""
        self._last_end = None

    def _forget(self) -> None:
        self._seconds, self._host_seconds, self._samples = 0.0, 0.0, 0
        self._loader_seconds = []


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """Kind of an accumulation window, which can be recognized without recording the window."""

    batches: int
    optimizers: frozenset[int] = frozenset()  # Indices of the optimizers that updated parameters in the window
    nodes: int | None = None  # Number of autograd nodes; None if the number varies with the data


def merge_varying_kinds(windows: Iterable[StepKind | None]) -> list[StepKind | None]:
    """Merge kinds whose autograd graphs vary with the data into one kind.

    Args:
        windows: Kinds of the windows in order; None for windows that are ignored.
    """
    windows = list(windows)
    merged = {window: replace(window, nodes=None) for window in set(windows) if window is not None}
    graphs = Counter(merged.values())  # number of different node counts, by optimizers and batches
    varying = {kind for kind, counts in graphs.items() if counts > MAX_NODE_COUNTS}
    return [window if window is None or merged[window] not in varying else merged[window] for window in windows]


def may_be_next(windows: Sequence[StepKind | None], kind: StepKind) -> bool:
    """Return whether the next window may be of this kind, if kinds alternate periodically.

    The period is the shortest distance between two windows of this kind. If the kind occurred only once, at index i,
    the period is at least i + 1, because a shorter period would have shown the kind before.
    """
    at = [number for number, window in enumerate(windows) if window == kind]
    period = min((after - before for before, after in pairwise(at)), default=at[0] + 1)
    return len(windows) - at[-1] >= period


def shares_of_kinds(windows: Sequence[StepKind | None], recorded: Collection[StepKind]) -> dict[StepKind, float]:
    """Return the share of each recorded kind among all windows.

    Kinds mostly alternate with a period (every fifth batch). The windows after the first window of the rarest kind, up
    to its last window, contain whole periods, so their counts are exact. Counts over all windows would depend on where
    counting began and ended.

    Args:
        windows: Kinds of all windows so far. A kind that was not recorded counts as the recorded kind with equal
            optimizers and the most similar graph, if there is such a kind.
        recorded: Recorded kinds, at least one.
    """
    alike = [None if window is None else _most_alike(window, recorded) for window in windows]
    counts = Counter(kind for kind in alike if kind is not None)
    if len(counts) > 1:
        rarest = min(counts, key=lambda kind: counts[kind])
        at = [number for number, kind in enumerate(alike) if kind == rarest]
        periods = Counter(kind for kind in alike[at[0] + 1 : at[-1] + 1] if kind is not None)
        if periods.keys() == counts.keys():
            counts = periods
    total = sum(counts.values())
    return {kind: counts[kind] / total for kind in recorded if counts[kind]}


def _most_alike(window: StepKind, recorded: Collection[StepKind]) -> StepKind | None:
    same = [kind for kind in recorded if replace(kind, nodes=None) == replace(window, nodes=None)]
    return min(same, key=lambda kind: abs((kind.nodes or 0) - (window.nodes or 0)), default=None)
