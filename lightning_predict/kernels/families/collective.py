"""NCCL collectives among the GPUs of one node: bytes sent, and measured curves of time over message size.

The time of a message of m bytes on n GPUs has three regions: a constant latency, a transition, and m / bandwidth. One
curve of points at powers of two covers all three regions. GPUs with measurements have their own curves. Other GPUs use
the curves of the measured GPU with the same kind of link (NVLink, PCIe with peer access, PCIe without) and the nearest
bandwidth. The message size is scaled by the ratio of the bandwidths. The latency therefore stays constant, and only the
bandwidth-bound part scales.

Without peer access, every byte passes through host memory. With more than two GPUs, they share its bandwidth, and the
measured machine's time is a lower bound, even for a card with a faster link. `m` is the size of the whole message in
bytes, as in nccl-tests (measurement tables store it as `message_elements` of two bytes). Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> float(shape_batch("all_reduce", "float16", num_gpus=8, message_bytes=1024).bytes_moved[0])  # 7/8 of it
    896.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from lightning_predict.base.checked import Checked, File, parse_json
from lightning_predict.base.errors import CatalogueError
from lightning_predict.base.interval import Interval
from lightning_predict.base.ties import least
from lightning_predict.base.units import microseconds_to_seconds
from lightning_predict.hardware import gpu as find_gpu
from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.operations import COLLECTIVES, Array, Columns, OperationSpec, ShapeBatch, register
from lightning_predict.kernels.roofline import link_bandwidth, roofline_seconds
from lightning_predict.kernels.timing import Estimate, TimedBy
from lightning_predict.uncertainty import FORMULA_SPREAD

MEASURED_SUBSTITUTE: Final = {"broadcast": "all_gather"}
"""Maps each unmeasured collective to a measured collective with the same time per byte sent over a link.

A broadcast sends the whole message over a link. An all_gather sends the message without the GPU's own share."""

CURVES_FILE: Final = Path(__file__).parents[2] / "weights" / "files" / "collectives.json"
NVLINK_MESH_ARCHITECTURES: Final = frozenset({"pascal", "volta"})
"""Architectures whose machines connect eight GPUs by NVLink without a switch (the cube mesh of the DGX-1).

A pair of GPUs is connected by one or two of a GPU's four or six links, so the bandwidth depends on the number of
GPUs."""


def _bytes_over_the_link(c: Columns) -> Array:
    """Return the bytes that one GPU sends: all except its own share (for all_reduce, the switch reduces)."""
    return c["message_bytes"] * (c["num_gpus"] - 1) / c["num_gpus"]


register(
    *(
        OperationSpec(
            name=name,
            shape=("num_gpus", "message_bytes"),
            defaults={},
            units="fabric",
            flops=lambda c: np.zeros_like(c["message_bytes"]),
            reads=_bytes_over_the_link,
            element_bytes=1,
        )
        for name in COLLECTIVES
    )
)


