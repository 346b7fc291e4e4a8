"""Speed, each with a baseline; run with `python -m benchmarks.<name>`."""
