"""Training of a diffusion model that NVIDIA published, next to its prediction."""

from __future__ import annotations

import torch

from benchmarks.accuracy.diffusion import ROWS, SecondHalf, Training, predicted


def test_a_step_of_controlnet_takes_what_its_page_tells() -> None:
    row = ROWS[0]
    found = predicted(row)
    measured = row.batch / row.samples_per_second
    assert found.iteration_seconds_low < measured < found.iteration_seconds_high
    memory = found.memory.process
    assert memory is not None
    assert 0.8 < memory.middle / 1e9 / row.gigabytes < 1.1


def test_the_networks_are_as_large_as_stable_diffusions() -> None:
    with torch.device("meta"):
        network = Training(fused=True)
    millions = {
        name: sum(parameter.numel() for parameter in part.parameters()) / 1e6 for name, part in network.named_children()
    }
    # Stable Diffusion 1.5: a U-Net of 860 million, ControlNet of 361 million with its hint and its answers.
    assert isinstance(network.second, SecondHalf)
    assert round(millions["first"] + millions["second"]) == 860
    assert round(millions["trained"]) == 361