@dataclass(frozen=True)
class CollectiveCurves:
    """Measured curves of log(seconds) over message size, at sizes that are powers of two."""

    log_sizes: Array  # Natural logarithm of the sizes in bytes, ascending, shape (points,)
    # log(seconds) by GPU, collective and number of GPUs, shape (points,)
    curves: Mapping[str, Mapping[str, Mapping[int, Array]]]
    half_width: float  # Half width of the 90 % interval in log(seconds), for message sizes outside the fit
    # (GPU, collective) of each curve that was derived from the same GPU's all_reduce, without a measurement
    derived: frozenset[tuple[str, str]] = frozenset()
    # GPUs that were measured in a machine without peer access, where every byte passes through host memory
    staged: frozenset[str] = frozenset()

    def supports(self, operation: str, _dtype: str) -> bool:
        """Return whether the operation is a collective. The dtype does not matter."""
        return operation in COLLECTIVES

    def timed_by(self, operation: str, _dtype: str) -> TimedBy:
        """Return how the collective is timed: `mlp` by its own measured curve, `proxy` by another collective's."""
        return "proxy" if operation in MEASURED_SUBSTITUTE else "mlp"

    def has_own_weights(self, gpu_name: str, _operation: str, _dtype: str) -> bool:
        """Return whether this GPU's own collectives were measured."""
        return gpu_name in self.curves

    def estimate(self, batch: ShapeBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Estimate seconds with their 90 % interval, shape (gpus, shapes). Unmeasured GPUs have wider intervals."""
        seconds = np.stack([self._seconds(batch, target) for target in gpus])  # (gpus, shapes)
        fitted = np.array([self._is_measured(batch.operation, target) for target in gpus])[:, None]  # (gpus, 1)
        spread = np.exp(self.half_width) * np.where(fitted, 1.0, FORMULA_SPREAD)
        bound = roofline_seconds(batch, gpus, least=True)
        seconds = np.maximum(seconds, bound)
        return Estimate(Interval.from_factor(seconds, spread).clamp_min(bound))

    def _is_measured(self, operation: str, target: Gpu) -> bool:
        own = MEASURED_SUBSTITUTE.get(operation, operation)
        return target.name in self.curves and (target.name, own) not in self.derived

    def _seconds(self, batch: ShapeBatch, target: Gpu) -> Array:
        source, scale = self._source(target)
        by_count = self.curves[source][MEASURED_SUBSTITUTE.get(batch.operation, batch.operation)]
        counts = np.array(sorted(by_count), dtype=np.float64)  # (counts,)
        wanted = batch.columns["num_gpus"]
        log_messages = np.log(batch.columns["message_bytes"])  # (shapes,)
        if batch.operation == "broadcast":
            log_messages = log_messages + np.log(np.maximum(wanted, 2.0) / (np.maximum(wanted, 2.0) - 1))
        scaled = [on_curve(self.log_sizes, by_count[int(count)], log_messages + np.log(scale)) for count in counts]
        if source in self.staged and target.name not in self.curves:
            staged = [on_curve(self.log_sizes, by_count[int(count)], log_messages) for count in counts]
            scaled = [scaled[0], *(np.maximum(scaled[0], shared) for shared in staged[1:])]
        inside = np.minimum(wanted, counts[-1])
        seconds: Array = np.exp(_between_counts(counts, np.stack(scaled), inside))
        # Beyond the measured number of GPUs, bus bandwidth is taken as constant. 64 GB300 of a rack reach 655 GB/s in
        # all_gather and 750 GB/s in all_reduce (XLA's table, 1 GiB); 4 GB300 reach 582 and 643 GB/s.
        seconds *= np.where(wanted > inside, (1 - 1 / np.maximum(wanted, 2.0)) / (1 - 1 / np.maximum(inside, 2.0)), 1.0)
        return seconds

    def _source(self, target: Gpu) -> tuple[str, float]:
        """Return the measured GPU whose curves are used for a GPU, and the factor on the message size."""
        if target.name in self.curves:
            return target.name, 1.0
        wanted = _kind(target, has_peer_access=target.has_peer_access)
        of_kind = [
            name for name in self.curves if _kind(find_gpu(name), has_peer_access=name not in self.staged) == wanted
        ]
        own = link_bandwidth(target)
        nearest = least(of_kind, lambda name: abs(math.log(link_bandwidth(find_gpu(name)) / own)))
        return nearest, link_bandwidth(find_gpu(nearest)) / own


MARGINAL_SHARE: Final = (0.9, 1.03)
"""Bounds on the time per additional byte beyond the largest measured message, relative to the mean time per byte.

The mean is over the largest measured message. With these bounds, the bus bandwidth at eight times this size changes
by
-3 to +10 %. Published machines with NVLink gain 5 to 9 % from 512 MiB to 4 GiB."""


def on_curve(log_sizes: Array, curve: Array, log_messages: Array) -> Array:
    """Interpolate a curve, constant below the smallest size, and linear beyond the largest size.

    Args:
        log_sizes: Natural logarithm of the curve's sizes, ascending, shape (points,).
        curve: log(seconds) at the curve's sizes, shape (points,).
        log_messages: Natural logarithm of the requested sizes, shape (messages,).
    """
    values: Array = np.interp(log_messages, log_sizes, curve)
    beyond: Array = np.maximum(log_messages - log_sizes[-1], 0.0)
    if len(curve) < 2:
        values += beyond
        return values
    before = np.exp(log_sizes[-2] - log_sizes[-1])  # second-largest size, relative to the largest
    last = (1 - np.exp(curve[-2] - curve[-1])) / (1 - before)
    values += np.log1p(np.clip(last, *MARGINAL_SHARE) * np.expm1(beyond))
    return values


def _kind(target: Gpu, *, has_peer_access: bool) -> tuple[bool, bool, bool]:
    """Return the kind of a GPU's links: has NVLink, has peer access, is a mesh without a switch."""
    has_nvlink = target.nvlink_bytes_per_second is not None
    return has_nvlink, has_peer_access, has_nvlink and target.architecture in NVLINK_MESH_ARCHITECTURES


def _between_counts(counts: Array, at_counts: Array, wanted: Array) -> Array:
    """Interpolate log(seconds) over log(number of GPUs), within the measured range.

    A single GPU sends nothing, so it gets the time of the smallest group at the smallest message, and a lower bound of
    0.
    """
    x, position = np.log(counts), np.log(np.maximum(wanted, 1.0))
    upper = np.clip(np.searchsorted(x, position), 1, len(x) - 1)
    columns = np.arange(len(wanted))
    share = (position - x[upper - 1]) / (x[upper] - x[upper - 1])
    low, high = at_counts[upper - 1, columns], at_counts[upper, columns]
    between: Array = low + share * (high - low)
    return between


def _texts(value: Checked) -> tuple[str, ...]:
    return value.texts()


def _count(times: Checked, key: str) -> int:
    return replace(times, value=key).parsed().integer(minimum=2)


@cache
def bundled_curves(path: Path = CURVES_FILE) -> CollectiveCurves:
    """Read the curves that come with the package."""
    file = File(str(path), CatalogueError, "Reinstall the package, or train the collective curves again.")
    try:
        document = parse_json(path.read_bytes(), file)
    except OSError as error:
        raise file.error_at(f"cannot be read ({error}).") from error
    microsecond = microseconds_to_seconds(1.0)
    sizes = np.log([size.positive() for size in document.member("message_bytes").items()])
    curves = {
        name: {
            operation: {
                _count(times, count): np.log([microsecond * time.positive() for time in times.items(length=len(sizes))])
                for count, times in by_count.members().items()
            }
            for operation, by_count in operations.members().items()
        }
        for name, operations in document.member("microseconds").members().items()
    }
    derived = frozenset(
        (gpu, operation)
        for gpu, _, operation in (pair.partition(" ") for pair in document.optional("derived", _texts, ()))
    )
    staged = frozenset(document.optional("without_peer_access", _texts, ()))
    return CollectiveCurves(sizes, curves, float(document.member("half_width_90").number()), derived, staged)
