"""Recorders of the training step and of the validation batch, called by a callback's hooks.

Recording starts after a short warm-up. The warm-up is counted in accumulation windows (`observe.optimizer_steps`); a
window is one optimizer step with its batches. `next_action` decides what to do with the next window. The recorders do
not depend on a Trainer: the caller provides the clock, the sessions and the window counter. Example::

    recorder.on_batch_start(full_windows_after=None, next_is_short=False)
    # ... the batch is trained ...
    count.on_batch_end(optimizer_steps_done)
    trace = recorder.on_batch_end(samples=32)      # None until every kind of window is recorded
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from lightning_predict.base.errors import CaptureError, NothingRecordedError
from lightning_predict.observe.micro_batches import MicroBatches
from lightning_predict.observe.optimizer_steps import (
    StepCounter,
    StepKind,
    StepTimer,
    TimedStep,
    WindowSize,
    may_be_next,
    merge_varying_kinds,
    shares_of_kinds,
)
from lightning_predict.observe.steady_state import warmup_end
from lightning_predict.record.running_loop import BlockTimer, StepBlock, block_steps, with_running_loop
from lightning_predict.record.trace import OtherStep, Trace

if TYPE_CHECKING:
    from lightning_predict.record.session import CaptureSession

# Each warm-up window delays the first printed prediction by one optimizer step, which may take minutes. Timed steps
# later correct a recording that is slightly too early. A missing recording cannot be corrected.
EXTRA_WARMUP_WINDOWS: Final = 5  # Maximum number of windows by which a warm-up is extended if times are not steady
SETTLED_TO_RECORD: Final = 0.5  # Maximum relative difference between early and later windows at which recording starts
WATCHED_BATCHES: Final = 64  # Batches at the start of training in which the recorder looks for new kinds of windows

WindowAction = Literal["time", "run", "record", "skip"]
"""Action for the next window: `time` it alone, `run` it in a block of untimed windows, `record` it, or `skip` it. A
block waits for the device only at its end."""


def next_action(
    step_seconds: Sequence[float],
    *,
    windows_timed: int | None = None,
    warmup_steps: int,
    full_windows_after: int | None,
    is_short: bool,
) -> WindowAction:
    """Decide what to do with the next window.

    The warm-up ends after `warmup_steps` windows, or later if their times are not steady. If the run is about to end,
    the warm-up ends earlier, so that the last windows of a short run are recorded. The first window is never recorded,
    because it may compile code.

    Args:
        step_seconds: Times of the previous windows that are of the same kind as the last window.
        windows_timed: Number of timed windows of any kind; None if all windows are of one kind.
        warmup_steps: Number of windows to time before recording.
        full_windows_after: Number of full-length windows after the next window until the run ends; None if unknown.
        is_short: Whether the next window is the shorter window at the end of an epoch.
    """
    timed = len(step_seconds) if windows_timed is None else windows_timed
    has_room = full_windows_after is None or full_windows_after >= 1
    if is_short and has_room:
        return "skip"
    if not step_seconds:
        return "time"
    if not has_room:
        return "record"
    if timed < warmup_steps:
        return "time"
    _, is_settled = warmup_end(step_seconds, tolerance=SETTLED_TO_RECORD)
    return "record" if is_settled or timed >= warmup_steps + EXTRA_WARMUP_WINDOWS else "time"


TIMED_VALIDATION_BATCHES: Final = 5  # Maximum number of timed validation batches, because timing waits for the device
MAX_REJECTED_WINDOWS: Final = 4  # Maximum number of discarded recordings


_UNLIKE: Final = (
    "{} of the {} batches of a step differ from the recorded ones. Predictions treat them like the last recorded one."
)


_NOTHING: Final = (
    "{} of the first {} steps computed nothing (`training_step` may return None). Totals count them like the others."
)


def stop_with_retry(session: CaptureSession) -> None:
    """Stop a recording, and retry once, because a recorder that stays open disturbs the rest of the run."""
    try:
        session.stop()
    except BaseException:
        session.stop()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recorded accumulation window."""

    session: CaptureSession
    window: TimedStep
    batches: MicroBatches
    number: int
    optimizers: frozenset[int]


