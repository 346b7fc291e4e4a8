"""Measured speed-ups (gains) of single changes, from pairs of the user's own runs of one model on one GPU.

The history stores the settings of each finished run, and the speed-ups that the advice predicted. If a later run
differs in exactly one setting, its speed-up is measured against the earlier run. Later advice reports this measured
speed-up. Example::

    settings_of(trace)                       # {'precision': 'bf16-mixed', 'tf32': 'off', ...}
    own_gain(records, record)                # MeasuredGain(change='bf16-mixed', gain=1.83, ...)
    measured_gains(records, "T4", trace)     # {'bf16-mixed': (1.83, 1.79)}
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lightning_predict.base.interval import Interval
from lightning_predict.kernels.memory_bound import FUSED_OPTIMIZERS
from lightning_predict.record.operand_strides import CHANNELS_LAST
from lightning_predict.record.trace import Trace
from lightning_predict.run.history import RUNS_THAT_COUNT, HistoryRecord
from lightning_predict.timeline.host import WAITING_OPERATIONS

_TRUE: Final = {"bfloat16": "bf16-true", "float16": "half"}
_MIXED: Final = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}

_CHANGES: Final[Mapping[tuple[str, str, str], str]] = {  # Name of each change by (setting, value before, value after)
    **{("precision", "32", name): name for name in (*_TRUE.values(), *_MIXED.values())},
    ("tf32", "off", "on"): "tf32",
    ("compiled", "off", "on"): "compile",
    ("images", "channels first", "channels last"): "channels_last",
    ("optimizer", "one by one", "fused"): "fused_optimizer",
    ("attention", "written out", "one call"): "sdpa",
    ("waits", "each step", "none"): "fewer_waits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGain:
    """Measured speed-up of one change, from two runs."""

    change: str
    gain: float
    before: HistoryRecord
    after: HistoryRecord

    @property
    def predicted_gain(self) -> Interval[float] | None:
        """Predicted speed-up, from the run without the change; None if the advice predicted none."""
        ends = self.before.foretold.get(self.change)
        return None if ends is None else Interval(*ends)

    def sentence(self, now: HistoryRecord) -> str:
        """Return a sentence on the measured and the predicted speed-up."""
        is_with = now is self.after
        other = self.before if is_with else self.after
        told = self.predicted_gain
        said = "no prediction, because that run asked for no advice"
        if told is not None:
            ends = "" if told.low == told.high else f" ({told.low:.2f} to {told.high:.2f})"
            said = f"predicted {told.middle:.2f}{ends}"
        return (
            f"{self.change} made steps {self.gain:.2f} times as fast on {now.layout}, compared with the run "
            f"of {other.date} {'without' if is_with else 'with'} it ({said})"
        )


def settings_of(trace: Trace) -> dict[str, str]:
    """Return the settings of a step that the advice can change, by name."""
    names = {operation.name for operation in trace.operations}
    dtypes = Counter(parameter.dtype for parameter in trace.parameters).most_common(1)
    dtype = dtypes[0][0] if dtypes else "float32"
    autocast = trace.flags.autocast_dtype
    settings = {
        "precision": _TRUE.get(dtype, "32") if autocast is None else _MIXED.get(autocast, autocast),
        "tf32": "on" if trace.flags.matmul_tf32 else "off",
        "compiled": "on" if trace.compiled else "off",
        "batch": str(trace.samples),
        "accumulated": str(trace.batches),
    }
    if not names.isdisjoint({"aten::convolution", "aten::cudnn_convolution"}):
        is_last = any(operation.arguments.get(CHANNELS_LAST) for operation in trace.operations)
        settings["images"] = "channels last" if is_last else "channels first"
    if any(operation.phase == "optimizer" for operation in trace.operations):
        settings["optimizer"] = "one by one" if names.isdisjoint(FUSED_OPTIMIZERS) else "fused"
    if any("scaled_dot_product" in name or "flash" in name for name in names):
        settings["attention"] = "one call"
    elif "aten::_softmax" in names:
        settings["attention"] = "written out"
    reads = any(
        operation.name in WAITING_OPERATIONS and operation.phase != "optimizer" for operation in trace.operations
    )
    settings["waits"] = "each step" if reads else "none"
    return settings


def architecture_of(trace: Trace) -> str | None:
    """Return a hash of the parameters' shapes, which no setting changes; None if the trace has no parameters."""
    if not trace.parameters:
        return None
    shapes = [(list(parameter.shape), parameter.requires_grad) for parameter in trace.parameters]
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:32]


def own_gain(records: Sequence[HistoryRecord], now: HistoryRecord) -> MeasuredGain | None:
    """Return the speed-up relative to the latest earlier run that differs by one change; None without one."""
    for earlier in reversed(records):
        if earlier.layout == now.layout and earlier.architecture == now.architecture is not None:
            for before, after in ((earlier, now), (now, earlier)):
                change = _change(before.settings, after.settings)
                if change is not None:
                    return MeasuredGain(change=change, gain=_gain(before, after), before=before, after=after)
    return None


def measured_gains(records: Sequence[HistoryRecord], layout: str, trace: Trace) -> dict[str, tuple[float, ...]]:
    """Return the measured speed-ups of each change to this step in earlier runs on a layout, latest run last.

    Args:
        records: Runs of the history, oldest first.
        layout: Name of the layout, as in `HistoryRecord.layout`.
        trace: The step without the changes.
    """
    architecture, settings = architecture_of(trace), settings_of(trace)
    runs = [record for record in records if record.layout == layout and record.architecture == architecture is not None]
    without = [run for run in runs if run.settings == settings][-RUNS_THAT_COUNT:]
    by_change: dict[str, list[float]] = {}
    for after in runs:
        change = _change(settings, after.settings)
        if change is not None and without:
            by_change.setdefault(change, []).extend(_gain(before, after) for before in without)
    return {change: tuple(gains) for change, gains in by_change.items()}


def _gain(before: HistoryRecord, after: HistoryRecord) -> float:
    return (before.step_seconds / (before.samples or 1)) / (after.step_seconds / (after.samples or 1))


def _change(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return the name of the change between two settings; None unless exactly one known change differs."""
    different = list(_different(before, after))
    if len(different) == 1 and different[0] in _CHANGES:
        return _CHANGES[different[0]]
    by_name = {name: (was, becomes) for name, was, becomes in different}
    if set(by_name) <= {"batch", "accumulated"} and by_name and all(_is_twice(*pair) for pair in by_name.values()):
        return "accumulation" if "accumulated" in by_name else "batch_size"
    return None


def _different(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*before, *after)):
        was, becomes = before.get(name, ""), after.get(name, "")
        if was != becomes:
            yield name, was, becomes


def _is_twice(was: str, becomes: str) -> bool:
    return was.isdecimal() and becomes.isdecimal() and int(becomes) == 2 * int(was)
