"""The GPU catalogue: GPUs as data (TOML rows), and lookup of a GPU by any of its names.

`records` defines `Gpu`, `catalogue` reads the rows, and `lookup` finds a GPU by name. Example::

    >>> gpu("Tesla T4").streaming_multiprocessors
    40
    >>> len(gpu_names()) > 60
    True
"""

from lightning_predict.hardware.lookup import gpu, gpu_names, peak_flops
from lightning_predict.hardware.records import Gpu

__all__ = ["Gpu", "gpu", "gpu_names", "peak_flops"]
