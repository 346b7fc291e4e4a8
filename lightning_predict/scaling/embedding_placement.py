"""`place_tables`: which sharding of embedding tables is fastest, among those that fit in the GPUs' memory.

Each kind is tried for all tables, and then a mixture of kinds. Whole tables are placed by the longest processing time
first, each on the GPU with the least to do that has room. The mixture begins with whatever fits and changes one table
at a time for as long as that makes the step shorter; it is good (the tests hold it within 10 % of the best of all plans
where all can be tried), and not proven to be the best. Example::

    >>> from lightning_predict.scaling.embedding_tables import EmbeddingTable
    >>> tables = [EmbeddingTable(rows=10**9, dim=64, name="users"), EmbeddingTable(rows=10**6, dim=64, name="items")]
    >>> placement = place_tables(tables, "8xA100-SXM-80GB", samples=65536)
    >>> placement.refused["table_wise"]
    "table 'users' needs 238 GiB, but a GPU has 68 GiB for tables"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from lightning_predict.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.gpus.layouts import Layout, layout_of
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect
from lightning_predict.kernels.models import kernel_models
from lightning_predict.scaling.embedding_loads import KINDS, loads_of, no_load
from lightning_predict.scaling.embedding_search import Choices, Search, improved, placed, seed
from lightning_predict.scaling.embedding_sharding import (
    WHOLE,
    Assignment,
    ShardingPlan,
    check_samples,
    checked_optimizer,
    in_gibibytes,
    in_milliseconds,
    load_at,
    plan_of,
)
from lightning_predict.scaling.embedding_tables import EmbeddingTable, OptimizerState

TABLE_SHARE: Final = 0.85
"""Share of a GPU's memory that tables may take, where nobody says; the rest is for the other layers, what is exchanged
and the driver. An assumption."""


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """Ways to shard the tables.

    Attributes:
        plans: Those that fit, fastest first; a mixture only where it is the fastest.
        refused: Why each other kind cannot take all tables, in words.
        table_bytes: Memory of each GPU that tables may take.
    """

    plans: tuple[ShardingPlan, ...]
    refused: Mapping[str, str]
    table_bytes: float

    @property
    def best(self) -> ShardingPlan:
        """The fastest plan."""
        return self.plans[0]

    @property
    def reason(self) -> str:
        """Why the best is the best, in words."""
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
    weights: str | None = None,
) -> Placement:
    """Shard tables over GPUs so that a training step is short.

    Args:
        tables: The tables.
        layout: The GPUs, or their name, for example `8xA100-SXM-80GB`. On one there is nothing to choose.
        samples: Samples of a step on all GPUs together.
        kinds: Ways that may be used, keys of `KINDS`; more than one may be mixed.
        optimizer: A key of `OPTIMIZERS`: `sgd`, `row_wise_adagrad`, `adagrad` or `adam`.
        table_bytes: Memory of each GPU that tables may take; None: 85 % of it.
        interconnect: What you know of the links between GPUs.
        weights: Folder or file of weights; None searches the cache and the bundled files.

    Raises:
        InvalidArgumentError: No table, an unknown kind or optimizer, no memory, or fewer samples than GPUs.
        InfeasiblePlanError: No plan fits in memory.
        UnknownGpuError: The layout's GPU is not in the catalogue.
        WeightsError: Weights that cannot be found or trusted.
    """
    target = layout_of(layout) if isinstance(layout, str) else layout
    state = checked_optimizer(optimizer)
    check_samples(samples, target)
    room = TABLE_SHARE * target.gpu.memory_bytes if table_bytes is None else table_bytes
    _check(tables, kinds, room)
    chosen = (WHOLE,) if target.count == 1 else tuple(dict.fromkeys(kinds))
    models = kernel_models((target.gpu.name,), weights)
    loads = loads_of(tables, chosen, target, samples, state, models)
    search = Search(tuple(tables), loads, chosen, target, room, interconnect)
    found, refused = _of_one_kind(search)
    if len(chosen) > 1:
        found += [improved(search, start, chosen) for start in (*found, *seed(search))]
    if not found:
        raise InfeasiblePlanError(_what_is_missing(search, state, refused))
    plans: dict[str, ShardingPlan] = {}
    for choices in found:
        ordered = [choices[index] for index in range(len(tables))]
        plan = plan_of(ordered, list(map(load_at, ordered, loads)), target, samples, interconnect)
        if plan.name not in plans or plan.seconds < plans[plan.name].seconds:
            plans[plan.name] = plan
    fastest = sorted(plans.values(), key=lambda plan: plan.seconds)
    useful = [plan for plan in fastest if plan.name != "mixed" or plan is fastest[0]]
    return Placement(tuple(useful), refused, room)


def _of_one_kind(search: Search) -> tuple[list[Choices], dict[str, str]]:
    """Plans of a single kind that fit, and why the others do not. Whole tables: as placed, and then moved about."""
    found: list[Choices] = []
    refused: dict[str, str] = {}
    for kind in search.kinds:
        choices = {index: Assignment(table, kind) for index, table in enumerate(search.tables)}
        if kind == WHOLE:
            choices, left = placed(search, range(len(search.tables)), no_load(search.layout.count))
            if left:
                refused[kind] = _no_room(search, left)
                continue
            found.append(improved(search, choices, [WHOLE]))
        elif not search.fits(search.total(choices)):
            needed = float(search.total(choices).memory_bytes.max())
            refused[kind] = (
                f"it needs {in_gibibytes(needed)} on the fullest GPU, but a GPU has "
                f"{in_gibibytes(search.table_bytes)} for tables"
            )
            continue
        found.append(choices)
    return found, refused


def _no_room(search: Search, left: Sequence[int]) -> str:
    """Why these tables cannot be whole."""
    needs = {index: float(search.loads[index][WHOLE].memory_bytes[0]) for index in left}
    largest = max(needs, key=lambda index: needs[index])
    name = search.tables[largest].name or f"number {largest}"
    room = in_gibibytes(search.table_bytes)
    if needs[largest] > search.table_bytes:
        return f"table {name!r} needs {in_gibibytes(needs[largest])}, but a GPU has {room} for tables"
    return f"{len(left)} table(s), {name!r} among them, found no GPU with enough left of its {room} for tables"


def _what_is_missing(search: Search, optimizer: OptimizerState, refused: Mapping[str, str]) -> str:
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


def _check(tables: Sequence[EmbeddingTable], kinds: Sequence[str], table_bytes: float) -> None:
    if not tables:
        raise InvalidArgumentError("There is no table to shard; give at least one EmbeddingTable.")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds or isinstance(kinds, str):
        raise InvalidArgumentError(f"kinds={kinds!r}; expected at least one of {', '.join(KINDS)} in a list.")
    if not (math.isfinite(table_bytes) and table_bytes > 0):
        raise InvalidArgumentError(f"table_bytes={table_bytes!r}; expected bytes above 0.")
