"""Steps on several GPUs: how they share a model, what they communicate, and the memory of each GPU."""
