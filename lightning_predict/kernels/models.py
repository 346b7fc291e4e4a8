"""Inference of the trained neural networks: loads models, predicts kernel times and intervals of unmeasured GPUs.

There are two kinds of models (`BundledModels`): neural networks for work on one GPU, and measured curves for
communication between GPUs (`collective.py`).

A neural network predicts a utilisation (`UtilisationModels`). The predicted time is `reference / utilisation`, and no
kernel is faster than the reference (`features.reference_seconds`). The utilisation is the geometric mean over a small
ensemble, limited to the range from the lowest measured value to 1. Features are clipped to the training range. Shapes
far outside this range get the utilisation at its edge, and their times still follow the roofline. A GPU without its own
weights uses the *base* networks, which only know the GPU's data sheet.

Times from neural networks are clamped to bounds:

* A GPU without measurements is at least as fast as a measured GPU with lower figures (the dominated GPU), at the upper
  end of its 90 % interval, because its card may have been throttled.
* A GPU without measurements is no faster than a measured board of the same chip with at least the same figures
  (`is_lesser_board`): an H100 limited to 500 W than an H100 with 700 W.
* A measured GPU is at least as fast as a measured GPU of the same chip with a lower peak (`dominates_same_chip`). A
  slower measurement means that the card was throttled. The interval covers both values.

Example::

    >>> from lightning_predict.hardware import gpu
    >>> from lightning_predict.kernels.operations import shape_batch
    >>> models = kernel_models(("T4", "H100-SXM-80GB"))
    >>> models.supports("linear", "bfloat16"), models.supports("all_reduce", "bfloat16")
    (True, True)
    >>> batch = shape_batch("linear", "bfloat16", m=4096, n=4096, k=4096)
    >>> 0.15e-3 < float(models.estimate(batch, [gpu("H100-SXM-80GB")]).seconds[0, 0]) < 0.19e-3
    True
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from lightning_predict.base.errors import UnknownOperationError, WeightsFormatError
from lightning_predict.base.ties import clearly_less
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware import gpu_names
from lightning_predict.hardware import gpu_names as catalogue_names
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.operations import (
    COLLECTIVES,
    Array,
    BoolArray,
    IndexArray,
    NetworkSpec,
    ShapeBatch,
    network_spec,
    network_specs,
)
from lightning_predict.kernels.roofline import VECTORIZED, roofline_seconds, with_sustained_peaks
from lightning_predict.kernels.timing import Estimate, TimedBy
from lightning_predict.uncertainty import CARRIED_SCATTER, independent, of_network, transferred_part
from lightning_predict.weights.records import Float32Array, LoadedWeights, MeasuredFactor, NetworkWeights
from lightning_predict.weights.source import URL_VARIABLE, VARIABLES, AnyWeights, WeightsSource, weights_source

if TYPE_CHECKING:
    from lightning_predict.kernels.families.collective import CollectiveCurves

# --- All models of the package


@dataclass(frozen=True)
class BundledModels:
    """All trained models: neural networks that predict utilisation, and the bundled curves of collectives."""

    networks: UtilisationModels
    notes: tuple[str, ...] = ()

    def for_gpu(self, gpu_name: str) -> BundledModels:
        """Return the models of one GPU, including its networks of families that other GPUs do not have."""
        networks = self.networks.for_gpu(gpu_name)
        return self if networks is self.networks else replace(self, networks=networks)

    def supports(self, operation: str, dtype: str) -> bool:
        """Return whether a model supports the operation in this dtype."""
        return self._serving(operation).supports(operation, dtype)

    def timed_by(self, operation: str, dtype: str) -> TimedBy:
        """Return how the model of an operation predicts its time."""
        return self._serving(operation).timed_by(operation, dtype)

    def has_own_weights(self, gpu_name: str, operation: str, dtype: str) -> bool:
        """Return whether the model was trained on this GPU's own measurements."""
        return self._serving(operation).has_own_weights(gpu_name, operation, dtype)

    def measured_factor(self, gpu_name: str, operation: str, dtype: str) -> MeasuredFactor | None:
        """Return the factor from this GPU's own measurements, for an operation without a neural network of this GPU."""
        return self.networks.measured_factor(gpu_name, operation, dtype)

    def estimate(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Estimate seconds and their 90 % interval, each of shape (gpus, shapes)."""
        return self._serving(batch.operation).estimate(batch, gpus)

    def _serving(self, operation: str) -> CollectiveCurves | UtilisationModels:
        """Return the model of an operation. For unsupported operations, the neural networks raise the error."""
        if operation not in COLLECTIVES:
            return self.networks
        from lightning_predict.kernels.families.collective import bundled_curves

        return bundled_curves()


def kernel_models(gpu_names: tuple[str, ...], weights: AnyWeights = None) -> BundledModels:
    """Load the models of GPUs from an explicit path, the verified cache, the bundled files or the configured URL.

    Args:
        gpu_names: Catalogue names. A GPU without its own weights uses the base network. If no download is needed, all
            GPUs of the catalogue are loaded, because the measurements of dominated GPUs bound the times of others.
        weights: Folder, file or URL of weights, or a WeightsSource; None searches the default places.
    """
    source = weights_source(weights)
    # The store reads the environment, so the environment is part of the cache key.
    settings = tuple(os.environ.get(name) for name in VARIABLES)
    is_local = source.offline or (source.url is None and not os.environ.get(URL_VARIABLE))
    catalogue = tuple(catalogue_names())
    # With a URL, fetch weights only for the requested GPUs; offline, one cache entry serves all requests.
    names = tuple(dict.fromkeys((*catalogue, *gpu_names))) if is_local else gpu_names
    return _loaded(names, catalogue, source, settings)


@lru_cache(maxsize=8)
def _loaded(
    gpu_names: tuple[str, ...], beside: tuple[str, ...], source: WeightsSource, _settings: tuple[str | None, ...]
) -> BundledModels:
    from lightning_predict.weights.store import load_weights  # imports the download libraries only if needed

    weights = load_weights(gpu_names, source, optional_gpus=beside)
    return BundledModels(networks=UtilisationModels(weights), notes=weights.notes)


# --- From network outputs to seconds

LESSER_GPU: Final = "a measured GPU of lesser figures"  # Name of the bound that lowers times of neural networks

OTHER_16_BIT: Final[Mapping[str, str]] = {"float16": "bfloat16", "bfloat16": "float16"}
"""For each 16-bit dtype, the other 16-bit dtype that the same units compute."""


def dominates(gpu: Gpu, other: Gpu, dtype: str) -> bool:
    """Return whether no figure relevant for kernel times (power included) is lower than the other GPU's figure."""
    return all(own >= its for own, its in zip(_figures(gpu, dtype), _figures(other, dtype), strict=True))


def is_lesser_board(gpu: Gpu, other: Gpu, dtype: str) -> bool:
    """Return whether a GPU has the other GPU's chip and no higher figure relevant for kernel times."""
    is_same_chip = (gpu.vendor, gpu.network_capability) == (other.vendor, other.network_capability)
    return is_same_chip and gpu.name != other.name and dominates(other, gpu, dtype)


def dominates_same_chip(gpu: Gpu, other: Gpu, dtype: str) -> bool:
    """Return whether a GPU has the other GPU's chip, a higher peak, and no lower figure.

    An example is the GB200, which dominates the B200. In the public tables, the GB200's bfloat16 matmuls of 10¹¹ to
    10¹² FLOP take 0.89 of the B200's time, but matmuls above 10¹³ FLOP take 1.13; in float8, 0.93 and 1.02. Only large
    matmuls draw more power than the tray of the measured GB200 provided. In NVIDIA's own training steps, the ratio is
    0.96.
    """
    is_same_chip = gpu.network_capability == other.network_capability
    return is_same_chip and dominates(gpu, other, dtype) and (gpu.peak(dtype) or 0.0) > (other.peak(dtype) or 0.0)


def _has_both_halves(gpu: Gpu) -> bool:
    """Return whether the same units compute both 16-bit dtypes."""
    return OTHER_16_BIT.keys() <= gpu.peak_flops_per_second.keys() - gpu.emulated_dtypes


def _is_sibling(card: Gpu, gpu: Gpu) -> bool:
    """Return whether a card has the GPU's chip and number of multiprocessors, and at least its power."""
    chips = [(device.vendor, device.compute_capability, device.streaming_multiprocessors) for device in (card, gpu)]
    return chips[0] == chips[1] and card.name != gpu.name and card.power_watts >= gpu.power_watts


@lru_cache(maxsize=4096)
def _figures(gpu: Gpu, dtype: str) -> tuple[float, ...]:
    major, minor = gpu.network_capability
    return (
        gpu.streaming_multiprocessors,
        gpu.boost_clock_hz,
        gpu.peak(dtype) or 0.0,
        with_sustained_peaks(gpu).peak(dtype) or 0.0,
        gpu.dram_bytes_per_second,
        gpu.l2_bytes,
        gpu.l2_bytes_per_second,
        gpu.power_watts,
        10 * major + minor,
    )


def upper_bound_from_dominated_gpus(
    gpus: Sequence[Gpu], dominated: Sequence[Gpu], high_seconds: Array, dtype: str
) -> Array:
    """Return upper bounds on times of unmeasured GPUs: the upper interval end of the fastest dominated GPU.

    `high_seconds` has the shape (dominated, shapes).

    Returns:
        Upper bounds of shape (gpus, shapes); infinite if a GPU dominates no measured GPU.
    """
    beaten = np.array([[dominates(gpu, other, dtype) for other in dominated] for gpu in gpus], dtype=np.bool_)
    limits = np.where(
        beaten.reshape(len(gpus), len(dominated), 1), high_seconds[None], np.inf
    )  # (gpus, dominated, shapes)
    least: Array = limits.min(axis=1, initial=np.inf)
    return least


class UtilisationModels:
    """Neural networks of a set of GPUs, ready to predict.

    Args:
        weights: Weights of the networks.
        own_families: Families whose neural network is used only for one GPU (`for_gpu`).
    """

    def __init__(self, weights: LoadedWeights, own_families: frozenset[str] = frozenset()) -> None:
        self._weights, self._own_families = weights, own_families
        self._views: dict[str, UtilisationModels] = {}
        known = set(gpu_names())
        self._measured = tuple(find_gpu(name) for name in weights.gpus if name in known)

    def supports(self, operation: str, dtype: str) -> bool:
        """Return whether a network supports this operation and dtype, on any GPU."""
        spec = network_spec(operation, dtype)
        if spec is None or spec.name not in self._weights.cross_gpu_model.families:
            return False
        return spec.name not in self._own_families or self.trained_on(operation, dtype)

    def for_gpu(self, gpu_name: str) -> UtilisationModels:
        """Return the models of one GPU, including its networks of families that no cross-GPU network supports.

        Such a network (for convolutions on tensor cores) predicts times of shapes similar to its training data.
        """
        base, own = self._weights.cross_gpu_model, self._weights.gpus.get(gpu_name)
        added = {} if own is None else {k: replace(v) for k, v in own.families.items() if k not in base.families}
        if not added:
            return self
        if gpu_name not in self._views:
            whole = replace(base, families={**base.families, **added})
            self._views[gpu_name] = UtilisationModels(replace(self._weights, cross_gpu_model=whole), frozenset(added))
        return self._views[gpu_name]

    def trained_on(self, operation: str, dtype: str) -> bool:
        """Return whether measurements of this operation and dtype, from any GPU, were in the training data."""
        spec = network_spec(operation, dtype)
        if spec is None:
            return False
        for model in (self._weights.cross_gpu_model, *self._weights.gpus.values()):
            network = model.families.get(spec.name)
            if network is not None and (operation, dtype) in network.trained:
                return True
        return False

    def timed_by(self, operation: str, dtype: str) -> Literal["mlp", "bytes", "proxy"]:
        """Return the prediction method: a network of the operation, a copy of its bytes, or a related operation."""
        if self.trained_on(operation, dtype):
            return "mlp"
        return "bytes" if operation in ("transfer", VECTORIZED) else "proxy"

    def measured_factor(self, gpu_name: str, operation: str, dtype: str) -> MeasuredFactor | None:
        """Return the factor from this GPU's own measurements, for an operation without a neural network of this GPU."""
        own = self._weights.gpus.get(gpu_name)
        return None if own is None else own.factors.get(f"{operation}/{dtype}")

    def has_own_weights(self, gpu_name: str, operation: str, dtype: str) -> bool:
        """Return whether this GPU's weights were trained on its own measurements of this operation and dtype."""
        spec = network_spec(operation, dtype)
        own = self._weights.gpus.get(gpu_name)
        if spec is None or own is None or spec.name not in own.families:
            return False
        return (operation, dtype) in own.families[spec.name].trained

    def estimate(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Predict the time of each operation on each GPU, by the GPU's own weights or else by the base network.

        If matmuls of a GPU in one 16-bit dtype are slower than the base network predicts, the other 16-bit dtype gets
        the same slowdown. Boards of the same chip with no more power get the slowdown, too. The cause is a shared clock
        or power limit.
        """
        estimated = self._estimated(batch, gpus)
        if batch.dtype not in OTHER_16_BIT or batch.operation != "linear":
            return estimated
        factor = np.ones(estimated.seconds.shape)
        tellers = {
            row: teller
            for row, gpu in enumerate(gpus)
            if (teller := self._slowdown_source(gpu, batch.dtype)) is not None
        }
        for dtype in OTHER_16_BIT:
            rows = [row for row, (_, told_in) in tellers.items() if told_in == dtype]
            if rows:
                cards, twin = [tellers[row][0] for row in rows], replace(batch, dtype=dtype)
                ratio = self._estimated(twin, cards).seconds / self._by_cross_gpu_model._estimated(twin, cards).seconds
                said = np.maximum(np.log(ratio), 0.0)
                factor[rows] = np.exp(transferred_part(said, CARRIED_SCATTER))
        return replace(estimated, interval=estimated.interval.scaled(factor))

    def _slowdown_source(self, gpu: Gpu, dtype: str) -> tuple[Gpu, str] | None:
        """Return a measured GPU and 16-bit dtype whose slowdown applies to this GPU and dtype; else None."""
        if self.has_own_weights(gpu.name, "linear", dtype) or not _has_both_halves(gpu):
            return None
        other = OTHER_16_BIT[dtype]
        asked = [(gpu, other)]
        if not {dtype, other} & gpu.measured_flops_per_second.keys():
            asked += [(card, half) for card in self._measured if _is_sibling(card, gpu) for half in (dtype, other)]
        return next(((card, half) for card, half in asked if self.has_own_weights(card.name, "linear", half)), None)

    @cached_property
    def _by_cross_gpu_model(self) -> UtilisationModels:
        """These models without the own weights of any GPU."""
        return UtilisationModels(replace(self._weights, gpus={}))

    def _estimated(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Predict the time of each operation on each GPU, without transfers between 16-bit dtypes."""
        spec = network_spec(batch.operation, batch.dtype)
        if spec is None or spec.name not in self._weights.cross_gpu_model.families:
            raise UnknownOperationError(
                f"No utilisation model serves {batch.operation!r} in {batch.dtype!r}. Families: "
                + "; ".join(
                    f"{f.name} ({', '.join(f.operations)}; {', '.join(f.dtypes)})" for f in network_specs().values()
                )
            )
        predicted, half_widths, by_base = self._by_networks(spec, batch, gpus)
        longest = np.minimum(self._longest(batch, gpus), self._longest_of_chip(batch, gpus))
        floor = np.maximum(spec.least_seconds(batch, gpus), self._shortest_of_chip(batch, gpus))
        bounded = np.minimum(predicted, longest)
        seconds = np.maximum(bounded, floor)
        bound = roofline_seconds(batch, gpus, least=True)
        said = np.where(by_base, seconds, np.maximum(predicted, seconds))
        interval = of_network(seconds, said, half_widths, spec.upper_interval_factor(batch), bound)
        return Estimate(interval, by_base, {LESSER_GPU: clearly_less(bounded, predicted)})

    def _longest(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Array:
        """Return upper bounds on times from the base network, from measured dominated GPUs, shape (gpus, shapes)."""
        key = batch.operation, batch.dtype
        longest = np.full((len(gpus), len(batch)), np.inf)
        unmeasured = [index for index, gpu in enumerate(gpus) if not self.has_own_weights(gpu.name, *key)]
        stronger = [gpus[index] for index in unmeasured]
        dominated = [
            gpu
            for gpu in self._measured
            if self.has_own_weights(gpu.name, *key) and any(dominates(other, gpu, batch.dtype) for other in stronger)
        ]
        if dominated:
            high = self.estimate(batch, dominated).interval.high  # (dominated, shapes)
            longest[unmeasured] = upper_bound_from_dominated_gpus(stronger, dominated, high, batch.dtype)
        return longest

    def _shortest_of_chip(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Array:
        """Return lower bounds on times from the base network, from measured greater boards of the same chip."""
        shortest = np.zeros((len(gpus), len(batch)))  # (gpus, shapes)
        key = batch.operation, batch.dtype
        is_matmul = batch.operation in ("linear", "bmm")
        served = [
            row
            for row, gpu in enumerate(gpus)
            if not self.has_own_weights(gpu.name, *key)
            and not (is_matmul and batch.dtype in gpu.measured_flops_per_second)  # this board's own rate was measured
        ]
        greater = {
            other: rows
            for other in self._measured
            if self.has_own_weights(other.name, *key)
            and (rows := [row for row in served if is_lesser_board(gpus[row], other, batch.dtype)])
        }
        if greater:
            seconds = self._estimated(batch, tuple(greater)).seconds  # (greater, shapes)
            for rows, least in zip(greater.values(), seconds, strict=True):
                shortest[rows] = np.maximum(shortest[rows], least)
        return shortest

    def _longest_of_chip(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Array:
        """Return upper bounds on times of measured GPUs, from the GPUs that they outrank, shape (gpus, shapes)."""
        longest = np.full((len(gpus), len(batch)), np.inf)
        key = batch.operation, batch.dtype
        for row, gpu in enumerate(gpus):
            if self.has_own_weights(gpu.name, *key):
                for other in self._measured:
                    if self.has_own_weights(other.name, *key) and dominates_same_chip(gpu, other, batch.dtype):
                        longest[row] = np.minimum(longest[row], self.estimate(batch, [other]).seconds[0])
        return longest

    def _by_networks(self, spec: NetworkSpec, batch: ShapeBatch, gpus: Sequence[Gpu]) -> tuple[Array, Array, BoolArray]:
        """Predict seconds, interval half widths, and whether the base network was used, each (gpus, shapes)."""
        base, shape = self._weights.cross_gpu_model.families[spec.name], (len(gpus), len(batch))
        seen = [spec.unmeasured(gpu) for gpu in gpus]
        features = by_base = np.concatenate(self._features(spec, batch, gpus))  # (gpus x shapes, features)
        if seen != list(gpus):
            by_base = np.concatenate(self._features(spec, batch, seen))
        serving = [*(self._network(spec, gpu, batch) for gpu in gpus), base]
        owners = _serving(serving, np.repeat(np.arange(len(gpus)), len(batch)), features, by_base)
        is_base = np.array([network is base for network in serving], dtype=np.bool_)[owners]
        log_utilisation = predict_log_utilisations(serving, owners, np.where(is_base[:, None], by_base, features))
        widths = np.array([_half_width(network, base, batch) for network in serving])[owners].reshape(shape)
        doubts = np.array([[spec.log_uncertainty(gpu, batch.dtype)] for gpu in gpus])
        is_base = is_base.reshape(shape)
        widths = np.where(is_base, independent(widths, doubts), widths)
        floor = np.maximum(roofline_seconds(batch, gpus, least=True), spec.least_seconds(batch, gpus))
        reference = np.where(is_base, reference_seconds(batch, seen), reference_seconds(batch, gpus))
        seconds: Array = np.maximum(reference * np.exp(-log_utilisation.reshape(shape)), floor)
        return seconds, widths, is_base

    def _network(self, spec: NetworkSpec, gpu: Gpu, batch: ShapeBatch) -> NetworkWeights:
        if self.has_own_weights(gpu.name, batch.operation, batch.dtype):
            return self._weights.gpus[gpu.name].families[spec.name]
        return self._weights.cross_gpu_model.families[spec.name]

    def _features(self, spec: NetworkSpec, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Float32Array:
        names, matrix = spec.described(batch, gpus)
        for weights in (self._weights.cross_gpu_model, *self._weights.gpus.values()):
            network = weights.families.get(spec.name)
            if network is not None and network.features != names:
                raise WeightsFormatError(
                    f"The weights of {weights.gpu!r} for {spec.name!r} expect {len(network.features)} features that "
                    f"differ from the {len(names)} that this release computes. Use the weights of this release, or "
                    "train them again."
                )
        return matrix


def _half_width(network: NetworkWeights, base: NetworkWeights, batch: ShapeBatch) -> float:
    """Return the half width of a network's interval; for an untrained dtype, at least the base network's half width."""
    key = batch.operation, batch.dtype
    own = network.half_width(*key)
    return own if key in network.trained else max(own, base.half_width(*key))


def _serving(
    networks: Sequence[NetworkWeights], owners: IndexArray, rows: Float32Array, by_base: Float32Array
) -> IndexArray:
    """Choose the network of each row: the network of its GPU, or else the base network.

    The base network is chosen if only its training data contain similar rows.
    """
    base = len(networks) - 1
    serving = owners.copy()
    ends = np.searchsorted(owners, np.arange(base + 1))  # (networks,)
    for index in range(base):
        own = slice(ends[index], ends[index + 1])
        if networks[index] is networks[base]:
            continue
        unknown = ~networks[index].matches_constant_features(rows[own])
        if unknown.any():
            serving[own][unknown & networks[base].matches_constant_features(by_base[own])] = base
    return serving


def log_utilisation_of(network: NetworkWeights, features: Float32Array) -> Array:
    """Compute the log utilisation, in [log(lowest), 0], by the same network for all GPUs.

    Returns:
        Mean over the ensemble, shape (gpus, shapes).
    """
    rows = features.reshape(-1, features.shape[-1])
    return predict_log_utilisations([network], np.zeros(len(rows), dtype=np.intp), rows).reshape(features.shape[:2])


# --- Inference: many small neural networks over many rows, while the training uses the same CPU cores

# Rows are processed in blocks that fit in the cache. A block is split into strips of a few rows. The matmuls of a strip
# are so small that BLAS computes them in the calling thread. Threads of BLAS wait for each other in a busy loop, so on
# busy cores they are slower than a single thread. With many blocks, two threads of our own share the work. Threads and
# settings of other libraries are not changed.

STRIP_ROWS: Final = 16  # Rows of a strip. OpenBLAS starts threads from 2^18 multiplications: 16 rows at 128 x 128.
BLOCK_ROWS: Final = 256  # Rows of a block. Activations of four members with 128 units take half a MiB: a core's cache.

THREADS: Final = 2
THREADED_BLOCKS: Final = 16  # Minimum number of blocks for threads. Starting them takes as long as one or two blocks.


def predict_log_utilisations(networks: Sequence[NetworkWeights], owners: IndexArray, rows: Float32Array) -> Array:
    """Compute the log utilisation, in [log(lowest), 0], averaged over each ensemble.

    Args:
        networks: Ensembles, which may repeat.
        owners: Index of the ensemble of each row, shape (rows,).
        rows: Features, shape (rows, features).

    Returns:
        Shape (rows,). The value of a row does not depend on other rows.
    """
    distinct = {id(network): network for network in networks}
    number = {key: index for index, key in enumerate(distinct)}
    numbers = np.array([number[id(network)] for network in networks], dtype=np.intp)[owners]  # (rows,)
    blocks = [
        (network, own[start : start + BLOCK_ROWS])
        for index, network in enumerate(distinct.values())
        for own in [np.flatnonzero(numbers == index)]
        for start in range(0, len(own), BLOCK_ROWS)
    ]
    result = np.empty(len(rows))

    def fill(task: tuple[NetworkWeights, IndexArray]) -> None:
        network, block = task
        result[block] = _log_utilisation(network, rows[block])

    if len(blocks) < THREADED_BLOCKS:
        for task in blocks:
            fill(task)
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fill, blocks))
    return result


def _log_utilisation(network: NetworkWeights, rows: Float32Array) -> Array:
    """Compute one block, shape (rows, features); its rows are padded to whole strips."""
    strips = -(-len(rows) // STRIP_ROWS)
    inputs = np.zeros((strips * STRIP_ROWS, rows.shape[1]), np.float32)
    np.clip(rows, network.low, network.high, out=inputs[: len(rows)])
    inputs -= network.mean
    inputs /= network.scale
    values = inputs.reshape(1, strips, STRIP_ROWS, -1)  # all members share the same rows
    for index, layer in enumerate(network.layers):
        values = np.matmul(values, layer.weight[:, None])  # (members, strips, STRIP_ROWS, lanes)
        values += layer.bias[:, None, None, :]
        if index < len(network.layers) - 1:
            np.maximum(values, 0.0, out=values)
    outputs = values.reshape(values.shape[0], -1)[:, : len(rows)]  # (members, rows)
    share = 1.0 / (1.0 + np.exp(np.clip(-outputs, -60.0, 60.0)))
    mean: Array = np.log(network.lowest_utilisation) * share.mean(axis=0, dtype=np.float64)
    return mean
