"""The five kinds of host time around an operation's launches (Lin et al., HiPC 2022), and where they come from.

    T1  between two operations            T4  one launch call
    T2  from the start of an operation    T5  between two launches of one operation;
        to its first launch                   the whole operation where it launches nothing
    T3  from its last launch to its end

A trace with host times gives each operation its own (`recorded_host.py`); the rest comes from a table by phase.
Example::

    >>> kind = HostModel().of("forward")
    >>> round(kind.seconds(launches=1) * 1e6, 1)  # T1 + T2 + T4 + T3
    9.5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from lightning_predict.tracing.trace import Phase
from lightning_predict.units import microseconds_to_seconds


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Host seconds around one operation's launches.

    Attributes:
        between_operations: T1.
        before_first_launch: T2.
        after_last_launch: T3.
        launch: T4.
        between_launches: T5.
        without_launch: T5 of an operation that launches nothing.
    """

    between_operations: float
    before_first_launch: float
    after_last_launch: float
    launch: float
    between_launches: float
    without_launch: float

    def scaled(self, factor: float) -> Overheads:
        """The overheads of a host that takes `factor` times as long."""
        return Overheads(
            between_operations=self.between_operations * factor,
            before_first_launch=self.before_first_launch * factor,
            after_last_launch=self.after_last_launch * factor,
            launch=self.launch * factor,
            between_launches=self.between_launches * factor,
            without_launch=self.without_launch * factor,
        )

    def seconds(self, *, launches: int) -> float:
        """Host time of one operation, the gap before it included."""
        if launches == 0:
            return self.between_operations + self.without_launch
        around = self.between_operations + self.before_first_launch + self.after_last_launch
        return around + launches * self.launch + (launches - 1) * self.between_launches


def _table_row(t1: float, t2: float, t3: float, t4: float, t5: float, without_launch: float) -> Overheads:
    t1, t2, t3, t4, t5, without_launch = map(microseconds_to_seconds, (t1, t2, t3, t4, t5, without_launch))
    return Overheads(
        between_operations=t1,
        before_first_launch=t2,
        after_last_launch=t3,
        launch=t4,
        between_launches=t5,
        without_launch=without_launch,
    )


SHARED_OVERHEADS: Final[Mapping[Phase, Overheads]] = {
    "forward": _table_row(1.5, 3.0, 1.0, 4.0, 1.0, 1.0),
    "backward": _table_row(1.0, 2.0, 1.0, 4.0, 1.0, 0.7),
    "optimizer": _table_row(2.0, 4.0, 1.0, 4.0, 1.0, 1.0),
    "other": _table_row(1.5, 3.0, 1.0, 4.0, 1.0, 1.0),
}
"""Microseconds by phase, for a run whose host was not profiled. T4 is Lin et al.'s constant. The others are an
assumption until a profiled run replaces them: eager PyTorch issues some 100,000 launching operations a second from
Python, and a third more from autograd's own thread, which calls no Python."""


HOST_SPREAD: Final = 2.0
"""Factor up and down around a host time that was not measured: hosts differ, and so do operators."""


@final
@dataclass(frozen=True, slots=True)
class HostModel:
    """A host: what each operation takes that has no recorded overheads of its own, and how fast it is.

    Attributes:
        by_phase: Overheads of operations that were not timed.
        factor: Time of this host over that of the one that the overheads, recorded or not, are from.
        low_factor: Lower end of the 90 % interval of its time, over the middle.
        high_factor: Upper end of it.
    """

    by_phase: Mapping[Phase, Overheads] = field(default_factory=lambda: SHARED_OVERHEADS)
    factor: float = 1.0
    low_factor: float = 1 / HOST_SPREAD
    high_factor: float = HOST_SPREAD

    def of(self, phase: Phase, recorded: Overheads | None = None) -> Overheads:
        """Overheads of one operation: its recorded ones, else those of its phase."""
        return (self.by_phase[phase] if recorded is None else recorded).scaled(self.factor)
