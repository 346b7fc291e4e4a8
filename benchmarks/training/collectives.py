"""Fit curves of collectives to tables of measurements.

Each curve is one GPU, collective and number of GPUs; its points are powers of two of the message size. Repeated
measurements (software builds, tables) are averaged in log time. A size that was not measured is filled in from the
shape that the collective's other curves have there: their mean curve, plus this curve's distance from it, interpolated
between its own sizes. Curves never fall with size. A GPU on which all_reduce alone was measured gets its other
collectives from it, by what they take on the other GPUs at that size and number. Example::

    curves = fit_curves(read_rows("tables/collective.csv.gz"))
    score(read_rows("tables/collective.csv.gz")).mean_error     # on sizes left out, five times 15 %
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.training.tables import SOURCES
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import milliseconds_to_seconds, nanoseconds_to_seconds, seconds_to_microseconds
from lightning_predict.kernels.families.collective import CURVES_FILE, on_curve

FloatArray = npt.NDArray[np.float64]
Key = tuple[str, str, int]
Points = Mapping[int, Sequence[float]]

TABLE_NAME: Final = "collective.csv.gz"
LARGE_TABLE_NAME: Final = "all_reduce_large.csv.gz"
LARGE_COLUMNS: Final = ("gpu", "gpus", "bytes", "out_of_place_ns", "in_place_ns")
LARGE_GPUS: Final[Mapping[str, str]] = {"A100-SXM": "A100-SXM-80GB", "V100-SXM2": "V100-SXM2-16GB"}
"""The catalogue's names of that table's GPUs; cards of more or less memory have the same links."""
WITHOUT_PEER_ACCESS: Final = frozenset({"L40S"})
"""GPUs of the tables whose machine had no peer access, though the card has: said by who measured it."""
LARGE_SOURCE: Final = "VIA-Research/vTrain (MIT)"
MEASURED_ALONE: Final = "all_reduce"
COLUMNS: Final = ("gpu", "op", "gpus", "message_elements", "latency_ms")
ELEMENT_BYTES: Final = 2
HELD_OUT_SHARE: Final = 0.15
REPEATS: Final = 5
LARGE_BYTES: Final = 10**6
SAME_COUNT_WEIGHT: Final = 6.0
"""Weight of curves with the same number of GPUs in the shared shape, against those with another."""
SAME_GPU_WEIGHT: Final = 6.0


@dataclass(frozen=True, slots=True)
class CurveScore:
    """Errors on sizes that were left out, messages of at least 1 MB."""

    errors: Mapping[str, FloatArray]  # |predicted / measured - 1| by GPU
    half_width_90: float  # 90 % quantile of |log(predicted / measured)|, all sizes

    @property
    def mean_error(self) -> float | None:
        """Mean over all GPUs' rows; None if no message was that large."""
        return float(np.concatenate(list(self.errors.values())).mean()) if self.errors else None


def read_rows(path: str | Path) -> dict[Key, dict[int, list[float]]]:
    """Return the seconds by (GPU, collective, number of GPUs) and message bytes."""
    points: dict[Key, dict[int, list[float]]] = {}
    for row in read_csv(path, MeasurementTableError, columns=COLUMNS):
        count = row.member("gpus").parsed().integer(minimum=2)
        elements = row.member("message_elements").parsed().integer(minimum=1)
        seconds = milliseconds_to_seconds(row.member("latency_ms").parsed().positive("in milliseconds"))
        sizes = points.setdefault((row.value["gpu"], row.value["op"], count), {})
        sizes.setdefault(elements * ELEMENT_BYTES, []).append(seconds)
    return points


def read_large_rows(path: str | Path) -> dict[Key, dict[int, list[float]]]:
    """Read seconds of all_reduce, in and out of place, by (GPU, collective, number of GPUs) and message bytes.

    Sizes that are not a power of two, which no curve has a point for, are left out.
    """
    points: dict[Key, dict[int, list[float]]] = {}
    for row in read_csv(path, MeasurementTableError, columns=LARGE_COLUMNS):
        size = row.member("bytes").parsed().integer(minimum=1)
        if size & (size - 1):
            continue
        name = row.value["gpu"]
        count = row.member("gpus").parsed().integer(minimum=2)
        sizes = points.setdefault((LARGE_GPUS.get(name, name), MEASURED_ALONE, count), {})
        for column in LARGE_COLUMNS[3:]:
            seconds = nanoseconds_to_seconds(row.member(column).parsed().positive("in nanoseconds"))
            sizes.setdefault(size, []).append(seconds)
    return points


def merged(*tables: Mapping[Key, Points]) -> dict[Key, dict[int, list[float]]]:
    """Put the measurements of several tables together."""
    points: dict[Key, dict[int, list[float]]] = {}
    for table in tables:
        for key, curve in table.items():
            own = points.setdefault(key, {})
            for size, seconds in curve.items():
                own.setdefault(size, []).extend(seconds)
    return points


def derived_curves(curves: Mapping[Key, FloatArray]) -> dict[Key, FloatArray]:
    """Derive curves of collectives that were not measured on a GPU from its all_reduce.

    Each is the GPU's all_reduce plus the mean distance, in log time, of that collective from all_reduce on the GPUs
    where both were measured, at the nearest number of GPUs.
    """
    operations = sorted({operation for _, operation, _ in curves} - {MEASURED_ALONE})
    derived: dict[Key, FloatArray] = {}
    for gpu, operation, count in curves:
        if operation != MEASURED_ALONE:
            continue
        for other in operations:
            if any(key[:2] == (gpu, other) for key in curves):
                continue
            both = [key for key in curves if key[1] == other and (key[0], MEASURED_ALONE, key[2]) in curves]
            least = min((abs(math.log(key[2] / count)) for key in both), default=0.0)
            near = [key for key in both if abs(math.log(key[2] / count)) <= least * (1 + 1e-9)]
            if near:
                distances = [curves[key] - curves[key[0], MEASURED_ALONE, key[2]] for key in near]
                shifted = curves[gpu, MEASURED_ALONE, count] + np.mean(distances, axis=0)
                derived[gpu, other, count] = np.maximum.accumulate(shifted)
    return derived


