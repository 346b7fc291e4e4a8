"""Score models on shapes that no fit saw, and simpler predictors on the same rows.

* `roofline`: the GPU's bound at full utilisation.
* `peak ratio`: the time of the very same shape on another GPU, times the ratio of their peak FLOP/s for the work.
* `bandwidth ratio`: the same with the bandwidths of the two memories.
* `raw network`: a network on raw shapes and raw latency, the recipe of Habitat (Yu et al., USENIX ATC 2021).

Both ratios know a measurement of the shape that the models do not have. Each other GPU that measured the shape
counts, so their errors are over pairs; without another GPU, there is no error. Example::

    scores = score_groups(models, groups, gpus, seed=0)
    print(score_table(scores))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from rich import box
from rich.table import Table

from benchmarks.training.recipes import RECIPES, Recipe
from lightning_predict.base.units import milliseconds_to_seconds, seconds_to_milliseconds
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.models import UtilisationModels
from lightning_predict.kernels.operations import Array, ShapeBatch, network_spec
from lightning_predict.kernels.roofline import compute_peak, roofline_seconds
from lightning_predict.own_weights.training.tables import Group, shape_shares, split_rows

WIDTHS: Final = (256, 256, 256, 256)
BATCH_ROWS: Final = 512
MOST_STEPS: Final = 3000
EPOCHS: Final = 80  # Passes over the rows, where they end before `MOST_STEPS`; Habitat's number

LEARNING_RATE: Final = 5e-4
WEIGHT_DECAY: Final = 1e-4


@dataclass(frozen=True)
class RawNetwork:
    """A trained network of one operation and dtype."""

    layers: torch.nn.Sequential  # Weights
    mean: Array  # Means of the inputs, shape (inputs,)
    scale: Array  # Their standard deviations

    def seconds(self, batch: ShapeBatch, gpu: Gpu) -> Array:
        """Return predicted seconds of each shape, shape (shapes,); nothing keeps them above 0."""
        inputs = torch.tensor((raw_inputs(batch, gpu) - self.mean) / self.scale, dtype=torch.float32)
        with torch.no_grad():
            return np.asarray(milliseconds_to_seconds(1.0) * self.layers(inputs)[:, 0].double().numpy())


def raw_inputs(batch: ShapeBatch, gpu: Gpu) -> Array:
    """List shape parameters in their order, then memory, bandwidth, SMs and peak, shape (shapes, inputs)."""
    figures = (
        gpu.memory_bytes,
        gpu.dram_bytes_per_second,
        gpu.streaming_multiprocessors,
        float(compute_peak(batch, [gpu])[0, 0]),
    )
    columns = [batch.columns[word] for word in batch.spec.shape]
    return np.stack([*columns, *(np.full(len(batch), figure) for figure in figures)], axis=1)


def train_raw_network(groups: Sequence[Group], gpus: Mapping[str, Gpu], *, seed: int) -> RawNetwork:
    """Train on the rows of groups of one operation and dtype."""
    inputs = np.concatenate([raw_inputs(group.batch, gpus[group.gpu]) for group in groups])
    milliseconds = np.concatenate([seconds_to_milliseconds(1.0) * group.seconds for group in groups])
    mean, deviation = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(deviation > 1e-9 * np.abs(mean), deviation, 1.0)  # a word that never varies
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads sum in another order: the same seed must give the same network
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = _layers(inputs.shape[1])
            _fit(layers, (inputs - mean) / scale, milliseconds)
    finally:
        torch.set_num_threads(threads)
    return RawNetwork(layers, mean, scale)


def _layers(inputs: int) -> torch.nn.Sequential:
    pairs = itertools.pairwise((inputs, *WIDTHS))
    hidden = [part for pair in pairs for part in (torch.nn.Linear(*pair), torch.nn.ReLU())]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(WIDTHS[-1], 1))


def _fit(layers: torch.nn.Sequential, inputs: Array, milliseconds: Array) -> None:
    x, y = torch.tensor(inputs, dtype=torch.float32), torch.tensor(milliseconds, dtype=torch.float32)
    optimizer = torch.optim.Adam(layers.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(min(MOST_STEPS, max(EPOCHS * len(y) // BATCH_ROWS, 1))):
        while len(order) < min(BATCH_ROWS, len(y)):
            order = torch.cat([order, torch.randperm(len(y))])
        chosen, order = order[:BATCH_ROWS], order[BATCH_ROWS:]
        error = (layers(x[chosen])[:, 0] / y[chosen] - 1).abs().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()


Figure = Callable[[ShapeBatch, Gpu], float]  # A speed of a GPU that counts for a batch
BASELINES: Final = ("roofline", "peak ratio", "bandwidth ratio", "raw network")  # Names, in the order of the report


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineError:
    """|predicted / measured - 1| of one baseline on held-out rows."""

    predictions: int  # Rows, or pairs of a row and a GPU that it was scaled from
    median: float  # Median error
    mean: float  # Mean error


def peak_of(batch: ShapeBatch, gpu: Gpu) -> float:
    """Find the FLOP/s of the units that do the work, in its dtype."""
    return float(compute_peak(batch, [gpu])[0, 0])


def memory_bandwidth_of(_batch: ShapeBatch, gpu: Gpu) -> float:
    """Return the bytes per second of the device memory."""
    return gpu.dram_bytes_per_second


def baseline_errors(
    held_out: Iterable[Group], others: Iterable[Group], gpus: Mapping[str, Gpu], network: RawNetwork | None
) -> Mapping[str, BaselineError]:
    """Compute each baseline's errors on the rows of one (operation, dtype, GPU); absent where it says nothing."""
    mine, others = list(held_out), list(others)
    errors = {
        "roofline": [roofline_seconds(group.batch, [gpus[group.gpu]])[0] / group.seconds - 1 for group in mine],
        "peak ratio": [ratio_errors(group, others, gpus, peak_of) for group in mine],
        "bandwidth ratio": [ratio_errors(group, others, gpus, memory_bandwidth_of) for group in mine],
    }
    if network is not None:
        errors["raw network"] = [network.seconds(group.batch, gpus[group.gpu]) / group.seconds - 1 for group in mine]
    joined = {name: np.abs(np.concatenate(parts)) for name, parts in errors.items()}
    return {
        name: BaselineError(predictions=len(error), median=float(np.median(error)), mean=float(error.mean()))
        for name, error in joined.items()
        if len(error)
    }


