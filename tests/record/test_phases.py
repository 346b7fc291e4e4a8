"""Rules that sort operations into phases, in the order of a step."""

from typing import Any

import pytest

from lightning_predict.record.phases import PhaseRules

Call = tuple[str, dict[str, Any], str]  # Name of an operation, facts about it, and its expected phase

NO_GRAD = {"grad_enabled": False}
BACKWARD: Call = ("aten::mm", {"in_backward": True, **NO_GRAD}, "backward")
FORWARD: Call = ("aten::addmm", {"builds_graph": True}, "forward")
STEP_ENDS: Call = ("", {}, "")


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(
            [
                FORWARD,
                ("aten::ones_like", {}, "forward"),
                BACKWARD,
                ("aten::_foreach_norm", NO_GRAD, "optimizer"),  # clipping
                ("aten::_foreach_add_", {"in_optimizer": True, **NO_GRAD}, "optimizer"),
                STEP_ENDS,
                ("aten::lerp_", NO_GRAD, "other"),  # an average of the weights
                FORWARD,
            ],
            id="plain step",
        ),
        pytest.param(
            [
                BACKWARD,
                ("aten::_local_scalar_dense", {"builds_graph": True}, "other"),
                ("aten::linalg_vector_norm", NO_GRAD, "optimizer"),
            ],
            id="loss read before clipping",
        ),
        pytest.param([BACKWARD, FORWARD, ("aten::sigmoid", NO_GRAD, "forward")], id="accumulation with a metric"),
        pytest.param(
            [
                BACKWARD,
                ("aten::addmm", {"in_module": True, **NO_GRAD}, "forward"),
                STEP_ENDS,
                ("aten::addmm", {"in_module": True, **NO_GRAD}, "forward"),
            ],
            id="module without gradients",
        ),
        pytest.param(
            [
                ("aten::zero_", {}, "other"),
                ("aten::_foreach_zero_", NO_GRAD, "other"),
                ("aten::_to_copy", {"between_devices": True}, "other"),
                ("aten::_to_copy", {}, "forward"),  # a cast
            ],
            id="zeroing and copies",
        ),
        pytest.param([("aten::_amp_foreach_non_finite_check_and_unscale_", {}, "optimizer")], id="loss scaling"),
    ],
)
def test_phases_follow_the_order_of_a_step(calls: list[Call]) -> None:
    rules = PhaseRules()
    for call in calls:
        name, facts, phase = call
        if call is STEP_ENDS:
            rules.step_ended()
        else:
            assert rules.phase_of(name, **facts) == phase, name
