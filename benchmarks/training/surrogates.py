"""Score proxies: operations without a network of their own, against published times that no fit saw.

A recurrent layer is predicted through matrix products, the backward pass of a norm through its forward pass
(`kernels/families`). A few hundred of them were measured, by others and on a few GPUs: too few to train on, enough
to say how far such times are off; own measurements add to them. A factor of a proxy may rest on some of the
rows: the factors of norms and convolutions on their medians, and five numbers of attention's formula on parts of its
rows. Example::

    print(proxy_table(proxy_scores(Path("measurements"), models)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from rich.table import Table

from benchmarks.training.report import report_table
from benchmarks.training.tables import CONVOLUTION_PASSES, read_table
from lightning_predict.base.checked import read_csv
from lightning_predict.base.errors import MeasurementTableError
from lightning_predict.base.units import milliseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.kernels.families.recurrent import GATES
from lightning_predict.kernels.operations import Array, OperationShape, operation_shape
from lightning_predict.kernels.timing import KernelModels, predict_operation_times
from lightning_predict.own_weights.training.tables import OWN_TABLES, plain_dtype

Row = Mapping[str, str]

ALL_GPUS: Final = "all"

LIBRARY: Final = "pytorch"  # Which implementation of norms is scored: the one that a training without a compiler runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A time that was measured."""

    gpu: str  # The GPU as the table spells it; without a form factor, the catalogue's default
    shape: OperationShape  # Step that ran
    left_out: tuple[OperationShape, ...] = ()  # Parts of it that did not run
    seconds: float  # How long it took


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyScore:
    """Errors of one operation, dtype and GPU, |predicted / measured - 1|."""

    operation: str  # Operation
    dtype: str  # dtype
    gpu: str  # GPU, or `ALL_GPUS`
    rows: int  # Measured times
    median: float  # Median error
    mean: float  # Mean error
    bias: float  # Median of predicted / measured - 1
    coverage: float  # Share inside the 90 % interval


def _dtype(row: Row) -> str:
    return plain_dtype(row["dtype"])


def _words(row: Row, *words: str) -> dict[str, float]:
    return {word: float(row[word]) for word in words}


def _recurrent(row: Row) -> Iterator[Published]:
    """Leave the product with the input out, as DeepBench does (cuDNN's skip mode).

    Backward: gradients of the hidden states and of their weights, which two columns time.
    """
    words, dtype = _words(row, "batch", "steps", "hidden"), _dtype(row)
    rows, hidden = words["batch"] * words["steps"], words["hidden"]
    gates = GATES[row["op"]] * hidden
    forward = operation_shape("linear", dtype, m=rows, n=gates, k=hidden)
    if row["forward_ms"]:
        yield _published(row, operation_shape(row["op"], dtype, **words), row["forward_ms"], left_out=(forward,))
    if row["backward_input_ms"] and row["backward_weight_ms"]:
        both = float(row["backward_input_ms"]) + float(row["backward_weight_ms"])
        skipped = (
            operation_shape("linear", dtype, m=rows, n=hidden, k=gates),
            operation_shape("linear", dtype, m=gates, n=hidden, k=rows),
        )
        yield _published(row, operation_shape(f"{row['op']}_backward", dtype, **words), both, left_out=skipped)


def _norms(row: Row) -> Iterator[Published]:
    if row["implementation"] == LIBRARY:
        for suffix, column in (("", "forward_ms"), ("_backward", "backward_ms")):
            if row[column]:
                yield _published(
                    row, operation_shape(row["op"] + suffix, _dtype(row), **_words(row, "rows", "cols")), row[column]
                )


def _attentions(row: Row) -> Iterator[Published]:
    """List passes with the mean of the widths of keys and values; windows are not predicted."""
    if row["window"]:
        return
    words = _words(row, "batch", "heads", "kv_heads", "seq", "kv_seq")
    words |= {"head_dim": sum(_words(row, "head_dim", "head_dim_v").values()) / 2, "causal": row["mask"] != "no_mask"}
    for suffix, column in (("", "forward_ms"), ("_backward", "backward_ms")):
        if row[column]:
            yield _published(row, operation_shape(f"attention{suffix}", _dtype(row), **words), row[column])


def _half_convolutions(row: Row) -> Iterator[Published]:
    """List 16-bit convolutions: those in float32 are fitted."""
    if _dtype(row) != "float16":
        return
    words = {word: float(row[column]) for column, word in CONVOLUTION_PASSES.words.items()}
    for column, suffix in CONVOLUTION_PASSES.times.items():
        if row[column]:
            yield _published(row, operation_shape(f"conv2d{suffix}", "float16", **words), row[column])


