"""Copies, and operations with known bytes only.

`transfer` is the general operation, counted in bytes. Example::

    >>> from lightning_predict.kernels.operations import shape_batch
    >>> float(shape_batch("cast", "float32", rows=2, cols=3).bytes_moved[0])  # 4 bytes read, 2 written
    36.0
"""

from __future__ import annotations

from dataclasses import replace

from lightning_predict.hardware.records import Gpu
from lightning_predict.kernels.families.elementwise import STREAMED, VECTOR, as_transfer, by_element
from lightning_predict.kernels.memory_bound import UNTRANSLATED
from lightning_predict.kernels.operations import (
    Array,
    OperationSpec,
    RooflineEfficiency,
    ShapeBatch,
    by_bytes,
    register,
)
from lightning_predict.kernels.roofline import DELIVERED_SHARE, VECTORIZED, host_copy_rate
from lightning_predict.uncertainty import UNKNOWN_SPREAD


def _host_copy_latency(batch: ShapeBatch, gpu: Gpu) -> Array:
    seconds: Array = batch.bytes_read / host_copy_rate(gpu)
    return seconds


register(
    replace(by_bytes("transfer"), estimators=(VECTOR,)),
    replace(by_bytes(VECTORIZED), estimators=(VECTOR, STREAMED)),
    replace(by_bytes("stream"), estimators=(RooflineEfficiency(share=DELIVERED_SHARE),)),
    # Bytes of a call whose translator failed. The spread is wide, because the work is unknown: an addmm timed by its
    # bytes was 42 times faster than a matmul of equal size.
    replace(by_bytes(UNTRANSLATED), estimators=(RooflineEfficiency(spread=UNKNOWN_SPREAD**2),)),
    OperationSpec(
        name="host_copy",
        shape=("size_bytes",),
        units="link",
        flops=lambda c: 0 * c["size_bytes"],
        reads=lambda c: c["size_bytes"],  # once over the link
        element_bytes=1,
        latency=_host_copy_latency,
    ),
    by_element("concat", 1, 1),
    by_element("copy", 1, 1),
    by_element("gather", 1, 1),
    by_element("scatter", 1, 2),  # the existing values are read with their sectors
    OperationSpec(
        name="cast",
        shape=("rows", "cols", "source_bytes", "target_bytes"),
        defaults={"source_bytes": 4, "target_bytes": 2},
        units="vector",
        flops=lambda c: c["rows"] * c["cols"],
        reads=lambda c: c["rows"] * c["cols"] * c["source_bytes"],
        writes=lambda c: c["rows"] * c["cols"] * c["target_bytes"],
        element_bytes=1,
        estimators=(as_transfer(),),
    ),
)
