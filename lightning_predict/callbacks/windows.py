"""Windows: the batches up to the next optimizer update, as the hooks of a Trainer see them pass.

`WindowWatch` is told when batches start and end and returns each `Window` as it closes; `next_action` decides what to
do with the window that is about to begin. Neither knows a Trainer or a clock. Example::

    >>> watch = WindowWatch()
    >>> watch.batch_starts(10.0)
    >>> watch.batch_ends(10.5, optimizer_steps_done=0)  # accumulated
    >>> watch.batch_starts(10.7)
    >>> watch.batch_ends(11.2, optimizer_steps_done=1)
    Window(seconds=1.0, loader_seconds=(0.2,), batches=2, optimizer_steps=1, samples=None)
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

SLOW_RATIO: Final = 1.5
"""A window that took this many times as long as it should is still warming up (compilation, cudnn.benchmark)."""

EXTRA_WARMUP_WINDOWS: Final = 5
"""Windows by which a warm-up that does not settle is prolonged at most."""

UNSEEN_STEPS_PATIENCE: Final = 16
"""Batches without any optimizer step that Lightning counts, after which every batch is taken for a window: manual
optimization may step optimizers that Lightning has not wrapped."""


WATCHED_BATCHES: Final = 64
"""Batches from the beginning of training within which kinds of windows are told apart, waited for and recorded: lazy
regularisation comes every 16th batch at the rarest in the papers that brought it up (Karras et al., StyleGAN2, 2020),
and three of its periods lie within."""

MOST_NODE_COUNTS: Final = 4
"""Windows of the same updates with more different graphs than this vary with their data: they are one kind."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What tells windows apart without a recorder.

    Attributes:
        batches: Batches of the window.
        optimizers: Positions of the optimizers whose update was due in it.
        nodes: Nodes that autograd made; None where they vary with the data.
    """

    batches: int
    optimizers: frozenset[int] = frozenset()
    nodes: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One accumulation window.

    Attributes:
        seconds: Of its batches from start to end, added up; waits for the loader are not in it.
        loader_seconds: Waits for the loader before its batches, those that were seen.
        batches: Batches in it.
        optimizer_steps: Optimizer updates in it, as `trainer.global_step` counts them.
        samples: Samples in it; None where the size of a batch could not be read.
    """

    seconds: float
    loader_seconds: tuple[float, ...]
    batches: int
    optimizer_steps: int
    samples: int | None = None

    @property
    def interval_seconds(self) -> float:
        """From the start of this window to the start of the next: its batches and as many waits for the loader."""
        if not self.loader_seconds:
            return self.seconds
        return self.seconds + self.batches * statistics.mean(self.loader_seconds)


@final
class WindowWatch:
    """Gathers batches into windows.

    Args:
        optimizer_steps_done: `trainer.global_step` before the first batch.
    """

    def __init__(self, *, optimizer_steps_done: int = 0) -> None:
        self.batches_seen = 0
        self.windows_seen = 0
        self._steps_at_start = optimizer_steps_done
        self._steps_before_window = optimizer_steps_done
        self._batch_start: float | None = None
        self._last_end: float | None = None
        self._seconds = 0.0
        self._loader_seconds: list[float] = []
        self._batches = 0
        self._samples: int | None = 0

    @property
    def between_windows(self) -> bool:
        """The next batch begins a window."""
        return self._batches == 0

    @property
    def steps_per_window(self) -> float:
        """Optimizer steps of a window on average (2 for a GAN that steps twice a batch); 1 before the first."""
        steps = self._steps_before_window - self._steps_at_start
        return steps / self.windows_seen if steps and self.windows_seen else 1.0

    def batch_starts(self, now: float) -> None:
        """A batch was fetched and its training begins.

        Args:
            now: Seconds on any monotonic clock.
        """
        if self._last_end is not None:
            self._loader_seconds.append(now - self._last_end)
        self._batch_start = now

    def batch_ends(self, now: float, *, optimizer_steps_done: int, samples: int | None = None) -> Window | None:
        """A batch was trained.

        Args:
            now: Seconds on the same clock.
            optimizer_steps_done: `trainer.global_step`, which has counted this batch's updates.
            samples: Samples of the batch; None where unknown.

        Returns:
            The window that this batch closed; None where it goes on.
        """
        if self._batch_start is None:
            return None
        self.batches_seen += 1
        self._batches += 1
        self._seconds += now - self._batch_start
        self._samples = None if self._samples is None or samples is None else self._samples + samples
        self._batch_start, self._last_end = None, now
        stepped = optimizer_steps_done > self._steps_before_window
        if not stepped and not self._steps_are_unseen(optimizer_steps_done):
            return None
        if not stepped and self._batches > 1:  # patience ran out here: these were several windows
            self._forget_window()
            return None
        window = Window(
            seconds=self._seconds,
            loader_seconds=tuple(self._loader_seconds),
            batches=self._batches,
            optimizer_steps=optimizer_steps_done - self._steps_before_window,
            samples=self._samples,
        )
        self.windows_seen += 1
        self._steps_before_window = optimizer_steps_done
        self._forget_window()
        return window

    def resume(self, *, optimizer_steps_done: int) -> None:
        """A batch was trained, and others before it that were not told; windows begin anew with the next update.

        Args:
            optimizer_steps_done: `trainer.global_step`.
        """
        self.batches_seen += 1
        self._steps_before_window = optimizer_steps_done
        self._batch_start = self._last_end = None
        self._forget_window()

    def pause(self) -> None:
        """Something other than the loader happens before the next batch: validation, a checkpoint, a new epoch."""
        self._last_end = None

    def _steps_are_unseen(self, optimizer_steps_done: int) -> bool:
        return optimizer_steps_done == self._steps_at_start and self.batches_seen >= UNSEEN_STEPS_PATIENCE

    def _forget_window(self) -> None:
        self._seconds = 0.0
        self._loader_seconds = []
        self._batches = 0
        self._samples = 0