TABLES: Final[Mapping[str, Callable[[Row], Iterator[Published]]]] = {  # Files and how a row of each is read
    "recurrent.csv.gz": _recurrent,
    "norm_passes.csv.gz": _norms,
    "attention_passes.csv.gz": _attentions,
    CONVOLUTION_PASSES.file: _half_convolutions,
}


def _published(
    row: Row, what: OperationShape, milliseconds: str | float, left_out: tuple[OperationShape, ...] = ()
) -> Published:
    seconds = milliseconds_to_seconds(float(milliseconds))
    return Published(gpu=row["gpu"], shape=what, left_out=left_out, seconds=seconds)


def published_times(folder: Path) -> Iterator[Published]:
    """Yield all times of the tables in a folder; none if it has none of them.

    Raises:
        MeasurementTableError: A table lacks a column, or a cell is not a number.
    """
    for name, read in TABLES.items():
        path = folder / name
        if not path.is_file():
            continue
        for row in read_csv(path, MeasurementTableError):
            try:
                yield from read(row.value)
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                raise row.error(f"has {error!r}; expected the columns and numbers of the public table.") from None


def own_times(folder: Path, models: KernelModels) -> Iterator[Published]:
    """Find the timings of own micro-benchmarks (`own_weights/measuring/`) that no network covers."""
    for kind in OWN_TABLES:
        if not (folder / kind.file).is_file():
            continue
        for group in read_table(folder / kind.file, kind):
            batch = group.batch
            if models.supports(batch.operation, batch.dtype):
                continue
            shapes = np.stack(list(batch.columns.values()), axis=1).tolist()
            for dims, seconds in zip(shapes, group.seconds.tolist(), strict=True):
                what = OperationShape(batch.operation, batch.dtype, tuple(dims))
                yield Published(gpu=group.gpu, shape=what, seconds=seconds)


def proxy_scores(folder: Path, models: KernelModels) -> tuple[ProxyScore, ...]:
    """Score by operation, dtype and GPU, in that order, then over all GPUs."""
    groups: dict[tuple[str, str, str], list[Published]] = {}
    for each in (*published_times(folder), *own_times(folder, models)):
        groups.setdefault((each.shape.operation, each.shape.dtype, each.gpu), []).append(each)
    compared = {key: compared_times(members, models) for key, members in sorted(groups.items())}
    together: dict[tuple[str, str], list[Array]] = {}
    for (operation, dtype, _), own in compared.items():
        together.setdefault((operation, dtype), []).append(own)
    scores = [_score(key, own) for key, own in compared.items()]
    scores += [_score((*key, ALL_GPUS), np.concatenate(parts, axis=1)) for key, parts in together.items()]
    return tuple(scores)


def compared_times(members: Sequence[Published], models: KernelModels) -> Array:
    """Compute the relative error of times on one GPU, and 1 inside the interval; shape (2, members)."""
    shapes = [part for each in members for part in (each.shape, *each.left_out)]
    # (shapes,): the member that each is part of
    owner = np.array([index for index, each in enumerate(members) for _ in (each.shape, *each.left_out)])
    sign = np.array([1.0 if first else -1.0 for each in members for first in (True, *(False,) * len(each.left_out))])
    times = predict_operation_times(shapes, [find_gpu(members[0].gpu)], models)
    predicted = times.interval.map(lambda seconds: np.bincount(owner, weights=sign * seconds[0]))  # (members,)
    measured = np.array([each.seconds for each in members])
    inside = (predicted.low <= measured) & (measured <= predicted.high)
    return np.stack([predicted.middle / measured - 1, inside.astype(np.float64)])


def _score(key: tuple[str, str, str], compared: Array) -> ProxyScore:
    operation, dtype, gpu = key
    error, inside = compared
    return ProxyScore(
        operation=operation,
        dtype=dtype,
        gpu=gpu,
        rows=len(error),
        median=float(np.median(np.abs(error))),
        mean=float(np.abs(error).mean()),
        bias=float(np.median(error)),
        coverage=float(inside.mean()),
    )


def proxy_table(scores: Sequence[ProxyScore]) -> Table:
    """Return the scores for the terminal."""
    table = report_table(
        "Errors of operations that are predicted through others, on published times that no network saw",
        names=("operation", "dtype", "GPU"),
        numbers=("rows", "median %", "mean %", "bias %", "in interval %"),
    )
    for score in scores:
        shares = (score.median, score.mean, score.bias, score.coverage)
        cells = (f"{100 * share:.1f}" for share in shares)
        table.add_row(score.operation, score.dtype, score.gpu, str(score.rows), *cells)
    return table
