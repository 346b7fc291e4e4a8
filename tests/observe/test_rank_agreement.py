"""Decisions of several ranks through a store, without processes."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from lightning_predict.base.errors import LightningPredictError
from lightning_predict.observe import rank_agreement as module
from lightning_predict.observe.rank_agreement import AgreementSchedule, StoreAgreement, wait_seconds

Decide = Callable[[StoreAgreement, int], Any]


def meeting(store: Any, rank: int, world_size: int = 3, seconds: float = 5.0) -> StoreAgreement:
    return StoreAgreement(store, rank=rank, world_size=world_size, name="test", wait_seconds=seconds)


def decided(decide: Decide, *, ranks: tuple[int, ...] = (0, 1, 2), seconds: float = 5.0) -> list[Any]:
    """What each rank of three gets, or the words of its error."""
    store = HashStore()

    def decision(rank: int) -> Any:
        try:
            return decide(meeting(store, rank, seconds=seconds), rank)
        except LightningPredictError as error:
            return str(error)

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(decision, ranks))


def test_every_rank_gets_what_rank_zero_decides() -> None:
    def decide(meetings: StoreAgreement, rank: int) -> list[Mapping[str, Any]]:
        numbers = iter(range(4))
        return [meetings.agree(lambda: {"from": rank, "number": next(numbers)}) for _ in range(4)]

    assert decided(decide) == 3 * [[{"from": 0, "number": number} for number in range(4)]]


@pytest.mark.parametrize("failed", [0, 2])
def test_failure_on_one_rank_is_raised_on_all(failed: int) -> None:
    def decide(meetings: StoreAgreement, rank: int) -> Mapping[str, Any]:
        return meetings.agree(dict, failure="OSError: gone" if rank == failed else None)

    assert decided(decide) == 3 * [f"rank {failed}: OSError: gone"]


@pytest.mark.parametrize("answer", [{"a function": print}, None])
def test_what_rank_zero_cannot_say_is_a_failure(answer: Any) -> None:
    errors = decided(lambda meetings, rank: meetings.agree(lambda: answer))
    assert len(set(errors)) == 1
    assert errors[0].startswith("rank 0: TypeError")


def test_late_or_missing_ranks_are_waited_for_until_the_timeout() -> None:
    words = "1 of 3 ranks did not answer within 0 s"
    assert decided(lambda meetings, rank: meetings.agree(dict), ranks=(0, 2), seconds=0.05) == 2 * [words]
    words = "rank 0 did not decide within 0 s"
    assert decided(lambda meetings, rank: meetings.agree(dict), ranks=(1, 2), seconds=0.05) == 2 * [words]
    store = HashStore()
    with pytest.raises(LightningPredictError, match="rank 0 did not decide") as early:
        meeting(store, 1, 2, 0.01).agree(dict)
    with pytest.raises(LightningPredictError) as late:
        meeting(store, 0, 2, 0.01).agree(dict)
    assert str(early.value) == str(late.value)


def test_the_wait_ends_by_the_clock() -> None:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    meetings = StoreAgreement(
        HashStore(), rank=0, world_size=2, name="test", wait_seconds=60.0, clock=lambda: now[0], sleep=sleep
    )
    with pytest.raises(LightningPredictError, match="within 60 s"):
        meetings.agree(dict)
    assert sum(slept) == pytest.approx(60.0, abs=module.LONGEST_POLL_SECONDS)
    assert slept[0] == module.SHORTEST_POLL_SECONDS


@pytest.mark.parametrize(
    ("said", "alike"), [(("8", "8", "8"), True), (("8", "9", "8"), False), ((None, "8", "8"), None)]
)
def test_it_says_whether_all_ranks_have_the_same(said: tuple[str | None, ...], alike: bool | None) -> None:
    def decide(meetings: StoreAgreement, rank: int) -> Mapping[str, Any]:
        return meetings.agree(dict, alike=said[rank])

    assert [decision.get("alike") for decision in decided(decide)] == 3 * [alike]


def test_old_decisions_are_forgotten_and_ranks_meet_as_agreed() -> None:
    store = HashStore()
    alone = meeting(store, 0, 1)
    for _ in range(10):
        alone.agree(dict, alike="8")
    assert store.num_keys() == 4  # arrived, all, alike and decision of the last, as the one before it was read by all
    schedule = AgreementSchedule()
    assert schedule.on_batch_end()
    schedule.agree_after(3)
    assert [schedule.on_batch_end() for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, 60.0), (timedelta(minutes=30), 60.0), (timedelta(seconds=9), 3.0), (5, 60.0)]
)
def test_it_waits_less_where_collectives_do(timeout: Any, seconds: float) -> None:
    assert wait_seconds(SimpleNamespace(strategy=SimpleNamespace(_timeout=timeout))) == seconds