class StepLog:
    """All accumulation windows so far, and the kinds that were derived from the windows."""

    def __init__(self) -> None:
        self.windows: list[StepKind | None] = []  # Kind of each window; None for windows that are ignored
        self.empty = 0  # Number of windows without any computation
        self.timed: list[tuple[int, TimedStep]] = []  # Windows that were timed without recording, with their indices
        self.recorded: list[Recorded] = []
        self._kinds: list[StepKind | None] = []
        self._nothing: set[StepKind] = set()

    def computes_nothing(self, kind: StepKind) -> bool:
        """Return whether windows of this kind compute nothing. If so, count the window as empty."""
        self.empty += kind in self._nothing
        return kind in self._nothing

    def mark_as_empty(self, kind: StepKind) -> None:
        """Mark a kind as computing nothing, and ignore its timed windows."""
        self._nothing.add(kind)
        self.empty += 1 + self.windows.count(kind)
        self.timed = [(number, window) for number, window in self.timed if self.windows[number] != kind]
        self.windows = [None if window == kind else window for window in self.windows]
        self.windows.append(None)

    @property
    def has_paused(self) -> bool:
        """Whether the last `WATCHED_BATCHES` windows are all ignored."""
        last = self.windows[-WATCHED_BATCHES:]
        return len(last) == WATCHED_BATCHES and not any(last)

    @property
    def kinds(self) -> list[StepKind | None]:
        """Kinds of all windows, computed once per window."""
        if len(self._kinds) != len(self.windows):
            self._kinds = merge_varying_kinds(self.windows)
        return self._kinds

    @property
    def are_alike(self) -> bool:
        """Whether all windows so far are of one kind, which a block of steps requires."""
        return len({*self.kinds} - {None}) <= 1

    @property
    def kinds_recorded(self) -> list[StepKind]:
        """Kinds that were recorded."""
        kinds = (self.kinds[recorded.number] for recorded in self.recorded)
        return list(dict.fromkeys(kind for kind in kinds if kind is not None))

    @property
    def missing(self) -> list[StepKind]:
        """Kinds that were seen, but not recorded.

        A kind that occurred only in the first window is ignored if another kind has the same optimizers, because the
        first window also creates tensors that later windows reuse.
        """
        recorded = self.kinds_recorded
        updates = {kind.optimizers for kind in recorded}
        later = set(self.kinds[1:])
        return [
            kind
            for kind in dict.fromkeys(self.kinds)
            if kind is not None and kind not in recorded and (kind in later or kind.optimizers not in updates)
        ]

    @property
    def has_all_kinds_twice(self) -> bool:
        """Whether there is only one recorded kind, or each kind occurred twice and was timed after its first window."""
        kinds, recorded = self.kinds, self.kinds_recorded
        timed = {kinds[number] for number, _ in self.timed if kinds[number] in kinds[:number]}
        return len(recorded) == 1 or all(kinds.count(kind) > 1 and kind in timed for kind in recorded)

    @property
    def shares(self) -> dict[StepKind, float]:
        """Share of each recorded kind among all windows."""
        return shares_of_kinds(self.kinds, self.kinds_recorded)

    @property
    def window_size(self) -> WindowSize:
        """Size of the accumulation windows, scaled to the length of the most common kind."""
        shares = self.shares
        windows = {kind: self.median_recording(kind).window for kind in shares}
        commonest = windows[max(shares, key=lambda kind: shares[kind])]
        steps = sum(share * windows[kind].optimizer_steps for kind, share in shares.items())
        batches = sum(share * windows[kind].batches for kind, share in shares.items())
        per_window = steps * commonest.batches / batches
        return WindowSize(batches_per_window=commonest.batches, steps_per_window=per_window or 1.0)

    def median_recording(self, kind: StepKind) -> Recorded:
        """Return the recorded window of median duration of a kind; of two windows, the shorter."""
        alike = [recorded for recorded in self.recorded if self.kinds[recorded.number] == kind]
        lengths = [recorded.window.seconds for recorded in alike]
        return alike[lengths.index(statistics.median_low(lengths))]

    def seconds_like_the_last(self) -> list[float]:
        """Return the times of windows of the same kind as the last window; without such windows, of all."""
        last = self.kinds[-1] if self.kinds else None
        alike = [window.seconds for number, window in self.timed if last is None or self.kinds[number] == last]
        return alike or [window.seconds for _, window in self.timed]

    def trace_of(self, kind: StepKind, block: StepBlock | None) -> Trace:
        """Return the trace of one kind, with the times of its unrecorded windows and of a block of steps."""
        kinds, recorded = self.kinds, self.median_recording(kind)
        window = recorded.window
        timed = [(number, step) for number, step in self.timed if step.batches == window.batches]
        # The first window of a kind is slow (cold), because an optimizer creates its state. Only other windows of the
        # kind show this.
        alike = [step for number, step in timed if kinds[number] == kind and kind in kinds[:number]]
        is_only_kind = len({*kinds} - {None}) == 1
        if is_only_kind or (not alike and len(self.kinds_recorded) == 1):
            alike = [step for _, step in timed]
        waits = [seconds for _, step in self.timed for seconds in step.loader_seconds]
        alike = alike[warmup_end([step.seconds for step in alike])[0] :]
        trace = recorded.session.trace(
            step_seconds=[step.seconds for step in alike],
            loader_seconds=waits,
            samples=window.samples,
            batches=window.batches,
            represented_by=recorded.batches.represented_by or (),
            # If Lightning does not see the optimizers, the recording session counts their steps.
            optimizer_steps=window.optimizer_steps or None,
        )
        if recorded.batches.unmatched_batches:
            trace = replace(
                trace, notes=(*trace.notes, _UNLIKE.format(recorded.batches.unmatched_batches, window.batches))
            )
        hosts = [step.host_seconds for step in alike if step.host_seconds is not None]
        return with_running_loop(
            trace, hosts=hosts if len(hosts) == len(alike) else (), block=block if is_only_kind else None
        )


