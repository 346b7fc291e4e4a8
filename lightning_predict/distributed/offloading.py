"""Keep the optimizer's state in the memory of the host (ZeRO-Offload, Ren et al., 2021): the processor updates.

Gradients go down to the host, new parameters up again, over each GPU's own PCIe link; the processor reads and writes
the state of its machine's GPUs. Gradients go down behind the backward pass; the update and the way up stand behind it.
Example::

    update_seconds(trained_bytes=1e9, state_bytes=6e9, gpu=gpu("A100-SXM-80GB"), gpus_per_node=8)
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_predict.distributed.overlap import Ends
from lightning_predict.gpus.records import Gpu
from lightning_predict.units import gigabytes_to_bytes

HOST_BYTES_PER_SECOND: Final = gigabytes_to_bytes(200)
"""Memory bandwidth that the update reaches on the processors of a machine. An assumption: half of what two sockets with
eight channels of DDR4-3200 have."""

PCIE_SHARE: Final = 0.8
"""Share of a PCIe link's rate that copies from pinned memory reach. An assumption."""

OPTIMIZER_STATES, STATE_BYTES = 3, 4
"""Adam's two moments and the copy of the parameters that it updates, in float32."""

HOST_SPREAD: Final = 2.0
"""Factor up and down, as machines differ in memory channels and processors. An assumption."""


def update_seconds(*, trained_bytes: float, state_bytes: float, gpu: Gpu, gpus_per_node: int) -> Ends:
    """Return the seconds of an update on the host; (low, middle, high).

    Args:
        trained_bytes: One GPU's share of the parameters, which go up, and of the gradients, which went down.
        state_bytes: Its share of the optimizer's state, copies of the parameters included, read and written once.
        gpu: For its link.
        gpus_per_node: GPUs whose shares one machine's processors update.
    """
    copying = trained_bytes / (PCIE_SHARE * gpu.pcie_bytes_per_second)
    traffic = 2 * state_bytes + trained_bytes  # state in both directions, gradients in one
    computing = traffic * gpus_per_node / HOST_BYTES_PER_SECOND
    return (copying + computing) * np.array([1 / HOST_SPREAD, 1.0, HOST_SPREAD])
