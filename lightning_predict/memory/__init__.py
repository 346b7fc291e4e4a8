"""Memory of a step: its storages, torch's caching allocator, and CUDA libraries."""