@dataclass(slots=True, kw_only=True)
class _CurrentWindow:
    """State of the window that is in progress."""

    action: WindowAction = "skip"
    is_short: bool = False  # Whether the window is the shorter window at the end of an epoch
    is_last: bool = False
    compilations: int = 0
    batches: MicroBatches = field(default_factory=MicroBatches)
    nodes: int = 0
    due: set[int] = field(default_factory=set)  # Indices of the optimizers that were to update parameters so far


class StepRecorder:
    """Times accumulation windows without recording until the times are steady, then records one window of each kind.

    In most trainings, all windows are of one kind, and one recording is enough. But optimizers may alternate, or some
    windows may compute more than others (lazy regularisation). Recording then continues until every optimizer and every
    seen kind is recorded, and every kind has occurred twice, so that its share is known. `WATCHED_BATCHES` limits this
    search. A kind that first occurs within this limit, but after the trace was returned, is recorded as well and
    produces another trace.

    Args:
        warmup_steps: Number of windows to time before the first recording.
        clock: Returns seconds after waiting for the device.
        host_clock: Returns seconds of the same clock without waiting; None on the CPU, where no wait is necessary and
            no block of steps is timed.
        new_session: Creates the session that records one window.
        optimizers: Optimizers of the training. Recording waits for an update by each optimizer that can make an update.
        autograd_nodes: Returns the number of autograd nodes created so far.
        compilations: Returns the number of compilations so far.
        count: Window counter of the fit. The counter must count each batch before `on_batch_end` is called.
    """

    def __init__(
        self,
        *,
        warmup_steps: int,
        clock: Callable[[], float],
        host_clock: Callable[[], float] | None = None,
        new_session: Callable[[], CaptureSession],
        optimizers: Sequence[object] = (),
        autograd_nodes: Callable[[], int] = lambda: 0,
        compilations: Callable[[], int] = lambda: 0,
        count: StepCounter,
    ) -> None:
        self.count = count
        count.is_followed = True
        self.is_finished = False
        self._warmup_steps = warmup_steps
        self._clock, self._host_clock = clock, host_clock
        self._new_session = new_session
        self._optimizers = tuple(optimizers)
        self._autograd_nodes, self._compilations = autograd_nodes, compilations
        self._timer, self._block = StepTimer(), BlockTimer()
        self._session: CaptureSession | None = None
        self._is_in_batch = False
        self._now = _CurrentWindow()
        self._nodes_at_start = 0
        self._seen = StepLog()
        self._kinds_complete: frozenset[StepKind | None] = frozenset()
        self._must_record_all = self._is_quiet = False
        self._rejected = 0
        self._watch_until: int | None = None
        self._records_given = 0

    @property
    def has_returned_trace(self) -> bool:
        """Whether a trace was returned."""
        return self._records_given > 0

    @property
    def window_size(self) -> WindowSize:
        """Observed size of the accumulation windows, if the Trainer's settings do not state it."""
        window_size = self.count.window_size
        return (
            window_size
            if window_size.batches_per_window is None or not self.has_returned_trace
            else self._seen.window_size
        )

    def starts_known(self) -> bool:
        """Prepare for a batch whose step is only compared with the recorded kinds. Return whether this is such a batch.

        Most steps until `WATCHED_BATCHES` are, if each step has one batch.
        """
        if not self.is_quiet:
            return False
        now = self._now
        self._is_in_batch = True
        if now.due or now.nodes:
            now.due, now.nodes = set(), 0
        now.compilations, self._nodes_at_start = self._compilations(), self._autograd_nodes()
        self._timer.on_batch_start(0.0)
        return True

    def ends_known(self) -> bool:
        """End a batch. Return whether its step was of a recorded kind with one batch, so that nothing is left to do."""
        if not self._is_quiet or not self._is_known():
            return False
        self._is_in_batch = False
        return True

    def on_batch_start(
        self, *, full_windows_after: int | None, next_is_short: bool, shapes: Callable[[], object] = lambda: None
    ) -> None:
        """Prepare for the next training batch.

        Args:
            full_windows_after: Number of full-length windows after the window that begins; None if unknown.
            next_is_short: Whether the window that begins is the shorter window at the end of an epoch.
            shapes: Returns the shapes of the batch's tensors (None if unknown); called only if needed.
        """
        if self.starts_known():
            return
        self._drop_unended_batch()
        self._is_in_batch = True
        if self.count.between_windows:
            self._window_starts(full_windows_after, is_short=next_is_short)
        now = self._read_clock()
        if self._session is not None and self._now.batches.begins(
            shapes(), ignores_shapes=self._session.records_first_and_last_only
        ):
            self._session.start()  # paused between batches, so that the loader is not recorded
            now = self._read_clock()  # starting a profiler takes longer than many steps
        self._nodes_at_start = self._autograd_nodes()
        if self._now.action == "run" and not self._block.is_running:
            batches = self._seen.timed[-1][1].batches
            self._block.begins(now, steps=self._steps_of_block(full_windows_after), batches=batches)
        self._block.on_batch_start(now)
        self._timer.on_batch_start(now)

    def _window_starts(self, full_windows_after: int | None, *, is_short: bool) -> None:
        """Decide what to do with the window that begins."""
        self._now = now = _CurrentWindow(
            is_short=is_short, is_last=full_windows_after == 0, compilations=self._compilations()
        )
        now.action = self._next_action(full_windows_after, is_short)
        if now.action == "record":
            self._session = self._new_session()
            lengths = {window.batches for _, window in self._seen.timed}
            if len(lengths) == 1 and not (is_short or self._must_record_all):
                now.batches.expected = lengths.pop()
            if self._watch_until is None:
                self._watch_until = self.count.batches + WATCHED_BATCHES

    def optimizer_steps(self, optimizer: object) -> None:
        """Record that an optimizer is to update parameters. Optimizers that the recorder does not know are ignored."""
        for position, known in enumerate(self._optimizers):
            if known is optimizer:
                self._now.due.add(position)

    def on_batch_end(self, *, samples: int | None) -> Trace | None:
        """Process the end of a training batch.

        Args:
            samples: Samples of the batch; None if unknown.

        Returns:
            The trace, when every kind of window is recorded, and again if a new kind occurs later; otherwise None.
        """
        if self.ends_known():
            return None
        self._is_in_batch = False
        is_timed = self._now.action in ("time", "run")
        host_done = None if self._host_clock is None or not is_timed else self._host_clock()
        now = self._read_clock()
        window = self._timer.on_batch_end(now, self.count, samples=samples, host_done=host_done)
        self._block.on_batch_end(now)
        nodes = self._autograd_nodes() - self._nodes_at_start
        self._now.nodes += nodes
        if self._session is not None:
            self._session.stop()
            self._now.batches.ends(nodes)
            if self._now.batches.is_endless:
                self._session, self._now.action = None, "skip"
        if self.is_idle:
            self._timer.pause()  # nothing was timed
        if window is None:
            return None
        self._store_window(window)
        trace = self._trace_if_due()
        self._is_quiet = self._is_settled and all(kind is None or kind.batches == 1 for kind in self._kinds_complete)
        if self._is_quiet:
            self._now = _CurrentWindow()
        return trace

    def _is_known(self) -> bool:
        """Handle a single-batch window of a recorded kind quickly, because most trainings have no other windows."""
        closed, nodes = self.count.closed, self._autograd_nodes() - self._nodes_at_start
        if closed is None or closed[0] != 1 or self._compilations() != self._now.compilations:
            return False
        last, due = self._seen.windows[-1], self._now.due
        if last is None or last.batches != 1 or last.nodes != nodes or last.optimizers != due:
            last = StepKind(batches=1, optimizers=frozenset(due), nodes=nodes)
            if last not in self._kinds_complete:
                return False
        self._seen.windows.append(last)
        self._timer.pause()
        self._finishes()
        return True

    def unreturned_trace(self) -> Trace | None:
        """Return the trace if training ended early; None if already returned, or if nothing was recorded."""
        return self._build_trace() if self._seen.recorded and not self.has_returned_trace else None

    def pause(self) -> None:
        """Exclude the time until the next batch, because this time is no loader wait."""
        self._block.breaks()
        self._drop_unended_batch()
        self._timer.pause()

    def checkpoint_is_collected(self) -> None:
        """Stop timing the batch. Another callback may write a checkpoint before this recorder sees the batch end."""
        self._timer.pause()

    def stop(self) -> None:
        """Stop and discard a recording in progress."""
        session, self._session = self._session, None
        if session is not None:
            stop_with_retry(session)

    @property
    def is_recording(self) -> bool:
        """Whether the current batch is recorded."""
        return self._session is not None

    @property
    def is_idle(self) -> bool:
        """Whether the trace is complete so far, and only the kinds of windows are still checked."""
        return self.has_returned_trace and self._now.action == "skip"

    @property
    def is_quiet(self) -> bool:
        """Whether the next step is only compared with the recorded kinds, which all have one batch."""
        return self._is_quiet and self.count.between_windows

    @property
    def _is_settled(self) -> bool:
        """Whether the trace is still complete, because the last window is of a recorded kind."""
        return bool(self._kinds_complete) and self._seen.windows[-1] in self._kinds_complete

    def _read_clock(self) -> float:
        """Return the time, after a wait for the device except inside a block; 0 if nothing is timed any more."""
        if self._block.is_running and self._host_clock is not None:
            return self._host_clock()
        return 0.0 if self.is_idle else self._clock()

    def _steps_of_block(self, full_windows_after: int | None) -> int:
        """Return the number of windows of a block of steps that begins now; 0 for no block."""
        seen = self._seen
        if self._host_clock is None or not self._block.may_begin or not seen.timed or not seen.are_alike:
            return 0
        return block_steps(batches=seen.timed[-1][1].batches, steps_after=full_windows_after)

    def _next_action(self, full_windows_after: int | None, is_short: bool) -> WindowAction:
        if self._is_settled:
            return "skip"
        if self._block.is_running and not is_short:
            return "run"
        self._block.breaks()
        seen = self._seen
        if not seen.recorded:
            action = next_action(
                seen.seconds_like_the_last(),
                windows_timed=len(seen.timed),
                warmup_steps=self._warmup_steps,
                full_windows_after=full_windows_after,
                is_short=is_short,
            )
            is_first = action == "record" and not self._rejected
            return "run" if is_first and self._steps_of_block(full_windows_after) else action
        if is_short or self._is_complete():
            return "skip"
        return "record" if any(may_be_next(seen.kinds, kind) for kind in seen.missing) else "time"

    def _store_window(self, window: TimedStep) -> None:
        """Store the finished window according to its action."""
        session, self._session = self._session, None
        now, seen, number = self._now, self._seen, len(self._seen.windows)
        kind = StepKind(batches=window.batches, optimizers=frozenset(now.due), nodes=now.nodes)
        was_compiled = self._compilations() != now.compilations
        if session is None:
            is_empty = seen.computes_nothing(kind)
            if not (is_empty and seen.has_paused):  # of a training that never computes, nothing grows
                seen.windows.append(None if was_compiled or now.is_short or is_empty else kind)
            if now.action == "time" and not is_empty:
                seen.timed.append((number, window))
            elif now.action == "run":
                self._keep_running(window, is_alike=not (was_compiled or is_empty) and seen.are_alike)
            return
        is_unlike = now.batches.unmatched_batches > 0 and not (now.is_last or session.records_first_and_last_only)
        if now.batches.represented_by is None or is_unlike:
            self._must_record_all = True  # nothing is known about the batches that were not recorded
            seen.windows.append(kind)
            return
        if not now.is_last and (retry := session.retry) is not None:
            self._new_session = retry
            seen.windows.append(kind)
            return
        if now.nodes == 0 and _is_empty(session):
            seen.mark_as_empty(kind)
            return
        stepped = session.optimizers_seen
        updated = now.due if stepped is None else self._positions(stepped)
        is_rejected = (was_compiled or not now.due <= updated) and self._rejected < MAX_REJECTED_WINDOWS
        if is_rejected and not now.is_last:
            self._rejected += 1
            seen.windows.append(None if was_compiled else kind)
            return
        seen.windows.append(kind)
        known = {seen.kinds[recorded.number] for recorded in seen.recorded}
        if seen.kinds[number] not in known:
            optimizers = frozenset(now.due | updated)
            seen.recorded.append(
                Recorded(session=session, window=window, batches=now.batches, number=number, optimizers=optimizers)
            )

    def _keep_running(self, window: TimedStep, *, is_alike: bool) -> None:
        """Add a window to the running block. Discard the block if the window is of another kind, or was compiled."""
        if not is_alike or window.batches != self._seen.timed[-1][1].batches:
            self._block.breaks()
        elif self._block.is_running:
            self._block.on_step_end(self._clock() if self._block.is_at_last_step else 0.0)

    def _trace_if_due(self) -> Trace | None:
        seen = self._seen
        if not seen.recorded:
            return None
        self._finishes()
        if self._is_settled:
            return None
        is_complete = self._is_complete()
        recorded = {None, *seen.kinds_recorded} if is_complete else set()
        self._kinds_complete = frozenset(
            window for window, kind in zip(seen.windows, seen.kinds, strict=True) if kind in recorded
        )
        if not (is_complete or self.is_finished):
            return None
        return self._build_trace() if len(seen.recorded) > self._records_given else None

    def _finishes(self) -> None:
        """Update `is_finished`. After the last trace, windows need not be counted."""
        waited = self._watch_until is not None and self.count.batches >= self._watch_until
        self.is_finished = self._now.is_last or waited
        if self.is_finished:
            self.count.stop_following()

    def _is_complete(self) -> bool:
        """Return whether every optimizer and kind is recorded. Of several kinds, each must be seen twice and timed."""
        return not self._seen.missing and not self._optimizers_unseen() and self._seen.has_all_kinds_twice

    def _optimizers_unseen(self) -> list[int]:
        """Return the indices of optimizers without an update in any recorded window; empty if updates are unseen."""
        seen = {position for recorded in self._seen.recorded for position in recorded.optimizers}
        return [position for position in range(len(self._optimizers)) if position not in seen] if seen else []

    def _positions(self, optimizers: Sequence[object]) -> set[int]:
        return {
            position
            for position, known in enumerate(self._optimizers)
            if any(optimizer is known for optimizer in optimizers)
        }

    def _drop_unended_batch(self) -> None:
        """Discard the recording of a batch that began, if the rest of its epoch was skipped."""
        if self._is_in_batch:
            self._is_in_batch = False
            self.stop()

    def _build_trace(self) -> Trace:
        """Return the trace of the most common kind of window, with the other kinds in `other_steps`."""
        seen, shares, block = self._seen, self._seen.shares, self._block.block
        self._records_given = len(seen.recorded)
        first, *others = sorted(shares, key=lambda kind: -shares[kind])
        trace = seen.trace_of(first, block)
        steps = tuple(OtherStep(share=shares[kind], trace=seen.trace_of(kind, block)) for kind in others)
        notes = tuple(
            f"Optimizer {position} ({type(self._optimizers[position]).__name__}) made no update in the first "
            f"{self.count.batches} batches. Its time and memory are not included."
            for position in self._optimizers_unseen()
        )
        if seen.empty:
            notes = (*notes, _NOTHING.format(seen.empty, len(seen.windows)))
        return replace(trace, notes=(*trace.notes, *notes), other_steps=steps)


