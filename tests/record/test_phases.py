"""The rules that sort operations into phases, one after another as a step runs."""

from __future__ import annotations

from lightning_predict.record.phases import PhaseRules


def test_a_plain_step() -> None:
    rules = PhaseRules()
    assert rules.phase_of("aten::addmm", builds_graph=True) == "forward"
    assert rules.phase_of("aten::ones_like") == "forward"
    assert rules.phase_of("aten::mm", in_backward=True, grad_enabled=False) == "backward"
    assert rules.phase_of("aten::_foreach_norm", grad_enabled=False) == "optimizer"  # clipping
    assert rules.phase_of("aten::_foreach_add_", in_optimizer=True, grad_enabled=False) == "optimizer"
    rules.step_ended()
    assert rules.phase_of("aten::lerp_", grad_enabled=False) == "other"  # an average of the weights
    assert rules.phase_of("aten::addmm", builds_graph=True) == "forward"


def test_reading_the_loss_does_not_hide_the_clipping_after_it() -> None:
    rules = PhaseRules()
    rules.phase_of("aten::mm", in_backward=True)
    assert rules.phase_of("aten::_local_scalar_dense", builds_graph=True) == "other"
    assert rules.phase_of("aten::linalg_vector_norm", grad_enabled=False) == "optimizer"


def test_accumulation_goes_back_to_forward() -> None:
    rules = PhaseRules()
    rules.phase_of("aten::mm", in_backward=True)
    assert rules.phase_of("aten::addmm", builds_graph=True) == "forward"
    assert rules.phase_of("aten::sigmoid", grad_enabled=False) == "forward"  # a metric within the forward


def test_a_module_without_gradients_is_a_forward_wherever_it_runs() -> None:
    rules = PhaseRules()
    rules.phase_of("aten::mm", in_backward=True)
    assert rules.phase_of("aten::addmm", grad_enabled=False, in_module=True) == "forward"
    rules.step_ended()
    assert rules.phase_of("aten::addmm", grad_enabled=False, in_module=True) == "forward"


def test_zeroing_and_copies_between_devices_are_other() -> None:
    rules = PhaseRules()
    assert rules.phase_of("aten::zero_") == "other"
    assert rules.phase_of("aten::_foreach_zero_", grad_enabled=False) == "other"
    assert rules.phase_of("aten::_to_copy", between_devices=True) == "other"
    assert rules.phase_of("aten::_to_copy") == "forward"  # a cast


def test_scaling_for_mixed_precision_is_part_of_the_update() -> None:
    assert PhaseRules().phase_of("aten::_amp_foreach_non_finite_check_and_unscale_") == "optimizer"
