from __future__ import annotations

import pytest

from lightning_predict.timeline.overheads import SHARED_OVERHEADS, HostModel
from tests.timeline.example_host import OVERHEADS


def test_the_hosts_factor_scales_all_five() -> None:
    single, double = HostModel(), HostModel(factor=2.0)
    for launches in (0, 1, 3):
        one = single.of("forward").seconds(launches=launches)
        assert double.of("forward").seconds(launches=launches) == pytest.approx(2 * one)


def test_an_operation_that_was_timed_has_its_own_and_every_other_its_phases() -> None:
    assert HostModel().of("optimizer") == SHARED_OVERHEADS["optimizer"]
    assert HostModel().of("optimizer", OVERHEADS) == OVERHEADS
    assert HostModel(factor=3.0).of("optimizer", OVERHEADS) == OVERHEADS.scaled(3)
