"""Device time of a step by module (layer): forward, backward and optimizer step, on each GPU.

Members of module lists are merged: `blocks.3.mlp` and `blocks.4.mlp` become `blocks.*.mlp`. The optimizer's time is
assigned to the modules whose parameters it updates. If PyTorch has a fused kernel for a sequence of operations, a row
names the kernel.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_predict.base.ties import NOTICEABLE, TIE, clearly_less, ordered
from lightning_predict.fusion.options import step_on
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.measured_scaling import predict_work_times
from lightning_predict.kernels.models import kernel_models
from lightning_predict.record.recorded_on import gpu_in_use
from lightning_predict.record.trace import Operation, Trace
from lightning_predict.reports.format import milliseconds
from lightning_predict.reports.memory import MODULES_SHOWN
from lightning_predict.weights.source import AnyWeights

OTHERS: Final = "rest"
OPTIMIZER: Final = "optimizer"
OUTSIDE: Final = "outside modules"

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")

PATTERNS: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "GELU written out: F.gelu is one kernel": (
        frozenset({"aten::tanh", "aten::pow", "aten::mul", "aten::add"}),
        frozenset({"aten::gelu"}),
    ),
    "attention written out: F.scaled_dot_product_attention": (
        frozenset({"aten::bmm", "aten::_softmax"}),
        frozenset({"aten::scaled_dot_product_attention"}),
    ),
    "RMS norm written out: F.rms_norm": (
        frozenset({"aten::pow", "aten::mean", "aten::rsqrt", "aten::mul"}),
        frozenset({"aten::rms_norm"}),
    ),
}
"""Unfused patterns: the names of their forward operations, and the name of the fused operation that replaces them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """Row of the table: one module, or several merged modules."""

    module: str  # Name of the module, with `*` for members of a list
    seconds: tuple[float, ...]  # Device seconds per step, one value per column
    pattern: str | None = None  # Name of an unfused pattern in the module; None without such a pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """Device seconds of a step by module."""

    columns: tuple[str, ...]  # Names of GPUs; `, changed` marks columns with changes
    rows: tuple[LayerRow, ...]  # Rows, sorted by the first column, longest first. The rows add up to the device time.

    def __str__(self) -> str:
        return "\n".join(layer_lines(self))

    def as_dict(self) -> dict[str, Any]:
        """Return all values as JSON values."""
        return {
            "columns": list(self.columns),
            "rows": [{"module": row.module, "seconds": list(row.seconds), "pattern": row.pattern} for row in self.rows],
        }

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """Return the table as an HTML fragment, with shares of each column."""
        from lightning_predict.base.escaping import html_text as escape

        head = "".join(f'<th scope="col" class="right">{escape(name)}</th>' for name in self.columns)
        rows = "".join(
            f'<tr><th scope="row">{escape(row.module)}</th>'
            + "".join(f'<td class="right">{escape(cell)}</td>' for cell in cells)
            + f"<td>{escape(row.pattern or '')}</td></tr>"
            for row, cells in zip(self.rows, _cells(self), strict=True)
        )
        return (
            f'<div class="scroll"><table><thead><tr><th scope="col">module</th>{head}<th></th></tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )


def layer_table(
    trace: Trace, gpus: Sequence[Gpu], weights: AnyWeights, *, after: Trace | None = None, kernels: Sequence[str] = ()
) -> LayerTable:
    """Return a step's device time by module, on each GPU.

    Args:
        trace: The recorded step.
        gpus: GPUs, each with a column.
        weights: Weights of the models.
        after: The step with changes, which adds a column for each GPU; None without changes.
        kernels: Kernels with which the step runs on the GPUs that have them.
    """
    columns, parts = [], []
    patterns = _patterns(step_on(gpus[0], trace, kernels).operations) if gpus else {}
    for step, ending in ((trace, ""), (after, ", changed")):
        if step is None:
            continue
        for gpu in gpus:
            columns.append(f"{gpu.name}{ending}")
            parts.append(_by_module(step_on(gpu, step, kernels), gpu, weights))
    modules = dict.fromkeys(module for part in parts for module in part)
    totals = [sum(part.values()) or 1.0 for part in parts]
    shares = {
        module: max(part.get(module, 0.0) / total for part, total in zip(parts, totals, strict=True))
        for module in modules
    }
    shown = ordered(modules, lambda module: parts[0].get(module, 0.0), reverse=True) if parts else []
    kept = [module for module in shown if not clearly_less(shares[module], NOTICEABLE)][:MODULES_SHOWN]
    rows = [
        LayerRow(module=module, seconds=tuple(part.get(module, 0.0) for part in parts), pattern=patterns.get(module))
        for module in kept
    ]
    rest = tuple(sum(seconds for module, seconds in part.items() if module not in kept) for part in parts)
    if any(seconds > TIE * total for seconds, total in zip(rest, totals, strict=True)):
        rows.append(LayerRow(module=OTHERS, seconds=rest))
    return LayerTable(columns=tuple(columns), rows=tuple(rows))


def module_kind(module: str | None) -> str:
    """Return the merged name of a module: `*` for members of lists, and at most one level below the innermost list.

    Example::

        >>> module_kind("transformer.h.3.mlp.c_fc")
        'transformer.h.*.mlp'
    """
    if not module:
        return OUTSIDE
    parts = _NUMBER.sub("*", module).split(".")
    if "*" not in parts:
        return parts[0] if len(parts) < 3 else ".".join(parts[:2])
    last = len(parts) - 1 - parts[::-1].index("*")
    first = parts.index("*")
    return ".".join(parts[: max(first, min(last, first + 2)) + 2])


def _by_module(trace: Trace, gpu: Gpu, weights: AnyWeights) -> dict[str, float]:
    origin = gpu_in_use(trace)
    models = kernel_models(tuple(dict.fromkeys(one.name for one in (gpu, origin) if one is not None)), weights)
    timed = predict_work_times(trace, [gpu], origin=origin, models=models)
    owners = _owners(trace)
    totals: dict[str, float] = defaultdict(float)
    for column, item in enumerate(timed.items):
        shares: Counter[str] = Counter()
        for place in item.operations:
            operation = trace.operations[place]
            size = sum(tensor.elements for tensor in operation.inputs) or 1
            if operation.phase == "optimizer":
                for module, weight in _updated(operation, owners).items():
                    shares[module] += weight * size  # type: ignore[assignment]
            else:
                shares[module_kind(operation.module)] += size
        total = sum(shares.values())
        for module, share in shares.items():
            totals[module] += float(timed.seconds[0, column]) * share / total
    return totals


def _owners(trace: Trace) -> dict[tuple[int, ...], Counter[str]]:
    """Return, for each parameter shape, the merged modules with such a parameter and their number."""
    owners: dict[tuple[int, ...], Counter[str]] = defaultdict(Counter)
    for parameter in trace.parameters:
        owners[parameter.shape][module_kind(parameter.name.rpartition(".")[0])] += 1
    return owners


def _updated(operation: Operation, owners: Mapping[tuple[int, ...], Counter[str]]) -> dict[str, float]:
    """Divide an optimizer operation among the modules whose parameters have the shapes of its tensors."""
    elements: dict[str, float] = defaultdict(float)
    total = 0.0
    for tensor in operation.inputs:
        own = owners.get(tensor.shape)
        if own:
            count = sum(own.values())
            for module, times in own.items():
                elements[module] += tensor.elements * times / count
            total += tensor.elements
    return {module: value / total for module, value in elements.items()} if total else {OPTIMIZER: 1.0}


def _patterns(operations: Iterable[Operation]) -> dict[str, str]:
    """Return the unfused pattern in the forward pass of each merged module."""
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    for operation in operations:
        if operation.phase == "forward":
            calls[module_kind(operation.module)][operation.name] += 1
    patterns = {}
    for module, own in calls.items():
        for words, (written, instead) in PATTERNS.items():
            is_two_products = "aten::bmm" not in written or own["aten::bmm"] >= 2 * own["aten::_softmax"]
            if written <= set(own) and not instead & set(own) and is_two_products:
                patterns[module] = words
                break
    return patterns


def layer_lines(table: LayerTable) -> tuple[str, ...]:
    """Format the table as lines for a terminal, with shares of each column."""
    width = max((len(row.module) for row in table.rows), default=0)
    width = max(width, len("Where it goes"))
    cells = _cells(table)
    widths = [max([len(name), *(len(row[place]) for row in cells)]) for place, name in enumerate(table.columns)]
    head = "  ".join(f"{name:>{own}}" for name, own in zip(table.columns, widths, strict=True))
    lines = [f"{'Where it goes':<{width}}  {head}"]
    for row, own in zip(table.rows, cells, strict=True):
        values = "  ".join(f"{cell:>{size}}" for cell, size in zip(own, widths, strict=True))
        lines.append(f"{row.module:<{width}}  {values}{'' if row.pattern is None else '  ' + row.pattern}".rstrip())
    return tuple(lines)


def _cells(table: LayerTable) -> list[list[str]]:
    """Return the cell texts: each time with its share of the column."""
    totals = [sum(row.seconds[place] for row in table.rows) or 1.0 for place in range(len(table.columns))]
    return [
        [f"{milliseconds(part)} ms {part / total:>4.0%}" for part, total in zip(row.seconds, totals, strict=True)]
        for row in table.rows
    ]
