"""Read measurement tables: checked, grouped by GPU, operation, dtype and source, and split for training.

A table is a CSV file (gzip where the name ends in `.gz`) of one row a measurement: GPU, operation, dtype, shape
parameters and milliseconds. Sources time different things: `neusight` times a Python call with events, so its short
rows hold the launch; `TIMED_CALLS` names such sources, and a group's `floor_seconds` is that launch. Where it grew
while the table was measured, it is taken off, so there the order of the rows matters. Several software builds of one
shape count once, by their mean.

NeuSight's convolutions come in the order in which they were timed: random shapes, the same on every GPU. The shortest
call of each stretch of rows gets longer and longer, on all GPUs alike and for all shapes: from about 0.07 ms at
the top to 0.3 ms (V100) or 0.8 ms (P100, P4) at the bottom. The host took more time before each launch the more
convolutions it had run. That is not GPU time, and no shape explains it, so it is subtracted.

Which rows are fitted, which calibrate the intervals and which are held out is decided by a hash of the shape, so the
same shape is on the same side on every GPU, in every source and on every run. Example::

    groups = read_tables(Path("measurements"))
    groups[0].gpu, groups[0].batch.operation, len(groups[0].seconds)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.kernels.operations import Array, BoolArray
from lightning_predict.own_weights.training.tables import (
    OWN_TABLES,
    Group,
    Key,
    TableKind,
    check_any_captured,
    group_of,
    read_rows,
    same,
)

GROWING_LAUNCHES: Final = frozenset({("neusight", "conv2d")})
"""Source and operation of tables that are in the order of their measurement and whose launches grew."""

SHORTEST_SECONDS: Final = 10e-6
"""Of a call that took no longer than the launch, this is left: what its kernels took at least."""

MOST_LAUNCH: Final = 0.7
"""Calls with a larger share of launch time are left out, because their remainder is mostly error."""


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
    """Find the device time of calls with a growing launch time, and the calls for which it is meaningful.

    Args:
        seconds: Times of calls in the order of their measurement, shape (calls,).

    Returns:
        Seconds on the device, at least `SHORTEST_SECONDS`, and a mask; each of shape (calls,).
    """
    launch = growing_launch(seconds)
    return seconds - launch + SHORTEST_SECONDS, launch < MOST_LAUNCH * seconds


TIMED_CALLS: Final = frozenset({"neusight", "eleutherai-cookbook"})
"""Sources whose times include the launch of a Python call."""

FLOOR_QUANTILE: Final = 0.01  # Share of the rows below which a launch is taken to be all that was timed
LONGEST_LAUNCH_SECONDS: Final = 60e-6  # A table without short rows shows no launch; none is longer than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of rows, and the terms under which they may be used."""

    title: str
    licence: str


SOURCES: Final[Mapping[str, Source]] = {  # Public sources by the word in the column `source`
    "aiconfigurator": Source(title="ai-dynamo/aiconfigurator, (c) NVIDIA", licence="Apache-2.0"),
    "neusight": Source(
        title="sitar-lab/NeuSight, (c) 2025 Georgia Institute of Technology and Microsoft", licence="MIT"
    ),
    "deepbench": Source(title="baidu-research/DeepBench", licence="Apache-2.0"),
    "vidur": Source(title="microsoft/vidur", licence="MIT"),
    "eleutherai-cookbook": Source(title="EleutherAI/cookbook", licence="Apache-2.0"),
    "own": Source(title="lightning-predict's own micro-benchmarks", licence="Apache-2.0"),
}


CONVOLUTION_PASSES: Final = TableKind(  # Float32 is fitted; what there is in float16 is compared (`proxies.py`)
    file="conv2d_passes.csv.gz",
    words=same("batch", "in_channels", "height", "width", "out_channels", "kernel_height", "kernel_width")
    | {"pad_h": "padding_height", "pad_w": "padding_width", "stride_h": "stride_height", "stride_w": "stride_width"},
    times={"forward_ms": "", "backward_input_ms": "_backward_input", "backward_weight_ms": "_backward_weight"},
)

PUBLIC_TABLES: Final = (
    TableKind(file="matmul.csv.gz", words=same("b", "m", "n", "k"), times={"latency_ms": ""}),
    TableKind(file="matmul_fp16.csv.gz", words=same("b", "m", "n", "k"), times={"latency_ms": ""}),
    TableKind(
        file="conv2d.csv.gz",
        words=same("batch", "in_channels", "out_channels", "kernel_size", "image_size", "stride", "padding"),
        times={"latency_ms": ""},
    ),
    CONVOLUTION_PASSES,
    TableKind(file="vector.csv.gz", words=same("rows", "cols"), times={"latency_ms": ""}),
)

TABLES: Final = (*PUBLIC_TABLES, *OWN_TABLES)


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
    check_any_captured(groups, folder, present)
    return tuple(sorted(groups, key=lambda g: (g.batch.operation, g.batch.dtype, g.gpu, g.source, g.build)))


def where_tables_come_from() -> str:
    """Return a sentence that names the public sources and their licences."""
    named = "; ".join(f"{source.title} ({source.licence})" for source in SOURCES.values())
    return f"Public measurements that can be put into these columns: {named}."


def read_table(path: Path, kind: TableKind, *, by_build: bool = False) -> tuple[Group, ...]:
    """Return the groups of one file; arguments and errors as for `read_tables`."""
    return tuple(_group(key, values, kind) for key, values in read_rows(path, kind, by_build=by_build).items())


def _group(key: Key, values: Sequence[tuple[float, ...]], kind: TableKind) -> Group:
    gpu, operation, _, source, _ = key
    table = np.array(values, dtype=np.float64)
    if (source, operation) not in GROWING_LAUNCHES:
        group = group_of(key, table, kind)
        launch = min(float(np.quantile(group.seconds, FLOOR_QUANTILE)), LONGEST_LAUNCH_SECONDS)
        return replace(group, floor_seconds=launch if source in TIMED_CALLS else 0.0)
    device, clear = without_launch(table[:, -1].copy())
    if not clear.any():
        raise MeasurementTableError(
            f"None of the {len(values)} calls of {operation} on {gpu} by {source} took clearly longer than the "
            "launch, which grows along its table. Expected all rows, in the order of their measurement."
        )
    called = group_of(key, table[clear], kind)
    group = group_of(key, np.column_stack([table[:, :-1], device])[clear], kind)
    floor = SHORTEST_SECONDS if source in TIMED_CALLS else 0.0
    return replace(group, floor_seconds=floor, taken_off_seconds=called.seconds - group.seconds)
