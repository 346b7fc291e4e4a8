"""No change refuses a recording of a real GPU without naming the missing part, or why it has nothing to change."""

from __future__ import annotations

import pytest

import lightning_predict as lp
from lightning_predict.advice.changes import CHANGES
from lightning_predict.record.data_flow import has_data_flow
from tests.recordings import recording

NAMES = (
    "kineto_resnet50_w0_b_step19",
    "hta_nccl_a100_step5",
    "tl_bertsmall_h100_step6",
    "tl_vit_nsfw_h100_step6",
    "tl_qwen05_h100_step6",
    "param_resnet_2080ti",
)

MISSING = ("recording", "samples a step holds is not known", "capture the same step", "no wait for the loader")
"""How sentences name the missing parts of a recording."""


@pytest.mark.recorded
@pytest.mark.parametrize("name", NAMES)
def test_every_change_applies_or_gives_a_reason(name: str) -> None:
    trace = lp.import_trace(recording(f"{name}.json.gz"))
    assert trace.has_measured_kernels
    reasons = {change.name: change.why_not(trace, None) for change in CHANGES.values()}
    assert all(reason is None or len(reason.split()) >= 4 for reason in reasons.values())
    if not has_data_flow(trace):
        for asks in ("compile", "batch_size", "no_checkpointing"):
            assert any(words in (reasons[asks] or "") for words in MISSING), reasons[asks]
