"""The search for a fast sharding: whole tables by the longest first, and a mixture by changing one table at a time.

Example::

    search = Search(tables, loads, ("table_wise", "row_wise"), layout, table_bytes, CATALOGUE)
    choices, without_room = placed(search, range(len(tables)), no_load(layout.count))
    mixed = improved(search, choices, search.kinds)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np

from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.collective import COLLECTIVES
from lightning_predict.kernels.fabric import Interconnect, collective
from lightning_predict.kernels.operations import Array
from lightning_predict.kernels.roofline import link_bandwidth
from lightning_predict.scaling.embedding_loads import KINDS, Load, no_load
from lightning_predict.scaling.embedding_sharding import WHOLE, Assignment, load_at, messages_of
from lightning_predict.scaling.embedding_tables import EmbeddingTable

MOST_PASSES: Final = 4
"""Times that every table is reconsidered for the mixture; rarely are there changes after the second."""

MOST_GPUS: Final = 8
"""GPUs, those with the least to do, on which a whole table is tried."""

LOG_MESSAGES: Final = np.linspace(0.0, math.log(2.0**50), 801)
"""Messages from 1 byte to 1 PiB, sixteen between a size and its double."""

LEAST_GAIN: Final = 1e-6
"""Share of the step by which a change must shorten it, so that rounding changes nothing."""

Choices = dict[int, Assignment]
"""How each table is sharded, by its position."""


@final
@dataclass(frozen=True)
class Search:
    """What the search needs to know.

    Attributes:
        tables: The tables.
        loads: Of each table, by kind.
        kinds: Those that may be used.
        layout: At least two GPUs.
        table_bytes: Memory of each GPU that tables may take.
        interconnect: What is known of the links.
    """

    tables: tuple[EmbeddingTable, ...]
    loads: tuple[Mapping[str, Load], ...]
    kinds: tuple[str, ...]
    layout: Layout
    table_bytes: float
    interconnect: Interconnect

    def total(self, choices: Choices) -> Load:
        """The load of these tables together."""
        loads = (load_at(choice, self.loads[index]) for index, choice in choices.items())
        return sum(loads, no_load(self.layout.count))

    def fits(self, load: Load) -> bool:
        """The memory of every GPU holds it."""
        return float(load.memory_bytes.max()) <= self.table_bytes

    @cached_property
    def _log_seconds(self) -> Mapping[str, Array]:
        """Logarithm of the seconds of each collective at the messages of `LOG_MESSAGES`."""
        messages = np.exp(LOG_MESSAGES)
        times = {name: collective(name, messages, self.layout, interconnect=self.interconnect) for name in COLLECTIVES}
        return {name: np.log(time.seconds) for name, time in times.items()}

    def seconds(self, load: Load) -> float:
        """Time of a step; collectives are interpolated, as thousands of steps are compared."""
        seconds = float(load.forward_seconds[0].max() + load.backward_seconds[0].max())
        for operation, _, message_bytes in messages_of(load):
            at = np.interp(math.log(message_bytes), LOG_MESSAGES, self._log_seconds[operation])
            seconds += math.exp(float(at))
        return seconds

    def pressure(self, load: Load) -> Array:
        """Seconds by which GPUs are compared: computing, and their own part of the all-to-alls; shape (gpus,)."""
        sent = (self.layout.count - 1) * (load.index_bytes + 2 * load.vector_bytes)
        pressure: Array = load.forward_seconds[0] + load.backward_seconds[0] + sent / link_bandwidth(self.layout.gpu)
        return pressure

    def freest(self, load: Load, table_bytes: float) -> int | None:
        """The GPU with the least to do that has room for so much more; None where none has."""
        has_room = load.memory_bytes + table_bytes <= self.table_bytes
        return int(np.argmin(np.where(has_room, self.pressure(load), math.inf))) if has_room.any() else None


def placed(search: Search, indices: Iterable[int], load: Load) -> tuple[Choices, list[int]]:
    """Whole tables on GPUs beside what is there, and those without room.

    Longest first balances best; largest first wastes least room.
    """
    whole = {index: search.loads[index][WHOLE] for index in indices}
    orders = (
        sorted(whole, key=lambda index: -float(search.pressure(whole[index]).max())),
        sorted(whole, key=lambda index: -float(whole[index].memory_bytes[0])),
    )
    attempts = []
    for order in orders:
        choices, left, beside = {}, [], load
        for index in order:
            gpu = search.freest(beside, float(whole[index].memory_bytes[0]))
            if gpu is None:
                left.append(index)
            else:
                choices[index] = Assignment(search.tables[index], WHOLE, gpu)
                beside = beside + whole[index].moved_to(gpu)
        if not left:
            return choices, []
        attempts.append((choices, left))
    return min(attempts, key=lambda attempt: len(attempt[1]))


def seed(search: Search) -> Iterable[Choices]:
    """Whole tables where they fit, the others shared by all GPUs: what the mixture can begin with."""
    if WHOLE not in search.kinds:
        return
    for kind in search.kinds:
        if kind == WHOLE or KINDS[kind].replicates:
            continue
        shared: Choices = {}
        while True:
            rest = [index for index in range(len(search.tables)) if index not in shared]
            whole, left = placed(search, rest, search.total(shared))
            if not left:
                break
            shared |= {index: Assignment(search.tables[index], kind) for index in left}
        if shared and search.fits(search.total(shared | whole)):
            yield shared | whole


def improved(search: Search, choices: Choices, kinds: Sequence[str]) -> Choices:
    """Change one table at a time, to one of these kinds or another GPU, for as long as the step gets shorter."""
    choices = dict(choices)
    load = search.total(choices)
    seconds = search.seconds(load)
    heaviest = sorted(
        choices, key=lambda index: -max(float(search.pressure(one).max()) for one in search.loads[index].values())
    )
    for _ in range(MOST_PASSES):
        before = seconds
        for index in heaviest:
            without = load - load_at(choices[index], search.loads[index])
            for choice in _alternatives(search, index, without, kinds):
                changed = without + load_at(choice, search.loads[index])
                shorter = search.seconds(changed)
                if shorter < seconds * (1 - LEAST_GAIN) and search.fits(changed):
                    choices[index], load, seconds = choice, changed, shorter
        if seconds == before:
            break
    return choices


def _alternatives(search: Search, index: int, without: Load, kinds: Sequence[str]) -> Iterable[Assignment]:
    """Each kind for a table, beside the load of all others."""
    table = search.tables[index]
    for kind in kinds:
        if kind != WHOLE:
            yield Assignment(table, kind)
            continue
        for gpu in np.argsort(search.pressure(without), kind="stable")[:MOST_GPUS].tolist():
            yield Assignment(table, WHOLE, gpu)
