"""Small training steps that recorders are tried on: every kind of layer that the kernel models know, and odd loops.

Example::

    step = mixed_step("cpu")      # convolution, norms, LSTM, attention, AdamW with clipping
    step()
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from lightning_predict.record.trace import Operation

Step = Callable[[], object]


class Mixed(nn.Module):
    """Image to sequence to attention: (batch, 3, 8, 8) to (batch, 4, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.perceptron = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16))
        self.recurrent = nn.LSTM(16, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.RMSNorm(16)

    def forward(self, images: Tensor) -> Tensor:
        """Run all of it."""
        sequence = self.perceptron(self.convolution(images).flatten(2))
        sequence = self.recurrent(sequence)[0]
        sequence = self.attention(sequence, sequence, sequence, need_weights=False)[0]
        heads = self.norm(sequence).unflatten(-1, (2, 8)).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)


class Training:
    """A model, its optimizer and data, with a step that advances all three."""

    def __init__(self, model: nn.Module, data: Tensor, *, clip: bool = False, **adamw: Any) -> None:
        self.model = model  # The model
        self.data = data  # Input of each step
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **adamw)  # Its optimizer
        self._clip = clip

    def __call__(self) -> Tensor:
        """One step; returns the loss."""
        self.optimizer.zero_grad()
        loss: Tensor = self.model(self.data).square().mean()
        loss.backward()
        if self._clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss


def mixed_step(device: str, *, clip: bool = True, seed: int = 0, **adamw: Any) -> Training:
    """The model of all layers on a device."""
    torch.manual_seed(seed)
    return Training(Mixed().to(device), torch.randn(2, 3, 8, 8, device=device), clip=clip, **adamw)


def perceptron_step(device: str = "cpu", *, dropout: float = 0.1, seed: int = 0, **adamw: Any) -> Training:
    """Two linear layers with dropout, which uses random numbers."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4)).to(device)
    return Training(model, torch.randn(4, 8, device=device), **adamw)


THAT_MATTER = frozenset(  # Operations whose time decides a step's; how data is laid out between them differs by device
    f"aten::{name}"
    for name in """
addmm mm bmm baddbmm convolution convolution_backward native_layer_norm native_layer_norm_backward native_batch_norm
native_batch_norm_backward max_pool2d_with_indices max_pool2d_with_indices_backward gelu gelu_backward relu
threshold_backward lstm lstm_backward gru gru_backward rnn_tanh rnn_tanh_backward rnn_relu rnn_relu_backward
scaled_dot_product_attention scaled_dot_product_attention_backward _fused_rms_norm _fused_rms_norm_backward
addcdiv_ addcmul_ lerp_ _softmax _softmax_backward_data _log_softmax nll_loss_forward embedding embedding_dense_backward
""".split()
)

Key = tuple[str, str, tuple[tuple[tuple[int, ...], str], ...]]


def counted(operations: Iterable[Operation]) -> Counter[Key]:
    """Operations that matter, by name, phase, and shapes and dtypes of the inputs."""
    return Counter(
        (operation.name, operation.phase, tuple((tensor.shape, tensor.dtype) for tensor in operation.inputs))
        for operation in operations
        if operation.name in THAT_MATTER
    )


def names(operations: Iterable[Operation], phase: str | None = None) -> list[str]:
    """Names in order, of one phase or of all."""
    return [operation.name for operation in operations if phase in (None, operation.phase)]
