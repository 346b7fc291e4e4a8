"""Read measurement tables: checked, grouped by GPU, operation, dtype and source, and split for training.

A table is a CSV file (gzip where the name ends in `.gz`) of one row a measurement: GPU, operation, dtype, shape
parameters and milliseconds. What a source times differs: `neusight` times a Python call with events, so its short rows
hold the launch; `TIMED_CALLS` names such sources, and a group's `floor_seconds` is that launch. Where it grew while the
table was measured, it is taken off, so there the order of the rows matters. Several software builds of one problem
count once, by their mean.

NeuSight's convolutions come in the order in which they were timed: random shapes, the same on every GPU. The shortest
call of each stretch of rows gets longer and longer, on all GPUs alike and whatever the shapes: from about 0.07 ms at
the top to 0.3 ms (V100) or 0.8 ms (P100, P4) at the bottom. The host took more time before each launch the more
convolutions it had run. That is not GPU time, and no shape explains it, so it is subtracted.

Which rows are fitted, which calibrate the intervals and which are held out is decided by a hash of the problem, so the
same shape is on the same side on every GPU, in every source and on every run. Example::

    groups = read_tables(Path("measurements"))
    groups[0].gpu, groups[0].batch.operation, len(groups[0].seconds)
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lightning_predict.checked import read_csv
from lightning_predict.errors import MeasurementTableError
from lightning_predict.kernels.arrays import BoolArray
from lightning_predict.kernels.operations import Array, Columns, ProblemBatch, operation_kind, problem_batch
from lightning_predict.measuring.benchmarks import BENCHMARKS, EAGER
from lightning_predict.units import milliseconds_to_seconds

GROWING_LAUNCHES: Final = frozenset({("neusight", "conv2d")})
"""Source and operation of tables that are in the order of their measurement and whose launches grew."""

SHORTEST_SECONDS: Final = 10e-6
"""Of a call that took no longer than the launch, this is left: what its kernels took at least."""

MOST_LAUNCH: Final = 0.7
"""Calls of which the launch was a larger share are left out: what remains of them is mostly error."""


def growing_launch(seconds: Array) -> Array:
    """Fit a launch that only grows and exceeds no call: straight lines between calls that no later one undercuts.

    Args:
        seconds: Times of calls in the order of their measurement, shape (calls,).

    Returns:
        Seconds of launch in each call, shape (calls,).
    """
    undercut = np.minimum.accumulate(seconds[::-1])[::-1]
    rows = np.arange(len(seconds))
    shortest = seconds == undercut
    launch: Array = np.minimum(np.interp(rows, rows[shortest], seconds[shortest]), seconds)
    return launch


def without_launch(seconds: Array) -> tuple[Array, BoolArray]:
    """Find what calls of a growing launch took on the device, and of which calls that says something.

    Args:
        seconds: Times of calls in the order of their measurement, shape (calls,).

    Returns:
        Seconds on the device, at least `SHORTEST_SECONDS`, and a mask; each of shape (calls,).
    """
    launch = growing_launch(seconds)
    return seconds - launch + SHORTEST_SECONDS, launch < MOST_LAUNCH * seconds


HELD_OUT_SHARE: Final = 0.15
"""Share of the problems that no fit sees; errors are reported on them."""

CALIBRATION_SHARE: Final = 0.08
"""Share that stops the training and sets the width of the intervals."""


@final
@dataclass(frozen=True, slots=True)
class Split:
    """Masks over rows: each row is in exactly one."""

    fitted: BoolArray
    calibration: BoolArray
    held_out: BoolArray


def problem_shares(columns: Columns, *, seed: int) -> Array:
    """Return a number in [0, 1) for each row that depends on the shape and the seed alone, shape (rows,)."""
    state = np.full(len(next(iter(columns.values()))), _mix_word("seed", seed), dtype=np.uint64)
    for word in sorted(columns):
        bits = np.ascontiguousarray(columns[word], dtype=np.float64).view(np.uint64)
        state = _scramble(state ^ (bits + np.uint64(_mix_word(word, seed))))
    return (state >> np.uint64(11)).astype(np.float64) / 2.0**53


def split_rows(columns: Columns, *, seed: int) -> Split:
    """Mask the rows of these shapes."""
    share = problem_shares(columns, seed=seed)
    held_out = share < HELD_OUT_SHARE
    calibration = ~held_out & (share < HELD_OUT_SHARE + CALIBRATION_SHARE)
    return Split(~held_out & ~calibration, calibration, held_out)


def _mix_word(word: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{word}".encode(), digest_size=8).digest(), "little")


def _scramble(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014): every input bit flips half of the output's."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


TIMED_CALLS: Final = frozenset({"neusight", "eleutherai-cookbook"})
"""Sources whose times include the launch of a Python call."""

FLOOR_QUANTILE: Final = 0.01
"""Share of the rows below which a launch is taken to be all that was timed."""

LONGEST_LAUNCH_SECONDS: Final = 60e-6
"""A table without short rows shows no launch; none is longer than this."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of rows, and the terms under which they may be used."""

    title: str
    licence: str


