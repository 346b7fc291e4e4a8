"""Other tools that promise memory before a run, on the rows that ours is scored on."""
