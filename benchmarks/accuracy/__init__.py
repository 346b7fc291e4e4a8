"""How accurate predictions are, as a user gets them: `python -m benchmarks.accuracy NAME --data DATA`."""
