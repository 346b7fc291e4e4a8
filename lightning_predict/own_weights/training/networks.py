"""Trains one neural network for kernel times: from rows of features and times to `NetworkWeights`.

The loss is the mean of |log(predicted) - log(measured)|, which is minimal at the median of a shape's possible times. If
a source times Python calls, the measured time is modelled as sqrt(device^2 + launch^2), a soft maximum. Short rows then
only bound the device time from above. All members of an ensemble are trained in one pass on the same rows, and differ
by their initialization.

A second loss term penalizes predictions in which a shape is slower than its double along one dimension. These pairs of
shapes may be far outside the measured range, so training also regularizes the extrapolation. On real hardware, the
larger shape is faster in a few percent of the cases (alignment, another kernel), so only drops of more than `SLACK` are
penalized.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.features import MACHINE_FEATURES, reference_seconds
from lightning_predict.kernels.operations import Array, NetworkSpec
from lightning_predict.own_weights.training.tables import Group
from lightning_predict.weights.files import as_stored
from lightning_predict.weights.records import Float32Array, Layer, NetworkWeights

SLACK: Final = 0.02  # Maximum drop of log(seconds) from a shape to its double that is not penalized


@dataclass(frozen=True)
class Side:
    """The smaller or the larger shapes of the pairs: features (pairs, features) and log(reference seconds) (pairs,)."""

    features: Float32Array
    log_reference: Array


@dataclass(frozen=True)
class DoublingPairs:
    """Pairs of shapes. Row i of `larger` is row i of `smaller` with one dimension doubled."""

    smaller: Side
    larger: Side


CHECKS: Final = 12  # Number of times that training computes the loss on the calibration rows. The best state is kept.
LOWEST_QUANTILE: Final = 0.001  # Quantile of the measured utilisation that is the lower bound of predicted utilisation


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Hyperparameters of the training."""

    steps: int
    batch_rows: int = 1024  # Number of rows per step
    learning_rate: float = 3e-3  # Peak learning rate of the one-cycle schedule
    hidden: tuple[int, ...] = (128, 128, 128)
    members: int = 2
    weight_decay: float = 1e-4
    doubling_weight: float = 1.0  # Weight of the mean drop from a shape to its double, relative to the mean error
    doubling_rows: int = 256  # Number of pairs per step
    # Factor on the scaled features of the GPU (`MACHINE_FEATURES`); 0 hides these features. With few measured GPUs,
    # networks overfit to these features, so predictions for other GPUs would be wrong.
    machine_weight: float = 1.0
    group_rows: int | None = None  # Maximum rows per GPU, operation, dtype and source, to balance them; None: no limit


@dataclass(frozen=True)
class TrainingRows:
    """Training rows of one family: features (rows, features) and logarithms of seconds (rows,)."""

    family: str
    names: tuple[str, ...]
    pairs: frozenset[tuple[str, str]]
    features: Float32Array
    log_reference: Array
    log_seconds: Array
    log_floor: Array

    def __len__(self) -> int:
        return len(self.log_seconds)


def collect_rows(family: NetworkSpec, groups: Sequence[Group], gpus: Sequence[Gpu]) -> TrainingRows:
    """Return the features and times of all rows of the groups; `gpus` names the GPU of each group."""
    parts = []
    for group, gpu in zip(groups, gpus, strict=True):
        on = [gpu]
        floor = np.full(len(group.seconds), max(group.floor_seconds, 1e-12))
        parts.append(
            (
                family.feature_matrix(group.batch, on)[0],
                np.log(reference_seconds(group.batch, on)[0]),
                np.log(group.seconds),
                np.log(floor),
            )
        )
    # (rows, features), then (rows,) each
    features, reference, seconds, floors = (np.concatenate(column) for column in zip(*parts, strict=True))
    names = family.feature_names(groups[0].batch, [gpus[0]])
    pairs = frozenset((group.batch.operation, group.batch.dtype) for group in groups)
    return TrainingRows(family.name, names, pairs, features, reference, seconds, floors)


def lowest_utilisation(rows: TrainingRows) -> float:
    """Return a low quantile of the utilisation, over rows whose time is mostly device time."""
    device_squared = np.exp(2 * rows.log_seconds) - np.exp(2 * rows.log_floor)  # (rows,)
    clear = device_squared > 0.4 * np.exp(2 * rows.log_seconds)
    utilisation = np.exp(rows.log_reference[clear]) / np.sqrt(device_squared[clear])
    return float(np.clip(np.quantile(utilisation, LOWEST_QUANTILE), 1e-4, 0.5))


