"""Tell an operation's phase of the step from what any recorder can see. Pure Python.

The rules, in this order:

1. Inside `Optimizer.step`, but not inside its closure: `optimizer`. Scaling for mixed precision counts as well.
2. While an autograd node runs: `backward`; a forward that checkpointing recomputes there counts as backward.
3. With gradients on and an input that needs them: `forward`. Reading a loss (`item`, `detach`) does not count.
4. In-place zeroing and copies between devices: `other`.
5. After a backward pass and before the next forward: `optimizer` with gradients off (clipping), else `other` (metrics).
6. After an optimizer's step and before the next forward: `other` (averaged weights, metrics).
7. What is left, such as a validation-like forward without gradients: `forward`.

Rules 5 and 6 do not hold inside a module's call, which is a forward. Example::

    >>> rules = PhaseRules()
    >>> rules.phase_of("aten::mm", builds_graph=True, grad_enabled=True), rules.phase_of("aten::mm", in_backward=True)
    ('forward', 'backward')
    >>> rules.phase_of("aten::_foreach_norm", grad_enabled=False)
    'optimizer'
"""

from __future__ import annotations

from typing import Final, Literal, final

from lightning_predict.tracing.trace import Phase

READS: Final = frozenset({"aten::detach", "aten::_local_scalar_dense", "aten::alias", "aten::is_nonzero"})
"""Operations that look at a tensor with a history without adding to it."""

ZEROING: Final = frozenset({"aten::zero_", "aten::_foreach_zero_"})


@final
class PhaseRules:
    """The rules above as a small state machine: ask for each operation in the order of the host."""

    __slots__ = ("_after",)

    def __init__(self) -> None:
        self._after: Literal["forward", "backward", "step"] = "forward"

    def step_ended(self) -> None:
        """Say that an optimizer's step has ended."""
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
        """Find the phase of the next operation.

        Args:
            name: Qualified name.
            in_optimizer: It runs inside an optimizer's step and outside the step's closure.
            in_backward: An autograd node runs it.
            builds_graph: Gradients are on and one of its inputs needs them.
            grad_enabled: Gradients are on.
            in_module: It runs inside a module's call.
            between_devices: It copies from one kind of device to another.
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
