"""HTML for notebooks: a recorded step and one prediction, each as a small table."""

from __future__ import annotations

import math
import statistics

from lightning_predict.cost.prediction import Prediction
from lightning_predict.escaping import html_text
from lightning_predict.reports.format import duration, gibibytes
from lightning_predict.reports.predictions import Predictions
from lightning_predict.reports.table_markup import html_table
from lightning_predict.tracing.trace import Trace


def prediction_html(prediction: Prediction) -> str:
    """Return one prediction as a table of one row, without notes."""
    table, _, _ = html_table(Predictions((prediction,))).partition("<ul>")
    return table


def trace_html(trace: Trace) -> str:
    """Return a table of what was recorded."""
    rows = {
        "recorded on": "the meta device" if trace.device == "meta" else trace.gpu_reported_name or trace.device,
        "operations": f"{len(trace.operations):,}",
        "kinds of step": str(len(trace.kinds)) if trace.other_steps else None,
        "samples": None if trace.samples is None else f"{trace.samples:,}",
        "parameters": _parameters(trace),
        "autocast": trace.flags.autocast_dtype,
        "step": duration(statistics.median(trace.measured_steps)) if trace.measured_steps else "not measured",
        "peak memory (GiB)": None if trace.memory.peak_bytes is None else gibibytes(trace.memory.peak_bytes),
    }
    lines = (
        f'<tr><th scope="row" style="text-align: left">{name}</th>'
        f'<td style="text-align: left">{html_text(text)}</td></tr>'
        for name, text in rows.items()
        if text is not None
    )
    return f"<table><caption>Recorded training step</caption><tbody>{''.join(lines)}</tbody></table>"


def _parameters(trace: Trace) -> str | None:
    if not trace.parameters:
        return None
    count = sum(math.prod(one.shape) for one in trace.parameters)
    return f"{count:,} in {', '.join(sorted({one.dtype for one in trace.parameters}))}"
