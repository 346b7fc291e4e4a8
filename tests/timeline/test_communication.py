"""Two queues whose times follow by adding up (all numbers in seconds), and what must hold for any of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.layouts.overlap import Transfer, WorkSegment, overlap_transfers


def piece(seconds: float, waits_for: int | None = None) -> WorkSegment:
    return WorkSegment(np.array([seconds]), waits_for)


def transfer(seconds: float, after: int) -> Transfer:
    return Transfer(np.array([seconds]), after)


def test_without_transfers_the_step_is_the_sum_of_its_pieces() -> None:
    walked = overlap_transfers([piece(1), piece(2)], [])
    assert (walked.seconds[0], walked.communication_seconds[0], walked.exposed_seconds[0]) == (3, 0, 0)


def test_a_transfer_hides_behind_the_work_after_its_gradients() -> None:
    # Backward 2 + 2 s. The first bucket is ready at 2 and done at 5, when the update of 1 s may begin: 6 s.
    walked = overlap_transfers([piece(2), piece(2), piece(1, waits_for=0)], [transfer(3, after=1)])
    assert walked.seconds[0] == 6
    assert walked.communication_seconds[0] == 3
    assert walked.exposed_seconds[0] == 1


def test_the_link_takes_one_transfer_after_the_other() -> None:
    # Ready at 1 and 2; on the link from 1 to 5 and from 5 to 9; the update ends at 10.
    walked = overlap_transfers(
        [piece(1), piece(1), piece(1, waits_for=1)], [transfer(4, after=1), transfer(4, after=2)]
    )
    assert walked.seconds[0] == 10


def test_parameters_are_gathered_before_the_work_that_needs_them() -> None:
    # Gathered from 0 to 2; the second unit's from 2 to 4, while the first computes from 2 to 5: it waits for nothing.
    walked = overlap_transfers(
        [piece(3, waits_for=0), piece(3, waits_for=1)], [transfer(2, after=0), transfer(2, after=0)]
    )
    assert walked.seconds[0] == 8


def test_a_transfer_after_the_last_piece_makes_the_step_longer() -> None:
    assert overlap_transfers([piece(3)], [transfer(2, after=1)]).seconds[0] == 5


def test_rows_are_independent() -> None:
    pieces = [WorkSegment(np.array([1.0, 5.0])), WorkSegment(np.array([1.0, 1.0]), waits_for=0)]
    walked = overlap_transfers(pieces, [Transfer(np.array([3.0, 1.0]), after=0)])
    assert walked.seconds.tolist() == [4.0, 6.0]  # waits from 1 to 3; does not wait


DURATION = st.floats(0, 10)


@given(st.lists(DURATION, min_size=1, max_size=8), st.lists(DURATION, max_size=8), st.floats(1, 3))
def test_a_step_lies_between_its_work_and_work_plus_transfers_and_grows_with_them(
    work: list[float], sizes: list[float], factor: float
) -> None:
    after = [min(position, len(work)) for position in range(len(sizes))]

    def run(scale: float) -> float:
        transfers = [transfer(scale * size, position) for size, position in zip(sizes, after, strict=True)]
        pieces = [piece(seconds) for seconds in work]
        if transfers:
            usable = [index for index, position in enumerate(after) if position <= len(work) - 1]
            pieces[-1] = piece(work[-1], waits_for=usable[-1] if usable else None)
        return float(overlap_transfers(pieces, transfers).seconds[0])

    assert sum(work) <= run(1) * (1 + 1e-12) + 1e-12
    assert run(1) <= sum(work) + sum(sizes) + 1e-9
    assert run(1) <= run(factor) + 1e-9
    assert run(0) == pytest.approx(sum(work))
