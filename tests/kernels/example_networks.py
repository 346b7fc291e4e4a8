"""Networks that know one number: the same utilisation for every shape, so that times can be derived by hand."""

import math

import numpy as np

from lightning_predict.kernels.operations import ShapeBatch, network_specs, shape_batch
from lightning_predict.weights.records import CROSS_GPU, GpuWeights, Layer, LoadedWeights, NetworkWeights
from tests.example_gpu import SMALL

LOWEST = 0.01


def _any_shape(family: str) -> ShapeBatch:
    words: dict[str, dict[str, float]] = {
        "matmul_single": {"m": 8, "n": 8, "k": 8},
        "matmul_half": {"m": 8, "n": 8, "k": 8},
        "vector": {"rows": 8, "cols": 8},
        "convolution": {"batch": 1, "in_channels": 1, "out_channels": 1, "kernel_size": 1, "image_size": 8},
        "convolution_tensor": {"batch": 1, "in_channels": 1, "out_channels": 1, "kernel_size": 1, "image_size": 8},
    }
    chosen = network_specs()[family]
    return shape_batch(chosen.operations[0], chosen.dtypes[0], **words[family])


def constant_network(
    family: str, *, utilisation: float, interval: float, trained: tuple[tuple[str, str], ...] = ()
) -> NetworkWeights:
    """One layer whose weights are zero: log(utilisation) = log(LOWEST) x sigmoid(bias)."""
    names = network_specs()[family].feature_names(_any_shape(family), [SMALL])
    share = math.log(utilisation) / math.log(LOWEST)
    bias = math.log(share / (1 - share))
    count = len(names)
    return NetworkWeights(
        family=family,
        trained=frozenset(trained),
        features=names,
        mean=np.zeros(count, np.float32),
        scale=np.ones(count, np.float32),
        low=np.full(count, -100, np.float32),
        high=np.full(count, 100, np.float32),
        lowest_utilisation=LOWEST,
        layers=(Layer(np.zeros((1, count, 1), np.float32), np.full((1, 1), bias, np.float32)),),
        interval={"*": interval},
    )


def constant_weights(family: str, *, utilisation: float, interval: float) -> LoadedWeights:
    """A base alone, of one family."""
    network = constant_network(family, utilisation=utilisation, interval=interval)
    return LoadedWeights(GpuWeights(CROSS_GPU, {family: network}, "constant", 0, ()), {})


def with_own(
    weights: LoadedWeights, gpu: str, family: str, *, utilisation: float, trained: tuple[tuple[str, str], ...]
) -> LoadedWeights:
    """The same with one GPU's own network, whose interval is 5 %."""
    network = constant_network(family, utilisation=utilisation, interval=math.log(1.05), trained=trained)
    own = GpuWeights(gpu, {family: network}, "constant", 0, ())
    return LoadedWeights(weights.cross_gpu_model, {**weights.gpus, gpu: own})