SOURCES: Final[Mapping[str, Source]] = {
    "aiconfigurator": Source(title="ai-dynamo/aiconfigurator, (c) NVIDIA", licence="Apache-2.0"),
    "neusight": Source(
        title="sitar-lab/NeuSight, (c) 2025 Georgia Institute of Technology and Microsoft", licence="MIT"
    ),
    "deepbench": Source(title="baidu-research/DeepBench", licence="Apache-2.0"),
    "vidur": Source(title="microsoft/vidur", licence="MIT"),
    "eleutherai-cookbook": Source(title="EleutherAI/cookbook", licence="Apache-2.0"),
    "own": Source(title="lightning-predict's own micro-benchmarks", licence="Apache-2.0"),
}
"""Public sources by the word in the column `source`."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """One file: its shape words and its columns of times.

    Attributes:
        file: Name of the file.
        words: Shape words in the file -> the operation's words.
        times: Column of milliseconds -> suffix of the operation that it times.
    """

    file: str
    words: Mapping[str, str]
    times: Mapping[str, str]


def _same(*words: str) -> dict[str, str]:
    return {word: word for word in words}


OWN_TABLES: Final = tuple(
    TableKind(file=f"own_{name}.csv.gz", words=_same(*operation_kind(name).shape), times={"latency_ms": ""})
    for name in BENCHMARKS
)
"""What `measuring/run.py` writes: one file an operation, all of its words, backward passes under their own names. Where
no family of models takes an operation and dtype, its rows say how good the proxy is (`proxies.py`)."""

CONVOLUTION_PASSES: Final = TableKind(
    file="conv2d_passes.csv.gz",
    words=_same("batch", "in_channels", "height", "width", "out_channels", "kernel_height", "kernel_width")
    | {
        "pad_h": "padding_height",
        "pad_w": "padding_width",
        "stride_h": "stride_height",
        "stride_w": "stride_width",
    },
    times={"forward_ms": "", "backward_input_ms": "_backward_input", "backward_weight_ms": "_backward_weight"},
)
"""Float32 is fitted; what there is in float16 is compared (`proxies.py`)."""

PUBLIC_TABLES: Final = (
    TableKind(file="matmul.csv.gz", words=_same("b", "m", "n", "k"), times={"latency_ms": ""}),
    TableKind(file="matmul_fp16.csv.gz", words=_same("b", "m", "n", "k"), times={"latency_ms": ""}),
    TableKind(
        file="conv2d.csv.gz",
        words=_same("batch", "in_channels", "out_channels", "kernel_size", "image_size", "stride", "padding"),
        times={"latency_ms": ""},
    ),
    CONVOLUTION_PASSES,
    TableKind(
        file="attention.csv.gz",
        words=_same("batch", "heads", "kv_heads", "seq", "head_dim", "causal"),
        times={"latency_ms": ""},
    ),
    TableKind(file="vector.csv.gz", words=_same("rows", "cols"), times={"latency_ms": ""}),
)

TABLES: Final = (*PUBLIC_TABLES, *OWN_TABLES)

LEFT_OUT_KERNELS: Final = frozenset({"triton"})
"""Kernels of another class than the library's: Triton attention is up to 24 times slower."""


