"""Compiled training of GPT-2 against public times."""

from typing import Final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lightning_predict as lp

MEASURED: Final = {
    (50257, "", False): 0.300,
    (50257, "compile", False): 0.130,
    (50257, "compile", True): 0.096,
    (50304, "compile", True): 0.093,
}
"""Seconds of a step by number of words, kernels, and whether attention is one call: 16 x 1,024 tokens in bf16-mixed on
an A100-SXM-80GB, in a public lecture of 2024."""


class Gpt2(nn.Module):
    """GPT-2 of 124 M parameters without dropout, as the lecture of 2024 writes it."""

    def __init__(self, words: int, *, is_fused: bool) -> None:
        super().__init__()
        self.table, self.places, self.is_fused = nn.Embedding(words, 768), nn.Embedding(1024, 768), is_fused
        self.norms = nn.ModuleList(nn.LayerNorm(768) for _ in range(25))
        sides = ((1, 3), (1, 1), (1, 4), (4, 1)) * 12
        self.layers = nn.ModuleList(nn.Linear(768 * i, 768 * o) for i, o in sides)
        self.head = nn.Linear(768, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        data = self.table(tokens) + self.places(torch.arange(1024, device=tokens.device))
        mask = torch.ones(1024, 1024, dtype=torch.bool, device=tokens.device).tril()
        for block in range(12):
            parts, out, wide, narrow = self.layers[4 * block : 4 * block + 4]
            heads = parts(self.norms[2 * block](data)).unflatten(-1, (3, 12, 64)).permute(2, 0, 3, 1, 4)
            if self.is_fused:
                mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            else:
                scores = (heads[0] @ heads[1].mT * 0.125).masked_fill(~mask, -torch.inf)
                mixed = scores.softmax(-1) @ heads[2]
            data = data + out(mixed.transpose(1, 2).flatten(2))
            data = data + narrow(functional.gelu(wide(self.norms[2 * block + 1](data)), approximate="tanh"))
        return functional.cross_entropy(self.head(self.norms[-1](data)).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize(("words", "kernels", "is_fused"), MEASURED)
def test_compiled_training_takes_what_a_lecture_measured(words: int, kernels: str, is_fused: bool) -> None:
    with torch.device("meta"):
        model, tokens = Gpt2(words, is_fused=is_fused), torch.zeros(16, 1024, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    prediction = lp.predict(lp.capture(step), ["A100-SXM-80GB"], history=False, kernels=kernels)["A100-SXM-80GB"]
    measured = MEASURED[words, kernels, is_fused]
    assert prediction.iteration_seconds == pytest.approx(measured, rel=0.1)
    assert prediction.iteration_seconds_low <= measured <= prediction.iteration_seconds_high
