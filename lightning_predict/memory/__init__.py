"""Memory of a step: its storages, torch's allocator, and what CUDA's libraries add."""
