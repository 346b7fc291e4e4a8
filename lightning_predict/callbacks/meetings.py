"""`Meetings`: let ranks decide together by exchanging values, with bounded waits.

All ranks count batches alike, and meet at those that were agreed on. At a meeting each says whether something failed in
it; rank zero judges, and what it decides, or the failure, is what every rank reads. Nothing is sent through the
collectives of the training: the values lie in the store by which its processes found each other, where one
compare-and-set makes one decision of several. The wait for a rank that does not come is bounded.
Example::

    meetings = meetings_of(trainer)
    decision = meetings.decide(lambda: {"action": "stop"})   # on every rank; the function is called on rank zero
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, Final, Protocol, final

from lightning_predict.errors import LightningPredictError

WAIT_SECONDS: Final = 60.0
"""Longest wait of a meeting for all ranks, and for its decision; less if collectives have a shorter timeout."""

TIMEOUT_SHARE: Final = 1 / 3
"""Share of the process group's timeout that a meeting may wait."""

SHORTEST_POLL_SECONDS: Final = 2e-4
LONGEST_POLL_SECONDS: Final = 0.05

Decision = Mapping[str, Any]

_NUMBERS = count()


class Store(Protocol):
    """The part of `torch.distributed.Store` that meetings need."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Read a value that is there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all of the keys are there."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write a value if the key holds the expected one ("" if unset); return what it holds afterwards."""

    def delete_key(self, key: str) -> bool:
        """Delete a key."""


class Meetings(Protocol):
    """Let the ranks of a fit decide together."""

    def decide(self, ask: Callable[[], Decision], *, failure: str | None = None, alike: str | None = None) -> Decision:
        """Give the decision of rank zero to every rank; to be called by all of them.

        Args:
            ask: Judges; called on rank zero. The values are those of JSON.
            failure: What failed on this rank since the last meeting; None if nothing did.
            alike: Something that the decision shall say of, under `alike`, whether it is the same on all ranks; None
                counts as different.

        Raises:
            LightningPredictError: Something failed on a rank, or a rank did not come; raised on every rank.
        """


@final
class Alone:
    """A single process, which decides alone."""

    def decide(self, ask: Callable[[], Decision], *, failure: str | None = None, alike: str | None = None) -> Decision:
        """See `Meetings`."""
        if failure is not None:
            raise LightningPredictError(failure)
        return {**ask(), "alike": alike is not None}


