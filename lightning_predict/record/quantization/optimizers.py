"""`BlockwiseAdamW`: AdamW with the states and the update of bitsandbytes, on the meta device.

Example::

    optimizer = BlockwiseAdamW(model.parameters(), bits=8)               # bnb.optim.AdamW8bit
    optimizer = BlockwiseAdamW(model.parameters(), bits=8, paged=True)   # bnb.optim.PagedAdamW8bit
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any, Final, Literal, final

import torch
from torch import Tensor, nn

from lightning_predict.base.errors import InvalidArgumentError
from lightning_predict.record.absent_cuda import note_paged_states
from lightning_predict.record.quantization.layers import LIBRARY

LIBRARY.define("optimizer_update_blockwise(Tensor gradient, Tensor(a!) parameter, Tensor(b!)[] states) -> ()")
LIBRARY.impl("optimizer_update_blockwise", lambda *_tensors: None, "Meta")


def paged_state(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an optimizer state in paged memory, which torch's allocator does not contain.

    The state has the shape of its parameter and a storage of one element: updates move the whole state, but it takes no
    memory.
    """
    return torch.zeros((), dtype=dtype, device=parameter.device).expand(parameter.shape)


@final
class BlockwiseAdamW(torch.optim.Optimizer):
    """AdamW with states of 8 bits per value and a float32 scale per block of 256 values, or with 32-bit states.

    Args:
        params: Trained parameters, on the meta device.
        bits: Bits per value of the states. States of fewer than 4,096 values keep 32 bits.
        paged: Whether to keep states of at least 100,000 values in paged memory.
    """

    block, least_values, least_paged_values, levels = 256, 4096, 100_000, 256

    def __init__(self, params: Iterable[nn.Parameter], *, bits: Literal[8, 32] = 8, paged: bool = False) -> None:
        super().__init__(params, {})
        self.bits, self.paged = bits, paged
        self.maps: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update each parameter in one kernel. A closure that computes the loss again is not supported."""
        if closure is not None:
            raise InvalidArgumentError("BlockwiseAdamW.step takes no closure; compute the loss before.")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                states = self.state[parameter]
                if not states:
                    states.update({f"state{number}": one for number, one in enumerate(self._states(parameter), 1)})
                listed = list(states.values())
                if listed[0].stride() != parameter.stride():
                    note_paged_states(parameter, sum(one.numel() * one.element_size() for one in listed[:2]))
                torch.ops.lightning_predict.optimizer_update_blockwise(parameter.grad, parameter, listed)

    def _states(self, parameter: nn.Parameter) -> tuple[Tensor, ...]:
        """Return two moments; with 8 bits, also their scales and the table of 256 levels, which all tensors share."""
        values = parameter.numel()
        is_small = self.bits == 8 and values < self.least_values
        dtype = torch.float32 if self.bits == 32 or is_small else torch.uint8
        is_paged = self.paged and values >= self.least_paged_values
        moments = tuple(
            paged_state(parameter, dtype) if is_paged else torch.zeros_like(parameter, dtype=dtype) for _ in range(2)
        )
        if dtype is torch.float32:
            return moments
        with parameter.device:
            self.maps = self.maps or (torch.empty(self.levels), torch.empty(self.levels))
            return *moments, torch.zeros(ceil(values / self.block)), torch.zeros(ceil(values / self.block)), *self.maps


OPTIMIZERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "adamw_8bit": ("AdamW with states in 8 bits", {"bits": 8}),
    "paged_adamw_8bit": ("paged AdamW with states in 8 bits", {"bits": 8, "paged": True}),
    "paged_adamw_32bit": ("paged AdamW", {"bits": 32, "paged": True}),
}
"""Names in Hugging Face's `TrainingArguments`, with a description and options."""
