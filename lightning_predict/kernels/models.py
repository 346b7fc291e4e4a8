"""The trained models that serve a set of GPUs, loaded once.

Example::

    models = kernel_models(("T4", "H100-SXM-80GB"))
    models.supports("linear", "bfloat16")
"""

from __future__ import annotations

import os
from functools import lru_cache

from lightning_predict.kernels.utilisation import UtilisationModels


def kernel_models(gpu_names: tuple[str, ...], path: str | None = None) -> UtilisationModels:
    """Models of the GPUs, from an explicit path, the verified cache, the bundled files or the configured address.

    Args:
        gpu_names: Our names; a GPU without weights of its own is served by the base.
        path: Folder or file of weights; None searches.

    Raises:
        WeightsError: Weights that cannot be found, fetched or trusted.
    """
    # The store reads the environment: a changed setting must not be answered from before the change.
    settings = tuple(sorted((key, value) for key, value in os.environ.items() if key.startswith("LIGHTNING_PREDICT_")))
    return _loaded(gpu_names, path, settings)


@lru_cache(maxsize=8)
def _loaded(gpu_names: tuple[str, ...], path: str | None, _settings: tuple[tuple[str, str], ...]) -> UtilisationModels:
    from lightning_predict.weights.store import load_weights  # brings the download libraries: only when needed

    return UtilisationModels(load_weights(gpu_names, path=path))