@final
class StoreMeetings:
    """Meetings through a store.

    Args:
        store: Shared by all ranks.
        rank: Rank of this process.
        world_size: How many there are.
        name: Prefix of its keys; the same on every rank, and unique in the store.
        wait_seconds: Longest wait of rank zero for the others; they wait for it twice as long, as it may judge first.
        clock: Seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        world_size: int,
        name: str,
        wait_seconds: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._name = name
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._sleep = sleep
        self._number = 0

    def decide(self, ask: Callable[[], Decision], *, failure: str | None = None, alike: str | None = None) -> Decision:
        """See `Meetings`."""
        proposal: dict[str, Any] = {}
        if self._rank == 0 and failure is None:
            try:
                proposal = {"decision": dict(ask())}
                json.dumps(proposal)
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
        place, self._number = f"{self._name}/{self._number}", self._number + 1
        decision = json.loads(self._exchange(place, proposal, failure, alike))
        if "failure" in decision:
            raise LightningPredictError(decision["failure"])
        if self._rank == 0:
            self._forget(f"{self._name}/{self._number - 2}", alike)  # read by all: they reached this meeting
        found: Decision = decision["decision"]
        return found

    def _exchange(self, place: str, proposal: dict[str, Any], failure: str | None, alike: str | None) -> str:
        store = self._store
        if alike is not None:
            store.add(f"{place}/alike/{alike}", 1)
        if failure is not None:
            store.set(f"{place}/failure", f"rank {self._rank}: {failure}")
        if store.add(f"{place}/arrived", 1) == self._world_size:
            store.set(f"{place}/all", "1")
        if self._rank == 0:
            if not self._comes(f"{place}/all", self._wait_seconds):
                missing = self._world_size - store.add(f"{place}/arrived", 0)
                proposal = {
                    "failure": f"{missing} of {self._world_size} ranks did not come to decide within "
                    f"{self._wait_seconds:.0f} s"
                }
            if store.check([f"{place}/failure"]):
                proposal = {"failure": store.get(f"{place}/failure").decode()}
            elif alike is not None and "decision" in proposal:
                proposal["decision"]["alike"] = store.add(f"{place}/alike/{alike}", 0) == self._world_size
        elif self._comes(f"{place}/decision", 2 * self._wait_seconds):
            return store.get(f"{place}/decision").decode()
        else:
            proposal = {"failure": f"rank 0 did not decide within {2 * self._wait_seconds:.0f} s"}
        # Whoever writes first decides: one that gave up waiting, or rank zero.
        return store.compare_set(f"{place}/decision", "", json.dumps(proposal)).decode()

    def _comes(self, key: str, seconds: float) -> bool:
        """Poll for a key: the store's own wait would block other threads."""
        end, pause = self._clock() + seconds, SHORTEST_POLL_SECONDS
        while not self._store.check([key]):
            if self._clock() >= end:
                return False
            self._sleep(pause)
            pause = min(1.5 * pause, LONGEST_POLL_SECONDS)
        return True

    def _forget(self, place: str, alike: str | None) -> None:
        for part in ("arrived", "all", "decision", f"alike/{alike}"):
            with suppress(Exception):  # not every store supports it, and a few bytes do no harm
                self._store.delete_key(f"{place}/{part}")


@final
class BroadcastMeetings:
    """Meetings of processes without a store (TPUs), through the strategy's broadcast, whose wait is the strategy's."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def decide(self, ask: Callable[[], Decision], *, failure: str | None = None, alike: str | None = None) -> Decision:
        """See `Meetings`; a failure on a rank other than zero stays there, as only rank zero broadcasts."""
        decision: Decision | None = None
        if self._trainer.is_global_zero and failure is None:
            try:
                decision = ask()
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
        decision, failure = self._trainer.strategy.broadcast((decision, failure))
        if failure is not None or decision is None:
            raise LightningPredictError(failure or "rank zero said nothing")
        return decision


def meetings_of(trainer: Any) -> Meetings:
    """Return the means by which the ranks of a fit decide together; must be called on every rank."""
    number = next(_NUMBERS)
    if trainer.world_size == 1:
        return Alone()
    store = _store_of_processes()
    if store is None:
        return BroadcastMeetings(trainer)
    return StoreMeetings(
        store,
        rank=trainer.global_rank,
        world_size=trainer.world_size,
        name=f"lightning_predict/{number}",
        wait_seconds=wait_seconds(trainer),
    )


def wait_seconds(trainer: Any, longest: float = WAIT_SECONDS) -> float:
    """Return the seconds that a rank may keep the others waiting: part of the timeout of the strategy's collectives."""
    timeout = getattr(trainer.strategy, "_timeout", None)
    return min(longest, TIMEOUT_SHARE * timeout.total_seconds()) if isinstance(timeout, timedelta) else longest


def _store_of_processes() -> Store | None:
    """Return the store by which the processes of `torch.distributed` found each other; None without."""
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    found: Store = torch.distributed.distributed_c10d._get_default_store()
    return found


@final
class Schedule:
    """Counts batches like every other rank, and tells after which they meet: the first, then as agreed."""

    def __init__(self) -> None:
        self._left = 1

    def meet_after(self, batches: int) -> None:
        """Agree on the next meeting."""
        self._left = max(1, batches)

    def batch_ends(self) -> bool:
        """Note that a batch was trained.

        Returns:
            The ranks meet now.
        """
        self._left -= 1
        return self._left <= 0