@final
@dataclass(frozen=True)
class Group:
    """Measurements of one operation and dtype on one GPU from one source.

    Attributes:
        gpu: The GPU's name as the table spells it.
        source: A key of `SOURCES`, or the user's own.
        batch: The problems, each once.
        seconds: Measured time of each problem, shape (problems,).
        floor_seconds: Launch that short rows contain; 0 where the source times the device alone.
        build: Software that was timed, without its version; empty where builds are averaged.
        taken_off_seconds: Launch that was taken off each time (`launches.py`), shape (problems,); None if none was.
    """

    gpu: str
    source: str
    batch: ProblemBatch
    seconds: Array
    floor_seconds: float
    build: str = ""
    taken_off_seconds: Array | None = None

    def take(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Group:
        """Return the rows of a mask."""
        columns = {word: values[rows] for word, values in self.batch.columns.items()}
        batch = ProblemBatch(self.batch.operation, self.batch.dtype, columns)
        taken_off = None if self.taken_off_seconds is None else self.taken_off_seconds[rows]
        return Group(self.gpu, self.source, batch, self.seconds[rows], self.floor_seconds, self.build, taken_off)


def read_tables(folder: Path, *, by_build: bool = False) -> tuple[Group, ...]:
    """Return all groups of all tables in a folder, in a fixed order.

    Args:
        folder: Where the tables are.
        by_build: Keep the software builds of one source apart instead of averaging them.

    Raises:
        MeasurementTableError: The folder or all of its tables are missing, or a table has a wrong column or value.
    """
    present = [kind for kind in TABLES if (folder / kind.file).is_file()]
    if not present:
        raise MeasurementTableError(
            f"No measurement table in {str(folder)!r}. Expected one or more of: "
            f"{', '.join(kind.file for kind in PUBLIC_TABLES)}, or the own_*.csv.gz that `lightning-predict measure` "
            f"writes. {where_tables_come_from()}"
        )
    groups = [group for kind in present for group in read_table(folder / kind.file, kind, by_build=by_build)]
    if not groups and (eager := eager_rows(folder)):
        raise MeasurementTableError(
            f"All {eager} rows of {', '.join(kind.file for kind in present)} were timed as ordinary calls (`timed` is "
            f"{EAGER}), launches and all; expected rows that a CUDA graph timed. Measure on a CUDA GPU."
        )
    return tuple(sorted(groups, key=lambda g: (g.batch.operation, g.batch.dtype, g.gpu, g.source, g.build)))


def where_tables_come_from() -> str:
    """Return a sentence that names the public sources and their licences."""
    named = "; ".join(f"{source.title} ({source.licence})" for source in SOURCES.values())
    return f"Public measurements that can be put into these columns: {named}."


def read_table(path: Path, kind: TableKind, *, by_build: bool = False) -> tuple[Group, ...]:
    """Return the groups of one file; arguments and errors as for `read_tables`."""
    rows: dict[tuple[str, str, str, str, str], list[tuple[float, ...]]] = defaultdict(list)
    needed = ("gpu", "op", "dtype", "source", *kind.words, *kind.times)
    for line in read_csv(path, MeasurementTableError, columns=needed):
        row = line.value
        if row.get("kernel") in LEFT_OUT_KERNELS or was_eager(row):
            continue
        shape = tuple(line.member(word).parsed().any_number() for word in kind.words)
        for column, suffix in kind.times.items():
            if not row[column]:  # a pass that this source did not time
                continue
            milliseconds = line.member(column).parsed().positive("in milliseconds")
            build = (row.get("software") or "").split(" ")[0] if by_build else ""
            key = (row["gpu"], row["op"] + suffix, plain_dtype(row["dtype"]), row["source"], build)
            rows[key].append((*shape, milliseconds_to_seconds(milliseconds)))
    return tuple(_group(key, values, kind) for key, values in sorted(rows.items()))


def was_eager(row: Mapping[str, str]) -> bool:
    """Return whether a row of `measure` holds an ordinary call, launches and all, and not the device's own time.

    A table of a release that did not say so leaves `warm_ms` empty there.
    """
    timed = row.get("timed")
    return timed == EAGER if timed is not None else row.get("warm_ms") == "" and "eager_ms" in row


def eager_rows(folder: Path) -> int:
    """Count the rows of one's own tables that no fit uses, as no CUDA graph timed them."""
    present = [folder / kind.file for kind in OWN_TABLES if (folder / kind.file).is_file()]
    return sum(was_eager(row.value) for path in present for row in read_csv(path, MeasurementTableError))


def plain_dtype(text: str) -> str:
    """Drop the units from a dtype: `float16 (tensor cores)` is float16, as which units ran is up to the GPU."""
    return text.split(" ")[0]


def _group(key: tuple[str, str, str, str, str], values: Sequence[tuple[float, ...]], kind: TableKind) -> Group:
    gpu, operation, dtype, source, build = key
    table = np.array(values, dtype=np.float64)
    called = table[:, -1].copy()
    grew = (source, operation) in GROWING_LAUNCHES
    if grew:
        table[:, -1], clear = without_launch(called)
        if not clear.any():
            raise MeasurementTableError(
                f"None of the {len(values)} calls of {operation} on {gpu} by {source} took clearly longer than the "
                "launch, which grows along its table. Expected all rows, in the order of their measurement."
            )
        table, called = table[clear], called[clear]
    shapes, inverse = np.unique(table[:, :-1], axis=0, return_inverse=True)  # (problems, words), (rows,)
    inverse = inverse.reshape(-1)
    # each (problems,)
    seconds, calls = (np.bincount(inverse, weights=times) / np.bincount(inverse) for times in (table[:, -1], called))
    columns = _columns(operation, dtype, kind.words.values(), shapes)
    shortest = float(np.quantile(seconds, FLOOR_QUANTILE))
    launch = SHORTEST_SECONDS if grew else min(shortest, LONGEST_LAUNCH_SECONDS)
    floor = launch if source in TIMED_CALLS else 0.0
    taken_off = calls - seconds if grew else None
    return Group(gpu, source, ProblemBatch(operation, dtype, columns), seconds, floor, build, taken_off)


def _columns(operation: str, dtype: str, words: Iterable[str], shapes: Array) -> dict[str, Array]:
    """Read every shape parameter of the operation, in its own spelling, with defaults filled in."""
    given = {word: shapes[:, index] for index, word in enumerate(words)}
    known = operation_kind(operation)
    accepted = set(known.shape) | set(known.spellings or {})
    batch = problem_batch(operation, dtype, **{word: value for word, value in given.items() if word in accepted})
    return {word: np.ascontiguousarray(column) for word, column in batch.columns.items()}
