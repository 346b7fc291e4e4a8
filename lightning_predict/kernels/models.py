"""The trained models that serve a set of GPUs, loaded once.

Three kinds stand side by side: utilisation networks for what one GPU computes, measured curves for what several
exchange, and the cache model of embedding bags. Example::

    models = kernel_models(("T4", "H100-SXM-80GB"))
    models.supports("linear", "bfloat16"), models.supports("all_reduce", "bfloat16")
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from lightning_predict.gpus import gpu_names as catalogue_names
from lightning_predict.gpus.records import Gpu
from lightning_predict.kernels.collective import CollectiveCurves, bundled_curves
from lightning_predict.kernels.families.embedding import EmbeddingModel
from lightning_predict.kernels.operations import ProblemBatch
from lightning_predict.kernels.timing import Estimate, TimedBy
from lightning_predict.kernels.utilisation import UtilisationModels
from lightning_predict.weights.source import URL_VARIABLE, VARIABLES, AnyWeights, WeightsSource, weights_source


@final
@dataclass(frozen=True)
class BundledModels:
    """Utilisation networks, collective curves and the embedding model behind one interface.

    Attributes:
        notes: What was missing from the weights, in sentences for the user.
    """

    networks: UtilisationModels
    collectives: CollectiveCurves
    embeddings: EmbeddingModel
    notes: tuple[str, ...] = ()

    def supports(self, operation: str, dtype: str) -> bool:
        """Return whether a model serves the operation in this dtype."""
        return any(model.supports(operation, dtype) for model in self._all)

    def timed_by(self, operation: str, dtype: str) -> TimedBy:
        """Say how the model that serves an operation knows it."""
        return self._serving(operation, dtype).timed_by(operation, dtype)

    def has_own_weights(self, gpu_name: str, operation: str, dtype: str) -> bool:
        """Return whether this GPU's own measurements were trained on."""
        return self._serving(operation, dtype).has_own_weights(gpu_name, operation, dtype)

    def estimate(self, batch: ProblemBatch, gpus: Sequence[Gpu]) -> Estimate:
        """Estimate seconds and their 90 % interval, each of shape (gpus, problems)."""
        return self._serving(batch.operation, batch.dtype).estimate(batch, gpus)

    @property
    def _all(self) -> tuple[CollectiveCurves, EmbeddingModel, UtilisationModels]:
        return self.collectives, self.embeddings, self.networks

    def _serving(self, operation: str, dtype: str) -> CollectiveCurves | EmbeddingModel | UtilisationModels:
        """Find the model that serves an operation; the networks say what they do not serve."""
        return next((model for model in self._all if model.supports(operation, dtype)), self.networks)


def kernel_models(gpu_names: tuple[str, ...], weights: AnyWeights = None) -> BundledModels:
    """Load models of the GPUs: an explicit path, the verified cache, the bundled files or the configured address.

    Args:
        gpu_names: Our names; a GPU without weights of its own is served by the base. Those of the catalogue come along,
            since a GPU without measurements is held to the lesser ones that have them.
        weights: Folder, file or address of weights, or a WeightsSource; None searches.

    Raises:
        WeightsError: Weights that cannot be found or trusted.
    """
    source = weights_source(weights)
    # The store reads the environment: a changed setting must not be answered from before the change.
    settings = tuple(os.environ.get(name) for name in VARIABLES)
    is_local = source.offline or (source.url is None and not os.environ.get(URL_VARIABLE))
    catalogue = tuple(catalogue_names())
    # Nothing is fetched for GPUs that were not asked for; without a network, one answer serves for all.
    names = tuple(dict.fromkeys((*catalogue, *gpu_names))) if is_local else gpu_names
    return _loaded(names, catalogue, source, settings)


@lru_cache(maxsize=8)
def _loaded(
    gpu_names: tuple[str, ...],
    beside: tuple[str, ...],
    source: WeightsSource,
    _settings: tuple[str | None, ...],
) -> BundledModels:
    from lightning_predict.weights.store import load_weights  # imports the download libraries: only when needed

    weights = load_weights(gpu_names, source, beside=beside)
    return BundledModels(
        networks=UtilisationModels(weights),
        notes=weights.notes,
        collectives=bundled_curves(),
        embeddings=EmbeddingModel(),
    )
