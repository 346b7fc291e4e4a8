"""The GPU catalogue: GPUs as data (TOML rows), and lookup of a GPU by any of its names.

`records` defines `Gpu`, `catalogue` reads the rows, and `lookup` finds a GPU by name. Example::

    >>> gpu("Tesla T4").streaming_multiprocessors
    40
    >>> len(gpu_names()) > 60
    True
"""

from lightning_predict.gpus.lookup import gpu, gpu_names
from lightning_predict.gpus.records import Gpu

<<<<<<< HEAD
__all__ = ["Gpu", "gpu", "gpu_names"]
=======
__all__ = ["DEFAULT_GPUS", "Gpu", "gpu", "gpu_names"]

DEFAULT_GPUS: Final[tuple[str, ...]] = (
    "T4",
    "V100-SXM2-16GB",
    "L4",
    "A10G",
    "L40S",
    "A100-SXM-40GB",
    "A100-SXM-80GB",
    "H100-SXM-80GB",
    "H200-SXM-141GB",
    "B200-SXM-180GB",
)
"""Default list of GPUs: ten that are commonly rented, from the cheapest to the fastest."""
>>>>>>> 2a7a94fc (Words: rewrite docstrings of distributed, gpus, run and weights)
