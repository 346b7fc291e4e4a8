"""`shard`: how to share the embedding tables of a recommendation model among several GPUs.

Example::

    lightning-predict shard dlrm.json.gz --gpus 8xA100-SXM-80GB --optimizer row_wise_adagrad
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from lightning_predict.cli.answers import Answer, aligned, json_value

if TYPE_CHECKING:
    from lightning_predict.sharding.placement import Placement
    from lightning_predict.sharding.step import ShardingPlan


def shard(
    trace: Path,
    *,
    gpus: str = "8xH100-SXM-80GB",
    batch_size: int | None = None,
    optimizer: Literal["sgd", "row_wise_adagrad", "adagrad", "adam"] = "sgd",
    kinds: str = "table_wise,row_wise,column_wise,data_parallel",
    table_gib: float | None = None,
    weights: str | None = None,
) -> Answer:
    """Find the fastest sharding of a model's embedding tables over several GPUs, among those that fit.

    Times are those of the tables: look-ups, updates, and what the GPUs exchange for them; other layers are left out.

    Args:
        trace: The recorded step, of one GPU.
        gpus: Layouts, separated by commas, for example 8xL4,2x8xH100-SXM-80GB.
        batch_size: Samples of a step on all GPUs together; without it, each GPU has as many as the recorded one.
        optimizer: What updates the tables.
        kinds: Ways of sharding that may be used, separated by commas; more than one may be mixed.
        table_gib: Memory of each GPU that tables may take (default: 85 %).
        weights: Weights of the models: a folder, a file or an https:// address.
    """
    from lightning_predict.errors import InfeasiblePlanError, InvalidArgumentError
    from lightning_predict.gpus.layouts import layout_of
    from lightning_predict.sharding.placement import place_tables
    from lightning_predict.sharding.tables import tables_of_trace
    from lightning_predict.tracing.trace import Trace
    from lightning_predict.units import gibibytes_to_bytes

    layouts = [layout_of(name) for name in _words(gpus)]
    if not layouts:
        raise InvalidArgumentError("gpus is empty; name at least one layout, for example 8xH100-SXM-80GB.")
    traced = tables_of_trace(Trace.load(str(trace)))
    placements: dict[str, Placement] = {}
    problems: dict[str, InfeasiblePlanError] = {}
    for layout in layouts:
        try:
            placements[layout.name] = place_tables(
                traced.tables,
                layout,
                samples=traced.batch_size * layout.count if batch_size is None else batch_size,
                kinds=_words(kinds),
                optimizer=optimizer,
                table_bytes=None if table_gib is None else gibibytes_to_bytes(table_gib),
                weights=weights,
            )
        except InfeasiblePlanError as problem:
            problems[layout.name] = problem
    if not placements:
        raise next(iter(problems.values()))
    found = _Shardings(placements, {name: str(problem) for name, problem in problems.items()})
    return Answer(data=found.as_dict, show=lambda: print("\n".join(found.lines())))


@final
@dataclass(frozen=True, slots=True)
class _Shardings:
    """The plans of each layout, and why the other layouts have none."""

    placements: Mapping[str, Placement]
    problems: Mapping[str, str]

    def as_dict(self) -> dict[str, object]:
        layouts = {
            name: {
                "plans": [_plan_values(plan) for plan in placement.plans],
                "refused": dict(placement.refused),
                "table_bytes": placement.table_bytes,
                "reason": placement.reason,
            }
            for name, placement in self.placements.items()
        }
        return {"layouts": layouts, "problems": dict(self.problems)}

    def lines(self) -> list[str]:
        rows = [_plan_row(plan) for placement in self.placements.values() for plan in placement.plans]
        headers = ["layout", "sharding", "step (ms)", "interval", "on GPUs (ms)", "imbalance", "exchanges (ms)", "GiB"]
        lines = [aligned(headers, rows, right=range(2, len(headers))), ""]
        for name, placement in self.placements.items():
            lines.append(f"{name}: {placement.reason}")
            lines += [f"{name}, {kind}: {reason}." for kind, reason in placement.refused.items()]
        lines += self.problems.values()
        fastest = min((placement.best for placement in self.placements.values()), key=lambda plan: plan.seconds)
        return [*lines, "", f"Tables on {fastest.layout}, {fastest.name}:", _table_rows(fastest)]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _plan_values(plan: ShardingPlan) -> dict[str, object]:
    """Give the plan with what follows from its fields."""
    values: dict[str, object] = json_value(plan)
    return {
        "name": plan.name,
        **values,
        "compute_seconds": plan.compute_seconds,
        "communication_seconds": plan.communication_seconds,
        "imbalance": plan.imbalance,
    }


def _plan_row(plan: ShardingPlan) -> Sequence[str]:
    from lightning_predict.reports.format import gibibytes, milliseconds, milliseconds_interval

    return [
        plan.layout,
        plan.name,
        milliseconds(plan.seconds),
        milliseconds_interval(plan.time.low, plan.time.high),
        milliseconds(plan.compute_seconds),
        f"{plan.imbalance:.2f}",
        milliseconds(plan.communication_seconds),
        gibibytes(max(plan.memory_bytes)),
    ]


def _table_rows(plan: ShardingPlan) -> str:
    from lightning_predict.reports.format import gibibytes, significant

    rows = [
        [
            assignment.table.name or str(number),
            f"{assignment.table.rows:,}",
            str(assignment.table.dim),
            significant(assignment.table.pooling * assignment.table.vectors),
            gibibytes(assignment.table.parameter_bytes),
            assignment.kind,
            "all" if assignment.gpu is None else str(assignment.gpu),
        ]
        for number, assignment in enumerate(plan.assignments)
    ]
    headers = ["table", "rows", "dim", "look-ups", "GiB", "sharding", "GPU"]
    return aligned(headers, rows, right={1, 2, 3, 4, 6})