def train_network(
    rows: TrainingRows,
    calibration: TrainingRows,
    plan: TrainingPlan,
    *,
    seed: int,
    start: NetworkWeights | None = None,
    pairs: DoublingPairs | None = None,
) -> NetworkWeights:
    """Train an ensemble, keep the best state on calibration rows; its interval is set by the caller."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads change the order of sums, and the same seed must give the same weights
    try:
        scaled = start or _scaled(rows, seed, plan)
        layers = _best_layers(rows, calibration, plan, scaled, seed, pairs=pairs, tuned=start is not None)
        return _with_layers(scaled, layers, rows)
    finally:
        torch.set_num_threads(threads)


def _best_layers(
    rows: TrainingRows,
    calibration: TrainingRows,
    plan: TrainingPlan,
    scaled: NetworkWeights,
    seed: int,
    *,
    pairs: DoublingPairs | None,
    tuned: bool,
) -> tuple[Layer, ...]:
    """Train from the layers of `scaled`. If `tuned`, keep these layers unless training finds better layers."""
    ensemble = _Ensemble(scaled)
    optimizer = torch.optim.AdamW(ensemble.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, plan.learning_rate, total_steps=plan.steps + 1, pct_start=0.1
    )
    fitted, checked = _tensors(rows, scaled), _tensors(calibration, scaled)
    doubled = None if pairs is None else _pair_tensors(pairs, scaled, rows)
    generator = torch.Generator().manual_seed(seed)
    best, best_loss = ensemble.state(), ensemble.loss_value(*checked) if tuned else math.inf
    order = torch.empty(0, dtype=torch.long)
    for step in range(plan.steps):
        if len(order) < plan.batch_rows:
            order = torch.cat([order, torch.randperm(len(rows), generator=generator)])
        chosen, order = order[: plan.batch_rows], order[plan.batch_rows :]
        loss = ensemble.loss(*(column[chosen] for column in fitted))
        if doubled is not None:
            drawn = torch.randint(len(doubled[0]), (plan.doubling_rows,), generator=generator)
            loss = loss + plan.doubling_weight * ensemble.drop(*(column[drawn] for column in doubled))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(plan.steps // CHECKS, 1) == 0:
            checked_loss = ensemble.loss_value(*checked)
            if checked_loss < best_loss:
                best, best_loss = ensemble.state(), checked_loss
    return best


class _Ensemble(torch.nn.Module):
    """An ensemble of networks as trainable parameters."""

    def __init__(self, weights: NetworkWeights) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.tensor(layer.weight) for layer in weights.layers])
        self.biases = torch.nn.ParameterList([torch.tensor(layer.bias[:, None, :]) for layer in weights.layers])
        self.log_lowest = math.log(weights.lowest_utilisation)

    def loss(
        self, features: torch.Tensor, log_reference: torch.Tensor, log_seconds: torch.Tensor, log_floor: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean of |log(predicted / measured)| over rows and members."""
        timed = 0.5 * torch.logaddexp(2 * self.log_device(features, log_reference), 2 * log_floor)
        return (timed - log_seconds).abs().mean()

    def drop(
        self, smaller: torch.Tensor, reference: torch.Tensor, larger: torch.Tensor, larger_reference: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean predicted drop of log(seconds) from a shape to its double, beyond `SLACK`."""
        fall = self.log_device(smaller, reference) - self.log_device(larger, larger_reference)
        return torch.relu(fall - SLACK).mean()

    def log_device(self, features: torch.Tensor, log_reference: torch.Tensor) -> torch.Tensor:
        """Return log(device seconds) predicted by each network, shape (members, rows)."""
        values = features.expand(self.weights[0].shape[0], *features.shape)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, values, weight)
            if index < len(self.weights) - 1:
                values = torch.relu(values)
        return log_reference - self.log_lowest * torch.sigmoid(values[..., 0])

    def loss_value(self, *columns: torch.Tensor) -> float:
        with torch.no_grad():
            return float(self.loss(*columns))

    def state(self) -> tuple[Layer, ...]:
        return tuple(
            Layer(weight.detach().numpy().copy(), bias.detach()[:, 0, :].numpy().copy())
            for weight, bias in zip(self.weights, self.biases, strict=True)
        )


def _scaled(rows: TrainingRows, seed: int, plan: TrainingPlan) -> NetworkWeights:
    """Return networks with random layers, and with the feature scaling of these rows."""
    generator = np.random.default_rng(seed)
    widths = (rows.features.shape[1], *plan.hidden, 1)
    layers = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        gain = 0.1 if index == len(plan.hidden) else math.sqrt(2 / inputs)
        weight = generator.standard_normal((plan.members, inputs, outputs), dtype=np.float32) * np.float32(gain)
        layers.append(Layer(weight, np.zeros((plan.members, outputs), np.float32)))
    is_machine = np.isin(rows.names, MACHINE_FEATURES)
    # Limit the scale, so that rounding of a constant feature is not amplified.
    scale = np.maximum(rows.features.std(axis=0, dtype=np.float64), 1e-2).astype(np.float32)
    if plan.machine_weight > 0:
        scale[is_machine] /= plan.machine_weight
    else:
        layers[0].weight[:, is_machine] = 0.0
    low, high = _range(rows)
    return NetworkWeights(
        family=rows.family,
        trained=rows.pairs,
        features=rows.names,
        mean=rows.features.mean(axis=0, dtype=np.float64).astype(np.float32),
        scale=scale,
        low=low,
        high=high,
        lowest_utilisation=lowest_utilisation(rows),
        layers=tuple(layers),
        interval={"*": math.inf},
    )


def _range(rows: TrainingRows) -> tuple[Float32Array, Float32Array]:
    return rows.features.min(axis=0), rows.features.max(axis=0)


def _with_layers(scaled: NetworkWeights, layers: tuple[Layer, ...], rows: TrainingRows) -> NetworkWeights:
    low, high = _range(rows)
    return NetworkWeights(
        family=scaled.family,
        trained=rows.pairs,
        features=scaled.features,
        mean=scaled.mean,
        scale=scaled.scale,
        low=low,
        high=high,
        lowest_utilisation=scaled.lowest_utilisation,
        # Layers are rounded as in the file, so that the intervals match the stored weights.
        layers=tuple(Layer(as_stored(layer.weight).astype(np.float32), layer.bias) for layer in layers),
        interval=scaled.interval,
    )


def with_constants_in_bias(network: NetworkWeights) -> NetworkWeights:
    """Move the contribution of constant features into the first bias; zero weights compress well.

    Examples of constant features are features of the GPU, if there is only one GPU, and shape parameters that are equal
    in all rows. Predictions clamp features to the trained range, so results change only by rounding.
    """
    first, *others = network.layers
    constant = network.low == network.high
    inputs = ((network.low - network.mean) / network.scale)[constant].astype(np.float64)
    added = np.einsum("i,mio->mo", inputs, first.weight[:, constant])  # (members, outputs)
    weight = np.where(constant[:, None], np.float32(0.0), first.weight)
    return replace(network, layers=(Layer(weight, (first.bias + added).astype(np.float32)), *others))


def _pair_tensors(pairs: DoublingPairs, scaled: NetworkWeights, rows: TrainingRows) -> tuple[torch.Tensor, ...]:
    """Return the smaller and larger shapes of the pairs, with features clamped to the range of the rows."""
    low, high = _range(rows)
    columns = []
    for side in (pairs.smaller, pairs.larger):
        features = _inputs(np.clip(side.features, low, high), scaled)
        columns += [torch.tensor(features), torch.tensor(side.log_reference, dtype=torch.float32)]
    return tuple(columns)


def _tensors(rows: TrainingRows, scaled: NetworkWeights) -> tuple[torch.Tensor, ...]:
    features = _inputs(rows.features, scaled)
    columns = (rows.log_reference, rows.log_seconds, rows.log_floor)
    return torch.tensor(features), *(torch.tensor(column, dtype=torch.float32) for column in columns)


def _inputs(features: Float32Array, scaled: NetworkWeights) -> Float32Array:
    """Scale the features. Features that are hidden from the networks become 0, so training gives them no weight."""
    seen = scaled.layers[0].weight.any(axis=(0, 2))
    inputs: Float32Array = np.where(seen, (features - scaled.mean) / scaled.scale, np.float32(0.0))
    return inputs
