"""Segmentation of volumes that others published, next to its prediction."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.segmentation import GPUS, PLANS, main, predicted_epochs


def test_an_epoch_of_volumes_takes_what_its_page_tells() -> None:
    plan, gpu = PLANS[1], "TITAN-RTX"
    measured = plan.seconds[GPUS.index(gpu)]
    low, middle, high = predicted_epochs(plan, [gpu])[gpu]
    assert measured is not None
    assert middle == pytest.approx(measured, rel=0.1)
    assert low < measured < high


def test_networks_are_chosen_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["voxels"])
    assert "expected slices, volumes, more volumes" in capsys.readouterr().err
