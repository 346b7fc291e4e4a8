"""Selects which micro-batches of an optimizer step (gradient accumulation) to record; these represent the others.

Recording all of 64 micro-batches would take 64 times as long as recording one, and most of them are equal. Example::

    >>> batches = MicroBatches(expected=4)
    >>> for _ in range(4):  # the first batch creates the gradients, the last batch precedes the update
    ...     batches.begins((8, 512), ignores_shapes=False)
    ...     batches.ends(nodes=120)
    True
    False
    False
    True
    >>> batches.represented_by
    (0, 3, 3, 3)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_RECORDED: Final = 256  # Maximum number of recorded batches of a step of unknown length

MAX_UNEXPECTED: Final = 16
"""Maximum number of recorded batches after the expected last one, which follow if the training stops to step."""


@dataclass(slots=True)
class MicroBatches:
    """Batches of an optimizer step that is recorded."""

    expected: int | None = None  # Expected number of batches; None records every batch
    _shapes: list[object] = field(default_factory=list)
    _nodes: list[int] = field(default_factory=list)
    _recorded: list[int] = field(default_factory=list)

    def begins(self, shapes: object, *, ignores_shapes: bool) -> bool:
        """Decide whether to record the next batch: the first batch, the last batch, and each batch with new shapes.

        Args:
            shapes: Shapes of the batch's tensors; None if unknown.
            ignores_shapes: Whether to record only the first and the last batch, even if others have new shapes.
        """
        number = len(self._shapes)
        is_first_or_last = self.expected is None or number == 0 or number >= self.expected - 1
        is_recorded = is_first_or_last or not (ignores_shapes or self._has_known_shapes(shapes))
        self._shapes.append(shapes)
        if is_recorded:
            self._recorded.append(number)
        return is_recorded

    @property
    def is_endless(self) -> bool:
        """Whether more batches were recorded than a step may have. Its recording would not end before the training."""
        limit = MAX_RECORDED if self.expected is None else self.expected + MAX_UNEXPECTED
        return len(self._recorded) > limit

    def ends(self, nodes: int) -> None:
        """Record the end of the batch, and its number of autograd nodes."""
        self._nodes.append(nodes)

    @property
    def represented_by(self) -> tuple[int, ...] | None:
        """For each batch, the recorded batch that represents it; None if the last batch was not recorded."""
        last = len(self._shapes) - 1
        if last not in self._recorded:
            return None
        return tuple(number if number in self._recorded else self._representative(number) for number in range(last + 1))

    @property
    def unmatched_batches(self) -> int:
        """Number of batches that differ in shapes or autograd nodes from every recorded batch except the first."""
        return sum(not self._are_alike(number, shown) for number, shown in enumerate(self.represented_by or ()))

    def _has_known_shapes(self, shapes: object) -> bool:
        """Return whether a recorded batch will represent a batch of these shapes."""
        recorded = [self._shapes[each] for each in self._recorded[1:]]
        # While all batches are equal, the last batch is expected to be equal, too, and will be recorded.
        return shapes is not None and (shapes in recorded or all(known == shapes for known in self._shapes))

    def _representative(self, number: int) -> int:
        alike = (each for each in reversed(self._recorded[1:]) if self._are_alike(number, each))
        return next(alike, self._recorded[-1])

    def _are_alike(self, number: int, other: int) -> bool:
        return (self._shapes[number], self._nodes[number]) == (self._shapes[other], self._nodes[other])
