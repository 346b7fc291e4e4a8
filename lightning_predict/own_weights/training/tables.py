"""Reads the tables of `lightning-predict measure`: groups rows by GPU, operation and dtype, and splits them.

A table is a CSV file (gzip if the name ends in `.gz`) with one row per measurement: GPU, operation, dtype, shape
parameters and milliseconds. Of the times of `measure`, that with a warm L2 counts, as in a step; in tables of earlier
releases only if it is long, because a short warm replay waited for the host. Rows timed as ordinary calls include
launches, and are skipped. A hash of the shape decides whether a row is used for fitting, for calibrating intervals, or
is held out. A shape is thus in the same split on every GPU, in every source and in every run.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import MICROSECOND, milliseconds_to_seconds
from lightning_predict.kernels.operations import Array, BoolArray, Columns, ShapeBatch, operation_spec, shape_batch
from lightning_predict.kernels.roofline import SHORTEST_KERNEL_SECONDS
from lightning_predict.own_weights.measuring.benchmarks import BENCHMARKS, EAGER, GRAPHS

HELD_OUT_SHARE: Final = 0.15  # Share of held-out shapes, which errors are reported for
LONGEST_REPLAY_SECONDS: Final = 3 * MICROSECOND  # Upper bound on the time of a CUDA graph's replay without its kernels
STEPS_FOLDER: Final = "steps"  # Folder beside the tables with the steps that `measure` recorded
CALIBRATION_SHARE: Final = 0.08  # Share of calibration shapes, which determine when training stops and interval widths


@dataclass(frozen=True, slots=True)
class Split:
    """Masks over rows. Each row is in exactly one mask."""

    fitted: BoolArray
    calibration: BoolArray
    held_out: BoolArray


ADDED_LATER: Final = frozenset({"channels_last"})
"""Shape parameters that were added after the shipped weights were trained. A value of 0 does not change the hash of
a shape, so the shape stays in its split."""


def shape_shares(columns: Columns, *, seed: int) -> Array:
    """Return a number in [0, 1) for each row, shape (rows,), which depends only on the row's shape and the seed."""
    state = np.full(len(next(iter(columns.values()))), _mix_word("seed", seed), dtype=np.uint64)
    for word in sorted(columns):
        bits = np.ascontiguousarray(columns[word], dtype=np.float64).view(np.uint64)
        mixed = _scramble(state ^ (bits + np.uint64(_mix_word(word, seed))))
        state = np.where((columns[word] == 0) & (word in ADDED_LATER), state, mixed)
    return (state >> np.uint64(11)).astype(np.float64) / 2.0**53


def split_rows(columns: Columns, *, seed: int) -> Split:
    """Split shapes into fitted, calibration and held-out rows."""
    share = shape_shares(columns, seed=seed)
    held_out = share < HELD_OUT_SHARE
    calibration = ~held_out & (share < HELD_OUT_SHARE + CALIBRATION_SHARE)
    return Split(~held_out & ~calibration, calibration, held_out)


