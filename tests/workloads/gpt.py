"""The GPT of the package's published workloads, with a size for the CPU.

Example::

    logits = Gpt(TINY)(torch.zeros(2, 16, dtype=torch.int64))
"""

from benchmarks.accuracy.workloads.gpt import GPT2_LARGE, GPT2_SMALL, GPT3_2_7B, Gpt, GptConfig

__all__ = ["GPT2_LARGE", "GPT2_SMALL", "GPT3_2_7B", "TINY", "Gpt", "GptConfig"]

TINY = GptConfig(layers=2, hidden=32, heads=4, vocabulary=101, context=16)
