"""`place_tables`: finds the fastest sharding of embedding tables among the plans that fit in the GPUs' memory.

Each kind of sharding is tried for all tables, then a mixture of kinds. Whole tables are placed longest time first, each
on the least loaded GPU with enough memory. The mixture starts from a plan that fits, and changes one table at a time
while the step time decreases. This is a heuristic. If all plans can be enumerated, tests require a result within 10 %
of the optimum. Example::

    >>> from lightning_predict.embeddings.tables import EmbeddingTable
    >>> tables = [EmbeddingTable(rows=10**9, dim=64, name="users"), EmbeddingTable(rows=10**6, dim=64, name="items")]
    >>> placement = place_tables(tables, "8xA100-SXM-80GB", samples=65536)
    >>> placement.refused["table_wise"]
    "table 'users' needs 238 GiB, but a GPU has 68 GiB for tables"
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.embeddings.loads import KINDS, Load, empty_load, loads_of
from lightning_predict.embeddings.step import (
    WHOLE,
    Assignment,
    ShardingPlan,
    check_samples,
    checked_optimizer,
    in_gibibytes,
    in_milliseconds,
    load_at,
    messages_of,
    plan_of,
    training_links,
)
from lightning_predict.embeddings.tables import EmbeddingTable, OptimizerState
from lightning_predict.hardware.layouts import MACHINE_GPUS, Layout, layout_of
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect
from lightning_predict.kernels.models import kernel_models
from lightning_predict.kernels.operations import COLLECTIVES, Array
from lightning_predict.kernels.roofline import link_bandwidth
from lightning_predict.kernels.timing import KernelModels

MAX_PASSES: Final = 4  # Maximum number of passes over all tables to improve the mixture; the third rarely changes it

LOG_MESSAGES: Final = np.linspace(0.0, math.log(2.0**50), 801)
"""Logarithms of message sizes from 1 byte to 1 PiB, sixteen per doubling, for interpolation."""

COPIED_SHARES: Final = (0.25, 0.5, 0.75)
"""Shares of the number of tables. Some start plans copy this share of the tables, the smallest ones, to all GPUs."""

MIN_GAIN: Final = 1e-6  # Minimum relative improvement by a change, larger than rounding errors
Choices = dict[int, Assignment]  # Assignment of each table, by table index


@dataclass(frozen=True)
class PlacementSearch:
    """Search for the fastest placement of tables."""

    tables: tuple[EmbeddingTable, ...]
    loads: tuple[Mapping[str, Load], ...]
    kinds: tuple[str, ...]
    layout: Layout
    table_bytes: float
    interconnect: Interconnect

    def total(self, choices: Choices) -> Load:
        """Return the total load of these assignments."""
        loads = (load_at(choice, self.loads[index]) for index, choice in choices.items())
        return sum(loads, empty_load(self.layout.count))

    def fits(self, load: Load) -> bool:
        """Return whether a load fits in the memory of every GPU."""
        return float(load.memory_bytes.max()) <= self.table_bytes

    @cached_property
    def _log_seconds(self) -> Mapping[str, Array]:
        """Logarithm of the seconds of each collective, at `LOG_MESSAGES`."""
        links, messages = training_links(self.layout, self.interconnect), np.exp(LOG_MESSAGES).tolist()
        return {name: np.log(np.stack(links.collective(name, messages))[:, 1]) for name in COLLECTIVES}

    def seconds(self, load: Load) -> float:
        """Return the step time of a load. Collectives are interpolated to make the search fast."""
        seconds = float(load.forward_seconds[0].max() + load.backward_seconds[0].max())
        for operation, _, message_bytes in messages_of(load):
            at = np.interp(math.log(message_bytes), LOG_MESSAGES, self._log_seconds[operation])
            seconds += math.exp(float(at))
        return seconds

    def gpu_seconds(self, load: Load) -> Array:
        """Return the time of each GPU, shape (gpus,): compute time plus its part of the all-to-alls."""
        sent = (self.layout.count - 1) * (load.index_bytes + 2 * load.vector_bytes)  # (gpus,)
        pressure: Array = load.forward_seconds[0] + load.backward_seconds[0] + sent / link_bandwidth(self.layout.gpu)
        return pressure

    def least_loaded_gpu(self, load: Load, table_bytes: float) -> int | None:
        """Return the least loaded GPU with `table_bytes` of free memory; None without such a GPU."""
        has_room = load.memory_bytes + table_bytes <= self.table_bytes  # (gpus,)
        return int(np.argmin(np.where(has_room, self.gpu_seconds(load), math.inf))) if has_room.any() else None


def place_whole_tables(search: PlacementSearch, indices: Iterable[int], load: Load) -> tuple[Choices, list[int]]:
    """Place whole tables on GPUs in addition to a load; also return the tables that do not fit.

    Placing the slowest tables first balances best. Placing the largest tables first wastes the least memory.
    """
    whole = {index: search.loads[index][WHOLE] for index in indices}
    orders = (
        sorted(whole, key=lambda index: -float(search.gpu_seconds(whole[index]).max())),
        sorted(whole, key=lambda index: -float(whole[index].memory_bytes[0])),
    )
    attempts = []
    for order in orders:
        choices, left, beside = {}, [], load
        for index in order:
            gpu = search.least_loaded_gpu(beside, float(whole[index].memory_bytes[0]))
            if gpu is None:
                left.append(index)
            else:
                choices[index] = Assignment(search.tables[index], WHOLE, gpu)
                beside = beside + whole[index].moved_to(gpu)
        if not left:
            return choices, []
        attempts.append((choices, left))
    return min(attempts, key=lambda attempt: len(attempt[1]))


def start_plans(search: PlacementSearch) -> Iterable[Choices]:
    """Yield start plans for the mixture: tables that fit are whole, other tables are split over all GPUs.

    Small tables are also tried as copies, several at a time, because copies share the latency of one all-reduce.
    """
    if WHOLE not in search.kinds:
        return
    smallest = sorted(range(len(search.tables)), key=lambda index: search.tables[index].parameter_bytes)
    for kind in search.kinds:
        if KINDS[kind].replicates:
            for share in COPIED_SHARES:
                copied = {i: Assignment(search.tables[i], kind) for i in smallest[: round(share * len(smallest))]}
                rest = [index for index in smallest if index not in copied]
                whole, left = place_whole_tables(search, rest, search.total(copied))
                if copied and not left and search.fits(search.total(copied | whole)):
                    yield copied | whole
    for kind in search.kinds:
        if kind == WHOLE or KINDS[kind].replicates:
            continue
        shared: Choices = {}
        while True:
            rest = [index for index in range(len(search.tables)) if index not in shared]
            whole, left = place_whole_tables(search, rest, search.total(shared))
            if not left:
                break
            shared |= {index: Assignment(search.tables[index], kind) for index in left}
        if shared and search.fits(search.total(shared | whole)):
            yield shared | whole


def improved(search: PlacementSearch, choices: Choices, kinds: Sequence[str]) -> Choices:
    """Change one table at a time, to one of `kinds` or to another GPU, while the step time decreases."""
    choices = dict(choices)
    load = search.total(choices)
    seconds = search.seconds(load)
    heaviest = sorted(
        choices, key=lambda index: -max(float(search.gpu_seconds(load).max()) for load in search.loads[index].values())
    )
    for _ in range(MAX_PASSES):
        before = seconds
        for index in heaviest:
            without = load - load_at(choices[index], search.loads[index])
            for choice in _alternatives(search, index, without, kinds):
                changed = without + load_at(choice, search.loads[index])
                shorter = search.seconds(changed)
                if shorter < seconds * (1 - MIN_GAIN) and search.fits(changed):
                    choices[index], load, seconds = choice, changed, shorter
        if seconds == before:
            break
    return choices


def _alternatives(search: PlacementSearch, index: int, without: Load, kinds: Sequence[str]) -> Iterable[Assignment]:
    """Yield the possible assignments of a table, given the load of all other tables."""
    table = search.tables[index]
    for kind in kinds:
        if kind != WHOLE:
            yield Assignment(table, kind)
            continue
        for gpu in np.argsort(search.gpu_seconds(without), kind="stable")[:MACHINE_GPUS].tolist():
            yield Assignment(table, WHOLE, gpu)


TABLE_SHARE: Final = 0.85  # Default share of a GPU's memory for tables


@dataclass(frozen=True, slots=True)
class TablePlacement:
    """Sharding plans for a set of tables."""

    plans: tuple[ShardingPlan, ...]  # Plans that fit, fastest first. A mixture is included only if it is the fastest.
    refused: Mapping[str, str]  # Reason why a kind of sharding is impossible, by kind
    table_bytes: float

    @property
    def best(self) -> ShardingPlan:
        """The fastest plan."""
        return self.plans[0]

    @property
    def reason(self) -> str:
        """Sentence that explains why the best plan is the fastest."""
        best, *others = self.plans
        if not others:
            return f"{best.name} is the only plan that fits: {best.reason}."
        following = others[0]
        gained = [
            f"{in_milliseconds(abs(saved))} {'less' if saved >= 0 else 'more'} for {what}"
            for what, saved in (
                ("look-ups and updates", following.compute_seconds - best.compute_seconds),
                ("exchanges", following.communication_seconds - best.communication_seconds),
            )
        ]
        return (
            f"{best.name} is fastest: {in_milliseconds(best.seconds)} a step against "
            f"{in_milliseconds(following.seconds)} of {following.name}, {' and '.join(gained)}."
        )


def place_tables(
    tables: Sequence[EmbeddingTable],
    layout: Layout | str,
    *,
    samples: int,
    kinds: Sequence[str] = tuple(KINDS),
    optimizer: str = "sgd",
    table_bytes: float | None = None,
    interconnect: Interconnect = CATALOGUE,
    models: KernelModels | None = None,
) -> TablePlacement:
    """Return the fastest sharding plans for embedding tables.

    Args:
        tables: The tables.
        layout: The GPUs as a layout or its name, for example `8xA100-SXM-80GB`. A single GPU allows only one plan.
        samples: Number of samples per step on all GPUs together.
        kinds: Allowed kinds of sharding (keys of `KINDS`), which may be mixed.
        optimizer: One of `TABLE_OPTIMIZERS`: `sgd`, `row_wise_adagrad`, `adagrad` or `adam`.
        table_bytes: Memory for tables on each GPU; None for 85 % of the GPU's memory.
        interconnect: Known bandwidths of the links between GPUs.
        models: Kernel models; None loads the GPU's weights from the cache or the package.

    Raises:
        InvalidArgumentError: There is no memory, a kind or optimizer is unknown, or there are fewer samples than GPUs.
        InfeasiblePlanError: No plan fits in memory.
        UnknownGpuError: The catalogue does not have the GPU.
        WeightsError: Weights cannot be found or trusted.
    """
    target = layout_of(layout) if isinstance(layout, str) else layout
    state = checked_optimizer(optimizer)
    check_samples(samples, target)
    room = TABLE_SHARE * target.gpu.memory_bytes if table_bytes is None else table_bytes
    _check(kinds, room)
    chosen = (WHOLE,) if target.count == 1 else tuple(dict.fromkeys(kinds))
    models = kernel_models((target.gpu.name,)) if models is None else models
    loads = loads_of(tables, chosen, target, samples, state, models)
    search = PlacementSearch(tuple(tables), loads, chosen, target, room, interconnect)
    candidates, refused = _of_one_kind(search)
    if len(chosen) > 1:
        candidates += [improved(search, start, chosen) for start in (*candidates, *start_plans(search))]
    if not candidates:
        raise InfeasiblePlanError(_what_is_missing(search, state, refused))
    plans: dict[str, ShardingPlan] = {}
    for choices in candidates:
        ordered = [choices[index] for index in range(len(tables))]
        plan = plan_of(ordered, list(map(load_at, ordered, loads)), target, samples, interconnect)
        if plan.name not in plans or plan.seconds < plans[plan.name].seconds:
            plans[plan.name] = plan
    fastest = sorted(plans.values(), key=lambda plan: plan.seconds)
    useful = [plan for plan in fastest if plan.name != "mixed" or plan is fastest[0]]
    return TablePlacement(tuple(useful), refused, room)


def _of_one_kind(search: PlacementSearch) -> tuple[list[Choices], dict[str, str]]:
    """Return the plans of a single kind that fit, improved by moving tables, and why other kinds do not fit."""
    plans: list[Choices] = []
    refused: dict[str, str] = {}
    for kind in search.kinds:
        choices = {index: Assignment(table, kind) for index, table in enumerate(search.tables)}
        if kind == WHOLE:
            choices, left = place_whole_tables(search, range(len(search.tables)), empty_load(search.layout.count))
            if left:
                refused[kind] = _no_room(search, left)
                continue
            plans.append(improved(search, choices, [WHOLE]))
        elif not search.fits(search.total(choices)):
            needed = float(search.total(choices).memory_bytes.max())
            refused[kind] = (
                f"it needs {in_gibibytes(needed)} on the fullest GPU, but a GPU has "
                f"{in_gibibytes(search.table_bytes)} for tables"
            )
            continue
        plans.append(choices)
    return plans, refused


def _no_room(search: PlacementSearch, left: Sequence[int]) -> str:
    """Return why tables cannot be placed whole on one GPU."""
    needs = {index: float(search.loads[index][WHOLE].memory_bytes[0]) for index in left}
    largest = max(needs, key=lambda index: needs[index])
    name = search.tables[largest].name or f"number {largest}"
    room = in_gibibytes(search.table_bytes)
    if needs[largest] > search.table_bytes:
        return f"table {name!r} needs {in_gibibytes(needs[largest])}, but a GPU has {room} for tables"
    return f"{len(left)} table(s), {name!r} among them, found no GPU with enough left of its {room} for tables"


def _what_is_missing(search: PlacementSearch, optimizer: OptimizerState, refused: Mapping[str, str]) -> str:
    parameters = sum(table.parameter_bytes for table in search.tables)
    state = sum(optimizer.size_bytes(table.rows, table.dim) for table in search.tables)
    layout, room = search.layout, search.table_bytes
    reasons = "; ".join(f"{kind}: {reason}" for kind, reason in refused.items())
    return (
        f"No sharding of the {len(search.tables)} table(s) fits on {layout.name}: they need {in_gibibytes(parameters)} "
        f"and {in_gibibytes(state)} for the optimizer; {layout.count} GPU(s) with {in_gibibytes(room)} for tables "
        f"each have {in_gibibytes(layout.count * room)}. {reasons}. Take more or larger GPUs, an optimizer with less "
        "state, other kinds, or tables in float16."
    )


def _check(kinds: Sequence[str], table_bytes: float) -> None:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds or isinstance(kinds, str):
        raise InvalidArgumentError(f"kinds={kinds!r}; expected at least one of {', '.join(KINDS)} in a list.")
    if not (math.isfinite(table_bytes) and table_bytes > 0):
        raise InvalidArgumentError(f"table_bytes={table_bytes!r}; expected bytes above 0.")
