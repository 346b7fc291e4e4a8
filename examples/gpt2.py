"""Predict a training step of GPT-2 before renting: its time and cost on every GPU with a price.

    python examples/gpt2.py

Nothing is trained, and no GPU or weights are needed: the step is recorded on PyTorch's meta device.
"""

import torch
from large_model_without_a_gpu import Gpt, training_step

import lightning_predict as lp


def main() -> None:
    with torch.device("meta"):
        model = Gpt(layers=12, hidden=768, heads=12, context=1024)
    step = training_step(model, batch=16, length=1024)
    trace = lp.capture(step, precision="bf16-mixed", samples_per_step=16)
    result = lp.predict(trace, iterations=50_000, history=False)
    print(result.ranking(deadline_hours=8), "", result, sep="\n")


if __name__ == "__main__":
    main()
