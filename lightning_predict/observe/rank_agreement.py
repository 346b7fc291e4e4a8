"""`RankAgreement`: joint decisions of all ranks (processes) of a fit, through a key-value store, with a timeout.

All ranks count batches in the same way, so every rank knows at which batches a joint decision is due. Each rank reports
whether it failed. Rank zero decides, and every rank reads its decision or the error. The values are in the key-value
store of the process group, so they do not interfere with the collectives of the training. A compare-and-set on the
store ensures that only the first proposal (decision or error) takes effect. Waiting for a missing rank ends with a
timeout.

Example::

    agreement = rank_agreement(trainer)
    decision = agreement.agree(lambda: {"action": "stop"})   # on every rank; the function is called on rank zero
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from lightning_predict.base.errors import LightningPredictError
from lightning_predict.base.timeout import PATIENCE_SECONDS

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

TIMEOUT_SHARE: Final = 1 / 3  # Share of the process group's timeout for which a joint decision may wait

SHORTEST_POLL_SECONDS: Final = 2e-4
LONGEST_POLL_SECONDS: Final = 0.05

Decision = Mapping[str, Any]


class MissingRankError(LightningPredictError):
    """A rank did not arrive in time."""


_NUMBERS = count()


class RankAgreement(Protocol):
    """Joint decisions of the ranks of a fit."""

    def agree(self, ask: Callable[[], Decision], *, failure: str | None = None, alike: str | None = None) -> Decision:
        """Return the decision of rank zero. This must be called on every rank.

        Args:
            ask: Makes the decision, with JSON values; called on rank zero.
            failure: Error on this rank since the last decision; None without an error.
            alike: Value to compare between the ranks. The decision's `alike` states whether the value is equal on all
                ranks. None counts as different.
        """


class SingleProcess:
    """Decisions of a single process."""

    def agree(self, ask: Callable[[], Decision], *, failure: str | None = None, alike: str | None = None) -> Decision:
        """See `RankAgreement`."""
        if failure is not None:
            raise LightningPredictError(failure)
        return {**ask(), "alike": alike is not None}


class StoreAgreement:
    """Joint decisions through a key-value store.

    `name` is unique in the store and equal on every rank. Rank zero waits `wait_seconds` for the other ranks, which
    wait twice as long, because rank zero may take time to decide.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        world_size: int,
        name: str,
        wait_seconds: float = PATIENCE_SECONDS,
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

    def agree(self, ask: Callable[[], Decision], *, failure: str | None = None, alike: str | None = None) -> Decision:
        """See `RankAgreement`."""
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
            raise (MissingRankError if "missing" in decision else LightningPredictError)(decision["failure"])
        if self._rank == 0:
            self._forget(f"{self._name}/{self._number - 2}", alike)  # all ranks have read it, since they are here
        agreed: Decision = decision["decision"]
        return agreed

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
                words = f"{missing} of {self._world_size} ranks did not answer within {self._wait_seconds:.0f} s"
                proposal = {"failure": words, "missing": True}
            if store.check([f"{place}/failure"]):
                proposal = {"failure": store.get(f"{place}/failure").decode()}
            elif alike is not None and "decision" in proposal:
                proposal["decision"]["alike"] = store.add(f"{place}/alike/{alike}", 0) == self._world_size
        elif self._comes(f"{place}/decision", 2 * self._wait_seconds):
            return store.get(f"{place}/decision").decode()
        else:
            proposal = {"failure": f"rank 0 did not decide within {2 * self._wait_seconds:.0f} s", "missing": True}
        # The first writer decides: rank zero, or a rank whose wait timed out.
        return store.compare_set(f"{place}/decision", "", json.dumps(proposal)).decode()

    def _comes(self, key: str, seconds: float) -> bool:
        """Wait for a key by polling, because the store's own wait would block other threads."""
        end, pause = self._clock() + seconds, SHORTEST_POLL_SECONDS
        while not self._store.check([key]):
            if self._clock() >= end:
                return False
            self._sleep(pause)
            pause = min(1.5 * pause, LONGEST_POLL_SECONDS)
        return True

    def _forget(self, place: str, alike: str | None) -> None:
        for part in ("arrived", "all", "decision", f"alike/{alike}"):
            with suppress(Exception):  # some stores cannot delete, and a few bytes do no harm
                self._store.delete_key(f"{place}/{part}")


def rank_agreement(trainer: Any) -> RankAgreement:
    """Return the `RankAgreement` for the ranks of a fit. This must be called on every rank."""
    agreement = agreement_of_ranks(trainer.global_rank, trainer.world_size, wait_seconds(trainer))
    if agreement is None:
        raise LightningPredictError("several processes need torch.distributed, which is not initialized")
    return agreement


def agreement_of_ranks(rank: int, world_size: int, seconds: float) -> RankAgreement | None:
    """Return the agreement for ranks that wait at most `seconds`; None without a store that they share."""
    number = next(_NUMBERS)
    if world_size == 1:
        return SingleProcess()
    store = _store_of_processes()
    if store is None:
        return None
    name = f"lightning_predict/{number}"
    return StoreAgreement(store, rank=rank, world_size=world_size, name=name, wait_seconds=seconds)


def rank_in_use() -> tuple[int, int]:
    """Return the rank of this process in `torch.distributed`, and the number of ranks."""
    ranks = sys.modules.get("torch.distributed")
    if ranks is None or not (ranks.is_available() and ranks.is_initialized()):
        return 0, 1
    return ranks.get_rank(), ranks.get_world_size()


def wait_seconds(trainer: Any, longest: float = PATIENCE_SECONDS) -> float:
    """Return the maximum seconds that other ranks may wait for a rank: a share of the collectives' timeout."""
    timeout = getattr(trainer.strategy, "_timeout", None)
    return min(longest, TIMEOUT_SHARE * timeout.total_seconds()) if isinstance(timeout, timedelta) else longest


def _store_of_processes() -> Store | None:
    """Return the store of the default process group of `torch.distributed`; None without a process group."""
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    store: Store = torch.distributed.distributed_c10d._get_default_store()
    return store


class AgreementSchedule:
    """Decides after which batches the ranks decide: after the first batch, then as agreed."""

    def __init__(self) -> None:
        self._left = 1

    def agree_after(self, batches: int) -> None:
        """Set the number of batches until the next decision."""
        self._left = max(1, batches)

    def on_batch_end(self) -> bool:
        """Count a batch. Return whether the ranks must decide now."""
        self._left -= 1
        return self._left <= 0
