"""Speed, each beside a baseline; run with `python -m benchmarks.<name>`."""
