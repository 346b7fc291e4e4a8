"""Windows: the batches up to the next optimizer update; how many there were, what each took, and of which kinds.

`WindowCount` is the one count of a fit: told by its clock, read by all. `WindowTimer` adds up what the batches of a
window took. Neither knows a Trainer or reads a clock. Example::

    >>> count, timer = WindowCount(), WindowTimer()
    >>> timer.batch_starts(10.0)
    >>> count.batch_ends(0)     # accumulated
    >>> timer.batch_ends(10.5, count)
    >>> timer.batch_starts(10.7)
    >>> count.batch_ends(1)
    >>> timer.batch_ends(11.2, count)
    Window(seconds=1.0, loader_seconds=(0.2,), batches=2, optimizer_steps=1, samples=None)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, final

UNSEEN_STEPS_PATIENCE: Final = 16
"""Batches without any optimizer step that Lightning counts, after which every batch is taken for a window: manual
optimization may step optimizers that Lightning has not wrapped."""

MOST_NODE_COUNTS: Final = 4
"""Windows of the same updates with more different graphs than this vary with their data: they are one kind."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The sizes and kinds of windows observed so far, which the Trainer does not tell.

    Attributes:
        batches_per_window: Seen under manual optimization; None: as the Trainer accumulates.
        steps_per_window: Optimizer steps of a window, as `trainer.global_step` counts them.
    """

    batches_per_window: int | None = None
    steps_per_window: float = 1.0


@final
class WindowCount:
    """Counts batches, and the windows that they make.

    Attributes:
        batches: Batches that have ended.
        windows: Windows that were closed.
        batches_in_window: Batches of the window under way that are done.
        closed: Batches and optimizer steps of the window that the last batch closed; None if it closed none.
        is_followed: Windows are counted: somebody asks for them, or only counting tells how long they are.
    """

    def __init__(self) -> None:
        self.batches = self.windows = self.batches_in_window = 0
        self.is_followed = False
        self.closed: tuple[int, int] | None = None
        self._is_manual = False
        self._steps_at_start = self._steps_before_window = 0
        self._last_batches = 1

    def begins(self, *, optimizer_steps_done: int, is_manual: bool) -> None:
        """Note that training begins.

        Args:
            optimizer_steps_done: `trainer.global_step` before the first batch.
            is_manual: The module steps its optimizers itself, maybe without `trainer.global_step` counting it.
        """
        self._steps_at_start = self._steps_before_window = optimizer_steps_done
        self._is_manual = is_manual
        self.is_followed = self.is_followed or is_manual

    def let_go(self) -> None:
        """Count windows no more, unless only that tells how long they are."""
        self.is_followed = self._is_manual

    @property
    def between_windows(self) -> bool:
        """The next batch begins a window."""
        return self.batches_in_window == 0

    @property
    def pace(self) -> Pace:
        """How windows went by so far, where the trainer does not tell."""
        if not self._is_manual:
            return Pace()
        steps = self._steps_before_window - self._steps_at_start
        per_window = steps / self.windows if steps and self.windows else 1.0
        return Pace(batches_per_window=self._last_batches, steps_per_window=per_window)

    def batch_ends(self, optimizer_steps_done: int) -> None:
        """Note that a batch was trained, whose updates `trainer.global_step` has counted."""
        self.batches += 1
        self.batches_in_window += 1
        self.closed = None
        steps = optimizer_steps_done - self._steps_before_window
        if steps <= 0 and not self._steps_are_unseen(optimizer_steps_done):
            return
        batches, self.batches_in_window = self.batches_in_window, 0
        if steps <= 0 and batches > 1:  # patience ran out here: these were several windows
            return
        self.closed, self._last_batches = (batches, steps), batches
        self.windows += 1
        self._steps_before_window = optimizer_steps_done

    def _steps_are_unseen(self, optimizer_steps_done: int) -> bool:
        is_patient = self.batches < UNSEEN_STEPS_PATIENCE or not self._is_manual
        return optimizer_steps_done == self._steps_at_start and not is_patient


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One accumulation window.

    Attributes:
        seconds: Seconds of its batches from start to end, added up; waits for the loader are not in it.
        loader_seconds: Waits for the loader before its batches, those that were seen.
        batches: Batches in it.
        optimizer_steps: Optimizer updates in it, as `trainer.global_step` counts them.
        samples: Samples in it; None if the size of a batch could not be read.
        host_seconds: Seconds of its batches until the host was done with each, without the wait for the device; None if
            not read.
    """

    seconds: float
    loader_seconds: tuple[float, ...]
    batches: int
    optimizer_steps: int
    samples: int | None = None
    host_seconds: float | None = None