def ratio_errors(group: Group, others: Iterable[Group], gpus: Mapping[str, Gpu], figure: Figure) -> Array:
    """Compute errors, predicted / measured - 1, of each row on each other GPU that measured the same shape.

    predicted = seconds on the other GPU x figure of the other / figure of this GPU.
    """
    shares = shape_shares(group.batch.columns, seed=0)  # equal for equal shapes
    own = figure(group.batch, gpus[group.gpu])
    errors = [np.empty(0)]
    for other in others:
        if other.gpu == group.gpu:
            continue
        _, here, there = np.intersect1d(
            shares, shape_shares(other.batch.columns, seed=0), assume_unique=True, return_indices=True
        )
        scaled = other.seconds[there] * figure(other.batch, gpus[other.gpu]) / own
        errors.append(scaled / group.seconds[here] - 1)
    return np.concatenate(errors)


FEWEST_SCORED: int = 10  # Held-out rows below which a score says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one (operation, dtype, GPU) on held-out rows; |predicted / measured - 1|."""

    operation: str  # Operation
    dtype: str  # dtype
    gpu: str  # GPU
    own_weights: bool  # The GPU has weights of its own for it
    rows: int  # Held-out rows
    mean: float  # Mean error
    median: float  # Median error
    ninetieth: float  # 90th percentile of the error
    bias: float  # Mean of predicted / measured - 1
    coverage: float  # Share of the rows inside the 90 % interval
    # Mean error of whole calls, where a launch was taken off them (`launches.py`): prediction and launch over what was
    # timed, of calls from the same length on; None if no launch was subtracted
    called: float | None
    # Errors of simpler predictors on the same rows, by name; absent without a prediction
    baselines: Mapping[str, BaselineError]


def score_groups(
    models: UtilisationModels,
    groups: Sequence[Group],
    gpus: Mapping[str, Gpu],
    *,
    seed: int,
    raw_networks: Mapping[tuple[str, str], RawNetwork] | None = None,
) -> tuple[Score, ...]:
    """Score all groups that a model serves, in order of operation, dtype and GPU.

    Args:
        models: Models to score.
        groups: Measurements; only the held-out ones that are long enough to show the device count.
        gpus: GPUs by name; groups of others are left out.
        seed: Seed of the split.
        raw_networks: Networks on raw latency by (operation, dtype), to compare with.
    """
    held_out: dict[tuple[str, str], dict[str, list[Group]]] = {}
    calls: dict[tuple[str, str, str], list[Array]] = {}
    for recipe, group in _taken(groups, gpus):
        operation, dtype = group.batch.operation, group.batch.dtype
        if not models.supports(operation, dtype):
            continue
        unseen = group.take(split_rows(group.batch.columns, seed=seed).held_out)
        scored = _long_enough(recipe, unseen)
        if len(scored.seconds):
            held_out.setdefault((operation, dtype), {}).setdefault(group.gpu, []).append(scored)
        if unseen.taken_off_seconds is not None:
            error = _called(models, recipe, unseen, unseen.taken_off_seconds, gpus[group.gpu])
            calls.setdefault((operation, dtype, group.gpu), []).append(error)
    scores = []
    for (operation, dtype), by_gpu in sorted(held_out.items()):
        everywhere = [group for parts in by_gpu.values() for group in parts]
        network = (raw_networks or {}).get((operation, dtype))
        for name, parts in sorted(by_gpu.items()):
            if sum(len(part.seconds) for part in parts) >= FEWEST_SCORED:
                beside = baseline_errors(parts, everywhere, gpus, network)
                scores.append(_score(models, parts, gpus[name], beside, calls.get((operation, dtype, name), [])))
    return tuple(scores)


