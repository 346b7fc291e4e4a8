import itertools
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lightning_predict.base.files import CACHE_VARIABLE, HISTORY_VARIABLE
from lightning_predict.hardware import gpu, gpu_names
from lightning_predict.kernels.models import (
    BLOCK_ROWS,
    STRIP_ROWS,
    THREADED_BLOCKS,
    BundledModels,
    UtilisationModels,
    kernel_models,
    predict_log_utilisations,
)
from lightning_predict.kernels.operations import Array, ShapeBatch, operation_shape, shape_batch
from lightning_predict.kernels.timing import predict_operation_times
from lightning_predict.weights.records import Float32Array, Layer, NetworkWeights
from lightning_predict.weights.source import WeightsSource
from lightning_predict.weights.store import load_weights
from tests.kernels.example_networks import constant_network, constant_weights, with_own

FEATURES = len(constant_network("vector", utilisation=0.5, interval=0.1).features)


def random_network(seed: int) -> NetworkWeights:
    """Three members of two hidden layers, none of them a multiple of a strip."""
    draw = np.random.default_rng(seed)
    widths = [FEATURES, 20, 11, 1]
    layers = tuple(
        Layer(
            draw.normal(size=(3, a, b)).astype(np.float32) / np.float32(np.sqrt(a)),
            draw.normal(size=(3, b)).astype(np.float32),
        )
        for a, b in itertools.pairwise(widths)
    )
    plain = constant_network("vector", utilisation=0.5, interval=0.1)
    mean = draw.normal(size=FEATURES).astype(np.float32)
    return replace(plain, layers=layers, mean=mean, low=mean - 1, high=mean + 1)


def by_definition(network: NetworkWeights, row: Float32Array) -> float:
    """One row through one member after the other, in float64."""
    inputs = (np.clip(row, network.low, network.high) - network.mean) / network.scale
    shares = []
    for member in range(network.layers[0].members):
        values: npt.NDArray[np.float64] = inputs.astype(np.float64)
        for layer in network.layers[:-1]:
            values = np.maximum(values @ layer.weight[member] + layer.bias[member], 0)
        last = network.layers[-1]
        shares.append(1 / (1 + np.exp(-(values @ last.weight[member] + last.bias[member])[0])))
    return float(np.log(network.lowest_utilisation) * np.mean(shares))


@pytest.mark.parametrize("shapes", [1, STRIP_ROWS - 1, STRIP_ROWS, 2 * STRIP_ROWS + 3])
def test_estimate_of_a_row_is_independent_of_its_neighbours(shapes: int) -> None:
    one, other = random_network(1), random_network(2)
    rows = np.random.default_rng(0).normal(size=(3 * shapes, FEATURES)).astype(np.float32)
    owners = np.tile([0, 2, 1], shapes)
    networks = [one, other, one]
    together = predict_log_utilisations(networks, owners, rows)
    expected = [by_definition(networks[owner], row) for owner, row in zip(owners, rows, strict=True)]
    np.testing.assert_allclose(together, expected, rtol=1e-5)


def test_blocks_shared_by_threads_keep_their_order_and_no_rows_give_nothing() -> None:
    network = random_network(3)
    count = THREADED_BLOCKS * BLOCK_ROWS + 7
    rows = np.random.default_rng(0).normal(size=(count, FEATURES)).astype(np.float32)
    threads, torch_threads = threading.active_count(), torch.get_num_threads()
    together = predict_log_utilisations([network], np.zeros(count, dtype=np.intp), rows)
    assert (threading.active_count(), torch.get_num_threads()) == (threads, torch_threads)  # none is left behind
    parts = [rows[start : start + 500] for start in range(0, count, 500)]
    apart = [predict_log_utilisations([network], np.zeros(len(part), dtype=np.intp), part) for part in parts]
    np.testing.assert_allclose(together, np.concatenate(apart), rtol=1e-6)
    empty = np.zeros((0, FEATURES), np.float32)
    assert predict_log_utilisations([], np.zeros(0, dtype=np.intp), empty).shape == (0,)
    assert predict_log_utilisations([random_network(3)], np.zeros(0, dtype=np.intp), empty).shape == (0,)


def _batches() -> list[ShapeBatch]:
    draw = np.random.default_rng(0)
    sizes = 2.0 ** draw.integers(3, 13, size=(3, 9))
    m, n, k = sizes + draw.integers(0, 3, size=(3, 9))
    return [
        shape_batch("linear", "float32", m=m, n=n, k=k),
        shape_batch("bmm", "bfloat16", b=4, m=m, n=n, k=k),
        shape_batch("conv2d", "float32", batch=8, in_channels=m, out_channels=n, image_size=28, kernel_size=3),
        shape_batch("softmax", "float32", rows=m, cols=n),
    ]


@pytest.mark.parametrize("batch", _batches(), ids=lambda batch: f"{batch.operation}-{batch.dtype}")
def test_all_gpus_at_once_are_the_loop_over_gpus_and_shapes(batch: ShapeBatch) -> None:
    gpus = [gpu(name) for name in gpu_names()]
    models = UtilisationModels(load_weights(gpu_names(), WeightsSource(offline=True)))
    together = models.estimate(batch, gpus)
    for column in range(len(batch)):
        words: dict[str, Array] = {word: values[column : column + 1] for word, values in batch.columns.items()}
        single = ShapeBatch(batch.operation, batch.dtype, words)
        for row in range(column, len(gpus), len(batch)):  # every GPU comes up
            alone = models.estimate(single, [gpus[row]])
            for end in ("low", "middle", "high"):
                actual, expected = (getattr(times.interval, end) for times in (together, alone))
                np.testing.assert_allclose(actual[row, column], expected[0, 0], rtol=1e-5)


def test_only_settings_of_weights_load_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = kernel_models(("T4",))
    monkeypatch.setenv(HISTORY_VARIABLE, str(tmp_path / "another.jsonl"))
    assert kernel_models(("T4",)) is loaded
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert kernel_models(("T4",)) is not loaded


CARDS = [gpu("H200-SXM-141GB"), gpu("L4")]
SIZES = {"batch": 64, "in_channels": 256, "out_channels": 256, "kernel_size": 3, "image_size": 56, "padding": 1}


def models(trained: tuple[tuple[str, str], ...]) -> tuple[BundledModels, BundledModels]:
    """Models without and with the H200's own network, at a utilisation of a tenth."""
    shipped = constant_weights("matmul_half", utilisation=0.5, interval=0.2)
    own = with_own(shipped, CARDS[0].name, "convolution_tensor", utilisation=0.1, trained=trained)
    before, after = (BundledModels(UtilisationModels(weights)) for weights in (shipped, own))
    return before, after


def test_own_weights_time_their_dtypes_on_their_gpu_alone() -> None:
    """They were trained and never used: only families of the cross-GPU weights counted as supported."""
    before, after = models((("conv2d", "float16"),))
    convolution = operation_shape("conv2d", "float16", **SIZES)
    old, new = (predict_operation_times([convolution], CARDS, networks) for networks in (before, after))
    assert (new.shares["mlp"][0, 0], new.extrapolated_share[0, 0]) == (1.0, 0.0)
    assert new.seconds[0, 0] > 2 * old.seconds[0, 0]
    assert new.seconds[1, 0] == pytest.approx(old.seconds[1, 0])
    before, after = models((("conv2d", "float16"),))
    other = operation_shape("conv2d_backward_input", "tf32", **SIZES)
    old, new = (predict_operation_times([other], CARDS[:1], networks) for networks in (before, after))
    assert new.shares["formula"] == old.shares["formula"]
    assert new.seconds == pytest.approx(old.seconds)
