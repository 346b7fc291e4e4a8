"""Make a step of timed work: a host and its device simulated together, and what bounds them."""
