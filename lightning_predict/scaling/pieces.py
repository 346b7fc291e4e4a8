"""What a shared step is put together from: pieces of the simulated step, and collectives on a layout's links.

Example::

    cutter = Cutter(simulated, row, factors)
    cutter.pieces([120, 340])  # until operation 120, from there to 340, and the rest
    Links(layout, CATALOGUE, slowdown=2.0).collective("all_reduce", [25e6])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lightning_predict.gpus.layouts import Layout
from lightning_predict.kernels.fabric import CATALOGUE, Interconnect, collective
from lightning_predict.kernels.operations import Array
from lightning_predict.timeline.launching import COMPUTE_STREAM
from lightning_predict.timeline.simulation import Simulated

Ends = Array
"""Low end, middle and high end of a 90 % interval, shape (3,)."""

MACHINE_SPREAD: Final = 2.5
"""Factor up and down around a collective, on machines that nobody measured: of the published machines whose links are
there at all, nine in ten lie within it (`python -m benchmarks.accuracy` prints their bandwidths)."""


@final
class Cutter:
    """Cuts the simulated step of one GPU into pieces, at each end of its interval.

    Args:
        simulated: The step, a row a GPU.
        row: The GPU.
        factors: By what the simulated times are multiplied.
        exposed: Collectives inside the model that make the passes longer; None without.
    """

    def __init__(self, simulated: Simulated, row: int, factors: Ends, exposed: Ends | None = None) -> None:
        on_compute = simulated.kernel_streams == COMPUTE_STREAM
        self._owners = simulated.kernel_owners[on_compute]
        ends = (simulated.kernel_starts + simulated.kernel_seconds)[row, on_compute]
        self._ends = np.maximum.accumulate(ends - simulated.begins[row]) if len(ends) else ends
        self._total = float(simulated.seconds[row])
        self._busy = simulated.busy[row]
        self._factors, self._exposed = factors, exposed

    def pieces(self, cuts: Sequence[int]) -> list[Array]:
        """Time between cuts (ascending numbers of operations), from the beginning of the step to its end.

        Collectives inside the model, which stand in the way, are spread over all pieces but that behind the last cut.
        """
        kernels = np.searchsorted(self._owners, np.asarray(cuts))
        moments = [float(self._ends[count - 1]) if count else 0.0 for count in kernels]
        bounded = np.clip([0.0, *moments, self._total], 0.0, self._total)
        durations = [duration * self._factors for duration in np.diff(bounded)]
        if self._exposed is None:
            return durations
        passes = max(len(durations) - 1, 1)
        stretch = 1 + self._exposed / sum(durations[:passes])
        return [duration * stretch for duration in durations[:passes]] + durations[passes:]

    def busy(self, begin: int) -> Ends:
        """Time in which the operations from `begin` on keep the device busy."""
        seconds: Ends = float(self._busy[begin:].sum()) * self._factors
        return seconds


@final
@dataclass(frozen=True, slots=True)
class Links:
    """A layout and what is known of its links.

    Attributes:
        layout: The GPUs that communicate.
        interconnect: What is known of the links.
        slowdown: Time of a collective beside other work over that of the same collective alone.
        groups_per_node: Such groups in each machine, which share its network.
    """

    layout: Layout
    interconnect: Interconnect
    slowdown: float
    groups_per_node: int = 1

    def collective(self, operation: str, sizes: Sequence[float], *, groups_per_node: int = 1) -> list[Ends]:
        """Low end, middle and high end of each message's time.

        Args:
            operation: See `kernels/fabric.py`.
            sizes: Bytes of each message.
            groups_per_node: Groups within each of those in a machine.
        """
        if not sizes:
            return []
        found = collective(
            operation,
            sizes,
            self.layout,
            interconnect=self.interconnect,
            groups_per_node=self.groups_per_node * groups_per_node,
        )
        spread = MACHINE_SPREAD if self.interconnect == CATALOGUE else 1.0
        ends = [found.low_seconds / spread, found.seconds, found.high_seconds * spread]
        return list(self.slowdown * np.stack(ends, axis=1))
