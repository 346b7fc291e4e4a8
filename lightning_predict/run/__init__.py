"""The rest of a run: what is still to come, how long it takes, and what earlier runs say of it."""