def fit_curves(points: Mapping[Key, Points]) -> tuple[list[int], dict[Key, FloatArray]]:
    """Fit every curve: sizes in bytes, and log(seconds) at each of them."""
    sizes = sorted({size for curve in points.values() for size in curve})
    grid = np.log(np.array(sizes, dtype=np.float64))  # (sizes,)
    raw = {key: _raw(curve, grid) for key, curve in points.items()}
    return sizes, {key: _completed(key, points[key], raw, grid) for key in points}


def _raw(curve: Points, grid: FloatArray) -> FloatArray:
    """Return a curve by itself: mean of the logarithms, straight lines between, and on as messages longer than all."""
    own = sorted(curve)
    values = np.array([float(np.mean(np.log(curve[size]))) for size in own])
    return on_curve(np.log(np.array(own, dtype=np.float64)), values, grid)


def _completed(key: Key, curve: Points, raw: Mapping[Key, FloatArray], grid: FloatArray) -> FloatArray:
    """Return a curve with the shape of its kin where it has no points of its own."""
    kin = [other for other in raw if other[1] == key[1] and other != key]
    if not kin:
        return np.maximum.accumulate(raw[key])
    weights = [
        (SAME_COUNT_WEIGHT if other[2] == key[2] else 1.0) * (SAME_GPU_WEIGHT if other[0] == key[0] else 1.0)
        for other in kin
    ]
    shape = np.average([raw[other] for other in kin], axis=0, weights=weights)  # (sizes,)
    own = np.log(np.array(sorted(curve), dtype=np.float64))  # (own sizes,)
    at_own = np.isin(grid, own)
    distance = np.interp(grid, own, (raw[key] - shape)[at_own])
    return np.maximum.accumulate(shape + distance)


def score(points: Mapping[Key, Points], *, seed: int = 0) -> CurveScore:
    """Leave out 15 % of the sizes of each curve, fit the rest, compare; five times.

    Raises:
        MeasurementTableError: The curves have too few sizes to leave any out.
    """
    draw = random.Random(seed)
    errors: dict[str, list[float]] = {}
    logs: list[float] = []
    for _ in range(REPEATS):
        left_out = {key: {size for size in curve if draw.random() < HELD_OUT_SHARE} for key, curve in points.items()}
        kept = {key: {s: v for s, v in curve.items() if s not in left_out[key]} for key, curve in points.items()}
        sizes, curves = fit_curves(kept)
        for key, gone in left_out.items():
            for size in gone & set(sizes):
                predicted = math.exp(curves[key][sizes.index(size)])
                for measured in points[key][size]:
                    logs.append(abs(math.log(predicted / measured)))
                    if size >= LARGE_BYTES:
                        errors.setdefault(key[0], []).append(abs(predicted / measured - 1))
    if not logs:
        raise MeasurementTableError(
            f"The {len(points)} curves of collectives have too few sizes to score. Measure more message sizes of each."
        )
    return CurveScore({gpu: np.array(values) for gpu, values in sorted(errors.items())}, float(np.quantile(logs, 0.9)))


def publish_curves(tables: Path, folder: Path) -> CurveScore | None:
    """Write `collectives.json` from the tables of collectives; None, and no file, where the folder has none of them."""
    path, large = tables / TABLE_NAME, tables / LARGE_TABLE_NAME
    if not path.is_file():
        return None
    points, sources = read_rows(path), sources_of(path)
    if large.is_file():
        points, sources = merged(points, read_large_rows(large)), sorted([*sources, LARGE_SOURCE])
    return write_curves(points, folder / CURVES_FILE.name, sources=sources)


def sources_of(path: Path) -> list[str]:
    """List titles and licences of a table's sources, sorted; a source that is not known, by its word."""
    words = {row.value.get("source", "") for row in read_csv(path, MeasurementTableError)} - {""}
    known = {word: SOURCES[word] for word in words & set(SOURCES)}
    return sorted(f"{known[word].title} ({known[word].licence})" if word in known else word for word in words)


def write_curves(points: Mapping[Key, Points], path: str | Path, *, sources: Iterable[str]) -> CurveScore:
    """Fit, score and write the file that `kernels/families/collective.py` reads; returns the score."""
    sizes, measured = fit_curves(points)
    result = score(points)
    derived = derived_curves(measured)
    curves = {**measured, **derived}
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (gpu, operation, count), values in sorted(curves.items()):
        times = [round(seconds_to_microseconds(math.exp(value)), 3) for value in values]
        table.setdefault(gpu, {}).setdefault(operation, {})[str(count)] = times
    content = {
        "sources": list(sources),
        "mean_error_held_out_1_mb": None if result.mean_error is None else round(result.mean_error, 4),
        "half_width_90": round(result.half_width_90, 4),
        "derived": sorted({f"{gpu} {operation}" for gpu, operation, _ in derived}),
        "without_peer_access": sorted(WITHOUT_PEER_ACCESS & table.keys()),
        "message_bytes": sizes,
        "microseconds": table,
    }
    Path(path).write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    return result