@final
class WindowTimer:
    """Adds up what the batches of a window take."""

    def __init__(self) -> None:
        self._batch_start: float | None = None
        self._last_end: float | None = None
        self._seconds = 0.0
        self._host_seconds: float | None = 0.0
        self._loader_seconds: list[float] = []
        self._samples: int | None = 0

    def batch_starts(self, now: float) -> None:
        """Note that a batch was fetched and its training begins.

        Args:
            now: Seconds on any monotonic clock.
        """
        if self._last_end is not None:
            self._loader_seconds.append(now - self._last_end)
        self._batch_start = now

    def batch_ends(
        self, now: float, count: WindowCount, *, samples: int | None = None, host_done: float | None = None
    ) -> Window | None:
        """Note that a batch was trained.

        Args:
            now: Seconds on the same clock.
            count: Has counted this batch.
            samples: Samples of the batch; None if unknown.
            host_done: When the host was done with it, before the device was waited for; None if not read.

        Returns:
            The window that this batch closed; None if it goes on.
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
            window = Window(
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
        """Note that something other than the loader comes before the next batch: validation, a checkpoint, an epoch."""
        self._last_end = None

    def _forget(self) -> None:
        self._seconds, self._host_seconds, self._samples = 0.0, 0.0, 0
        self._loader_seconds = []


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of window, told from others without a recorder.

    Attributes:
        batches: Batches of the window.
        optimizers: Positions of the optimizers whose update was due in it.
        nodes: Nodes that autograd made; None if they vary with the data.
    """

    batches: int
    optimizers: frozenset[int] = frozenset()
    nodes: int | None = None


def kinds_of(windows: Iterable[Kind | None]) -> list[Kind | None]:
    """Take windows whose graphs vary with the data for one kind.

    Args:
        windows: The windows in their order; None for one that nothing is to be learnt from.
    """
    windows = list(windows)
    merged = {window: replace(window, nodes=None) for window in set(windows) if window is not None}
    graphs = Counter(merged.values())  # how many numbers of nodes each came with
    varying = {kind for kind, counts in graphs.items() if counts > MOST_NODE_COUNTS}
    return [window if window is None or merged[window] not in varying else merged[window] for window in windows]


def due(windows: Sequence[Kind | None], kind: Kind) -> bool:
    """Return whether the next window may be of a kind, provided that the kinds alternate periodically.

    The period is the shortest time between two windows of the kind. Where it came once, as number i of all windows
    counted from 0, the period is at least i + 1: it would have come before otherwise.
    """
    at = [number for number, window in enumerate(windows) if window == kind]
    period = min((after - before for before, after in pairwise(at)), default=at[0] + 1)
    return len(windows) - at[-1] >= period


def shares_of_kinds(windows: Sequence[Kind | None], recorded: Collection[Kind]) -> dict[Kind, float]:
    """Return the share of each recorded kind among all windows, over whole periods where the rarest kind came twice.

    Kinds that take turns mostly do so with a period (every fifth batch). What lies between the first and the last
    window of the rarest kind, the last included, is a whole number of periods: its counts are exact, while those of all
    windows depend on where the counting began and ended.

    Args:
        windows: The kinds of all windows so far; those that were not recorded count as the recorded one with the same
            optimizers whose graph is most alike, if there is one.
        recorded: Kinds that were recorded, at least one.
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


def _most_alike(window: Kind, recorded: Collection[Kind]) -> Kind | None:
    same = [kind for kind in recorded if replace(kind, nodes=None) == replace(window, nodes=None)]
    return min(same, key=lambda kind: abs((kind.nodes or 0) - (window.nodes or 0)), default=None)
