"""Command `shard`: finds a sharding plan for the embedding tables of a recommendation model.

Example::

    lightning-predict shard dlrm.json.gz --gpus 8xA100-SXM-80GB --optimizer row_wise_adagrad --output plan.json
    lightning-predict predict dlrm.json.gz --gpus 8xA100-SXM-80GB --strategy embedding=plan.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightning_predict.base.answers import CommandAnswer, aligned, json_value, sentences
from lightning_predict.base.errors import InfeasiblePlanError, InvalidArgumentError
from lightning_predict.base.files import named_file
from lightning_predict.base.units import gibibytes_to_bytes
from lightning_predict.cost.prediction import on_offered_network
from lightning_predict.embeddings.placement import TablePlacement, place_tables
from lightning_predict.embeddings.step import ShardingPlan, plan_document
from lightning_predict.embeddings.tables import tables_of_trace, with_skew
from lightning_predict.embeddings.whole_step import AUTO, ChosenPlan, ShardedEmbeddings, WholeStep
from lightning_predict.hardware.layouts import Layout, layout_of
from lightning_predict.kernels.interconnect import CATALOGUE, Interconnect, link_assumption_notes
from lightning_predict.kernels.models import kernel_models
from lightning_predict.layouts.single_gpu import PredictionContext, single_steps
from lightning_predict.layouts.strategy import Strategy
from lightning_predict.machine_profile import read_machine_profile
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Trace
from lightning_predict.reports.format import gibibytes, milliseconds, milliseconds_interval, significant
from lightning_predict.timeline.host import UNKNOWN_HOST
from lightning_predict.weights.source import AnyWeights


def shard(
    trace: Path,
    /,
    *,
    gpus: str = "8xH100-SXM-80GB",
    optimizer: Literal["sgd", "row_wise_adagrad", "adagrad", "adam"] = "sgd",
    kinds: str = "table_wise,row_wise,column_wise,data_parallel",
    table_gib: float | None = None,
    profile: Path | None = None,
    output: Path | None = None,
) -> CommandAnswer:
    """Find the fastest sharding of a model's embedding tables over several GPUs, among the plans that fit in memory.

    The time of the tables is the sum of lookups, updates and communication between GPUs. For the whole training step,
    the other layers are added. They overlap with the communication, as in `predict --strategy embedding=plan.json`.

    Args:
        trace: The recorded step, of one GPU.
        gpus: Layouts, separated by commas, for example 8xL4,2x8xH100-SXM-80GB.
        optimizer: Optimizer of the tables.
        kinds: Allowed kinds of sharding, separated by commas; several may be mixed.
        table_gib: Memory of each GPU available to tables (default: 85 %).
        profile: TOML file with the machines, links, prices and other assumptions, such as the skew of the lookups.
        output: Write the fastest plan to this file, for predict --strategy embedding=FILE.
    """
    told = read_machine_profile(profile)
    links = told.interconnect or CATALOGUE
    layouts = [on_offered_network(layout_of(name)) for name in _words(gpus)]  # with networks of the priced machines
    if not layouts:
        raise InvalidArgumentError("gpus is empty; name at least one layout, for example 8xH100-SXM-80GB.")
    step = Trace.load(named_file(trace))
    if told.skew is not None:
        step = with_skew(step, told.skew)
    traced = tables_of_trace(step)
    placements: dict[str, TablePlacement] = {}
    problems: dict[str, InfeasiblePlanError] = {}
    for layout in layouts:
        try:
            placements[layout.name] = place_tables(
                traced.tables,
                layout,
                samples=traced.batch_size * layout.count,
                kinds=_words(kinds),
                optimizer=optimizer,
                table_bytes=None if table_gib is None else gibibytes_to_bytes(table_gib),
                interconnect=links,
                models=kernel_models((layout.gpu.name,), told.weights),
            )
        except InfeasiblePlanError as problem:
            problems[layout.name] = problem
    if not placements:
        raise next(iter(problems.values()))
    known = {layout.name: layout for layout in layouts if layout.name in placements}
    wholes = _whole_steps(step, known, placements, optimizer, told.weights, links)
    notes = {name: link_assumption_notes(layout, links) for name, layout in known.items()}
    shardings = _Shardings(placements, {name: str(problem) for name, problem in problems.items()}, wholes, notes)
    if output is not None:
        output.write_text(json.dumps(plan_document(shardings.fastest, optimizer), indent=2) + "\n", encoding="utf-8")
    written = [] if output is None else [str(output)]
    return CommandAnswer(
        data=lambda: shardings.as_dict() | {"written": written},
        show=lambda: print("\n".join([*shardings.lines(), *(f"Written: {path}" for path in written)])),
    )


def _whole_steps(
    trace: Trace,
    layouts: Mapping[str, Layout],
    placements: Mapping[str, TablePlacement],
    optimizer: str,
    weights: AnyWeights,
    links: Interconnect,
) -> dict[tuple[str, str], WholeStep]:
    """Predict the whole step by layout and plan; empty if the step does not allow this."""
    if trace.batches > 1 or not trace.parameters:
        return {}
    targets = tuple(dict.fromkeys(layout.gpu for layout in layouts.values()))
    origin = gpu_in_use(trace)
    names = [gpu.name for gpu in (targets if origin is None else (*targets, origin))]
    models = kernel_models(tuple(dict.fromkeys(names)), weights)
    setting = PredictionContext(targets, origin, models, UNKNOWN_HOST, links)
    single = single_steps(trace, setting)
    sharded = ShardedEmbeddings(Strategy(embedding=AUTO), setting)
    shared = sharded.shared(single)
    return {
        (name, plan.name): sharded.whole(
            shared, single.steps[targets.index(layout.gpu)], layout, ChosenPlan(plan, optimizer)
        )
        for name, layout in layouts.items()
        if layout.count > 1
        for plan in placements[name].plans
    }


@dataclass(frozen=True, slots=True)
class _Shardings:
    """Sharding plans by layout, errors of layouts without a plan, whole steps by (layout, plan), and notes."""

    placements: Mapping[str, TablePlacement]
    problems: Mapping[str, str]
    wholes: Mapping[tuple[str, str], WholeStep]
    notes: Mapping[str, Sequence[str]]

    def whole(self, plan: ShardingPlan) -> WholeStep | None:
        """Return the whole step under a plan; None if unknown."""
        return self.wholes.get((plan.layout, plan.name))

    def seconds(self, plan: ShardingPlan) -> float:
        """Return the time of the whole step under a plan if known, otherwise the time of the tables."""
        whole = self.whole(plan)
        return plan.seconds if whole is None else whole.step.seconds

    @property
    def fastest(self) -> ShardingPlan:
        return min((plan for placement in self.placements.values() for plan in placement.plans), key=self.seconds)

    def as_dict(self) -> dict[str, object]:
        layouts = {
            name: {
                "plans": [self._plan_values(plan) for plan in placement.plans],
                "refused": dict(placement.refused),
                "table_bytes": placement.table_bytes,
                "reason": placement.reason,
            }
            for name, placement in self.placements.items()
        }
        return {"layouts": layouts, "problems": dict(self.problems)}

    def _plan_values(self, plan: ShardingPlan) -> dict[str, object]:
        """Return the plan and values derived from it as JSON values."""
        values: dict[str, object] = json_value(plan)
        whole = self.whole(plan)
        return {
            "name": plan.name,
            **values,
            "compute_seconds": plan.compute_seconds,
            "communication_seconds": plan.communication_seconds,
            "imbalance": plan.imbalance,
            "whole_step_seconds": None if whole is None else whole.step.seconds,
            "critical_path": None if whole is None else whole.critical_path,
        }

    def lines(self) -> list[str]:
        rows = [_plan_row(plan, self.whole(plan)) for placement in self.placements.values() for plan in placement.plans]
        headers = [
            "layout",
            "sharding",
            "tables (ms)",
            "interval",
            "on GPUs (ms)",
            "imbalance",
            "exchanges (ms)",
            "GiB",
            "whole step (ms)",
        ]
        said = list[str]()
        for name, placement in self.placements.items():
            said.append(f"{name}: {placement.reason}")
            said += [f"{name}, {kind}: {reason}." for kind, reason in placement.refused.items()]
            said += [f"{name}: {note}" for note in self.notes[name]]
        said += self.problems.values()
        fastest = self.fastest
        whole = self.whole(fastest)
        if whole is not None:
            said.append(f"Critical path of a step on {fastest.layout}, {fastest.name}: {whole.critical_path}.")
        table = aligned(headers, rows, right=range(2, len(headers)))
        return [table, "", *sentences(said), "", f"Tables on {fastest.layout}, {fastest.name}:", _table_rows(fastest)]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _plan_row(plan: ShardingPlan, whole: WholeStep | None) -> Sequence[str]:

    return [
        plan.layout,
        plan.name,
        milliseconds(plan.seconds),
        milliseconds_interval(plan.time.low, plan.time.high),
        milliseconds(plan.compute_seconds),
        f"{plan.imbalance:.2f}",
        milliseconds(plan.communication_seconds),
        gibibytes(max(plan.memory_bytes)),
        "-" if whole is None else milliseconds(whole.step.seconds),
    ]


def _table_rows(plan: ShardingPlan) -> str:

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
