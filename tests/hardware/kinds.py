"""GPUs that stand for the catalogue in tests that would be slow with all of it."""

from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.hardware.records import Gpu
from lightning_predict.weights.source import WeightsSource
from lightning_predict.weights.store import load_weights


def one_of_each_kind() -> list[Gpu]:
    """List the GPUs with weights of their own, and of the others the first of each kind.

    A kind is what formulas branch on: the compute capability, the memory, and which dtypes have units or are emulated.
    """
    measured = load_weights(gpu_names(), WeightsSource(offline=True)).gpus
    kinds: dict[object, Gpu] = {}
    for row in map(gpu, gpu_names()):
        dtypes = frozenset(row.peak_flops_per_second), frozenset(row.emulated_dtypes)
        kind = (row.compute_capability, row.memory_kind, row.has_inline_ecc, *dtypes)
        kinds.setdefault(row.name if row.name in measured else kind, row)
    return list(kinds.values())