def _mix_word(word: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{word}".encode(), digest_size=8).digest(), "little")


def _scramble(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), which mixes all bits."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """Format of a file: shape parameters and columns of times."""

    file: str
    words: Mapping[str, str]  # Shape parameter of the operation, by its name in the file
    times: Mapping[str, str]  # Suffix of the timed operation, by column of milliseconds


def same(*words: str) -> dict[str, str]:
    """Map each shape parameter of a file to the same name."""
    return {word: word for word in words}


OWN_TABLES: Final = tuple(
    TableKind(file=f"own_{name}.csv.gz", words=same(*operation_spec(name).shape), times={"latency_ms": ""})
    for name in BENCHMARKS
)
"""Formats of the tables that `measuring/run.py` writes: one file per operation, with backward calls as rows."""


@dataclass(frozen=True)
class Group:
    """Measurements of one operation and dtype, on one GPU, from one source."""

    gpu: str
    source: str  # A key of `SOURCES`, or the user's own source
    batch: ShapeBatch  # The shapes, without duplicates
    seconds: Array  # Measured time of each shape, shape (shapes,)
    floor_seconds: float  # Launch time that rows include; 0 if the source measures device time
    build: str = ""  # Name of the timed software, without its version; empty if builds are averaged
    # Launch time that was subtracted from each time (`benchmarks/training/tables.py`), shape (shapes,); None if nothing
    # was subtracted
    taken_off_seconds: Array | None = None

    def take(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Group:
        """Return the rows that a mask selects."""
        columns = {word: values[rows] for word, values in self.batch.columns.items()}
        batch = ShapeBatch(self.batch.operation, self.batch.dtype, columns)
        taken_off = None if self.taken_off_seconds is None else self.taken_off_seconds[rows]
        return Group(self.gpu, self.source, batch, self.seconds[rows], self.floor_seconds, self.build, taken_off)


Key = tuple[str, str, str, str, str]  # GPU, operation, dtype, source and build. Rows with the same key form a group.


def read_own_tables(folder: Path) -> tuple[Group, ...]:
    """Return all groups of the tables that `measure` wrote into a folder, in a fixed order."""
    present = [kind for kind in OWN_TABLES if (folder / kind.file).is_file()]
    if not present:
        raise MeasurementTableError(
            f"No table of yours in {str(folder)!r}. Expected the own_*.csv.gz that `lightning-predict measure` writes "
            "on the machine that has the GPU; tables of other sources are trained by `python -m benchmarks.training` "
            "in a clone of the repository."
        )
    groups = [
        group_of(key, np.array(values, dtype=np.float64), kind)
        for kind in present
        for key, values in read_rows(folder / kind.file, kind).items()
    ]
    check_any_captured(groups, folder, present)
    rows = (row.value for kind in present for row in read_csv(folder / kind.file, MeasurementTableError))
    groups = _without_replay(groups, {row["gpu"] for row in rows if row.get("timed", OLDER) == OLDER})
    return tuple(sorted(groups, key=lambda group: (group.batch.operation, group.batch.dtype, group.gpu)))


def _without_replay(groups: Sequence[Group], gpus: Collection[str]) -> list[Group]:
    """Subtract the time of a graph's replay from the rows of `gpus`, whose tables an earlier release wrote.

    Without it, the shortest row of a GPU is its shortest kernel.
    """
    shortest: dict[str, float] = {}
    for group in groups:
        shortest[group.gpu] = min(shortest.get(group.gpu, math.inf), float(group.seconds.min()))
    replay = {
        gpu: min(max(seconds - SHORTEST_KERNEL_SECONDS, 0.0), LONGEST_REPLAY_SECONDS)
        for gpu, seconds in shortest.items()
    }
    return [
        replace(group, seconds=group.seconds - replay[group.gpu]) if group.gpu in gpus else group for group in groups
    ]


def check_any_captured(groups: Sequence[Group], folder: Path, present: Sequence[TableKind]) -> None:
    """Raise an error for tables in which no row was timed with a CUDA graph."""
    if not groups and (eager := eager_rows(folder)):
        raise MeasurementTableError(
            f"All {eager} rows of {', '.join(kind.file for kind in present)} were timed as ordinary calls (`timed` is "
            f"{EAGER}), launches and all; expected rows that a CUDA graph timed. Measure on a CUDA GPU."
        )


def read_rows(path: Path, kind: TableKind, *, by_build: bool = False) -> dict[Key, list[tuple[float, ...]]]:
    """Return the shape and the seconds of each row of a file, in the order of the file, by key.

    Software builds of a source have separate keys if `by_build`; otherwise, they are averaged.
    """
    rows: dict[Key, list[tuple[float, ...]]] = defaultdict(list)
    needed = ("gpu", "op", "dtype", "source", *kind.words, *kind.times)
    for line in read_csv(path, MeasurementTableError, columns=needed):
        row = line.value
        if was_eager(row):
            continue
        shape = tuple(line.member(word).parsed().any_number() for word in kind.words)
        for named, suffix in kind.times.items():
            column = _column(row, named)
            if not row[column]:  # the source has no time for this call
                continue
            milliseconds = line.member(column).parsed().positive("in milliseconds")
            build = (row.get("software") or "").split(" ")[0] if by_build else ""
            key = (row["gpu"], row["op"] + suffix, plain_dtype(row["dtype"]), row["source"], build)
            rows[key].append((*shape, milliseconds_to_seconds(milliseconds)))
    return dict(sorted(rows.items()))


OLDER: Final = "graph"  # Value in the column `timed` of earlier releases, whose times include a replay


LAUNCH_MILLISECONDS: Final = 0.03  # Minimum duration of a warm replay that hides the host's launch


def _column(row: Mapping[str, str], named: str) -> str:
    """Return the name of the column with the time of a row of `measure`; of another table, `named`."""
    if row.get("timed") == GRAPHS:
        return "warm_ms"
    is_warm = row.get("timed") == OLDER and float(row.get("warm_ms") or 0.0) >= LAUNCH_MILLISECONDS
    return "warm_ms" if is_warm else named


def was_eager(row: Mapping[str, str]) -> bool:
    """Return whether a row of `measure` was timed as an ordinary call, which includes launches.

    Older tables lack the column `timed`, but `warm_ms` is empty in such rows.
    """
    timed = row.get("timed")
    return timed == EAGER if timed is not None else row.get("warm_ms") == "" and "eager_ms" in row


def eager_rows(folder: Path) -> int:
    """Count the rows of your own tables that were not timed with a CUDA graph, and thus cannot be used."""
    present = [folder / kind.file for kind in OWN_TABLES if (folder / kind.file).is_file()]
    return sum(was_eager(row.value) for path in present for row in read_csv(path, MeasurementTableError))


def plain_dtype(text: str) -> str:
    """Remove the hardware units from a dtype: `float16 (tensor cores)` becomes `float16`."""
    return text.split(" ")[0]


def group_of(key: Key, table: Array, kind: TableKind) -> Group:
    """Return rows as a group, averaged over rows of equal shape."""
    gpu, operation, dtype, source, build = key
    shapes, inverse = np.unique(table[:, :-1], axis=0, return_inverse=True)  # (shapes, words), (rows,)
    inverse = inverse.reshape(-1)
    seconds = np.bincount(inverse, weights=table[:, -1]) / np.bincount(inverse)  # (shapes,)
    columns = _columns(operation, dtype, kind.words.values(), shapes)
    return Group(gpu, source, ShapeBatch(operation, dtype, columns), seconds, 0.0, build)


def _columns(operation: str, dtype: str, words: Iterable[str], shapes: Array) -> dict[str, Array]:
    """Return every shape parameter of the operation by name, with defaults for parameters that the file lacks."""
    given = {word: shapes[:, index] for index, word in enumerate(words)}
    known = operation_spec(operation)
    accepted = set(known.shape) | set(known.spellings or {})
    batch = shape_batch(operation, dtype, **{word: value for word, value in given.items() if word in accepted})
    return {word: np.ascontiguousarray(column) for word, column in batch.columns.items()}
