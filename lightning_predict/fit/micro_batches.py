"""`MicroBatches`: which batches of a window are recorded, and which of them show what the others do.

Recording each of 64 micro-batches would take 64 times as long as one, and most repeat each other. Example::

    batches = MicroBatches(expected=4)
    batches.begins((8, 512), whatever_shape=False)     # True: the first makes the gradients
    batches.ends(nodes=120)
    # ... two that are left out, and the last, which the update follows ...
    batches.shown_by                                   # (0, 3, 3, 3)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(slots=True)
class MicroBatches:
    """The batches of a window that is recorded.

    Attributes:
        expected: How many it is expected to have; None records each.
    """

    expected: int | None = None
    _shapes: list[object] = field(default_factory=list)
    _nodes: list[int] = field(default_factory=list)
    _recorded: list[int] = field(default_factory=list)

    def begins(self, shapes: object, *, whatever_shape: bool) -> bool:
        """Decide whether the batch that begins is recorded: the first, the last, and each with shapes of its own.

        Args:
            shapes: The shapes of its tensors; None where they are not known.
            whatever_shape: The first and the last must do.
        """
        number = len(self._shapes)
        shown = [self._shapes[each] for each in self._recorded[1:]]
        # While all are alike, so will the last be.
        is_shown = shapes is not None and (shapes in shown or all(one == shapes for one in self._shapes))
        self._shapes.append(shapes)
        is_recorded = self.expected is None or number == 0 or number >= self.expected - 1
        is_recorded = is_recorded or not (whatever_shape or is_shown)
        if is_recorded:
            self._recorded.append(number)
        return is_recorded

    def ends(self, nodes: int) -> None:
        """Note that the batch has ended, and how many nodes autograd made in it."""
        self._nodes.append(nodes)

    @property
    def shown_by(self) -> tuple[int, ...] | None:
        """For each batch the one that shows what it did, but for the first; None if the last was not recorded."""
        last = len(self._shapes) - 1
        if last not in self._recorded:
            return None
        return tuple(number if number in self._recorded else self._like(number) for number in range(last + 1))

    @property
    def unlike(self) -> int:
        """Batches that none but the first was recorded like: of other shapes, or with other nodes of autograd's."""
        return sum(not self._are_alike(number, shown) for number, shown in enumerate(self.shown_by or ()))

    def _like(self, number: int) -> int:
        alike = (each for each in reversed(self._recorded[1:]) if self._are_alike(number, each))
        return next(alike, self._recorded[-1])

    def _are_alike(self, one: int, other: int) -> bool:
        return (self._shapes[one], self._nodes[one]) == (self._shapes[other], self._nodes[other])
