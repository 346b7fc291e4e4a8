"""How fast recording, prediction, planning and training with the callbacks are, each with a baseline."""
