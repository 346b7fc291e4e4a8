"""Distributed training (DDP, FSDP, ZeRO) on several GPUs: the step time with communication, and each GPU's memory."""
