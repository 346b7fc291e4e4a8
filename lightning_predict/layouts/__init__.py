"""Data-parallel training (DDP, FSDP, ZeRO) on several GPUs: step time with communication, and memory of each GPU."""
