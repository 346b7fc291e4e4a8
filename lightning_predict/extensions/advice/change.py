"""`Change`: one thing that a user can change about a training, as a function of a recorded step and of assumptions.

Each file of this folder makes the changes of one subject, and `table.py` lists them. A change says what to type, why it
does not apply to a step, what it costs besides time, and on which measured pairs its gains were tried. Example::

    change = change_named("bf16-mixed")
    changed, assumptions = change.apply(trace, Assumptions())
    lp.predict(changed, ["L4"])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, final

from lightning_predict.assumptions import Assumptions
from lightning_predict.distributed.strategy import Strategy
from lightning_predict.extensions.advice.measured import carried
from lightning_predict.gpus.layouts import Layout
from lightning_predict.gpus.records import Gpu
from lightning_predict.tracing.trace import Trace

ChangePrice = Literal["numerics", "digits", "memory", "samples"]
"""What a change may ask besides time: another rounding of products, parameters that lose digits for good, more memory,
other samples in a step."""

PRICES: Final[tuple[ChangePrice, ...]] = ("numerics", "digits", "memory", "samples")

Apply = Callable[[Trace, Assumptions], tuple[Trace, Assumptions]]
WhyNot = Callable[[Trace, Gpu | None], str | None]
WhyNotShared = Callable[[Layout, Strategy], str | None]


def _shared_anyhow(layout: Layout, strategy: Strategy) -> None:
    """Let a change apply however GPUs share the work."""
    del layout, strategy


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that can be changed.

    Attributes:
        name: Short name, which commands and results use.
        words: What to type.
        note: What it costs besides time, in words for a table.
        apply: Returns the step and the assumptions as they would be.
        why_not: Says why it does not apply to a step on a GPU (None asks for any GPU); None if it applies.
        why_not_shared: Says why it does not apply to GPUs that share the work so; None if it applies.
        asks: What it asks besides time.
        slot: Changes of one slot exclude each other, and a chain takes one of each.
        useless_after: Names of changes after which it changes nothing any more.
        kind: Row of the table of evidence that says how well its gains are foretold (`evidence.py`), before the mode.
    """

    name: str
    words: str
    note: str
    apply: Apply
    why_not: WhyNot
    why_not_shared: WhyNotShared = _shared_anyhow
    asks: frozenset[ChangePrice] = frozenset()
    slot: str
    useless_after: frozenset[str] = frozenset()
    kind: str

    def why_not_on(self, trace: Trace, layout: Layout, strategy: Strategy) -> str | None:
        """Say why it does not apply to a step on a layout; None if it applies."""
        return self.why_not(trace, layout.gpu) or self.why_not_shared(layout, strategy)

    def is_compatible(self, others: tuple[Change, ...]) -> bool:
        """Return whether it changes something more after others."""
        return all(self.slot != other.slot and other.name not in self.useless_after for other in others)


def of_steps(change: Callable[[Trace], Trace]) -> Apply:
    """Make a change of every kind of step, whose measurements are carried over to the changed step.

    Args:
        change: Returns a step with other operations or switches; it is given one without measurements.
    """

    def apply(trace: Trace, assumptions: Assumptions) -> tuple[Trace, Assumptions]:
        return trace.changed(lambda step: carried(step, change, assumptions.weights)), assumptions

    return apply


def has_backward(trace: Trace) -> bool:
    """Return whether the step trains: it has a backward pass."""
    return any(operation.phase == "backward" for operation in trace.operations)