Action = Literal["time", "record", "skip"]
"""What to do with the next window: time it without a recorder, record it, or let it pass."""


def kinds_of(windows: Iterable[Kind | None]) -> list[Kind | None]:
    """Take windows whose graphs vary with the data for one kind.

    Args:
        windows: The windows in their order; None for one that nothing is to be learnt from.
    """
    windows = list(windows)
    graphs: dict[Kind, set[int | None]] = {}
    for window in windows:
        if window is not None:
            graphs.setdefault(replace(window, nodes=None), set()).add(window.nodes)
    varying = {kind for kind, counts in graphs.items() if len(counts) > MOST_NODE_COUNTS}
    merged = [None if window is None else replace(window, nodes=None) for window in windows]
    return [one if one in varying else window for window, one in zip(windows, merged, strict=True)]


def due(windows: Sequence[Kind | None], kind: Kind) -> bool:
    """Say whether the next window may be of a kind, as long as the kinds take turns with a period.

    The period is the shortest time between two windows of the kind. Where it came once, as number i of all windows
    counted from 0, the period is at least i + 1: it would have come before otherwise.

    Args:
        windows: The kinds of all windows so far.
        kind: One of them.
    """
    at = [number for number, window in enumerate(windows) if window == kind]
    period = min((after - before for before, after in zip(at, at[1:], strict=False)), default=at[0] + 1)
    return len(windows) - at[-1] >= period


def shares_of_kinds(windows: Sequence[Kind | None], recorded: Collection[Kind]) -> dict[Kind, float]:
    """Give the share of each recorded kind among all windows, over whole periods where the rarest kind came twice.

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


def next_action(
    step_seconds: Sequence[float],
    *,
    windows_timed: int | None = None,
    warmup_steps: int,
    extra_warmup_steps: int = EXTRA_WARMUP_WINDOWS,
    records_wanted: int,
    full_windows_after: int | None,
    is_short: bool,
) -> Action:
    """What to do with the window that is about to begin.

    Warm-up ends after `warmup_steps` windows, later where the last one shows that steps have not settled yet, and
    earlier where the run is about to end: a short run is recorded in its last windows. A first window is never
    recorded, as it may compile.

    Args:
        step_seconds: Times of the windows so far that are of the last one's kind.
        windows_timed: Windows of any kind that were timed; None where all are of one kind.
        warmup_steps: Windows to time before recording.
        extra_warmup_steps: Windows more to time at most, where the last one shows that steps have not settled.
        records_wanted: Windows still to record.
        full_windows_after: Windows of full length that follow this one until the run ends; None where unknown.
        is_short: The window is the shorter rest at the end of an epoch.
    """
    timed = len(step_seconds) if windows_timed is None else windows_timed
    has_room = full_windows_after is None or full_windows_after >= records_wanted
    if is_short and has_room:
        return "skip"
    if not step_seconds:
        return "time"
    if not has_room:
        return "record"
    if timed < warmup_steps:
        return "time"
    settled = step_seconds[-1] <= SLOW_RATIO * min(step_seconds)
    return "record" if settled or timed >= warmup_steps + extra_warmup_steps else "time"


def steady_seconds(step_seconds: Sequence[float]) -> tuple[float, ...]:
    """The times without the slow ones at the beginning: those over 1.5 × the median of all that follow.

    Args:
        step_seconds: Times of windows in their order.
    """
    for start in range(len(step_seconds) - 1):
        if step_seconds[start] <= SLOW_RATIO * statistics.median(step_seconds[start + 1 :]):
            return tuple(step_seconds[start:])
    return tuple(step_seconds[-1:])
