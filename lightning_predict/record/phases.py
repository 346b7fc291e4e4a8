"""Determines the phase of an operation (forward, backward, optimizer) from facts that every recorder knows.

The rules, in this order:

1. Inside `Optimizer.step`, except in its closure: `optimizer`. This includes scaling for mixed precision.
2. While an autograd node runs: `backward`. This includes recomputation by gradient checkpointing.
3. With gradients enabled and an input that requires gradients: `forward`, except reads of a loss (`item`, `detach`).
4. In-place zeroing and copies between devices: `other`.
5. After a backward pass and before the next forward pass: `optimizer` if gradients are disabled (clipping), otherwise
   `other` (metrics).
6. After an optimizer step and before the next forward pass: `other` (averaged weights, metrics).
7. Everything else, such as a forward pass without gradients in validation: `forward`.

Rules 5 and 6 do not apply inside a module's call, which is always a forward pass. Example::

    >>> rules = PhaseRules()
    >>> rules.phase_of("aten::mm", builds_graph=True, grad_enabled=True), rules.phase_of("aten::mm", in_backward=True)
    ('forward', 'backward')
    >>> rules.phase_of("aten::_foreach_norm", grad_enabled=False)
    'optimizer'
"""

from __future__ import annotations

from typing import Final, Literal

from lightning_predict.record.trace import Phase

READS: Final = frozenset({"aten::detach", "aten::_local_scalar_dense", "aten::alias", "aten::is_nonzero"})
"""Operations that read a tensor that has an autograd graph, but do not extend the graph."""

ZEROING: Final = frozenset({"aten::zero_", "aten::_foreach_zero_"})


class PhaseRules:
    """Phase rules of this module as a state machine. Call `phase_of` for each operation, in the order of the host."""

    __slots__ = ("_after",)

    def __init__(self) -> None:
        self._after: Literal["forward", "backward", "step"] = "forward"

    def step_ended(self) -> None:
        """Record that an optimizer step has ended."""
        self._after = "step"

    def phase_of(
        self,
        name: str,
        *,
        in_optimizer: bool = False,
        in_backward: bool = False,
        builds_graph: bool = False,
        grad_enabled: bool = True,
        in_module: bool = False,
        between_devices: bool = False,
    ) -> Phase:
        """Return the phase of the next operation.

        Args:
            name: Qualified name of the operation.
            in_optimizer: Whether the operation runs inside an optimizer step and outside the closure.
            in_backward: Whether an autograd node runs the operation.
            builds_graph: Whether gradients are enabled and an input requires gradients.
            grad_enabled: Whether gradients are enabled.
            in_module: Whether the operation runs inside a module's call.
            between_devices: Whether the operation copies between device types.
        """
        if in_optimizer or name.startswith("aten::_amp_"):
            return "optimizer"
        if in_backward:
            self._after = "backward"
            return "backward"
        if builds_graph and name not in READS:
            self._after = "forward"
            return "forward"
        if name in ZEROING or between_devices:
            return "other"
        if self._after == "forward" or in_module:
            return "forward"
        return "optimizer" if self._after == "backward" and not grad_enabled else "other"
