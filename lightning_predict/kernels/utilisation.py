"""Utilisation models: seconds of many problems on many GPUs, with a 90 % interval, in numpy.

`seconds = reference / utilisation`. The reference (`features.reference_seconds`) is a time that no kernel beats; the
utilisation is the geometric mean of a small ensemble of networks, each bounded by 1 above and by the lowest that was
measured below. Features are kept inside the range that was trained on, so shapes far outside it get the utilisation of
its edge and a time that still follows the roofline; products are held to their larger neighbours (`monotonicity.py`).

A GPU without measurements is no slower than a measured one that it beats in every figure: the base may err where no GPU
like the one asked for was measured; a lesser GPU's own measurements then say what is slow enough. Its 90 % interval is
granted on top, because its measurements may be of a throttled card. Nor is it slower than the base says of the same GPU
with every figure a third less, and a third less again, but for half of the interval: where the tables show only
launches, the base wavers between GPUs that never were. Example::

    >>> from lightning_predict.gpus import gpu
    >>> from lightning_predict.kernels.operations import problem_batch
    >>> from lightning_predict.weights.store import load_weights
    >>> models = UtilisationModels(load_weights(["H100-SXM-80GB"]))
    >>> batch = problem_batch("linear", "bfloat16", m=4096, n=4096, k=4096)
    >>> 0.15e-3 < float(models.estimate(batch, [gpu("H100-SXM-80GB")]).seconds[0, 0]) < 0.19e-3
    True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Final, Literal, final

import numpy as np

from lightning_predict.errors import UnknownOperationError, WeightsFormatError
from lightning_predict.gpus import gpu as find_gpu
from lightning_predict.gpus import gpu_names
from lightning_predict.gpus.records import Gpu
from lightning_predict.interval import Interval
from lightning_predict.kernels.arrays import BoolArray, IndexArray
from lightning_predict.kernels.features import reference_seconds
from lightning_predict.kernels.monotonicity import MOST_UTILISATION, held_by_monotonicity
from lightning_predict.kernels.networks import log_utilisations
from lightning_predict.kernels.operations import Array, Family, ProblemBatch, families, family_of
from lightning_predict.kernels.roofline import roofline_seconds, sustaining
from lightning_predict.kernels.timing import Estimate
from lightning_predict.weights.records import Float32Array, LoadedWeights, NetworkWeights

NETWORK_LIMITS: Final = ("a larger problem", "a measured GPU of lesser figures", "the same GPU with weaker figures")
"""What the times of networks are held to, in this order: who multiplies may pad, and the base, which saw no measurement
of a GPU, may not call it slower than one that it beats in every figure. What holds whatever the source is, follows in
`timing.LIMITS`."""

OTHER_HALF: Final[Mapping[str, str]] = {"float16": "bfloat16", "bfloat16": "float16"}
"""The 16-bit dtype that the same units compute."""

CARRIED_SCATTER: Final = 0.15
"""Size from which on half is believed, in one 16-bit dtype, of what a GPU's own products in the other say over the base
(a logarithm). An assumption: bases err by 8 to 18 % on GPUs that they did not see. The L40S's own products in bfloat16
take 1.3 to 1.45 times the base's time, as its power lasts for no more, and nobody measured it in float16. With this
milabench's steps in float16 with large products come from 7 to 20 % too fast to 2 to 15 (BERT, ConvNeXt on the L40S;
nothing was fitted to them). On the H100-SXM, which has both, float16's own products from 1,024 on are 3 to 7 % from the
base's times and 5 to 11 % from what bfloat16's say in full: within what networks err by there is nothing to carry."""

WEAKER: Final = (1.5, 2.25)
"""How much stronger a GPU must be, in every figure, before the base may not call it slower. The second is the first
twice: where one rise follows another, both are taken back."""


def beats(gpu: Gpu, other: Gpu, dtype: str) -> bool:
    """Return whether no figure that decides a kernel's time is below the other's; power counts, since it throttles."""
    return all(own >= its for own, its in zip(_figures(gpu, dtype), _figures(other, dtype), strict=True))


@lru_cache(maxsize=4096)  # asked for again by every family
def weakened(gpu: Gpu, factor: float) -> Gpu:
    """Divide every figure of the GPU by the factor."""
    return replace(
        gpu,
        streaming_multiprocessors=max(round(gpu.streaming_multiprocessors / factor), 1),
        base_clock_hz=gpu.base_clock_hz / factor,
        boost_clock_hz=gpu.boost_clock_hz / factor,
        highest_clock_hz=gpu.highest_clock_hz / factor,
        peak_flops_per_second={dtype: peak / factor for dtype, peak in gpu.peak_flops_per_second.items()},
        measured_flops_per_second={dtype: rate / factor for dtype, rate in gpu.measured_flops_per_second.items()},
        dram_bytes_per_second=gpu.dram_bytes_per_second / factor,
        l2_bytes=gpu.l2_bytes / factor,
        l2_bytes_per_second=gpu.l2_bytes_per_second / factor,
        memory_bytes=gpu.memory_bytes / factor,
        power_watts=gpu.power_watts / factor,
    )


@lru_cache(maxsize=4096)
def _figures(gpu: Gpu, dtype: str) -> tuple[float, ...]:
    major, minor = gpu.compute_capability
    return (
        gpu.streaming_multiprocessors,
        gpu.boost_clock_hz,
        gpu.peak(dtype) or 0.0,
        sustaining(gpu).peak(dtype) or 0.0,
        gpu.dram_bytes_per_second,
        gpu.l2_bytes,
        gpu.l2_bytes_per_second,
        gpu.power_watts,
        10 * major + minor,
    )


def longest_seconds(gpus: Sequence[Gpu], lesser: Sequence[Gpu], high_seconds: Array, dtype: str) -> Array:
    """Find the upper end of the interval of the fastest GPU that each one beats.

    Args:
        gpus: GPUs without measurements.
        lesser: GPUs with measurements.
        high_seconds: Upper ends of the latter, shape (lesser, problems).
        dtype: What is computed in.

    Returns:
        Shape (gpus, problems); infinite where a GPU beats none of them.
    """
    beaten = np.array([[beats(gpu, other, dtype) for other in lesser] for gpu in gpus], dtype=np.bool_)
    limits = np.where(beaten.reshape(len(gpus), len(lesser), 1), high_seconds[None], np.inf)  # (gpus, lesser, problems)
    least: Array = limits.min(axis=1, initial=np.inf)
    return least


@final
class UtilisationModels:
    """The networks of a set of GPUs, ready to predict."""

    def __init__(self, weights: LoadedWeights) -> None:
        self._weights = weights
        known = set(gpu_names())
        self._measured = tuple(find_gpu(name) for name in weights.gpus if name in known)

    def supports(self, operation: str, dtype: str) -> bool:
        """Return whether a model serves this operation and dtype on every GPU."""
        family = family_of(operation, dtype)
        return family is not None and family.name in self._weights.base.families

    def trained_on(self, operation: str, dtype: str) -> bool:
        """Return whether any GPU's measurements of this operation in this dtype were trained on."""
        family = family_of(operation, dtype)
        if family is None:
            return False
        for one in (self._weights.base, *self._weights.gpus.values()):
            network = one.families.get(family.name)
            if network is not None and (operation, dtype) in network.trained:
                return True
        return False

    def timed_by(self, operation: str, dtype: str) -> Literal["mlp", "bytes", "proxy"]:
        """Say how networks know an operation: trained on it, as the bytes that it moves, or through a relative."""
        if self.trained_on(operation, dtype):
            return "mlp"
        return "bytes" if operation == "transfer" else "proxy"

    def has_own_weights(self, gpu_name: str, operation: str, dtype: str) -> bool:
        """Return whether this GPU's weights were trained on its own measurements of this operation and dtype."""
        family = family_of(operation, dtype)
        own = self._weights.gpus.get(gpu_name)
        if family is None or own is None or family.name not in own.families:
            return False
        return (operation, dtype) in own.families[family.name].trained

    def estimate(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Time each problem on each GPU, by its own weights where it has them, else by the base.

        By how much a GPU's own products in one 16-bit dtype are slower than the base says is carried to the other: its
        clocks or its power do not last.

        Raises:
            UnknownOperationError: No model serves the operation in this dtype (see `supports`).
            WeightsFormatError: The weights expect other features than this release computes.
        """
        found = self._estimated(batch, gpus)
        other = OTHER_HALF.get(batch.dtype)
        if other is None or batch.operation != "linear":
            return found
        rows = [row for row, gpu in enumerate(gpus) if self._knows_other_half(gpu, batch.dtype, other)]
        if not rows:
            return found
        cards, twin = [gpus[row] for row in rows], replace(batch, dtype=other)
        ratio = self._estimated(twin, cards).seconds / self._by_base._estimated(twin, cards).seconds
        said = np.maximum(np.log(ratio), 0.0)
        factor = np.ones(found.seconds.shape)
        factor[rows] = np.exp(said * said**2 / (said**2 + CARRIED_SCATTER**2))
        return replace(found, interval=found.interval.scaled(factor))

    def _knows_other_half(self, gpu: Gpu, dtype: str, other: str) -> bool:
        """Return whether the GPU's own products were measured in the other 16-bit dtype alone, on the same units."""
        is_known = {one: self.has_own_weights(gpu.name, "linear", one) for one in (dtype, other)}
        has_both = {dtype, other} <= gpu.peak_flops_per_second.keys() - gpu.emulated_dtypes
        return has_both and is_known[other] and not is_known[dtype]

    @cached_property
    def _by_base(self) -> UtilisationModels:
        """The same without any GPU's own weights."""
        return UtilisationModels(replace(self._weights, gpus={}))

    def _estimated(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Time each problem on each GPU by the networks of its dtype alone."""
        family = family_of(batch.operation, batch.dtype)
        if family is None or family.name not in self._weights.base.families:
            raise UnknownOperationError(
                f"No utilisation model serves {batch.operation!r} in {batch.dtype!r}. Families: "
                + "; ".join(f"{f.name} ({', '.join(f.operations)}; {', '.join(f.dtypes)})" for f in families().values())
            )
        networks = [self._network(family, gpu, batch) for gpu in gpus]

        def timed(problems: ProblemBatch, wanted: BoolArray) -> Array:
            return self._wanted_seconds(family, networks, problems, gpus, wanted)[0]

        everything = np.ones((len(gpus), len(batch)), dtype=np.bool_)
        flat, half_widths, by_base = self._wanted_seconds(family, networks, batch, gpus, everything)
        predicted = flat.reshape(everything.shape)  # (gpus, problems)
        larger = held_by_monotonicity(family, batch, gpus, predicted, timed)
        lesser = np.minimum(larger, self._longest(batch, gpus))
        # What a rule of its own slows down is slower than the next larger problem.
        floor = family.least_seconds(batch, gpus)
        seconds = np.maximum(self._held_to_weaker(family, batch, gpus, lesser), floor)
        steps = zip(NETWORK_LIMITS, (predicted, larger, lesser), (larger, lesser, seconds), strict=True)
        bound = roofline_seconds(batch, gpus, least=True)
        spread = np.exp(half_widths).reshape(everything.shape)  # (gpus, problems)
        high = seconds * spread * np.where(floor >= seconds, family.floor_spread, 1.0)
        interval = Interval(np.maximum(seconds / spread, bound), seconds, high)
        held = {name: after < before for name, before, after in steps}
        return Estimate(interval, by_base.reshape(everything.shape), held)

    def _longest(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Array:
        """Bound the seconds of GPUs that the base serves by measured GPUs of lesser figures, (gpus, problems)."""
        key = batch.operation, batch.dtype
        longest = np.full((len(gpus), len(batch)), np.inf)
        unmeasured = [index for index, gpu in enumerate(gpus) if not self.has_own_weights(gpu.name, *key)]
        stronger = [gpus[index] for index in unmeasured]
        lesser = [
            gpu
            for gpu in self._measured
            if self.has_own_weights(gpu.name, *key) and any(beats(other, gpu, batch.dtype) for other in stronger)
        ]
        if lesser:
            high = self.estimate(batch, lesser).interval.high  # (lesser, problems)
            longest[unmeasured] = longest_seconds(stronger, lesser, high, batch.dtype)
        return longest

    def _held_to_weaker(self, family: Family, batch: ProblemBatch, gpus: Sequence[Gpu], seconds: Array) -> Array:
        """Cap the seconds of GPUs that the base serves at those of the same GPU with weaker figures."""
        base = self._weights.base.families[family.name]
        slack = math.exp(base.half_width(batch.operation, batch.dtype) / 2)
        served = np.array([[not self.has_own_weights(gpu.name, batch.operation, batch.dtype)] for gpu in gpus])
        held = seconds.copy()
        for factor in WEAKER:
            weaker = [weakened(gpu, factor) for gpu in gpus]
            # Where even the reference of the weaker one is slower, nothing needs to be computed.
            seen = [family.unmeasured(gpu) for gpu in weaker]
            wanted = served & (slack * reference_seconds(batch, seen) < MOST_UTILISATION * held)
            if wanted.any():
                limits = slack * self._wanted_seconds(family, [base] * len(gpus), batch, weaker, wanted)[0]
                held[wanted] = np.minimum(held[wanted], limits)
        return held

    def _wanted_seconds(
        self,
        family: Family,
        networks: Sequence[NetworkWeights],
        batch: ProblemBatch,
        gpus: Sequence[Gpu],
        wanted: BoolArray,
    ) -> tuple[Array, Array, BoolArray]:
        """Time where the mask asks: seconds, half width of their interval, where the base served; all flat.

        Each is by the network of its GPU; by the base where that GPU's own knows nothing like the problem.
        """
        rows, columns = np.flatnonzero(wanted.any(axis=1)), np.flatnonzero(wanted.any(axis=0))
        asked = wanted[np.ix_(rows, columns)]  # (cards, part)
        part = ProblemBatch(
            batch.operation, batch.dtype, {word: values[columns] for word, values in batch.columns.items()}
        )
        cards = [gpus[int(row)] for row in rows]
        seen = [family.unmeasured(gpu) for gpu in cards]
        features = by_base = self._features(family, part, cards)[asked]  # (asked, features)
        if seen != cards:
            by_base = self._features(family, part, seen)[asked]
        serving = [*(networks[int(row)] for row in rows), self._weights.base.families[family.name]]
        owners = _serving(serving, np.nonzero(asked)[0], features, by_base)  # (asked,)
        is_base = np.array([network is serving[-1] for network in serving], dtype=np.bool_)[owners]
        log_utilisation = log_utilisations(serving, owners, np.where(is_base[:, None], by_base, features))
        widths = np.array([network.half_width(batch.operation, batch.dtype) for network in serving])[owners]
        doubts = np.array([family.doubt(gpu, batch.dtype) for gpu in cards])[np.nonzero(asked)[0]]
        widths = np.where(is_base, np.hypot(widths, doubts), widths)
        floor = np.maximum(roofline_seconds(part, cards, least=True), family.least_seconds(part, cards))
        reference = np.where(is_base, reference_seconds(part, seen)[asked], reference_seconds(part, cards)[asked])
        seconds: Array = np.maximum(reference * np.exp(-log_utilisation), floor[asked])
        return seconds, widths, is_base

    def _network(self, family: Family, gpu: Gpu, batch: ProblemBatch) -> NetworkWeights:
        if self.has_own_weights(gpu.name, batch.operation, batch.dtype):
            return self._weights.gpus[gpu.name].families[family.name]
        return self._weights.base.families[family.name]

    def _features(self, family: Family, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Float32Array:
        names, matrix = family.described(batch, gpus)
        for weights in (self._weights.base, *self._weights.gpus.values()):
            network = weights.families.get(family.name)
            if network is not None and network.features != names:
                raise WeightsFormatError(
                    f"The weights of {weights.gpu!r} for {family.name!r} expect {len(network.features)} features that "
                    f"differ from the {len(names)} that this release computes. Use the weights of this release, or "
                    "train them again."
                )
        return matrix


def _serving(
    networks: Sequence[NetworkWeights], owners: IndexArray, rows: Float32Array, by_base: Float32Array
) -> IndexArray:
    """Choose the network of each row: its GPU's, or the last, the base, where only that knows problems like it.

    Args:
        networks: One per GPU, and the base.
        owners: GPU of each row, ascending, shape (rows,).
        rows: Features, shape (rows, features).
        by_base: The same as the base sees the GPUs.
    """
    base = len(networks) - 1
    serving = owners.copy()
    ends = np.searchsorted(owners, np.arange(base + 1))  # (networks,)
    for index in range(base):
        own = slice(ends[index], ends[index + 1])
        if networks[index] is networks[base]:
            continue
        unknown = ~networks[index].knows(rows[own])
        if unknown.any():
            serving[own][unknown & networks[base].knows(by_base[own])] = base
    return serving


def log_utilisation_of(network: NetworkWeights, features: Float32Array) -> Array:
    """Compute the natural logarithm of the utilisation, in [log(lowest), 0], by one network on every GPU.

    Args:
        network: The ensemble.
        features: Shape (gpus, problems, features).

    Returns:
        Mean over the ensemble, shape (gpus, problems).
    """
    rows = features.reshape(-1, features.shape[-1])
    return log_utilisations([network], np.zeros(len(rows), dtype=np.intp), rows).reshape(features.shape[:2])
