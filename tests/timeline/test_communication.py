"""Overlap of computing and communication: by hand (all numbers in seconds), and relations that must hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_predict.layouts.overlap import OverlappedStep, Transfer, WorkSegment, overlap_transfers


def overlapped(segments: list[tuple[float, int | None]], transfers: list[tuple[float, int]]) -> OverlappedStep:
    """Schedule segments of (seconds, transfer to wait for) and transfers of (seconds, preceding segments)."""
    return overlap_transfers(
        [WorkSegment(np.array([seconds]), waits_for) for seconds, waits_for in segments],
        [Transfer(np.array([seconds]), after) for seconds, after in transfers],
    )


@pytest.mark.parametrize(
    ("segments", "transfers", "seconds", "exposed"),
    [
        ([(1, None), (2, None)], [], 3, 0),
        # Backward 2 + 2 s. The first bucket is ready at 2 and done at 5, when the update of 1 s begins.
        ([(2, None), (2, None), (1, 0)], [(3, 1)], 6, 1),
        # Ready at 1 and 2; on the link from 1 to 5 and from 5 to 9; the update ends at 10.
        ([(1, None), (1, None), (1, 1)], [(4, 1), (4, 2)], 10, 7),
        # Gathered from 0 to 2; the second unit's from 2 to 4, while the first computes from 2 to 5.
        ([(3, 0), (3, 1)], [(2, 0), (2, 0)], 8, 2),
        ([(3, None)], [(2, 1)], 5, 2),  # after the last segment
    ],
)
def test_overlapped_step_by_hand(
    segments: list[tuple[float, int | None]], transfers: list[tuple[float, int]], seconds: float, exposed: float
) -> None:
    step = overlapped(segments, transfers)
    communication = sum(duration for duration, _ in transfers)
    assert (step.seconds[0], step.communication_seconds[0], step.exposed_seconds[0]) == (
        seconds,
        communication,
        exposed,
    )


def test_rows_are_independent() -> None:
    segments = [WorkSegment(np.array([1.0, 5.0])), WorkSegment(np.array([1.0, 1.0]), waits_for=0)]
    step = overlap_transfers(segments, [Transfer(np.array([3.0, 1.0]), after=0)])
    assert step.seconds.tolist() == [4.0, 6.0]  # waits from 1 to 3; does not wait


DURATION = st.floats(0, 10)


@given(st.lists(DURATION, min_size=1, max_size=8), st.lists(DURATION, max_size=8), st.floats(1, 3))
def test_step_is_between_work_and_work_plus_transfers_and_grows_with_transfers(
    work: list[float], sizes: list[float], factor: float
) -> None:
    after = [min(position, len(work)) for position in range(len(sizes))]
    usable = [index for index, position in enumerate(after) if position <= len(work) - 1]
    segments = [(seconds, None) for seconds in work[:-1]] + [(work[-1], usable[-1] if usable else None)]

    def run(scale: float) -> float:
        transfers = [(scale * size, position) for size, position in zip(sizes, after, strict=True)]
        return float(overlapped(segments, transfers).seconds[0])

    assert sum(work) <= run(1) * (1 + 1e-12) + 1e-12
    assert run(1) <= sum(work) + sum(sizes) + 1e-9
    assert run(1) <= run(factor) + 1e-9
    assert run(0) == pytest.approx(sum(work))
