"""Messages about a recording whose GPU the catalogue does not hold."""

from __future__ import annotations

import pytest

from lightning_predict.hardware.lookup import is_other_vendor
from lightning_predict.record.recorded_on import unknown_gpu_note
from lightning_predict.record.trace import Trace


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AMD Instinct MI300X", True),
        ("Radeon RX 7900 XTX", True),
        ("Intel(R) Data Center GPU Max 1550", True),
        ("Apple M2", True),
        ("NVIDIA GeForce RTX 4090", False),
        ("Tesla V100-SXM2-16GB", False),
    ],
)
def test_other_makers_are_known_by_their_words(name: str, expected: bool) -> None:
    assert is_other_vendor(name) == expected


def test_of_another_makers_gpu_it_is_said_what_is_not_known_and_no_other_is_proposed() -> None:
    trace = Trace(
        operations=(),
        device="cuda",
        recorder="profiler",
        gpu_reported_name="AMD Radeon Graphics 42",
        step_seconds=(0.1,),
    )
    note = unknown_gpu_note(trace)
    assert note == (
        "Recorded on AMD Radeon Graphics 42, which is not NVIDIA's. Its 0 measured kernels are ignored: all times "
        "are predicted from shapes. Only its measured step is known of this GPU."
    )
    assert "V100" not in note
