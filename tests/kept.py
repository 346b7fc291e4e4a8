"""Sentinels: a few numbers that predictions gave once, kept next to the tests as `golden/kept.json`.

No test says that such a number is right. It says which ones a change of the code moves by more than `TOLERANCE`, from
what to what: those that you did not mean to move are a mistake. Keep whole steps, ends of intervals and totals; write a
relation or derive the value where you can. `tests/house/test_kept_numbers.py` limits their count. Example::

    def test_steps(kept: SavedLedger) -> None:
        kept("steps", {"gpt2 on T4": ends(prediction.iteration.interval)})

After a wanted change of predictions, look at what moved, then run `make renew`.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from lightning_predict.base.interval import Interval
from lightning_predict.record.trace import Trace

TOLERANCE: Final = 1e-2
"""Relative difference below which a value did not move: a sentinel shows the effect of a change, not its last
digits."""

FLOOR: Final = 1e-12  # Absolute difference below which a value did not move: 0 s against 3e-16 s

DIGITS: Final = 4
SHOWN: Final = 20
ROOT: Final = Path(__file__).parents[1]

Values = Mapping[str, object]
Kept = Callable[[str, Values], None]
"""Compares values, each a number, a word or a list of them, under the name of a part."""


def kept_at(path: Path, *, overwrites: bool) -> Kept:
    """Return what compares with a file, or writes it."""

    def compare(part: str, values: Values) -> None:
        table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        rounded = {name: _rounded(value) for name, value in values.items()}
        if overwrites:
            path.parent.mkdir(exist_ok=True)
            path.write_text(_text(table | {part: rounded}), encoding="utf-8")
            return
        moved = list(_moved(table.get(part, {}), rounded))
        more = f"\n... and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
        assert not moved, (
            f"{len(moved)} values of {path.parent.parent.name}, {part}, moved. If they were meant to: make renew\n"
            + "\n".join(moved[:SHOWN])
            + more
        )

    return compare


def numbers(value: Any) -> list[object]:
    """List the numbers and words of a value, of any type."""
    if value is None or isinstance(value, str | bool | int | float):
        return [value]
    if isinstance(value, Mapping):
        return [part for key, entry in value.items() for part in (str(key), *numbers(entry))]
    if is_dataclass(value):
        return [part for field in fields(value) for part in numbers(getattr(value, field.name))]
    if hasattr(value, "tolist"):
        return numbers(value.tolist())
    return [part for entry in value for part in numbers(entry)]


def ends(interval: Interval[float]) -> list[float]:
    """List the lower end, the middle and the upper end."""
    return [interval.low, interval.middle, interval.high]


def overall(values: Iterable[Any]) -> float:
    """Return the geometric mean of the values above 0: one number for many of a kind, which each of them moves."""
    return statistics.geometric_mean([float(value) for value in values if value > 0] or [1.0])


def _rounded(value: object) -> object:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _text(table: Mapping[str, Values]) -> str:
    """Write a value a line, so that a difference shows what moved."""
    parts = [
        f"{json.dumps(part)}: {{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in values.items()) + "\n}"
        for part, values in sorted(table.items())
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _moved(before: Values, after: Values) -> Iterable[str]:
    """Describe each value that changed."""
    for name in dict.fromkeys((*before, *after)):
        if name not in after:
            yield f"{name}: gone"
        elif name not in before:
            yield f"{name}: new"
        else:
            old, new = (entry if isinstance(entry, list) else [entry] for entry in (before[name], after[name]))
            if len(old) != len(new):
                yield f"{name}: {len(old)} values became {len(new)}"
            changes = [_change(a, b) for a, b in zip(old, new, strict=False)]
            if any(changes):
                yield f"{name}: " + ", ".join(f"[{place}] {change}" for place, change in enumerate(changes) if change)


def _change(old: object, new: object) -> str:
    """Say how a value moved; nothing where it did not."""
    if isinstance(old, bool | str | None) or isinstance(new, bool | str | None):
        return "" if old == new else f"{old} -> {new}"
    assert isinstance(old, int | float)
    assert isinstance(new, int | float)
    if math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=FLOOR):
        return ""
    return f"{old:g} -> {new:g}" + (f" ({new / old - 1:+.2%})" if old else "")


@cache
def example(name: str) -> Trace:
    """Load a recorded step of `examples/`."""
    return Trace.load(str(ROOT / "examples" / f"{name}.json.gz"))


@cache
def many_calls() -> Trace:
    """Load the step of `tests/workloads/many_calls.py`."""
    return Trace.load(str(ROOT / "tests" / "traces" / "many_calls.json.gz"))
