"""Several GPUs: how they share a model, what they exchange, and how much memory each of them needs."""