def scored_groups(groups: Iterable[Group], gpus: Mapping[str, Gpu]) -> Iterator[Group]:
    """Yield the groups that a recipe takes on known GPUs, without rows too short to show the device."""
    for recipe, group in _taken(groups, gpus):
        yield _long_enough(recipe, group)


def _taken(groups: Iterable[Group], gpus: Mapping[str, Gpu]) -> Iterator[tuple[Recipe, Group]]:
    for group in groups:
        family = network_spec(group.batch.operation, group.batch.dtype)
        if family is not None and group.gpu in gpus and RECIPES[family.name].serves(group):
            yield RECIPES[family.name], group


def _long_enough(recipe: Recipe, group: Group) -> Group:
    return group.take(group.seconds >= recipe.scored_from(group))


def _called(models: UtilisationModels, recipe: Recipe, group: Group, launch: Array, gpu: Gpu) -> Array:
    """Compute errors of whole calls: the launch that was taken off is put back on both sides."""
    called = group.seconds + launch
    error: Array = np.abs((models.estimate(group.batch, [gpu]).seconds[0] + launch) / called - 1)
    return error[called >= recipe.scored_from(group)]


def _score(
    models: UtilisationModels,
    groups: Sequence[Group],
    gpu: Gpu,
    baselines: Mapping[str, BaselineError],
    calls: Sequence[Array],
) -> Score:
    """Score of the rows of one operation and dtype on one GPU."""
    operation, dtype = groups[0].batch.operation, groups[0].batch.dtype
    error, inside = np.concatenate([_compare(models, group, gpu) for group in groups], axis=1)
    return Score(
        operation=operation,
        dtype=dtype,
        gpu=gpu.name,
        own_weights=models.has_own_weights(gpu.name, operation, dtype),
        rows=len(error),
        mean=float(np.abs(error).mean()),
        median=float(np.median(np.abs(error))),
        ninetieth=float(np.quantile(np.abs(error), 0.9)),
        bias=float(error.mean()),
        coverage=float(inside.mean()),
        called=float(np.concatenate(calls).mean()) if calls else None,
        baselines=baselines,
    )


def _compare(models: UtilisationModels, group: Group, gpu: Gpu) -> Array:
    """Compute the relative error, and 1 inside the interval; shape (2, rows)."""
    estimate = models.estimate(group.batch, [gpu])
    inside = (estimate.interval.low[0] <= group.seconds) & (group.seconds <= estimate.interval.high[0])
    return np.stack([estimate.seconds[0] / group.seconds - 1, inside.astype(np.float64)])


HEADINGS = (
    "operation",
    "dtype",
    "GPU",
    "weights",
    "rows",
    "median %",
    "mean %",
    "90th %",
    "bias %",
    "in interval %",
    "calls: mean %",
    *BASELINES,
)


def score_cells(score: Score) -> tuple[str, ...]:
    """Return one row of the table, in the order of `HEADINGS`."""
    shares = (score.median, score.mean, score.ninetieth, score.bias, score.coverage)
    weights = "own" if score.own_weights else "base"
    beside = (score.baselines.get(name) for name in BASELINES)
    return (
        score.operation,
        score.dtype,
        score.gpu,
        weights,
        str(score.rows),
        *(f"{100 * share:.1f}" for share in shares),
        "" if score.called is None else f"{100 * score.called:.1f}",
        *("" if error is None else f"{100 * error.median:.1f} / {100 * error.mean:.1f}" for error in beside),
    )


BESIDE = (  # Meaning of the last columns
    "Calls: where a launch was taken off the times, the error of prediction and launch over the whole calls. "
    "Beside them, simpler predictors on the same rows: median / mean %. The ratios take the time of the same shape "
    "on another GPU, times the ratio of peak FLOP/s or of memory bandwidth, over all such pairs; empty where no other "
    "GPU measured it. The raw network maps shapes to latency, as Habitat's do, but is smaller; empty where none is."
)


def score_table(scores: Sequence[Score]) -> Table:
    """Return the scores for the terminal."""
    table = Table(title="Errors on held-out shapes", caption=BESIDE, box=box.SIMPLE)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:4] else "right", no_wrap=True)
    for score in scores:
        table.add_row(*score_cells(score))
    return table


def score_markdown(scores: Sequence[Score]) -> str:
    """Return the scores as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(score_cells(score)) + " |" for score in scores]
    return "\n".join(lines)
