"""Computing and communicating at once: pieces of a step on one queue, transfers between GPUs on another.

Each queue works in order. A transfer begins when the link is free and the pieces before it are done (a bucket's
gradients are there); a piece may wait for a transfer (parameters that were gathered). What of the transfers no work
hides makes the step longer. All values are arrays over rows (GPUs, layouts). Example::

    >>> import numpy as np
    >>> backward, update = Piece(np.array([6.0])), Piece(np.array([1.0]), waits_for=1)
    >>> early, late = Transfer(np.array([3.0]), after=0), Transfer(np.array([4.0]), after=1)
    >>> walk([backward, update], [early, late]).seconds  # 6 + 4 + 1: the first is hidden, the second is not
    array([11.])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lightning_predict.kernels.operations import Array


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the step on the compute queue.

    Attributes:
        seconds: Its time on each row, shape (rows,).
        waits_for: Position of the transfer that it needs; None where it needs none.
    """

    seconds: Array
    waits_for: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective on the communication queue.

    Attributes:
        seconds: Its time on each row, shape (rows,).
        after: Number of pieces that are done before it may begin.
    """

    seconds: Array
    after: int


@final
@dataclass(frozen=True, slots=True)
class Walked:
    """What came of it.

    Attributes:
        seconds: The whole step on each row, shape (rows,).
        communication_seconds: All transfers together, shape (rows,).
        exposed_seconds: The part of them that no piece hid, shape (rows,).
    """

    seconds: Array
    communication_seconds: Array
    exposed_seconds: Array


def walk(pieces: Sequence[Piece], transfers: Sequence[Transfer]) -> Walked:
    """Run the two queues.

    Args:
        pieces: In the order of the device; at least one. A piece waits only for transfers whose `after` is no later.
        transfers: In the order of the link, `after` never falling.
    """
    clock = np.zeros_like(pieces[0].seconds)
    done = [clock]
    link = np.zeros_like(clock)
    ends: list[Array] = []

    def issue(up_to: int) -> None:
        nonlocal link
        while len(ends) < len(transfers) and transfers[len(ends)].after <= up_to:
            transfer = transfers[len(ends)]
            link = np.maximum(link, done[transfer.after]) + transfer.seconds
            ends.append(link)

    for position, piece in enumerate(pieces):
        issue(position)
        if piece.waits_for is not None:
            clock = np.maximum(clock, ends[piece.waits_for])
        clock = clock + piece.seconds
        done.append(clock)
    issue(len(pieces))
    seconds = np.maximum(clock, link)
    communicating = sum((transfer.seconds for transfer in transfers), np.zeros_like(clock))
    computing = sum((piece.seconds for piece in pieces), np.zeros_like(clock))
    return Walked(seconds, communicating, seconds - computing)
