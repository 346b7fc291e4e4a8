"""Measured steps of a CPU, written as files that `regress --layers` reads."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.training.cpu_profiles import measure
from lightning_predict.cli import main
from lightning_predict.record.imports import import_trace
from lightning_predict.regression.layers import layers_of


class Small(nn.Module):
    """A convolution and a linear layer, for images of any size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, channels, 3, stride=4), nn.Linear(channels, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.relu(self.convolution(images)).mean((2, 3)))
        return logits


def test_a_profile_of_one_network_predicts_another_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`regress --layers` refused profiles of a CPU."""
    threads = torch.get_num_threads()
    try:
        measure(tmp_path, sizes=(1, 2), turns=1, networks={"narrow": lambda: Small(8), "wide": lambda: Small(16)})
    finally:
        torch.set_num_threads(threads)
    seconds = json.loads((tmp_path / "steps.json").read_text())["cpu_seconds"]
    assert seconds.keys() == {"narrow", "wide"}
    assert all(time > 0 for own in seconds.values() for time in own.values())
    recordings = ",".join(str(tmp_path / f"narrow_{size}.json.gz") for size in (1, 2))
    assert main(["regress", str(tmp_path / "wide_2.json.gz"), "--layers", recordings]) == 0
    shown = capsys.readouterr().out
    assert "conv2d (float32, forward)" in shown
    assert "layers on the CPU;" in shown


def test_a_profile_of_torch_is_a_recording_of_the_cpu(tmp_path: Path) -> None:
    network, images = Small(8), torch.rand(2, 3, 32, 32)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        network(images).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "profile.json"))
    layers = layers_of(import_trace(str(tmp_path / "profile.json")))
    assert {"conv2d (float32, forward)", "linear (float32, backward)"} <= {layer.kind for layer in layers}
    assert all(layer.seconds > 0 for layer in layers)
