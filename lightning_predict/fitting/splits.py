"""Which rows are fitted, which calibrate the intervals and which are held out: decided by the problem alone.

A problem's hash, not its place in a table, decides, so the same shape is on the same side on every GPU, in every
source and on every run. Example::

    >>> import numpy as np
    >>> share = problem_shares({"m": np.array([64.0, 64.0]), "n": np.array([32.0, 48.0])}, seed=0)
    >>> bool(share[0] != share[1]), bool(((share >= 0) & (share < 1)).all())
    (True, True)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.kernels.operations import Array, Columns

BoolArray = npt.NDArray[np.bool_]

HELD_OUT_SHARE: Final = 0.15
"""Share of the problems that no fit sees; errors are reported on them."""

CALIBRATION_SHARE: Final = 0.08
"""Share that stops the training and sets the width of the intervals."""


@final
@dataclass(frozen=True, slots=True)
class Split:
    """Masks over rows: each row is in exactly one."""

    fitted: BoolArray
    calibration: BoolArray
    held_out: BoolArray


def problem_shares(columns: Columns, *, seed: int) -> Array:
    """A number in [0, 1) for each row that depends on the shape and the seed alone, shape (rows,)."""
    state = np.full(len(next(iter(columns.values()))), _mix_word("seed", seed), dtype=np.uint64)
    for word in sorted(columns):
        bits = np.ascontiguousarray(columns[word], dtype=np.float64).view(np.uint64)
        state = _scramble(state ^ (bits + np.uint64(_mix_word(word, seed))))
    return (state >> np.uint64(11)).astype(np.float64) / 2.0**53


def split_rows(columns: Columns, *, seed: int) -> Split:
    """Masks of the rows of these shapes."""
    share = problem_shares(columns, seed=seed)
    held_out = share < HELD_OUT_SHARE
    calibration = ~held_out & (share < HELD_OUT_SHARE + CALIBRATION_SHARE)
    return Split(~held_out & ~calibration, calibration, held_out)


def _mix_word(word: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{word}".encode(), digest_size=8).digest(), "little")


def _scramble(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit flips half of the output's."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
