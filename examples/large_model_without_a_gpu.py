"""Predict a training step of models that do not fit on this computer, without a GPU and without their weights.

    python examples/large_model_without_a_gpu.py

On PyTorch's meta device tensors have shapes but no data, so a step of GPT-2 Large (0.8 billion parameters) or of a
2.7-billion-parameter GPT is recorded in seconds.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import lightning_predict as lp


class Block(nn.Module):
    """One transformer layer with fused causal attention."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.perceptron_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.project, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.perceptron = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, data: Tensor) -> Tensor:
        batch, length, hidden = data.shape
        parts = self.project(self.attention_norm(data)).chunk(3, dim=-1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        joined = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        data = data + self.output(joined.transpose(1, 2).reshape(batch, length, hidden))
        result: Tensor = data + self.perceptron(self.perceptron_norm(data))
        return result


class Gpt(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, context: int, vocabulary: int = 50257) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(context, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        data = self.blocks(self.tokens(tokens) + self.positions(places))
        return nn.functional.linear(self.norm(data), self.tokens.weight)


def training_step(model: Gpt, batch: int, length: int) -> Callable[[], None]:
    """A step in bfloat16 with AdamW, as `precision="bf16-true"` runs it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.zeros(batch, length, dtype=torch.int64, device="meta")

    def step() -> None:
        logits = model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    models = {
        "GPT-2 Large, batch 4 x 1024": (36, 1280, 20, 1024, 4),
        "GPT 2.7B, batch 2 x 2048": (32, 2560, 32, 2048, 2),
    }
    for title, (layers, hidden, heads, length, batch) in models.items():
        start = time.perf_counter()
        with torch.device("meta"):
            model = Gpt(layers, hidden, heads, length).to(torch.bfloat16)
        trace = lp.capture(training_step(model, batch, length), samples_per_step=batch)
        result = lp.predict(trace, iterations=10_000)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"\n{title} ({parameters / 1e9:.2f} billion parameters), 10,000 steps")
        print(result)
        print(f"Recorded and predicted in {time.perf_counter() - start:.1f} s on this computer.")


if __name__ == "__main__":
    main()
