"""Shard embedding tables over several GPUs: what each way costs in time and memory, and which is fastest."""
