"""Sweeps are the package's own predictions, in the form of past runs."""

from __future__ import annotations

import pytest
import torch

import lightning_predict as lp
from benchmarks.accuracy.regressions import (
    ITERATIONS,
    SWEPT_MODELS,
    depth_sweep,
    recorded_step,
    resnet_of,
    runs_from,
    simulated_sweep,
)
from lightning_predict.base.errors import InvalidArgumentError


def test_a_recorded_step_is_a_whole_one_in_float32() -> None:
    trace = recorded_step(SWEPT_MODELS["AlexNet"], 4)
    assert {operation.phase for operation in trace.operations} >= {"forward", "backward", "optimizer"}
    assert (trace.samples, trace.device) == (4, "meta")
    assert not trace.flags.matmul_tf32
    assert not trace.flags.cudnn_tf32
    # Momentum is there, and no parameter is left out.
    assert trace.memory.optimizer_state_bytes == trace.memory.gradient_bytes


def test_runs_are_the_predictions_of_the_step() -> None:
    trace = recorded_step(SWEPT_MODELS["AlexNet"], 8)
    runs = runs_from("AlexNet", {8: trace}, ["T4", "2xT4"])
    expected = lp.predict(trace, ["T4", "2xT4"], history=False)
    assert [run.seconds for run in runs] == [expected[name].iteration_seconds * ITERATIONS for name in ("T4", "2xT4")]
    assert [(run.setting.gpu, run.setting.num_gpus, run.setting.batch_size) for run in runs] == [
        ("T4", 1, 8),
        ("T4", 2, 8),
    ]
    assert runs[1].seconds > runs[0].seconds  # the gradients are exchanged


def test_more_samples_take_longer() -> None:
    first, second = simulated_sweep("AlexNet", batch_sizes=(4, 64), gpus=["V100-PCIe-32GB"])
    assert first.seconds < second.seconds


def test_deeper_networks_take_longer() -> None:
    runs = depth_sweep(inner_modules=(1, 2), batch_sizes=(2,), gpus=["T4"])
    assert [run.setting.inner_modules for run in runs] == [1, 2]
    assert runs[0].seconds < runs[1].seconds
    assert {run.model for run in runs} == {"ResNet"}


def test_a_resnet_of_3_4_6_and_3_is_between_those_of_3_and_6() -> None:
    def parameters(depth: int) -> int:
        return sum(one.numel() for one in resnet_of(depth).parameters())

    assert parameters(3) < 25_557_032 < parameters(6)


def test_every_model_learns_what_its_batch_holds() -> None:
    for model in SWEPT_MODELS.values():
        with torch.device("meta"):
            network, (data, labels) = model.network(), model.batch(2)
            logits = network(data)
        assert logits.shape[:-1] == labels.shape


def test_a_model_without_a_sweep() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^'LeNet' has no sweep; choose one of AlexNet, ResNet-50, VGG-19,"):
        simulated_sweep("LeNet", batch_sizes=(1,), gpus=["T4"])
