"""`Change`: one possible change to a training run, as a function of a recorded step and the assumptions.

Each file of this folder has related changes, and `table.py` lists all changes. A change has the code that the user
writes, its side effects, and a check whether it applies. It also names the kind of measured pairs that validate its
gains. Example::

    change = change_named("bf16-mixed")
    changed, assumptions = change.apply(trace, Assumptions())
    lp.predict(changed, ["L4"])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, final

from lightning_predict.assumptions import Assumptions
from lightning_predict.hardware.layouts import Layout
from lightning_predict.hardware.records import Gpu
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.record.trace import Trace
from lightning_predict.run.carried_measurements import carry_measurements

SideEffect = Literal["numerics", "digits", "memory", "samples"]
"""Side effects of a change: results are rounded differently (`numerics`), parameters permanently lose digits
(`digits`), the step needs more memory (`memory`), or the step has other samples (`samples`)."""

SIDE_EFFECTS: Final[tuple[SideEffect, ...]] = ("numerics", "digits", "memory", "samples")

Apply = Callable[[Trace, Assumptions], tuple[Trace, Assumptions]]
WhyNot = Callable[[Trace, Gpu | None], str | None]
WhyNotShared = Callable[[Layout, Strategy], str | None]


def _shared_anyhow(layout: Layout, strategy: Strategy) -> None:
    """Return None: the change applies to any layout and strategy."""
    del layout, strategy


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One possible change to a training run.

    Attributes:
        name: Short name, for commands and results.
        words: Code that the user writes to apply the change.
        note: Text that describes the side effects.
        apply: Function that returns the changed step and assumptions.
        why_not: Function that returns why the change does not apply to a step on a GPU (None for any GPU), or None.
        why_not_shared: Function that returns why the change does not apply to a layout with a strategy, or None.
        side_effects: Side effects of the change.
        slot: Name of a group of changes that exclude each other.
        useless_after: Names of changes after which this change has no effect.
        kind: Key of the evidence for the gain in `gain_accuracy.py`, without the mode.
    """

    name: str
    words: str
    note: str
    apply: Apply
    why_not: WhyNot
    why_not_shared: WhyNotShared = _shared_anyhow
    side_effects: frozenset[SideEffect] = frozenset()
    slot: str
    useless_after: frozenset[str] = frozenset()
    kind: str

    def why_not_on(self, trace: Trace, layout: Layout, strategy: Strategy) -> str | None:
        """Return why the change does not apply to a step on a layout; None if it applies."""
        return self.why_not(trace, layout.gpu) or self.why_not_shared(layout, strategy)

    def is_compatible(self, others: tuple[Change, ...]) -> bool:
        """Return whether the change has an effect in addition to other changes."""
        return all(self.slot != other.slot and other.name not in self.useless_after for other in others)


def of_steps(change: Callable[[Trace], Trace]) -> Apply:
    """Return an `apply` function that changes every kind of step, and keeps measurements that still apply.

    Args:
        change: Function that returns the step with other operations or flags. Its argument has no measurements.
    """

    def apply(trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
        return trace.changed(lambda step: carry_measurements(step, change, assumptions.weights)), assumptions

    return apply


def has_backward(trace: Trace) -> bool:
    """Return whether the step has a backward pass."""
    return any(operation.phase == "backward" for operation in trace.operations)
