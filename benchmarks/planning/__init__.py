"""Study planners on random jobs: `python -m benchmarks.planning`. Not in the wheel; the simulator itself is."""