def _is_empty(session: CaptureSession) -> bool:
    """Return whether nothing ran while a session recorded."""
    try:
        session.trace()
    except NothingRecordedError:
        return True
    except CaptureError:
        return False  # the error is raised when the trace is requested
    return False


class ValidationRecorder:
    """Recorder of one validation batch: the second batch, because the first includes one-off costs, or the only batch.

    If a recording only needs shapes, the first batch is recorded, and the second batch, without one-off costs, is
    timed.

    Args:
        clock: Returns seconds after waiting for the device.
        new_session: Creates the session that records the batch.
        records_first: Whether the only batch of a run may be recorded; False if the recording would contain a
            compilation.
        prefers_first: Whether to record the first of several batches, as on the CPU, where a recording has no times.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        new_session: Callable[[], CaptureSession],
        records_first: bool = True,
        prefers_first: bool = False,
    ) -> None:
        self._clock = clock
        self._new_session = new_session
        self._records_first = records_first
        self._prefers_first = prefers_first and records_first
        self._session: CaptureSession | None = None
        self._recorded: CaptureSession | None = None
        self._is_lost = False
        self._samples: int | None = None
        self._seconds: list[float] = []
        self._batch_start: float | None = None
        self._batches_seen = 0

    @property
    def is_done(self) -> bool:
        """Whether a batch was recorded."""
        return self._recorded is not None

    @property
    def is_recording(self) -> bool:
        """Whether the current batch is recorded."""
        return self._session is not None

    def trace(self) -> Trace | None:
        """Return the recorded batch; None before a batch was recorded."""
        if self._recorded is None:
            return None
        return self._recorded.trace(step_seconds=self._seconds, samples=self._samples, optimizer_steps=0)

    def on_run_start(self) -> None:
        """Record that a validation run or the sanity check begins."""
        self._batches_seen = 0

    def on_batch_start(self, *, batches_in_run: float) -> None:
        """Prepare for the next validation batch."""
        number = self._batches_seen
        self._batches_seen += 1
        is_wanted = number == 1 or (
            number == 0 and (self._prefers_first or (batches_in_run == 1 and self._records_first))
        )
        if (self._recorded is None and is_wanted) or self._is_lost:
            self._session = self._new_session()
            self._session.start()
        elif number > 0 and len(self._seconds) < TIMED_VALIDATION_BATCHES:
            self._batch_start = self._clock()

    def on_batch_end(self, *, samples: int | None) -> None:
        """Process the end of a validation batch.

        Args:
            samples: Samples of the batch; None if unknown.
        """
        if self._session is not None:
            session, self._session = self._session, None
            session.stop()
            self._is_lost = (retry := session.retry) is not None
            if retry is not None:
                self._new_session = retry
            self._recorded, self._samples = session, samples
        elif self._batch_start is not None:
            start, self._batch_start = self._batch_start, None
            self._seconds.append(self._clock() - start)

    def stop(self) -> None:
        """Stop and discard a recording in progress."""
        session, self._session = self._session, None
        if session is not None:
            stop_with_retry(session)
